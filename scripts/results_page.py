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
call is what ``python benchmarks/defaults.py --table`` prints.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

from benchmarks.defaults import RESULTS as DEFAULTS
from benchmarks.defaults import table as defaults_table
from owlrl.experiments import Result, load_results, study_runs, study_table

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))
PRINTED = re.compile(
    r"```bash\nowlrl reproduce (?P<study>\S+) --seeds (?P<seeds>\d+) --jobs 2 --output (?P<directory>\S+)\n"
    r"```\n\n<details>\n<summary>[^\n]*</summary>\n\n<!-- printed -->\n(?P<tables>.*?)<!-- end -->",
    re.DOTALL,
)

BARE_CALL = re.compile(r"<!-- defaults -->\n(?P<table>.*?)<!-- end defaults -->", re.DOTALL)


def bare_call() -> str:
    """The table of the defaults, from all runs that are there."""
    files = sorted(DEFAULTS.glob("*.json"))
    return defaults_table(json.loads(file.read_text(encoding="utf-8")) for file in files)


@cache
def results_in(directory: str) -> list[Result]:
    """All results of a directory, read once."""
    return list(load_results(ROOT / directory))


def printed(command: re.Match[str]) -> str:
    """What the command prints when all of its runs are there."""
    runs = study_runs(command["study"], seeds=int(command["seeds"]))
    tables = study_table(runs, results_in(command["directory"]))
    return re.sub(r"^### (.*)$", r"**\1**", tables, flags=re.MULTILINE)


def filled(page: str) -> str:
    """The page with each command's own tables below it."""

    def fill(match: re.Match[str]) -> str:
        head, start = match[0], match.start()
        before, after = match.start("tables") - start, match.end("tables") - start
        return f"{head[:before]}\n{printed(match)}\n{head[after:]}"

    page = BARE_CALL.sub(lambda _: f"<!-- defaults -->\n{bare_call()}\n<!-- end defaults -->", page)
    return PRINTED.sub(fill, page)


if __name__ == "__main__":  # python -m scripts.results_page
    for file in PAGES:
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
