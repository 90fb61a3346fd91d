"""The committed runs, read once, and the tables that are made of them, as lines of Markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from owlrl.experiments import Trial, load_trials

ROOT = Path(__file__).resolve().parent.parent


@cache
def results_in(directory: str) -> list[Trial]:
    """All results of a directory of the checkout."""
    return list(load_trials(ROOT / directory))


def cells(line: str) -> list[str]:
    """The cells of a row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables_in(text: str) -> list[list[str]]:
    """The tables of a text, each as its lines."""
    tables: list[list[str]] = []
    inside = False
    for line in text.splitlines():
        if line.startswith("|"):
            tables += [] if inside else [[]]
            tables[-1].append(line)
        inside = line.startswith("|")
    return tables


def picked(table: Sequence[str], wanted: Callable[[list[str]], bool], *, drop_empty: bool = False) -> str:
    """Some rows of a table below its head; with ``drop_empty`` without columns in which they say nothing."""
    rows = [row for row in map(cells, table[2:]) if wanted(row)]
    head = cells(table[0])
    kept = [k for k in range(len(head)) if not drop_empty or any(row[k] not in ("–", "") for row in rows)]
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(row[k] for k in kept) + " |\n" for row in lines)


def folded(title: str, table: Sequence[str]) -> str:
    """A table that is folded away."""
    return f"<details>\n<summary>{title}</summary>\n\n" + "\n".join(table) + "\n\n</details>\n"
