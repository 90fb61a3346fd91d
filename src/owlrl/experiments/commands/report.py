"""The command ``owlrl report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from owlrl.experiments.report import write_report

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Put tables and pictures of all results in a directory on one page.

    >>> from pathlib import Path
    >>> from owlrl.experiments.commands import Report
    >>> Report(Path("runs")).episodes
    3
    """

    directory: Path
    """of results, as owlrl train and owlrl reproduce write them"""
    output: Path | None = None
    """the HTML file; report.html in the directory if left out"""
    episodes: int = 3
    """shown of each method, each of another task; 0 for none"""

    def __call__(self) -> int:
        """Write the page, say where it is."""
        print(write_report(self.directory, self.output, episodes=self.episodes))
        return 0
