"""Draw the rooms of the package and the walk of a row through them: docs/images/rooms.svg and walk.svg.

The rooms are read from the source: a row of the picture is a rank of `tests/test_architecture.py`, and rooms
import from their own row and from those above. Run by ``make figures``.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from tests.test_architecture import GROUPS, SRC, edges, part

__all__ = ["ABOUT", "imports_between_rooms", "rooms_svg", "walk_svg"]

INK, LINE, FILL, ACCENT = "#222222", "#8f84cc", "#f1effa", "#332288"

# What is in each room, in a few words. Every room of the package is here, and nothing else: a test says so.
ABOUT = {
    "_arguments": "checks of arguments",
    "errors": "errors",
    "types": "rows, head pointer",
    "protocols": "what parts expect",
    "checkpoint": "files",
    "fisher": "squared gradients",
    "gaussian": "likelihoods",
    "heads": "a head per task",
    "memory": "rows of every task",
    "replay": "rows to train from",
    "selection": "which head acts",
    "td": "TD targets",
    "evidence": "which task is it?",
    "regularizers": "against forgetting",
    "acting": "policies, episodes",
    "changes": "when a task changes",
    "autosave": "saves by itself",
    "describe": "what a learner is",
    "step_guard": "before each step",
    "stream": "no borders given",
    "wrapper": "OwlWrapper",
    "wrapper_state": "its state",
    "owlrl": "the public names",
    "adapters": "SB3, lists, buffers",
    "envs": "tasks",
    "learners": "DQN, SAC",
    "experiments": "comparisons",
    "cli": "the command",
}


def rooms() -> list[list[str]]:
    """The rooms that are there, rank by rank."""
    there = {part(name) for name in edges(SRC)}
    return [sorted(group & there) for group in GROUPS]


def imports_between_rooms() -> set[tuple[str, str]]:
    """Which room imports which."""
    found = {(part(a), part(b)) for a, targets in edges(SRC).items() for b in targets}
    return {(a, b) for a, b in found if a != b}


def _box(x: float, y: float, width: float, height: float, title: str, about: str) -> str:
    at = f'x="{x + width / 2:g}" text-anchor="middle"'
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" '
        f'fill="{FILL}" stroke="{LINE}"/>'
        f'<text {at} y="{y + 20:g}" font-weight="600" fill="{ACCENT}">{escape(title)}</text>'
        f'<text {at} y="{y + 37:g}" font-size="11" fill="{INK}">{escape(about)}</text>'
    )


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return (
        f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{ACCENT}" stroke-width="1.5" '
        'marker-end="url(#tip)"/>'
    )


def _svg(width: float, height: float, label: str, body: list[str]) -> str:
    arrow = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 Z" fill="{ACCENT}"/></marker></defs>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(label)}" font-family="Helvetica, Arial, sans-serif" font-size="13">'
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>{arrow}' + "\n".join(body) + "</svg>\n"
    )


def rooms_svg() -> str:
    """The rooms, a row per rank: what is below imports from what is above."""
    width, high, gap = 124.0, 48.0, 10.0
    ranks = [rank for rank in rooms() if rank]
    columns = max(map(len, ranks))
    total = 40 + columns * (width + gap)
    body, y = [], 16.0
    for number, rank in enumerate(ranks):
        left = (total - len(rank) * (width + gap) + gap) / 2
        for place, room in enumerate(rank):
            body.append(_box(left + place * (width + gap), y, width, high, room, ABOUT[room]))
        y += high
        if number + 1 < len(ranks):
            body.append(_arrow(total / 2, y + 22, total / 2, y + 4))
            y += 26
    return _svg(total, y + 16, "The rooms of owlrl. Each row imports from the rows above it.", body)


# Rows of the picture: a title, then the rooms that a row of experience passes, left to right.
WALK = {
    "training": [
        ("learners", "your learner acts"),
        ("heads", "the active head"),
        ("envs", "your environment"),
        ("replay", "stores the row"),
        ("memory", "keeps a sample"),
        ("learners", "your loss, backward"),
        ("regularizers", "adds its pull"),
        ("step_guard", "finite? then step"),
    ],
    "a task ends": [
        ("memory", "rows of the task"),
        ("evidence", "fits a model"),
        ("heads", "its head answers"),
        ("regularizers", "stores, settles"),
        ("replay", "empty for the next"),
    ],
    "task unknown": [
        ("selection", "draws a head"),
        ("heads", "that head acts"),
        ("envs", "your environment"),
        ("evidence", "scores all heads"),
        ("selection", "shifts its weight"),
    ],
    "a task changes, nobody says so": [
        ("memory", "new rows, known rows"),
        ("changes", "do they contradict?"),
        ("stream", "the other task enters"),
        ("replay", "rows move with it"),
        ("heads", "old head put back"),
    ],
}


def walk_svg() -> str:
    """The walk of a row: in training, when a task ends or changes, and when the task is unknown."""
    width, high, gap = 118.0, 48.0, 22.0
    columns = max(map(len, WALK.values()))
    total = 32 + columns * (width + gap)
    body, y = [], 14.0
    for title, steps in WALK.items():
        body.append(f'<text x="16" y="{y + 14:g}" font-weight="600" fill="{INK}">{escape(title)}</text>')
        y += 24
        for place, (room, about) in enumerate(steps):
            x = 16 + place * (width + gap)
            body.append(_box(x, y, width, high, room, about))
            if place + 1 < len(steps):
                body.append(_arrow(x + width + 2, y + high / 2, x + width + gap - 3, y + high / 2))
        y += high + 18
    return _svg(
        total, y, "The walk of a row through the rooms: training, end of a task, task unknown, change.", body
    )


def write(images: Path) -> None:
    """Write both pictures."""
    (images / "rooms.svg").write_text(rooms_svg(), encoding="utf-8")
    (images / "walk.svg").write_text(walk_svg(), encoding="utf-8")


if __name__ == "__main__":  # python -m scripts.rooms
    write(Path(__file__).resolve().parent.parent / "docs" / "images")
