from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import owlrl
from owlrl.errors import OwlValueError
from owlrl.experiments import Run, Trial, environment, forgetting, iqm, load_trials
from owlrl.experiments import results as module
from owlrl.experiments.comparison import kept_trials
from owlrl.experiments.results import Group, Quartiles, group_by_run, single_task_scores
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


def group() -> Group:
    made = []
    for seed, (a, b) in enumerate([(1.0, 0.5), (0.5, 0.25), (1.0, 1.0), (0.75, 0.0)]):
        rows = [
            training("a", 0, 10),
            training("b", 10, 20),
            score(10, "a", 1.0),
            score(20, "a", a),
            score(20, "b", b),
            score(20, "a", a / 2, "hedge+td"),
            evaluation("oracle", "a", a),
            evaluation("oracle", "b", b),
            evaluation("hedge+td", "a", a / 2, identified=0.5),
            evaluation("hedge+td", "b", b / 2, identified=1.0),
            evaluation("random", "c", 0.1, set="S9N1:1"),
        ]
        made.append(result(Run("SC2", seed=seed), *rows, minutes=seed + 1))
    return Group(tuple(made))


def test_scores_are_seeds_by_tasks():
    assert group().scores("oracle").tolist() == [[1.0, 0.5], [0.5, 0.25], [1.0, 1.0], [0.75, 0.0]]
    assert group().scores("random", label="S9N1:1").tolist() == [[0.1]] * 4
    assert group().modes() == ["oracle", "hedge+td"]
    assert group().modes("S9N1:1") == ["random"]


def test_estimate_and_quartiles():
    found = group().estimate("oracle")
    assert found.value == pytest.approx(float(iqm([0.75, 0.375, 1.0, 0.375])))
    assert found.interval.low <= found.value <= found.interval.high
    means = [0.75, 0.375, 1.0, 0.375]
    lower, median, upper = np.quantile(means, [0.25, 0.5, 0.75])
    assert group().quartiles("oracle") == pytest.approx((median, upper, lower))
    assert str(Quartiles.of([1.0])) == "1.00 (1.00, 1.00)"


def test_what_came_of_training():
    assert group().cumulative("oracle").median == pytest.approx(
        np.median([(1 + m) / 2 for m in (0.75, 0.375, 1.0, 0.375)])
    )
    assert group().cumulative("random") is None
    expected = [
        forgetting([(10, "a", 1.0), (20, "a", a), (20, "b", 0.0)], {"a": (0, 10), "b": (10, 20)})
        for a in (1.0, 0.5, 1.0, 0.75)
    ]
    assert group().forgetting() == pytest.approx(np.mean(expected))
    assert group().minutes() == pytest.approx(2.5)
    assert group().mean_of("found", "hedge+td") == 0.75
    assert np.isnan(group().mean_of("found", "nobody"))
    assert group().failures("oracle") is None


def test_failures_in_a_row():
    rows = [
        {"kind": "in-a-row", "policy": "oracle", "task": t, "by_episode": [], "failures": f}
        for t, f in (("a", 1.0), ("b", 2.0))
    ]
    assert Group((result(Run("SC2"), *rows),)).failures("oracle") == 1.5


def test_groups_differ_by_more_than_the_seed():
    runs = [Run("SC2", seed=1), Run("SC3"), Run("SC2", seed=0), Run("SC2", strength=2.0)]
    groups = group_by_run(result(run) for run in runs)
    assert [[r.run.seed for r in g.trials] for g in groups] == [[0, 1], [0], [0]]
    assert [g.label for g in groups] == ["owl-memory", "owl-memory", "owl-memory (2)"]
    asked = Run("SC2", seed=0, unseen=("S9N1:2",))  # the same training, so the same seed
    (found,) = group_by_run(result(run) for run in (Run("SC2", seed=0), asked, Run("SC2", seed=1)))
    assert [r.run for r in found.trials] == [asked, Run("SC2", seed=1)]


def alone(task: str, level: int, number: float, **more) -> Group:
    run = Run(f"owlrl/SimpleCrossing-v0:{level}", **more)
    return Group((result(run, training(task, 0, 10), score(5, task, 0.0), score(10, task, number)),))


def test_forward_transfer_takes_tasks_that_were_trained_alone():
    run = Run("SC2")
    groups = [
        alone("simplecrossing-3", 3, 1.0),
        alone("simplecrossing-7", 7, 0.5),
        alone("simplecrossing-7", 7, 0.1, frames=5),  # not like the run
        alone("simplecrossing-7", 7, 0.2, method="owl"),
        alone("simplecrossing-7", 7, 0.3, arguments={"size": 11}),
        alone("simplecrossing-7", 7, 0.4, num_envs=1),
        group(),
    ]
    reference = single_task_scores(groups, run)
    assert reference == {"simplecrossing-3": 0.5, "simplecrossing-7": 0.25}
    rows = [
        training("simplecrossing-3", 0, 10),
        training("simplecrossing-7", 10, 20),
        training("simplecrossing-3", 20, 30, number=1),  # only the first visit counts
        score(10, "simplecrossing-3", 1.0),
        score(20, "simplecrossing-7", 1.0),
        score(30, "simplecrossing-3", 0.0),
    ]
    assert Group((result(run, *rows),)).forward_transfer(reference) == pytest.approx(1.0)
    assert Group((result(run, *rows),)).forward_transfer({"simplecrossing-3": 0.5}) is None
    assert Group((result(run),)).forward_transfer({}) is None


def test_what_was_not_measured_is_none():
    bare = Group((Trial.of(Run("SC2")),))
    assert bare.forgetting() is None and bare.minutes() is None and bare.modes() == []


def test_only_policies_that_all_seeds_have():
    rows = [evaluation("oracle", "a", 1.0), evaluation("random", "a", 0.5)]
    both = Group((result(Run("SC2"), *rows), result(Run("SC2", seed=1), rows[0])))
    assert both.modes() == ["oracle"]
