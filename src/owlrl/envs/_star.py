"""Where the corridors of Crossroads are, and what colour their walls have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

__all__ = ["MAX_ARMS", "MIN_ARMS", "Star", "make_star"]

Cell = tuple[int, int]

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


@dataclass(frozen=True)
class Star:
    """The drawing board: all in grid coordinates, x to the right and y down.

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
    """Lay out ``arms`` corridors of ``length`` cells.

    Up to four leave a single cell in the four directions. More leave a hall of 5×5 cells, two to a side
    with a wall of their own each. All are equally long and begin equally far from the middle.
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
