"""Named sets of tasks, and levels that no training has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

import gymnasium
from minigrid.minigrid_env import MiniGridEnv

from owlrl._arguments import Arguments
from owlrl.envs.crossroads import MAX_ARMS, MIN_ARMS
from owlrl.envs.grid_levels import position
from owlrl.envs.table import Table
from owlrl.envs.tabulate import tabulate
from owlrl.envs.vector import AnyEnv
from owlrl.errors import OwlValueError

__all__ = [
    "TASK_SETS",
    "UNSEEN_KINDS",
    "TaskSpec",
    "cart_poles",
    "levels",
    "pendulums",
    "reaches",
    "task_set",
    "unseen_levels",
]

CROSSING, DOOR_KEY, CROSSROADS = "owlrl/SimpleCrossing-v0", "owlrl/DoorKey-v0", "owlrl/Crossroads-v0"
PENDULUM, REACH = "owlrl/Pendulum-v0", "owlrl/Reach-v0"
CART_POLES = {
    "cartpole": "CartPole-v1",
    "cartpole-flipped": "owlrl/FlippedCartPole-v0",
    "cartpole-weak": "owlrl/WeakCartPole-v0",
}

# Levels of SimpleCrossingS9N1 and DoorKey-8x8 that pass `screen_level` in three runs of 300,000 and
# of 1,000,000 frames.
SC2 = (3, 7)
SC3 = (3, 7, 14)
SC5 = (2, 7, 17, 24, 31)
SC12 = (2, 3, 7, 9, 13, 14, 17, 23, 24, 27, 31, 54)
DK2 = (4, 6)  # the first two


@dataclass(frozen=True)
class TaskSpec:
    """How to make one task: a registered environment and its arguments. Call it to make one.

    Attributes:
        env_id: as for ``gymnasium.make``.
        arguments: name and value of each keyword argument.

    >>> from owlrl.envs import TaskSpec
    >>> spec = TaskSpec.of("owlrl/SimpleCrossing-v0", level=3)
    >>> spec
    TaskSpec.of('owlrl/SimpleCrossing-v0', level=3)
    >>> spec().unwrapped.level, spec(max_steps=50).unwrapped.max_steps
    (3, 50)
    >>> spec.table() is spec.table()  # made once
    True
    """

    env_id: str
    arguments: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, env_id: str, **kwargs: Any) -> TaskSpec:
        """A task by the arguments of ``gymnasium.make``."""
        return cls(env_id, tuple(kwargs.items()))

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments."""
        return dict(self.arguments)

    def __call__(self, **overrides: Any) -> AnyEnv:
        """A new environment of this task; ``overrides`` take precedence over the task's own arguments."""
        return gymnasium.make(self.env_id, **{**self.kwargs, **overrides})

    def table(self) -> Table:
        """The task tabulated; made at the first call and shared from then on."""
        return _table(self)

    def __repr__(self) -> str:
        arguments = "".join(f", {name}={value!r}" for name, value in self.arguments)
        return f"TaskSpec.of({self.env_id!r}{arguments})"


@lru_cache(maxsize=256)
def _table(spec: TaskSpec) -> Table:
    return tabulate(spec(disable_env_checker=True))


def levels(env_id: str, numbers: Iterable[int], **kwargs: Any) -> dict[str, TaskSpec]:
    """A task for each level of an environment that takes ``level=``, named by environment and level.

    >>> from owlrl.envs import levels
    >>> list(levels("owlrl/SimpleCrossing-v0", [3, 7], num_actions=7))
    ['simplecrossing-3', 'simplecrossing-7']
    """
    name = env_id.rpartition("/")[2].rpartition("-v")[0].lower() or env_id
    return {f"{name}-{number}": TaskSpec.of(env_id, level=number, **kwargs) for number in numbers}


def pendulums(angles: Iterable[float], **kwargs: Any) -> dict[str, TaskSpec]:
    """A Pendulum for each angle that the reward is centred at, in degrees; see `PendulumEnv`.

    >>> from owlrl.envs import pendulums
    >>> pendulums([90, -90])["pendulum-90"]
    TaskSpec.of('owlrl/Pendulum-v0', angle=-90)
    """
    return {f"pendulum{angle:+g}": TaskSpec.of(PENDULUM, angle=angle, **kwargs) for angle in angles}


def reaches(goals: Iterable[Iterable[float]], **kwargs: Any) -> dict[str, TaskSpec]:
    """A reaching task for each goal, named by its number; see `ReachEnv`.

    >>> from owlrl.envs import reach_goals, reaches
    >>> reaches([(0.5, -1)])
    {'reach-0': TaskSpec.of('owlrl/Reach-v0', goal=(0.5, -1.0))}
    >>> len(reaches(reach_goals(1_000)))
    1000
    """
    points = (tuple(float(x) for x in goal) for goal in goals)
    return {f"reach-{k}": TaskSpec.of(REACH, goal=point, **kwargs) for k, point in enumerate(points)}


def cart_poles(**kwargs: Any) -> dict[str, TaskSpec]:
    """Three CartPoles that look the same: Gymnasium's, with swapped actions, and pushed half as hard.

    >>> from owlrl.envs import cart_poles
    >>> list(cart_poles())
    ['cartpole', 'cartpole-flipped', 'cartpole-weak']
    """
    return {name: TaskSpec.of(env_id, **kwargs) for name, env_id in CART_POLES.items()}


def _crossings(numbers: tuple[int, ...]) -> Callable[..., dict[str, TaskSpec]]:
    return lambda **kwargs: levels(CROSSING, numbers, **kwargs)


def _crossings_and_doors(**kwargs: Any) -> dict[str, TaskSpec]:
    # One action space for all, as in the paper.
    kwargs = {"num_actions": 7, **kwargs}
    return {**levels(CROSSING, SC3, **kwargs), **levels(DOOR_KEY, DK2, **kwargs)}


def _crossroads(arms: int) -> Callable[..., dict[str, TaskSpec]]:
    return lambda **kwargs: {
        f"crossroads-{task}": TaskSpec.of(CROSSROADS, arms=arms, task=task, **kwargs) for task in range(arms)
    }


TASK_SETS: dict[str, Callable[..., dict[str, TaskSpec]]] = {
    "SC2": _crossings(SC2),
    "SC3": _crossings(SC3),
    "SC5": _crossings(SC5),
    "SC12": _crossings(SC12),
    "SC3+DK2": _crossings_and_doors,
    **{f"Crossroads-{arms}": _crossroads(arms) for arms in range(MIN_ARMS, MAX_ARMS + 1)},
}


def task_set(name: str, **kwargs: Any) -> dict[str, TaskSpec]:
    """The tasks of a named set, by name and in order.

    ``SC2``, ``SC3``, ``SC5``, ``SC12``: SimpleCrossingS9N1 with 3 actions. ``SC3+DK2``: three of these
    and two of DoorKey-8x8, all with 7 actions. ``Crossroads-2`` to ``Crossroads-8``. All levels of the
    first two kinds passed `screen_level`; one memoryless policy solves all of an SC set (`interference`
    finds it), so they test forgetting and selection. Crossroads forces interference.

    Args:
        name: a key of ``TASK_SETS``.
        **kwargs: arguments for every environment, e.g. ``breadcrumbs=True`` or ``max_steps=50``.

    >>> from owlrl.envs import task_set
    >>> list(task_set("SC3"))
    ['simplecrossing-3', 'simplecrossing-7', 'simplecrossing-14']
    """
    if name not in TASK_SETS:
        raise OwlValueError(f"task_set: name is {name!r}; expected one of {', '.join(TASK_SETS)}")
    return TASK_SETS[name](**kwargs)


UNSEEN_KINDS: dict[str, dict[str, int]] = {
    "S9N1": {"size": 9, "num_crossings": 1},
    "S9N2": {"size": 9, "num_crossings": 2},
    "S9N3": {"size": 9, "num_crossings": 3},
    "S11N5": {"size": 11, "num_crossings": 5},
}

PATIENCE = 500  # levels in a row that bring nothing new before there are none left


def unseen_levels(
    kind: str,
    n: int,
    *,
    exclude: Mapping[str, TaskSpec] | Iterable[TaskSpec | int] = (),
    first: int = 1_000,
    distinct: bool = False,
    **kwargs: Any,
) -> dict[str, TaskSpec]:
    """Make ``n`` SimpleCrossing tasks with layouts that are not excluded.

    Levels are taken from ``first`` on, as MiniGrid draws them. Layouts are compared, not level numbers. S9N1
    has 42 layouts in all, so many of 100 unseen levels are alike, unless ``distinct`` is true.

    Args:
        kind: ``"S9N1"``, ``"S9N2"``, ``"S9N3"`` or ``"S11N5"``: size and number of crossings.
        n: how many.
        exclude: tasks that were trained on, such as ``task_set("SC5")``, or level numbers of this kind.
        first: the first level number to try.
        distinct: whether no two may have the same layout.
        **kwargs: further arguments for every environment, e.g. ``num_actions=7``.

    >>> from owlrl.envs import task_set, unseen_levels
    >>> tasks = unseen_levels("S9N1", 3, exclude=task_set("SC5"))
    >>> len(tasks)
    3
    """
    arguments = Arguments("unseen_levels")
    n, first = arguments.integer("n", n), arguments.integer("first", first, least=0)
    distinct = arguments.boolean("distinct", distinct)
    arguments.choice("kind", kind, UNSEEN_KINDS)
    arguments.check()
    kwargs = {**UNSEEN_KINDS[kind], **kwargs}
    known = exclude.values() if isinstance(exclude, Mapping) else exclude
    trained = [e if isinstance(e, TaskSpec) else TaskSpec.of(CROSSING, level=e, **kwargs) for e in known]
    avoid = {layout_of(spec) for spec in trained}
    found: dict[str, TaskSpec] = {}
    tried_in_vain = 0
    for number in count(first):
        task = levels(CROSSING, [number], **kwargs)
        layout = layout_of(*task.values())
        if layout in avoid:
            tried_in_vain += 1
        else:
            tried_in_vain = 0
            found |= task
        if distinct:
            avoid.add(layout)
        if len(found) == n or tried_in_vain == PATIENCE:
            break
    if len(found) < n:
        raise OwlValueError(
            f"unseen_levels: n is {n} and {kind} has only {len(found)} layouts left; expected fewer, or "
            "distinct=False"
        )
    return found


def layout_of(spec: TaskSpec) -> tuple[object, ...]:
    """What makes two levels the same: the grid, and where the agent starts."""
    env = spec(disable_env_checker=True)
    env.reset()
    base = env.unwrapped
    if not isinstance(base, MiniGridEnv):
        raise OwlValueError(f"{spec} has no layout; expected levels of MiniGrid")
    grid = base.grid.encode()
    return grid.shape, grid.tobytes(), position(base), int(base.agent_dir)
