"""The sum tree against a plain array and its running sum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.replay.samplers import TOP, WIDTH, SumTree


@settings(deadline=None, max_examples=40)
@given(
    size=st.sampled_from([1, 2, TOP, TOP + 1, 2000, TOP * WIDTH, TOP * WIDTH + 1]),
    seed=st.integers(0, 99),
)
def test_sums_and_finds_as_a_plain_array_does(size, seed):
    rng = np.random.default_rng(seed)
    tree, plain = SumTree(size), np.zeros(size)
    for _ in range(5):
        rows = rng.integers(0, size, rng.integers(1, 20))
        rows = np.unique(rows)
        weights = rng.random(len(rows)) * (rng.random(len(rows)) < 0.8)
        tree.set(rows, weights)
        plain[rows] = weights
    for below, above in zip(tree.levels[:-1], tree.levels[1:], strict=True):
        np.testing.assert_array_equal(above.ravel()[: len(below)], below.sum(axis=1))
    np.testing.assert_allclose(tree.total, plain.sum(), rtol=1e-12)
    np.testing.assert_array_equal(tree.get(np.arange(size)), plain)
    if plain.any():
        # in the middle of every leaf's part, away from rounding at its edges
        ends = plain.cumsum()
        leaves = np.flatnonzero(plain)
        np.testing.assert_array_equal(tree.find(ends[leaves] - plain[leaves] / 2), leaves)
    tree.clear()
    assert tree.total == 0.0


@pytest.mark.parametrize("size", [1, 5, 40, 5000, 20_000])
def test_never_finds_a_leaf_without_weight_at_the_edges(size):
    tree = SumTree(size)
    rows = np.arange(0, size, 3)
    tree.set(rows, np.full(len(rows), 0.1))
    total = tree.total
    mass = np.array([0.0, np.nextafter(total, 0), total, total * 2, 0.1, 0.2, 0.3])
    assert (tree.get(tree.find(mass)) > 0).all()
    assert tree.find(mass)[0] == 0
    assert tree.find(mass)[3] == rows[-1]


def test_sums_do_not_drift():
    tree = SumTree(20_000)
    rng = np.random.default_rng(0)
    for _ in range(2000):
        tree.set(rng.integers(0, 20_000, 8), 10.0 ** rng.integers(-12, 12, 8))
    tree.set(np.arange(20_000), 0.0)
    assert tree.total == 0.0


def test_rounding_never_leads_past_the_last_weight():
    # A node's sum and its running sum are added in different orders. Where the sum is the larger one,
    # the last bit of mass is beyond all running sums.
    met = 0
    for seed in range(100):
        weights = np.random.default_rng(seed).random(WIDTH)
        weights[[0, -1]] = 0.0
        if weights.sum() > np.add.accumulate(weights)[-1]:
            met += 1
            tree = SumTree(TOP + 1)
            tree.set(np.arange(WIDTH), weights)
            assert tree.find(np.array([np.nextafter(tree.total, 0.0)])) == WIDTH - 2
    assert met > 10
