"""`Journal`: the resets and actions of an environment, so that a new one can be brought to the same state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from owlrl.wrapper_state import same_state

__all__ = ["Journal"]


class Journal:
    """Records resets and actions of an environment; replayed in a new one, they lead to the same state.

    This needs an environment that is determined by seeds and actions; `replay` checks it. An environment with
    ``state_dict`` and ``load_state_dict`` is restored by them instead.

    Args:
        env: a Gymnasium environment, a vector of them or a Stable-Baselines3 ``VecEnv``, fresh from its
            factory. Its methods are wrapped in place: it stays the same object.

    >>> import gymnasium
    >>> from owlrl.experiments.journal import Journal
    >>> one, other = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")
    >>> journal = Journal(one)
    >>> _ = one.reset(seed=3), one.step(1), one.step(0)
    >>> Journal(other).replay(journal.state_dict())
    True
    >>> bool((one.unwrapped.state == other.unwrapped.state).all())
    True
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
