"""`NearIndex`: rows of a task and what followed them, where observations hardly ever repeat exactly."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from owlrl._arguments import own_generator
from owlrl.changes.base import BoolArray, Judgement, log_ratio
from owlrl.changes.steps import Steps

Floats = npt.NDArray[np.float32]
CAPACITY = 2048
FIRST_FIT = 256  # rows before anything is said
NEAREST = 5  # rows whose outcomes are looked at
REGION = 12  # rows that tell how often such steps contradict their own task
APART = 8  # rows of one trajectory are no neighbours of each other
REACH = 3.0  # a step is comparable within so many typical distances of the fifth neighbour
SLACK = 2.0  # on how much outcomes usually differ over a distance
USUAL = 0.97  # quantile of that
PRIOR = 3.0  # rows that the task's own rate of contradictions counts for in a region
MOST_EVIDENCE = 3.0  # of one step
GENERATOR = 0x6E6561


class Compared(NamedTuple):
    """Steps beside their nearest rows."""

    rows: npt.NDArray[np.int64]  # (B, REGION), the nearest first
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
    """

    def __init__(self, *, changed: float) -> None:
        self.changed = changed
        self.seen = 0
        self.next_fit = FIRST_FIT
        self._rng = own_generator(0, GENERATOR)
        self._rows: dict[str, np.ndarray] = {}
        self._fitted: dict[str, Any] = {}

    @property
    def count(self) -> int:
        return min(self.seen, CAPACITY)

    def judge(self, steps: Steps, event: BoolArray, *, stride: int) -> Judgement:
        made = Judgement.silent(len(steps), 2)
        looked = np.arange(0, len(steps), stride)
        if not self._fitted or not len(looked):
            return made
        columns = _columns(steps[looked], event[looked])
        found = self._compare(columns)
        near = found.distance[:, -1] <= self._fitted["radius"]
        wrong = near & ~self._agrees(found)
        rows, prior = self._rows, PRIOR * self._fitted["rate"]
        known = rows["known"][found.rows].sum(1)
        usual = (rows["wrong"][found.rows].sum(1) + prior) / (known + PRIOR)
        usual[~near] = np.nan
        rare = self._rare(columns, found)
        among_events = np.maximum(usual, self._fitted["event_rate"])
        for k, (told, rate) in enumerate(((near, usual), (rare, among_events))):
            evidence = log_ratio(wrong, rate, changed=self.changed, most=MOST_EVIDENCE)
            made.evidence[k, looked] = evidence * told
        made.comparable[looked], made.contradicts[looked] = near, wrong
        return made

    def learn(self, steps: Steps, event: BoolArray, judgement: Judgement) -> None:
        columns = _columns(steps, event)
        columns |= {"wrong": judgement.contradicts, "known": judgement.comparable}
        time = columns["time"] = self.seen + np.arange(len(steps))
        if not self._rows:
            shapes = ((name, (CAPACITY, *column.shape[1:]), column.dtype) for name, column in columns.items())
            self._rows = {name: np.zeros(shape, dtype) for name, shape, dtype in shapes}
        place = np.where(time < CAPACITY, time, (self._rng.random(len(time)) * (time + 1)).astype(np.int64))
        kept = np.flatnonzero(place < CAPACITY)
        for name, column in columns.items():
            self._rows[name][place[kept]] = column[kept]
        self.seen += len(steps)
        if self._fitted:
            self._scale(place[kept])
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
        """What steps were in, and what followed, in units of its deviation."""
        fitted = self._fitted
        x, y = columns["x"] / fitted["x_scale"], columns["y"] / fitted["y_scale"]
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
        self._scale(np.arange(count))
        pieces = [
            self._compare({name: column[low : min(low + 256, count)] for name, column in rows.items()})
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
        for name in ("dynamics", "reward"):
            smallest = (getattr(found, name)[near] / over).min(1)
            fitted[name] = SLACK * float(np.quantile(smallest, USUAL)) + 1e-6
        near = farthest <= fitted["radius"]
        wrong = near & ~self._agrees(found)
        rows["wrong"][:count], rows["known"][:count] = wrong, near
        rare = near & self._rare(rows, found)
        fitted["rate"] = float((wrong.sum() + 1) / (near.sum() + 20))
        fitted["event_rate"] = float(((wrong & rare).sum() + 1) / (rare.sum() + 20))

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

    def _compare(self, columns: dict[str, np.ndarray]) -> Compared:
        """Steps beside the rows that are kept; columns with their ``time`` are such rows themselves."""
        fitted, rows, count = self._fitted, self._rows, self.count
        x, y = self._scaled(columns)
        squares = np.square(x).sum(1)[:, None] + fitted["square"][:count] - 2 * x @ fitted["x"][:count].T
        squares = np.maximum(squares, 0.0)  # (B, count)
        squares[columns["action"][:, None] != rows["action"][:count]] = np.inf
        if "time" in columns:
            squares[np.abs(columns["time"][:, None] - rows["time"][:count]) < APART] = np.inf
        nearest = torch.topk(torch.from_numpy(squares), min(REGION, count), largest=False)
        places = nearest.indices.numpy()
        five = places[:, :NEAREST]
        apart = np.abs(y[:, None] - fitted["y"][five])  # (B, NEAREST, outcomes)
        return Compared(
            places,
            np.sqrt(nearest.values.numpy()[:, :NEAREST]),
            np.sqrt(np.square(apart[..., :-1]).mean(-1)),
            apart[..., -1],
            columns["terminated"][:, None] == rows["terminated"][five],
        )

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


def _columns(steps: Steps, event: BoolArray) -> dict[str, np.ndarray]:
    """What is compared: x (B, X) what a step was in, y (B, Y) what followed, its reward last."""
    count = len(steps)
    before = steps.observation.reshape(count, -1).astype(np.float32)
    after = steps.next_observation.reshape(count, -1).astype(np.float32)
    discrete = steps.action.ndim == 1 and steps.action.dtype.kind in "biu"
    actions = [] if discrete else [steps.action.reshape(count, -1).astype(np.float32)]
    return {
        "x": np.concatenate([before, *actions], axis=1),
        "y": np.concatenate([after - before, steps.reward[:, None]], axis=1),
        "action": steps.action.astype(np.int64) if discrete else np.zeros(count, np.int64),
        "terminated": steps.terminated,
        "event": event,
    }
