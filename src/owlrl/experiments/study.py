"""`Study`: the results of a comparison, as numbers, tables, pictures and verdicts."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from owlrl._arguments import Arguments
from owlrl.checkpoint import write_atomically
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.experiments import _html
from owlrl.experiments.methods import GIVEN, RANDOM, UNKNOWN, UNTRAINED
from owlrl.experiments.metrics import forward_transfer
from owlrl.experiments.plots import count, draw_study
from owlrl.experiments.results import Estimate, Trial, When, readable_trials
from owlrl.experiments.tables import DASH, number, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Study", "Verdict"]

KEPT = 0.8  # of what was there, above random actions: less is forgotten, or not recognised
LEARNED = 0.5  # of what the model learns alone: less is not learned
FloatArray = npt.NDArray[np.float64]


class Verdict(NamedTuple):
    """The result of one task with one method.

    >>> from owlrl.experiments import Verdict
    >>> print(Verdict("bare", "left", "forgotten", "9 right after it, 1 at the end"))
    bare, left: forgotten: 9 right after it, 1 at the end
    """

    method: str
    task: str
    cause: str
    why: str

    def __str__(self) -> str:
        return f"{self.method}, {self.task}: {self.cause}: {self.why}"


class Study:
    """The results of `compare`.

    Scores are mean returns over the episodes of an evaluation. "Right after" is the end of a task's last
    training, "final" the end of all training; both have the same evaluation seeds. ``mode`` is "given" (the
    task is given) or "unknown"; left out, it is "given" if there is a choice.

    Args:
        trials: one per method and seed, of the same settings.
        errors: of failed trials, ``(method, seed, text)``.
        solved: the return from which a task counts as learned, by task; for `verdicts`.
        note: a line for `notes`, e.g. a bound that is known.

    >>> from owlrl.experiments import Study, Trial
    >>> rows = [{"kind": "training", "visit": 0, "task": "left"},
    ...         {"kind": "score", "visit": 0, "task": "left", "mode": "unknown", "mean_return": 0.5}]
    >>> Study([Trial("bare", 0, {"tasks": ["left"]}, rows=rows)]).scores("bare")
    array([[0.5]])
    """

    def __init__(
        self,
        trials: Iterable[Trial],
        *,
        errors: Sequence[tuple[str, int, str]] = (),
        solved: Mapping[str, float] | None = None,
        note: str = "",
    ) -> None:
        self.trials = list(trials)
        self.errors = list(errors)
        self.note = note
        self.solved = dict(solved or {})
        if not self.trials:
            raise OwlStateError("Study: there are no trials; expected at least one that was finished")
        settings = self.trials[0].settings
        if other := next((t for t in self.trials if t.settings != settings), None):
            raise OwlValueError(
                f"Study: trials have different settings: {settings} and {other.settings}; expected those of "
                "one comparison"
            )

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> Study:
        """The study whose trials a directory has; where there are several, the one that was run last."""
        trials = [trial for trial in readable_trials(directory)[0] if trial.run is None]
        if not trials:
            raise OwlValueError(f"Study.load: {directory} has no results of compare")
        newest = max(trials, key=lambda trial: (trial.info or {}).get("started", 0.0))
        return cls([trial for trial in trials if trial.settings == newest.settings])

    @property
    def tasks(self) -> list[str]:
        """The tasks in the order they are trained in."""
        return list(self.trials[0].settings["tasks"])

    @cached_property
    def methods(self) -> list[str]:
        """The methods that were compared; random actions, the reference, are not among them."""
        return list(dict.fromkeys(t.method for t in self.trials if t.method != RANDOM.name))

    def modes(self, method: str) -> tuple[str, ...]:
        """How a method can act."""
        return self._of(method)[0].modes

    def scores(self, method: str, *, when: When = "final", mode: str | None = None) -> FloatArray:
        """Mean returns (seeds, tasks); NaN where the method cannot act in a task."""
        arguments = Arguments("Study.scores")
        arguments.choice("when", when, get_args(When))
        arguments.check()
        chosen = self._mode(method, mode)
        return np.array([trial.scores(when, chosen) for trial in self._of(method)], dtype=np.float64)

    def after_each(self, method: str, *, mode: str | None = None) -> FloatArray:
        """Scores (seeds, visits, tasks) after each visit; NaN where the method cannot act in a task yet."""
        chosen = self._mode(method, mode)
        trials = self._of(method)
        found = np.full((len(trials), len(self.visits), len(self.tasks)), np.nan)
        for k, trial in enumerate(trials):
            for row in trial.select("score", mode=chosen, set=None):
                found[k, row["visit"], self.tasks.index(row["task"])] = row[trial.measure]
        return found

    def matrix(self, method: str, *, mode: str | None = None) -> FloatArray:
        """The after-each-task matrix (visits, tasks): `after_each`, mean over seeds."""
        mean: FloatArray = self.after_each(method, mode=mode).mean(axis=0)
        return mean

    def estimate(self, method: str, *, when: When = "final", mode: str | None = None) -> Estimate:
        """Interquartile mean over seeds of the mean over tasks, with a 95 % stratified bootstrap interval."""
        return Estimate.of(self.scores(method, when=when, mode=mode))

    def forgetting(self, method: str, *, mode: str | None = None) -> float:
        """Mean over tasks and seeds of score right after a task's last training − score at the end.

        Continual World's convention (Wołczyk et al. 2021): ``F = mean_i [p_i(end of i's training) −
        p_i(end)]``, in units of the return. The last task takes part with 0; below zero, later tasks helped.
        """
        after, final = (self.scores(method, when=when, mode=mode) for when in ("right after", "final"))
        return float((after - final).mean())

    def forward_transfer(self, method: str) -> float | None:
        """How much faster tasks are learned in the sequence than alone; needs ``eval_every`` and "alone".

        Continual World's convention (Wołczyk et al. 2021): ``mean_i (AUC_i − AUC_i^alone) / (1 −
        AUC_i^alone)``, AUC being the mean of the evaluations during a task's first training, and scores
        normalised to ``(score − random) / (alone at its end − random)``. Tasks that the model does not learn
        alone are left out. None if it is not defined.
        """
        if "alone" not in self.methods or RANDOM.name not in {t.method for t in self.trials}:
            return None
        learned = [task for task in self.tasks if self._clear("alone", task)]
        curves = {name: self._normalised_curves(name, learned) for name in (method, "alone")}
        if not learned or not all(all(curves[name].values()) for name in curves):
            return None
        rows = [(step, task, score) for task, points in curves[method].items() for step, score in points]
        spans = {task: (0, int(max(step for step, _ in points))) for task, points in curves[method].items()}
        reference = {
            task: float(np.mean([score for _, score in points])) for task, points in curves["alone"].items()
        }
        gain = forward_transfer(rows, spans, reference)
        return None if np.isnan(gain) else gain

    def found(self, method: str) -> float | None:
        """Share of final episodes that end with the right task as the most probable; None if not sought."""
        return self._found(method, "found")

    def steps_to_find(self, method: str) -> float | None:
        """Mean steps until the right task was the most probable and stayed so; None if none was sought."""
        return self._found(method, "steps")

    def seconds(self, method: str) -> float:
        """Mean over seeds of the seconds that training took."""
        rows = [[row["seconds"] for row in trial.select("training")] for trial in self._of(method)]
        return float(np.mean([sum(of_seed) for of_seed in rows]))

    def to_rliable(self, *, when: When = "final") -> dict[str, FloatArray]:
        """Scores (seeds, tasks) by method, in rliable's shape; one that acts in two ways has two keys."""
        return {name: self.scores(method, when=when, mode=mode) for name, method, mode in self._ways()}

    def verdicts(self) -> list[Verdict]:
        """For each method and task: not learned, forgotten, not recognised, or fine; and the numbers for it.

        Measured above random actions: "not learned" is a model that alone, in more than half of its seeds, is
        not clearly better than random actions and than untrained (see `learned_in`), "not learned in the
        sequence" less than half of what it learns alone, "forgotten" less than 0.8 of the score right after,
        "not recognised" less than 0.8 of the score with the task given.
        """
        if not any(trial.method == RANDOM.name for trial in self.trials):
            raise OwlStateError("Study.verdicts: there is no trial of random actions to measure from")
        return [self._verdict(method, task) for method in self.methods for task in self.tasks]

    def table(self) -> str:
        """A Markdown table: a row per method and way to act."""
        header, rows = self._cells()
        settings = self.trials[0].settings
        again = f", {count(settings['rounds'], 'round')}" if settings.get("rounds", 1) > 1 else ""
        again = f", {count(len(settings['order']), 'visit')}" if "order" in settings else again
        what = "Returns" if self.trials[0].measure == "mean_return" else "Shares of episodes with success"
        text = (
            f"{what} at the end of all training ({_steps(settings['steps'])} steps per task{again}), mean "
            f"over seeds of {count(settings.get('eval_episodes', 0), 'episode')} each; mean over tasks: "
            "interquartile mean over seeds [95 % stratified bootstrap], and the worst seed. Forgetting (of a "
            "return) and forward transfer as in Continual World. Found: episodes that end with the right "
            "task as the most probable, and steps until it stays so. Seconds of training per seed."
        )
        return f"{text}\n\n{table(header, rows)}"

    def notes(self) -> list[str]:
        """The study's note, a line per method, per set that is never trained in, and per failed trial."""
        about = {t.method: t.about for t in self.trials if t.about}
        lines = [self.note] * bool(self.note) + [f"{method}: {text}" for method, text in about.items()]
        lines += [self._unseen(label) for label in self.trials[0].settings.get("unseen", {})]
        return lines + [f"{method}, seed {seed} failed: {text}" for method, seed, text in self.errors]

    def _unseen(self, label: str) -> str:
        """Scores in a set of tasks that are never trained: means over seeds and tasks."""
        ways = [(RANDOM.name, RANDOM.name, UNKNOWN), *self._ways()]
        found = {
            name: [
                row[t.measure] for t in self.trials if t.method == of for row in t.final(mode, label=label)
            ]
            for name, of, mode in ways
        }
        means = (f"{name} {_value(float(np.mean(scores)))}" for name, scores in found.items() if scores)
        return f"{label}, never trained: {'; '.join(means)}"

    def figure(self) -> Figure:
        """Scores after each visit: a panel per task, a line per method; alone and random as levels."""
        return draw_study(self, reference=RANDOM.name)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Table, verdicts and picture on one self-contained HTML page."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        body = ["<h1>Comparison of methods</h1>", *self.html()]
        write_atomically(target, _html.page("owlrl: a comparison", body).encode("utf-8"))
        return target

    def html(self) -> Iterable[str]:
        """The parts of `report`."""
        yield _html.tables(self.table())
        yield _html.drawing(
            self.figure(),
            text="score of each task after each visit, by method",
            caption="Bands: the task is in training. Lines: mean over seeds; shades: from the worst to the "
            "best seed. Crosses: at the end, the task unknown.",
        )
        yield "<h3>Verdicts</h3>" + _html.code(map(str, self.verdicts()))
        yield "<h3>Methods</h3>" + _html.code(self.notes())
        info = self.trials[0].info or {}
        versions = ", ".join(f"{name} {number}" for name, number in (info.get("versions") or {}).items())
        settings = {name: str(value) for name, value in self.trials[0].settings.items()}
        yield _html.items({**settings, **({"versions": versions} if versions else {})})

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """All scores as CSV, a line per evaluation; written to ``path`` if it is given."""
        names: tuple[str, ...] = ("visit", "after", "task", "mode", "mean_return", "found", "steps")
        rows = [row for trial in self.trials for row in trial.select("score")]
        names += tuple(name for name in ("success", "set") if any(name in row for row in rows))
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "seed", *names])
        for trial in self.trials:
            for row in trial.select("score"):
                values = {**row, "after": trial.visits[row["visit"]]}
                cells = ("" if values.get(name) is None else values[name] for name in names)
                writer.writerow([trial.method, trial.seed, *cells])
        return _written(file.getvalue(), path)

    def to_latex(self, path: str | os.PathLike[str] | None = None) -> str:
        """The table for LaTeX (package booktabs); written to ``path`` if it is given."""
        header, rows = self._cells()
        lines = [" & ".join(map(_latex, cells)) + r" \\" for cells in (header, *rows)]
        columns = "ll" + "r" * (len(header) - 2)
        body = [lines[0], r"\midrule", *lines[1:]]
        text = "\n".join(
            [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"]
        )
        return _written(text + "\n", path)

    def __repr__(self) -> str:
        seeds = len({trial.seed for trial in self.trials})
        failed = f", {len(self.errors)} failed" if self.errors else ""
        return f"Study({self.methods}, tasks={self.tasks}, {count(seeds, 'seed')}{failed})"

    def _of(self, method: str) -> list[Trial]:
        found = sorted((t for t in self.trials if t.method == method), key=lambda trial: trial.seed)
        if not found:
            raise OwlValueError(f"Study: method is {method!r}; expected one of {', '.join(self.methods)}")
        return found

    def _mode(self, method: str, mode: str | None) -> str:
        """A way in which a method can act; the first one if none is given."""
        known = self.modes(method)
        if mode is not None and mode not in known:
            raise OwlValueError(f"Study: mode is {mode!r}; expected one of {', '.join(known)} for {method!r}")
        return known[0] if mode is None else mode

    @property
    def visits(self) -> list[str]:
        """The task of each training, in order."""
        return self.trials[0].visits

    def _ways(self) -> list[tuple[str, str, str]]:
        """Label, method and mode of everything that has scores."""
        found = []
        for method in self.methods:
            modes = self.modes(method)
            for mode in modes:
                found.append((f"{method}, task {mode}" if len(modes) > 1 else method, method, mode))
        return found

    def _found(self, method: str, field: str, task: str | None = None) -> float | None:
        rows = [row for trial in self._of(method) for row in trial.final(UNKNOWN)]
        asked = [row for row in rows if task in (None, row["task"])]
        numbers = [row[field] for row in asked if row.get(field) is not None]
        return float(np.mean(numbers)) if numbers else None

    def _normalised_curves(self, method: str, tasks: list[str]) -> dict[str, list[tuple[int, float]]]:
        """Per task: steps and scores of its first training over all seeds; empty where it was not watched."""
        found: dict[str, list[tuple[int, float]]] = {}
        for task in tasks:
            low, high = self._mean(RANDOM.name, task), self._mean("alone", task)
            visit = self.visits.index(task)
            points = []
            for trial in self._of(method):
                curve = trial.select("curve", visit=visit, task=task)
                points += [(row["step"], (row[trial.measure] - low) / (high - low)) for row in curve]
            found[task] = points
        return found

    def _mean(self, method: str, task: str, *, when: When = "final", mode: str | None = None) -> float:
        return float(self.scores(method, when=when, mode=mode)[:, self.tasks.index(task)].mean())

    def _clear(self, method: str, task: str) -> bool:
        """Whether at least half of the seeds learned a task (see `learned_in`), and their mean shows it."""
        learned = self.learned_in(method, task)
        above = self._mean(method, task, when="right after") > self._mean(RANDOM.name, task)
        return above and 2 * sum(learned) >= len(learned)

    def learned_in(self, method: str, task: str) -> list[bool]:
        """Of each seed: is it right after the task clearly better than random actions and than untrained?

        Clearly: by two standard errors over episodes. Each seed is asked by itself, since seeds may differ
        much in how well they learn. The references are the episodes of all seeds: what is untrained may be
        lucky in one of them. Where ``solved`` has the task, that return decides.
        """
        column = self.tasks.index(task)
        after = self.scores(method, when="right after")[:, column]
        if task in self.solved:
            return [bool(score >= self.solved[task]) for score in after]
        references = [
            [score for trial in self._of(RANDOM.name) for score in self._returns(trial, task, mode)]
            for mode in (UNKNOWN, UNTRAINED)
        ]
        return [
            all(_clearly_above(self._returns(trial, task), reference) for reference in references)
            for trial in self._of(method)
        ]

    def _returns(self, trial: Trial, task: str, mode: str | None = None) -> list[float]:
        """Returns of the episodes right after a task's last training."""
        visit = max(k for k, name in enumerate(self.visits) if name == task)
        rows = trial.select("score", visit=visit, task=task, mode=mode or trial.modes[0])
        return [score for row in rows for score in row.get("returns") or [row["mean_return"]]]

    def _verdict(self, method: str, task: str) -> Verdict:
        after, final = self._mean(method, task, when="right after"), self._mean(method, task)
        low = self._mean(RANDOM.name, task)
        reference = "alone" if "alone" in self.methods else method
        best = self._mean(reference, task, when="right after")
        if not self._clear(reference, task):
            where = "alone" if reference == "alone" else "right after it"
            needed = f", {_value(self.solved[task])} would solve it" if task in self.solved else ""
            untrained = _value(self._mean(RANDOM.name, task, mode=UNTRAINED))
            why = f"{_value(best)} {where}, {untrained} untrained, {_value(low)} by random actions{needed}"
            learned = self.learned_in(reference, task)
            why += f"; learned in {sum(learned)} of {count(len(learned), 'seed')}" if any(learned) else ""
            return Verdict(method, task, "the learner did not learn it", why)
        if after - low < LEARNED * (best - low):
            why = f"{_value(after)} right after it, {_value(best)} {reference}"
            return Verdict(method, task, "not learned in the sequence", why)
        if final - low < KEPT * (after - low):
            why = f"{_value(after)} right after it, {_value(final)} at the end"
            return Verdict(method, task, "forgotten", why)
        if set(self.modes(method)) >= {GIVEN, UNKNOWN}:
            unknown = self._mean(method, task, mode=UNKNOWN)
            if unknown - low < KEPT * (final - low):
                share, steps = (self._found(method, name, task) for name in ("found", "steps"))
                sought = "not sought" if share is None else f"found in {100 * share:.0f} % of episodes"
                sought += f", after {steps:.1f} steps" if share and steps is not None else ""
                why = f"{_value(final)} with the task given, {_value(unknown)} unknown; {sought}"
                return Verdict(method, task, "not recognised", why)
        return Verdict(method, task, "fine", f"{_value(final)} at the end, {_value(after)} right after it")

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        header = ["method", "task", "seeds", *self.tasks, "mean", "worst seed", "forgetting"]
        header += ["forward transfer", "found", "steps", "seconds"]
        ways = [(RANDOM.name, UNKNOWN)] if any(t.method == RANDOM.name for t in self.trials) else []
        ways += [(method, mode) for _, method, mode in self._ways()]
        return header, [self._row(method, mode) for method, mode in ways]

    def _row(self, method: str, mode: str) -> list[str]:
        scores = self.scores(method, mode=mode)
        estimate = self.estimate(method, mode=mode)
        found, steps = (self._found(method, name) if mode == UNKNOWN else None for name in ("found", "steps"))
        learns = method not in (RANDOM.name, "alone")
        gain = self.forward_transfer(method) if learns and mode == self.modes(method)[0] else None
        interval = estimate.interval
        around = "" if interval is None else f" [{_value(interval.low)}, {_value(interval.high)}]"
        return [
            *(method, mode, str(len(scores))),
            *(_value(value) for value in scores.mean(axis=0)),
            f"{_value(estimate.value)}{around}",
            _value(float(scores.mean(axis=1).min())),
            _value(self.forgetting(method, mode=mode)) if learns and np.isfinite(scores).all() else DASH,
            DASH if gain is None else f"{gain:+.2f}",
            number(found),
            number(steps, 1),
            DASH if method == RANDOM.name else f"{self.seconds(method):.0f}",
        ]


def studies_of(trials: Iterable[Trial]) -> list[Study]:
    """Trials put together by what was compared; those that random actions are missing from are left out."""
    found: dict[str, list[Trial]] = {}
    for trial in trials:
        found.setdefault(json.dumps(trial.settings, sort_keys=True), []).append(trial)
    groups = (group for group in found.values() if len({trial.method for trial in group}) > 1)
    return [Study(group) for group in groups if any(trial.method == RANDOM.name for trial in group)]


def _clearly_above(returns: Sequence[float], reference: Sequence[float]) -> bool:
    """Whether a mean is above another by two standard errors."""
    error = float(np.var(returns) / len(returns) + np.var(reference) / len(reference))
    return float(np.mean(returns) - np.mean(reference)) > max(2.0 * math.sqrt(error), 1e-9)


def _value(score: float) -> str:
    """A return with the digits that are needed."""
    if not np.isfinite(score):
        return DASH
    return f"{score:.{2 if abs(score) < 100 else 1 if abs(score) < 1000 else 0}f}"


def _steps(steps: Mapping[str, int]) -> str:
    return " to ".join(f"{each:,}" for each in sorted({min(steps.values()), max(steps.values())}))


def _latex(text: str) -> str:
    for sign in "&%$#_":
        text = text.replace(sign, f"\\{sign}")
    return text.replace(DASH, "--").replace("[", "{[}").replace("]", "{]}")


def _written(text: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode("utf-8"))
    return text
