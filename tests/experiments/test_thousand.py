"""A thousand tasks: scores against slow loops, and runs that go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from owlrl.envs import ReachVectorEnv, best_return, reach_goals, single_policy_bound
from owlrl.errors import OwlValueError
from owlrl.experiments import thousand
from owlrl.experiments.thousand import blind_start, draw_thousand, looks_at, reach_scores, run_thousand, table

GOALS = reach_goals(40, seed=3)


def walked(goal: np.ndarray, blind: int) -> float:
    """The return of going straight to the goal after ``blind`` steps in the middle."""
    env = ReachVectorEnv(1, goal=goal)
    seen, total = env.reset()[0], 0.0
    for step in range(20):
        action = np.zeros(2) if step < blind else np.clip((goal - seen[0]) / 0.2, -1, 1)
        seen, reward, *_ = env.step(action[None])
        total += float(reward[0])
    return total


def test_scores_are_between_the_bound_of_one_policy_and_the_best() -> None:
    scores = reach_scores([walked(goal, 0) for goal in GOALS], GOALS, GOALS)
    assert scores == pytest.approx(1.0, abs=1e-6)
    middle = [-20 * float(((goal - GOALS.mean(axis=0)) ** 2).sum()) for goal in GOALS]
    bound = single_policy_bound(GOALS)
    expected = [(m - bound) / (best_return(goal) - bound) for m, goal in zip(middle, GOALS, strict=True)]
    assert reach_scores(middle, GOALS, GOALS) == pytest.approx(expected)


def test_a_blind_start_is_one_step_later_than_the_best() -> None:
    expected = reach_scores([walked(goal, 1) for goal in GOALS], GOALS, GOALS)
    assert blind_start(GOALS, GOALS) == pytest.approx(expected, abs=1e-6)


def test_looks() -> None:
    assert looks_at(1_000) == [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000]
    assert looks_at(7) == [1, 2, 5, 7]


def same(row: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on the clock."""
    return {k: v for k, v in row.items() if not k.startswith(("ms", "s to", "MB"))}


@pytest.mark.parametrize("method", ["owl", "bare"])
def test_an_interrupted_run_goes_on_and_ends_with_the_same_scores(method: str, tmp_path: Path) -> None:
    few: dict[str, Any] = {"goals": 3, "frames": 1_000, "methods": [method]}
    whole = run_thousand(tmp_path / "whole", **few)

    def stop(text: str) -> None:
        if ": 2 of" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_thousand(tmp_path / "parts", **few, progress=stop)
    seen: list[str] = []
    parts = run_thousand(tmp_path / "parts", **few, progress=seen.append)
    assert len(seen) == 1  # only the third goal was left
    assert [same(row) for row in parts] == [same(row) for row in whole]
    assert [row["tasks"] for row in parts] == [1, 2, 3]
    assert run_thousand(tmp_path / "parts", **few, progress=seen.append) == parts and len(seen) == 1
    assert not list((tmp_path / "parts").glob("*.owl"))


def test_controls_table_and_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = run_thousand(tmp_path, goals=2, frames=1_000)
    assert {row["method"] for row in rows} == set(thousand.METHODS)
    assert all("unknown" not in row for row in rows if row["method"] == "bare")
    assert len(table(rows).splitlines()) == 2 + len(rows)
    figure = draw_thousand(rows)
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "score, mean over tasks",
        "ms per update",
        "MB on disk",
    ]


def test_the_frozen_trunk_stays(tmp_path: Path) -> None:
    run = thousand._Run("frozen trunk", 0, GOALS, 1, 1_000, tmp_path / "run.jsonl")
    before = {name: p.clone() for name, p in run.agent.actor.named_parameters()}
    run.run(lambda text: None)
    moved = {name for name, p in run.agent.actor.named_parameters() if not before[name].equal(p)}
    assert moved and all(name.startswith("output") for name in moved)


def test_unknown_methods_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OwlValueError, match="expected some of"):
        run_thousand(tmp_path, methods=["owls"])
