"""Lanes against one environment at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from owlrl.envs import TabulatedEnv
from owlrl.experiments import Session
from owlrl.experiments.episodes import Lanes, greedy_success, run_lanes
from owlrl.heads.modes import eval_mode
from tests.experiments.helpers import QUICK, tiny

LEFT, RIGHT = "crossroads-0", "crossroads-1"


@pytest.fixture(scope="module")
def session() -> Session:
    made = Session(tiny(policies=("oracle", "hedge+td"), overrides=QUICK))
    for task in (LEFT, RIGHT):
        with made.task(task):
            made.agent.learn(600, env=made.env(task))
    return made


class Script:
    """A policy that plays given actions (T, E) and notes what it is told."""

    def __init__(self, actions):
        self.actions, self.trace, self.seen = actions, [], []

    def reset(self, *, num_envs=None, keep_evidence=False, mask=None):
        if mask is None:
            self.count = num_envs
        assert keep_evidence == (mask is not None)

    def act(self, observation):
        action = self.actions[len(self.trace)]
        zeros = np.zeros((self.count, 1))
        self.trace.append(type("Step", (), {"arm": zeros[:, 0], "probabilities": zeros, "losses": zeros})())
        return action

    def observe(self, observation, action, reward, following, terminated, *, mask):
        self.seen.append((observation, action, reward, following, terminated, mask))


@pytest.mark.parametrize("consecutive", [1, 3])
def test_lanes_equal_single_environments(session, consecutive):
    tables, copies = [session.tasks[LEFT], session.tasks[RIGHT]], 4
    actions = np.random.default_rng(0).integers(3, size=(200, 2 * copies))
    policy = Script(actions)
    found = run_lanes(policy, Lanes(tables, copies), consecutive=consecutive)
    for lane in range(2 * copies):
        env, step = TabulatedEnv(tables[lane // copies]), 0
        for episode in range(consecutive):
            observation, _ = env.reset()
            total, length, ended = 0.0, 0, False
            while not ended:
                told = [column[lane] for column in policy.seen[step]]
                following, reward, terminated, truncated, info = env.step(int(actions[step, lane]))
                assert np.array_equal(told[0], observation) and np.array_equal(told[3], following)
                assert (told[2], told[4], told[5]) == (reward, terminated, True)
                observation, ended = following, terminated or truncated
                total, length, step = total + reward, length + 1, step + 1
            assert found.lengths[episode, lane] == length
            assert found.returns[episode, lane] == pytest.approx(total)
            assert found.success[episode, lane] == info["is_success"]
        assert not any(column[5][lane] for column in policy.seen[step:])  # after its last one, no more
    assert len(found.arms) == found.lengths[0].max()


def test_greedy_success_equals_an_episode_of_the_told_head(session):
    for task, head in session.heads.items():
        for other in (LEFT, RIGHT):
            lanes = Lanes([session.tasks[other]], 1)
            told = run_lanes(session.policy("oracle", [task]), lanes)
            assert greedy_success(session.agent.q, head, session.tasks[other]) == told.success
    solved = [greedy_success(session.agent.q, session.heads[t], session.tasks[t]) for t in (LEFT, RIGHT)]
    assert solved == [True, True]


def test_greedy_success_changes_no_mode():
    session = Session(tiny(method="owl-dropout-0.1"))
    q, table = session.agent.q, session.tasks[LEFT]
    q.train()
    before = torch.get_rng_state()
    greedy_success(q, 0, table)
    assert q.training
    assert torch.equal(before, torch.get_rng_state())  # nothing was dropped
    with eval_mode(q):
        greedy_success(q, 0, table)
        assert not q.training


def test_a_policy_that_never_ends_fails(session):
    table = session.tasks[LEFT]
    turn = torch.zeros(table.num_observations, 3)
    turn[:, 0] = 1.0  # left, for ever

    class Turning:
        module = torch.nn.Linear(1, 1)

        def __call__(self, seen, head):
            return turn

    assert greedy_success(Turning(), 0, table) is False


def test_evidence_moves_the_probabilities_of_a_trace(session):
    policy = session.policy("hedge+td", [])
    found = run_lanes(policy, Lanes([session.tasks[LEFT]], 5))
    assert found.probabilities.shape == (len(found.arms), 5, 2)
    assert found.losses.shape == found.probabilities.shape
    assert np.allclose(found.probabilities.sum(-1), 1.0)
    assert np.allclose(found.probabilities[0], 0.5)
    assert not np.allclose(found.probabilities[1], 0.5)
