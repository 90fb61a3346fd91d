"""Markdown as all tables write it."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["DASH", "number", "table"]

DASH = "–"


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return DASH if value is None else f"{value:.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with a header."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"
