"""Named studies: which runs a table of the results is made of."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from owlrl._arguments import Arguments
from owlrl.errors import OwlValueError
from owlrl.experiments.config import Run
from owlrl.experiments.fanout import Attempt, Backend, run_all
from owlrl.experiments.keeping import SAVE_EVERY
from owlrl.experiments.recipes import METHODS
from owlrl.experiments.results import Result, load_results, read_result, result_path
from owlrl.experiments.tables import markdown_tables

__all__ = ["STUDIES", "StudyPlan", "reproduce", "study_runs", "study_table"]

HEADLINE = ("experience-replay", "owl", "owl-memory")
FRAMES = 120_000
UNSEEN = ("S9N1:100",)
DOOR_FRAMES = 240_000  # DoorKey has 7–8 thousand states and needs its key first
WIDE_FRAMES = 160_000  # of a crossing with 7 actions, of which 4 do nothing there


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
    return _compare(HEADLINE, "SC3+DK2", seed, frames=WIDE_FRAMES, frames_by_task=frames, learner="curious")


def _sc5(seed: int, methods: Sequence[str] = HEADLINE) -> list[Run]:
    def unseen(method: str) -> tuple[str, ...]:  # a hundred levels take as long as the training
        return UNSEEN if seed < 3 and method in HEADLINE else ()

    return [run for name in methods for run in _compare([name], "SC5", seed, unseen=unseen(name))]


def _unseen(seed: int) -> list[Run]:
    one_head = ("oracle", "oracle+least-tried")
    heads = ("hedge+model", "restless+model", "released+td-raw", "random")
    policies = {True: ("oracle", *heads, *(f"{name}+least-tried" for name in heads)), False: one_head}
    return [
        Run(
            "SC5",
            method=name,
            seed=seed,
            frames=FRAMES,
            learner="conv",
            policies=policies[METHODS[name].heads],
            unseen=UNSEEN,
        )
        for name in HEADLINE
    ]


def _ablations(seed: int) -> list[Run]:
    one_head = ("experience-replay", "one-head-rehearsal")
    heads = ("owl", "owl-loss", "owl-no-ewc", "owl-distill-current", "owl-memory", "full-rehearsal")
    return _sc5(seed, (*one_head, *heads))


def _revisits(seed: int) -> list[Run]:
    methods = [
        "experience-replay",
        "owl",
        "owl-warm-start",
        "owl-epsilon-restart-1x",
        "owl-epsilon-restart-2x",
        "owl-mlp-head",
        "owl-dropout-0.05",
        "owl-dropout-0.1",
        "owl-dropout-0.2",
        "owl-memory",
    ]
    return _compare(methods, "SC2", seed, rounds=2, frames=FRAMES // 2)


def _strengths(seed: int) -> list[Run]:
    runs = []
    for method, strengths in {
        "owl": (1.0, 10.0, 100.0, 500.0, 1_000.0, 5_000.0),
        "owl-loss": (500.0, 5_000.0, 50_000.0, 500_000.0),
        "owl-distill-current": (1.0, 10.0, 100.0),
        "owl-memory": (0.1, 1.0, 10.0),
    }.items():
        for strength in strengths:
            runs += _compare([method], "SC3", seed, strength=strength)
    return runs


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
        raise OwlValueError(f"reproduce: name is {name!r}; expected one of {', '.join(STUDIES)}")
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


def study_table(runs: Sequence[Run], results: Iterable[Result]) -> str:
    """Markdown tables of those runs that are among the results; single-task results there are a reference.

    >>> from owlrl.experiments import load_results, study_runs, study_table
    >>> study_table(study_runs("sc3", seeds=1), load_results("nowhere"))
    ''
    """
    found = {result.run.id: result for result in results}
    there = [found[run.id] for run in runs if run.id in found]
    return markdown_tables(there, reference=found.values())


def reproduce(
    name: str,
    directory: str | os.PathLike[str],
    *,
    seeds: int = 3,
    methods: Sequence[str] = (),
    frames: int | None = None,
    jobs: int = 1,
    backend: Backend = "loky",
    scheduler: str | None = None,
    progress: bool = True,
    save_every: float = SAVE_EVERY,
) -> tuple[str, list[Attempt]]:
    """Do what a study still lacks and return its tables, and what was attempted now.

    >>> from owlrl.experiments import reproduce
    >>> reproduce("sc3", "runs", seeds=0)
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: reproduce: seeds is 0; expected an int >= 1
    """
    runs = study_runs(name, seeds=seeds, methods=methods, frames=frames)
    own = {result_path(directory, run) for run in runs}
    for path in set(Path(directory).glob("*.jsonl")) - own:  # damaged files of these runs are run again
        read_result(path)  # what is no result is refused now, not after hours
    where: dict[str, Any] = {"jobs": jobs, "backend": backend, "scheduler": scheduler}
    attempts = run_all(runs, directory, progress=progress, save_every=save_every, **where)
    return study_table(runs, load_results(directory)), attempts
