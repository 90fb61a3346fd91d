"""Formulas of Gaussian predictions and policies, each once, as pure functions on tensors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["gaussian_mixture", "gaussian_nll", "soft_clamp", "tanh_gaussian"]

_LOG_2 = math.log(2.0)
_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


def gaussian_nll(mean: Tensor, log_variance: Tensor, target: Tensor) -> Tensor:
    """Gaussian negative log-likelihood of a target, ``½ (log σ² + (y − μ)² / σ²)``, up to a constant.

    Twice this is the paper's feedback for SAC, with the square that its text drops. All broadcast.

    >>> import torch
    >>> from owlrl.gaussian import gaussian_nll
    >>> gaussian_nll(torch.tensor([1.0, 1.0]), torch.tensor([0.0, 0.0]), torch.tensor([1.0, 3.0]))
    tensor([0., 2.])
    """
    return 0.5 * (log_variance + (target - mean).square() * (-log_variance).exp())


def gaussian_mixture(mean: Tensor, variance: Tensor, *, dim: int = 0) -> tuple[Tensor, Tensor]:
    """Mean and variance of an even mixture of Gaussians along ``dim``: σ*² = mean(σ² + (μ − μ*)²).

    That is ``mean(σ² + μ²) − μ*²``, written so that large means do not cancel.

    >>> import torch
    >>> from owlrl.gaussian import gaussian_mixture
    >>> gaussian_mixture(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 4.0]))
    (tensor(2.), tensor(4.))
    """
    middle = mean.mean(dim, keepdim=True)
    return middle.squeeze(dim), (variance + (mean - middle).square()).mean(dim)


def tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action ``tanh(μ + σ ε)`` in (−1, 1) and its log-density, from standard normal noise ε.

    All (..., A) → action (..., A), log-density (...,); gradients reach μ and σ through both.

    >>> import torch
    >>> from owlrl.gaussian import tanh_gaussian
    >>> action, log_prob = tanh_gaussian(torch.zeros(1), torch.zeros(1), torch.zeros(1))
    >>> action, round(float(log_prob), 4)
    (tensor([0.]), -0.9189)
    """
    raw = torch.addcmul(mean, log_std.exp(), noise)
    # −log(1 − tanh²x) = 2 (x + log(1 + e⁻²ˣ) − log 2), which stays finite where tanh is 1
    density = -0.5 * noise.square() - (_HALF_LOG_2_PI + 2.0 * _LOG_2) - log_std
    return raw.tanh(), (density + 2.0 * (raw + F.softplus(-2.0 * raw))).sum(-1)


def soft_clamp(x: Tensor, low: float, high: float) -> Tensor:
    """``x`` kept between ``low`` and ``high``, with a gradient that fades beyond them instead of stopping.

    >>> import torch
    >>> from owlrl.gaussian import soft_clamp
    >>> soft_clamp(torch.tensor([-100.0, 0.0, 100.0]), -10.0, 10.0).round(decimals=2)
    tensor([-10.,   0.,  10.])
    """
    x = high - F.softplus(high - x)
    return low + F.softplus(x - low)
