"""screen_level: what passes, what does not, and why."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from owlrl.envs import CrossroadsEnv, TaskSpec, screen_level
from owlrl.envs.screen import _random_success, _TabularQ
from owlrl.envs.task_sets import DK2, SC12
from owlrl.errors import OwlValueError

from .helpers import line, random_tables


@pytest.mark.parametrize("level", [3, 13])
def test_a_good_level_passes(level):
    result = screen_level(TaskSpec.of("owlrl/SimpleCrossing-v0", level=level).table(), runs=2, frames=200_000)
    assert result.passed
    assert result.held == (1.0, 1.0)
    assert 0.01 < result.random_success < 0.03


def test_a_level_that_needs_memory_does_not():
    result = screen_level(TaskSpec.of("owlrl/SimpleCrossing-v0", level=25).table(), runs=2, frames=200_000)
    assert not result.passed
    assert max(result.held) < 0.5
    # two places that look alike, of which one needs left and the other right
    blind = line(4, obs_index=[0, 1, 0, 2], next_state=[[1, 0], [0, 2], [1, 3], [3, 3]], max_episode_steps=20)
    assert screen_level(blind, runs=1, frames=4_000).held == (0.0,)


def test_a_goal_that_chance_never_finds_does_not_pass():
    far = line(14, max_episode_steps=14)
    assert screen_level(far, runs=1, frames=40_000, find=0.0).passed
    result = screen_level(far, runs=1, frames=40_000)
    assert not result.passed
    assert result.held == (1.0,)
    assert result.random_success == pytest.approx(_chance(far, 14), rel=1e-6)


def _chance(table, steps):
    """Of success, by trying all sequences of actions."""
    successes = 0
    for actions in product(range(table.num_actions), repeat=steps):
        state = table.start
        for action in actions:
            if table.terminated[state, action]:
                successes += table.goal[state, action]
                break
            state = table.next_state[state, action]
    return successes / table.num_actions**steps


@settings(max_examples=25)
@given(table=random_tables())
def test_the_chance_of_random_success(table):
    import dataclasses

    short = dataclasses.replace(table, max_episode_steps=6)
    assert _random_success(short) == pytest.approx(_chance(short, 6))
    assert _random_success(table) >= _random_success(short)


def test_q_learning_step_by_step():
    learner = _TabularQ(line(3, max_episode_steps=3))
    assert learner.values == [[1.0, 1.0]] * 3
    learner.learn([0, 1, 1])  # stay, go, arrive
    expected = [[1 + 0.1 * (0.99 - 1), 1 + 0.1 * (0.99 - 1)], [1.0, 1.0], [1.0, 1.0]]
    np.testing.assert_allclose(learner.values, expected)
    assert (learner.state, learner.step) == (0, 0)
    learner.learn([0, 0, 0])  # cut off after three steps
    assert (learner.state, learner.step) == (0, 0)
    assert learner.greedy().tolist() == [1, 0, 0]


def test_it_is_repeatable_and_takes_an_environment():
    one, other = (screen_level(CrossroadsEnv(3, 1), runs=2, frames=3_000, seed=4) for _ in range(2))
    assert one == other


def test_bad_arguments_are_all_named():
    with pytest.raises(OwlValueError, match="5 problems"):
        screen_level(line(3), runs=0, frames=10, hold=1.5, find=-0.1, seed=-1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "level", "frames"),
    [
        *(("owlrl/SimpleCrossing-v0", level, 300_000) for level in SC12),
        *(("owlrl/DoorKey-v0", level, 1_000_000) for level in DK2),
    ],
)
def test_the_task_sets_pass(env_id, level, frames):
    assert screen_level(TaskSpec.of(env_id, level=level).table(), frames=frames).passed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "level", "frames"),
    [
        *(("owlrl/SimpleCrossing-v0", level, 300_000) for level in (1, 25, 39)),
        *(("owlrl/DoorKey-v0", level, 1_000_000) for level in (0, 1, 2, 3, 5)),
    ],
)
def test_others_do_not_pass(env_id, level, frames):
    assert not screen_level(TaskSpec.of(env_id, level=level).table(), frames=frames).passed
