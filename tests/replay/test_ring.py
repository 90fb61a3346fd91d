"""The ring: frames stored once, boundaries where they belong, uniform draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.replay.ring import ArraySpec, FrameRing, Rows, RowSpec, fair_shares
from tests.replay.oracle import Lane, Step, expected_rows


def make(capacity, *, lanes=1, shape=(), action_shape=(), action_dtype=np.int64):
    action = ArraySpec(action_shape, np.dtype(action_dtype))
    spec = RowSpec(ArraySpec(shape, np.dtype(np.uint8)), action)
    return FrameRing(spec, capacity=capacity, num_lanes=lanes)


def put(ring, *steps, lanes=None):
    """One step per lane."""
    observation, action, reward, after, terminated, truncated = zip(*steps, strict=True)
    shape = (len(steps), *ring.spec.observation.shape)
    frames = [
        np.broadcast_to(np.reshape(x, (-1,) + (1,) * (len(shape) - 1)), shape).astype(ring.observation.dtype)
        for x in (observation, after)
    ]
    rows = Rows(
        frames[0],
        np.array(action),
        np.array(reward, np.float32),
        frames[1],
        np.array(terminated, bool),
        np.array(truncated, bool),
    )
    return ring.add(np.arange(len(steps)) if lanes is None else np.asarray(lanes), rows)


def walk(count, *, start=0, episode=None):
    """Steps of one environment: observations count up; an episode ends after ``episode`` steps."""
    steps, now = [], start
    for i in range(count):
        over = episode is not None and (i + 1) % episode == 0
        steps.append(Step(now % 251, i, float(i % 3), (now + 1) % 251, False, over))
        now += 2 if over else 1
    return steps


def test_an_endless_episode_stores_every_observation_once():
    ring = make(100, shape=(7, 7, 3))
    for step in walk(100):
        put(ring, step)
    assert len(ring) == 100
    assert ring.observation.nbytes == 101 * 7 * 7 * 3
    assert ring.nbytes < 101 * (7 * 7 * 3 + 20)
    np.testing.assert_array_equal(ring.observation[:, 0, 0, 0], np.arange(101))


@pytest.mark.parametrize("length", [1, 2, 5])
def test_an_episode_takes_one_row_more_than_it_has_steps(length):
    ring = make(59)
    for step in walk(200, episode=length):
        put(ring, step)
    assert abs(len(ring) - 60 * length / (length + 1)) <= 1
    assert ring.span == ring.num_rows == 60


@settings(deadline=None, max_examples=60)
@given(
    capacity=st.integers(1, 12),
    lanes=st.integers(1, 3),
    n_step=st.integers(1, 5),
    seed=st.integers(0, 10_000),
    count=st.integers(0, 40),
)
def test_around_the_end_it_holds_what_lists_hold(capacity, lanes, n_step, seed, count):
    capacity *= lanes
    ring, model = make(capacity, lanes=lanes), [Lane(capacity // lanes + 1) for _ in range(lanes)]
    rng = np.random.default_rng(seed)
    dropped_all, added_all = set(), set()
    for clock in range(count):
        chosen = np.flatnonzero(rng.random(lanes) < 0.8)
        steps = []
        for lane in chosen:
            episodes = model[lane].episodes
            goes_on = episodes and episodes[-1] and rng.random() < 0.8
            start = episodes[-1][-1].next_observation if goes_on else int(rng.integers(3))
            end = rng.random(2) < 0.2
            steps.append(
                Step(
                    start, clock * lanes + int(lane), float(rng.normal()), int(rng.integers(3)), *end.tolist()
                )
            )
            model[lane].add(steps[-1])
        if steps:
            added, dropped = put(ring, *steps, lanes=chosen)
            dropped_all |= set(dropped)
            added_all = (added_all - set(dropped)) | set(added)
    expected = expected_rows(model, n_step, 0.9)
    rows = ring.live_rows()
    assert set(rows) == added_all
    observation, action, reward, after, terminated, discount = ring.gather(rows, n_step, 0.9)
    assert sorted(action) == sorted(expected)
    for b, key in enumerate(action.tolist()):
        row = expected[key]
        assert (observation[b], after[b], terminated[b]) == (
            row.observation,
            row.next_observation,
            row.terminated,
        )
        np.testing.assert_allclose([reward[b], discount[b]], [row.reward, row.discount], rtol=1e-5, atol=1e-6)
    assert len(ring) == len(expected) == ring.live.sum()


def test_a_truncated_row_bootstraps_from_its_final_observation_and_a_terminated_one_says_so():
    ring = make(10)
    put(ring, Step(1, 0, 1.0, 2, False, False))
    put(ring, Step(2, 1, 1.0, 9, False, True))
    put(ring, Step(5, 2, 1.0, 6, False, False))
    put(ring, Step(6, 3, 1.0, 8, True, False))
    put(ring, Step(5, 4, 1.0, 6, False, False))
    _, action, reward, after, terminated, discount = ring.gather(ring.live_rows(), 3, 0.5)
    np.testing.assert_array_equal(action, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(reward, [1.5, 1.0, 1.5, 1.0, 1.0])
    np.testing.assert_array_equal(after, [9, 9, 8, 8, 6])
    np.testing.assert_array_equal(terminated, [False, False, True, True, False])
    np.testing.assert_array_equal(discount, np.float32([0.25, 0.5, 0.25, 0.5, 0.5]))


def test_a_reset_without_a_flag_leaves_a_boundary():
    ring = make(10)
    put(ring, Step(1, 0, 1.0, 2, False, False))
    put(ring, Step(7, 1, 1.0, 8, False, False))
    _, _, reward, after, terminated, _ = ring.gather(ring.live_rows(), 5, 1.0)
    np.testing.assert_array_equal(reward, [1.0, 1.0])
    np.testing.assert_array_equal(after, [2, 8])
    assert not terminated.any()


def test_a_closed_ring_is_not_continued_even_by_an_equal_observation():
    ring = make(10)
    put(ring, Step(1, 0, 1.0, 2, False, False))
    ring.close()
    put(ring, Step(2, 1, 1.0, 3, False, False))
    np.testing.assert_array_equal(ring.gather(ring.live_rows(), 5, 1.0)[2], [1.0, 1.0])


def test_n_step_longer_than_the_ring():
    ring = make(3)
    for step in walk(10):
        put(ring, step)
    _, action, _, after, _, discount = ring.gather(ring.live_rows(), 50, 0.5)
    assert dict(zip(action.tolist(), discount.tolist(), strict=True)) == {7: 0.125, 8: 0.25, 9: 0.5}
    assert set(after.tolist()) == {10}


def frequencies(ring, draws=60_000):
    drawn = ring.draw(draws, np.random.default_rng(0))
    live = ring.live_rows()
    counts = np.bincount(drawn, minlength=ring.num_rows)
    assert counts.sum() == counts[live].sum()
    return counts[live] / draws * len(live)


@pytest.mark.parametrize("episode", [None, 1, 3])
@pytest.mark.parametrize("filled", [5, 200])
def test_draws_are_uniform_over_live_rows(episode, filled):
    ring = make(40)
    for step in walk(filled, episode=episode):
        put(ring, step)
    # five standard deviations of a count of 60,000 / 40
    np.testing.assert_allclose(frequencies(ring), 1.0, atol=5 * np.sqrt(40 / 60_000))


def test_draws_are_uniform_when_one_lane_is_much_longer():
    ring = make(400, lanes=8)
    for step in walk(50):
        put(ring, step, lanes=[3])
    assert 4 * len(ring) < ring.span
    np.testing.assert_allclose(frequencies(ring), 1.0, atol=5 * np.sqrt(50 / 60_000))


def test_draws_small_batches_until_enough_rows_are_live():
    ring = make(400)
    for step in walk(200, episode=1):
        put(ring, step)
    for seed in range(300):
        rows = ring.draw(1 + seed % 5, np.random.default_rng(seed))
        assert len(rows) == 1 + seed % 5
        assert ring.live[rows].all()


@settings(deadline=None, max_examples=100)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=6), limit=st.integers(0, 40))
def test_shares_are_fair(counts, limit):
    shares = fair_shares(np.array(counts), limit)
    assert shares.sum() == min(limit, sum(counts))
    assert (shares <= counts).all()
    cut = [share for share, count in zip(shares, counts, strict=True) if share < count]
    # whoever could have given more gives at most one less than whoever gives most
    assert not cut or min(cut) >= max(shares) - 1


@pytest.mark.parametrize("stored", [np.uint8, np.bool_, np.int64, np.float64, np.float32])
@pytest.mark.parametrize("n_step", [1, 2])
def test_actions_come_out_as_int64_or_float32_whatever_they_are_stored_in(stored, n_step):
    ring = make(4, action_shape=(2,), action_dtype=stored)
    put(ring, Step(0, (1, 0), 0.0, 1, False, False))
    action = ring.gather(ring.live_rows(), n_step, 0.9)[1]
    assert action.dtype == (np.float32 if np.dtype(stored).kind == "f" else np.int64)
    np.testing.assert_array_equal(action, [[1, 0]])


def test_clear_forgets_everything():
    ring = make(5)
    for step in walk(20, episode=3):
        put(ring, step)
    ring.clear()
    assert len(ring) == ring.span == len(ring.live_rows()) == 0
    put(ring, Step(1, 0, 0.0, 2, False, False))
    assert ring.live_rows().tolist() == [0]


def test_the_newest_rows_are_equal_bytes_whatever_was_there_before_them():
    old, fresh = make(8), make(8)
    for step in walk(40, episode=4):
        put(old, step)
    for step in walk(40, episode=4)[-8:]:
        put(fresh, step)
    for limit in range(1, 7):
        one, other = old.newest(limit), fresh.newest(limit)
        assert int(one["live"].sum()) == limit < len(one["live"])  # where an episode ended nothing starts
        assert all(one[name].tobytes() == other[name].tobytes() for name in one)
