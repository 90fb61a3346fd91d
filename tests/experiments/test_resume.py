"""A run that is stopped and goes on gives the numbers of one that is not, to the last bit."""

from __future__ import annotations

import pytest
import torch

from owlrl.errors import OwlValueError
from owlrl.experiments import Session, evaluate_session, run_experiment, train, training
from owlrl.experiments.control import ControlSession
from owlrl.experiments.training import Resume, repeatable
from tests.experiments.helpers import tiny, tiny_control


def without_times(rows):
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in rows]


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
    with pytest.raises(OwlValueError, match="is of another run; remove it to begin anew"):
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
