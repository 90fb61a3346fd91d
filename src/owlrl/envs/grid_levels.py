"""MiniGrid levels with one fixed layout each, as plain Gymnasium environments."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.utils import seeding
from minigrid.core.world_object import Wall
from minigrid.envs.crossing import CrossingEnv
from minigrid.envs.doorkey import DoorKeyEnv as MiniGridDoorKeyEnv
from minigrid.minigrid_env import MiniGridEnv

from owlrl._arguments import Arguments
from owlrl.errors import OwlValueError

__all__ = ["DoorKeyEnv", "GridTaskEnv", "ImageArray", "SimpleCrossingEnv"]

ImageArray = npt.NDArray[np.uint8]
StepResult = tuple[ImageArray, float, bool, bool, dict[str, Any]]

VIEW = 7  # cells that the agent sees to either axis


def position(env: MiniGridEnv) -> tuple[int, int]:
    """The cell that the agent is in."""
    x, y = env.agent_pos
    return int(x), int(y)


def check_grid(
    arguments: Arguments, max_steps: object, render_mode: object, highlight: object, tile_size: object
) -> dict[str, Any]:
    """Check the arguments that all our MiniGrid tasks take, and return them for MiniGrid's constructor."""
    return {
        "max_steps": arguments.integer("max_steps", max_steps),
        "render_mode": arguments.choice("render_mode", render_mode, [None, "rgb_array"]),
        "highlight": arguments.boolean("highlight", highlight),
        "tile_size": arguments.integer("tile_size", tile_size),
    }


class GridTaskEnv(MiniGridEnv):
    """What our MiniGrid tasks have in common: the image alone as observation, and the first few actions.

    A mixin: put it before a MiniGrid environment, as `SimpleCrossingEnv` does. At an episode's end
    ``info["is_success"]`` says whether a goal that pays was reached.

    Stable-Baselines3's ``check_env`` warns that its default CNN needs images of at least 36×36: use
    ``gymnasium.wrappers.FlattenObservation(env)`` with an ``MlpPolicy``.

    >>> from owlrl.envs import CrossroadsEnv, GridTaskEnv
    >>> issubclass(CrossroadsEnv, GridTaskEnv)
    True
    """

    # For "human", gymnasium.make shows these drawings in a separate window.
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # Gymnasium's way

    def _narrow(self, num_actions: int) -> None:
        """Set the spaces; call it at the end of a subclass's constructor."""
        self.num_actions = num_actions
        self.action_space = spaces.Discrete(num_actions)
        self.observation_space = spaces.Box(0, 255, shape=(VIEW, VIEW, 3), dtype=np.uint8)

    # MiniGrid annotates with unbound type variables: nothing concrete can override them.
    def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[ImageArray, dict[str, Any]]:
        """Begin an episode; ``seed`` and ``options`` are accepted and do not change the task."""
        observation, info = super().reset(seed=seed, options=options)
        return observation["image"], info

    def step(self, action: int | np.integer[Any]) -> StepResult:  # type: ignore[override]
        """Do one of the first ``num_actions`` MiniGrid actions."""
        if not self.action_space.contains(action):
            expected = f"an int from 0 to {self.num_actions - 1}"
            raise OwlValueError(f"{type(self).__name__}.step: action is {action!r}; expected {expected}")
        observation, reward, terminated, truncated, info = super().step(action)
        reward = float(reward)
        if terminated or truncated:
            info["is_success"] = terminated and reward > 0
        return observation["image"], reward, terminated, truncated, info


class _FixedLayout(MiniGridEnv):
    """The layout of MiniGrid's own ``reset(seed=level)``, whatever seed ``reset`` gets."""

    level: int

    def _gen_grid(self, width: int, height: int) -> None:
        # The layout has a separate generator, so that reset(seed=…) seeds the environment's as
        # Gymnasium expects and still gives the same layout.
        own = self._np_random, self._np_random_seed
        self._np_random, self._np_random_seed = seeding.np_random(self.level)
        try:
            super()._gen_grid(width, height)  # type: ignore[safe-super, no-untyped-call]  # the next class's
        finally:
            self._np_random, self._np_random_seed = own


class SimpleCrossingEnv(GridTaskEnv, _FixedLayout, CrossingEnv):
    """A room with ``num_crossings`` walls across, each with one gap; the goal is in the far corner.

    The reward is MiniGrid's: ``1 − 0.9·t/max_steps`` on reaching the goal at step t, else 0. Made
    by ``gymnasium.make("owlrl/SimpleCrossing-v0", level=3)``.

    Args:
        level: the seed of the layout. Size 9 with one crossing has 42 layouts: some seeds give the same.
        size: cells to a side, walls included; odd.
        num_crossings: walls across the room; size 9 has room for up to 6.
        num_actions: how many of MiniGrid's actions there are: 3 is left, right, forward; 7 is all.
        max_steps: the episode is truncated after so many steps.
        render_mode: None or ``"rgb_array"``.
        highlight: draw lighter what the agent sees.
        tile_size: pixels of a cell's side in a drawing.

    >>> import gymnasium
    >>> import owlrl.envs
    >>> env = gymnasium.make("owlrl/SimpleCrossing-v0", level=3)
    >>> bool((env.reset(seed=0)[0] == env.reset(seed=1)[0]).all())  # the seed changes nothing
    True
    """

    def __init__(
        self,
        level: int = 0,
        *,
        size: int = 9,
        num_crossings: int = 1,
        num_actions: int = 3,
        max_steps: int = 100,
        render_mode: str | None = None,
        highlight: bool = True,
        tile_size: int = 32,
    ) -> None:
        arguments = Arguments(type(self).__name__)
        self.level = arguments.integer("level", level, least=0)
        num_actions = arguments.integer("num_actions", num_actions, least=3, most=7)
        common = check_grid(arguments, max_steps, render_mode, highlight, tile_size)
        size = arguments.integer("size", size, least=5)
        odd = isinstance(size, int) and size % 2 == 1
        if isinstance(size, int) and not odd:
            arguments.problem(f"size is {size}; expected an odd number")
        most = 2 * len(range(2, size - 2, 2)) if odd and size >= 5 else None
        num_crossings = arguments.integer("num_crossings", num_crossings, most=most)
        arguments.check()
        CrossingEnv.__init__(self, size=size, num_crossings=num_crossings, obstacle_type=Wall, **common)
        self._narrow(num_actions)


class DoorKeyEnv(GridTaskEnv, _FixedLayout, MiniGridDoorKeyEnv):
    """A locked door between the agent and the goal; the key lies on the agent's side.

    Needs MiniGrid's actions up to 5 (toggle): left, right, forward, pickup, drop, toggle, done.
    The reward is as in `SimpleCrossingEnv`. Made by ``gymnasium.make("owlrl/DoorKey-v0", level=5)``.

    Args:
        level: the seed of the layout.
        size: cells to a side, walls included.
        num_actions: how many of MiniGrid's actions there are, 6 or 7.
        max_steps: the episode is truncated after so many steps.
        render_mode: None or ``"rgb_array"``.
        highlight: draw lighter what the agent sees.
        tile_size: pixels of a cell's side in a drawing.

    >>> import gymnasium
    >>> import owlrl.envs
    >>> env = gymnasium.make("owlrl/DoorKey-v0", level=5)
    >>> env.action_space
    Discrete(7)
    """

    def __init__(
        self,
        level: int = 0,
        *,
        size: int = 8,
        num_actions: int = 7,
        max_steps: int = 100,
        render_mode: str | None = None,
        highlight: bool = True,
        tile_size: int = 32,
    ) -> None:
        arguments = Arguments(type(self).__name__)
        self.level = arguments.integer("level", level, least=0)
        num_actions = arguments.integer("num_actions", num_actions, least=6, most=7)
        common = check_grid(arguments, max_steps, render_mode, highlight, tile_size)
        size = arguments.integer("size", size, least=5)
        arguments.check()
        MiniGridDoorKeyEnv.__init__(self, size=size, **common)
        self._narrow(num_actions)
