"""LeastTried: what is wanted first, then what was tried least, then what most heads are for."""

from __future__ import annotations

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from owlrl import AdaptivePolicy, ExpWeightsSelector, MultiHeadQ, OracleSelector, QLearner, UniformSelector
from owlrl.acting.episodes import run_episodes
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.experiments.least_tried import LeastTried

PLACES, ACTIONS = 3, 4
SEEN = np.eye(PLACES, dtype=np.float32)
HEADS = {"a": 0, "b": 1, "c": 2}


def learner(wants: list[list[int]], **options) -> QLearner:
    """Head h wants action ``wants[h][place]``."""
    q = MultiHeadQ(nn.Identity(), PLACES, ACTIONS)
    for head, row in enumerate(wants):
        while q.num_heads <= head:
            q.add_head()
        weight = torch.zeros(ACTIONS, PLACES)
        weight[row, range(PLACES)] = 1.0
        q.heads[head].load_state_dict({"weight": weight, "bias": torch.zeros(ACTIONS)})
    return QLearner(q, None, torch.optim.SGD(q.parameters(), 0.1), **options)


def policy_of(wants: list[list[int]], selector=None, **options) -> LeastTried:
    arms = dict(list(HEADS.items())[: len(wants)])
    inner = AdaptivePolicy(learner(wants, **options), selector or OracleSelector(0), None, arms, trace=True)
    return LeastTried(inner, ACTIONS, seed=0)


def step(policy: LeastTried, place: int) -> int:
    action = policy.act(SEEN[place])
    policy.observe(SEEN[place], action, 0.0, SEEN[place], False)
    return action


heads_want = st.lists(
    st.lists(st.integers(0, ACTIONS - 1), min_size=PLACES, max_size=PLACES), min_size=1, max_size=3
)


@given(heads_want, st.lists(st.integers(0, PLACES - 1), max_size=25))
def test_one_environment_follows_the_definition(wants, visits):
    policy = policy_of(wants)
    policy.reset()
    tried: Counter[tuple[int, int]] = Counter()
    for place in visits:
        action = step(policy, place)
        counts = [tried[place, a] for a in range(ACTIONS)]
        least = [a for a in range(ACTIONS) if counts[a] == min(counts)]
        votes = Counter(row[place] for row in wants)
        if wants[0][place] in least:
            assert action == wants[0][place]
        else:
            assert action in least and votes[action] == max(votes[a] for a in least)
        tried[place, action] += 1


@given(heads_want, st.lists(st.lists(st.integers(0, PLACES - 1), min_size=3, max_size=3), max_size=15))
def test_environments_side_by_side_do_not_mix(wants, visits):
    policy = policy_of(wants)
    policy.reset(num_envs=3)
    taken: list[Counter[tuple[int, int]]] = [Counter() for _ in range(3)]
    for places in visits:
        actions = policy.act(SEEN[places])
        assert actions.shape == (3,)
        policy.observe(SEEN[places], actions, np.zeros(3), SEEN[places], np.zeros(3, bool))
        for env, (place, action) in enumerate(zip(places, actions, strict=True)):
            taken[env][place, int(action)] += 1
    for counts in taken:
        for place in range(PLACES):
            here = [counts[place, a] for a in range(ACTIONS)]
            assert max(here) - min(here) <= 1


def test_an_episode_begins_with_nothing_tried_even_if_evidence_is_kept():
    policy = policy_of([[2] * PLACES], ExpWeightsSelector(seed=0))
    policy.reset()
    assert sorted(step(policy, 0) for _ in range(4)) == [0, 1, 2, 3]
    assert step(policy, 0) == 2 and step(policy, 0) != 2
    for again in ({}, {"keep_evidence": True}):
        policy.reset(**again)
        assert step(policy, 0) == 2 and len(policy.trace) == 1
    policy.reset(num_envs=2)
    for _ in range(2):
        actions = policy.act(SEEN[[0, 0]])
        policy.observe(SEEN[[0, 0]], actions, np.zeros(2), SEEN[[0, 0]], np.zeros(2, bool))
    assert (actions != 2).all()
    policy.reset(mask=np.array([False, True]))
    actions = policy.act(SEEN[[0, 0]])
    assert actions[0] != 2 and actions[1] == 2


def test_what_counts_is_what_was_done_and_only_where_it_was_a_step():
    policy = policy_of([[2] * PLACES])
    policy.reset()
    policy.act(SEEN[0])
    policy.observe(SEEN[0], 1, 0.0, SEEN[0], False)  # somebody did something else
    assert step(policy, 0) == 2
    policy.reset(num_envs=2)
    rows = SEEN[[0, 0]]
    policy.observe(rows, policy.act(rows), np.zeros(2), rows, np.zeros(2, bool), mask=np.array([True, False]))
    actions = policy.act(rows)
    assert actions[0] != 2 and actions[1] == 2


def test_the_other_policy_goes_on_choosing_and_learning():
    policy = policy_of([[0] * PLACES, [1] * PLACES], UniformSelector(seed=0))
    policy.reset()
    for _ in range(5):
        step(policy, 1)
    assert policy.tasks == ["a", "b"] and len(policy.trace) == 5
    np.testing.assert_allclose(policy.probabilities, 0.5)
    assert all(s.losses is not None for s in policy.trace)
    assert repr(policy).startswith("LeastTried(AdaptivePolicy(UniformSelector")


def test_observations_in_parts_are_places_too():
    def joined(observation):
        if isinstance(observation, dict):
            observation = torch.cat([torch.as_tensor(part) for part in observation.values()], dim=1)
        return observation.float()

    policy = policy_of([[2, 1, 0]], preprocess=joined)
    policy.reset()
    parts = [{"first": row[:1], "rest": row[1:]} for row in SEEN]
    first = []
    for part in parts:
        first.append(policy.act(part))
        policy.observe(part, first[-1], 0.0, part, False)
    assert first == [2, 1, 0]
    assert policy.act(parts[0]) != 2


class Corridor(gym.Env):
    """Places in a row, start in the middle; only right, right, … reaches the goal at the right end."""

    observation_space = spaces.Box(0.0, 1.0, (PLACES,), np.float32)
    action_space = spaces.Discrete(ACTIONS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 1, 0
        return SEEN[1], {}

    def step(self, action):
        self.steps += 1
        self.place = max(self.place + (action == 3) - (action == 0), 0)
        won = self.place == PLACES
        return SEEN[min(self.place, PLACES - 1)], float(won), won, self.steps == 60, {}


@pytest.mark.parametrize("vector", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_a_head_that_runs_into_the_wall_reaches_the_goal(vector, keep):
    policy = policy_of([[0] * PLACES])
    env = gym.vector.SyncVectorEnv([Corridor] * 2) if vector else Corridor()
    bare = run_episodes(policy.policy, env, episodes=4, keep_evidence=keep)
    freed = run_episodes(policy, env, episodes=4, keep_evidence=keep)
    assert bare.mean_return == 0.0 and freed.mean_return == 1.0


def test_wrong_arguments_are_named():
    inner = policy_of([[0] * PLACES]).policy
    with pytest.raises(
        OwlTypeError, match=r"policy is a str; expected an AdaptivePolicy, such as owl.policy"
    ):
        LeastTried("hedge", 3)  # type: ignore[arg-type]
    with pytest.raises(OwlValueError, match="num_actions is 0; expected an int >= 1"):
        LeastTried(inner, 0)
    with pytest.raises(OwlValueError, match="seed is -1"):
        LeastTried(inner, 3, seed=-1)
    assert LeastTried(inner, Corridor.action_space.n).num_actions == ACTIONS
    with pytest.raises(OwlStateError, match="call reset"):
        LeastTried(inner, 3).act(SEEN[0])
    few = LeastTried(policy_of([[3] * PLACES]).policy, 2)
    few.reset()
    with pytest.raises(OwlValueError, match="action is 3; expected one of 2 discrete actions"):
        few.act(SEEN[0])
    with pytest.raises(OwlValueError, match="discrete"):
        few.observe(SEEN[0], np.array([0.5]), 0.0, SEEN[0], False)
