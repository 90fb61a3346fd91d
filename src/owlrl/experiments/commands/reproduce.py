"""The command ``owlrl reproduce``."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from owlrl.experiments.fanout import unfinished
from owlrl.experiments.studies import reproduce, study_runs

__all__ = ["Reproduce"]


@dataclass(frozen=True)
class Reproduce:
    """Do all runs of a study, several at once, and print its tables.

    >>> from owlrl.experiments.commands import Reproduce
    >>> Reproduce("headline", seeds=10, jobs=2).output
    PosixPath('runs')
    """

    name: str
    """crossroads, sc3, sc5, unseen, sc12, sc3+dk2, headline, ablations, revisits, strengths, pendulum or
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
                print("missing" if unfinished([run], self.output) else "done   ", run.id)
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
