"""A bounded, reproducible sample of segments: uniform within strata, weights to undo them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from owlrl.memory._incoming import Columns, Form, array_of, naturals, number, ranges

STRATA = ("starts", "rare", "rest")
SHARES = (1, 1, 2)  # of the capacity, in this order
RARE = 10  # an uncommon reward is rare while at most one segment in ten has one
TERMINATED, TRUNCATED = 1, 2
MOVED = 4096  # positions moved at a time
TABLE: dict[str, Any] = {
    "key": np.float64,
    "start": np.int64,
    "length": np.int32,
    "env": np.int32,
    "discount": np.float32,
    "stratum": np.uint8,
}
SEGMENT_BYTES = 29 + 28  # of the table, and of what is derived from it for `Reservoir.gather`


def quotas(capacity: int, seen: Sequence[int] | np.ndarray) -> list[int]:
    """Rows that each stratum may keep: its share of the capacity, plus what others do not use.

    >>> quotas(400, [50, 20, 100]), quotas(400, [500, 500, 500]), quotas(400, [70, 0, 5000])
    ([50, 20, 100], [100, 100, 200], [70, 0, 330])
    """
    left, share = capacity, sum(SHARES)
    quota = [-1] * len(SHARES)
    satisfied = True
    while satisfied:
        part = [left * weight // max(share, 1) for weight in SHARES]
        satisfied = False
        for stratum, rows in enumerate(seen):
            if quota[stratum] < 0 and rows <= part[stratum]:
                quota[stratum], satisfied = int(rows), True
                left, share = left - quota[stratum], share - SHARES[stratum]
    return [rows if rows >= 0 else part[stratum] for stratum, rows in enumerate(quota)]


def majority_vote(common: float, votes: int, rewards: list[float]) -> tuple[float, int]:
    """The most common reward after some more (Boyer and Moore): right whenever it is more than half of all.

    >>> majority_vote(0.0, 1, [1.0, 1.0, 1.0])
    (1.0, 2)
    """
    if rewards.count(common) == len(rewards):
        return common, votes + len(rewards)
    for reward in rewards:
        if reward == common:
            votes += 1
        elif votes:
            votes -= 1
        else:
            common, votes = reward, 1
    return common, votes


class Reservoir:
    """Segments with the smallest random keys of each stratum, as many as its quota of rows holds.

    Each offered segment draws a key from [0, 1). A stratum keeps those below a threshold, which sinks
    until they fit: what is kept depends on what was offered and on the capacity, not on how the offers
    were batched or on when the capacity was lowered. Keys know nothing of the rows, so each segment is
    equally likely to be kept (but for the last place of a quota, which a long segment misses more often).

    A segment of n rows has n + 1 positions in the arrays: an observation that is one row's next and the
    next row's first is stored once.
    """

    def __init__(self, capacity: int, form: Form, rng: np.random.Generator) -> None:
        self.capacity = capacity
        self.form = form
        self.rng = rng
        self.seen, self.kept = np.zeros((2, len(STRATA)), np.int64)  # rows per stratum, offered and kept
        self._threshold = np.ones(len(STRATA))
        self._common, self._votes = 0.0, 0  # the most common reward, by `majority_vote`
        self._offered, self._uncommon = 0, 0  # segments, and those with an uncommon reward
        self._table = {name: np.zeros(0, dtype) for name, dtype in TABLE.items()}  # in order of arrival
        self._used = 0  # positions
        self._arrays = {name: np.zeros((0, *shape), dtype) for name, (shape, dtype) in self._layout()}
        self._derived: tuple[np.ndarray, ...] | None = None

    def _layout(self) -> list[tuple[str, tuple[tuple[int, ...], Any]]]:
        """Shape and dtype of what is stored at one position."""
        named = [(name, self.form.column(name)) for name in ("observation", "action", "reward")]
        return [*named, ("flags", ((), np.uint8))]

    @property
    def rows(self) -> int:
        return sum(self.kept.tolist())

    @property
    def _segments(self) -> int:
        return len(self._table["key"])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._arrays.values()) + self._segments * SEGMENT_BYTES

    def charge(self, *, settled: bool) -> int:
        """What `nbytes` is after `fit`, or stays below while rows come; a function of what is kept alone."""
        position, segments = self.form.position_bytes, self._segments
        needed = (self.rows + segments) * position + segments * SEGMENT_BYTES
        return needed if settled else needed * 13 // 10 + 64 * position

    def offer(self, columns: Columns, length: np.ndarray) -> bool:
        """Look at complete segments, rows one after the other, in order; whether the kept rows changed."""
        first = np.cumsum(length) - length
        stratum = self._strata(columns["reward"].tolist(), length.tolist(), columns["start"][first].tolist())
        key = self.rng.random(len(length))
        self.seen += _per_stratum(stratum, length)
        self._derived = None
        chosen = np.flatnonzero(key < self._threshold[stratum])
        if not len(chosen):
            return False
        new = {
            "key": key,
            "start": -1 - first,  # not stored yet: where it is in the columns given
            "length": length,
            "env": columns["env"][first],
            "discount": columns["discount"][first],
            "stratum": stratum,
        }
        self._table = {
            name: np.concatenate([old, new[name][chosen].astype(old.dtype)])
            for name, old in self._table.items()
        }
        self.kept += _per_stratum(stratum[chosen], length[chosen])
        evicted = self._evict()
        stored = self._store(columns)
        return evicted or stored

    def _strata(self, rewards: list[float], lengths: list[int], starts: list[bool]) -> np.ndarray:
        """The stratum of each segment (k,), decided by the rewards seen up to its end."""
        made = np.empty(len(lengths), np.uint8)
        begin = 0
        for place, length in enumerate(lengths):
            mine = rewards[begin : begin + length]
            begin += length
            self._common, self._votes = majority_vote(self._common, self._votes, mine)
            uncommon = mine.count(self._common) < length
            self._offered += 1
            self._uncommon += uncommon
            rare = uncommon and RARE * self._uncommon <= self._offered
            made[place] = 1 if rare else (0 if starts[place] else 2)
        return made

    def _evict(self) -> bool:
        """Drop the largest keys of each stratum until its rows fit its quota; whether any were stored."""
        keep = np.ones(self._segments, np.bool_)
        for stratum, quota in enumerate(quotas(self.capacity, self.seen)):
            if self.kept[stratum] <= quota:
                continue
            mine = np.flatnonzero(self._table["stratum"] == stratum)
            mine = mine[np.argsort(self._table["key"][mine])]
            total = np.cumsum(self._table["length"][mine])
            fits = int(np.searchsorted(total, quota, side="right"))
            self.kept[stratum] = total[fits - 1] if fits else 0
            self._threshold[stratum] = self._table["key"][mine[fits]]
            keep[mine[fits:]] = False
        if keep.all():
            return False
        stored = bool((self._table["start"][~keep] >= 0).any())
        self._table = {name: column[keep] for name, column in self._table.items()}
        self._derived = None
        return stored

    def _store(self, columns: Columns) -> bool:
        """Copy the rows of segments that are in the table and not in the arrays; whether there were any."""
        start = self._table["start"]
        new = np.flatnonzero(start < 0)
        if not len(new):
            return False
        first, length = -1 - start[new], self._table["length"][new].astype(np.int64)
        need = int((length + 1).sum())
        self._make_room(need)
        start[new] = self._used + np.cumsum(length + 1) - (length + 1)
        self._used += need
        rows, positions = ranges(first, length), ranges(start[new], length)
        for name in ("observation", "action", "reward"):
            self._arrays[name][positions] = columns[name][rows]
        flags = columns["terminated"][rows] * TERMINATED + columns["truncated"][rows] * TRUNCATED
        self._arrays["flags"][positions] = flags
        self._arrays["observation"][start[new] + length] = columns["next_observation"][first + length - 1]
        return True

    def _make_room(self, need: int) -> None:
        """Room for ``need`` more positions: by closing gaps where they are an eighth, else by growing."""
        size = len(self._arrays["reward"])
        if self._used + need <= size:
            return
        stored = self._table["start"] >= 0
        live = int(self._table["length"][stored].sum()) + int(stored.sum())
        if self._used - live >= size // 8:
            self._close_gaps()
        if self._used + need > size:
            self._resize((self._used + need) * 9 // 8 + 16)

    def _close_gaps(self) -> None:
        """Move the stored segments together, in their order."""
        table = self._table
        stored = np.flatnonzero(table["start"] >= 0)
        length = table["length"][stored].astype(np.int64) + 1
        positions = ranges(table["start"][stored], length)
        for array in self._arrays.values():
            # positions only sink, and in order: none is overwritten before it is read
            for low in range(0, len(positions), MOVED):
                array[low : min(low + MOVED, len(positions))] = array[positions[low : low + MOVED]]
        table["start"][stored] = np.cumsum(length) - length
        self._used = len(positions)
        self._derived = None

    def _resize(self, size: int) -> None:
        for array in self._arrays.values():
            # no view of them is ever given away
            array.resize((size, *array.shape[1:]), refcheck=False)

    def fit(self) -> None:
        """Give back what is not needed for the rows kept."""
        if len(self._arrays["reward"]) != self.rows + self._segments:
            self._close_gaps()
            self._resize(self._used)

    def thin(self, capacity: int) -> bool:
        """Keep at most ``capacity`` rows from now on; whether rows were dropped."""
        self.capacity = capacity
        evicted = self._evict()
        self.fit()
        return evicted

    def _lookup(self) -> tuple[np.ndarray, ...]:
        """Per segment: number of its first row, what takes a number to a position, env; per stratum: weight.

        The weight is rows seen over rows kept, scaled so that all kept rows have mean 1.
        """
        if self._derived is None:
            first = np.concatenate([[0], np.cumsum(self._table["length"], dtype=np.int64)[:-1]])
            # a stratum whose quota is smaller than any of its segments keeps none, and gets no weight
            seen = np.where(self.kept == 0, 0, self.seen).astype(np.float64)
            scale = self.kept.sum() / max(seen.sum(), 1.0)
            weight = (scale * seen / np.maximum(self.kept, 1)).astype(np.float32)
            shift, env = self._table["start"] - first[: self._segments], self._table["env"].astype(np.int64)
            self._derived = first, shift, env, weight
        return self._derived

    def gather(self, index: np.ndarray) -> Columns:
        """Rows by their numbers, (B,) int64 from 0 to ``rows`` − 1, with their weights."""
        first, shift, env, weight = self._lookup()
        segment = first.searchsorted(index, "right") - 1
        position = index + shift.take(segment)
        arrays, table = self._arrays, self._table
        flags = arrays["flags"].take(position)
        return {
            "observation": arrays["observation"].take(position, 0),
            "action": arrays["action"].take(position, 0),
            "reward": arrays["reward"].take(position),
            "next_observation": arrays["observation"].take(position + 1, 0),
            "terminated": (flags & TERMINATED).view(np.bool_),
            "discount": table["discount"].take(segment),
            "weight": weight.take(table["stratum"].take(segment)),
            "truncated": (flags >> 1).view(np.bool_),
            "env": env.take(segment),
        }

    def previous(self, index: np.ndarray) -> np.ndarray:
        """The number of the row before each, −1 where it is not kept."""
        first = self._lookup()[0]
        begins = first.take(first.searchsorted(index, "right") - 1)
        return np.where(index > begins, index - 1, -1)

    def state_dict(self) -> dict[str, Any]:
        """The rows without gaps, and everything that decides what comes and goes."""
        table = self._table
        positions = ranges(table["start"], table["length"].astype(np.int64) + 1)
        return {
            "capacity": self.capacity,
            "seen": self.seen.tolist(),
            "threshold": self._threshold.copy(),
            "common": [self._common, self._votes, self._offered, self._uncommon],
            "segments": {name: table[name].copy() for name in table if name != "start"},
            "rows": {name: array[positions] for name, array in self._arrays.items()},
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], form: Form, segment: int, rng: np.random.Generator
    ) -> Reservoir:
        """What `state_dict` returned; an error if it is damaged."""
        made = cls(naturals(state["capacity"])[0], form, rng)
        made.seen = array_of(np.array(naturals(*state["seen"])), "seen", (len(STRATA),), np.int64)
        made._threshold = array_of(state["threshold"], "threshold", (len(STRATA),), np.float64)
        common, *counts = state["common"]
        made._common = number(common)
        made._votes, made._offered, made._uncommon = naturals(*counts)
        given, table = state["segments"], made._table
        for name, dtype in TABLE.items():
            if name != "start":
                table[name] = array_of(given[name], name, (len(given["key"]),), dtype)
        length = table["length"].astype(np.int64) + 1
        made._used = int(length.sum())
        table["start"] = np.cumsum(length) - length
        for name, (shape, dtype) in made._layout():
            made._arrays[name] = array_of(state["rows"][name], name, (made._used, *shape), dtype)
        made._check(segment)
        return made

    def _check(self, segment: int) -> None:
        """ValueError unless the numbers are such as a reservoir can have; counts the rows kept."""
        table, arrays = self._table, self._arrays
        length, stratum = table["length"], table["stratum"]
        if ((length < 1) | (length > segment) | (stratum >= len(STRATA)) | (table["env"] < 0)).any():
            raise ValueError(f"a segment has other than 1 to {segment} rows, or no stratum or environment")
        self.kept = _per_stratum(stratum, length)
        quota = quotas(self.capacity, self.seen)
        if (self.kept > quota).any():
            raise ValueError(f"{self.kept} rows are kept; expected at most {quota}")
        if not ((table["key"] >= 0) & (table["key"] < self._threshold[stratum])).all():
            raise ValueError("a segment's key is not below the threshold of its stratum")
        if not all(np.isfinite(array).all() for array in (*arrays.values(), table["discount"])):
            raise ValueError("a number is not finite")
        if (arrays["flags"] > TERMINATED + TRUNCATED).any():
            raise ValueError("flags hold other values than those of terminated and truncated")


def _per_stratum(stratum: np.ndarray, length: np.ndarray) -> np.ndarray:
    return np.bincount(stratum, length, len(STRATA)).astype(np.int64)
