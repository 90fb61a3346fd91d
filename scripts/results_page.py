"""Put what ``owlrl reproduce`` prints into the pages of docs/results, below each of its commands.

Run from the root of the checkout after new runs: ``python -m scripts.results_page``. A block

    ```bash
    owlrl reproduce NAME --seeds N --jobs 2 --output DIRECTORY
    ```

    <details>
    <summary>...</summary>

    <!-- printed -->
    ...
    <!-- end -->

is filled from the results in the directory; the tests compare the pages with it. Headings of the
tables are set in bold, since what is folded away has no place in a table of contents. The table of the bare
call is what ``python benchmarks/defaults.py --table`` prints; the summary is that of ``scripts.figures``.
Blocks of docs/paper.md and of the studies that are comparisons are made by the functions in ``BLOCKS``.
"""

from __future__ import annotations

import json
import re
from functools import partial

from benchmarks.defaults import RESULTS as DEFAULTS
from benchmarks.defaults import table as defaults_table
from benchmarks.mixed_rewards import table as mixed_table
from owlrl.experiments import paper_tables, selections, study_runs, study_table, thousand
from owlrl.experiments.multi_mnist import supervised_rows, supervised_table
from scripts import compared
from scripts.figures import GRID, MULTI_MNIST, NAMES, RUNS, THOUSAND, groups_of, summary_table
from scripts.results_data import ROOT, results_in

PAGES = [*sorted((ROOT / "docs" / "results").glob("*.md")), ROOT / "docs" / "paper.md"]
PRINTED = re.compile(
    r"```bash\nowlrl reproduce (?P<study>\S+) --seeds (?P<seeds>\d+) --jobs 2 --output (?P<directory>\S+)\n"
    r"```\n\n<details>\n<summary>[^\n]*</summary>\n\n<!-- printed -->\n(?P<tables>.*?)<!-- end -->",
    re.DOTALL,
)

SUMMARY = re.compile(r"<!-- summary(?P<studies>[^>]*) -->\n(?P<table>.*?)<!-- end summary -->", re.DOTALL)
BARE_CALL = re.compile(r"<!-- defaults -->\n(?P<table>.*?)<!-- end defaults -->", re.DOTALL)


BLOCK = re.compile(r"<!-- (?P<name>(?:paper|study)-\S+) -->\n(?P<table>.*?)<!-- end (?P=name) -->", re.DOTALL)


def selection_table() -> str:
    """Ways to select a head beside random heads, as in the paper's bar chart."""
    lines = ["| tasks | method | way to act | seeds | mean score | p | better than random heads |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for tasks, seeds in (("sc5", 10), ("sc3+dk2", 3)):
        for group in groups_of(tasks, seeds):
            for found in selections(group) if group.run.method in ("owl", "owl-memory") else ():
                seeds_of, mean = len(found.scores), sum(found.scores) / len(found.scores)
                lines.append(
                    f"| {group.run.tasks} | {NAMES[group.run.method]} | {found.policy} | {seeds_of} | "
                    f"{mean:.2f} | {found.p:.2g} | {found.better:.2f} |"
                )
    return "\n".join(lines) + "\n"


BLOCKS = {
    "paper-tables": lambda: paper_tables([*results_in(GRID), *results_in(f"{RUNS}/paper")]),
    "paper-selection": selection_table,
    "paper-multi-mnist": lambda: supervised_table(supervised_rows(ROOT / MULTI_MNIST)),
    "paper-mixed": mixed_table,
    "study-thousand": lambda: f"\n{thousand.table(thousand.looks(results_in(THOUSAND)))}\n\n",
    **{f"study-{name}": partial(compared.block, name) for name in compared.STUDIES},
}


def bare_call() -> str:
    """The table of the defaults, from all runs that are there."""
    files = sorted(DEFAULTS.glob("*.json"))
    return defaults_table(json.loads(file.read_text(encoding="utf-8")) for file in files)


def printed(command: re.Match[str]) -> str:
    """What the command prints when all of its runs are there."""
    runs = study_runs(command["study"], seeds=int(command["seeds"]))
    tables = study_table(runs, results_in(command["directory"]))
    return re.sub(r"^### (.*)$", r"**\1**", tables, flags=re.MULTILINE)


def summed_up(found: re.Match[str]) -> str:
    """The rows of the studies that the block names, or of all."""
    studies = found["studies"]
    return f"<!-- summary{studies} -->\n{summary_table(*studies.split())}\n<!-- end summary -->"


def of_paper(found: re.Match[str]) -> str:
    """The block of docs/paper.md with that name."""
    return f"<!-- {found['name']} -->\n{BLOCKS[found['name']]()}<!-- end {found['name']} -->"


def filled(page: str) -> str:
    """The page with each command's own tables below it."""

    def fill(match: re.Match[str]) -> str:
        head, start = match[0], match.start()
        before, after = match.start("tables") - start, match.end("tables") - start
        return f"{head[:before]}\n{printed(match)}\n{head[after:]}"

    page = BLOCK.sub(
        lambda found: f"<!-- {found['name']} -->\n{BLOCKS[found['name']]()}<!-- end {found['name']} -->", page
    )
    page = SUMMARY.sub(summed_up, page)
    page = BARE_CALL.sub(lambda _: f"<!-- defaults -->\n{bare_call()}\n<!-- end defaults -->", page)
    return PRINTED.sub(fill, page)


if __name__ == "__main__":  # python -m scripts.results_page
    for file in PAGES:
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
