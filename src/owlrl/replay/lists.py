"""A replay around a list or deque of tuples that someone already has."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from owlrl._arguments import Arguments
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError, raise_problems
from owlrl.replay._rows import as_array, check_batch_size, check_task, restored_generator, to_transitions
from owlrl.types import Transitions

__all__ = ["ListReplay"]

Row = Sequence[Any]


class ListReplay:
    """Scopes a list or ``collections.deque`` of tuples to tasks, in place.

    The script goes on appending ``(observation, action, reward, next_observation, done)`` to
    its own list, or ``(…, terminated, truncated)``, and may go on sampling from it. In
    5-tuples ``done`` counts as terminated, as it does in such scripts. `begin_task` empties
    the list and refills it with the newest ``warm_start`` rows of that task; as with
    `TaskScopedReplay`, a task left without `end_task` keeps its earlier sample. Samples keep
    the dtype of the observations, and hold int64 or float32 actions.

    Args:
        rows: the list; the same object stays in use.
        gamma: discount per step.
        warm_start: rows kept of each task for its return; 0 keeps none.
        seed: of the replay's own random numbers.
        device: where samples are put.

    >>> from collections import deque
    >>> import numpy as np
    >>> from owlrl.replay import ListReplay
    >>> memory = deque(maxlen=1000)
    >>> replay = ListReplay(memory, seed=0)
    >>> replay.begin_task("left")
    >>> memory.extend((np.zeros(2, np.float32), 1, 0.5, np.ones(2, np.float32), False) for _ in range(8))
    >>> replay.sample(4).reward
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    >>> replay.end_task()
    >>> replay.begin_task("right"); len(memory)
    0
    >>> replay.begin_task("left"); len(memory)
    8
    """

    def __init__(
        self,
        rows: MutableSequence[Any],
        *,
        gamma: float = 0.99,
        warm_start: int = 50_000,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        arguments = Arguments("ListReplay")
        self.rows = arguments.instance("rows", rows, MutableSequence, "a list or a deque of tuples")
        self.gamma = arguments.number("gamma", gamma, least=0.0, most=1.0)
        self.warm_start = arguments.integer("warm_start", warm_start, least=0)
        self.seed = arguments.integer("seed", seed, least=0, none=True)
        arguments.check()
        self.device = device
        self._rng = np.random.default_rng(seed)
        self._task: str | None = None
        self._stored: dict[str, list[Row]] = {}

    @property
    def task(self) -> str | None:
        """The current task; None before the first `begin_task`."""
        return self._task

    def begin_task(self, task: str) -> None:
        """Empty the list and refill it with the stored rows of ``task``, if there are any."""
        check_task("ListReplay.begin_task", task)
        self.rows.clear()
        self.rows.extend(self._stored.get(task, ()))
        self._task = task

    def end_task(self) -> None:
        """Store the newest ``warm_start`` rows; the list keeps its rows until the next `begin_task`."""
        if self._task is None:
            raise OwlStateError("ListReplay.end_task: no task was begun; call begin_task(task) first")
        if self.warm_start:
            first = max(0, len(self.rows) - self.warm_start)
            self._stored[self._task] = list(islice(self.rows, first, None))

    def sample(self, batch_size: int) -> Transitions:
        """Draw ``batch_size`` rows uniformly with replacement."""
        check_batch_size("ListReplay.sample", batch_size, len(self.rows), self._task)
        return self._transitions("sample", (self._rng.random(batch_size) * len(self.rows)).astype(np.int64))

    def sample_distinct(self, limit: int) -> Transitions:
        """Draw ``limit`` different rows uniformly, or take all if there are not more than that."""
        check_batch_size("ListReplay.sample_distinct", limit, len(self.rows), self._task, least=1)
        index = np.arange(len(self.rows))
        if limit < len(index):
            index = self._rng.choice(index, limit, replace=False, shuffle=False)
        return self._transitions("sample_distinct", index)

    def _transitions(self, call: str, index: np.ndarray) -> Transitions:
        columns = _columns(f"ListReplay.{call}", [self.rows[i] for i in index], index)
        _check_finite(f"ListReplay.{call}", columns, index, self._task)
        action = columns["action"]
        found = (
            columns["observation"],
            action.astype(np.float32 if action.dtype.kind == "f" else np.int64),
            columns["reward"].astype(np.float32),
            columns["next_observation"],
            columns["terminated"],
            np.full(len(index), self.gamma, np.float32),
        )
        return to_transitions(found, None, index, self._task, self.device)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        stored = {task: len(rows) for task, rows in self._stored.items()}
        return (
            f"ListReplay({len(self)} rows in a {type(self.rows).__name__}, task={self._task!r}, "
            f"warm_start={self.warm_start}, stored={stored})"
        )

    def state_dict(self) -> dict[str, Any]:
        """Rows and stored samples as arrays, and the random state."""
        state = {
            "rows": _pack(list(self.rows)),
            "stored": {task: _pack(rows) for task, rows in self._stored.items()},
            "rng": self._rng.bit_generator.state,
        }
        return state if self._task is None else {**state, "task": self._task}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` gave; the list is refilled in place."""
        try:
            rows = _unpack(state_dict["rows"])
            stored = {task: _unpack(packed) for task, packed in state_dict["stored"].items()}
            rng = restored_generator(state_dict["rng"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OwlValueError(
                f"ListReplay.load_state_dict: the state is damaged ({type(error).__name__}: {error}); "
                "pass what state_dict() gave"
            ) from error
        self.rows.clear()
        self.rows.extend(rows)
        self._stored, self._rng, self._task = stored, rng, state_dict.get("task")


_NAMES = ("observation", "action", "reward", "next_observation", "terminated")


def _columns(where: str, rows: Sequence[Row], index: np.ndarray) -> dict[str, np.ndarray]:
    """Rows as one array per column; ``truncated`` is not among them, since it ends no return."""
    for place, row in zip(index, rows, strict=True):
        if not isinstance(row, tuple | list) or len(row) not in (5, 6):
            raise OwlTypeError(
                f"{where}: row {place} is {_describe(row)}; expected a tuple (observation, action, reward, "
                "next_observation, done) or (…, terminated, truncated)"
            )
    problems: list[str] = []
    cells = zip(*(row[:5] for row in rows), strict=True)
    columns = {name: _column(name, values, problems) for name, values in zip(_NAMES, cells, strict=True)}
    if not np.isin(columns["terminated"], (0, 1)).all():
        problems.append("done holds other values than booleans (or 0 and 1)")
    raise_problems(where, problems)
    columns["terminated"] = columns["terminated"].astype(np.bool_)
    return columns


def _describe(row: object) -> str:
    kind = type(row).__name__
    return f"a {kind} of {len(row)}" if isinstance(row, tuple | list) else f"a {kind}"


def _column(name: str, values: Sequence[object], problems: list[str]) -> np.ndarray:
    """One column as (B, ...); rewards, flags and discrete actions as (B,), also if they come as (B, 1)."""
    try:
        column = np.stack([as_array(value) for value in values])
    except ValueError as error:
        problems.append(f"{name} differs in shape from row to row ({error})")
        return np.zeros(0)
    if column.dtype.kind not in "biuf":
        problems.append(f"{name} has dtype {column.dtype}; expected numbers")
        return np.zeros(0)
    flat = name in ("reward", "terminated") or (name == "action" and column.dtype.kind != "f")
    if flat and column.size == len(values):
        return column.reshape(len(values))
    if flat and name != "action":
        problems.append(f"{name} has shape {column.shape[1:]} in each row; expected one number")
    return column


def _check_finite(where: str, columns: dict[str, np.ndarray], index: np.ndarray, task: str | None) -> None:
    of_task = "" if task is None else f" of task {task!r}"
    problems = []
    for name, column in columns.items():
        with np.errstate(over="ignore"):
            column = column.astype(np.float32) if name == "reward" else column
        bad = index[~np.isfinite(column.reshape(len(index), -1)).all(axis=1)]
        if len(bad):
            problems.append(f"{name} of row {bad[0]}{of_task} is not finite; drop that row")
    raise_problems(where, problems, kind=NonFiniteError)


def _pack(rows: list[Row]) -> dict[str, Any]:
    if not rows:
        return {}
    columns = _columns("ListReplay.state_dict", rows, np.arange(len(rows)))
    truncated = np.array([len(row) == 6 and bool(row[5]) for row in rows])
    return {**columns, "truncated": truncated, "width": np.array([len(row) for row in rows])}


def _unpack(packed: dict[str, Any]) -> list[Row]:
    if not packed:
        return []
    columns = [as_array(packed[name]) for name in (*_NAMES, "truncated")]
    widths = as_array(packed["width"])
    if not np.isin(widths, (5, 6)).all():
        raise ValueError("width holds other numbers than 5 and 6")
    return [tuple(cells[:width]) for *cells, width in zip(*columns, widths, strict=True)]
