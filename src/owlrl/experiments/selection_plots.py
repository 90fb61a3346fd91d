"""Ways to select a head: compared with random heads, and followed through training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from owlrl.errors import OwlValueError
from owlrl.experiments.metrics import probability_of_improvement, welch_test
from owlrl.experiments.plots import (
    COLOURS,
    INK,
    MARKERS,
    QUIET,
    colour,
    count,
    dashes,
    label,
    new_figure,
    plain,
    thousands,
)
from owlrl.experiments.policies import ORACLE
from owlrl.experiments.results import Group, Trial, group_by_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["selection_bars", "selection_curves", "selections"]

RANDOM = "random"


class Selection(NamedTuple):
    """A policy for the task unknown, compared with random heads.

    Attributes:
        policy: its name.
        scores: of each seed, the mean over tasks.
        p: two-sided, of Welch's t-test against random heads; NaN for one seed.
        better: how likely a seed of it beats one of random heads.
    """

    policy: str
    scores: tuple[float, ...]
    p: float
    better: float


def selections(group: Group) -> list[Selection]:
    """Every way to act that a group was evaluated with, compared with random heads as the paper does.

    >>> from owlrl.experiments import Run, Trial, selections
    >>> from owlrl.experiments.results import Group
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
    >>> from owlrl.experiments.results import Group
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


def selection_curves(trials: Iterable[Trial], *, modes: Sequence[str] = ()) -> Figure:
    """Ways to select a head through training: the score, and how many episodes end with the right head.

    Scores are the mean over all tasks trained in so far. Lines are medians over seeds, shades quartiles;
    every second visit is shaded.

    Args:
        trials: of one run, with any number of seeds.
        modes: which ways; all that were evaluated after each visit if empty.

    >>> from owlrl.experiments import Run, Trial, selection_curves
    >>> rows = [{"kind": "training", "visit": 0, "task": "crossroads-0"},
    ...         {"kind": "score", "visit": 0, "task": "crossroads-0", "mode": "hedge+td", "success": 1.0,
    ...          "found": 0.5}]
    >>> score, right = selection_curves([Trial.of(Run("Crossroads-2"), rows)], modes=["hedge+td"]).axes
    >>> right.get_lines()[0].get_ydata()
    array([0.5])
    """
    groups = group_by_run(trials)
    if len(groups) != 1:
        raise OwlValueError(f"selection_curves: trials are of {len(groups)} runs; expected those of one")
    (group,) = groups
    chosen, there = list(modes) or group.trials[0].followed(), _asked(group.trials[0])
    if odd := [mode for mode in chosen if mode not in there]:
        raise OwlValueError(
            f"selection_curves: modes has {', '.join(odd)}; {group.label} has {', '.join(there)}"
        )
    figure = new_figure(8.6, 3.5, what="selection_curves")
    panels = figure.subplots(1, 2)
    for axes, course in zip(panels, (_scores, _right), strict=True):
        _name_visits(axes, group.trials[0])
        axes.xaxis.set_major_formatter(thousands)
        axes.set_xlabel("frames of all tasks so far", fontsize=9)
        for k, mode in enumerate(chosen):
            seeds = [course(trial, mode) for trial in group.trials]
            steps = sorted(set.intersection(*map(set, seeds)))
            if not steps:
                continue
            values = [[seed[step] for step in steps] for seed in seeds]
            low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=0)
            look: dict[str, Any] = {"color": colour(k), "ls": dashes(k), "marker": MARKERS[k % len(MARKERS)]}
            axes.plot(steps, middle, lw=1.6, ms=3.5, label=label(mode), clip_on=False, **look)
            if len(seeds) > 1:
                axes.fill_between(steps, low, high, color=colour(k), alpha=0.2, lw=0)
    panels[0].set_ylabel("success" if group.run.measure == "success" else "mean return", fontsize=9)
    panels[1].set(ylim=(-0.03, 1.03))
    panels[1].set_ylabel("share of episodes that\nend with the right head", fontsize=9)
    figure.suptitle(f"{label(group.label)}, {count(len(group.trials), 'seed')}", fontsize=10)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def _name_visits(axes: Axes, trial: Trial) -> None:
    """Every second visit is shaded; the tasks' names above it, as long as there is room."""
    starts = trial.starts()
    for k, task in enumerate(trial.visits):
        axes.axvspan(starts[k], starts[k + 1], color=QUIET, alpha=0.18 * (k % 2), lw=0)
        if len(trial.visits) <= 6:
            place = (starts[k] + starts[k + 1]) / 2
            look: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 5.5, "color": QUIET}
            axes.text(place, 1.01, label(task, most=12), transform=axes.get_xaxis_transform(), **look)
    axes.set_xlim(starts[0], starts[-1])
    axes.locator_params(axis="x", nbins=5)
    plain(axes)


def _asked(trial: Trial) -> list[str]:
    """The modes that were evaluated after the first visit or within it."""
    first = [row["mode"] for row in trial.select("score", visit=0, set=None)]
    return list(dict.fromkeys([*trial.followed(), *first]))


def _scores(trial: Trial, mode: str) -> dict[int, float]:
    """Mean score over the tasks trained in so far, by step."""
    found: dict[int, list[float]] = {}
    for step, _, score in trial.course(mode):
        found.setdefault(step, []).append(score)
    return {step: float(np.mean(scores)) for step, scores in found.items()}


def _right(trial: Trial, mode: str) -> dict[int, float]:
    """Share of episodes with the right head at their end, mean over tasks, by step; none if it is given."""
    if mode == ORACLE:
        return {}
    starts, shares = trial.starts(), dict[int, float]()
    for visit in range(len(trial.visits)):
        rows = trial.select("score", visit=visit, mode=mode, set=None)
        found = [row["found"] for row in rows if row.get("found") is not None]
        if found:
            shares[starts[visit + 1]] = float(np.mean(found))
    return shares
