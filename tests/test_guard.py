"""StepGuard: steps only inside a task and only with finite gradients."""

import pytest
import torch
from torch import nn

from owlrl import MultiHeadQ, QLearner
from owlrl.errors import NonFiniteError, OwlStateError
from owlrl.guard import StepGuard


def make():
    q = MultiHeadQ(nn.Linear(2, 4), 4, 2)
    optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    return q, optimizer, StepGuard(QLearner(q, None, optimizer))


def backward(q, optimizer, factor=1.0):
    optimizer.zero_grad()
    (q(torch.ones(1, 2)).sum() * factor).backward()


def test_steps_are_counted_inside_a_task_and_refused_outside():
    q, optimizer, guard = make()
    guard.begin("a")
    for _ in range(3):
        backward(q, optimizer)
        optimizer.step()
    assert guard.steps == 3
    guard.end()
    with pytest.raises(OwlStateError, match="outside a task"):
        optimizer.step()
    guard.detach()
    optimizer.step()


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), -float("inf")])
def test_a_step_with_bad_numbers_is_not_made(factor):
    q, optimizer, guard = make()
    guard.begin("a")
    before = q.trunk.weight.clone()
    backward(q, optimizer, factor)
    with pytest.raises(NonFiniteError, match=r"task 'a', step 1: the gradient of 'heads.0.bias'"):
        optimizer.step()
    assert torch.equal(before, q.trunk.weight)


def test_the_watched_head_is_the_active_one():
    q, optimizer, guard = make()
    q.add_head(optimizer=optimizer)
    q.activate(1)
    guard.begin("b")
    backward(q, optimizer, float("nan"))
    with pytest.raises(NonFiniteError, match=r"heads.1.bias"):
        optimizer.step()


def test_weights_are_checked_by_name():
    q, _, guard = make()
    guard.begin("a")
    guard.check_weights()
    q.trunk.weight.data[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"the weights 'trunk.weight' of network 'q'"):
        guard.check_weights()
