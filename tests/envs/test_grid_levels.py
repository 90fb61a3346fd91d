"""The seeded levels: Gymnasium's and SB3's checks, MiniGrid's own layouts, the same at every reset."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from minigrid.core.world_object import Wall
from minigrid.envs.crossing import CrossingEnv
from minigrid.envs.doorkey import DoorKeyEnv as MiniGridDoorKeyEnv
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from owlrl.envs import DoorKeyEnv, SimpleCrossingEnv
from owlrl.errors import OwlValueError

IDS = ["owlrl/SimpleCrossing-v0", "owlrl/DoorKey-v0", "owlrl/Crossroads-v0"]


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_check(env_id):
    check_env(gymnasium.make(env_id).unwrapped)


@pytest.mark.parametrize("env_id", IDS)
def test_sb3_check(env_id):
    sb3_check_env(gymnasium.wrappers.FlattenObservation(gymnasium.make(env_id)))
    # SB3 says of every image below 36×36 that its default CNN needs a larger one, and nothing else of ours.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sb3_check_env(gymnasium.make(env_id))
    assert ["36x36" in str(warning.message) for warning in caught] == [True]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SimpleCrossingEnv(3), CrossingEnv(size=9, num_crossings=1, obstacle_type=Wall, max_steps=100)),
        (
            SimpleCrossingEnv(3, size=11, num_crossings=5, max_steps=70),
            CrossingEnv(size=11, num_crossings=5, obstacle_type=Wall, max_steps=70),
        ),
        (DoorKeyEnv(3), MiniGridDoorKeyEnv(size=8, max_steps=100)),
        (DoorKeyEnv(3, size=6, num_actions=6), MiniGridDoorKeyEnv(size=6, max_steps=100)),
    ],
)
def test_level_is_minigrids_with_that_seed(ours, theirs):
    generator = np.random.default_rng(0)
    seen, _ = ours.reset(seed=77)
    expected, _ = theirs.reset(seed=3)
    assert np.array_equal(seen, expected["image"])
    for _ in range(ours.max_steps):
        action = int(generator.integers(ours.num_actions))
        seen, *rest, _ = ours.step(action)
        expected, *expected_rest, _ = theirs.step(action)
        assert np.array_equal(seen, expected["image"])
        assert rest == expected_rest
    assert rest[1:] == [False, True]


def test_layout_stays_and_the_generator_is_the_environments_own():
    env = SimpleCrossingEnv(7)
    grids, draws = [], []
    for seed in (1, 1, 2, None):
        env.reset(seed=seed)
        grids.append(env.grid.encode())
        draws.append(env.np_random.random())
    assert all(np.array_equal(grids[0], grid) for grid in grids)
    assert draws[0] == draws[1] != draws[2]
    assert not np.array_equal(grids[0], _grid(SimpleCrossingEnv(3)))


def _grid(env):
    env.reset()
    return env.grid.encode()


def test_success_is_told_at_the_end():
    env = SimpleCrossingEnv(3, max_steps=30)
    env.reset()
    env.agent_pos, env.agent_dir = (7, 6), 1
    _, reward, terminated, truncated, info = env.step(2)
    assert (reward, terminated, truncated, info) == (1 - 0.9 / 30, True, False, {"is_success": True})
    env.reset()
    infos = [env.step(0)[2:] for _ in range(30)]
    assert infos[:-1] == [(False, False, {})] * 29
    assert infos[-1] == (False, True, {"is_success": False})


def test_actions_outside_the_space_are_refused():
    env = SimpleCrossingEnv(3)
    env.reset()
    for action in (3, -1, 1.0, "left"):
        with pytest.raises(OwlValueError, match="expected an int from 0 to 2"):
            env.step(action)
    assert env.step_count == 0


def test_rendering():
    env = gymnasium.make("owlrl/SimpleCrossing-v0", render_mode="rgb_array", tile_size=8, highlight=False)
    env.reset()
    assert env.render().shape == (72, 72, 3)


@pytest.mark.parametrize(
    ("make", "wrong", "named"),
    [
        (SimpleCrossingEnv, {"level": -1}, ["level"]),
        (
            SimpleCrossingEnv,
            {"level": True, "size": 8, "num_crossings": 0, "num_actions": 8},
            ["level", "size", "num_crossings", "num_actions"],
        ),
        (SimpleCrossingEnv, {"size": 9, "num_crossings": 7}, ["num_crossings"]),
        (SimpleCrossingEnv, {"size": "9"}, ["size"]),
        (
            SimpleCrossingEnv,
            {"max_steps": 0, "render_mode": "human", "highlight": 1, "tile_size": 0},
            ["max_steps", "render_mode", "highlight", "tile_size"],
        ),
        (DoorKeyEnv, {"num_actions": 3, "size": 4, "level": 1.5}, ["num_actions", "size", "level"]),
    ],
)
def test_bad_arguments_are_all_named(make, wrong, named):
    with pytest.raises(OwlValueError) as caught:
        make(**wrong)
    assert all(f"{name} is" in str(caught.value) for name in named)
    assert str(caught.value).count("expected") == len(named)
