"""`StepGuard`: no optimizer step outside a task, and none with numbers that are not finite."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from threading import get_ident
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._C._nn import flatten_dense_tensors
from torch.optim import Optimizer

from owlrl.describe.temperature import TaskTemperature
from owlrl.errors import NonFiniteError, OwlError, OwlStateError
from owlrl.heads.growth import IdleHeads
from owlrl.heads.modes import all_shown
from owlrl.protocols import MultiHead, OffPolicyLearner
from owlrl.types import Answer

__all__ = ["StepGuard"]

PLAIN = (torch.float32, torch.float64)
SMALL = 2**14  # numbers of a tensor that is looked at together with others
NEWEST = 64  # outputs, and losses, that are kept for the next step
GO_BACK = "Go back to a saved state"
LOOK = "Look for NaN or infinity in the loss and what it is made of, or lower the step size"
Suspect = tuple[str, Tensor]  # what it is, for a message, and its numbers


class StepGuard:
    """Checks every optimizer step of a wrapped learner before it is made.

    A step outside a task is refused, and so is one with numbers that are not finite, or too large to be
    squared: the weights stay as they are. Looked at are new rows, the losses that ``backward`` was called
    on, the gradient with the regularizer's share, what the output layers of networks and targets answered
    since the last step, temperatures, and before the first step of every update the weights of networks and
    targets: an infinite reward, target or log-variance has a finite gradient in some losses, and a weight may
    show nowhere else.

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
    >>> (q(torch.ones(1, 1)).sum() + float("inf")).backward()
    >>> optimizer.step()
    Traceback (most recent call last):
    ...
    owlrl.errors.NonFiniteError: task 'left', step 1: the loss is not finite (inf); the step was not made \
and the weights are as before. Look for NaN or infinity in the loss and what it is made of, or lower the \
step size
    >>> guard.detach()
    """

    needs_no_gradient = True  # looks at those there are; a compiled step (learners/compiled.py) looks itself

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
        self._pointers = list({id(n.pointer): n.pointer for _, n in self._networks()}.values())
        self._answers: deque[Answer] = deque(maxlen=NEWEST)  # since the last step
        self._losses: deque[Tensor] = deque(maxlen=NEWEST)  # those ``backward`` was called on since then
        self._thread = 0  # whose answers and losses they are
        self._weights: list[Tensor] = []  # of shared layers and of the active head, targets' too
        self._begun: list[int] = []  # the optimizers whose steps were begun in this update

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
        self._weights = [
            weight
            for _, n in self._networks()
            for weight in {**n.shared_parameters(), **n.head_parameters(n.pointer.head)}.values()
            if weight.is_floating_point()
        ]
        self._large = any(weight.numel() > SMALL for weight in self._weights)  # whether there are large ones
        self._begun = []
        self._listen(self._answers)

    def end(self) -> int:
        """Refuse steps again; how many were made since `begin`."""
        self._task = None
        self._listen(None)
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
        if problem := _problem(self._state()):
            where = f"task {self._task!r}, after step {self.steps}"
            raise NonFiniteError(f"{where}: {problem}; nothing was consolidated. {GO_BACK}")

    def explain(self, error: BaseException) -> None:
        """Raise in place of somebody's error, torch's distributions' say, where numbers are its reason."""
        foreign = isinstance(error, Exception) and not isinstance(error, OwlError)
        if foreign and (found := self._found(_still_answers(self._answers))):
            text = f"{found[0]}, and there was a {type(error).__name__}. {found[1]}"
            raise NonFiniteError(f"task {self._task!r}, after step {self.steps}: {text}") from error

    def detach(self) -> None:
        """Stop checking."""
        self._listen(None)
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
        if id(optimizer) in self._begun:
            self._begun = []
        self._begun.append(id(optimizer))
        counted = id(optimizer) == self._first
        if counted:
            self._longest = max(self._update, self._longest, key=len)
            self._update = []
        self.steps += counted
        self.total += counted
        try:
            if row := self._bad_row():
                raise NonFiniteError(self._refused(row))
            self._check_numbers(optimizer)
            if counted and self._on_step is not None:
                self._on_step(self.steps)
        except BaseException:  # a step that was not made
            self.steps -= counted
            self.total -= counted
            raise

    def _after_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._update.append(id(optimizer))
        if self._after_update is not None and self._longest[-1:] == [id(optimizer)]:
            self._after_update()

    def _bad_row(self) -> str | None:
        """What is wrong with the rows since the last look."""
        try:
            return None if self._check_new is None else self._check_new()
        except NonFiniteError as error:
            return str(error)

    def _check_numbers(self, optimizer: Optimizer) -> None:
        """Gradients and what the networks answered since the last step; once per update the weights, too."""
        answers, losses = list(self._answers), list(self._losses)
        self._answers.clear()
        self._losses.clear()
        if get_ident() != self._thread:  # another one trains than the one that entered the task
            self._listen(self._answers)
        numbers = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if len(self._begun) == 1:
            numbers += self._weights
        for log_alpha in (t.log_alpha.detach() for t in self._temperatures):
            numbers += [log_alpha, log_alpha.exp()]
        if all_finite(numbers + losses + [output for _, output in answers], large=self._large):
            return
        answers = _still_answers(answers)
        if all_finite(numbers + losses + [output for _, output in answers], large=self._large):
            return
        if found := self._found(answers, optimizer, losses):
            raise NonFiniteError(f"{self._refused(found[0])}. {found[1]}")

    def _listen(self, answers: deque[Answer] | None) -> None:
        """Forget answers and losses; note this thread's next ones, the answers in ``answers``, or none."""
        self._thread = get_ident()
        self._answers.clear()
        self._losses.clear()
        for pointer in self._pointers:
            pointer.listen(answers)
        _hear_losses(self, None if answers is None else (self._thread, self._losses))

    def _refused(self, problem: str) -> str:
        """Where it was, and what has not happened: an update of several optimizers may be half made."""
        where = f"task {self._task!r}, step {self.steps + (self._first not in self._begun)}"
        if len(self._names) == 1:
            return f"{where}: {problem}; the step was not made and the weights are as before"
        *made, name = (self._names[number] for number in self._begun)
        others = f"{' and '.join(map(repr, made))} made theirs" if made else "no other was made"
        unchanged = f"the step of the {name!r} optimizer was not made and its weights are as before"
        return f"{where}: {problem}; {unchanged} ({others} in this update)"

    def _networks(self) -> Iterator[tuple[str, MultiHead]]:
        for name, network in self._learner.networks.items():
            yield f"network {name!r}", network
        for name, network in self._learner.targets.items():
            yield f"the target of {name!r}", network

    def _state(self) -> Iterator[Suspect]:
        """What a step starts from, weights of all heads included."""
        for temperature in self._temperatures:
            log_alpha = temperature.log_alpha.detach()
            yield f"alpha (log_alpha is {float(log_alpha):g}) is", log_alpha.exp()
            yield "log_alpha is", log_alpha
        for name, network in self._networks():
            for key, weight in _named(network):
                yield f"the weights {key!r} of {name} are", weight.detach()

    def _outputs(self, answers: list[Answer]) -> Iterator[Suspect]:
        owners: dict[int, tuple[tuple[str, ...], str]] = {}
        for name, network in self._networks():
            for key, module in network.module.named_modules():
                owners[id(module)] = getattr(network.module, "columns", (f"outputs of layer {key!r}",)), name
        for source, output in answers:
            columns, name = owners.get(id(source), (("outputs",), "a network"))
            for column, part in zip(columns, output.chunk(len(columns), -1), strict=False):
                yield f"the {column} of {name} are", part

    def _gradients(self, optimizer: Optimizer) -> Iterator[Suspect]:
        names = {id(t.log_alpha): "log_alpha" for t in self._temperatures}
        for name, network in self._learner.networks.items():
            names |= {id(parameter): f"{key!r} in network {name!r}" for key, parameter in _named(network)}
        other = f"a parameter of the {self._names[id(optimizer)]!r} optimizer"
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            if parameter.grad is not None:
                yield f"the gradient of {names.get(id(parameter), other)} is", parameter.grad

    def _found(
        self, answers: list[Answer], optimizer: Optimizer | None = None, losses: Iterable[Tensor] = ()
    ) -> tuple[str, str] | None:
        """What is not finite, the reason before what follows from it, and what to do."""
        with suppress(Exception):  # rows that cannot be read may be the reason for all this
            if row := self._bad_row():
                return row, LOOK
        lost = (("the loss is", loss[~loss.isfinite()]) for loss in losses)  # it may be large
        groups = [(self._state(), GO_BACK), (self._outputs(answers), LOOK), (lost, LOOK)]
        groups += [] if optimizer is None else [(self._gradients(optimizer), LOOK)]
        return next(((said, advice) for suspects, advice in groups if (said := _problem(suspects))), None)


_listeners: WeakKeyDictionary[StepGuard, tuple[int, deque[Tensor]]] = WeakKeyDictionary()  # thread, losses
_torch_backward: Callable[..., Any] = torch.autograd.backward  # what ours is in the place of, and calls
_replaced = False


@wraps(_torch_backward)
def _backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.autograd.backward`, which also ``loss.backward()`` calls, with a note of what it is called on.

    Torch has no hook there, and nothing else shows a loss that is infinite while its gradient is not.
    """
    if not torch.compiler.is_compiling():
        for thread, losses in list(_listeners.values()):
            if thread == get_ident():
                found = [tensors] if isinstance(tensors, Tensor) else tensors
                losses += [x.detach() for x in found if isinstance(x, Tensor) and x.dtype != torch.float16]
    return _torch_backward(tensors, *args, **kwargs)


def _hear_losses(guard: StepGuard, listener: tuple[int, deque[Tensor]] | None) -> None:
    """Note the losses of a thread from now on, or no longer; torch is as it was when nobody listens.

    Ours stays, without effect, where somebody has put theirs around it.
    """
    global _torch_backward, _replaced
    if listener is not None:
        _listeners[guard] = listener
    else:
        _listeners.pop(guard, None)
    there = torch.autograd.backward
    if _listeners and not _replaced and there is not _backward:
        _torch_backward, torch.autograd.backward, _replaced = there, _backward, True
    elif not _listeners and _replaced and there is _backward:
        torch.autograd.backward, _replaced = _torch_backward, False


def _named(network: MultiHead) -> list[tuple[str, nn.Parameter]]:
    """All parameters, those of idle heads too."""
    with all_shown(network.pointer):
        return list(network.module.named_parameters())


def _problem(suspects: Iterable[Suspect]) -> str | None:
    """The first of ``suspects`` with a number that is not finite, or whose square is not."""
    for what, tensor in suspects:
        if not all_finite([tensor]):
            bad = tensor[~tensor.isfinite()]
            if len(bad):
                return f"{what} not finite ({float(bad[0])})"
            return f"{what} too large to be squared ({float(tensor.abs().max()):.3g})"
    return None


def _still_answers(answers: Iterable[Answer]) -> list[Answer]:
    """Without those that were changed in place since, by masks say, and those of ``vmap`` or of an export."""
    whole = [a for a in answers if type(a[1]) is Tensor and not is_functorch_wrapped_tensor(a[1])]
    return [(source, output) for source, output in whole if not (output.is_inference() or output._version)]


def all_finite(tensors: list[Tensor], *, large: bool = False) -> bool:
    """Whether all numbers in ``tensors`` and the sum of their squares are finite; False if that is unknown.

    Small ones are copied side by side, since calls take longer than that. There may be others if ``large``.

    >>> import torch
    >>> from owlrl.step_guard import all_finite
    >>> all_finite([torch.ones(2), torch.tensor([[3.0]])]), all_finite([torch.tensor([1.0, torch.nan])])
    (True, False)
    """
    try:
        with torch._C._InferenceMode(True):  # half the time of torch.no_grad()
            parts = [tensor.flatten() for tensor in tensors if tensor.numel() > SMALL] if large else []
            small = [tensor for tensor in tensors if tensor.numel() <= SMALL] if parts else tensors
            parts += [flatten_dense_tensors(small)] if small else []
            squares = [torch.dot(x, x) for x in (x if x.dtype in PLAIN else x.float() for x in parts)]
            return math.isfinite(squares[0] if len(squares) == 1 else sum(squares))
    except RuntimeError:  # on several devices, or of ``vmap``
        return len(tensors) > 1 and all(all_finite([tensor]) for tensor in tensors)
