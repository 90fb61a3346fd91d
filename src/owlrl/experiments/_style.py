"""How all pictures look: one colour per head, the same everywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from owlrl.errors import OwlValueError
from owlrl.experiments._optional import optional

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "INK",
    "QUIET",
    "colour",
    "count",
    "dashes",
    "hatch",
    "label",
    "new_figure",
    "prepare_picture",
    "short",
    "whole_steps",
]

# Okabe and Ito's, which people with any colour vision can tell apart; without their yellow and black,
# which are hard to see as a line and as a border. The seventh head has the first one's colour, dashed.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES: tuple[Any, ...] = ("solid", (0, (4, 1.5)), (0, (1, 1)))
HATCHES = ("", "////", "....")
FILES = (".jpg", ".pdf", ".png", ".svg")
INK, QUIET = "#222222", "#8a8a8a"  # text, and what belongs to no head


def new_figure(width: float, height: float, *, what: str = "a picture") -> Figure:
    """An empty figure of so many inches, outside of any global state."""
    module = optional("matplotlib.figure", extra="plots", what=what)
    figure: Figure = module.Figure(figsize=(width, height), layout="constrained", facecolor="white")
    return figure


def prepare_picture(path: Path) -> None:
    """See to it that a picture can be written there, before anything that takes time."""
    optional("matplotlib.figure", extra="plots", what="the picture")
    if path.suffix.lower() not in FILES:
        raise OwlValueError(f"picture is {path}; expected a name that ends with {', '.join(FILES)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OwlValueError(f"picture is {path}, which cannot be written; expected a file's name")


def plain(axes: Axes) -> None:
    """No more frame than is needed, and small numbers at it."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def whole_steps(axes: Axes) -> None:
    """No ticks between two steps."""
    ticker = optional("matplotlib.ticker", extra="plots", what="a picture")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))


def colour(head: int) -> str:
    """The colour of a head."""
    return COLOURS[head % len(COLOURS)]


def dashes(head: int) -> Any:
    """The line style of a head."""
    return DASHES[head // len(COLOURS) % len(DASHES)]


def hatch(head: int) -> str:
    """The hatch of a head's areas; none for the first few."""
    return HATCHES[head // len(COLOURS) % len(HATCHES)]


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 seed", "2 seeds"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def label(name: object, *, most: int = 28) -> str:
    """A name as matplotlib shows it as it is: no mathematics, and no name that legends leave out."""
    text = short(str(name), most=most).replace("\\", "\\\\").replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def short(text: str, *, most: int) -> str:
    """The text with its middle left out where it is too long: levels differ at their end."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return f"{text[: most - 1 - half]}…{text[-half:]}"
