"""The drawing of the rooms is that of the source."""

from __future__ import annotations

import re

from scripts.rooms import ABOUT, WALK, imports_between_rooms, rooms, rooms_svg, walk_svg
from tests.test_architecture import SRC

IMAGES = SRC.parent.parent / "docs" / "images"


def test_every_room_is_drawn_and_no_other():
    there = {room for rank in rooms() for room in rank}
    assert there == {path.stem if path.stem != "__init__" else "owlrl" for path in SRC.glob("*.py")} | {
        path.parent.name for path in SRC.glob("*/__init__.py")
    }
    assert set(ABOUT) == there, "say in scripts/rooms.py what is in the room, and run: make figures"
    drawn = re.findall(r'font-weight="600"[^>]*>([^<]+)</text>', rooms_svg())
    assert sorted(drawn) == sorted(there)


def test_no_import_goes_up_in_the_picture():
    drawn = re.findall(r'y="([\d.]+)" font-weight="600"[^>]*>([^<]+)<', rooms_svg())
    height = {room: float(y) for y, room in drawn}
    imports = imports_between_rooms()
    assert ("evidence", "heads") in imports
    assert all(height[imported] <= height[room] for room, imported in imports)


def test_rows_walk_through_rooms_that_are_there():
    assert {room for steps in WALK.values() for room, _ in steps} <= set(ABOUT)


def test_the_pictures_are_current():
    for name, text in (("rooms", rooms_svg()), ("walk", walk_svg())):
        same = (IMAGES / f"{name}.svg").read_text(encoding="utf-8") == text
        assert same, f"docs/images/{name}.svg is out of date; run: make figures"
