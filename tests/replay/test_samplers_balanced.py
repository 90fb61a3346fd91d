"""Reward-balanced draws: the share, the steps before a reward, and the list of rewarded rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.errors import OwlValueError
from owlrl.replay import RewardBalancedSampler, TaskScopedReplay


def make(capacity, fraction=1 / 8, **arguments):
    return TaskScopedReplay(
        capacity,
        observation_shape=(),
        observation_dtype=np.int64,
        seed=0,
        sampler=fraction if isinstance(fraction, RewardBalancedSampler) else RewardBalancedSampler(fraction),
        **arguments,
    )


def fill(replay, rewards, *, ends=()):
    for step, reward in enumerate(rewards):
        replay.add(step, step, reward, step + 1, step in ends, False)


def rewarded(replay):
    draw = replay._store.draw
    return draw._rows[: draw._size]


@pytest.mark.parametrize(
    ("fraction", "batch", "least"), [(1 / 8, 32, 4), (0.5, 10, 5), (1.0, 8, 8), (0.0, 8, 0)]
)
def test_the_share_of_every_batch_is_rewarded(fraction, batch, least):
    replay = make(5000, fraction)
    fill(replay, [float(step in (100, 2000)) for step in range(5000)])
    for _ in range(50):
        drawn = replay.sample(batch)
        assert (drawn.reward[:least] == 1.0).all()
        # the rest is uniform, where a reward is a rare guest
        assert (drawn.reward[least:] == 1.0).sum() <= 2
        assert drawn.weight is None


def test_a_share_that_is_no_whole_number_holds_on_average():
    replay = make(5000, 0.15)
    fill(replay, [float(step == 7) for step in range(5000)])
    counts = [int((replay.sample(10).reward == 1.0).sum()) for _ in range(4000)]
    assert set(counts) <= {1, 2, 3}
    assert abs(np.mean(counts) - 1.5) < 5 * 0.5 / np.sqrt(4000) + 10 / 5000


def test_rewarded_rows_are_equally_likely_and_negative_rewards_count():
    replay = make(1000, 1.0)
    fill(replay, [{3: 1.0, 500: -1.0, 900: 5.0}.get(step, 0.0) for step in range(1000)])
    drawn = np.concatenate([replay.sample(100).observation.numpy() for _ in range(60)])
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [3, 500, 900]
    np.testing.assert_allclose(counts / 2000, 1.0, atol=5 * np.sqrt(2 / 6000))


def test_without_rewards_all_rows_are_uniform():
    replay = make(50, 1.0)
    fill(replay, [0.0] * 50)
    drawn = np.concatenate([replay.sample(50).observation.numpy() for _ in range(400)])
    np.testing.assert_allclose(np.bincount(drawn) / 400, 1.0, atol=5 / np.sqrt(400))


def test_n_step_draws_every_return_that_holds_the_reward():
    replay = make(1000, 1.0, n_step=4, gamma=0.5)
    # an episode of 10 steps whose last is rewarded, and one whose second is
    fill(replay, [float(step in (9, 11)) for step in range(500)], ends={9, 11})
    drawn = [replay.sample(100) for _ in range(60)]
    observation = np.concatenate([batch.observation.numpy() for batch in drawn])
    values, counts = np.unique(observation, return_counts=True)
    assert values.tolist() == [6, 7, 8, 9, 10, 11]
    # stepping back stops at the episode's start: 10 stands for one, two and three steps back
    np.testing.assert_allclose(counts / 6000, [1 / 8, 1 / 8, 1 / 8, 1 / 8, 3 / 8, 1 / 8], atol=0.03)
    reward = np.concatenate([batch.reward.numpy() for batch in drawn])
    assert (reward > 0).all()


def test_a_longer_reach_draws_the_way_to_the_reward_and_no_other_episode():
    replay = make(1000, RewardBalancedSampler(1.0, reach=8))
    fill(replay, [float(step in (9, 11)) for step in range(500)], ends={9, 11})
    drawn = np.concatenate([replay.sample(100).observation.numpy() for _ in range(60)])
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [*range(2, 10), 10, 11]
    np.testing.assert_allclose(counts / 6000, [1 / 16] * 8 + [7 / 16, 1 / 16], atol=0.03)


@settings(deadline=None, max_examples=40)
@given(
    capacity=st.integers(2, 12), envs=st.integers(1, 3), seed=st.integers(0, 999), count=st.integers(0, 40)
)
def test_the_list_is_always_that_of_the_live_rewarded_rows(capacity, envs, seed, count):
    replay = make(capacity * envs, num_envs=envs)
    rng = np.random.default_rng(seed)
    ring = replay._store.ring
    for _ in range(count):
        observation = rng.integers(0, 3, (2, envs))
        reward = (rng.random(envs) < 0.6).astype(np.float32)
        no, over = np.zeros(envs, bool), rng.random(envs) < 0.3
        replay.add_batch(observation[0], np.zeros(envs, int), reward, observation[1], over, no)
        live = ring.live_rows()
        assert sorted(rewarded(replay)) == live[ring.reward[live] != 0].tolist()
        draw = replay._store.draw
        np.testing.assert_array_equal(draw._place[rewarded(replay)], np.arange(draw._size))
    replay.clear()
    assert len(rewarded(replay)) == 0
    assert (replay._store.draw._place == -1).all()


def test_small_rewards_such_as_a_bonus_need_not_count():
    bonus = [0.01] * 100
    bonus[40], bonus[60] = 1.0, -0.5
    replay = make(100, RewardBalancedSampler(0.5, above=0.05))
    fill(replay, bonus)
    assert sorted(rewarded(replay)) == [40, 60]
    assert set(replay.sample(8).action[:4].tolist()) <= {40, 60}
    again = make(100, RewardBalancedSampler(0.5, above=0.05))
    again.load_state_dict(replay.state_dict())
    assert sorted(rewarded(again)) == [40, 60]


def test_settings_are_checked():
    with pytest.raises(
        OwlValueError,
        match=r"RewardBalancedSampler: fraction is 1\.5; expected a finite number",
    ):
        RewardBalancedSampler(1.5)
    with pytest.raises(OwlValueError, match=r"above is -1; expected a finite number >= 0"):
        RewardBalancedSampler(above=-1)
    with pytest.raises(OwlValueError, match=r"reach is 0; expected an int >= 1"):
        RewardBalancedSampler(reach=0)
    assert repr(RewardBalancedSampler()) == "RewardBalancedSampler(0.125)"
    assert repr(RewardBalancedSampler(above=0.5)) == "RewardBalancedSampler(0.125, above=0.5)"
    assert repr(RewardBalancedSampler(reach=9)) == "RewardBalancedSampler(0.125, reach=9)"
