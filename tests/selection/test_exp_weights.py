"""Exponential weights: formulas against plain loops, the guarantee, many episodes, what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.protocols import HeadSelector, Stateful
from owlrl.selection import (
    ExpWeightsSelector,
    distribution,
    draw,
    fixed_share,
    hedge_update,
    paper_update,
    relative_losses,
    released_update,
    score,
)

VARIANTS = ["hedge", "paper", "released"]


def test_is_what_the_protocols_ask_for():
    assert isinstance(ExpWeightsSelector(), HeadSelector)
    assert isinstance(ExpWeightsSelector(), Stateful)
    assert ExpWeightsSelector().needs_values is False


# --- the guarantee ----------------------------------------------------------------------------------


def run(losses, *, seed, **options):
    """Expected and drawn loss of hedge on losses (T, E, n), each (E,)."""
    steps, episodes, arms = losses.shape
    options = {"eta": math.sqrt(8 * math.log(arms) / steps), "share": 0.0, "hold": 1, **options}
    selector = ExpWeightsSelector(decay=1.0, seed=seed, **options)
    selector.reset(arms, num_episodes=episodes)
    expected, drawn = np.zeros(episodes), np.zeros(episodes)
    for step in losses:
        expected += (selector.probabilities * step).sum(-1)
        drawn += step[np.arange(episodes), selector.select()]
        selector.update(step)
    return expected, drawn


def random_losses(rng, steps, arms):
    """Losses in [0, 1] for 100 seeds: some arms are better than others, by a different lot each time."""
    quality = rng.random((100, arms))
    return (rng.random((steps, 100, arms)) < quality).astype(float)


def drifting_losses(rng, steps, arms):
    """The best arm so far turns bad: what fools a selector that follows the leader."""
    losses = np.zeros((steps, 100, arms))
    total = rng.random((100, arms)) * 0.01
    for step in losses:
        step[np.arange(100), total.argmin(-1)] = 1.0
        total += step
    return losses


def sudden_losses(rng, steps, arms):
    """One arm is best for the first half and worst after it."""
    losses = rng.random((steps, 100, arms))
    losses[: steps // 2, :, 0] = 0.0
    losses[steps // 2 :, :, 0] = 1.0
    return losses


@pytest.mark.parametrize("make", [random_losses, drifting_losses, sudden_losses])
@pytest.mark.parametrize(("steps", "arms"), [(50, 2), (400, 10)])
def test_regret_is_within_the_bound(make, steps, arms):
    losses = make(np.random.default_rng(steps), steps, arms)
    bound = math.sqrt(steps * math.log(arms) / 2)
    best = losses.sum(0).min(-1)  # (100,), the best arm in hindsight of each seed
    expected, drawn = run(losses, seed=0)
    assert (expected - best <= bound * (1 + 1e-9)).all()  # the theorem, for each of 100 seeds
    assert (drawn - best).mean() <= 1.1 * bound  # what was really drawn, over 100 seeds


def test_regret_with_default_share_and_hold_is_within_the_bound():
    losses = random_losses(np.random.default_rng(1), 400, 10)
    expected, drawn = run(losses, seed=0, share=None, hold=None)
    bound = 1.1 * math.sqrt(400 * math.log(10) / 2)
    best = losses.sum(0).min(-1)
    assert (expected - best).max() <= bound
    assert (drawn - best).mean() <= bound


def test_the_bound_is_not_met_by_chance():
    losses = drifting_losses(np.random.default_rng(0), 400, 2)
    leader = run(losses, seed=0, eta=1e6)[0]  # follows the leader
    assert (leader - losses.sum(0).min(-1)).min() > 1.1 * math.sqrt(400 * math.log(2) / 2)


# --- the class is the formulas ----------------------------------------------------------------------


@settings(max_examples=40)
@given(
    hnp.arrays(
        np.float64,
        st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 5)),
        elements=st.floats(0, 9),
    ),
    st.sampled_from([0.0, 0.05, 0.9]),
    st.sampled_from([0.0, 0.1]),
)
def test_steps_are_the_formulas(losses, floor, share):
    _, episodes, arms = losses.shape
    kept = min(floor, 0.5 / arms)
    for variant in VARIANTS:
        relative = variant == "hedge" and share > 0
        selector = ExpWeightsSelector(
            eta=0.5, decay=0.8, variant=variant, floor=floor, share=share, relative=relative, seed=3
        )
        selector.reset(arms, num_episodes=episodes)
        weights = np.zeros((episodes, arms))
        for step in losses:
            p = distribution(weights, kept)
            np.testing.assert_allclose(selector.probabilities, p, atol=1e-13)
            drawn = selector.select()
            if variant == "hedge":
                seen = relative_losses(step) if relative else step
                weights = hedge_update(weights, seen, eta=0.5, decay=0.8)
            elif variant == "released":
                weights = released_update(weights, step, eta=0.5, decay=0.8)
            else:
                weights = paper_update(weights, step, drawn, p, eta=0.5, decay=0.8)
            weights = fixed_share(weights, share)
            selector.update(step)
        np.testing.assert_allclose(selector.probabilities, distribution(weights, kept), atol=1e-13)


@pytest.mark.parametrize(
    ("variant", "decay", "share", "hold"),
    [("hedge", 1.0, 0.001, 8), ("paper", 1.0, 0.0, 1), ("released", 0.9, 0.0, 1)],
)
def test_none_stands_for_the_variants_own(variant, decay, share, hold):
    losses = np.random.default_rng(0).random((30, 4, 3))
    runs = []
    for options in ({}, {"decay": decay, "share": share, "hold": hold}):
        selector = ExpWeightsSelector(variant=variant, seed=1, **options)
        selector.reset(3, num_episodes=4)
        drawn = []
        for step in losses:
            drawn.append(selector.select())
            selector.update(step)
        runs.append((np.array(drawn), selector.probabilities))
    np.testing.assert_array_equal(runs[0][0], runs[1][0])
    np.testing.assert_array_equal(runs[0][1], runs[1][1])
    assert ExpWeightsSelector(variant=variant).decay is None


@pytest.mark.parametrize("variant", VARIANTS)
def test_finds_the_arm_that_explains_best(variant):
    selector = ExpWeightsSelector(variant=variant, seed=0)
    selector.reset(4, num_episodes=50)
    for _ in range(30):
        selector.select()
        selector.update(np.tile([2.0, 2.0, 0.1, 3.0], (50, 1)))
    others = np.delete(selector.probabilities.mean(0), 2)
    assert (selector.probabilities.mean(0)[2] > 1.2 * others).all()


def test_a_task_that_changes_is_followed_with_share_only():
    for share, follows in ((0.001, True), (0.0, False)):
        selector = ExpWeightsSelector(share=share, seed=0)
        selector.reset(2)
        for losses in [[0.1, 2.0]] * 50 + [[2.0, 0.1]] * 10:
            selector.update(losses)
        assert (selector.probabilities[1] > 0.9) is np.bool_(follows)


# --- shapes: one episode, many, some --------------------------------------------------------------


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_many_episodes_are_each_one_alone(episodes, arms, seed):
    losses = np.random.default_rng(seed).exponential(size=(8, episodes, arms))
    for options in ({}, {"relative": True, "floor": 0.02}, {"variant": "released"}):
        together = ExpWeightsSelector(seed=seed, **options)
        together.reset(arms, num_episodes=episodes)
        alone = [ExpWeightsSelector(**options) for _ in range(episodes)]
        for selector in alone:
            selector.reset(arms)
        for step in losses:
            assert together.probabilities.shape == (episodes, arms)
            assert together.select().shape == (episodes,)
            together.update(step)
            for selector, row in zip(alone, step, strict=True):
                selector.update(row)
        np.testing.assert_allclose(together.probabilities, [s.probabilities for s in alone], atol=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_of_one_draws_what_one_alone_draws(variant):
    losses = np.random.default_rng(0).random((40, 5))
    single, batch = (ExpWeightsSelector(variant=variant, seed=7) for _ in range(2))
    single.reset(5)
    batch.reset(5, num_episodes=1)
    for row in losses:
        head, heads = single.select(), batch.select()
        assert type(head) is int
        assert heads.dtype == np.int64
        assert heads.tolist() == [head]
        single.update(row)
        batch.update(row[None])
        np.testing.assert_array_equal(batch.probabilities, single.probabilities[None])


def test_seeds_reproduce_and_differ():
    def heads(seed):
        selector = ExpWeightsSelector(seed=seed, hold=1)
        selector.reset(5)
        return [selector.select() for _ in range(40)]

    assert heads(1) == heads(1)
    assert heads(1) != heads(2)


def test_two_resets_do_not_repeat_the_draws():
    selector = ExpWeightsSelector(seed=0, hold=1)
    runs = []
    for _ in range(2):
        selector.reset(10)
        runs.append([selector.select() for _ in range(20)])
    assert runs[0] != runs[1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_partial_reset_touches_the_marked_episodes_only(variant):
    selector = ExpWeightsSelector(variant=variant, seed=0, hold=5)
    selector.reset(3, num_episodes=4)
    before_heads = selector.select()
    selector.update(1.0 + 0.01 * np.arange(12.0).reshape(4, 3))
    before = selector.probabilities
    mask = np.array([True, False, False, True])
    selector.reset(3, num_episodes=4, mask=mask)
    np.testing.assert_array_equal(selector.probabilities[~mask], before[~mask])
    np.testing.assert_allclose(selector.probabilities[mask], 1 / 3)
    np.testing.assert_array_equal(selector.select()[~mask], before_heads[~mask])


def test_partial_reset_draws_again():
    selector = ExpWeightsSelector(seed=0, hold=1000)
    selector.reset(1000, num_episodes=3)
    before = selector.select()
    selector.reset(1000, num_episodes=3, mask=np.array([False, True, False]))
    assert (selector.select() != before).tolist() == [False, True, False]


@pytest.mark.parametrize("variant", VARIANTS)
def test_partial_update_touches_the_marked_episodes_only(variant):
    rng = np.random.default_rng(0)
    some, all_of_them = (ExpWeightsSelector(variant=variant, seed=0) for _ in range(2))
    for selector in (some, all_of_them):
        selector.reset(3, num_episodes=4)
        selector.select()
    losses, mask = rng.random((4, 3)), np.array([True, False, True, False])
    ignored = losses.copy()
    ignored[~mask] = np.nan  # an automatic reset is no transition: nothing can be said of it
    some.update(ignored, mask=mask)
    all_of_them.update(losses)
    np.testing.assert_array_equal(some.probabilities[mask], all_of_them.probabilities[mask])
    np.testing.assert_allclose(some.probabilities[~mask], 1 / 3)


def test_hold_keeps_a_head_and_then_draws():
    selector = ExpWeightsSelector(seed=0, hold=3)
    selector.reset(1000, num_episodes=2)
    heads = np.array([selector.select() for _ in range(12)]).reshape(4, 3, 2)
    assert (heads == heads[:, :1]).all()
    assert len({tuple(h) for h in heads[:, 0].tolist()}) == 4


def test_a_held_head_is_given_up_once_it_is_half_as_likely():
    selector = ExpWeightsSelector(seed=0, hold=1000, share=0.0, eta=1.0)
    selector.reset(2)
    held = selector.select()
    against = np.eye(2)[held]
    selector.update(0.6 * against)  # p = 1 / (1 + e^0.6) = 0.35: more than half of the 0.5 it was drawn with
    assert selector.select() == held
    selector.update(20.0 * against)
    assert selector.select() != held


def test_draws_follow_the_probabilities():
    selector = ExpWeightsSelector(seed=0)
    selector.reset(3, num_episodes=50_000)
    selector.update(np.tile([0.0, 1.0, 2.0], (50_000, 1)))
    got = np.bincount(selector.select(), minlength=3) / 50_000
    np.testing.assert_allclose(got, selector.probabilities[0], atol=0.01)


def test_what_is_handed_out_is_not_the_selectors_own():
    selector = ExpWeightsSelector(seed=0)
    selector.reset(2, num_episodes=2)
    selector.select()[:] = 99
    selector.probabilities[:] = 99.0
    losses = np.ones((2, 2))
    selector.update(losses)
    assert (losses == 1).all()
    assert (selector.select() < 2).all()
    np.testing.assert_allclose(selector.probabilities, 0.5)


# --- extremes ---------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.sampled_from([1, 2, 7, 1000]),
    st.lists(st.sampled_from([0.0, 1.0, 1e-300, 1e300, -1e300, 0.3]), min_size=1, max_size=8),
    st.booleans(),
    st.integers(0, 99),
)
def test_probabilities_survive_extremes(arms, values, equal, seed):
    rng = np.random.default_rng(seed)
    for options in (
        {},
        {"relative": True},
        {"share": 0.0},
        {"floor": 0.01},
        {"variant": "paper"},
        {"variant": "released"},
    ):
        selector = ExpWeightsSelector(seed=seed, **options)
        selector.reset(arms)
        for value in values:
            assert 0 <= selector.select() < arms
            selector.update(np.full(arms, value) if equal else rng.choice(values, size=arms))
            p = selector.probabilities
            assert np.isfinite(p).all()
            assert (p >= 0).all()
            assert abs(p.sum() - 1) <= 1e-12


def test_floor_is_capped_at_half_of_an_even_share():
    selector = ExpWeightsSelector(floor=0.3, share=0.0)
    for arms, smallest in ((1, 1.0), (2, 0.25), (4, 0.125)):
        selector.reset(arms)
        selector.update([0.0] + [1e300] * (arms - 1))
        assert selector.probabilities.min() == pytest.approx(smallest)


# --- refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"eta": 0}, "eta is 0; expected a finite number > 0"),
        ({"eta": True}, "eta is True"),
        ({"eta": math.nan}, "eta is nan"),
        ({"eta": math.inf}, "eta is inf"),
        ({"eta": 10**400}, "eta is 1000"),
        ({"eta": "1"}, "eta is '1'"),
        ({"decay": 1.1}, "decay is 1.1; expected a finite number >= 0 and <= 1, or None"),
        ({"decay": -0.1}, "decay is -0.1"),
        ({"variant": "exp3"}, "variant is 'exp3'; expected 'hedge' or 'paper' or 'released'"),
        ({"floor": 1.0}, "floor is 1.0; expected a finite number >= 0 and < 1"),
        ({"floor": None}, "floor is None"),
        ({"share": 1}, "share is 1; expected a finite number >= 0 and < 1, or None"),
        ({"hold": 0}, "hold is 0; expected an int >= 1"),
        ({"hold": 2.0}, "hold is 2.0"),
        ({"hold": True}, "hold is True"),
        ({"relative": 1}, "relative is 1; expected True or False"),
        ({"seed": -1}, "seed is -1; expected an int >= 0"),
        ({"seed": "a"}, "seed is 'a'"),
    ],
)
def test_bad_arguments(options, said):
    with pytest.raises(OwlValueError, match="ExpWeightsSelector") as caught:
        ExpWeightsSelector(**options)
    assert said in str(caught.value)


def test_all_bad_arguments_in_one_error():
    with pytest.raises(OwlValueError, match="3 problems") as caught:
        ExpWeightsSelector(eta=-1.0, decay=2.0, hold=0)
    assert all(name in str(caught.value) for name in ("eta", "decay", "hold"))


def test_paper_needs_a_draw():
    selector = ExpWeightsSelector(variant="paper", seed=0)
    selector.reset(2, num_episodes=2)
    with pytest.raises(OwlStateError, match=r"call select\(\) first"):
        selector.update(np.ones((2, 2)))
    selector.select()
    mask = np.array([True, False])
    selector.reset(2, num_episodes=2, mask=mask)
    with pytest.raises(OwlStateError, match="none was drawn"):
        selector.update(np.ones((2, 2)))
    np.testing.assert_allclose(selector.probabilities, 0.5)
    selector.update(np.ones((2, 2)), mask=~mask)
    assert selector.probabilities[1].max() > 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_not_finite_is_named_and_changes_nothing(bad, variant):
    selector = ExpWeightsSelector(variant=variant, seed=0)
    selector.reset(3, num_episodes=2)
    selector.select()
    selector.update(np.ones((2, 3)) * [1, 2, 3])
    before = selector.state_dict()
    losses = np.ones((2, 3))
    losses[1, 2] = bad
    with pytest.raises(NonFiniteError, match=f"losses of head 2 in episode 1 is {bad}"):
        selector.update(losses)
    with pytest.raises(NonFiniteError, match="head 2 in episode 1"):
        selector.update(losses, mask=np.array([False, True]))
    np.testing.assert_array_equal(selector.state_dict()["scores"], before["scores"])
    selector.reset(3)
    with pytest.raises(NonFiniteError, match=f"losses of head 0 is {bad}"):
        selector.update([bad, 1.0, 1.0])


@pytest.mark.parametrize(
    ("losses", "error"),
    [
        (np.ones(2), OwlValueError),
        (np.ones(4), OwlValueError),
        (np.ones((1, 3)), OwlValueError),
        (1.0, OwlValueError),
        ([[1.0], [1.0, 2.0]], OwlValueError),
        ([True, False, True], OwlTypeError),
        (["a", "b", "c"], OwlTypeError),
        ([1j, 2j, 3j], OwlTypeError),
        ([None, 1.0, 2.0], OwlTypeError),
    ],
)
def test_bad_losses(losses, error):
    selector = ExpWeightsSelector(seed=0)
    selector.reset(3)
    with pytest.raises(error, match=r"ExpWeightsSelector.update: losses"):
        selector.update(losses)
    np.testing.assert_allclose(selector.probabilities, 1 / 3)


def test_repr_shows_the_hyper_parameters():
    shown = repr(ExpWeightsSelector(eta=0.5, variant="paper", share=0.1))
    assert shown == (
        "ExpWeightsSelector(eta=0.5, decay=None, variant='paper', floor=0.0, share=0.1, hold=None, "
        "relative=False)"
    )


# --- every formula against a loop in plain Python floats ---------------------------------------------

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
    small = released_update(np.array([[-20.0, -10.0]]), losses, eta=1e-4)
    np.testing.assert_allclose(small, [[-18 + 2, -9 + 4e-4 / math.exp(-9)]])  # divided by 1e-4 at least


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
