"""The reward wrappers against sums done by hand."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from owlrl.envs import CountBonus, CrossroadsEnv, ScaleGoalReward, SimpleCrossingEnv, TabulatedEnv, tabulate
from owlrl.errors import OwlTypeError, OwlValueError


@pytest.mark.parametrize("tabulated", [False, True])
def test_count_bonus_counts_cells_over_episodes(tabulated):
    base = SimpleCrossingEnv(3, max_steps=30)
    env = TabulatedEnv(tabulate(base)) if tabulated else base
    bonus, plain, where = CountBonus(env, scale=0.3), SimpleCrossingEnv(3, max_steps=30), {}
    generator = np.random.default_rng(0)
    for _ in range(5):
        bonus.reset()
        plain.reset()
        for action in generator.choice(3, p=[0.2, 0.2, 0.6], size=30).tolist():
            seen, reward, *rest = bonus.step(action)
            expected = plain.step(action)
            place = tuple(map(int, plain.agent_pos))
            where[place] = where.get(place, 0) + 1
            assert reward == pytest.approx(expected[1] + 0.3 * where[place] ** -0.5)
            assert np.array_equal(seen, expected[0])
            assert rest == list(expected[2:])
    assert len(where) > 5


def test_count_bonus_of_any_environment():
    env = CountBonus(
        gymnasium.make("FrozenLake-v1", is_slippery=False), 1.0, cell=lambda env: env.unwrapped.s
    )
    env.reset(seed=0)
    assert [env.step(0)[1] for _ in range(2)] == pytest.approx([1.0, 2**-0.5])
    with pytest.raises(OwlTypeError, match="cell="):
        CountBonus(gymnasium.make("FrozenLake-v1"))


def test_goal_reward_is_scaled_and_nothing_else():
    env = ScaleGoalReward(CrossroadsEnv(2, 0, length=2, breadcrumbs=True), factor=10.0)
    env.reset()
    assert [env.step(action)[1] for action in (1, 2, 2)] == pytest.approx([0.0, 0.05, 10.5])
    env.reset()
    last = [env.step(action) for action in (0, 2, 2)][-1]
    assert last[1:] == (0.0, True, False, {"is_success": False})


def test_wrappers_are_part_of_the_spec():
    env = CountBonus(ScaleGoalReward(gymnasium.make("owlrl/Crossroads-v0"), factor=2.0), scale=0.5)
    again = gymnasium.make(env.spec)
    assert (again.scale, again.env.factor) == (0.5, 2.0)


@pytest.mark.parametrize("scale", [-1.0, float("inf"), "1", True])
def test_bad_scales(scale):
    with pytest.raises(OwlValueError, match="scale is"):
        CountBonus(CrossroadsEnv(2), scale)
    with pytest.raises(OwlValueError, match="factor is"):
        ScaleGoalReward(CrossroadsEnv(2), scale)


def test_a_success_must_still_be_seen():
    with pytest.raises(OwlValueError, match=r"factor is 0\.0; expected a finite number > 0"):
        ScaleGoalReward(CrossroadsEnv(2), 0.0)
