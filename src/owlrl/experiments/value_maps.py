"""Value maps: a head's largest Q-value in every cell of a level, and where it leads.

Of a network, or exact: tasks that differ in their goal alone, with a head for each and with one for all (the
paper's Figure 1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from minigrid.core.actions import Actions
from minigrid.core.grid import Grid
from minigrid.envs.fourrooms import FourRoomsEnv
from minigrid.minigrid_env import MiniGridEnv

from owlrl._arguments import Arguments, kind_of
from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.experiments.plots import INK, colour, label, new_figure
from owlrl.heads.modes import eval_mode
from owlrl.protocols import MultiHead

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SharedGrid", "ValueMap", "four_rooms", "q_heatmap", "shared_grid", "value_map"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # MiniGrid's: right, down, left, up
NOWHERE = -1
MOVES = (Actions.left, Actions.right, Actions.forward)
ONE_HEAD = "one head"
CONVERGED = 1e-12
Cell = tuple[int, int]


@dataclass(frozen=True, eq=False)
class ValueMap:
    """One head's view of a level as it begins.

    Attributes:
        values: (height, width) the largest Q-value in each cell, over directions and actions; NaN where
            the agent cannot be.
        arrows: (height, width) the direction (0 to 3, MiniGrid's) in which it is reached if the head goes
            forward then, else −1.
        picture: the level drawn, (height·pixels, width·pixels, 3).
        start: column and row of the agent's first cell.
        name: for the title.
        head: its number, for its colour.

    >>> import numpy as np
    >>> from owlrl.experiments import ValueMap
    >>> ValueMap(np.zeros((1, 2)), np.zeros((1, 2), int), np.zeros((8, 16, 3), np.uint8), (0, 0)).head
    0
    """

    values: FloatArray
    arrows: IntArray
    picture: npt.NDArray[np.uint8]
    start: Cell
    name: str = ""
    head: int = 0


def value_map(network: MultiHead, env: gymnasium.Env[Any, Any], *, head: int, name: str = "") -> ValueMap:
    """Compute a head's values for every cell that can be reached before anything in the level is changed.

    Args:
        network: the Q-function with its heads.
        env: a MiniGrid environment as the network was trained in; it is reset.
        head: which head.
        name: for the title.

    >>> from owlrl.experiments import Run, Session, value_map
    >>> session = Session(Run("Crossroads-2"))
    >>> value_map(session.agent.q, session.run.specs["crossroads-0"](), head=0).values.shape
    (3, 11)
    """
    base = _reset("value_map: env", env)
    start = _start(base)
    picture = np.asarray(base.get_frame(highlight=False, tile_size=16), dtype=np.uint8)
    cells = reachable(base, start)
    seen = np.stack([_look(env, base, cell, direction) for cell in cells for direction in range(4)])
    device = next(network.module.parameters()).device
    with torch.no_grad(), eval_mode(network.module):
        q = network(torch.as_tensor(seen, device=device), head=head).cpu().numpy()
    of_cells = dict(zip(cells, q.reshape(len(cells), 4, -1), strict=True))
    return ValueMap(*_drawn(base, of_cells), picture, start, name, head)


def _drawn(base: MiniGridEnv, q: Mapping[Cell, Any]) -> tuple[FloatArray, IntArray]:
    """Values and arrows of a map, from Q-values (direction, action) by cell."""
    values, arrows = np.full((base.height, base.width), np.nan), np.full((base.height, base.width), NOWHERE)
    for (x, y), of_cell in q.items():
        facing = int(of_cell.max(-1).argmax())
        values[y, x] = of_cell.max()
        if of_cell[facing].argmax() == Actions.forward:
            arrows[y, x] = facing
    return values, arrows


def reachable(env: MiniGridEnv, start: Cell, *, ends: Sequence[str] = ("goal", "lava")) -> list[Cell]:
    """Cells to which one can walk; where episodes end, nobody looks around."""
    found, todo = {start}, [start]
    while todo:
        x, y = todo.pop()
        for dx, dy in DIRECTIONS:
            cell = env.grid.get(x + dx, y + dy)
            free = cell is None or (cell.can_overlap() and cell.type not in ends)
            if free and (x + dx, y + dy) not in found:
                found.add((x + dx, y + dy))
                todo.append((x + dx, y + dy))
    return sorted(found)


def _look(env: gymnasium.Env[Any, Any], base: MiniGridEnv, cell: Cell, direction: int) -> Any:
    """What the agent sees there, through all wrappers: it is put there and turns left to that direction."""
    base.agent_pos, base.agent_dir, base.step_count = cell, (direction + 1) % 4, 0
    return env.step(Actions.left)[0]


def q_heatmap(maps: ValueMap | Sequence[ValueMap]) -> Figure:
    """The values of a head over a level, or of several side by side on one scale.

    An arrow shows where the head goes from a cell when it may choose how to face. A circle is the start.

    >>> from owlrl.experiments import four_rooms, q_heatmap
    >>> q_heatmap(four_rooms().maps).axes[0].get_title()
    'lower left'
    """
    shown = [maps] if isinstance(maps, ValueMap) else list(maps)
    if not shown:
        raise OwlValueError("q_heatmap: there are no maps; expected at least one")
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = new_figure(2.35 * columns + 1.1, 2.5 * rows, what="q_heatmap")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    low, high = _scale(shown)
    for axes, found in zip(panels, shown, strict=False):
        height, width = found.values.shape
        edges = (-0.5, width - 0.5, height - 0.5, -0.5)
        axes.imshow(found.picture, extent=edges)
        image = axes.imshow(found.values, cmap="viridis", vmin=low, vmax=high, extent=edges)
        rows_of, columns_of = np.nonzero(found.arrows != NOWHERE)
        towards = np.array(DIRECTIONS, dtype=float)[found.arrows[rows_of, columns_of]].reshape(-1, 2)
        axes.quiver(
            columns_of, rows_of, towards[:, 0], towards[:, 1], angles="xy", scale_units="xy", scale=1.5,
            pivot="mid", width=0.014, headwidth=3.4, headlength=3.2, headaxislength=3, color="white",
            edgecolor=INK, linewidth=0.5,
        )  # fmt: skip
        axes.plot(*found.start, marker="o", ms=130 / max(height, width), mfc="none", mec="white", mew=1.2)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
        axes.set_title(label(found.name), fontsize=9, color=colour(found.head), fontweight="bold")
    for axes in panels[len(shown) :]:
        axes.set_visible(False)
    bar = figure.colorbar(image, ax=panels.tolist(), shrink=0.8, aspect=30, pad=0.02)
    bar.set_label("largest Q-value", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    return figure


def _scale(shown: Sequence[ValueMap]) -> tuple[float, float]:
    """Limits of the colours, the same for all maps."""
    finite = np.concatenate([found.values[np.isfinite(found.values)] for found in shown])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


class SharedGrid(NamedTuple):
    """Values of heads for tasks on one grid.

    Attributes:
        maps: of each task's head and of the one head, for `q_heatmap`.
        first: each head's Q-values of turning left, turning right and going forward where episodes begin.
        solved: for each head, whether its greedy policy solves each of the tasks.

    >>> from owlrl.experiments import four_rooms
    >>> four_rooms().solved
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

    The state is cell and direction, the same in all tasks. A goal pays 1. A task's head has the optimal
    ``Q(s, a) = r + γ max Q(s', ·)``; one head with a shared replay has the fixed point of the mean of these
    targets over tasks.

    Args:
        tasks: MiniGrid environments with the same walls and start, in which the agent walks to a goal.
        gamma: discount γ.

    >>> from owlrl.experiments import shared_grid
    >>> from minigrid.envs import EmptyEnv
    >>> found = shared_grid({"far": EmptyEnv(size=5)})
    >>> round(max(found.first["far"]), 4)  # two steps, a turn, two steps
    0.9606
    """
    arguments = Arguments("shared_grid")
    gamma = arguments.number("gamma", gamma, least=0.0)
    arguments.check()
    if not tasks:
        raise OwlValueError("shared_grid: there are no tasks; expected at least one")
    bases = [_reset(f"shared_grid: task {name!r}", env) for name, env in tasks.items()]
    starts = [(_start(base), int(base.agent_dir)) for base in bases]
    walks = [reachable(base, start, ends=()) for base, (start, _) in zip(bases, starts, strict=True)]
    (start, facing), cells = starts[0], walks[0]
    for name, *found in zip(tasks, starts, walks, strict=True):
        if found != [starts[0], walks[0]]:
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
    >>> [round(value, 3) for value in four_rooms().first["one head"]]
    [0.861, 0.861, 0.879]
    """
    goals = {"lower left": (4, 14), "upper right": (14, 4)}
    start = (6, 7)
    return shared_grid({name: FourRoomsEnv(start, goal) for name, goal in goals.items()})  # type: ignore[no-untyped-call]


def _reset(what: str, env: gymnasium.Env[Any, Any]) -> MiniGridEnv:
    base = env.unwrapped
    if not isinstance(base, MiniGridEnv):
        raise OwlTypeError(f"{what} is {kind_of(base)}; expected a MiniGrid environment")
    env.reset(seed=0)
    return base


def _start(base: MiniGridEnv) -> Cell:
    return int(base.agent_pos[0]), int(base.agent_pos[1])


def _moves(grid: Grid, cells: list[tuple[int, int]]) -> _Moves:
    place = {cell: k for k, cell in enumerate(cells)}
    next_state = np.empty((4 * len(cells), len(MOVES)), np.int64)
    pays = np.zeros(next_state.shape, np.bool_)
    for (x, y), k in place.items():
        for d, (dx, dy) in enumerate(DIRECTIONS):
            ahead = place.get((x + dx, y + dy), k)
            next_state[4 * k + d] = 4 * k + (d - 1) % 4, 4 * k + (d + 1) % 4, 4 * ahead + d
            pays[4 * k + d, 2] = _is_goal(grid, x + dx, y + dy)
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
    bases: list[MiniGridEnv], q: FloatArray, cells: list[Cell], start: Cell, name: str, head: int
) -> ValueMap:
    """The map of a task's head; of the one head, which is the last, over the pictures of all tasks."""
    shown = bases[head : head + 1] or bases
    picture = np.max([base.get_frame(highlight=False, tile_size=16) for base in shown], 0).astype(np.uint8)
    of_cells = dict(zip(cells, q.reshape(len(cells), 4, -1), strict=True))
    for cell in cells:
        if any(_is_goal(base.grid, *cell) for base in shown):
            del of_cells[cell]
    return ValueMap(*_drawn(bases[0], of_cells), picture, start, name, head)


def _is_goal(grid: Grid, x: int, y: int) -> bool:
    thing = grid.get(x, y)
    return thing is not None and thing.type == "goal"
