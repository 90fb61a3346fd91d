"""Put what ``owlrl reproduce`` prints into docs/results.md, below each of its commands.

Run from the root of the checkout after new runs: ``python -m scripts.results_page``. A block

    ```bash
    owlrl reproduce NAME --seeds N --jobs 2 --output DIRECTORY
    ```

    <!-- printed -->
    ...
    <!-- end -->

is filled from the results in the directory; the tests compare the page with it. The table of the bare call is
what ``python benchmarks/defaults.py --table`` prints.
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
PAGE = ROOT / "docs" / "results.md"
PRINTED = re.compile(
    r"```bash\nowlrl reproduce (?P<study>\S+) --seeds (?P<seeds>\d+) --jobs 2 --output (?P<directory>\S+)\n"
    r"```\n\n<!-- printed -->\n(?P<tables>.*?)<!-- end -->",
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
    return study_table(runs, results_in(command["directory"]))


def filled(page: str) -> str:
    """The page with each command's own tables below it."""

    def fill(match: re.Match[str]) -> str:
        head, start = match[0], match.start()
        before, after = match.start("tables") - start, match.end("tables") - start
        return f"{head[:before]}\n{printed(match)}\n{head[after:]}"

    page = BARE_CALL.sub(lambda _: f"<!-- defaults -->\n{bare_call()}\n<!-- end defaults -->", page)
    return PRINTED.sub(fill, page)


if __name__ == "__main__":  # python -m scripts.results_page
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
