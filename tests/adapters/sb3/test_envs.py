"""Environments are looked at before anything changes, wrapped once, seeded, and found again."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor

from owlrl import OwlWrapper
from owlrl.adapters.sb3.envs import VectorEnvView
from owlrl.errors import OwlTypeError, OwlValueError
from tests.adapters.helpers import BOX, Guess, actor_critic, dqn, other_env, same, weights

COLLECT = {"learning_starts": 10_000}


def wrapped(model):
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(10)
    return owl


@pytest.mark.parametrize(
    ("model", "env", "message"),
    [
        (dqn, lambda: Guess(observations="image"), "its observations are"),
        (dqn, lambda: make_vec_env(Guess, n_envs=2), "2 environments side by side, the model 1"),
        (dqn, lambda: Guess(BOX), "RescaleAction"),
        (lambda **k: dqn(QRDQN, **k), lambda: Guess(5), "QRDQN needs the same number of actions"),
        (lambda **k: actor_critic(SAC, **k), lambda: Guess(spaces.Box(-1.0, 1.0, (1,))), "RescaleAction"),
        (lambda **k: actor_critic(TD3, **k), lambda: Guess(spaces.Box(-2.0, 2.0, (2,))), "RescaleAction"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_changes(model, env, message):
    model = model(**COLLECT)
    owl = wrapped(model)
    before = weights(model), model.get_env(), model.replay_buffer, list(owl.tasks), model.action_space
    with pytest.raises(OwlValueError, match=message), owl.task("b", env=env()):
        raise AssertionError("not reached")
    assert same(before[0], weights(model))
    assert before[1] is model.get_env()
    assert before[2] is model.replay_buffer
    assert before[3:] == (list(owl.tasks), model.action_space)
    with owl.task("b", env=other_env(model)):
        model.learn(10)


def test_all_that_does_not_fit_is_said_at_once():
    owl = wrapped(dqn(**COLLECT))
    env = make_vec_env(lambda: Guess(BOX, observations="image"), n_envs=2)
    with pytest.raises(OwlValueError, match="3 problems"), owl.task("b", env=env):
        pass


@pytest.mark.parametrize("env", [3, "Guess-v0", object()])
def test_no_environment_at_all(env):
    owl = wrapped(dqn(**COLLECT))
    with (
        pytest.raises(OwlTypeError, match="expected a Gymnasium environment, its id or a VecEnv"),
        owl.task("b", env=env),
    ):
        pass


def test_first_environment_must_have_the_models_actions():
    model = dqn(**COLLECT)
    owl = OwlWrapper(model)
    with (
        pytest.raises(OwlValueError, match="build the model with the first task's"),
        owl.task("a", env=Guess(7)),
    ):
        pass
    with owl.task("a"):
        model.learn(10)


def test_new_environment_is_monitored_and_seeded_once():
    model = dqn(**COLLECT)
    owl, env = wrapped(model), Guess(sign=-1)
    with owl.task("b", env=env):
        assert isinstance(model.get_env().envs[0], Monitor)
        model.learn(10)
    assert env.seeds[0] == 0  # the model's
    with owl.task("a"):
        model.learn(10)
    of_b = len(env.seeds)
    with owl.task("b", env=env):  # the same again: neither wrapped nor seeded twice
        assert model.get_env().envs[0].env is env
        model.learn(10)
    assert set(env.seeds[1:]) == {None}
    assert len(env.seeds) > of_b


def test_without_a_seed_nothing_is_seeded():
    model = dqn(seed=None, **COLLECT)
    owl, env = wrapped(model), Guess()
    with owl.task("b", env=env):
        model.learn(10)
    assert set(env.seeds) == {None}


@pytest.mark.parametrize("reset", [True, False])
def test_every_visit_begins_with_an_episode_of_its_own(reset):
    env = Guess()
    model = dqn(env=env, **COLLECT)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(10)
    resets = env.resets
    with owl.task("b"):  # in the same environment, in the middle of an episode
        model.learn(3, reset_num_timesteps=reset)
    assert env.resets == resets + 1


def test_a_task_comes_back_to_its_environment():
    model = dqn(**COLLECT)
    owl = wrapped(model)
    first = model.get_env()
    with owl.task("b", env=Guess(sign=-1)):
        second = model.get_env()
        model.learn(10)
    with owl.task("a"):
        assert model.get_env() is first
        model.learn(10)
    with owl.task("b"):
        assert model.get_env() is second
        model.learn(10)


def of(model):
    return model.get_env().envs[0].unwrapped


def test_an_environment_that_was_set_by_hand_is_the_tasks():
    """Before the block or inside of it, as those do who have always called ``model.set_env``."""
    model, second, third, fourth = dqn(**COLLECT), Guess(), Guess(), Guess()
    owl = wrapped(model)
    first = of(model)
    model.set_env(second)
    with owl.task("b"):
        assert of(model) is second
        model.learn(10)
    with owl.task("c"):
        model.set_env(third)
        model.learn(10)
    for name, env in (("a", first), ("b", second), ("c", third)):
        with owl.task(name):
            assert of(model) is env
            model.learn(10)
    model.set_env(fourth)
    with owl.task("a"):  # a known task in another environment
        assert of(model) is fourth
        model.learn(10)
    with owl.task("b"):
        assert of(model) is second
        model.learn(10)
    with owl.task("a"):
        assert of(model) is fourth
        model.learn(10)


def test_an_environment_set_in_a_block_that_failed_is_not_the_next_tasks():
    model = dqn(**COLLECT)
    owl = wrapped(model)
    first = of(model)
    with pytest.raises(KeyError), owl.task("b"):
        model.set_env(Guess())
        raise KeyError
    with owl.task("a"):
        assert of(model) is first
        model.learn(10)


def interrupted(model, owl, env, *, inside=None):
    with pytest.raises(KeyError), owl.task("b", env=env):
        if inside is not None:
            model.set_env(inside)
        model.learn(10)
        raise KeyError


@pytest.mark.parametrize("given", ["nothing", "the same", "another", "by hand", "by hand inside"])
def test_an_interrupted_visit_goes_on_in_its_environment_or_in_one_that_is_given(given):
    model, second, third = dqn(**COLLECT), Guess(sign=-1), Guess(sign=-1)
    owl = wrapped(model)
    first = of(model)
    interrupted(model, owl, second, inside=third if given == "by hand inside" else None)
    assert len(owl.replay) == 10
    if given == "by hand":
        model.set_env(third)
    env = {"the same": second, "another": third}.get(given)
    goes_on = third if given in ("another", "by hand", "by hand inside") else second
    resets = goes_on.resets
    with owl.task("b", env=env):
        assert of(model) is goes_on
        model.learn(10, reset_num_timesteps=False)
        assert (model.num_timesteps, len(owl.replay)) == (20, 20)
    in_place = goes_on is second or given == "by hand inside"
    assert goes_on.resets == resets + 1 + (0 if in_place else 1)  # at the end of an episode, and at its start
    for name, own in (("a", first), ("b", goes_on), ("a", first)):  # what was given was the visit's alone
        with owl.task(name):
            assert of(model) is own
            model.learn(10)


def test_an_environment_that_does_not_fit_the_interrupted_visit_loses_nothing():
    model = dqn(**COLLECT)
    owl = wrapped(model)
    interrupted(model, owl, Guess(7))
    refused = pytest.raises(OwlValueError, match="'b' was learned with 7 actions, its environment has 3")
    with refused, owl.task("b", env=Guess(3)):
        pass
    assert model.action_space.n == 3  # the first task's, as before
    with owl.task("b"):
        assert (model.action_space.n, model.num_timesteps, len(owl.replay)) == (7, 10, 10)


def test_after_an_error_in_a_step_the_environment_is_reset():
    """The row of that step was not stored: what is stored next must not begin before it."""

    class Breaks(Guess):
        def step(self, action):
            if self.resets == 2 and self.step_in_episode == 3:
                raise OSError
            return super().step(action)

    env = Breaks()
    model = dqn(env=env, **COLLECT)
    owl = OwlWrapper(model)
    with pytest.raises(OSError), owl.task("a"):
        model.learn(20)
    with owl.task("a"):
        assert len(owl.replay) == 10
        model.learn(10, reset_num_timesteps=False)
        rows = model.replay_buffer
        ongoing = [k for k in range(19) if not rows.dones[k, 0] and k != 9]
        assert np.array_equal(rows.next_observations[ongoing], rows.observations[[k + 1 for k in ongoing]])
    assert env.resets == 4


def test_an_environment_set_by_hand_after_loading_will_do(tmp_path):
    model = dqn(**COLLECT)
    owl = wrapped(model)
    with owl.task("b", env=Guess(sign=-1)):
        model.learn(10)
    owl.save(tmp_path / "owl.safetensors")
    fresh, env = dqn(**COLLECT), Guess(sign=-1)
    again = OwlWrapper.load(tmp_path / "owl.safetensors", fresh)
    fresh.set_env(env)
    with again.task("b"):
        assert of(fresh) is env
        fresh.learn(10)


def test_an_environment_may_be_given_by_its_id():
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=100, seed=0, device="cpu", **COLLECT)
    owl = wrapped(model)
    with owl.task("b", env="CartPole-v1"):
        model.learn(10)
    assert owl.tasks["b"].visits == 1


def test_other_numbers_of_actions():
    model = dqn()
    owl = wrapped(model)
    with owl.task("b", env=Guess(7)):
        for owner in (model, model.policy, model.q_net, model.q_net_target):
            assert owner.action_space == spaces.Discrete(7)
        model.learn(60)
        assert set(model.replay_buffer.actions[:60].flatten()) == set(range(7))
        assert model.q_net(torch.zeros(1, 3)).shape == model.q_net_target(torch.zeros(1, 3)).shape == (1, 7)
    assert owl.tasks["b"].num_actions == 7
    refused = pytest.raises(OwlValueError, match="'b' was learned with 7 actions, its environment has 3")
    with refused, owl.task("b", env=Guess(3)):
        pass
    with owl.task("a"):
        assert model.q_net.action_space == spaces.Discrete(3)
        model.learn(30)
    with owl.task("c", env=Guess(3)):  # as many as head 0
        model.learn(30)
    assert owl.tasks["c"].num_actions is None
    owl.unwrap("b")
    assert model.action_space == spaces.Discrete(7)
    assert model.q_net(torch.zeros(1, 3)).shape == (1, 7)


def test_vec_env_looks_like_gymnasiums():
    view = VectorEnvView(make_vec_env(lambda: Guess(ends=False), n_envs=2))
    same_seeds = [view.reset(seed=3)[0] for _ in range(2)]
    assert np.array_equal(*same_seeds)
    for step in range(1, 8):
        following, reward, terminated, truncated, info = view.step(np.array([0, 1]))
        assert reward.tolist() == [1.0, 0.0]
        assert not terminated.any()
        assert truncated.all() == (step == 7)
    assert info["_final_obs"].all()
    assert not np.array_equal(np.stack(info["final_obs"]), following)


@pytest.mark.parametrize("observations", ["box", "dict"])
def test_evaluation_in_a_vec_env_is_that_in_gymnasiums(observations):
    model = dqn(observations=observations, **COLLECT)
    owl = wrapped(model)
    vec = make_vec_env(lambda: Guess(observations=observations, ends=True), n_envs=2)
    got = owl.evaluate(vec, task="a", episodes=4, seed=5)
    own = gymnasium.vector.SyncVectorEnv(
        [lambda: Guess(observations=observations, ends=True)] * 2,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )
    expected = owl.evaluate(own, task="a", episodes=4, seed=5)
    assert np.array_equal(got.returns, expected.returns)
    assert got.terminated.all()
    assert got.lengths.tolist() == [7] * 4
