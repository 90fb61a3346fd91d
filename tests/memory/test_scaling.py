"""Scaling as VecNormalize does it, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from owlrl.errors import OwlValueError
from owlrl.memory import Scaling


def test_formula_in_float64():
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=(2, 3)), rng.random((2, 3)) + 0.1
    scaling = Scaling(mean, torch.from_numpy(std), 1.5, reward_std=np.float64(0.3), reward_clip=2)
    x = rng.normal(size=(5, 2, 3)).astype(np.float32)
    expected = np.clip((x - mean) / std, -1.5, 1.5).astype(np.float32)
    np.testing.assert_array_equal(scaling.observation(x), expected)
    r = rng.normal(size=50).astype(np.float32)
    np.testing.assert_array_equal(
        scaling.reward(r), np.clip(r.astype(np.float64) / 0.3, -2, 2).astype(np.float32)
    )


def test_as_vec_normalize():
    common = pytest.importorskip("stable_baselines3.common.env_util")
    vec = pytest.importorskip("stable_baselines3.common.vec_env")
    env = vec.VecNormalize(common.make_vec_env("CartPole-v1", n_envs=2, seed=0), clip_obs=0.9)
    env.reset()
    for _ in range(50):
        env.step(np.array([0, 1]))
    scaling = Scaling(
        env.obs_rms.mean,
        np.sqrt(env.obs_rms.var + env.epsilon),
        env.clip_obs,
        np.sqrt(env.ret_rms.var + env.epsilon),
        env.clip_reward,
    )
    raw = env.get_original_obs()
    np.testing.assert_array_equal(scaling.observation(raw), env.normalize_obs(raw))
    reward = env.get_original_reward()
    expected = env.normalize_reward(reward).astype(np.float32)
    np.testing.assert_allclose(scaling.reward(reward), expected, rtol=2e-7)  # numpy 1 rounds in between
    env.close()


def test_nothing_set_leaves_observations_alone():
    x = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert Scaling().observation(x) is x
    assert Scaling(reward_std=2.0).observation(x).dtype == np.uint8
    np.testing.assert_array_equal(Scaling().reward(np.ones(2, np.float32)), np.ones(2, np.float32))


def test_given_arrays_are_copied():
    mean = np.zeros(2)
    scaling = Scaling(mean)
    mean += 5
    assert scaling.observation(np.zeros((1, 2), np.float32)).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("two", [np.array(2.0), torch.tensor(2.0), np.float32(2.0)])
def test_a_number_may_come_as_an_array_without_axes(two):
    scaling = Scaling(reward_std=two, reward_clip=two, observation_clip=two)
    assert (scaling.reward_std, scaling.reward_clip, scaling.observation_clip) == (2.0, 2.0, 2.0)
    assert type(scaling.reward_std) is float
    assert scaling.reward(np.array([3.0, 30.0])).tolist() == [1.5, 2.0]


def test_bad_statistics_are_named_together():
    with pytest.raises(OwlValueError, match=r"Scaling: 4 problems:\n.*observation_mean is array\(\[nan\]\)"):
        Scaling(np.array([np.nan]), np.array([1.0, 0.0]), -1.0, reward_std=0.0)
    with pytest.raises(OwlValueError, match="observation_mean is 'x'; expected finite numbers, or None"):
        Scaling("x")


def test_state_and_back():
    scaling = Scaling(np.ones(2), 2.0, reward_clip=3.0)
    again = Scaling.from_state(scaling.state_dict())
    np.testing.assert_equal(again.state_dict(), scaling.state_dict())
    assert again.problems((2,)) == []
    assert again.problems((5, 2)) == []
    assert "observation_mean has shape (2,)" in again.problems((3,))[0]
    assert "observation_mean has shape (2,)" in again.problems(())[0]
