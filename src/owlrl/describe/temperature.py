"""`TaskTemperature`: a learned temperature α with a value and optimizer state per task."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from owlrl.heads.growth import owning_group
from owlrl.types import HeadPointer

__all__ = ["TaskTemperature"]


class TaskTemperature:
    """The α = exp(log_alpha) of a script, exchanged in place at each change of task.

    The script continues with its ``log_alpha`` and optimizer. A task's state is loaded with the pointer at
    that task's head, so each head's α is known at any time: its entropy-regularised target needs it.

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
        """Use ``pointer``'s head as the one whose state is loaded."""
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
        """Load a task's value and optimizer state; the value that was there is kept under its head."""
        if math.isfinite(left := float(self.log_alpha.detach())):  # a task that broke keeps its last good one
            self._known[self._owner] = left
        with torch.no_grad():
            self.log_alpha.copy_(state_dict["log_alpha"])
        self.log_alpha.grad = None
        self.optimizer.load_state_dict(state_dict["optimizer"])
        self._owner = self._pointer.head
        self._known[self._owner] = float(self.log_alpha.detach())

    def problems(self) -> list[str]:
        """Why it cannot be trained: a leaf of one element in an optimizer that holds nothing else."""
        log_alpha, optimizer = self.log_alpha, self.optimizer
        if not isinstance(log_alpha, Tensor):
            kind = type(log_alpha).__name__
            return [f"temperature's log_alpha is a {kind}; expected a tensor of one element that is trained"]
        found = []
        if not (log_alpha.is_leaf and log_alpha.requires_grad) or log_alpha.numel() != 1:
            found.append(
                f"temperature's log_alpha has shape {tuple(log_alpha.shape)}, requires_grad="
                f"{log_alpha.requires_grad} and is_leaf={log_alpha.is_leaf}; expected a leaf of one element, "
                "e.g. torch.zeros(1, requires_grad=True)"
            )
        elif not bool(torch.isfinite(log_alpha.detach().exp()).all()):
            value = float(log_alpha.detach())
            found.append(f"temperature's log_alpha is {value}, so alpha is not finite; expected a finite one")
        if not isinstance(optimizer, Optimizer):
            kind = type(optimizer).__name__
            expected = "expected the torch.optim.Optimizer of log_alpha"
            found.append(f"temperature's optimizer is a {kind}; {expected}")
        elif [p for group in optimizer.param_groups for p in group["params"] if p is not log_alpha]:
            found.append(
                "temperature's optimizer holds other parameters than log_alpha; expected one for log_alpha "
                "alone: its state is kept per task"
            )
        elif owning_group(optimizer, log_alpha) is None:
            expected = "expected one built from [log_alpha]"
            found.append(f"temperature's optimizer does not hold log_alpha; {expected}")
        return found
