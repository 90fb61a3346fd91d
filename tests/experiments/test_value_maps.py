from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from minigrid.wrappers import ImgObsWrapper

from owlrl.envs import task_set
from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.experiments import Session, ValueMap, q_heatmap, value_map
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
