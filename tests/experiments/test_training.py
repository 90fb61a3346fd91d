from __future__ import annotations

import pytest
import torch

from owlrl.errors import OwlValueError
from owlrl.experiments import Session, evaluate_session, final_performance, run_experiment, train, training
from owlrl.experiments.control import ControlSession
from owlrl.experiments.training import Resume, repeatable
from tests.experiments.helpers import tiny, tiny_control

LEFT, RIGHT = "crossroads-0", "crossroads-1"


def without_times(rows):
    """Without what the clock says."""
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]


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
    assert without_times(run_experiment(run).rows) == without_times(result.rows)


def test_another_seed_gives_others():
    first, second = (run_experiment(tiny(seed=seed, policies=("random",))) for seed in (0, 1))
    assert without_times(first.rows) != without_times(second.rows)


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


def stopped_in(visit: int, run, path, monkeypatch) -> None:
    """Train until the ``visit``-th task has begun; there Ctrl-C is hit."""
    real, seen = training._train_task, []

    def stopping(session, curve, number, task, *, progress):
        seen.append(task)
        if len(seen) == visit:
            with session.task(task):
                session.agent.learn(80, env=session.env(task))  # lost, and must leave no trace
                raise KeyboardInterrupt
        return real(session, curve, number, task, progress=progress)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(training, "_train_task", stopping)
        run_experiment(run, resume=path)
    assert len(seen) == visit


RUNS = {
    "owl-memory": tiny(rounds=2, policies=("oracle", "hedge+td", "random")),
    "owl": tiny(method="owl", rounds=2),
    "experience-replay": tiny(method="experience-replay"),
    "full-rehearsal": tiny(method="full-rehearsal", rounds=2),
    "owl-epsilon-restart-2x": tiny(method="owl-epsilon-restart-2x", rounds=2),
    "owl-dropout-0.1": tiny(method="owl-dropout-0.1", policies=("oracle", "hedge+nll")),
    "pendulum": tiny_control(rounds=2, policies=("oracle", "hedge+nll")),
    "pendulum, one head": tiny_control(method="experience-replay"),
}


def parameters(session) -> list[torch.Tensor]:
    found = [*session.learner.networks.values(), *session.learner.targets.values()]
    return [parameter for network in found for parameter in network.module.parameters()]


@pytest.mark.parametrize("name", RUNS)
def test_a_stopped_run_goes_on_as_if_nothing_had_been(name, tmp_path, monkeypatch):
    """It gives the numbers of one that was not stopped, to the last bit."""
    run, path = RUNS[name], tmp_path / "run.part"
    for _ in range(run.rounds):  # with two rounds in the second task, then in the third
        stopped_in(2, run, path, monkeypatch)
    found = []
    for resume in (path, None):
        with repeatable(run.seed):
            session, rows = train(run, resume=resume)
            found.append((session, rows + evaluate_session(session)))
    (resumed, one), (whole, other) = found
    assert without_times(one) == without_times(other)
    pairs = zip(parameters(resumed), parameters(whole), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in pairs)


def test_time_spent_before_counts(tmp_path, monkeypatch):
    run, path = tiny(), tmp_path / "run.part"
    stopped_in(2, run, path, monkeypatch)
    state = Session(run)
    Resume(path).load(state)
    state.spent = {"seconds": 1_000.0, "cpu": 500.0}
    Resume(path).save(state, Resume(path).load(Session(run)))
    info = run_experiment(run, resume=path).info
    assert info["seconds"]["train"] > 1_000.0 and info["cpu_seconds"] > 500.0


def test_all_tasks_learned_leaves_only_the_evaluation(tmp_path, monkeypatch):
    run, path = tiny(), tmp_path / "run.part"
    _, rows = train(run, resume=path)
    monkeypatch.setattr(training, "_train_task", None)  # not called again
    session, again = train(run, resume=path)
    assert again == rows and session.heads == {"crossroads-0": 0, "crossroads-1": 1}


@pytest.mark.parametrize(("make", "other"), [(Session, tiny), (ControlSession, tiny_control)])
def test_the_file_of_another_run_is_refused(make, other, tmp_path):
    path = tmp_path / "run.part"
    Resume(path).save(make(other()), {})
    with pytest.raises(OwlValueError, match="is of another run; remove it to start from scratch"):
        Resume(path).load(make(other(seed=1)))


def test_a_damaged_file_is_named_with_what_to_do(tmp_path):
    path = tmp_path / "x.part"
    path.write_bytes(b"half")
    with pytest.raises(OwlValueError, match=r"x\.part is not a readable checkpoint.*; remove it"):
        Resume(path).load(Session(tiny()))


def test_without_a_file_nothing_is_kept(tmp_path):
    kept = Resume(None)
    kept.save(Session(tiny()), {})
    assert kept.load(Session(tiny())) == {}
