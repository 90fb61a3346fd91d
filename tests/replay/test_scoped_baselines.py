"""SharedReplay keeps everything in one ring; RehearsalReplay keeps a ring per task."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.replay import PrioritizedSampler, RehearsalReplay, SharedReplay
from tests.rows import rows_of

TAGS = {"left": 1, "right": 2, "up": 3}


def make(kind, capacity=100, **arguments):
    return kind(capacity, observation_shape=(), observation_dtype=np.int64, seed=0, **arguments)


def visit(replay, task, count=20, *, reward=1.0):
    replay.begin_task(task)
    for _ in range(count):
        replay.add(TAGS[task], TAGS[task], reward, TAGS[task], False, False)
    replay.end_task()


def test_shared_never_empties_and_mixes_tasks():
    replay = make(SharedReplay)
    visit(replay, "left")
    visit(replay, "right", 40)
    assert len(replay) == 60
    batch = replay.sample(60)
    assert batch.task is None
    assert set(batch.observation.tolist()) == {1, 2}
    assert len(rows_of(replay)) == 60
    replay.begin_task("left")
    assert len(replay) == 60
    assert replay.task == "left"
    replay.clear()
    assert len(replay) == 0


def test_shared_draws_tasks_by_their_number_of_rows():
    replay = make(SharedReplay)
    visit(replay, "left", 10)
    visit(replay, "right", 30)
    drawn = np.concatenate([replay.sample(40).observation for _ in range(500)])
    assert abs((drawn == 2).mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 20_000)


@pytest.mark.parametrize("kind", [SharedReplay, RehearsalReplay])
@pytest.mark.parametrize("ended", [True, False])
def test_no_return_runs_from_one_visit_into_the_next(kind, ended):
    replay = make(kind, n_step=10, gamma=1.0)
    for task in ("left", "left", "right"):
        replay.begin_task(task)
        # every visit starts with the observation with which the one before ended
        replay.add(5, 0, 1.0, 5, False, False)
        if ended:
            replay.end_task()
    assert {replay.sample(1).reward.item() for _ in range(50)} == {1.0}
    replay.begin_task("left")
    assert {replay.sample(1).reward.item() for _ in range(50)} == {1.0}


def test_rehearsal_keeps_a_ring_per_task_and_tells_which_was_drawn():
    replay = make(RehearsalReplay, 30)
    visit(replay, "left", 50)
    visit(replay, "right", 20)
    visit(replay, "up", 10)
    assert replay.tasks == {"left": 30, "right": 20, "up": 10}
    assert len(replay) == 10
    for _ in range(200):
        batch = replay.sample(4)
        assert (batch.observation == TAGS[batch.task]).all()
    assert rows_of(replay).observation.tolist() == [3] * 10
    visit(replay, "left", 5)
    assert len(replay) == 30 - 1  # between two visits lies a boundary
    assert rows_of(replay).task == "left"


def test_rehearsal_draws_the_current_task_with_its_probability_and_the_others_evenly():
    replay = make(RehearsalReplay)
    for task in TAGS:
        visit(replay, task)
    tasks = [replay.sample(1).task for _ in range(4000)]
    spread = 5 * np.sqrt(0.25 / 4000)
    assert abs(tasks.count("up") / 4000 - 0.75) < spread
    assert abs(tasks.count("left") / 4000 - 0.125) < spread
    assert abs(tasks.count("right") / 4000 - 0.125) < spread


@pytest.mark.parametrize(("current", "expected"), [(1.0, {"right"}), (0.0, {"left"})])
def test_rehearsal_at_the_ends_of_the_probability(current, expected):
    replay = make(RehearsalReplay, current=current)
    visit(replay, "left")
    visit(replay, "right")
    assert {replay.sample(4).task for _ in range(50)} == expected


def test_rehearsal_leaves_out_tasks_with_too_few_rows():
    replay = make(RehearsalReplay, current=0.0)
    visit(replay, "left", 3)
    visit(replay, "right", 20)
    assert {replay.sample(4).task for _ in range(50)} == {"right"}
    assert {replay.sample(3).task for _ in range(50)} == {"left"}
    with pytest.raises(OwlStateError, match="21 rows of task 'right' were requested, but there are only 20"):
        replay.sample(21)


def test_rehearsal_priorities_find_their_task():
    replay = make(RehearsalReplay, sampler=PrioritizedSampler(alpha=1.0, epsilon=0.0), current=0.5)
    for task in ("left", "right"):
        replay.begin_task(task)
        for step in range(4):
            replay.add(step, step, 0.0, step + 1, False, False)
        replay.end_task()
    wanted = {"left": 1, "right": 2}
    seen = set()
    for _ in range(40):
        batch = replay.sample(4)
        seen.add(batch.task)
        replay.update_priorities(batch.index, (batch.observation == wanted[batch.task]).double())
    assert seen == {"left", "right"}
    for _ in range(40):
        batch = replay.sample(4)
        assert (batch.observation == wanted[batch.task]).all()
    distinct = rows_of(replay)
    replay.update_priorities(distinct.index, np.ones(4))
    with pytest.raises(OwlValueError, match="expected rows from 0 to 201"):
        replay.update_priorities(np.array([202]), np.ones(1))


def test_rehearsal_drops_rows_that_belong_to_no_task():
    replay = make(RehearsalReplay)
    replay.add(9, 0, 0.0, 9, False, False)
    batch = replay.sample(1)
    assert batch.task is None
    replay.update_priorities(batch.index, np.ones(1))
    before = replay.nbytes
    visit(replay, "left")
    assert replay.tasks == {"left": 20}
    assert 9 not in rows_of(replay).observation.tolist()
    visit(replay, "right")
    assert replay.nbytes == 2 * before
    replay.clear()
    assert replay.tasks == {"left": 20, "right": 0}


@pytest.mark.parametrize("kind", [SharedReplay, RehearsalReplay])
@pytest.mark.parametrize("tasks", [[], ["left"], ["left", "right", "left"]])
def test_a_loaded_replay_goes_on_bit_for_bit(kind, tasks):
    first, second = make(kind), make(kind)
    for task in tasks:
        visit(first, task, 30)
    visit_second = second.begin_task
    visit_second("up")
    if not tasks:
        first.add(1, 1, 1.0, 2, False, False)
    second.load_state_dict(first.state_dict())
    assert second.task == first.task == (tasks[-1] if tasks else None)
    for _ in range(2):
        for _ in range(20):
            a, b = first.sample(1), second.sample(1)
            assert a.task == b.task
            np.testing.assert_array_equal(a.index, b.index)
            assert torch.equal(a.observation, b.observation)
        first.add(2, 1, 1.0, 2, False, False)
        second.add(2, 1, 1.0, 2, False, False)
        assert len(first) == len(second)


@pytest.mark.parametrize("kind", [SharedReplay, RehearsalReplay])
def test_errors_and_repr(kind):
    replay = make(kind)
    with pytest.raises(OwlTypeError, match=rf"{kind.__name__}.begin_task: task is None"):
        replay.begin_task(None)
    with pytest.raises(OwlStateError, match=rf"{kind.__name__}.end_task: no task was begun"):
        replay.end_task()
    visit(replay, "left")
    assert repr(replay).startswith(f"{kind.__name__}(20 rows of at most 100, task='left'")


def test_rehearsal_checks_its_probability():
    with pytest.raises(
        OwlValueError, match=r"RehearsalReplay: current is 1\.5; expected a finite number >= 0 and <= 1"
    ):
        make(RehearsalReplay, current=1.5)
    replay = make(RehearsalReplay)
    visit(replay, "left")
    assert "current=0.75, tasks={'left': 20}" in repr(replay)


def test_rehearsal_refuses_a_state_whose_current_task_has_no_rows():
    replay = make(RehearsalReplay)
    visit(replay, "left")
    state = replay.state_dict()
    state["task"] = "right"
    with pytest.raises(OwlValueError, match="KeyError: 'right'"):
        replay.load_state_dict(state)
