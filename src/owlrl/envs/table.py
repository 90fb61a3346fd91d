"""`Table`: a deterministic environment written out, one row per state."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import Space, spaces

from owlrl.envs._checks import int_problem
from owlrl.errors import OwlTypeError, raise_problems

__all__ = ["BoolArray", "FloatArray", "IntArray", "Table"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


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
        if not isinstance(self.observation_space, spaces.Space):
            raise OwlTypeError(
                f"Table: observation_space is {self.observation_space!r}; expected a gymnasium space"
            )
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
        raise_problems("Table", self._problems())
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

    def _problems(self) -> list[str]:
        states = self.num_states
        if self.obs_index.ndim != 1 or states == 0:
            return [f"obs_index has shape {self.obs_index.shape}; expected (S,) with S >= 1"]
        if self.next_state.ndim != 2 or self.next_state.shape[0] != states or self.next_state.shape[1] == 0:
            return [f"next_state has shape {self.next_state.shape}; expected ({states}, A) with A >= 1"]
        found = [
            f"{name} has shape {getattr(self, name).shape}; expected {self.next_state.shape}"
            for name in ("reward", "terminated", "goal")
            if getattr(self, name).shape != self.next_state.shape
        ]
        if self.cell.shape != (states,):
            found.append(f"cell has shape {self.cell.shape}; expected ({states},)")
        shape = self.observation_space.shape
        if self.observations.shape[1:] != shape:
            found.append(f"observations have shape {self.observations.shape}; expected (O, *{shape})")
        found += _range_problem("obs_index", self.obs_index, len(self.observations))
        found += _range_problem("next_state", self.next_state, states)
        found += int_problem("start", self.start, least=0, most=states - 1)
        if self.cell.min(initial=0) < 0:
            found.append(f"cell has {self.cell.min()}; expected numbers >= 0")
        if not np.isfinite(self.reward).all():
            found.append("reward has NaN or infinite entries; expected finite ones")
        return found + self._time_problems()

    def _time_problems(self) -> list[str]:
        limit, rewards = self.max_episode_steps, self.goal_reward
        if limit is not None and (found := int_problem("max_episode_steps", limit, least=1)):
            return found
        if self.goal.shape == self.terminated.shape and (self.goal & ~self.terminated).any():
            return ["goal marks actions that do not end the episode; expected each success to end it"]
        if rewards is None:
            return []
        if limit is None:
            return ["goal_reward is given and max_episode_steps is None; expected both or no goal_reward"]
        if rewards.shape != (limit + 1,) or not np.isfinite(rewards).all():
            return [f"goal_reward has shape {rewards.shape}; expected {limit + 1} finite numbers"]
        return []


def _range_problem(name: str, index: IntArray, size: int) -> list[str]:
    if index.min() >= 0 and index.max() < size:
        return []
    return [f"{name} goes from {index.min()} to {index.max()}; expected 0 to {size - 1}"]
