"""Settling at the end of a task: `settle` itself, and what `DistillationRegularizer` does with it."""

from __future__ import annotations

import sys
from itertools import chain, repeat

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam

from owlrl.heads import MultiHeadQ
from owlrl.regularizers import DistillationRegularizer
from owlrl.regularizers.answers import CALM, CALM_FOR, RARELY, settling_loss
from owlrl.regularizers.distillation import OF_VISIT
from owlrl.regularizers.settling import CHECKED, settle
from tests.regularizers.helpers import (
    ACTIONS,
    FEATURES,
    assert_same_tree,
    context,
    gradients,
    jolt,
    observations,
    weights,
)

DISTILLATION = sys.modules[DistillationRegularizer.__module__]


def test_settle_goes_down_and_leaves_gradients_alone():
    weight, grad = nn.Parameter(torch.tensor([1.0, -1.0])), torch.tensor([5.0, 6.0])
    weight.grad = grad
    goal = torch.tensor([0.98, -0.98])
    assert settle([weight], lambda goal: (weight - goal).square().sum(), repeat(goal), 50)
    assert torch.allclose(weight, goal, atol=0.01) and weight.grad is grad


def test_settle_that_does_not_halve_the_loss_is_undone():
    weight = nn.Parameter(torch.tensor([1.0]))
    assert not settle([weight], lambda goal: (weight - goal).square().sum(), repeat(0.0), 50)
    assert weight.item() == 1.0  # 50 steps of 0.001 at most


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_settle_that_does_not_help_or_is_interrupted_changes_nothing(error):
    weight, calls = nn.Parameter(torch.tensor([1.0])), []

    def loss(goal: float) -> Tensor:
        calls.append(goal)
        if error is not None and len(calls) == CHECKED + 3:
            raise error
        return (weight - goal).square().sum()

    batches = chain(repeat(2.0, CHECKED), repeat(0.0))  # what is asked for is not what makes it better
    if error is None:
        assert not settle([weight], loss, batches, 5) and len(calls) == 2 * CHECKED + 5
    else:
        with pytest.raises(error):
            settle([weight], loss, batches, 5)
    assert weight.item() == 1.0 and weight.grad is None


def test_settling_loss_is_the_mean_logarithm_of_rows():
    output, target = (
        torch.tensor([[1.0, 2.0], [0.0, 5.0]]).double(),
        torch.tensor([[0.0, 2.0], [0.0, 1.0]]).double(),
    )
    expected = (torch.log(torch.tensor(2.0)) + torch.log(torch.tensor(17.0))) / 2
    assert torch.allclose(settling_loss(output, target, torch.ones(2, 2).double()), expected.double())


def learned(steps: int, **options: object) -> tuple[nn.Module, DistillationRegularizer, Tensor, Tensor]:
    """A network with two heads in its second visit, moved away from the first task's outputs."""
    torch.manual_seed(0)
    q = MultiHeadQ(nn.Sequential(nn.Linear(FEATURES, 32), nn.Tanh()), 32, ACTIONS).double()
    q.add_head()
    regularizer = DistillationRegularizer(seed=0, **options)
    optimizer = Adam(q.parameters(), lr=0.0)
    first = context(q, 0, rows=200, seed=1)
    with torch.no_grad():
        stored = q(first.inputs[0], head=0).clone()
    regularizer.remember("a", {"q": first})
    regularizer.attach(optimizer)
    q.activate(1)
    for _ in range(steps):
        optimizer.zero_grad()
        q(observations(seed=9)).square().mean().backward()
        optimizer.step()
    jolt(q.trunk, seed=3)
    return q, regularizer, first.inputs[0], stored


def distance(q: nn.Module, x: Tensor, stored: Tensor) -> float:
    with torch.no_grad():
        return float((q(x, head=0) - stored).square().mean())


def test_the_trunk_returns_to_the_first_tasks_outputs_and_the_second_keeps_its_own():
    q, regularizer, x, stored = learned(800)
    before, old, own = distance(q, x, stored), weights(q.heads), gradients(q)
    second = context(q, 1, rows=200, seed=2)
    with torch.no_grad():
        answered = q(second.inputs[0], head=1).clone()
        spread = answered.std()
    regularizer.remember("b", {"q": second})
    assert distance(q, x, stored) < 0.2 * before
    with torch.no_grad():
        assert (q(second.inputs[0], head=1) - answered).square().mean().sqrt() < 0.05 * spread
    assert_same_tree(weights(q.heads), old)  # heads stay bit for bit
    assert_same_tree(gradients(q), own)


@pytest.mark.parametrize(("steps", "strength"), [(OF_VISIT - 1, None), (0, None), (400, 1.0)])
def test_short_visits_and_plain_penalties_do_not_settle(steps, strength):
    q, regularizer, *_ = learned(steps, strength=strength)
    before = weights(q)
    regularizer.remember("b", {"q": context(q, 1, rows=50, seed=2)})
    assert_same_tree(weights(q), before)


def test_steps_are_a_share_of_the_visit_and_bounded(monkeypatch):
    asked, most = [], 6
    monkeypatch.setattr(DISTILLATION, "SETTLED", most)
    monkeypatch.setattr(DISTILLATION, "settle", lambda parameters, loss, batches, steps: asked.append(steps))
    for steps in (12, OF_VISIT * most + 20):
        q, regularizer, *_ = learned(steps)
        regularizer.remember("b", {"q": context(q, 1, rows=50, seed=2)})
        regularizer.remember("b", {"q": context(q, 1, rows=50, seed=2)})  # nothing was learned since
    assert asked == [12 // OF_VISIT, most]


def test_an_interrupted_end_keeps_what_was_kept(monkeypatch):
    q, regularizer, *_ = learned(40)

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DISTILLATION, "settle", broken)
    with pytest.raises(KeyboardInterrupt):
        regularizer.remember("b", {"q": context(q, 1, rows=50, seed=2)})
    assert regularizer.tasks == ["a"]
    monkeypatch.undo()
    regularizer.remember("b", {"q": context(q, 1, rows=50, seed=2)})
    assert regularizer.tasks == ["a", "b"]


def test_a_small_drift_is_compared_rarely_a_large_one_at_every_step():
    q, regularizer, *_ = learned(0)
    optimizer = regularizer._attached[0][0]
    shift = q.heads[0].bias.detach().clone()

    def compared(drift: float, steps: int) -> int:
        with torch.no_grad():
            unit = regularizer.kept["a"]["q"]["unit"]
            q.heads[0].bias.copy_(shift + drift * unit)
        count = 0
        for _ in range(steps):
            optimizer.zero_grad()
            q(observations(seed=9)).square().mean().backward()
            seen = regularizer._notes.get("q", -1)
            optimizer.step()
            count += regularizer._notes.get("q", -1) - seen
        return count

    jolt(q.trunk, seed=3, size=-0.1)  # as it was: the bias alone is what differs
    regularizer._drawn.clear()
    assert compared(10 * CALM, 8) == 8
    regularizer._drawn.clear()
    assert compared(0.1 * CALM, CALM_FOR + 4 * RARELY) == CALM_FOR + 4
    state = regularizer.state_dict()
    assert state["calm"] == {"q": CALM_FOR + 4}
    again = DistillationRegularizer(seed=0)
    again.load_state_dict(state)
    assert_same_tree(again.state_dict(), state)
    regularizer._drawn.clear()
    assert compared(10 * CALM, RARELY + 3) == 1 + 3  # found at the next comparison, then at every step
