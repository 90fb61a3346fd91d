"""How a search puts an environment back into a state it was in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import gymnasium
from minigrid.core.world_object import Door, WorldObj
from minigrid.minigrid_env import MiniGridEnv

__all__ = ["AnyEnv", "CopiedStates", "GridStates", "States", "position"]

AnyEnv = gymnasium.Env[Any, Any]
_SavedGrid = tuple[
    tuple[int, int], int, WorldObj | None, list[WorldObj | None], list[tuple[Door, bool, bool]]
]


class States(Protocol):
    """An environment whose state can be told, kept and brought back."""

    env: AnyEnv

    def key(self) -> Hashable:
        """What tells the present state from others."""

    def place(self) -> Hashable:
        """Where the agent is."""

    def save(self) -> object:
        """Enough to bring the present state back."""

    def restore(self, saved: object, *, step: int = 0) -> None:
        """Bring a state back, as after ``step`` steps where the environment counts them."""


class CopiedStates:
    """Any environment: a state is a deep copy of the whole."""

    def __init__(self, env: AnyEnv, key: Callable[[AnyEnv], Hashable]) -> None:
        self.env = env
        self._key = key

    def key(self) -> Hashable:
        return self._key(self.env)

    def place(self) -> Hashable:
        base = self.env.unwrapped
        return position(base) if isinstance(base, MiniGridEnv) else self.key()

    def save(self) -> object:
        return copy.deepcopy(self.env)

    def restore(self, saved: object, *, step: int = 0) -> None:
        self.env = copy.deepcopy(saved)  # type: ignore[arg-type]  # what save gave
        if isinstance(base := self.env.unwrapped, MiniGridEnv):
            base.step_count = step


class GridStates:
    """A MiniGrid environment of its own: a state is the agent, what it carries and the grid.

    Drawing the observation is nearly all of a step's time, so each state's is drawn once. Objects are
    put back, not copied: environments compare them by identity.
    """

    def __init__(self, env: AnyEnv) -> None:
        base = env.unwrapped
        assert isinstance(base, MiniGridEnv)
        self.env = env
        self._base = base
        self._draw = base.gen_obs
        self._drawn: dict[Hashable, dict[str, Any]] = {}
        base.gen_obs = self._gen_obs  # type: ignore[method-assign]  # of this copy only

    def _gen_obs(self) -> dict[str, Any]:
        key = self.key()
        if key not in self._drawn:
            self._drawn[key] = self._draw()  # type: ignore[no-untyped-call]
        drawn = self._drawn[key]
        return {**drawn, "image": drawn["image"].copy()}

    def key(self) -> Hashable:
        # MiniGridEnv.hash() leaves out what is carried. Objects compare by identity, which is far
        # faster than encoding them and tells at least as much apart; only doors change in place.
        base, cells = self._base, tuple(self._base.grid.grid)
        doors = tuple((cell.is_open, cell.is_locked) for cell in cells if isinstance(cell, Door))
        return position(base), int(base.agent_dir), base.carrying, cells, doors

    def place(self) -> Hashable:
        return position(self._base)

    def save(self) -> _SavedGrid:
        cells = list(self._base.grid.grid)
        doors = [(cell, cell.is_open, cell.is_locked) for cell in cells if isinstance(cell, Door)]
        return position(self._base), self._base.agent_dir, self._base.carrying, cells, doors

    def restore(self, saved: object, *, step: int = 0) -> None:
        assert isinstance(saved, tuple)
        base = self._base
        base.agent_pos, base.agent_dir, base.carrying = saved[:3]
        cells, doors = saved[3:]
        base.grid.grid = list(cells)
        for door, is_open, is_locked in doors:
            door.is_open, door.is_locked = is_open, is_locked
        base.step_count = step


def position(env: MiniGridEnv) -> tuple[int, int]:
    x, y = env.agent_pos
    return int(x), int(y)
