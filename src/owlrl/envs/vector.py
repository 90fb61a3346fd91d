"""`ArrayVectorEnv`: the base of environments whose copies are all stepped by a few array operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from owlrl._arguments import Arguments
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError

__all__ = ["AnyEnv", "ArrayVectorEnv", "BoolArray", "FloatArray", "IntArray", "VectorStep"]

AnyEnv = gymnasium.Env[Any, Any]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
VectorStep = tuple[npt.NDArray[Any], FloatArray, BoolArray, BoolArray, dict[str, Any]]

NEVER = int(np.iinfo(np.int64).max)  # the step at which an environment without limit truncates


class ArrayVectorEnv(VectorEnv[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]):
    """The common part of such environments: spaces, step counts, reset masks and autoreset.

    Autoreset is Gymnasium's *same step* mode: where an episode ends, ``step`` returns the first observation
    of the next one, and the last one of the episode is ``infos["final_obs"][i]``; ``infos["_final_obs"]``
    marks where (both are missing if no episode ended). So every step is a transition for a replay.

    ``reset(options={"reset_mask": mask})`` starts the marked copies again and leaves the others as they are.

    Args:
        num_envs: how many copies.
        observation_space: of a single copy.
        action_space: of a single copy.
        max_episode_steps: truncate after so many steps; None for never.

    >>> from owlrl.envs import PendulumVectorEnv
    >>> from owlrl.envs.vector import ArrayVectorEnv
    >>> envs = PendulumVectorEnv(2)
    >>> _ = envs.reset(seed=0), envs.step([[0.0], [0.0]])
    >>> isinstance(envs, ArrayVectorEnv), envs.elapsed
    (True, array([1, 1]))
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: Space[Any],
        action_space: Space[Any],
        max_episode_steps: int | None,
    ) -> None:
        self.num_envs = num_envs
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, num_envs)
        self.action_space = batch_space(action_space, num_envs)
        self._limit = NEVER if max_episode_steps is None else max_episode_steps
        self._started = False  # until the first reset
        self._clock = 0  # steps in all; an episode's are those since it began
        self._began = np.zeros(num_envs, dtype=np.int64)
        self._next_end = 0  # on the clock; no episode is truncated before

    @property
    def elapsed(self) -> IntArray:
        """(num_envs,) how many steps the current episodes have taken; can be set."""
        return self._clock - self._began

    @elapsed.setter
    def elapsed(self, steps: npt.ArrayLike) -> None:
        self._began[:] = self._clock - np.asarray(steps)
        self._next_end = 0

    def state_dict(self) -> dict[str, Any]:
        """The state of all episodes: environments made the same way continue from it, bit for bit."""
        return {
            "started": self._started,
            "clock": self._clock,
            "began": self._began.copy(),
            "next_end": self._next_end,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what `state_dict` returned."""
        self._started, self._clock = bool(state_dict["started"]), int(state_dict["clock"])
        self._began[:] = state_dict["began"]
        self._next_end = int(state_dict["next_end"])

    def _reset(self, arguments: Arguments, seed: int | None, options: dict[str, Any] | None) -> BoolArray:
        """Check a reset's arguments and start the clock of the copies (num_envs,) that it marks."""
        seed = arguments.integer("seed", seed, least=0, none=True)
        mask = (options or {}).get("reset_mask")
        shape = (self.num_envs,)
        if mask is not None and not (
            isinstance(mask, np.ndarray) and (mask.dtype, mask.shape) == (np.bool_, shape)
        ):
            arguments.problem(f"reset_mask is {mask!r}; expected a bool array of shape {shape}")
        arguments.check()
        if mask is None:
            mask = np.ones(self.num_envs, dtype=np.bool_)
        else:
            self._require_reset("reset with a reset_mask")
        super().reset(seed=seed)
        self._started = True
        self._began[mask] = self._clock
        return mask

    def _require_reset(self, what: str) -> None:
        if not self._started:
            raise OwlStateError(f"{type(self).__name__}: {what} needs a reset() first")

    def _checked_actions(self, actions: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
        """Numbers (num_envs, size), or an error."""
        self._require_reset("step")
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs, size) or actions.dtype.kind not in "fiu":
            raise OwlTypeError(
                f"{type(self).__name__}.step: actions are {actions.dtype} of shape {actions.shape}; expected "
                f"numbers of shape ({self.num_envs}, {size})"
            )
        return actions

    def _tick(self) -> BoolArray:
        """Count a step: which episodes (num_envs,) it truncates."""
        self._clock += 1
        if self._clock < self._next_end:
            return np.zeros(self.num_envs, dtype=np.bool_)
        self._next_end = int(self._began.min()) + self._limit
        return self._began <= self._clock - self._limit

    def _finish(
        self, lanes: IntArray, done: BoolArray, observations: npt.NDArray[Any], info: dict[str, Any]
    ) -> dict[str, Any]:
        """The infos of a step that ends the episodes marked ``done``, at ``lanes``; restarts their clocks."""
        final = np.empty(self.num_envs, dtype=object)  # of None
        for lane, last in zip(lanes.tolist(), observations[lanes], strict=True):
            final[lane] = last
        self._began[lanes] = self._clock
        return {
            "final_obs": final,
            "_final_obs": done.copy(),
            "final_info": info,
            "_final_info": done.copy(),
        }

    def _check_states(self, states: npt.ArrayLike, size: int) -> FloatArray:
        given = np.array(states, dtype=np.float64)
        if given.shape != (self.num_envs, size) or not np.isfinite(given).all():
            expected = f"finite numbers, ({self.num_envs}, {size})"
            raise OwlValueError(f"{type(self).__name__}.states: got {states!r}; expected {expected}")
        return given


def any_of(flags: BoolArray) -> bool:
    """``flags.any()``, for a few flags at a fourth of its cost."""
    return b"\1" in flags.tobytes()
