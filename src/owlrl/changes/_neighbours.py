"""`NearIndex`: the steps of a task where observations hardly ever repeat, compared with their neighbours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from owlrl._arguments import own_generator
from owlrl.changes.base import BoolArray, Judgement, Steps, log_ratio
from owlrl.evidence.model import ridge_fit
from owlrl.memory._incoming import ranges

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
FORETELL = 16  # rows to which a linear fit is made
SHRUNK = 0.01  # its ridge
FLOOR = 0.1  # part of the usual error below which no error counts
BEND = 0.75  # quantile of errors by squared distances
BEYOND = 0.999  # of the rows' own errors an error that contradicts is larger
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
        self.rows: dict[str, np.ndarray] = {}  # a sample of the task's rows, as columns
        self._fitted: dict[str, Any] = {}
        self._foretelling: Foretelling | None = None

    @property
    def count(self) -> int:
        return min(self.seen, CAPACITY)

    @property
    def x(self) -> Floats:
        """What the rows were in, scaled."""
        made: Floats = self._fitted["x"]
        return made

    @property
    def y(self) -> Floats:
        """What followed, scaled."""
        made: Floats = self._fitted["y"]
        return made

    @property
    def unknown(self) -> float:
        return float(self._fitted.get("unknown", np.nan))

    def judge(self, steps: Steps, event: BoolArray, stride: int) -> Judgement:
        made = Judgement.silent(len(steps), 2)
        if not self._fitted or not len(steps):
            return made
        looked = slice(None, None, stride)
        columns = columns_of_steps(steps[looked], event[looked])
        found = self._compare(columns)
        near = found.distance[:, -1] <= self._fitted["radius"]
        wrong = near & ~self._agrees(found)
        rows, prior = self.rows, PRIOR * self._fitted["rate"]
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

    def examine(self, steps: Steps) -> Judgement:
        """`judge`, where outcomes are compared with what the nearest rows foretell (`Foretelling`).

        That tells smaller differences, and takes longer: for `Familiarity`.
        """
        if not self._fitted or not len(steps):
            return Judgement.silent(len(steps))
        if self._foretelling is None or self._foretelling.seen != self.seen:
            self._foretelling = Foretelling(self)
        columns = columns_of_steps(steps, np.zeros(len(steps), np.bool_))
        found = self._foretelling.foretell(columns)
        wrong, rate = self._foretelling.contradicts(found), np.full(len(steps), self._foretelling.rate)
        evidence = log_ratio(wrong, rate, changed=self.changed, most=MOST_NEAR_EVIDENCE)
        near = found.fifth <= self._fitted["radius"]
        strange = found.fifth > FAR * self._fitted["radius"]
        error = np.where(near, self._foretelling.relative(found).max(1), 1.0)
        return Judgement((evidence * near)[None], near, near & wrong, strange=strange, error=error)

    def learn(self, steps: Steps, event: BoolArray, judgement: Judgement) -> None:
        time = self.seen + np.arange(len(steps))
        place = np.where(time < CAPACITY, time, (self._rng.random(len(time)) * (time + 1)).astype(np.int64))
        kept = np.flatnonzero(place < CAPACITY)
        place = place[kept]
        columns = columns_of_steps(steps[kept], event[kept]) | {"time": time[kept]}
        columns |= {"wrong": judgement.contradicts[kept], "known": judgement.comparable[kept]}
        if not self.rows:
            shapes = ((name, (CAPACITY, *column.shape[1:]), column.dtype) for name, column in columns.items())
            self.rows = {name: np.zeros(shape, dtype) for name, shape, dtype in shapes}
        for name, column in columns.items():
            self.rows[name][place] = column
        self.seen += len(steps)
        if self._fitted:
            self._scale(place)
        if self.seen >= self.next_fit:
            self._fit()
            self.next_fit = self.seen * 2 if self.seen < CAPACITY else self.seen * 3 // 2

    def _scale(self, places: np.ndarray) -> None:
        """Write the scaled copies of some rows."""
        fitted, rows = self._fitted, self.rows
        x, y = self.scaled({name: rows[name][places] for name in ("x", "y", "action")})
        fitted["x"][places], fitted["y"][places] = x, y
        fitted["square"][places] = np.square(x).sum(1)

    def scaled(self, columns: dict[str, np.ndarray]) -> tuple[Floats, Floats]:
        """What steps were in, and what followed beyond the trend, in units of its deviation."""
        fitted = self._fitted
        x = (columns["x"] - fitted["x_mean"]) / fitted["x_scale"]
        y = columns["y"] / fitted["y_scale"]
        y[:, -1] -= np.concatenate([x, y[:, :-1]], axis=1) @ fitted["trend"]
        return x, y

    def _fit(self) -> None:
        """Measure scales, typical distances and differences on the rows themselves."""
        count, rows = self.count, self.rows
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
            self._compare(
                {name: column[low : low + 256][: count - low] for name, column in rows.items()}, NEAREST
            )
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
        made: BoolArray = own | self.rows["event"][found.rows[:, :NEAREST]].any(1)
        return made

    def _agrees(self, found: Compared) -> BoolArray:
        fitted = self._fitted
        over = found.distance + fitted["least"]
        close = (found.dynamics <= fitted["dynamics"] * over) & (found.reward <= fitted["reward"] * over)
        agreed: BoolArray = (close & found.same_end).any(1)
        return agreed

    def _compare(self, columns: dict[str, np.ndarray], most: int = REGION) -> Compared:
        """Steps beside the rows that are kept; columns with their ``time`` are such rows themselves."""
        x, y = self.scaled(columns)
        places = np.zeros((len(x), min(most, self.count)), np.int64)
        squares = np.zeros(places.shape, np.float32)
        for some in _pieces(columns["action"][: len(x)]):
            own = {name: columns[name][some] for name in ("action", "time") if name in columns}
            places[some], squares[some] = self.nearest(x[some], places.shape[1], **own)
        five = places[:, :NEAREST]
        apart = np.abs(y[:, None] - self._fitted["y"][five])  # (B, NEAREST, outcomes)
        return Compared(
            places,
            np.sqrt(squares[:, :NEAREST]),
            np.sqrt(np.square(apart[..., :-1]).mean(-1)),
            apart[..., -1],
            columns["terminated"][:, None] == self.rows["terminated"][five],
        )

    def nearest(
        self, x: Floats, most: int, action: np.ndarray, time: np.ndarray | None = None
    ) -> tuple[npt.NDArray[np.int64], Floats]:
        """Places of the nearest rows with the same action, (B, most), and their squared distances.

        With ``time`` none that are close in time.
        """
        rows, fitted = self.rows, self._fitted
        there: slice | npt.NDArray[np.int64] = slice(self.count)
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
            "rows": {name: column.copy() for name, column in self.rows.items()},
            "fitted": {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in self._fitted.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self._rng.bit_generator.state = dict(state_dict["rng"])
        self._foretelling = None
        self.seen, self.next_fit = int(state_dict["seen"]), int(state_dict["next_fit"])
        self.rows = {name: np.array(column) for name, column in state_dict["rows"].items()}
        self._fitted = {
            name: value if isinstance(value, float) else np.array(value)
            for name, value in state_dict["fitted"].items()
        }


class Foretold(NamedTuple):
    """What became of steps beside what the rows of an index foretold."""

    error: Floats  # (B, 2), of dynamics and reward
    places: npt.NDArray[np.int64]  # (B, K), of the nearest rows
    reach: Floats  # (B, 1), distance of the farthest of them
    fifth: Floats  # (B,), of the fifth
    odd_end: BoolArray  # (B,), none of the five ended, or went on, as the step did


class Foretelling:
    """What the rows of an index foretell of a step by a linear fit to the nearest ones, and how well.

    An outcome contradicts the task if its error, in units of what errors are there, is larger than all but
    one in a thousand of the rows' own, each foretold by the others. Units are the errors of the nearest rows
    (where they err together, an error says little) and, since linear fits are off by the second order,
    the square of the distance times what is usual of that (locally weighted conformal prediction, Lei et
    al. 2018).
    """

    def __init__(self, index: NearIndex) -> None:
        self.index, self.seen, count = index, index.seen, index.count
        rows = {name: column[:count] for name, column in index.rows.items()}
        starts = range(0, count, AT_ONCE)
        parts = [self.foretell({name: v[low : low + AT_ONCE] for name, v in rows.items()}) for low in starts]
        found = Foretold(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        self.own = found.error
        self.floor = FLOOR * np.median(found.error, axis=0) + 1e-6
        self.bend = np.quantile(found.error / np.square(found.reach), BEND, axis=0)
        self.most: npt.NDArray[np.floating[Any]] = np.ones(2)
        self.most = np.quantile(self.relative(found), BEYOND, axis=0) + 1e-9
        self.rate = float((self.contradicts(found).sum() + 1) / (count + 20))

    def contradicts(self, found: Foretold) -> BoolArray:
        """Whether steps (B,) do."""
        made: BoolArray = (self.relative(found) > 1.0).any(1) | found.odd_end
        return made

    def relative(self, found: Foretold) -> Floats:
        """Errors (B, 2) as parts of those from which on they contradict."""
        usual = np.sqrt(np.square(self.own[found.places[:, :REGION]]).mean(1))
        made: Floats = found.error / (self.most * (usual + self.floor + self.bend * np.square(found.reach)))
        return made

    def foretell(self, columns: dict[str, np.ndarray]) -> Foretold:
        """Steps beside what is foretold; columns with their ``time`` are rows of the index."""
        index = self.index
        x, y = index.scaled(columns)
        own = {name: columns[name] for name in ("action", "time") if name in columns}
        places, squares = index.nearest(x, min(FORETELL, index.count), **own)
        fifth, there = np.sqrt(squares[:, NEAREST - 1]), np.isfinite(squares)
        squares = np.where(there, squares, np.float32(0.0))
        reach = np.sqrt(squares.max(1, keepdims=True)) + np.float32(1e-6)
        weight = np.maximum(0.0, 1.0 - squares / np.square(1.01 * reach)) * there
        error = np.abs(y - local_fit(x, index.x[places], index.y[places], weight, reach))
        both = np.stack([np.sqrt(np.square(error[:, :-1]).mean(1)), error[:, -1]], axis=1)
        ends = index.rows["terminated"][places[:, :NEAREST]]
        return Foretold(both, places, reach, fifth, (columns["terminated"][:, None] != ends).all(1))


def local_fit(x: Floats, known_x: Floats, known_y: Floats, weight: Floats, reach: Floats) -> Floats:
    """What weighted linear fits to K known rows foretell at each x; their slopes are shrunk a little.

    x (B, X), known_x (B, K, X), known_y (B, K, Y), weight (B, K), reach (B, 1) → (B, Y). With differences
    from the weighted means D = √w (known_x − x̄) / reach and E = √w (known_y − ȳ):
    ``ȳ + (x − x̄) / reach · Dᵀ (D Dᵀ + λ)⁻¹ E``.

    >>> import numpy as np
    >>> from owlrl.changes._neighbours import local_fit
    >>> known = np.array([[[0.0], [1.0], [2.0]]])
    >>> local_fit(np.array([[3.0]]), known, 2 * known, np.ones((1, 3)), np.ones((1, 1))).round(1)
    array([[6.]])
    """
    share = (weight / weight.sum(1, keepdims=True).clip(1e-12))[..., None]
    mean_x, mean_y = (share * known_x).sum(1, keepdims=True), (share * known_y).sum(1, keepdims=True)
    root = np.sqrt(weight)[..., None]
    d, e = root * (known_x - mean_x) / reach[..., None], root * (known_y - mean_y)
    gram = d @ d.transpose(0, 2, 1) + SHRUNK * np.eye(d.shape[1], dtype=d.dtype)
    towards = (x[:, None] - mean_x) / reach[..., None] @ d.transpose(0, 2, 1)
    made: Floats = (mean_y + towards @ np.linalg.solve(gram, e))[:, 0]
    return made


def smallest(values: Floats, count: int) -> tuple[npt.NDArray[np.int64], Floats]:
    """Places and values of the ``count`` smallest of each row (B, N), the smallest first.

    Only columns of blocks whose minimum is among the smallest are sorted.

    >>> import numpy as np
    >>> from owlrl.changes._neighbours import smallest
    >>> places, values = smallest(np.array([[3.0, 1.0, 2.0, 0.5]], np.float32), 2)
    >>> places.tolist(), values.tolist()
    ([[3, 1]], [[0.5, 1.0]])
    """
    total, line = values.shape[1], np.arange(len(values))[:, None]
    width = total // BLOCKS
    if width < 2 * count:
        found = torch.topk(torch.from_numpy(values), count, largest=False)
        return found.indices.numpy(), found.values.numpy()
    blocks = values[:, : width * BLOCKS].reshape(len(values), BLOCKS, width)
    column = blocks.min(1).argsort(1)[:, :count]
    places = (column[:, None] + width * np.arange(BLOCKS)[:, None]).reshape(len(values), count * BLOCKS)
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


def columns_of_steps(steps: Steps, event: BoolArray) -> dict[str, np.ndarray]:
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
