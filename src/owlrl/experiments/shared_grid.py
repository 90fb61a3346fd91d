"""One grid, several goals: exact values of a head per task and of one head for all (the paper's Figure 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from minigrid.core.actions import Actions
from minigrid.core.grid import Grid
from minigrid.envs.fourrooms import FourRoomsEnv
from minigrid.minigrid_env import MiniGridEnv

from owlrl._arguments import Arguments
from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.experiments.value_maps import DIRECTIONS, NOWHERE, ValueMap, reachable

__all__ = ["SharedGrid", "four_rooms", "shared_grid"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
MOVES = (Actions.left, Actions.right, Actions.forward)
ONE_HEAD = "one head"
CONVERGED = 1e-12


class SharedGrid(NamedTuple):
    """Values of heads for tasks on one grid.

    Attributes:
        maps: of each task's head and of the one head, for `q_heatmap`.
        first: each head's Q-values of turning left, turning right and going forward where episodes begin.
        solved: for each head, whether its greedy policy solves each of the tasks.

    >>> from owlrl.experiments import four_rooms
    >>> found = four_rooms()
    >>> found.solved
    {'lower left': (True, False), 'upper right': (False, True), 'one head': (True, False)}
    """

    maps: list[ValueMap]
    first: dict[str, tuple[float, ...]]
    solved: dict[str, tuple[bool, ...]]


class _Moves(NamedTuple):
    """A task on S = 4 · cells states and three actions."""

    next_state: IntArray  # (S, 3)
    pays: npt.NDArray[np.bool_]  # (S, 3): it is the goal, and the episode ends


def shared_grid(tasks: Mapping[str, gymnasium.Env[Any, Any]], *, gamma: float = 0.99) -> SharedGrid:
    """Solve tasks that differ only in their goal, with a head for each and with one head for all.

    The state is cell and direction, which is the same in all tasks: nothing distinguishes them. A
    goal pays 1. A task's head has the optimal ``Q(s, a) = r + γ max Q(s', ·)``. One head with a shared replay
    has for each state and action the mean of these targets over tasks: the fixed point of that is its.

    Args:
        tasks: MiniGrid environments with the same walls and start, in which the agent walks to a goal.
        gamma: discount γ.

    >>> from owlrl.experiments import q_heatmap, shared_grid
    >>> from minigrid.envs import EmptyEnv
    >>> found = shared_grid({"far": EmptyEnv(size=5)})
    >>> round(max(found.first["far"]), 4)  # two steps, a turn, two steps
    0.9606
    >>> len(q_heatmap(found.maps).axes)  # with the colour bar
    3
    """
    arguments = Arguments("shared_grid")
    gamma = arguments.number("gamma", gamma, least=0.0)
    arguments.check()
    if not tasks:
        raise OwlValueError("shared_grid: there are no tasks; expected at least one")
    bases = [_reset("shared_grid", name, env) for name, env in tasks.items()]
    start = int(bases[0].agent_pos[0]), int(bases[0].agent_pos[1])
    facing = int(bases[0].agent_dir)
    cells = reachable(bases[0], start, ends=())
    for name, base in zip(tasks, bases, strict=True):
        if (
            tuple(base.agent_pos) != start
            or base.agent_dir != facing
            or reachable(base, start, ends=()) != cells
        ):
            raise OwlValueError(
                f"shared_grid: task {name!r} has another start or other walls than {next(iter(tasks))!r}; "
                "expected tasks that differ in their goal alone"
            )
    moves = [_moves(base.grid, cells) for base in bases]
    first = 4 * cells.index(start) + facing
    heads = {name: _values([task], gamma) for name, task in zip(tasks, moves, strict=True)}
    heads[ONE_HEAD] = _values(moves, gamma)
    maps = [_map(bases, q, cells, start, name, k) for k, (name, q) in enumerate(heads.items())]
    solved = {name: tuple(_solves(q, task, first) for task in moves) for name, q in heads.items()}
    return SharedGrid(maps, {name: tuple(q[first].tolist()) for name, q in heads.items()}, solved)


def four_rooms() -> SharedGrid:
    """MiniGrid's four rooms from the same place, with the goal in the room below or in the one to the right.

    >>> from owlrl.experiments import four_rooms
    >>> for head, values in four_rooms().first.items():
    ...     print(head, [round(value, 3) for value in values])
    lower left [0.895, 0.895, 0.914]
    upper right [0.886, 0.869, 0.851]
    one head [0.861, 0.861, 0.879]
    """
    goals = {"lower left": (4, 14), "upper right": (14, 4)}
    start = (6, 7)
    return shared_grid({name: FourRoomsEnv(start, goal) for name, goal in goals.items()})  # type: ignore[no-untyped-call]


def _reset(where: str, name: str, env: gymnasium.Env[Any, Any]) -> MiniGridEnv:
    base = env.unwrapped
    if not isinstance(base, MiniGridEnv):
        raise OwlTypeError(
            f"{where}: task {name!r} is a {type(base).__name__}; expected a MiniGrid environment"
        )
    env.reset(seed=0)
    return base


def _moves(grid: Grid, cells: list[tuple[int, int]]) -> _Moves:
    place = {cell: k for k, cell in enumerate(cells)}
    next_state = np.empty((4 * len(cells), len(MOVES)), np.int64)
    pays = np.zeros(next_state.shape, np.bool_)
    for (x, y), k in place.items():
        for d, (dx, dy) in enumerate(DIRECTIONS):
            ahead = place.get((x + dx, y + dy), k)
            next_state[4 * k + d] = 4 * k + (d - 1) % 4, 4 * k + (d + 1) % 4, 4 * ahead + d
            thing = grid.get(x + dx, y + dy)
            pays[4 * k + d, 2] = thing is not None and thing.type == "goal"
    return _Moves(next_state, pays)


def _values(tasks: list[_Moves], gamma: float) -> FloatArray:
    """(S, 3): the fixed point of the mean over tasks of their targets."""
    q: FloatArray = np.zeros(tasks[0].next_state.shape)
    while True:
        best = q.max(1)
        targets = [np.where(task.pays, 1.0, gamma * best[task.next_state]) for task in tasks]
        q, before = np.asarray(targets).mean(0), q
        if np.abs(q - before).max() < CONVERGED:
            return q


def _solves(q: FloatArray, task: _Moves, state: int) -> bool:
    for _ in range(len(q)):
        action = int(q[state].argmax())
        if task.pays[state, action]:
            return True
        state = int(task.next_state[state, action])
    return False


def _map(
    bases: list[MiniGridEnv],
    q: FloatArray,
    cells: list[tuple[int, int]],
    start: tuple[int, int],
    name: str,
    head: int,
) -> ValueMap:
    pictures = [base.get_frame(highlight=False, tile_size=16) for base in bases]
    picture = pictures[head] if head < len(bases) else np.max(pictures, 0)
    shape = bases[0].height, bases[0].width
    values, arrows = np.full(shape, np.nan), np.full(shape, NOWHERE)
    shown = bases[head : head + 1] or bases
    goals = {
        c
        for base in shown
        for c in cells
        if (thing := base.grid.get(*c)) is not None and thing.type == "goal"
    }
    for (x, y), of_cell in zip(cells, q.reshape(len(cells), 4, -1), strict=True):
        if (x, y) in goals:
            continue
        facing = int(of_cell.max(-1).argmax())
        values[y, x] = of_cell.max()
        if of_cell[facing].argmax() == Actions.forward:
            arrows[y, x] = facing
    return ValueMap(values, arrows, np.asarray(picture, dtype=np.uint8), start, name, head)
