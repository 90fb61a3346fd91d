"""What every selector does alike: shapes, resets, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from owlrl.errors import NonFiniteError, OwlStateError, OwlValueError
from owlrl.protocols import HeadSelector
from owlrl.selection import ExpWeightsSelector, MaxQSelector, OracleSelector, UniformSelector

MAKERS = [
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
