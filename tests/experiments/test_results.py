from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import owlrl
from owlrl.errors import OwlValueError
from owlrl.experiments import (
    Result,
    Run,
    environment,
    is_done,
    load_results,
    read_result,
    result_path,
    write_result,
)
from owlrl.experiments import results as module
from owlrl.experiments.fanout import unfinished

RUN = Run("SC2", seed=3)
RESULT = Result(RUN, [{"kind": "mine", "score": 0.1 + 0.2}, {"kind": "other", "arms": [0, 1]}], {"git": None})


def test_round_trip_is_exact(tmp_path):
    path = write_result(tmp_path / "new" / "folder", RESULT)
    assert path == result_path(tmp_path / "new" / "folder", RUN)
    assert read_result(path) == RESULT
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert json.loads(lines[0])["run"]["seed"] == 3


def test_select_takes_rows_by_kind_and_fields():
    rows = [{"kind": "a", "x": 1}, {"kind": "a", "x": 2}, {"kind": "b", "x": 1}, {"kind": "a"}]
    result = Result(RUN, rows, {})
    assert result.select("a") == [rows[0], rows[1], rows[3]]
    assert result.select("a", x=1) == [rows[0]]


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    path = write_result(tmp_path, RESULT)
    before = path.read_text(encoding="utf-8")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        write_result(tmp_path, Result(RUN, [], {}))
    assert path.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [path]


def test_numbers_that_json_does_not_know_are_refused(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_result(tmp_path, Result(RUN, [{"kind": "score", "score": float("nan")}], {}))
    assert list(tmp_path.iterdir()) == []


def test_others_may_read_the_file(tmp_path):
    assert write_result(tmp_path, RESULT).stat().st_mode & 0o777 == 0o644


def test_done_is_what_has_a_result_of_the_very_same_run(tmp_path):
    assert not is_done(tmp_path, RUN)
    path = write_result(tmp_path, RESULT)
    assert is_done(tmp_path, RUN)
    assert not is_done(tmp_path, Run("SC2", seed=4))
    os.replace(path, result_path(tmp_path, Run("SC2", seed=4)))  # under another's name
    assert not is_done(tmp_path, Run("SC2", seed=4))


def test_all_results_of_a_directory(tmp_path):
    for seed in (2, 1):
        write_result(tmp_path, Result(Run("SC2", seed=seed), [], {}))
    (tmp_path / ".left.part").write_text("half", encoding="utf-8")
    assert [result.run.seed for result in load_results(tmp_path)] == [1, 2]


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
        read_result(path)


def test_a_result_that_lost_its_last_lines_is_none(tmp_path):
    path = write_result(tmp_path, Result(RUN, [{"kind": "score"}] * 3, {}))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:2]), encoding="utf-8")
    with pytest.raises(OwlValueError, match=r"it has 1 of 3 rows\); remove it to go on"):
        read_result(path)
    assert unfinished([RUN], tmp_path) == [RUN]


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
