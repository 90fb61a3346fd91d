"""Exponential weights: the guarantee, one episode and many, extremes, and what is refused."""

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
    fixed_share,
    hedge_update,
    paper_update,
    relative_losses,
    released_update,
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


def test_partial_reset_draws_anew():
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
        ({"decay": 1.1}, "decay is 1.1; expected a number from 0 to 1, or None"),
        ({"decay": -0.1}, "decay is -0.1"),
        ({"variant": "exp3"}, "variant is 'exp3'; expected one of hedge, paper, released"),
        ({"floor": 1.0}, "floor is 1.0; expected a number >= 0 and < 1"),
        ({"floor": None}, "floor is None"),
        ({"share": 1}, "share is 1; expected a number >= 0 and < 1, or None"),
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
    np.testing.assert_array_equal(selector.state_dict()["log_weights"], before["log_weights"])
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
