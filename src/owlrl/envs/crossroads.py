"""Crossroads: tasks that no single memoryless policy can solve together."""

from __future__ import annotations

from typing import Any

import numpy as np
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import Goal, Wall
from minigrid.minigrid_env import MiniGridEnv

from owlrl.envs._checks import bool_problem, grid_problems, int_problem
from owlrl.envs._star import MAX_ARMS, MIN_ARMS, make_star
from owlrl.envs.grid_levels import GridTaskEnv, StepResult
from owlrl.errors import raise_problems

__all__ = ["CrossroadsEnv"]

CRUMB = 0.05
UP = 3


class CrossroadsEnv(GridTaskEnv):
    """K corridors that leave the middle, a goal tile at the end of each, and one of the goals pays.

    Which one is the task. Everything that can be seen and every transition is the same in all K tasks, and
    every goal ends the episode: a run of any one policy ends at one goal at most, so its chances of
    success in the K tasks sum to at most 1, and no memoryless policy, not even a random one, solves more
    than 1/K of them on average. A task can only be known by its reward.

    Each corridor has walls of its own colour (from the fifth on, of two colours in turn): the agent sees
    the 7×7 cells before it and no compass, and could not tell the corridors apart otherwise.
    Up to four corridors leave a single cell; five to eight leave a hall of 5×5 cells. The agent starts
    in the middle, facing up.

    The paying goal gives 1, at whatever step, and the others 0. With ``breadcrumbs`` there is a reward of
    0.05 for every cell further into the right corridor, and −0.05 for every cell out of it: the difference of
    a potential, never drawn. So the reward of an episode that ends in the right corridor is 1 +
    0.05·length, loops bring nothing, and a step into a corridor says whether it is the right one. Without
    it, only the goals say so: the best an agent can do is to try goal after goal, and to fail (K − 1)/2
    episodes on average before it knows.

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
        problems = int_problem("arms", arms, least=MIN_ARMS, most=MAX_ARMS)
        problems += int_problem("task", task, least=0, most=MAX_ARMS - 1 if problems else arms - 1)
        problems += int_problem("length", length, least=1) + bool_problem("breadcrumbs", breadcrumbs)
        problems += grid_problems(max_steps, render_mode, highlight, tile_size)
        raise_problems("CrossroadsEnv", problems)
        self.arms = arms
        self.task = task
        self.length = length
        self.breadcrumbs = breadcrumbs
        self._star = make_star(arms, length)
        MiniGridEnv.__init__(
            self,
            mission_space=MissionSpace(mission_func=self._gen_mission),
            width=self._star.width,
            height=self._star.height,
            max_steps=max_steps,
            render_mode=render_mode,
            highlight=highlight,
            tile_size=tile_size,
        )
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
        x, y = self.agent_pos
        arm, depth = self._star.corridor.get((int(x), int(y)), (-1, 0))
        return depth if arm == self.task else 0

    def step(self, action: int | np.integer[Any]) -> StepResult:  # type: ignore[override]  # as GridTaskEnv's
        """Turn left (0), turn right (1) or go forward (2)."""
        before = self._depth()
        observation, reward, terminated, truncated, info = super().step(action)
        if self.breadcrumbs:
            reward += CRUMB * (self._depth() - before)
        return observation, reward, terminated, truncated, info
