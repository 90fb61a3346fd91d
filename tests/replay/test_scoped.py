"""TaskScopedReplay: rows of one task only, warm starts, exceptions, saving."""

from __future__ import annotations

import copy
import json
import tracemalloc

import numpy as np
import pytest
import torch

from owlrl.checkpoint import CHUNK, load_state, save_state
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.protocols import TaskReplay
from owlrl.replay import PrioritizedSampler, RewardBalancedSampler, TaskScopedReplay, UniformSampler
from tests.rows import rows_of

SAMPLERS = [UniformSampler, PrioritizedSampler, RewardBalancedSampler]


def make(capacity=1000, **arguments):
    plain = dict(observation_shape=(), observation_dtype=np.int64, seed=0)
    return TaskScopedReplay(capacity, **{**plain, **arguments})


def fill(replay, count, *, start=0, reward=0.0):
    for step in range(start, start + count):
        replay.add(step, step, reward, step + 1, False, step % 10 == 9)


def test_is_a_task_replay():
    assert isinstance(make(), TaskReplay)


@pytest.mark.parametrize(
    ("sampler", "n_step", "draws"),
    [
        (UniformSampler, 1, 1_000_000),
        (UniformSampler, 5, 200_000),
        (PrioritizedSampler, 3, 200_000),
        (RewardBalancedSampler, 5, 200_000),
    ],
)
def test_no_row_of_another_task_in_a_million_draws(sampler, n_step, draws):
    replay = make(
        3000,
        observation_dtype=np.uint8,
        action_dtype=np.uint8,
        num_envs=4,
        warm_start=500,
        sampler=sampler(),
        n_step=n_step,
        gamma=1.0,
    )
    rng = np.random.default_rng(0)
    visits = ["a", "b", "a", "c", "b", "a"]
    for visit, task in enumerate(visits):
        replay.begin_task(task)
        tag = "abc".index(task) + 1
        for _ in range(800 if visit % 2 else 150):
            tags = np.full(4, tag)
            # rewards that are no sums of at most five rewards of another task
            reward = (rng.random(4) < 0.3) * 10.0**tag
            replay.add_batch(tags, tags, reward, tags, *(rng.random((2, 4)) < 0.05))
        drawn = 0
        while drawn < draws / len(visits):
            batch = replay.sample(len(replay))
            drawn += len(batch)
            assert batch.task == task
            for column in (batch.observation, batch.next_observation, batch.action):
                assert (column == tag).all()
            assert ((batch.reward / 10.0**tag) % 1 == 0).all()
            assert (batch.reward <= n_step * 10.0**tag).all()
            replay.update_priorities(batch.index, rng.random(len(batch)))
        if visit != 3:  # the fourth visit is broken off
            replay.end_task()


def test_a_task_comes_back_to_its_newest_rows():
    replay = make(warm_start=15)
    replay.begin_task("left")
    fill(replay, 100)
    replay.end_task()
    assert len(replay) == 100  # still there for whoever consolidates the task
    assert replay.stored == {"left": 15}
    replay.begin_task("right")
    assert len(replay) == 0
    replay.begin_task("left")
    assert rows_of(replay).observation.tolist() == list(range(85, 100))
    fill(replay, 5, start=100)
    replay.end_task()
    replay.begin_task("left")
    assert rows_of(replay).observation.tolist() == list(range(90, 105))


def test_a_visit_that_was_broken_off_leaves_no_row():
    replay = make()
    replay.begin_task("left")
    fill(replay, 10)
    replay.end_task()
    replay.begin_task("left")
    fill(replay, 10, start=500)
    replay.begin_task("right")  # no end_task: an exception
    fill(replay, 5, start=900)
    replay.begin_task("right")  # neither here
    assert len(replay) == 0
    replay.begin_task("left")
    assert rows_of(replay).observation.tolist() == list(range(10))


def test_an_episode_does_not_run_on_into_the_next_visit():
    replay = make(n_step=3, gamma=1.0)
    replay.begin_task("left")
    replay.add(0, 0, 1.0, 7, False, False)
    replay.end_task()
    replay.begin_task("left")
    replay.add(7, 1, 1.0, 8, False, False)  # starts with what the last visit ended with
    assert {reward for _ in range(20) for reward in replay.sample(2).reward.tolist()} == {1.0}
    replay.add(8, 2, 1.0, 9, False, False)
    assert {reward for _ in range(20) for reward in replay.sample(2).reward.tolist()} == {1.0, 2.0}


def test_rows_can_be_added_at_once_and_belong_to_no_task():
    replay = make()
    fill(replay, 5)
    assert replay.task is None
    assert replay.sample(5).task is None
    replay.begin_task("left")
    assert len(replay) == 0


def test_without_warm_start_nothing_is_stored():
    replay = make(warm_start=0)
    replay.begin_task("left")
    fill(replay, 5)
    replay.end_task()
    replay.begin_task("left")
    assert len(replay) == 0
    assert replay.stored == {}


def test_clear_keeps_stored_samples():
    replay = make()
    replay.begin_task("left")
    fill(replay, 5)
    replay.end_task()
    replay.clear()
    assert len(replay) == 0
    replay.begin_task("left")
    assert len(replay) == 5


def test_every_environment_gives_its_share_of_the_warm_start():
    replay = make(num_envs=2, warm_start=5)
    replay.begin_task("left")
    no = np.zeros(2, bool)
    for step in range(6):
        now = np.array([step, 100 + step])
        replay.add_batch(now, now, np.zeros(2), now + 1, no, no, mask=np.array([True, step < 2]))
    replay.end_task()
    replay.begin_task("left")
    assert sorted(rows_of(replay).observation.tolist()) == [3, 4, 5, 100, 101]


def test_a_stored_sample_is_not_changed_by_what_is_added_later():
    replay = make(8)
    replay.begin_task("left")
    fill(replay, 8)
    replay.end_task()
    fill(replay, 8, start=500)
    replay.begin_task("left")
    assert max(rows_of(replay).observation.tolist()) < 8


def test_samples_are_fresh_and_on_the_device_asked_for():
    replay = make(device=torch.device("cpu"))
    fill(replay, 4)
    first = rows_of(replay)
    kept = first.observation.clone()
    first.reward.add_(1.0)
    fill(replay, 1000, start=4)
    replay.sample(4)
    assert torch.equal(first.observation, kept)
    assert make(device="meta").device == "meta"
    replay = make(device="meta")
    fill(replay, 4)
    assert replay.sample(2).reward.device.type == "meta"


def plain(tree) -> bool:
    """Whether ``tree`` is made of arrays of numbers, numbers, strings, lists and dicts with str keys."""
    if isinstance(tree, dict):
        return all(isinstance(key, str) and plain(value) for key, value in tree.items())
    if isinstance(tree, list):
        return all(plain(value) for value in tree)
    if isinstance(tree, np.ndarray):
        return tree.dtype.kind in "biuf" and tree.dtype.names is None
    return type(tree) in (int, float, str)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_loaded_replay_goes_on_bit_for_bit(sampler, n_step):
    def settings():
        return dict(sampler=sampler(), n_step=n_step, num_envs=2, warm_start=30)

    def play(replay, steps, rng):
        batches = []
        for _ in range(steps):
            now = rng.integers(0, 3, (2, 2))
            ends = rng.random((2, 2)) < 0.1
            replay.add_batch(now[0], now[0], rng.integers(0, 2, 2), now[1], *ends)
            if len(replay) >= 8:
                batches.append(replay.sample(8))
                replay.update_priorities(batches[-1].index, rng.random(8))
        return batches

    first = make(60, **settings())
    rng = np.random.default_rng(1)
    for task in ("left", "right", "left"):
        first.begin_task(task)
        play(first, 50, rng)
        first.end_task()
    state = first.state_dict()
    assert plain(state)
    second = make(60, **{**settings(), "seed": 99})
    play(second, 5, np.random.default_rng(2))
    second.load_state_dict(state)
    assert second.task == "left"
    assert second.stored == first.stored
    for task in (None, "right"):
        if task:
            first.begin_task(task)
            second.begin_task(task)
        for a, b in zip(
            play(first, 60, np.random.default_rng(3)), play(second, 60, np.random.default_rng(3)), strict=True
        ):
            np.testing.assert_array_equal(a.index, b.index)
            for name in ("observation", "action", "reward", "next_observation", "terminated", "discount"):
                assert torch.equal(getattr(a, name), getattr(b, name))
            assert a.weight is b.weight is None or torch.equal(a.weight, b.weight)


def test_a_state_holds_used_rows_only_and_what_is_loaded_is_a_copy():
    replay = make(1_000_000)
    replay.begin_task("left")
    fill(replay, 10)
    replay.end_task()
    state = copy.deepcopy(replay.state_dict())
    sizes = [len(array) for array in state["contents"]["store"]["ring"].values()]
    assert max(sizes) == 11
    json.dumps(state["rng"])
    fill(replay, 5, start=10)
    other = make(1_000_000)
    other.load_state_dict(state)
    for frames in (state["contents"]["stored"]["left"], state["contents"]["store"]["ring"]):
        frames["observation"][:] = 88
    for again in (other, replay):
        assert rows_of(again).observation.tolist() == list(range(len(again)))
        again.begin_task("left")
        assert rows_of(again).observation.tolist() == list(range(10))
    assert len(replay) == len(other) == 10


@pytest.mark.parametrize("num_envs", [1, 3])
def test_a_large_replay_is_written_without_a_copy_of_it(num_envs, tmp_path):
    size, no = 1_000, np.zeros(num_envs, np.bool_)
    shape = {"observation_shape": (20_000,), "observation_dtype": np.uint8}
    replay = TaskScopedReplay(size * num_envs, num_envs=num_envs, seed=0, **shape)
    replay.begin_task("left")
    draw = np.random.default_rng(0)
    for step in range(size + 100):
        seen = draw.integers(0, 255, (num_envs, 20_000), np.uint8)
        mask = np.arange(num_envs) <= step % 3  # lanes of different length
        replay.add_batch(seen, no.astype(np.int64), no + 1.0, seen, no, ~no, mask=mask)
    tracemalloc.start()
    save_state(tmp_path / "state", replay.state_dict())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5 * CHUNK < 0.4 * replay.nbytes
    again = TaskScopedReplay(size * num_envs, num_envs=num_envs, seed=1, **shape)
    again.load_state_dict(load_state(tmp_path / "state"))
    assert len(again) == len(replay)
    one, other = replay.sample(500), again.sample(500)
    assert torch.equal(one.observation, other.observation) and torch.equal(one.action, other.action)


def test_errors_of_tasks():
    replay = make()
    with pytest.raises(OwlTypeError, match=r"TaskScopedReplay.begin_task: task is 3 \(int\); expected a str"):
        replay.begin_task(3)
    with pytest.raises(OwlStateError, match=r"TaskScopedReplay.end_task: no task was begun"):
        replay.end_task()
    with pytest.raises(OwlValueError) as error:
        make(0, warm_start=-1)
    assert "capacity is 0; expected an int >= 1" in str(error.value)
    assert "warm_start is -1; expected an int >= 0" in str(error.value)


def test_repr_shows_what_is_there():
    replay = make(100, warm_start=3)
    replay.begin_task("left")
    fill(replay, 5)
    replay.end_task()
    assert repr(replay) == (
        "TaskScopedReplay(5 rows of at most 100, task='left', num_envs=1, sampler=UniformSampler(), "
        "n_step=1, warm_start=3, stored={'left': 3})"
    )
