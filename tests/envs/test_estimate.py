"""Interference looked up in heads, against what the heads were made to say."""

import numpy as np
import pytest
import torch
from torch import nn

from owlrl import MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay
from owlrl.envs import estimate_interference
from owlrl.errors import NonFiniteError, OwlError


def owl_of(*biases: list[float]) -> OwlWrapper:
    """Heads that value the actions as given, wherever the first number of the observation is 0.

    Where it is 1, the last action is worth 1000 more in all of them.
    """
    q = MultiHeadQ(nn.Identity(), 2, len(biases[0]))
    replay = TaskScopedReplay(10, observation_shape=(2,), observation_dtype=np.float32)
    owl = OwlWrapper(QLearner(q, None, torch.optim.SGD(q.parameters(), 0.1), replay=replay))
    x = np.zeros(2, np.float32)
    for k, bias in enumerate(biases):
        with owl.task(f"task {k}") as record, torch.no_grad():
            replay.add(x, 0, 0.0, x, False, False)
            head = q.heads[record.head]
            head.weight.zero_()
            head.weight[-1, 0] = 1000.0
            head.bias.copy_(torch.tensor(bias))
    return owl


OBSERVATIONS = np.array([[0, 0], [0, 0], [0, 0], [1, 0]], dtype=np.float32)


def test_heads_that_want_different_actions_contradict_each_other():
    owl = owl_of([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    assert estimate_interference(owl, OBSERVATIONS) == 0.75


def test_a_common_good_action_is_no_contradiction():
    owl = owl_of([1.0, 0.998, 0.0], [0.0, 1.0, 0.0])
    assert estimate_interference(owl, OBSERVATIONS) == 0.0
    assert estimate_interference(owl, OBSERVATIONS, tolerance=0.001) == 0.75


def test_negative_values_have_a_tolerance_too():
    owl = owl_of([-100.0, -100.3, -200.0], [-200.0, -100.0, -200.0])
    assert estimate_interference(owl, OBSERVATIONS[:3]) == 0.0
    assert estimate_interference(owl, OBSERVATIONS[:3], tolerance=0.0) == 1.0


def test_only_the_named_tasks_are_compared():
    owl = owl_of([1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    assert estimate_interference(owl, OBSERVATIONS, tasks=["task 0", "task 1"]) == 0.0
    assert estimate_interference(owl, OBSERVATIONS, tasks=["task 0", "task 2"]) == 0.75
    assert estimate_interference(owl, OBSERVATIONS) == 0.75


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tasks": ["task 0"]}, "at least 2"),
        ({"tasks": ["task 0", "task 9"]}, "'task 9' has not been learned"),
        ({"tolerance": -1}, "tolerance is -1"),
        ({"observations": np.zeros(2)}, "expected a batch"),
        ({"observations": np.zeros((0, 2))}, "expected a batch"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    owl = owl_of([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    with pytest.raises(OwlError, match=words):
        estimate_interference(owl, arguments.pop("observations", OBSERVATIONS), **arguments)


def test_what_is_not_finite_is_no_agreement():
    owl = owl_of([1.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    with pytest.raises(NonFiniteError, match="some of the values are NaN"):
        estimate_interference(owl, np.full((3, 2), np.nan, np.float32))
