from __future__ import annotations

import pytest
import torch

from owlrl.errors import OwlValueError
from owlrl.experiments import Session, Trial, final_performance, keeping, run_experiment
from owlrl.experiments.keeping import Keeper, repeatable
from owlrl.experiments.results import TIMES, without_times
from owlrl.experiments.session import plan_of
from owlrl.experiments.visits import Visits
from owlrl.wrapper_state import same_state
from tests.experiments.fragile import Fragile, Killed, killed_again_and_again
from tests.experiments.helpers import tiny, tiny_control

LEFT, RIGHT = "crossroads-0", "crossroads-1"


@pytest.fixture(scope="module")
def run():
    return tiny(
        policies=("oracle", "hedge+model", "hedge+reward", "random"), consecutive=2, rounds=2, frames=192
    )


@pytest.fixture(scope="module")
def result(run):
    return run_experiment(run)


def test_training_rows_follow_each_other(result):
    rows = result.select("training")
    assert [(row["round"], row["task"]) for row in rows] == [(0, LEFT), (0, RIGHT), (1, LEFT), (1, RIGHT)]
    assert [row["visit"] for row in rows] == [0, 1, 2, 3]
    assert result.starts() == [0, 192, 384, 576, 768]
    assert all(row["steps"] == 192 and row["seconds"] > 0 for row in rows)


def test_the_curve_has_the_tasks_seen_so_far(result):
    rows = result.course("oracle")
    steps = sorted({row[0] for row in rows})
    assert steps == [128, 192, 320, 384, 512, 576, 704, 768]
    for step in steps:
        tasks = [task for at, task, _ in rows if at == step]
        assert tasks == [LEFT] if step <= 192 else tasks == [LEFT, RIGHT]


def test_the_last_scores_are_those_of_the_evaluation(result):
    assert result.followed() == ["oracle", "hedge+model"]
    for mode in ("oracle", "hedge+model"):
        final = [row["success"] for row in result.final(mode)]
        assert len(final) == 2
        assert final_performance(result.course(mode)) == pytest.approx(sum(final) / 2)
    assert {row["visit"] for row in result.select("score", mode="random")} == {3}


def test_all_evaluations_are_there(run, result):
    assert result.modes == run.policies
    assert {row["mode"] for row in result.final()} == set(run.policies)
    assert {row["mode"] for row in result.select("in-a-row")} == set(run.policies)
    assert {row["mode"] for row in result.select("trace")} == {"hedge+model", "hedge+reward"}
    assert set(result.info) >= {"versions", "git", "started", "seconds", "cpu_seconds"}
    assert result.info["seconds"] > 0


def test_the_same_run_gives_the_same_numbers(run, result):
    again = run_experiment(run)
    assert list(map(without_times, again.rows)) == list(map(without_times, result.rows))
    assert without_times(again.info) == without_times(result.info)
    assert not set(again.info) - set(without_times(again.info)) - set(TIMES)


def test_another_seed_gives_others():
    first, second = (run_experiment(tiny_control(seed=seed, policies=("random",))) for seed in (0, 1))
    assert list(map(without_times, first.rows)) != list(map(without_times, second.rows))


def test_unseen_levels_are_evaluated():
    levels = {"tasks": "owlrl/SimpleCrossing-v0:3", "arguments": {}, "unseen": ("S9N1:2",)}
    done = run_experiment(tiny(**levels, policies=("random",)))
    assert len(done.final(label="S9N1:2")) == 2
    assert len(done.final()) == 1


def test_a_checkpoint_is_kept_on_demand(tmp_path):
    run = tiny()
    run_experiment(run, checkpoint=tmp_path / "kept.safetensors")
    assert Session.load(tmp_path / "kept.safetensors").run == run


def test_frames_of_single_tasks():
    trial = run_experiment(tiny(frames_by_task={RIGHT: 96}))
    assert trial.starts() == [0, 256, 352] and trial.steps == 352


def finish(run, keeper) -> Visits:
    plan = plan_of(run)
    with repeatable(run.seed):
        visits = Visits(plan, plan.methods[0], run.seed, keeper, lambda text, steps: None)
        visits.run()
        visits.close()
    return visits


RUNS = {
    "owl-memory": tiny(rounds=2, policies=("oracle", "hedge+td", "random")),
    "experience-replay": tiny(method="experience-replay"),
    "full-rehearsal": tiny(method="full-rehearsal", rounds=2),
    "owl-epsilon-restart-2x": tiny(method="owl-epsilon-restart-2x", rounds=2),
    "owl-dropout-0.1": tiny(method="owl-dropout-0.1", policies=("oracle", "hedge+nll")),
    "pendulum": tiny_control(rounds=2, policies=("oracle", "hedge+nll")),
    "pendulum, one head": tiny_control(method="experience-replay", frames=56),
}


def parameters(session) -> list[torch.Tensor]:
    found = [*session.learner.networks.values(), *session.learner.targets.values()]
    return [parameter for network in found for parameter in network.module.parameters()]


def same(one: Visits, other: Visits) -> bool:
    mine, theirs = ([without_times(row) for row in visits.rows] for visits in (one, other))
    assert mine == theirs
    assert all(map(torch.equal, parameters(one.learned), parameters(other.learned)))
    states = []
    for visits in (one, other):
        state = visits.learned.state_dict()
        state["learner"].pop("rng")  # which a test before this one has left in another state
        states.append(without_versions(state))
    return same_state(*states)


def without_versions(tree):
    """Without the counts of changes, which depend on how many rows came at once."""
    if not isinstance(tree, dict):
        return tree
    return {name: without_versions(value) for name, value in tree.items() if name != "version"}


SLOW = {"full-rehearsal", "owl-dropout-0.1"}  # whose states are those of others


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in RUNS]
)
def test_a_killed_run_goes_on_as_if_nothing_had_been(name, tmp_path):
    """Killed again and again, it ends where one ends that was left alone, to the last bit."""
    run, path = RUNS[name], tmp_path / "run.part"
    killed, kills = killed_again_and_again(path, run.to_json(), lambda keeper: finish(run, keeper))
    assert kills >= 3
    whole = finish(run, Keeper(None, run.to_json()))
    assert same(killed, whole)
    files = [tmp_path / "killed", tmp_path / "whole"]
    for visits, file in zip((killed, whole), files, strict=True):
        visits.learned.save(file)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_keeping_changes_nothing(tmp_path):
    run = tiny(frames=128)
    kept, plain = (finish(run, Keeper(path, run.to_json(), seconds=0)) for path in (tmp_path / "x", None))
    assert kept.keeper.saves > 20 and same(kept, plain)


def test_frames_beyond_those_asked_for_are_counted_once(tmp_path):
    """Eight environments make 104 frames where 100 are asked for: four less on the next visit."""
    run, path = tiny(rounds=3, frames=100), tmp_path / "run.part"
    with pytest.raises(Killed):
        finish(run, Fragile(path, run.to_json(), kill=30))
    whole = finish(run, Keeper(None, run.to_json()))
    assert same(finish(run, Keeper(path, run.to_json())), whole)
    frames = 6 * 100 - 2 * 64  # of which each task's first ones are random
    assert whole.learned.agent.updates == pytest.approx(frames / 32, abs=2)


def test_time_spent_before_counts(tmp_path):
    run, path = tiny(), tmp_path / "run.part"
    keeper = Fragile(path, identity(run), kill=9)
    keeper._spent = {"seconds": 1_000.0, "cpu": 500.0}
    with pytest.raises(Killed):
        finish(run, keeper)
    info = run_experiment(run, resume=path).info
    assert 1_000.0 < info["seconds"] < 1_900.0 and info["cpu_seconds"] > 500.0


def test_all_tasks_learned_leaves_only_the_evaluation(tmp_path, monkeypatch):
    run, path = tiny(policies=("oracle", "random"), frames=96), tmp_path / "run.part"
    whole = finish(run, Keeper(path, "mine", seconds=0))
    monkeypatch.setattr(Session, "train", None)  # not called again
    monkeypatch.setattr(Session, "rows", lambda *_, **__: [{"kind": "again"}])
    again = finish(run, Keeper(path, "mine"))
    assert again.rows == whole.rows
    assert again.learned.heads == {"crossroads-0": 0, "crossroads-1": 1}


def identity(run):
    trial = Trial.of(run)
    return [trial.id, trial.source]


@pytest.mark.parametrize("make", [tiny, tiny_control])
def test_the_file_of_another_run_is_refused(make, tmp_path):
    path = tmp_path / "run.part"
    with pytest.raises(Killed):
        finish(make(), Fragile(path, identity(make()), kill=9))
    with pytest.raises(OwlValueError, match="is of another run; remove it to start from scratch"):
        run_experiment(make(seed=1), resume=path)


def test_a_damaged_file_is_named_with_what_to_do(tmp_path):
    path = tmp_path / "x.part"
    path.write_bytes(b"half")
    with pytest.raises(OwlValueError, match=r"x\.part is not a readable checkpoint.*; remove it"):
        run_experiment(tiny(), resume=path)


def test_a_full_disk_stops_nothing(tmp_path, monkeypatch):
    def full(path, state):
        raise OSError(28, f"could not write {path} (No space left on device)")

    monkeypatch.setattr(keeping, "save_state", full)
    with pytest.warns(UserWarning, match="No space left on device.*; the work continues"):
        result = run_experiment(tiny(frames=64), resume=tmp_path / "x.part", save_every=0)
    assert len(result.select("training")) == 2
