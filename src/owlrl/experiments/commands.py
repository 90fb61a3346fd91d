"""What each command of ``owlrl`` takes and does; `owlrl.cli` reads the command line into these."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from owlrl.envs.task_sets import PENDULUM
from owlrl.errors import OwlValueError
from owlrl.experiments.config import Run
from owlrl.experiments.control import load_session
from owlrl.experiments.demo import run_demo
from owlrl.experiments.evaluation import evaluate
from owlrl.experiments.pendulum_demo import run_pendulum_demo
from owlrl.experiments.report import write_report
from owlrl.experiments.results import Result, environment, is_done, read_result, result_path, write_result
from owlrl.experiments.studies import reproduce, study_runs
from owlrl.experiments.tables import result_text
from owlrl.experiments.tasks import resolve_tasks, tables_of
from owlrl.experiments.training import repeatable, run_experiment

__all__ = ["Demo", "Evaluate", "Report", "Reproduce", "Train"]


CONTROL_DEFAULTS: dict[str, Any] = {"frames": 20_000, "num_envs": 4, "eval_every": 5_000}


@dataclass(frozen=True)
class Train:
    """Train a method on tasks one after the other, and evaluate it.

    >>> from owlrl.experiments.commands import Train
    >>> Train(env_id="owlrl/SimpleCrossing-v0", levels=(3, 7)).run().tasks
    'owlrl/SimpleCrossing-v0:3,7'
    """

    tasks: str | None = None
    """a set: SC2, SC3, SC5, SC12, SC3+DK2, Crossroads-2 … Crossroads-8; SC3 if no levels are given"""
    env_id: str = "owlrl/SimpleCrossing-v0"
    """environment whose levels are taken"""
    levels: tuple[int, ...] = ()
    """levels instead of a set, e.g. 3 7 14"""
    angles: tuple[float, ...] = ()
    """of owlrl/Pendulum-v0 instead of levels, e.g. 90 -90"""
    arguments: tuple[str, ...] = ()
    """arguments of the environments, e.g. breadcrumbs=true"""
    method: str = "owl-memory"
    """owl, owl-memory, experience-replay, full-rehearsal, …"""
    seed: int = 0
    """of everything"""
    frames: int | None = None
    """per task and round; 190000, or 20000 for the Pendulum"""
    rounds: int = 1
    """how often the tasks are gone through"""
    learner: Literal["fast", "paper"] = "fast"
    """settings of the DQN, or of the SAC for the Pendulum"""
    set: tuple[str, ...] = ()
    """settings of it that differ, e.g. n_step=3 learning_rate=0.001"""
    strength: float | None = None
    """of the regularizer; the method's own if left out"""
    policies: tuple[str, ...] = ()
    """how to act in the evaluation, e.g. oracle hedge+td; all if left out"""
    episodes: int = 16
    """per task and policy"""
    in_a_row: int = 0
    """episodes in a row with kept evidence, evaluated as well"""
    unseen: tuple[str, ...] = ()
    """levels for generalisation, e.g. S9N1:100"""
    output: Path = Path("runs")
    """directory of results"""
    json: bool = False
    """print the result as one line of JSON at the end"""

    def run(self) -> Run:
        """What is asked for."""
        tasks = _tasks(self.tasks, self.env_id, self.levels, self.angles) or "SC3"
        own = CONTROL_DEFAULTS if tasks.startswith(f"{PENDULUM}:") else {}
        frames = own.get("frames", Run.frames) if self.frames is None else self.frames
        return Run(
            **{**own, "tasks": tasks, "frames": frames},
            arguments=_pairs("arguments", self.arguments),
            method=self.method,
            seed=self.seed,
            rounds=self.rounds,
            learner=self.learner,
            overrides=_pairs("set", self.set),
            strength=self.strength,
            policies=self.policies,
            episodes=self.episodes,
            consecutive=self.in_a_row,
            unseen=self.unseen,
        )

    def __call__(self) -> int:
        """Train unless it is done, print the result."""
        run = self.run()
        path, checkpoint = result_path(self.output, run), self.output / f"{run.id}.safetensors"
        if is_done(self.output, run) and checkpoint.is_file():
            _say(self.json, f"{path} is there already")
            result = read_result(path)
        else:
            self.output.mkdir(parents=True, exist_ok=True)
            result = run_experiment(run, checkpoint=checkpoint, progress=True)
            write_result(self.output, result)
        _say(self.json, result_text(result), f"\nresult: {path}\nfor owlrl evaluate: {checkpoint}")
        if self.json:
            _print_json(result, file=str(path), checkpoint=str(checkpoint), seconds=result.info["seconds"])
        return 0


@dataclass(frozen=True)
class Evaluate:
    """Evaluate what was trained, on its own tasks or on any levels.

    >>> from pathlib import Path
    >>> from owlrl.experiments.commands import Evaluate
    >>> Evaluate(Path("runs/x.safetensors"), levels=(1, 2)).episodes
    16
    """

    checkpoint: Path
    """the .safetensors file that owlrl train wrote"""
    tasks: str | None = None
    """a set; the tasks that were trained if nothing is given"""
    env_id: str = "owlrl/SimpleCrossing-v0"
    """environment whose levels are taken"""
    levels: tuple[int, ...] = ()
    """levels instead of a set, e.g. 3 7 14"""
    angles: tuple[float, ...] = ()
    """of owlrl/Pendulum-v0 instead of levels, e.g. 90 -90"""
    arguments: tuple[str, ...] = ()
    """arguments of the environments, e.g. breadcrumbs=true"""
    policies: tuple[str, ...] = ()
    """how to act, e.g. oracle hedge+td; as in training if left out"""
    episodes: int = 16
    """per task and policy"""
    json: bool = False
    """print the result as one line of JSON at the end"""

    def __call__(self) -> int:
        """Load, run episodes, print."""
        if not self.checkpoint.is_file():
            raise OwlValueError(f"checkpoint is {self.checkpoint}; there is no such file")
        if self.episodes < 1:
            raise OwlValueError(f"episodes is {self.episodes}; expected an int >= 1")
        session = load_session(self.checkpoint)
        text = _tasks(self.tasks, self.env_id, self.levels, self.angles)
        tables: Mapping[str, Any] = session.tasks
        if text is not None:
            specs = resolve_tasks(text, _pairs("arguments", self.arguments))
            if session.run.control != bool(self.angles):
                raise OwlValueError(
                    f"tasks are {text}, but {session.run.tasks} was trained; expected the like"
                )
            scale = session.run.preset.goal_scale
            tables = specs if self.angles else tables_of(specs, goal_scale=scale)
        policies = (
            replace(session.run, policies=self.policies).acting if self.policies else session.run.acting
        )
        with repeatable(session.run.seed):
            rows = evaluate(session, tables, policies, episodes=self.episodes)
        result = Result(session.run, rows, environment())
        _say(self.json, result_text(result))
        if self.json:
            _print_json(result)
        return 0


@dataclass(frozen=True)
class Reproduce:
    """Do all runs of a study, several at once, and print its tables.

    >>> from owlrl.experiments.commands import Reproduce
    >>> Reproduce("headline", seeds=10, jobs=2).output
    PosixPath('runs')
    """

    name: str
    """crossroads, sc3, sc5, sc12, sc3+dk2, headline, ablations, revisits, strengths, pendulum or
    alone"""
    seeds: int = 3
    """how many"""
    jobs: int = 1
    """how many runs at once"""
    output: Path = Path("runs")
    """directory of results; what is there already is not done again"""
    backend: Literal["loky", "dask"] = "loky"
    """processes of this machine, or a Dask cluster"""
    scheduler: str | None = None
    """address of the cluster's scheduler, e.g. tcp://host:8786"""
    list: bool = False
    """only say which runs there are and which are done"""

    def __call__(self) -> int:
        """Run what is missing, print the tables; 1 if a run failed."""
        if self.list:
            for run in study_runs(self.name, seeds=self.seeds):
                print("done   " if is_done(self.output, run) else "missing", run.id)
            return 0
        tables, attempts = reproduce(
            self.name,
            self.output,
            seeds=self.seeds,
            jobs=self.jobs,
            backend=self.backend,
            scheduler=self.scheduler,
        )
        print(tables, end="")
        failed = [attempt for attempt in attempts if attempt.error is not None]
        for attempt in failed:
            print(f"owlrl: {attempt.run.id} failed: {attempt.error}", file=sys.stderr)
        return 1 if failed else 0


@dataclass(frozen=True)
class Report:
    """Put tables and pictures of all results in a directory on one page.

    >>> from pathlib import Path
    >>> from owlrl.experiments.commands import Report
    >>> Report(Path("runs")).episodes
    3
    """

    directory: Path
    """of results, as owlrl train and owlrl reproduce write them"""
    output: Path | None = None
    """the HTML file; report.html in the directory if left out"""
    episodes: int = 3
    """shown of each method, each of another task; 0 for none"""

    def __call__(self) -> int:
        """Write the page, say where it is."""
        print(write_report(self.directory, self.output, episodes=self.episodes))
        return 0


@dataclass(frozen=True)
class Demo:
    """Show in two minutes what one head cannot do and OWL can.

    >>> from owlrl.experiments.commands import Demo
    >>> Demo().arms
    4
    """

    name: Literal["crossroads", "pendulum"] = "crossroads"
    """which one; it may be said without the option's name"""
    arms: int = 4
    """tasks at the crossroads, 2 to 8"""
    frames: int | None = None
    """per task; 30000 at the crossroads, 5000 for the Pendulum"""
    seed: int = 0
    """of everything"""
    picture: Path = Path("runs/demo.png")
    """where the picture goes"""

    def __call__(self) -> int:
        """Train, print the table, draw the picture."""
        start = time.monotonic()
        pendulum = self.name == "pendulum"
        more: dict[str, Any] = {} if self.frames is None else {"frames": self.frames}
        with repeatable(self.seed):
            if pendulum:
                demo = run_pendulum_demo(seed=self.seed, output=self.picture, **more)
            else:
                demo = run_demo(arms=self.arms, seed=self.seed, output=self.picture, **more)
        shown = "Return of an episode" if pendulum else "Share of episodes that reached the goal that pays"
        print(f"\n{shown}:\n\n{demo.table()}\n")
        moving = (
            f" {self.picture.with_suffix('.gif')} shows one episode, the task not told." if pendulum else ""
        )
        print(f"{time.monotonic() - start:.0f} s. The picture is {self.picture}.{moving}")
        return 0


def _tasks(
    name: str | None, env_id: str, levels: tuple[int, ...], angles: tuple[float, ...] = ()
) -> str | None:
    """A set, levels or angles as `owlrl.experiments.resolve_tasks` takes them; None if none is given."""
    given = {"tasks": name, "levels": levels, "angles": angles}
    if len(told := {key: value for key, value in given.items() if value}) > 1:
        text = " and ".join(f"{key} {'is' if key == 'tasks' else 'are'} {v!r}" for key, v in told.items())
        raise OwlValueError(f"{text}; give one of them")
    if angles and env_id != PENDULUM:
        raise OwlValueError(f"angles are {angles} and env_id is {env_id!r}; they are for {PENDULUM!r}")
    numbers = [f"{angle:g}" for angle in angles] or list(map(str, levels))
    return f"{env_id}:{','.join(numbers)}" if numbers else name


def _pairs(where: str, texts: Sequence[str]) -> dict[str, Any]:
    """``name=value`` texts as a dict; values are JSON, or text where they are not."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise OwlValueError(f"{where} has {text!r}; expected name=value")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def _say(quiet: bool, *texts: str) -> None:
    if not quiet:
        print(*texts, sep="\n")


def _print_json(result: Any, **more: object) -> None:
    """One line: mean success (or return) per policy, and all evaluations."""
    rows = [row for row in result.rows if row["kind"] in ("evaluation", "in-a-row")]
    scores: dict[str, list[float]] = {}
    for row in result.select("evaluation", set="seen"):
        scores.setdefault(row["policy"], []).append(row[result.run.measure])
    means = {policy: sum(found) / len(found) for policy, found in scores.items()}
    print(json.dumps({"id": result.run.id, result.run.measure: means, **more, "rows": rows}))
