from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import owlrl
from owlrl.errors import OwlValueError
from owlrl.experiments import Run, Trial, environment, load_trials
from owlrl.experiments import results as module
from owlrl.experiments.comparison import kept_trials
from tests.experiments.helpers import evaluation, result, score, tiny_control, training

RUN = Run("SC2", seed=3)
ROWS = [{"kind": "mine", "score": 0.1 + 0.2}, {"kind": "other", "arms": [0, 1]}]
TRIAL = Trial.of(RUN, ROWS, {"git": None})


def done(directory, run) -> bool:
    return bool(kept_trials([Trial.of(run)], directory))


def test_round_trip_is_exact(tmp_path):
    path = TRIAL.write(tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / f"{RUN.id}.jsonl"
    assert Trial.read(path) == TRIAL and Trial.read(path).run == RUN
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert json.loads(lines[0])["seed"] == 3


def test_select_takes_rows_by_kind_and_fields():
    rows = [{"kind": "a", "x": 1}, {"kind": "a", "x": 2}, {"kind": "b", "x": 1}, {"kind": "a"}]
    trial = Trial.of(RUN, rows)
    assert trial.select("a") == [rows[0], rows[1], rows[3]]
    assert trial.select("a", x=1) == [rows[0]]


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = TRIAL.write(tmp_path)
    before = path.read_text(encoding="utf-8")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        Trial.of(RUN).write(tmp_path)
    assert path.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_that_json_does_not_know_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        Trial.of(RUN, [{"kind": "mine", "score": float("nan")}]).write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_others_may_read_the_file(tmp_path):
    assert TRIAL.write(tmp_path).stat().st_mode & 0o777 == 0o644


def test_done_is_what_has_a_result_of_the_very_same_run(tmp_path):
    assert not done(tmp_path, RUN)
    path = TRIAL.write(tmp_path)
    assert done(tmp_path, RUN)
    assert not done(tmp_path, Run("SC2", seed=4))
    os.replace(path, tmp_path / f"{Run('SC2', seed=4).id}.jsonl")  # under another's name
    assert not done(tmp_path, Run("SC2", seed=4))


def test_all_results_of_a_directory(tmp_path):
    for seed in (2, 1):
        Trial.of(Run("SC2", seed=seed)).write(tmp_path)
    (tmp_path / ".left.part").write_text("half", encoding="utf-8")
    assert [trial.seed for trial in load_trials(tmp_path)] == [1, 2]


def test_a_result_of_the_first_version_is_a_trial():
    """Scores on the way are the curve, those at a task's end and evaluations are scores."""
    a, b = RUN.specs
    rows = [
        training(a, 0, 10),
        training(b, 10, 30),
        *(score(step, a, number) for step, number in ((5, 0.25), (10, 1.0), (20, 0.5), (30, 0.75))),
        score(30, b, 0.5),
        score(10, a, 0.125, "hedge+td"),
        evaluation("oracle", a, 0.75),
        evaluation("oracle", b, 0.5),
        evaluation("random", "c", 0.1, set="S9N1:1"),
        {"kind": "trace", "policy": "hedge+td", "task": a, "heads": [], "arms": [], "probabilities": []}
        | {"losses": []},
    ]
    trial = result(RUN, *rows)
    assert trial.id == RUN.id and trial.same(Trial.of(RUN)) and trial.run == RUN
    assert trial.starts() == [0, 10, 30] and trial.visits == [a, b]
    assert trial.course("oracle") == [
        (5, a, 0.25),
        (10, a, 1.0),
        (20, a, 0.5),
        (30, a, 0.75),
        (30, b, 0.5),
    ]
    assert trial.scores("final", "oracle") != trial.scores("right after", "oracle")
    assert trial.followed() == ["oracle", "hedge+td"] and trial.modes == ("oracle", "random")
    assert trial.spans() == trial.spans(0) == {a: (0, 10), b: (10, 30)}
    assert [(row["found"], row["steps"]) for row in trial.final("oracle")] == [(1.0, 2.0)] * 2
    assert [row["success"] for row in trial.final(label="S9N1:1")] == [0.1]
    assert trial.select("trace")[0]["mode"] == "hedge+td"
    assert trial.info["seconds"] == 91.0
    returns = result(tiny_control(), training(a, 0, 10), score(5, a, -3.0), score(10, a, -1.0))
    assert returns.course("oracle") == [(5, a, -3.0), (10, a, -1.0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no result"),
        ("{", "is no result"),
        ('{"format": "other"}', "its format is 'other'"),
        ('{"format": "owlrl-result-1", "run": {"colour": 1}, "info": {}}', "there is a field 'colour'"),
        ('{"format": "owlrl-result-1"}', "is no result"),
        ("[1]", "is no result"),
        ('{"format": "owlrl-result-1", "run": {}, "info": {}}\n[1, 2]', "rows that are no objects"),
    ],
)
def test_what_is_no_result_is_named(tmp_path, text, message):
    path = tmp_path / "x.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OwlValueError, match=message):
        Trial.read(path)


def test_a_result_that_lost_its_last_lines_is_none(tmp_path):
    path = Trial.of(RUN, [{"kind": "mine"}] * 3).write(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:2]), encoding="utf-8")
    with pytest.raises(OwlValueError, match=r"it has 1 of 3 rows\); remove it to continue"):
        Trial.read(path)
    assert not done(tmp_path, RUN)


def test_revision_of_the_source(monkeypatch):
    environment.cache_clear()
    assert set(environment()) >= {"versions", "git"}
    with monkeypatch.context() as patched:
        patched.setattr(module, "_git", lambda *a: "/somebody/else" if "rev-parse" in a else "abc")
        assert module._revision() is None  # installed inside of another project

    def missing(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(module.subprocess, "run", missing)
    assert module._revision() is None
    root = str(Path(owlrl.__file__).parents[2])
    monkeypatch.setattr(module, "_git", lambda *a: root if "rev-parse" in a else "abc-dirty")
    assert module._revision() == "abc-dirty"
