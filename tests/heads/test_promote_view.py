"""A network asked through a function: one tensor, the network's own parameters."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from owlrl.errors import OwlTypeError
from owlrl.heads.promote import NetworkView, joined


class Noisy(nn.Module):
    """Its plain call samples; ``params`` tells what from."""

    def __init__(self):
        super().__init__()
        self.body, self.mean = nn.Linear(3, 4), nn.Linear(4, 2)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("scale", torch.tensor(2.0))

    def params(self, x):
        x = self.drop(torch.relu(self.body(x)))
        return self.mean(x), self.mean(x) * self.scale

    def forward(self, x):
        return self.params(x)[0] + torch.randn(2)


def test_joined_puts_columns_side_by_side():
    a, b, c = torch.rand(5, 2), torch.rand(5, 3), torch.rand(5)
    assert torch.equal(joined((a, b, c)), torch.cat([a, b, c[:, None]], 1))
    assert joined(a) is a
    assert torch.equal(joined([a]), a)


@pytest.mark.parametrize("wrong", [(torch.zeros(1), {}), {"mean": torch.zeros(1)}, None])
def test_joined_refuses_what_is_no_tensor(wrong):
    with pytest.raises(OwlTypeError, match="expected a tensor or a tuple"):
        joined(wrong)


def test_a_view_is_the_network_in_all_but_its_call():
    network = Noisy().eval()
    keys = set(vars(network))
    view = NetworkView(network, Noisy.params)
    x = torch.rand(5, 3)
    assert torch.equal(view(x), torch.cat(network.params(x), 1))
    assert [n for n, _ in view.named_parameters()] == [n for n, _ in network.named_parameters()]
    assert all(a is b for a, b in zip(view.parameters(), network.parameters(), strict=True))
    assert list(view.state_dict()) == list(network.state_dict())
    view.train()
    assert network.training and network.drop.training
    view.double()
    assert network.body.weight.dtype == network.scale.dtype == torch.float64
    assert set(vars(network)) == keys  # nothing was left behind in it
    assert view.get_submodule("mean") is network.mean


def test_a_copy_is_a_view_of_a_copy():
    network = Noisy().eval()
    view = NetworkView(network, Noisy.params)
    other = copy.deepcopy(view)
    other.mean.weight.data.zero_()
    assert network.mean.weight.any() and [n for n, _ in other.named_modules()] == ["", "body", "mean", "drop"]
    other.train()
    assert not network.training


def test_parameters_swapped_in_a_view_are_swapped_in_the_network():
    network = Noisy().eval()
    view = NetworkView(network, Noisy.params)
    x = torch.rand(5, 3)
    zeros = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    assert not functional_call(view, zeros, (x,)).any()
    assert network.params(x)[0].any()
