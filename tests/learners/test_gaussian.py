"""The networks of SAC: bounds, units, and output layers that can be given heads."""

import copy

import numpy as np
import pytest
import torch

from owlrl.heads import promote_output_layers
from owlrl.learners import GaussianActor, GaussianCritics

LOW, HIGH = np.array([0.0, -3.0]), np.array([10.0, -1.0])


def test_actions_are_in_the_environments_units():
    actor = GaussianActor(3, LOW, HIGH, hidden=(8,))
    output = torch.tensor([[0.0, 0.0, -9.0, -9.0], [50.0, -50.0, -9.0, -9.0]])
    assert actor.greedy(output).tolist() == [[5.0, -2.0], [10.0, -3.0]]
    action, log_prob = actor.sample(output, torch.zeros(2, 2))
    assert torch.equal(action, actor.greedy(output)) and log_prob.shape == (2,)
    several, _ = actor.sample(output.expand(4, 2, 4), torch.randn(4, 2, 2))
    assert several.shape == (4, 2, 2)


def test_density_is_that_of_the_unit_action_whatever_the_bounds():
    wide, narrow = GaussianActor(3, LOW, HIGH), GaussianActor(3, LOW / 1e6, HIGH / 1e6)
    output, noise = torch.randn(5, 4), torch.randn(5, 2)
    assert torch.equal(wide.sample(output, noise)[1], narrow.sample(output, noise)[1])


def test_critics_take_actions_in_the_environments_units():
    critics = GaussianCritics(1, LOW, HIGH, hidden=(4,), count=1)
    layer, out = critics.trunks[0], critics.outputs[0]
    observation, action = torch.tensor([[0.5]]), torch.tensor([[10.0, -2.0]])
    by_hand = out(torch.relu(torch.tensor([0.5, 1.0, 0.0]) @ layer.weight[0] + layer.bias[0]))[0]
    mean, log_variance = critics(observation, action)[0]
    assert torch.allclose(mean, by_hand[0]) and torch.allclose(log_variance, by_hand[1], atol=1e-3)
    assert torch.equal(critics.means(observation, action)[0, 0], mean)


def test_bounds_of_the_widest_box_do_not_overflow():
    largest = np.finfo(np.float32).max
    actor = GaussianActor(1, np.array([-largest]), np.array([largest]), hidden=(4,))
    assert actor.greedy(actor(torch.zeros(1, 1))).isfinite().all()


@pytest.mark.parametrize("far", [-1e6, 1e6])
def test_outputs_stay_within_their_bounds(far):
    actor = GaussianActor(1, LOW, HIGH, hidden=(4,), log_std=(-5.0, 1.0))
    critics = GaussianCritics(1, LOW, HIGH, hidden=(4,), log_variance=(-3.0, 7.0))
    with torch.no_grad():
        for layer in (actor.output, *critics.outputs):
            layer.bias.fill_(far)
        log_std = actor(torch.zeros(1, 1))[:, 2:]
        log_variance = critics(torch.zeros(1, 1), torch.zeros(1, 2))[:, 2:]
    assert log_std.unique().tolist() == pytest.approx([-5.0 if far < 0 else 1.0], abs=0.01)
    assert log_variance.unique().tolist() == pytest.approx([-3.0 if far < 0 else 7.0], abs=0.01)


def test_critics_share_nothing():
    torch.manual_seed(0)  # or now and then no unit of a layer is awake
    critics = GaussianCritics(1, LOW, HIGH, hidden=(16, 16))
    critics.means(torch.randn(3, 1), torch.zeros(3, 2))[:, 1].sum().backward()
    for parameter in critics.trunks.parameters():
        assert not parameter.grad[0].any() and parameter.grad[1].any()
    assert not critics.outputs[0].weight.grad.any()


def test_heads_are_found_and_computed_in_one_pass():
    torch.manual_seed(0)
    actor, critics = GaussianActor(3, LOW, HIGH, hidden=(8,)), GaussianCritics(3, LOW, HIGH, hidden=(8,))
    observation, action = torch.randn(5, 3), torch.randn(5, 2)
    before = actor(observation), critics(observation, action)
    heads = promote_output_layers(actor), promote_output_layers(critics, example=(observation, action))
    assert [network.layers for network in heads] == [("output",), ("outputs.0", "outputs.1")]
    for network, inputs, plain in zip(heads, ((observation,), (observation, action)), before, strict=True):
        assert network.add_head() == 1
        both = network.all_heads(*inputs)
        assert torch.equal(network(*inputs), plain) and torch.allclose(both[0], plain, atol=1e-6)
        assert torch.allclose(both[1], network(*inputs, head=1), atol=1e-6)
        assert not torch.allclose(both[0], both[1])


def test_bounds_of_actions_are_no_weights():
    actor = GaussianActor(3, LOW, HIGH, hidden=(8,))
    assert not any("action" in name for name in actor.state_dict())
    assert torch.equal(copy.deepcopy(actor).action_scale, actor.action_scale)
    assert actor.double().action_bias.dtype == torch.float64
