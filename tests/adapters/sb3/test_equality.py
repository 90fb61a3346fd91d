"""With one task a wrapped model is the bare one, bit for bit; after `unwrap` it is an ordinary model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.vec_env import VecNormalize

from owlrl import DistillationRegularizer, EWCRegularizer, OwlWrapper
from tests.adapters.helpers import BOX, KINDS, Guess, any_model, other_env, same, weights

NO_TIMEOUTS = {"handle_timeout_termination": False}
NOISE = NormalActionNoise(np.zeros(1), np.full(1, 0.1))


def optimizers(model):
    owners = (model.policy,) if hasattr(model.policy, "optimizer") else (model.actor, model.critic)
    found = [owner.optimizer for owner in owners]
    return [*found, model.ent_coef_optimizer] if getattr(model, "ent_coef_optimizer", None) else found


def assert_equal(bare, model):
    assert same(weights(bare), weights(model))
    for first, second in zip(optimizers(bare), optimizers(model), strict=True):
        for old, new in zip(first.state.values(), second.state.values(), strict=True):
            assert all(torch.equal(old[key], new[key]) for key in old)
    if getattr(bare, "log_ent_coef", None) is not None:
        assert torch.equal(bare.log_ent_coef, model.log_ent_coef)
    assert np.array_equal(bare.replay_buffer.actions, model.replay_buffer.actions)
    assert np.array_equal(bare.replay_buffer.rewards, model.replay_buffer.rewards)
    assert bare.num_timesteps == model.num_timesteps


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (DQN, {}),
        (DQN, {"n_steps": 3}),
        (DQN, {"optimize_memory_usage": True, "replay_buffer_kwargs": NO_TIMEOUTS}),
        (TD3, {"train_freq": 10, "observations": "dict", "batch_size": 4}),
        (QRDQN, {}),
        (SAC, {"train_freq": 2}),
        (SAC, {"train_freq": 3, "use_sde": True, "sde_sample_freq": 2}),
        (TD3, {"train_freq": 2, "action_noise": NOISE}),
        (DDPG, {"train_freq": 3, "policy_kwargs": {"share_features_extractor": True}}),
    ],
    ids=lambda value: getattr(value, "__name__", None) or "-".join(value) or "plain",
)
def test_one_task_equals_the_bare_model(kind, changes):
    bare = any_model(kind, **changes)
    bare.learn(50)
    bare.learn(40, reset_num_timesteps=False)
    model = any_model(kind, **changes)
    regularizer = EWCRegularizer(1e6) if kind in (DQN, SAC) else DistillationRegularizer(100.0)
    owl = OwlWrapper(model, regularizer=regularizer, memory_rows=64)
    with owl.task("only"):
        model.learn(50)
        model.learn(40, reset_num_timesteps=False)
    assert_equal(bare, model)


def test_environment_given_again_or_anew_changes_nothing():
    bare = any_model(DQN)
    bare.learn(60)
    env = Guess()
    model = any_model(DQN, env=env)
    with OwlWrapper(model).task("only", env=env):
        inside = model.get_env().envs[0]
        model.learn(60)
    assert_equal(bare, model)
    assert inside.env is env  # one Monitor around it, not two
    for learning_starts in (0, 20):
        bare = any_model(DQN, learning_starts=learning_starts)
        bare.learn(60)
        model = any_model(DQN, learning_starts=learning_starts)
        with OwlWrapper(model).task("only", env=Guess()):
            model.learn(60)
        assert_equal(bare, model)


@pytest.mark.filterwarnings("ignore:OwlWrapper. the learner was trained")
def test_a_model_that_has_learned_before_goes_on_as_it_would():
    bare = any_model(DQN)
    bare.learn(50)
    bare.learn(50, reset_num_timesteps=False)
    model = any_model(DQN)
    model.learn(50)
    with OwlWrapper(model).task("only"):
        model.learn(50, reset_num_timesteps=False)
    assert_equal(bare, model)


def test_one_task_equals_the_bare_model_with_several_normalised_environments():
    def build():
        return any_model(DQN, env=VecNormalize(make_vec_env(Guess, n_envs=3, seed=0)))

    bare = build()
    bare.learn(150)
    model = build()
    with OwlWrapper(model).task("only"):
        model.learn(150)
    assert_equal(bare, model)
    first, second = (each.get_vec_normalize_env().obs_rms for each in (bare, model))
    assert np.array_equal(first.mean, second.mean)


@pytest.mark.parametrize("kind", [DQN, SAC, TD3])
def test_after_unwrapping_a_model_goes_on_as_the_bare_one_would(kind):
    """Bit for bit: what it learns, what it predicts with noise, and what its environment is."""
    results = []
    for wrap in (False, True):
        env = Guess(*([] if kind is DQN else [BOX]))
        model = any_model(kind, env=env, train_freq=2)
        if wrap:
            owl = OwlWrapper(model)
            with owl.task("only"):
                model.learn(60)
            owl.unwrap()
        else:
            model.learn(60)
        model.learn(40, reset_num_timesteps=False)
        model.set_random_seed(5)
        batch = np.linspace(-1, 1, 60, dtype=np.float32).reshape(20, 3)
        results.append((model, [model.predict(batch)[0] for _ in range(5)]))
        check_env(env, warn=False)
    (bare, expected), (model, got) = results
    assert_equal(bare, model)
    assert np.array_equal(expected, got)


@pytest.mark.parametrize("kind", KINDS)
def test_unwrapped_model_is_an_ordinary_one(kind, tmp_path):
    model = any_model(kind)
    before = (model.learning_starts, list(weights(model)), type(model))
    owl = OwlWrapper(model, memory_rows=64)
    with owl.task("a"):
        model.learn(40)
    with owl.task("b", env=other_env(model)):
        model.learn(40)
    observation = np.zeros(3, np.float32)
    with owl.use("a"):
        expected, _ = model.predict(observation, deterministic=True)
    owl.unwrap("a")
    assert (model.learning_starts, list(weights(model)), type(model)) == before
    assert [len(group["params"]) for o in optimizers(model) for group in o.param_groups] == [
        len(group["params"]) for o in optimizers(any_model(kind)) for group in o.param_groups
    ]
    assert np.array_equal(model.predict(observation, deterministic=True)[0], expected)
    model.save(tmp_path / "model.zip")
    loaded = kind.load(tmp_path / "model.zip", env=model.get_env())
    assert np.array_equal(loaded.predict(observation, deterministic=True)[0], expected)
    loaded.learn(30)
    model.learn(30)
    OwlWrapper(model)  # and it can be wrapped again
