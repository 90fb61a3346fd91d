"""Three ways to sum squared per-row gradients: row by row, vectorised over rows, and in closed form.

The closed form takes one forward and one backward pass of a batch. A linear layer's gradient for row b is an
outer product of its input and of the gradient that came back, so its square needs no gradient per row:
Σ_b (g_b x_bᵀ)² = (g²)ᵀ(x²). A convolution is the same product on patches. Both are caught at ``F.linear``
and ``F.conv2d``, whichever module calls them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call, vmap
from torch.func import grad as gradient_of
from torch.overrides import TorchFunctionMode

from owlrl.errors import OwlValueError

SELECTIONS = ("IndexSelectBackward0", "TBackward0", "TransposeBackward0")
ELEMENTS = 1 << 18  # patches or per-row gradients of one layer held at once
GRADIENT_ELEMENTS = 1 << 23  # per-row gradients held at once

Sums = dict[str, Tensor]  # parameter name -> sum over rows of the squared gradient


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
        """Pieces of at most ``size`` rows, each moved to ``device`` when its turn comes."""
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
                f"squared_gradients: objective gave {shape} for {len(root_weight)} rows; "
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
