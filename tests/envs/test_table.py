"""Table: what it fills in and refuses. Its environments: Gymnasium's checks, one copy against many."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from owlrl.envs import (
    CountBonus,
    CrossroadsEnv,
    SimpleCrossingEnv,
    Table,
    TabulatedEnv,
    TabulatedVectorEnv,
    tabulate,
)
from owlrl.envs.planning import action_values
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError

from .helpers import line, random_tables


def test_defaults():
    table = line(4)
    assert (table.num_states, table.num_observations, table.num_actions) == (4, 4, 2)
    assert table.goal.tolist() == [[False, False], [False, False], [False, True], [False, False]]
    assert table.cell.tolist() == [0, 1, 2, 3]
    assert table.max_episode_steps is None
    assert repr(table) == "Table('table': 4 states, 4 observations, 2 actions)"


def test_nothing_can_be_changed_and_nothing_is_shared():
    given = np.zeros((3, 2))
    table = line(3, reward=given)
    given[:] = 5
    assert not table.reward.any()
    for field in dataclasses.fields(Table):
        value = getattr(table, field.name)
        if isinstance(value, np.ndarray):
            with pytest.raises(ValueError, match="read-only"):
                value[...] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.start = 1


def test_reward_at_a_step():
    plain = line(3)
    assert plain.reward_at(1, 1, 5) == 1.0
    table = line(3, max_episode_steps=2, goal_reward=[0.0, 0.9, 0.8])
    assert table.reward_at(1, 1, 2) == 0.8
    assert table.reward_at([0, 1, 1], [1, 1, 0], [1, 1, 2]).tolist() == [0.0, 0.9, 0.0]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"obs_index": []}, ["obs_index"]),
        ({"obs_index": [[0, 1, 2]]}, ["obs_index"]),
        ({"next_state": [0, 1, 2]}, ["next_state"]),
        ({"next_state": np.zeros((3, 0))}, ["next_state"]),
        ({"next_state": [[0, 3], [0, 1], [0, 0]], "start": 3}, ["next_state", "start"]),
        ({"obs_index": [0, -1, 2], "cell": [0, -2, 1]}, ["obs_index", "cell"]),
        ({"reward": np.zeros((3, 1)), "goal": np.zeros((2, 2)), "cell": [0]}, ["reward", "goal", "cell"]),
        ({"reward": [[0, np.nan], [0, 0], [0, 0]]}, ["NaN"]),
        ({"observations": np.zeros((3, 2))}, ["observations"]),
        ({"max_episode_steps": 0}, ["max_episode_steps"]),
        ({"goal_reward": [0.0, 1.0]}, ["goal_reward"]),
        ({"goal_reward": [0.0, 1.0], "max_episode_steps": 2}, ["goal_reward"]),
        ({"goal_reward": [0.0, np.inf], "max_episode_steps": 1}, ["goal_reward"]),
        ({"goal": np.ones((3, 2))}, ["goal"]),
        ({"start": True}, ["start"]),
    ],
)
def test_what_is_wrong_is_named(changes, names):
    if changes.get("reward") is not None and np.shape(changes["reward"]) != (3, 2):
        changes = {**changes, "goal": changes["goal"]}  # or it would be made from a reward of another shape
    with pytest.raises(OwlValueError) as caught:
        line(3, **changes)
    assert all(name in str(caught.value) for name in names)
    assert str(caught.value).count("expected") == len(names)


def test_a_space_is_needed():
    with pytest.raises(OwlTypeError, match="expected a gymnasium space"):
        line(3, observation_space=3)


@pytest.fixture(scope="module")
def level():
    return tabulate(SimpleCrossingEnv(3, max_steps=40))


def drive(envs: VectorEnv, actions):
    return [envs.step(row) for row in actions]


def same(one, other):
    """Whether two things that a step may return are the same, arrays of arrays and dicts included."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) and one.dtype == object:
        return all(map(same, one, other))
    return np.array_equal(one, other) and np.asarray(one).dtype == np.asarray(other).dtype


def some_actions(table, num_envs, steps, seed=0, purpose=0.8):
    """Mostly good ones, as copies in the same state would take them: goals are met."""
    generator = np.random.default_rng(seed)
    best = action_values(table, 0.99).argmax(axis=1)
    envs = TabulatedVectorEnv(table, num_envs)
    envs.reset()
    actions = []
    for _ in range(steps):
        row = generator.integers(table.num_actions, size=num_envs)
        row = np.where(generator.random(num_envs) < purpose, best[envs.states], row)
        envs.step(row)
        actions.append(row)
    return actions


def test_checks(level):
    check_env(TabulatedEnv(level), skip_render_check=True)
    sb3_check_env(TabulatedEnv(line(5)))


def test_equal_to_gymnasiums_vector_of_the_real_environment(level):
    ours = TabulatedVectorEnv(level, 5)
    real = SyncVectorEnv([lambda: SimpleCrossingEnv(3, max_steps=40)] * 5, autoreset_mode="SameStep")
    assert same(ours.reset(seed=3)[0], real.reset(seed=3)[0])
    actions = some_actions(level, 5, 150)
    ended = 0
    for mine, theirs in zip(drive(ours, actions), drive(real, actions), strict=True):
        assert all(map(same, mine, theirs))
        ended += mine[2].any() or mine[3].any()
    assert ended > 10
    assert ours.metadata["autoreset_mode"] is real.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(ours, name) == getattr(real, name)


@settings(max_examples=30)
@given(
    table=random_tables(),
    num_envs=st.integers(1, 4),
    limit=st.none() | st.integers(1, 6),
    bonus=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
)
def test_many_copies_are_so_many_single_ones(table, num_envs, limit, bonus, seed):
    def single():
        env = TabulatedEnv(table, max_episode_steps=limit)
        return CountBonus(env, bonus) if bonus else env

    ours = TabulatedVectorEnv(table, num_envs, max_episode_steps=limit, count_bonus=bonus)
    theirs = SyncVectorEnv([single] * num_envs, autoreset_mode="SameStep")
    assert same(ours.reset()[0], theirs.reset()[0])
    actions = np.random.default_rng(seed).integers(table.num_actions, size=(25, num_envs))
    for mine, other in zip(drive(ours, actions), drive(theirs, actions), strict=True):
        assert all(map(same, mine, other))


def test_arrays_are_the_callers_own(level):
    envs = TabulatedVectorEnv(level, 3)
    first, _ = envs.reset()
    kept = [first.copy()]
    first[...] = 9
    actions = some_actions(level, 3, 60)
    for step in drive(envs, actions):
        kept.append(step[0].copy())
        for array in step[:4]:
            array[...] = 1
        for value in step[4].values():
            if isinstance(value, np.ndarray):
                value[...] = 0
    other = TabulatedVectorEnv(level, 3)
    expected = [other.reset()[0], *(step[0] for step in drive(other, actions))]
    assert all(map(np.array_equal, kept, expected))
    single = TabulatedEnv(level)
    seen, _ = single.reset()
    seen[...] = 9
    assert np.array_equal(single.reset()[0], kept[0][0])


def test_reset_of_some(level):
    envs = TabulatedVectorEnv(level, 3)
    with pytest.raises(OwlStateError, match="reset"):
        envs.step(np.zeros(3, dtype=int))
    with pytest.raises(OwlStateError, match="reset"):
        envs.reset(options={"reset_mask": np.array([True, False, False])})
    envs.reset()
    drive(envs, [[2, 0, 2], [0, 0, 2]])
    before = envs.states
    seen, info = envs.reset(options={"reset_mask": np.array([True, False, False])})
    assert info == {}
    assert envs.states.tolist() == [level.start, *before[1:]]
    assert np.array_equal(seen, level.observations[level.obs_index[envs.states]])
    steps = drive(envs, [[0, 0, 0]] * 38)
    assert steps[-1][3].tolist() == [False, True, True]
    for wrong in ([True, False, False], np.array([1, 0, 0]), np.array([True])):
        with pytest.raises(OwlValueError, match="expected a bool array of shape"):
            envs.reset(options={"reset_mask": wrong})


def test_gymnasiums_wrappers_take_it(level):
    envs = RecordEpisodeStatistics(TabulatedVectorEnv(level, 4))
    envs.reset(seed=1)
    ends, lengths = [], []
    for row in some_actions(level, 4, 80):
        _, _, terminated, truncated, infos = envs.step(row)
        ends.append(terminated | truncated)
        if "episode" in infos:
            lengths += infos["episode"]["l"][infos["_episode"]].tolist()
    assert len(lengths) == np.sum(ends) > 4
    assert max(lengths) <= 40


@pytest.mark.parametrize(
    ("actions", "kind"),
    [
        ([0, 1], OwlTypeError),
        ([0.0, 1.0, 0.0], OwlTypeError),
        ([True, False, True], OwlTypeError),
        ([0, 1, 3], OwlValueError),
        ([0, -1, 0], OwlValueError),
        (np.array([0, 1, 2**63], dtype=np.uint64), OwlValueError),
    ],
)
def test_wrong_actions_change_nothing(level, actions, kind):
    envs = TabulatedVectorEnv(level, 3)
    envs.reset()
    with pytest.raises(kind, match="expected"):
        envs.step(np.array(actions))
    assert envs.states.tolist() == [level.start] * 3
    assert not drive(envs, [[0] * 3] * 39)[-1][3].any()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
def test_actions_of_any_int_type(level, dtype):
    envs, other = TabulatedVectorEnv(level, 3), TabulatedVectorEnv(level, 3)
    envs.reset()
    other.reset()
    for row in some_actions(level, 3, 10):
        assert same(envs.step(row.astype(dtype))[0], other.step(row)[0])
    assert envs.states.tolist() == other.states.tolist() != [level.start] * 3


def test_single_environment(level):
    env = TabulatedEnv(level)
    with pytest.raises(OwlStateError, match=r"call reset\(\) first"):
        env.step(0)
    env.reset()
    with pytest.raises(OwlValueError, match="expected an int from 0 to 2"):
        env.step(3)
    steps = [env.step(0) for _ in range(40)]
    assert steps[-1][1:] == (0.0, False, True, {"is_success": False})
    with pytest.raises(OwlStateError, match=r"call reset\(\) first"):
        env.step(0)
    assert repr(env).startswith("TabulatedEnv(Table(")
    assert repr(TabulatedVectorEnv(level, 2)).endswith("num_envs=2)")


def test_limits(level):
    assert [TabulatedEnv(level, max_episode_steps=2)._limit, TabulatedEnv(level)._limit] == [2, 40]
    with pytest.raises(OwlValueError, match="max_episode_steps is 41; expected an int from 1 to 40"):
        TabulatedEnv(level, max_episode_steps=41)
    longer = TabulatedVectorEnv(tabulate(CrossroadsEnv(2), verify_steps=0), 2, max_episode_steps=300)
    longer.reset()
    cut = [step[3].any() for step in drive(longer, [[0, 1]] * 300)]
    assert cut == [False] * 299 + [True]
    endless = TabulatedEnv(line(3))
    endless.reset()
    assert not any(endless.step(0)[3] for _ in range(2_000))


@pytest.mark.parametrize("make", [TabulatedEnv, lambda table: TabulatedVectorEnv(table, 2)])
def test_a_table_is_needed(make):
    with pytest.raises(OwlTypeError, match=r"expected a Table, e.g. tabulate\(env\)"):
        make(gymnasium.make("owlrl/Crossroads-v0"))


def test_bad_arguments_are_all_named(level):
    with pytest.raises(OwlValueError, match="3 problems"):
        TabulatedVectorEnv(level, 0, max_episode_steps=0, count_bonus=float("nan"))


def test_copies_and_pickles_are_equal_and_read_only():
    table = tabulate(CrossroadsEnv(2, length=1))
    for other in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        assert not any(a.flags.writeable for a in vars(other).values() if isinstance(a, np.ndarray))
        np.testing.assert_array_equal(other.next_state, table.next_state)
    for env in (TabulatedEnv(table), TabulatedVectorEnv(table, 2)):
        env.reset()
        first = 1 if isinstance(env, TabulatedEnv) else np.array([1, 0])
        env.step(first)
        twin = pickle.loads(pickle.dumps(env))
        action = 2 if isinstance(env, TabulatedEnv) else np.array([2, 2])
        for mine, its in zip(env.step(action)[:4], twin.step(action)[:4], strict=True):
            np.testing.assert_array_equal(mine, its)


def test_bad_input_changes_nothing():
    table = tabulate(CrossroadsEnv(2, length=1))
    envs, env = TabulatedVectorEnv(table, 2), TabulatedEnv(table)
    envs.reset()
    envs.step(np.array([1, 1]))
    states = envs.states.tolist()
    for seed in (-1, [1, 2], 1.5):
        with pytest.raises(OwlValueError, match="seed is"):
            envs.reset(seed=seed)
    assert envs.states.tolist() == states != [table.start] * 2
    env.reset()
    with pytest.raises(OwlValueError, match="action is True"):
        env.step(True)
    env.step(1)
    assert env.step(2)[1] == 1.0
