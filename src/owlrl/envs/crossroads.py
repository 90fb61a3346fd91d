"""Crossroads: tasks that no single memoryless policy can solve together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import Goal, Wall
from minigrid.minigrid_env import MiniGridEnv

from owlrl._arguments import Arguments
from owlrl.envs.grid_levels import GridTaskEnv, StepResult, check_grid, position

__all__ = ["MAX_ARMS", "MIN_ARMS", "CrossroadsEnv"]

Cell = tuple[int, int]

CRUMB = 0.05
UP = 3
MIN_ARMS, MAX_ARMS = 2, 8

# An arm's colours alternate from cell to cell. Grey is for what belongs to no arm; green would hide
# the goals.
COLOURS: tuple[tuple[str, ...], ...] = (
    ("red",),
    ("blue",),
    ("yellow",),
    ("purple",),
    ("red", "blue"),
    ("yellow", "purple"),
    ("blue", "yellow"),
    ("purple", "red"),
)
NEUTRAL = "grey"

# right, left, down, up, so that two arms are opposite each other
SIDES: tuple[Cell, ...] = ((1, 0), (-1, 0), (0, 1), (0, -1))


class CrossroadsEnv(GridTaskEnv):
    """K corridors leave the middle, each ends at a goal tile, and one of the goals pays.

    Which one pays is the task. Observations and transitions are the same in all K tasks, and every goal
    ends the episode: the chances of success of any one policy in the K tasks sum to at most 1, so no
    memoryless policy solves more than 1/K of them on average. Only the reward reveals the task.

    The walls of each corridor have another colour (from the fifth on, two in turn), since the agent has no
    compass. Up to four corridors leave a single cell; five to eight leave a hall of 5×5 cells. The agent
    starts in the middle, facing up.

    The paying goal gives 1, at whatever step, and the others 0. With ``breadcrumbs`` every cell further into
    the right corridor gives 0.05, and every cell out of it −0.05: the difference of a potential, never drawn,
    so that loops bring nothing and a step into a corridor shows whether it is the right one. Without it, the
    best an agent can do is to try goal after goal, and to fail (K − 1)/2 episodes on average.

    Made by ``gymnasium.make("owlrl/Crossroads-v0", arms=4, task=2)``.

    Args:
        arms: the number of corridors K, 2 to 8.
        task: which goal pays, 0 to K − 1.
        length: cells of a corridor, its goal included.
        breadcrumbs: whether cells of the right corridor give a reward.
        max_steps: the episode is truncated after so many steps.
        render_mode: None or ``"rgb_array"``.
        highlight: draw lighter what the agent sees.
        tile_size: pixels of a cell's side in a drawing.

    >>> import gymnasium
    >>> import owlrl.envs
    >>> env = gymnasium.make("owlrl/Crossroads-v0", arms=2, task=0, length=2)  # 0 is to the right
    >>> _ = env.reset()
    >>> [env.step(action)[1:3] for action in (1, 2, 2)]  # turn right, forward, forward
    [(0.0, False), (0.0, False), (1.0, True)]
    """

    def __init__(
        self,
        arms: int = 4,
        task: int = 0,
        *,
        length: int = 4,
        breadcrumbs: bool = False,
        max_steps: int = 100,
        render_mode: str | None = None,
        highlight: bool = True,
        tile_size: int = 32,
    ) -> None:
        arguments = Arguments("CrossroadsEnv")
        self.arms = arguments.integer("arms", arms, least=MIN_ARMS, most=MAX_ARMS)
        most = MAX_ARMS if arguments.problems else self.arms
        self.task = arguments.integer("task", task, least=0, most=most - 1)
        self.length = arguments.integer("length", length)
        self.breadcrumbs = arguments.boolean("breadcrumbs", breadcrumbs)
        common = check_grid(arguments, max_steps, render_mode, highlight, tile_size)
        arguments.check()
        self._star = make_star(self.arms, self.length)
        mission = MissionSpace(mission_func=self._gen_mission)
        star = self._star
        MiniGridEnv.__init__(self, mission_space=mission, width=star.width, height=star.height, **common)
        self._narrow(num_actions=3)

    @staticmethod
    def _gen_mission() -> str:
        return "find the goal that pays"

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid = Grid(width, height)
        for cell, colour in self._star.walls.items():
            self.grid.set(*cell, Wall(colour))
        for cell in self._star.goals:
            self.put_obj(Goal(), *cell)
        self.agent_pos = self._star.start
        self.agent_dir = UP

    def _reward(self) -> float:
        """What the goal that the agent has just stepped on gives."""
        return float(tuple(self.agent_pos) == self._star.goals[self.task])

    def _depth(self) -> int:
        """How many cells the agent is inside the right corridor."""
        arm, depth = self._star.corridor.get(position(self), (-1, 0))
        return depth if arm == self.task else 0

    def step(self, action: int | np.integer[Any]) -> StepResult:  # type: ignore[override]  # as GridTaskEnv's
        """Turn left (0), turn right (1) or go forward (2)."""
        before = self._depth()
        observation, reward, terminated, truncated, info = super().step(action)
        if self.breadcrumbs:
            reward += CRUMB * (self._depth() - before)
        return observation, reward, terminated, truncated, info


@dataclass(frozen=True)
class Star:
    """Where the corridors are and what colour their walls have, in grid coordinates: x right, y down.

    Attributes:
        width, height: of the grid.
        start: the cell in the middle.
        goals: the last cell of each arm.
        corridor: arm and depth (1 at the entrance) of each cell in a corridor.
        walls: colour of every cell that cannot be entered.
    """

    width: int
    height: int
    start: Cell
    goals: tuple[Cell, ...]
    corridor: dict[Cell, tuple[int, int]]
    walls: dict[Cell, str]


@lru_cache(maxsize=64)
def make_star(arms: int, length: int) -> Star:
    """Lay out ``arms`` corridors of ``length`` cells, all equally far from the middle.

    Up to four leave a single cell. More leave a hall of 5×5 cells, two to a side, each with its wall.
    """
    radius = 0 if arms <= len(SIDES) else 2
    hall = range(-radius, radius + 1)
    corridor: dict[Cell, tuple[int, int]] = {}
    along: list[Cell] = []
    for arm in range(arms):
        dx, dy = SIDES[arm % len(SIDES)]
        # the first four sit clockwise of the middle of their side, the others opposite
        shift = radius if arm < len(SIDES) else -radius
        along.append((dx, dy))
        for depth in range(1, length + 1):
            reach = radius + depth
            corridor[dx * reach - dy * shift, dy * reach + dx * shift] = (arm, depth)
    free = {(x, y) for x in hall for y in hall} | set(corridor)
    left, top = min(x for x, _ in free) - 1, min(y for _, y in free) - 1
    width, height = max(x for x, _ in free) + 2 - left, max(y for _, y in free) + 2 - top
    walls = {
        (x - left, y - top): _wall_colour((x, y), corridor, along, radius)
        for x in range(left, left + width)
        for y in range(top, top + height)
        if (x, y) not in free
    }
    moved = {(x - left, y - top): place for (x, y), place in corridor.items()}
    ends = {arm: cell for cell, (arm, depth) in moved.items() if depth == length}
    return Star(width, height, (-left, -top), tuple(ends[arm] for arm in range(arms)), moved, walls)


def _wall_colour(cell: Cell, corridor: dict[Cell, tuple[int, int]], along: list[Cell], radius: int) -> str:
    """The colour of the one arm whose corridor the wall touches; neutral if of none or several."""
    x, y = cell
    around = [(x + i, y + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    owners = {corridor[c][0] for c in around if c in corridor}
    if len(owners) != 1:
        return NEUTRAL
    arm = owners.pop()
    dx, dy = along[arm]
    colours = COLOURS[arm]
    return colours[(x * dx + y * dy - radius) % len(colours)]
