"""The committed runs, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from owlrl.experiments import Result, load_results

ROOT = Path(__file__).resolve().parent.parent


@cache
def results_in(directory: str) -> list[Result]:
    """All results of a directory of the checkout."""
    return list(load_results(ROOT / directory))
