"""The loop of the reference learners: it can stop after any frame and continue as if it had not."""

from __future__ import annotations

import copy
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from typing_extensions import Self

from owlrl._arguments import Arguments, own_generator, restored_generator
from owlrl.acting.episodes import Stepper, Steps
from owlrl.describe.base import DescribedLearner
from owlrl.describe.given import as_env
from owlrl.errors import NonFiniteError, install_hint, raise_problems
from owlrl.learners.compiled import CompiledStep
from owlrl.learners.config import DQNConfig, SACConfig
from owlrl.protocols import Stateful
from owlrl.replay.ring import spaces_of
from owlrl.types import Transitions

__all__ = ["EpsilonSchedule"]

KEY = 4  # tells a learner's random numbers from those of other parts without a seed


class EpsilonSchedule:
    """ε from ``start`` to ``end`` over ``frames`` frames, linearly or exponentially.

    Pass it as ``QLearner(..., per_task={"epsilon": schedule})``: each task then starts it from the beginning,
    and a revisit resumes it (restarting it was worse in the paper).

    Args:
        start: ε at the first frame.
        end: ε in the end.
        frames: frames it takes (linear), or the decay constant (exponential).
        shape: "linear", or "exponential": ``end + (start − end)·exp(−t / frames)``.

    >>> from owlrl.learners import EpsilonSchedule
    >>> epsilon = EpsilonSchedule(1.0, 0.2, frames=100)
    >>> epsilon.advance(50)
    >>> epsilon.value
    0.6
    """

    def __init__(
        self, start: float, end: float, *, frames: int, shape: Literal["linear", "exponential"] = "linear"
    ) -> None:
        arguments = Arguments("EpsilonSchedule")
        self.start = arguments.number("start", start, least=0.0, most=1.0)
        self.end = arguments.number("end", end, least=0.0, most=1.0)
        self.frames = arguments.integer("frames", frames)
        self.shape = arguments.choice("shape", shape, ["linear", "exponential"])
        arguments.check()
        self.seen = 0

    @property
    def value(self) -> float:
        """ε now."""
        if self.shape == "exponential":
            return float(self.end + (self.start - self.end) * math.exp(-self.seen / self.frames))
        return float(self.start + (self.end - self.start) * min(1.0, self.seen / self.frames))

    def advance(self, frames: int) -> None:
        """Count ``frames`` more."""
        self.seen += frames

    def state_dict(self) -> dict[str, Any]:
        """How many frames were seen."""
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from there."""
        self.seen = int(state_dict["seen"])


class LearningLoop(ABC):
    """Act, store, update: what `DQN` and `SAC` share.

    Nothing that matters is a local of `learn`: ``learn(a)`` and then ``learn(b)`` does what ``learn(a + b)``
    does, bit for bit, also in the middle of an episode.
    """

    config: DQNConfig | SACConfig

    def __init__(self, env: Any, *, replay: Any, seed: int | None, device: torch.device | str) -> None:
        self.env = env
        self.replay = replay
        self.seed = seed
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(automatic if device == "auto" else device)
        self.updates = 0
        self._rng = own_generator(seed, *(() if seed is not None else (KEY,)))
        self._stepper: Stepper | None = None  # None: the next frame starts an episode
        self._warmed = 0  # random frames in this task so far
        self._owed = 0  # frames that are not paid for by updates yet
        self._ahead = 0  # frames of several environments beyond those asked for
        # moves on with everything that changes the environment: tells states before from states after it
        self._clock = 0
        self._entered = False  # a task's counts were loaded and no frame was made since
        self._loaded = False  # a state of another process was, in an episode, and no frame was made since
        self._at_frame_end: list[Callable[[], None]] = []
        self._compiled: dict[str, CompiledStep] = {}  # by the name of what is trained

    def learn(
        self,
        frames: int,
        *,
        env: Any = None,
        callback: Callable[[Self, int], None] | None = None,
        progress_bar: bool = False,
    ) -> None:
        """Act and learn for ``frames`` frames; a later call continues where this one stopped.

        Args:
            frames: over all environments together; extra frames, since environments step together,
                count for the next call.
            env: learn here from now on (`set_env`).
            callback: called with the agent and this call's frames so far, after each step.
            progress_bar: show one (needs tqdm).
        """
        name = f"{type(self).__name__}.learn"
        arguments = Arguments(name)
        frames = arguments.integer("frames", frames)
        arguments.function("callback", callback, "of the agent and the frames so far", none=True)
        arguments.check()
        if env is not None:
            self.set_env(env)
        copies = spaces_of(self.env)[2]
        left, seen = frames - self._ahead, 0
        self._ahead = max(0, -left)
        with _progress(name, max(0, left), show=progress_bar) as bar:
            while left > 0:
                self._make_frame()
                left, seen = left - copies, seen + copies
                self._ahead = max(0, -left)
                if bar is not None:
                    bar.update(copies)
                for look in list(self._at_frame_end):
                    look()
                if callback is not None:
                    callback(self, seen)

    def at_frame_end(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback()`` after each frame of `learn` and its updates; the result stops it.

        What is saved there can be resumed exactly.
        """
        callbacks = self._at_frame_end
        callbacks.append(callback)
        return lambda: callbacks.remove(callback) if callback in callbacks else None

    def set_env(self, env: Any) -> None:
        """Learn in ``env`` (an environment, or its id) from now on, beginning with its reset.

        Another environment is another task: the networks take over their averages, and the first frames
        are random again. (In a block of `OwlWrapper.task` the task's counts continue instead.)
        """
        if env is self.env:
            return
        env = as_env(env) if isinstance(env, str) else env
        check_successor(f"{type(self).__name__}.learn", env, self.env)
        if not self._entered:
            if self._stepper is not None:
                self.hand_over()
            self._warmed = self._owed = self._ahead = 0
        self.env, self._stepper = env, None
        if not self._loaded:  # else it may be the environment of the state, put back as it was
            self._clock += 1

    def hand_over(self) -> None:
        """End the task: the networks take over their averaged weights, and the next frame starts an episode.

        The wrapper calls it when a task's block ends. `predict` acts with the average at any time.
        """
        self._take_average()
        self._break_off()

    @contextmanager
    def staying(self) -> Iterator[None]:
        """The current episode continues after the block, whatever happens to tasks in it."""
        stepper = self._stepper
        try:
            yield
        finally:
            self._stepper, self._entered = stepper, False

    def _break_off(self) -> None:
        self._stepper = None
        self._clock += 1

    def _make_frame(self) -> None:
        """One step of all environments, and the updates that are due."""
        stepper = self._stepper
        if stepper is None or stepper.env is not self.env:
            seed = None if self.seed is None else int(self._rng.integers(2**31))
            stepper = self._stepper = Stepper(self.env, seed=seed)
            self._check_first(stepper.observation)
        self._entered = self._loaded = False
        self._clock += 1
        copies, settings = stepper.num_envs, self.config
        random = self._warmed + copies <= settings.learning_starts
        self._warmed += copies if random else 0
        try:
            steps = stepper.step(self._act(stepper.observation, random=random))
        except BaseException:
            self._break_off()  # the state of the environment is unknown
            raise
        steps.add_to(self.replay)
        self._note(steps)
        if not random and len(self.replay) >= settings.batch_size:
            self._owed += copies
            while self._owed >= settings.update_every:
                self._owed -= settings.update_every
                self.update(self.replay.sample(settings.batch_size))

    @property
    def compile_seconds(self) -> float:
        """What compiling took so far; 0 without ``compile=True``."""
        return sum(step.seconds for step in self._compiled.values())

    def update(self, batch: Transitions) -> Any:
        """One gradient step on ``batch``; returns the loss of a `DQN`, both losses and α of a `SAC`."""
        with flushed_denormals():
            return self._update(batch)

    @abstractmethod
    def _update(self, batch: Transitions) -> Any:
        """One gradient step on ``batch``."""

    def _step(
        self,
        name: str,
        optimizer: Optimizer,
        loss: Callable[..., tuple[Tensor, Tensor]],
        networks: Sequence[nn.Module],
        *inputs: Any,
        head: int | None = None,
        max_norm: float | None = None,
    ) -> tuple[float, Tensor]:
        """One gradient step of the first network, none if the loss is not finite; the loss's outputs."""
        if name in self._compiled:
            value, further = self._compiled[name](optimizer, networks, *inputs, head=head)
            return value.item(), further
        called = networks if head is None else [partial(network, head=head) for network in networks]
        value, further = loss(*called, *inputs)
        number = value.item()  # a GPU is waited for here, and only here
        if math.isfinite(number):
            own = _parameters(optimizer)
            for parameter in own:
                parameter.grad = None
            # to its own parameters only: a policy's loss costs the critics no gradient
            chosen = [p for p in own if p.requires_grad] if head is None else None  # that head may be idle
            value.backward(inputs=chosen)  # type: ignore[no-untyped-call]
            if max_norm is not None:
                clip_grad_norm_(_parameters(optimizer), max_norm)
            optimizer.step()
        return number, further.detach()

    def _finite(
        self, batch: Transitions, quantity: str, number: float, made: str = "no weight was changed"
    ) -> float:
        """``number``, or an error that says where it stopped being finite, and what was ``made`` before."""
        if not math.isfinite(number):
            together = "loss" in quantity and self._compiled
            raise NonFiniteError(
                f"{type(self).__name__}: task {batch.task!r}, update {self.updates + 1}: the {quantity} is "
                f"{number}{' (or its gradient, or what a network answered)' if together else ''}; {made}. "
                "Look for NaN, infinity and huge numbers in weights, rewards and observations, or lower the "
                "step size"
            )
        return number

    def _tensor(self, observation: np.ndarray) -> Tensor:
        """Observations on the device."""
        own = np.require(observation, requirements=["C", "W"])  # torch warns of what is read-only
        return torch.from_numpy(own).to(self.device)

    @abstractmethod
    def _act(self, observation: np.ndarray, *, random: bool) -> np.ndarray:
        """What to do in each environment, exploring."""

    @abstractmethod
    def _take_average(self) -> None:
        """Give the networks their averaged weights, if the config enables it."""

    @abstractmethod
    def _parts(self) -> dict[str, Stateful]:
        """Everything else that has a state."""

    def _note(self, steps: Steps) -> None:  # noqa: B027  # there may be nothing to note
        """Take notice of a step."""

    def _check_first(self, observation: np.ndarray) -> None:  # noqa: B027  # anything may do
        """Raise if an environment's first observation shows that nothing can be learned from it."""

    def loop_state(self) -> dict[str, Any]:
        """The loop's state: counts, generators and the last observation."""
        state: dict[str, Any] = {
            "clock": self._clock,
            "updates": self.updates,
            "warmed": self._warmed,
            "owed": self._owed,
            "ahead": self._ahead,
            "rng": copy.deepcopy(self._rng.bit_generator.state),
        }
        return state if self._stepper is None else {**state, "episode": self._stepper.state_dict()}

    def load_loop_state(self, state: Mapping[str, Any], *, task: bool = False) -> None:
        """Continue from what `loop_state` returned.

        With ``task`` it is a task's state, which may be old: then counts alone are taken. Random numbers do
        not begin again, and the environment is no longer where it was.
        """
        old = task and state["clock"] < self._clock
        if not old:
            rng = restored_generator(state["rng"])
            ahead = int(state["clock"]) > self._clock  # as no state of this process is
            self._loaded = (ahead or self._loaded) and "episode" in state
            self._clock, self.updates, self._rng = int(state["clock"]), int(state["updates"]), rng
        self._warmed, self._owed, self._ahead = (int(state[name]) for name in ("warmed", "owed", "ahead"))
        self._entered, self._stepper = task, None
        if not old and "episode" in state and _was_reset(self.env):
            self._stepper = Stepper(self.env, state=copy.deepcopy(state["episode"]))

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit, except the environment itself.

        To continue in the middle of an episode, put the environment back as it was, too: build the agent with
        it, or give it with `set_env` (or ``owl.task(name, env=...)``). One that was never reset starts an
        episode.
        """
        parts = {"replay": self.replay, **self._parts()}
        return {
            "loop": self.loop_state(),
            **{name: copy.deepcopy(part.state_dict()) for name, part in parts.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned."""
        parts = self._parts()
        raise_problems(f"{type(self).__name__}.load_state_dict", _state_problems(parts, state_dict))
        self.replay.load_state_dict(state_dict["replay"])
        for name, part in parts.items():
            part.load_state_dict(copy.deepcopy(state_dict[name]))
            if isinstance(part, Optimizer):
                _lay_out(part)
        self.load_loop_state(state_dict["loop"])


class TaskLoop:
    """A loop's state in the current task, for ``per_task``: each task counts its own frames."""

    def __init__(self, loop: LearningLoop) -> None:
        self._loop = loop

    def state_dict(self) -> dict[str, Any]:
        """The loop's state."""
        return self._loop.loop_state()

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Enter a task: its counts, and its episode if nothing has happened since."""
        self._loop.load_loop_state(state_dict, task=True)


class DescribedLoop(DescribedLearner):
    """A described learner whose ``agent`` steps its own environment, so that it can be given another."""

    agent: LearningLoop

    def __repr__(self) -> str:
        _, bracket, networks = super().__repr__().partition("(")
        return f"{type(self.agent).__name__}{bracket}{networks}"

    @property
    def seed(self) -> int | None:
        """The agent's seed."""
        return self.agent.seed

    def finish_task(self) -> None:
        """Let the networks take over their averaged weights."""
        self.agent.hand_over()

    def at_border(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback()`` after each frame and its updates; call the result to stop it."""
        return self.agent.at_frame_end(callback)

    def staying(self) -> AbstractContextManager[None]:
        """The episode under way continues after the block, whatever happens to tasks in it."""
        return self.agent.staying()

    def set_env(self, env: object) -> None:
        """Train in ``env`` from now on."""
        self.agent.set_env(env)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Numbers too small for their exponent are zero inside the block, on this thread; then as before.

    Adam's moments of weights that are rarely used decay into them, and a CPU takes many times as long.
    """
    # there is no getter: half of the smallest normal number tells
    before = sys.float_info.min / 2 == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def check_successor(where: str, env: Any, before: Any) -> None:
    """Raise unless a learner that was made for the environment ``before`` can continue in ``env``."""
    (seen, acted, copies), (seen_before, acted_before, copies_before) = spaces_of(env), spaces_of(before)
    problems = []
    if (seen.shape, seen.dtype) != (seen_before.shape, seen_before.dtype):
        problems.append(f"env has observations {seen}; expected the shape and dtype of {seen_before}")
    if acted != acted_before:
        problems.append(f"env has actions {acted}; expected {acted_before}, as at first")
    if copies != copies_before:
        problems.append(f"env is a vector of {copies}; expected {copies_before}, as at first")
    raise_problems(where, problems)


def _was_reset(env: Any) -> bool:
    """False where Gymnasium's order enforcing says that an environment was never reset."""
    asked = [getattr(each, "has_wrapper_attr", None) for each in (getattr(env, "envs", None) or [env])]
    known = [ask.__self__ for ask in asked if ask is not None and ask("has_reset")]
    return all(each.get_wrapper_attr("has_reset") for each in known)


def _state_problems(parts: Mapping[str, Stateful], state: Mapping[str, Any]) -> list[str]:
    missing = [name for name in ("loop", "replay", *parts) if name not in state]
    if missing:
        return [f"the state has no {', '.join(missing)}; pass what state_dict() returned"]
    found = []
    for name, part in parts.items():
        if isinstance(part, nn.Module):
            own, other = (
                {k: tuple(v.shape) for k, v in tree.items()} for tree in (part.state_dict(), state[name])
            )
            if own != other:
                found.append(
                    f"{name} has {len(own)} tensors, and {len(other)} of other names or shapes were saved; "
                    "expected an agent with as many heads, made as the one that was saved"
                )
    return found


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _lay_out(optimizer: Optimizer) -> None:
    """Give loaded moments the memory layout of their parameters, as a fused step needs it."""
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                kept[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _progress(where: str, total: int, *, show: bool) -> Any:
    """A progress bar of ``total`` frames; without ``show`` a context without one."""
    if not show:
        return nullcontext()
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise_problems(where, [f"progress_bar=True needs tqdm ({error}); {install_hint('cli')}"])
    return tqdm(total=total, unit="frame", disable=None)
