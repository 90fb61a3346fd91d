"""`Resumable`: an environment whose place in an episode can be saved and found again in another process."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from owlrl._arguments import restored_generator
from owlrl.envs.vector import AnyEnv
from owlrl.errors import OwlStateError, OwlValueError

__all__ = ["Resumable"]

AnyWrapper = gymnasium.Wrapper[Any, Any, Any, Any]


class Resumable(AnyWrapper, RecordConstructorArgs):
    """Keeps how the current episode began and its actions, and finds the same place by doing the same again.

    `state_dict` is a small tree for `owlrl.checkpoint.save_state`, without pickled code. `load_state_dict` in
    a new process resets the environment with the generator it had, takes the actions again and compares
    what is seen with what was seen: an environment with other randomness than its ``np_random`` is
    refused, and one that can be pickled may be pickled instead. It takes as long as the episode so far.

    Put it outermost, around a ``Monitor``, too. ``owlrl`` saves no environment: save this beside the wrapper.

    Args:
        env: an environment, not a vector of them, whose randomness is that of its ``np_random``.

    >>> import gymnasium
    >>> from owlrl.envs import Resumable
    >>> env = Resumable(gymnasium.make("CartPole-v1"))
    >>> _ = env.reset(seed=3)
    >>> for _ in range(4):
    ...     seen = env.step(1)[0]
    >>> state = env.state_dict()
    >>> again = Resumable(gymnasium.make("CartPole-v1"))
    >>> again.load_state_dict(state)
    >>> bool((env.step(0)[0] == again.step(0)[0]).all())
    True
    """

    def __init__(self, env: AnyEnv) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._begun: dict[str, Any] | None = None  # how the episode began
        self._actions: list[np.ndarray] = []
        self._seen: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Reset, and keep how."""
        generator = None if seed is not None else self.unwrapped.np_random.bit_generator.state
        self._begun = {"seed": seed, "options": copy.deepcopy(options), "generator": generator}
        self._actions = []
        found = self.env.reset(seed=seed, options=options)
        self._seen = copy.deepcopy(found[0])
        return found

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and keep the action."""
        self._actions.append(np.array(action))
        found = self.env.step(action)
        self._seen = copy.deepcopy(found[0])
        return found

    def state_dict(self) -> dict[str, Any]:
        """How the episode began, its actions and what was seen last; None for each before the first reset."""
        actions = np.stack(self._actions) if self._actions else None
        return {"begun": copy.deepcopy(self._begun), "actions": actions, "seen": copy.deepcopy(self._seen)}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Find the place that ``state_dict`` tells of, in this environment."""
        try:
            begun, actions, seen = (state_dict[key] for key in ("begun", "actions", "seen"))
            if begun is None:
                return
            if begun["generator"] is not None:
                self.unwrapped.np_random = restored_generator(begun["generator"])
            self.reset(seed=begun["seed"], options=begun["options"])
            for action in () if actions is None else np.asarray(actions):
                self.step(action if action.ndim else action[()])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OwlValueError(
                f"Resumable.load_state_dict: the state does not fit ({type(error).__name__}: {error}); "
                "expected what state_dict() returned for the same environment; reset it to use it otherwise"
            ) from error
        if not _same(self._seen, seen):
            raise OwlStateError(
                f"Resumable.load_state_dict: {self.env} did not come to the same place with the same reset "
                f"and the same {len(self._actions)} actions, so it has other randomness than its np_random; "
                "pickle it when you save, or start a new episode with reset()"
            )


def _same(one: Any, other: Any) -> bool:
    """Whether two observations are equal: arrays, numbers, and dicts or tuples of them."""
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and list(one) == list(other)
            and all(_same(one[k], other[k]) for k in one)
        )
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))
