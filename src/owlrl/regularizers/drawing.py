"""Rows of old tasks that a network is compared on, drawn for several comparisons at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from owlrl.protocols import MultiHead
from owlrl.regularizers.answers import comparable, placed, widened

__all__: list[str] = []

MOST_TASKS = 16  # that one batch is drawn from: more would cost, and over time all have their turn
MOST_TRAINED = 4  # and where heads are trained with the trunk
AT_ONCE = 32  # comparisons that rows are drawn for at once
AT_ONCE_BYTES = 2**23  # unless they would take more than this
DRAWN = ("head", "seed", "parts", "used", "then")  # what is saved: the rest can be drawn again


class Rows(NamedTuple):
    """B rows that are compared at a time: inputs, and what `answer_loss` needs beside outputs (B, A)."""

    inputs: tuple[Tensor, ...]
    target: Tensor
    factor: Tensor


class Drawn(NamedTuple):
    """Rows for several comparisons, drawn while ``head`` was active; after loading, only how to again."""

    head: int
    seed: int
    parts: int
    used: int
    then: int  # parts to draw next time
    rows: list[Rows] = []  # noqa: RUF012, never changed
    tasks: list[str] = []  # noqa: RUF012
    of_row: np.ndarray | None = None  # which of the tasks, (B,) for each part
    heads: Tensor | None = None  # and its head, (B,)
    unit: Tensor | None = None  # (B, A)
    on: dict[str, nn.Parameter] = {}  # noqa: RUF012, what learns from it
    fixed: dict[Any, Any] | None = None  # weights of heads that do not
    stacked: list[Tensor] = []  # noqa: RUF012, the same row by row, made when asked for


def draw_rows(
    drawn: Drawn,
    size: int,
    network: MultiHead,
    tasks: list[str],
    heads: np.ndarray,
    *,
    entry_of: Callable[[str], dict[str, Any]],
    inputs_of: Callable[[dict[str, Any], dict[str, np.ndarray]], tuple[Tensor, ...]],
    trained: bool,
) -> Drawn:
    """Draw rows of tasks of other heads than ``drawn.head``; without such tasks as it was.

    Each part has ``size`` rows, spread evenly over the same tasks, that of the active head among them if it
    is not the one left out.

    Args:
        drawn: the seed, and how many parts.
        size: rows of each part.
        network: whose outputs are compared.
        tasks: all tasks that are held.
        heads: the head of each.
        entry_of: what is kept of a task: its "outputs" and their "unit".
        inputs_of: the inputs for some rows of some entries, task by task.
        trained: whether the heads learn from the comparison as well, which is then not in their units.
    """
    rng = np.random.default_rng(drawn.seed)
    others = rng.permutation(np.flatnonzero(heads != drawn.head))
    others = others[np.argsort(heads[others] != network.pointer.head, kind="stable")]
    others = others[: min(MOST_TRAINED if trained else MOST_TASKS, size)]
    if not len(others):
        return drawn
    entries = {tasks[place]: entry_of(tasks[place]) for place in others.tolist()}
    of_row = np.arange(size) % len(others)
    counts = drawn.parts * np.bincount(of_row)
    index = {
        task: rng.integers(0, len(entry["outputs"]), count)
        for (task, entry), count in zip(entries.items(), counts.tolist(), strict=True)
    }
    # from task by task to part by part
    order = np.argsort(np.argsort(np.tile(of_row, drawn.parts), kind="stable"))
    stored = torch.cat(widened([taken_rows(e["outputs"], index[t]) for t, e in entries.items()], -torch.inf))
    inputs = placed(network, tuple(taken_rows(x, order) for x in inputs_of(entries, index)))
    like = next(network.module.parameters())
    unit = taken_rows(torch.stack(widened([e["unit"] for e in entries.values()], 1.0)), of_row).to(like)
    each = None if trained else unit.repeat(drawn.parts, 1)
    target, factor = comparable(taken_rows(stored, order).to(like), each)
    pieces = [torch.split(x, size) for x in (*inputs, target, factor)]
    on = dict(network.shared_parameters())
    for head in heads[others].tolist() if trained else ():
        on |= network.head_parameters(head)
    part = sum(x.nbytes for x in inputs) // drawn.parts
    return drawn._replace(
        then=max(1, min(AT_ONCE, AT_ONCE_BYTES // max(part, 1))),
        rows=[Rows(tuple(piece[:-2]), *piece[-2:]) for piece in zip(*pieces, strict=True)],
        tasks=list(entries),
        of_row=of_row,
        heads=torch.from_numpy(heads[others][of_row]).to(like.device),
        unit=unit,
        on=on,
        fixed=None if trained else {},
    )


def taken_rows(rows: Tensor, index: np.ndarray) -> Tensor:
    """Those rows, where the tensor is."""
    return rows[torch.from_numpy(index).to(rows.device)]
