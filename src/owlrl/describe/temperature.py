"""`TaskTemperature`: a learned temperature α with a value and optimizer state per task."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from owlrl.types import HeadPointer

__all__ = ["TaskTemperature"]


class TaskTemperature:
    """The α = exp(log_alpha) of a script, swapped in place from task to task.

    The script goes on using its own ``log_alpha`` and optimizer. Whoever loads a task's state does it
    with the pointer at that task's head, so that each head's α can be asked for at any time: a head's
    entropy-regularised target needs its own.

    Args:
        log_alpha: the leaf tensor that the script trains.
        optimizer: the optimizer that holds it, and nothing else.

    >>> import torch
    >>> from owlrl.describe.temperature import TaskTemperature
    >>> from owlrl.types import HeadPointer
    >>> log_alpha = torch.zeros(1, requires_grad=True)
    >>> temperature = TaskTemperature(log_alpha, torch.optim.Adam([log_alpha]))
    >>> pointer = HeadPointer()
    >>> temperature.follow(pointer)
    >>> first = temperature.state_dict()
    >>> with torch.no_grad():
    ...     _ = log_alpha.fill_(-1.0)  # trained in the first task
    >>> pointer.index = 1
    >>> temperature.load_state_dict(first)  # a new task starts from the first value
    >>> round(temperature.of_head(0), 3), temperature.of_head(1)
    (0.368, 1.0)
    """

    def __init__(self, log_alpha: Tensor, optimizer: Optimizer) -> None:
        self.log_alpha = log_alpha
        self.optimizer = optimizer
        self._pointer = HeadPointer()
        self._owner = 0  # the head whose value log_alpha holds now
        self._known: dict[int, float] = {}  # log α of each head when its task was left

    def follow(self, pointer: HeadPointer) -> None:
        """Take ``pointer``'s head for the one whose state is loaded."""
        self._pointer, self._owner = pointer, pointer.head

    def of_head(self, head: int) -> float:
        """The α of ``head``; that of the current task where nothing was learned with it yet."""
        log_alpha = float(self.log_alpha.detach())
        if head != self._owner:
            log_alpha = self._known.get(head, log_alpha)
        try:
            return math.exp(log_alpha)
        except OverflowError:
            return math.inf

    def state_dict(self) -> dict[str, Any]:
        """The current task's value and optimizer state."""
        return {"log_alpha": self.log_alpha.detach().clone(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Put a task's value and optimizer state in place; what was there is remembered by its head."""
        if math.isfinite(left := float(self.log_alpha.detach())):  # a task that broke keeps its last good one
            self._known[self._owner] = left
        with torch.no_grad():
            self.log_alpha.copy_(state_dict["log_alpha"])
        self.log_alpha.grad = None
        self.optimizer.load_state_dict(state_dict["optimizer"])
        self._owner = self._pointer.head
        self._known[self._owner] = float(self.log_alpha.detach())
