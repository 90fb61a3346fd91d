"""`squared_gradients`: the mean over rows of each row's squared gradient."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from owlrl._arguments import Arguments
from owlrl.errors import NonFiniteError, raise_problems
from owlrl.fisher._paths import (
    NotExactError,
    Problem,
    Rows,
    Sums,
    accumulator,
    closed_form,
    one_by_one,
    vectorized,
)
from owlrl.heads.modes import eval_mode

__all__ = ["squared_gradients"]

Path = Callable[[Problem, Rows], Sums]

PROBE_ROWS = 2
PROBE_TOLERANCE = 1e-3  # a wrong form is off by factors, rounding by far less than this
CHUNK = 4096  # rows hashed and compared at once
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
    texts = {name: e.reason if isinstance(e, NotExactError) else str(e) for name, e in causes.items()}
    reasons = "; ".join(f'"{name}": {text.splitlines()[0] if text else name}' for name, text in texts.items())
    warnings.warn(
        f"squared_gradients: {type(module).__name__}{layer} has no fast path, so {rows} rows are "
        f"differentiated one by one, which takes milliseconds each ({reasons}). Fewer rows "
        "(EWCRegularizer(max_samples=...)) or linear and conv2d layers used once are faster",
        UserWarning,
        stacklevel=4,
    )


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


PATHS: dict[str, Path] = {"hooks": closed_form, "vmap": vectorized, "loop": one_by_one}


@contextmanager
def undisturbed(problem: Problem) -> Iterator[None]:
    """Evaluation mode with gradients on; whatever a forward pass may change is put back."""
    module = problem.module
    frozen = [p for p in problem.parameters.values() if not p.requires_grad]
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    homes = [
        (m._buffers, name, b) for m in module.modules() for name, b in m._buffers.items() if b is not None
    ]
    stand_ins = {id(b): b.clone() for _, _, b in homes}  # one per buffer, however often it is shared
    with eval_mode(module), torch.random.fork_rng(devices=list(devices)):
        try:
            for buffers, name, buffer in homes:
                buffers[name] = stand_ins[id(buffer)]
            for parameter in frozen:
                parameter.requires_grad_(True)
            with torch.inference_mode(False), torch.enable_grad():
                yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)
            for buffers, name, buffer in homes:
                buffers[name] = buffer


def distinct_rows(tensors: Sequence[Tensor], weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """Index of one row of each kind and the kinds' total weights; None where under half are repeats.

    Small worlds show the same few rows again and again: each is computed once.

    Rows are the same if they are so in every tensor. Kinds are found by a hash and then
    compared, so the answer is exact; a collision only costs the saving.
    """
    device = tensors[0].device
    key = sum(_hash(x, seed).to(device) for seed, x in enumerate(tensors))
    assert isinstance(key, Tensor)
    kinds, kind = torch.unique(key, return_inverse=True)
    if 2 * len(kinds) > len(key):
        return None
    first = torch.empty_like(kinds).scatter_(0, kind, torch.arange(len(key), device=device))
    if not all(_same(x, first[kind]) for x in tensors):
        return None
    total = torch.zeros(len(kinds), dtype=weight.dtype, device=device)
    return first, total.index_add_(0, kind, weight.to(device))


def _hash(x: Tensor, seed: int) -> Tensor:
    """A 64-bit sum per row, (N, ...) → (N,): the row's 32-bit words times random odd numbers."""
    rows = x.detach().reshape(len(x), x[0].numel())
    words = -(-rows.shape[1] * rows.element_size() // 4)
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randint(-(2**62), 2**62, (words,), generator=generator).mul_(2).add_(1).to(x.device)
    sums = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    if words == 0:
        return sums
    for start in range(0, len(x), CHUNK):
        chunk = rows[start : start + CHUNK].contiguous().view(torch.uint8)
        chunk = F.pad(chunk, (0, 4 * words - chunk.shape[1])).view(torch.int32)
        sums[start : start + CHUNK] = (chunk.long() * factors).sum(1)
    return sums


def _same(x: Tensor, first: Tensor) -> bool:
    """Whether every row equals the row that ``first`` (N,) names for it."""
    first = first.to(x.device)
    return all(
        torch.equal(x[start : start + CHUNK], x[first[start : start + CHUNK]])
        for start in range(0, len(x), CHUNK)
    )


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
