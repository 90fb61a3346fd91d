"""The paper's remaining pictures, for any results: completions, heads' errors, selection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from owlrl.errors import OwlValueError
from owlrl.experiments.metrics import probability_of_improvement, welch_test
from owlrl.experiments.plots import (
    COLOURS,
    INK,
    QUIET,
    colour,
    count,
    dashes,
    label,
    new_figure,
    plain,
    whole_steps,
)
from owlrl.experiments.policies import ORACLE
from owlrl.experiments.results import Trial
from owlrl.experiments.summary import Group, group_by_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Selection", "completions", "head_errors", "selection_bars", "selections"]

RANDOM = "random"


def completions(trials: Iterable[Trial], *, mode: str = ORACLE) -> Figure:
    """How often each level has been solved so far: a panel per level, a line per method.

    Checks in training are counted; the line is the median over seeds, the shade the
    quartiles. A level that a method never solves stays at 0: interference, not forgetting.

    Args:
        trials: of one sequence of tasks, checked equally often.
        mode: how the checks acted.

    >>> from owlrl.experiments import Run, Trial, completions
    >>> task = {"task": "crossroads-0", "visit": 0, "success": 1.0}
    >>> rows = [{"kind": "training", **task}, {"kind": "curve", "step": 9, "mode": "oracle", **task},
    ...         {"kind": "score", "mode": "oracle", **task}]
    >>> figure = completions([Trial.of(Run("Crossroads-2"), rows)])
    >>> figure.axes[0].get_lines()[0].get_ydata()
    array([1., 2.])
    """
    groups = group_by_run(trials)
    tasks = list(dict.fromkeys(row[1] for g in groups for trial in g.trials for row in trial.course(mode)))
    if not tasks:
        raise OwlValueError(
            f"completions: no trial has checks with {mode!r}; expected rows of kind 'score' or 'curve'"
        )
    figure = new_figure(1.2 + 2.1 * len(tasks), 2.9, what="completions")
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        for k, group in enumerate(groups):
            steps, sums = _sums(group, task, mode)
            low, middle, high = np.quantile(sums, [0.25, 0.5, 0.75], axis=0)
            axes.plot(steps, middle, color=colour(k), ls=dashes(k), lw=1.8, label=label(group.label))
            axes.fill_between(steps, low, high, color=colour(k), alpha=0.2, lw=0)
        axes.set_title(label(task), fontsize=9)
        axes.locator_params(axis="x", nbins=3)
        plain(axes)
    panels[0].set_ylabel("checks solved so far", fontsize=9)
    panels[len(panels) // 2].set_xlabel("frames of all tasks so far", fontsize=9)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


def _sums(group: Group, task: str, mode: str) -> tuple[list[int], Any]:
    """Steps at which every seed was checked, and the running sums there, (seeds, checks)."""
    seeds = [{step: score for step, of, score in t.course(mode) if of == task} for t in group.trials]
    steps = sorted(set.intersection(*(set(seed) for seed in seeds)))
    return steps, np.cumsum([[seed[step] for step in steps] for seed in seeds], axis=1)


def head_errors(traces: Sequence[Mapping[str, Any]]) -> Figure:
    """The loss of each head at each step of some episodes, e.g. of a level that was seen and of another.

    Args:
        traces: rows of kind "trace", as an evaluation gives them, with ``task``, ``mode``, ``heads`` and
            ``losses`` (T, n).

    >>> from owlrl.experiments import head_errors
    >>> seen = {"task": "right", "mode": "hedge+td", "heads": ["left", "right"],
    ...         "losses": [[2.0, 0.1], [1.0, 0.2]]}
    >>> [axes.get_title() for axes in head_errors([seen, {**seen, "task": "other"}]).axes]
    ['right: seen', 'other: not seen']
    """
    if not traces:
        raise OwlValueError("head_errors: there are no traces; expected at least one")
    figure = new_figure(1.6 + 3.2 * len(traces), 2.8, what="head_errors")
    panels = figure.subplots(1, len(traces), sharey=True, squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, trace in zip(panels, traces, strict=True):
        losses = np.asarray(trace["losses"], dtype=np.float64)  # (T, n)
        for k, name in enumerate(trace["heads"]):
            right = name == trace["task"]
            look: dict[str, Any] = {"color": colour(k), "ls": dashes(k), "lw": 2.4 if right else 1.2}
            (handles[label(name)],) = axes.plot(np.arange(1, len(losses) + 1), losses[:, k], **look)
        seen = "seen" if trace["task"] in trace["heads"] else "not seen"
        axes.set_title(f"{label(trace['task'])}: {seen}", fontsize=9)
        axes.set_xlabel("step of the episode", fontsize=9)
        whole_steps(axes)
        plain(axes)
    panels[0].set_ylabel(f"loss of each head\n({label(traces[0]['mode'])})", fontsize=9)
    figure.legend(
        handles.values(), handles.keys(), loc="outside right center", fontsize=8, frameon=False, title="head"
    )
    return figure


class Selection(NamedTuple):
    """A policy for the task unknown, compared with random heads.

    Attributes:
        policy: its name.
        scores: of each seed, the mean over tasks.
        p: two-sided, of Welch's t-test against random heads; NaN for one seed.
        better: how likely a seed of it beats one of random heads.

    >>> from owlrl.experiments.paper_plots import Selection
    >>> Selection("hedge+td", (0.9, 1.0), 0.02, 1.0).better
    1.0
    """

    policy: str
    scores: tuple[float, ...]
    p: float
    better: float


def selections(group: Group) -> list[Selection]:
    """Every way to act that a group was evaluated with, compared with random heads as the paper does.

    >>> from owlrl.experiments import Run, Trial, selections
    >>> from owlrl.experiments.summary import Group
    >>> rows = [{"kind": "score", "visit": 0, "mode": mode, "task": "a", "success": score}
    ...         for mode, score in (("hedge+td", 1.0), ("random", 0.5))]
    >>> [(found.policy, found.better) for found in selections(Group((Trial.of(Run("SC2"), rows),)))]
    [('hedge+td', 1.0), ('random', 0.5)]
    """
    if RANDOM not in group.modes():
        raise OwlValueError(
            f"selections: {group.label} was not evaluated with {RANDOM!r}; expected it as well"
        )
    base = group.scores(RANDOM).mean(axis=1)
    found = []
    for policy in group.modes():
        scores = group.scores(policy).mean(axis=1)
        p = welch_test(scores, base) if len(scores) > 1 else float("nan")
        found.append(Selection(policy, tuple(scores.tolist()), p, probability_of_improvement(scores, base)))
    return found


def selection_bars(group: Group) -> Figure:
    """The paper's bar chart of ways to select a head, with both comparisons to random heads.

    >>> from owlrl.experiments import Run, Trial, selection_bars
    >>> from owlrl.experiments.summary import Group
    >>> rows = [{"kind": "score", "visit": 0, "mode": "random", "task": "a", "success": 0.5}]
    >>> selection_bars(Group((Trial.of(Run("SC2"), rows),))).axes[0].get_xlabel()
    'mean score over tasks (1 seed)'
    """
    found = selections(group)
    figure = new_figure(7.5, 0.9 + 0.3 * len(found), what="selection_bars")
    axes = figure.subplots()
    places = np.arange(len(found))[::-1]
    axes.barh(places, [np.mean(one.scores) for one in found], 0.65, color=COLOURS[0], alpha=0.8)
    for place, one in zip(places, found, strict=True):
        axes.plot(one.scores, np.full(len(one.scores), place), ".", color=INK, ms=3)
        if one.policy != RANDOM:
            text = f"p = {one.p:.2g}, better in {one.better:.0%}"
            axes.text(
                1.02, place, text, va="center", fontsize=8, color=QUIET, transform=axes.get_yaxis_transform()
            )
    axes.set(yticks=places, yticklabels=[label(one.policy) for one in found])
    axes.set_xlabel(f"mean score over tasks ({count(len(group.trials), 'seed')})", fontsize=9)
    axes.set_title(f"{label(group.label)}: beside random heads", fontsize=10, loc="left")
    plain(axes)
    return figure
