"""Runs the checks and prints the table."""

from __future__ import annotations

import argparse
import platform
import random
import sys
import tempfile
import time
from pathlib import Path

import torch

import scripts.faults
from scripts.faults import files, loads, long, runs
from scripts.faults.checks import CHECKS, CannotRunError, Outcome

ALL = (files, loads, runs, long)  # each enters its checks


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and print the table; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.faults", description=scripts.faults.__doc__)
    parser.add_argument("--full", action="store_true", help="as many runs as docs/reliability.md states")
    parser.add_argument("--quick", action="store_true", help="fewer runs (the default)")
    parser.add_argument("--short", action="store_true", help="a few runs of those that take seconds")
    parser.add_argument("--runs", type=int, help="this many runs of every check")
    parser.add_argument("--only", action="append", default=[], help="checks with this in their name")
    parser.add_argument("--may-miss", action="append", default=[], help="a check that may be unable to run")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, seed {chosen.seed}\n")
    print("| check | runs | faults | seconds | |\n|---|---:|---:|---:|---|")
    faults: list[str] = []
    for item in CHECKS:
        if chosen.only and not any(part in item.name for part in chosen.only):
            continue
        count = chosen.runs or (item.full if chosen.full else item.short if chosen.short else item.quick)
        if not count:
            continue
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            try:
                found = item.run(count, random.Random(chosen.seed), Path(directory))
            except CannotRunError as error:
                found = Outcome(note=f"could not run: {error}")
                if item.name not in chosen.may_miss:
                    found.faults.append(f"could not run: {error}")
        seconds = time.perf_counter() - begun
        row = (item.name, f"{found.runs:,}", f"{len(found.faults):,}", f"{seconds:.0f}", found.note)
        print(f"| {' | '.join(row)} |", flush=True)
        faults += [f"{item.name}: {fault}" for fault in found.faults]
    print(f"\nMay be unable to run: {', '.join(chosen.may_miss) or 'none'}")
    print("\n".join(["", f"{len(faults)} faults:", *faults[:20]]) if faults else "No faults.")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
