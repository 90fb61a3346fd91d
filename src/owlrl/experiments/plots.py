"""Pictures of results: functions from rows to matplotlib figures, without a screen."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from owlrl.errors import OwlValueError, raise_problems
from owlrl.experiments._optional import optional
from owlrl.experiments.policies import ORACLE
from owlrl.experiments.results import Group, Trial, group_by_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "arm_positions",
    "completions",
    "head_errors",
    "head_probabilities",
    "learning_curves",
]

# Okabe and Ito's, which people with any colour vision can tell apart; without their yellow and black,
# which are hard to see as a line and as a border. The seventh head has the first one's colour, dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.5)), (0, (1, 1)))
HATCHES = ("", "////", "....")
FILES = (".jpg", ".pdf", ".png", ".svg")
INK, QUIET = "#222222", "#8a8a8a"  # text, and what belongs to no head
FloatArray = npt.NDArray[np.float64]
MARKERS = "osDv^"  # of the policies that are looked at after each task only


def new_figure(width: float, height: float, *, what: str = "a picture") -> Figure:
    """An empty figure of so many inches, outside of any global state."""
    module = optional("matplotlib.figure", extra="plots", what=what)
    figure: Figure = module.Figure(figsize=(width, height), layout="constrained", facecolor="white")
    return figure


def prepare_picture(path: Path) -> None:
    """Make sure that a picture can be written there, before anything that takes time."""
    optional("matplotlib.figure", extra="plots", what="the picture")
    if path.suffix.lower() not in FILES:
        raise OwlValueError(f"picture is {path}; expected a name that ends with {', '.join(FILES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OwlValueError(f"picture is {path}, which cannot be written; expected a file's name")


def plain(axes: Axes) -> None:
    """No more frame than is needed, and small numbers at it."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def whole_steps(axes: Axes) -> None:
    """No ticks between two steps."""
    ticker = optional("matplotlib.ticker", extra="plots", what="a picture")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))


def colour(head: int) -> str:
    """The colour of a head."""
    return COLOURS[head % len(COLOURS)]


def dashes(head: int) -> Any:
    """The line style of a head."""
    return DASHES[head // len(COLOURS) % len(DASHES)]


def hatch(head: int) -> str:
    """The hatch of a head's areas; none for the first few."""
    return HATCHES[head // len(COLOURS) % len(HATCHES)]


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 seed", "2 seeds"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def label(name: object, *, most: int = 28) -> str:
    """A name as matplotlib shows it as it is: no mathematics, and no name that legends leave out."""
    text = short(str(name), most=most).replace("\\", "\\\\").replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def short(text: str, *, most: int) -> str:
    """The text with its middle left out where it is too long: levels differ at their end."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[: most - 1 - half]}…{text[-half:]}"


def learning_curves(trials: Iterable[Trial], *, reference: Mapping[str, float] | None = None) -> Figure:
    """How well each task is solved while one after the other is trained: a row per task, a column per method.

    The line is the mean over seeds with the task given, the shade around it one standard deviation;
    marks are policies with the task unknown. Background bands have the colour of the task in training.
    ``reference`` is a score per task to draw as a dashed line, e.g. that of a model trained on it alone.

    >>> from owlrl.experiments import Run, Trial, learning_curves
    >>> rows = [{"kind": "training", "visit": 0, "task": "crossroads-0"},
    ...         {"kind": "score", "visit": 0, "task": "crossroads-0", "mode": "oracle", "success": 1.0}]
    >>> learning_curves([Trial.of(Run("Crossroads-2"), rows)]).axes[0].get_ylabel()
    'crossroads-0'
    """
    groups, levels = group_by_run(trials), dict(reference or {})
    tasks = _tasks(groups)
    if odd := sorted(set(levels) - set(tasks)):
        raise OwlValueError(
            f"learning_curves: reference has {', '.join(odd)}; expected some of {', '.join(tasks)}"
        )
    height = 0.65 if len(tasks) > 6 else max(0.95, 2.4 / len(tasks))
    wide = 3.1 if len(groups) > 1 else 5.0
    figure = new_figure(1.4 + wide * len(groups), 1.3 + height * len(tasks), what="learning_curves")
    panels = figure.subplots(len(tasks), len(groups), sharex="col", sharey=True, squeeze=False)
    every = [trial for group in groups for trial in group.trials]
    followed = dict.fromkeys(mode for trial in every for mode in trial.followed())
    adaptive = [mode for mode in followed if mode != ORACLE]
    scores = [row[2] for trial in every for mode in (ORACLE, *adaptive) for row in trial.course(mode)]
    shares = all(0 <= score <= 1 for score in scores)
    for column, group in enumerate(groups):
        for number, task in enumerate(tasks):
            axes = panels[number][column]
            _bands(axes, group.trials[0], tasks)
            if task in levels:
                axes.axhline(levels[task], color=INK, lw=1, ls=(0, (5, 2)))
            _curve(axes, group, task, ORACLE, color=colour(number), linestyle=dashes(number))
            for place, policy in enumerate(adaptive):
                _marks(axes, group, task, policy, place=place, of=len(adaptive), color=colour(number))
        seeds = count(len(group.trials), "seed")
        panels[0][column].set_title(f"{label(group.label)}\n{seeds}", fontsize=10)
        panels[-1][column].set_xlabel("frames of all tasks so far", fontsize=9)
        panels[-1][column].xaxis.set_major_formatter(thousands)
    for number, task in enumerate(tasks):
        axes = panels[number][0]
        axes.set_ylabel(label(task), rotation=0, ha="right", va="center", color=colour(number), fontsize=9)
        if shares:
            axes.set(ylim=(-0.12, 1.12), yticks=[0, 1])
    figure.supylabel("share of episodes solved" if shares else "mean return", fontsize=9)
    _key(figure, adaptive, shade=any(len(group.trials) > 1 for group in groups), levels=bool(levels))
    return figure


def head_probabilities(trace: Mapping[str, Any]) -> Figure:
    """One episode: which head acted, the probability of each, and how badly each explained the steps.

    Args:
        trace: a row of kind "trace": ``task``, ``mode``, ``heads``, ``success``, ``arms`` (T),
            ``probabilities`` and ``losses`` (T, n).

    >>> from owlrl.experiments import head_probabilities
    >>> figure = head_probabilities({
    ...     "task": "right", "mode": "hedge+td", "heads": ["left", "right"], "success": True,
    ...     "arms": [0, 1], "probabilities": [[0.5, 0.5], [0.1, 0.9]], "losses": [[2.0, 0.1], [1.0, 0.2]]})
    >>> len(figure.axes)
    3
    """
    heads, arms = list(trace["heads"]), np.asarray(trace["arms"], dtype=np.int64)
    probabilities, losses = np.asarray(trace["probabilities"], float), np.asarray(trace["losses"], float)
    raise_problems("head_probabilities", _trace_problems(len(heads), arms, probabilities, losses))
    figure = new_figure(7.8, max(3.9, 1.6 + 0.21 * len(heads)), what="head_probabilities")
    acted, upper, lower = figure.subplots(3, 1, sharex=True, height_ratios=(0.14, 1, 1))
    draw_acting(acted, arms)
    acted.set_ylabel("acts", rotation=0, ha="right", va="center", fontsize=9)
    draw_probabilities(upper, probabilities, heads)
    excess = np.cumsum(losses, axis=0)
    excess = excess - excess.min(axis=1, keepdims=True)
    for k in range(len(heads)):
        _steps(lower, excess[:, k], k)
    lower.set(xlabel="step of the episode", ylabel="loss so far\nabove the least", xlim=(0, len(arms)))
    lower.set_ylim(-0.03 * (top := float(excess.max()) or 1.0), 1.05 * top)
    whole_steps(lower)
    for axes in (upper, lower):
        plain(axes)
    names = [f"{label(name)} (right)" if name == trace["task"] else label(name) for name in heads]
    lines = upper.get_lines()[: len(heads)]
    legend = figure.legend(lines, names, loc="outside right center", fontsize=9, frameon=False, title="head")
    for text, name in zip(legend.get_texts(), heads, strict=True):
        text.set_fontweight("bold" if name == trace["task"] else "normal")
    about = f"{label(trace['mode'])} in {label(trace['task'])}"
    acted.set_title(f"{about}: {outcome(trace)}", fontsize=10, loc="left")
    return figure


def outcome(trace: Mapping[str, Any]) -> str:
    """How an episode ended, in words; where there is nothing to solve, how long it was."""
    steps, success = count(len(trace["arms"]), "step"), trace.get("success")
    return steps if success is None else f"{'solved' if success else 'not solved'} in {steps}"


def draw_probabilities(axes: Axes, probabilities: npt.ArrayLike, heads: Sequence[str]) -> None:
    """Draw the probability (T, n) of each head at each step into axes, a labelled line per head."""
    values = np.asarray(probabilities, dtype=np.float64)
    for k, name in enumerate(heads):
        _steps(axes, values[:, k], k, label=label(name))
    axes.set(ylabel="probability", ylim=(-0.03, 1.03), xlim=(0, len(values)))


def draw_acting(axes: Axes, arms: npt.NDArray[np.int64]) -> None:
    """A bar along the episode in the colours of the heads that acted."""
    starts = np.flatnonzero(np.diff(arms, prepend=-1))
    ends = np.append(starts[1:], len(arms))
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        head = int(arms[start])
        look: dict[str, Any] = {"color": colour(head), "hatch": hatch(head), "edgecolor": "white", "lw": 0}
        axes.barh(0, end - start, 1, left=start, **look)
    axes.set(ylim=(-0.5, 0.5), xlim=(0, len(arms)), yticks=[])
    axes.tick_params(axis="x", length=0)
    axes.spines[:].set_visible(False)


def draw_study(study: Any, *, reference: str) -> Figure:
    """A `Study`: a panel per task, a line per method, levels of what is learned alone and ``reference``."""
    wide = 1.0 + 0.55 * max(4, len(study.visits))
    figure = new_figure(1.6 + wide * len(study.tasks), 3.4, what="Study.figure")
    panels = figure.subplots(1, len(study.tasks), squeeze=False)[0]
    places = np.arange(len(study.visits))
    for column, (axes, task) in enumerate(zip(panels, study.tasks, strict=True)):
        for name, style in (("alone", (0, (5, 2))), (reference, (0, (1, 2)))):
            if any(trial.method == name for trial in study.trials):
                level = float(study.scores(name)[:, column].mean())
                axes.axhline(level, color=QUIET, lw=1.2, ls=style, label=name)
        for number, method in enumerate(method for method in study.methods if method != "alone"):
            _study_line(axes, study, method, column, number)
        for place in np.flatnonzero([name == task for name in study.visits]):
            axes.axvspan(place - 0.5, place, color=QUIET, alpha=0.15, lw=0)  # it is in training
        axes.set_title(label(task), fontsize=10, color=INK)
        names = [label(name, most=10) for name in study.visits]
        axes.set_xticks(places, names, rotation=30, ha="right")
        axes.set_xlim(-0.5, len(places) - 0.7)
        plain(axes)
    panels[0].set_ylabel("return", fontsize=9)
    figure.supxlabel("after training in", fontsize=9)
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(text, handle)
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _study_line(axes: Axes, study: Any, method: str, column: int, number: int) -> None:
    every = study.after_each(method)[:, :, column]  # (seeds, visits)
    places, mean, ink = np.arange(every.shape[1]), every.mean(axis=0), colour(number)
    axes.plot(places, mean, marker="o", ms=3.5, lw=1.6, ls=dashes(number), color=ink, label=label(method))
    if len(every) > 1:
        there = ~np.isnan(mean)
        low, high = every[:, there].min(axis=0), every[:, there].max(axis=0)
        axes.fill_between(places[there], low, high, alpha=0.15, lw=0, color=ink)
    if "unknown" in study.modes(method)[1:]:
        unknown = [float(study.scores(method, mode="unknown")[:, column].mean())]
        look: dict[str, Any] = {"marker": "x", "ms": 6, "mew": 1.6, "ls": "none", "color": ink}
        axes.plot(places[-1:] + 0.12, unknown, label=f"{label(method)}, task unknown", **look)


def _steps(axes: Axes, values: FloatArray, head: int, **more: Any) -> None:
    """A value for each step, held until the next: step t reaches from t to t + 1."""
    held = np.append(values, values[-1:])
    look: dict[str, Any] = {"color": colour(head), "linestyle": dashes(head), **more}
    axes.plot(np.arange(len(held)), held, drawstyle="steps-post", lw=1.7 if len(held) < 150 else 1.1, **look)


def _tasks(groups: Sequence[Group]) -> list[str]:
    """The tasks in the order they are trained in; the same in all groups."""
    sequences = {tuple(dict.fromkeys(trial.visits)) for group in groups for trial in group.trials}
    if len(sequences) != 1 or not all(sequences):
        found = " and ".join(str(list(sequence)) for sequence in sorted(sequences)) or "none"
        raise OwlValueError(
            f"learning_curves: the tasks in training are {found}; expected results of one sequence of tasks"
        )
    return list(sequences.pop())


def _bands(axes: Axes, trial: Trial, tasks: Sequence[str]) -> None:
    starts = trial.starts()
    for start, end, task in zip(starts, starts[1:], trial.visits, strict=False):
        k = tasks.index(task)
        axes.axvspan(start, end, facecolor=colour(k), alpha=0.16, lw=0, hatch=hatch(k), edgecolor="white")
    axes.set_xlim(starts[0], starts[-1])
    axes.locator_params(axis="x", nbins=5)
    plain(axes)


def _curve(axes: Axes, group: Group, task: str, policy: str, **style: Any) -> None:
    steps, mean, low, high = _over_seeds(group, task, policy)
    if not steps:
        return
    lone = len(steps) == 1
    axes.plot(steps, mean, lw=1.8, marker="o" if lone else "", ms=4, clip_on=not lone, **style)
    if len(group.trials) > 1:
        axes.fill_between(steps, low, high, color=style["color"], alpha=0.25, lw=0)


def _marks(axes: Axes, group: Group, task: str, policy: str, *, place: int, of: int, color: str) -> None:
    steps, mean, *_ = _over_seeds(group, task, policy)
    if not steps:
        return
    width = np.ptp(axes.get_xlim())
    shift = (place - (of - 1)) * 0.03 * width  # side by side where they would cover each other
    mark: dict[str, Any] = {"marker": MARKERS[place % len(MARKERS)], "mec": color, "mew": 1.3, "ms": 5}
    axes.plot(np.asarray(steps) + shift, mean, ls="none", clip_on=False, zorder=3, mfc="white", **mark)


def _over_seeds(group: Group, task: str, policy: str) -> tuple[list[int], FloatArray, FloatArray, FloatArray]:
    """Steps, and over seeds at each: the mean, and one standard deviation below and above it.

    No further than the least and the largest score, so that no share is drawn above 1.
    """
    found: dict[int, list[float]] = {}
    for trial in group.trials:
        for step, of, score in trial.course(policy):
            if of == task:
                found.setdefault(step, []).append(score)
    steps = sorted(found)
    least, most, mean, spread = (
        np.array([f(found[step]) for step in steps], dtype=np.float64) for f in (min, max, np.mean, np.std)
    )
    return steps, mean, np.maximum(mean - spread, least), np.minimum(mean + spread, most)


def _key(figure: Figure, adaptive: Sequence[str], *, shade: bool, levels: bool) -> None:
    """What line, shade, marks and bands mean, below the panels."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    told = "task given, mean over seeds" if shade else "task given"
    parts: list[tuple[Any, str]] = [(Line2D([], [], color=INK, lw=1.8), told)]
    if shade:
        parts.append((Patch(color=INK, alpha=0.25, lw=0), "± one standard deviation"))
    for place, policy in enumerate(adaptive):
        mark = Line2D([], [], ls="none", marker=MARKERS[place % len(MARKERS)], mfc="white", mec=INK)
        parts.append((mark, f"task unknown: {label(policy)}"))
    if levels:
        parts.append((Line2D([], [], color=INK, lw=1, ls=(0, (5, 2))), "reference"))
    parts.append((Patch(facecolor=QUIET, alpha=0.3, lw=0), "the task of that colour is in training"))
    handles, texts = zip(*parts, strict=True)
    columns = min(len(parts), max(2, int(figure.get_figwidth() / 2.9)))
    figure.legend(handles, texts, loc="outside lower center", ncols=columns, fontsize=9, frameon=False)


def thousands(value: float, position: int | None = None) -> str:
    """A number of frames, short enough for an axis."""
    if value >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if value >= 1e3 else f"{value:g}"


def _trace_problems(heads: int, arms: Any, probabilities: Any, losses: Any) -> list[str]:
    shape = (len(arms), heads)
    if arms.ndim != 1 or not len(arms):
        return [f"arms have shape {arms.shape}; expected (T,) with T >= 1"]
    return [
        f"{name} have shape {array.shape}; expected {shape}, steps and heads"
        for name, array in (("probabilities", probabilities), ("losses", losses))
        if array.shape != shape
    ]


def arm_positions(trials: Iterable[Trial], *, mode: str = ORACLE, apart: Sequence[str] = ()) -> Figure:
    """Where the poles of pendulums point at the end of training, a dial per method, a line per episode.

    The direction is the mean over the last 50 steps of each episode of all seeds, with 0° above and positive
    angles to the left, as Gymnasium draws the pole. Methods in ``apart`` have a dial per task.

    >>> from owlrl.experiments import Run, Trial, arm_positions
    >>> row = {"kind": "score", "visit": 0, "mode": "oracle", "task": "pendulum+90", "mean_return": -350.0}
    >>> run = Run("owlrl/Pendulum-v0:90,-90", num_envs=4)
    >>> figure = arm_positions([Trial.of(run, [{**row, "final_angles": [24.0, 157.0]}])])
    >>> len(figure.axes[0].get_lines())
    2
    """
    dials: list[tuple[str, dict[str, list[float]]]] = []  # title, and angles by task
    tasks = list[str]()
    for group in group_by_run(trials):
        rows = [row for trial in group.trials for row in trial.final(mode)]
        if not rows or any("final_angles" not in row for row in rows):
            raise OwlValueError(
                f"arm_positions: {group.label} has no final_angles with {mode!r}; expected runs on pendulums"
            )
        found: dict[str, list[float]] = {}
        for row in rows:
            found.setdefault(row["task"], []).extend(row["final_angles"])
        tasks = list(dict.fromkeys([*tasks, *found]))
        title, seeds = label(group.label), count(len(group.trials), "seed")
        if group.run.method in apart:
            dials += [(f"{title}, {label(task)}\n{seeds}", {task: found[task]}) for task in found]
        else:
            dials.append((f"{title}\n{seeds}", found))
    if not dials:
        raise OwlValueError("arm_positions: there are no trials; expected at least one")
    figure = new_figure(0.4 + 2.6 * len(dials), 3.3, what="arm_positions")
    from matplotlib.lines import Line2D

    panels = figure.subplots(1, len(dials), squeeze=False, subplot_kw={"projection": "polar"})[0]
    handles: dict[str, Any] = {}
    for axes, (title, found) in zip(panels, dials, strict=True):
        for task, angles in found.items():
            number = tasks.index(task)
            reach = 1.0 - 0.25 * number / len(tasks)  # lines of two tasks that agree are both seen
            for angle in np.radians(angles):
                axes.plot([0.0, angle], [0.0, reach], color=colour(number), lw=0.9, alpha=0.5)
            handles[label(task)] = Line2D([], [], color=colour(number), lw=2)
        axes.set_theta_zero_location("N")
        axes.set(ylim=(0, 1), yticks=[], title=title)
        axes.set_xticks(np.radians([0, 90, 180, 270]), ["0°", "+90°", "180°", "−90°"])
        axes.tick_params(labelsize=8)
        axes.title.set_fontsize(10)
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=9, frameon=False
    )
    return figure


def completions(trials: Iterable[Trial], *, mode: str = ORACLE) -> Figure:
    """How often each level has been solved so far: a panel per level, a line per method.

    Checks in training are counted; the line is the median over seeds, the shade the quartiles. A level that a
    method never solves stays at 0: interference, not forgetting. ``mode`` is how the checks acted.

    >>> from owlrl.experiments import Run, Trial, completions
    >>> task = {"task": "crossroads-0", "visit": 0, "success": 1.0}
    >>> rows = [{"kind": "training", **task}, {"kind": "curve", "step": 9, "mode": "oracle", **task},
    ...         {"kind": "score", "mode": "oracle", **task}]
    >>> completions([Trial.of(Run("Crossroads-2"), rows)]).axes[0].get_lines()[0].get_ydata()
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
