"""`squared_gradients`: the mean over rows of each row's squared gradient.

There are three ways to sum squared gradients of rows: row by row, vectorised over rows, and in closed form.
The closed form takes one forward and one backward pass of a batch. A linear layer's gradient for row b is an
outer product of its input and of the gradient that came back, so its square needs no gradient per row:
Σ_b (g_b x_bᵀ)² = (g²)ᵀ(x²). A convolution is the same product on patches. Both are caught at ``F.linear``
and ``F.conv2d``, whichever module calls them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, vmap
from torch.func import grad as gradient_of
from torch.overrides import TorchFunctionMode

from owlrl._arguments import Arguments, kind_of
from owlrl.errors import NonFiniteError, OwlValueError, raise_problems
from owlrl.heads.modes import eval_mode

__all__ = ["squared_gradients"]

PROBE_ROWS = 2
PROBE_TOLERANCE = 1e-3  # a wrong form is off by factors, rounding by far less than this
CHUNK = 4096  # rows hashed and compared at once
SLOW_ROWS = 256  # from so many rows on, a fall to the loop is worth a warning
SELECTIONS = ("IndexSelectBackward0", "TBackward0", "TransposeBackward0")
ELEMENTS = 1 << 18  # patches or per-row gradients of one layer held at once
GRADIENT_ELEMENTS = 1 << 23  # per-row gradients held at once

Sums = dict[str, Tensor]  # parameter name -> sum over rows of the squared gradient


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
        targets: tensors of N rows each that the objective needs besides the output.
        weights: (N,) numbers >= 0, how much each row counts; equal by default.
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
    """Sums by the given method, or by the first one that is exact."""
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
    """Warn that it will be slow: at which layer the fast paths failed, and why."""
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


@contextmanager
def undisturbed(problem: Problem) -> Iterator[None]:
    """Evaluation mode with gradients on; everything that a forward pass may change is restored."""
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

    Small environments repeat the same few rows: each is computed once.

    Rows are the same if they are equal in every tensor. Kinds are found by a hash and then
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
        found.append(f"module is {kind_of(module)}; expected an nn.Module")
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
        return [f"{name} is negative or not finite somewhere, or only 0; expected numbers >= 0"]
    return []


@dataclass(frozen=True)
class Rows:
    """n rows of inputs and targets, and the root of each row's weight.

    Scaling a row's objective by the root scales its squared gradient by the weight.
    """

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    root_weight: Tensor

    def __len__(self) -> int:
        return len(self.root_weight)

    def take(self, rows: slice | Tensor) -> Rows:
        """The given rows."""
        return Rows(
            tuple(x[rows] for x in self.inputs), tuple(t[rows] for t in self.targets), self.root_weight[rows]
        )

    def chunks(self, size: int, device: torch.device) -> Iterator[Rows]:
        """Pieces of at most ``size`` rows, each moved to ``device`` when it is used."""
        for start in range(0, len(self), size):
            piece = self.take(slice(start, start + size))
            yield Rows(
                tuple(x.to(device) for x in piece.inputs),
                tuple(t.to(device) for t in piece.targets),
                piece.root_weight.to(device),
            )


@dataclass(frozen=True)
class Problem:
    """``objective(module(*inputs), *targets) -> (B,)`` and the parameters it is differentiated by."""

    module: nn.Module
    objective: Callable[..., Tensor]
    parameters: Mapping[str, nn.Parameter]

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self.parameters.values())).device

    def weighted(self, output: object, targets: tuple[Tensor, ...], root_weight: Tensor) -> Tensor:
        """The objective's values (B,), each times the root of its row's weight."""
        value: object = self.objective(output, *targets)
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if not isinstance(value, Tensor) or shape != tuple(root_weight.shape):
            raise OwlValueError(
                f"squared_gradients: objective returned {shape} for {len(root_weight)} rows; "
                f"expected one number per row, {tuple(root_weight.shape)}; do not reduce over the batch"
            )
        return value * root_weight.to(value.dtype)

    def values(self, rows: Rows) -> Tensor:
        """`weighted` of a whole batch, by a plain call of the module."""
        return self.weighted(self.module(*rows.inputs), rows.targets, rows.root_weight)


def accumulator(parameter: Tensor) -> Tensor:
    """Zeros like ``parameter``, in float32 at least: squares underflow in half precision."""
    return torch.zeros_like(
        parameter, dtype=torch.promote_types(parameter.dtype, torch.float32), requires_grad=False
    )


def one_by_one(problem: Problem, rows: Rows) -> Sums:
    """The definition: differentiate each row separately, square, add."""
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
    per_row = vmap(gradient_of(value), in_dims=(None, 0, 0, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        for piece in rows.chunks(size, problem.device):
            for name, gradient in per_row(parameters, piece.inputs, piece.targets, piece.root_weight).items():
                # an objective may ask other networks too (an actor's loss its critics)
                sums[name] += gradient.detach().to(sums[name].dtype).square().sum(0)
    return sums


class NotExactError(OwlValueError):
    """The closed form would miss or mix something in this network."""

    def __init__(self, reason: str, *, method: str = "hooks", parameter: str | None = None) -> None:
        super().__init__(
            f'squared_gradients: method="{method}" is not exact here: {reason}; use method="auto"'
        )
        self.reason = reason
        self.parameter = parameter  # the one it was noticed at


@dataclass(frozen=True)
class _Call:
    """One F.linear or F.conv2d as products over L positions in G groups: (O, L) by (L, K) per row."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None
    edge: GradientEdge  # where the output's gradient comes back, whatever happens to the output
    patches: Callable[[Tensor], Tensor]  # input -> (B, G, L, K)
    gradients: Callable[[Tensor], Tensor]  # the output's gradient -> (B, G, O, L)
    as_weight: Callable[[Tensor], Tensor]  # (G, O, K) -> the weight's shape


class _Recorder(TorchFunctionMode):
    """Keeps the linear and convolution calls of the forward pass made inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        describe = _DESCRIBE.get(func)
        if describe is not None and output.requires_grad:
            self.calls.append(describe(get_gradient_edge(output), *args, **kwargs))
        return output


def _linear(edge: GradientEdge, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Call:
    def positions(x: Tensor) -> Tensor:  # (B, ..., I) -> (B, 1, L, I)
        return x.reshape(x.shape[0], 1, -1, x.shape[-1])

    return _Call(
        *(input, weight, bias, edge, positions),
        gradients=lambda g: positions(g).transpose(2, 3),
        as_weight=lambda total: total[0],
    )


def _conv2d(
    edge: GradientEdge,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> _Call:
    if input.dim() != 4 or isinstance(padding, str):
        raise NotExactError(f"a convolution of a {input.dim()}-dimensional input with padding={padding!r}")
    strides, dilations, pads = _pair(stride), _pair(dilation), _pair(padding)
    kernel = weight.shape[2:]

    def patches(x: Tensor) -> Tensor:
        if any(pads):
            x = F.pad(x, (pads[1], pads[1], pads[0], pads[0]))
        for axis in (0, 1):  # views; F.unfold costs several times as much on small images
            reach = dilations[axis] * (kernel[axis] - 1) + 1
            x = x.unfold(2 + axis, reach, strides[axis])[..., :: dilations[axis]]
        # (B, G, C, H', W', kh, kw) -> (B, G, L, kh * kw * C): channels innermost copy fastest
        x = torch.unflatten(x, 1, (groups, -1)).permute(0, 1, 3, 4, 5, 6, 2)
        return x.flatten(4).flatten(2, 3)

    return _Call(
        *(input, weight, bias, edge, patches),
        gradients=lambda g: torch.unflatten(g.flatten(2), 1, (groups, -1)),  # of (B, O, H', W')
        as_weight=lambda t: torch.unflatten(t, 2, (*kernel, -1)).permute(0, 1, 4, 2, 3).flatten(0, 1),
    )


_DESCRIBE: dict[Any, Callable[..., _Call]] = {F.linear: _linear, F.conv2d: _conv2d}


def _pair(value: Any) -> tuple[int, int]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    return (sizes[0], sizes[-1])


def sum_of_squares(g: Tensor, x: Tensor) -> Tensor:
    """``Σ_b (g_b x_b)²`` of products of the last two axes: g (B, G, O, L), x (B, G, L, K) → (G, O, K)."""
    if g.shape[-1] == 1:  # the square of an outer product is the outer product of the squares
        return torch.einsum("bgo,bgk->gok", g[..., 0].square(), x[:, :, 0].square())
    return torch.matmul(g, x).square_().sum(0)


def closed_form(problem: Problem, rows: Rows) -> Sums:
    """Sums over ``rows``, or `NotExactError`."""
    with _Recorder() as recorder:
        values = problem.values(rows)
    named = {id(p): name for name, p in problem.parameters.items()}
    for call in recorder.calls:
        if (source := _selected_from(call.weight)) is not None and id(source) in named:
            named[id(call.weight)] = named[id(source)]
    calls = [c for c in recorder.calls if id(c.weight) in named or id(c.bias) in named]
    used = _uses(values.grad_fn, named)
    computed = Counter(named[id(p)] for c in calls for p in (c.weight, c.bias) if id(p) in named)
    sums = {name: accumulator(p) for name, p in problem.parameters.items()}
    if not used:
        return sums
    edges = [c.edge for c in calls]
    grads = torch.autograd.grad(values.sum(), edges, allow_unused=True) if edges else ()
    reached = Counter[str]()
    for call, back in zip(calls, grads, strict=True):
        if back is not None:
            reached.update(_add(call, back, named, sums, len(rows)))
    for name, times in used.items():
        if times != 1 or computed[name] != 1 or reached[name] != 1:
            reason = f"{name!r} takes part {times} times, or not as a linear or conv2d layer"
            raise NotExactError(reason, parameter=name)
    return sums


def _add(call: _Call, grad: Tensor, named: dict[int, str], sums: Sums, rows: int) -> Iterable[str]:
    """Add one call's share to ``sums``; the names it was for."""
    if call.input.shape[0] != rows or grad.shape[0] != rows:
        raise NotExactError(f"a layer is called with {call.input.shape[0]} rows where there are {rows}")
    weight, bias = named.get(id(call.weight)), named.get(id(call.bias))
    grad = call.gradients(grad)
    if weight is not None:
        source = _selected_from(call.weight)
        total = sums[weight] if source is None else torch.zeros_like(call.weight, dtype=sums[weight].dtype)
        positions = grad.shape[-1]
        patch = total[0].numel() * grad.shape[1] * positions
        step = max(1, ELEMENTS // (patch if positions == 1 else max(patch, total.numel())))
        for start in range(0, rows, step):
            g = grad[start : start + step].to(total.dtype)
            x = call.patches(call.input.detach()[start : start + step]).to(total.dtype)
            total += call.as_weight(sum_of_squares(g, x))
        if source is not None:  # an entry goes to one place, and so does its square
            (back,) = torch.autograd.grad(call.weight, source, total.to(call.weight), retain_graph=True)
            sums[weight] += back
    if bias is not None:
        total = sums[bias]
        total += grad.to(total.dtype).sum(-1).square().sum(0).flatten()
    return [name for name in (weight, bias) if name is not None]


def _selected_from(weight: Tensor) -> Tensor | None:
    """The parameter that a layer's weight is a selection of; None for a weight that is computed otherwise."""
    node = weight.grad_fn
    while node is not None and node.name() in SELECTIONS:
        node = node.next_functions[0][0]
    source: Tensor | None = getattr(node, "variable", None)
    return source


def _uses(root: Any, named: dict[int, str]) -> Counter[str]:
    """How many places in the graph below ``root`` each named parameter feeds."""
    count = Counter[str]()
    seen, waiting = set(), [root]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for parent, _ in node.next_functions:
            variable = getattr(parent, "variable", None)
            if variable is None:
                waiting.append(parent)
            elif id(variable) in named:
                count[named[id(variable)]] += 1
    return count


Path = Callable[[Problem, Rows], Sums]
PATHS: dict[str, Path] = {"hooks": closed_form, "vmap": vectorized, "loop": one_by_one}
