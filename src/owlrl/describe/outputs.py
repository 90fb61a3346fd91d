"""The meaning of an actor's and a critic's outputs: actions, densities, values and losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.gaussian import gaussian_nll, tanh_gaussian

__all__ = [
    "ActionBox",
    "CriticOutput",
    "Deterministic",
    "Distribution",
    "GaussianQ",
    "QValues",
    "ScaledActions",
    "TanhGaussian",
    "normal_points",
    "policy_information",
]


class Distribution(Protocol):
    """How an actor's output (..., O) becomes actions (..., A)."""

    def greedy(self, output: Tensor) -> Tensor:
        """The action without noise, (..., A)."""
        ...

    def sample(self, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action (..., A) from standard normal noise (..., A), and its log-density (...)."""
        ...


class CriticOutput(Protocol):
    """How a critic's output (..., O) becomes Q-values and a loss."""

    def values(self, output: Tensor) -> Tensor:
        """The Q-values it holds, (..., K)."""
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The critic's loss per row: output (B, O), target (B,) → (B,)."""
        ...


@dataclass(frozen=True)
class Deterministic:
    """The output is the action, as in DDPG and TD3.

    >>> import torch
    >>> from owlrl.describe.outputs import Deterministic
    >>> Deterministic().greedy(torch.tensor([[0.5, -1.0]]))
    tensor([[ 0.5000, -1.0000]])
    """

    def greedy(self, output: Tensor) -> Tensor:
        """The output itself."""
        return output

    def sample(self, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The output itself, whatever the noise; its density is left out (0)."""
        action = output.expand_as(noise)
        return action, torch.zeros_like(action[..., 0])


@dataclass(frozen=True)
class TanhGaussian:
    """The output is mean and log-std side by side; ``action = tanh(x) · scale + bias``, as in SAC.

    Args:
        scale: half the width of the action's range, a number or one per component; the density is
            of the scaled action.
        bias: the middle of that range.

    >>> import torch
    >>> from owlrl.describe.outputs import TanhGaussian
    >>> output = torch.tensor([[0.0, -1.0]])  # one component: mean 0, std 1/e
    >>> TanhGaussian(scale=2.0, bias=1.0).greedy(output)
    tensor([[1.]])
    >>> action, log_prob = TanhGaussian(scale=2.0).sample(output, torch.ones(1, 1))
    >>> action.shape, log_prob.shape
    (torch.Size([1, 1]), torch.Size([1]))
    """

    scale: float | Tensor = 1.0
    bias: float | Tensor = 0.0

    def greedy(self, output: Tensor) -> Tensor:
        """The mean, squashed and scaled."""
        mean, _ = output.chunk(2, dim=-1)
        return mean.tanh() * self._like(self.scale, mean) + self._like(self.bias, mean)

    def sample(self, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action and its log-density."""
        mean, log_std = output.chunk(2, dim=-1)
        unit, log_prob = tanh_gaussian(mean, log_std, noise)
        scale = self._like(self.scale, unit)
        return unit * scale + self._like(self.bias, unit), log_prob - scale.expand_as(unit).log().sum(-1)

    def _like(self, value: float | Tensor, action: Tensor) -> Tensor:
        return torch.as_tensor(value).to(action)


class ActionBox:
    """A bounded Box of floats, between [−1, 1] and the environment's units; any other space is refused.

    Args:
        space: anything with ``low``, ``high`` and ``dtype``.
        where: the caller, for the error message.

    >>> import numpy as np, torch
    >>> from gymnasium import spaces
    >>> from owlrl.describe.outputs import ActionBox
    >>> box = ActionBox(spaces.Box(-2.0, 6.0, (1,)))
    >>> box.unscale(torch.tensor([[0.5]])), box.scale(torch.tensor([[4.0]]))
    (tensor([[4.]]), tensor([[0.5000]]))
    >>> box.array(torch.tensor([[7.0]])), box.draw(np.random.default_rng(0), rows=2).shape
    (array([[6.]], dtype=float32), (2, 1))
    """

    def __init__(self, space: Any, *, where: str = "ActionBox") -> None:
        low, high = getattr(space, "low", None), getattr(space, "high", None)
        if low is None or high is None or np.dtype(space.dtype).kind != "f":
            raise OwlTypeError(f"{where}: the action space is {space}; expected a Box of floats")
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise OwlValueError(
                f"{where}: the action space is {space}; expected finite bounds with low < high for every "
                "action (gymnasium.wrappers.RescaleAction gives an environment others)"
            )
        self.low, self.high = np.asarray(low), np.asarray(high)
        self.size = int(self.low.size)
        least, most = (torch.as_tensor(b, dtype=torch.float32).flatten() / 2 for b in (low, high))
        self._half, self._middle = most - least, most + least

    def scale(self, action: Tensor) -> Tensor:
        """To [−1, 1]; (..., A) → (..., A)."""
        return (action - self._middle.to(action)) / self._half.to(action)

    def unscale(self, action: Tensor) -> Tensor:
        """To the environment's units; (..., A) → (..., A)."""
        return action * self._half.to(action) + self._middle.to(action)

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        """Actions ``(rows, *shape)``, uniform between the bounds."""
        share = rng.random((rows, *self.low.shape))
        # a share of each bound, since their difference may overflow
        return self._fit((1 - share) * self.low + share * self.high)

    def array(self, action: Tensor) -> np.ndarray:
        """A tensor (rows, size) as ``(rows, *shape)`` in the dtype of the space and within its bounds."""
        return self._fit(action.detach().cpu().numpy().reshape(-1, *self.low.shape))

    def _fit(self, action: np.ndarray) -> np.ndarray:
        # rounding may lead out of the bounds by a bit
        action = action.astype(self.low.dtype, copy=False)
        fitting: np.ndarray = np.minimum(np.maximum(action, self.low), self.high)  # faster than np.clip
        return fitting


@dataclass(frozen=True)
class ScaledActions:
    """A distribution of actions in [−1, 1], given in the environment's units.

    The density stays that of the scaled action, as in the targets of Stable-Baselines3's models.

    >>> import torch
    >>> from gymnasium import spaces
    >>> from owlrl.describe.outputs import ActionBox, ScaledActions, TanhGaussian
    >>> box = ActionBox(spaces.Box(-2.0, 2.0, (1,)))
    >>> ScaledActions(TanhGaussian(), box).greedy(torch.tensor([[9.0, 0.0]]))
    tensor([[2.0000]])
    """

    unit: Distribution
    box: ActionBox

    def greedy(self, output: Tensor) -> Tensor:
        """The action without noise, (..., A)."""
        return self.box.unscale(self.unit.greedy(output))

    def sample(self, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action (..., A), and the log-density (...) of its scaled form."""
        action, log_prob = self.unit.sample(output, noise)
        return self.box.unscale(action), log_prob


@dataclass(frozen=True)
class QValues:
    """Every column of the output is a Q-value: one, or one per critic in a module that holds several.

    Args:
        loss_function: of one Q-value per row, called as ``loss_function(q, target, reduction="none")``.

    >>> import torch
    >>> from owlrl.describe.outputs import QValues
    >>> QValues().loss(torch.tensor([[1.0, 3.0]]), torch.tensor([2.0]))
    tensor([2.])
    """

    loss_function: Callable[..., Tensor] = F.mse_loss

    def values(self, output: Tensor) -> Tensor:
        """All columns."""
        return output

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The columns' losses, added up."""
        return self.loss_function(output, target[:, None].expand_as(output), reduction="none").sum(-1)


@dataclass(frozen=True)
class GaussianQ:
    """A probabilistic critic: the first half of the columns are means, the second log-variances.

    >>> import torch
    >>> from owlrl.describe.outputs import GaussianQ
    >>> output = torch.tensor([[1.0, 0.0]])  # mean 1, variance 1
    >>> GaussianQ().values(output), GaussianQ().loss(output, torch.tensor([3.0]))
    (tensor([[1.]]), tensor([2.]))
    """

    def values(self, output: Tensor) -> Tensor:
        """The means."""
        return output.chunk(2, dim=-1)[0]

    def variances(self, output: Tensor) -> Tensor:
        """The variance of each mean, (..., K)."""
        return output.chunk(2, dim=-1)[1].exp()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The negative log-likelihood of the target, added up over the columns."""
        mean, log_variance = output.chunk(2, dim=-1)
        return gaussian_nll(mean, log_variance, target[:, None]).sum(-1)


@lru_cache(maxsize=64)
def normal_points(dim: int, count: int = 8) -> Tensor:
    """``count`` equally likely points of a standard normal in ``dim`` dimensions, (count, dim).

    Every component takes the same ``count`` quantiles, with mean 0 and variance 1, in another
    order (a Latin hypercube). Always the same points: an expectation over them is a number that
    depends on nothing else, and no random number is drawn.

    >>> from owlrl.describe.outputs import normal_points
    >>> points = normal_points(1, 4).flatten().sort().values
    >>> [round(x, 2) for x in points.tolist()]
    [-1.36, -0.38, 0.38, 1.36]
    """
    quantiles = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    quantiles = quantiles / quantiles.square().mean().sqrt()
    generator = torch.Generator().manual_seed(0)
    orders = [torch.randperm(count, generator=generator) for _ in range(dim)]
    return torch.stack([quantiles[order] for order in orders], dim=1)


def policy_information(output: Tensor, frozen: Tensor, signs: Tensor) -> Tensor:
    """A number per row whose squared gradient is, over random signs, the policy's Fisher information.

    A Gaussian's is ``(∂μ)²/σ² + 2 (∂ log σ)²`` per component, whatever function squashes its samples; for
    an actor without log-std σ is 1. Random signs ±1 make the components' cross terms
    cancel in the mean: ``Σ_a ± μ_a/σ_a ± √2 log σ_a``, with σ held fixed.

    Args:
        output: (B, 2A) mean and log-std, or (B, A) for a deterministic actor.
        frozen: the log-std (B, A) that σ is taken from, or (B, 0) for a deterministic actor.
        signs: like ``output``.

    >>> import torch
    >>> from owlrl.describe.outputs import policy_information
    >>> output = torch.tensor([[1.0, 0.0]], requires_grad=True)
    >>> policy_information(output, output.detach()[:, 1:], torch.ones(1, 2)).backward()
    >>> output.grad.square()
    tensor([[1.0000, 2.0000]])
    """
    actions = output.shape[-1] - frozen.shape[-1]
    mean = output[..., :actions]
    if frozen.shape[-1]:
        mean = mean * (-frozen).exp()
    return (torch.cat([mean, sqrt(2.0) * output[..., actions:]], dim=-1) * signs).sum(-1)
