"""Our own runs, done by `compare`'s engine, and named studies: which runs a table is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from owlrl._arguments import Arguments
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.experiments.comparison import Work, file_work, kept_trials, run_planned, run_trial, run_trials
from owlrl.experiments.config import METHODS, Run
from owlrl.experiments.fanout import Backend
from owlrl.experiments.keeping import SAVE_EVERY
from owlrl.experiments.progress import StepBar
from owlrl.experiments.results import Trial, load_trials
from owlrl.experiments.session import plan_of
from owlrl.experiments.study import Study
from owlrl.experiments.tables import markdown_tables

__all__ = [
    "MODULES",
    "STUDIES",
    "StudyPlan",
    "reproduce",
    "run_all",
    "run_experiment",
    "study_runs",
    "study_table",
]

HEADLINE = ("experience-replay", "owl", "owl-memory")
FRAMES = 120_000
UNSEEN = ("S9N1:100",)
DOOR_FRAMES = 240_000  # DoorKey has 7–8 thousand states and needs its key first
WIDE_FRAMES = 160_000  # of a crossing with 7 actions, of which 4 do nothing there


Errors = list[tuple[str, int, str]]  # method, seed and what went wrong


def run_experiment(
    run: Run,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
    resume: str | os.PathLike[str] | None = None,
    save_every: float = SAVE_EVERY,
) -> Trial:
    """Train and evaluate a `Run`, which determines everything but the times, on one thread.

    Args:
        run: what to do.
        checkpoint: where to write the trained session, for `Session.load`.
        progress: show a bar (needs tqdm).
        resume: a file in which unfinished work is kept. Killed at any moment, the same call continues from
            there to the same result and checkpoint, bit for bit (``owlrl.experiments.results.TIMES`` names
            what differs).
        save_every: seconds of work that a kill may cost.

    >>> from owlrl.experiments import Run, run_experiment
    >>> trial = run_experiment(Run("Crossroads-2", frames=300, policies=("oracle",)))
    >>> len(trial.final("oracle"))
    2
    """
    trial = Trial.of(run)
    keep: dict[str, Any] = {"resume": resume, "save_every": save_every, "checkpoint": checkpoint}
    return run_trial(plan_of(run), trial, tell=StepBar(trial.steps, progress), **keep)


def run_all(
    runs: Sequence[Run],
    directory: str | os.PathLike[str],
    *,
    jobs: int = 1,
    backend: Backend = "loky",
    scheduler: str | None = None,
    progress: bool = True,
    save_every: float = SAVE_EVERY,
    where: str = "run_all",
) -> tuple[list[Trial], Errors]:
    """Run what a directory does not have yet; returns all trials, and errors: method, seed and text.

    Args:
        runs: what to do; each once.
        directory: of finished and unfinished runs.
        jobs: how many at once; this and the others are those of `compare`.
        backend: "loky" or "dask".
        scheduler: of the Dask cluster.
        progress: show on stderr what is running.
        save_every: seconds of each run's work that a kill may cost.
        where: whose messages these are.

    >>> import tempfile
    >>> from owlrl.experiments import Run, run_all
    >>> runs = [Run("Crossroads-2", frames=100, policies=("oracle",))]
    >>> trials, errors = run_all(runs, tempfile.mkdtemp(), progress=False)
    >>> len(trials), errors
    (1, [])
    """
    places: dict[str, Any] = {"jobs": jobs, "backend": backend, "scheduler": scheduler, "where": where}
    return run_trials(run_work(runs), output=directory, progress=progress, save_every=save_every, **places)


def run_work(runs: Iterable[Run]) -> list[Work]:
    """Each run once, as ``run_trials`` takes it."""
    once = {run.id: run for run in runs}
    return [Work(Trial.of(run), partial(run_planned, partial(plan_of, run))) for run in once.values()]


@dataclass(frozen=True)
class StudyPlan:
    """A comparison with a name.

    Attributes:
        about: what it is.
        make: its runs for one seed.

    >>> from owlrl.experiments import STUDIES
    >>> [run.method for run in STUDIES["sc3"].make(0)]
    ['experience-replay', 'owl', 'owl-memory']
    """

    about: str
    make: Callable[[int], list[Run]]


def _compare(methods: Sequence[str], tasks: str, seed: int, **more: Any) -> list[Run]:
    return [Run(tasks, method=method, seed=seed, **{"frames": FRAMES, **more}) for method in methods]


def _crossroads(seed: int) -> list[Run]:
    methods = (*HEADLINE, "one-head-rehearsal")
    crumbs = _compare(methods, "Crossroads-4", seed, frames=30_000, arguments={"breadcrumbs": True})
    return crumbs + _compare(methods, "Crossroads-4", seed, frames=60_000, consecutive=8)


def _doors(seed: int) -> list[Run]:
    frames = {"doorkey-4": DOOR_FRAMES, "doorkey-6": DOOR_FRAMES}
    methods = (*HEADLINE, "owl-no-ewc", "owl-distill-current", "full-rehearsal")  # the paper's ablations
    return _compare(methods, "SC3+DK2", seed, frames=WIDE_FRAMES, frames_by_task=frames, learner="curious")


def _sc5(seed: int, methods: Sequence[str] = HEADLINE) -> list[Run]:
    def unseen(method: str) -> tuple[str, ...]:  # a hundred levels take as long as the training
        return UNSEEN if seed < 3 and method in HEADLINE else ()

    return [run for name in methods for run in _compare([name], "SC5", seed, unseen=unseen(name))]


def _unseen(seed: int) -> list[Run]:
    one_head = ("oracle", "oracle+least-tried")
    heads = ("hedge+model", "restless+model", "released+td-raw", "random")
    policies = {True: ("oracle", *heads, *(f"{name}+least-tried" for name in heads)), False: one_head}
    more: dict[str, Any] = {"learner": "conv", "unseen": UNSEEN}
    return [
        run
        for name in HEADLINE
        for run in _compare([name], "SC5", seed, policies=policies[METHODS[name].heads], **more)
    ]


def _ablations(seed: int) -> list[Run]:
    one_head = ("experience-replay", "one-head-rehearsal")
    heads = ("owl", "owl-loss", "owl-no-ewc", "owl-distill-current", "owl-memory", "full-rehearsal")
    return _sc5(seed, (*one_head, *heads))


def _revisits(seed: int) -> list[Run]:
    starts = ("owl-warm-start", "owl-warm-start-100k", "owl-epsilon-restart-1x", "owl-epsilon-restart-2x")
    dropouts = ("owl-dropout-0.05", "owl-dropout-0.1", "owl-dropout-0.2")
    methods = ("experience-replay", "owl", *starts, "owl-mlp-head", *dropouts, "owl-memory")
    return _compare(methods, "SC2", seed, rounds=2, frames=FRAMES // 2)


def _strengths(seed: int) -> list[Run]:
    tried = {
        "owl": (1.0, 10.0, 100.0, 500.0, 1_000.0, 5_000.0),
        "owl-loss": (500.0, 5_000.0, 50_000.0, 500_000.0),
        "owl-distill-current": (1.0, 10.0, 100.0),
        "owl-memory": (0.1, 1.0, 10.0),
    }
    pairs = [(method, strength) for method, strengths in tried.items() for strength in strengths]
    return [run for method, strength in pairs for run in _compare([method], "SC3", seed, strength=strength)]


def _alone(seed: int) -> list[Run]:
    return [
        run
        for level in (2, 3, 7, 14, 17, 24, 31)
        for run in _compare(["owl-memory"], f"owlrl/SimpleCrossing-v0:{level}", seed)
    ]


def _pendulum(seed: int) -> list[Run]:
    def runs(methods: Sequence[str], angles: str, **more: Any) -> list[Run]:
        schedule = {"frames": 5_000, "rounds": 3, "num_envs": 4, "eval_every": 5_000, **more}
        return _compare(methods, f"owlrl/Pendulum-v0:{angles}", seed, **schedule)

    together = runs(("experience-replay", "owl", "owl-memory"), "90,-90")
    whole: dict[str, Any] = {"frames": 15_000, "rounds": 1, "policies": ("oracle",)}  # in one go
    return together + [run for angle in ("90", "-90") for run in runs(("owl-no-ewc",), angle, **whole)]


STUDIES: dict[str, StudyPlan] = {
    "crossroads": StudyPlan("tasks that contradict each other, with and without breadcrumbs", _crossroads),
    "sc3": StudyPlan("three crossings, one pass", lambda seed: _compare(HEADLINE, "SC3", seed)),
    "sc5": StudyPlan("five crossings, one pass, and 100 unseen levels", _sc5),
    "unseen": StudyPlan("100 unseen levels after five crossings, with the convolution", _unseen),
    "sc12": StudyPlan(
        "all twelve screened crossings, one pass", lambda seed: _compare(HEADLINE, "SC12", seed)
    ),
    "sc3+dk2": StudyPlan("three crossings and two doors, one pass", _doors),
    "headline": StudyPlan("sc3 and sc5", lambda seed: STUDIES["sc3"].make(seed) + STUDIES["sc5"].make(seed)),
    "ablations": StudyPlan("the paper's ablations on five crossings, one pass", _ablations),
    "revisits": StudyPlan("what matters when tasks come back: two crossings, two rounds", _revisits),
    "strengths": StudyPlan("how strong each regularizer should be, on three crossings", _strengths),
    "pendulum": StudyPlan(
        "two opposed Pendulums, three rounds as in the paper; and each by itself", _pendulum
    ),
    "alone": StudyPlan("each crossing by itself, the reference of forward transfer", _alone),
}


MODULES = {  # studies that are modules of owlrl.experiments
    "cheetah": "HalfCheetah forward and backward, SAC of Stable-Baselines3 (extras mujoco, sb3)",
    "multi_mnist": "two digits in an image, a task for each: EWC and GEM, one head and two (--data)",
    "paper": "every cell of the paper's tables at its settings and length: many hours, resumable",
    "thousand": "a thousand hidden goals in one pass, the reference SAC: score, cost and memory over tasks",
    "reacher": "Reacher with four goals, DQN of Stable-Baselines3 (extras benchmarks, mujoco, sb3)",
    "treasure": "Deep Sea Treasure and a fruit tree, rewards weighted in several ways (extra benchmarks)",
    "minatar": "three games of MinAtar, one after the other, in seven visits; owlrl's DQN (extra benchmarks)",
}


def study_runs(name: str, *, seeds: int, methods: Sequence[str] = (), frames: int | None = None) -> list[Run]:
    """The runs of a study for seeds 0 to ``seeds`` − 1, seed after seed.

    Args:
        name: a key of ``STUDIES``.
        seeds: how many.
        methods: only these; empty for all that the study has.
        frames: per task, instead of the study's own.

    >>> from owlrl.experiments import study_runs
    >>> len(study_runs("headline", seeds=2))
    12
    """
    if name not in STUDIES:
        known = ", ".join([*STUDIES, *MODULES])
        raise OwlValueError(f"reproduce: name is {name!r}; expected one of {known}")
    arguments = Arguments("reproduce")
    arguments.integer("seeds", seeds)
    arguments.integer("frames", frames, none=True)
    arguments.check()
    runs = [run for seed in range(seeds) for run in STUDIES[name].make(seed)]
    there = list(dict.fromkeys(run.method for run in runs))
    if odd := [method for method in methods if method not in there]:
        raise OwlValueError(f"reproduce: methods has {', '.join(odd)}; {name} has {', '.join(there)}")
    if frames is not None:
        runs = [replace(run, frames=frames, frames_by_task={}) for run in runs]
    return [run for run in runs if not methods or run.method in methods]


def study_table(runs: Sequence[Run], trials: Iterable[Trial]) -> str:
    """Markdown tables of those runs that are among the trials; single-task trials there are a reference.

    >>> from owlrl.experiments import load_trials, study_runs, study_table
    >>> study_table(study_runs("sc3", seeds=1), load_trials("nowhere"))
    ''
    """
    found = {trial.id: trial for trial in trials if trial.run is not None}
    there = [found[run.id] for run in runs if run.id in found]
    return markdown_tables(there, reference=found.values())


class Part(NamedTuple):
    """A part of a study: trials in one directory, and the text of their results."""

    directory: str  # below the output; empty for the output itself
    work: list[Work]
    show: Callable[[list[Trial], Errors, Path], str]  # of the finished ones, errors of others, and directory
    check: Callable[[], object] = lambda: None  # called before anything is run; raises if it cannot be


def study_parts(
    name: str, *, seeds: int | None = None, methods: Sequence[str] = (), **more: Any
) -> list[Part]:
    """What a study is made of, nothing of it run; arguments as for `reproduce`."""
    chosen: dict[str, Any] = {key: value for key, value in more.items() if value is not None}
    if methods:
        chosen["methods"] = tuple(methods)
    if seeds is not None or name not in MODULES:
        chosen["seeds"] = 3 if seeds is None else seeds
    module = import_module(f"owlrl.experiments.{name}") if name in MODULES else None
    make = partial(_levels, name) if module is None else getattr(module, "parts", partial(_file, module))
    known = signature(make).parameters
    if odd := [key for key in chosen if key not in known]:
        raise OwlValueError(f"reproduce: {name} has no --{odd[0]}; leave it out")
    found: list[Part] = make(**chosen)
    return found


def _levels(name: str, seeds: int, methods: Sequence[str] = (), frames: int | None = None) -> list[Part]:
    runs = study_runs(name, seeds=seeds, methods=methods, frames=frames)
    return [Part("", run_work(runs), lambda trials, errors, where: study_table(runs, load_trials(where)))]


def _file(
    module: Any, seeds: int | None = None, methods: Sequence[str] = (), frames: int | None = None
) -> list[Part]:
    """A module that is made like a file for `compare`."""
    chosen = {"seeds": seeds, "methods": methods or None, "steps": frames}
    work, said = file_work(module.__file__, **chosen)
    note = said.get("note", "")
    return [Part(module.__name__.rpartition(".")[2], work, partial(study_text, note=note))]


def study_text(trials: list[Trial], errors: Errors, directory: Path, *, note: str = "") -> str:
    """Table, verdicts and notes of a comparison, whose report goes into the directory as well."""
    if not trials:
        return "no run could be finished"
    study = Study(trials, errors=errors, note=note)
    return f"{study.table()}\n{report_text(study, directory)}"


def report_text(study: Study, directory: Path) -> str:
    """Verdicts and notes of a comparison, and where its report is, which is written.

    If the picture needs a library that is missing, the text says so.
    """
    lines = [*map(str, study.verdicts()), "", *study.notes(), ""]
    try:
        lines.append(f"report: {study.report(directory / 'report.html')}")
    except OwlStateError as error:
        lines.append(f"no report: {error}")
    return "\n".join(lines)


def reproduce(
    name: str,
    directory: str | os.PathLike[str],
    *,
    seeds: int | None = None,
    methods: Sequence[str] = (),
    frames: int | None = None,
    data: str | os.PathLike[str] | None = None,
    **places: Any,
) -> tuple[str, Errors]:
    """Run what a study still lacks; return its tables, and errors.

    Args:
        name: a key of ``STUDIES`` or ``MODULES``.
        directory: of the results; studies that are modules have a directory below it.
        seeds: how many; the study's own number if left out, 3 for those on levels.
        methods: only these; empty for all that the study has.
        frames: per task, instead of the study's own.
        data: folder of a data set, for a study that needs one.
        places: ``jobs``, ``backend``, ``scheduler``, ``progress`` and ``save_every`` of `run_all`.

    >>> from owlrl.experiments import reproduce
    >>> reproduce("sc3", "runs", seeds=0)
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: reproduce: seeds is 0; expected an int >= 1
    """
    texts, failed = list[str](), Errors()
    parts = study_parts(name, seeds=seeds, methods=methods, frames=frames, data=data)
    for part in parts:
        where = Path(directory) / part.directory
        own = {where / f"{work.trial.id}.jsonl" for work in part.work}
        for path in set(where.glob("*.jsonl")) - own:  # damaged files of these runs are run again
            Trial.read(path)  # what is no result is refused now, not after hours
        if len(kept_trials([work.trial for work in part.work], where)) < len(part.work):
            part.check()
        trials, errors = run_trials(part.work, output=where, where="reproduce", **places)
        texts.append(part.show(trials, errors, where))
        failed += errors
    return "\n".join(texts), failed
