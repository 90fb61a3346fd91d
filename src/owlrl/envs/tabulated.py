"""Environments that look everything up in a `Table`: one copy, or many stepped at once."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from owlrl.envs._checks import int_problem, real_problem
from owlrl.envs.table import BoolArray, FloatArray, IntArray, Table
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError, raise_problems

__all__ = ["TabulatedEnv", "TabulatedVectorEnv"]

VectorStep = tuple[npt.NDArray[Any], FloatArray, BoolArray, BoolArray, dict[str, Any]]

NEVER = np.iinfo(np.int64).max  # the step at which an environment without limit truncates


class TabulatedEnv(gymnasium.Env[Any, int]):
    """The environment that a table was made from, step for step, without its cost; cannot be drawn.

    At an episode's end ``info["is_success"]`` says whether it ended by a success.

    Args:
        table: from `tabulate`.
        max_episode_steps: truncate after so many steps; None for the table's own limit. Where the reward of
            a success depends on the step, it may not be larger than that.

    >>> import gymnasium
    >>> from owlrl.envs import TabulatedEnv, tabulate
    >>> env = TabulatedEnv(tabulate(gymnasium.make("owlrl/Crossroads-v0", arms=2, length=1)))
    >>> _ = env.reset(seed=0)
    >>> _ = env.step(1)
    >>> env.step(2)[1:]
    (1.0, True, False, {'is_success': True})
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's way

    def __init__(self, table: Table, *, max_episode_steps: int | None = None) -> None:
        _check_table("TabulatedEnv", table, max_episode_steps, [])
        self.table = table
        self.max_episode_steps = max_episode_steps
        self.observation_space = table.observation_space
        self.action_space = spaces.Discrete(table.num_actions)  # type: ignore[assignment]  # its ints are numpy's
        self._limit = _limit(table, max_episode_steps)
        self._state = table.start
        self._step: int | None = None  # None outside an episode

    @property
    def state(self) -> int:
        """The present row of the table."""
        return self._state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Go back to the start; ``seed`` and ``options`` are taken and change nothing."""
        super().reset(seed=seed)
        self._state, self._step = self.table.start, 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Look up what ``action`` does in the present state."""
        if self._step is None:
            raise OwlStateError("TabulatedEnv.step: no episode is under way; call reset() first")
        if isinstance(action, bool) or not self.action_space.contains(action):
            expected = f"an int from 0 to {self.table.num_actions - 1}"
            raise OwlValueError(f"TabulatedEnv.step: action is {action!r}; expected {expected}")
        table, state = self.table, self._state
        self._step += 1
        reward = float(table.reward_at(state, action, self._step))
        terminated, truncated = bool(table.terminated[state, action]), self._step >= self._limit
        self._state = int(table.next_state[state, action])
        info = {}
        if terminated or truncated:
            self._step = None
            info["is_success"] = bool(table.goal[state, action])
        return self._observation(), reward, terminated, truncated, info

    def _observation(self) -> Any:
        observation = self.table.observations[self.table.obs_index[self._state]]
        return observation.copy() if isinstance(observation, np.ndarray) else observation

    def __repr__(self) -> str:
        return f"TabulatedEnv({self.table!r})"


class TabulatedVectorEnv(VectorEnv[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]):
    """Copies of a tabulated environment, all stepped by a few array look-ups.

    Autoreset is Gymnasium's *same step* mode, as ``metadata["autoreset_mode"]`` says: where an episode
    ends, ``step`` returns the first observation of the next one, and the last observation of the one that
    ended is ``infos["final_obs"][i]``; ``infos["_final_obs"]`` marks where (both are missing if no
    episode ended). So no step is lost, and every step is a transition for a replay, its next
    observation being ``final_obs`` where there is one. ``infos["final_info"]["is_success"]`` marks
    successes among the episodes that ended.

    ``reset(options={"reset_mask": mask})`` starts the marked copies anew and leaves the others as they are.

    Args:
        table: from `tabulate`.
        num_envs: how many copies.
        max_episode_steps: truncate after so many steps; None for the table's own limit. Where the
            reward of a success depends on the step, it may not be larger than that.
        count_bonus: β; every step is rewarded with ``β / √n`` more, n being how often this copy has
            entered the cell it is in now, over all episodes (see `CountBonus`). 0 for none.

    >>> import gymnasium
    >>> import numpy as np
    >>> from owlrl.envs import TabulatedVectorEnv, tabulate
    >>> envs = TabulatedVectorEnv(tabulate(gymnasium.make("owlrl/Crossroads-v0", arms=2, length=1)), 2)
    >>> observations, _ = envs.reset(seed=0)
    >>> _ = envs.step(np.array([1, 0]))  # turn to arm 0, which pays, and to arm 1
    >>> observations, rewards, terminated, truncated, infos = envs.step(np.array([2, 2]))
    >>> rewards, terminated, infos["final_info"]["is_success"]
    (array([1., 0.]), array([ True,  True]), array([ True, False]))
    """

    def __init__(
        self,
        table: Table,
        num_envs: int,
        *,
        max_episode_steps: int | None = None,
        count_bonus: float = 0.0,
    ) -> None:
        problems = int_problem("num_envs", num_envs, least=1)
        problems += real_problem("count_bonus", count_bonus, least=0)
        _check_table("TabulatedVectorEnv", table, max_episode_steps, problems)
        self.table = table
        self.num_envs = num_envs
        self.max_episode_steps = max_episode_steps
        self.count_bonus = count_bonus
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = table.observation_space
        self.single_action_space = spaces.Discrete(table.num_actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        # One look-up each, by state · A + action; states are kept multiplied by A.
        self._limit = _limit(table, max_episode_steps)
        self._next = (table.next_state * table.num_actions).ravel()
        self._row = table.obs_index[table.next_state].ravel()
        self._reward = table.reward.ravel()
        self._terminated = table.terminated.ravel()
        self._goal = table.goal.ravel()
        self._cell = table.cell[table.next_state].ravel()
        self._start = table.start * table.num_actions
        self._start_row = int(table.obs_index[table.start])
        self._lanes = np.arange(num_envs)
        self._at: IntArray | None = None  # until the first reset
        self._clock = 0  # steps in all; an episode's are those since it began
        self._began = np.zeros(num_envs, dtype=np.int64)
        self._visits = np.zeros((num_envs, int(table.cell.max()) + 1), dtype=np.int64)

    @property
    def states(self) -> IntArray:
        """(num_envs,) the present rows of the table."""
        return self._require_reset("states") // self.table.num_actions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """Start all copies, or those in ``options["reset_mask"]``; a seed changes nothing of the task."""
        mask = (options or {}).get("reset_mask")
        raise_problems("TabulatedVectorEnv.reset", [] if seed is None else int_problem("seed", seed, least=0))
        if mask is None:
            mask = np.ones(self.num_envs, dtype=np.bool_)
            self._at = np.full(self.num_envs, self._start)
        elif not (isinstance(mask, np.ndarray) and (mask.dtype, mask.shape) == (np.bool_, (self.num_envs,))):
            expected = f"a bool array of shape ({self.num_envs},)"
            raise OwlValueError(f"TabulatedVectorEnv.reset: reset_mask is {mask!r}; expected {expected}")
        self._require_reset("reset with a reset_mask")[mask] = self._start
        self._began[mask] = self._clock
        super().reset(seed=seed)
        return self.table.observations[self.table.obs_index[self.states]], {}

    def step(self, actions: npt.NDArray[Any]) -> VectorStep:
        """Look up what ``actions`` (num_envs,) do; every array that is returned is the caller's own."""
        index = self._require_reset("step") + self._checked(actions)
        self._at = self._next[index]
        self._clock += 1
        observations = self.table.observations.take(self._row[index], axis=0)
        rewards, terminated = self._reward[index], self._terminated[index]
        truncated = self._began <= self._clock - self._limit
        done = terminated | truncated
        infos: dict[str, Any] = {}
        if _any(done):
            self._end(index, done, observations, rewards, infos)
        if self.count_bonus:
            cell = self._cell[index]
            self._visits[self._lanes, cell] += 1
            rewards += self.count_bonus / np.sqrt(self._visits[self._lanes, cell])
        return observations, rewards, terminated, truncated, infos

    def _end(
        self,
        index: IntArray,
        done: BoolArray,
        observations: npt.NDArray[Any],
        rewards: FloatArray,
        infos: dict[str, Any],
    ) -> None:
        """Finish the episodes marked ``done`` and start the next ones, in place."""
        lanes = done.nonzero()[0]
        success = self._goal[index]  # which ends an episode
        if self.table.goal_reward is not None and _any(success):
            rewards[success] = self.table.goal_reward[self._clock - self._began[success]]
        final = np.empty(self.num_envs, dtype=object)  # of None
        for lane, last in zip(lanes.tolist(), observations[lanes], strict=True):
            final[lane] = last
        infos["final_obs"], infos["_final_obs"] = final, done
        infos["final_info"] = {"is_success": success, "_is_success": done.copy()}
        infos["_final_info"] = done.copy()
        assert self._at is not None
        self._at[lanes], self._began[lanes] = self._start, self._clock
        observations[lanes] = self.table.observations[self._start_row]

    def _checked(self, actions: npt.NDArray[Any]) -> IntArray:
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise OwlTypeError(
                f"TabulatedVectorEnv.step: actions are {actions.dtype} of shape {actions.shape}; expected "
                f"ints of shape ({self.num_envs},)"
            )
        checked: IntArray = actions.astype(np.int64, copy=False)
        # Read without sign, what is below 0 is far too large: one comparison finds both.
        if _any(checked.view(np.uint64) >= self.table.num_actions):
            raise OwlValueError(
                f"TabulatedVectorEnv.step: actions go from {actions.min()} to {actions.max()}; expected 0 to "
                f"{self.table.num_actions - 1}"
            )
        return checked

    def _require_reset(self, what: str) -> IntArray:
        if self._at is None:
            raise OwlStateError(f"TabulatedVectorEnv: {what} needs a reset() first")
        return self._at

    def __repr__(self) -> str:
        return f"TabulatedVectorEnv({self.table!r}, num_envs={self.num_envs})"


def _any(flags: BoolArray) -> bool:
    """``flags.any()``, for a few flags at a fourth of its cost."""
    return b"\1" in flags.tobytes()


def _check_table(where: str, table: object, max_episode_steps: int | None, problems: list[str]) -> None:
    if not isinstance(table, Table):
        got = type(table).__name__
        raise OwlTypeError(f"{where}: table is a {got}; expected a Table, e.g. tabulate(env)")
    if max_episode_steps is not None:
        most = None if table.goal_reward is None else table.max_episode_steps
        problems += int_problem("max_episode_steps", max_episode_steps, least=1, most=most)
    raise_problems(where, problems)


def _limit(table: Table, max_episode_steps: int | None) -> int:
    limit = table.max_episode_steps if max_episode_steps is None else max_episode_steps
    return int(NEVER) if limit is None else limit
