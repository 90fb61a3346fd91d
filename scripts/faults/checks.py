"""What a check is, and the list of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class CannotRunError(Exception):
    """A check that needs something that is not here."""


@dataclass
class Outcome:
    """What a check has found."""

    runs: int = 0
    faults: list[str] = field(default_factory=list)
    note: str = ""

    def judge(self, good: bool, fault: str) -> None:
        """Count one run."""
        self.runs += 1
        if not good:
            self.faults.append(fault)


@dataclass(frozen=True)
class Check:
    """A check, and how many runs it has: in ``make test``, ``make faults`` and ``make faults FULL=1``."""

    name: str
    short: int
    quick: int
    full: int
    run: Callable[[int, random.Random, Path], Outcome]


CHECKS: list[Check] = []


def check(name: str, *, short: int, quick: int, full: int) -> Callable[[Any], Any]:
    """Enter a function ``run(count, rng, directory) -> Outcome`` in the list of checks."""

    def enter(run: Callable[[int, random.Random, Path], Outcome]) -> Any:
        CHECKS.append(Check(name, short, quick, full, run))
        return run

    return enter
