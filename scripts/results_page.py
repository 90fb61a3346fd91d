"""Put what ``owlrl reproduce`` prints into docs/results.md, below each of its commands.

Run from the root of the checkout after new runs: ``python scripts/results_page.py``. A block

    ```bash
    owlrl reproduce NAME --seeds N --jobs 2 --output DIRECTORY
    ```

    <!-- printed -->
    ...
    <!-- end -->

is filled from the results in the directory; the tests compare the page with it.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from owlrl.experiments import Result, load_results, study_runs, study_table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results.md"
PRINTED = re.compile(
    r"```bash\nowlrl reproduce (?P<study>\S+) --seeds (?P<seeds>\d+) --jobs 2 --output (?P<directory>\S+)\n"
    r"```\n\n<!-- printed -->\n(?P<tables>.*?)<!-- end -->",
    re.DOTALL,
)


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

    return PRINTED.sub(fill, page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
