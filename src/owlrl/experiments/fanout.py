"""Many runs at once, on the cores of this machine or on a Dask cluster; what is done is not done again."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from owlrl.errors import OwlError, OwlStateError, OwlValueError
from owlrl.experiments._optional import optional
from owlrl.experiments.config import Run
from owlrl.experiments.results import Result, is_done, make_directory, write_result
from owlrl.experiments.training import run_experiment

__all__ = ["Attempt", "Backend", "attempt", "run_all", "unfinished"]

Backend = Literal["loky", "dask"]


@dataclass(frozen=True)
class Attempt:
    """One run's result, or why there is none.

    >>> from owlrl.experiments import Run
    >>> from owlrl.experiments.fanout import Attempt
    >>> Attempt(Run("SC2"), error="ValueError: no").result is None
    True
    """

    run: Run
    result: Result | None = None
    error: str | None = None


def attempt(run: Run) -> Attempt:
    """Do one run; an error of it ends no other run.

    >>> from owlrl.experiments import Run
    >>> from owlrl.experiments.fanout import attempt
    >>> attempt(Run("Crossroads-2", frames=100, policies=("oracle",))).error is None
    True
    """
    try:
        return Attempt(run, result=run_experiment(run))
    except Exception as error:  # whatever went wrong belongs to this run only
        return Attempt(run, error=f"{type(error).__name__}: {error}")


def unfinished(runs: Iterable[Run], directory: str | os.PathLike[str]) -> list[Run]:
    """The runs that have no result in a directory yet, each once; a damaged file is no result.

    >>> from owlrl.experiments import Run
    >>> from owlrl.experiments.fanout import unfinished
    >>> len(unfinished([Run("SC2"), Run("SC2"), Run("SC3")], "nowhere"))
    2
    """
    return list({run.id: run for run in runs if not _done(directory, run)}.values())


def run_all(
    runs: Sequence[Run],
    directory: str | os.PathLike[str],
    *,
    jobs: int = 1,
    backend: Backend = "loky",
    scheduler: str | None = None,
    progress: bool = True,
) -> list[Attempt]:
    """Do what is unfinished and write every result as soon as it is there; returns what was attempted.

    Stopped on the way (Ctrl-C), everything that was written stays, and the same call goes on from there.

    Args:
        runs: what to do.
        directory: where results are and go.
        jobs: how many at once; with one, everything happens in this process. A cluster does as
            many as it has workers.
        backend: "loky" for processes of this machine, "dask" for a Dask cluster.
        scheduler: the address of the cluster's scheduler.
        progress: show a bar (if tqdm is there and the output is a terminal).

    >>> import tempfile
    >>> from owlrl.experiments import Run
    >>> from owlrl.experiments.fanout import run_all
    >>> runs, directory = [Run("Crossroads-2", frames=100, policies=("oracle",))], tempfile.mkdtemp()
    >>> [done.error for done in run_all(runs, directory)]
    [None]
    >>> run_all(runs, directory)  # it is done
    []
    """
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise OwlValueError(f"run_all: jobs is {jobs!r}; expected an int >= 1")
    if backend not in ("loky", "dask"):
        raise OwlValueError(f"run_all: backend is {backend!r}; expected 'loky' or 'dask'")
    if (backend == "dask") != (scheduler is not None):
        raise OwlValueError(
            f"run_all: backend is {backend!r} and scheduler {scheduler!r}; 'dask' and an address go together"
        )
    todo = unfinished(runs, directory)
    attempts: list[Attempt] = []
    make_directory(directory)
    with _bar(len(todo), progress) as bar, closing(_attempts(todo, jobs, scheduler)) as found:
        for done in found:
            if done.result is not None:
                write_result(directory, done.result)
            attempts.append(done)
            bar.update(1)
    return attempts


def _attempts(todo: list[Run], jobs: int, scheduler: str | None) -> Generator[Attempt, None, None]:
    """Results in the order they come."""
    if scheduler is None and (jobs == 1 or len(todo) < 2):
        yield from map(attempt, todo)
        return
    joblib = optional("joblib", extra="cli", what="more than one job at once")
    if scheduler is None:
        yield from _parallel(joblib, todo, backend="loky", n_jobs=jobs)
        return
    distributed = optional("distributed", extra="cluster", what="backend 'dask'")
    try:
        client = distributed.Client(scheduler)
    except (ValueError, OSError) as error:
        raise OwlValueError(
            f"run_all: scheduler is {scheduler!r}, where no cluster answers ({error}); expected an address "
            "such as tcp://host:8786"
        ) from error
    with client:
        yield from _parallel(joblib, todo, backend="dask", client=client)


def _parallel(joblib: Any, todo: list[Run], **settings: Any) -> Generator[Attempt, None, None]:
    with joblib.parallel_config(**settings):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
        try:
            yield from parallel(joblib.delayed(attempt)(run) for run in todo)
        except BrokenProcessPool as error:
            raise OwlStateError(
                "run_all: a process was killed, as happens where memory is short; what is finished is kept: "
                "go on with the same call, perhaps with fewer jobs"
            ) from error


def _done(directory: str | os.PathLike[str], run: Run) -> bool:
    try:
        return is_done(directory, run)
    except OwlError:
        return False


class _NoBar:
    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, number: int) -> None:
        """Nothing to show."""


def _bar(total: int, progress: bool) -> Any:
    if not progress:
        return _NoBar()
    try:
        tqdm = optional("tqdm", extra="cli", what="a progress bar")
    except OwlError:
        return _NoBar()  # a bar is not worth an error
    return tqdm.tqdm(total=total, unit="run", disable=None)
