"""Interference against all policies there are, on levels whose numbers are known, and from heads."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from owlrl import MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay
from owlrl.envs import (
    CrossroadsEnv,
    contradiction,
    estimate_interference,
    interference,
    tabulate,
    task_set,
)
from owlrl.envs.planning import action_values, observed_actions, run_policy
from owlrl.errors import NonFiniteError, OwlError, OwlTypeError, OwlValueError
from owlrl.types import Transitions

from .helpers import line, random_tables


def best_by_enumeration(tables, gamma):
    """The largest mean return of one action per observation, of all there are."""
    number, actions = tables[0].num_observations, tables[0].num_actions
    return max(
        np.mean([run_policy(table, np.array(policy), gamma).value for table in tables])
        for policy in product(range(actions), repeat=number)
    )


@settings(max_examples=40)
@given(tables=st.lists(random_tables(), min_size=2, max_size=3), same=st.booleans(), seed=st.integers(0, 99))
def test_against_every_policy(tables, same, seed):
    if same:  # one world, other rewards
        generator = np.random.default_rng(seed)
        first = tables[0]
        rewards = [np.round(generator.random(first.reward.shape), 1) for _ in tables]
        tables = [_with_reward(first, reward + 0.1) for reward in rewards]
    found = interference(*tables, gamma=0.9, tries=20, seed=seed)
    best = best_by_enumeration(tables, 0.9)
    assert found.best_shared <= best + 1e-9
    if found.exact:
        assert found.best_shared == pytest.approx(best)
    for table, separate in zip(tables, found.separate, strict=True):
        assert separate <= best_by_enumeration([table], 0.9) + 1e-9
    assert 0.0 <= found.contradiction <= 1.0
    assert best <= found.bound + 1e-9
    assert found.proven <= (best < found.best_separate)
    for table, optimum, separate in zip(tables, found.optimal, found.separate, strict=True):
        assert separate <= optimum + 1e-9
        assert optimum == pytest.approx(action_values(table, 0.9)[table.start].max())


def _with_reward(table, reward):
    return line(
        table.num_states,
        observations=table.observations,
        observation_space=table.observation_space,
        obs_index=table.obs_index,
        next_state=table.next_state,
        terminated=table.terminated,
        start=table.start,
        reward=reward,
    )


@settings(max_examples=50)
@given(
    sets=st.lists(
        st.lists(st.lists(st.booleans(), min_size=2, max_size=2), min_size=3, max_size=3),
        min_size=2,
        max_size=4,
    )
)
def test_contradiction_is_a_count(sets):
    common = disagree = 0
    for column in zip(*sets, strict=True):
        having = [{i for i, optimal in enumerate(row) if optimal} for row in column if any(row)]
        if len(having) >= 2:
            common += 1
            disagree += not set.intersection(*having)
    assert contradiction(sets) == (common, disagree / common if common else 0.0)


@pytest.mark.parametrize(
    ("pair", "share", "observations"),
    [((3, 7), 17, 53), ((7, 17), 7, 21), ((2, 13), 11, 47), ((2, 9), 0, 72)],
)
def test_levels_contradict_off_the_way_only(pair, share, observations):
    tasks = {**task_set("SC5"), **task_set("SC12")}
    found = interference(*(tasks[f"simplecrossing-{level}"].table() for level in pair))
    assert found.shared_observations == observations
    assert found.contradiction == pytest.approx(share / observations)
    # one policy takes the best way in both: what contradicts lies beside it
    assert (found.solved_together, found.exact) == (2, True)
    assert found.shared == pytest.approx(found.separate)


def test_one_policy_solves_all_of_sc5():
    found = interference(*(task.table() for task in task_set("SC5").values()), tries=40)
    assert (found.solved_separately, found.solved_together) == (5, 5)
    assert found.contradiction > 0.3
    assert found.best_shared > 0.98 * found.best_separate


@pytest.mark.parametrize("breadcrumbs", [False, True])
def test_crossroads_in_numbers(breadcrumbs):
    tables = [tabulate(CrossroadsEnv(2, task, breadcrumbs=breadcrumbs), verify_steps=0) for task in range(2)]
    found = interference(*tables, gamma=0.5)
    # a turn and four steps; with crumbs, each of the four brings 0.05 too
    value = 0.5**4 + breadcrumbs * 0.05 * (0.5 + 0.5**2 + 0.5**3 + 0.5**4)
    assert found.separate == pytest.approx((value, value))
    assert sorted(found.shared) == pytest.approx([0.0, value])
    assert found.exact
    assert (found.shared_observations, found.contradiction) == (28, 1.0)
    assert str(found).startswith(
        "2 tasks share 28 observations, 100% contradictory; one policy solves 1 (exact)"
    )


def test_the_order_of_optimal_actions_is_by_observation():
    table = line(4)
    assert observed_actions(table, 0.9)[:3, 1].all()
    found = interference(table, line(4, reward=table.reward * 2))
    assert (found.contradiction, found.solved_together, found.exact) == (0.0, 2, True)


def test_what_cannot_be_compared():
    table = line(3)
    with pytest.raises(OwlTypeError, match="got int; expected tables"):
        interference(table, 3)
    with pytest.raises(OwlValueError, match="at least 2"):
        interference(table)
    three = line(
        3, next_state=np.zeros((3, 3)), reward=np.ones((3, 3)), terminated=np.ones((3, 3), dtype=bool)
    )
    other = line(3, observations=np.arange(3.0), observation_space=Box(0.0, 3.0, shape=()))
    with pytest.raises(OwlValueError, match="3 problems"):
        interference(table, three, other, gamma=1.0)
    with pytest.raises(OwlValueError, match="2 problems"):
        interference(table, table, tries=0, seed=-1)
    with pytest.raises(OwlTypeError, match=r"expected bool \(K, N, A\)"):
        contradiction(np.zeros((2, 3)))


def fork(first: float, second: float):
    """Two ends: to the left at once, to the right after a step."""
    return line(
        4,
        next_state=[[1, 2], [1, 1], [3, 3], [3, 3]],
        reward=[[first, 0.0], [0, 0], [second, second], [0, 0]],
        terminated=[[True, False], [True, True], [True, True], [True, True]],
    )


def test_tasks_that_differ_in_the_weights_of_their_rewards_lose_return():
    """Every policy of either solves both, and only the returns show that they conflict."""
    found = interference(fork(0.9, 0.1), fork(0.1, 0.9), gamma=0.5)
    assert (found.solved_separately, found.solved_together) == (2, 2)
    assert found.separate == found.optimal == pytest.approx((0.9, 0.45))
    # left brings 0.9 and 0.1, right half of 0.1 and of 0.9
    assert found.shared == pytest.approx((0.9, 0.1))
    assert found.lost == pytest.approx((0.0, 0.35))
    assert found.bound == found.best_shared == pytest.approx(0.5)
    assert found.exact and found.proven
    assert str(found).endswith("mean return 0.5 instead of 0.675")
    harmless = interference(fork(0.9, 0.1), fork(0.8, 0.2), gamma=0.5)
    assert harmless.lost == pytest.approx((0.0, 0.0)) and not harmless.proven


def test_tasks_without_a_success_are_compared_by_return():
    """Costs only: nothing is solved, and the returns still tell."""
    found = interference(fork(-1.0, -0.2), fork(-0.2, -1.0), gamma=0.5)
    assert (found.solved_separately, found.solved_together) == (0, 0)
    assert found.separate == pytest.approx((-0.1, -0.2))  # right for the first, left for the second
    assert found.best_shared == pytest.approx(max((-0.1 - 0.5) / 2, (-1.0 - 0.2) / 2))
    assert found.exact and found.proven


def owl_of(*biases: list[float]) -> OwlWrapper:
    """Heads that value the actions as given, wherever the first number of the observation is 0.

    Where it is 1, the last action is worth 1000 more in all of them.
    """
    q = MultiHeadQ(nn.Identity(), 2, len(biases[0]))
    replay = TaskScopedReplay(10, observation_shape=(2,), observation_dtype=np.float32)
    owl = OwlWrapper(QLearner(q, None, torch.optim.SGD(q.parameters(), 0.1), replay=replay))
    x = np.zeros(2, np.float32)
    for k, bias in enumerate(biases):
        with owl.task(f"task {k}") as record, torch.no_grad():
            replay.add(x, 0, 0.0, x, False, False)
            head = q.heads[record.head]
            head.weight.zero_()
            head.weight[-1, 0] = 1000.0
            head.bias.copy_(torch.tensor(bias))
    return owl


OBSERVATIONS = np.array([[0, 0], [0, 0], [0, 0], [1, 0]], dtype=np.float32)


def test_heads_that_want_different_actions_contradict_each_other():
    owl = owl_of([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    assert float(estimate_interference(owl, OBSERVATIONS)) == 0.75


def test_a_common_good_action_is_no_contradiction():
    owl = owl_of([1.0, 0.998, 0.0], [0.0, 1.0, 0.0])
    assert float(estimate_interference(owl, OBSERVATIONS)) == 0.0
    assert float(estimate_interference(owl, OBSERVATIONS, tolerance=0.001)) == 0.75


def test_negative_values_have_a_tolerance_too():
    owl = owl_of([-100.0, -100.3, -200.0], [-200.0, -100.0, -200.0])
    assert float(estimate_interference(owl, OBSERVATIONS[:3])) == 0.0
    assert float(estimate_interference(owl, OBSERVATIONS[:3], tolerance=0.0)) == 1.0


def test_only_the_named_tasks_are_compared():
    owl = owl_of([1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    assert float(estimate_interference(owl, OBSERVATIONS, tasks=["task 0", "task 1"])) == 0.0
    assert float(estimate_interference(owl, OBSERVATIONS, tasks=["task 0", "task 2"])) == 0.75
    assert float(estimate_interference(owl, OBSERVATIONS)) == 0.75


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tasks": ["task 0"]}, "at least 2"),
        ({"tasks": ["task 0", "task 9"]}, "'task 9' has not been learned"),
        ({"tolerance": -1}, "tolerance is -1"),
        ({"observations": np.zeros(2)}, "expected a batch"),
        ({"observations": np.zeros((0, 2))}, "expected a batch"),
        ({"observations": [(np.zeros(2), 1, 0.5)]}, "rows is a list.*expected Transitions, e.g. owl.memory"),
    ],
)
def test_bad_input_of_an_estimate_is_refused(arguments, words):
    owl = owl_of([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    with pytest.raises(OwlError, match=words):
        estimate_interference(owl, arguments.pop("observations", OBSERVATIONS), **arguments)


def test_what_is_not_finite_is_no_agreement():
    owl = owl_of([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    with pytest.raises(NonFiniteError, match="some of the values are NaN"):
        estimate_interference(owl, np.full((3, 2), np.nan, np.float32))


def rows_of(observations, weight=None):
    number = len(observations)
    seen = torch.as_tensor(observations)
    zeros = torch.zeros(number)
    return Transitions(seen, zeros.long(), zeros, seen, zeros.bool(), zeros, weight=weight)


def test_the_value_lost_by_one_shared_action():
    owl = owl_of([1.0, 0.8, 0.0], [0.0, 0.9, 1.0])
    found = estimate_interference(owl, OBSERVATIONS[:3])
    assert found.contradiction == 1.0
    assert found.separate == pytest.approx((1.0, 1.0))
    assert found.shared == pytest.approx((0.8, 0.9))  # the middle action is best for both in the mean
    assert found.lost == pytest.approx((0.2, 0.1))


def test_rows_of_a_replay_count_with_their_weights():
    owl = owl_of([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    assert estimate_interference(owl, rows_of(OBSERVATIONS)) == estimate_interference(owl, OBSERVATIONS)
    weighted = rows_of(OBSERVATIONS, weight=torch.tensor([0.5, 0.5, 0.0, 3.0]))
    assert float(estimate_interference(owl, weighted)) == 0.25
    two = [rows_of(OBSERVATIONS[:2]), rows_of(OBSERVATIONS[2:])]
    assert estimate_interference(owl, two) == estimate_interference(owl, OBSERVATIONS)
    with pytest.raises(OwlValueError, match="expected a batch"):
        estimate_interference(owl, [])
