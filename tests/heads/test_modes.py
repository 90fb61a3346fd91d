"""eval_mode puts every submodule's own mode back, whatever happens."""

import copy

import pytest
import torch
from torch import nn

from owlrl import MultiHeadQ
from owlrl.heads import promote_output_layers
from owlrl.heads.modes import all_shown, eval_mode, parameters_of


def test_each_submodule_gets_its_own_mode_back():
    network = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2), nn.Linear(2, 2))
    network[1].eval()
    with pytest.raises(KeyError), eval_mode(network, network[0]):
        assert not any(m.training for m in (network, network[0], network[1]))
        raise KeyError
    assert [m.training for m in network.modules()] == [True, True, False, True]


def test_heads_that_look_at_their_mode_are_changed_too():
    q = MultiHeadQ(nn.Linear(2, 4), 4, 3, head=lambda n, m: nn.Sequential(nn.Dropout(), nn.Linear(n, m)))
    q.add_head()
    with eval_mode(q):
        assert not any(head[0].training for head in q.heads)
    assert all(head[0].training for head in q.heads)


def test_a_linear_layer_with_a_hook_that_has_a_mode_is_not_passed_over():
    layer = nn.utils.spectral_norm(nn.Linear(3, 2))  # iterates on its buffers in training mode
    before = layer.weight_u.clone()
    with eval_mode(nn.Sequential(layer)):
        layer(torch.ones(1, 3))
    assert torch.equal(layer.weight_u, before)
    assert layer.training


def test_parameters_are_found_as_torch_finds_them():
    shared = nn.Linear(4, 4)
    trunk = nn.Sequential(
        shared, nn.ReLU(), shared, nn.ParameterList([torch.zeros(2)]), nn.Linear(4, 4, bias=False)
    )
    q = MultiHeadQ(trunk, 4, 2, dueling=True)
    for _ in range(3):
        q.add_head()
    expected, found = list(q.parameters()), parameters_of(q)
    assert len(found) == len(expected) == 20
    assert all(a is b for a, b in zip(found, expected, strict=True))


class Peeks(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x) if self.inner.training else x


def test_a_network_that_never_looks_at_its_mode_is_left_alone():
    plain = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), MultiHeadQ(nn.Identity(), 2, 2))
    with eval_mode(plain):
        assert all(m.training for m in plain.modules())


def test_a_network_that_looks_at_the_mode_of_a_part_is_changed_with_all_its_parts():
    network = nn.Sequential(Peeks(), nn.ReLU())
    with eval_mode(network):
        assert not any(m.training for m in network.modules())
    assert all(m.training for m in network.modules())


@pytest.mark.parametrize("kind", ["own", "promoted"])
def test_idle_heads_are_no_parameters_while_the_active_one_is_alone(kind):
    if kind == "own":
        network = heads = MultiHeadQ(nn.Linear(2, 3), 3, 2)
    else:
        network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
        heads = promote_output_layers(network)
    for _ in range(3):
        heads.add_head()
    heads.pointer.index = 2
    everything = dict(network.named_parameters())
    target = copy.deepcopy(network)
    heads.pointer.alone = True
    shown = dict(network.named_parameters())
    wanted = {**heads.shared_parameters(), **heads.head_parameters(2)}
    first = {} if kind == "own" else heads.head_parameters(0)  # it is the layer itself
    assert shown == {**wanted, **first} and list(dict(target.named_parameters())) == list(shown)
    assert set(network.state_dict()) == set(everything) and len(parameters_of(network)) == len(everything)
    with heads.pointer.at(1):  # what a thread computes with is not what is trained
        assert dict(network.named_parameters()) == shown
    with all_shown(heads.pointer):
        assert dict(network.named_parameters()) == everything
    assert network.eval() is network and not any(m.training for m in network.modules())
    heads.pointer.alone = False
    assert not any(m.training for m in network.modules()) and dict(network.named_parameters()) == everything
    assert all(m.training for m in network.train().modules())
