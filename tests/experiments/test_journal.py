from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from owlrl.checkpoint import load_state, save_state
from owlrl.envs import PendulumVectorEnv
from owlrl.experiments.journal import Journal
from tests.adapters.helpers import BOX, Guess

MAKERS = {
    "single": partial(Guess, 3),
    "a number": partial(Guess, 3, observations="discrete"),
    "dict": partial(Guess, 3, observations="dict"),
    "made": partial(gymnasium.make, "CartPole-v1"),
    "vector": lambda: gymnasium.vector.SyncVectorEnv([partial(Guess, BOX)] * 2),
    "processes": lambda: gymnasium.vector.AsyncVectorEnv([partial(Guess, 3)] * 2),
    "SB3": lambda: VecNormalize(make_vec_env(partial(Guess, BOX), 2)),
    "with a state": lambda: PendulumVectorEnv(2),
}


def play(env, steps: int) -> list:
    found = []
    for _ in range(steps):
        action = env.action_space.sample()
        if isinstance(env, VecNormalize):
            action = np.array([env.action_space.sample() for _ in range(2)])
        step = env.step(action)
        found.append(step[:3])
        if not hasattr(env, "num_envs") and (step[2] or step[3]):
            found.append(env.reset()[0])
    return found


def begin(env) -> None:
    if isinstance(env, VecNormalize):
        env.seed(3)
        env.reset()
    else:
        env.reset(seed=3)


@pytest.mark.parametrize("name", MAKERS)
def test_a_new_environment_comes_to_the_same_point(name, tmp_path):
    one, other = MAKERS[name](), MAKERS[name]()
    journal = Journal(one)
    begin(one)
    one.action_space.seed(0)
    play(one, 17)
    save_state(tmp_path / "x", journal.state_dict())
    again = Journal(other)
    assert again.replay(load_state(tmp_path / "x"))
    assert again.steps == journal.steps == (0 if name == "with a state" else 17)
    found = []
    for env in (one, other):
        env.action_space.seed(1)
        found.append(play(env, 9))
    np.testing.assert_equal(*found)
    one.close()
    other.close()


def test_many_steps_fit():
    env = Guess(3)
    journal = Journal(env)
    env.reset(seed=0)
    for step in range(3_000):
        env.step(step % 3)
    assert journal.state_dict()["actions"].tolist() == [step % 3 for step in range(3_000)]


def test_another_environment_is_noticed():
    one, journal = Guess(3), None
    journal = Journal(one)
    one.reset(seed=0)
    one.step(1)
    assert Journal(Guess(3)).replay(journal.state_dict())
    assert not Journal(Guess(3, observations="discrete")).replay(journal.state_dict())
    assert not Journal(gymnasium.make("CartPole-v1")).replay(journal.state_dict())
    assert Journal(Guess(3)).replay(Journal(Guess(3)).state_dict())  # nothing was done
