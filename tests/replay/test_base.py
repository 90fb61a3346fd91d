"""What all replays on rings share: sizes, settings, drawing without replacement, damaged states."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from owlrl.errors import OwlStateError, OwlValueError
from owlrl.protocols import TaskReplay
from owlrl.replay import PrioritizedSampler, RehearsalReplay, SharedReplay, TaskScopedReplay

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
            ["2 problems", "n_step is 0", "gamma is 1.1; expected a number from 0 to 1"],
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
        OwlStateError, match=rf"{kind.__name__}.sample: 1 rows were asked for and there are 0"
    ):
        replay.sample(1)
    with pytest.raises(OwlStateError, match="sample_distinct: 1 rows were asked for and there are 0"):
        replay.sample_distinct(1)
    replay.begin_task("left")
    fill(replay, 5)
    replay.sample(5)
    with pytest.raises(OwlStateError, match="6 rows of task 'left' were asked for and there are 5"):
        replay.sample(6)


@pytest.mark.parametrize("size", [0, -1, True, 2.0, "a", None])
@pytest.mark.parametrize("method", ["sample", "sample_distinct"])
def test_a_batch_size_must_be_a_positive_int(size, method):
    replay = make(TaskScopedReplay)
    fill(replay, 5)
    with pytest.raises(OwlValueError, match=r"the number of rows asked for is .*; expected an int >= 1"):
        getattr(replay, method)(size)
    assert len(getattr(replay, method)(np.int64(2))) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_distinct_rows_are_distinct_and_uniform(kind):
    replay = make(kind)
    replay.begin_task("left")
    fill(replay, 40)
    rows = replay.sample_distinct(1000).observation.tolist()
    assert rows == list(range(40))
    counts = np.zeros(40)
    for _ in range(500):
        drawn = replay.sample_distinct(10)
        assert len(set(drawn.observation.tolist())) == 10
        counts[drawn.observation.numpy()] += 1
        assert drawn.weight is None
    np.testing.assert_allclose(counts / 125, 1.0, atol=5 / np.sqrt(125))


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
    assert sorted(replay.sample_distinct(99).observation.tolist()) == sorted([17, 18, 19] * 3)


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
    np.testing.assert_array_equal(other.sample_distinct(9).observation, replay.sample_distinct(9).observation)


def test_distinct_rows_are_single_steps_whatever_n_step_is():
    replay = TaskScopedReplay(20, observation_shape=(), observation_dtype=np.int64, n_step=3, gamma=0.5)
    for step in range(6):
        replay.add(step, 0, float(step), step + 1, False, False)
    rows = replay.sample_distinct(99)
    assert rows.reward.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert rows.next_observation.tolist() == [1, 2, 3, 4, 5, 6] and set(rows.discount.tolist()) == {0.5}
