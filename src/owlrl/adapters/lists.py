"""`ListReplay`: a replay around a script's list or deque of rows."""

from __future__ import annotations

import dataclasses
import warnings
from collections import deque, namedtuple
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from owlrl._arguments import Arguments, kind_of, own_generator, restored_generator
from owlrl.adapters.buffers import all_finite
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError, raise_problems
from owlrl.types import Transitions, as_array

__all__ = ["ListReplay"]

COLUMNS = ("observation", "action", "reward", "next_observation", "terminated", "truncated")
# what the columns are called in rows of other libraries
NAMES = {
    "observation": ("observation", "obs", "state"),
    "action": ("action",),
    "reward": ("reward",),
    "next_observation": ("next_observation", "next_obs", "next_state"),
    "terminated": ("terminated", "done"),
    "truncated": ("truncated",),
}
FORM = "(observation, action, reward, next_observation, done) or (…, terminated, truncated)"
LANDMARKS = 12  # rows of a list whose places are remembered between two looks, beside its ends
LIST_KEY = 12
LARGEST = float(np.finfo(np.float32).max)


class ListReplay:
    """Scopes a list or ``collections.deque`` of rows to tasks, in place.

    The script continues appending to its list, and may continue sampling from it. A row is a tuple
    ``(observation, action, reward, next_observation, done)`` or ``(…, terminated, truncated)``; named tuples
    and dataclasses are read by their names (``state``, ``obs``, ``next_state``, ``done`` and so on),
    whatever their order. Without ``truncated``, ``done`` counts as terminated. `begin_task` empties the
    list and refills it with the newest ``warm_start`` rows of that task. A task left without `end_task`
    keeps its earlier sample.

    New rows are those behind the last one seen, so they must be appended: a list that is overwritten
    in place or shuffled has no newest end, and `new_rows` refuses it.

    Args:
        rows: the list; the same object stays in use.
        gamma: discount per step.
        warm_start: rows kept of each task for a revisit; 0 keeps none.
        seed: of the replay's own random numbers.
        device: where samples are put.

    Attributes:
        overruns: how often the last row seen was gone at the next look, so that rows may be lost.

    >>> from collections import deque
    >>> import numpy as np
    >>> from owlrl.adapters.lists import ListReplay
    >>> memory = deque(maxlen=1000)
    >>> replay = ListReplay(memory, seed=0)
    >>> replay.begin_task("left")
    >>> memory.extend((np.zeros(2, np.float32), 1, 0.5, np.ones(2, np.float32), False) for _ in range(8))
    >>> replay.sample(4).reward
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    >>> len(replay.new_rows()), replay.new_rows()
    (8, None)
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
        arguments.instance("rows", rows, MutableSequence, "a list or a deque of tuples")
        self.rows = rows
        self.gamma: float = arguments.number("gamma", gamma, least=0.0, most=1.0)
        self.warm_start: int = arguments.integer("warm_start", warm_start, least=0)
        self.seed: int | None = arguments.integer("seed", seed, least=0, none=True)
        self.device = arguments.device("device", device)
        arguments.check()
        self.overruns = 0
        self._rng = own_generator(self.seed, LIST_KEY)
        self._task: str | None = None
        self._stored: dict[str, list[Any]] = {}
        self._checked: Any = None  # the last row that was seen to be finite
        self._seen: list[tuple[int, Any]] = []  # places and rows at the last look; the last one seen is last

    @property
    def task(self) -> str | None:
        """The current task; None before the first `begin_task`."""
        return self._task

    def begin_task(self, task: str) -> None:
        """Empty the list and refill it with the stored rows of ``task``, if there are any."""
        if not isinstance(task, str):
            raise OwlTypeError(
                f"ListReplay.begin_task: task is {task!r} ({type(task).__name__}); expected a str"
            )
        self.rows.clear()
        self.rows.extend(self._stored.get(task, ()))
        self._task = task
        self._look()

    def end_task(self) -> None:
        """Store the newest ``warm_start`` rows; the list keeps its rows until the next `begin_task`."""
        if self._task is None:
            raise OwlStateError("ListReplay.end_task: no task was begun; call begin_task(task) first")
        if self.warm_start:
            self._stored[self._task] = self._newest(self.warm_start)

    def take_back(self, rows: Transitions) -> list[Any]:
        """Remove the newest rows, as many as ``rows``; for `put` in another task."""
        taken = [self.rows.pop() for _ in range(min(len(rows), len(self.rows)))][::-1]
        self._look()
        return taken

    def put(self, moved: Iterable[Any]) -> None:
        """Append what `take_back` returned; those rows are not new."""
        self.rows.extend(moved)
        self._look()

    def forget(self, task: str) -> None:
        """Drop what is kept of ``task``."""
        self._stored.pop(task, None)

    def sample(self, batch_size: int) -> Transitions:
        """Draw ``batch_size`` rows uniformly with replacement."""
        arguments = Arguments("ListReplay.sample")
        size: int = arguments.integer("the number of rows requested", batch_size)
        arguments.check()
        if len(self.rows) < size:
            of_task = "" if self._task is None else f" of task {self._task!r}"
            raise OwlStateError(
                f"ListReplay.sample: {size} rows{of_task} were requested, but there are only "
                f"{len(self.rows)}; add more first, or request fewer"
            )
        index = (self._rng.random(size) * len(self.rows)).astype(np.int64)
        return self._transitions("sample", [self.rows[i] for i in index], index)

    def new_rows(self) -> Transitions | None:
        """The rows that were appended since the last look, copied, oldest first; None if there are none.

        Raises if the list was overwritten in place or shuffled: then it is not known which rows are new.
        """
        index = np.arange(self._first_new(), len(self.rows))
        # a row may hold arrays that the script writes to again: they are copied into columns
        found = self._transitions("new_rows", self._newest(len(index)), index) if len(index) else None
        self._look()
        return found

    def check_new(self) -> None:
        """Raise if a row that was appended since the last call, unless that raised, is not finite."""
        if not self.rows or self.rows[-1] is self._checked:
            return
        for back, row in enumerate(reversed(self.rows)):
            if row is self._checked:
                break
            if not _looks_finite(row):
                self._transitions("check_new", [row], np.array([len(self.rows) - 1 - back]))
        self._checked = self.rows[-1]

    def state_dict(self) -> dict[str, Any]:
        """Rows and stored samples as arrays, and the random state."""
        state = {
            "rows": _pack(list(self.rows)),
            "new": len(self.rows) if (place := self._last_seen()) is None else len(self.rows) - 1 - place,
            "stored": {task: _pack(rows) for task, rows in self._stored.items()},
            "rng": self._rng.bit_generator.state,
        }
        return state if self._task is None else {**state, "task": self._task}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned; the list is refilled in place."""
        try:
            rows = _unpack(state_dict["rows"])
            stored = {task: _unpack(packed) for task, packed in state_dict["stored"].items()}
            rng = restored_generator(state_dict["rng"])
            new = int(state_dict.get("new", 0))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OwlValueError(
                f"ListReplay.load_state_dict: the state is damaged ({type(error).__name__}: {error}); "
                "pass what state_dict() returned"
            ) from error
        self.rows.clear()
        self.rows.extend(rows)
        self._stored, self._rng, self._task = stored, rng, state_dict.get("task")
        self._look(new)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        stored = {task: len(rows) for task, rows in self._stored.items()}
        return (
            f"ListReplay({len(self)} rows in a {type(self.rows).__name__}, task={self._task!r}, "
            f"warm_start={self.warm_start}, stored={stored})"
        )

    def _look(self, new: int = 0) -> None:
        """Remember where some rows are, the last one among them; the last ``new`` stay unseen."""
        count = max(0, len(self.rows) - new)
        places = {*range(min(2, count)), *range(max(0, count - 4), count)}
        if count and not isinstance(self.rows, deque):  # whose middle is far from both ends
            places.update(np.linspace(0, count - 1, LANDMARKS).astype(int).tolist())
        self._seen = [(place, self.rows[place]) for place in sorted(places)]

    def _newest(self, count: int) -> list[Any]:
        """The last rows, the oldest first; from the end, since a deque's front may be far away."""
        return list(islice(reversed(self.rows), count))[::-1]

    def _last_seen(self) -> int | None:
        """The place of the last row that was seen; None where it is gone, or there was none."""
        if not self._seen:
            return None
        place, last = self._seen[-1]
        if place < len(self.rows) and self.rows[place] is last:  # nothing was dropped at the front
            return place
        back = next((k for k, row in enumerate(reversed(self.rows)) if row is last), None)
        return None if back is None else len(self.rows) - 1 - back

    def _first_new(self) -> int:
        """The place behind the last row that was seen; refused where rows changed their order."""
        kind, found = type(self.rows).__name__, self._last_seen()
        if found is None:  # all rows are new, or the list has another order
            known, others, moved = {id(row) for _, row in self._seen}, iter(self.rows), False
        else:
            dropped = self._seen[-1][0] - found
            known = {id(row) for old, row in self._seen if old < dropped}
            others = iter(self._newest(len(self.rows) - 1 - found))
            moved = dropped < 0 or any(
                old >= dropped and self.rows[old - dropped] is not row for old, row in self._seen
            )
        if moved or any(id(row) in known for row in others):
            raise OwlStateError(
                f"ListReplay.new_rows: rows of the {kind} changed their places since the last look "
                "(overwritten in place as a ring, shuffled, or added at the front), so that it is not "
                "known which are new; append them at the end, e.g. to collections.deque(maxlen=...), which "
                "drops the oldest automatically, or use owlrl.TaskScopedReplay"
            )
        if found is None and self._seen:
            self.overruns += 1
            if self.overruns == 1:
                warnings.warn(
                    f"ListReplay: none of the {len(self.rows)} rows in the {kind} was there at the last "
                    "look, so that rows between the two may be lost; let it hold more of them",
                    UserWarning,
                    stacklevel=3,
                )
        return 0 if found is None else found + 1

    def _transitions(self, call: str, rows: Sequence[Any], index: np.ndarray) -> Transitions:
        columns = _columns(f"ListReplay.{call}", rows, index)
        _check_finite(f"ListReplay.{call}", columns, index, self._task)
        action = columns["action"]
        made = Transitions(
            observation=torch.from_numpy(columns["observation"]),
            action=torch.from_numpy(action.astype(np.float32 if action.dtype.kind == "f" else np.int64)),
            reward=torch.from_numpy(columns["reward"].astype(np.float32)),
            next_observation=torch.from_numpy(columns["next_observation"]),
            terminated=torch.from_numpy(columns["terminated"]),
            discount=torch.full((len(index),), float(self.gamma)),
            index=index,
            task=self._task,
            truncated=torch.from_numpy(columns["truncated"]),
            env=torch.zeros(len(index), dtype=torch.int64),
        )
        return made if self.device == "cpu" else made.to(self.device)


def _field_names(row: object) -> tuple[str, ...] | None:
    """The names of a named tuple's or a dataclass's fields; None for a row without names."""
    if isinstance(row, tuple) and hasattr(row, "_fields"):
        return tuple(row._fields)
    if dataclasses.is_dataclass(row) and not isinstance(row, type):
        return tuple(field.name for field in dataclasses.fields(row))
    return None


def _cells(row: Any) -> tuple[Any, ...] | None:
    """A row's values in the order of `COLUMNS`, five or six of them; None if it has another form."""
    names = _field_names(row)
    if names is None:
        fits = isinstance(row, tuple | list) and len(row) in (5, 6)
        return tuple(row) if fits else None
    found = {column: next((n for n in known if n in names), None) for column, known in NAMES.items()}
    if None in [found[column] for column in COLUMNS[:5]]:
        return None
    return tuple(getattr(row, name) for name in found.values() if name is not None)


def _lacks(row: object) -> str:
    """Which columns a row with names does not have, for a message."""
    names = _field_names(row)
    missing = [] if names is None else [c for c in COLUMNS[:5] if not set(NAMES[c]) & set(names)]
    return f", without {' and '.join('/'.join(NAMES[column]) for column in missing)}" if missing else ""


def _columns(where: str, rows: Sequence[Any], index: np.ndarray) -> dict[str, np.ndarray]:
    """Rows as one array per column, which share no memory with them."""
    cells = [_cells(row) for row in rows]
    for place, row, found in zip(index, rows, cells, strict=True):
        if found is None:
            raise OwlTypeError(
                f"{where}: row {place} is {_show(row)}{_lacks(row)}; expected a tuple {FORM}, or a "
                f"named tuple or a dataclass with {', '.join('/'.join(NAMES[name]) for name in COLUMNS[:5])}"
            )
    problems: list[str] = []
    told = [found for found in cells if found is not None]
    columns = {
        name: _column(name, [found[k] for found in told], problems) for k, name in enumerate(COLUMNS[:5])
    }
    ends = [bool(np.asarray(as_array(found[5])).any()) if len(found) == 6 else False for found in told]
    if not np.isin(columns["terminated"], (0, 1)).all():
        problems.append("done holds other values than booleans (or 0 and 1)")
    if problems:
        problems[-1] += f"; row {index[-1]} is {_show(rows[-1])}; expected {FORM}"
    raise_problems(where, problems)
    columns["terminated"] = columns["terminated"].astype(np.bool_)
    columns["truncated"] = np.array(ends, dtype=np.bool_)
    return columns


def _show(row: object) -> str:
    """A row in short, for a message."""

    def cell(value: object) -> str:
        if isinstance(value, np.ndarray | Tensor) and value.ndim:
            return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"
        text = repr(value.item() if isinstance(value, np.ndarray | Tensor | np.generic) else value)
        return text if len(text) <= 30 else kind_of(value)

    names = _field_names(row)
    if names is not None:
        values = ", ".join(f"{name}={cell(getattr(row, name))}" for name in names)
        return f"a {type(row).__name__}({values})"
    if isinstance(row, tuple | list):
        return f"a {type(row).__name__} of {len(row)}: ({', '.join(map(cell, row))})"
    return kind_of(row)


def _column(name: str, values: Sequence[object], problems: list[str]) -> np.ndarray:
    """One column as (B, ...); rewards, flags and discrete actions as (B,), also if they come as (B, 1)."""
    if any(value is None for value in values):
        problems.append(f"{name} is None in some rows; store the last observation where an episode ends, too")
        return np.zeros(0)
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


def _looks_finite(row: Any) -> bool:
    """A quick check that the numbers of a row are finite; rows that fail it are checked in full."""
    cells = _cells(row)
    if cells is None:
        return True  # of another form, which the next look tells
    numbers: list[Any] = [cell for cell in cells[:4] if isinstance(cell, float | int | np.generic)]
    arrays = [as_array(cell) for cell in cells[:4] if isinstance(cell, np.ndarray | Tensor)]
    known = len(numbers) + len(arrays) == 4
    return known and all(-LARGEST <= number <= LARGEST for number in numbers) and all_finite(*arrays)


def _check_finite(where: str, columns: Mapping[str, np.ndarray], index: np.ndarray, task: str | None) -> None:
    of_task = "" if task is None else f" of task {task!r}"
    problems = []
    for name, column in columns.items():
        with np.errstate(over="ignore"):
            column = column.astype(np.float32) if name == "reward" else column
        bad = index[~np.isfinite(column.reshape(len(index), -1)).all(axis=1)]
        if len(bad):
            problems.append(f"{name} of row {bad[0]}{of_task} is not finite; drop that row")
    raise_problems(where, problems, kind=NonFiniteError)


def _pack(rows: Sequence[Any]) -> dict[str, Any]:
    """Rows as arrays: by field where all have the same names, else by column and how many each had."""
    if not rows:
        return {}
    names = _field_names(rows[0])
    columns = _columns("ListReplay.state_dict", rows, np.arange(len(rows)))
    if names is not None and all(_field_names(row) == names for row in rows):
        fields = {name: np.stack([as_array(getattr(row, name)) for row in rows]) for name in names}
        return {"fields": list(names), "values": fields}
    widths = [6 if len(_cells(row) or ()) == 6 else 5 for row in rows]
    return {**columns, "width": np.array(widths)}


def _unpack(packed: Mapping[str, Any]) -> list[Any]:
    if not packed:
        return []
    if "fields" in packed:
        names = [str(name) for name in packed["fields"]]
        make: Any = namedtuple("Row", names)  # type: ignore[misc]  # the script's own class is not saved, its names are
        return [make(*cells) for cells in zip(*(as_array(packed["values"][n]) for n in names), strict=True)]
    columns = [as_array(packed[name]) for name in COLUMNS]
    widths = as_array(packed["width"])
    if not np.isin(widths, (5, 6)).all():
        raise ValueError("width holds other numbers than 5 and 6")
    return [tuple(cells[:width]) for *cells, width in zip(*columns, widths, strict=True)]
