"""A bounded, reproducible sample of segments: uniform within strata, weights to undo them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from owlrl.memory.incoming import Form, Segments, array_of, natural, number, ranges

__all__ = ["STRATA", "Found", "Reservoir", "quotas"]

STRATA = ("starts", "rare", "rest")
SHARES = (1, 1, 2)  # of the capacity, in this order
RARE = 10  # an uncommon reward is rare while at most one segment in ten has one
TERMINATED, TRUNCATED = 1, 2
MOVED = 4096  # positions moved at a time
_TABLE: dict[str, Any] = {
    "key": np.float64,
    "start": np.int64,
    "length": np.int32,
    "env": np.int32,
    "discount": np.float32,
    "stratum": np.uint8,
}
_SEGMENT_BYTES = 29 + 28  # of the table, and of what is derived from it for `Reservoir.gather`


def quotas(capacity: int, seen: Sequence[int]) -> list[int]:
    """Rows that each stratum may keep: its share of the capacity, and what others leave of theirs.

    >>> from owlrl.memory.reservoir import quotas
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


class Found(NamedTuple):
    """Gathered rows: arrays (B, ...), raw.

    >>> from owlrl.memory.reservoir import Found
    >>> Found._fields[:3]
    ('observation', 'action', 'reward')
    """

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    terminated: np.ndarray
    discount: np.ndarray
    weight: np.ndarray
    truncated: np.ndarray
    env: np.ndarray


class Lookup(NamedTuple):
    """Of each segment: its first row's number, what takes a row's number to its position, its columns."""

    first: np.ndarray
    shift: np.ndarray
    discount: np.ndarray
    env: np.ndarray
    stratum: np.ndarray


class Reservoir:
    """Segments with the smallest random keys of each stratum, as many as its quota of rows holds.

    Each offered segment draws a key from [0, 1). A stratum keeps those below a threshold, which sinks
    until they fit: what is kept depends on what was offered and on the capacity, not on how the offers
    were batched or on when the capacity was lowered. Keys know nothing of the rows, so each segment is
    equally likely to be kept (but for the last place of a quota, which a long segment misses more often).

    A segment of n rows has n + 1 positions in the arrays: an observation that is one row's next and the
    next row's first is stored once.

    >>> import numpy as np
    >>> from owlrl.memory.incoming import Form
    >>> from owlrl.memory.reservoir import Reservoir
    >>> form = Form((4,), np.dtype("float32"), (), np.dtype("int64"))
    >>> Reservoir(100, form, np.random.default_rng(0)).rows
    0
    """

    def __init__(self, capacity: int, form: Form, rng: np.random.Generator) -> None:
        self.capacity = capacity
        self.form = form
        self.rng = rng
        self.seen = [0, 0, 0]  # rows offered, per stratum
        self.kept = [0, 0, 0]  # rows kept
        self._threshold = np.ones(len(STRATA))
        # the most common reward by majority vote (Boyer and Moore): right whenever it is more than half
        self._common, self._votes = 0.0, 0
        self._offered, self._uncommon = 0, 0  # segments, and those with an uncommon reward
        self._table = {name: np.zeros(0, dtype) for name, dtype in _TABLE.items()}  # in order of arrival
        self._used = 0
        self._arrays = {name: np.zeros((0, *shape), dtype) for name, (shape, dtype) in _layout(form).items()}
        self._lookup: Lookup | None = None
        self._weights: np.ndarray | None = None

    @property
    def rows(self) -> int:
        """Rows kept."""
        return sum(self.kept)

    @property
    def segments(self) -> int:
        """Segments kept."""
        return len(self._table["key"])

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self._arrays.values()) + self.segments * _SEGMENT_BYTES

    @property
    def bytes_needed(self) -> int:
        """What `nbytes` is after `fit`."""
        return (self.rows + self.segments) * self._position_bytes + self.segments * _SEGMENT_BYTES

    @property
    def bytes_at_most(self) -> int:
        """What `nbytes` stays below while rows come; a function of what is kept alone."""
        return self.bytes_needed * 13 // 10 + 64 * self._position_bytes

    @property
    def _position_bytes(self) -> int:
        return self.form.observation_bytes + self.form.action_bytes + 5

    def offer(self, segments: Segments) -> bool:
        """Look at complete segments, in order; whether the kept rows changed."""
        length = segments.length
        first_rows = segments.rows[segments.first]
        stratum = self._strata(
            segments.columns["reward"][segments.rows].tolist(),
            length.tolist(),
            segments.columns["start"][first_rows].tolist(),
        )
        key = self.rng.random(len(length))
        for place, rows in zip(stratum.tolist(), length.tolist(), strict=True):
            self.seen[place] += rows
        self._weights = None
        chosen = np.flatnonzero(key < self._threshold[stratum])
        if not len(chosen):
            return False
        new = {
            "key": key[chosen],
            "start": -1 - segments.first[chosen],  # not stored yet: where it is in the segments given
            "length": length[chosen],
            "env": segments.columns["env"][first_rows[chosen]],
            "discount": segments.columns["discount"][first_rows[chosen]],
            "stratum": stratum[chosen],
        }
        self._table = {
            name: np.concatenate([old, new[name].astype(old.dtype, copy=False)])
            for name, old in self._table.items()
        }
        self._lookup = None
        for place, rows in zip(stratum[chosen].tolist(), length[chosen].tolist(), strict=True):
            self.kept[place] += rows
        evicted = self._evict()
        stored = self._store(segments)
        return evicted or stored

    def _strata(self, rewards: list[float], lengths: list[int], starts: list[bool]) -> np.ndarray:
        """The stratum of each segment (k,), decided by the rewards seen up to its end."""
        made = np.empty(len(lengths), np.uint8)
        begin = 0
        for place, length in enumerate(lengths):
            mine = rewards[begin : begin + length]
            begin += length
            common, votes = self._common, self._votes
            if mine.count(common) == length:
                votes += length
            else:
                for reward in mine:
                    if reward == common:
                        votes += 1
                    elif votes:
                        votes -= 1
                    else:
                        common, votes = reward, 1
            self._common, self._votes = common, votes
            uncommon = mine.count(common) < length
            self._offered += 1
            self._uncommon += uncommon
            rare = uncommon and RARE * self._uncommon <= self._offered
            made[place] = 1 if rare else (0 if starts[place] else 2)
        return made

    def _evict(self) -> bool:
        """Drop the largest keys of each stratum until its rows fit its quota; whether any were stored."""
        keep = np.ones(self.segments, np.bool_)
        for stratum, quota in enumerate(quotas(self.capacity, self.seen)):
            if self.kept[stratum] <= quota:
                continue
            mine = np.flatnonzero(self._table["stratum"] == stratum)
            mine = mine[np.argsort(self._table["key"][mine])]
            total = np.cumsum(self._table["length"][mine])
            fits = int(np.searchsorted(total, quota, side="right"))
            self.kept[stratum] = int(total[fits - 1]) if fits else 0
            self._threshold[stratum] = self._table["key"][mine[fits]]
            keep[mine[fits:]] = False
        if keep.all():
            return False
        stored = bool((self._table["start"][~keep] >= 0).any())
        self._table = {name: column[keep] for name, column in self._table.items()}
        self._lookup = self._weights = None
        return stored

    def _store(self, segments: Segments) -> bool:
        """Copy the rows of segments that are in the table and not in the arrays; whether there were any."""
        start = self._table["start"]
        new = np.flatnonzero(start < 0)
        if not len(new):
            return False
        first, length = -1 - start[new], self._table["length"][new].astype(np.int64)
        self._make_room(int((length + 1).sum()))
        start[new] = self._used + np.cumsum(length + 1) - (length + 1)
        rows = segments.rows[ranges(first, length)]
        last = segments.rows[first + length - 1]
        positions = ranges(start[new], length)
        columns, arrays = segments.columns, self._arrays
        for name in ("observation", "action", "reward"):
            arrays[name][positions] = columns[name][rows]
        arrays["flags"][positions] = (
            columns["terminated"][rows] * TERMINATED + columns["truncated"][rows] * TRUNCATED
        )
        arrays["observation"][start[new] + length] = columns["next_observation"][last]
        self._used += int((length + 1).sum())
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
        self._lookup = None

    def _resize(self, size: int) -> None:
        for array in self._arrays.values():
            # no view of them is ever given away
            array.resize((size, *array.shape[1:]), refcheck=False)

    def fit(self) -> None:
        """Give back what is not needed for the rows kept."""
        if len(self._arrays["reward"]) != self.rows + self.segments:
            self._close_gaps()
            self._resize(self._used)

    def thin(self, capacity: int) -> bool:
        """Keep at most ``capacity`` rows from now on; whether rows went."""
        self.capacity = capacity
        evicted = self._evict()
        self.fit()
        return evicted

    def _table_lookup(self) -> Lookup:
        if self._lookup is None:
            table = self._table
            first = np.concatenate([[0], np.cumsum(table["length"], dtype=np.int64)])
            # one more entry, for numbers outside: a position that is nowhere
            shift = np.append(table["start"] - first[:-1], np.iinfo(np.int64).max // 2)
            env = table["env"].astype(np.int64)
            self._lookup = Lookup(first, shift, table["discount"], env, table["stratum"])
        return self._lookup

    def _stratum_weights(self) -> np.ndarray:
        """Of a row of each stratum: rows seen over rows kept, scaled so that all kept rows have mean 1."""
        if self._weights is None:
            kept, seen = np.array(self.kept, np.float64), np.array(self.seen, np.float64)
            # a stratum whose quota is smaller than any of its segments has none, and no say
            seen[kept == 0] = 0.0
            scale = kept.sum() / max(seen.sum(), 1.0)
            self._weights = (scale * seen / np.maximum(kept, 1.0)).astype(np.float32)
        return self._weights

    def gather(self, index: np.ndarray) -> Found:
        """Rows by their numbers, (B,) int64; IndexError where one is not from 0 to ``rows`` − 1."""
        lookup = self._lookup or self._table_lookup()
        segment = lookup.first.searchsorted(index, "right") - 1
        position = index + lookup.shift.take(segment)
        arrays = self._arrays
        observation = arrays["observation"]
        flags = arrays["flags"].take(position)
        stratum = lookup.stratum.take(segment)
        return Found(
            observation.take(position, 0),
            arrays["action"].take(position, 0),
            arrays["reward"].take(position),
            observation.take(position + 1, 0),
            (flags & TERMINATED).view(np.bool_),
            lookup.discount.take(segment),
            self._stratum_weights().take(stratum),
            (flags >> 1).view(np.bool_),
            lookup.env.take(segment),
        )

    def previous(self, index: np.ndarray) -> np.ndarray:
        """The number of the row before each, −1 where it is not kept."""
        first = self._table_lookup().first
        begins = first.take(first.searchsorted(index, "right") - 1)
        return np.where(index > begins, index - 1, -1)

    def state_dict(self) -> dict[str, Any]:
        """The rows without gaps, and everything that decides what comes and goes."""
        table = self._table
        positions = ranges(table["start"], table["length"].astype(np.int64) + 1)
        return {
            "capacity": self.capacity,
            "seen": list(self.seen),
            "threshold": self._threshold.copy(),
            "common": [self._common, self._votes, self._offered, self._uncommon],
            "segments": {name: table[name].copy() for name in table if name != "start"},
            "rows": {name: array[positions] for name, array in self._arrays.items()},
        }

    @classmethod
    def from_state(
        cls, state: Mapping[str, Any], form: Form, segment: int, rng: np.random.Generator
    ) -> Reservoir:
        """What `state_dict` gave; KeyError, TypeError or ValueError where it is damaged."""
        made = cls(natural(state["capacity"]), form, rng)
        made.seen = [natural(rows) for rows in state["seen"]]
        made._threshold = array_of(state["threshold"], "threshold", (len(STRATA),), np.float64)
        common, *counts = state["common"]
        made._common = number(common)
        made._votes, made._offered, made._uncommon = (natural(count) for count in counts)
        given = state["segments"]
        for name, dtype in _TABLE.items():
            if name != "start":
                made._table[name] = array_of(given[name], name, (len(given["key"]),), dtype)
        length = made._table["length"].astype(np.int64) + 1
        made._used = int(length.sum())
        made._table["start"] = np.cumsum(length) - length
        for name, (shape, dtype) in _layout(form).items():
            made._arrays[name] = array_of(state["rows"][name], name, (made._used, *shape), dtype)
        made._check(segment)
        return made

    def _check(self, segment: int) -> None:
        """ValueError unless the numbers are such as a reservoir can have."""
        table = self._table
        length, stratum = table["length"], table["stratum"]
        if ((length < 1) | (length > segment) | (stratum >= len(STRATA)) | (table["env"] < 0)).any():
            raise ValueError(f"a segment has other than 1 to {segment} rows, or no stratum or environment")
        self.kept = np.bincount(stratum, length, len(STRATA)).astype(np.int64).tolist()
        quota = quotas(self.capacity, self.seen)
        if any(kept > most for kept, most in zip(self.kept, quota, strict=True)):
            raise ValueError(f"{self.kept} rows are kept; expected at most {quota}")
        if not ((table["key"] >= 0) & (table["key"] < self._threshold[stratum])).all():
            raise ValueError("a segment's key is not below the threshold of its stratum")
        for name in ("observation", "action", "reward"):
            if self._arrays[name].dtype.kind == "f" and not np.isfinite(self._arrays[name]).all():
                raise ValueError(f"{name} is not finite")
        if not np.isfinite(table["discount"]).all() or (self._arrays["flags"] > 3).any():
            raise ValueError("discount or the ends of episodes are none")


def _layout(form: Form) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shape and dtype of what is stored at one position."""
    return {
        "observation": (form.observation_shape, form.observation_dtype),
        "action": (form.action_shape, form.action_dtype),
        "reward": ((), np.float32),
        "flags": ((), np.uint8),
    }
