"""Growing an optimizer group keeps schedulers right and state apart."""

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from owlrl.errors import OwlValueError
from owlrl.heads import MultiHeadQ
from owlrl.heads.growth import extend_optimizer, owning_group, shrink_optimizer

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
    optimizer = torch.optim.Adam(layer.named_parameters(), lr=0.1)
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
