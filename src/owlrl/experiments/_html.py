"""Parts of one self-contained HTML page."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__: list[str] = []

DPI = 150
NUMBER = re.compile(r"[–−-]?$|[−-]?\d")  # a dash for what is missing stands with the numbers
STYLE = """
body { margin: 0 auto; max-width: 120rem; padding: 1rem 1.5rem 4rem; color: #222; background: #fff;
       font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; }
h2 { font-size: 1.3rem; margin-top: 3rem; border-top: 2px solid #0072b2; padding-top: .7rem; }
h3 { font-size: 1.08rem; margin-top: 2rem; }
p, figcaption { max-width: 70rem; }
.scroll { overflow-x: auto; margin: .5rem 0 1.4rem; }
table { border-collapse: collapse; font-size: .82rem; }
th, td { padding: .3rem .5rem; text-align: left; }
th { border-bottom: 1.5px solid #222; vertical-align: bottom; }
td { border-bottom: 1px solid #ddd; }
@media (max-width: 50rem), (min-width: 100rem) { td { white-space: nowrap; } }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
figure { margin: 1rem 0 1.6rem; }
img { max-width: 100%; height: auto; }
figcaption { font-size: .86rem; color: #555; }
@media (min-width: 50rem) { .side { display: flex; gap: 1.5rem; align-items: center; } }
.side > figure { min-width: 0; }
.row { display: flex; flex-wrap: wrap; column-gap: 2rem; }
.row > * { min-width: 0; max-width: 100%; }
pre { background: #f5f5f5; padding: .7rem 1rem; white-space: pre-wrap; font-size: .83rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; font-size: .9rem; }
dt { color: #555; }
dd { margin: 0; }
""".strip()


def page(title: str, body: Iterable[str]) -> str:
    """A whole page; a policy keeps the browser from loading anything."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        f"<style>\n{STYLE}\n</style>",
    ]
    parts = ["<!DOCTYPE html>", '<html lang="en">', "<head>", *head, "</head>", "<body>", *body]
    return "\n".join([*parts, "</body>", "</html>", ""])


def paragraph(text: str) -> str:
    """Some text."""
    return f"<p>{escape(text)}</p>"


def items(pairs: Mapping[str, str]) -> str:
    """Names and values."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in pairs.items()) + "</dl>"


def code(lines: Iterable[str]) -> str:
    """Lines of commands."""
    return f"<pre>{escape(chr(10).join(lines))}</pre>"


def image(data: bytes, *, kind: str, text: str, caption: str = "", width: int | None = None) -> str:
    """A picture in the page itself; ``text`` is for those who cannot see it."""
    source = f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
    size = "" if width is None else f' width="{width}"'
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure><img src="{source}" alt="{escape(text)}"{size}>{below}</figure>'


def drawing(figure: Figure, *, text: str, caption: str = "") -> str:
    """A figure, at the size in which it was drawn."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=DPI)
    width = round(figure.get_figwidth() * 96)  # a CSS pixel is 1/96 of an inch
    return image(file.getvalue(), kind="png", text=text, caption=caption, width=width)


def tables(markdown: str) -> str:
    """The paragraphs and tables of `markdown_tables`; its headings are left out."""
    blocks = [block.splitlines() for block in re.split(r"\n\s*\n", markdown.strip())]
    parts = []
    for lines in blocks:
        if lines and lines[0].startswith("| "):
            parts.append(_table([line[2:-2].split(" | ") for line in lines if not set(line) <= set("|- ")]))
        elif lines and not lines[0].startswith("#"):
            parts.append(paragraph(" ".join(lines)))
    return "\n".join(parts)


def _table(rows: list[list[str]]) -> str:
    header = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in rows[0])
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows[1:])
    table = f"<table>\n<thead><tr>{header}</tr></thead>\n<tbody>\n{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _cell(text: str) -> str:
    kind = ' class="number"' if NUMBER.match(text) else ""
    return f"<td{kind}>{escape(text)}</td>"
