"""The committed runs, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from owlrl.experiments import Trial, load_trials

ROOT = Path(__file__).resolve().parent.parent


@cache
def results_in(directory: str) -> list[Trial]:
    """All results of a directory of the checkout."""
    return list(load_trials(ROOT / directory))
