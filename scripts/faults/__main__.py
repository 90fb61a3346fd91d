"""Runs the checks, prints the table and writes it into the page that shows it."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import random
import sys
import tempfile
import time
from pathlib import Path

import torch

import owlrl
import scripts.faults
from scripts.faults import files, loads, long, numbers, runs, situations
from scripts.faults.checks import CHECKS, CannotRunError, Check, Outcome

ALL = (files, loads, runs, long, numbers, situations)  # each enters its checks
HEADER = "| check | runs | faults | seconds | |\n|---|---:|---:|---:|---|"
MARKS = ("<!-- campaign: written by make faults FULL=1 -->\n", "<!-- end of the campaign -->\n")


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
    parser.add_argument("--page", type=Path, help="write the table into this page, between its marks")
    parser.add_argument("--record", type=Path, help="note finished checks here; a rerun goes on after them")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    release, today = torch.__version__.partition("+")[0], datetime.date.today()
    about = f"owlrl {owlrl.__version__} of {today}, Python {platform.python_version()}, torch {release}, "
    about += f"seed {chosen.seed}"
    print(f"{about}\n\n{HEADER}")
    record = chosen.record
    done = json.loads(record.read_text()) if record is not None and record.exists() else {}
    rows: list[str] = []
    faults: list[str] = []
    for item in CHECKS:
        if chosen.only and not any(part in item.name for part in chosen.only):
            continue
        count = chosen.runs or (item.full if chosen.full else item.short if chosen.short else item.quick)
        if not count:
            continue
        if item.name not in done:
            done[item.name] = _row(item, count, chosen.seed, chosen.may_miss)
            if record is not None:
                record.write_text(json.dumps(done))
        row, found = done[item.name]
        print(row, flush=True)
        rows.append(row)
        faults += [f"{item.name}: {fault}" for fault in found]
    print(f"\nMay be unable to run: {', '.join(chosen.may_miss) or 'none'}")
    print("\n".join(["", f"{len(faults)} faults:", *faults[:20]]) if faults else "No faults.")
    if chosen.page is not None:
        begin, _, rest = chosen.page.read_text().partition(MARKS[0])
        table = "\n".join([f"{about}.", "", HEADER, *rows, ""])
        chosen.page.write_text(begin + MARKS[0] + table + MARKS[1] + rest.partition(MARKS[1])[2])
    return bool(faults)


def _row(item: Check, count: int, seed: int, may_miss: list[str]) -> tuple[str, list[str]]:
    """Run a check: its row of the table, and its faults."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        try:
            found = item.run(count, random.Random(seed), Path(directory))
        except CannotRunError as error:
            found = Outcome(note=f"could not run: {error}")
            if item.name not in may_miss:
                found.faults.append(f"could not run: {error}")
    seconds = time.perf_counter() - begun
    cells = (item.name, f"{found.runs:,}", f"{len(found.faults):,}", f"{seconds:,.0f}", found.note)
    return f"| {' | '.join(cells)} |", found.faults


if __name__ == "__main__":
    sys.exit(main())
