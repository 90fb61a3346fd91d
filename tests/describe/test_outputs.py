"""What outputs mean: actions and densities, values and losses, information."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch.distributions import AffineTransform, Independent, Normal, TanhTransform, TransformedDistribution

from owlrl.describe.outputs import (
    ActionBox,
    Deterministic,
    GaussianQ,
    QValues,
    TanhGaussian,
    normal_points,
    policy_information,
)
from owlrl.errors import OwlTypeError, OwlValueError


@pytest.mark.parametrize(("scale", "bias"), [(1.0, 0.0), (2.5, -1.0), (torch.tensor([0.5, 3.0]), 0.25)])
def test_tanh_gaussian_is_torch_s_transformed_distribution(scale, bias):
    generator = torch.Generator().manual_seed(0)
    output = 0.5 * torch.randn(4, 3, 4, generator=generator, dtype=torch.float64)  # (heads, rows, columns)
    noise = torch.randn(4, 3, 2, generator=generator, dtype=torch.float64)
    mean, log_std = output[..., :2], output[..., 2:]
    reading = TanhGaussian(scale, bias)
    action, log_prob = reading.sample(output, noise)
    affine = AffineTransform(bias, torch.as_tensor(scale, dtype=torch.float64))
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1), affine])
    torch.testing.assert_close(action, affine(torch.tanh(mean + log_std.exp() * noise)))
    torch.testing.assert_close(log_prob, Independent(squashed, 1).log_prob(action))
    torch.testing.assert_close(reading.greedy(output), affine(mean.tanh()))


def test_a_deterministic_actor_has_one_action_and_no_density():
    output, noise = torch.rand(5, 2), torch.randn(3, 5, 2)
    action, log_prob = Deterministic().sample(output, noise)
    assert torch.equal(action, output.expand(3, 5, 2)) and not log_prob.any() and log_prob.shape == (3, 5)
    assert torch.equal(Deterministic().greedy(output), output)


def test_critic_outputs():
    output, target = torch.randn(6, 4), torch.randn(6)
    assert torch.equal(QValues().values(output), output)
    expected = sum((output[:, k] - target).square() for k in range(4))
    torch.testing.assert_close(QValues().loss(output, target), expected)
    huber = QValues(F.smooth_l1_loss).loss(output[:, :1], target)
    torch.testing.assert_close(huber, F.smooth_l1_loss(output[:, 0], target, reduction="none"))
    mean, log_variance = output[:, :2], output[:, 2:]
    reading = GaussianQ()
    assert torch.equal(reading.values(output), mean)
    torch.testing.assert_close(reading.variances(output), log_variance.exp())
    nll = F.gaussian_nll_loss(mean, target[:, None].expand(6, 2), log_variance.exp(), reduction="none")
    torch.testing.assert_close(reading.loss(output, target), nll.sum(1))


@pytest.mark.parametrize("dim", [1, 3, 17])
def test_normal_points_have_the_moments_of_a_normal(dim):
    state = torch.get_rng_state()
    points = normal_points(dim)
    assert torch.equal(torch.get_rng_state(), state)
    assert points.shape == (8, dim)
    torch.testing.assert_close(points.mean(0), torch.zeros(dim, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(points.square().mean(0), torch.ones(dim, dtype=torch.float64))
    assert len({tuple(column) for column in points.T.tolist()}) == dim  # each in an order of its own
    assert torch.equal(points, normal_points.__wrapped__(dim))  # the same points always


def test_policy_information_is_the_fisher_information_over_all_signs():
    """Against E_a[(∂ log π(a))²] of the Gaussian, integrated numerically."""
    weight = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = torch.tensor([[0.3, -0.2, 0.9]], dtype=torch.float64)

    def gradient(value, parameter):
        return torch.autograd.grad(value.sum(), parameter)[0]

    found = torch.zeros_like(weight)
    for signs in itertools.product((-1.0, 1.0), repeat=4):
        own = weight.clone().requires_grad_()
        output = x @ own
        frozen = output.detach()[:, 2:]
        value = policy_information(output, frozen, torch.tensor([signs], dtype=torch.float64))
        found += gradient(value, own).square() / 16
    expected = torch.zeros_like(weight)
    grid = torch.linspace(-8, 8, 33, dtype=torch.float64)
    mass = Normal(0.0, 1.0).log_prob(grid).exp() * (grid[1] - grid[0])
    for k in range(2):  # components are independent: their information adds up
        for z, weight_of_z in zip(grid, mass, strict=True):
            own = weight.clone().requires_grad_()
            mean, log_std = (x @ own)[0, k], (x @ own)[0, 2 + k]
            sample = (mean + log_std.exp() * z).detach()
            expected += weight_of_z * gradient(Normal(mean, log_std.exp()).log_prob(sample), own).square()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_policy_information_of_a_deterministic_actor_is_the_sum_of_its_actions_squared_gradients():
    output = torch.rand(4, 3, requires_grad=True)
    policy_information(output, output.detach()[:, :0], torch.ones(4, 3)).sum().backward()
    assert torch.equal(output.grad, torch.ones(4, 3))


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2)])
def test_a_box_scales_there_and_back(shape):
    rng = np.random.default_rng(0)
    low = -rng.uniform(0.1, 5, shape).astype(np.float32)
    space = spaces.Box(low, low + rng.uniform(0.5, 9, shape).astype(np.float32))
    box = ActionBox(space)
    drawn = box.draw(rng, rows=50)
    assert drawn.shape == (50, *shape) and all(space.contains(action) for action in drawn)
    flat = torch.as_tensor(drawn.reshape(50, -1))
    unit = box.scale(flat)
    assert unit.abs().max() <= 1 + 1e-6 and unit.min() < -0.8 and unit.max() > 0.8
    torch.testing.assert_close(box.unscale(unit), flat)
    assert box.size == np.prod(shape)
    beyond = box.array(box.unscale(torch.full((1, box.size), 1.5)))
    assert np.array_equal(beyond, space.high[None]) and beyond.dtype == space.dtype


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (spaces.Discrete(3), OwlTypeError),
        (spaces.Box(0, 3, (1,), np.int64), OwlTypeError),
        (spaces.Box(-np.inf, np.inf, (1,)), OwlValueError),
        (spaces.Box(np.zeros(2), np.array([1.0, 0.0]), dtype=np.float64), OwlValueError),
    ],
)
def test_other_spaces_are_refused(space, kind):
    with pytest.raises(kind, match=r"^SAC: the action space is "):
        ActionBox(space, where="SAC")
