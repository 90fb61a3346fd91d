"""Prioritised draws follow (p + ε)^α, weights undo them, priorities follow their rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.errors import NonFiniteError, OwlValueError
from owlrl.replay import PrioritizedSampler, TaskScopedReplay
from tests.rows import rows_of


def make(capacity=64, **sampler):
    return TaskScopedReplay(
        capacity,
        observation_shape=(),
        observation_dtype=np.int64,
        seed=0,
        sampler=PrioritizedSampler(**sampler),
    )


def fill(replay, count, *, start=0):
    for step in range(start, start + count):
        replay.add(step, step, 0.0, step + 1, False, False)


def tree_of(replay):
    return replay._store.draw._tree


@settings(deadline=None, max_examples=15)
@given(
    alpha=st.sampled_from([0.0, 0.5, 1.0]),
    epsilon=st.sampled_from([0.0, 0.1]),
    rows=st.integers(2, 40),
    seed=st.integers(0, 99),
)
def test_draws_match_the_probabilities(alpha, epsilon, rows, seed):
    replay = make(alpha=alpha, epsilon=epsilon)
    fill(replay, rows)
    priorities = np.random.default_rng(seed).exponential(size=rows) + 0.01
    replay.update_priorities(np.arange(rows), priorities)
    probabilities = (priorities + epsilon) ** alpha
    probabilities /= probabilities.sum()
    draws = 400 * rows
    drawn = np.concatenate([replay.sample(rows).observation.numpy() for _ in range(400)])
    counts = np.bincount(drawn, minlength=rows)
    spread = np.sqrt(draws * probabilities * (1 - probabilities)) + 1
    assert (np.abs(counts - draws * probabilities) < 5 * spread).all()
    chi_square = ((counts - draws * probabilities) ** 2 / (draws * probabilities)).sum()
    assert chi_square < rows + 6 * np.sqrt(2 * rows)


def test_weights_are_those_of_the_paper():
    replay = make(alpha=0.7, beta=0.5, epsilon=0.1)
    fill(replay, 6)
    priorities = np.arange(6.0)
    replay.update_priorities(np.arange(6), priorities)
    batch = replay.sample(6)
    p = (priorities + 0.1) ** 0.7
    p /= p.sum()
    weight = (6 * p[batch.observation.numpy()]) ** -0.5
    np.testing.assert_allclose(batch.weight.numpy(), weight / weight.max(), rtol=1e-6)
    assert batch.weight.dtype == torch.float32


def test_beta_can_be_annealed():
    replay = make(alpha=1.0, beta=0.0)
    fill(replay, 4)
    replay.update_priorities(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    assert (replay.sample(4).weight == 1.0).all()
    replay.sampler.beta = 1.0
    batch = replay.sample(4)
    priority = batch.observation.double() + 1 + 1e-6
    torch.testing.assert_close(batch.weight.double(), priority.min() / priority, rtol=1e-6, atol=0)


def test_new_rows_get_the_largest_priority_and_overwritten_ones_none():
    replay = make(8, alpha=1.0, epsilon=0.0)
    fill(replay, 8)
    replay.update_priorities(np.arange(8), np.full(8, 0.5))
    replay.update_priorities(np.array([3]), np.array([7.0]))
    fill(replay, 2, start=8)
    tree, ring = tree_of(replay), replay._store.ring
    np.testing.assert_array_equal(tree.get(np.arange(ring.num_rows)) > 0, ring.live)
    observations = ring.observation[ring.live_rows()]
    weights = dict(zip(observations.tolist(), tree.get(ring.live_rows()).tolist(), strict=True))
    assert weights == {2: 0.5, 3: 7.0, 4: 0.5, 5: 0.5, 6: 0.5, 7: 0.5, 8: 7.0, 9: 7.0}


def test_a_priority_for_a_row_that_is_gone_is_ignored():
    replay = make(3, alpha=1.0)
    fill(replay, 3)
    gone = rows_of(replay).index
    fill(replay, 1, start=3)
    replay.update_priorities(gone, np.full(3, 9.0))
    ring = replay._store.ring
    np.testing.assert_array_equal(tree_of(replay).get(np.arange(4)) > 0, ring.live)
    assert set(replay.sample(3).observation.tolist()) <= {1, 2, 3}


def test_huge_and_tiny_priorities_stay_finite():
    replay = make(alpha=1.0, epsilon=0.0)
    fill(replay, 4)
    replay.update_priorities(np.arange(4), np.array([1.7e308, 1.7e308, 1e-300, 0.0]))
    fill(replay, 4, start=4)
    batch = replay.sample(8)
    assert torch.isfinite(batch.weight).all()
    assert set(batch.observation.tolist()) <= {0, 1, 4, 5, 6, 7}


def test_all_priorities_zero_draw_uniformly():
    replay = make(alpha=1.0, epsilon=0.0)
    fill(replay, 3)
    replay.update_priorities(np.arange(3), np.zeros(3))
    batch = replay.sample(3)
    assert (batch.weight == 1.0).all()
    assert len({row for _ in range(30) for row in replay.sample(3).observation.tolist()}) == 3


def test_a_new_task_starts_with_even_priorities():
    replay = make(alpha=1.0)
    replay.begin_task("left")
    fill(replay, 5)
    replay.update_priorities(np.arange(5), np.full(5, 100.0))
    replay.end_task()
    replay.begin_task("right")
    assert tree_of(replay).total == 0.0
    replay.begin_task("left")
    np.testing.assert_allclose(tree_of(replay).get(np.arange(6)), [1 + 1e-6] * 5 + [0.0])


def test_takes_tensors_with_gradient():
    replay = make(alpha=1.0, epsilon=0.0)
    fill(replay, 3)
    error = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    replay.update_priorities(np.arange(3), error.abs())
    np.testing.assert_allclose(tree_of(replay).get(np.arange(3)), [1.0, 2.0, 3.0])
    replay.update_priorities(np.arange(0), torch.zeros(0))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(alpha=-0.1), ["alpha is -0.1"]),
        (
            dict(alpha=True, beta=2, epsilon=float("nan")),
            ["3 problems", "alpha is True", "beta is 2", "epsilon is nan"],
        ),
        (dict(epsilon="a"), ["epsilon is 'a'"]),
        (dict(beta=float("inf")), ["beta is inf"]),
    ],
)
def test_settings_are_checked_together(arguments, words):
    with pytest.raises(OwlValueError) as error:
        PrioritizedSampler(**arguments)
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("index", "priorities", "words"),
    [
        (np.array([0, 99]), np.ones(2), ["index runs from 0 to 99", "0 to 64"]),
        (np.array([-1, 0]), np.ones(2), ["index runs from -1"]),
        (np.array([0.0, 1.0]), np.ones(2), ["index is float64"]),
        (np.array([[0, 1]]), np.ones((1, 2)), ["index is int64 (1, 2)"]),
        (np.array([0, 1]), np.ones(3), ["priorities is float64 (3,)"]),
        (np.array([0, 1]), np.array([1.0, -2.0]), ["priorities has -2.0", "abs()"]),
        (np.array([0.5]), np.array(["a", "b"]), ["2 problems", "index is float64", "priorities is <U1"]),
    ],
)
def test_priorities_are_checked_before_anything_changes(index, priorities, words):
    replay = make()
    fill(replay, 3)
    before = tree_of(replay).get(np.arange(3))
    with pytest.raises(OwlValueError) as error:
        replay.update_priorities(index, priorities)
    assert all(word in str(error.value) for word in words)
    np.testing.assert_array_equal(tree_of(replay).get(np.arange(3)), before)


def test_a_priority_that_is_not_finite_is_refused():
    replay = make()
    fill(replay, 3)
    with pytest.raises(NonFiniteError, match=r"priorities\[1\] is nan"):
        replay.update_priorities(np.array([0, 1]), np.array([1.0, np.nan]))


def test_repr_shows_the_settings():
    assert repr(PrioritizedSampler(0.5, beta=1.0)) == "PrioritizedSampler(alpha=0.5, beta=1.0, epsilon=1e-06)"


def test_a_largest_priority_below_one_is_saved_and_loaded():
    replay, other = make(alpha=1.0), make(alpha=1.0)
    fill(replay, 4)
    state = replay.state_dict()
    state["contents"]["store"]["draw"]["largest"] = 0.25
    other.load_state_dict(state)
    assert other.state_dict()["contents"]["store"]["draw"]["largest"] == 0.25
