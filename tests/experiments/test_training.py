from __future__ import annotations

import pytest
import torch

from owlrl.experiments import Session, final_performance, run_experiment, train
from owlrl.experiments.training import repeatable
from tests.experiments.helpers import tiny

LEFT, RIGHT = "crossroads-0", "crossroads-1"


def without_times(result):
    """Rows, without what the clock says."""
    return [{k: v for k, v in row.items() if "seconds" not in k} for row in result.rows]


@pytest.fixture(scope="module")
def run():
    return tiny(
        policies=("oracle", "hedge+model", "hedge+reward", "random"), consecutive=2, rounds=2, frames=320
    )


@pytest.fixture(scope="module")
def result(run):
    return run_experiment(run)


def test_training_rows_follow_each_other(result):
    rows = result.select("training")
    assert [(row["round"], row["task"]) for row in rows] == [(0, LEFT), (0, RIGHT), (1, LEFT), (1, RIGHT)]
    assert [(row["start"], row["end"]) for row in rows] == [(0, 320), (320, 640), (640, 960), (960, 1280)]
    for row in rows:
        random = 0 if row["round"] else 64  # a task that comes back has had its random frames
        assert row["updates"] == (320 - random) // 32
        assert 0 < row["learn_seconds"] <= row["seconds"]


def test_the_curve_has_the_tasks_seen_so_far(result):
    rows = result.select("score", policy="oracle")
    steps = sorted({row["step"] for row in rows})
    assert steps == [128, 256, 320, 448, 576, 640, 768, 896, 960, 1088, 1216, 1280]
    for row in rows:
        assert row["training"] == (LEFT if row["step"] <= 320 or 640 < row["step"] <= 960 else RIGHT)
    for step in steps:
        tasks = [row["task"] for row in rows if row["step"] == step]
        assert tasks == [LEFT] if step <= 320 else tasks == [LEFT, RIGHT]


def test_the_last_scores_are_those_of_the_evaluation(result):
    for policy in ("oracle", "hedge+model"):
        curve = [(r["step"], r["task"], r["score"]) for r in result.select("score", policy=policy)]
        assert curve[-1][0] == 1280
        if policy == "oracle":
            final = [row["success"] for row in result.select("evaluation", policy=policy)]
            assert final_performance(curve) == pytest.approx(sum(final) / len(final))
    assert not result.select("score", policy="random")


def test_all_evaluations_are_there(run, result):
    assert {row["policy"] for row in result.select("evaluation")} == set(run.policies)
    assert {row["policy"] for row in result.select("in-a-row")} == set(run.policies)
    assert {row["policy"] for row in result.select("trace")} == {"hedge+model", "hedge+reward"}
    assert set(result.info) >= {"versions", "git", "started", "seconds"}
    assert result.info["seconds"]["train"] > 0


def test_the_same_run_gives_the_same_numbers(run, result):
    assert without_times(run_experiment(run)) == without_times(result)


def test_another_seed_gives_others():
    first, second = (run_experiment(tiny(seed=seed, policies=("random",))) for seed in (0, 1))
    assert without_times(first) != without_times(second)


def test_unseen_levels_are_evaluated():
    levels = {"tasks": "owlrl/SimpleCrossing-v0:3", "arguments": {}, "unseen": ("S9N1:2",)}
    done = run_experiment(tiny(**levels, policies=("random",)))
    assert len(done.select("evaluation", set="S9N1:2")) == 2
    assert len(done.select("evaluation", set="seen")) == 1


def test_a_checkpoint_is_kept_on_demand(tmp_path):
    run = tiny()
    run_experiment(run, checkpoint=tmp_path / "kept.safetensors")
    assert Session.load(tmp_path / "kept.safetensors").run == run


def test_frames_of_single_tasks():
    _, rows = train(tiny(frames_by_task={RIGHT: 96}))
    assert [row["end"] for row in rows if row["kind"] == "training"] == [256, 352]


def test_a_run_leaves_the_process_as_it_was():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), repeatable(0):
            assert torch.get_num_threads() == 1
            torch.rand(1)
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)
