"""What every selector does alike: shapes, resets, and what it refuses."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from owlrl.checkpoint import load_state, save_state
from owlrl.errors import NonFiniteError, OwlStateError, OwlValueError
from owlrl.protocols import HeadSelector
from owlrl.selection import (
    ExpWeightsSelector,
    MaxQSelector,
    OracleSelector,
    RestlessSelector,
    Selector,
    UniformSelector,
    distribution,
    draw,
)


class Leader(Selector):
    """The head whose losses are the least so far, as in the page on extending owlrl."""

    def learn(self, scores, losses, arm):
        return scores - losses

    def chances(self, scores):
        return np.eye(len(scores))[scores.argmax()]


MAKERS = [
    Leader,
    lambda: RestlessSelector(ExpWeightsSelector(seed=0), seed=0),
    lambda: ExpWeightsSelector(seed=0),
    lambda: OracleSelector(0),
    lambda: UniformSelector(seed=0),
    MaxQSelector,
    lambda: MaxQSelector(every_step=True),
]
every_selector = pytest.mark.parametrize("make", MAKERS)


@every_selector
def test_is_a_head_selector(make):
    assert isinstance(make(), HeadSelector)


@every_selector
@pytest.mark.parametrize("arms", [1, 2, 1000])
def test_both_shapes(make, arms):
    selector = make()
    selector.reset(arms)
    selector.observe_values(np.arange(arms))
    assert type(selector.select()) is int
    selector.update(np.ones(arms, dtype=np.float32))
    assert selector.probabilities.shape == (arms,)
    assert selector.probabilities.dtype == np.float64
    for episodes in (1, 3):
        selector.reset(arms, num_episodes=episodes)
        selector.observe_values(np.zeros((episodes, arms)))
        heads = selector.select()
        assert heads.shape == (episodes,)
        assert heads.dtype == np.int64
        selector.update(np.ones((episodes, arms), dtype=np.int64), mask=np.ones(episodes, dtype=bool))
        assert selector.probabilities.shape == (episodes, arms)
        np.testing.assert_allclose(selector.probabilities.sum(-1), 1.0, atol=1e-12)


@every_selector
def test_takes_lists_and_tensors(make):
    selector = make()
    selector.reset(2)
    selector.observe_values([1, 2])
    selector.update(torch.tensor([0.5, 0.25]))
    selector.update((1, 2))
    assert selector.select() in (0, 1)


@every_selector
def test_nothing_before_reset(make):
    selector = make()
    assert selector.probabilities.shape == (0,)
    for call in (
        selector.select,
        lambda: selector.update([1.0]),
        lambda: selector.observe_values([1.0]),
    ):
        with pytest.raises(OwlStateError, match=r"call reset\(num_heads\) first"):
            call()


@every_selector
@pytest.mark.parametrize(
    ("num_heads", "options", "said"),
    [
        (0, {}, "num_heads is 0; expected an int >= 1"),
        (-1, {}, "num_heads is -1"),
        (True, {}, "num_heads is True"),
        (2.0, {}, "num_heads is 2.0"),
        ("2", {}, "num_heads is '2'"),
        (2, {"num_episodes": 0}, "num_episodes is 0"),
        (2, {"num_episodes": 1.5}, "num_episodes is 1.5"),
        (0, {"num_episodes": 0}, "2 problems"),
        (3, {"num_episodes": 2, "mask": np.ones(2, bool)}, r"are \(3, 2\) with a mask; expected \(2, 2\)"),
        (2, {"num_episodes": 3, "mask": np.ones(3, bool)}, r"are \(2, 3\) with a mask; expected \(2, 2\)"),
        (2, {"num_episodes": 2, "mask": np.ones(3, bool)}, r"shape \(3,\); expected bool and \(2,\)"),
        (2, {"num_episodes": 2, "mask": np.ones((2, 1), bool)}, r"shape \(2, 1\)"),
        (2, {"num_episodes": 2, "mask": np.array([0, 1])}, "dtype int64"),
        (2, {"mask": np.ones(2, bool)}, "leave the mask out"),
    ],
)
def test_bad_reset_changes_nothing(make, num_heads, options, said):
    selector = make()
    selector.reset(2, num_episodes=2)
    selector.observe_values([[0.0, 1.0], [1.0, 0.0]])
    selector.select()
    selector.update([[0.0, 1.0], [1.0, 0.0]])
    before = selector.probabilities
    with pytest.raises(OwlValueError, match=said):
        selector.reset(num_heads, **options)
    np.testing.assert_array_equal(selector.probabilities, before)


@every_selector
def test_mask_needs_a_reset_before(make):
    with pytest.raises(OwlValueError, match="before the first reset"):
        make().reset(2, num_episodes=2, mask=np.ones(2, bool))


@every_selector
def test_bad_mask_of_update(make):
    selector = make()
    selector.reset(2)
    with pytest.raises(OwlValueError, match="mask is given for one episode"):
        selector.update([1.0, 2.0], mask=np.ones(1, bool))
    selector.reset(2, num_episodes=3)
    with pytest.raises(OwlValueError, match=r"shape \(2,\); expected bool and \(3,\)"):
        selector.update(np.ones((3, 2)), mask=np.ones(2, bool))


@every_selector
def test_bad_numbers_are_refused_by_all(make):
    selector = make()
    selector.reset(2)
    for call in (selector.update, selector.observe_values):
        with pytest.raises(NonFiniteError, match="of head 1 is nan"):
            call([1.0, np.nan])
        with pytest.raises(OwlValueError, match=r"shape \(3,\); expected \(2,\)"):
            call([1.0, 2.0, 3.0])


@every_selector
def test_sizes_may_change_with_a_full_reset(make):
    selector = make()
    for arms, episodes in ((2, None), (5, 3), (1, 1), (3, None)):
        selector.reset(arms, num_episodes=episodes)
        selector.observe_values(np.zeros((episodes, arms) if episodes else arms))
        assert np.shape(selector.select()) == ((episodes,) if episodes else ())


# --- a selector of one's own ------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 10_000))
def test_a_core_for_one_episode_works_for_many_with_masks(heads, episodes, seed):
    rng = np.random.default_rng(seed)
    selector = Leader(seed=0)
    selector.reset(heads, num_episodes=episodes)
    totals = np.zeros((episodes, heads))
    for _ in range(8):
        if rng.random() < 0.3:
            mask = rng.random(episodes) < 0.5
            selector.reset(heads, num_episodes=episodes, mask=mask)
            totals[mask] = 0.0
        mask, losses = rng.random(episodes) < 0.7, rng.random((episodes, heads))
        selector.update(losses, mask=mask)
        totals[mask] += losses[mask]
        np.testing.assert_array_equal(selector.select(), totals.argmin(1))
        np.testing.assert_array_equal(selector.probabilities, np.eye(heads)[totals.argmin(1)])


class Batched(ExpWeightsSelector):
    """The same selector with its core one episode at a time."""

    batched = False


@pytest.mark.parametrize("options", [{}, {"relative": True}, {"variant": "released"}])
def test_one_episode_at_a_time_equals_all_at_once(options):
    losses = np.random.default_rng(0).random((20, 3, 4))
    runs = []
    for kind in (ExpWeightsSelector, Batched):
        selector = kind(seed=0, **options)
        selector.reset(4, num_episodes=3)
        for step in losses:
            selector.update(step)
        runs.append(selector.probabilities)
    np.testing.assert_allclose(*runs, atol=1e-14)


class Bandit(Selector):
    """Only the head that acted learns, and a look at values comes first."""

    needs_values = True

    def start(self, num_heads):
        return np.full(num_heads, 0.5)

    def look(self, scores, values, arm):
        return scores + values

    def learn(self, scores, losses, arm):
        return np.where(np.arange(len(scores)) == arm, scores - losses, scores)


def test_start_look_and_the_arm_reach_the_core():
    selector = Bandit(seed=0)
    selector.reset(3)
    np.testing.assert_allclose(selector.probabilities, 1 / 3)
    selector.observe_values([0.0, 1.0, 2.0])
    np.testing.assert_allclose(selector.probabilities, distribution(np.array([0.5, 1.5, 2.5])))
    arm = selector.select()
    selector.update([5.0, 5.0, 5.0])
    wanted = np.array([0.5, 1.5, 2.5])
    wanted[arm] -= 5.0
    np.testing.assert_allclose(selector.probabilities, distribution(wanted))


def test_a_core_cannot_change_what_is_kept_in_place():
    class Rough(Leader):
        def learn(self, scores, losses, arm):
            scores -= losses
            losses[:] = 7.0
            return scores

    selector, losses = Rough(), np.array([[1.0, 0.0]])
    selector.reset(2, num_episodes=1)
    selector.update(losses)
    assert losses.tolist() == [[1.0, 0.0]] and selector.select().tolist() == [1]


@pytest.mark.parametrize(
    ("method", "answer", "error", "said"),
    [
        ("learn", [1.0], OwlValueError, r"learn returned shape \(1,\); expected \(2,\)"),
        ("learn", [1.0, np.nan], NonFiniteError, "learn returned scores that are not finite"),
        ("chances", [0.7, 0.7], OwlValueError, "expected probabilities"),
        ("chances", [1.5, -0.5], OwlValueError, "expected probabilities"),
        ("chances", [np.nan, 1.0], OwlValueError, "expected probabilities"),
        ("chances", 1.0, OwlValueError, "chances returned shape"),
    ],
)
def test_a_wrong_core_is_named(method, answer, error, said):
    kind = type("Wrong", (Leader,), {method: lambda *_: np.array(answer)})
    selector = kind()
    selector.reset(2)
    before = selector.state_dict()
    with pytest.raises(error, match=said):
        selector.update([1.0, 2.0])
        selector.select()
    if method == "learn":
        np.testing.assert_array_equal(selector.state_dict()["scores"], before["scores"])


@pytest.mark.parametrize("kind", [Leader, UniformSelector])
def test_bad_arguments_of_the_base(kind):
    with pytest.raises(OwlValueError, match="2 problems"):
        kind(hold=0, seed=-1)
    assert kind(hold=np.int64(2), seed=np.int32(3)).select is not None


def test_without_a_seed_it_follows_torch_and_consumes_nothing():
    def heads():
        state = torch.get_rng_state()
        selector = UniformSelector()
        selector.reset(1000)
        drawn = [selector.select() for _ in range(5)]
        assert torch.equal(torch.get_rng_state(), state)
        return drawn

    with torch.random.fork_rng():
        torch.manual_seed(5)
        first = heads()
        assert heads() == first
        torch.manual_seed(6)
        assert heads() != first


# --- distribution and draws -------------------------------------------------------------------------


def tables(elements):
    """An array (E, n)."""
    shapes = st.tuples(st.integers(1, 4), st.integers(1, 7))
    return shapes.flatmap(lambda shape: st.tuples(hnp.arrays(np.float64, shape, elements=elements)))


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


# --- saved and loaded -------------------------------------------------------------------------------


SAVED = [
    lambda seed: ExpWeightsSelector(seed=seed, hold=3),
    lambda seed: ExpWeightsSelector(seed=seed, variant="paper"),
    lambda seed: ExpWeightsSelector(seed=seed, variant="released"),
    lambda seed: UniformSelector(seed=seed, hold=2),
    lambda seed: OracleSelector(1),
    lambda seed: MaxQSelector(every_step=True),
    lambda seed: RestlessSelector(ExpWeightsSelector(seed=seed), patience=2, seed=seed),
    lambda seed: Leader(hold=2, seed=seed),
]
every_saved = pytest.mark.parametrize("make", SAVED)


def go_on(selector, episodes, steps):
    """Heads and probabilities of some more steps."""
    rng = np.random.default_rng(5)
    shape = (4,) if episodes is None else (episodes, 4)
    seen = []
    for _ in range(steps):
        selector.observe_values(rng.random(shape))
        seen.append((np.array(selector.select()), selector.probabilities))
        selector.update(rng.random(shape))
    return seen


@every_saved
@pytest.mark.parametrize("episodes", [None, 1, 3])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_goes_on_where_it_was(make, episodes, steps, tmp_path):
    first, second = make(1), make(2)
    first.reset(4, num_episodes=episodes)
    go_on(first, episodes, steps)
    save_state(tmp_path / "state", first.state_dict())
    second.load_state_dict(load_state(tmp_path / "state"))
    for (heads, p), (same_heads, same_p) in zip(
        go_on(first, episodes, 7), go_on(second, episodes, 7), strict=True
    ):
        np.testing.assert_array_equal(heads, same_heads)
        np.testing.assert_array_equal(p, same_p)


@every_saved
def test_state_survives_json_before_and_after_the_first_reset(make):
    first, second = make(1), make(2)
    second.reset(4)
    for arms in (None, 3):
        if arms is not None:
            first.reset(arms, num_episodes=2)
        text = json.dumps(first.state_dict(), default=lambda array: array.tolist())
        second.load_state_dict(json.loads(text))
        assert json.dumps(second.state_dict(), default=lambda array: array.tolist()) == text


def test_state_is_a_copy():
    selector = ExpWeightsSelector(seed=0)
    selector.reset(2)
    selector.select()
    state = selector.state_dict()
    before = copy.deepcopy(state)
    selector.select()
    selector.update([0.0, 1.0])
    np.testing.assert_equal(state, before)
    selector.load_state_dict(state)
    state["scores"][:] = 7.0
    state["arms"][:] = 1
    np.testing.assert_equal(selector.state_dict(), before)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_heads": -1}, "num_heads is -1; expected an int >= 0"),
        ({"seen": np.array([2, 0])}, "seen is"),
        ({"chance": np.array([2.0, 0.0])}, "chance is"),
        ({"num_heads": True, "num_episodes": 0}, "2 problems"),
        ({"num_heads": 3}, "scores is"),
        ({"num_episodes": 3}, r"scores is .*expected \(3, 4\) finite numbers"),
        ({"scores": np.full((2, 4), np.nan)}, "finite numbers"),
        ({"scores": [["a"] * 4] * 2}, "scores is"),
        ({"arms": np.array([0, 4])}, r"arms is .*; expected 2 ints from -1 to 3"),
        ({"arms": np.array([0.0, 1.0])}, "arms is"),
        ({"arms": np.array([0])}, "arms is"),
        ({"left": np.array([0, 4])}, r"left is .*; expected 2 ints from 0 to 3"),
        ({"left": np.array([-1, 0])}, "left is"),
        ({"arms": np.array([-1, 0]), "left": np.array([1, 1])}, "left is positive where no arm was drawn"),
        ({"generator": {"bit_generator": "MT19937"}}, "generator is not the state of a PCG64 generator"),
        ({"generator": 3}, "generator is not the state of a PCG64 generator"),
        ({"generator": {"bit_generator": "PCG64"}, "arms": np.array([9, 9])}, "2 problems"),
    ],
)
def test_bad_state_changes_nothing(changes, said):
    selector = ExpWeightsSelector(seed=0, hold=4)
    selector.reset(4, num_episodes=2)
    selector.select()
    selector.update(np.eye(4)[:2])
    before = selector.state_dict()
    with pytest.raises(OwlValueError, match=said):
        selector.load_state_dict({**before, **changes})
    np.testing.assert_equal(selector.state_dict(), before)


def test_missing_keys_are_all_named():
    with pytest.raises(OwlValueError, match="8 problems") as caught:
        ExpWeightsSelector().load_state_dict({})
    assert "scores is missing" in str(caught.value)
