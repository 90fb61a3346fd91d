"""Likelihood as evidence: the formula against a slow one, calibration, and numbers of any kind."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from owlrl import Transitions
from owlrl.errors import NonFiniteError, OwlError
from owlrl.evidence import GaussianNLLEvidence, likelihood_loss
from owlrl.gaussian import gaussian_nll
from owlrl.protocols import Evidence

ROWS = Transitions(
    torch.zeros(6, 2), torch.zeros(6, 1), torch.zeros(6), torch.zeros(6, 2),
    torch.zeros(6, dtype=torch.bool), torch.full((6,), 0.9),
)  # fmt: skip


class Critics:
    """Heads with predictions (n, L, B) that were written down; ``spread`` is their real error over σ."""

    def __init__(self, mean, variance, target):
        self.parts = [torch.as_tensor(part, dtype=torch.float64) for part in (mean, variance, target)]

    def predictions(self, transitions, heads):
        return tuple(part[heads][..., : len(transitions)] for part in self.parts)


def critics(seed=0, heads=3, count=2, rows=6):
    draw = np.random.default_rng(seed).normal
    mean, variance = draw(size=(heads, count, rows)), np.exp(draw(size=(heads, count, rows)))
    return Critics(mean, variance, 2 * draw(size=(heads, rows)))


def slow_loss(learner, scales, heads, row, clip):
    """One row's losses, number by number."""
    mean, variance, target = (part.numpy() for part in learner.parts)
    moments = []
    for h in heads:
        mu = float(np.mean(mean[h, :, row]))
        second = float(np.mean(variance[h, :, row] + mean[h, :, row] ** 2))
        moments.append((mu, scales[h] ** 2 * (second - mu**2)))
    narrowest = min(v for _, v in moments)
    losses = []
    for h, (mu, v) in zip(heads, moments, strict=True):
        error = min(abs(target[h, row] - mu) / math.sqrt(v), clip)
        losses.append(0.5 * min(math.log(v / narrowest), clip**2) + 0.5 * error**2)
    return losses


@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3), st.sampled_from([0.5, 3.0, 100.0]))
def test_losses_equal_a_slow_loop(seed, heads, count, clip):
    learner, arms = critics(seed, heads, count), list(range(heads))[::-1]
    evidence = GaussianNLLEvidence(clip=clip)
    scales = {h: 0.5 + h for h in arms}
    evidence.load_state_dict({"heads": {str(h): scale for h, scale in scales.items()}})
    losses = evidence.losses(learner, ROWS, arms)
    slow = [slow_loss(learner, scales, arms, row, clip) for row in range(6)]
    assert losses.shape == (heads, 6) and (losses >= 0).all()
    assert np.allclose(losses.T, slow, rtol=1e-9, atol=1e-12)


def test_unclipped_losses_differ_as_likelihoods_do():
    learner = critics(count=1)
    mean, variance, target = (part.squeeze(1) for part in learner.parts)
    exact = gaussian_nll(mean, variance.log(), target)
    losses = likelihood_loss(mean, variance, target, clip=1e6)
    assert torch.allclose(losses - losses[0], exact - exact[0], atol=1e-9)


def test_a_head_is_measured_on_its_own_task():
    rng = np.random.default_rng(0)
    variance = np.full((2, 1, 4000), 4.0)
    error = rng.normal(size=(2, 4000)) * np.array([[2.0], [20.0]])  # well calibrated, and ten times too sure
    learner = Critics(np.zeros((2, 1, 4000)), variance, error)
    rows = Transitions(*(t.expand(4000, *t.shape[1:]) for t in (
        ROWS.observation[:1], ROWS.action[:1], ROWS.reward[:1], ROWS.next_observation[:1],
        ROWS.terminated[:1], ROWS.discount[:1],
    )))  # fmt: skip
    evidence = GaussianNLLEvidence(samples=4000)
    for head in (0, 1):
        evidence.calibrate(learner, head, rows)
    assert evidence.scales == pytest.approx({0: 1.0, 1: 10.0}, rel=0.05)
    kept = GaussianNLLEvidence()
    kept.load_state_dict(evidence.state_dict())
    assert kept.scales == evidence.scales and isinstance(evidence, Evidence)


def test_a_wide_head_is_not_believed_for_being_right():
    learner = Critics([[[0.0]], [[0.0]]], [[[1.0]], [[100.0]]], [[0.5], [0.5]])
    losses = GaussianNLLEvidence(calibrated=False).losses(learner, ROWS[:1], [0, 1])
    assert losses[0, 0] == pytest.approx(0.125) and losses[1, 0] > 2.0


def test_two_heads_out_of_their_data_tell_nothing_apart():
    learner = Critics([[[0.0]], [[0.0]]], [[[1.0]], [[1.0]]], [[10.0], [800.0]])
    losses = GaussianNLLEvidence(calibrated=False).losses(learner, ROWS[:1], [0, 1])
    assert losses[0, 0] == losses[1, 0] == 4.5


NUMBERS = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1, max_size=4), st.sampled_from([0.1, 3.0, 1e6])
)
def test_losses_are_finite_for_any_numbers(numbers, clip):
    mean, variance, target = torch.tensor(numbers, dtype=torch.float64).t()[..., None]
    losses = likelihood_loss(mean, variance, target, clip=clip)
    assert losses.isfinite().all() and (losses >= 0).all() and (losses <= clip**2 * (1 + 1e-12)).all()


def test_what_is_not_known_is_the_worst():
    nan = math.nan
    learner = Critics(
        [[[0.0]], [[nan]], [[0.0]], [[0.0]]],
        [[[1.0]], [[1.0]], [[0.0]], [[1.0]]],
        [[0.0], [0.0], [0.0], [math.inf]],
    )
    losses = GaussianNLLEvidence(calibrated=False).losses(learner, ROWS[:1], [0, 1, 2, 3])
    assert losses.T.tolist() == [[0.0, 9.0, 9.0, 9.0]]


class NoVariance:
    """A learner without predictions."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GaussianNLLEvidence(clip=0.0, calibrated=1, samples=0), "3 problems"),
        (lambda: GaussianNLLEvidence().losses(critics(), ROWS, [0, 1]), "never calibrated"),
        (lambda: GaussianNLLEvidence().losses(critics(), ROWS, [0.5]), "array .n,. of ints"),
        (lambda: GaussianNLLEvidence().calibrate(NoVariance(), 0, ROWS), "NoVariance has no predictions"),
        (lambda: GaussianNLLEvidence().calibrate(critics(), 0, ROWS[:0]), "rows are empty"),
        (lambda: GaussianNLLEvidence().calibrate(critics(), -1, ROWS), "expected an int >= 0"),
        (lambda: GaussianNLLEvidence().load_state_dict({"heads": {"0": -1.0}}), "finite number > 0"),
        (lambda: GaussianNLLEvidence().load_state_dict({}), "heads is None"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(OwlError, match=message):
        call()


def test_predictions_of_a_wrong_shape_are_refused():
    learner = Critics(np.zeros((1, 6)), np.ones((1, 6)), np.zeros((1, 6)))
    with pytest.raises(OwlError, match=r"variances \(1, critics, 6\) and targets \(1, 6\)"):
        GaussianNLLEvidence(calibrated=False).losses(learner, ROWS, [0])


def test_predictions_that_are_not_finite_are_no_scale():
    learner = critics()
    learner.parts[0][0, 0, 0] = math.nan
    with pytest.raises(NonFiniteError, match="head 0 gives predictions that are not finite"):
        GaussianNLLEvidence().calibrate(learner, 0, ROWS)
