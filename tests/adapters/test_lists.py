"""ListReplay: someone's own list or deque, emptied and refilled in place."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections import deque, namedtuple

import numpy as np
import pytest
import torch

from owlrl.adapters.lists import ListReplay
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.protocols import TaskReplay
from tests.rows import rows_of


def row(number, *ends, dtype=np.float32):
    return (
        np.full(2, number, dtype),
        number % 3,
        number / 2,
        np.full(2, number + 1, dtype),
        *(ends or (False,)),
    )


@pytest.fixture(params=[list, deque])
def rows(request):
    return request.param()


def test_rows_that_were_not_looked_at_are_new_after_loading():
    def row(number):
        return (np.full(2, number, np.float32), 0, float(number), np.zeros(2, np.float32), False)

    for looked in (0, 3, 5):
        rows: list = []
        replay = ListReplay(rows)
        replay.begin_task("a")
        rows.extend(row(k) for k in range(looked))
        replay.new_rows()
        rows.extend(row(k) for k in range(looked, 5))
        fresh: list = []
        again = ListReplay(fresh)
        again.load_state_dict(replay.state_dict())
        fresh.append(row(5))
        assert again.new_rows().reward.tolist() == list(range(looked, 6))
        assert again.new_rows() is None


def test_is_a_task_replay(rows):
    assert isinstance(ListReplay(rows), TaskReplay)


def test_rows_become_transitions(rows):
    replay = ListReplay(rows, gamma=0.5, seed=0)
    rows.extend(row(i, i % 4 == 0) for i in range(20))
    batch = replay.sample(20)
    number = batch.observation[:, 0].long()
    assert torch.equal(torch.from_numpy(batch.index), number)
    assert torch.equal(batch.next_observation[:, 1].long(), number + 1)
    assert torch.equal(batch.action, number % 3)
    assert torch.equal(batch.reward, number / 2)
    assert torch.equal(batch.terminated, number % 4 == 0)
    assert batch.discount.tolist() == [0.5] * 20
    assert [t.dtype for t in (batch.observation, batch.action, batch.reward, batch.terminated)] == [
        torch.float32,
        torch.int64,
        torch.float32,
        torch.bool,
    ]
    assert rows_of(replay).observation[:, 0].tolist() == list(range(20))


def test_draws_are_uniform():
    rows = [row(i) for i in range(10)]
    replay = ListReplay(rows, seed=0)
    drawn = np.concatenate([replay.sample(10).index for _ in range(1000)])
    np.testing.assert_allclose(np.bincount(drawn) / 1000, 1.0, atol=5 / np.sqrt(1000))


def test_six_values_tell_terminated_from_truncated(rows):
    replay = ListReplay(rows)
    rows.extend([row(0, True, False), row(1, False, True), row(2, True)])
    assert rows_of(replay).terminated.tolist() == [True, False, True]


def test_tasks_empty_and_refill_the_same_object(rows):
    replay = ListReplay(rows, warm_start=3)
    replay.begin_task("left")
    rows.extend(row(i) for i in range(5))
    replay.end_task()
    assert len(replay) == len(rows) == 5
    assert replay.sample(2).task == "left"
    replay.begin_task("right")
    assert len(rows) == 0
    rows.append(row(9))
    replay.begin_task("left")  # "right" was broken off
    assert [r[0][0] for r in rows] == [2, 3, 4]
    replay.begin_task("right")
    assert len(rows) == 0
    assert replay.rows is rows
    assert replay.task == "right"


def test_a_deque_keeps_its_limit():
    rows = deque(maxlen=4)
    replay = ListReplay(rows)
    replay.begin_task("left")
    rows.extend(row(i) for i in range(9))
    replay.end_task()
    replay.begin_task("left")
    assert [r[0][0] for r in rows] == [5, 6, 7, 8]


def test_without_warm_start_nothing_is_stored(rows):
    replay = ListReplay(rows, warm_start=0)
    replay.begin_task("left")
    rows.append(row(1))
    replay.end_task()
    replay.begin_task("left")
    assert len(rows) == 0


def test_takes_what_scripts_store():
    named = namedtuple("named", "state action reward next_state done")
    state = torch.ones(2)
    rows = [
        named(state, torch.tensor([1]), torch.tensor([0.5]), state, torch.tensor([1.0])),
        [state, np.array([2]), np.array([1.5]), state, np.array([False])],
    ]
    batch = rows_of(ListReplay(rows))
    assert batch.action.tolist() == [1, 2]
    assert batch.reward.tolist() == [0.5, 1.5]
    assert batch.terminated.tolist() == [True, False]
    continuous = [(state, np.float64([0.5, 1.0]), 0, state, 0)] * 2
    batch = ListReplay(continuous, device="meta").sample(2)
    assert batch.action.shape == (2, 2)
    assert batch.action.dtype == torch.float32
    assert batch.action.device.type == "meta"
    several = [(np.uint8([3]), np.int64([1, 2]), 0, np.uint8([3]), 0)]
    batch = ListReplay(several).sample(1)
    assert batch.action.tolist() == [[1, 2]]
    assert batch.observation.dtype == torch.uint8


@pytest.mark.parametrize("count", [0, 6])
def test_a_loaded_list_goes_on_bit_for_bit(rows, count):
    first = ListReplay(rows, seed=0)
    if count:
        first.begin_task("left")
        rows.extend([row(i, i == 3) for i in range(count)] + [row(9, False, True)])
        first.end_task()
        first.begin_task("right")
        rows.extend(row(i, i == 3, False) for i in range(count))
    state = first.state_dict()
    json.dumps(state["rng"])
    other_rows = [row(77)]
    other = ListReplay(other_rows, seed=5)
    other.load_state_dict(state)
    assert other.rows is other_rows
    assert len(other_rows) == count
    assert other.task == (None if not count else "right")
    for _ in range(2):
        if count:
            for _ in range(5):
                a, b = first.sample(4), other.sample(4)
                np.testing.assert_array_equal(a.index, b.index)
                for name in ("observation", "action", "reward", "next_observation", "terminated"):
                    assert torch.equal(getattr(a, name), getattr(b, name))
            first.begin_task("left")
            other.begin_task("left")
            assert [len(r) for r in other_rows] == [5] * 6 + [6]
            assert bool(other_rows[-1][5])


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s.pop("rows"),
        lambda s: s.update(stored=[]),
        lambda s: s["rows"].update(reward=s["rows"]["reward"][:-1]),
        lambda s: s["rows"].update(width=s["rows"]["width"] + 5),
        lambda s: s.update(rng={"bit_generator": "MT19937"}),
    ],
)
def test_a_damaged_state_is_refused_and_nothing_changed(rows, damage):
    replay = ListReplay(rows)
    rows.extend(row(i) for i in range(3))
    state = replay.state_dict()
    damage(state)
    with pytest.raises(OwlValueError, match=r"ListReplay.load_state_dict: the state is damaged \("):
        replay.load_state_dict(state)
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("bad", "kind", "words"),
    [
        ("text", OwlTypeError, ["row 1 is a str; expected a tuple (observation, action"]),
        ((1, 2, 3), OwlTypeError, ["row 1 is a tuple of 3"]),
        ((np.zeros(3), 0, 0.0, np.zeros(2), False), OwlValueError, ["observation differs in shape"]),
        ((np.zeros(2), 0, "much", np.zeros(2), False), OwlValueError, ["reward has dtype"]),
        ((np.zeros(2), 0, 0.0, None, True), OwlValueError, ["next_observation is None in some rows; store"]),
        ((np.zeros(2), 0, 0.0, np.zeros(2), 0.5), OwlValueError, ["done holds other values"]),
        (
            (np.zeros(3), 0, [1.0, 2.0], np.zeros(3), 0.5),
            OwlValueError,
            ["4 problems", "observation differs", "reward differs", "next_observation differs", "done holds"],
        ),
        (
            (np.zeros(2), 0, np.nan, np.zeros(2), False),
            NonFiniteError,
            ["reward of row 1 of task 'left' is not finite"],
        ),
        ((np.zeros(2), 0, 1e300, np.zeros(2), False), NonFiniteError, ["reward of row 1"]),
        (
            (np.array([0, np.inf]), 0, 0.0, np.array([np.nan, 0]), False),
            NonFiniteError,
            ["2 problems", "observation of row 1", "next_observation of row 1"],
        ),
    ],
)
def test_rows_that_do_not_fit_are_named(rows, bad, kind, words):
    replay = ListReplay(rows)
    replay.begin_task("left")
    rows.extend([row(0), bad])
    with pytest.raises(kind) as error:
        replay.new_rows()
    assert str(error.value).startswith("ListReplay.new_rows: ")
    assert all(word in str(error.value) for word in words), error.value


def test_rewards_of_several_numbers_are_refused():
    rows = [(0, 0, [1.0, 2.0], 0, [False, True])]
    with pytest.raises(OwlValueError) as error:
        ListReplay(rows).sample(1)
    assert "reward has shape (2,) in each row; expected one number" in str(error.value)
    assert "terminated has shape (2,)" in str(error.value)


def test_errors_of_settings_tasks_and_sizes(rows):
    with pytest.raises(OwlValueError) as error:
        ListReplay((), gamma=2, warm_start=True, seed=-1)
    for word in ("4 problems", "rows is a tuple", "gamma is 2", "warm_start is True", "seed is -1"):
        assert word in str(error.value)
    replay = ListReplay(rows)
    with pytest.raises(OwlTypeError, match="task is 3"):
        replay.begin_task(3)
    with pytest.raises(OwlStateError, match="no task was begun"):
        replay.end_task()
    with pytest.raises(OwlStateError, match=r"ListReplay\.sample: 3 rows were requested, but .* only 0"):
        replay.sample(3)
    with pytest.raises(OwlValueError, match="requested is 0"):
        replay.sample(0)


def test_repr_shows_what_is_there():
    replay = ListReplay([row(1)])
    assert repr(replay) == "ListReplay(1 rows in a list, task=None, warm_start=50000, stored={})"


def rewards_of(found):
    return [] if found is None else (found.reward * 2).tolist()


@pytest.mark.parametrize("limit", [None, 1, 10, 64])
def test_new_rows_come_once_and_in_time(limit):
    """Against a plain record of what was appended; ``limit`` is a deque's maxlen, None a list."""
    rows = [] if limit is None else deque(maxlen=limit)
    replay = ListReplay(rows)
    replay.begin_task("a")
    rng, number = np.random.default_rng(0), 0
    for _ in range(60):
        count = int(rng.integers(0, 2 if limit == 1 else 10 if limit is None else min(10, limit)))
        if limit == 1 and count:
            count = 1
        added = list(range(number, number + count))
        rows.extend(row(k, k % 5 == 0, k % 5 == 1) for k in added)
        number += count
        if limit == 1 and count:  # every row is the only one: it may have been one of many
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = replay.new_rows()
        else:
            found = replay.new_rows()
        assert rewards_of(found) == added
        if added:
            assert found.terminated.tolist() == [k % 5 == 0 for k in added]
            assert found.truncated.tolist() == [k % 5 == 1 for k in added]
            assert found.env.tolist() == [0] * count and found.task == "a"
    assert (replay.overruns == 0) == (limit != 1)


def test_new_rows_are_copies_of_arrays_that_scripts_use_again():
    rows, state = [], np.zeros(2, np.float32)
    replay = ListReplay(rows)
    replay.begin_task("a")
    rows.append((state, 0, 0.0, state, False))
    found = replay.new_rows()
    state[:] = 7.0
    assert not found.observation.any()


def test_kept_rows_are_not_new_and_a_task_can_be_forgotten(rows):
    replay = ListReplay(rows)
    replay.begin_task("a")
    rows.extend(row(k) for k in range(6))
    replay.end_task()
    replay.begin_task("a")
    assert replay.new_rows() is None
    rows.append(row(9))
    assert rewards_of(replay.new_rows()) == [9]
    replay.forget("a")
    replay.forget("never there")
    replay.begin_task("a")
    assert len(rows) == 0
    other = ListReplay([])
    other.load_state_dict(replay.state_dict())
    assert other.new_rows() is None


def test_rows_lost_between_two_looks_are_counted_and_said_once():
    rows = deque(maxlen=5)
    replay = ListReplay(rows)
    replay.begin_task("a")
    rows.extend(row(k) for k in range(3))
    replay.new_rows()
    rows.extend(row(k) for k in range(10, 22))
    with pytest.warns(UserWarning, match="none of the 5 rows in the deque was there at the last look"):
        assert rewards_of(replay.new_rows()) == [17, 18, 19, 20, 21]
    rows.extend(row(k) for k in range(30, 42))
    assert rewards_of(replay.new_rows()) == [37, 38, 39, 40, 41]
    assert replay.overruns == 2


def test_rows_may_be_dropped_at_the_front_of_a_list():
    rows = []
    replay = ListReplay(rows)
    replay.begin_task("a")
    rows.extend(row(k) for k in range(40))
    replay.new_rows()
    for drop, number in ((1, 40), (7, 41), (0, 42)):
        del rows[:drop]
        rows.append(row(number))
        assert rewards_of(replay.new_rows()) == [number]
    assert replay.overruns == 0


def ring(rows):
    rows[0] = row(100)


def shuffle(rows):
    np.random.default_rng(0).shuffle(rows)


def in_front(rows):
    rows.insert(0, row(100))


def turned(rows):
    rows[:3], rows[3:] = rows[-3:], rows[:-3]


@pytest.mark.parametrize("change", [ring, shuffle, in_front, turned])
def test_lists_without_a_newest_end_are_noticed(change):
    rows = []
    replay = ListReplay(rows)
    replay.begin_task("a")
    rows.extend(row(k) for k in range(50))
    replay.new_rows()
    change(rows)
    with pytest.raises(OwlStateError, match=r"changed their places .*deque\(maxlen=\.\.\.\)"):
        replay.new_rows()


def test_a_full_deque_that_is_filled_from_the_front_is_noticed():
    rows = deque((row(k) for k in range(20)), maxlen=20)
    replay = ListReplay(rows)
    replay.new_rows()
    rows.appendleft(row(50))
    with pytest.raises(OwlStateError, match="added at the front"):
        replay.new_rows()


Shuffled = namedtuple("Shuffled", "next_state done reward state action")
Gymnasium = namedtuple("Gymnasium", "obs action log_prob next_obs reward truncated terminated")


@dataclasses.dataclass
class Step:
    action: int
    observation: np.ndarray
    next_observation: np.ndarray
    reward: float
    terminated: bool


def named(kind, number):
    seen, action, reward, following, done = row(number, number % 2 == 0)
    if kind is Shuffled:
        return Shuffled(following, done, reward, seen, action)
    if kind is Gymnasium:
        return Gymnasium(seen, action, 0.3, following, reward, number % 2 == 1, done)
    return Step(action, seen, following, reward, done)


@pytest.mark.parametrize("kind", [Shuffled, Gymnasium, Step])
def test_rows_with_names_are_read_by_them(kind):
    rows = [named(kind, k) for k in range(6)]
    replay = ListReplay(rows)
    found = replay.new_rows()
    assert found.observation[:, 0].tolist() == list(range(6))
    assert found.next_observation[:, 0].tolist() == list(range(1, 7))
    assert rewards_of(found) == list(range(6))
    assert found.action.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.terminated.tolist() == [True, False] * 3
    assert found.truncated.tolist() == [kind is Gymnasium and k % 2 == 1 for k in range(6)]
    again_rows = []
    again = ListReplay(again_rows)
    again.load_state_dict(replay.state_dict())
    names = kind._fields if kind is not Step else [field.name for field in dataclasses.fields(Step)]
    assert all(r._fields == tuple(names) for r in again_rows)  # the script unpacks them in its own order
    assert torch.equal(rows_of(again).observation, found.observation)


Transition = namedtuple("Transition", "state action next_state reward")  # PyTorch's tutorial


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        (
            Transition(torch.zeros(1, 4), torch.tensor([[1]]), None, torch.tensor([0.5])),
            "row 0 is a Transition(state=float32 of shape (1, 4), action=int64 of shape (1, 1), next_state=N",
        ),
        ((np.zeros(4), 1, np.zeros(4), 0.5), "row 0 is a tuple of 4: (float64 of shape (4,), 1, float64"),
        ((np.zeros(4), 1, np.zeros(4), 0.5, False), "reward has shape (4,) in each row"),
        ({"state": 1}, "row 0 is a dict"),
        (None, "row 0 is None"),
    ],
)
def test_rows_of_another_form_are_shown_at_the_first_look(wrong, shown):
    replay = ListReplay([])
    replay.begin_task("a")
    replay.rows.append(wrong)
    with pytest.raises((OwlTypeError, OwlValueError)) as error:
        replay.new_rows()
    assert shown in str(error.value)
    assert ("without terminated/done;" in str(error.value)) == isinstance(wrong, Transition)
    assert "(observation, action, reward, next_observation, done)" in str(error.value)


@pytest.mark.parametrize("kind", [list, lambda: deque(maxlen=5)])
@pytest.mark.parametrize(
    "wrong", [(2, np.inf), (2, 1e39), (0, np.full(2, np.nan)), (3, torch.full((2,), torch.inf))]
)
def test_rows_that_are_not_finite_are_found_once_they_are_stored(kind, wrong):
    rows = kind()
    replay = ListReplay(rows)
    replay.begin_task("a")
    replay.check_new()
    for number in range(7):
        rows.append((np.zeros(2), number, np.float32(number), np.ones(2), False))
        replay.check_new()
    bad = [np.zeros(2), 1, 0.5, np.ones(2), False]
    bad[wrong[0]] = wrong[1]
    rows.append(tuple(bad))
    rows.append((np.zeros(2), 1, 0.5, np.ones(2), False))
    name = ("observation", "", "reward", "next_observation")[wrong[0]]
    for _ in range(2):
        with pytest.raises(NonFiniteError, match=f"{name} of row {len(rows) - 2} of task 'a' is not finite"):
            replay.check_new()
    del rows[-2]
    replay.check_new()
    rows.append("something else")  # which the next look refuses
    replay.check_new()
