"""What a run needs to be repeated bit for bit, and to continue after a kill.

`repeatable` sets threads and generators, a `Keeper` saves the state of long work in a file, and a `Journal`
brings a new environment to the state of another.
"""

from __future__ import annotations

import copy
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import owlrl
from owlrl._arguments import Arguments
from owlrl.checkpoint import load_state, save_state
from owlrl.errors import OwlError, OwlValueError
from owlrl.wrapper_state import same_state

__all__: list[str] = []

SAVE_EVERY = 60.0  # seconds of work that a kill may cost


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """One thread (another number gives other bits) and seeded generators; both restored afterwards."""
    threads = torch.get_num_threads()
    with kept_generators():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Draws from the generators of Python, numpy and torch inside the block change nothing after it."""
    own, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(numbers)


class Keeper:
    """Saves a state every so many seconds, and returns it to the next process.

    A file is replaced when the new one is complete, so that a kill at any moment leaves a whole one. A state
    that cannot be written (a full disk) gives a warning; the old file stays, and the work continues.

    Args:
        path: of the file; None keeps nothing.
        identity: what the state belongs to, as plain data; the file of something else is refused.
        seconds: between two states; 0 keeps every one that is offered.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, identity: Any, *, seconds: float = SAVE_EVERY
    ) -> None:
        arguments = Arguments("Keeper")
        self.seconds = arguments.number("seconds", seconds, least=0.0)
        arguments.check()
        self.path = None if path is None else Path(path)
        self.identity = {"of": identity, "owlrl": owlrl.__version__}
        self.saves = 0
        self._spent = {"seconds": 0.0, "cpu": 0.0}  # before this process
        self._begun = time.time(), time.process_time()
        self._last = time.monotonic()

    @property
    def spent(self) -> dict[str, float]:
        """Seconds, and seconds of a busy core, that it took so far, those of earlier processes included."""
        wall, cpu = self._begun
        return {
            "seconds": self._spent["seconds"] + time.time() - wall,
            "cpu": self._spent["cpu"] + time.process_time() - cpu,
        }

    @property
    def times(self) -> dict[str, float]:
        """What a trial notes of it: when this process began, and what was spent."""
        spent = self.spent
        return {"started": self._begun[0], "seconds": spent["seconds"], "cpu_seconds": spent["cpu"]}

    def load(self) -> dict[str, Any] | None:
        """The state that was kept last; None if there is no file."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            kept = load_state(self.path)
        except OwlValueError as error:
            raise OwlValueError(f"{error}; remove it to start from scratch") from error
        if not isinstance(kept, dict) or kept.get("identity") != self.identity:
            raise OwlValueError(f"{self.path} is of another run; remove it to start from scratch")
        self._spent = kept["spent"]
        state: dict[str, Any] = kept["state"]
        return state

    def tick(self, state: Callable[[], dict[str, Any] | None]) -> None:
        """A safe moment: save a state if it is time, and if there is one."""
        if self.path is not None and time.monotonic() - self._last >= self.seconds:
            try:
                found = state()
                if found is not None:
                    self.save(found)
            except OwlError as error:  # of somebody's own objects, say
                self.path = None
                warnings.warn(f"{error}; unfinished work is not kept", UserWarning, stacklevel=3)

    def save(self, state: dict[str, Any]) -> None:
        """Save a state now."""
        if self.path is None:
            return
        try:
            save_state(self.path, {"identity": self.identity, "spent": self.spent, "state": state})
            self.saves += 1
        except OSError as error:  # the work is worth more than one file
            warnings.warn(f"{error}; the work continues", UserWarning, stacklevel=3)
        self._last = time.monotonic()

    def remove(self) -> None:
        """The work is done and its result is kept: the file is no longer needed."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


class Journal:
    """Records resets and actions of an environment; replayed in a new one, they lead to the same state.

    This needs an environment that is determined by seeds and actions; `replay` checks it. An environment with
    ``state_dict`` and ``load_state_dict`` is restored by them instead.

    Args:
        env: a Gymnasium environment, a vector of them or a Stable-Baselines3 ``VecEnv``, fresh from its
            factory. Its methods are wrapped in place: it stays the same object.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.steps = 0
        self._resets: list[list[Any]] = []  # steps before it, the method's name and its arguments
        self._actions: np.ndarray | None = None
        self._last: Any = None  # what was observed last
        self._own = all(callable(getattr(env, name, None)) for name in ("state_dict", "load_state_dict"))
        if not self._own:
            self._note()

    def state_dict(self) -> dict[str, Any]:
        """All that `replay` needs."""
        if self._own:
            return {"own": self.env.state_dict()}
        actions = None if self._actions is None else self._actions[: self.steps].copy()
        return {"resets": copy.deepcopy(self._resets), "actions": actions, "last": _arrays(self._last)}

    def replay(self, state: Mapping[str, Any]) -> bool:
        """Bring the environment, which is new, to the point of ``state``; whether it got there."""
        if self._own:
            self.env.load_state_dict(state["own"])
            return True
        resets = [*state["resets"], [-1, "", {}]]
        actions = [] if state["actions"] is None else state["actions"]
        try:
            for step in range(len(actions) + 1):
                while resets[0][0] == step:
                    _, name, arguments = resets.pop(0)
                    getattr(self.env, name)(**arguments)
                if step < len(actions):
                    self.env.step(actions[step])
        except Exception:  # it went another way, and may say so by any error
            return False
        return same_state(_arrays(self._last), state["last"])

    def _note(self) -> None:
        """Put noting methods in front of the environment's own."""
        env = self.env
        for name in ("reset", "seed"):
            if callable(getattr(env, name, None)):
                setattr(env, name, self._noting(name, getattr(env, name)))
        if callable(getattr(env, "step_async", None)):  # whose `step` is these two
            acting, seeing = env.step_async, env.step_wait

            def step_async(actions: Any) -> None:
                self._add(actions)
                acting(actions)

            def step_wait(*arguments: Any, **options: Any) -> Any:
                found = seeing(*arguments, **options)
                self._last = found[0]
                return found

            env.step_async, env.step_wait = step_async, step_wait
        else:
            stepping = env.step

            def step(action: Any) -> Any:
                self._add(action)
                found = stepping(action)
                self._last = found[0]
                return found

            env.step = step

    def _noting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*values: Any, **arguments: Any) -> Any:
            given = {**arguments, **({"seed": values[0]} if values else {})}  # SB3 passes its seed by place
            self._resets.append([self.steps, name, given])
            found = call(*values, **arguments)
            if name == "reset":
                self._last = found[0] if isinstance(found, tuple) else found
            return found

        return noted

    def _add(self, action: Any) -> None:
        row = np.asarray(action)
        if self._actions is None:
            self._actions = np.zeros((1024, *row.shape), row.dtype)
        if self.steps == len(self._actions):
            self._actions = np.concatenate([self._actions, np.zeros_like(self._actions)])
        self._actions[self.steps] = row
        self.steps += 1


def _arrays(observation: Any) -> Any:
    """An observation whose parts are arrays, also where it is a lone number."""
    if isinstance(observation, Mapping):
        return {key: _arrays(part) for key, part in observation.items()}
    if isinstance(observation, tuple):
        return [_arrays(part) for part in observation]
    return None if observation is None else np.array(observation)
