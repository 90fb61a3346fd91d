"""StepGuard: steps only inside a task and only with finite gradients."""

import pytest
import torch
from torch import nn

from owlrl import MultiHeadQ, QLearner
from owlrl.errors import NonFiniteError, OwlStateError
from owlrl.step_guard import StepGuard


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
    with pytest.raises(
        NonFiniteError, match=r"task 'a', step 1: the gradient of 'trunk.weight' in network 'q'"
    ):
        optimizer.step()
    assert torch.equal(before, q.trunk.weight)


def test_bad_numbers_that_the_head_does_not_see_are_found_too():
    q, optimizer, guard = make()
    guard.begin("b")
    backward(q, optimizer)
    q.trunk.bias.grad[1] = float("nan")
    before = q.heads[0].weight.clone()
    with pytest.raises(NonFiniteError, match=r"'trunk.bias' in network 'q'"):
        optimizer.step()
    assert torch.equal(before, q.heads[0].weight)


def test_steps_are_refused_while_paused():
    q, optimizer, guard = make()
    guard.begin("a")
    backward(q, optimizer)
    with guard.paused(), pytest.raises(OwlStateError, match="outside a task"):
        optimizer.step()
    optimizer.step()
    assert guard.steps == 1


def test_weights_are_checked_by_name():
    q, _, guard = make()
    guard.begin("a")
    guard.check_weights()
    q.trunk.weight.data[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"the weights 'trunk.weight' of network 'q'"):
        guard.check_weights()
