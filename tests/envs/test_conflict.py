"""interference against all policies there are, and on the levels whose numbers are known."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.envs import CrossroadsEnv, contradiction, interference, tabulate, task_set
from owlrl.envs._planning import observed_actions, run_policy
from owlrl.errors import OwlTypeError, OwlValueError

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
    other = line(3, observations=np.arange(3.0), observation_space=_box())
    with pytest.raises(OwlValueError, match="4 problems"):
        interference(table, three, other, line(3, goal=np.zeros((3, 2))), gamma=1.0)
    with pytest.raises(OwlValueError, match="2 problems"):
        interference(table, table, tries=0, seed=-1)
    with pytest.raises(OwlTypeError, match=r"expected bool \(K, N, A\)"):
        contradiction(np.zeros((2, 3)))


def _box():
    from gymnasium.spaces import Box

    return Box(0.0, 3.0, shape=())
