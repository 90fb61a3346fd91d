"""Episodes in one environment and in vectors of them, both ways of resetting."""

from __future__ import annotations

import re
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from owlrl.acting.episodes import Stepper, run_episodes, space_problems
from owlrl.errors import OwlValueError


class Countdown(gym.Env):
    """Pays 1 per step; episode k of an environment has k + ``start`` steps and terminates, or is cut."""

    observation_space = gym.spaces.Box(-1000, 1000, (2,), np.float64)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, start=1, cut=False):
        self.start, self.cut, self.episode = start, cut, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        return np.array([self.episode, 0.0]), {}

    def step(self, action):
        self.steps += 1
        over = self.steps == self.episode + self.start
        return np.array([self.episode, self.steps]), 1.0, over and not self.cut, over and self.cut, {}


class Watcher:
    """A policy that notes what it is shown."""

    def __init__(self):
        self.num_envs, self.resets, self.seen = None, [], []

    def reset(self, *, num_envs=None, keep_evidence=False, mask=None):
        self.num_envs = num_envs if mask is None else self.num_envs
        self.resets.append((keep_evidence, None if mask is None else mask.copy()))

    def act(self, observation):
        return 0 if self.num_envs is None else np.zeros(self.num_envs, int)

    def observe(self, observation, action, reward, following, terminated, *, mask=None):
        rows = range(1 if self.num_envs is None else self.num_envs)
        for k in rows:
            if mask is None or mask[k]:
                pick = (lambda x: x) if self.num_envs is None else (lambda x, k=k: x[k])
                self.seen.append(
                    (k, pick(observation).tolist(), pick(following).tolist(), bool(pick(terminated)))
                )


@pytest.mark.parametrize("cut", [False, True])
def test_one_environment(cut):
    watcher = Watcher()
    result = run_episodes(watcher, Countdown(cut=cut), episodes=3, seed=0)
    assert result.returns.tolist() == [1.0, 2.0, 3.0] and result.lengths.tolist() == [1, 2, 3]
    assert result.terminated.tolist() == [not cut] * 3
    assert len(watcher.resets) == 3
    assert repr(result) == "Evaluation(episodes=3, mean_return=2, std_return=0.8165, mean_length=2.0)"


def test_max_steps_cuts_episodes():
    result = run_episodes(Watcher(), Countdown(start=5), episodes=2, max_steps=3)
    assert result.lengths.tolist() == [3, 3] and not result.terminated.any()


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("cut", [False, True])
def test_vectors_count_whole_episodes_and_show_true_transitions_only(mode, cut):
    envs = SyncVectorEnv([lambda s=s: Countdown(s, cut) for s in (1, 3)], autoreset_mode=mode)
    watcher = Watcher()
    result = run_episodes(watcher, envs, episodes=5, seed=0)
    # five episodes: two from the first environment (1 and 2 steps), three from the second (3, 4, 5)
    assert sorted(result.lengths.tolist()) == [1, 2, 3, 4, 5]
    assert sorted(result.returns.tolist()) == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert result.terminated.tolist() == [not cut] * 5
    for _, before, after, _ in watcher.seen:
        assert before[0] == after[0] and after[1] == before[1] + 1, "no transition joins two episodes"
    starts = sum(int(mask.sum()) for _, mask in watcher.resets if mask is not None)
    assert starts >= 3 and watcher.resets[0][1] is None


def test_kept_evidence_is_never_reset_on_the_way():
    envs = SyncVectorEnv([Countdown, Countdown])
    watcher = Watcher()
    run_episodes(watcher, envs, episodes=4, keep_evidence=True)
    assert all(kept for kept, _ in watcher.resets)
    assert watcher.resets[0][1] is None and len(watcher.resets) > 1  # it is told of each episode all the same


@pytest.mark.parametrize("arguments", [{"episodes": 0}, {"episodes": True}, {"episodes": 1, "max_steps": 0}])
def test_bad_counts(arguments):
    with pytest.raises(OwlValueError, match="expected an int >= 1"):
        run_episodes(Watcher(), Countdown(), **arguments)


def test_vectors_that_cannot_be_run_are_refused():
    envs = SyncVectorEnv([Countdown], autoreset_mode=AutoresetMode.DISABLED)
    with pytest.raises(OwlValueError, match="does not reset automatically"):
        run_episodes(Watcher(), envs, episodes=1)
    with pytest.raises(OwlValueError, match="time limit"):
        run_episodes(Watcher(), SyncVectorEnv([Countdown]), episodes=1, max_steps=3)


# Steppers: true transitions, whichever way the environment resets.


def check(steps) -> None:
    for k in np.flatnonzero(steps.real):
        before, after = steps.observation[k], steps.next_observation[k]
        assert before[0] == after[0] and after[1] == before[1] + 1, "no transition joins two episodes"


@pytest.mark.parametrize("cut", [False, True])
def test_a_single_environment_is_a_vector_of_one(cut):
    stepper = Stepper(Countdown(cut=cut), seed=0)
    assert stepper.num_envs == 1
    ends = []
    for _ in range(10):
        steps = stepper.step(np.zeros(1, int))
        check(steps)
        assert steps.real.all() and steps.reward.tolist() == [1.0]
        ends.append(bool((steps.truncated if cut else steps.terminated)[0]))
    assert ends == [True, False, True, False, False, True, False, False, False, True]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("cut", [False, True])
def test_vectors_give_true_transitions(mode, cut):
    envs = SyncVectorEnv([lambda s=s: Countdown(s, cut) for s in (1, 3)], autoreset_mode=mode)
    stepper = Stepper(envs, seed=0)
    real, ended = 0, 0
    for _ in range(20):
        steps = stepper.step(np.zeros(2, int))
        check(steps)
        real += int(steps.real.sum())
        ended += int(((steps.terminated | steps.truncated) & steps.real).sum())
    assert ended >= 6 and (real == 40) == (mode is AutoresetMode.SAME_STEP)
    assert real >= 40 - ended


@pytest.mark.parametrize(
    ("env", "action_shape", "outputs", "problem"),
    [
        ("CartPole-v1", (), 2, None),
        ("CartPole-v1", (), 3, "env has 2 actions; expected 3, as many as the heads have"),
        ("CartPole-v1", (), 102, "as the heads have; a distributional network needs a small module"),
        ("CartPole-v1", (1,), 2, r"env has 2 actions to choose from; expected actions of shape \(1,\)"),
        ("Pendulum-v1", (1,), 2, None),
        ("Pendulum-v1", (2,), 2, r"env has actions of shape \(1,\); expected \(2,\)"),
        ("Pendulum-v1", (), 4, r"env has actions of shape \(1,\); expected 4 actions to choose from"),
        ("Pendulum-v1", None, 4, None),  # a list of rows, say
    ],
)
def test_action_spaces_are_compared_with_those_of_training(env, action_shape, outputs, problem):
    replay = SimpleNamespace(action_shape=action_shape)
    found = space_problems(gym.make(env), replay, outputs)
    assert len(found) == (problem is not None)
    assert problem is None or re.search(problem, found[0])
