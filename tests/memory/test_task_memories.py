"""TaskMemories: one bound for all, what is thinned, tasks apart from each other, saving."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch

from owlrl.checkpoint import load_state, save_state
from owlrl.errors import OwlValueError
from owlrl.memory import Scaling, TaskMemories, TaskMemory
from owlrl.memory.task_memory import gather_rows

from .oracle import SETTLE, stream, transitions
from .test_task_memory import assert_equal, feed


def grow(memories, task, steps, *, seed=0, settle=True, **form):
    for low in range(0, steps, 100):
        feed(memories.open(task), stream(min(100, steps - low), seed=seed + low), **form)
        if len(memories) and memories.nbytes > memories.max_bytes:
            raise AssertionError(f"{memories.nbytes} of {memories.max_bytes} bytes")
    if settle:
        memories.open(task).settle()


def test_is_a_mapping_of_tasks():
    memories = TaskMemories(100, seed=0)
    assert len(memories) == 0 and "a" not in memories
    memory = memories.open("a")
    assert memories.open("a") is memory is memories["a"]
    assert isinstance(memory, TaskMemory) and memory.capacity == 100
    memories.open("b")
    assert list(memories) == ["a", "b"]
    assert memories == {"a": memory, "b": memories["b"]}
    memories.forget("a")
    memories.forget("never there")
    assert list(memories) == ["b"]
    with pytest.raises(KeyError):
        memories["a"]
    assert memories.open("a") is not memory


def test_each_task_has_its_own_choice_whatever_the_order():
    rows = [*stream(500), SETTLE]
    made = []
    for order in ("ab", "ba"):
        memories = TaskMemories(80, seed=1)
        for task in order:
            feed(memories.open(task), rows)
        made.append(memories)
    for task in "ab":
        assert_equal(made[0][task].rows(), made[1][task].rows())
    assert not torch.equal(made[0]["a"].rows().observation[:40], made[0]["b"].rows().observation[:40])
    other = TaskMemories(80, seed=2)
    feed(other.open("a"), rows)
    assert not torch.equal(made[0]["a"].rows().observation[:40], other["a"].rows().observation[:40])


def test_the_largest_are_thinned_to_one_number_of_rows():
    free = TaskMemories(2000, seed=0)
    bound = TaskMemories(2000, max_bytes=100_000, seed=0)
    for memories in (free, bound):
        grow(memories, "small", 100)
        for number, task in enumerate("abcd"):
            grow(memories, task, 1500, seed=1000 * number)
    assert free.nbytes > 100_000 >= bound.nbytes > 60_000
    assert_equal(bound["small"].rows(), free["small"].rows())
    thinned = {bound[task].capacity for task in "abcd"} - {2000}
    assert thinned and max(thinned) - min(len(bound[task]) for task in "abc") < 200
    for task in "abcd":
        alone = free[task]
        alone.thin(bound[task].capacity)
        assert_equal(bound[task].rows(), alone.rows())


def test_many_tasks_take_the_bytes_of_their_rows():
    memories = TaskMemories(64, seed=0)
    batch = transitions(stream(80), observation=np.uint8, shape=(7, 7, 3))
    for number in range(50):
        memory = memories.open(str(number))
        memory.add(batch)
        memory.settle()
    assert memories.nbytes / len(memories) < 64 * 160 * 1.35 + 500
    assert memories.nbytes == sum(memory.nbytes for memory in memories.values())


def test_forgetting_makes_room():
    memories = TaskMemories(2000, max_bytes=100_000, seed=0)
    grow(memories, "a", 1500)
    memories.forget("a")
    assert memories.nbytes == 0
    grow(memories, "b", 1500)
    assert memories["b"].capacity == 2000


def test_too_few_bytes_for_even_a_segment_warn_once():
    memories = TaskMemories(2000, max_bytes=500, seed=0)
    with pytest.warns(UserWarning, match=r"1 tasks of 8 rows each take .* more than max_bytes, 500 bytes"):
        feed(memories.open("a"), stream(100))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        feed(memories.open("a"), stream(100))
    assert len(memories["a"]) <= 8


def test_goes_on_from_a_save_bit_for_bit_through_thinning(tmp_path):
    memories = TaskMemories(1000, max_bytes=60_000, quarantine=30, seed=0)
    grow(memories, "a", 1200)
    grow(memories, "b", 700, settle=False)
    memories["a"].scaling = Scaling(reward_std=2.0)
    save_state(tmp_path / "state", memories.state_dict())
    loaded = TaskMemories(1000, max_bytes=60_000, quarantine=30, seed=5)
    loaded.open("other")
    loaded.load_state_dict(load_state(tmp_path / "state"))
    assert list(loaded) == ["a", "b"]
    capacities = set()
    for each in (memories, loaded):
        grow(each, "b", 900, seed=7)
        for number, task in enumerate(("c", "a", "d")):
            grow(each, task, 900, seed=20 * number)
        capacities.add(tuple(memory.capacity for memory in each.values()))
    assert len(capacities) == 1 and min(capacities.pop()) < 1000
    for task in memories:
        assert memories[task].version == loaded[task].version
        assert_equal(memories[task].rows(), loaded[task].rows())
    np.testing.assert_equal(memories.state_dict(), loaded.state_dict())


def test_loading_keeps_to_its_own_bounds():
    memories = TaskMemories(1000, seed=0)
    grow(memories, "a", 1200)
    state = memories.state_dict()
    fewer = TaskMemories(200, seed=0)
    fewer.load_state_dict(state)
    assert fewer["a"].capacity == 200
    lighter = TaskMemories(1000, max_bytes=20_000, seed=0)
    lighter.load_state_dict(state)
    assert lighter.nbytes <= 20_000
    assert lighter["a"].capacity < 1000


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: state.pop("seed"),
        lambda state: state.update(seed=-1),
        lambda state: state.update(memories=[1]),
        lambda state: state["memories"].update({"": state["memories"]["a"]}),
        lambda state: state["memories"].update({3: state["memories"]["a"]}),
        lambda state: state["memories"].update(b=None),
        lambda state: state["memories"]["a"].pop("rng"),
    ],
)
def test_damaged_states_are_refused_with_nothing_changed(damage):
    source = TaskMemories(100, seed=0)
    grow(source, "a", 200)
    state = copy.deepcopy(source.state_dict())
    damage(state)
    target = TaskMemories(100, seed=3)
    grow(target, "z", 200)
    before, memory = target.state_dict(), target["z"]
    with pytest.raises(
        OwlValueError, match=r"TaskMemories\.load_state_dict: the state does not fit or is damaged"
    ):
        target.load_state_dict(state)
    np.testing.assert_equal(target.state_dict(), before)
    assert target["z"] is memory


def test_gather_of_several_tasks_is_that_of_each():
    memories = TaskMemories(300, seed=0)
    for number, task in enumerate("abc"):
        grow(memories, task, 400, seed=number)
    memories["b"].scaling = Scaling(observation_mean=3.0)
    picks = {"c": np.array([5, 5, 0]), "a": np.array([7]), "b": np.zeros(0, np.int64)}
    found = gather_rows([memories[task] for task in picks], list(picks.values()))
    parts = [memories[task].gather(numbers) for task, numbers in picks.items()]
    for name in ("observation", "action", "reward", "next_observation", "terminated", "weight", "env"):
        assert torch.equal(getattr(found, name), torch.cat([getattr(part, name) for part in parts])), name
    assert found.index.tolist() == [5, 5, 0, 7]


def test_a_copy_is_another():
    memories = TaskMemories(1000, max_bytes=30_000, seed=0)
    grow(memories, "a", 300)
    copied = copy.deepcopy(memories)
    grow(copied, "a", 2000, seed=9)
    assert copied["a"].capacity < 1000 == memories["a"].capacity
    assert memories["a"].seen == 300


def test_repr_tells_tasks_rows_and_bytes():
    memories = TaskMemories(seed=0)
    assert repr(memories) == "TaskMemories(0 tasks, 0 rows, 0 bytes of at most 1.0 GB)"
    grow(memories, "a", 1100)
    assert repr(memories).startswith("TaskMemories(1 task, 1,100 rows, ")


def test_bad_arguments_are_named_together():
    with pytest.raises(OwlValueError, match=r"TaskMemories: 2 problems:\n.*rows is 0.*\n.*max_bytes is None"):
        TaskMemories(0, None)
    with pytest.raises(OwlValueError, match="rows is 4; expected at least segment, 8"):
        TaskMemories(4)
    with pytest.raises(OwlValueError, match="open: task is ''; expected a non-empty str"):
        TaskMemories().open("")
