"""Neighbours beside slow and obvious searches and fits in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.changes import Contradiction, History
from owlrl.changes._neighbours import CAPACITY, FORETELL, SHRUNK, local_fit, smallest
from tests.changes.worlds import ball, transitions


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 5), st.integers(12, 700), st.integers(1, 12), st.integers(0, 99))
def test_smallest_are_those_of_a_sort(rows, columns, count, seed):
    values = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    places, found = smallest(values, count)
    np.testing.assert_array_equal(places, np.argsort(values, axis=1)[:, :count])
    np.testing.assert_array_equal(found, np.sort(values, axis=1)[:, :count])


@pytest.mark.parametrize("shape", [(0, 5, 2, 1), (1, 16, 3, 2), (7, 16, 30, 3)])
def test_local_fit_is_ridge_regression_of_weighted_differences(shape):
    rows, near, inputs, outputs = shape
    rng = np.random.default_rng(0)
    x, known_x = rng.normal(size=(rows, inputs)), rng.normal(size=(rows, near, inputs))
    known_y, weight = rng.normal(size=(rows, near, outputs)), rng.uniform(size=(rows, near))
    reach = rng.uniform(1, 2, size=(rows, 1))
    found = local_fit(x, known_x, known_y, weight, reach)
    assert found.shape == (rows, outputs)
    for row in range(rows):
        mean_x, mean_y = (np.average(k[row], axis=0, weights=weight[row]) for k in (known_x, known_y))
        inner = (known_x[row] - mean_x) / reach[row]
        left = inner.T @ np.diag(weight[row]) @ inner + SHRUNK * np.eye(inputs)
        slope = np.linalg.solve(left, inner.T @ np.diag(weight[row]) @ (known_y[row] - mean_y))
        np.testing.assert_allclose(found[row], mean_y + (x[row] - mean_x) / reach[row] @ slope)


def steered(turned, count, seed):
    """A point that two actions move one way or the other: its place is all that is seen."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        place, action = rng.uniform(-1, 1, 2), int(rng.integers(2))
        step = np.array([0.1, 0.0]) * (2 * action - 1) * (-1 if turned else 1)
        rows.append((place, action, 0.0, place + step, False))
    return transitions(rows, np.float32)


@pytest.mark.parametrize("count", [600, 3 * CAPACITY])
def test_rows_with_another_action_are_no_neighbours(count):
    detector = Contradiction()
    history, rows = History(), steered(False, count, 0)
    for low in range(0, count, 100):
        detector.learn("a", history.follow(rows[low : low + 100]))
    index = detector.tasks["a"].index
    own, other = (detector.judge("a", History().follow(steered(t, 300, 1))) for t in (False, True))
    assert own.comparable.all() and not own.contradicts.any() and other.contradicts.all()
    x, _ = index.scaled({name: index.rows[name][:40] for name in ("x", "y")})
    action = index.rows["action"][:40]
    places, squares = index.nearest(x, 12, action)
    apart = np.square(x[:, None].astype(np.float64) - index.x[: index.count]).sum(2)
    apart[action[:, None] != index.rows["action"][: index.count]] = np.inf
    np.testing.assert_allclose(squares, np.sort(apart, axis=1)[:, :12], atol=1e-5)
    assert (index.rows["action"][places] == action[:, None]).all()


def test_small_differences_are_told_where_the_nearest_rows_foretell_outcomes():
    """Two goals close to each other: neighbours alone hardly tell them, a linear fit to them does."""
    detector, history = Contradiction(), History()
    rows = ball(0, 4000, target=0.0)
    for low in range(0, 4000, 100):
        detector.learn("a", history.follow(rows[low : low + 100]))
    own, other = (ball(0, 400, seed=5, target=target) for target in (0.0, 0.15))
    said = [detector.judge("a", History().follow(steps)) for steps in (own, other)]
    examined = [detector.examine("a", History().follow(steps)) for steps in (own, other)]
    assert said[1].contradicts.mean() < 0.3
    assert examined[0].contradicts.mean() < 0.01 and examined[1].contradicts.mean() > 0.7
    assert examined[0].evidence.sum() < 0 < examined[1].evidence.sum()


def test_few_rows_of_an_action_foretell_nothing():
    detector, history = Contradiction(), History()
    rows = steered(False, 600, 0)
    rows.action[5:] = 1  # five rows of action 0, fewer than a fit is made to
    assert int((rows.action == 0).sum()) < FORETELL
    rows.next_observation.copy_(rows.observation)
    for low in range(0, 600, 100):
        detector.learn("a", history.follow(rows[low : low + 100]))
    steps = steered(False, 50, 3)
    steps.action.fill_(7)  # never seen
    examined = detector.examine("a", History().follow(steps))
    assert not examined.comparable.any() and not examined.evidence.any() and examined.strange.all()
