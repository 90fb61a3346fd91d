"""Every formula against a loop in plain Python floats, and finite for all finite input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from owlrl.selection import (
    distribution,
    draw,
    fixed_share,
    hedge_update,
    paper_update,
    relative_losses,
    released_update,
    score,
)

ANY = st.floats(-1e300, 1e300, allow_nan=False, allow_infinity=False)
TAME = st.floats(-20, 20)
LOSS = st.floats(0, 10)
ETA = st.floats(1e-3, 10)
DECAY = st.floats(0, 1)
SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 7))


def tables(elements, count=1):
    """``count`` arrays (E, n) of one shape."""
    return SHAPES.flatmap(
        lambda shape: st.tuples(*[hnp.arrays(np.float64, shape, elements=elements)] * count)
    )


# --- the slow, obvious way, one episode at a time ----------------------------------------------------


def oracle_hedge(log_weights, losses, eta, decay):
    return [decay * w - eta * x for w, x in zip(log_weights, losses, strict=True)]


def oracle_paper(log_weights, losses, arm, p, eta, decay):
    moved = [decay * w for w in log_weights]
    moved[arm] += eta * (50.0 if losses[arm] <= 0 else min(1 / losses[arm], 50.0)) / p[arm]
    return moved


def oracle_released(log_weights, losses, eta, decay):
    moved = []
    for w, x in zip(log_weights, losses, strict=True):
        w = decay * w
        moved.append(w + eta * (50.0 if x <= 0 else min(1 / x, 50.0)) / max(math.exp(w), 1e-4))
    return moved


def oracle_softmax(log_weights):
    top = max(log_weights)
    weights = [math.exp(w - top) for w in log_weights]
    return [w / math.fsum(weights) for w in weights]


def same_distribution(log_weights, wanted):
    """Log-weights matter up to a constant: compare what is drawn from."""
    for got, want in zip(log_weights, wanted, strict=True):
        np.testing.assert_allclose(distribution(got[None])[0], oracle_softmax(want), rtol=1e-9, atol=1e-12)


@given(tables(st.floats(-20, 20), 2), ETA, DECAY)
def test_hedge_equals_the_loop(pair, eta, decay):
    log_weights, losses = pair
    moved = hedge_update(log_weights, losses, eta=eta, decay=decay)
    wanted = [
        oracle_hedge(w, x, eta, decay) for w, x in zip(log_weights.tolist(), losses.tolist(), strict=True)
    ]
    same_distribution(moved, wanted)


@given(tables(LOSS, 2), ETA, DECAY, st.data())
def test_paper_equals_the_loop(pair, eta, decay, data):
    log_weights, losses = pair
    p = distribution(log_weights)
    arms = np.array([data.draw(st.integers(0, p.shape[1] - 1)) for _ in p])
    moved = paper_update(log_weights, losses, arms, p, eta=eta, decay=decay)
    wanted = [
        oracle_paper(w, x, a, q, eta, decay)
        for w, x, a, q in zip(log_weights.tolist(), losses.tolist(), arms.tolist(), p.tolist(), strict=True)
    ]
    same_distribution(moved, wanted)


@given(tables(LOSS, 2), ETA, DECAY)
def test_released_equals_the_loop(pair, eta, decay):
    log_weights, losses = pair
    moved = released_update(log_weights, losses, eta=eta, decay=decay)
    wanted = [
        oracle_released(w, x, eta, decay) for w, x in zip(log_weights.tolist(), losses.tolist(), strict=True)
    ]
    # ℓ itself, not only its differences: the next step divides by exp ℓ
    np.testing.assert_allclose(moved, wanted, rtol=1e-12)


def test_updates_by_hand():
    start, losses = np.zeros((1, 2)), np.array([[0.5, 0.25]])
    np.testing.assert_allclose(hedge_update(start, losses, eta=2.0), [[-0.5, 0.0]])
    np.testing.assert_allclose(
        paper_update(start, losses, np.array([1]), np.array([[0.8, 0.2]]), eta=2.0), [[-40.0, 0.0]]
    )  # 2 · min(1 / 0.25, 50) / 0.2
    first = released_update(start, losses, eta=2.0)
    np.testing.assert_allclose(first, [[4.0, 8.0]])  # 2 · 2 / exp 0 and 2 · 4 / exp 0
    second = released_update(first, losses, eta=2.0)
    np.testing.assert_allclose(second, [[3.6 + 4 / math.exp(3.6), 7.2 + 8 / math.exp(7.2)]])


def test_paper_update_leaves_its_input_alone():
    log_weights, p = np.zeros((2, 3)), np.full((2, 3), 1 / 3)
    paper_update(log_weights, np.ones((2, 3)), np.array([0, 2]), p, eta=1.0)
    assert not log_weights.any()


# --- invariances ------------------------------------------------------------------------------------


@given(tables(TAME, 2), ETA, st.floats(-100, 100))
def test_hedge_sees_differences_only(pair, eta, shift):
    log_weights, losses = pair
    np.testing.assert_allclose(
        hedge_update(log_weights, losses + shift, eta=eta),
        hedge_update(log_weights + shift, losses, eta=eta),
        atol=1e-9,
    )


def test_released_does_not_see_differences_only():
    losses = np.array([[1.0, 2.0]])
    moved = [np.diff(released_update(np.full((1, 2), shift), losses, eta=1.0)).item() for shift in (0.0, 1.0)]
    assert moved[0] != pytest.approx(moved[1])


@given(tables(LOSS, 2), st.randoms(use_true_random=False))
def test_order_of_arms_does_not_matter(pair, random):
    log_weights, losses = pair
    order = list(range(losses.shape[1]))
    random.shuffle(order)
    arms = np.zeros(len(losses), dtype=np.int64)
    moved_arms = np.full(len(losses), order.index(0))
    p = distribution(log_weights)
    for update in (
        lambda w, x, a, q: hedge_update(w, relative_losses(x), eta=0.9, decay=0.9),
        lambda w, x, a, q: paper_update(w, x, a, q, eta=0.9),
        lambda w, x, a, q: released_update(w, x, eta=0.9),
        lambda w, x, a, q: fixed_share(w, 0.1),
        lambda w, x, a, q: distribution(w, 0.01),
    ):
        np.testing.assert_allclose(
            update(log_weights, losses, arms, p)[:, order],
            update(log_weights[:, order], losses[:, order], moved_arms, p[:, order]),
            atol=1e-12,
        )


@given(tables(TAME), st.floats(0, 1e300), ETA)
def test_equal_losses_change_nothing(one, loss, eta):
    (log_weights,) = one
    losses = np.full_like(log_weights, loss)
    for seen in (losses, relative_losses(losses)):
        moved = hedge_update(log_weights, seen, eta=eta)
        np.testing.assert_allclose(distribution(moved), distribution(log_weights), atol=1e-12)


@given(tables(st.just(0.0) | st.floats(1e-50, 1e10)), st.floats(1e-10, 1e10))
def test_relative_losses_have_no_unit(one, unit):
    (losses,) = one
    relative = relative_losses(losses)
    np.testing.assert_allclose(relative_losses(losses * unit), relative, rtol=1e-12)
    assert set(relative.max(-1)) <= {0.0, 1.0}


@given(tables(ANY))
def test_score_is_capped_and_falls_with_the_loss(one):
    (losses,) = one
    got = score(losses)
    assert ((got > 0) & (got <= 50)).all()
    order = losses.argsort(-1)
    assert (np.diff(np.take_along_axis(got, order, -1)) <= 0).all()


def test_score_of_nothing_and_less_is_the_cap():
    assert score(np.array([0.0, -3.0, 0.02, 0.01, 4.0])).tolist() == [50.0, 50.0, 50.0, 50.0, 0.25]


# --- fixed share, floor -----------------------------------------------------------------------------


@given(tables(TAME), st.floats(0, 1, exclude_max=True))
def test_fixed_share_equals_the_loop(one, share):
    (log_weights,) = one
    for row, got in zip(log_weights.tolist(), np.exp(fixed_share(log_weights, share)), strict=True):
        mean = math.fsum(map(math.exp, row)) / len(row)
        np.testing.assert_allclose(got, [(1 - share) * math.exp(w) + share * mean for w in row], rtol=1e-12)


def test_fixed_share_lets_a_ruled_out_arm_come_back():
    ruled_out = np.array([[0.0, -1e300]])
    np.testing.assert_allclose(distribution(fixed_share(ruled_out, 0.2)), [[0.9, 0.1]])
    assert np.isfinite(fixed_share(ruled_out, 5e-324)).all()


@given(tables(TAME), st.floats(0, 1))
def test_floor_is_kept(one, part):
    (log_weights,) = one
    floor = part / log_weights.shape[1]
    p = distribution(log_weights, floor)
    assert (p >= floor - 1e-15).all()
    np.testing.assert_allclose(p.sum(-1), 1.0, atol=1e-12)
    np.testing.assert_allclose(
        p, (1 - log_weights.shape[1] * floor) * distribution(log_weights) + floor, atol=1e-15
    )


# --- finite whatever comes --------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 10, 1000]),
    st.sampled_from([1e-300, 0.88, 1e300]),
    DECAY,
    st.floats(0, 1, exclude_max=True),
    st.data(),
)
def test_finite_for_all_finite_input(episodes, arms, eta, decay, share, data):
    extreme = st.sampled_from([0.0, -0.0, 1.0, 5e-324, 1e-300, 1e300, -1e300, 1.7e308, -1.7e308]) | ANY
    draws = [hnp.arrays(np.float64, (episodes, arms), elements=extreme, fill=extreme) for _ in range(4)]
    weights = [np.zeros((episodes, arms))] * 4
    for losses in (data.draw(table) for table in draws):
        probabilities = [distribution(w) for w in weights]
        arm = draw(probabilities[3], np.full(episodes, 0.5))
        moved = [
            hedge_update(weights[0], losses, eta=eta, decay=decay),
            hedge_update(weights[1], relative_losses(losses), eta=eta, decay=decay),
            released_update(weights[2], losses, eta=eta, decay=decay),
            paper_update(weights[3], losses, arm, probabilities[3], eta=eta, decay=decay),
        ]
        weights = [fixed_share(w, share) for w in moved]
        for w in weights:
            assert np.isfinite(w).all()
            for p in (distribution(w), distribution(w, 0.5 / arms)):
                assert ((p >= 0) & (p <= 1 + 1e-12)).all()
                np.testing.assert_allclose(p.sum(-1), 1.0, atol=1e-12)


def test_paper_update_survives_an_arm_of_no_probability():
    moved = paper_update(
        np.array([[0.0, -1e300]]), np.array([[1.0, 0.0]]), np.array([1]), np.array([[1.0, 0.0]]), eta=0.88
    )
    assert np.isfinite(moved).all()


# --- drawing ----------------------------------------------------------------------------------------


@given(tables(st.floats(-30, 30)), st.data())
def test_draw_equals_the_loop(one, data):
    p = distribution(one[0])
    uniforms = np.array([data.draw(st.floats(0, 1, exclude_max=True)) for _ in p])
    for row, uniform, arm in zip(p, uniforms, draw(p, uniforms), strict=True):
        cumulative = np.cumsum(row)
        wanted = next(i for i in range(len(row)) if cumulative[i] > uniform * cumulative[-1])
        assert arm == wanted


def test_draw_never_takes_an_arm_of_no_probability():
    p = np.array([[0.0, 0.3, 0.0, 0.7, 0.0]])
    edge = np.nextafter(1.0, 0.0)
    assert [draw(p, np.array([u])).item() for u in (0.0, 0.3, 0.31, edge)] == [1, 3, 3, 3]


def test_draw_follows_the_probabilities():
    p = np.array([0.1, 0.0, 0.6, 0.3])
    arms = draw(np.tile(p, (100_000, 1)), np.random.default_rng(0).random(100_000))
    np.testing.assert_allclose(np.bincount(arms, minlength=4) / 1e5, p, atol=0.005)
