"""`Table`: a deterministic environment written out, one row per state; and environments that look it up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from owlrl._arguments import Arguments
from owlrl.envs.vector import ArrayVectorEnv, BoolArray, FloatArray, IntArray, VectorStep, any_of
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError

__all__ = ["Table", "TabulatedEnv", "TabulatedVectorEnv"]


@dataclass(frozen=True, eq=False)
class Table:
    """All S states of a deterministic environment with A actions, and what each action does in each.

    `tabulate` makes one from an environment; a small one can be written by hand. Arrays become
    read-only: tables are shared. An episode starts in state ``start``. Action a in state s leads
    to ``next_state[s, a]``, seen as ``observations[obs_index[next_state[s, a]]]``.

    Attributes:
        observations: ``(O, *observation shape)``, the distinct observations. O < S says that some
            states look alike.
        obs_index: (S,) int64, the row of ``observations`` seen in each state.
        next_state: (S, A) int64. In a state where every episode has ended, the state itself.
        reward: (S, A) float64, the reward of the action as the first step of an episode.
        terminated: (S, A) bool, whether the action ends the episode. True for all actions of a state that
            is only ever reached by ending the episode.
        start: the state in which episodes begin.
        observation_space: of a single environment.
        max_episode_steps: episodes are truncated after so many steps; None for never.
        goal: (S, A) bool, whether the action succeeds; by default where it ends the episode
            with a positive reward.
        goal_reward: (max_episode_steps + 1,) float64, the reward of a success at step t = 1, 2, …
            where it depends on the step, as in MiniGrid; entry 0 is unused. None where it does not.
        cell: (S,) int64, the place of each state, for count bonuses; by default the state.
        name: for messages.

    >>> import numpy as np
    >>> from gymnasium.spaces import Discrete
    >>> from owlrl.envs import Table
    >>> line = Table(  # three places in a row; right (1) from the second pays and ends
    ...     observations=np.arange(3), obs_index=np.arange(3), next_state=[[0, 1], [0, 2], [2, 2]],
    ...     reward=[[0, 0], [0, 1], [0, 0]], terminated=[[False, False], [False, True], [True, True]],
    ...     start=0, observation_space=Discrete(3), name="line")
    >>> line
    Table('line': 3 states, 3 observations, 2 actions)
    >>> line.goal.nonzero()
    (array([1]), array([1]))
    """

    observations: npt.NDArray[Any]
    obs_index: IntArray
    next_state: IntArray
    reward: FloatArray
    terminated: BoolArray
    start: int
    observation_space: Space[Any]
    max_episode_steps: int | None = None
    goal: BoolArray = None  # type: ignore[assignment]  # filled in below
    goal_reward: FloatArray | None = None
    cell: IntArray = None  # type: ignore[assignment]  # filled in below
    name: str = "table"

    def __post_init__(self) -> None:
        arguments = Arguments("Table")
        arguments.instance("observation_space", self.observation_space, Space, "a gymnasium space")
        arguments.check(kind=OwlTypeError)
        kinds = {"obs_index": np.int64, "next_state": np.int64, "reward": np.float64, "terminated": np.bool_}
        for name, kind in kinds.items():
            self._set(name, np.array(getattr(self, name), dtype=kind))
        self._set("observations", np.array(self.observations, dtype=self.observation_space.dtype))
        if self.goal is None:
            self._set("goal", self.terminated & (self.reward > 0))
        self._set("goal", np.array(self.goal, dtype=np.bool_))
        if self.cell is None:
            self._set("cell", np.arange(self.num_states))
        self._set("cell", np.array(self.cell, dtype=np.int64))
        if self.goal_reward is not None:
            self._set("goal_reward", np.array(self.goal_reward, dtype=np.float64))
        self._check()
        self._freeze()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)  # of a copy, or from a pickle, which forget that arrays are read-only
        self._freeze()

    def _freeze(self) -> None:
        for f in fields(self):
            if isinstance(value := getattr(self, f.name), np.ndarray):
                value.setflags(write=False)

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # frozen for everyone else

    @property
    def num_states(self) -> int:
        """S, terminal states included."""
        return len(self.obs_index)

    @property
    def num_actions(self) -> int:
        """A."""
        return int(self.next_state.shape[1])

    @property
    def num_observations(self) -> int:
        """O, the number of distinct observations."""
        return len(self.observations)

    def reward_at(self, state: npt.ArrayLike, action: npt.ArrayLike, step: npt.ArrayLike) -> FloatArray:
        """The reward of an action in a state as step number 1, 2, … of an episode; arrays or numbers."""
        reward = self.reward[state, action]  # type: ignore[index]
        if self.goal_reward is None:
            return np.asarray(reward)
        return np.where(self.goal[state, action], self.goal_reward[step], reward)  # type: ignore[index]

    def __repr__(self) -> str:
        return (
            f"Table({self.name!r}: {self.num_states} states, {self.num_observations} observations, "
            f"{self.num_actions} actions)"
        )

    def _check(self) -> None:
        arguments, states = Arguments("Table"), self.num_states
        if self.obs_index.ndim != 1 or states == 0:
            arguments.problem(f"obs_index has shape {self.obs_index.shape}; expected (S,) with S >= 1")
            arguments.check()
        shape = self.next_state.shape
        if self.next_state.ndim != 2 or shape[0] != states or shape[1] == 0:
            arguments.problem(f"next_state has shape {shape}; expected ({states}, A) with A >= 1")
            arguments.check()
        expected = {"reward": shape, "terminated": shape, "goal": shape, "cell": (states,)}
        for name, wanted in expected.items():
            if (got := getattr(self, name).shape) != wanted:
                arguments.problem(f"{name} has shape {got}; expected {wanted}")
        if self.observations.shape[1:] != (seen := self.observation_space.shape):
            arguments.problem(f"observations have shape {self.observations.shape}; expected (O, *{seen})")
        for name, most in {"obs_index": len(self.observations) - 1, "next_state": states - 1}.items():
            index = getattr(self, name)
            if index.min() < 0 or index.max() > most:
                arguments.problem(f"{name} goes from {index.min()} to {index.max()}; expected 0 to {most}")
        self._set("start", arguments.integer("start", self.start, least=0, most=states - 1))
        if self.cell.min(initial=0) < 0:
            arguments.problem(f"cell has {self.cell.min()}; expected numbers >= 0")
        if not np.isfinite(self.reward).all():
            arguments.problem("reward has NaN or infinite entries; expected finite ones")
        limit = arguments.integer("max_episode_steps", self.max_episode_steps, none=True)
        self._set("max_episode_steps", limit)
        if limit is None or isinstance(limit, int):
            arguments.problem(self._goal_problem())
        arguments.check()

    def _goal_problem(self) -> str | None:
        limit, rewards = self.max_episode_steps, self.goal_reward
        if self.goal.shape == self.terminated.shape and (self.goal & ~self.terminated).any():
            return "goal marks actions that do not end the episode; expected each success to end it"
        if rewards is None:
            return None
        if limit is None:
            return "goal_reward is given and max_episode_steps is None; expected both or no goal_reward"
        if rewards.shape != (limit + 1,) or not np.isfinite(rewards).all():
            return f"goal_reward has shape {rewards.shape}; expected {limit + 1} finite numbers"
        return None


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
        arguments = Arguments("TabulatedEnv")
        self.max_episode_steps = _checked_limit(arguments, table, max_episode_steps)
        arguments.check()
        self.table = table
        self.observation_space = table.observation_space
        self.action_space = spaces.Discrete(table.num_actions)  # type: ignore[assignment]  # its ints are numpy's
        self._limit = table.max_episode_steps if self.max_episode_steps is None else self.max_episode_steps
        self._state = table.start
        self._step: int | None = None  # None outside an episode

    @property
    def state(self) -> int:
        """The current row of the table."""
        return self._state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Go back to the start; ``seed`` and ``options`` are taken and change nothing."""
        super().reset(seed=seed)
        self._state, self._step = self.table.start, 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Look up what ``action`` does in the current state."""
        if self._step is None:
            raise OwlStateError("TabulatedEnv.step: no episode is under way; call reset() first")
        if isinstance(action, bool) or not self.action_space.contains(action):
            expected = f"an int from 0 to {self.table.num_actions - 1}"
            raise OwlValueError(f"TabulatedEnv.step: action is {action!r}; expected {expected}")
        table, state = self.table, self._state
        self._step += 1
        reward = float(table.reward_at(state, action, self._step))
        terminated, truncated = bool(table.terminated[state, action]), self._step == self._limit
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


class TabulatedVectorEnv(ArrayVectorEnv):
    """Copies of a tabulated environment, all stepped by a few array look-ups.

    Autoreset and ``reset_mask`` are those of `owlrl.envs.vector.ArrayVectorEnv`: an episode that ends is
    followed by the next one in the same step, and ``infos["final_obs"]`` has its last observation.
    ``infos["final_info"]["is_success"]`` marks successes among the episodes that ended.

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
        arguments = Arguments("TabulatedVectorEnv")
        self.max_episode_steps = _checked_limit(arguments, table, max_episode_steps)
        num_envs = arguments.integer("num_envs", num_envs)
        self.count_bonus = arguments.number("count_bonus", count_bonus, least=0)
        arguments.check()
        limit = table.max_episode_steps if self.max_episode_steps is None else self.max_episode_steps
        super().__init__(num_envs, table.observation_space, spaces.Discrete(table.num_actions), limit)
        self.table = table
        # One look-up each, by state · A + action; states are kept multiplied by A.
        self._next = (table.next_state * table.num_actions).ravel()
        self._row = table.obs_index[table.next_state].ravel()
        self._reward = table.reward.ravel()
        self._terminated = table.terminated.ravel()
        self._goal = table.goal.ravel()
        self._cell = table.cell[table.next_state].ravel()
        self._start = table.start * table.num_actions
        self._start_row = int(table.obs_index[table.start])
        self._lanes = np.arange(num_envs)
        self._at: IntArray = np.full(num_envs, self._start)
        self._visits = np.zeros((num_envs, int(table.cell.max()) + 1), dtype=np.int64)

    @property
    def states(self) -> IntArray:
        """(num_envs,) the current rows of the table."""
        self._require_reset("states")
        return self._at // self.table.num_actions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """Start all copies, or those in ``options["reset_mask"]``; a seed changes nothing of the task."""
        mask = self._reset(Arguments("TabulatedVectorEnv.reset"), seed, options)
        self._at[mask] = self._start
        return self.table.observations[self.table.obs_index[self.states]], {}

    def step(self, actions: npt.NDArray[Any]) -> VectorStep:
        """Look up what ``actions`` (num_envs,) do; every array that is returned is the caller's own."""
        self._require_reset("step")
        index = self._at + self._checked(actions)
        self._at = self._next[index]
        observations = self.table.observations.take(self._row[index], axis=0)
        rewards, terminated, truncated = self._reward[index], self._terminated[index], self._tick()
        done = terminated | truncated
        infos: dict[str, Any] = {}
        if any_of(done):
            success = self._goal[index]  # which ends an episode
            if self.table.goal_reward is not None and any_of(success):
                rewards[success] = self.table.goal_reward[self._clock - self._began[success]]
            lanes = done.nonzero()[0]
            info = {"is_success": success, "_is_success": done.copy()}
            infos = self._finish(lanes, done, observations, info)
            self._at[lanes] = self._start
            observations[lanes] = self.table.observations[self._start_row]
        if self.count_bonus:
            cell = self._cell[index]
            self._visits[self._lanes, cell] += 1
            rewards += self.count_bonus / np.sqrt(self._visits[self._lanes, cell])
        return observations, rewards, terminated, truncated, infos

    def state_dict(self) -> dict[str, Any]:
        """The state of all episodes, and how often each cell was entered."""
        return {**super().state_dict(), "at": self._at.copy(), "visits": self._visits.copy()}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self._at, self._visits = state_dict["at"].copy(), state_dict["visits"].copy()

    def _checked(self, actions: npt.NDArray[Any]) -> IntArray:
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise OwlTypeError(
                f"TabulatedVectorEnv.step: actions are {actions.dtype} of shape {actions.shape}; expected "
                f"ints of shape ({self.num_envs},)"
            )
        checked: IntArray = actions.astype(np.int64, copy=False)
        # Read without sign, what is below 0 is far too large: one comparison finds both.
        if any_of(checked.view(np.uint64) >= self.table.num_actions):
            raise OwlValueError(
                f"TabulatedVectorEnv.step: actions go from {actions.min()} to {actions.max()}; expected 0 to "
                f"{self.table.num_actions - 1}"
            )
        return checked

    def __repr__(self) -> str:
        return f"TabulatedVectorEnv({self.table!r}, num_envs={self.num_envs})"


def _checked_limit(arguments: Arguments, table: object, max_episode_steps: object) -> Any:
    """The step limit given, or a note of what is wrong with it; a table is needed."""
    arguments.instance("table", table, Table, "a Table, e.g. tabulate(env)")
    arguments.check(kind=OwlTypeError)
    assert isinstance(table, Table)
    most = None if table.goal_reward is None else table.max_episode_steps
    return arguments.integer("max_episode_steps", max_episode_steps, most=most, none=True)
