"""A temperature per task: value and optimizer state are swapped, every head's can be asked for."""

import copy
import math

import pytest
import torch

from owlrl.describe.temperature import TaskTemperature
from owlrl.types import HeadPointer


def make(value=0.0):
    log_alpha = torch.full((1,), value, requires_grad=True)
    temperature = TaskTemperature(log_alpha, torch.optim.Adam([log_alpha], lr=0.1))
    pointer = HeadPointer()
    temperature.follow(pointer)
    return temperature, pointer


def learn(temperature, steps, sign=1.0):
    for _ in range(steps):
        temperature.optimizer.zero_grad()
        (sign * temperature.log_alpha).sum().backward()
        temperature.optimizer.step()


def test_tasks_have_values_and_momentum_of_their_own():
    temperature, pointer = make()
    initial = copy.deepcopy(temperature.state_dict())
    learn(temperature, 3)
    first = copy.deepcopy(temperature.state_dict())
    pointer.index = 1
    temperature.load_state_dict(initial)
    assert temperature.log_alpha.item() == 0.0 and temperature.log_alpha.grad is None
    assert not temperature.optimizer.state  # nothing of the first task's momentum
    assert temperature.of_head(0) == pytest.approx(math.exp(-0.3), rel=1e-4)
    learn(temperature, 2, sign=-1.0)
    assert temperature.of_head(1) == pytest.approx(math.exp(0.2), rel=1e-4)
    pointer.index = 0
    temperature.load_state_dict(first)
    assert temperature.of_head(1) == pytest.approx(math.exp(0.2), rel=1e-4)
    lone, _ = make()
    learn(lone, 3)
    learn(lone, 4)
    learn(temperature, 4)
    assert torch.equal(temperature.log_alpha, lone.log_alpha)  # resumed, momentum and all


def test_a_value_that_broke_is_not_remembered():
    temperature, pointer = make()
    learn(temperature, 1)
    good = copy.deepcopy(temperature.state_dict())
    pointer.index = 1
    temperature.load_state_dict(good)
    with torch.no_grad():
        temperature.log_alpha.fill_(float("nan"))
    pointer.index = 0
    temperature.load_state_dict(good)
    assert math.isfinite(temperature.of_head(1))


def test_an_overflow_is_infinite_and_no_error():
    temperature, _ = make(1e4)
    assert temperature.of_head(0) == math.inf
