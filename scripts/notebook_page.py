"""A notebook with its stored outputs as a page of the documentation, in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["notebook_page", "pictures"]

PICTURES = ("image/gif", "image/png")


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def _cells(path: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def pictures(path: Path) -> Iterator[tuple[str, str]]:
    """Type and base64 text of every picture of a notebook, in order."""
    for cell in _cells(path):
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if kind := next((kind for kind in PICTURES if kind in data), None):
                yield kind, "".join(_text(data[kind]).split())


def _shown(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if kind := next((kind for kind in PICTURES if kind in data), None):
        text = "".join(_text(data[kind]).split())
        return f'<div class="output"><img alt="what the cell draws" src="data:{kind};base64,{text}"></div>'
    if "text/markdown" in data:
        return _text(data["text/markdown"])
    text = _text(output["text"] if "text" in output else data.get("text/plain", ""))
    return f":::{{container}} output\n```text\n{text.rstrip()}\n```\n:::"


def notebook_page(path: Path) -> str:
    """The page: text, code, and what each cell printed and drew."""
    parts = []
    for cell in _cells(path):
        source = _text(cell["source"]).replace("](../docs/", "](../")  # a notebook lies in examples
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += map(_shown, cell.get("outputs", ()))
    name = path.name
    parts.append(f"*This page is `examples/{name}` with the outputs that are stored in it.*")
    return "\n\n".join(parts) + "\n"
