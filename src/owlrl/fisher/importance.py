"""`squared_gradients`: the mean over rows of each row's squared gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from owlrl._arguments import Arguments
from owlrl.errors import NonFiniteError, raise_problems
from owlrl.fisher._closed_form import NotExactError, closed_form
from owlrl.fisher._problem import Problem, Rows, Sums, accumulator, distinct_rows, undisturbed

__all__ = ["squared_gradients"]

Path = Callable[[Problem, Rows], Sums]

PROBE_ROWS = 2
PROBE_TOLERANCE = 1e-3  # a wrong form is off by factors, rounding by far less than this
GRADIENT_ELEMENTS = 1 << 23  # per-row gradients held at once
SLOW_ROWS = 256  # from so many rows on, a fall to the loop is worth a warning


def squared_gradients(
    module: nn.Module,
    objective: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    *,
    targets: Sequence[Tensor] = (),
    weights: Tensor | None = None,
    parameters: Iterable[str] | None = None,
    method: Literal["auto", "hooks", "vmap", "loop"] = "auto",
    chunk_size: int = 1024,
) -> dict[str, Tensor]:
    """Mean over rows of the squared gradient of each row: ``Σ_b w_b (∂ objective_b / ∂θ)² / Σ_b w_b``.

    The diagonal of the empirical Fisher information if the objective is a log-likelihood.
    Squares are averaged; the square of an averaged gradient is a different and much smaller
    thing. The module is called in evaluation mode and left as it was: modes, buffers,
    gradients, ``requires_grad`` and random numbers.

    Args:
        module: the network; called as ``module(*inputs)``.
        objective: ``objective(module_output, *targets) -> (B,)``, one number per row.
        inputs: tensors of N rows each; moved to the parameters' device piece by piece.
        targets: tensors of N rows each that the objective needs beside the output.
        weights: (N,) numbers >= 0, how much each row counts; all alike by default.
        parameters: names to differentiate by; by default all that require a gradient.
        method: "hooks" catches every ``F.linear`` and ``F.conv2d`` of one forward and backward
            pass and squares in closed form; "vmap" vectorises over rows; "loop" takes one row at
            a time. The first two are checked on two rows against the loop and refuse where they
            are not exact; "auto" takes the first of the three that is, and warns where that is the
            loop and there are many rows. Except for "loop", repeated rows are computed once.
        chunk_size: rows per forward pass.

    Returns:
        A tensor per name, of the parameter's shape, in float32 or wider; zeros for a parameter
        that takes no part.

    Raises:
        NonFiniteError: a result is NaN or infinite.

    The gradient of ``w · x`` is ``x``; its mean square over x = 1, 2, 3 is 14/3:

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.fisher import squared_gradients
    >>> layer = nn.Linear(1, 1, bias=False)
    >>> x = torch.tensor([[1.0], [2.0], [3.0]])
    >>> squared_gradients(layer, lambda out: out.squeeze(-1), (x,))
    {'weight': tensor([[4.6667]])}
    """
    # a bare tensor would be taken apart into its rows: wrapped once more, it is found to be wrong
    inputs, targets = (([x],) if isinstance(x, Tensor) else tuple(x) for x in (inputs, targets))
    known = dict(module.named_parameters(remove_duplicate=False)) if isinstance(module, nn.Module) else {}
    if parameters is None:
        parameters = [n for n, p in module.named_parameters() if p.requires_grad] if known else []
    names = list(parameters)
    arguments = Arguments("squared_gradients")
    chunk_size = arguments.integer("chunk_size", chunk_size)
    arguments.choice("method", method, ("auto", *PATHS))
    arguments.problems += _problems(module, inputs, targets, weights, known, names)
    arguments.check()
    unique = {id(known[name]): name for name in reversed(names)}  # a tied parameter is differentiated once
    problem = Problem(module, objective, {name: known[name] for name in reversed(unique.values())})
    if not problem.parameters:
        return {}
    weight = torch.ones(len(inputs[0]), device=inputs[0].device) if weights is None else weights.detach()
    with undisturbed(problem):
        sums = _sums(problem, Rows(inputs, targets, weight.sqrt()), method, chunk_size)
    total = weight.sum(dtype=torch.float64).item()
    means = {name: sums[unique[id(known[name])]] / total for name in names}
    _check_finite(means)
    return means


def _sums(problem: Problem, rows: Rows, method: str, chunk_size: int) -> Sums:
    """Sums by the asked path, or by the first one that is exact."""
    if method == "loop":
        return _run(one_by_one, problem, rows, chunk_size)
    few = distinct_rows((*rows.inputs, *rows.targets), rows.root_weight.square())
    if few is not None:
        rows = replace(rows.take(few[0]), root_weight=few[1].sqrt())
    probe = replace(
        rows.take(slice(0, PROBE_ROWS)), root_weight=rows.root_weight.new_ones(len(rows))[:PROBE_ROWS]
    )
    expected = _run(one_by_one, problem, probe, PROBE_ROWS)
    _check_finite(expected)
    causes: dict[str, Exception] = {}
    for name in ("hooks", "vmap") if method == "auto" else (method,):
        try:
            _check_agreement(name, _run(PATHS[name], problem, probe, PROBE_ROWS), expected)
            return _run(PATHS[name], problem, rows, chunk_size)
        except Exception as error:
            # whatever a path stumbled over, the loop shows it as the user's own code would
            if method != "auto":
                raise
            causes[name] = error
    if len(rows) >= SLOW_ROWS:
        _warn(problem.module, causes, len(rows))
    return _run(one_by_one, problem, rows, chunk_size)


def _warn(module: nn.Module, causes: Mapping[str, Exception], rows: int) -> None:
    """Say that it will take long, at which layer the fast paths failed, and why."""
    error = causes["hooks"]
    layer = ""
    if isinstance(error, NotExactError) and error.parameter is not None:
        path = error.parameter.rpartition(".")[0]
        layer = f", at its {type(module.get_submodule(path)).__name__} {path!r}"
    reasons = "; ".join(f'"{name}": {_first_line(e)}' for name, e in causes.items())
    warnings.warn(
        f"squared_gradients: {type(module).__name__}{layer} has no fast path, so {rows} rows are "
        f"differentiated one by one, which takes milliseconds each ({reasons}). Fewer rows "
        "(EWCRegularizer(max_samples=...)) or linear and conv2d layers used once are faster",
        UserWarning,
        stacklevel=4,
    )


def _first_line(error: Exception) -> str:
    text = error.reason if isinstance(error, NotExactError) else str(error)
    return next(iter(text.splitlines()), type(error).__name__)


def _check_finite(values: Sums) -> None:
    bad = [f"the result for {name!r} is not finite" for name, m in values.items() if not m.isfinite().all()]
    raise_problems("squared_gradients", bad, kind=NonFiniteError)


def _run(path: Path, problem: Problem, rows: Rows, chunk_size: int) -> Sums:
    total = {name: accumulator(p) for name, p in problem.parameters.items()}
    for piece in rows.chunks(chunk_size, problem.device):
        for name, value in path(problem, piece).items():
            total[name] += value
    return total


def _check_agreement(method: str, got: Sums, expected: Sums) -> None:
    largest = max(float(value.max()) for value in expected.values())
    for name, value in expected.items():
        allowed = PROBE_TOLERANCE * float(value.max()) + PROBE_TOLERANCE**3 * largest
        if not float((got[name] - value).abs().max()) <= allowed:  # false for NaN as well
            reason = f"{name!r} differs from the loop; rows may influence each other"
            raise NotExactError(reason, method=method, parameter=name)


def one_by_one(problem: Problem, rows: Rows) -> Sums:
    """The definition: differentiate each row by itself, square, add."""
    sums = {name: accumulator(p) for name, p in problem.parameters.items()}
    wanted = tuple(problem.parameters.values())
    for row in range(len(rows)):
        value = problem.values(rows.take(slice(row, row + 1))).sum()
        if not value.requires_grad:
            continue
        grads = torch.autograd.grad(value, wanted, allow_unused=True)
        for total, gradient in zip(sums.values(), grads, strict=True):
            if gradient is not None:
                total += gradient.to(total.dtype).square()
    return sums


def vectorized(problem: Problem, rows: Rows) -> Sums:
    """The same with ``torch.func``, as many rows at once as their gradients fit in memory."""

    def value(
        parameters: Mapping[str, Tensor],
        inputs: tuple[Tensor, ...],
        targets: tuple[Tensor, ...],
        root_weight: Tensor,
    ) -> Tensor:
        output = functional_call(problem.module, dict(parameters), tuple(x.unsqueeze(0) for x in inputs))
        one = problem.weighted(output, tuple(t.unsqueeze(0) for t in targets), root_weight.unsqueeze(0))
        return one.squeeze(0)

    parameters = {name: p.detach() for name, p in problem.parameters.items()}
    sums = {name: accumulator(p) for name, p in parameters.items()}
    size = max(1, GRADIENT_ELEMENTS // sum(p.numel() for p in parameters.values()))
    per_row = vmap(grad(value), in_dims=(None, 0, 0, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        for piece in rows.chunks(size, problem.device):
            for name, gradient in per_row(parameters, piece.inputs, piece.targets, piece.root_weight).items():
                # an objective may ask other networks too (an actor's loss its critics)
                sums[name] += gradient.detach().to(sums[name].dtype).square().sum(0)
    return sums


PATHS: dict[str, Path] = {"hooks": closed_form, "vmap": vectorized, "loop": one_by_one}


def _problems(
    module: object,
    inputs: tuple[Tensor, ...],
    targets: tuple[Tensor, ...],
    weights: object,
    known: dict[str, nn.Parameter],
    names: list[str],
) -> list[str]:
    found = []
    if not isinstance(module, nn.Module):
        found.append(f"module is a {type(module).__name__}; expected an nn.Module")
    elif unknown := [name for name in names if name not in known]:
        found.append(f"parameters names {unknown}; expected names from {list(known)}")
    if not inputs:
        found.append("inputs is empty; expected at least one tensor of N rows")
    wrong = [type(x).__name__ for x in (*inputs, *targets) if not isinstance(x, Tensor)]
    if wrong:
        found.append(f"inputs and targets hold {wrong}; expected tensors; pass (x,) for a single one")
        return found
    lengths = [len(x) if x.dim() else None for x in (*inputs, *targets)]
    if lengths and (None in lengths or len(set(lengths)) > 1 or lengths[0] == 0):
        found.append(f"inputs and targets have {lengths} rows; expected the same number >= 1 in all")
    elif weights is not None and inputs:
        found += weight_problems("weights", weights, len(inputs[0]))
    return found


def weight_problems(name: str, weights: object, rows: int) -> list[str]:
    """What is wrong with weights of ``rows`` rows: expected (rows,) finite numbers >= 0, not all 0."""
    if not isinstance(weights, Tensor) or weights.shape != (rows,) or not weights.is_floating_point():
        got = (
            f"{weights.dtype} {tuple(weights.shape)}"
            if isinstance(weights, Tensor)
            else type(weights).__name__
        )
        return [f"{name} is {got}; expected a floating tensor ({rows},), one weight per row"]
    if not (weights.isfinite().all() and (weights >= 0).all() and weights.sum() > 0):
        return [f"{name} holds negative or not finite numbers, or only 0; expected numbers >= 0"]
    return []
