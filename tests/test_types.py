"""Transitions and the head pointer."""

import copy
import pickle
import threading
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from owlrl import MultiHeadQ
from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.types import HeadPointer, Transitions, check_head, without_missing


def rows(n=4, **extra) -> Transitions:
    return Transitions(
        observation=torch.arange(n * 2.0).view(n, 2),
        action=torch.arange(n),
        reward=torch.arange(n) / 10,
        next_observation=torch.zeros(n, 2),
        terminated=torch.zeros(n, dtype=torch.bool),
        discount=torch.full((n,), 0.9),
        **extra,
    )


def test_slices_cut_every_field():
    batch = rows(weight=torch.arange(4.0), index=np.arange(10, 14), task="a")
    part = batch[1:3]
    assert len(part) == 2 and part.task == "a"
    assert (
        part.action.tolist() == [1, 2]
        and part.weight.tolist() == [1.0, 2.0]
        and part.index.tolist() == [11, 12]
    )
    assert batch[torch.tensor([3, 0])].index.tolist() == [13, 10]
    assert rows()[:2].index is None


def test_to_moves_tensors_and_keeps_the_rest():
    moved = rows(task="a", index=np.arange(4)).to("meta")
    assert moved.observation.device.type == "meta" and moved.weight is None and moved.task == "a"
    assert moved.index.tolist() == [0, 1, 2, 3]


def test_the_pointer_is_shared_by_copies_and_comes_back_after_errors():
    pointer = HeadPointer()
    assert copy.copy(pointer) is pointer is copy.deepcopy([pointer])[0]
    with pytest.raises(KeyError), pointer.at(3):
        assert pointer.head == 3
        raise KeyError
    assert pointer.head == 0 and repr(pointer) == "HeadPointer(0)"


@pytest.mark.parametrize("head", [True, 1.0, "a", None, np.float64(1)])
def test_heads_are_ints(head):
    with pytest.raises(OwlTypeError, match="expected an int from 0 to 2"):
        check_head("here", head, 3)


def test_heads_are_in_range():
    assert check_head("here", np.int64(2), 3) == 2
    for head in (-1, 3):
        with pytest.raises(OwlValueError, match="expected 0 to 2"):
            check_head("here", head, 3)


def test_a_block_moves_the_pointer_for_its_own_thread_only():
    pointer, seen = HeadPointer(), []
    pointer.index = 1
    with pointer.at(5):
        other = threading.Thread(target=lambda: seen.append(pointer.index))
        other.start()
        other.join()
        assert pointer.head == 5
        pointer.index = 2  # for all threads; this one is still inside its block
        assert pointer.head == 5
    assert seen == [1] and pointer.head == 2


def test_a_pickled_network_takes_its_active_head_along():
    q = MultiHeadQ(nn.Linear(2, 4), 4, 2)
    q.activate(q.add_head())
    copied = pickle.loads(pickle.dumps(q))
    observation = torch.ones(3, 2)
    assert copied.pointer is not q.pointer and torch.equal(copied(observation), q(observation))


def test_answers_are_kept_for_the_thread_that_listens_inside_a_task():
    pointer, answers = HeadPointer(), deque()
    output = torch.ones(2, requires_grad=True) * 2

    def note():
        pointer.note("q", output)
        return len(answers)

    pointer.listen(answers)
    assert note() == 0  # no task
    pointer.alone = True
    assert note() == 1
    thread = threading.Thread(target=note)
    thread.start()
    thread.join()
    source, kept = answers.pop()
    assert not answers and source == "q"
    assert kept.data_ptr() == output.data_ptr() and not kept.requires_grad  # no copy, no graph
    pointer.note("q", torch.tensor([1.0, -torch.inf]), missing=True)
    assert answers.pop()[1].tolist() == [1.0, 0.0]
    pointer.listen(None)
    assert note() == 0


def test_only_what_is_missing_is_left_out():
    kept = without_missing(torch.tensor([-torch.inf, torch.inf, torch.nan, -1.0]))
    assert kept.tolist()[:2] == [0.0, torch.inf] and kept[2].isnan() and kept[3] == -1.0
