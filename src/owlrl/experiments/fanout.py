"""Many calls at once, on the cores of this machine or on a Dask cluster."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from typing import Any, Literal

from owlrl._arguments import Arguments
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.experiments._optional import optional

__all__: list[str] = []

Backend = Literal["loky", "dask"]


def check_workers(where: str, *, jobs: Any, backend: Any, scheduler: Any) -> None:
    """Raise unless the arguments for where runs are made fit together."""
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
    """The results of a function for each item, in order of completion; one thread in each process.

    With one job everything happens in this process; a Dask cluster does as many as it has workers.
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
                "continue with the same call, perhaps with fewer jobs"
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
