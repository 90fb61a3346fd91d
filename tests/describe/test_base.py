"""Trained: one network described; nothing is touched before it is bound, and a rehearsal never touches it."""

import copy

import pytest
import torch
from torch import nn

from owlrl import MultiHeadQ, Trained
from owlrl.describe.given import kind_of
from owlrl.errors import OwlStateError
from owlrl.types import HeadPointer


def make(*, init="zero", target=True):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(network.parameters())
    return Trained(network, optimizer, copy.deepcopy(network) if target else None, init=init)


@pytest.mark.parametrize("init", ["zero", "fresh", "copy"])
@pytest.mark.parametrize("target", [True, False])
def test_network_target_and_optimizer_grow_together(init, target):
    trained, x = make(init=init, target=target), torch.rand(4, 3)
    before = trained.network(x)
    trained.bind(["2"], HeadPointer(), join=False)
    assert trained.add_head() == 1
    assert torch.equal(trained.heads(x, head=0), before)
    new = trained.heads(x, head=1)
    assert torch.equal(new, torch.zeros(4, 2)) == (init == "zero")
    assert torch.equal(new, before) == (init == "copy")
    held = {id(p) for group in trained.optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in trained.network.parameters()}
    if target:
        assert trained.lagged is trained.target_heads
        assert torch.equal(trained.lagged(x, head=1), new)
        own = {id(p) for p in trained.target.parameters()}
        assert not own & held
    else:
        assert trained.lagged is trained.heads


def test_a_zero_head_learns_at_once():
    """Its first gradient is not zero, the trunk's comes with the second step."""
    trained, x = make(), torch.rand(4, 3)
    trained.bind(["2"], HeadPointer(), join=False)
    trained.add_head()
    trained.heads.pointer.index = 1
    trunk = []
    for _ in range(2):
        trained.optimizer.zero_grad()
        (trained.network(x) - 1).square().mean().backward()
        assert all(p.grad.any() for p in trained.heads.head_parameters(1).values())
        trunk.append(max(float(p.grad.abs().max()) for p in trained.heads.shared_parameters().values()))
        trained.optimizer.step()
    assert trunk[0] == 0 < trunk[1]


@pytest.mark.parametrize("native", [False, True])
def test_a_rehearsal_has_two_heads_and_touches_nothing(native):
    trained = make()
    if native:
        q = MultiHeadQ(nn.Linear(3, 8), 8, 2)
        trained = Trained(q, torch.optim.Adam(q.parameters()), copy.deepcopy(q))
    kinds = [type(m) for m in trained.network.modules()]
    groups = [len(group["params"]) for group in trained.optimizer.param_groups]
    pointer = HeadPointer()
    twin = trained.rehearsal([] if native else ["2"], pointer, {}, join=True)
    assert twin.heads.num_heads == twin.target_heads.num_heads == 2
    assert twin.heads.pointer is pointer
    assert [type(m) for m in trained.network.modules()] == kinds
    assert [len(group["params"]) for group in trained.optimizer.param_groups] == groups
    assert trained.is_bound == native
    if not native:
        with pytest.raises(OwlStateError, match="not wrapped yet"):
            _ = trained.heads


def test_repr_and_problems():
    assert repr(make(target=False)) == "Trained(Sequential, Adam)"
    assert make().problems("q") == []
    wrong = Trained("net", "Adam", 3, call=5, init="warm")
    assert [text.partition(";")[0] for text in wrong.problems("q")] == [
        "q is a str",
        "q's optimizer is a str",
        "q's call is 5",
        "q's init is 'warm'",
    ]


@pytest.mark.parametrize("library", ["flax.linen", "sbx.dqn", "haiku"])
def test_models_of_jax_are_called_so(library):
    foreign = type("Dense", (), {"__module__": library})()
    assert kind_of(foreign) == (
        f"a Dense of {library.partition('.')[0]}, a JAX library, and owlrl works with torch modules"
    )
    assert "a JAX library" in Trained(foreign, None).problems("q")[0]
