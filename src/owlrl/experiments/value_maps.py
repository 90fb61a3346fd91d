"""Value maps: a head's largest Q-value in every cell of a level, and where it leads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from minigrid.core.actions import Actions
from minigrid.minigrid_env import MiniGridEnv

from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.experiments.plots import INK, colour, label, new_figure
from owlrl.heads.modes import eval_mode
from owlrl.protocols import MultiHead

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ValueMap", "q_heatmap", "value_map"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))  # MiniGrid's: right, down, left, up
NOWHERE = -1
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

    >>> import numpy as np
    >>> from owlrl.experiments import Run, Session, value_map
    >>> session = Session(Run("Crossroads-2"))
    >>> found = value_map(session.agent.q, session.run.specs["crossroads-0"](), head=0)
    >>> found.values.shape, int(np.isfinite(found.values).sum())  # without the two goals
    ((3, 11), 7)
    """
    base = env.unwrapped
    if not isinstance(base, MiniGridEnv):
        raise OwlTypeError(f"value_map: env is a {type(base).__name__}; expected a MiniGrid environment")
    env.reset(seed=0)
    start = int(base.agent_pos[0]), int(base.agent_pos[1])
    picture = base.get_frame(highlight=False, tile_size=16)
    cells = reachable(base, start)
    seen = np.stack([_look(env, base, cell, direction) for cell in cells for direction in range(4)])
    device = next(network.module.parameters()).device
    with torch.no_grad(), eval_mode(network.module):
        q = network(torch.as_tensor(seen, device=device), head=head).cpu().numpy()
    q = q.reshape(len(cells), 4, -1)  # (cell, direction, action)
    values, arrows = np.full((base.height, base.width), np.nan), np.full((base.height, base.width), NOWHERE)
    for (x, y), of_cell in zip(cells, q, strict=True):
        facing = int(of_cell.max(-1).argmax())
        values[y, x] = of_cell.max()
        if of_cell[facing].argmax() == Actions.forward:
            arrows[y, x] = facing
    return ValueMap(values, arrows, np.asarray(picture, dtype=np.uint8), start, name, head)


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

    >>> from owlrl.experiments import Run, Session, q_heatmap, value_map
    >>> session = Session(Run("Crossroads-2"))
    >>> env = session.run.specs["crossroads-0"]()
    >>> figure = q_heatmap(value_map(session.agent.q, env, head=0, name="left"))
    >>> figure.axes[0].get_title()
    'left'
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
