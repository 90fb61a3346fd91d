"""Settling: at the end of a task the shared layers return to what every head answered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor, nn

__all__ = ["settle"]

RATE = 1e-3  # Adam's step size at the start; it falls to 0
CHECKED = 8  # batches that tell whether it helped
ENOUGH = 0.5  # of the loss before: less help is not worth that the newest head moves
Batch = TypeVar("Batch")


def settle(
    parameters: Sequence[nn.Parameter],
    loss: Callable[[Batch], Tensor],
    batches: Iterator[Batch],
    steps: int,
) -> bool:
    """Make ``steps`` steps down a ``loss``; undo them unless they halve it on the first batches.

    An Adam of its own makes the steps: gradients and the state of other optimizers stay as they are.

    Args:
        parameters: what is changed.
        loss: of a batch.
        batches: one for each step, and eight before them.
        steps: how many.

    >>> import itertools, torch
    >>> from torch import nn
    >>> from owlrl.regularizers.settling import settle
    >>> weight = nn.Parameter(torch.tensor([0.5]))
    >>> settle([weight], lambda goal: (weight - goal).square().sum(), itertools.repeat(0.45), 300)
    True
    >>> round(weight.item(), 2), weight.grad
    (0.45, None)
    """
    checked = list(islice(batches, CHECKED))

    @torch.no_grad()
    def check() -> float:
        return float(torch.stack([loss(batch) for batch in checked]).sum())

    before, gradients = check(), [p.grad for p in parameters]
    start = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.Adam(parameters, lr=RATE)
    better = False
    try:
        for k, batch in enumerate(islice(batches, steps)):
            optimizer.param_groups[0]["lr"] = RATE * 0.5 * (1.0 + math.cos(math.pi * k / steps))
            found = torch.autograd.grad(loss(batch), parameters, allow_unused=True)
            for parameter, slope in zip(parameters, found, strict=True):
                parameter.grad = slope
            optimizer.step()
        better = check() < ENOUGH * before
    finally:
        with torch.no_grad():
            for parameter, gradient, old in zip(parameters, gradients, start, strict=True):
                parameter.grad = gradient
                if not better:
                    parameter.copy_(old)
    return better
