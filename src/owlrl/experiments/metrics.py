"""Metrics of a run, as pure functions on plain tables and arrays.

A table has one row ``(step, task, score)`` per evaluation of a task: the frames trained so far over all
tasks, the task's name and a score from 0 to 1. Tasks enter the table when their training has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from owlrl._arguments import Arguments
from owlrl.errors import OwlValueError

__all__ = [
    "cumulative_performance",
    "final_performance",
    "forgetting",
    "forward_transfer",
    "identification_accuracy",
    "iqm",
    "iqm_over_seeds",
    "mean_score",
    "probability_of_improvement",
    "regret",
    "steps_to_identify",
    "stratified_bootstrap",
    "welch_test",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Spans = Mapping[str, tuple[int, int]]  # per task: the steps at which its training began and ended


Rows = Iterable[tuple[int, str, float]]  # step, task and score


def final_performance(rows: Rows) -> float:
    """Mean over tasks of the score at the last step of the table: the paper's final performance.

    >>> from owlrl.experiments import final_performance
    >>> final_performance([(1, "left", 1.0), (2, "left", 0.5), (2, "right", 1.0)])
    0.75
    """
    table = _by_step("final_performance", rows)
    return float(np.mean(list(table[max(table)].values())))


def cumulative_performance(rows: Rows) -> float:
    """Mean over all steps of the mean score of the tasks in the table at that step: the paper's.

    It counts the tasks seen so far: counting tasks not yet begun would allow 0.89 at most with three tasks
    visited three times, and the paper has 0.95.

    >>> from owlrl.experiments import cumulative_performance
    >>> cumulative_performance([(1, "left", 1.0), (2, "left", 0.5), (2, "right", 1.0)])
    0.875
    """
    table = _by_step("cumulative_performance", rows)
    return float(np.mean([np.mean(list(scores.values())) for scores in table.values()]))


def forgetting(rows: Rows, spans: Spans) -> float:
    """Mean over tasks of score at the end of their own training − score at the end of all training.

    Continual World's convention (Wołczyk et al. 2021): the last task takes part with 0, and below
    zero means that later tasks helped. A task visited several times counts from its last visit.

    >>> from owlrl.experiments import forgetting
    >>> rows = [(1, "left", 1.0), (2, "left", 0.5), (2, "right", 1.0)]
    >>> forgetting(rows, {"left": (0, 1), "right": (1, 2)})
    0.25
    """
    if not spans:
        raise OwlValueError("forgetting: spans are empty; expected when each task was trained")
    table = _by_step("forgetting", rows)
    last = table[max(table)]
    lost = []
    for task, (_, end) in spans.items():
        if task not in table.get(end, {}) or task not in last:
            raise OwlValueError(
                f"forgetting: the table has no score of {task!r} at step {end} or at its last, {max(table)}"
            )
        lost.append(table[end][task] - last[task])
    return float(np.mean(lost))


def mean_score(rows: Rows, task: str, span: tuple[int, int]) -> float:
    """Mean score of a task over the evaluations in its training, after its start and up to its end.

    Evaluations come at equal distances, so it is the area under the training curve over its length.

    >>> from owlrl.experiments.metrics import mean_score
    >>> mean_score([(0, "left", 0.0), (1, "left", 0.5), (2, "left", 1.0)], "left", (0, 2))
    0.75
    """
    start, end = span
    inside = [score for step, name, score in rows if name == task and start < step <= end]
    if not inside:
        raise OwlValueError(f"mean_score: the table has no score of {task!r} in steps {start} to {end}")
    return float(np.mean(inside))


def forward_transfer(rows: Rows, spans: Spans, reference: Mapping[str, float]) -> float:
    """Mean over tasks of ``(AUC − AUC_ref) / (1 − AUC_ref)``, AUC being the `mean_score` in training.

    Continual World's convention (Wołczyk et al. 2021). Above zero, a task is learned faster in the sequence
    than alone. Tasks whose reference is 1 leave nothing to gain and are left out; NaN if none remain.

    Args:
        rows: the table of the sequence.
        spans: when each task was trained.
        reference: the mean score of each task when it is trained alone, from scratch.

    >>> from owlrl.experiments import forward_transfer
    >>> forward_transfer([(1, "left", 0.5), (2, "left", 1.0)], {"left": (0, 2)}, {"left": 0.5})
    0.5
    """
    if missing := [task for task in spans if task not in reference]:
        raise OwlValueError(f"forward_transfer: reference lacks {', '.join(missing)}; expected every task")
    table = list(rows)
    gains = [
        (mean_score(table, task, span) - reference[task]) / (1.0 - reference[task])
        for task, span in spans.items()
        if reference[task] < 1.0
    ]
    return float(np.mean(gains)) if gains else float("nan")


def identification_accuracy(arms: npt.ArrayLike, lengths: npt.ArrayLike, truth: npt.ArrayLike) -> float:
    """Share of E episodes whose last step was acted by the head of the right task.

    Args:
        arms: (T, E) the head that acted at each step; what follows an episode's end is ignored.
        lengths: (E,) steps of each episode, 1 to T.
        truth: (E,) the right head.

    >>> from owlrl.experiments import identification_accuracy
    >>> identification_accuracy([[0, 1], [1, 1], [1, 0]], [3, 2], [1, 0])
    0.5
    """
    acted, steps, right = _episodes("identification_accuracy", arms, lengths, truth)
    return float((acted[steps - 1, np.arange(len(steps))] == right).mean())


def steps_to_identify(arms: npt.ArrayLike, lengths: npt.ArrayLike, truth: npt.ArrayLike) -> IntArray:
    """Steps (E,) until the right head acts and goes on acting to the episode's end; its length if never.

    Arguments are those of `identification_accuracy`.

    >>> from owlrl.experiments import steps_to_identify
    >>> steps_to_identify([[0, 1], [1, 1], [1, 0]], [3, 2], [1, 0])
    array([1, 2])
    """
    acted, steps, right = _episodes("steps_to_identify", arms, lengths, truth)
    number = np.arange(1, len(acted) + 1)[:, None]  # (T, 1)
    wrong = (acted != right) & (number <= steps)
    found: IntArray = np.where(wrong, number, 0).max(axis=0)  # the last wrong step
    return found


def regret(oracle: npt.ArrayLike, adaptive: npt.ArrayLike) -> float:
    """Mean of score with the task given − score with the task unknown; arrays of one shape.

    >>> from owlrl.experiments import regret
    >>> regret([1.0, 1.0], [0.5, 1.0])
    0.25
    """
    told, found = np.asarray(oracle, dtype=np.float64), np.asarray(adaptive, dtype=np.float64)
    if told.shape != found.shape or not told.size:
        raise OwlValueError(
            f"regret: shapes are {told.shape} and {found.shape}; expected the same, not empty"
        )
    return float((told - found).mean())


def iqm(scores: npt.ArrayLike) -> FloatArray:
    """Interquartile mean over the last axis: a quarter is cut from each end, rounded down.

    >>> from owlrl.experiments import iqm
    >>> float(iqm([0.0, 0.5, 0.7, 9.0]))
    0.6
    """
    ordered = np.sort(np.atleast_1d(np.asarray(scores, dtype=np.float64)), axis=-1)
    count = ordered.shape[-1]
    if count == 0:
        raise OwlValueError("iqm: scores are empty; expected at least one")
    if np.isnan(ordered).any():
        raise OwlValueError("iqm: some scores are NaN; expected numbers")
    cut = count // 4
    middle: FloatArray = ordered[..., cut : count - cut].mean(axis=-1)
    return middle


def iqm_over_seeds(scores: npt.ArrayLike) -> FloatArray:
    """Interquartile mean over seeds of the mean over tasks; (..., seeds, tasks) → (...).

    Over all scores of seeds and tasks together (Agarwal et al. 2021) the cut would take away the worst
    tasks: a method that always fails one of four would look perfect.

    >>> from owlrl.experiments import iqm, iqm_over_seeds
    >>> scores = [[1.0, 1.0, 1.0, 0.0]] * 3
    >>> float(iqm_over_seeds(scores)), float(iqm(sum(scores, [])))
    (0.75, 1.0)
    """
    return iqm(np.asarray(scores, dtype=np.float64).mean(axis=-1))


class Interval(NamedTuple):
    """A confidence interval."""

    low: float
    high: float


def stratified_bootstrap(
    scores: npt.ArrayLike,
    *,
    statistic: Callable[[FloatArray], FloatArray] = iqm_over_seeds,
    level: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
) -> Interval:
    """Percentile interval of a statistic over seeds; each task is a stratum, resampled by itself.

    Args:
        scores: (seeds, tasks).
        statistic: from (resamples, seeds, tasks) to (resamples,).
        level: of confidence.
        resamples: how often the seeds are drawn again.
        seed: of the draws.

    >>> from owlrl.experiments import stratified_bootstrap
    >>> stratified_bootstrap([[1.0, 0.5], [1.0, 0.5], [1.0, 0.5]])  # nothing varies over seeds
    Interval(low=0.75, high=0.75)
    """
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise OwlValueError(f"stratified_bootstrap: scores have shape {table.shape}; expected (seeds, tasks)")
    if not 0 < level < 1:
        raise OwlValueError(f"stratified_bootstrap: level is {level!r}; expected a number between 0 and 1")
    arguments = Arguments("stratified_bootstrap")
    resamples = arguments.integer("resamples", resamples)
    arguments.check()
    seeds, tasks = table.shape
    drawn = np.random.default_rng(seed).integers(seeds, size=(resamples, seeds, tasks))
    resampled = table[drawn, np.arange(tasks)]
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(statistic(resampled), [tail, 1.0 - tail])
    return Interval(float(low), float(high))


def probability_of_improvement(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """How likely a run of the first beats one of the second, a tie counting half: over all pairs of seeds.

    >>> from owlrl.experiments import probability_of_improvement
    >>> probability_of_improvement([0.5, 1.0], [0.5, 0.5])
    0.75
    """
    x, y = (np.asarray(scores, dtype=np.float64) for scores in (first, second))
    if x.ndim != 1 or y.ndim != 1 or not x.size or not y.size:
        raise OwlValueError(
            f"probability_of_improvement: shapes are {x.shape} and {y.shape}; expected a score per seed"
        )
    pairs = x[:, None] - y[None, :]
    return float(((pairs > 0) + 0.5 * (pairs == 0)).mean())


def welch_test(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Two-sided p-value of Welch's t-test for equal means, with unequal variances.

    Where neither varies there is nothing to test: 1 if the means are equal, else 0.

    >>> from owlrl.experiments import welch_test
    >>> round(welch_test([1.0, 2.0, 3.0], [2.0, 3.0, 7.0]), 4)
    0.3213
    """
    x, y = (np.asarray(scores, dtype=np.float64) for scores in (first, second))
    if x.ndim != 1 or y.ndim != 1 or min(len(x), len(y)) < 2:
        raise OwlValueError(f"welch_test: shapes are {x.shape} and {y.shape}; expected two scores at least")
    parts = np.array([x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)])
    difference = abs(float(x.mean() - y.mean()))
    if parts.sum() <= np.finfo(np.float64).eps * max(np.abs(x).max(), np.abs(y).max()) ** 2:
        return float(difference <= np.finfo(np.float64).eps * max(np.abs(x).max(), 1.0))
    freedom = float(parts.sum() ** 2 / (parts**2 / (np.array([len(x), len(y)]) - 1)).sum())
    # with t = √ν tan φ, Student's density is cos(φ)^(ν − 1) times a constant
    angle = np.arctan(difference / np.sqrt(parts.sum() * freedom))
    middles = (np.arange(20_000) + 0.5) / 20_000
    inside, whole = (end * (np.cos(end * middles) ** (freedom - 1)).mean() for end in (angle, np.pi / 2))
    return float(1.0 - inside / whole)


def _by_step(where: str, rows: Rows) -> dict[int, dict[str, float]]:
    table: dict[int, dict[str, float]] = {}
    for step, task, score in rows:
        table.setdefault(step, {})[task] = score
    if not table:
        raise OwlValueError(f"{where}: the table is empty; expected rows (step, task, score)")
    return table


def _episodes(
    where: str, arms: npt.ArrayLike, lengths: npt.ArrayLike, truth: npt.ArrayLike
) -> tuple[IntArray, IntArray, IntArray]:
    acted, steps, right = (np.asarray(a, dtype=np.int64) for a in (arms, lengths, truth))
    if acted.ndim != 2 or not acted.size or steps.shape != (acted.shape[1],) or right.shape != steps.shape:
        raise OwlValueError(
            f"{where}: arms, lengths and truth have shapes {acted.shape}, {steps.shape} and {right.shape}; "
            "expected (T, E), (E,) and (E,)"
        )
    if steps.min() < 1 or steps.max() > len(acted):
        raise OwlValueError(
            f"{where}: lengths go from {steps.min()} to {steps.max()}; expected 1 to {len(acted)}"
        )
    return acted, steps, right
