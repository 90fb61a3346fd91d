"""Rows on their way into a memory: checked, held in quarantine, cut into segments."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from owlrl.errors import NonFiniteError, OwlTypeError, raise_problems
from owlrl.types import Transitions

__all__ = ["Columns", "Form", "Incoming", "Segments", "checked_rows", "in_time_order", "taken"]

Columns = dict[str, np.ndarray]  # one array per field, all of the same length

MAX_ENV = 2**31
REAL = (int, float, np.integer, np.floating)


@dataclass(frozen=True)
class Form:
    """Shapes and dtypes of one observation and one action.

    >>> import numpy as np
    >>> from owlrl.memory.incoming import Form
    >>> Form((4,), np.dtype("float32"), (), np.dtype("int64")).row_bytes
    61
    """

    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]

    @property
    def observation_bytes(self) -> int:
        """Bytes of one observation."""
        return math.prod(self.observation_shape) * self.observation_dtype.itemsize

    @property
    def action_bytes(self) -> int:
        """Bytes of one action."""
        return math.prod(self.action_shape) * self.action_dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on its way in."""
        return 2 * self.observation_bytes + self.action_bytes + 21

    def state_dict(self) -> dict[str, Any]:
        """The form as lists and strings."""
        return {
            "observation_shape": list(self.observation_shape),
            "observation_dtype": self.observation_dtype.name,
            "action_shape": list(self.action_shape),
            "action_dtype": self.action_dtype.name,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Form:
        """What `state_dict` gave; ValueError if it is no form of a row."""
        dtypes = [np.dtype(str(state[f"{name}_dtype"])) for name in ("observation", "action")]
        shapes = [tuple(map(natural, state[f"{name}_shape"])) for name in ("observation", "action")]
        if any(dtype.kind not in "biuf" for dtype in dtypes):
            raise ValueError(f"the form of a row is {dict(state)!r}")
        return cls(shapes[0], dtypes[0], shapes[1], dtypes[1])


def checked_rows(where: str, rows: object, form: Form | None) -> tuple[Columns, Form]:
    """The columns of ``rows`` as arrays of our own and their form, or one error naming what is wrong.

    >>> import torch
    >>> from owlrl.memory.incoming import checked_rows
    >>> from owlrl.types import Transitions
    >>> two = torch.zeros(2)
    >>> rows = Transitions(torch.zeros(2, 3), two.long(), two, torch.ones(2, 3), two.bool(), two)
    >>> columns, form = checked_rows("add", rows, None)
    >>> form.observation_shape, columns["truncated"].tolist()
    ((3,), [False, False])
    """
    if not isinstance(rows, Transitions):
        raise OwlTypeError(f"{where}: rows is a {type(rows).__name__}; expected owlrl.types.Transitions")
    problems: list[str] = []
    columns: Columns = {}
    if not isinstance(rows.reward, Tensor) or rows.reward.ndim != 1:
        got = tuple(rows.reward.shape) if isinstance(rows.reward, Tensor) else type(rows.reward).__name__
        raise_problems(where, [f"reward is {got}; expected a tensor (B,), one value per row"])
    count = rows.reward.shape[0]
    for name in ("observation", "action", "next_observation"):
        _put(columns, name, getattr(rows, name), count, None, problems)
    for name in ("reward", "discount"):
        _put(columns, name, getattr(rows, name), count, "f", problems)
    for name in ("terminated", "truncated"):
        if name == "terminated" or rows.truncated is not None:
            _put(columns, name, getattr(rows, name), count, "b", problems)
        else:
            columns[name] = np.zeros(count, np.bool_)
    columns["known"] = np.full(count, rows.truncated is not None)
    if rows.env is None:
        columns["env"] = np.zeros(count, np.int64)
    else:
        _put(columns, "env", rows.env, count, "iu", problems)
    raise_problems(where, problems)
    with np.errstate(over="ignore"):  # found below
        for name in ("reward", "discount"):
            columns[name] = columns[name].astype(np.float32, copy=False)
    columns["env"] = columns["env"].astype(np.int64, copy=False)
    found = _form(where, columns, form)
    _check_values(where, columns)
    return columns, found


def _put(
    columns: Columns, name: str, value: object, count: int, kinds: str | None, problems: list[str]
) -> None:
    """Put a copy of ``value`` to ``columns``; with ``kinds`` it is one value of such a dtype per row."""
    if not isinstance(value, Tensor):
        problems.append(f"{name} is a {type(value).__name__}; expected a tensor")
        return
    if kinds is not None and value.ndim != 1:
        problems.append(f"{name} has shape {tuple(value.shape)}; expected one value per row, ({count},)")
        return
    if value.ndim == 0 or value.shape[0] != count:
        got = "no axis of rows" if value.ndim == 0 else f"{len(value)} rows"
        problems.append(f"{name} has {got}; expected {count}, as reward has")
        return
    try:
        array = np.array(value.numpy(force=True))
    except TypeError:  # a dtype that numpy does not know
        array = np.zeros(0, np.object_)
    if array.dtype.kind not in (kinds or "biuf"):
        expected = {"b": "bool", "f": "floating numbers", "iu": "integers", None: "bools or numbers of numpy"}
        problems.append(f"{name} has dtype {value.dtype}; expected {expected[kinds]}")
        return
    columns[name] = array


def _form(where: str, columns: Columns, known: Form | None) -> Form:
    """The form of ``columns``; an error unless it is ``known`` and the same before and after a step."""
    observation, action = columns["observation"], columns["action"]
    form = Form(observation.shape[1:], observation.dtype, action.shape[1:], action.dtype)
    expected = form if known is None else known
    problems = []
    for name in ("observation", "action", "next_observation"):
        array = columns[name]
        is_action = name == "action"
        shape = expected.action_shape if is_action else expected.observation_shape
        dtype = expected.action_dtype if is_action else expected.observation_dtype
        if array.shape[1:] != shape or array.dtype != dtype:
            source = "as observation has" if known is None else "as in this task's earlier rows"
            problems.append(
                f"{name} is {array.dtype} {array.shape[1:]} in each row; expected {dtype} {shape}, {source}"
            )
    if problems and known is not None:
        problems[-1] += "; a task has one form of rows: give these to another task, or forget this one first"
    raise_problems(where, problems)
    return form


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

    >>> import numpy as np
    >>> from owlrl.memory.incoming import in_time_order
    >>> in_time_order({"env": np.array([3, 3, 5, 5]), "reward": np.array([0., 1., 2., 3.])})["reward"]
    array([0., 2., 1., 3.])
    """
    env = columns["env"]
    if not len(env) or np.count_nonzero(env == env[0]) == len(env):
        return columns
    order = np.argsort(env, kind="stable")
    place = np.arange(len(env))
    begins = np.concatenate([[True], env[order][1:] != env[order][:-1]])
    rank = np.empty_like(place)
    rank[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return taken(columns, np.argsort(rank, kind="stable"))


def taken(columns: Columns, rows: slice | np.ndarray) -> Columns:
    """The given rows of each column.

    >>> import numpy as np
    >>> from owlrl.memory.incoming import taken
    >>> taken({"reward": np.array([1.0, 2.0])}, slice(1, 2))
    {'reward': array([2.])}
    """
    return {name: column[rows] for name, column in columns.items()}


@dataclass(frozen=True)
class Segments:
    """Complete segments: ``columns[rows]`` are their rows one after the other, ``length`` of each.

    >>> import numpy as np
    >>> from owlrl.memory.incoming import Segments
    >>> Segments({}, np.array([1, 2, 0]), np.array([2, 1])).first
    array([0, 2])
    """

    columns: Columns
    rows: np.ndarray
    length: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """Where each segment begins in ``rows``."""
        first: np.ndarray = np.cumsum(self.length) - self.length
        return first


class Incoming:
    """Quarantine and open segments of one memory.

    The newest rows wait in quarantine and can be taken back. Older ones are cut into segments: up to
    ``segment`` steps of one environment, each row's next observation being the following row's
    observation, ended by the end of the episode.

    >>> import torch
    >>> from owlrl.memory.incoming import Incoming, checked_rows
    >>> from owlrl.types import Transitions
    >>> x = torch.arange(6.0)
    >>> rows = Transitions(x, x.long(), x, x + 1, x == 3, torch.ones(6))
    >>> incoming = Incoming(segment=3)
    >>> incoming.add(checked_rows("add", rows, None)[0])
    >>> incoming.release(0)
    >>> incoming.cut().length, incoming.rows
    (array([3, 1]), 2)
    """

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.quarantined = 0
        self._queue: deque[Columns] = deque()  # in quarantine, oldest first
        self._released: list[Columns] = []  # out of quarantine, not looked at
        self._fresh = 0  # rows of those
        self._open: Columns | None = None  # rows of segments that are not complete
        # per environment, of its newest row: its next observation, whether it ended the episode, its discount
        self._last: dict[int, tuple[bytes, bool, float]] = {}

    @property
    def rows(self) -> int:
        """Rows that are here."""
        return self.quarantined + self._fresh + (0 if self._open is None else len(self._open["reward"]))

    @property
    def envs(self) -> int:
        """Environments whose newest row is remembered."""
        return len(self._last)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows here."""
        pieces = [*self._queue, *self._released, self._open or {}]
        of_rows = sum(array.nbytes for piece in pieces for array in piece.values())
        return of_rows + sum(len(frame) for frame, _, _ in self._last.values())

    @property
    def ready(self) -> bool:
        """Whether enough came since the last cut for another to be worth its time."""
        return self._fresh >= 8 * self.segment

    def add(self, columns: Columns) -> None:
        """Put rows, which are not none, into quarantine."""
        self._queue.append(columns)
        self.quarantined += len(columns["reward"])

    def release(self, quarantine: int) -> None:
        """Let the oldest rows out of quarantine until ``quarantine`` are left."""
        while self.quarantined > quarantine:
            piece = self._queue.popleft()
            count = len(piece["reward"])
            out = min(count, self.quarantined - quarantine)
            if out < count:
                self._queue.appendleft(taken(piece, slice(out, None)))
                piece = taken(piece, slice(out))
            self._released.append(piece)
            self.quarantined -= out
            self._fresh += out

    def take_back(self, count: int) -> Columns:
        """The newest ``count`` rows of the quarantine, oldest first; they are not here any more."""
        self.quarantined -= count
        pieces: list[Columns] = []
        while count:
            piece = self._queue.pop()
            rows = len(piece["reward"])
            if rows > count:
                self._queue.append(taken(piece, slice(rows - count)))
                piece = taken(piece, slice(rows - count, None))
            pieces.insert(0, piece)
            count -= len(piece["reward"])
        return _concatenated(pieces)

    def _linked(self, columns: Columns) -> Columns:
        """``columns`` and: does a row follow its environment's last one, does it start an episode."""
        env, count = columns["env"], len(columns["env"])
        order = np.argsort(env, kind="stable")
        observation, after = columns["observation"][order], columns["next_observation"][order]
        ended = (columns["terminated"] | columns["truncated"])[order]
        discount, env = columns["discount"][order], env[order]
        same, like, was_ended, unseen, begins = np.zeros((5, count), np.bool_)
        same[1:] = (_bytes(observation[1:]) == _bytes(after[:-1])).all(axis=1)
        like[1:] = discount[1:] == discount[:-1]
        was_ended[1:] = ended[:-1]
        begins[0], begins[1:] = True, env[1:] != env[:-1]
        first = np.flatnonzero(begins)
        for row in first.tolist():
            last = self._last.get(int(env[row]))
            if last is None:
                unseen[row] = True
            else:
                same[row] = observation[row].tobytes() == last[0]
                was_ended[row], like[row] = last[1], last[2] == discount[row]
        for row in (*(first[1:] - 1).tolist(), count - 1):
            self._last[int(env[row])] = after[row].tobytes(), bool(ended[row]), float(discount[row])
        joined, start = np.empty((2, count), np.bool_)
        joined[order] = same & like & ~was_ended & ~unseen
        # where the source does not tell truncation, a jump to another observation is one
        start[order] = unseen | was_ended | ~(same | columns["known"][order])
        return {**columns, "joined": joined, "start": start}

    def cut(self, *, close: bool = False) -> Segments | None:
        """The segments that are complete, oldest first, or with ``close`` all; None if there are none."""
        pieces = [] if self._open is None else [self._open]
        if self._released:
            pieces.append(self._linked(_concatenated(self._released)))
        if not pieces:
            return None
        self._released, self._fresh = [], 0
        columns = _concatenated(pieces)
        env = columns["env"]
        order = np.argsort(env, kind="stable")
        place = np.arange(len(order))
        other = np.ones(len(order), np.bool_)
        other[1:] = env[order[1:]] != env[order[:-1]]
        # an environment's first row here is the first of its open segment
        run = other | ~columns["joined"][order]
        within = place - np.maximum.accumulate(np.where(run, place, 0))
        first = np.flatnonzero(within % self.segment == 0)
        length = np.diff(np.append(first, len(order)))
        last = first + length - 1
        ended = (columns["terminated"] | columns["truncated"])[order[last]]
        whole = (length == self.segment) | ended
        # cut off: a row of the same environment came that does not follow
        cut_off = ~whole
        cut_off[-1] = False
        cut_off[:-1] &= ~other[first[1:]]
        # when each was complete: with its last row, or with the row that does not follow
        moment = np.where(whole, 2 * order[last] + 1, 2 * len(order))
        moment[cut_off] = 2 * order[last[cut_off] + 1]
        chosen = place[: len(first)] if close else np.flatnonzero(whole | cut_off)
        chosen = chosen[np.argsort(moment[chosen], kind="stable")]
        rows = order[ranges(first[chosen], length[chosen])]
        left = np.ones(len(order), np.bool_)
        left[rows] = False
        self._open = taken(columns, left) if left.any() else None
        return Segments(columns, rows, length[chosen]) if len(chosen) else None

    def leave(self) -> None:
        """Forget what the environments showed last: their next rows are another visit's."""
        self._last.clear()

    def state_dict(self) -> dict[str, Any]:
        """All rows here, and the end of each environment's newest row."""
        return {
            "queue": _concatenated(self._queue) if self._queue else None,
            "released": _concatenated(self._released) if self._released else None,
            "open": None if self._open is None else {name: a.copy() for name, a in self._open.items()},
            "last": [
                {"env": env, "frame": np.frombuffer(frame, np.uint8).copy(), "ended": end, "discount": factor}
                for env, (frame, end, factor) in self._last.items()
            ],
        }

    @classmethod
    def from_state(cls, segment: int, state: Mapping[str, Any], form: Form | None) -> Incoming:
        """What `state_dict` gave; KeyError, TypeError or ValueError where it is damaged."""
        made = cls(segment)
        if state["queue"] is not None:
            made.add(_restored(state["queue"], form))
        if state["released"] is not None:
            made._released = [_restored(state["released"], form)]
            made._fresh = len(made._released[0]["reward"])
        if state["open"] is not None:
            made._open = _restored(state["open"], form, "joined", "start")
        for last in state["last"]:
            frame = array_of(
                last["frame"], "frame", (0 if form is None else form.observation_bytes,), np.uint8
            )
            if not isinstance(last["ended"], bool):
                raise ValueError(f"ended is {last['ended']!r}")
            made._last[natural(last["env"])] = frame.tobytes(), last["ended"], number(last["discount"])
        return made


def ranges(first: np.ndarray, length: np.ndarray) -> np.ndarray:
    """``first[0], first[0] + 1, …`` of ``length[0]`` numbers, then those of ``first[1]``, ….

    >>> import numpy as np
    >>> from owlrl.memory.incoming import ranges
    >>> ranges(np.array([5, 0]), np.array([2, 3]))
    array([5, 6, 0, 1, 2])
    """
    ends = np.cumsum(length)
    total = int(ends[-1]) if len(ends) else 0
    made: np.ndarray = np.arange(total) + np.repeat(first - ends + length, length)
    return made


def natural(value: Any) -> int:
    """``value`` if it is an int >= 0; ValueError if not.

    >>> from owlrl.memory.incoming import natural
    >>> natural(3)
    3
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ValueError(f"{value!r} is no int >= 0")
    return int(value)


def number(value: Any) -> float:
    """``value`` if it is a finite number; ValueError if not.

    >>> from owlrl.memory.incoming import number
    >>> number(0.5)
    0.5
    """
    if isinstance(value, bool) or not isinstance(value, REAL) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _bytes(array: np.ndarray) -> np.ndarray:
    """The rows of ``array`` as bytes, (n, bytes of a row): -0.0 and 0.0 are told apart."""
    flat = np.ascontiguousarray(array).reshape(len(array), math.prod(array.shape[1:]))
    return flat.view(np.uint8)


def _concatenated(pieces: Iterable[Columns]) -> Columns:
    pieces = list(pieces)
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _restored(state: Mapping[str, Any], form: Form | None, *more: str) -> Columns:
    """Columns that `Incoming.state_dict` gave, checked as if they were given for the first time."""
    if form is None:
        raise ValueError("there are rows and no form of a row")
    one: dict[str, tuple[tuple[int, ...], Any]] = {
        "observation": (form.observation_shape, form.observation_dtype),
        "next_observation": (form.observation_shape, form.observation_dtype),
        "action": (form.action_shape, form.action_dtype),
        "reward": ((), np.float32),
        "discount": ((), np.float32),
        "terminated": ((), np.bool_),
        "truncated": ((), np.bool_),
        "env": ((), np.int64),
        "known": ((), np.bool_),
        **dict.fromkeys(more, ((), np.bool_)),
    }
    columns = {name: array_of(state[name], name, (-1, *shape), dtype) for name, (shape, dtype) in one.items()}
    if len({len(column) for column in columns.values()}) != 1 or not len(columns["reward"]):
        raise ValueError("columns of waiting rows have several lengths, or none")
    _check_values("waiting rows", columns)
    return columns


def array_of(value: Any, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A copy of an array or tensor if it has ``shape`` (−1 for any) and ``dtype``; ValueError if not.

    >>> import numpy as np
    >>> from owlrl.memory.incoming import array_of
    >>> array_of(np.ones(2), "key", (-1,), np.float64)
    array([1., 1.])
    """
    array = np.array(value.numpy(force=True) if isinstance(value, Tensor) else value)
    fits = array.ndim == len(shape) and all(
        have == want or want < 0 for have, want in zip(array.shape, shape, strict=True)
    )
    if not isinstance(value, np.ndarray | Tensor) or not fits or array.dtype != dtype:
        raise ValueError(f"{name} is {array.dtype} {array.shape}; expected {np.dtype(dtype)} {shape}")
    return array
