"""A thousand tasks: scores against slow loops, and runs that go on."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from owlrl.envs import ReachVectorEnv, best_return, reach_goals, single_policy_bound
from owlrl.errors import OwlValueError
from owlrl.experiments import Trial, thousand
from owlrl.experiments.keeping import Keeper
from owlrl.experiments.thousand import (
    blind_start,
    do_run,
    draw_thousand,
    looks,
    looks_at,
    parts,
    reach_scores,
    table,
)

GOALS = reach_goals(40, seed=3)
FRAMES = 1_000  # the fewest there may be


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


def same(trial: Trial) -> list[dict[str, Any]]:
    """What does not depend on the clock."""
    rows = looks([trial])
    return [{k: v for k, v in row.items() if not k.startswith(("ms", "s to", "MB"))} for row in rows]


def trials(**more: Any) -> list[Trial]:
    (part,) = parts(**{"goals": 2, "frames": FRAMES, **more})
    return [work.trial for work in part.work]


@cache
def whole_run(method: str) -> Trial:
    """Two goals, not interrupted."""
    (trial,) = trials(methods=[method])
    return do_run(trial)


@pytest.mark.parametrize("method", ["owl", "bare", pytest.param("frozen trunk", marks=pytest.mark.slow)])
def test_an_interrupted_run_goes_on_and_ends_with_the_same_scores(method: str, tmp_path: Path) -> None:
    (trial,) = trials(methods=[method])
    whole = whole_run(method)

    def stop(text: str, steps: int) -> None:
        if steps == FRAMES:
            raise KeyboardInterrupt

    keep: dict[str, Any] = {"resume": tmp_path / "run.part", "save_every": 0.0}
    with pytest.raises(KeyboardInterrupt):
        do_run(trial, **keep, tell=stop)
    seen: list[int] = []
    gone_on = do_run(trial, **keep, tell=lambda text, steps: seen.append(steps))
    assert seen == [FRAMES]  # only the second goal was left
    assert same(gone_on) == same(whole)
    assert [row["tasks"] for row in looks([whole])] == [1, 2]


def test_controls_table_and_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (part,) = parts(goals=2, frames=FRAMES)
    done = [whole_run(work.trial.method) for work in part.work]
    assert [(work.do, work.trial.id) for work in part.work] == [(do_run, trial.id) for trial in done]
    rows = looks(done)
    assert {row["method"] for row in rows} == set(thousand.METHODS)
    assert all("unknown" not in row for row in rows if row["method"] == "bare")
    assert part.show(done, [], tmp_path).count("\n") == 2 + len(rows) == len(table(rows).splitlines())
    assert (tmp_path / "thousand.svg").is_file()
    figure = draw_thousand(rows)
    assert [axes.get_ylabel() for axes in figure.axes] == [
        "score, mean over tasks",
        "ms per update",
        "MB on disk",
    ]


def test_methods_beside_owl_learn_fewer_goals() -> None:
    assert [trial.steps for trial in trials(goals=300)] == [300 * FRAMES, 200 * FRAMES, 200 * FRAMES]
    assert len({trial.id for trial in trials(seeds=2)}) == 6


def test_the_frozen_trunk_stays() -> None:
    run = thousand._Run("frozen trunk", 0, GOALS, 1, FRAMES)
    before = {name: p.clone() for name, p in run.agent.actor.named_parameters()}
    run.run(Keeper(None, "mine"), lambda text, steps: None)
    moved = {name for name, p in run.agent.actor.named_parameters() if not before[name].equal(p)}
    assert moved and all(name.startswith("output") for name in moved)


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(OwlValueError, match="expected some of"):
        parts(methods=["owls"])
