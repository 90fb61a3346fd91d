"""`TaskTemperature`: a learned temperature α with a value and optimizer state per task."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from owlrl._arguments import Arguments
from owlrl.heads.growth import owning_group
from owlrl.types import HeadPointer

__all__ = ["TaskTemperature", "as_temperature", "temperature_problems"]


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


def as_temperature(given: Any) -> Any:
    """A pair (log_alpha, optimizer) as a `TaskTemperature`; a number, None or anything else as it is.

    >>> import torch
    >>> from owlrl.describe.temperature import as_temperature
    >>> log_alpha = torch.zeros(1, requires_grad=True)
    >>> as_temperature((log_alpha, torch.optim.Adam([log_alpha]))).of_head(0)
    1.0
    >>> as_temperature(0.2)
    0.2
    """
    if isinstance(given, tuple | list) and len(given) == 2:
        return TaskTemperature(*given)
    return given


def temperature_problems(temperature: object) -> list[str]:
    """What is wrong with a temperature: a number >= 0, None, or a `TaskTemperature` that can be trained.

    >>> from owlrl.describe.temperature import temperature_problems
    >>> temperature_problems(0.2)
    []
    >>> temperature_problems(-1.0)
    ['temperature is -1.0; expected a finite number >= 0, or (log_alpha, optimizer), or None']
    """
    if temperature is None:
        return []
    if not isinstance(temperature, TaskTemperature):
        arguments = Arguments("temperature")
        arguments.number("temperature", temperature, least=0.0)
        return [
            f"temperature is {temperature!r}; expected a finite number >= 0, or (log_alpha, optimizer), or "
            "None"
            for _ in arguments.problems
        ]
    log_alpha, optimizer = temperature.log_alpha, temperature.optimizer
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
        found.append(
            f"temperature's log_alpha is {value}, so that alpha is not finite; expected a finite one"
        )
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        found.append(f"temperature's optimizer is a {kind}; expected the torch.optim.Optimizer of log_alpha")
    elif [p for group in optimizer.param_groups for p in group["params"] if p is not log_alpha]:
        found.append(
            "temperature's optimizer holds other parameters than log_alpha; expected one for log_alpha "
            "alone: its state is kept per task"
        )
    elif owning_group(optimizer, log_alpha) is None:
        found.append("temperature's optimizer does not hold log_alpha; expected one built from [log_alpha]")
    return found
