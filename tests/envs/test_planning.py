"""Planning on tables against slow sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.envs.planning import action_values, decides, observed_actions, run_policy

from .helpers import line, random_tables


def value_within(table, state, steps, gamma):
    """The best return of so many steps, by trying everything."""
    if steps == 0:
        return 0.0
    return max(
        table.reward[state, action]
        + (
            0.0
            if table.terminated[state, action]
            else gamma * value_within(table, table.next_state[state, action], steps - 1, gamma)
        )
        for action in range(table.num_actions)
    )


@settings(max_examples=25)
@given(table=random_tables(max_states=4))
def test_action_values_are_the_limit_of_trying_everything(table):
    gamma, steps = 0.3, 10
    values = action_values(table, gamma)
    rest = gamma**steps * np.abs(table.reward).max() / (1 - gamma)
    for state in range(table.num_states):
        assert values[state].max() == pytest.approx(value_within(table, state, steps, gamma), abs=rest)
    ahead = np.where(table.terminated, 0.0, gamma * values.max(axis=1)[table.next_state])
    np.testing.assert_allclose(values, table.reward + ahead, atol=1e-9)


@settings(max_examples=50)
@given(table=random_tables(), policy=st.lists(st.integers(0, 1), min_size=4, max_size=4))
def test_a_policys_return_is_the_sum_of_its_rewards(table, policy):
    outcome = run_policy(table, np.array(policy), 0.9)
    state, total, solved = table.start, 0.0, False
    for step in range(400):
        action = policy[table.obs_index[state]]
        total += 0.9**step * table.reward[state, action]
        if table.terminated[state, action]:
            solved = bool(table.goal[state, action])
            break
        state = table.next_state[state, action]
    assert outcome.value == pytest.approx(total)
    assert outcome.solved == solved


def test_a_success_after_the_limit_is_none():
    right = np.ones(4, dtype=np.int64)
    assert run_policy(line(4), right, 0.5) == run_policy(line(4, max_episode_steps=3), right, 0.5)
    late = run_policy(line(4, max_episode_steps=2), right, 0.5)
    assert (late.value, late.solved) == (0.25, False)


def test_states_that_look_alike_lend_each_other_their_actions():
    # from place 2 of 5 on, the best is still right; a place that looks like the last is only seen at the end
    table = line(5, obs_index=[0, 1, 1, 2, 3])
    assert observed_actions(table, 0.9).tolist() == [[False, True]] * 3 + [[False, False]] + [[False, False]]
    both = line(4, obs_index=[0, 0, 1, 2], reward=[[1, 0], [0, 0], [0, 5], [0, 0]])
    # place 0: stay for the reward at once, or go for the 5; whatever is optimal in one of the two counts
    expected = (action_values(both, 0.2)[:2].argmax(axis=1)).tolist()
    assert [bool(observed_actions(both, 0.2)[0, action]) for action in (0, 1)] == [
        0 in expected,
        1 in expected,
    ]
    assert sorted(expected) == [0, 1]


def test_where_every_action_ends_the_episode_there_is_still_something_to_decide():
    table = line(
        2, reward=[[1, 2], [0, 0]], terminated=[[True, True], [True, True]], next_state=[[1, 1], [1, 1]]
    )
    assert decides(table).tolist() == [True, False]
    assert observed_actions(table, 0.9).tolist() == [[False, True], [False, False]]
