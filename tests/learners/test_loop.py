"""The learners' loop: exploration schedules by hand, and numbers that are flushed to zero."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from owlrl import OwlWrapper
from owlrl.errors import OwlValueError
from owlrl.learners import DQN, SAC, DQNConfig, EpsilonSchedule, SACConfig
from owlrl.learners.loop import TaskLoop, flushed_denormals


def test_linear_and_exponential_by_hand():
    linear = EpsilonSchedule(1.0, 0.2, frames=10)
    exponential = EpsilonSchedule(0.9, 0.01, frames=10, shape="exponential")
    for frame in range(15):
        assert linear.value == pytest.approx(max(0.2, 1.0 - 0.08 * frame))
        assert exponential.value == pytest.approx(0.01 + 0.89 * math.exp(-frame / 10))
        linear.advance(1), exponential.advance(1)


def test_state_round_trip():
    schedule, other = EpsilonSchedule(1.0, 0.0, frames=10), EpsilonSchedule(1.0, 0.0, frames=10)
    schedule.advance(7)
    other.load_state_dict(schedule.state_dict())
    assert other.value == schedule.value


def test_bad_arguments_are_named_together():
    with pytest.raises(OwlValueError) as caught:
        EpsilonSchedule(1.5, -0.1, frames=0, shape="steps")
    for part in ("start is 1.5", "end is -0.1", "frames is 0", "shape is 'steps'"):
        assert part in str(caught.value)


@pytest.mark.parametrize("outside", [False, True])
def test_denormals_are_flushed_inside_the_block_only(outside):
    tiny = torch.full((8,), 1e-40)

    def flushed() -> bool:
        return bool((tiny * 0.5 == 0).all())

    torch.set_flush_denormal(outside)
    try:
        with pytest.raises(KeyError), flushed_denormals():
            assert flushed()
            raise KeyError
        assert flushed() == outside
    finally:
        torch.set_flush_denormal(False)


def test_updates_flush_denormals_and_callbacks_do_not_see_it():
    config = DQNConfig(learning_starts=0, update_every=1, batch_size=2)
    agent = DQN(gym.make("CartPole-v1"), config=config, seed=0)
    tiny, seen = torch.tensor(1e-40), []
    agent.optimizer.register_step_pre_hook(lambda *_: seen.append(float(tiny * 0.5) == 0.0))
    outside = []
    agent.learn(20, callback=lambda *_: outside.append(float(tiny * 0.5) > 0.0))
    assert seen and all(seen) and all(outside)


def test_an_old_state_of_a_task_brings_back_counts_and_neither_episode_nor_random_numbers():
    agent = DQN(gym.make("CartPole-v1"), config=DQNConfig(learning_starts=20), seed=0)
    loop = TaskLoop(agent)
    fresh = loop.state_dict()
    agent.learn(7)
    during = loop.state_dict()
    loop.load_state_dict(fresh)  # a new task, before its first frame
    assert agent._stepper is None and agent._warmed == 0
    assert agent._rng.bit_generator.state == during["rng"] != fresh["rng"]
    loop.load_state_dict(during)  # nothing happened since: the same episode goes on
    assert agent._warmed == 7 and np.array_equal(agent._stepper.observation, during["episode"]["observation"])
    agent.learn(1)
    loop.load_state_dict(during)
    assert agent._stepper is None and agent._warmed == 7
    agent.learn(3)
    agent.hand_over()
    assert "episode" not in loop.state_dict()


def test_a_bare_state_is_taken_back_to():
    agent = DQN(gym.make("CartPole-v1"), config=DQNConfig(learning_starts=20), seed=0)
    agent.learn(7)
    state = agent.state_dict()
    agent.learn(7)
    agent.load_state_dict(state)
    assert agent._rng.bit_generator.state == state["loop"]["rng"] and len(agent.replay) == 7


def test_numpy_numbers_are_numbers():
    config = DQNConfig(
        batch_size=np.int64(8), gamma=np.float32(0.5), epsilon=(np.float64(1.0), 0.5), double=np.bool_(True)
    )
    assert (config.batch_size, config.gamma, config.epsilon) == (8, 0.5, (1.0, 0.5)) and config.double is True
    assert type(config.batch_size) is int and type(config.gamma) is float
    sac = SACConfig(actor_hidden=(np.int64(3), 4), num_critics=np.uint8(1), learning_starts=np.int32(5))
    assert sac.actor_hidden == (3, 4) and {type(size) for size in sac.actor_hidden} == {int}
    agent = DQN(gym.make("CartPole-v1"), config=config, seed=np.int64(0))
    agent.learn(np.int64(3))
    assert len(agent.replay) == 3


def test_an_environment_may_be_given_by_its_id():
    agent = DQN("CartPole-v1", seed=0)
    agent.learn(20)
    owl = OwlWrapper(agent)
    with owl.task("flipped", env="owlrl.envs:owlrl/FlippedCartPole-v0"):
        agent.learn(20)
    assert agent.env.spec.id == "owlrl/FlippedCartPole-v0"
    assert SAC("Pendulum-v1", seed=0).env.spec.id == "Pendulum-v1"
    with pytest.raises(OwlValueError, match="'Nothing-v0', which cannot be made"):
        DQN("Nothing-v0")
