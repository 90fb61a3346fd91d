"""`StepGuard`: no optimizer step outside a task, and none with numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from owlrl.describe.temperature import TaskTemperature
from owlrl.errors import NonFiniteError, OwlError, OwlStateError
from owlrl.heads.growth import IdleHeads
from owlrl.heads.modes import all_shown
from owlrl.protocols import OffPolicyLearner

__all__ = ["StepGuard"]

PLAIN = (torch.float32, torch.float64)
WEIGHTS_EVERY = 128  # steps; weights that a bad gradient did not make, where no gradient shows them
GO_BACK = "Go back to a saved state"


class StepGuard:
    """Checks every optimizer step of a wrapped learner before it is made.

    A step outside a task is refused, and so is one with a gradient that is not finite, the
    regularizer's share included: the weights stay as they are. A learned temperature's steps are
    checked like a network's. New rows are checked first, since an infinite reward has a finite
    gradient in some losses.

    Args:
        learner: the learner, its networks bound.
        on_step: called with the number of the step before each step of the first optimizer.
        replay: the replay, whose ``check_new`` is called before each step where it has one.
        after_update: called when all optimizers have made their steps of an update: after the one that came
            last in the longest update so far, so not in the first.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.step_guard import StepGuard
    >>> q = MultiHeadQ(nn.Linear(1, 2), 2, 2)
    >>> optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    >>> guard = StepGuard(QLearner(q, None, optimizer))
    >>> guard.begin("left")
    >>> (q(torch.ones(1, 1)).sum() * float("nan")).backward()
    >>> optimizer.step()
    Traceback (most recent call last):
    ...
    owlrl.errors.NonFiniteError: task 'left', step 1: the gradient of 'trunk.weight' in network 'q' is not \
finite; the step was not made and the weights are as before. Look for NaN or infinity in the loss and \
what it is made of, or lower the step size
    >>> guard.detach()
    """

    needs_no_gradient = True  # looks at those there are; a step that is made elsewhere looks itself

    def __init__(
        self,
        learner: OffPolicyLearner,
        on_step: Callable[[int], None] | None = None,
        replay: object = None,
        after_update: Callable[[], None] | None = None,
    ) -> None:
        self._after_update = after_update
        self._update: list[int] = []  # the optimizers that have made their steps in this update
        self._longest: list[int] = []
        self.steps = 0  # since `begin`
        self.total = 0
        self._on_step = on_step
        self._check_new: Callable[[], None] | None = getattr(replay, "check_new", None)
        self._learner = learner
        self._task: str | None = None
        self._temperatures = [t for t in learner.per_task.values() if isinstance(t, TaskTemperature)]
        named = [*learner.optimizers.items(), *(("temperature", t.optimizer) for t in self._temperatures)]
        optimizers = {id(optimizer): optimizer for _, optimizer in named}
        self._names = {id(optimizer): name for name, optimizer in reversed(named)}
        self._first = next(iter(optimizers), None)
        self._handles = [o.register_step_pre_hook(self._before_step) for o in optimizers.values()]
        self._handles += [o.register_step_post_hook(self._after_step) for o in optimizers.values()]
        self._idle = [IdleHeads(o) for o in {id(o): o for o in learner.optimizers.values()}.values()]

    def begin(self, task: str) -> None:
        """Allow steps; idle heads are out of the optimizers' groups and ``parameters()`` until `end`."""
        self._task, self.steps = task, 0
        self._show_idle(False)
        idle = [
            parameter
            for network in self._learner.networks.values()
            for head in range(network.num_heads)
            if head != network.pointer.head
            for parameter in network.head_parameters(head).values()
        ]
        for heads in self._idle:
            heads.hide(idle)

    def end(self) -> int:
        """Refuse steps again; how many were made since `begin`."""
        self._task = None
        self._show_idle(True)
        for heads in self._idle:
            heads.show()
        made, self.steps = self.steps, 0
        return made

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Refuse steps inside the block."""
        task, self._task = self._task, None
        try:
            yield
        finally:
            self._task = task

    def check_weights(self) -> None:
        """Raise if any weight of a network, or its temperature, is not finite."""
        if problem := self._temperature_problem() or self._weight_problem():
            raise NonFiniteError(f"{self._where()}: {problem}; nothing was consolidated. {GO_BACK}")

    def explain(self, error: BaseException) -> None:
        """Raise in place of somebody's error, torch's distributions' say, where weights are its reason."""
        foreign = isinstance(error, Exception) and not isinstance(error, OwlError)
        if foreign and (problem := self._weight_problem()):
            text = f"{self._where()}: {problem}, and there was a {type(error).__name__}. {GO_BACK}"
            raise NonFiniteError(text) from error

    def _weight_problem(self) -> str | None:
        of = {"network": self._learner.networks, "the target of": self._learner.targets}
        for what, networks in of.items():
            for name, network in networks.items():
                for key, parameter in network.module.named_parameters():
                    if not bool(torch.isfinite(parameter).all()):
                        return f"the weights {key!r} of {what} {name!r} are not finite"
        return None

    def detach(self) -> None:
        """Stop checking."""
        self._show_idle(True)
        for handle in self._handles:
            handle.remove()
        for heads in self._idle:
            heads.detach()

    def _show_idle(self, shown: bool) -> None:
        for network in self._learner.networks.values():
            network.pointer.alone = not shown

    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._task is None:
            raise OwlStateError(
                "optimizer.step() was called outside a task; train inside `with owl.task(name):`, not inside "
                "`owl.use(name)`, or owl.unwrap() the learner first"
            )
        counted = id(optimizer) == self._first
        if counted:
            self._longest = max(self._update, self._longest, key=len)
            self._update = []
        self.steps += counted
        self.total += counted
        try:
            self._check_rows(optimizer)
            if counted and self._on_step is not None:
                self._on_step(self.steps)
            self._check_gradient(optimizer)
            if counted and self.steps % WEIGHTS_EVERY == 0 and (problem := self._weight_problem()):
                raise NonFiniteError(f"{self._where()}: {problem}; the step was not made. {GO_BACK}")
        except BaseException:  # a step that was not made
            self.steps -= counted
            self.total -= counted
            raise

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._update.append(id(optimizer))
        if self._after_update is not None and self._longest[-1:] == [id(optimizer)]:
            self._after_update()

    def _check_rows(self, optimizer: Optimizer) -> None:
        if self._check_new is None:
            return
        try:
            self._check_new()
        except NonFiniteError as error:
            raise NonFiniteError(f"{self._where()}: {error}; {self._unchanged(optimizer)}") from error

    def _check_gradient(self, optimizer: Optimizer) -> None:
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        finite = not grads or all_finite(grads)
        problem = None
        if not finite or any(optimizer is t.optimizer for t in self._temperatures):
            problem = self._temperature_problem()
        if problem or not finite:
            raise NonFiniteError(
                f"{self._where()}: {problem or f'the gradient of {self._culprit()} is not finite'}; "
                f"{self._unchanged(optimizer)}. Look for NaN or infinity in the loss and what it is made of, "
                "or lower the step size"
            )

    def _where(self) -> str:
        return f"task {self._task!r}, step {max(1, self.steps)}"

    def _unchanged(self, optimizer: Optimizer) -> str:
        """What has not happened; an update of several optimizers may have been half made."""
        if len(self._names) == 1:
            return "the step was not made and the weights are as before"
        name = self._names[id(optimizer)]
        return (
            f"the step of the {name!r} optimizer was not made and its weights are as before (steps that "
            "others made before it in this update stay)"
        )

    def _temperature_problem(self) -> str | None:
        for temperature in self._temperatures:
            value = float(temperature.log_alpha.detach())
            if not value <= math.log(torch.finfo(temperature.log_alpha.dtype).max):
                return f"alpha is not finite (log_alpha is {value})"
            if value == -math.inf:  # alpha is 0 then, and stays
                return "log_alpha is not finite (it is -inf)"
            grad = temperature.log_alpha.grad
            if grad is not None and not bool(torch.isfinite(grad).all()):
                return "the gradient of log_alpha is not finite"
        return None

    def _culprit(self) -> str:
        for name, network in self._learner.networks.items():
            with all_shown(network.pointer):
                named = list(network.module.named_parameters())
            for key, parameter in named:
                if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                    return f"{key!r} in network {name!r}"
        return "the whole network"


def all_finite(tensors: list[Tensor]) -> bool:
    """Whether there is no NaN and no infinity in ``tensors``.

    >>> import torch
    >>> from owlrl.step_guard import all_finite
    >>> all_finite([torch.ones(2), torch.tensor([1.0, torch.inf])])
    False
    """
    first = tensors[0]
    if all(x.dtype == first.dtype and x.device == first.device for x in tensors) and first.dtype in PLAIN:
        found = torch.zeros((), dtype=torch.float32, device=first.device)
        # what a GradScaler looks with, here for a scale of 1, which changes nothing: faster than a norm
        torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, torch.ones_like(found))
        return not found.item()
    # a norm is finite only if every entry is
    return math.isfinite(float(torch.stack([x.norm().double().cpu() for x in tensors]).sum()))
