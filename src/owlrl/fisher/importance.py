"""`squared_gradients`: the mean over rows of each row's squared gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from owlrl.errors import NonFiniteError, raise_problems
from owlrl.fisher._closed_form import NotExactError, closed_form
from owlrl.fisher._distinct import distinct_rows
from owlrl.fisher._per_row import one_by_one, vectorized
from owlrl.fisher._problem import Problem, Rows, Sums, accumulator, undisturbed

__all__ = ["squared_gradients"]

Path = Callable[[Problem, Rows], Sums]

PATHS: dict[str, Path] = {"hooks": closed_form, "vmap": vectorized, "loop": one_by_one}
PROBE_ROWS = 2
PROBE_TOLERANCE = 1e-3  # a wrong form is off by factors, rounding by far less than this


def squared_gradients(
    module: nn.Module,
    objective: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    *,
    targets: Sequence[Tensor] = (),
    parameters: Iterable[str] | None = None,
    method: Literal["auto", "hooks", "vmap", "loop"] = "auto",
    chunk_size: int = 1024,
) -> dict[str, Tensor]:
    """Mean over rows of the squared gradient of each row: ``1/N Σ_b (∂ objective_b / ∂θ)²``.

    The diagonal of the empirical Fisher information if the objective is a log-likelihood.
    Squares are averaged; the square of an averaged gradient is a different and much smaller
    thing. The module is called in evaluation mode and left as it was: modes, buffers,
    gradients, ``requires_grad`` and random numbers.

    Args:
        module: the network; called as ``module(*inputs)``.
        objective: ``objective(module_output, *targets) -> (B,)``, one number per row.
        inputs: tensors of N rows each; moved to the parameters' device piece by piece.
        targets: tensors of N rows each that the objective needs beside the output.
        parameters: names to differentiate by; by default all that require a gradient.
        method: "hooks" catches every ``F.linear`` and ``F.conv2d`` of one forward and backward
            pass and squares in closed form; "vmap" vectorises over rows; "loop" takes one row at
            a time. The first two are checked on two rows against the loop and refuse where they
            are not exact; "auto" takes the first of the three that is. Except for "loop",
            repeated rows are computed once.
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
    raise_problems("squared_gradients", _problems(module, inputs, targets, known, names, method, chunk_size))
    unique = {id(known[name]): name for name in reversed(names)}  # a tied parameter is differentiated once
    problem = Problem(module, objective, {name: known[name] for name in reversed(unique.values())})
    if not problem.parameters:
        return {}
    with undisturbed(problem):
        rows = Rows(inputs, targets, torch.ones(len(inputs[0]), device=inputs[0].device))
        sums = _sums(problem, rows, method, chunk_size)
    means = {name: sums[unique[id(known[name])]] / len(rows) for name in names}
    bad = [f"the result for {name!r} is not finite" for name, m in means.items() if not m.isfinite().all()]
    raise_problems("squared_gradients", bad, kind=NonFiniteError)
    return means


def _sums(problem: Problem, rows: Rows, method: str, chunk_size: int) -> Sums:
    """Sums by the asked path, or by the first one that is exact."""
    if method == "loop":
        return _run(one_by_one, problem, rows, chunk_size)
    few = distinct_rows((*rows.inputs, *rows.targets))
    if few is not None:
        rows = replace(rows.take(few[0]), root_count=few[1].to(rows.root_count.dtype).sqrt())
    probe = rows.take(slice(0, PROBE_ROWS))
    expected = _run(one_by_one, problem, probe, PROBE_ROWS)
    for name in ("hooks", "vmap") if method == "auto" else (method,):
        try:
            _check_agreement(name, _run(PATHS[name], problem, probe, PROBE_ROWS), expected)
            return _run(PATHS[name], problem, rows, chunk_size)
        except Exception:
            # whatever a path stumbled over, the loop shows it as the user's own code would
            if method != "auto":
                raise
    return _run(one_by_one, problem, rows, chunk_size)


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
            raise NotExactError(
                f"{name!r} differs from the loop; rows may influence each other", method=method
            )


def _problems(
    module: object,
    inputs: tuple[Tensor, ...],
    targets: tuple[Tensor, ...],
    known: dict[str, nn.Parameter],
    names: list[str],
    method: str,
    chunk_size: object,
) -> list[str]:
    found = []
    if not isinstance(module, nn.Module):
        found.append(f"module is a {type(module).__name__}; expected an nn.Module")
    elif unknown := [name for name in names if name not in known]:
        found.append(f"parameters names {unknown}; expected names from {list(known)}")
    if method not in ("auto", *PATHS):
        found.append(f"method is {method!r}; expected one of {['auto', *PATHS]}")
    if isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1:
        found.append(f"chunk_size is {chunk_size!r}; expected an int >= 1")
    if not inputs:
        found.append("inputs is empty; expected at least one tensor of N rows")
    wrong = [type(x).__name__ for x in (*inputs, *targets) if not isinstance(x, Tensor)]
    if wrong:
        found.append(f"inputs and targets hold {wrong}; expected tensors; pass (x,) for a single one")
        return found
    lengths = [len(x) if x.dim() else None for x in (*inputs, *targets)]
    if lengths and (None in lengths or len(set(lengths)) > 1 or lengths[0] == 0):
        found.append(f"inputs and targets have {lengths} rows; expected the same number >= 1 in all")
    return found
