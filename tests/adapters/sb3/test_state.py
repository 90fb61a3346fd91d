"""Counters, warm-up, exploration, actions, temperature and statistics are each task's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize, VecTransposeImage

from owlrl import OwlWrapper
from owlrl.adapters.sb3.state import at_border, load_model_state, model_state, put_back
from owlrl.checkpoint import load_state, save_state
from owlrl.experiments.keeping import Journal, repeatable
from tests.adapters.helpers import BOX, KINDS, Guess, actor_critic, any_model, dqn, other_env, same, weights


class Record(BaseCallback):
    """Exploration rate and whether the action was drawn from the space, at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []
        self.steps: list[int] = []

    def _on_step(self) -> bool:
        self.rates.append(getattr(self.model, "exploration_rate", None))
        self.steps.append(self.model.num_timesteps)
        return True


def learn(model, steps, **arguments):
    record = Record()
    model.learn(steps, callback=record, **arguments)
    return record


@pytest.mark.parametrize("reset", [True, False])
def test_a_first_visit_starts_from_scratch_however_learn_is_called(reset):
    model = dqn()
    owl = OwlWrapper(model)
    with owl.task("a"):
        first = learn(model, 60)
    with owl.task("b", env=other_env(model)):
        assert model.learning_starts == 20
        updates = model._n_updates
        second = learn(model, 60, reset_num_timesteps=reset)
        assert model._n_updates - updates == 20  # none in the warm-up, one every other step after it
    assert second.steps == first.steps == list(range(1, 61))
    assert second.rates[1:] == first.rates[1:]
    assert second.rates[1] > 0.9 > 0.06 > second.rates[-1]


@pytest.mark.parametrize("reset", [True, False])
def test_a_revisit_goes_on_where_the_task_was_left(reset):
    model = dqn()
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(60)
    with owl.task("b", env=other_env(model)):
        model.learn(100)
    with owl.task("a"):
        assert model.num_timesteps == 60
        assert model.learning_starts == 0  # its rows are there
        updates = model._n_updates
        record = learn(model, 20, reset_num_timesteps=reset)
        assert model._n_updates - updates == 10
    assert set(record.rates) == {0.05}  # not 1.0 again
    assert record.steps == (list(range(1, 21)) if reset else list(range(61, 81)))


def test_exploration_resumes_from_where_it_stopped():
    model = dqn()
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(70, callback=StopTrainingOnMaxEpisodes(2))  # stopped at step 14 of 70
        stopped = model.exploration_rate
    assert 0.5 < stopped < 1.0
    with owl.task("b", env=other_env(model)):
        assert model.exploration_rate == 1.0
        model.learn(70)
    with owl.task("a"):
        rates = learn(model, 70).rates
    assert rates[0] == stopped
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] == 0.05
    owl.unwrap()
    assert model.exploration_rate == 0.05
    assert model.exploration_schedule(1.0) == 1.0  # the model's own again
    assert model.learning_starts == 20


def test_a_block_that_fails_leaves_the_state_of_before():
    model = dqn()
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(60)
    state = owl.learner.per_task["model"].state_dict()
    with pytest.raises(KeyError), owl.task("b", env=Guess(7)):
        model.learn(30)
        raise KeyError
    assert owl.learner.per_task["model"].state_dict() == state
    assert model.action_space.n == 3
    with owl.task("b"):  # goes on where it was
        assert model.action_space.n == model.q_net.action_space.n == 7
        assert (model.num_timesteps, len(owl.replay), model.learning_starts) == (30, 30, 20)
        updates = model._n_updates
        record = learn(model, 30, reset_num_timesteps=False)
        assert record.steps == list(range(31, 61))
        assert model._n_updates - updates == 15  # no second warm-up
    assert owl.memory["b"].seen == 60
    with owl.task("a"):
        assert model.num_timesteps == 60


def test_use_is_that_task_and_then_as_before():
    model = dqn(exploration_final_eps=0.5)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(60)
    with owl.task("b", env=Guess(7)):
        model.learn(60, callback=StopTrainingOnMaxEpisodes(1))
        inside = owl.learner.per_task["model"].state_dict()
        with owl.use("a"):
            assert model.action_space.n == 3
            assert model.exploration_rate == 0.5
            actions = {int(model.predict(np.zeros(3, np.float32))[0]) for _ in range(60)}
            assert actions == {0, 1, 2}  # half of them are drawn from the space
        assert owl.learner.per_task["model"].state_dict() == inside
        model.learn(20)


def test_temperature_is_each_tasks_own():
    model = actor_critic(SAC, ent_coef="auto_0.5", learning_rate=0.01)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(60)
        left, moments = model.log_ent_coef.item(), model.ent_coef_optimizer.state_dict()["state"][0]["step"]
    tensor = model.log_ent_coef
    with owl.task("b", env=other_env(model)):
        assert model.log_ent_coef.item() == pytest.approx(np.log(0.5))
        assert not model.ent_coef_optimizer.state_dict()["state"]
        model.learn(30)
        with owl.use("a"):
            assert model.log_ent_coef.item() == left
        assert model.log_ent_coef.item() != left
    with owl.task("a"):
        assert model.log_ent_coef is tensor
        assert model.log_ent_coef.item() == left
        assert model.ent_coef_optimizer.state_dict()["state"][0]["step"] == moments
        model.learn(10)


def test_noise_of_gsde_is_each_tasks_own():
    model = actor_critic(SAC, use_sde=True, learning_rate=0.01)
    start = model.actor.log_std.detach().clone()
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(40)
    left = model.actor.log_std.detach().clone()
    assert not torch.equal(left, start)
    with owl.task("b", env=other_env(model)):
        assert torch.equal(model.actor.log_std, start)
        model.learn(30)
    with owl.task("a"):
        assert torch.equal(model.actor.log_std, left)
        model.learn(10)


OF_ITS_OWN = "VecNormalize has statistics per task"


def test_statistics_of_several_tasks_are_warned_of_once():
    env = VecNormalize(make_vec_env(Guess, n_envs=1, seed=0))
    model = dqn(env=env, learning_starts=10_000)
    owl = OwlWrapper(model)
    with owl.task("a"):  # nothing to say yet
        model.learn(10)
    with pytest.warns(UserWarning, match=OF_ITS_OWN) as caught, owl.task("b"):
        model.learn(10)
    assert caught[0].filename == __file__  # the user's own line
    for name in ("a", "c"):
        with owl.task(name):
            model.learn(10)


def test_evaluation_has_the_tasks_own_statistics_and_changes_none():
    env = VecNormalize(make_vec_env(Guess, n_envs=1, seed=0), norm_reward=False)
    model = dqn(env=env, learning_starts=10_000)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(40)
    of_a = env.obs_rms.mean.copy()
    with pytest.warns(UserWarning, match=OF_ITS_OWN), owl.task("b"):
        model.learn(40)
    of_b, count = env.obs_rms.mean.copy(), env.obs_rms.count
    seen = []
    normalize = env.normalize_obs
    env.normalize_obs = lambda raw: seen.append(env.obs_rms.mean.copy()) or normalize(raw)
    for task, mean in (("a", of_a), ("b", of_b), (None, of_b)):
        owl.evaluate(env, task=task, episodes=2)
        assert all(np.array_equal(each, mean) for each in seen)
        assert len(seen) > 14
        seen.clear()
    assert env.training
    assert (env.obs_rms.mean.tolist(), env.obs_rms.count) == (of_b.tolist(), count)


@pytest.mark.filterwarnings(f"ignore:OwlWrapper.task. {OF_ITS_OWN}")
@pytest.mark.parametrize("shared", [True, False])
def test_statistics_of_normalisation_are_each_tasks_own(shared):
    def env(seed):
        return VecNormalize(make_vec_env(Guess, n_envs=2, seed=seed))

    model = dqn(env=env(0), learning_starts=10_000)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(60)
    of_a = model.get_vec_normalize_env()
    left = of_a.obs_rms.mean.copy(), of_a.ret_rms.count
    with owl.task("b", env=None if shared else env(1)):
        of_b = model.get_vec_normalize_env()
        assert (of_b is of_a) == shared
        assert np.array_equal(of_b.obs_rms.mean, np.zeros(3))
        model.learn(30)
    with owl.task("a"):
        assert model.get_vec_normalize_env() is of_a
        assert np.array_equal(of_a.obs_rms.mean, left[0])
        assert of_a.ret_rms.count == left[1]
        model.learn(30)


def test_statistics_that_were_given_or_frozen_stay():
    given = VecNormalize(make_vec_env(Guess, n_envs=1, seed=0))
    given.obs_rms.mean[:] = 0.25
    frozen = VecNormalize(make_vec_env(Guess, n_envs=1, seed=0), training=False)
    frozen.obs_rms.mean[:] = 0.5
    model = dqn(learning_starts=10_000)
    owl = OwlWrapper(model)
    for name, env, mean in (("a", None, None), ("b", given, 0.25), ("c", frozen, 0.5), ("d", frozen, 0.5)):
        with owl.task(name, env=env):
            if mean is not None:
                assert np.array_equal(model.get_vec_normalize_env().obs_rms.mean, np.full(3, mean))
            model.learn(10)
    with owl.task("b"):
        model.learn(10)
    with pytest.raises(KeyError), owl.task("d"):
        raise KeyError
    assert np.array_equal(frozen.obs_rms.mean, np.full(3, 0.5))


@pytest.mark.filterwarnings(f"ignore:OwlWrapper.task. {OF_ITS_OWN}")
def test_dict_statistics_come_back():
    images_first = VecTransposeImage(make_vec_env(lambda: Guess(observations="dict"), n_envs=1, seed=0))
    env = VecNormalize(images_first, norm_obs_keys=["where"])
    model = dqn(env=env, observations="dict", learning_starts=10_000)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(10)
    left = env.obs_rms["where"].mean.copy()
    with owl.task("b"):
        model.learn(10)
    with owl.task("a"):
        assert np.array_equal(env.obs_rms["where"].mean, left)
        model.learn(10)


def test_the_model_may_have_a_schedule_of_its_own():
    model = dqn(kind=DQN)
    model.exploration_schedule = lambda progress: 0.3
    owl = OwlWrapper(model)
    for name in ("a", "b", "a"):
        with owl.task(name):
            assert set(learn(model, 30).rates[1:]) == {0.3}


def test_a_model_trained_elsewhere_starts_its_first_task_anew():
    model = dqn()
    model.learn(40)
    owl = OwlWrapper(model)
    with pytest.warns(UserWarning, match="continues with the head it has"), owl.task("a", env=Guess(sign=-1)):
        assert (len(owl.replay), model.num_timesteps, model.learning_starts) == (0, 0, 20)
        assert model.exploration_rate == 1.0
        model.learn(30)


# A model of Stable-Baselines3 that is not wrapped, written down at a border and gone on with.


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_model_goes_on_exactly(kind, tmp_path):
    def env():
        return Guess(3 if kind is DQN or "QR" in kind.__name__ else BOX)

    with repeatable(0):
        first = env()
        journal, model = Journal(first), any_model(kind, env=first)
        kept: list = []

        def keep() -> None:
            if 40 <= model.num_timesteps < 50 and not kept:
                kept.append(journal.state_dict())
                save_state(tmp_path / "model", {"rng": torch.get_rng_state(), **model_state(model)})
                kept.append(np.random.get_state())

        remove = at_border(model, keep)
        model.learn(90)
        remove()
    with repeatable(1):
        second = env()
        assert Journal(second).replay(kept[0])
        other = any_model(kind, env=env())
        other.set_env(put_back(other, second))
        state = load_state(tmp_path / "model")
        load_model_state(other, state)
        torch.set_rng_state(state["rng"])
        np.random.set_state(kept[1])
        other.learn(90 - other.num_timesteps, reset_num_timesteps=False)
    assert other.num_timesteps == model.num_timesteps
    assert same(weights(model), weights(other))
