"""Stored outputs of heads, and their distance from them: the formulas of distillation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call, grad_and_value

from owlrl.errors import NonFiniteError, OwlTypeError, OwlValueError
from owlrl.heads.modes import eval_mode
from owlrl.protocols import MultiHead
from owlrl.regularizers.base import tensors_of, total_norm

__all__ = ["distillation_loss", "output_spread"]

CHUNK = 1024  # rows answered at once
AVERAGED = 0.02  # of a new gradient norm in the running mean
PULL = 30.0  # norm of the pull over that of the learner's gradient, per spread of drift
MOST_PULL = 5.0  # and at most: more leaves later tasks too little to learn with
CALM = 0.1  # spreads: where old heads drift less
CALM_FOR = 32  # in so many comparisons one after the other,
RARELY = 4  # they are compared at every so many steps only


def distillation_loss(output: Tensor, stored: Tensor) -> Tensor:
    """``mean_b mean_a (output − stored)²``; output (B, A') and stored (B, A) → a scalar.

    Where ``stored`` is −∞ the row's head has no such output: left out of that row's mean.

    >>> import torch
    >>> from owlrl.regularizers import distillation_loss
    >>> stored = torch.tensor([[0.0, 2.0], [3.0, -torch.inf]])
    >>> distillation_loss(torch.tensor([[1.0, 2.0], [5.0, 0.0]]), stored)
    tensor(2.2500)
    """
    return answer_loss(output, *comparable(stored))


def comparable(stored: Tensor, unit: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Target and factor (B, A) for stored outputs, in units of ``unit``; 0 where there is no output."""
    there = ~torch.isneginf(stored)
    factor = there / there.sum(1, keepdim=True).clamp(min=1).to(stored.dtype).sqrt()
    if unit is not None:
        factor = factor / unit
    return stored.masked_fill(~there, 0.0) * factor, factor


def differences(output: Tensor, target: Tensor, factor: Tensor) -> Tensor:
    """``output · factor − target``, (B, A): a row's sum of squares is the mean over the outputs it has."""
    if output.shape != target.shape:  # either may be padded for a head that no row has
        width = min(output.shape[1], target.shape[1])
        output, target, factor = output[:, :width], target[:, :width], factor[:, :width]
    return output.masked_fill(factor == 0.0, 0.0) * factor - target


def answer_loss(output: Tensor, target: Tensor, factor: Tensor) -> Tensor:
    """The mean over rows of the sums of squares of `differences`."""
    return differences(output, target, factor).square().sum() / len(output)


def settling_loss(output: Tensor, target: Tensor, factor: Tensor) -> Tensor:
    """``mean_b log(1 + d_b)``, d_b the squared drift of a row: a few that cannot be held do not decide."""
    return differences(output, target, factor).square().sum(1).log1p().mean()


def output_spread(outputs: Tensor, *, each: bool = False) -> Tensor:
    """The unit of drift: the spread of a head's outputs (N, A), (A,).

    For Q-values what chooses the action: the root mean square of ``Q(s, a) − mean_a Q(s, a)`` in a row, and
    of rows the median, since few in which an action is fatal would hide all others. For one output, and with
    ``each`` (actors and critics), the standard deviation of every output over rows. Spreads below 1 % of the
    widest output's deviation (with ``each`` 10 %) count as that much.

    >>> import torch
    >>> from owlrl.regularizers import output_spread
    >>> q = torch.tensor([[10.0, 12.0], [21.0, 19.0]])
    >>> output_spread(q), output_spread(q, each=True)
    (tensor([1., 1.]), tensor([5.5000, 3.5000]))
    """
    there = ~torch.isneginf(outputs)
    values = torch.where(there, outputs, torch.zeros_like(outputs)).double()
    count = there.sum(0).clamp(min=1)
    deviation = ((values - values.sum(0) / count) * there).square().sum(0).div(count).sqrt()  # (A,)
    tiny = 1e-6 * values.abs().max() + 1e-12
    if each or outputs.shape[1] == 1:
        return torch.maximum(deviation, 0.1 * deviation.max() + tiny).to(outputs.dtype)
    centre = values.sum(1, keepdim=True) / there.sum(1, keepdim=True).clamp(min=1)
    rows = ((values - centre) * there).square().sum(1).div(there.sum(1).clamp(min=1)).sqrt()  # (N,)
    spread = torch.maximum(rows.median(), 0.01 * deviation.max() + tiny)
    return spread.expand(outputs.shape[1]).to(outputs.dtype)


def pull_factor(length: Any, gradient: Any, drift: Any) -> Any:
    """What makes a slope of norm ``length`` one of ``gradient · min(PULL · drift, MOST_PULL)``.

    Numbers give a number, and tensors of one number, as a compiled step has them, a tensor.
    """
    if isinstance(length, Tensor):
        size = gradient * (PULL * drift).clamp(max=MOST_PULL) / length
        return torch.where(length > 0.0, size, torch.zeros_like(size))
    return gradient * min(PULL * drift, MOST_PULL) / length if length > 0.0 else 0.0


def fused_pull(
    where: tuple[int, ...],
    forward: Callable[..., Tensor],
    parameters: list[Tensor],
    gradients: list[Tensor],
    rows: tuple[tuple[Tensor, ...], Tensor, Tensor],
    heads: list[Tensor],
    mean: Tensor,
    times: Tensor,
) -> tuple[list[Tensor], list[Tensor]]:
    """The pull without a strength as a pure function of tensors, for a step that is compiled as a whole.

    ``where`` are the places of the shared parameters, ``rows`` the inputs and what `differences` needs beside
    outputs, ``heads`` the weights of each row's head, ``mean`` the running mean of gradient norms so far (NaN
    at first), ``times`` the steps since the last pull. Gives the gradients; the new mean, the gradient's norm
    and the pull's; and squared drifts (B,).
    """
    inputs, target, factor = rows

    def loss(shared: list[Tensor]) -> tuple[Tensor, Tensor]:
        now = {**dict(enumerate(parameters)), **dict(zip(where, shared, strict=True))}  # torch 2.5 has no |
        squares = differences(forward(list(now.values()), heads, *inputs), target, factor).square().sum(1)
        return squares.sum() / len(squares), squares

    slopes, (value, squares) = grad_and_value(loss, has_aux=True)([parameters[k] for k in where])
    own, length = total_norm([gradients[k] for k in where]), total_norm(slopes)
    mean = torch.where(mean.isnan(), own, mean)
    mean = mean + AVERAGED * (own - mean)
    size = pull_factor(length, times * mean, value.double().sqrt())
    found = list(gradients)
    for k, slope in zip(where, slopes, strict=True):
        found[k] = found[k] + size.to(slope) * slope
    return found, [torch.stack([mean, own, size * length]), squares]


def answers(name: str, network: MultiHead, head: int, inputs: tuple[Tensor, ...]) -> Tensor:
    """The outputs of ``head``, (N, A), computed in pieces on the inputs' device."""
    home = inputs[0].device
    with torch.no_grad(), eval_mode(network.module):
        pieces = [
            network(*placed(network, tuple(x[start : start + CHUNK] for x in inputs)), head=head).to(home)
            for start in range(0, len(inputs[0]), CHUNK)
        ]
    output = torch.cat(pieces)
    if output.dim() != 2:
        raise OwlValueError(
            f"DistillationRegularizer.remember: network {name!r} gave {tuple(output.shape)}; "
            "expected (N, outputs)"
        )
    if not (output.isfinite() | output.isneginf()).all():
        raise NonFiniteError(
            f"DistillationRegularizer.remember: outputs of head {head} of network {name!r} are not finite"
        )
    return output


def placed(network: MultiHead, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The inputs where the network's parameters are now, floating ones in their dtype."""
    like = next(iter(network.module.parameters()))
    return tuple(x.to(like.device, like.dtype if x.is_floating_point() else x.dtype) for x in inputs)


def widened(rows: list[Tensor], value: float) -> list[Tensor]:
    """All with as many columns as the widest, the others filled with ``value``."""
    width = max(x.shape[-1] for x in rows)
    return [x if x.shape[-1] == width else F.pad(x, (0, width - x.shape[-1]), value=value) for x in rows]


def outputs_before_and_now(
    network: MultiHead, head: int, weights: Mapping[str, Tensor], inputs: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """Outputs of the kept weights, ``g_τ ∘ f_old``, and of today's trunk with the same head, ``g_τ ∘ f_new``.

    The equation regularizes the trunk and has one g_τ on both sides: the head gets no gradient.
    """
    own = tensors_of(network)
    kept = {name: w.to(own[name]) for name, w in weights.items()}
    fixed = {name: p.detach() for name, p in network.head_parameters(head).items()}
    with network.pointer.at(head):
        with torch.no_grad():
            before: Tensor = functional_call(network.module, kept, inputs)
        now: Tensor = functional_call(network.module, fixed, inputs)
    return before, now


def check_inputs(name: str, inputs: Sequence[Tensor], like: Sequence[Tensor]) -> None:
    """Raise unless rows of the current task have the form of those that the network was remembered with."""
    got, expected = ([(tuple(x.shape[1:]), x.dtype) for x in rows] for rows in (inputs, like))
    if [_kind(x) for x in inputs] != [_kind(x) for x in like]:
        raise OwlTypeError(
            f'DistillationRegularizer: with states="current" the learner gave inputs of {got} for '
            f"network {name!r}; expected {expected}, as when the task was remembered"
        )


def _kind(x: Tensor) -> tuple[object, ...]:
    return (x.shape[1:], "floating" if x.is_floating_point() else x.dtype)
