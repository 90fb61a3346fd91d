"""Draw the figures of docs/results from the committed runs, and the table that sums them up.

``make figures`` writes docs/images/*.svg and, beside them, figures.json: a digest of what each was drawn from
(the runs and this file). A test compares the digests, so that a figure cannot outlive its numbers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.defaults import judgements
from owlrl.experiments import (
    Study,
    Trial,
    arm_positions,
    completions,
    four_rooms,
    learning_curves,
    q_heatmap,
    selection_bars,
    selection_curves,
    study_runs,
)
from owlrl.experiments.methods import GIVEN, RANDOM, UNKNOWN
from owlrl.experiments.metrics import Interval, iqm_over_seeds, stratified_bootstrap
from owlrl.experiments.multi_mnist import draw_supervised, supervised_rows
from owlrl.experiments.plots import INK, QUIET, new_figure, plain
from owlrl.experiments.results import Estimate, Group, group_by_run, single_task_scores
from owlrl.experiments.thousand import draw_thousand, looks
from scripts import compared, rooms
from scripts.notebook_page import pictures
from scripts.results_data import ROOT, cells, results_in, tables_in

IMAGES = ROOT / "docs" / "images"
DIGESTS = IMAGES / "figures.json"
RUNS = Path("benchmarks/results")
GRID, PENDULUM = f"{RUNS}/grid", f"{RUNS}/pendulum"
MULTI_MNIST = f"{RUNS}/multi_mnist"
PAPER_RUNS = f"{RUNS}/paper"  # at the paper's settings and length

# Methods as a reader knows them; how each finds the head when the task is unknown.
ONE_HEAD, PAPER, OURS = "experience-replay", "owl", "owl-memory"
NAMES = {ONE_HEAD: "one head", PAPER: "the paper's OWL", OURS: "owlrl"}
FOUND_BY = {PAPER: "released+td-raw", OURS: "hedge+model"}
COLOURS = {"task given": "#332288", "task unknown": "#8f84cc", "one": "#222222"}
# The studies whose scores are shares of solved episodes: title, name, seeds, and which of its runs.
STUDIES: dict[str, tuple[str, int, Callable[[Group], bool]]] = {
    "Crossroads-4": ("crossroads", 3, lambda group: bool(group.run.arguments)),
    "SC3": ("sc3", 10, lambda group: True),
    "SC5": ("sc5", 10, lambda group: True),
    "SC12": ("sc12", 3, lambda group: True),
    "SC3+DK2": ("sc3+dk2", 5, lambda group: True),
}
# The studies whose scores are returns, as parts of what a separate model per task has: title and name.
RETURNS = {
    "Reacher": "reacher",
    "HalfCheetah": "cheetah",
    "Deep Sea Treasure": "deep-sea",
    "fruit tree": "fruit-tree",
    "MinAtar": "minatar",
}
NAMES_THERE = {
    "bare": NAMES[ONE_HEAD],
    "one head with rehearsal": "one head with rehearsal",
    "owl": NAMES[OURS],
    "owl, owlrl.learners.SAC": "owlrl, its own SAC",
}


class Row(NamedTuple):
    """One method in one study."""

    study: str
    method: str
    seeds: int
    given: Estimate
    unknown: Estimate | None
    forgetting: Estimate | None
    transfer: Estimate | None


def groups_of(study: str, seeds: int, directory: str = GRID) -> list[Group]:
    """A study's results, seeds of one run together."""
    order = {run.id: place for place, run in enumerate(study_runs(study, seeds=seeds))}
    found = [trial for trial in results_in(directory) if trial.id in order]
    return group_by_run(sorted(found, key=lambda trial: order[trial.id]))


def over_seeds(group: Group, number: Callable[[Group], float | None]) -> Estimate | None:
    """Interquartile mean over seeds of a number, with its interval; None where a seed has none."""
    numbers = [number(Group((trial,))) for trial in group.trials]
    if any(found is None for found in numbers):
        return None
    return _estimate(np.array(numbers, dtype=np.float64))


def _estimate(numbers: Any) -> Estimate:
    """Of one number per seed."""
    interval = stratified_bootstrap(numbers[:, None]) if len(numbers) > 1 else None
    return Estimate(float(iqm_over_seeds(numbers[:, None])), interval)


def summary() -> Iterator[Row]:
    """The methods in the studies that count solved episodes, then in those of returns."""
    yield from _solved()
    for title, name in RETURNS.items():
        study = compared.study_of(name)
        yield from _returns(title, study) if study is not None else ()


def _returns(title: str, study: Study) -> Iterator[Row]:
    """From random actions (0) to a separate model per task (1)."""
    for method in sorted(set(study.methods) & set(NAMES_THERE), key=list(NAMES_THERE).index):
        own = study.modes(method)[0]
        after, final = (
            compared.relative(study, study.scores(method, when=when, mode=own))
            for when in ("right after", "final")
        )
        unknown = None
        if set(study.modes(method)) >= {GIVEN, UNKNOWN}:
            unknown = Estimate.of(compared.relative(study, study.scores(method, mode=UNKNOWN)))
        lost = _estimate((after - final).mean(axis=1))
        yield Row(title, NAMES_THERE[method], len(final), Estimate.of(final), unknown, lost, None)


def _solved() -> Iterator[Row]:
    alone = group_by_run(results_in(GRID))
    for title, (study, seeds, wanted) in STUDIES.items():
        for group in filter(wanted, groups_of(study, seeds)):
            method = group.run.method
            if method in NAMES:
                own = single_task_scores(alone, group.run)
                gain = over_seeds(group, lambda seed, own=own: seed.forward_transfer(own))
                unknown = group.estimate(FOUND_BY[method]) if method in FOUND_BY else None
                given, lost = group.estimate("oracle"), over_seeds(group, Group.forgetting)
                yield Row(title, NAMES[method], len(group.trials), given, unknown, lost, gain)


def summary_table(*studies: str) -> str:
    """The table at the top of the results, or its rows of some studies."""
    lines = ["| study | method | seeds | task given | task unknown | forgetting | forward transfer |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in summary():
        if studies and row.study not in studies:
            continue
        numbers = (
            str(x).replace("-0.00", "0.00") if x is not None else "–" for x in (row.forgetting, row.transfer)
        )
        unknown = row.unknown or ("as given" if row.method.startswith(NAMES[ONE_HEAD]) else "–")
        name = f"**{row.method}**" if row.method == NAMES[OURS] else row.method
        lines.append(
            f"| {row.study} | {name} | {row.seeds} | {row.given} | {unknown} | {' | '.join(numbers)} |"
        )
    return "\n".join(lines)


def _bars(axes: Any, places: Any, found: Sequence[Estimate | None], width: float, **style: Any) -> None:
    """Vertical bars with their intervals; nothing where there is no estimate."""
    there = [(x, e) for x, e in zip(places, found, strict=True) if e is not None]
    if not there:
        return
    at, values = [x for x, _ in there], [e.value for _, e in there]
    bounds = [(e.interval.low, e.interval.high) if e.interval else (e.value, e.value) for _, e in there]
    low = [max(0.0, value - bound[0]) for value, bound in zip(values, bounds, strict=True)]
    high = [max(0.0, bound[1] - value) for value, bound in zip(values, bounds, strict=True)]
    axes.bar(at, values, width, **style)
    axes.errorbar(at, values, [low, high], fmt="none", ecolor=INK, elinewidth=1, capsize=2)


def _solved_bars(axes: Any, rows: Sequence[Row]) -> None:
    """Given and unknown side by side, a pair per row."""
    places = np.arange(len(rows))
    one = [row.given if row.unknown is None else None for row in rows]
    _bars(axes, places, one, 0.4, color=COLOURS["one"], label="no task needed")
    both = [row if row.unknown is not None else None for row in rows]
    given, unknown = ([row and row[k] for row in both] for k in (3, 4))
    _bars(axes, places - 0.2, given, 0.36, color=COLOURS["task given"], label="task given")
    _bars(axes, places + 0.2, unknown, 0.36, color=COLOURS["task unknown"], label="task unknown")
    axes.set(xticks=places, xticklabels=[textwrap.fill(row.method, 12) for row in rows], ylim=(0, 1.05))
    plain(axes)


def draw_summary() -> Any:
    """A panel per study, the methods in each: above those that count solved episodes, below returns."""
    rows = list(summary())
    titles = list(dict.fromkeys(row.study for row in rows))
    above, below = ([t for t in titles if (t in STUDIES) == counts] for counts in (True, False))
    figure = new_figure(10.5, 6.0)
    grid = figure.subplots(2, max(len(above), len(below)), sharey="row", squeeze=False)
    for panels, chosen in zip(grid, (above, below), strict=True):
        for axes, title in zip(panels, chosen, strict=False):
            _solved_bars(axes, [row for row in rows if row.study == title])
            axes.set_title(title, fontsize=10)
            axes.tick_params(axis="x", labelsize=8)
        for axes in panels[len(chosen) :]:
            axes.set_axis_off()
    grid[0, 0].set_ylabel("tasks solved after all training")
    grid[1, 0].set(ylabel="return: 0 random actions,\n1 a separate model per task", ylim=(-0.2, 1.35))
    for axes in grid[1, : len(below)]:
        axes.axhline(1, color=QUIET, lw=1, ls=":")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _study_figure(*titles: str) -> Callable[[], Any]:
    def draw() -> Any:
        rows = list(summary())
        figure = new_figure(3.4 * len(titles) + 0.6, 3.0)
        panels = np.atleast_1d(figure.subplots(1, len(titles), sharey=True))
        for axes, title in zip(panels, titles, strict=True):
            _solved_bars(axes, [row for row in rows if row.study == title])
            axes.set_title(title, fontsize=10)
        panels[0].set_ylabel("tasks solved at the end")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
        return figure

    return draw


def _lying_bars(rows: Sequence[tuple[str, Estimate]], about: str) -> Any:
    """A bar per line, from the top."""
    figure = new_figure(7.5, 0.8 + 0.3 * len(rows))
    axes = figure.subplots()
    places = np.arange(len(rows))[::-1]
    values = np.array([found.value for _, found in rows])
    axes.barh(places, values, 0.65, color=COLOURS["task given"])
    for place, (_, found) in zip(places, rows, strict=True):
        if found.interval:
            axes.plot([found.interval.low, found.interval.high], [place, place], color=QUIET, lw=2)
        axes.text(1.07, place, f"{found.value:.2f}", va="center", fontsize=8, color=INK)
    axes.set(yticks=places, yticklabels=[label for label, _ in rows], xlim=(0, 1.12), xlabel=about)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    plain(axes)
    return figure


def draw_ablations() -> Any:
    """What each regularizer keeps of five crossings."""
    rows = [(group.label, group.estimate("oracle")) for group in groups_of("ablations", 3)]
    return _lying_bars(rows, "levels solved at the end, task given (SC5, three seeds)")


def draw_revisits() -> Any:
    """What each variant keeps of two crossings in two rounds."""
    rows = [(group.label, group.estimate("oracle")) for group in groups_of("revisits", 3)]
    return _lying_bars(rows, "levels solved at the end, task given (SC2, two rounds, three seeds)")


def draw_unseen() -> Any:
    """Levels that nobody has seen, by method and way to act."""
    label = "S9N1:100"
    rows = [
        (f"{NAMES[group.run.method]}, {policy}", group.estimate(policy, label=label))
        for group in groups_of("unseen", 3)
        for policy in group.modes(label)
    ]
    return _lying_bars(rows, "share of 100 unseen levels solved (three seeds)")


def draw_pendulum() -> Any:
    """Mean return of both pendulums, by method and evidence."""
    wanted = {
        ONE_HEAD: {"oracle": "one head, shared replay"},
        PAPER: {"oracle": "EWC, task given", "released+nll-raw": "EWC, the paper's evidence"},
        OURS: {
            "oracle": "owlrl, task given",
            "hedge+model": "owlrl, task models",
            "hedge+reward": "owlrl, reward models",
            "hedge+td": "owlrl, TD errors",
            "released+nll-raw": "owlrl, the paper's evidence",
        },
    }
    groups = [group for group in groups_of("pendulum", 5, PENDULUM) if group.run.rounds == 3]
    rows = [(wanted[g.run.method][p], g.estimate(p)) for g in groups for p in wanted[g.run.method]]
    figure = new_figure(7.5, 3.2)
    axes = figure.subplots()
    places = np.arange(len(rows))[::-1]
    for place, (_, found) in zip(places, rows, strict=True):
        axes.plot([found.interval.low, found.interval.high], [place, place], color=QUIET, lw=3)
        axes.plot(found.value, place, "o", color=COLOURS["task given"])
        axes.text(-333, place, f"{found.value:.0f}", va="center", fontsize=8, color=INK)
    axes.set(yticks=places, yticklabels=[label for label, _ in rows], xlim=(-610, -320))
    axes.set_xlabel("return per episode, mean over both tasks (five seeds, 95 % interval)")
    plain(axes)
    return figure


SB3_WAYS = {
    "alone": "trained alone",
    "bare": "bare, in sequence",
    "right after": "wrapped, right after",
    GIVEN: "wrapped, task given",
    UNKNOWN: "wrapped, task unknown",
}


def sb3_returns() -> dict[str, tuple[Sequence[str], dict[str, Any]]]:
    """For each kind of model its tasks, and the returns (seeds, tasks) of random actions and of each way."""
    found = {}
    for kind in ("dqn", "sac", "td3"):
        if not (ROOT / RUNS / "sb3" / kind).is_dir():
            continue
        study = Study.load(ROOT / RUNS / "sb3" / kind)
        ways = {"random": study.scores(RANDOM.name, mode=UNKNOWN)}
        ways |= {name: study.scores(name) for name in ("alone", "bare")}
        ways["right after"] = study.scores("owl", when="right after", mode=GIVEN)
        ways |= {mode: study.scores("owl", mode=mode) for mode in (GIVEN, UNKNOWN)}
        found[kind] = list(study.tasks), ways
    return found


def draw_sb3() -> Any:
    """Stable-Baselines3 models on two opposed tasks: bare and wrapped, from random (0) to alone (1)."""
    models = sb3_returns()
    colours = {"bare": COLOURS["one"], GIVEN: COLOURS["task given"], UNKNOWN: COLOURS["task unknown"]}
    figure = new_figure(8.5, 2.9)
    panels = figure.subplots(1, len(models), sharey=True, squeeze=False)[0]
    for axes, (kind, (tasks, found)) in zip(panels, models.items(), strict=True):
        low, high = (found[way].mean(axis=0) for way in ("random", "alone"))
        for k, (way, colour) in enumerate(colours.items()):
            scores = (found[way] - low) / (high - low)
            places = np.arange(len(tasks)) + 0.27 * (k - 1)
            axes.bar(places, scores.mean(axis=0), 0.25, color=colour, label=SB3_WAYS[way])
            for seed in scores:
                axes.plot(places, seed, ".", color=QUIET, ms=3)
        axes.axhline(1, color=QUIET, lw=1, ls=":")
        axes.set(xticks=range(len(tasks)), xticklabels=tasks, title=kind.upper(), ylim=(-0.3, 1.25))
        plain(axes)
    panels[0].set_ylabel("0 random actions, 1 trained alone")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def draw_defaults() -> Any:
    """The bare call: what is kept of each task, and how it does with the task unknown; a dot per seed."""
    files = [
        json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / RUNS / "defaults").glob("*.json")
    ]
    rows = [(f"{case}, {task}", found.kept, found.ratio) for case, task, found in judgements(files)]
    figure = new_figure(9, 0.9 + 0.19 * len(rows))
    panels = figure.subplots(1, 2, sharey=True)
    places = np.arange(len(rows))[::-1]
    for axes, column, title in zip(panels, (1, 2), ("kept", "task unknown / task given"), strict=True):
        for place, row in zip(places, rows, strict=True):
            values = np.clip(row[column], 0.5, 1.1)
            axes.plot(values, np.full(len(values), place), "o", ms=4, alpha=0.6, color=COLOURS["task given"])
        axes.axvline(1, color=QUIET, lw=1, ls=":")
        axes.set(title=title, xlim=(0.48, 1.12))
        plain(axes)
    panels[0].set(yticks=places, yticklabels=[name for name, *_ in rows])
    return figure


def draw_sac() -> Any:
    """Learning curves of both SACs on Pendulum-v1."""
    text = (ROOT / RUNS / "sac_returns.jsonl").read_text(encoding="utf-8")
    runs = [json.loads(line) for line in text.splitlines()]
    names = {"owlrl": "owlrl.learners.SAC", "sb3": "Stable-Baselines3's SAC"}
    figure = new_figure(6, 2.8)
    axes = figure.subplots()
    for k, learner in enumerate(sorted({run["learner"] for run in runs})):
        curves = np.array([run["curve"] for run in runs if run["learner"] == learner])
        steps = (np.arange(curves.shape[1]) + 1) * runs[0]["frames"] / curves.shape[1]
        colour = (COLOURS["task given"], COLOURS["one"])[k]
        axes.plot(steps, curves.mean(0), color=colour, label=names.get(learner, learner))
        axes.fill_between(steps, curves.min(0), curves.max(0), color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="steps", ylabel="return of 20 greedy episodes")
    axes.legend(frameon=False, fontsize=8)
    plain(axes)
    return figure


def _solved_over_time(group: Group) -> tuple[np.ndarray, np.ndarray]:
    """Frames, and how many levels are solved then, (seeds, checks)."""

    def of(trial: Trial) -> dict[int, float]:
        sums: dict[int, float] = {}
        for step, _, score in trial.course("oracle"):
            sums[step] = sums.get(step, 0.0) + score
        return sums

    seeds = [of(trial) for trial in group.trials]
    steps = sorted(set.intersection(*(set(seed) for seed in seeds)))
    return np.array(steps), np.array([[seed[step] for step in steps] for seed in seeds])


def draw_curve() -> Any:
    """How many of five crossings are solved while they are learned one after the other."""
    figure = new_figure(7.5, 3.0)
    axes = figure.subplots()
    colours = {ONE_HEAD: COLOURS["one"], PAPER: "#cc6677", OURS: COLOURS["task given"]}
    groups = [group for group in groups_of("sc5", 10) if group.run.method in NAMES]
    spans = list(pairwise(groups[0].trials[0].starts()))
    for k, (start, end) in enumerate(spans):
        axes.axvspan(start, end, color="#eeeeee" if k % 2 else "#f8f8f8", lw=0)
        axes.text((start + end) / 2, 5.35, f"level {k + 1}", ha="center", fontsize=8, color=QUIET)
    for group in groups:
        steps, solved = _solved_over_time(group)
        colour = colours[group.run.method]
        axes.plot(steps, solved.mean(0), color=colour, lw=2, label=NAMES[group.run.method])
        axes.fill_between(steps, *np.quantile(solved, [0.25, 0.75], 0), color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="frames", ylabel="levels solved, of five", ylim=(0, 5.7), xlim=(0, spans[-1][1]))
    axes.xaxis.set_major_formatter(lambda frames, _: f"{frames / 1000:.0f}k" if frames else "0")
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    plain(axes)
    return figure


def draw_selection() -> Any:
    """What each selector collects, as a part of the oracle's, from the table of its page."""
    table = tables_in((ROOT / SELECTION).read_text(encoding="utf-8"))[-1]  # before it, some of its rows
    found = [(row[0].strip("*"), *map(float, row[1].split(" ± "))) for row in map(cells, table[2:])]
    rows = [(name, Estimate(mean, Interval(mean - error, mean + error))) for name, mean, error in found]
    return _lying_bars(rows, "reward collected / the oracle's (20 seeds, ± standard error)")


def speed_table() -> list[str]:
    """The table of the benchmarks, also where it is written in parts with one head."""
    first, *others = tables_in(SPEED.read_text(encoding="utf-8"))
    return first + [line for part in others if part[0] == first[0] for line in part[2:]]


def draw_speed() -> Any:
    """How many times as fast as the plain way, from the table of the benchmarks."""
    rows = [(row[0], float(row[3])) for row in map(cells, speed_table()[2:])]
    figure = new_figure(10, 0.8 + 0.2 * len(rows))
    axes = figure.subplots()
    places = np.arange(len(rows))[::-1]
    colours = [COLOURS["task given"] if ratio >= 1 else COLOURS["one"] for _, ratio in rows]
    axes.barh(places, [ratio - 1 for _, ratio in rows], 0.65, left=1, color=colours)
    for place, (_, ratio) in zip(places, rows, strict=True):
        axes.text(max(ratio, 1.0) * 1.1, place, f"{ratio:.3g}", va="center", fontsize=7, color=INK)
    axes.set_xscale("log")
    axes.set(yticks=places, yticklabels=[name for name, _ in rows], xlabel="plain / owlrl, CPU time")
    axes.tick_params(axis="y", labelsize=7)
    axes.axvline(1, color=QUIET, lw=1)
    plain(axes)
    return figure


def _of_sc5(*methods: str) -> list[Group]:
    return [group for group in groups_of("sc5", 10) if group.run.method in methods]


def draw_completions() -> Any:
    """How often each of five crossings was solved so far."""
    return completions([trial for group in _of_sc5(*NAMES) for trial in group.trials])


def _pendulums(directory: str, *methods: str) -> list[Trial]:
    """Runs of some methods on pendulums, in the order of the methods."""
    found = [t for t in results_in(directory) if t.run is not None and t.run.control and t.method in methods]
    return sorted(found, key=lambda trial: (methods.index(trial.method), trial.seed))


def draw_pendulum_curves(directory: str, *methods: str) -> Any:
    """Returns through training, beside separate SACs."""
    alone = group_by_run(_pendulums(directory, "owl-no-ewc"))  # a run per task
    levels = {next(iter(g.run.specs)): float(np.median(g.scores("oracle"))) for g in alone}
    return learning_curves(_pendulums(directory, *methods), reference=levels)


def draw_arms(directory: str) -> Any:
    """The three panels of the paper: its OWL in each task, and one head in both."""
    return arm_positions(_pendulums(directory, PAPER, ONE_HEAD), apart=[PAPER])


def drawn_pendulums() -> dict[str, tuple[Callable[[], Any], str]]:
    """Pictures of pendulums at the paper's length, with what they show; none before OWL was run."""
    pictures: dict[str, tuple[Callable[[], Any], str]] = {
        "paper-pendulums": (
            lambda: draw_pendulum_curves(PAPER_RUNS, PAPER, ONE_HEAD),
            "Returns on both pendulums through six visits.",
        ),
        "paper-arms": (
            lambda: draw_arms(PAPER_RUNS),
            "Where the pole points at the end of training, with the task given.",
        ),
        "paper-feedback": (
            lambda: selection_curves(_pendulums(PAPER_RUNS, PAPER), modes=FEEDBACK),
            "Returns and share of right heads through training: likelihood or squared TD errors as feedback.",
        ),
    }
    return pictures if _pendulums(PAPER_RUNS, PAPER) else {}


SELECTION = "docs/results/selection.md"
SPEED = ROOT / "benchmarks" / "RESULTS.md"
THOUSAND = f"{RUNS}/thousand"

FEEDBACK = ("oracle", "paper+nll-raw", "paper+td-squared", "hedge+model")  # the paper's two, and ours

# Each figure, and what it is drawn from.
FIGURES: dict[str, tuple[Callable[[], Any], Sequence[str]]] = {
    "summary": (draw_summary, [GRID, *compared.drawn().values(), "scripts/compared.py"]),
    "curve": (draw_curve, [GRID]),
    "crossroads": (_study_figure("Crossroads-4"), [GRID]),
    "crossings": (_study_figure("SC3", "SC5"), [GRID]),
    "twelve-crossings": (_study_figure("SC12"), [GRID]),
    "doors": (_study_figure("SC3+DK2"), [GRID]),
    "ablations": (draw_ablations, [GRID]),
    "revisits": (draw_revisits, [GRID]),
    "unseen": (draw_unseen, [GRID]),
    "pendulum": (draw_pendulum, [PENDULUM]),
    "stable-baselines3": (draw_sb3, [f"{RUNS}/sb3"]),
    "defaults": (draw_defaults, [f"{RUNS}/defaults"]),
    "four-rooms": (lambda: q_heatmap(four_rooms().maps), []),
    "completions": (draw_completions, [GRID]),
    "selection-bars": (lambda: selection_bars(_of_sc5(PAPER)[0]), [GRID]),
    "pendulum-curves": (lambda: draw_pendulum_curves(PENDULUM, PAPER, OURS, ONE_HEAD), [PENDULUM]),
    "pendulum-arms": (lambda: draw_arms(PENDULUM), [PENDULUM]),
    **{name: (draw, [PAPER_RUNS]) for name, (draw, _) in drawn_pendulums().items()},
    "multi-mnist": (lambda: draw_supervised(supervised_rows(ROOT / MULTI_MNIST)), [MULTI_MNIST]),
    "thousand": (lambda: draw_thousand(looks(results_in(THOUSAND))), [THOUSAND]),
    "selection": (draw_selection, [SELECTION]),
    "speed": (draw_speed, ["benchmarks/RESULTS.md"]),
    "reference-sac": (draw_sac, [f"{RUNS}/sac_returns.jsonl"]),
    **{
        name: (partial(compared.draw, name), [runs, "scripts/compared.py"])
        for name, runs in compared.drawn().items()
    },
}


def digest(sources: Sequence[str]) -> str:
    """Of the runs and of this file."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    for source in sources:
        path = ROOT / source
        for file in sorted(f for f in path.rglob("*") if f.is_file()) if path.is_dir() else [path]:
            found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:16]


def digests() -> dict[str, str]:
    """What figures.json should say."""
    by_sources = {tuple(sources): digest(sources) for _, sources in FIGURES.values()}
    return {name: by_sources[tuple(sources)] for name, (_, sources) in FIGURES.items()}


# Which picture stands for each notebook in the gallery.
THUMBNAILS = {"01_quickstart": 1, "02_wrap_your_dqn": 1, "04_continuous_control": 1, "07_classroom": 1}


def from_notebooks() -> Iterator[tuple[Path, bytes]]:
    """A picture of each notebook, and the film of the first, as files of docs/images."""
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        found = [(kind, base64.b64decode(text)) for kind, text in pictures(notebook)]
        still = [picture for kind, picture in found if kind == "image/png"]
        yield IMAGES / f"{notebook.stem}.png", still[THUMBNAILS.get(notebook.stem, 0)]
        for kind, picture in found:
            if kind == "image/gif":
                yield IMAGES / f"{notebook.stem}.gif", picture


def main() -> None:
    """Draw what is out of date."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "owlrl"  # the same picture, the same file
    IMAGES.mkdir(exist_ok=True)
    rooms.write(IMAGES)
    for path, picture in from_notebooks():
        path.write_bytes(picture)
    before = json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.exists() else {}
    now = digests()
    for name, (draw, _) in FIGURES.items():
        if before.get(name) != now[name] or not (IMAGES / f"{name}.svg").exists():
            draw().savefig(IMAGES / f"{name}.svg", metadata={"Date": None})
            print(f"docs/images/{name}.svg")
    DIGESTS.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":  # python -m scripts.figures
    main()
