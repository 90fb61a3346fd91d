"""TaskMemory against a plain list: what is kept, weights, visits, quarantine, saving, refusals."""

from __future__ import annotations

import copy
import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from owlrl.checkpoint import load_state, save_state
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.memory import Scaling, TaskMemory
from owlrl.types import Transitions

from .oracle import SETTLE, kept, stream, transitions

COLUMNS = ("observation", "action", "reward", "next_observation", "terminated", "discount")


def feed(memory, rows, *, cuts=(), **form):
    """Add ``rows`` (SETTLE settles), in batches that end at ``cuts`` and at each SETTLE."""
    batch = []
    for place, row in enumerate(rows):
        if batch and (row is SETTLE or place in cuts):
            memory.add(transitions(batch, **form))
            batch = []
        if row is SETTLE:
            memory.settle()
        else:
            batch.append(row)
    if batch:
        memory.add(transitions(batch, **form))


def filled(rows, *, capacity=80, segment=8, seed=0, **arguments):
    memory = TaskMemory(capacity, segment=segment, seed=seed, **arguments)
    feed(memory, [*rows, SETTLE])
    return memory


def assert_equal(one: Transitions, other: Transitions):
    for field in fields(Transitions):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if isinstance(mine, torch.Tensor | np.ndarray):
            assert mine.dtype == theirs.dtype, field.name
            np.testing.assert_array_equal(mine, theirs, err_msg=field.name)
        else:
            assert mine == theirs, field.name


def assert_same_memory(one: TaskMemory, other: TaskMemory):
    """Now and after the same more rows."""
    for more in ([], stream(300, envs=2, seed=77), [SETTLE]):
        feed(one, more)
        feed(other, more)
        assert repr(one).rsplit(",", 1)[0] == repr(other).rsplit(",", 1)[0]
        assert (len(one), one.seen, one.version, one.waiting) == (
            len(other),
            other.seen,
            other.version,
            other.waiting,
        )
        assert one._charge() == other._charge()
        if len(one):
            assert_equal(one.rows(), other.rows())


@st.composite
def streams(draw):
    arguments = dict(
        envs=draw(st.integers(1, 3)),
        end=draw(st.sampled_from([0.0, 0.05, 0.5, 1.0])),
        jump=draw(st.sampled_from([0.0, 0.1])),
        odd_reward=draw(st.sampled_from([0.0, 0.02, 0.5])),
        known=draw(st.booleans()),
        noisy=draw(st.booleans()),
        discounts=draw(st.sampled_from([(0.99,), (0.99, 0.9)])),
    )
    rows = []
    for visit in range(draw(st.integers(1, 3))):
        rows += stream(draw(st.integers(0, 120)), seed=draw(st.integers(0, 99)) + visit, **arguments)
        rows.append(SETTLE)
    return rows


@given(streams(), st.integers(1, 9), st.integers(9, 200), st.integers(0, 3), st.data())
def test_keeps_what_the_list_says_however_rows_are_batched(rows, segment, capacity, seed, data):
    cuts = data.draw(st.sets(st.integers(0, len(rows)), max_size=8))
    memory = TaskMemory(capacity, segment=segment, seed=seed, quarantine=data.draw(st.integers(0, 40)))
    feed(memory, rows, cuts=cuts)
    expected, weights = kept(rows, capacity=capacity, segment=segment, seed=seed)
    flat = [row for part in expected for row in part]
    assert len(memory) == len(flat) <= capacity
    assert memory.seen == sum(row is not SETTLE for row in rows)
    assert memory.waiting == 0
    if not flat:
        return
    found = memory.rows()
    assert_equal(
        replace(found, weight=None, index=None, truncated=None),
        replace(transitions(flat), truncated=None),
    )
    if all(row["known"] for row in flat):
        assert found.truncated.tolist() == [row["truncated"] for row in flat]
    else:
        assert found.truncated is None
    np.testing.assert_allclose(found.weight, weights, rtol=1e-5)
    previous = memory.previous(found.index)
    assert previous.tolist() == [
        -1 if step == 0 else row - 1
        for row, step in enumerate(step for part in expected for step in range(len(part)))
    ]


def test_keeps_all_rows_exactly_until_it_is_full():
    rows = stream(400)
    memory = filled(rows, capacity=400)
    assert len(memory) == 400
    assert_equal(
        replace(memory.rows(), index=None, weight=None), transitions(rows)
    )  # one environment: segments are complete in the order of the rows
    assert (memory.rows().weight == 1).all()


def test_each_segment_of_a_stratum_is_equally_likely():
    # 1 start and 60 segments of the rest, all of 8 rows, room for a third; over seeds
    rows = [row for row in stream(8 * 60, end=0.0, odd_reward=0.0)]
    for number, row in enumerate(rows):
        row["action"] = number // 8
    seeds, counts, size = 600, np.zeros(60), 0
    batch = transitions(rows)
    for seed in range(seeds):
        memory = TaskMemory(8 * 20, seed=seed)
        memory.add(batch)
        memory.settle()
        segments = memory.rows().action.numpy()[::8]
        counts[segments] += 1
        size = len(segments)
    assert counts[0] == seeds  # the only start is never crowded out
    rest = counts[1:]
    share = (size - 1) / len(rest)
    # Pearson's statistic for draws without replacement: chi-square with 58 degrees of freedom
    variance = seeds * share * (1 - share) * len(rest) / (len(rest) - 1)
    statistic = float(((rest - seeds * share) ** 2).sum() / variance)
    assert 58 - 4.5 * math.sqrt(2 * 58) < statistic < 58 + 5 * math.sqrt(2 * 58)


def test_weights_undo_the_strata():
    rows = stream(3000, end=0.05, odd_reward=0.004, seed=5)
    truth = np.mean([row["reward"] for row in rows])
    batch, plain, weighted = transitions(rows), [], []
    for seed in range(60):
        memory = TaskMemory(400, seed=seed)
        memory.add(batch)
        memory.settle()
        found = memory.rows()
        assert abs(float(found.weight.double().mean()) - 1) < 1e-6
        plain.append(float(found.reward.double().mean()))
        weighted.append(float((found.weight * found.reward).double().mean()))
    error = np.std(weighted, ddof=1) / math.sqrt(len(weighted))
    assert abs(np.mean(weighted) - truth) < 4 * error + 1e-4
    assert np.mean(plain) > 2 * truth  # rare rewards are kept more often: that is what strata are for


def test_strata_get_their_shares_and_what_others_leave():
    memory = filled(stream(20_000, end=0.05, odd_reward=0.004), capacity=4000)
    starts, rare, rest = (rows for _, rows in memory.strata.values())
    assert rare == memory.strata["rare"][0] < 1000  # less than its quarter: the others share what is left
    assert abs(starts - (4000 - rare) / 3) <= 8
    assert 3960 <= starts + rare + rest <= 4000
    only = filled(stream(2000, end=0.0, odd_reward=0.0), capacity=400)
    assert only.strata["rest"][1] >= 380


def test_rare_rewards_are_those_unlike_the_most_common():
    rows = stream(3000, end=0.02, odd_reward=0.003, seed=2)
    memory = filled(rows, capacity=3000)
    with_reward = {i // 8 for i, row in enumerate(memory.rows().reward.tolist()) if row}
    assert memory.strata["rare"][0] >= 5 * len(with_reward)
    assert filled(stream(2000, noisy=True)).strata["rare"][0] == 0  # all rewards differ: none is rare
    minus = [{**row, "reward": row["reward"] - 1.0} for row in rows]  # −1 a step, 0 at the goal
    assert filled(minus, capacity=3000).strata == memory.strata


def test_same_seed_same_rows_other_seed_other_rows():
    rows = stream(500)
    first, again, other = filled(rows, seed=3), filled(rows, seed=3), filled(rows, seed=4)
    assert_equal(first.rows(), again.rows())
    assert not torch.equal(first.rows().observation[:50], other.rows().observation[:50])


def test_unseeded_memory_follows_the_global_seed_and_consumes_nothing():
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = filled(stream(500), seed=None)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(11)
    assert_equal(first.rows(), filled(stream(500), seed=None).rows())
    torch.manual_seed(12)
    other = filled(stream(500), seed=None)
    assert not torch.equal(first.rows().observation[:50], other.rows().observation[:50])


def test_all_visits_are_one_stream():
    """Rows of an early visit are as likely to be kept as those of a late one."""
    share = []
    for seed in range(40):
        memory = TaskMemory(160, seed=seed)
        for visit in range(3):
            rows = [{**row, "action": visit} for row in stream(800, end=0.0, odd_reward=0.0, seed=visit)]
            feed(memory, [*rows, SETTLE])
        share.append([(memory.rows().action == visit).float().mean() for visit in range(3)])
    np.testing.assert_allclose(np.mean(share, axis=0), 1 / 3, atol=0.05)
    assert memory.strata["starts"] == (24, 24)  # the first segment of each visit


def test_no_segment_crosses_visits():
    rows = stream(12, end=0.0)
    whole = TaskMemory(seed=0)
    feed(whole, [*rows, SETTLE])
    parted = TaskMemory(seed=0)
    feed(parted, [*rows[:5], SETTLE, *rows[5:], SETTLE])
    begins = [(memory.previous(memory.rows().index) < 0).nonzero()[0].tolist() for memory in (whole, parted)]
    assert begins == [[0, 8], [0, 5]]


def test_rows_come_in_dozens_and_all_at_settle():
    memory = TaskMemory(seed=0)
    feed(memory, stream(70, end=0.0), cuts=range(70))  # one by one
    assert (len(memory), memory.waiting, memory.seen) == (64, 6, 70)
    version = memory.version
    memory.settle()
    assert (len(memory), memory.waiting, memory.seen) == (70, 0, 70)
    assert memory.version > version
    version = memory.version
    memory.settle()
    assert memory.version == version


def test_rows_grouped_by_environment_are_the_same_rows():
    rows = stream(200, envs=3)
    grouped = sorted(rows, key=lambda row: row["env"])
    assert_equal(filled(rows).rows(), filled(grouped).rows())


# quarantine


@given(st.integers(1, 3), st.integers(0, 300), st.integers(1, 60), st.integers(0, 60), st.data())
def test_rows_taken_back_never_were_there(envs, steps, quarantine, count, data):
    rows = stream(steps, envs=envs, seed=1)
    cuts = data.draw(st.sets(st.integers(0, len(rows)), max_size=6))
    memory = TaskMemory(100, seed=2, quarantine=quarantine)
    feed(memory, rows, cuts=cuts)
    assert memory.quarantined == min(quarantine, len(rows))
    count = min(count, memory.quarantined)
    if count:
        back = memory.take_back(count)
        assert_equal(back, transitions(rows[-count:]))
    left = rows[: len(rows) - count]
    assert memory.seen == len(left)
    more = stream(50, envs=envs, seed=3)
    plain = TaskMemory(100, seed=2)
    feed(memory, [SETTLE, *more, SETTLE])
    feed(plain, [*left, SETTLE, *more, SETTLE])
    assert len(memory) == len(plain)
    if len(plain):
        assert_equal(memory.rows(), plain.rows())


def test_rows_in_quarantine_cannot_be_drawn():
    memory = TaskMemory(seed=0, quarantine=50)
    feed(memory, stream(50, end=0.0))
    assert len(memory) == 0
    with pytest.raises(OwlStateError, match=r"there are none yet \(50 wait\); add\(rows\) first, and settle"):
        memory.rows()
    feed(memory, stream(64, end=0.0))
    assert memory.quarantined == 50
    assert 0 < len(memory) <= 64
    memory.quarantine = 0
    feed(memory, stream(1, end=1.0))
    assert memory.quarantined == 0


def test_taking_back_more_than_is_in_quarantine_is_refused():
    memory = TaskMemory(seed=0, quarantine=10)
    feed(memory, stream(30))
    with pytest.raises(
        OwlValueError, match=r"take_back: count is 11; expected at most 10, the rows in quarantine"
    ):
        memory.take_back(11)
    with pytest.raises(OwlValueError, match="count is 0; expected an int >= 1"):
        memory.take_back(0)
    assert (memory.quarantined, memory.seen) == (10, 30)


def test_rows_taken_back_can_be_given_to_another_task():
    memory, other = TaskMemory(seed=0, quarantine=20), TaskMemory(seed=1)
    rows = stream(100, end=0.0)
    feed(memory, rows)
    other.add(memory.take_back(20))
    other.settle()
    assert_equal(replace(other.rows(), index=None, weight=None), transitions(rows[-20:]))


# drawing


def test_rows_with_a_limit_are_different_spread_and_the_same_each_time():
    memory = filled(stream(4000, end=0.0), capacity=4000)
    found = memory.rows(500)
    assert len(found) == 500 == len(set(found.index.tolist()))
    assert (np.diff(found.index) > 0).all()
    assert np.diff(found.index).max() < 16
    assert len(np.unique(found.index % 8)) == 8  # all places of a segment, though 4000 / 500 is 8
    assert_equal(found, memory.rows(500))
    assert len(memory.rows(4000)) == len(memory.rows(9999)) == 4000
    with pytest.raises(OwlValueError, match="limit is 0; expected an int >= 1, or None"):
        memory.rows(0)


def test_rows_with_a_limit_have_weights_of_mean_one():
    found = filled(stream(4000, end=0.05, odd_reward=0.002), capacity=800).rows(50)
    assert len(set(found.weight.tolist())) > 1
    assert abs(float(found.weight.mean()) - 1) < 1e-6


def test_gather_gives_the_rows_asked_for_and_no_views():
    memory = filled(stream(2000), capacity=500)
    everything = memory.rows()
    numbers = np.random.default_rng(0).integers(0, len(memory), 64)
    found = memory.gather(numbers)
    assert_equal(found, everything[torch.from_numpy(numbers)])
    assert_equal(found, memory.gather(torch.from_numpy(numbers)))
    assert_equal(found, memory.gather(numbers.astype(np.int32)))
    assert len(memory.gather(np.zeros(0, np.int64))) == 0
    found.observation.zero_()
    assert_equal(memory.rows(), everything)


@pytest.mark.parametrize("wrong", [[-1], [0, 500], [10**12], [-(10**12)]])
def test_numbers_of_no_row_are_refused(wrong):
    memory = filled(stream(2000), capacity=400)
    with pytest.raises(OwlValueError, match=r"gather: index runs from .* expected 0 to \d+ \(has version"):
        memory.gather(np.array(wrong))
    with pytest.raises(OwlValueError, match="previous: index runs from"):
        memory.previous(np.array(wrong))


@pytest.mark.parametrize("wrong", [np.array([0.0]), np.array([[0]]), np.array(0), np.array([True])])
def test_numbers_of_another_kind_are_refused(wrong):
    with pytest.raises(OwlTypeError, match=r"index is .*; expected ints \(B,\)"):
        filled(stream(100)).gather(wrong)


def test_gather_before_any_row_is_refused():
    with pytest.raises(OwlStateError, match="there are no rows yet"):
        TaskMemory().gather(np.arange(1))


def test_version_changes_when_rows_change_and_only_then():
    memory = TaskMemory(80, seed=0)
    before, rows = memory.version, None
    for batch in range(100):
        feed(memory, stream(64, seed=batch))
        found = memory.rows()
        now = found.observation
        # weights follow what was seen, also while the rows stay the same
        seen, kept = np.array(list(memory.strata.values())).T
        expected = np.sort((seen / np.maximum(kept, 1))[kept > 0] * kept.sum() / seen[kept > 0].sum())
        np.testing.assert_allclose(np.unique(found.weight), np.unique(expected.astype(np.float32)), rtol=1e-6)
        assert (memory.version != before) == (rows is None or not torch.equal(rows, now))
        before, rows = memory.version, now
    memory.scaling = Scaling(reward_std=2.0)
    assert memory.version != before


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.int64, np.bool_])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3, 1), (0,)])
def test_observations_of_any_form_keep_it(dtype, shape):
    rows = stream(100)
    memory = TaskMemory(seed=0)
    feed(memory, [*rows, SETTLE], observation=dtype, shape=shape)
    expected = transitions(rows, observation=dtype, shape=shape)
    assert_equal(replace(memory.rows(), index=None, weight=None), expected)
    if shape != (0,):
        assert memory.rows().observation.dtype == expected.observation.dtype


def test_continuous_actions():
    rows = transitions(stream(100))
    action = torch.randn(100, 3, generator=torch.Generator().manual_seed(0))
    memory = TaskMemory(seed=0)
    memory.add(replace(rows, action=action))
    memory.settle()
    assert torch.equal(memory.rows().action, action)


def test_negative_zero_is_not_zero():
    """An observation is stored once only where it is the same bit for bit."""
    rows = stream(2, end=0.0)
    batch = transitions(rows)
    batch = replace(batch, observation=torch.tensor([1.0, 0.0]), next_observation=torch.tensor([-0.0, 2.0]))
    memory = TaskMemory(seed=0)
    memory.add(batch)
    memory.settle()
    assert torch.signbit(memory.rows().next_observation).tolist() == [True, False]


def test_rows_are_copied():
    batch = transitions(stream(20, end=0.0))
    expected = copy.deepcopy(batch)
    memory = TaskMemory(seed=0, quarantine=10)
    memory.add(batch)
    for tensor in (batch.observation, batch.next_observation, batch.reward):
        tensor.fill_(9)
    memory.settle()
    assert torch.equal(memory.rows().observation, expected.observation)
    assert torch.equal(memory.rows().reward, expected.reward)


# bytes


@given(streams(), st.integers(8, 200), st.integers(0, 30))
def test_bytes_are_never_more_than_what_is_charged(rows, capacity, quarantine):
    memory = TaskMemory(capacity, seed=0, quarantine=quarantine)
    for place in range(0, len(rows), 37):
        feed(memory, rows[place : place + 37])
        assert memory.nbytes <= sum(memory._charge())
    memory.settle()
    assert memory.nbytes == sum(memory._charge())


def test_bytes_of_a_row_are_close_to_those_of_its_parts():
    memory = TaskMemory(1600, seed=0)
    feed(memory, [*stream(5000, end=0.0), SETTLE], observation=np.uint8, shape=(7, 7, 3))
    plain = 147 + 8 + 4 + 1
    assert 1.1 * plain < memory.nbytes / len(memory) < 1.2 * plain


def test_arrays_stay_bounded_over_a_long_stream():
    memory = TaskMemory(200, seed=0)
    most = 0
    for batch in range(100):
        feed(memory, stream(128, seed=batch))
        most = max(most, memory.nbytes)
    memory.settle()
    assert most < 2 * memory.nbytes


@pytest.mark.parametrize("capacity", [40, 100, 333])
def test_thinned_is_what_a_smaller_memory_keeps(capacity):
    rows = stream(1500, envs=2)
    memory = filled(rows, capacity=600, seed=1)
    version = memory.version
    memory.thin(capacity)
    assert memory.version > version
    expected = filled(rows, capacity=capacity, seed=1)
    assert_equal(memory.rows(), expected.rows())
    assert memory.nbytes == expected.nbytes
    feed(memory, [*stream(500), SETTLE])
    feed(expected, [*stream(500), SETTLE])
    assert_equal(memory.rows(), expected.rows())
    with pytest.raises(OwlValueError, match=f"capacity is 5; expected an int from 8 to {capacity}"):
        memory.thin(5)


# scaling


def test_scaling_is_applied_to_what_is_drawn_and_to_nothing_stored():
    memory = filled(stream(500))
    raw = memory.rows()
    memory.scaling = Scaling(observation_mean=10.0, observation_std=2.0, reward_std=0.5, reward_clip=1.5)
    scaled = memory.rows()
    np.testing.assert_array_equal(scaled.observation, ((raw.observation.double() - 10) / 2).float())
    np.testing.assert_array_equal(scaled.next_observation, ((raw.next_observation.double() - 10) / 2).float())
    np.testing.assert_array_equal(scaled.reward, (raw.reward / 0.5).clip(-1.5, 1.5))
    memory.scaling = None
    assert_equal(memory.rows(), raw)


def test_scaling_of_another_shape_is_refused_now_or_with_the_first_rows():
    scaling = Scaling(observation_mean=np.zeros(3))
    memory = TaskMemory()
    memory.scaling = scaling
    with pytest.raises(OwlValueError, match=r"scaling.observation_mean has shape \(3,\); expected \(4,\)"):
        feed(memory, stream(5), shape=(4,))
    assert memory.seen == 0
    memory.scaling = None
    feed(memory, stream(5), shape=(4,))
    with pytest.raises(OwlValueError, match=r"scaling.observation_mean has shape \(3,\); expected \(4,\)"):
        memory.scaling = scaling
    with pytest.raises(OwlValueError, match="scaling is a float; expected a Scaling, or None"):
        memory.scaling = 2.0
    assert memory.scaling is None


# refusals


def good(**changes):
    return replace(transitions(stream(5), shape=(2,)), **changes)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (dict(reward=torch.tensor([0, 1, math.nan, 0, 0])), NonFiniteError, "reward of row 2 is not finite"),
        (
            dict(reward=torch.full((5,), 1e300, dtype=torch.float64)),
            NonFiniteError,
            "reward of row 0 is not finite",
        ),
        (dict(discount=torch.full((5,), math.inf)), NonFiniteError, "discount of row 0"),
        (
            dict(next_observation=torch.tensor([[0.0, 0.0]] * 4 + [[0.0, math.inf]])),
            NonFiniteError,
            "next_observation of row 4",
        ),
        (dict(action=torch.full((5, 1), math.nan)), OwlValueError, r"action is float32 \(1,\) in each row"),
        (
            dict(observation=torch.zeros(5, 3)),
            OwlValueError,
            r"observation is float32 \(3,\) in each row; expected float32 \(2,\), as in this task's earlier "
            r"rows; all rows of a task have one form: add these to another task, or forget this one first",
        ),
        (dict(next_observation=torch.zeros(5, 2).double()), OwlValueError, "next_observation is float64"),
        (dict(observation=torch.zeros(4, 2)), OwlValueError, "observation has 4 rows; expected 5, as reward"),
        (dict(reward=torch.zeros(5, 1)), OwlValueError, r"reward is \(5, 1\); expected a tensor \(B,\)"),
        (
            dict(reward=torch.zeros(5).long()),
            OwlValueError,
            "reward has dtype torch.int64; expected floating",
        ),
        (dict(reward=torch.tensor(0.0)), OwlValueError, r"reward is \(\); expected a tensor"),
        (dict(reward=[0.0] * 5), OwlValueError, "reward is list; expected a tensor"),
        (
            dict(discount=torch.zeros(5, 1)),
            OwlValueError,
            r"discount has shape \(5, 1\); expected one value per",
        ),
        (dict(action=torch.tensor(0)), OwlValueError, "action has no axis of rows"),
        (dict(terminated=torch.zeros(5)), OwlValueError, "terminated has dtype torch.float32; expected bool"),
        (dict(truncated=torch.zeros(4).bool()), OwlValueError, "truncated has 4 rows"),
        (dict(truncated=[False] * 5), OwlValueError, "truncated is a list; expected a tensor"),
        (dict(env=torch.zeros(5)), OwlValueError, "env has dtype torch.float32; expected integers"),
        (dict(env=torch.tensor([0, 1, -1, 0, 0])), OwlValueError, "env runs from -1 to 1; expected 0 to"),
        (
            dict(observation=torch.zeros(5, 2).bfloat16()),
            OwlValueError,
            "observation has dtype torch.bfloat16; expected bools or numbers of numpy",
        ),
    ],
)
def test_bad_rows_are_refused_with_nothing_changed(changes, kind, message):
    memory = TaskMemory(seed=0, quarantine=2)
    memory.add(good())
    before = memory.state_dict()
    with pytest.raises(kind, match=f"TaskMemory.add: .*{message}"):
        memory.add(good(**changes))
    np.testing.assert_equal(memory.state_dict(), before)
    memory.add(good())
    assert memory.seen == 10


def test_first_rows_must_agree_with_themselves():
    with pytest.raises(OwlValueError, match=r"next_observation is uint8 \(2,\).*as observation has$"):
        TaskMemory().add(good(next_observation=torch.zeros(5, 2, dtype=torch.uint8)))


def test_what_is_no_transitions_is_refused_and_no_rows_are_fine():
    memory = TaskMemory()
    with pytest.raises(OwlTypeError, match=r"rows is a list; expected owlrl\.types\.Transitions"):
        memory.add([])
    memory.add(good()[:0])
    assert (memory.seen, memory.nbytes) == (0, 0)
    feed(memory, stream(3))  # another form: the empty batch decided nothing


def test_bad_arguments_are_named_together():
    with pytest.raises(OwlValueError, match=r"TaskMemory: 4 problems:\n.*segment is 0.*\n.*capacity is -1"):
        TaskMemory(-1, segment=0, quarantine=-1, seed=1.5)
    with pytest.raises(OwlValueError, match="capacity is 4; expected at least segment, 8"):
        TaskMemory(4)
    with pytest.raises(OwlValueError, match="quarantine is None; expected an int >= 0"):
        TaskMemory().quarantine = None
    assert TaskMemory(np.int64(100), segment=np.int32(4), seed=np.int64(3)).capacity == 100


# saving


def through_a_file(state, tmp_path):
    save_state(tmp_path / "state", state)
    return load_state(tmp_path / "state")


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("steps", [0, 5, 70, 700])
@pytest.mark.parametrize("known", [True, False])
def test_goes_on_from_a_save_bit_for_bit(envs, steps, known, tmp_path):
    memory = TaskMemory(200, seed=0, quarantine=20)
    rows = stream(steps, envs=envs, known=known)
    feed(memory, rows, cuts=range(0, len(rows), 13))
    memory.scaling = Scaling(observation_mean=np.array(3.0), observation_std=2.0, reward_clip=5.0)
    loaded = TaskMemory(200, seed=99, quarantine=3)
    loaded.load_state_dict(through_a_file(memory.state_dict(), tmp_path))
    assert_same_memory(loaded, memory)


def test_a_save_is_not_changed_by_what_comes_after():
    memory = TaskMemory(100, seed=0, quarantine=10)
    feed(memory, stream(300))
    state = memory.state_dict()
    before = copy.deepcopy(state)
    feed(memory, [*stream(300), SETTLE])
    np.testing.assert_equal(state, before)


def test_a_larger_saved_memory_is_thinned_to_this_one():
    rows = stream(1000)
    small = TaskMemory(64, seed=5)
    small.load_state_dict(filled(rows, capacity=400, seed=1).state_dict())
    assert_equal(small.rows(), filled(rows, capacity=64, seed=1).rows())


def paths(tree, path=()):
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield (*path, key)
            yield from paths(value, (*path, key))


def damaged(state, path, value):
    state = copy.deepcopy(state)
    place = state
    for key in path[:-1]:
        place = place[key]
    if value is KeyError:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return state


def test_damaged_states_are_refused_with_nothing_changed():
    source = TaskMemory(100, seed=0, quarantine=10)
    feed(source, stream(300, envs=2))
    source.scaling = Scaling(observation_mean=1.0, reward_std=2.0)
    state = source.state_dict()
    target = filled(stream(200, seed=8), seed=4)
    before = target.state_dict()
    tried = 0
    for path in paths(state):
        for value in ("nonsense", np.zeros(3, np.complex64), KeyError):
            if value is KeyError and path[-2:-1] == ("last",):
                continue  # a shorter list is another valid one
            with pytest.raises(OwlValueError, match="load_state_dict: the state does not fit or is damaged"):
                target.load_state_dict(damaged(state, path, value))
                pytest.fail(f"{path} with {value} was taken")
            tried += 1
    assert tried > 150
    np.testing.assert_equal(target.state_dict(), before)


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (("reservoir", "segments", "length"), lambda length: length * 0),
        (("reservoir", "segments", "length"), lambda length: length[:-1]),
        (("reservoir", "segments", "key"), lambda key: key + 1),
        (("reservoir", "segments", "stratum"), lambda stratum: stratum + 3),
        (("reservoir", "segments", "env"), lambda env: env - 9),
        (("reservoir", "rows", "observation"), lambda frames: frames * np.nan),
        (("reservoir", "rows", "observation"), lambda frames: frames[:-1]),
        (("reservoir", "rows", "observation"), lambda frames: frames.astype(np.float64)),
        (("reservoir", "rows", "flags"), lambda flags: flags + 4),
        (("reservoir", "seen"), lambda seen: [0, 0, 0]),
        (("reservoir", "seen"), lambda seen: [*seen, 0]),
        (("reservoir", "capacity"), lambda capacity: capacity + 1),
        (("incoming", "queue", "reward"), lambda reward: reward * np.nan),
        (("incoming", "queue", "reward"), lambda reward: reward[:-1]),
        (("capacity",), lambda capacity: 1),
        (("segment",), lambda segment: 5),
        (("seen",), lambda seen: seen + 1),
        (("version",), lambda version: -1),
        (("form",), lambda form: None),
        (("form", "observation_dtype"), lambda name: "object"),
        (("form", "observation_shape"), lambda shape: [-1]),
        (("settled",), lambda settled: 1),
    ],
)
def test_states_that_contradict_themselves_are_refused(path, change):
    source = TaskMemory(100, seed=0, quarantine=10)
    feed(source, stream(300, envs=2))
    state = source.state_dict()
    value = state
    for key in path:
        value = value[key]
    with pytest.raises(OwlValueError, match="does not fit or is damaged"):
        TaskMemory(100).load_state_dict(damaged(state, path, change(value)))


def test_repr_tells_rows_and_bytes():
    memory = TaskMemory(1000, seed=0, quarantine=10)
    assert repr(memory) == "TaskMemory(0 of at most 1,000 rows, 0 seen, 0 bytes)"
    feed(memory, stream(100, end=0.0))
    assert repr(memory).startswith("TaskMemory(88 of at most 1,000 rows, 100 seen, 12 waiting, ")
