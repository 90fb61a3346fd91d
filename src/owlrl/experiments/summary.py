"""Numbers over seeds: runs that differ by nothing but their seed, and what they give together."""

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
from owlrl.experiments.results import Result

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
    """Results of one run with several seeds; not all of them need have been asked unseen levels.

    >>> from owlrl.experiments import Result, Run
    >>> from owlrl.experiments.summary import Group
    >>> row = {"kind": "evaluation", "policy": "oracle", "set": "seen", "task": "a", "success": 1.0}
    >>> Group((Result(Run("SC2"), [row], {}),)).scores("oracle")
    array([[1.]])
    """

    results: tuple[Result, ...]

    @property
    def run(self) -> Run:
        """The run, with the seed of the first result."""
        return self.results[0].run

    @property
    def label(self) -> str:
        """The method, and the strength of its regularizer if it is not the method's own."""
        strength = "" if self.run.strength is None else f" ({self.run.strength:g})"
        return f"{self.run.method}{strength}"

    def policies(self, label: str = "seen") -> list[str]:
        """What all results that were evaluated on a set were evaluated with there."""
        every = ([row["policy"] for row in r.select("evaluation", set=label)] for r in self.results)
        found = [policies for policies in every if policies]
        first = dict.fromkeys(found[0]) if found else ()
        return [policy for policy in first if all(policy in policies for policies in found)]

    def scores(self, policy: str, *, label: str = "seen") -> FloatArray:
        """Share of episodes that succeeded, or mean return with continuous actions, (seeds, tasks)."""
        rows = [result.select("evaluation", policy=policy, set=label) for result in self.results]
        return np.array([[row[self.run.measure] for row in of_seed] for of_seed in rows if of_seed])

    def mean_of(self, field: str, policy: str) -> float:
        """Mean over seeds and tasks of another field of the evaluations, e.g. "identified"."""
        found = [
            row[field] for r in self.results for row in r.select("evaluation", policy=policy) if field in row
        ]
        return float(np.mean(found)) if found else float("nan")

    def estimate(self, policy: str, *, label: str = "seen") -> Estimate:
        """Interquartile mean over seeds of the mean over tasks, with its interval."""
        scores = self.scores(policy, label=label)
        interval = stratified_bootstrap(scores) if len(scores) > 1 else None
        return Estimate(float(iqm_over_seeds(scores)), interval)

    def quartiles(self, policy: str, *, label: str = "seen") -> Quartiles:
        """Over seeds, of the mean over tasks."""
        return Quartiles.of(self.scores(policy, label=label).mean(axis=1))

    def cumulative(self, policy: str) -> Quartiles | None:
        """Of the cumulative performance; None if the policy was not followed through training."""
        curves = [_curve(result, policy) for result in self.results]
        return Quartiles.of([cumulative_performance(curve) for curve in curves]) if all(curves) else None

    def after_each_task(self, policy: str) -> Quartiles | None:
        """Of the mean over the ends of all trainings; None if the policy was not asked there."""
        curves = [_at_ends(_curve(result, policy), result) for result in self.results]
        return Quartiles.of([cumulative_performance(curve) for curve in curves]) if all(curves) else None

    def forgetting(self) -> float | None:
        """Mean over seeds, with the task given; None if training was not followed."""
        if not all(_curve(result, ORACLE) for result in self.results):
            return None
        return float(np.mean([forgetting(_curve(r, ORACLE), _spans(r)) for r in self.results]))

    def forward_transfer(self, alone: dict[str, float]) -> float | None:
        """Mean over seeds; None if a task was not trained alone, or if training was not followed."""
        tasks = set(_first_spans(self.results[0]))
        if not tasks or not tasks <= set(alone):
            return None
        gains = [forward_transfer(_curve(r, ORACLE), _first_spans(r), alone) for r in self.results]
        return float(np.mean(gains))

    def failures(self, policy: str) -> float | None:
        """Mean failed episodes in a row of them with kept evidence; None if that was not evaluated."""
        rows = [row for result in self.results for row in result.select("in-a-row", policy=policy)]
        return float(np.mean([row["failures"] for row in rows])) if rows else None

    def minutes(self) -> float | None:
        """How long a core was busy with training and evaluation, mean over seeds; None if not measured."""
        if not all("cpu_seconds" in result.info for result in self.results):
            return None
        return float(np.mean([r.info["cpu_seconds"] for r in self.results])) / 60.0


def group_by_run(results: Iterable[Result]) -> list[Group]:
    """Put results together whose runs differ by the seed and unseen levels only, in the order they come.

    >>> from owlrl.experiments import Result, Run
    >>> from owlrl.experiments.summary import group_by_run
    >>> results = [Result(Run("SC2", seed=k % 2, rounds=1 + k // 2), [], {}) for k in range(4)]
    >>> [len(group.results) for group in group_by_run(results)]
    [2, 2]
    """
    groups: dict[str, dict[int, Result]] = {}
    for result in results:
        key = json.dumps(replace(result.run, seed=0, unseen=()).to_json(), sort_keys=True)
        seeds = groups.setdefault(key, {})
        other = seeds.setdefault(result.run.seed, result)
        if len(result.run.unseen) > len(other.run.unseen):  # the same training, asked more
            seeds[result.run.seed] = result
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
        run = group.run
        spans = _spans(group.results[0])
        same = all(getattr(run, name) == getattr(like, name) for name in BASE)
        if len(spans) == 1 and run.rounds == 1 and same:
            (task,) = spans
            if run.frames_of(task) == like.frames_of(task):
                scores = [mean_score(_curve(r, ORACLE), task, _spans(r)[task]) for r in group.results]
                found[task] = float(np.mean(scores))
    return found


def _curve(result: Result, policy: str) -> list[tuple[int, str, float]]:
    return [(row["step"], row["task"], row["score"]) for row in result.select("score", policy=policy)]


def _at_ends(curve: list[tuple[int, str, float]], result: Result) -> list[tuple[int, str, float]]:
    ends = {row["end"] for row in result.select("training")}
    return [row for row in curve if row[0] in ends]


def _spans(result: Result) -> dict[str, tuple[int, int]]:
    """The last training of each task."""
    return {row["task"]: (row["start"], row["end"]) for row in result.select("training")}


def _first_spans(result: Result) -> dict[str, tuple[int, int]]:
    return {row["task"]: (row["start"], row["end"]) for row in result.select("training", round=0)}
