"""Exploration schedules: values by hand, resumed from their state."""

import math

import pytest

from owlrl.errors import OwlValueError
from owlrl.learners import EpsilonSchedule


def test_linear_and_exponential_by_hand():
    linear = EpsilonSchedule(1.0, 0.2, frames=10)
    exponential = EpsilonSchedule(0.9, 0.01, frames=10, shape="exponential")
    for frame in range(15):
        assert linear.value == pytest.approx(max(0.2, 1.0 - 0.08 * frame))
        assert exponential.value == pytest.approx(0.01 + 0.89 * math.exp(-frame / 10))
        linear.advance(1), exponential.advance(1)


def test_state_round_trip():
    schedule, other = EpsilonSchedule(1.0, 0.0, frames=10), EpsilonSchedule(1.0, 0.0, frames=10)
    schedule.advance(7)
    other.load_state_dict(schedule.state_dict())
    assert other.value == schedule.value


def test_bad_arguments_are_named_together():
    with pytest.raises(OwlValueError) as caught:
        EpsilonSchedule(1.5, -0.1, frames=0, shape="steps")
    for part in ("start is 1.5", "end is -0.1", "frames is 0", "shape is 'steps'"):
        assert part in str(caught.value)
