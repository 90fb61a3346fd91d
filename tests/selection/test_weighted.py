"""Saved and put back: weights, held heads and draws go on as if nothing had happened."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from owlrl.checkpoint import load_state, save_state
from owlrl.errors import OwlValueError
from owlrl.selection import ExpWeightsSelector, UniformSelector

MAKERS = [
    lambda seed: ExpWeightsSelector(seed=seed, hold=3),
    lambda seed: ExpWeightsSelector(seed=seed, variant="paper"),
    lambda seed: ExpWeightsSelector(seed=seed, variant="released"),
    lambda seed: UniformSelector(seed=seed, hold=2),
]
every_selector = pytest.mark.parametrize("make", MAKERS)


def go_on(selector, episodes, steps):
    """Heads and probabilities of some more steps."""
    rng = np.random.default_rng(5)
    shape = (4,) if episodes is None else (episodes, 4)
    seen = []
    for _ in range(steps):
        seen.append((np.array(selector.select()), selector.probabilities))
        selector.update(rng.random(shape))
    return seen


@every_selector
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


@every_selector
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
    state["log_weights"][:] = 7.0
    state["arms"][:] = 1
    np.testing.assert_equal(selector.state_dict(), before)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_heads": -1}, "num_heads is -1; expected an int >= 0"),
        ({"num_heads": True, "num_episodes": 0}, "2 problems"),
        ({"num_heads": 3}, "log_weights has shape"),
        ({"num_episodes": 3}, "log_weights has shape"),
        ({"log_weights": np.full((2, 4), np.nan)}, "not finite"),
        ({"log_weights": [["a"] * 4] * 2}, "log_weights has shape"),
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
    with pytest.raises(OwlValueError, match="7 problems") as caught:
        ExpWeightsSelector().load_state_dict({})
    assert "log_weights is missing" in str(caught.value)
