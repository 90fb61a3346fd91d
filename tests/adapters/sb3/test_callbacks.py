"""What people hang on ``model.learn`` goes on working: TensorBoard, evaluation, checkpoints, bars."""

from __future__ import annotations

import numpy as np
import pytest
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.save_util import load_from_zip_file
from stable_baselines3.common.vec_env import VecNormalize

from owlrl import OwlWrapper
from owlrl.checkpoint import load_state, save_state
from owlrl.errors import OwlValueError
from owlrl.wrapper_state import same_state
from tests.adapters.helpers import KINDS, Guess, any_model, dqn, other_env, same, weights


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_tensorboard_has_a_run_per_task(kind, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model = any_model(kind, tensorboard_log=str(tmp_path))
    owl = OwlWrapper(model)
    for task, reset in (("a", True), ("b", True), ("a", False)):
        env = other_env(model) if task == "b" else None
        with owl.task(task, env=env):
            model.learn(28, tb_log_name=task, log_interval=1, reset_num_timesteps=reset)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a_1", "b_1"]
    for run, steps in (("a_1", [7, 14, 21, 28, 35, 42, 49, 56]), ("b_1", [7, 14, 21, 28])):
        found = events.EventAccumulator(str(tmp_path / run))
        found.Reload()
        assert [event.step for event in found.Scalars("rollout/ep_rew_mean")] == steps
        loss = "train/loss" if kind is DQN else "train/critic_loss"
        assert np.isfinite([event.value for event in found.Scalars(loss)]).all()


@pytest.mark.filterwarnings("ignore:rich is experimental")  # tqdm's own
def test_the_bar_counts_the_task_s_own_steps(monkeypatch):
    from stable_baselines3.common import callbacks

    bars = []

    def bar(total):
        bars.append(made := tqdm(total=total))
        return made

    tqdm = callbacks.tqdm
    monkeypatch.setattr(callbacks, "tqdm", bar)
    model = dqn()
    owl = OwlWrapper(model)
    for task, reset in (("a", True), ("b", False), ("a", False)):
        with owl.task(task):
            model.learn(26, progress_bar=True, reset_num_timesteps=reset)
    assert [(bar.n, bar.total) for bar in bars] == [(26, 26)] * 3


def test_stopping_and_nested_callbacks(tmp_path):
    model = dqn()
    owl = OwlWrapper(model)
    for task in ("a", "b"):
        checkpoints = EveryNTimesteps(10, CheckpointCallback(1, str(tmp_path / task)))
        stop = EvalCallback(
            Monitor(Guess()),
            eval_freq=10,
            n_eval_episodes=1,
            verbose=0,
            best_model_save_path=str(tmp_path / task),
            callback_on_new_best=StopTrainingOnRewardThreshold(-1.0),
            callback_after_eval=StopTrainingOnNoModelImprovement(1),
        )
        with owl.task(task, env=Guess()):
            model.learn(100, callback=[checkpoints, stop])
            assert model.num_timesteps == 10  # any return is enough to stop
        assert (tmp_path / task / "best_model.zip").is_file()
        assert (tmp_path / task / "rl_model_10_steps.zip").is_file()


def test_evaluation_is_normalised_as_the_task_that_is_learned():
    def env(**settings):
        return VecNormalize(make_vec_env(Guess, n_envs=1, seed=0), **settings)

    model = dqn(env=env())
    owl = OwlWrapper(model)
    evaluation = EvalCallback(env(training=False), eval_freq=10, n_eval_episodes=1, verbose=0, warn=False)
    with owl.task("a"):
        model.learn(30)
    with pytest.warns(UserWarning, match="statistics per task"), owl.task("b", env=env()):
        model.learn(20, callback=evaluation)
        own = model.get_vec_normalize_env().obs_rms
    assert np.array_equal(evaluation.eval_env.obs_rms.mean, own.mean)


def test_the_wrapper_may_be_saved_by_a_callback(tmp_path):
    """Every ten steps; the last file is gone on from, in the middle of the second task."""

    class Save(BaseCallback):
        def _on_step(self):
            owl.save(tmp_path / "owl.safetensors")
            return True

    model = dqn()
    owl = OwlWrapper(model)
    for task, sign in (("a", 1), ("b", -1)):
        with owl.task(task, env=Guess(sign=sign)):
            model.learn(36, callback=EveryNTimesteps(10, Save()))
    fresh = dqn()
    again = OwlWrapper.load(tmp_path / "owl.safetensors", fresh)
    assert {name: record.visits for name, record in again.tasks.items()} == {"a": 1, "b": 0}
    with pytest.raises(OwlValueError, match="environment of 'b' is not saved"), again.task("b"):
        pass
    with again.task("b", env=Guess(sign=-1)):
        # a callback is called before the row of its step is stored: the file was written after that
        assert (fresh.num_timesteps, len(again.replay)) == (30, 30)
        fresh.learn(6, reset_num_timesteps=False)
    assert again.tasks["b"].visits == 1 and again.memory["b"].seen == 36
    with again.task("a", env=Guess()):
        assert (fresh.num_timesteps, len(again.replay)) == (36, 36)
        fresh.learn(10)


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_saves_in_a_callback_are_those_of_the_next_border(kind, tmp_path):
    """In the middle of a rollout of five steps: written at its end, after its updates, once."""
    model = any_model(kind, train_freq=5)
    owl = OwlWrapper(model)
    steps, written = {}, []

    def save(_locals, _globals):
        if model.num_timesteps in (32, 33, 39):
            path = tmp_path / f"{model.num_timesteps == 39}.safetensors"
            owl.save(path)
            steps[path] = model.num_timesteps
            written.append(path.exists())
        return True

    with owl.task("a"):
        remove = owl.learner.at_border(
            lambda: save_state(tmp_path / f"{model.num_timesteps}", owl.state_dict())
        )
        model.learn(40, callback=save)
        remove()
        save_state(tmp_path / "40", owl.state_dict())
    assert written == [False] * 3
    for name, border in (("False", 35), ("True", 40)):
        assert same_state(load_state(tmp_path / f"{name}.safetensors"), load_state(tmp_path / f"{border}"))


def test_a_save_that_waits_is_dropped_when_learn_fails(tmp_path):
    model = dqn(train_freq=5)
    owl = OwlWrapper(model)

    def save(_locals, _globals):
        if model.num_timesteps == 32:
            owl.save(tmp_path / "state")
        if model.num_timesteps == 34:
            raise RuntimeError("the machine went down")
        return True

    with pytest.raises(RuntimeError), owl.task("a"):
        model.learn(40, callback=save)
    with owl.task("a"):
        model.learn(10, reset_num_timesteps=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_inside_a_block_is_the_unwrapped_model(kind, tmp_path):
    """With several heads, too: the active one, and its optimizer state, as `unwrap` gives them."""
    model = any_model(kind)
    owl = OwlWrapper(model, regularizer=None, evidence=None)
    with owl.task("a"):
        model.learn(30)
    with owl.task("b"):
        model.learn(30, callback=CheckpointCallback(20, str(tmp_path)))
        model.save(tmp_path / "model.zip")
        all_heads = model.get_parameters()
    assert any("extra_heads" in key for key in all_heads["policy"])
    type(any_model(kind)).load(tmp_path / "rl_model_20_steps.zip")
    loaded = type(any_model(kind)).load(tmp_path / "model.zip", env=model.get_env())
    owl.unwrap("b")
    saved = load_from_zip_file(tmp_path / "model.zip")[1]
    for name, state in model.get_parameters().items():
        if "state" in state:  # of an optimizer, by the number of the parameter
            state, saved[name] = (
                {**s, "state": dict(sorted(s["state"].items()))} for s in (state, saved[name])
            )
        assert same_state(state, saved[name]), name
    assert same(weights(loaded), weights(model))
    loaded.learn(30)
