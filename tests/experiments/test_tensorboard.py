"""What TensorBoard reads of a study is what the study has; a run that goes on overwrites nothing."""

from __future__ import annotations

import pytest

from owlrl import OwlWrapper
from owlrl.experiments import TensorBoard, Wrapped, compare
from owlrl.experiments import comparison as module
from owlrl.experiments import visits as visits_module
from owlrl.learners import DQN, DQNConfig
from tests.own_dqn import Signs

accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
TASKS = {"plain": lambda: Signs(0), "shifted": lambda: Signs(1)}


def make_model(env, seed):
    config = DQNConfig(learning_starts=32, batch_size=8, buffer_size=500)
    return DQN(env, config=config, seed=seed)


def scalars(directory):
    """Steps and values by name."""
    found = accumulators.EventAccumulator(str(directory)).Reload()
    return {
        name: [(event.step, event.value) for event in found.Scalars(name)] for name in found.Tags()["scalars"]
    }


def test_scores_curves_and_the_wrappers_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr(visits_module, "NUMBERS", 50)
    options = {"methods": ["owl"], "seeds": [3], "eval_every": 100, "eval_episodes": 2, "progress": False}
    study = compare(make_model, tasks=TASKS, steps=200, **options, tensorboard=tmp_path)
    found = scalars(tmp_path / "owl" / "seed-3")
    given = study.after_each("owl")[0]
    assert found["score given/plain"] == [(200, given[0, 0]), (400, given[1, 0])]
    assert found["score given/shifted"] == [(400, given[1, 1])]
    assert [step for step, _ in found["curve/shifted"]] == [300]
    assert [step for step, _ in found["memory/rows"]] == [50, 100, 150, 200, 250, 300, 350, 400]
    assert found["tasks"][-1][1] == 2.0
    drift = [name for name in found if name.startswith("drift/")]
    assert drift and next(step for step, _ in found[drift[0]]) > 200  # from the second task on
    assert set(scalars(tmp_path / "random-actions" / "seed-3")) >= {"score unknown/plain"}


def test_a_run_that_goes_on_has_each_step_once(tmp_path, monkeypatch):
    class Stopped(Exception):
        pass

    options = {"tasks": TASKS, "steps": 80, "eval_every": 20, "eval_episodes": 2, "seeds": 1}
    plan = module.Plan.of(make_model, methods=[Wrapped("owl")], **options)
    trial, part = plan.trials()[0], tmp_path / "owl.part"

    def stopping(text, steps):
        if steps >= 128:
            raise Stopped

    with pytest.raises(Stopped):
        module.run_trial(
            plan, trial, tell=stopping, resume=part, save_every=0.0, tensorboard=tmp_path / "board"
        )
    module.run_trial(plan, trial, resume=part, save_every=1e9, tensorboard=tmp_path / "board")
    curve = [step for step, _ in scalars(tmp_path / "board")["curve/shifted"]]
    assert sorted(curve) == [100, 120, 140]  # files of the same second are read in any order


def test_a_wrapper_can_be_watched_with_it(tmp_path):
    model = make_model(Signs(0), 0)
    with TensorBoard(tmp_path) as board:
        owl = OwlWrapper(model, watch=board, watch_every=2)
        with owl.task("plain", env=Signs(0)):
            model.learn(200)
    assert scalars(tmp_path)["memory/rows"] == [(2, 64.0), (4, 64.0)]
