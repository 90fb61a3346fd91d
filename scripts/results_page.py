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
tables are set in bold, since what is folded away has no place in a table of contents. A block
``<!-- telling N: METHOD POLICY; ... -->`` repeats some rows of the N-th of these tables. The table of the
bare call is what ``python benchmarks/defaults.py --table`` prints; the summary is that of
``scripts.figures``.
Blocks of docs/paper.md and of the studies that are comparisons are made by the functions in ``BLOCKS``.
"""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np

from benchmarks.defaults import RESULTS as DEFAULTS
from benchmarks.defaults import table as defaults_table
from benchmarks.mixed_rewards import table as mixed_table
from owlrl.experiments import paper_tables, selections, study_runs, study_table, thousand
from owlrl.experiments.multi_mnist import supervised_rows, supervised_table
from owlrl.experiments.paper import lpg_ftw_table, pendulum_table, strength_table
from scripts import compared
from scripts.figures import (
    GRID,
    MULTI_MNIST,
    NAMES,
    PAPER_RUNS,
    RUNS,
    SB3_WAYS,
    SELECTION,
    THOUSAND,
    drawn_pendulums,
    groups_of,
    sb3_returns,
    speed_table,
    summary_table,
)
from scripts.results_data import ROOT, cells, folded, picked, results_in, tables_in

PAGES = [*sorted((ROOT / "docs" / "results").glob("*.md")), ROOT / "docs" / "paper.md"]
PRINTED = re.compile(
    r"```bash\nowlrl reproduce (?P<study>\S+) --seeds (?P<seeds>\d+) --jobs 2 --output (?P<directory>\S+)\n"
    r"```\n\n<details>\n<summary>[^\n]*</summary>\n\n<!-- printed -->\n(?P<tables>.*?)<!-- end -->",
    re.DOTALL,
)

SUMMARY = re.compile(r"<!-- summary(?P<studies>[^>]*) -->\n(?P<table>.*?)<!-- end summary -->", re.DOTALL)
BARE_CALL = re.compile(r"<!-- defaults -->\n(?P<table>.*?)<!-- end defaults -->", re.DOTALL)
TELLING = re.compile(
    r"<!-- telling (?P<number>\d+): (?P<rows>[^>]*) -->\n(?P<table>.*?)<!-- end telling -->", re.DOTALL
)
BLOCK = re.compile(r"<!-- (?P<name>(?:paper|study)-\S+) -->\n(?P<table>.*?)<!-- end (?P=name) -->", re.DOTALL)


def selection_table() -> str:
    """Ways to select a head beside random heads, as in the paper's bar chart."""
    lines = ["| tasks | method | way to act | seeds | mean score | p | better than random heads |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    for tasks, seeds in (("sc5", 10), ("sc3+dk2", 5)):
        for group in groups_of(tasks, seeds):
            for found in selections(group) if group.run.method in ("owl", "owl-memory") else ():
                seeds_of, mean = len(found.scores), sum(found.scores) / len(found.scores)
                lines.append(
                    f"| {group.run.tasks} | {NAMES[group.run.method]} | {found.policy} | {seeds_of} | "
                    f"{mean:.2f} | {found.p:.2g} | {found.better:.2f} |"
                )
    return "\n".join(lines) + "\n"


def telling(number: int, rows: str, printed: str) -> str:
    """Rows of the number-th printed table of policies, named by method and policy, without empty columns."""
    table = [table for table in tables_in(printed) if table[0].startswith("| method | policy ")][number]
    wanted = [row.strip().split(" ") for row in rows.split(";")]
    return picked(table, lambda row: row[:2] in wanted, drop_empty=True)


def paper_block() -> str:
    """How many cells hold, OWL on SC5 as the example, and all cells folded away."""
    counts, _, tables = paper_tables([*results_in(GRID), *results_in(PAPER_RUNS)]).partition("\n\n")
    wanted = [["OWL", "given, final"], ["OWL", "unknown, final"], ["Exp Replay", "given, final"]]
    shown = picked(tables_in(tables)[0], lambda row: row[:2] in wanted)
    cells_of = f"<details>\n<summary>All cells</summary>\n\n{tables}\n</details>\n"
    return f"\n{counts} On SC5:\n\n{shown}\n{cells_of}\n"


def pendulum_block() -> str:
    """The pictures of pendulums at the paper's length, if they were run, and their table."""
    shown = (f"![{about}](images/{name}.svg)\n\n" for name, (_, about) in drawn_pendulums().items())
    return f"\n{''.join(shown)}{pendulum_table(results_in(PAPER_RUNS))}\n"


def thousand_block() -> str:
    """The last row of each method, or three rows of the only one; all rows folded away."""
    (table,) = tables_in(thousand.table(thousand.looks(results_in(THOUSAND))))
    rows = [cells(line) for line in table[2:]]
    last = list({row[0]: row for row in rows}.values())
    shown = last if len(last) > 2 else [rows[0], rows[len(rows) // 2], rows[-1]]
    return f"\n{picked(table, lambda row: row in shown)}\n{folded('All rows', table)}\n"


def speed_block() -> str:
    """The row with the largest ratio, the middle one and the one with the smallest; all rows folded away."""
    table = speed_table()
    by_ratio = sorted((cells(line) for line in table[2:]), key=lambda row: float(row[3]))
    shown = [by_ratio[0], by_ratio[len(by_ratio) // 2], by_ratio[-1]]
    return f"\n{picked(table, lambda row: row in shown)}\n{folded('All rows', table)}\n"


def sb3_block() -> str:
    """Returns of Stable-Baselines3 models in each task, and their scores between random actions and alone."""
    lines = [
        f"| model | task | seeds | {' | '.join(SB3_WAYS.values())} |",
        "|---|---|---" + "|---" * len(SB3_WAYS) + "|",
    ]
    for kind, (tasks, found) in sb3_returns().items():
        low, high = (found[way].mean(axis=0) for way in ("random", "alone"))
        for k, task in enumerate(tasks):
            row = [kind.upper(), task, str(len(found["alone"]))]
            for way in SB3_WAYS:
                returns = found[way][:, k]
                error = returns.std(ddof=1) / np.sqrt(len(returns))
                score = (returns.mean() - low[k]) / (high[k] - low[k])
                row.append(f"{returns.mean():.0f} ± {error:.0f} ({score:.2f})")
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def selectors_block() -> str:
    """The default, the best update of the released code and the best one of the paper's text."""
    table = tables_in((ROOT / SELECTION).read_text(encoding="utf-8"))[-1]
    kinds = ("**hedge (default)", "released", "paper")
    names = [cells(line)[0] for line in table[2:]]  # from the best down
    shown = [next(name for name in names if name.startswith(kind)) for kind in kinds]
    return picked(table, lambda row: row[0] in shown)


BLOCKS = {
    "paper-tables": paper_block,
    "paper-strengths": lambda: strength_table(results_in(PAPER_RUNS)),
    "paper-pendulums": pendulum_block,
    "paper-selection": selection_table,
    "paper-multi-mnist": lambda: supervised_table(supervised_rows(ROOT / MULTI_MNIST)),
    "paper-mixed": mixed_table,
    "paper-lpg-ftw": lambda: lpg_ftw_table(results_in(f"{RUNS}/lpg-ftw")),
    "study-thousand": thousand_block,
    "study-speed": speed_block,
    "study-selection": selectors_block,
    "study-stable-baselines3": sb3_block,
    **{f"study-{name}": partial(compared.block, name) for name in compared.STUDIES},
}


def bare_call() -> str:
    """The verdict, the three tasks that reach least with the task unknown, and all tasks folded away."""
    files = sorted(DEFAULTS.glob("*.json"))
    text = defaults_table(json.loads(file.read_text(encoding="utf-8")) for file in files)
    table, _, verdict = text.partition("\n\n")
    lines = table.splitlines()
    place = cells(lines[0]).index("unknown / given")
    worst = sorted(
        (row for row in map(cells, lines[2:]) if row[place] != "–"), key=lambda row: float(row[place])
    )
    least = picked(lines, lambda row: row in worst[:3])
    return f"\n{verdict}\n\nThe three tasks that lose most:\n\n{least}\n{folded('All tasks', lines)}"


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


def _told(page: str, found: re.Match[str]) -> str:
    (command,) = PRINTED.finditer(page)
    rows = telling(int(found["number"]), found["rows"], printed(command))
    return f"<!-- telling {found['number']}: {found['rows']} -->\n{rows}<!-- end telling -->"


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
    page = TELLING.sub(partial(_told, page), page)
    page = BARE_CALL.sub(lambda _: f"<!-- defaults -->\n{bare_call()}\n<!-- end defaults -->", page)
    return PRINTED.sub(fill, page)


if __name__ == "__main__":  # python -m scripts.results_page
    for file in PAGES:
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
