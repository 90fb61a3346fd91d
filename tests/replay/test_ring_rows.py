"""What a row must look like: spaces, shapes, dtypes and finite numbers, all named in one error."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces

from owlrl.errors import NonFiniteError, OwlValueError
from owlrl.replay import TaskScopedReplay
from tests.rows import rows_of


def make(shape=(2,), dtype=np.float32, **arguments):
    return TaskScopedReplay(20, observation_shape=shape, observation_dtype=dtype, **arguments)


def row(**changes):
    plain = dict(
        observation=np.zeros(2, np.float32),
        action=0,
        reward=0.0,
        next_observation=np.ones(2, np.float32),
        terminated=False,
        truncated=False,
    )
    return {**plain, **changes}


def batch(**changes):
    plain = dict(
        observation=np.zeros((3, 2), np.float32),
        action=np.zeros(3, np.int64),
        reward=np.zeros(3),
        next_observation=np.ones((3, 2), np.float32),
        terminated=np.zeros(3, bool),
        truncated=np.zeros(3, bool),
    )
    return {**plain, **changes}


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Box(0, 255, (7, 7, 3), np.uint8), (7, 7, 3), np.uint8),
        (spaces.Box(-1, 1, (4,), np.float32), (4,), np.float32),
        (spaces.Discrete(5), (), np.int64),
        (spaces.MultiBinary(3), (3,), np.int8),
        (SimpleNamespace(shape=[2], dtype="float64"), (2,), np.float64),
    ],
)
def test_spaces_are_read_by_shape_and_dtype(space, shape, dtype):
    replay = TaskScopedReplay(5, observation_space=space, action_space=space)
    assert replay.observation_shape == replay.action_shape == shape
    assert replay.observation_dtype == replay.action_dtype == dtype
    replay.add(*[np.ones(shape, dtype), np.ones(shape, dtype), 1.0, np.zeros(shape, dtype), True, False])
    drawn = replay.sample(1)
    assert drawn.observation.dtype == torch.from_numpy(np.zeros(0, dtype)).dtype
    assert drawn.observation.shape == drawn.action.shape == (1, *shape)
    assert drawn.action.dtype == (torch.float32 if np.dtype(dtype).kind == "f" else torch.int64)
    assert drawn.reward.dtype == drawn.discount.dtype == torch.float32
    assert drawn.terminated.dtype == torch.bool


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(), ["the observation is not described"]),
        (dict(observation_shape=(2,)), ["the observation is not described"]),
        (
            dict(observation_space=spaces.Discrete(2), observation_shape=()),
            ["observation_space is given and observation_shape"],
        ),
        (
            dict(observation_space=spaces.Dict(a=spaces.Discrete(2)), action_space=object()),
            ["2 problems", "observation_space is Dict", "flatten", "action_space is <object"],
        ),
        (
            dict(
                observation_shape=(),
                observation_dtype=np.int64,
                action_space=spaces.Discrete(2),
                action_shape=(3,),
            ),
            ["action_space is given and action_shape"],
        ),
        (dict(observation_shape=(0,), observation_dtype=np.int64), ["observation_shape[0] is 0"]),
        (dict(observation_shape=(2.0,), observation_dtype=np.int64), ["observation_shape[0] is 2.0"]),
        (dict(observation_shape=3, observation_dtype=np.int64), ["observation has shape 3"]),
        (dict(observation_shape=(), observation_dtype=np.complex64), ["complex64"]),
        (
            dict(observation_shape=(), observation_dtype=object),
            ["observation has shape () and dtype <class 'object'>"],
        ),
        (dict(observation_shape=(), observation_dtype="nonsense"), ["dtype 'nonsense'"]),
    ],
)
def test_a_space_that_does_not_fit_is_refused(arguments, words):
    with pytest.raises(OwlValueError) as error:
        TaskScopedReplay(5, **arguments)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (np.float32, np.float64([0.5, 1.5])),
        (np.float32, [1, 2]),
        (np.float64, np.float32([0.5, 1.5])),
        (np.uint8, np.int64([0, 255])),
        (np.uint8, [3, 4]),
        (np.int8, np.array([True, False])),
        (np.float32, torch.tensor([0.5, 1.5], requires_grad=True)),
    ],
)
def test_values_that_fit_are_taken_as_they_are(dtype, given):
    replay = make(dtype=dtype)
    replay.add(given, 0, 1, given, 0, 1.0)
    expected = given.detach().numpy() if isinstance(given, torch.Tensor) else np.asarray(given)
    np.testing.assert_array_equal(replay.sample(1).observation[0].numpy(), expected.astype(dtype))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(observation=np.zeros(3)), ["observation has shape (3,); expected (2,)"]),
        (dict(observation="ab"), ["observation has shape (); expected (2,)"]),
        (dict(observation=["a", "b"]), ["observation has dtype <U1; expected float32"]),
        (dict(observation=[[1], [2, 3]]), ["observation cannot be made an array"]),
        (dict(observation=[1j, 2]), ["observation has dtype complex128"]),
        (
            dict(observation=np.array([2**24 + 1, 0])),
            ["observation has dtype int64", "expected values that float32"],
        ),
        (dict(action=1.5), ["action has dtype float64; expected int64"]),
        (dict(action=1.0), ["action has dtype float64; expected int64"]),
        (dict(action=None), ["action has dtype object"]),
        (dict(action=[1]), ["action has shape (1,); expected ()"]),
        (dict(action=np.uint64(2**63)), ["action has dtype uint64", "expected values that int64"]),
        (dict(reward="much"), ["reward has dtype <U4"]),
        (dict(terminated=2), ["terminated holds int64 values; expected booleans"]),
        (dict(truncated="no"), ["truncated holds <U2 values"]),
        (dict(truncated=[True]), ["truncated has shape (1,); expected ()"]),
        (
            dict(observation=np.zeros(3), action=0.5, reward=np.nan, terminated=None),
            [
                "4 problems",
                "observation has shape",
                "action has dtype",
                "reward is nan",
                "terminated holds object",
            ],
        ),
    ],
)
def test_everything_wrong_with_a_row_is_named_and_nothing_stored(changes, words):
    replay = make()
    with pytest.raises(OwlValueError) as error:
        replay.add(**row(**changes))
    assert str(error.value).startswith("TaskScopedReplay.add: ")
    assert all(word in str(error.value) for word in words), error.value
    assert len(replay) == 0


@pytest.mark.parametrize("given", [np.float32([0.5, 0.5]), [256, 0], [-1, 0], np.int8([-1, 0])])
def test_what_a_uint8_ring_cannot_hold_is_refused(given):
    replay = make(dtype=np.uint8)
    with pytest.raises(OwlValueError, match=r"observation has dtype .*uint8"):
        replay.add(**row(observation=given, next_observation=np.zeros(2, np.uint8)))
    assert len(replay) == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(reward=float("nan")), ["reward is nan in env 0", "task 'left'"]),
        (dict(reward=1e300), ["reward is inf in env 0"]),
        (dict(observation=np.array([0.0, -np.inf])), ["observation is -inf in env 0"]),
        (dict(next_observation=np.array([np.nan, 0.0])), ["next_observation is nan in env 0"]),
    ],
)
def test_what_is_not_finite_is_refused(changes, words):
    replay = make()
    replay.begin_task("left")
    with pytest.raises(NonFiniteError) as error:
        replay.add(**row(**changes))
    assert all(word in str(error.value) for word in words), error.value
    assert len(replay) == 0


def test_a_float_action_must_be_finite():
    replay = make(action_shape=(2,), action_dtype=np.float32)
    with pytest.raises(NonFiniteError, match="action is nan in env 0;"):
        replay.add(**row(action=[0.0, np.nan]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            dict(observation=np.zeros((2, 2))),
            ["observation has shape (2, 2); expected (3, 2) (one row per environment)"],
        ),
        (dict(reward=0.0), ["reward has shape (); expected (3,)"]),
        (dict(terminated=np.array([0, 1, 2])), ["terminated holds int64"]),
        (dict(mask=np.ones(2, bool)), ["mask is bool (2,); expected bool (3,)"]),
        (dict(mask=[1, 0, 1]), ["mask is int64 (3,); expected bool (3,)"]),
    ],
)
def test_a_batch_is_checked_the_same_way(changes, words):
    replay = make(num_envs=3)
    with pytest.raises(OwlValueError) as error:
        replay.add_batch(**batch(**changes))
    assert str(error.value).startswith("TaskScopedReplay.add_batch: ")
    assert all(word in str(error.value) for word in words), error.value
    assert len(replay) == 0


def test_all_environments_that_are_not_finite_are_named():
    replay = make(num_envs=3)
    with pytest.raises(NonFiniteError) as error:
        replay.add_batch(**batch(reward=np.array([np.nan, 0.0, np.inf]), observation=np.full((3, 2), np.nan)))
    assert "reward is nan in env 0, 2" in str(error.value)
    assert "observation is nan in env 0, 1, 2" in str(error.value)
    assert len(replay) == 0


def test_masked_environments_are_not_looked_at():
    replay = make(num_envs=3)
    reward = np.array([1.0, np.nan, 3.0])
    replay.add_batch(**batch(reward=reward, mask=np.array([True, False, True])))
    assert sorted(rows_of(replay).reward.tolist()) == [1.0, 3.0]
    replay.add_batch(**batch(reward=np.full(3, np.nan), mask=np.zeros(3, bool)))
    assert len(replay) == 2
    with pytest.raises(NonFiniteError, match="env 2"):
        replay.add_batch(**batch(reward=np.array([1.0, 1.0, np.nan]), mask=np.array([False, False, True])))
