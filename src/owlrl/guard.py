"""`StepGuard`: no optimizer step outside a task, and none with numbers that are not finite."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from owlrl.errors import NonFiniteError, OwlStateError
from owlrl.protocols import OffPolicyLearner

__all__ = ["StepGuard"]


class StepGuard:
    """Looks at every optimizer step of a wrapped learner before it is made.

    A NaN or an infinity in a loss reaches the gradient of the active head, which is small:
    looking there costs microseconds. The step is then refused, so the weights stay finite.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.guard import StepGuard
    >>> q = MultiHeadQ(nn.Linear(1, 2), 2, 2)
    >>> optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    >>> guard = StepGuard(QLearner(q, None, optimizer))
    >>> guard.begin("left")
    >>> (q(torch.ones(1, 1)).sum() * float("nan")).backward()
    >>> optimizer.step()
    Traceback (most recent call last):
    ...
    owlrl.errors.NonFiniteError: task 'left', step 1: the gradient of 'heads.0.bias' in network 'q' is not \
finite; the step was not made and the weights are as before. Look for NaN or infinity in rewards, \
observations and loss, or lower the step size
    >>> guard.detach()
    """

    def __init__(self, learner: OffPolicyLearner) -> None:
        self.steps = 0
        self._learner = learner
        self._task: str | None = None
        self._watched: dict[int, list[tuple[str, str, nn.Parameter]]] = {}
        optimizers = {id(o): o for o in learner.optimizers.values()}
        self._first = next(iter(optimizers), None)
        self._handles = [o.register_step_pre_hook(self._before_step) for o in optimizers.values()]

    def begin(self, task: str) -> None:
        """Allow steps, and watch the active head of every network."""
        self._task, self.steps = task, 0
        self._watched = {}
        for name, network in self._learner.networks.items():
            # the last parameter is the output's bias where there is one: the smallest that sees every row
            *_, (key, parameter) = network.head_parameters(network.pointer.head).items()
            self._watched.setdefault(id(self._learner.optimizers[name]), []).append((name, key, parameter))

    def end(self) -> None:
        """Refuse steps again."""
        self._task = None

    def check_weights(self) -> None:
        """Raise if any weight of a network is not finite."""
        for name, network in self._learner.networks.items():
            for key, parameter in network.module.named_parameters():
                if not bool(torch.isfinite(parameter).all()):
                    raise NonFiniteError(
                        f"task {self._task!r}, step {self.steps}: the weights {key!r} of network {name!r} "
                        "are not finite; nothing was consolidated. Go back to a saved state"
                    )

    def detach(self) -> None:
        """Stop looking."""
        for handle in self._handles:
            handle.remove()

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._task is None:
            raise OwlStateError(
                "optimizer.step() was called outside a task; train inside `with owl.task(name):`, "
                "or owl.unwrap() the learner first"
            )
        self.steps += id(optimizer) == self._first
        for name, key, parameter in self._watched.get(id(optimizer), ()):
            if parameter.grad is not None and not math.isfinite(float(parameter.grad.sum())):
                raise NonFiniteError(
                    f"task {self._task!r}, step {self.steps}: the gradient of {key!r} in network {name!r} is "
                    "not finite; the step was not made and the weights are as before. Look for NaN or "
                    "infinity in rewards, observations and loss, or lower the step size"
                )
