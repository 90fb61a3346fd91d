"""Resumable: the same place in an episode again, from a file."""

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import SAC
from stable_baselines3.common.monitor import Monitor

from owlrl import OwlWrapper
from owlrl.checkpoint import load_state, save_state
from owlrl.envs import Resumable
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.learners import DQN, DQNConfig
from owlrl.wrapper_state import same_state
from tests.adapters.helpers import BOX, Guess, any_model

MAKERS = {
    "box": lambda: gymnasium.make("Pendulum-v1"),
    "discrete": lambda: gymnasium.make("CartPole-v1"),
    "dict": lambda: gymnasium.make("MiniGrid-Empty-Random-5x5-v0"),
    "monitored": lambda: Monitor(Guess(BOX)),
}


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("kind", MAKERS)
def test_the_same_place_is_found_from_a_file(kind, seed, tmp_path):
    env = Resumable(MAKERS[kind]())
    env.action_space.seed(0)
    env.reset(seed=1)
    for _ in range(2):
        env.step(env.action_space.sample())
    env.reset(seed=seed)
    for _ in range(4):
        env.step(env.action_space.sample())
    save_state(tmp_path / "env", env.state_dict())
    again = Resumable(MAKERS[kind]())
    again.load_state_dict(load_state(tmp_path / "env"))
    action = env.action_space.sample()
    for _ in range(2):
        (seen, *rest, _), (other, *others, _) = env.step(action), again.step(action)
        assert same_state(seen, other) and rest[:3] == others[:3]
    assert same_state(env.reset()[0], again.reset()[0])  # the generator is there, too


def test_before_the_first_reset_there_is_nothing_to_find():
    env = Resumable(Guess())
    env.load_state_dict(Resumable(Guess()).state_dict())
    assert env.unwrapped.resets == 0


def test_other_randomness_is_refused():
    class Odd(Guess):
        drawn = iter(range(100))

        def _observation(self, space):
            return np.full(3, next(self.drawn), np.float32)

    env = Resumable(Odd())
    env.reset()
    with pytest.raises(OwlStateError, match=r"same place .*the same 0 actions.*pickle it"):
        Resumable(Odd()).load_state_dict(env.state_dict())


@pytest.mark.parametrize("state", [{}, {"begun": 3, "actions": None, "seen": None}])
def test_a_state_that_does_not_fit_is_refused(state):
    with pytest.raises(OwlValueError, match="does not fit"):
        Resumable(Guess()).load_state_dict(state)


def new_agent(kind):
    if kind == "DQN":
        env = Resumable(gymnasium.wrappers.OrderEnforcing(Guess()))
        agent = DQN(
            env, config=DQNConfig(learning_starts=10, batch_size=8, buffer_size=500), seed=0, device="cpu"
        )
    else:
        env = Resumable(Monitor(Guess(BOX)))
        agent = any_model(SAC, env=env)
    return env, agent, OwlWrapper(agent, seed=0)


@pytest.mark.parametrize("kind", ["DQN", "SAC"])
def test_a_run_goes_on_exactly_with_the_environment_in_the_same_file(kind, tmp_path):
    path, border = tmp_path / "state", 32  # four steps into an episode of seven
    env, agent, owl = new_agent(kind)
    count = [0]

    def save():
        count[0] += 1
        if count[0] == (border if kind == "DQN" else border + 1):
            save_state(path, {"owl": owl.state_dict(), "env": env.state_dict()})

    remove = owl.learner.at_border(save)
    with owl.task("a"):
        agent.learn(60)
    remove()

    env, agent, again = new_agent(kind)
    state = load_state(path)
    again.load_state_dict(state["owl"])
    env.load_state_dict(state["env"])
    with again.task("a", env=env):
        if kind == "DQN":
            agent.learn(60 - border)
        else:
            agent.learn(60 - agent.num_timesteps, reset_num_timesteps=False)
    assert same_state(owl.state_dict(), again.state_dict())
