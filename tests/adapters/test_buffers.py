"""Scripts in CleanRL's manner go on with their own buffer; their loop is not touched."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer

from owlrl import DistillationRegularizer, OwlWrapper, check_learner
from owlrl.adapters.buffers import BufferReplay, valid_steps
from owlrl.describe.given import as_replay
from owlrl.errors import NonFiniteError, OwlStateError, OwlValueError
from tests import own_actor_critic
from tests.adapters.cleanrl import CopiedBuffer, make_script, score, train
from tests.rows import rows_of

BOX, PUSH = spaces.Box(-1.0, 1.0, (2,), np.float32), spaces.Box(-2.0, 2.0, (1,), np.float32)


def filled(rows=10, *, size=20, n_envs=1, actions=None, **options):
    """A buffer of rows whose observations and rewards count up."""
    actions = spaces.Discrete(5) if actions is None else actions
    buffer = ReplayBuffer(size, spaces.Box(-9e9, 9e9, (2,), np.float32), actions, n_envs=n_envs, **options)
    add(buffer, range(rows))
    return buffer


def add(buffer, steps):
    for step in steps:
        number = step + 0.1 * np.arange(buffer.n_envs)
        rows = np.repeat(number[:, None], 2, axis=1)
        action = np.full((buffer.n_envs, 1), step % 5, buffer.actions.dtype)
        done = np.full(buffer.n_envs, step % 4 == 3)
        buffer.add(rows, rows + 1, action, number, done, [{}] * buffer.n_envs)


def test_one_task_equals_the_bare_script_bit_for_bit():
    bare, script = make_script(ReplayBuffer), make_script(CopiedBuffer)
    np.random.seed(3)
    train(bare, 1, steps=160)
    np.random.seed(3)
    owl = OwlWrapper(script.learner(), regularizer=DistillationRegularizer(100.0))
    with owl.task("only"):
        train(script, 1, steps=160)
    for old, new in zip(bare.q.parameters(), script.q.parameters(), strict=True):
        assert torch.equal(old, new)
    assert np.array_equal(bare.rb.actions, script.rb.actions)


def test_the_script_keeps_both_tasks_and_goes_on_from_a_file(tmp_path):
    script = make_script()
    owl = OwlWrapper(script.learner(), regularizer=DistillationRegularizer(1.0, seed=0))
    for shift in (1, 2):
        with owl.task(f"plus {shift}"):
            train(script, shift)
    scores = {}
    for shift in (1, 2):
        with owl.use(f"plus {shift}"):
            scores[shift] = score(script, shift)
    assert scores == {1: 1.0, 2: 1.0}
    owl.save(tmp_path / "owl.safetensors")
    fresh = make_script(CopiedBuffer, seed=5)
    again = OwlWrapper.load(
        tmp_path / "owl.safetensors", fresh.learner(), regularizer=DistillationRegularizer(1.0)
    )
    with again.task("plus 2"):
        assert len(again.replay) == 400  # its rows are there
        assert np.array_equal(np.sort(fresh.rb.rewards[:200].sum(1)), np.sort(kept_rewards(owl, "plus 2")))
        train(fresh, 2, steps=30)
    with again.use("plus 1"):
        assert score(fresh, 1) == 1.0


def kept_rewards(owl, task):
    return owl.replay.state_dict()["kept"][task]["rewards"].sum(1)


def test_an_actor_with_critics_has_such_a_buffer_too():
    script = own_actor_critic.make_script("sac")
    rb = ReplayBuffer(200, BOX, PUSH, handle_timeout_termination=False)
    learner = script.learner(replay=rb)
    check_learner(learner)
    owl = OwlWrapper(learner)
    with owl.task("a"):
        rng = np.random.default_rng(0)
        for _ in range(30):
            seen, action = rng.uniform(-1, 1, (2, 1, 2)), rng.uniform(-2, 2, (1, 1))
            rb.add(seen[0], seen[1], action, np.array([1.0]), np.array([False]), [{}])
    rows = rows_of(owl.replay)
    assert rows.action.shape == (30, 1)
    assert rows.action.abs().max() > 1.0  # as the script stores them: in the environment's units
    assert owl.learner.td_errors(rows, np.array([0])).shape == (1, 30)


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("rows", [7, 60])  # not full, and over its end
def test_rows_come_out_as_they_went_in(n_envs, rows):
    buffer = filled(rows, size=20 * n_envs, n_envs=n_envs)
    replay = BufferReplay(buffer, gamma=0.5, seed=0)
    got = rows_of(replay)
    first = max(0, rows - 20)
    assert len(replay) == len(got) == (rows - first) * n_envs
    step = got.reward.floor()
    assert sorted(set(step.tolist())) == list(range(first, rows))
    assert torch.equal(got.observation, got.reward[:, None].expand(-1, 2))
    assert torch.equal(got.next_observation, got.observation + 1)
    assert got.action.dtype == torch.int64 and torch.equal(got.action, (step % 5).long())
    assert torch.equal(got.terminated, step % 4 == 3)
    assert torch.equal(got.discount, torch.full((len(got),), 0.5))
    assert set(replay.sample(50).reward.tolist()) <= set(got.reward.tolist())


@pytest.mark.parametrize(("tells", "saves"), [(True, False), (False, False), (False, True)])
def test_a_task_comes_back_with_its_last_rows(tells, saves):
    buffer = filled(0, size=50, handle_timeout_termination=tells, optimize_memory_usage=saves)
    replay = BufferReplay(buffer, warm_start=6)
    replay.begin_task("a")
    add(buffer, range(10))
    replay.end_task()
    replay.begin_task("b")
    assert replay.buffer is buffer
    assert len(replay) == 0
    add(buffer, [40])
    replay.begin_task("a")
    got = rows_of(replay)
    assert got.reward.tolist() == [4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
    expected = [False, False, False, True, False, saves]  # where rows hang together the last must end
    assert got.terminated.tolist() == expected
    assert got.next_observation[:, 0].tolist() == [5.0, 6.0, 7.0, 8.0, 9.0, 10.0]


def test_nothing_is_kept_without_warm_start():
    replay = BufferReplay(filled(0), warm_start=0)
    replay.begin_task("a")
    add(replay.buffer, range(5))
    replay.end_task()
    replay.begin_task("a")
    assert len(replay) == 0


def test_drawing_leaves_the_scripts_random_numbers_alone():
    replay, before = BufferReplay(filled()), repr(np.random.get_state())  # and how far they are drawn
    replay.sample(5)
    assert repr(np.random.get_state()) == before


def test_state_comes_back_or_is_refused():
    replay = BufferReplay(filled(0), seed=0)
    replay.begin_task("a")
    add(replay.buffer, range(5))
    replay.end_task()
    other = BufferReplay(filled(0), seed=1)
    other.load_state_dict(replay.state_dict())
    other.begin_task("a")
    replay.begin_task("a")
    assert torch.equal(other.sample(9).reward, replay.sample(9).reward)
    with pytest.raises(OwlValueError, match="does not fit"):
        other.load_state_dict({"kept": {}})
    with pytest.raises(OwlValueError, match="of task 'a' have shape"):
        BufferReplay(filled(0, n_envs=2)).load_state_dict(replay.state_dict())


@pytest.mark.parametrize("rows", [7, 53])  # not full, and over its end
@pytest.mark.parametrize("saves", [False, True])
def test_saved_inside_a_task_the_ring_comes_back_as_it_was(saves, rows):
    options = {"handle_timeout_termination": False, "optimize_memory_usage": saves}
    replay, other = (BufferReplay(filled(0, **options), seed=0) for _ in range(2))
    replay.begin_task("a")
    add(replay.buffer, range(rows - 3))
    with nullcontext() if rows == 7 else pytest.warns(UserWarning, match="may be missing"):
        replay.new_rows()
    add(replay.buffer, range(rows - 3, rows))
    before = filled(5, **options)
    other._own_buffer = before
    other.load_state_dict(replay.state_dict())
    assert before.pos == 5  # nothing changes before the visit goes on
    assert other.state_dict()["visit"].keys() == replay.state_dict()["visit"].keys()
    other.resume_task("a")
    assert (other.buffer.pos, other.buffer.full) == (replay.buffer.pos, replay.buffer.full)
    assert np.array_equal(valid_steps(other.buffer), valid_steps(replay.buffer))
    assert torch.equal(other.sample(50).observation, replay.sample(50).observation)
    assert (
        other.new_rows().reward.tolist() == list(range(rows - 3, rows)) == replay.new_rows().reward.tolist()
    )
    for each in (other, replay):
        add(each.buffer, range(100, 104))
        assert each.new_rows().reward.tolist() == [100.0, 101.0, 102.0, 103.0]
        each.end_task()
        assert "visit" not in each.state_dict()
    replay.begin_task("a")
    add(replay.buffer, range(rows))
    state = replay.state_dict()
    for wrong in ({"size": 30}, {"pos": 3 if rows == 7 else -1}, {"new": -1}):
        with pytest.raises(OwlValueError, match="does not fit"):
            other.load_state_dict({**state, "visit": {**state["visit"], **wrong}})


def test_a_script_goes_on_from_a_file_written_inside_a_task(tmp_path):
    script = make_script()
    owl = OwlWrapper(script.learner(), seed=0)
    with owl.task("plus 1"):
        train(script, 1, steps=40)
        owl.save(tmp_path / "owl.safetensors")
        rows = len(owl.replay)
    fresh = make_script(CopiedBuffer, seed=5)
    again = OwlWrapper.load(tmp_path / "owl.safetensors", fresh.learner(), seed=0)
    with again.task("plus 1"):
        assert len(again.replay) == rows
        train(fresh, 1, steps=20)
    assert again.memory["plus 1"].seen > rows
    with again.task("plus 2"):
        assert len(again.replay) == 0
        train(fresh, 2, steps=20)


def test_info_dicts_are_not_left_out_silently():
    replay = BufferReplay(filled(3))
    replay.buffer.copy_info_dict = True
    assert "visit" not in replay.state_dict()
    replay.begin_task("a")
    with pytest.raises(OwlStateError, match="save outside of the task's block"):
        replay.state_dict()


def test_a_lap_from_an_empty_ring_is_noticed():
    buffer = filled(0)
    replay = BufferReplay(buffer)
    replay.begin_task("a")
    add(buffer, range(27))
    with pytest.warns(UserWarning, match="may be missing"):
        assert replay.new_rows().reward.tolist() == list(range(7, 27))


def test_what_cannot_be_is_said():
    with pytest.raises(OwlValueError, match="warm_start is -1"):
        BufferReplay(filled(), warm_start=-1)
    with pytest.raises(OwlStateError, match="no task was begun"):
        BufferReplay(filled()).end_task()
    dicts = DictReplayBuffer(10, spaces.Dict({"a": BOX}), spaces.Discrete(2))
    assert as_replay(dicts, gamma=0.9) is dicts
    script = make_script()
    script.rb = dicts
    with pytest.raises(OwlValueError, match=r"replay is a DictReplayBuffer and lacks .*begin_task"):
        check_learner(script.learner())
    assert as_replay(ReplayBuffer, gamma=0.9) is ReplayBuffer  # the class is no buffer


def test_it_may_be_given_to_the_wrapper():
    script = make_script()
    rb, script.rb = script.rb, None
    owl = OwlWrapper(script.learner(), replay=rb)
    assert repr(owl.replay).startswith("BufferReplay(ReplayBuffer of 0 rows")
    assert owl.replay.gamma == 0.5


@pytest.mark.parametrize("kind", [ReplayBuffer, CopiedBuffer])
@pytest.mark.parametrize("n_envs", [1, 3])
def test_new_rows_come_once_in_time_and_are_copies(kind, n_envs):
    """Against a plain list of all that was added, over the end of the ring and over tasks."""
    space = spaces.Box(-9e9, 9e9, (2,), np.float32)
    buffer = kind(20 * n_envs, space, spaces.Discrete(5), n_envs=n_envs)
    replay = BufferReplay(buffer, gamma=0.5)
    replay.begin_task("a")
    step = 0
    for count in (0, 1, 7, 19, 3, 12, 0, 18):
        add(buffer, range(step, step + count))
        found = replay.new_rows()
        if not count:
            assert found is None
            continue
        expected = np.array([k + 0.1 * e for k in range(step, step + count) for e in range(n_envs)])
        np.testing.assert_allclose(found.reward, expected, rtol=1e-6)
        assert found.env.tolist() == list(range(n_envs)) * count
        assert found.task == "a" and not found.truncated.any()
        ends = [k % 4 == 3 for k in range(step, step + count) for _ in range(n_envs)]
        assert found.terminated.tolist() == ends
        kept, held = found.observation.clone(), buffer.observations.copy()
        buffer.observations[:] = -1.0  # what was given shares no memory with the ring
        assert torch.equal(found.observation, kept)
        buffer.observations[:] = held
        step += count
    assert replay.overruns == 0
    replay.end_task()
    replay.begin_task("b")
    replay.begin_task("a")
    assert len(replay) and replay.new_rows() is None  # refilled rows are not new
    buffer.reset()  # by the script itself
    add(buffer, range(5))
    assert len(replay.new_rows()) == 5 * n_envs
    replay.forget("a")
    replay.begin_task("a")
    assert len(replay) == 0


@pytest.mark.parametrize("count", [20, 25, 53])
def test_a_lap_between_two_looks_is_counted_and_said_once(count):
    buffer = filled(0)
    replay = BufferReplay(buffer)
    replay.begin_task("a")
    add(buffer, range(6))
    replay.new_rows()
    for turn in range(2):
        add(buffer, range(100 * turn + 6, 100 * turn + 6 + count))
        if turn:
            found = replay.new_rows()
        else:
            with pytest.warns(UserWarning, match="may be missing"):
                found = replay.new_rows()
        last = 100 * turn + 6 + count
        assert found.reward.tolist() == list(range(last - 20, last))
    assert replay.overruns == 2


def test_truncation_is_told_from_an_end():
    buffer = filled(0, handle_timeout_termination=True)
    replay = BufferReplay(buffer)
    replay.begin_task("a")
    row = np.zeros((1, 2))
    for done, info in ((False, {}), (True, {}), (True, {"TimeLimit.truncated": True})):
        buffer.add(row, row, np.array([[1]]), np.zeros(1), np.array([done]), [info])
    found = replay.new_rows()
    assert found.terminated.tolist() == [False, True, False]
    assert found.truncated.tolist() == [False, False, True]


def test_outputs_must_fit_the_number_of_actions():
    script = make_script()
    assert BufferReplay(script.rb).num_actions == 4
    script.q = torch.nn.Sequential(*list(script.q)[:-1], torch.nn.Linear(32, 55))  # flat logits of a C51
    script.target, script.optimizer = None, torch.optim.Adam(script.q.parameters())
    with pytest.raises(OwlValueError, match=r"q returns 55 numbers for 4 actions; .* mean over the atoms"):
        check_learner(script.learner())


@pytest.mark.parametrize("one_ring", [False, True])
@pytest.mark.parametrize("size", [50, 3_000])  # looked through as a whole, and by position
@pytest.mark.parametrize("column", ["rewards", "observations", "next_observations"])
def test_rows_that_are_not_finite_are_found_once_they_are_stored(column, size, one_ring):
    space = spaces.Box(-9.0, 9.0, (2,), np.float32)
    options = {"optimize_memory_usage": one_ring, "handle_timeout_termination": False}
    buffer = ReplayBuffer(size, space, spaces.Discrete(2), n_envs=2, **options)
    replay = BufferReplay(buffer)
    replay.begin_task("a")
    good = {name: np.ones((2, 2), np.float32) for name in ("observations", "next_observations")}
    good["rewards"] = np.ones(2, np.float32)

    def add(**changes):
        row = {**good, **changes}
        done = np.zeros(2)
        buffer.add(
            row["observations"], row["next_observations"], np.zeros((2, 1)), row["rewards"], done, [{}] * 2
        )

    for _ in range(size - 2):  # so that the ring is around its end afterwards
        add()
    replay.check_new()
    for _ in range(5):
        add()
        replay.check_new()
    bad = good[column].copy()
    bad[1] = np.nan
    add(**{column: bad})
    place = 4 if column == "next_observations" and one_ring else 3
    name = "observation" if one_ring and "obs" in column else column[:-1]
    for _ in range(2):  # until it is put right
        with pytest.raises(NonFiniteError, match=f"^{name} is nan at place {place} .*, environment 1;"):
            replay.check_new()
    array = buffer.observations if one_ring and "obs" in column else getattr(buffer, column)
    array[place, 1] = 0.0
    replay.check_new()


def test_large_numbers_are_finite_and_whole_ones_are_not_looked_at():
    buffer = ReplayBuffer(20_000, spaces.Box(0, 255, (3, 3, 1), np.uint8), spaces.Discrete(2))
    replay = BufferReplay(buffer)
    replay.begin_task("a")
    image = np.full((1, 3, 3, 1), 255, np.uint8)
    buffer.add(image, image, np.array([1]), np.array([3e38]), np.array([False]), [{}])
    replay.check_new()
    with np.errstate(over="ignore"):
        buffer.add(image, image, np.array([1]), np.array([4e38]), np.array([False]), [{}])
    with pytest.raises(NonFiniteError, match="reward is inf at place 1"):
        replay.check_new()
