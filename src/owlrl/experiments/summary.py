"""Numbers over seeds: runs that differ only in their seed, together."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from owlrl.experiments.config import Run
from owlrl.experiments.metrics import (
    Interval,
    cumulative_performance,
    forgetting,
    forward_transfer,
    iqm_over_seeds,
    mean_score,
    stratified_bootstrap,
)
from owlrl.experiments.policies import ORACLE
from owlrl.experiments.results import SEEN, Trial

__all__ = ["Estimate", "Group", "Quartiles", "group_by_run", "single_task_scores"]

FloatArray = npt.NDArray[np.float64]
BASE = ("learner", "overrides", "arguments", "num_envs")  # tasks and base learner, without the method


class Estimate(NamedTuple):
    """An interquartile mean over seeds with its 95 % interval; of one seed there is none.

    >>> from owlrl.experiments.metrics import Interval
    >>> from owlrl.experiments.summary import Estimate
    >>> str(Estimate(0.95, Interval(0.9, 1.0)))
    '0.95 [0.90, 1.00]'
    >>> str(Estimate(0.95, None))
    '0.95'
    """

    value: float
    interval: Interval | None

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.interval.low:.2f}, {self.interval.high:.2f}]"


class Quartiles(NamedTuple):
    """Median over seeds with the quartiles, in the order in which the paper writes them.

    >>> from owlrl.experiments.summary import Quartiles
    >>> str(Quartiles.of([0.0, 0.5, 1.0]))
    '0.50 (0.75, 0.25)'
    """

    median: float
    upper: float
    lower: float

    @classmethod
    def of(cls, numbers: npt.ArrayLike) -> Quartiles:
        """The quartiles of some numbers, one per seed."""
        lower, median, upper = np.quantile(np.asarray(numbers, dtype=np.float64), [0.25, 0.5, 0.75])
        return cls(float(median), float(upper), float(lower))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.upper:.2f}, {self.lower:.2f})"


@dataclass(frozen=True)
class Group:
    """Trials of one run with several seeds; unseen levels need not be evaluated in all of them.

    >>> from owlrl.experiments import Run, Trial
    >>> from owlrl.experiments.summary import Group
    >>> row = {"kind": "score", "visit": 0, "mode": "oracle", "task": "a", "success": 1.0}
    >>> Group((Trial.of(Run("SC2"), [row]),)).scores("oracle")
    array([[1.]])
    """

    trials: tuple[Trial, ...]

    @property
    def run(self) -> Run:
        """The run, with the seed of the first trial."""
        run = self.trials[0].run
        assert run is not None
        return run

    @property
    def label(self) -> str:
        """The method, and the strength of its regularizer if it is not the method's own."""
        strength = "" if self.run.strength is None else f" ({self.run.strength:g})"
        return f"{self.run.method}{strength}"

    def modes(self, label: str = SEEN) -> list[str]:
        """What all trials that were evaluated on a set were evaluated with there."""
        found = [modes for t in self.trials if (modes := {row["mode"]: 0 for row in t.final(label=label)})]
        return [mode for mode in found[0] if all(mode in modes for modes in found)] if found else []

    def scores(self, mode: str, *, label: str = SEEN) -> FloatArray:
        """Share of episodes that succeeded, or mean return with continuous actions, (seeds, tasks)."""
        rows = [trial.final(mode, label=label) for trial in self.trials]
        return np.array([[row[self.run.measure] for row in of_seed] for of_seed in rows if of_seed])

    def mean_of(self, field: str, mode: str) -> float:
        """Mean over seeds and tasks of another field of the evaluations, e.g. "found"."""
        rows = [row for trial in self.trials for row in trial.final(mode)]
        found = [row[field] for row in rows if row.get(field) is not None]
        return float(np.mean(found)) if found else float("nan")

    def estimate(self, mode: str, *, label: str = SEEN) -> Estimate:
        """Interquartile mean over seeds of the mean over tasks, with its interval."""
        scores = self.scores(mode, label=label)
        interval = stratified_bootstrap(scores) if len(scores) > 1 else None
        return Estimate(float(iqm_over_seeds(scores)), interval)

    def quartiles(self, mode: str, *, label: str = SEEN) -> Quartiles:
        """Over seeds, of the mean over tasks."""
        return Quartiles.of(self.scores(mode, label=label).mean(axis=1))

    def cumulative(self, mode: str) -> Quartiles | None:
        """Of the cumulative performance; None if the mode was not followed through training."""
        courses = self._courses(mode)
        return Quartiles.of([cumulative_performance(rows) for rows in courses]) if courses else None

    def after_each_task(self, mode: str) -> Quartiles | None:
        """Of the mean over the ends of all trainings; None if the mode was not evaluated there."""
        ends = set(self.trials[0].starts()[1:])
        courses = [[row for row in rows if row[0] in ends] for rows in self._courses(mode)]
        return Quartiles.of([cumulative_performance(rows) for rows in courses]) if courses else None

    def forgetting(self) -> float | None:
        """Mean over seeds, with the task given; None if training was not followed."""
        pairs = zip(self._courses(ORACLE), self.trials, strict=False)
        lost = [forgetting(rows, trial.spans()) for rows, trial in pairs]
        return float(np.mean(lost)) if lost else None

    def forward_transfer(self, alone: dict[str, float]) -> float | None:
        """Mean over seeds; None if a task was not trained alone, or if training was not followed."""
        tasks = set(self.trials[0].spans(0))
        if not tasks or not tasks <= set(alone):
            return None
        pairs = zip(self._courses(ORACLE), self.trials, strict=False)
        gains = [forward_transfer(rows, trial.spans(0), alone) for rows, trial in pairs]
        return float(np.mean(gains)) if gains else None

    def _courses(self, mode: str) -> list[list[tuple[int, str, float]]]:
        """Scores of each trial in training; nothing if one was not evaluated at the end of each task."""
        found = [trial.course(mode) for trial in self.trials]
        ends = [set(trial.starts()[1:]) for trial in self.trials]
        asked = [end and end <= {row[0] for row in rows} for rows, end in zip(found, ends, strict=True)]
        return found if all(asked) else []

    def failures(self, mode: str) -> float | None:
        """Mean failed episodes in a row of them with kept evidence; None if that was not evaluated."""
        rows = [row for trial in self.trials for row in trial.select("in-a-row", mode=mode)]
        return float(np.mean([row["failures"] for row in rows])) if rows else None

    def minutes(self) -> float | None:
        """CPU minutes of training and evaluation, mean over seeds; None if not measured."""
        infos = [trial.info or {} for trial in self.trials]
        if not all("cpu_seconds" in info for info in infos):
            return None
        return float(np.mean([info["cpu_seconds"] for info in infos])) / 60.0


def group_by_run(trials: Iterable[Trial]) -> list[Group]:
    """Put trials together whose runs differ by the seed and unseen levels only, in the order they come.

    >>> from owlrl.experiments import Run, Trial
    >>> from owlrl.experiments.summary import group_by_run
    >>> trials = [Trial.of(Run("SC2", seed=k % 2, rounds=1 + k // 2)) for k in range(4)]
    >>> [len(group.trials) for group in group_by_run(trials)]
    [2, 2]
    """
    groups: dict[str, dict[int, Trial]] = {}
    for trial in trials:
        run = trial.run
        if run is None:
            continue
        key = json.dumps(replace(run, seed=0, unseen=()).to_json(), sort_keys=True)
        other = groups.setdefault(key, {}).setdefault(run.seed, trial)
        if len(run.unseen) > len(other.run.unseen if other.run else ()):  # the same training, asked more
            groups[key][run.seed] = trial
    return [Group(tuple(found[seed] for seed in sorted(found))) for found in groups.values()]


def single_task_scores(groups: Sequence[Group], like: Run) -> dict[str, float]:
    """Mean score in training of each task that was trained alone, as otherwise in ``like``.

    By the same method if there is such a run, or else by another: with one task there is nothing to keep.

    >>> from owlrl.experiments import Run
    >>> from owlrl.experiments.summary import single_task_scores
    >>> single_task_scores([], Run("SC3"))
    {}
    """
    found = {}
    for group in sorted(groups, key=lambda group: group.run.method == like.method):
        run, spans = group.run, group.trials[0].spans()
        same = all(getattr(run, name) == getattr(like, name) for name in BASE)
        if len(spans) == 1 and run.rounds == 1 and same:
            (task,) = spans
            if run.frames_of(task) == like.frames_of(task):
                scores = [mean_score(t.course(ORACLE), task, t.spans()[task]) for t in group.trials]
                found[task] = float(np.mean(scores))
    return found
