"""One grid, several goals: exact values against a slow oracle, and what one head can and cannot solve."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from minigrid.envs import EmptyEnv, FourRoomsEnv
from minigrid.wrappers import ImgObsWrapper

from owlrl.envs import tabulate, task_set
from owlrl.envs.planning import action_values
from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.experiments import Session, ValueMap, four_rooms, q_heatmap, shared_grid, value_map
from owlrl.experiments.value_maps import DIRECTIONS
from tests.experiments.helpers import tiny
from tests.experiments.test_plots import STRANGE, png


@pytest.fixture(scope="module")
def network():
    return Session(tiny()).agent.q


def level(name="SC2", task="simplecrossing-3"):
    return task_set(name)[task](disable_env_checker=True)


def test_values_are_those_of_walking_there(network):
    """Slow and obvious: walk through the level at random, and ask the network wherever one is."""
    env = level()
    found = value_map(network, env, head=0)
    seen, _ = env.reset(seed=0)
    random, best = np.random.default_rng(0), {}
    for _ in range(2_500):
        base = env.unwrapped
        with torch.no_grad():
            q = network(torch.as_tensor(seen[None]), head=0)[0].numpy()
        key = int(base.agent_pos[0]), int(base.agent_pos[1]), int(base.agent_dir)
        best[key] = q
        seen, _, terminated, truncated, _ = env.step(int(random.integers(3)))
        if terminated or truncated:
            seen, _ = env.reset()
    whole = [(x, y) for x, y, _ in best if all((x, y, d) in best for d in range(4))]
    assert len(whole) > 12
    for x, y in whole:
        values = np.array([best[x, y, d] for d in range(4)])
        assert found.values[y, x] == pytest.approx(values.max(), abs=1e-5)
        facing = values.max(1).argmax()
        assert found.arrows[y, x] == (facing if values[facing].argmax() == 2 else -1)
    for y, x in np.argwhere(np.isnan(found.values)):
        assert (x, y) not in whole
    assert found.start == (1, 1)


def test_only_cells_that_can_be_reached_as_the_level_begins(network):
    env = level("SC3+DK2", "doorkey-4")
    found = value_map(network, env, head=0)
    grid = env.unwrapped.grid
    door = next(
        x for x in range(8) for y in range(8) if (c := grid.get(x, y)) is not None and c.type == "door"
    )
    assert np.isfinite(found.values[:, :door]).any()
    assert np.isnan(found.values[:, door:]).all()  # the door is locked
    assert ((found.arrows == -1) | np.isfinite(found.values)).all()


def test_arrows_point_where_minigrid_goes():
    env = level()
    for direction, (dx, dy) in enumerate(DIRECTIONS):
        env.reset(seed=0)
        env.unwrapped.agent_dir = direction
        assert tuple(env.unwrapped.dir_vec) == (dx, dy)


def test_other_environments_are_refused(network):
    with pytest.raises(OwlTypeError, match="expected a MiniGrid environment"):
        value_map(network, gymnasium.make("CartPole-v1"), head=0)
    with pytest.raises(OwlValueError, match="there are no maps"):
        q_heatmap([])


def test_wrappers_are_looked_through(network):
    env = ImgObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0"))
    assert np.isfinite(value_map(network, env, head=0).values).sum() == 8  # nine cells, one the goal


def test_one_scale_for_all_maps():
    maps = [
        ValueMap(np.full((3, 3), value), np.full((3, 3), k), np.zeros((9, 9, 3), np.uint8), (1, 1), name, k)
        for k, (value, name) in enumerate(zip((0.0, 0.5, 2.0, np.nan), STRANGE, strict=True))
    ]
    figure = q_heatmap(maps)
    limits = [axes.images[1].get_clim() for axes in figure.axes[:4]]
    assert limits == [(0.0, 2.0)] * 4
    assert png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("number", [5, 12])
def test_maps_can_be_drawn(network, number):
    found = value_map(network, level(), head=0, name="a")
    assert png(q_heatmap([found] * number)).startswith(b"\x89PNG")
    assert png(q_heatmap(found)).startswith(b"\x89PNG")


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
