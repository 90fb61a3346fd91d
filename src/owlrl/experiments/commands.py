"""The commands of ``owlrl`` and their options; `owlrl.cli` reads the command line into these."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium

from owlrl._arguments import Arguments
from owlrl.envs import Table
from owlrl.envs.task_sets import CROSSING, PENDULUM
from owlrl.errors import OwlValueError
from owlrl.experiments.comparison import compare, compare_file, diagnose, kept_trials, list_trials
from owlrl.experiments.config import PRESETS, Preset, Run, with_overrides
from owlrl.experiments.demo import run_demo, run_pendulum_demo, run_stream_demo
from owlrl.experiments.keeping import SAVE_EVERY, repeatable
from owlrl.experiments.report import DEMOS, write_report
from owlrl.experiments.results import SEEN, Trial, environment, make_directory
from owlrl.experiments.session import Session, evaluate, unseen_specs
from owlrl.experiments.studies import MODULES, STUDIES, report_text, reproduce, run_experiment, study_parts
from owlrl.experiments.tables import result_text
from owlrl.experiments.tasks import is_control, is_level_grid, resolve_tasks, seeded_task, tables_of
from owlrl.learners import DQN, SAC

__all__: list[str] = []

SAME_METHOD = {  # of our own runs: what `compare` calls it
    "owl-memory": "owl",
    "owl": "owl with EWC",
    "experience-replay": "bare",
    "one-head-rehearsal": "one head with rehearsal",
}
CONTROL_DEFAULTS: dict[str, Any] = {"frames": 20_000, "num_envs": 4, "eval_every": 5_000}


@dataclass(frozen=True)
class Train:
    """Train a method on tasks one after the other, and evaluate it."""

    tasks: str | None = None
    """a set: SC2, SC3, SC5, SC12, SC3+DK2, Crossroads-2 … Crossroads-8; SC3 if no levels are given"""
    env_id: str | None = None
    """environment whose levels are taken; owlrl/SimpleCrossing-v0 if left out. Any registered one: where it
    has no argument level, a level is the seed of its resets; others than grids are trained by compare"""
    levels: tuple[int, ...] = ()
    """levels instead of a set, e.g. 3 7 14"""
    angles: tuple[float, ...] = ()
    """of owlrl/Pendulum-v0 instead of levels, e.g. 90 -90"""
    arguments: tuple[str, ...] = ()
    """arguments of the environments, e.g. breadcrumbs=true"""
    method: str = "owl-memory"
    """experience-replay, one-head-rehearsal, owl, owl-loss, owl-warm-start, owl-warm-start-100k, owl-no-ewc,
    owl-distill-current, full-rehearsal, owl-mlp-head, owl-epsilon-restart-1x, owl-epsilon-restart-2x,
    owl-dropout-0.05, owl-dropout-0.1, owl-dropout-0.2 or owl-memory"""
    seed: int = 0
    """of everything"""
    frames: int | None = None
    """per task and round; 190000, or 20000 for the Pendulum"""
    rounds: int = 1
    """how often the sequence of tasks is repeated"""
    learner: Literal["fast", "conv", "curious", "paper"] = "fast"
    """settings of the DQN, or of the SAC for the Pendulum"""
    set: tuple[str, ...] = ()
    """settings that differ, e.g. n_step=3 learning_rate=0.001"""
    strength: float | None = None
    """of the regularizer; the method's own if left out"""
    compile: bool = False
    """compile the learner's update: faster, after some tens of seconds; needs a C++ compiler"""
    policies: tuple[str, ...] = ()
    """policies in the evaluation, e.g. oracle hedge+td; all if left out"""
    episodes: int = 16
    """per task and policy"""
    in_a_row: int = 0
    """episodes in a row with kept evidence, evaluated as well"""
    unseen: tuple[str, ...] = ()
    """levels for generalisation, e.g. S9N1:100"""
    output: Path = Path("runs")
    """directory of results"""
    save_every: float = SAVE_EVERY
    """seconds of work that a kill may cost; the same command continues from there"""
    json: bool = False
    """print the result as one line of JSON at the end"""

    def run(self) -> Run:
        """The run."""
        tasks = task_text(self.tasks, self.env_id, self.levels, self.angles) or "SC3"
        own = CONTROL_DEFAULTS if is_control(tasks) else {}
        frames = own.get("frames", Run.frames) if self.frames is None else self.frames
        alike = ("method", "seed", "rounds", "learner", "strength", "policies", "episodes", "unseen")
        return Run(
            **{**own, "tasks": tasks, "frames": frames, **{name: getattr(self, name) for name in alike}},
            compile=self.compile,
            arguments=named_values("arguments", self.arguments),
            overrides=named_values("set", self.set),
            consecutive=self.in_a_row,
        )

    def __call__(self) -> int:
        """Train unless it is done already; print the result."""
        if self.env_id is not None and self.levels and not is_level_grid(self.env_id):
            return self._compare(self.env_id)
        run = self.run()
        trial = Trial.of(run)
        path, checkpoint = self.output / f"{run.id}.jsonl", self.output / f"{run.id}.safetensors"
        part = self.output / f"{trial.part}.part"
        done = kept_trials([trial], self.output)
        if done and checkpoint.is_file():
            say(self.json, f"{path} is there already")
            trial = done[run.id]
        else:
            make_directory(self.output)
            if part.is_file():
                say(self.json, f"continuing from {part}")
            keep: dict[str, Any] = {"resume": part, "save_every": self.save_every}
            trial = run_experiment(run, checkpoint=checkpoint, progress=True, **keep)
            trial.write(self.output)
        with suppress(OSError):  # where nothing can be written, nothing is in the way either
            part.unlink()
        info = trial.info or {}
        if self.compile:
            say(self.json, f"compiled in {info['compile_seconds']:.0f} s, a part of its training")
        say(self.json, result_text(trial), f"\nresult: {path}\nfor owlrl evaluate: {checkpoint}")
        if self.json:
            print_json(trial, file=str(path), checkpoint=str(checkpoint), seconds=info["seconds"])
        return 0

    def _compare(self, env_id: str) -> int:
        """Levels of an environment that is not a grid: a comparison with one method."""
        if self.method not in SAME_METHOD or self.policies or self.unseen or self.in_a_row or self.strength:
            raise OwlValueError(
                f"train: {env_id} is not a grid, so its levels are trained by compare: expected --method "
                f"{', '.join(SAME_METHOD)}, and no --policies, --unseen, --in-a-row or --strength"
            )
        arguments = named_values("arguments", self.arguments)
        tasks = {
            f"{env_id.partition('-')[0].lower()}-{level}": partial(seeded_task, env_id, level, **arguments)
            for level in self.levels
        }
        next(iter(tasks.values()))().close()  # refused before anything begins
        preset, overrides = PRESETS[self.learner], named_values("set", self.set)
        study = compare(
            partial(_make_learner, preset=preset, overrides=overrides, compile=self.compile),
            tasks=tasks,
            steps=self.frames or CONTROL_DEFAULTS["frames"],
            methods=[SAME_METHOD[self.method]],
            seeds=[self.seed],
            rounds=self.rounds,
            eval_episodes=self.episodes,
            output=self.output,
            save_every=self.save_every,
            progress=not self.json,
        )
        say(self.json, study.table(), *map(str, study.verdicts()), *study.notes())
        if self.json:
            print(json.dumps({"scores": {k: v.tolist() for k, v in study.to_rliable().items()}}))
        return 1 if study.errors else 0


def _make_learner(
    env: Any, seed: int, *, preset: Preset, overrides: Mapping[str, Any], compile: bool
) -> DQN | SAC:
    """The learner that fits the actions, with a preset's settings."""
    if isinstance(env.action_space, gymnasium.spaces.Box):
        return SAC(env, config=with_overrides(preset.sac, overrides), seed=seed, compile=compile)
    return DQN(env, config=with_overrides(preset.config, overrides), seed=seed, compile=compile)


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a trained run, on its own tasks or on any levels."""

    checkpoint: Path
    """the .safetensors file that owlrl train wrote"""
    tasks: str | None = None
    """a set; the tasks that were trained if nothing is given"""
    env_id: str | None = None
    """environment whose levels are taken; owlrl/SimpleCrossing-v0 if left out"""
    levels: tuple[int, ...] = ()
    """levels instead of a set, e.g. 3 7 14"""
    angles: tuple[float, ...] = ()
    """of owlrl/Pendulum-v0 instead of levels, e.g. 90 -90"""
    arguments: tuple[str, ...] = ()
    """arguments of the environments, e.g. breadcrumbs=true; added to those of the training if no tasks are
    given"""
    unseen: tuple[str, ...] = ()
    """levels for generalisation as well, e.g. S9N1:100"""
    policies: tuple[str, ...] = ()
    """policies, e.g. oracle hedge+td; as in training if left out"""
    episodes: int = 16
    """per task and policy"""
    json: bool = False
    """print the result as one line of JSON at the end"""

    def __call__(self) -> int:
        """Load, run episodes, print."""
        if not self.checkpoint.is_file():
            raise OwlValueError(f"checkpoint is {self.checkpoint}; there is no such file")
        arguments = Arguments("evaluate")
        arguments.integer("episodes", self.episodes)
        arguments.check()
        session = Session.load(self.checkpoint)
        sets = self._sets(session)
        run = replace(session.run, policies=self.policies or session.run.policies, unseen=self.unseen)
        rows = []
        with repeatable(run.seed):
            for label, tasks in sets.items():
                rows += evaluate(session, tasks, run.acting, episodes=self.episodes, label=label)
        if not rows:
            raise OwlValueError(
                f"policies are {run.acting}, which need the task given, and no head has learned "
                f"{', '.join(task for tasks in sets.values() for task in tasks)}; expected others, e.g. "
                "--policies random"
            )
        trial = Trial.of(session.run, rows, environment())
        say(self.json, result_text(trial))
        if self.json:
            print_json(trial)
        return 0

    def _sets(self, session: Session) -> dict[str, Mapping[str, Any]]:
        """What to evaluate: trained tasks, other tasks, and levels for generalisation."""
        tasks, trained = self._tasks(session), session.tasks
        known = {name: task for name, task in tasks.items() if _same(task, trained.get(name))}
        # A task that only has the name of one that was trained must not be taken for it.
        others = {
            f"other {name}" if name in trained else name: task
            for name, task in tasks.items()
            if name not in known
        }
        sets: dict[str, Mapping[str, Any]] = {"": known, "others": others}
        if not session.run.control:
            scale = session.run.preset.goal_scale
            unseen = {text: unseen_specs(session.run, text) for text in self.unseen}
            sets |= {text: tables_of(levels, goal_scale=scale) for text, levels in unseen.items()}
        return {label: tasks for label, tasks in sets.items() if tasks}

    def _tasks(self, session: Session) -> Mapping[str, Any]:
        """Those that were trained, or the like."""
        run, arguments = session.run, named_values("arguments", self.arguments)
        text = task_text(self.tasks, self.env_id, self.levels, self.angles)
        if text is None and not arguments:
            return session.tasks
        if text is None:
            specs = resolve_tasks(run.tasks, {**run.arguments, **arguments})
        else:
            specs = resolve_tasks(text, arguments)
        if run.control != is_control(text or run.tasks):
            raise OwlValueError(f"tasks are {text}, but {run.tasks} was trained; expected the like")
        if run.control:
            return specs
        tables = tables_of(specs, goal_scale=run.preset.goal_scale)
        trained = next(iter(session.tasks.values())).num_actions
        if few := [name for name, table in tables.items() if table.num_actions < trained]:
            raise OwlValueError(
                f"{', '.join(few)} have fewer actions than the {trained} that were learned; expected as "
                f"many, e.g. --arguments num_actions={trained}"
            )
        return tables


def _same(task: Any, trained: Any) -> bool:
    """Whether two tasks are one: both tables, or both descriptions of an environment."""
    if isinstance(task, Table) and isinstance(trained, Table):
        return task is trained or task.name == trained.name
    return bool(task == trained)


@dataclass(frozen=True)
class Compare:
    """Compare methods on your own tasks with your own model, defined in a Python file."""

    study: Path
    """file that defines make_model(env, seed), tasks and steps; also methods, seeds, order, eval_every, …"""
    steps: int | None = None
    """of each task, instead of the file's"""
    methods: tuple[str, ...] = ()
    """instead of the file's: bare, "bare, empty replay", alone, "one head with rehearsal", "one head with
    history", owl, "owl with EWC", paper, lpg-ftw, or package.module:name of your own"""
    seeds: int | None = None
    """how many, instead of the file's"""
    jobs: int | None = None
    """how many runs at once"""
    output: Path | None = None
    """directory of finished runs and of the report; runs/ and the file's name if left out"""
    backend: Literal["loky", "dask"] | None = None
    """processes of this machine, or a Dask cluster (which executes what it is sent)"""
    scheduler: str | None = None
    """address of the cluster's scheduler, e.g. tcp://host:8786"""
    save_every: float | None = None
    """seconds of each run's work that a kill may cost; 60 if neither is given"""
    tensorboard: Path | None = None
    """directory for TensorBoard: scores, learning curves and the wrapper's own numbers (extra tensorboard)"""

    def __call__(self) -> int:
        """Run what is missing, print table and verdicts, write the report; 1 if a run failed."""
        output = self.output or Path("runs") / self.study.stem
        chosen = {option.name: getattr(self, option.name) for option in fields(self)}
        chosen |= {"methods": self.methods or None, "output": output}
        study = compare_file(chosen.pop("study"), **chosen)
        print(study.table(), report_text(study, output), sep="\n")
        return 1 if study.errors else 0


@dataclass(frozen=True)
class Diagnose:
    """Measure how much the tasks of a study file contradict each other, by tables or by trained heads."""

    study: Path
    """file that defines make_model(env, seed), tasks and steps, as for owlrl compare"""
    steps: int | None = None
    """of training on each task where there is no table, instead of the file's"""
    seed: int = 0
    """of tables and training"""

    def __call__(self) -> int:
        """Print a sentence."""
        print(diagnose(self.study, steps=self.steps, seed=self.seed))
        return 0


@dataclass(frozen=True)
class Reproduce:
    """Make all runs of a study, several at once, and print its tables."""

    name: str | None = None
    """which study; the option's name may be left out, and --list describes each: crossroads, sc3,
    sc5, unseen, sc12, sc3+dk2, headline, ablations, revisits, strengths, pendulum, alone, cheetah,
    reacher, treasure, minatar, multi_mnist, thousand or paper"""
    seeds: int | None = None
    """how many; the study's own number if left out, 3 for those on levels"""
    jobs: int = 1
    """how many runs at once"""
    output: Path = Path("runs")
    """directory of results; finished runs are not repeated"""
    backend: Literal["loky", "dask"] = "loky"
    """processes of this machine, or a Dask cluster"""
    scheduler: str | None = None
    """address of the cluster's scheduler, e.g. tcp://host:8786"""
    methods: tuple[str, ...] = ()
    """only these of the study's methods"""
    frames: int | None = None
    """per task, instead of the study's: separate results, for a first look"""
    data: Path | None = None
    """folder of a data set, for a study that needs one: MNIST's four IDX files for multi_mnist"""
    save_every: float = SAVE_EVERY
    """seconds of each run's work that a kill may cost"""
    list: bool = False
    """only list the runs and which are done; without a name, list the studies"""

    def __call__(self) -> int:
        """Run what is missing, print the tables; 1 if a run failed."""
        studies = {name: study.about for name, study in STUDIES.items()} | MODULES
        if self.list and self.name is None:
            for name, about in studies.items():
                print(f"{name:12}{about}")
            return 0
        if self.name is None:
            raise OwlValueError(
                f"reproduce: which study? One of {', '.join(studies)}, e.g. owlrl reproduce sc3"
            )
        chosen: dict[str, Any] = {"seeds": self.seeds, "methods": self.methods, "frames": self.frames}
        if self.list:
            for part in study_parts(self.name, **chosen, data=self.data):
                list_trials([work.trial for work in part.work], self.output / part.directory)
            return 0
        places: dict[str, Any] = {"jobs": self.jobs, "backend": self.backend, "scheduler": self.scheduler}
        places |= {"save_every": self.save_every}
        tables, errors = reproduce(self.name, self.output, **chosen, data=self.data, **places)
        print(tables, end="")
        return 1 if errors else 0


@dataclass(frozen=True)
class Report:
    """Write tables and pictures of all results in a directory to one page."""

    directory: Path
    """of results, as owlrl train and owlrl reproduce write them"""
    output: Path | None = None
    """the HTML file; report.html in the directory if left out"""
    episodes: int = 3
    """episodes shown of each method, each of another task; 0 for none"""

    def __call__(self) -> int:
        """Write the page and print its path."""
        print(write_report(self.directory, self.output, episodes=self.episodes))
        return 0


@dataclass(frozen=True)
class Demo:
    """Show in two minutes what one head cannot do and OWL can."""

    name: Literal["crossroads", "pendulum", "stream"] = "crossroads"
    """which one; the option's name may be left out"""
    arms: int | None = None
    """tasks at the crossroads, 2 to 8; 4 if left out, 3 in the stream"""
    frames: int | None = None
    """per task; 30000 at the crossroads, 5000 for the Pendulum, 15000 in the stream"""
    seed: int = 0
    """of everything"""
    picture: Path | None = None
    """where the picture goes; runs/demo.png if left out, or runs/demo-pendulum.png, runs/demo-stream.png"""

    def __call__(self) -> int:
        """Train, print the table, draw the picture."""
        start = time.monotonic()
        pendulum = self.name == "pendulum"
        if pendulum and self.arms is not None:
            raise OwlValueError(f"arms is {self.arms}; the Pendulum has none, leave it out")
        chosen: dict[str, Any] = {"arms": self.arms, "frames": self.frames}
        given = {name: value for name, value in chosen.items() if value is not None}
        runs: dict[str, tuple[Any, str]] = {
            "crossroads": (run_demo, "Share of episodes that reached the goal that pays"),
            "pendulum": (run_pendulum_demo, "Return of an episode"),
            "stream": (run_stream_demo, "Hidden changes, and when they were found"),
        }
        run, shown = runs[self.name]
        picture = self.picture or Path("runs") / DEMOS[self.name]
        with repeatable(self.seed):
            demo = run(seed=self.seed, output=picture, **given)
        print(f"\n{shown}:\n\n{demo.table()}\n")
        moving = f" {picture.with_suffix('.gif')} shows one episode, the task unknown." if pendulum else ""
        print(f"{time.monotonic() - start:.0f} s. The picture is {picture}.{moving}")
        return 0


def task_text(
    name: str | None, env_id: str | None, levels: Sequence[int], angles: Sequence[float]
) -> str | None:
    """A set, levels or angles as `owlrl.experiments.resolve_tasks` takes them; None if none is given."""
    given = {"tasks": name, "levels": levels, "angles": angles}
    if len(told := {key: value for key, value in given.items() if value}) > 1:
        text = " and ".join(f"{key} {'is' if key == 'tasks' else 'are'} {v!r}" for key, v in told.items())
        raise OwlValueError(f"{text}; give one of them")
    if angles and env_id != PENDULUM:
        raise OwlValueError(f"angles are {angles} and env_id is {env_id!r}; they are for {PENDULUM!r}")
    numbers = [f"{angle:g}" for angle in angles] or list(map(str, levels))
    if env_id is not None and not numbers:
        example = "angles, e.g. --angles 90 -90" if env_id == PENDULUM else "levels, e.g. --levels 3 7 14"
        raise OwlValueError(f"env_id is {env_id!r}, of which nothing is chosen; give {example} with it")
    return f"{env_id or CROSSING}:{','.join(numbers)}" if numbers else name


def named_values(where: str, texts: Sequence[str]) -> dict[str, Any]:
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


def say(quiet: bool, *texts: str) -> None:
    """Print lines, unless only JSON is printed."""
    if not quiet:
        print(*texts, sep="\n")


def print_json(trial: Trial, **more: object) -> None:
    """One line: mean success (or return) per mode, of trained tasks and of other sets; all evaluations."""
    scores: dict[str, dict[str, list[float]]] = {SEEN: {}}
    labels = dict.fromkeys(row.get("set", SEEN) for row in trial.select("score"))
    for row in (final := [row for label in labels for row in trial.final(label=label)]):
        scores.setdefault(row.get("set", SEEN), {}).setdefault(row["mode"], []).append(row[trial.measure])
    means = {
        label: {mode: sum(found) / len(found) for mode, found in by_mode.items()}
        for label, by_mode in scores.items()
    }
    summary = {trial.measure: means.pop(SEEN), "others": means}
    rows = [{k: v for k, v in row.items() if k != "visit"} for row in final + trial.select("in-a-row")]
    print(json.dumps({"id": trial.id, **summary, **more, "rows": rows}))
