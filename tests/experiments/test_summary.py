from __future__ import annotations

import numpy as np
import pytest

from owlrl.experiments import Run, Trial, forgetting, iqm
from owlrl.experiments.summary import Group, Quartiles, group_by_run, single_task_scores
from tests.experiments.helpers import evaluation, result, score, training


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
