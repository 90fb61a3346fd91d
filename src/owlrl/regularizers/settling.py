"""Settling: at the end of a task the shared layers return to what every head answered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["settle"]

RATE = 1e-3  # Adam's step size at the start; it falls to 0


def settle(
    parameters: Sequence[nn.Parameter], loss: Callable[[], Tensor], check: Callable[[], float], steps: int
) -> bool:
    """Make ``steps`` steps down a ``loss``; undo them unless ``check()`` is lower afterwards.

    An Adam of its own makes the steps: gradients and the state of other optimizers stay as they are.

    Args:
        parameters: what is changed.
        loss: computes the loss of the next batch, with gradient.
        check: the same for rows that do not change, without.
        steps: how many.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.regularizers.settling import settle
    >>> weight = nn.Parameter(torch.tensor([0.5]))
    >>> far = lambda: (weight - 0.4).square().sum()
    >>> settle([weight], far, lambda: far().item(), 300), round(weight.item(), 2), weight.grad
    (True, 0.4, None)
    """
    before, gradients = check(), [p.grad for p in parameters]
    start = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.Adam(parameters, lr=RATE)
    better = False
    try:
        for k in range(steps):
            optimizer.param_groups[0]["lr"] = RATE * 0.5 * (1.0 + math.cos(math.pi * k / steps))
            found = torch.autograd.grad(loss(), parameters, allow_unused=True)
            for parameter, slope in zip(parameters, found, strict=True):
                parameter.grad = slope
            optimizer.step()
        better = check() < before
    finally:
        with torch.no_grad():
            for parameter, gradient, old in zip(parameters, gradients, start, strict=True):
                parameter.grad = gradient
                if not better:
                    parameter.copy_(old)
    return better
