"""Many runs at once, on the cores of this machine or on a Dask cluster; what is done is not done again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from owlrl._arguments import Arguments
from owlrl.errors import OwlError, OwlStateError, OwlValueError
from owlrl.experiments._optional import optional
from owlrl.experiments.config import Run
from owlrl.experiments.keeping import SAVE_EVERY
from owlrl.experiments.progress import progress_bar
from owlrl.experiments.results import Result, is_done, make_directory, part_path, write_result
from owlrl.experiments.training import run_experiment

__all__ = [
    "Attempt",
    "Backend",
    "attempt",
    "check_workers",
    "fan_out",
    "run_all",
    "unfinished",
]

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


def attempt(
    run: Run, directory: str | os.PathLike[str] | None = None, *, save_every: float = SAVE_EVERY
) -> Attempt:
    """Do one run; an error of it ends no other run.

    Its work is kept in ``directory`` while it is under way (see `run_experiment`), unless there is no such
    directory on the machine that does it.

    >>> from owlrl.experiments import Run
    >>> from owlrl.experiments.fanout import attempt
    >>> attempt(Run("Crossroads-2", frames=100, policies=("oracle",))).error is None
    True
    """
    try:
        part = None if directory is None or not Path(directory).is_dir() else part_path(directory, run)
        return Attempt(run, result=run_experiment(run, resume=part, save_every=save_every))
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
    save_every: float = SAVE_EVERY,
) -> list[Attempt]:
    """Do what is unfinished and write every result as soon as it is there; returns what was attempted.

    Stopped or killed on the way, all that was written stays, and the same call goes on from there, also in
    the middle of a run. (Workers on other machines keep their unfinished runs if they see the directory.)

    Args:
        runs: what to do.
        directory: where results are and go.
        jobs: how many at once; with one, everything happens in this process. A cluster does as
            many as it has workers.
        backend: "loky" for processes of this machine, "dask" for a Dask cluster.
        scheduler: the address of the cluster's scheduler.
        progress: show a bar (if tqdm is there and the output is a terminal).
        save_every: seconds of a run's work that a kill may cost.

    >>> import tempfile
    >>> from owlrl.experiments import Run
    >>> from owlrl.experiments.fanout import run_all
    >>> runs, directory = [Run("Crossroads-2", frames=100, policies=("oracle",))], tempfile.mkdtemp()
    >>> [done.error for done in run_all(runs, directory)]
    [None]
    >>> run_all(runs, directory)  # it is done
    []
    """
    check_workers("run_all", jobs=jobs, backend=backend, scheduler=scheduler)
    todo = unfinished(runs, directory)
    attempts: list[Attempt] = []
    make_directory(directory)
    do = partial(attempt, directory=os.path.abspath(directory), save_every=save_every)
    with (
        progress_bar(len(todo), progress) as bar,
        closing(fan_out(do, todo, jobs=jobs, scheduler=scheduler)) as found,
    ):
        for done in found:
            if done.result is not None:
                write_result(directory, done.result)
                part_path(directory, done.run).unlink(missing_ok=True)
            attempts.append(done)
            bar.update(1)
    return attempts


def check_workers(where: str, *, jobs: Any, backend: Any, scheduler: Any) -> None:
    """Raise unless the arguments that say where runs are done fit together.

    >>> from owlrl.experiments.fanout import check_workers
    >>> check_workers("run_all", jobs=0, backend="loky", scheduler=None)
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: run_all: jobs is 0; expected an int >= 1
    """
    arguments = Arguments(where)
    arguments.integer("jobs", jobs)
    arguments.choice("backend", backend, ("loky", "dask"))
    if not arguments.problems and (backend == "dask") != (scheduler is not None):
        arguments.problem(
            f"backend is {backend!r} and scheduler {scheduler!r}; 'dask' and an address go together"
        )
    arguments.check()


def fan_out(
    function: Callable[[Any], Any], items: Sequence[Any], *, jobs: int = 1, scheduler: str | None = None
) -> Generator[Any, None, None]:
    """What a function gives for each item, in the order they come; one thread in each process.

    Args:
        function: of one item; it is sent to the processes, by its name if it has one that can be imported.
        items: what it is called with.
        jobs: how many at once; with one, everything happens in this process.
        scheduler: address of a Dask cluster instead, which does as many as it has workers.

    >>> from owlrl.experiments.fanout import fan_out
    >>> list(fan_out(abs, [-1, 2]))
    [1, 2]
    """
    if scheduler is None and (jobs == 1 or len(items) < 2):
        yield from map(function, items)
        return
    joblib = optional("joblib", extra="cli", what="more than one job at once")
    if scheduler is None:
        # one thread each: another number of them gives other bits
        attended = partial(_attended, function, os.getpid())
        yield from _parallel(joblib, attended, items, backend="loky", n_jobs=jobs, inner_max_num_threads=1)
        return
    distributed = optional("distributed", extra="cluster", what="backend 'dask'")
    try:
        client = distributed.Client(scheduler)
    except (ValueError, OSError) as error:
        raise OwlValueError(
            f"scheduler is {scheduler!r}, where no cluster answers ({error}); expected an address "
            "such as tcp://host:8786"
        ) from error
    with client:
        yield from _parallel(joblib, function, items, backend="dask", client=client)


def _parallel(
    joblib: Any, function: Callable[[Any], Any], items: Sequence[Any], **settings: Any
) -> Generator[Any, None, None]:
    with joblib.parallel_config(**settings):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
        try:
            yield from parallel(joblib.delayed(function)(item) for item in items)
        except BrokenProcessPool as error:
            raise OwlStateError(
                "a process was killed, as happens where memory is short; what is finished is kept: "
                "go on with the same call, perhaps with fewer jobs"
            ) from error


def _attended(function: Callable[[Any], Any], parent: int, item: Any) -> Any:
    """Call ``function``; a worker ends when its parent does, since it would write beside a rerun."""
    if os.getpid() != parent:  # where joblib makes no processes, it calls here
        _end_with(parent)
    return function(item)


@cache
def _end_with(parent: int) -> None:
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # at once, as by a kill: what is written is whole at any time

    if os.name == "posix":  # elsewhere a process keeps the id of a parent that is gone
        threading.Thread(target=watch, daemon=True).start()


def _done(directory: str | os.PathLike[str], run: Run) -> bool:
    try:
        return is_done(directory, run)
    except OwlError:
        return False
