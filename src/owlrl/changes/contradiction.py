"""`Contradiction`: the same state and action, but an outcome that the task has never shown."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from owlrl._arguments import own_generator
from owlrl.changes.base import DEPTHS, BoolArray, Detector, Judgement, Steps, hashes, log_ratio, mixed
from owlrl.evidence.model import ridge_fit
from owlrl.memory._incoming import ranges
from owlrl.memory._reservoir import majority_vote

__all__ = ["Contradiction"]

TRIAL = 128  # steps after which it is known whether observations repeat exactly
MATURE = 1024  # steps after which neighbours are near enough to trust what they say
YOUNG = 4096  # steps in which places that look alike may still be met for the first time
KNOWN = 0.01  # share of steps that are unknown below which hardly any are left
AGAIN = 0.3  # share of the steps of the trial that must come again for that
RARE = 0.1  # at most this share of steps are events, if events are counted by themselves


class Contradiction(Detector):
    """Counts contradictions: steps like known ones of the task, with an outcome that it has never shown.

    Unknown states count neither way, so that a policy may explore; steps that agree count against a
    change. Where observations repeat exactly (grids), outcomes are looked up; else the five nearest rows
    are compared. The rate at which a task contradicts itself is measured in each region. Rare events, the
    ends of episodes and uncommon rewards, are also counted separately, since they would be lost among the
    other steps.

    Args:
        threshold: of the sums of evidence; a change is e^threshold times likelier than none there.
        changed: share of comparable steps that contradict the old task after a change, at least.
        stride: with neighbours, only every ``stride``-th step is compared, since consecutive steps are alike.

    >>> import torch
    >>> from owlrl.changes import Contradiction, History
    >>> from owlrl.types import Transitions
    >>> state = torch.arange(400.0) % 8
    >>> def rows(pays):
    ...     return Transitions(state, state.long() * 0, (state == pays).float(), (state + 1) % 8, state < 0,
    ...                        torch.ones(400))
    >>> history, detector = History(), Contradiction()
    >>> detector.learn("left", history.follow(rows(2)))
    >>> said = detector.judge("left", history.follow(rows(5)))
    >>> int(said.comparable.sum()) > 300, said.contradicts[:8].tolist()
    (True, [False, False, True, False, False, True, False, False])
    """

    def __init__(self, *, threshold: float = 16.0, changed: float = 0.3, stride: int = 4) -> None:
        super().__init__()
        self.threshold = threshold
        self.changed = changed
        self.stride = stride

    @property
    def least(self) -> float:
        return float(np.log1p(-self.changed))

    @property
    def hashed(self) -> bool:
        """Neighbours need no hashes."""
        return not (self.tasks and all(isinstance(m.index, NearIndex) for m in self.tasks.values()))

    def make(self) -> ContradictionModel:
        """A model that has seen nothing."""
        return ContradictionModel(self.changed)


class ContradictionModel:
    """A model of one task: an index of its steps, and its common rewards."""

    def __init__(self, changed: float) -> None:
        self.changed = changed
        self.index: ExactIndex | NearIndex | None = None
        self.seen = self.events = 0
        self._trial: list[Steps] = []
        self._common, self._votes = 0.0, 0  # the most common reward, by `majority_vote`

    @property
    def mature(self) -> bool:
        if isinstance(self.index, ExactIndex):
            return self.seen >= YOUNG or self.index.unknown < KNOWN
        return self.seen >= MATURE

    @property
    def doubt(self) -> float:
        if isinstance(self.index, ExactIndex):
            return 3.0 if self.seen < YOUNG else 1.0
        return 1.5  # steps of one swing through places that are hardly known contradict together

    @property
    def unknown(self) -> float:
        return np.nan if self.index is None else self.index.unknown

    def judge(self, steps: Steps, *, stride: int = 1) -> Judgement:
        if self.index is None:
            return Judgement.silent(len(steps), 2)
        made = self.index.judge(steps, self._events(steps), stride)
        if self.events > RARE * self.seen:
            made.evidence[1] = 0.0
        return made

    def learn(self, steps: Steps, judgement: Judgement) -> None:
        self._common, self._votes = majority_vote(self._common, self._votes, steps.reward.tolist())
        event = self._events(steps)
        self.seen, self.events = self.seen + len(steps), self.events + int(event.sum())
        if self.index is None:
            self._trial.append(steps)
            if self.seen >= TRIAL:
                self._begin(Steps.joined(self._trial))
        else:
            self.index.learn(steps, event, judgement)

    def _begin(self, steps: Steps) -> None:
        """Choose the index by the first steps."""
        alone = mixed(hashes(steps.observation), hashes(steps.action))
        again = 1.0 - len(np.unique(alone)) / len(steps)
        kind: type[ExactIndex | NearIndex] = ExactIndex if again > AGAIN else NearIndex
        self.index, self._trial = kind(self.changed), []
        self.index.learn(steps, self._events(steps), Judgement.silent(len(steps)))

    def _events(self, steps: Steps) -> BoolArray:
        made: BoolArray = steps.terminated | (steps.reward != self._common)
        return made

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "seen": self.seen,
            "events": self.events,
            "common": [self._common, self._votes],
            "kind": "" if self.index is None else type(self.index).__name__,
        }
        if self.index is not None:
            return {**state, "index": self.index.state_dict()}
        return {**state, "trial": [steps.arrays() for steps in self._trial]}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.seen, self.events = int(state_dict["seen"]), int(state_dict["events"])
        common, votes = state_dict["common"]
        self._common, self._votes = float(common), int(votes)
        kinds = {kind.__name__: kind for kind in (ExactIndex, NearIndex)}
        self.index, self._trial = None, []
        if state_dict["kind"]:
            self.index = kinds[state_dict["kind"]](self.changed)
            self.index.load_state_dict(state_dict["index"])
        else:
            self._trial = [Steps.from_arrays(arrays) for arrays in state_dict["trial"]]


MOST_KEYS = 2**17  # per depth
MOST_EVIDENCE = 5.0  # of one step
CLEAR = 0.02  # share of ambiguous steps below which a third of the usual contradictions tell a change

# of a key: how often it came, how often with a new outcome, whether an event was among them, and
# its outcomes with their least and largest reward
Entry = list[Any]


class ExactIndex:
    """Outcomes by observation and action, and where those are ambiguous, by the steps before as well.

    A step contradicts the task if its key is known and its outcome, the next observation with the end of the
    episode, or its reward was never seen there. How often a key had a new outcome before, and which share of
    the task's keys has several, decides how much that means.
    """

    def __init__(self, changed: float) -> None:
        self.changed = changed
        self.tables: list[dict[int, Entry]] = [{} for _ in range(DEPTHS)]
        # keys that came twice, and those that had another outcome then or later; per depth, all and events
        self.twice, self.several = ([[0, 0] for _ in range(DEPTHS)] for _ in range(2))

    @property
    def unknown(self) -> float:
        """The share of steps that came once (Good 1953)."""
        visits = [entry[0] for entry in self.tables[0].values()]
        return (visits.count(1) + 1) / (sum(visits) + 10) if len(visits) < MOST_KEYS else np.nan

    @property
    def ambiguous(self) -> np.ndarray:
        """The share of keys with several outcomes, per depth, all and of events; from a tenth on."""
        made: np.ndarray = (np.array(self.several) + 1) / (np.array(self.twice) + 10)
        return made

    def judge(self, steps: Steps, event: BoolArray, stride: int) -> Judgement:
        count, ambiguous = len(steps), self.ambiguous.tolist()
        usual, among_events = np.full((2, count), np.nan)
        wrong, rare = np.zeros((2, count), np.bool_)
        which = np.zeros(count, np.uint64)
        lines = zip(*steps.keys.tolist(), steps.outcome.tolist(), steps.reward.tolist(), strict=True)
        for row, (*keys, outcome, reward) in enumerate(lines):
            found = self._entry(keys)
            if found is None:
                continue
            key, entry, depth = found
            wrong[row] = not agrees(entry[3].get(outcome), reward)
            rare[row] = entry[2]
            which[row] = key
            usual[row], among_events[row] = ((entry[1] + a) / (entry[0] + 1) for a in ambiguous[depth])
        changed = self.changed / 3 if ambiguous[0][0] < CLEAR else self.changed
        evidence = [
            log_ratio(wrong, each, changed=changed, most=MOST_EVIDENCE) for each in (usual, among_events)
        ]
        evidence[1] *= rare | event
        strange = np.isnan(usual)
        return Judgement(np.stack(evidence), ~strange, wrong, mixed(which, steps.outcome), strange)

    def _entry(self, keys: list[int]) -> tuple[int, Entry, int] | None:
        """What is known of a step: by itself if that had one outcome, else with the steps before it."""
        for depth, (key, table) in enumerate(zip(keys, self.tables, strict=True)):
            entry = table.get(key)
            if entry is None or len(entry[3]) == 1 or depth == DEPTHS - 1:
                break
        return None if entry is None else (key, entry, depth)

    def learn(self, steps: Steps, event: BoolArray, judgement: Judgement) -> None:
        outcomes, rewards, events = steps.outcome.tolist(), steps.reward.tolist(), event.tolist()
        for depth, table in enumerate(self.tables):
            for row, key in enumerate(steps.keys[depth].tolist()):
                if not key:
                    continue
                outcome, reward = outcomes[row], rewards[row]
                entry = table.get(key)
                if entry is None:
                    if len(table) < MOST_KEYS:
                        table[key] = [1, 0, events[row], {outcome: [reward, reward]}]
                    continue
                known = entry[3].get(outcome)
                novel = not agrees(known, reward)
                entry[0], entry[1], entry[2] = entry[0] + 1, entry[1] + novel, entry[2] or events[row]
                if entry[0] == 2 or (novel and entry[1] == 1):
                    for kind in range(1 + entry[2]):
                        self.twice[depth][kind] += entry[0] == 2
                        self.several[depth][kind] += novel and entry[1] == 1
                if known is None:
                    entry[3][outcome] = [reward, reward]
                elif novel or not known[0] <= reward <= known[1]:
                    known[:] = min(known[0], reward), max(known[1], reward)

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": np.array([self.twice, self.several]),
            "tables": [_packed(table) for table in self.tables],
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.twice, self.several = np.array(state_dict["counts"], np.int64).reshape(2, DEPTHS, 2).tolist()
        self.tables = [_unpacked(packed) for packed in state_dict["tables"]]


def agrees(known: list[float] | None, reward: float) -> bool:
    """Whether a reward is among the known ones, within the differences between those.

    >>> agrees([1.0, 1.0], 1.0), agrees([1.0, 1.0], 0.9), agrees([0.8, 1.0], 0.7), agrees(None, 1.0)
    (True, False, True, False)
    """
    if known is None:
        return False
    low, high = known
    width = high - low + 1e-4 * (abs(low) + abs(high))
    return low - width <= reward <= high + width


def _packed(table: dict[int, Entry]) -> dict[str, np.ndarray]:
    entries = list(table.values())
    outcomes = [(k, *bounds) for entry in entries for k, bounds in entry[3].items()]
    return {
        "key": np.array(list(table), np.uint64).view(np.int64),
        "counts": np.array([[e[0], e[1], e[2], len(e[3])] for e in entries], np.int64).reshape(-1, 4),
        "outcome": np.array([k for k, _, _ in outcomes], np.uint64).view(np.int64),
        "reward": np.array([bounds for _, *bounds in outcomes], np.float64).reshape(-1, 2),
    }


def _unpacked(packed: dict[str, Any]) -> dict[int, Entry]:
    key, outcome = (np.asarray(packed[name]).view(np.uint64).tolist() for name in ("key", "outcome"))
    counts, reward = (np.asarray(packed[name]).tolist() for name in ("counts", "reward"))
    table: dict[int, Entry] = {}
    place = 0
    for name, (visits, novel, event, size) in zip(key, counts, strict=True):
        found = zip(outcome[place : place + size], reward[place : place + size], strict=True)
        table[name] = [visits, novel, bool(event), dict(found)]
        place += size
    if place != len(outcome):
        raise ValueError(f"{len(outcome)} outcomes were saved; expected {place} by the counts")
    return table


Floats = npt.NDArray[np.float32]
CAPACITY = 2048
FIRST_FIT = 256  # rows before anything is said
NEAREST = 5  # rows whose outcomes are looked at
REGION = 12  # rows that tell how often such steps contradict their own task
APART = 8  # rows of one trajectory are no neighbours of each other
REACH = 3.0  # a step is comparable within so many typical distances of the fifth neighbour
FAR = 2.0  # and strange beyond so many times that
SLACK = 2.0  # on how much outcomes usually differ over a distance
USUAL = 0.97  # quantile of that
RIDGE = 1e-3  # of the linear trend of rewards
WORTH = 0.5  # part of the differences between neighbours that it must leave at most
CAUTION = 0.25  # and that are tolerated at least, since trends end somewhere
PRIOR = 3.0  # rows that the task's own rate of contradictions counts for in a region
MOST_NEAR_EVIDENCE = 3.0  # of one step
GENERATOR = 0x6E6561
AT_ONCE = 256  # steps that are compared at once
BLOCKS = 8  # of distances, see `smallest`
OTHER = np.float32(1e30)  # what the squared distance of rows with another action is beyond


class Compared(NamedTuple):
    """Steps beside their nearest rows."""

    rows: npt.NDArray[np.int64]  # (B, REGION) or fewer, the nearest first
    distance: Floats  # (B, NEAREST)
    dynamics: Floats  # (B, NEAREST), how much outcomes differ
    reward: Floats  # (B, NEAREST)
    same_end: BoolArray  # (B, NEAREST)


class NearIndex:
    """A uniform sample of a task's rows, and how much outcomes of neighbours usually differ.

    Distances are between observations, with actions of a Box, each number in units of its deviation;
    discrete actions must be equal. Among its five nearest rows a step finds one whose outcome (change of the
    observation, reward, end) differs by no more than such a distance explains, or it contradicts the task.
    How often its neighbours contradicted their own task decides how much that means.

    Where there are many numbers, neighbours are far. So a linear trend of rewards is taken off first, if that
    leaves less than half of the differences between neighbours (as where a robot is paid for its speed).
    """

    def __init__(self, changed: float) -> None:
        self.changed = changed
        self.seen = 0
        self.next_fit = FIRST_FIT
        self._rng = own_generator(0, GENERATOR)
        self._rows: dict[str, np.ndarray] = {}
        self._fitted: dict[str, Any] = {}

    @property
    def count(self) -> int:
        return min(self.seen, CAPACITY)

    @property
    def unknown(self) -> float:
        return float(self._fitted.get("unknown", np.nan))

    def judge(self, steps: Steps, event: BoolArray, stride: int) -> Judgement:
        made = Judgement.silent(len(steps), 2)
        if not self._fitted or not len(steps):
            return made
        looked = slice(None, None, stride)
        columns = _columns(steps[looked], event[looked])
        found = self._compare(columns)
        near = found.distance[:, -1] <= self._fitted["radius"]
        wrong = near & ~self._agrees(found)
        rows, prior = self._rows, PRIOR * self._fitted["rate"]
        known = rows["known"][found.rows].sum(1)
        usual = (rows["wrong"][found.rows].sum(1) + prior) / (known + PRIOR)
        usual[~near] = np.nan
        rates = np.stack([usual, np.maximum(usual, self._fitted["event_rate"])])
        evidence = log_ratio(wrong, rates, changed=self.changed, most=MOST_NEAR_EVIDENCE)
        evidence[1] *= self._rare(columns, found)
        made.evidence[:, looked] = evidence
        made.comparable[looked], made.contradicts[looked] = near, wrong
        if stride > 1:
            return made
        return replace(made, strange=found.distance[:, -1] > FAR * self._fitted["radius"])

    def learn(self, steps: Steps, event: BoolArray, judgement: Judgement) -> None:
        time = self.seen + np.arange(len(steps))
        place = np.where(time < CAPACITY, time, (self._rng.random(len(time)) * (time + 1)).astype(np.int64))
        kept = np.flatnonzero(place < CAPACITY)
        place = place[kept]
        columns = _columns(steps[kept], event[kept]) | {"time": time[kept]}
        columns |= {"wrong": judgement.contradicts[kept], "known": judgement.comparable[kept]}
        if not self._rows:
            shapes = ((name, (CAPACITY, *column.shape[1:]), column.dtype) for name, column in columns.items())
            self._rows = {name: np.zeros(shape, dtype) for name, shape, dtype in shapes}
        for name, column in columns.items():
            self._rows[name][place] = column
        self.seen += len(steps)
        if self._fitted:
            self._scale(place)
        if self.seen >= self.next_fit:
            self._fit()
            self.next_fit = self.seen * 2 if self.seen < CAPACITY else self.seen * 3 // 2

    def _scale(self, places: np.ndarray) -> None:
        """Write the scaled copies of some rows."""
        fitted, rows = self._fitted, self._rows
        x, y = self._scaled({name: rows[name][places] for name in ("x", "y", "action")})
        fitted["x"][places], fitted["y"][places] = x, y
        fitted["square"][places] = np.square(x).sum(1)

    def _scaled(self, columns: dict[str, np.ndarray]) -> tuple[Floats, Floats]:
        """What steps were in, and what followed beyond the trend, in units of its deviation."""
        fitted = self._fitted
        x = (columns["x"] - fitted["x_mean"]) / fitted["x_scale"]
        y = columns["y"] / fitted["y_scale"]
        y[:, -1] -= np.concatenate([x, y[:, :-1]], axis=1) @ fitted["trend"]
        return x, y

    def _fit(self) -> None:
        """Measure scales, typical distances and differences on the rows themselves."""
        count, rows = self.count, self._rows
        fitted = self._fitted = {name: np.zeros_like(rows[name]) for name in ("x", "y")}
        for name in ("x", "y"):
            values = rows[name][:count]
            floor = 1e-6 * (1.0 + np.abs(values).max(0))
            fitted[f"{name}_scale"] = values.std(0) + floor.astype(np.float32)
        fitted["square"] = np.zeros(CAPACITY, np.float32)
        fitted["x_mean"] = rows["x"][:count].mean(0)
        fitted["trend"] = np.zeros(fitted["x"].shape[1] + fitted["y"].shape[1] - 1, np.float32)
        self._scale(np.arange(count))
        pieces = [
            self._compare({name: column[low : low + 256][: count - low] for name, column in rows.items()}, NEAREST)
            for low in range(0, count, 256)
        ]
        found = Compared(*(np.concatenate(part) for part in zip(*pieces, strict=True)))
        farthest = found.distance[:, -1]
        there = np.isfinite(farthest)
        if not there.any():  # fewer than five rows of any action
            self._fitted = {}
            return
        fitted["least"] = float(0.5 * np.median(found.distance[there, 0])) + 1e-6
        fitted["radius"] = REACH * float(np.quantile(farthest[there], 0.75)) + 1e-6
        near = farthest <= fitted["radius"] / 2  # the neighbourhood that tolerances are measured in
        over = found.distance[near] + fitted["least"]

        def usual(apart: Floats) -> float:
            return SLACK * float(np.quantile((apart[near] / over).min(1), USUAL)) + 1e-6

        fitted["dynamics"], fitted["reward"] = usual(found.dynamics), usual(found.reward)
        trend, apart = self._trend(found)
        if usual(apart) < WORTH * fitted["reward"]:
            fitted["reward"] = max(usual(apart), CAUTION * fitted["reward"])
            fitted["trend"], found = trend, found._replace(reward=apart)
            self._scale(np.arange(count))
        near = farthest <= fitted["radius"]
        wrong = near & ~self._agrees(found)
        rows["wrong"][:count], rows["known"][:count] = wrong, near
        fitted["unknown"] = float(1 + (farthest > FAR * fitted["radius"]).sum()) / (count + 10)
        rare = near & self._rare(rows, found)
        fitted["rate"] = float((wrong.sum() + 1) / (near.sum() + 20))
        fitted["event_rate"] = float(((wrong & rare).sum() + 1) / (rare.sum() + 20))

    def _trend(self, found: Compared) -> tuple[Floats, Floats]:
        """The linear trend of rewards, and how much what it leaves differs between neighbours."""
        fitted, count = self._fitted, self.count
        y = fitted["y"][:count] - fitted["y"][:count].mean(0)
        known = np.concatenate([fitted["x"][:count], y[:, :-1]], axis=1)
        trend = ridge_fit(known, y[:, -1:], np.ones(count), ridge=RIDGE)[0][:, 0].astype(np.float32)
        left = y[:, -1] - known @ trend
        return trend, np.abs(left[:, None] - left[found.rows[:, :NEAREST]])

    def _rare(self, columns: dict[str, np.ndarray], found: Compared) -> BoolArray:
        """Whether a step or one of its nearest rows is an event."""
        own = columns["event"][: len(found.rows)]
        made: BoolArray = own | self._rows["event"][found.rows[:, :NEAREST]].any(1)
        return made

    def _agrees(self, found: Compared) -> BoolArray:
        fitted = self._fitted
        over = found.distance + fitted["least"]
        close = (found.dynamics <= fitted["dynamics"] * over) & (found.reward <= fitted["reward"] * over)
        agreed: BoolArray = (close & found.same_end).any(1)
        return agreed

    def _compare(self, columns: dict[str, np.ndarray], most: int = REGION) -> Compared:
        """Steps beside the rows that are kept; columns with their ``time`` are such rows themselves."""
        x, y = self._scaled(columns)
        places = np.zeros((len(x), min(most, self.count)), np.int64)
        squares = np.zeros(places.shape, np.float32)
        for some in _pieces(columns["action"][: len(x)]):
            own = {name: columns[name][some] for name in ("action", "time") if name in columns}
            places[some], squares[some] = self._nearest(x[some], places.shape[1], **own)
        five = places[:, :NEAREST]
        apart = np.abs(y[:, None] - self._fitted["y"][five])  # (B, NEAREST, outcomes)
        return Compared(
            places,
            np.sqrt(squares[:, :NEAREST]),
            np.sqrt(np.square(apart[..., :-1]).mean(-1)),
            apart[..., -1],
            columns["terminated"][:, None] == self._rows["terminated"][five],
        )

    def _nearest(
        self, x: Floats, most: int, action: np.ndarray, time: np.ndarray | None = None
    ) -> tuple[npt.NDArray[np.int64], Floats]:
        """Places of the nearest rows with the same action, (B, most), and their squared distances.

        With ``time`` none that are close in time.
        """
        rows, fitted, there = self._rows, self._fitted, slice(self.count)
        actions = np.unique(action)
        others = rows["action"][there] != actions[:, None]
        if len(actions) == 1 and most <= self.count - np.count_nonzero(others) < self.count:
            there = np.flatnonzero(~others[0])  # all others are left out
            others = others[:, there]
        same = (action[:, None] == actions).astype(np.float32)
        known = np.concatenate([-2.0 * fitted["x"][there].T, fitted["square"][there][None], others * OTHER])
        squares: Floats = np.concatenate([x, np.ones_like(x[:, :1]), same], axis=1) @ known  # (B, there)
        if time is not None:
            times = rows["time"][there]
            order = np.argsort(times)
            bounds = (time - APART, time + APART - 1)
            first, end = (np.searchsorted(times[order], bound, "right") for bound in bounds)
            squares[np.repeat(np.arange(len(x)), end - first), order[ranges(first, end - first)]] = np.inf
        places, found = smallest(squares, most)
        found = np.where(found < OTHER / 2, found + np.square(x).sum(1)[:, None], np.inf)
        return places if isinstance(there, slice) else there[places], np.maximum(found, 0.0, out=found)

    def state_dict(self) -> dict[str, Any]:
        return {
            "seen": self.seen,
            "next_fit": self.next_fit,
            "rng": self._rng.bit_generator.state,
            "rows": {name: column.copy() for name, column in self._rows.items()},
            "fitted": {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in self._fitted.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self._rng.bit_generator.state = dict(state_dict["rng"])
        self.seen, self.next_fit = int(state_dict["seen"]), int(state_dict["next_fit"])
        self._rows = {name: np.array(column) for name, column in state_dict["rows"].items()}
        self._fitted = {
            name: value if isinstance(value, float) else np.array(value)
            for name, value in state_dict["fitted"].items()
        }


def smallest(values: Floats, count: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Places and values of the ``count`` smallest of each row (B, N), the smallest first.

    Only columns of blocks whose minimum is among the smallest are sorted.

    >>> import numpy as np
    >>> from owlrl.changes.contradiction import smallest
    >>> places, values = smallest(np.array([[3.0, 1.0, 2.0, 0.5]], np.float32), 2)
    >>> places.tolist(), values.tolist()
    ([[3, 1]], [[0.5, 1.0]])
    """
    total, line = values.shape[1], np.arange(len(values))[:, None]
    width = total // BLOCKS
    if width < 2 * count:
        found = torch.topk(torch.from_numpy(values), count, largest=False)
        return found.indices.numpy(), found.values.numpy()
    blocks = values[:, : width * BLOCKS].reshape(-1, BLOCKS, width)
    column = blocks.min(1).argsort(1)[:, :count]
    places = (column[:, None] + width * np.arange(BLOCKS)[:, None]).reshape(len(values), -1)
    rest = np.broadcast_to(np.arange(width * BLOCKS, total), (len(values), total % BLOCKS))
    places = np.concatenate([places, rest], axis=1) if total % BLOCKS else places
    few = values[line, places]
    order = few.argsort(1)[:, :count]
    return places[line, order], few[line, order]


def _pieces(action: np.ndarray) -> Iterator[slice | np.ndarray]:
    """Rows to compare at once: where there are many, of one action, so that others need not be looked at."""
    if len(action) < AT_ONCE:
        yield slice(None)
        return
    for each in np.unique(action):
        some = np.flatnonzero(action == each)
        for low in range(0, len(some), AT_ONCE):
            yield some[low : low + AT_ONCE]


def _columns(steps: Steps, event: BoolArray) -> dict[str, np.ndarray]:
    """What is compared: x (B, X) what a step was in, y (B, Y) what followed, its reward last."""
    count = len(steps)
    before, after = _flat(steps.observation), _flat(steps.next_observation)
    discrete = steps.action.ndim == 1 and steps.action.dtype.kind in "biu"
    actions = [] if discrete else [_flat(steps.action)]
    return {
        "x": np.concatenate([before, *actions], axis=1),
        "y": np.concatenate([after - before, steps.reward[:, None]], axis=1),
        "action": steps.action.astype(np.int64) if discrete else np.zeros(count, np.int64),
        "terminated": steps.terminated,
        "event": event,
    }


def _flat(values: np.ndarray) -> Floats:
    made: Floats = values.reshape(len(values), math.prod(values.shape[1:])).astype(np.float32)
    return made
