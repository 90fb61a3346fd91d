"""Rows on their way into a memory: checked, held in quarantine, cut into segments.

Rows are `Columns`: one array per field, all of the same length; no rows are an empty dict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from owlrl._arguments import kind_of
from owlrl.errors import NonFiniteError, OwlTypeError, raise_problems
from owlrl.types import Transitions

Columns = dict[str, np.ndarray]
One = tuple[tuple[int, ...], np.dtype[Any]]  # shape and dtype of one value

MAX_ENV = 2**31
KINDS = {  # of the dtypes of what comes; only numbers may have more axes than that of the rows
    **dict.fromkeys(("observation", "action", "next_observation"), "biuf"),
    **dict.fromkeys(("reward", "discount"), "f"),
    **dict.fromkeys(("terminated", "truncated", "known"), "b"),  # known: is truncation reported
    "env": "iu",
}
EXPECTED = {"b": "bool", "f": "floating numbers", "iu": "integers", "biuf": "bools or numbers of numpy"}
STORED = {"b": np.dtype(np.bool_), "f": np.dtype(np.float32), "iu": np.dtype(np.int64)}
PARTS = ("queue", "released", "open")


class Form(NamedTuple):
    """What one observation and one action are."""

    observation: One
    action: One

    def column(self, name: str) -> One:
        """What one value of a column is."""
        if KINDS.get(name) == "biuf":
            return self.action if name == "action" else self.observation
        return (), STORED[KINDS.get(name, "b")]

    @property
    def observation_bytes(self) -> int:
        return math.prod(self.observation[0]) * self.observation[1].itemsize

    @property
    def position_bytes(self) -> int:
        """Of one observation, one action, a reward and flags."""
        return self.observation_bytes + math.prod(self.action[0]) * self.action[1].itemsize + 5

    @property
    def row_bytes(self) -> int:
        """Of one row on its way in."""
        return self.observation_bytes + self.position_bytes + 16

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {}
        for name, (shape, dtype) in self._asdict().items():
            state |= {f"{name}_shape": list(shape), f"{name}_dtype": dtype.name}
        return state

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Form:
        found: list[One] = []
        for name in cls._fields:
            dtype = np.dtype(str(state[f"{name}_dtype"]))
            if dtype.kind not in "biuf":
                raise ValueError(f"the form of a row is {dict(state)!r}")
            found.append((tuple(naturals(*state[f"{name}_shape"])), dtype))
        return cls(*found)


def checked_rows(where: str, rows: object, known: Form | None) -> tuple[Columns, Form]:
    """The columns of ``rows`` as copied arrays, and their form, or one error naming what is wrong."""
    if not isinstance(rows, Transitions):
        raise OwlTypeError(f"{where}: rows is {kind_of(rows)}; expected owlrl.types.Transitions")
    reward = rows.reward
    if not isinstance(reward, Tensor) or reward.ndim != 1:
        got = tuple(reward.shape) if isinstance(reward, Tensor) else type(reward).__name__
        raise_problems(where, [f"reward is {got}; expected a tensor (B,), one value per row"])
    count = len(reward)
    given = {name: getattr(rows, name, None) for name in KINDS}
    given["known"] = torch.full((count,), rows.truncated is not None)
    if rows.truncated is None:
        given["truncated"] = torch.zeros(count, dtype=torch.bool)
    if rows.env is None:
        given["env"] = torch.zeros(count, dtype=torch.int64)
    problems: list[str] = []
    columns = {name: _column(name, value, count, problems) for name, value in given.items()}
    raise_problems(where, problems)
    found = Form(*((columns[name].shape[1:], columns[name].dtype) for name in Form._fields))
    for name in ("observation", "action", "next_observation"):
        array, (shape, dtype) = columns[name], (known or found).column(name)
        if array.shape[1:] != shape or array.dtype != dtype:
            source = "as observation has" if known is None else "as in this task's earlier rows"
            problems.append(
                f"{name} is {array.dtype} {array.shape[1:]} in each row; expected {dtype} {shape}, {source}"
            )
    if problems and known is not None:
        problems[-1] += (
            "; all rows of a task have one form: add these to another task, or forget this one first"
        )
    raise_problems(where, problems)
    _check_values(where, columns)
    return columns, found


def _column(name: str, value: object, count: int, problems: list[str]) -> np.ndarray:
    """A copy of ``value``, as it is stored; what is wrong with it goes to ``problems``."""
    array, kinds = np.zeros(0), KINDS[name]
    if not isinstance(value, Tensor):
        problems.append(f"{name} is {kind_of(value)}; expected a tensor")
    elif kinds != "biuf" and value.ndim != 1:
        problems.append(f"{name} has shape {tuple(value.shape)}; expected one value per row, ({count},)")
    elif value.ndim == 0 or value.shape[0] != count:
        got = "no axis of rows" if value.ndim == 0 else f"{len(value)} rows"
        problems.append(f"{name} has {got}; expected {count}, as reward has")
    else:
        try:
            array = np.array(value.numpy(force=True))
        except TypeError:  # a dtype that numpy does not know
            array = np.zeros(0, np.object_)
        if array.dtype.kind not in kinds:
            problems.append(f"{name} has dtype {value.dtype}; expected {EXPECTED[kinds]}")
        elif array.dtype != STORED.get(kinds, array.dtype):
            with np.errstate(over="ignore"):  # found by _check_values
                array = array.astype(STORED[kinds])
    return array


def _check_values(where: str, columns: Columns) -> None:
    env = columns["env"]
    if np.count_nonzero(env) and not 0 <= env.min() <= env.max() < MAX_ENV:
        raise_problems(where, [f"env runs from {env.min()} to {env.max()}; expected 0 to {MAX_ENV - 1}"])
    problems = []
    for name in ("observation", "action", "reward", "next_observation", "discount"):
        array = columns[name]
        # counting is faster than all()
        if array.dtype.kind == "f" and np.count_nonzero(np.isfinite(array)) != array.size:
            row = int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))[0])
            problems.append(f"{name} of row {row} is not finite (as float32 or as given); leave that row out")
    raise_problems(where, problems, kind=NonFiniteError)


def in_time_order(columns: Columns) -> Columns:
    """Rows of several environments, oldest first; within each environment they are already.

    Whether they come step by step or environment by environment: the n-th rows of all environments
    come before the next ones.
    """
    env = columns["env"]
    if not len(env) or np.count_nonzero(env == env[0]) == len(env):
        return columns
    copies, count = int(env.max()) + 1, len(env)
    if count % copies == 0 and env[0] == 0:  # as many of each, as most come
        places = np.arange(count)
        if np.array_equal(env, places % copies):
            return columns
        if np.array_equal(env, places // (count // copies)):
            return taken(columns, places.reshape(copies, -1).T.ravel())
    order = np.argsort(env, kind="stable")
    rank = np.empty_like(order)
    rank[order] = _since(_changes(env[order]))
    return taken(columns, np.argsort(rank, kind="stable"))


class Incoming:
    """Quarantine and open segments of one memory.

    The newest rows wait in quarantine and can be taken back. Older ones are cut into segments: up to
    ``segment`` steps of one environment, each row's next observation being the following row's
    observation, ended by the end of the episode.
    """

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.queue: Columns = {}  # in quarantine
        self.released: Columns = {}  # out of quarantine, not looked at
        self.open: Columns = {}  # rows of segments that are not complete
        # per environment, of its newest row: its next observation, whether it ended the episode, its discount
        self.last: dict[int, tuple[bytes, bool, float]] = {}

    @property
    def rows(self) -> int:
        return size(self.queue) + size(self.released) + size(self.open)

    @property
    def nbytes(self) -> int:
        parts = (self.queue, self.released, self.open)
        of_rows = sum(array.nbytes for part in parts for array in part.values())
        return of_rows + sum(len(frame) for frame, _, _ in self.last.values())

    def add(self, columns: Columns, quarantine: int) -> bool:
        """Put rows into quarantine and release the oldest; whether a `cut` is worth its time."""
        self.queue = concatenated(self.queue, columns)
        out = max(0, size(self.queue) - quarantine)
        self.released = concatenated(self.released, taken(self.queue, slice(out)))
        self.queue = taken(self.queue, slice(out, None))
        return size(self.released) >= 8 * self.segment

    def take_back(self, count: int) -> Columns:
        """The newest ``count`` rows of the quarantine, oldest first; they are removed."""
        left = size(self.queue) - count
        back = copied(taken(self.queue, slice(left, None)))
        self.queue = taken(self.queue, slice(left))
        return back

    def _linked(self, columns: Columns) -> Columns:
        """``columns`` and: does a row follow its environment's last one, does it start an episode."""
        order = np.argsort(columns["env"], kind="stable")
        env, observation, after, discount, known = (
            columns[name][order] for name in ("env", "observation", "next_observation", "discount", "known")
        )
        ended = (columns["terminated"] | columns["truncated"])[order]
        same, like, was_ended, unseen = np.zeros((4, len(order)), np.bool_)
        same[1:] = (_bytes(observation[1:]) == _bytes(after[:-1])).all(axis=1)
        like[1:] = discount[1:] == discount[:-1]
        was_ended[1:] = ended[:-1]
        first = np.flatnonzero(_changes(env))
        for row in first.tolist():
            last = self.last.get(int(env[row]))
            if last is None:
                unseen[row] = True
            else:
                same[row] = observation[row].tobytes() == last[0]
                was_ended[row], like[row] = last[1], last[2] == discount[row]
        for row in (np.append(first[1:], len(order)) - 1).tolist():
            self.last[int(env[row])] = after[row].tobytes(), bool(ended[row]), float(discount[row])
        joined, start = np.empty((2, len(order)), np.bool_)
        joined[order] = same & like & ~was_ended & ~unseen
        # where the source does not tell truncation, a jump to another observation is one
        start[order] = unseen | was_ended | ~(same | known)
        return {**columns, "joined": joined, "start": start}

    def cut(self, *, close: bool = False) -> tuple[Columns, np.ndarray]:
        """Complete segments, with ``close`` all: their rows, one after the other, and their lengths."""
        columns = concatenated(self.open, self._linked(self.released) if self.released else {})
        self.released = {}
        if not columns:
            return {}, np.zeros(0, np.int64)
        order = np.argsort(columns["env"], kind="stable")
        other = _changes(columns["env"][order])
        # an environment's first row here is the first of its open segment
        first = np.flatnonzero(_since(other | ~columns["joined"][order]) % self.segment == 0)
        length = np.diff(np.append(first, len(order)))
        last = first + length - 1
        whole = (length == self.segment) | (columns["terminated"] | columns["truncated"])[order[last]]
        # cut off: a row of the same environment came that does not follow
        cut_off = ~whole
        cut_off[-1] = False
        cut_off[:-1] &= ~other[first[1:]]
        # when each was complete: with its last row, or with the row that does not follow
        moment = np.where(whole, 2 * order[last] + 1, 2 * len(order))
        moment[cut_off] = 2 * order[last[cut_off] + 1]
        chosen = np.flatnonzero(whole | cut_off | close)
        chosen = chosen[np.argsort(moment[chosen], kind="stable")]
        rows = order[ranges(first[chosen], length[chosen])]
        left = np.ones(len(order), np.bool_)
        left[rows] = False
        self.open = taken(columns, left)
        return taken(columns, rows), length[chosen]

    def state_dict(self) -> dict[str, Any]:
        return {
            **{name: copied(getattr(self, name)) or None for name in PARTS},
            "last": [
                {"env": env, "frame": np.frombuffer(frame, np.uint8).copy(), "ended": end, "discount": factor}
                for env, (frame, end, factor) in self.last.items()
            ],
        }

    @classmethod
    def from_state(cls, segment: int, state: Mapping[str, Any], form: Form | None) -> Incoming:
        """What `state_dict` returned; an error if it is damaged."""
        made = cls(segment)
        for part in PARTS:
            if state[part] is not None:
                setattr(made, part, _restored(part, state[part], form))
        length = 0 if form is None else form.observation_bytes
        for last in state["last"]:
            frame = array_of(last["frame"], "frame", (length,), np.uint8)
            if not isinstance(last["ended"], bool):
                raise ValueError(f"ended is {last['ended']!r}")
            made.last[naturals(last["env"])[0]] = frame.tobytes(), last["ended"], number(last["discount"])
        return made


def _restored(part: str, state: Mapping[str, Any], form: Form | None) -> Columns:
    """Columns that `Incoming.state_dict` returned, checked as if they were given for the first time."""
    if form is None:
        raise ValueError("there are rows and no form of a row")
    columns = {}
    for name in (*KINDS, *(("joined", "start") if part == "open" else ())):
        shape, dtype = form.column(name)
        columns[name] = array_of(state[name], name, (-1, *shape), dtype)
    if len({len(column) for column in columns.values()}) != 1 or not size(columns):
        raise ValueError("columns of waiting rows have several lengths, or none")
    _check_values("waiting rows", columns)
    return columns


def size(columns: Columns) -> int:
    return len(columns["env"]) if columns else 0


def taken(columns: Columns, rows: slice | np.ndarray) -> Columns:
    """The given rows of each column."""
    found = {name: column[rows] for name, column in columns.items()}
    return found if size(found) else {}


def concatenated(*pieces: Columns) -> Columns:
    """The rows of all pieces; a single piece is not copied."""
    some = [piece for piece in pieces if piece]
    if len(some) == 1:
        return some[0]
    return {name: np.concatenate([piece[name] for piece in some]) for name in (some[0] if some else ())}


def copied(columns: Columns) -> Columns:
    return {name: column.copy() for name, column in columns.items()}


def ranges(first: np.ndarray, length: np.ndarray) -> np.ndarray:
    """``first[0], first[0] + 1, …`` of ``length[0]`` numbers, then those of ``first[1]``, …."""
    made: np.ndarray = np.arange(length.sum()) + np.repeat(first - np.cumsum(length) + length, length)
    return made


def _changes(values: np.ndarray) -> np.ndarray:
    """Where a value is not the one before it; the first never is."""
    made = np.ones(len(values), np.bool_)
    made[1:] = values[1:] != values[:-1]
    return made


def _since(begins: np.ndarray) -> np.ndarray:
    """How many places after the last True each one is; the first is True."""
    place = np.arange(len(begins))
    made: np.ndarray = place - np.maximum.accumulate(np.where(begins, place, 0))
    return made


def _bytes(array: np.ndarray) -> np.ndarray:
    """The rows of ``array`` as bytes, (n, bytes of a row): -0.0 and 0.0 differ."""
    flat = np.ascontiguousarray(array).reshape(len(array), math.prod(array.shape[1:]))
    return flat.view(np.uint8)


def naturals(*values: Any) -> list[int]:
    """``values`` as ints; ValueError unless they are ints >= 0."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
            raise ValueError(f"{value!r} is no int >= 0")
    return [int(value) for value in values]


def number(value: Any) -> float:
    """``value`` as a float; ValueError unless it is a finite number."""
    kinds = (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)


def array_of(value: Any, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A copy of an array or tensor if it has ``shape`` (−1 for any) and ``dtype``; ValueError if not."""
    array = np.array(value.numpy(force=True) if isinstance(value, Tensor) else value)
    fits = array.ndim == len(shape) and all(b in (a, -1) for a, b in zip(array.shape, shape, strict=True))
    if not isinstance(value, np.ndarray | Tensor) or not fits or array.dtype != dtype:
        raise ValueError(f"{name} is {array.dtype} {array.shape}; expected {np.dtype(dtype)} {shape}")
    return array
