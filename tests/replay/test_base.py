"""What all replays on rings share: sizes, settings, drawing without replacement, damaged states."""

from __future__ import annotations

import copy

import gymnasium as gym
import numpy as np
import pytest
import torch

from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.protocols import TaskReplay
from owlrl.replay import PrioritizedSampler, RehearsalReplay, SharedReplay, TaskScopedReplay
from tests.rows import rows_of

KINDS = [TaskScopedReplay, SharedReplay, RehearsalReplay]


def make(kind, capacity=50, **arguments):
    plain = dict(observation_shape=(), observation_dtype=np.int64, seed=0)
    return kind(capacity, **{**plain, **arguments})


def fill(replay, count):
    for step in range(count):
        replay.add(step, step, 0.0, step + 1, False, step % 7 == 6)


@pytest.mark.parametrize("kind", KINDS)
def test_settings_are_stored_under_their_names(kind):
    sampler = PrioritizedSampler()
    given = dict(num_envs=2, sampler=sampler, n_step=3, gamma=0.5, seed=7, device="cpu")
    replay = make(kind, 51, action_shape=(3,), action_dtype=np.float32, **given)
    for name, value in {**given, "capacity": 51, "observation_shape": (), "action_shape": (3,)}.items():
        assert getattr(replay, name) == value
    assert replay.observation_dtype == np.int64
    assert replay.action_dtype == np.float32
    assert replay.nbytes > 0
    assert isinstance(replay, TaskReplay)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(capacity=True), ["capacity is True; expected an int >= 1"]),
        (dict(capacity=10.0), ["capacity is 10.0"]),
        (dict(capacity=3, num_envs=4), ["capacity is 3; expected an int >= 4"]),
        (dict(num_envs=0), ["num_envs is 0"]),
        (
            dict(n_step=0, gamma=1.1),
            ["2 problems", "n_step is 0", "gamma is 1.1; expected a finite number >= 0 and <= 1"],
        ),
        (dict(gamma=float("nan")), ["gamma is nan"]),
        (dict(seed=-1), ["seed is -1; expected an int >= 0"]),
        (dict(seed=1.5), ["seed is 1.5"]),
        (dict(sampler="uniform"), ["sampler is 'uniform'"]),
        (dict(device="nowhere"), ["device is 'nowhere'"]),
        (
            dict(observation_dtype="x", num_envs=-1, n_step=False),
            ["3 problems", "num_envs is -1", "n_step is False"],
        ),
    ],
)
def test_settings_are_checked_together(kind, arguments, words):
    with pytest.raises(OwlValueError) as error:
        make(kind, **arguments)
    assert str(error.value).startswith(kind.__name__)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_larger_than_the_replay_is_refused(kind):
    replay = make(kind)
    with pytest.raises(
        OwlStateError, match=rf"{kind.__name__}.sample: 1 rows were requested, but there are only 0"
    ):
        replay.sample(1)
    replay.begin_task("left")
    fill(replay, 5)
    replay.sample(5)
    with pytest.raises(OwlStateError, match="6 rows of task 'left' were requested, but there are only 5"):
        replay.sample(6)


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "a", None])
def test_a_batch_size_must_be_a_positive_int(size):
    replay = make(TaskScopedReplay)
    fill(replay, 5)
    with pytest.raises(OwlValueError, match=r"the number of rows requested is .*; expected an int >= 1"):
        replay.sample(size)
    assert len(replay.sample(np.int64(2))) == 2


def test_one_row_at_a_time_needs_one_environment():
    replay = make(TaskScopedReplay, num_envs=2)
    with pytest.raises(OwlStateError, match="num_envs is 2; use add_batch"):
        replay.add(0, 0, 0.0, 0, False, False)


def test_capacity_is_that_of_an_endless_episode_rounded_down_to_the_environments():
    replay = make(TaskScopedReplay, 11, num_envs=3)
    no = np.zeros(3, bool)
    for step in range(20):
        now = np.full(3, step)
        replay.add_batch(now, now, np.zeros(3), now + 1, no, no)
    assert len(replay) == 9
    assert sorted(rows_of(replay).observation.tolist()) == sorted([17, 18, 19] * 3)


def test_the_seed_decides_the_draws():
    def drawn(seed):
        replay = make(TaskScopedReplay, seed=seed)
        fill(replay, 40)
        return replay.sample(40).observation.tolist()

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def saved(kind, **arguments):
    replay = make(kind, **arguments)
    replay.begin_task("left")
    fill(replay, 20)
    replay.end_task()
    return replay.state_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_another_layout_is_refused(kind):
    replay = make(kind, 60, observation_dtype=np.int32, sampler=PrioritizedSampler())
    with pytest.raises(OwlValueError) as error:
        replay.load_state_dict(saved(kind))
    assert "3 problems" in str(error.value)
    for words in (
        "capacity is 50 in the state; expected 60",
        "observation_dtype is 'int64' in the state; expected 'int32'",
        "sampler is 'UniformSampler' in the state; expected 'PrioritizedSampler'",
    ):
        assert words in str(error.value)


def rings(state):
    """All places in ``state`` that hold a ring's frames."""
    contents = state["contents"]
    stores = contents["by_task"].values() if "by_task" in contents else [contents["store"]]
    return [store["ring"] for store in stores]


DAMAGES = {
    "no layout": lambda s: s.pop("layout"),
    "task is a number": lambda s: s.update(task=3),
    "no contents": lambda s: s.pop("contents"),
    "layout is a list": lambda s: s.update(layout=[]),
    "rng of another kind": lambda s: s["rng"].update(bit_generator="MT19937"),
    "rng is nothing": lambda s: s.update(rng={}),
    "a column is missing": lambda s: [r.pop("reward") for r in rings(s)],
    "a column is too short": lambda s: [r.update(reward=r["reward"][:-1]) for r in rings(s)],
    "a column has another dtype": lambda s: [r.update(live=r["live"].astype(int)) for r in rings(s)],
    "fewer rows than frames": lambda s: [r.update(used=r["used"] + 1) for r in rings(s)],
    "more frames than fit": lambda s: [
        r.update({k: np.resize(v, 60 if len(v) > 1 else 1) for k, v in r.items()}, used=np.array([60]))
        for r in rings(s)
    ],
    "a negative number of frames": lambda s: [
        r.update(used=np.array([-1]), **{k: r[k][:0] for k in ("reward", "live")}) for r in rings(s)
    ],
    "the last observation is elsewhere": lambda s: [r.update(tail=r["tail"] - 1) for r in rings(s)],
    "the last observation is before the start": lambda s: [
        r.update(tail=r["tail"] * 0 - 2) for r in rings(s)
    ],
    "a transition without an end": lambda s: [r["live"].__setitem__(-1, True) for r in rings(s)],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", sorted(DAMAGES))
def test_a_damaged_state_is_refused_and_nothing_changed(kind, damage):
    replay = make(kind)
    replay.begin_task("right")
    fill(replay, 8)
    twin = copy.deepcopy(replay)
    state = saved(kind)
    DAMAGES[damage](state)
    with pytest.raises(OwlValueError, match=r"load_state_dict: the state is damaged \("):
        replay.load_state_dict(state)
    assert replay.task == "right"
    np.testing.assert_array_equal(replay.sample(8).index, twin.sample(8).index)


def test_a_damaged_sampler_is_refused():
    from owlrl.replay import RewardBalancedSampler

    state = saved(TaskScopedReplay, sampler=PrioritizedSampler())
    weight = state["contents"]["store"]["draw"]["weight"]
    for draw, words in [
        (dict(weight=-weight, largest=1.0), "weight has shape"),
        (dict(weight=weight[1:], largest=1.0), "weight has shape"),
        (dict(weight=weight, largest=np.nan), "largest is nan"),
    ]:
        state["contents"]["store"]["draw"] = draw
        with pytest.raises(OwlValueError, match=words):
            make(TaskScopedReplay, sampler=PrioritizedSampler()).load_state_dict(state)
    state = saved(TaskScopedReplay, sampler=RewardBalancedSampler())
    state["contents"]["store"]["draw"]["rows"] = np.array([3])
    with pytest.raises(OwlValueError, match="rows lists 1 rows; expected the 0"):
        make(TaskScopedReplay, sampler=RewardBalancedSampler()).load_state_dict(state)


def test_a_full_ring_whose_end_is_anywhere_is_loaded():
    replay = make(TaskScopedReplay, 5)
    fill(replay, 33)
    other = make(TaskScopedReplay, 5)
    other.load_state_dict(replay.state_dict())
    np.testing.assert_array_equal(rows_of(other).observation, rows_of(replay).observation)


def test_distinct_rows_are_single_steps_whatever_n_step_is():
    replay = TaskScopedReplay(20, observation_shape=(), observation_dtype=np.int64, n_step=3, gamma=0.5)
    for step in range(6):
        replay.add(step, 0, float(step), step + 1, False, False)
    rows = rows_of(replay)
    assert rows.reward.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert rows.next_observation.tolist() == [1, 2, 3, 4, 5, 6] and set(rows.discount.tolist()) == {0.5}


@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_are_those_since_the_last_look(kind):
    replay = make(kind, n_step=3)
    assert replay.new_rows() is None
    replay.begin_task("left")
    fill(replay, 9)
    rows = replay.new_rows()
    assert rows.observation.tolist() == list(range(9)) and rows.next_observation.tolist() == list(
        range(1, 10)
    )
    assert rows.truncated.tolist() == [step == 6 for step in range(9)] and rows.env.tolist() == [0] * 9
    assert rows.task == "left" and rows.index is None and rows.weight is None
    assert replay.new_rows() is None
    replay.add(100, 0, 1.0, 101, True, True)
    rows = replay.new_rows()
    assert rows.observation.tolist() == [100] and rows.terminated.item() and rows.truncated.item()
    replay.end_task()
    replay.begin_task("right")
    assert replay.new_rows() is None
    replay.begin_task("left")  # what it is refilled with is not new
    assert replay.new_rows() is None
    rows.observation[0] = 777  # a copy
    assert 777 not in rows_of(replay).observation.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_new_rows_of_several_environments_come_one_after_the_other(kind):
    replay = make(kind, 40, num_envs=2)
    no = np.zeros(2, bool)
    for step in range(3):
        now = np.array([step, 10 + step])
        replay.add_batch(now, now, np.zeros(2), now + 1, no, no, mask=np.array([True, step != 1]))
    rows = replay.new_rows()
    assert rows.observation.tolist() == [0, 1, 2, 10, 12] and rows.env.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_overwritten_before_they_were_looked_at_are_counted_and_warned_of_once(kind):
    replay = make(kind, 10)
    replay.begin_task("left")
    fill(replay, 6)
    assert len(replay.new_rows()) == 6 and replay.lost_rows == 0
    for step in range(100, 130):
        replay.add(step, 0, 0.0, step + 1, False, False)
    with pytest.warns(UserWarning, match="20 rows were overwritten before new_rows"):
        rows = replay.new_rows()
    assert rows.observation.tolist() == list(range(120, 130)) and replay.lost_rows == 20
    for step in range(200, 215):
        replay.add(step, 0, 0.0, step + 1, False, False)
    assert len(replay.new_rows()) == 10 and replay.lost_rows == 25  # without another warning


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_replay_knows_what_was_looked_at(kind):
    first, second = make(kind, 10), make(kind, 10)
    first.begin_task("left")
    fill(first, 25)
    with pytest.warns(UserWarning):
        first.new_rows()
    fill(first, 4)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    assert second.lost_rows == first.lost_rows > 0
    rows, same = first.new_rows(), second.new_rows()
    assert rows.observation.tolist() == same.observation.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_replay_for_an_environment(kind):
    for env, count in ((gym.make("CartPole-v1"), 1), (gym.make_vec("CartPole-v1", num_envs=3), 3)):
        replay = kind.for_env(env, np.int64(90), gamma=np.float32(0.5))
        assert isinstance(replay, kind) and replay.num_envs == count and replay.gamma == 0.5
        assert replay.observation_shape == (4,) and replay.action_shape == () and replay.capacity == 90
    with pytest.raises(OwlTypeError, match="expected a Gymnasium environment"):
        kind.for_env("CartPole-v1", 10)


def test_numpy_numbers_are_numbers():
    replay = make(
        TaskScopedReplay, np.int64(50), num_envs=np.int32(1), n_step=np.int64(2), warm_start=np.uint8(3)
    )
    assert (replay.capacity, replay.num_envs, replay.n_step, replay.warm_start) == (50, 1, 2, 3)
    assert all(type(x) is int for x in (replay.capacity, replay.num_envs, replay.n_step, replay.warm_start))


def test_without_a_seed_the_draws_follow_torch():
    def drawn(seed):
        torch.manual_seed(seed)
        replay = make(TaskScopedReplay, seed=None)
        fill(replay, 40)
        state = torch.get_rng_state()
        rows = replay.sample(40).observation.tolist()
        assert torch.equal(state, torch.get_rng_state())
        return rows

    with torch.random.fork_rng():
        assert drawn(1) == drawn(1) != drawn(2)


def test_forgetting_a_task():
    replay = make(TaskScopedReplay)
    for task in ("left", "right"):
        replay.begin_task(task)
        fill(replay, 20)
        replay.end_task()
    kept = replay.nbytes
    replay.forget("left")
    assert replay.stored == {"right": 20} and replay.nbytes < kept and len(replay) == 20
    replay.forget("right")  # it is the current one still
    assert replay.stored == {} and replay.task is None and len(replay) == 0
    replay.forget("unknown")
    rehearsal = make(RehearsalReplay, sampler=PrioritizedSampler())
    for task in ("left", "right"):
        rehearsal.begin_task(task)
        fill(rehearsal, 20)
    rehearsal.forget("right")
    assert rehearsal.tasks == {"left": 20} and len(rehearsal) == 0 and rehearsal.task is None
    fill(rehearsal, 5)
    state, other = rehearsal.state_dict(), make(RehearsalReplay, sampler=PrioritizedSampler())
    other.load_state_dict(state)
    drawn = rows_of(other)
    other.update_priorities(drawn.index, np.ones(5))
    assert other.tasks == {"left": 20} and len(other) == 5
    with pytest.raises(OwlStateError, match="all tasks share one ring"):
        make(SharedReplay).forget("left")
    with pytest.raises(OwlTypeError, match="task is 3"):
        replay.forget(3)


def test_a_mask_has_one_entry_per_environment():
    replay = TaskScopedReplay(10, observation_shape=(1,), observation_dtype=np.float32, num_envs=2)
    replay.begin_task("a")
    rows = (np.zeros((2, 1), np.float32), np.zeros(2, np.int64), np.zeros(2), np.zeros((2, 1), np.float32))
    for mask in (np.ones(3, np.bool_), np.ones(1, np.bool_), np.ones(2)):
        with pytest.raises(OwlValueError, match="mask is"):
            replay.add_batch(*rows, np.zeros(2, np.bool_), np.zeros(2, np.bool_), mask=mask)
