"""Networks with Gaussian outputs: a policy squashed into its bounds, and critics with a variance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from owlrl.gaussian import soft_clamp, tanh_gaussian
from owlrl.learners.encoders import mlp

__all__ = ["GaussianActor", "GaussianCritics"]


class GaussianActor(nn.Module):
    """A policy: a trunk, and a Gaussian for each action, squashed by tanh into the action's bounds.

    A plain call returns the output layer's values for a batch, (B, 2·A): the means before the tanh,
    then the logarithms of the standard deviations, kept within ``log_std``. `greedy` and `sample` make
    actions from them, in the environment's units.

    Args:
        observation_size: numbers in an observation.
        low: lowest actions (A,).
        high: highest actions (A,).
        hidden: sizes of the trunk's layers.
        log_std: bounds of the log standard deviation.

    >>> import numpy as np, torch
    >>> from owlrl.learners import GaussianActor
    >>> actor = GaussianActor(3, np.array([-2.0]), np.array([2.0]), hidden=(8,))
    >>> output = actor(torch.zeros(5, 3))
    >>> action, log_prob = actor.sample(output, torch.randn(5, 1))
    >>> output.shape, actor.greedy(output).shape, log_prob.shape
    (torch.Size([5, 2]), torch.Size([5, 1]), torch.Size([5]))
    """

    action_scale: Tensor
    action_bias: Tensor

    def __init__(
        self,
        observation_size: int,
        low: np.ndarray,
        high: np.ndarray,
        *,
        hidden: Sequence[int] = (256, 256),
        log_std: tuple[float, float] = (-10.0, 2.0),
    ) -> None:
        super().__init__()
        self.log_std = log_std
        self.columns = ("means", "log standard deviations")  # of the output layer, for messages
        scale, bias = _scale_and_bias(low, high)
        self.register_buffer("action_scale", torch.tensor(scale, dtype=torch.float32), persistent=False)
        self.register_buffer("action_bias", torch.tensor(bias, dtype=torch.float32), persistent=False)
        self.trunk = mlp(observation_size, hidden)
        self.output = nn.Linear(hidden[-1], 2 * len(low))

    def forward(self, observation: Tensor) -> Tensor:
        """(B, ...) observations → (B, 2·A): means, then log standard deviations."""
        return torch.cat(self.moments(observation), dim=-1)

    def moments(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Means before the tanh and log standard deviations, (B, A) each."""
        mean, log_std = self.output(self.trunk(observation.flatten(1))).chunk(2, dim=-1)
        return mean, F.hardtanh(log_std, *self.log_std)

    def draw(self, observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """`sample` from the output of a call."""
        return self._squash(*self.moments(observation), noise)

    def act(self, observation: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions (B, A): those of the means, or drawn by ``noise``; all that acting needs."""
        mean, log_std = self.moments(observation)
        raw = mean if noise is None else torch.addcmul(mean, log_std.exp(), noise)
        return self._scale(raw.tanh())

    def sample(self, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (..., A) and log-densities (...,) from standard normal noise (..., A).

        The density is that of the action scaled to (−1, 1), so that an entropy means the same for any bounds.
        """
        mean, log_std = output.chunk(2, dim=-1)
        return self._squash(mean, log_std, noise)

    def greedy(self, output: Tensor) -> Tensor:
        """The actions of the means, (..., A), from the output of a call, (..., 2·A)."""
        mean, _ = output.chunk(2, dim=-1)
        return self._scale(mean.tanh())

    def _squash(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        unit, log_prob = tanh_gaussian(mean, log_std, noise)
        return self._scale(unit), log_prob

    def _scale(self, unit: Tensor) -> Tensor:
        return torch.addcmul(self.action_bias, self.action_scale, unit)


class LinearEnsemble(nn.Module):
    """Several linear layers of one size as one batched product: (L, B, inputs) → (L, B, outputs)."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5  # as an nn.Linear starts
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """(L, B, inputs) → (L, B, outputs), layer by layer."""
        return torch.baddbmm(self.bias, x, self.weight)


class GaussianCritics(nn.Module):
    """An ensemble of critics, each with its trunk, a mean of Q(s, a) and a log-variance.

    A plain call gives (B, 2·L) of L critics: their means, then their log-variances. The trunks share
    nothing, but are computed together.

    Args:
        observation_size: numbers in an observation.
        low: lowest actions (A,).
        high: highest actions (A,).
        hidden: sizes of the layers of each trunk.
        count: how many critics.
        log_variance: bounds of the log-variance; soft ones, so that it can always come back.

    >>> import numpy as np, torch
    >>> from owlrl.learners import GaussianCritics
    >>> critics = GaussianCritics(3, np.array([-2.0]), np.array([2.0]), hidden=(8,))
    >>> mean, log_variance = critics(torch.zeros(5, 3), torch.zeros(5, 1)).chunk(2, dim=-1)
    >>> mean.shape
    torch.Size([5, 2])
    """

    unit_scale: Tensor
    unit_bias: Tensor

    def __init__(
        self,
        observation_size: int,
        low: np.ndarray,
        high: np.ndarray,
        *,
        hidden: Sequence[int] = (256, 256),
        count: int = 2,
        log_variance: tuple[float, float] = (-10.0, 20.0),
    ) -> None:
        super().__init__()
        self.log_variance = log_variance
        self.columns = ("means", "log-variances")  # of each output layer, for messages
        scale, bias = _scale_and_bias(low, high)  # divided before they are rounded
        self.register_buffer("unit_scale", torch.tensor(1 / scale, dtype=torch.float32), persistent=False)
        self.register_buffer("unit_bias", torch.tensor(-bias / scale, dtype=torch.float32), persistent=False)
        sizes = pairwise([observation_size + len(low), *hidden])
        self.trunks = nn.ModuleList(LinearEnsemble(count, *size) for size in sizes)
        self.outputs = nn.ModuleList(nn.Linear(hidden[-1], 2) for _ in range(count))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """(B, ...) observations, actions in the environment's units → (B, 2·L): means, log-variances."""
        return torch.cat(self.moments(observation, action), dim=-1)

    def moments(self, observation: Tensor, action: Tensor, *, apart: bool = False) -> tuple[Tensor, Tensor]:
        """Means and log-variances of Q(s, a), (B, L) each; ``apart``: no gradient of these to the trunks."""
        features, rows = self._features(observation, action), len(observation)
        mean, log_variance = self._outputs(
            torch.cat([features, features.detach()], dim=1) if apart else features
        )
        return mean[:rows], soft_clamp(log_variance[-rows:], *self.log_variance)

    def means(self, observation: Tensor, action: Tensor) -> Tensor:
        """The means alone, (B, L): all that a policy is trained with."""
        return self._outputs(self._features(observation, action))[0]

    def _features(self, observation: Tensor, action: Tensor) -> Tensor:
        unit = torch.addcmul(self.unit_bias, self.unit_scale, action.flatten(1))
        pair = torch.cat([observation.flatten(1), unit], dim=1)
        x = pair.expand(len(self.outputs), *pair.shape)
        for layer in self.trunks:
            x = layer(x).relu_()
        return x  # (L, B, F)

    def _outputs(self, features: Tensor) -> tuple[Tensor, Tensor]:
        outputs = [out(x) for out, x in zip(self.outputs, features, strict=True)]
        mean, log_variance = torch.stack(outputs, dim=-1).unbind(-2)  # (B, 2, L)
        return mean, log_variance


def _scale_and_bias(low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and bias from (−1, 1) to the bounds, in float64."""
    # halved first, so that the widest bounds do not overflow
    half_low, half_high = np.asarray(low, dtype=np.float64) / 2, np.asarray(high, dtype=np.float64) / 2
    return half_high - half_low, half_high + half_low
