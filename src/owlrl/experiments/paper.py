"""The paper's tables cell by cell: its number, ours at its settings, ours at our settings, and a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from owlrl.envs import PendulumVectorEnv
from owlrl.envs.task_sets import PENDULUM
from owlrl.experiments.comparison import Work, run_planned
from owlrl.experiments.config import Run, recipe_of
from owlrl.experiments.plan import Plan
from owlrl.experiments.results import Group, Quartiles, Trial, group_by_run, load_trials
from owlrl.experiments.studies import Errors, Part, run_work, study_table
from owlrl.learners import SAC, SAC_PAPER

__all__ = ["paper_tables"]

FloatArray = npt.NDArray[np.float64]

# What the paper prints: median (upper quartile, lower quartile). A column for the task given and one for the
# task unknown, each with the performance at the end and, after a slash, over all of training; "-" is nothing.
# "loss" and "sum" repeat a row: EWC's importance from the loss, as the paper writes it, in the mean over
# samples and, as it writes too, summed over 60,000 of them; other rows have it from Q-values, in the mean.
# "1:1" repeats one too: an update per frame, as in the released code, instead of one per four frames.
PRINTED = """
SC5: five crossings, 3 x 0.75M frames each (ten seeds in the paper)
Exp Replay           | experience-replay      |     | 0.01 (0.61, 0.00) | -
OWL                  | owl                    | 500 | 0.85 (0.97, 0.72) | 0.59 (0.75, 0.48)
OWL - EWC            | owl-no-ewc             |     | 0.45 (0.53, 0.39) | 0.49 (0.60, 0.39)
OWL - EWC + DL       | owl-distill-current    | 100 | 0.45 (0.53, 0.36) | 0.53 (0.61, 0.38)
Full Rehearsal       | full-rehearsal         |     | 0.99 (0.99, 0.97) | -

SC3+DK2: three crossings and two doors, 3 x 0.75M frames each (ten seeds)
Exp Replay           | experience-replay      |     | 0.00 (0.52, 0.00) | -
OWL                  | owl                    | 500 | 0.60 (0.98, 0.44) | 0.63 (0.79, 0.45)
OWL - EWC            | owl-no-ewc             |     | 0.40 (0.48, 0.30) | 0.50 (0.62, 0.37)
OWL - EWC + DL       | owl-distill-current    | 100 | 0.34 (0.40, 0.29) | 0.39 (0.45, 0.33)
Full Rehearsal       | full-rehearsal         |     | 0.99 (1.00, 0.98) | -

SC3: three crossings, 3 x 1M frames each (ten seeds)
Exp Replay           | experience-replay      |     | 0.00 (1.00, 0.00) / 0.37 (0.49, 0.12) | -
OWL                  | owl                    | 500 | 1.00 (1.00, 1.00) / 0.83 (0.94, 0.71) | 0.86 (1.00, 0.70) / 0.72 (0.77, 0.62)
OWL + WS             | owl-warm-start         | 500 | 1.00 (1.00, 1.00) / 0.95 (0.97, 0.89) | 0.99 (1.00, 0.83) / 0.79 (0.91, 0.73)

SC2: two crossings, 2 x 1M frames each (five seeds)
Exp Replay           | experience-replay      |      | 0.00 (0.09, 0.00) / 0.38 (0.87, 0.01) | -
OWL, λ = 200         | owl                    | 200  | 1.00 (1.00, 1.00) / 0.84 (0.91, 0.76) | 1.00 (1.00, 0.79) / 0.73 (0.85, 0.61)
OWL, λ = 500         | owl                    | 500  | 1.00 (1.00, 1.00) / 0.92 (0.95, 0.89) | 1.00 (1.00, 0.64) / 0.75 (0.88, 0.61)
OWL, λ = 1000        | owl                    | 1000 | 1.00 (1.00, 1.00) / 0.91 (0.92, 0.75) | 1.00 (1.00, 1.00) / 0.86 (0.89, 0.84)
OWL, λ = 200, loss   | owl-loss               | 200  | 1.00 (1.00, 1.00) / 0.84 (0.91, 0.76) | 1.00 (1.00, 0.79) / 0.73 (0.85, 0.61)
OWL, λ = 500, loss   | owl-loss               | 500  | 1.00 (1.00, 1.00) / 0.92 (0.95, 0.89) | 1.00 (1.00, 0.64) / 0.75 (0.88, 0.61)
OWL, λ = 1000, loss  | owl-loss               | 1000 | 1.00 (1.00, 1.00) / 0.91 (0.92, 0.75) | 1.00 (1.00, 1.00) / 0.86 (0.89, 0.84)
OWL, λ = 500, sum    | owl-loss               | 3e7  | 1.00 (1.00, 1.00) / 0.92 (0.95, 0.89) | 1.00 (1.00, 0.64) / 0.75 (0.88, 0.61)
OWL, λ = 500, 1:1    | owl update_every=1     | 500  | 1.00 (1.00, 1.00) / 0.92 (0.95, 0.89) | 1.00 (1.00, 0.64) / 0.75 (0.88, 0.61)
OWL warm start 50k   | owl-warm-start         | 500  | 1.00 (1.00, 1.00) / 0.92 (0.93, 0.90) | 1.00 (1.00, 0.88) / 0.88 (0.89, 0.81)
OWL warm start 100k  | owl-warm-start-100k    | 500  | 1.00 (1.00, 1.00) / 0.92 (0.95, 0.87) | 1.00 (1.00, 0.88) / 0.81 (0.87, 0.67)
OWL ε restart 1x     | owl-epsilon-restart-1x | 500  | 1.00 (1.00, 1.00) / 0.78 (0.85, 0.68) | 0.97 (1.00, 0.80) / 0.71 (0.75, 0.64)
OWL ε restart 2x     | owl-epsilon-restart-2x | 500  | 1.00 (1.00, 1.00) / 0.82 (0.87, 0.69) | 0.80 (0.98, 0.62) / 0.64 (0.78, 0.60)
OWL MLP head         | owl-mlp-head           | 500  | 1.00 (1.00, 1.00) / 0.88 (0.92, 0.88) | 1.00 (1.00, 1.00) / 0.85 (0.89, 0.75)
OWL dropout 0.05     | owl-dropout-0.05       | 500  | 1.00 (1.00, 1.00) / 0.85 (0.93, 0.61) | 1.00 (1.00, 0.87) / 0.66 (0.74, 0.60)
OWL dropout 0.1      | owl-dropout-0.1        | 500  | 1.00 (1.00, 0.25) / 0.69 (0.76, 0.52) | 0.88 (0.99, 0.20) / 0.59 (0.74, 0.52)
OWL WS, dropout 0.05 | -                      |      | 1.00 (1.00, 1.00) / 0.88 (0.93, 0.63) | 1.00 (1.00, 0.88) / 0.70 (0.82, 0.54)
OWL WS, dropout 0.1  | -                      |      | 1.00 (1.00, 1.00) / 0.80 (0.85, 0.78) | 0.95 (1.00, 0.40) / 0.73 (0.80, 0.59)
OWL WS, dropout 0.2  | -                      |      | 0.99 (1.00, 0.24) / 0.46 (0.62, 0.29) | 0.77 (0.96, 0.17) / 0.44 (0.57, 0.29)
"""  # noqa: E501
GIVEN, UNKNOWN, WRITTEN, OURS = "oracle", "released+td-raw", "paper+td-squared", "hedge+model"
POLICIES = (
    *(GIVEN, WRITTEN, UNKNOWN, "hedge+td", OURS, "restless+model"),
    *("random", "max-q-once", "max-q-every-step"),
)
LENGTH = {"SC2": (1_000_000, 2), "SC3": (1_000_000, 3), "SC5": (750_000, 3), "SC3+DK2": (750_000, 3)}
DOORS = {"frames": 160_000, "frames_by_task": dict.fromkeys(("doorkey-4", "doorkey-6"), 240_000)}
FAST: dict[str, dict[str, Any]] = {  # how long, at our settings
    "SC2": {"frames": 60_000, "rounds": 2},
    "SC3": {"frames": 120_000},
    "SC5": {"frames": 120_000},
    "SC3+DK2": {"learner": "curious", **DOORS},
}
DISTILLED = (0.1, 1.0, 10.0, 100.0)  # μ on two crossings, of which it says that 100 was the best one
LPG_FTW = "lpg-ftw"  # in no table of the paper, a curve of its figure 4
SURE = 3  # seeds; of fewer the verdict is in brackets


class PaperRow(NamedTuple):
    """A row of a table of the paper."""

    table: str  # what its table is about, the tasks first
    name: str
    method: str  # the same in ``METHODS``; empty if it is not there
    overrides: dict[str, int]  # settings of the learner that differ from the paper's table
    strength: float | None
    given: tuple[Quartiles, ...]  # with the task given, at the end and, if the paper says so, over training
    unknown: tuple[Quartiles, ...]  # the same with the task unknown; empty if it has none

    @property
    def tasks(self) -> str:
        """The set of tasks."""
        return self.table.partition(":")[0]

    def runs(self) -> dict[str, Run]:
        """For seed 0: the method at the "paper" settings and at "fast" ones, and "owlrl" for OWL's row."""
        if not self.method:
            return {}
        frames, rounds = LENGTH[self.tasks]
        policies = POLICIES if recipe_of(self.method).heads else ()
        chosen: dict[str, Any] = {"frames": frames, "rounds": rounds, "policies": policies, "compile": True}
        chosen |= {"overrides": self.overrides, "strength": self.strength}
        runs = {"paper": Run(self.tasks, method=self.method, learner="paper", **chosen)}
        own = self.strength in (None, 100, 500)  # else it is about a strength; ours has another scale
        again = FAST[self.tasks].get("rounds", 1) > 1 or not recipe_of(self.method).warm_start
        if own and again and self.method != "owl-loss" and not self.overrides:
            runs["fast"] = Run(self.tasks, method=self.method, **FAST[self.tasks])
        if self.method == "owl" and self.strength == 500 and not self.overrides:
            runs["owlrl"] = Run(self.tasks, method="owl-memory", **FAST[self.tasks])
        return runs


def paper_rows() -> list[PaperRow]:
    """All rows of the paper's tables."""
    rows, table = [], ""
    for line in filter(None, PRINTED.splitlines()):
        if "|" not in line:
            table = line
            continue
        name, text, strength, given, unknown = (part.strip() for part in line.split("|"))
        method, *pairs = text.split()
        overrides = {key: int(value) for key, value in (pair.split("=") for pair in pairs)}
        chosen = float(strength) if strength else None
        rows.append(
            PaperRow(table, name, method.strip("-"), overrides, chosen, _numbers(given), _numbers(unknown))
        )
    return rows


def _numbers(text: str) -> tuple[Quartiles, ...]:
    cells = [] if text == "-" else text.split("/")
    return tuple(
        Quartiles(*(float(n) for n in c.replace("(", " ").strip(" )").replace(",", " ").split()))
        for c in cells
    )


def paper_runs(*, seeds: int, methods: Iterable[str] = (), frames: int | None = None) -> list[Run]:
    """All runs at the paper's settings, seed after seed, the short ones first."""
    first = [run for row in paper_rows() for name, run in row.runs().items() if name == "paper"]
    first += [strength.run for strength in paper_strengths()]
    first.sort(key=lambda run: (run.rounds, len(run.specs)))
    first += _pendulums()
    wanted = set(methods)
    chosen = [run if frames is None else replace(run, frames=frames) for run in first]
    chosen = [run for run in {run.id: run for run in chosen}.values() if not wanted or run.method in wanted]
    return [replace(run, seed=seed) for seed in range(seeds) for run in chosen]


class PaperStrength(NamedTuple):
    """A strength of the regularizer on two crossings."""

    regularizer: str
    strength: str
    updates: str
    run: Run


def paper_strengths() -> list[PaperStrength]:
    """λ by definition of importance and ratio of updates to frames, and μ; the runs are for seed 0."""
    about = {"owl": "EWC, importance from Q-values", "owl-loss": "EWC, importance from the loss"}
    rows = [row for row in paper_rows() if row.tasks == "SC2" and row.method in about]
    found = []
    for row in rows:
        run, summed = row.runs()["paper"], row.name.endswith("sum")
        told = about[row.method] + ", summed" * summed
        found.append(PaperStrength(told, row.name.split(",")[1].strip(), _ratio(run), run))
    first = found[0].run
    for mu in DISTILLED:
        run = replace(first, method="owl-distill-current", strength=mu)
        found.append(PaperStrength("distillation on current states", f"μ = {mu:g}", _ratio(run), run))
    return found


def _ratio(run: Run) -> str:
    return f"1:{run.config.update_every}"


def strength_table(trials: Iterable[Trial]) -> str:
    """Markdown: what each strength keeps of two crossings, median (upper, lower quartile) over seeds.

    >>> from owlrl.experiments.paper import strength_table
    >>> print(strength_table([]).splitlines()[2])
    | EWC, importance from Q-values | λ = 200 | 1:4 | – | not run | not run | not run | not run |
    """
    groups = {_key(group.run): group for group in group_by_run(trials)}
    head = ("regularizer", "strength", "updates", "seeds", "given, final", "given, over training")
    lines = [f"| {' | '.join((*head, 'unknown, final', 'unknown, over training'))} |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for regularizer, strength, updates, run in paper_strengths():
        group, cells = groups.get(_key(run)), ["–"] + ["not run"] * 4
        if group is not None:
            numbers = [_measured(group, policy, place) for policy in (GIVEN, UNKNOWN) for place in (0, 1)]
            cells = [str(len(group.trials)), *("–" if x is None else str(x) for x in numbers)]
        lines.append(f"| {' | '.join((regularizer, strength, updates, *cells))} |")
    return "\n".join(lines) + "\n"


def _pendulums() -> list[Run]:
    """Two opposed pendulums, three visits of 20,000 steps each, and each by itself for as long."""
    chosen: dict[str, Any] = {"learner": "paper", "num_envs": 1, "eval_every": 5_000, "compile": True}
    runs = [
        Run(f"{PENDULUM}:90,-90", method=method, frames=20_000, rounds=3, **chosen)
        for method in ("experience-replay", "owl")
    ]
    alone: dict[str, Any] = {"method": "owl-no-ewc", "frames": 60_000, "policies": (GIVEN,)}
    return runs + [Run(f"{PENDULUM}:{angle}", **alone, **chosen) for angle in ("90", "-90")]


PENDULUM_ROWS = (  # name, method and way to act; the paper has curves of them and no numbers
    ("separate SACs, task given", "owl-no-ewc", GIVEN),
    ("Exp Replay", "experience-replay", GIVEN),
    ("OWL, task given", "owl", GIVEN),
    ("OWL, likelihood, Eq. 2", "owl", "paper+nll-raw"),
    ("OWL, likelihood, released code's update", "owl", "released+nll-raw"),
    ("OWL, squared TD errors, Eq. 2", "owl", "paper+td-squared"),
    ("OWL, Hedge on task models (owlrl's default)", "owl", OURS),
    ("OWL, random heads", "owl", "random"),
)


def pendulum_table(trials: Iterable[Trial]) -> str:
    """Markdown: returns on two opposed pendulums at the paper's settings, median (upper, lower quartile).

    >>> from owlrl.experiments.paper import pendulum_table
    >>> print(pendulum_table([]).splitlines()[2])
    | separate SACs, task given | – | not run | not run | – |
    """
    wanted = {_key(run) for run in _pendulums()}
    groups = [group for group in group_by_run(trials) if _key(group.run) in wanted]
    tasks = ("pendulum+90", "pendulum-90")
    lines = [f"| method | seeds | {' | '.join(tasks)} | right head |", "| --- | --- | --- | --- | --- |"]
    for name, method, policy in PENDULUM_ROWS:
        there = [group for group in groups if group.run.method == method and policy in group.modes()]
        cells = {task: (group, k) for group in there for k, task in enumerate(group.run.specs)}
        shown = []
        for task in tasks:
            group, place = cells.get(task, (None, 0))
            shown.append("not run" if group is None else _return(group.scores(policy)[:, place]))
        counts = [len(cells[task][0].trials) for task in tasks if task in cells]
        seeds = "/".join(str(n) for n in dict.fromkeys(counts)) or "–"
        right = f"{there[0].mean_of('found', policy):.2f}" if there and policy != GIVEN else "–"
        lines.append(f"| {' | '.join((name, seeds, *shown, right))} |")
    return "\n".join(lines) + "\n"


def _return(numbers: FloatArray) -> str:
    found = Quartiles.of(numbers)
    return f"{found.median:.0f} ({found.upper:.0f}, {found.lower:.0f})"


def lpg_ftw_plan(angles: tuple[int, ...], seeds: int, frames: int | None = None) -> Plan:
    """LPG-FTW on pendulums, for `compare`: as long as `_pendulums`, but for what it takes more itself.

    Ten copies side by side give a batch of ten whole episodes, as one would after another.
    """
    tasks = {f"pendulum{angle:+d}": angle for angle in angles}
    return Plan.of(
        _untrained,
        tasks={
            name: tuple(partial(PendulumVectorEnv, n, angle=a) for n in (10, 16)) for name, a in tasks.items()
        },
        steps=frames or (20_000 if len(tasks) > 1 else 60_000),
        rounds=3 if len(tasks) > 1 else 1,
        methods=[LPG_FTW],
        seeds=seeds,
        eval_every=5_000,
        eval_episodes=16,
    )


def _untrained(env: Any, seed: int) -> SAC:
    """The model that a comparison needs: this method has its own policy, so that it is a reference only."""
    return SAC(env, config=SAC_PAPER, seed=seed, device="cpu")


def lpg_ftw_part(**length: Any) -> Part:
    """Two opposed pendulums in turn, and each by itself."""
    plans = [partial(lpg_ftw_plan, angles, **length) for angles in ((90, -90), (90,), (-90,))]
    work = [Work(trial, partial(run_planned, plan)) for plan in plans for trial in plan().trials()]
    return Part(LPG_FTW, work, lambda trials, errors, directory: lpg_ftw_table(trials))


def lpg_ftw_table(trials: Iterable[Trial]) -> str:
    """Markdown: returns of LPG-FTW on pendulums, mean (least to greatest) over seeds."""
    lines = ["| trained | task | seeds | steps of the task | after its first visit | at the end |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    own = sorted(
        (t for t in trials if t.method == LPG_FTW), key=lambda t: (-len(t.settings["tasks"]), t.seed)
    )
    for tasks in dict.fromkeys(tuple(trial.settings["tasks"]) for trial in own):
        some = [trial for trial in own if tuple(trial.settings["tasks"]) == tasks]
        for task in tasks:
            found = [[r["mean_return"] for r in t.select("score") if r["task"] == task] for t in some]
            steps = some[0].settings["rounds"] * some[0].settings["steps"][task]
            ends = ([of_seed[place] for of_seed in found] for place in (0, -1))
            told = (f"{sum(x) / len(x):.0f} ({min(x):.0f} to {max(x):.0f})" for x in ends)
            trained = "in turn" if len(tasks) > 1 else "alone"
            lines.append(f"| {trained} | {task} | {len(some)} | 2.5 × {steps:,} | {' | '.join(told)} |")
    return "\n".join(lines) + "\n"


def verdict(found: Quartiles, paper: float) -> str:
    """*holds* if the quartiles, as printed, cover the paper's median; else *better* or *worse*."""
    lower, upper = round(found.lower, 2), round(found.upper, 2)
    return "holds" if lower <= paper <= upper else "better" if lower > paper else "worse"


class _Cell(NamedTuple):
    """One of our numbers beside one of the paper's."""

    text: str
    verdict: str

    @classmethod
    def of(cls, group: Group | None, policy: str, place: int, paper: float) -> _Cell:
        found = _measured(group, policy, place) if group is not None else None
        if group is None or found is None:
            return cls("not run", "")
        seeds, said = len(group.trials), verdict(found, paper)
        shown = said if seeds >= SURE else f"({said})"
        return cls(f"{found}, {seeds} seed{'s' if seeds > 1 else ''}: *{shown}*", said)


class _Line(NamedTuple):
    """A cell of the paper and ours beside it."""

    row: str
    what: str
    paper: str
    ours: dict[str, _Cell]
    counts: bool = True

    def __str__(self) -> str:
        return f"| {' | '.join((self.row, self.what, self.paper, *(c.text for c in self.ours.values())))} |"


def _measured(group: Group, policy: str, place: int) -> Quartiles | None:
    if policy not in group.modes():
        return None
    if place == 0:
        return group.quartiles(policy)
    # with the task given it is looked at all the time, with the task unknown at the end of each visit
    return group.cumulative(policy) if policy == GIVEN else group.after_each_task(policy)


def _lines(row: PaperRow, groups: dict[str, Group]) -> Iterator[_Line]:
    """A line per cell of the row: the paper's number, and ours by settings."""
    found = {name: groups.get(_key(run)) for name, run in row.runs().items()}
    repeats = row.name.endswith(("loss", "sum", "1:1"))
    ways = [("given", row.given, GIVEN, GIVEN), ("unknown", row.unknown, UNKNOWN, OURS)]
    ways.append(("unknown, Eq. 2", row.unknown[:1], WRITTEN, ""))
    for way, cells, policy, own in ways:
        for place, cell in enumerate(cells):
            policies = {"paper": policy, "fast": policy, "owlrl": own}
            ours = {k: _Cell.of(found.get(k), name, place, cell.median) for k, name in policies.items()}
            ours |= {k: _Cell("–", "") for k in ("fast", "owlrl") if k not in found or not policies[k]}
            line = _Line(row.name, f"{way}, {('final', 'over training')[place]}", str(cell), ours)
            if not (repeats or policy == WRITTEN):
                yield line
            elif any(cell.verdict for cell in ours.values()):  # what is there once more, if it was run
                yield line._replace(counts=False)


def _key(run: Run) -> str:
    return replace(run, seed=0, unseen=()).id


def paper_tables(trials: Iterable[Trial]) -> str:
    """Markdown: for every cell of the paper's tables what the trials have, with the verdict.

    >>> from owlrl.experiments.paper import paper_tables
    >>> print(paper_tables([]).splitlines()[0])
    Of 80 cells 0 were run at the paper's settings (0 holds, 0 better, 0 worse) and 0 at ours (0 holds, \
0 better, 0 worse).
    """
    groups = {_key(group.run): group for group in group_by_run(trials) if not group.run.control}
    rows, every, text = paper_rows(), [], []
    for table in dict.fromkeys(row.table for row in rows):
        lines = [line for row in rows if row.table == table for line in _lines(row, groups)]
        text += ["", f"**{table}**", "", "| row | task | paper | its settings | our settings | owlrl |"]
        text += ["| --- | --- | --- | --- | --- | --- |", *map(str, lines)]
        every += [line for line in lines if line.counts]
    counts = []
    for name in ("paper", "fast"):
        said = [line.ours[name].verdict for line in every if line.ours[name].verdict]
        of = ", ".join(f"{said.count(word)} {word}" for word in ("holds", "better", "worse"))
        counts.append((len(said), of))
    (own, said_own), (fast, said_fast) = counts
    first = f"Of {len(every)} cells {own} were run at the paper's settings ({said_own}) and {fast} at ours "
    return "\n".join([f"{first}({said_fast}).", *text]) + "\n"


def parts(*, seeds: int = 5, methods: Sequence[str] = (), frames: int | None = None) -> list[Part]:
    """All runs at the paper's settings, and its tables beside them; and LPG-FTW on pendulums."""
    runs = paper_runs(seeds=seeds, methods=methods, frames=frames)

    def show(trials: list[Trial], errors: Errors, directory: Path) -> str:
        every = list(load_trials(directory))
        control = [trial for trial in every if trial.run is not None and trial.run.control]
        strengths = f"**SC2: strengths**\n\n{strength_table(every)}"
        return f"{paper_tables(every)}\n{strengths}\n{study_table(runs, control)}"

    own = [lpg_ftw_part(seeds=seeds, frames=frames)] if not methods or LPG_FTW in methods else []
    return [Part("paper", run_work(runs), show)] * (not own or bool(runs)) + own
