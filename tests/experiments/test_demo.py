"""The demonstration with continuous actions, as small as it can be."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import pytest

from owlrl.errors import OwlStateError
from owlrl.experiments import Run
from owlrl.experiments import demo as module
from owlrl.experiments.demo import SHOWN, _unwrapped, run_pendulum_demo, run_stream_demo


def test_it_shows_every_method_and_draws(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "Run", partial(Run, arguments={"max_episode_steps": 30}))
    picture = tmp_path / "new" / "demo.png"
    demo = run_pendulum_demo(frames=8, episodes=2, output=picture)
    assert list(demo.scores) == [name for names in SHOWN.values() for name in names.values()]
    assert all(set(scores) == {"pendulum+90", "pendulum-90"} for scores in demo.scores.values())
    assert np.shape(demo.trace) == (30, 2)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.with_suffix(".gif").read_bytes().startswith(b"GIF89a")
    assert "learning pendulum+90" in capsys.readouterr().out


def test_lines_go_on_where_the_pole_hangs():
    assert _unwrapped([170.0, 179.0, -179.0, -170.0]).tolist() == [-190.0, -181.0, -179.0, -170.0]


def test_pictures_need_matplotlib_before_any_training(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(OwlStateError, match=r"pip install .matplotlib"):
        run_pendulum_demo(output=tmp_path / "demo.png")


def test_stream_shows_what_came_and_what_was_found(tmp_path):
    picture = tmp_path / "stream.png"
    demo = run_stream_demo(arms=2, frames=3_000, output=picture, quiet=True)
    assert [task for _, task in demo.changes] == ["goal 0", "goal 1", "goal 0"]
    assert picture.read_bytes().startswith(b"\x89PNG") and demo.scores
    assert len(demo.table().splitlines()) == 3 + len(demo.events)
