"""Table: what it fills in, what it refuses, and that it cannot be changed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from owlrl.envs import Table
from owlrl.errors import OwlTypeError, OwlValueError

from .helpers import line


def test_defaults():
    table = line(4)
    assert (table.num_states, table.num_observations, table.num_actions) == (4, 4, 2)
    assert table.goal.tolist() == [[False, False], [False, False], [False, True], [False, False]]
    assert table.cell.tolist() == [0, 1, 2, 3]
    assert table.max_episode_steps is None
    assert repr(table) == "Table('table': 4 states, 4 observations, 2 actions)"


def test_nothing_can_be_changed_and_nothing_is_shared():
    given = np.zeros((3, 2))
    table = line(3, reward=given)
    given[:] = 5
    assert not table.reward.any()
    for field in dataclasses.fields(Table):
        value = getattr(table, field.name)
        if isinstance(value, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                value[...] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.start = 1


def test_reward_at_a_step():
    plain = line(3)
    assert plain.reward_at(1, 1, 5) == 1.0
    table = line(3, max_episode_steps=2, goal_reward=[0.0, 0.9, 0.8])
    assert table.reward_at(1, 1, 2) == 0.8
    assert table.reward_at([0, 1, 1], [1, 1, 0], [1, 1, 2]).tolist() == [0.0, 0.9, 0.0]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"obs_index": []}, ["obs_index"]),
        ({"obs_index": [[0, 1, 2]]}, ["obs_index"]),
        ({"next_state": [0, 1, 2]}, ["next_state"]),
        ({"next_state": np.zeros((3, 0))}, ["next_state"]),
        ({"next_state": [[0, 3], [0, 1], [0, 0]], "start": 3}, ["next_state", "start"]),
        ({"obs_index": [0, -1, 2], "cell": [0, -2, 1]}, ["obs_index", "cell"]),
        ({"reward": np.zeros((3, 1)), "goal": np.zeros((2, 2)), "cell": [0]}, ["reward", "goal", "cell"]),
        ({"reward": [[0, np.nan], [0, 0], [0, 0]]}, ["NaN"]),
        ({"observations": np.zeros((3, 2))}, ["observations"]),
        ({"max_episode_steps": 0}, ["max_episode_steps"]),
        ({"goal_reward": [0.0, 1.0]}, ["goal_reward"]),
        ({"goal_reward": [0.0, 1.0], "max_episode_steps": 2}, ["goal_reward"]),
        ({"goal_reward": [0.0, np.inf], "max_episode_steps": 1}, ["goal_reward"]),
        ({"goal": np.ones((3, 2))}, ["goal"]),
        ({"start": True}, ["start"]),
    ],
)
def test_what_is_wrong_is_named(changes, names):
    if changes.get("reward") is not None and np.shape(changes["reward"]) != (3, 2):
        changes = {**changes, "goal": changes["goal"]}  # or it would be made from a reward of another shape
    with pytest.raises(OwlValueError) as caught:
        line(3, **changes)
    assert all(name in str(caught.value) for name in names)
    assert str(caught.value).count("expected") == len(names)


def test_a_space_is_needed():
    with pytest.raises(OwlTypeError, match="expected a gymnasium space"):
        line(3, observation_space=3)
