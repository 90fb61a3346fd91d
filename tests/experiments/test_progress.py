"""What is said of a study under way, against what its runs have said."""

from __future__ import annotations

import json
import time

import pytest

from owlrl.experiments import compare, progress
from owlrl.experiments.progress import Clock, Post, time_text
from tests.experiments.signs import TASKS, make_model


class Bar:
    def __init__(self):
        self.shown = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def update(self, number):
        return None

    def set_description_str(self, text):
        self.shown.append(text)


def test_a_run_says_how_far_it_is_once_a_second(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    post = Post(tmp_path / "a")
    post("first", 500)  # a run that goes on: 500 were made before
    assert Post.read(tmp_path / "a") == {"text": "first", "steps": 500, "made": 0, "seconds": 0.0}
    now[0] += 0.5
    post("too soon", 600)
    assert Post.read(tmp_path / "a")["steps"] == 500
    now[0] += 1.5
    post("later", 700)
    assert Post.read(tmp_path / "a") == {"text": "later", "steps": 700, "made": 200, "seconds": 2.0}
    assert Post.read(tmp_path / "none") == {}
    Post(None)("nothing", 3)


def post(directory, name, steps, made, seconds):
    told = {"text": f"{name} runs", "steps": steps, "made": made, "seconds": seconds}
    (directory / name).write_text(json.dumps(told), encoding="utf-8")


def test_time_is_estimated_before_the_first_run_ends(tmp_path, capsys):
    bar, methods = Bar(), {"a": "bare", "b": "owl", "c": "bare", "d": "owl"}
    runs = {name: (method, 1_000) for name, method in methods.items()}
    clock = Clock(runs, 2, tmp_path, bar, print, first=0.0)
    clock.show()
    assert capsys.readouterr().out == "" and bar.shown == [""]  # nothing is known yet
    post(tmp_path, "a", 100, 100, 10.0)  # 0.1 s a step
    post(tmp_path, "b", 600, 100, 30.0)  # 0.3 s a step; 500 were made by another process
    clock.show()
    # a: 90, b: 120, c: 100, d: 300; two at once, but d alone takes 300
    assert clock.seconds_left({name: Post.read(tmp_path / name) for name in "ab"}) == pytest.approx(305.0)
    assert bar.shown[-1] == "a runs; b runs | about 5 min to go"
    assert capsys.readouterr().out == "compare: 0 of 4 runs done, about 5 min to go\n"
    clock.done("b", 400.0)
    clock.done("d", None)  # it failed
    left = clock.seconds_left({"a": Post.read(tmp_path / "a")})
    assert left == pytest.approx(100.0)  # c alone, with the speed of a


def test_what_takes_no_time_is_not_waited_for(tmp_path):
    clock = Clock({"a": ("owl", 10)}, 1, tmp_path, Bar(), print)
    clock.done("random", 0.1)
    clock.done("a", 5.0)
    assert clock.seconds_left({}) == 0.0


def test_times():
    assert [time_text(s) for s in (3.4, 89.0, 91.0, 5400.0)] == ["3 s", "89 s", "2 min", "1.5 h"]


def test_a_study_tells_what_runs(monkeypatch, capsys):
    bar = Bar()
    from owlrl.experiments import comparison

    class Eager(Clock):
        def __init__(self, *arguments, where):
            super().__init__(*arguments, first=0.0, where=where)

        def _watch(self):
            while not self._over.wait(0.01):
                self.show()

    monkeypatch.setattr(comparison, "progress_bar", lambda total, progress: bar)
    monkeypatch.setattr(comparison, "Clock", Eager)
    begun = time.monotonic()
    compare(make_model, tasks=TASKS, steps=200, methods=["bare"], seeds=2, eval_episodes=2)
    assert time.monotonic() - begun < 30
    assert any(text.startswith("bare, seed 1: plain (1 of 2)") for text in bar.shown)
    assert "compare: 1 of 2 runs done, about" in capsys.readouterr().err


def test_the_first_run_that_ends_is_told_once(tmp_path, capsys):
    clock = Clock({"a": ("bare", 100), "b": ("bare", 100)}, 1, tmp_path, Bar(), print, first=1e9)
    clock.done("a", 5.0)
    assert capsys.readouterr().out == "compare: 1 of 2 runs done, about 5 s to go\n"
    clock.done("random actions", 1.0)  # takes no time, so that it is none of those that are counted
    assert capsys.readouterr().out == ""
