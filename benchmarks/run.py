"""Every benchmark in one run, as a table: `make bench` prints it and writes benchmarks/RESULTS.md.

python benchmarks/run.py [--quick] [--output FILE]
"""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import version
from pathlib import Path

import ewc
import fisher
import heads
import many_tasks
import pendulum
import replay
import sac
import sb3
import tabulated
import torch
import wrapper
from common import Row, print_rows

HEADER = """# Benchmarks

Made by `make bench`: {command}, one thread. Each row was measured side by side in one run, the two
sides taking turns; times are medians of CPU time. "Plain" is the honest simple way, written beside the
benchmark, or the other library that is named. Absolute times depend on the machine ({machine}; torch
{torch}, numpy {numpy}, stable-baselines3 {sb3}), ratios hardly.

| what | plain | owlrl | plain / owlrl |
|---|---|---|---|
"""


def table(rows: list[Row], *, quick: bool) -> str:
    command = "`python benchmarks/run.py" + (" --quick`" if quick else "`")
    header = HEADER.format(
        command=command,
        machine=f"{platform.machine()}, Python {platform.python_version()}",
        torch=version("torch"),
        numpy=version("numpy"),
        sb3=version("stable-baselines3"),
    )
    lines = [f"| {r.name} | {r.plain:.4g} {r.unit} | {r.ours:.4g} {r.unit} | {r.ratio:.3g} |" for r in rows]
    return header + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, for a look")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for module in (fisher, replay, ewc, heads, wrapper, many_tasks, sb3, tabulated, pendulum, sac):
        found = module.main(quick=options.quick)
        print_rows(found)
        rows += found
    options.output.write_text(table(rows, quick=options.quick), encoding="utf-8")
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
