"""Crossroads: what is the same in all tasks, and that no one policy can solve two of them."""

from __future__ import annotations

from itertools import product

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.envs import CrossroadsEnv, interference, screen_level, tabulate
from owlrl.envs.crossroads import COLOURS, make_star
from owlrl.envs.planning import action_values, run_policy
from owlrl.errors import OwlValueError


def tables(arms, **kwargs):
    return [tabulate(CrossroadsEnv(arms, task, **kwargs), verify_steps=0) for task in range(arms)]


@pytest.mark.parametrize(("arms", "breadcrumbs"), [(2, False), (3, True), (4, False), (5, True), (8, False)])
def test_all_but_the_reward_is_the_same_and_one_policy_solves_one_task(arms, breadcrumbs):
    tasks = tables(arms, breadcrumbs=breadcrumbs)
    first = tasks[0]
    for other in tasks[1:]:
        for name in ("observations", "obs_index", "next_state", "terminated", "cell"):
            assert np.array_equal(getattr(first, name), getattr(other, name)), name
        assert other.start == first.start
    # An episode takes one path whatever the task, its last step is the only one that can be a success, and
    # that is a success in one task at most: the K chances of success of any policy sum to 1 at most.
    payers = sum(task.goal.astype(int) for task in tasks)
    assert payers.max() == 1
    assert (payers <= first.terminated).all()
    found = interference(*tasks)
    assert (found.solved_together, found.solved_separately, found.exact) == (1, arms, True)
    assert found.contradiction == 1.0
    assert found.best_shared <= found.best_separate / arms + 0.02  # the nearest goal is a turn nearer


@pytest.mark.parametrize("arms", [2, 3, 4])
def test_every_deterministic_policy_solves_one_task_at_most(arms):
    tasks = tables(arms, length=1)
    decide = np.unique(tasks[0].obs_index[~tasks[0].terminated.all(axis=1)])
    solved = []
    for actions in product(range(3), repeat=len(decide)):
        policy = np.zeros(tasks[0].num_observations, dtype=np.int64)
        policy[decide] = actions
        solved.append([run_policy(task, policy, 0.99).solved for task in tasks])
    assert len(solved) == 3 ** len(decide) == 81
    assert np.sum(solved, axis=1).max() == 1
    assert np.any(solved, axis=0).all()  # and each task is solved by some


@pytest.mark.parametrize(("arms", "length"), [(2, 1), (2, 6), (4, 4), (4, 6), (7, 4), (8, 6)])
def test_no_two_states_look_alike(arms, length):
    table = tabulate(CrossroadsEnv(arms, length=length), verify_steps=0)
    assert table.num_observations == table.num_states


@pytest.mark.parametrize(("arms", "length"), [(4, 4), (8, 4), (2, 12)])
def test_each_task_can_be_learned_from_what_is_seen(arms, length):
    for task in range(0, arms, 3):
        table = tabulate(CrossroadsEnv(arms, task, length=length), verify_steps=0)
        assert screen_level(table, runs=1, frames=150_000).passed


@settings(max_examples=25)
@given(
    arms=st.integers(2, 8),
    data=st.data(),
    length=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
def test_breadcrumbs_are_a_potential_and_are_not_seen(arms, data, length, seed):
    task = data.draw(st.integers(0, arms - 1))
    plain = CrossroadsEnv(arms, task, length=length)
    crumbs = CrossroadsEnv(arms, task, length=length, breadcrumbs=True)
    assert np.array_equal(plain.reset()[0], crumbs.reset()[0])
    star = make_star(arms, length)
    total = 0.0
    for action in np.random.default_rng(seed).choice(3, p=[0.2, 0.2, 0.6], size=40).tolist():
        seen, reward, terminated, truncated, info = plain.step(action)
        seen_too, with_crumb, *rest = crumbs.step(action)
        assert np.array_equal(seen, seen_too)
        assert rest == [terminated, truncated, info]
        arm, depth = star.corridor.get(tuple(map(int, plain.agent_pos)), (None, 0))
        total += with_crumb
        paid = float(terminated and arm == task)
        assert reward == paid
        assert total == pytest.approx(paid + 0.05 * depth * (arm == task))
        if terminated:
            assert info == {"is_success": arm == task}
            assert depth == length
            break


@pytest.mark.parametrize("arms", range(2, 9))
def test_the_arms_are_equally_far_and_have_colours_of_their_own(arms):
    star = make_star(arms, 4)
    x, y = star.start
    distances = {abs(goal[0] - x) + abs(goal[1] - y) for goal in star.goals}
    assert len(distances) == 1
    assert len(set(star.goals)) == arms
    for arm in range(arms):
        # beside the second cell of a corridor, away from what is shared
        i, j = next(cell for cell, place in star.corridor.items() if place == (arm, 2))
        beside = {(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)} - set(star.corridor)
        assert {star.walls[cell] for cell in beside} <= set(COLOURS[arm])
    assert len(set(COLOURS)) == len(COLOURS) >= arms
    assert "green" not in star.walls.values()


def test_the_reward_does_not_depend_on_the_step():
    env = CrossroadsEnv(2, 0, length=1)
    env.reset()
    for action in (0, 0, 0):
        env.step(action)
    assert env.step(2)[1:3] == (1.0, True)
    table = tabulate(env)
    assert table.goal_reward is None
    assert action_values(table, 0.9)[table.start].max() == pytest.approx(0.9)


def test_registered_with_its_arguments():
    env = gymnasium.make(
        "owlrl/Crossroads-v0", arms=8, task=7, length=2, max_steps=5, render_mode="rgb_array"
    )
    env.reset()
    assert env.render().shape == (11 * 32, 11 * 32, 3)
    steps = [env.step(0)[2:] for _ in range(5)]
    assert steps[-1] == (False, True, {"is_success": False})


@pytest.mark.parametrize(
    "wrong",
    [{"arms": 1}, {"arms": 9}, {"arms": 3, "task": 3}, {"task": -1}, {"length": 0}, {"breadcrumbs": 1}],
)
def test_bad_arguments(wrong):
    with pytest.raises(OwlValueError, match=list(wrong)[-1]):
        CrossroadsEnv(**wrong)
