"""Gaussian formulas against numpy, torch.distributions and finite mixtures, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from owlrl.gaussian import gaussian_mixture, gaussian_nll, soft_clamp, tanh_gaussian

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


def draw(shape, seed):
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(SHAPES, st.integers(0, 10**6))
def test_likelihood_is_that_of_a_normal_distribution(shape, seed):
    mean, log_variance, target = (draw(shape, seed + k) for k in range(3))
    exact = -Normal(mean, (0.5 * log_variance).exp()).log_prob(target) - 0.5 * np.log(2 * np.pi)
    assert torch.allclose(gaussian_nll(mean, log_variance, target), exact, rtol=1e-12)


@given(SHAPES, st.integers(0, 10**6))
def test_mixture_has_the_moments_of_the_mixture(shape, seed):
    mean, variance = draw(shape, seed), draw(shape, seed + 1).square()
    first, second = gaussian_mixture(mean, variance)
    assert torch.allclose(first, mean.mean(0), rtol=1e-12)
    assert torch.allclose(second, (variance + mean.square()).mean(0) - first.square(), rtol=1e-9, atol=1e-12)
    last = gaussian_mixture(mean.movedim(0, -1), variance.movedim(0, -1), dim=-1)
    assert torch.equal(last[0], first) and torch.allclose(last[1], second, rtol=1e-12)


def test_mixture_of_large_means_does_not_cancel():
    mean, variance = torch.tensor([1e6, 1e6 + 2]), torch.tensor([0.5, 0.5])
    assert gaussian_mixture(mean, variance)[1] == 1.5


@given(SHAPES, st.integers(0, 10**6))
def test_squashed_density_is_that_of_the_transformed_distribution(shape, seed):
    mean, log_std, noise = (draw(shape, seed + k) for k in range(3))
    action, log_prob = tanh_gaussian(mean, log_std, noise)
    exact = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    raw = mean + log_std.exp() * noise
    jacobian = torch.log1p(-raw.tanh().square())
    assert torch.allclose(action, raw.tanh(), rtol=1e-12)
    inside = raw.abs().amax(-1) < 5  # further out the oracle itself has no digits left
    slow = (exact.base_dist.log_prob(raw) - jacobian).sum(-1)
    assert torch.allclose(log_prob[inside], slow[inside], rtol=1e-6, atol=1e-6)


def test_squashed_density_integrates_to_one():
    mean, log_std = torch.tensor(0.3, dtype=torch.float64), torch.tensor(-0.5, dtype=torch.float64)
    noise = torch.linspace(-8, 8, 20_001, dtype=torch.float64)[:, None]
    action, log_prob = tanh_gaussian(mean, log_std, noise)
    assert torch.trapezoid(log_prob.exp(), action[:, 0]).item() == pytest.approx(1.0, abs=1e-6)


def test_squashed_density_is_finite_far_out():
    for far in (-1e4, 1e4):
        mean = torch.tensor([far], requires_grad=True)
        action, log_prob = tanh_gaussian(mean, torch.zeros(1), torch.ones(1))
        (action.sum() + log_prob).backward()
        assert action.abs() == 1.0 and log_prob.isfinite() and mean.grad.isfinite()


@given(st.floats(-1e6, 1e6), st.floats(-50, 0), st.floats(0.5, 50))
def test_soft_bounds_hold(x, low, width):
    bounded = soft_clamp(torch.tensor(x, dtype=torch.float64), low, low + width)
    assert low <= bounded <= low + width + np.exp(-width) + 1e-12  # the lower bound is laid on last; rounding


def test_soft_bounds_leave_the_middle_alone_and_have_a_gradient_beyond():
    x = torch.tensor([-15.0, 5.0, 25.0], requires_grad=True)
    bounded = soft_clamp(x, -10.0, 20.0)
    bounded.sum().backward()
    assert abs(bounded[1] - 5.0) < 1e-5 and abs(x.grad[1] - 1.0) < 1e-5
    assert (x.grad > 1e-3).all() and x.grad[0] < 0.01 > x.grad[2]


@given(st.floats(-50, 50), st.floats(0.1, 50), st.floats(-2, 2), st.floats(-2, 2))
def test_no_single_gaussian_is_likelier_for_two_targets_than_their_middle_with_a_quarter_of_the_squared_gap(
    first, gap, shift, stretch
):
    """The paper's observation: the variance cannot fall below (f₁ − f₂)²/4, nor the loss below its loss."""
    targets = torch.tensor([first, first + gap], dtype=torch.float64)
    mean, variance = gaussian_mixture(targets, torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(
        variance, torch.tensor(gap, dtype=torch.float64) ** 2 / 4, rtol=1e-9, atol=1e-12
    )
    floor = gaussian_nll(mean, variance.log(), targets).mean()
    torch.testing.assert_close(floor, 0.5 * (variance.log() + 1), rtol=1e-9, atol=1e-9)
    other = gaussian_nll(mean + shift, variance.log() + stretch, targets).mean()
    assert other >= floor - 1e-9
