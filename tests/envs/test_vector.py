"""Environments stepped as arrays: what they say of their state is all that it takes to go on."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from owlrl.checkpoint import load_state, save_state
from owlrl.envs import PendulumVectorEnv, ReachVectorEnv, TabulatedVectorEnv, tabulate
from owlrl.wrapper_state import same_state


def corridor() -> TabulatedVectorEnv:
    table = tabulate(gymnasium.make("owlrl/Crossroads-v0", arms=2, length=1))
    return TabulatedVectorEnv(table, 3, max_episode_steps=5, count_bonus=0.1)


MAKERS = {
    "corridor": corridor,
    "pendulum": lambda: PendulumVectorEnv(3, angle=90, max_episode_steps=5),
    "reach": lambda: ReachVectorEnv(3, goal=(1.0, 0.5), max_episode_steps=5),
}


def steps(env, rng, count):
    shape = env.action_space.shape
    for _ in range(count):
        yield env.step(
            rng.integers(3, size=shape) if len(shape) == 1 else rng.uniform(-1, 1, shape).astype(np.float32)
        )


@pytest.mark.parametrize("name", MAKERS)
def test_going_on_from_a_state_is_exact(name, tmp_path):
    one, other = MAKERS[name](), MAKERS[name]()
    one.reset(seed=3)
    rng = np.random.default_rng(0)
    list(steps(one, rng, 7))  # in the middle of the second episodes
    save_state(tmp_path / "state", one.state_dict())
    other.load_state_dict(load_state(tmp_path / "state"))
    seeds = rng.integers(2**31)
    found = [list(steps(env, np.random.default_rng(seeds), 20)) for env in (one, other)]
    for mine, theirs in zip(*found, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(mine[:4], theirs[:4], strict=True))
        assert mine[4].keys() == theirs[4].keys()
    assert any("final_obs" in step[4] for step in found[0])
    assert same_state(one.state_dict(), other.state_dict())
