"""One grid, several goals: exact values against a slow oracle, and what one head can and cannot solve."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from minigrid.envs import EmptyEnv, FourRoomsEnv
from minigrid.wrappers import ImgObsWrapper

from owlrl.envs import tabulate
from owlrl.envs.planning import action_values
from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.experiments import four_rooms, shared_grid


def test_a_task_s_head_has_the_values_of_its_table():
    env = FourRoomsEnv(agent_pos=(6, 7), goal_pos=(4, 14))
    found = shared_grid({"only": env}, gamma=0.9)
    table = tabulate(ImgObsWrapper(FourRoomsEnv(agent_pos=(6, 7), goal_pos=(4, 14))))
    pays = action_values(table, 0.9)[table.start, :3] / table.goal_reward[1]
    assert np.allclose(found.first["only"], pays, atol=1e-9)
    assert np.allclose(found.first["one head"], pays, atol=1e-9)  # of one task it is the same


def test_one_head_has_the_mean_of_the_targets_and_solves_one_of_two():
    found = four_rooms()
    assert list(found.first) == ["lower left", "upper right", "one head"]
    left, right, one = (np.array(values) for values in found.first.values())
    assert left.argmax() != right.argmax()  # the same state asks for another action
    assert found.solved["lower left"] == (True, False) and found.solved["upper right"] == (False, True)
    assert sum(found.solved["one head"]) == 1
    assert one.max() < max(left.max(), right.max())
    assert [m.name for m in found.maps] == list(found.first)
    shapes = {m.values.shape for m in found.maps}
    assert shapes == {(19, 19)} and np.isfinite(found.maps[0].values).sum() > 200


def test_two_goals_at_equal_distance_are_worth_half_of_one():
    goals = {"left": (1, 1), "right": (17, 1)}
    tasks = {name: FourRoomsEnv(agent_pos=(4, 4), goal_pos=goal) for name, goal in goals.items()}
    found = shared_grid(tasks, gamma=0.0)  # only what pays at once counts
    assert np.nanmax(found.maps[0].values) == 1.0
    assert np.nanmax(found.maps[2].values) == 0.5


def test_what_is_not_one_grid_is_refused():
    with pytest.raises(OwlValueError, match="no tasks"):
        shared_grid({})
    with pytest.raises(OwlTypeError, match="'cart' is a CartPoleEnv; expected a MiniGrid"):
        shared_grid({"cart": gymnasium.make("CartPole-v1")})
    with pytest.raises(OwlValueError, match="'large' has another start or other walls than 'small'"):
        shared_grid({"small": EmptyEnv(size=5), "large": EmptyEnv(size=6)})
