"""Checks of what is asked of a replay, shared by all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, raise_problems
from owlrl.replay._spec import as_array, positive_int

__all__ = ["check_batch_size", "check_priorities", "check_task", "restored_generator"]


def check_batch_size(
    where: str, size: object, rows: int, task: str | None, *, least: int | None = None
) -> None:
    """Raise unless ``size`` is a positive int and there are as many rows (or ``least`` rows)."""
    problems: list[str] = []
    size = positive_int("the number of rows asked for", size, problems)
    raise_problems(where, problems)
    if rows < (size if least is None else least):
        of_task = "" if task is None else f" of task {task!r}"
        raise OwlStateError(
            f"{where}: {size} rows{of_task} were asked for and there are {rows}; "
            "add more first, or ask for fewer"
        )


def check_task(where: str, task: object) -> None:
    """Raise unless ``task`` is a name."""
    if not isinstance(task, str):
        raise OwlTypeError(f"{where}: task is {task!r} ({type(task).__name__}); expected a str")


def check_priorities(
    where: str, index: object, priorities: object, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (B,) int64 and priorities (B,) float64, or one error naming what is wrong with them."""
    rows, new = as_array(index), as_array(priorities)
    problems = []
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        problems.append(f"index is {rows.dtype} {rows.shape}; expected the index of a sample, ints (B,)")
    elif len(rows) and not 0 <= rows.min() <= rows.max() < num_rows:
        problems.append(
            f"index runs from {rows.min()} to {rows.max()}; expected rows from 0 to {num_rows - 1}"
        )
    if new.shape != rows.shape or new.dtype.kind not in "iuf":
        problems.append(f"priorities is {new.dtype} {new.shape}; expected numbers {rows.shape}")
    elif (new < 0).any():
        problems.append(f"priorities has {new.min()}; expected numbers >= 0, e.g. td_error.abs()")
    raise_problems(where, problems)
    bad = np.flatnonzero(~np.isfinite(new))
    if len(bad):
        raise NonFiniteError(f"{where}: priorities[{bad[0]}] is {new[bad[0]]}; expected finite numbers")
    return rows.astype(np.int64), new.astype(np.float64)


def restored_generator(state: Mapping[str, Any]) -> np.random.Generator:
    """A generator that goes on where the one that gave ``state`` was."""
    generator = np.random.default_rng()
    generator.bit_generator.state = dict(state)
    return generator
