"""A head that gets nowhere gives way; the other selector learns all the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.protocols import HeadSelector
from owlrl.selection import ExpWeightsSelector, MaxQSelector, OracleSelector, RestlessSelector


def walk(selector, values):
    """The heads that act on one episode's values (T, n)."""
    arms = []
    for value in values:
        selector.observe_values(value)
        arms.append(selector.select())
    return arms


def test_it_is_a_selector_that_wants_values():
    selector = RestlessSelector(ExpWeightsSelector())
    assert isinstance(selector, HeadSelector)
    assert selector.needs_values
    assert repr(selector).startswith("RestlessSelector(ExpWeightsSelector(")


def test_no_detour_while_the_value_rises():
    selector = RestlessSelector(OracleSelector(1), patience=1, detour=1, seed=0)
    selector.reset(3)
    assert walk(selector, [[0.0, step, 0.0] for step in range(20)]) == [1] * 20


def test_a_detour_after_so_many_steps_without_a_new_high_and_then_anew():
    selector = RestlessSelector(OracleSelector(0), patience=3, detour=2, seed=0)
    selector.reset(2)
    assert walk(selector, [[0.5, 9.0]] * 12) == [0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0]


def slow(chosen, values, patience, detour):
    """Which steps are detours, one episode at a time and word by word."""
    away, best, idle, before, told = 0, None, 0, None, []
    for head, value in zip(chosen, values, strict=True):
        if away:
            away -= 1
            told.append(True)
            continue
        if head != before or best is None or value[head] > best:
            best, idle = value[head], 0
        else:
            idle += 1
        before = head
        if idle >= patience:
            away, before = detour - 1, None
            told.append(True)
        else:
            told.append(False)
    return told


class Script:
    """Chooses as it was told."""

    needs_values = False

    def __init__(self, arms):
        self.arms, self.step = arms, 0
        self.probabilities = np.full((*arms.shape[1:], 4), 0.25)
        self.seen = []

    def observe_values(self, values):
        raise AssertionError("not asked for")

    def reset(self, num_heads, *, num_episodes=None, mask=None):
        self.seen.append(("reset", num_heads, num_episodes, mask))

    def select(self):
        self.step += 1
        return self.arms[self.step - 1]

    def update(self, losses, *, mask=None):
        self.seen.append(("update", losses, mask))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3))
def test_detours_are_those_of_a_slow_reading(seed, patience, detour):
    rng = np.random.default_rng(seed)
    steps, episodes = 30, 3
    chosen = np.repeat(rng.integers(0, 4, (steps // 5, episodes)), 5, axis=0)
    values = rng.integers(0, 5, (steps, episodes, 4)).astype(float)
    selector = RestlessSelector(Script(chosen), patience=patience, detour=detour, seed=seed)
    selector.reset(4, num_episodes=episodes)
    acted = np.array(walk(selector, values))
    for k in range(episodes):
        away = np.array(slow(chosen[:, k], values[:, k], patience, detour))
        np.testing.assert_array_equal(acted[~away, k], chosen[~away, k])
        first = np.flatnonzero(away & ~np.r_[False, away[:-1]])
        assert (acted[first, k] != chosen[first, k]).all()


def test_guests_are_drawn_evenly_from_the_others():
    selector = RestlessSelector(OracleSelector(1), patience=1, detour=1, seed=0)
    selector.reset(4, num_episodes=3000)
    values = np.zeros((3000, 4))
    selector.observe_values(values)
    selector.select()
    selector.observe_values(values)
    counts = np.bincount(selector.select(), minlength=4) / 3000
    assert counts[1] == 0
    np.testing.assert_allclose(counts[[0, 2, 3]], 1 / 3, atol=0.03)


def test_one_head_is_never_sent_away():
    selector = RestlessSelector(OracleSelector(0), patience=1)
    selector.reset(1)
    assert walk(selector, [[0.0]] * 5) == [0] * 5


def test_losses_values_and_resets_reach_the_other_selector():
    inner = Script(np.zeros((9, 2), dtype=np.int64))
    selector = RestlessSelector(inner)
    selector.reset(4, num_episodes=2)
    mask = np.array([True, False])
    selector.update(np.arange(8.0).reshape(2, 4), mask=mask)
    selector.reset(4, num_episodes=2, mask=mask)
    assert inner.seen[0] == ("reset", 4, 2, None)
    kind, losses, given_mask = inner.seen[1]
    assert kind == "update" and losses[0].tolist() == [0, 1, 2, 3] and given_mask.tolist() == [True, False]
    assert inner.seen[2][3].tolist() == [True, False]
    assert selector.probabilities.shape == (2, 4)
    by_value = RestlessSelector(MaxQSelector(every_step=True), patience=5)
    by_value.reset(2)
    assert walk(by_value, [[0.0, 1.0], [1.0, 0.0]]) == [1, 0]


def test_the_other_selector_learns_as_it_would_alone():
    alone, guided = ExpWeightsSelector(seed=0), RestlessSelector(ExpWeightsSelector(seed=0), seed=1)
    rng = np.random.default_rng(0)
    for selector in (alone, guided):
        selector.reset(3)
    for _ in range(20):
        losses = rng.random(3)
        guided.observe_values(np.zeros(3))
        guided.select()
        alone.select()
        alone.update(losses)
        guided.update(losses)
    np.testing.assert_array_equal(alone.probabilities, guided.probabilities)


def test_a_masked_reset_begins_those_episodes_anew():
    selector = RestlessSelector(OracleSelector(0), patience=2, detour=3, seed=0)
    selector.reset(2, num_episodes=2)
    flat = np.zeros((2, 2))
    for _ in range(2):
        selector.observe_values(flat)
        assert selector.select().tolist() == [0, 0]
    selector.reset(2, num_episodes=2, mask=np.array([True, False]))
    selector.observe_values(flat)
    assert selector.select().tolist() == [0, 1]


class Touchy(Script):
    """Its properties may not be read before it is asked to act."""

    @property
    def probabilities(self):
        raise AssertionError("nobody may read this here")

    @probabilities.setter
    def probabilities(self, value):
        pass


def test_properties_of_the_other_selector_are_not_run():
    assert isinstance(RestlessSelector(Touchy(np.zeros((1, 1), dtype=np.int64))).selector, Touchy)
    with pytest.raises(OwlTypeError, match="selector is the class OracleSelector; expected a head selector"):
        RestlessSelector(OracleSelector)


def test_one_that_cannot_be_saved_is_named():
    selector = RestlessSelector(Script(np.zeros((1, 1), dtype=np.int64)))
    with pytest.raises(OwlTypeError, match="Script has no state_dict"):
        selector.state_dict()


def test_a_bad_state_changes_nothing():
    selector = RestlessSelector(ExpWeightsSelector(seed=0), seed=0)
    selector.reset(3, num_episodes=2)
    selector.observe_values(np.ones((2, 3)))
    selector.select()
    before = selector.state_dict()
    for change in (
        {"idle": np.zeros(5)},
        {"values": np.zeros(2)},
        {"selector": {}},
        {"arms": np.array([9, 9])},
    ):
        with pytest.raises(OwlValueError):
            selector.load_state_dict({**before, **change})
        np.testing.assert_equal(selector.state_dict(), before)


def test_bad_input():
    with pytest.raises(OwlTypeError, match="selector is an int; expected a head selector, such as Exp"):
        RestlessSelector(3)
    with pytest.raises(OwlValueError, match="3 problems"):
        RestlessSelector(OracleSelector(0), patience=0, detour=1.5, seed=-1)
    selector = RestlessSelector(OracleSelector(0))
    with pytest.raises(OwlStateError, match="no episode has begun"):
        selector.select()
    selector.reset(2)
    with pytest.raises(OwlStateError, match="no values were seen since reset"):
        selector.select()
    with pytest.raises(OwlValueError, match=r"values has shape \(3,\); expected \(2,\)"):
        selector.observe_values([0.0, 1.0, 2.0])
