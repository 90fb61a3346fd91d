"""Growing an optimizer group keeps schedulers right and state apart."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from owlrl.errors import OwlValueError
from owlrl.heads import MultiHeadQ
from owlrl.heads.growth import IdleHeads, Owned, extend_optimizer, lend, owning_group, shrink_optimizer

SCHEDULERS = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "linear": lambda o: lr_scheduler.LinearLR(o, total_iters=10),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=20),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=10),
}


def step(optimizer, layers):
    optimizer.zero_grad()
    sum(layer(torch.ones(1, 2)).sum() for layer in layers).backward()
    optimizer.step()


@pytest.mark.parametrize("name", sorted(SCHEDULERS))
def test_schedulers_go_on_as_if_nothing_had_grown(name):
    rates = []
    for grow in (False, True):
        layer, new = nn.Linear(2, 1), nn.Linear(2, 1)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
        scheduler, layers = SCHEDULERS[name](optimizer), [layer]
        seen = []
        for k in range(8):
            if grow and k == 3:
                extend_optimizer(optimizer, layer.parameters(), dict(new.named_parameters()))
                layers.append(new)
            step(optimizer, layers)
            scheduler.step()
            seen.append(optimizer.param_groups[0]["lr"])
        rates.append(seen)
    assert rates[0] == rates[1]


def test_the_owning_group_grows_and_keeps_its_options():
    trunk, head, new = nn.Linear(2, 2), nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(
        [{"params": trunk.parameters(), "lr": 0.1}, {"params": head.parameters(), "lr": 0.5}]
    )
    extend_optimizer(optimizer, head.parameters(), dict(new.named_parameters()))
    assert [len(g["params"]) for g in optimizer.param_groups] == [2, 4]
    assert owning_group(optimizer, new.bias) == 1
    before = new.weight.detach().clone()
    step(optimizer, [new])
    assert not torch.equal(before, new.weight)


def test_parameter_names_grow_and_shrink_with_the_parameters():
    layer, new = nn.Linear(2, 1), nn.Linear(2, 1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    optimizer.param_groups[0]["param_names"] = ["weight", "bias"]  # as torch does since 2.6, given names
    extend_optimizer(optimizer, layer.parameters(), {f"new.{n}": p for n, p in new.named_parameters()})
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias", "new.weight", "new.bias"]
    step(optimizer, [layer, new])
    shrink_optimizer(optimizer, list(layer.parameters()))
    assert optimizer.param_groups[0]["param_names"] == ["new.weight", "new.bias"]
    assert set(optimizer.state) == set(new.parameters())


def test_a_stranger_is_refused_and_nothing_changed():
    optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    stranger = nn.Linear(2, 1)
    assert owning_group(optimizer, stranger.weight) is None
    with pytest.raises(OwlValueError, match="deep copy"):
        extend_optimizer(optimizer, stranger.parameters(), dict(stranger.named_parameters()))
    assert len(optimizer.param_groups[0]["params"]) == 2


def test_each_new_parameter_joins_its_own_sibling_s_group():
    q = MultiHeadQ(nn.Linear(2, 4), 4, 2)
    weights = [p for p in q.parameters() if p.ndim > 1]
    biases = [p for p in q.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    )
    head = q.heads[q.add_head(optimizer=optimizer)]
    assert owning_group(optimizer, head.weight) == 0 and owning_group(optimizer, head.bias) == 1


def heads_and_optimizer():
    torch.manual_seed(0)
    trunk, heads = nn.Linear(2, 3), [nn.Linear(3, 1) for _ in range(3)]
    named = [(f"{k}.{n}", p) for k, m in enumerate([trunk, *heads]) for n, p in m.named_parameters()]
    optimizer = torch.optim.Adam([p for _, p in named], lr=0.1, weight_decay=0.1)
    optimizer.param_groups[0]["param_names"] = [n for n, _ in named]
    return trunk, heads, optimizer


def test_idle_heads_are_not_moved_and_come_back_where_they_were():
    trunk, heads, optimizer = heads_and_optimizer()
    before = [list(g["params"]) for g in optimizer.param_groups]
    names, group = list(optimizer.param_groups[0]["param_names"]), optimizer.param_groups[0]
    idle = IdleHeads(optimizer)
    idle.hide(p for head in heads[1:] for p in head.parameters())
    assert len(group["params"]) == len(group["param_names"]) == 4
    assert id(heads[2].bias) in Owned(optimizer) and id(nn.Linear(1, 1).bias) not in Owned(optimizer)
    kept = [p.detach().clone() for p in heads[1].parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        heads[0](trunk(torch.ones(1, 2))).sum().backward()
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(kept, heads[1].parameters(), strict=True))
    idle.show()
    assert [list(map(id, g["params"])) for g in optimizer.param_groups] == [list(map(id, b)) for b in before]
    assert optimizer.param_groups[0] is group and group["param_names"] == names


@pytest.mark.parametrize("how", ["backward", "lend"])
def test_a_hidden_head_with_a_gradient_is_stepped_once_as_if_it_had_been_there(how):
    found = []
    for hidden in (False, True):
        trunk, heads, optimizer = heads_and_optimizer()
        idle = IdleHeads(optimizer)
        if hidden:
            idle.hide(p for head in heads[1:] for p in head.parameters())
        for k in (1, 0, 2, 1):
            optimizer.zero_grad()
            loss = heads[k](trunk(torch.ones(1, 2))).sum()
            if how == "backward":
                loss.backward()
            else:
                own = [*trunk.parameters(), *heads[k].parameters()]
                for parameter, grad in zip(own, torch.autograd.grad(loss, own), strict=True):
                    parameter.grad = grad
                lend(optimizer, own)
            optimizer.step()
        found.append([p.detach() for m in (trunk, *heads) for p in m.parameters()])
        if hidden:
            assert (
                all(p.grad is None for p in heads[1].parameters())
                and len(optimizer.param_groups[0]["params"]) == 4
            )
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_states_have_hidden_heads_too():
    trunk, heads, optimizer = heads_and_optimizer()
    sum(head(trunk(torch.ones(1, 2))).sum() for head in heads).backward()
    optimizer.step()
    full = optimizer.state_dict()
    idle = IdleHeads(optimizer)
    idle.hide(heads[1].parameters())
    thin = optimizer.state_dict()
    assert thin["param_groups"] == full["param_groups"] and thin["state"].keys() == full["state"].keys()
    optimizer.load_state_dict(full)
    assert len(optimizer.param_groups[0]["params"]) == 6 and id(heads[1].bias) in Owned(optimizer)
    idle.detach()
    assert len(optimizer.param_groups[0]["params"]) == 8
    assert id(heads[1].bias) in Owned(optimizer)
