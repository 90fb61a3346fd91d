"""Reach: Gymnasium's checks, one copy against many, and the known returns against trying everything."""

from __future__ import annotations

from itertools import product

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from owlrl.envs import ReachEnv, ReachVectorEnv, best_return, reach_goals, reaches, single_policy_bound
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError

COORDINATES = st.floats(-1, 1)
GOALS = st.tuples(COORDINATES, COORDINATES)


def go_to(point, position):
    """The memoryless policy that goes to a point at full speed."""
    return np.clip((np.asarray(point) - position) / 0.2, -1, 1)


def return_of(goal, policy, steps=20):
    env = ReachEnv(goal)
    env.reset()
    return sum(env.step(policy(env.state))[1] for _ in range(steps))


def test_checks():
    env = gymnasium.make("owlrl/Reach-v0", goal=(0.3, -0.4))
    check_env(env.unwrapped, skip_render_check=True)
    sb3_check_env(env)


def test_an_episode_by_hand():
    env = gymnasium.make("owlrl/Reach-v0", goal=(1.0, -0.1))
    assert env.reset(seed=0)[0].tolist() == [0, 0]
    position, total = np.zeros(2), 0.0
    for step, action in enumerate(np.random.default_rng(0).uniform(-2, 2, (20, 2)), start=1):
        position = np.clip(position + 0.2 * np.clip(action, -1, 1), -1, 1)
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation.dtype == np.float32 and observation == pytest.approx(position)
        assert reward == pytest.approx(-(np.linalg.norm(position - [1.0, -0.1]) ** 2))
        assert (terminated, truncated, info) == (False, step == 20, {})
        total += reward
    assert total < best_return((1.0, -0.1))


@settings(max_examples=30)
@given(goal=GOALS, seed=st.integers(0, 1000))
def test_the_best_return_is_reached_and_no_policy_has_more(goal, seed):
    assert return_of(goal, lambda position: go_to(goal, position)) == pytest.approx(best_return(goal))
    generator = np.random.default_rng(seed)
    assert return_of(goal, lambda _: generator.uniform(-1, 1, 2)) <= best_return(goal) + 1e-9


@settings(max_examples=20)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=3))
def test_known_returns_against_all_walks(xs):
    """Three steps along one axis, each of any of 21 lengths: to each goal, and for all goals at once."""
    walks = np.cumsum(np.array(list(product(np.linspace(-0.2, 0.2, 21), repeat=3))), axis=1)  # (9261, 3)
    returns = [-((walks - x) ** 2).sum(axis=1) for x in xs]
    finest = 0.02  # between two lengths, so about as far from the best place
    for x, found in zip(xs, returns, strict=True):
        best = best_return((x, 0.0), steps=3)
        assert best - 3 * finest < found.max() <= best + 1e-9
    bound = single_policy_bound([(x, 0.0) for x in xs], steps=3)
    assert bound - 3 * finest < np.mean(returns, axis=0).max() <= bound + 1e-9


def test_one_policy_for_many_goals():
    goals = reach_goals(200, seed=1)
    bound, middle = single_policy_bound(goals), goals.mean(axis=0)
    assert np.mean([return_of(g, lambda p: go_to(middle, p)) for g in goals]) == pytest.approx(bound)
    generator = np.random.default_rng(0)
    for point in generator.uniform(-1, 1, (3, 2)):
        assert np.mean([return_of(g, lambda p, to=point: go_to(to, p)) for g in goals]) < bound
    assert bound < 10 * best_return(goals).mean() < 0
    assert best_return(goals).shape == (200,)
    assert single_policy_bound(goals[:1]) == pytest.approx(best_return(goals[0]))


def test_goals_are_drawn_evenly_and_repeatably():
    goals = reach_goals(1_000)
    assert np.array_equal(goals, reach_goals(np.int64(1_000), seed=np.int64(0)))
    assert not np.array_equal(goals, reach_goals(1_000, seed=1))
    assert np.abs(goals).max() <= 1.0
    assert goals.mean(axis=0) == pytest.approx(np.zeros(2), abs=0.06)  # σ of the mean is 0.018
    spec = reaches(goals)["reach-7"]
    assert spec().unwrapped.goal == tuple(goals[7])
    assert hash(spec)  # as tables are looked up by it


@settings(max_examples=25)
@given(goals=st.lists(GOALS, min_size=1, max_size=4), limit=st.integers(1, 8), seed=st.integers(0, 99))
def test_many_copies_are_so_many_single_ones(goals, limit, seed):
    def single(goal):
        return lambda: gymnasium.make("owlrl/Reach-v0", goal=goal, max_episode_steps=limit)

    number = len(goals)
    ours = ReachVectorEnv(number, goal=goals, max_episode_steps=limit)
    theirs = SyncVectorEnv([single(goal) for goal in goals], autoreset_mode="SameStep")
    assert np.array_equal(ours.reset(seed=0)[0], theirs.reset(seed=0)[0])
    for actions in np.random.default_rng(seed).uniform(-2, 2, (20, number, 2)):
        one, other = ours.step(actions), theirs.step(actions)
        for mine, its in zip(one[:4], other[:4], strict=True):
            assert np.array_equal(mine, its) and mine.dtype == its.dtype
        assert one[4].keys() == other[4].keys()
        if one[4]:
            assert np.array_equal(np.stack(one[4]["final_obs"]), np.stack(other[4]["final_obs"]))
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_vector_made_by_gymnasium_and_its_states():
    envs = gymnasium.make_vec("owlrl/Reach-v0", num_envs=3, goal=(0.5, 0.5))
    assert isinstance(envs, ReachVectorEnv)
    assert repr(envs) == "ReachVectorEnv(num_envs=3, goal=(0.5, 0.5))"
    with pytest.raises(OwlStateError, match=r"needs a reset\(\) first"):
        envs.step(np.zeros((3, 2)))
    envs.reset()
    envs.states = np.full((3, 2), 0.5)
    envs.elapsed = [18, 0, 19]
    envs.states[...] = 9.0  # a copy
    _, rewards, _, truncated, infos = envs.step(np.zeros((3, 2)))
    assert rewards.tolist() == [0, 0, 0] and truncated.tolist() == [False, False, True]
    assert infos["final_obs"][2].tolist() == [0.5, 0.5] and infos["final_obs"][0] is None
    assert envs.elapsed.tolist() == [19, 1, 0]
    assert envs.step(np.zeros((3, 2)))[3].tolist() == [True, False, False]
    observations, _ = envs.reset(options={"reset_mask": np.array([False, True, False])})
    assert observations.tolist() == [[0, 0]] * 3
    assert envs.elapsed.tolist() == [0, 0, 1]


@pytest.mark.parametrize("goal", [(2, 0), (0,), "ab", (0, float("nan")), [[[0, 0]]], None, []])
def test_bad_goals(goal):
    for function in (ReachEnv, best_return, single_policy_bound, lambda g: ReachVectorEnv(1, goal=g)):
        with pytest.raises(OwlValueError, match="expected x and y, both from -1 to 1"):
            function(goal)


def test_bad_arguments():
    with pytest.raises(OwlValueError, match="one goal"):
        ReachEnv([(0, 0), (1, 1)])
    with pytest.raises(OwlValueError, match="got 3 goals; expected one, or 2"):
        ReachVectorEnv(2, goal=np.zeros((3, 2)))
    with pytest.raises(OwlValueError, match="2 problems"):
        ReachVectorEnv(0, max_episode_steps=0)
    with pytest.raises(OwlValueError, match="2 problems"):
        best_return((2, 2), steps=0)
    with pytest.raises(OwlValueError, match="2 problems"):
        reach_goals(0, seed=-1)
    assert ReachEnv(np.array([0.5, 1], np.float32)).goal == (0.5, 1.0)


@pytest.mark.parametrize("action", [[0.0], 0.0, [float("nan"), 0.0], [[0.0, 0.0]]])
def test_bad_actions_change_nothing(action):
    env = ReachEnv((1, 1))
    with pytest.raises(OwlStateError, match=r"call reset\(\) first"):
        env.step(np.zeros(2))
    env.reset()
    env.step(np.ones(2))
    with pytest.raises(OwlValueError, match="expected two numbers"):
        env.step(np.array(action))
    assert env.state.tolist() == [0.2, 0.2]


def test_bad_actions_of_many_change_nothing():
    envs = ReachVectorEnv(2)
    envs.reset()
    for actions, error in (
        (np.zeros(2), OwlTypeError),
        (np.zeros((2, 2), dtype=bool), OwlTypeError),
        (np.full((2, 2), np.nan), NonFiniteError),
    ):
        with pytest.raises(error, match=r"ReachVectorEnv\.step: actions"):
            envs.step(actions)
    assert envs.elapsed.tolist() == [0, 0]
    envs.step(np.array([[np.inf, 0], [1, 0]]))
    assert np.array_equal(*envs.states)
