"""Every benchmark in one run, as a table: `make bench` prints it and writes benchmarks/RESULTS.md.

python benchmarks/run.py [--quick] [--output FILE]
"""

from __future__ import annotations

import argparse
import platform
from importlib.metadata import version
from pathlib import Path

import acting
import ewc
import fisher
import heads
import learning
import many_tasks
import pendulum
import replay
import sac
import sb3
import tabulated
import torch
import updates
import wrapper
from common import Row, print_rows

HEADER = """# Benchmarks

Made by `make bench`: {command}, one thread. The two sides of a row took turns in one run; times are
medians of CPU time, the ratio is the median over rounds, with the middle half of them. "Plain" is the honest
simple way, written beside the benchmark, 0.1 where it is named, or the other library that is named.
Absolute times depend on the machine ({machine}; torch {torch}, numpy {numpy}, stable-baselines3
{sb3}), ratios hardly.
"""
TABLE = "\n## {name}\n\n| what | plain | owlrl | plain / owlrl | middle half |\n|---|---|---|---|---|\n"
MODULES = (
    updates, learning, many_tasks, acting, sb3, sac, wrapper, heads, ewc, fisher, replay, tabulated, pendulum
)  # fmt: skip


def head(*, quick: bool) -> str:
    command = "`python benchmarks/run.py" + (" --quick`" if quick else "`")
    return HEADER.format(
        command=command,
        machine=f"{platform.machine()}, Python {platform.python_version()}",
        torch=version("torch"),
        numpy=version("numpy"),
        sb3=version("stable-baselines3"),
    )


def table(name: str, rows: list[Row]) -> str:
    lines = [
        f"| {r.name} | {r.plain:.4g} {r.unit} | {r.ours:.4g} {r.unit} | {r.ratio:.3g} | {r.spread} |"
        for r in rows
    ]
    return TABLE.format(name=name) + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, for a look")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = head(quick=options.quick)
    for module in MODULES:
        found = module.main(quick=options.quick)
        print_rows(found)
        text += table(module.__name__, found)
    options.output.write_text(text, encoding="utf-8")
    print(f"written to {options.output}")


if __name__ == "__main__":
    main()
