"""The Pendulum with a chosen angle: Gymnasium's own at 0°, its checks, and one copy against many."""

from __future__ import annotations

import math
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from owlrl.envs import PendulumEnv, PendulumVectorEnv
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError

ANGLES = st.floats(-180, 180)


def reward_by_hand(theta: float, speed: float, torque: float, angle: float) -> float:
    """The formula with the difference of the angles taken from a unit vector."""
    away = math.atan2(
        math.sin(theta - math.radians(angle)),
        math.cos(theta - math.radians(angle)),
    )
    return -(away**2 + 0.1 * speed**2 + 0.001 * torque**2)


def vector_of_single(num_envs: int, **arguments) -> SyncVectorEnv:
    def make():
        return gymnasium.make("owlrl/Pendulum-v0", **arguments)

    return SyncVectorEnv([make] * num_envs, autoreset_mode="SameStep")


@pytest.mark.parametrize("check", [check_env, sb3_check_env])
def test_checks_say_no_more_than_of_gymnasiums_own(check):
    said = []
    for make in (PendulumEnv, lambda **kwargs: gymnasium.make("Pendulum-v1", **kwargs).unwrapped):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            env = make(render_mode="rgb_array")
            # what a check that makes further copies goes by
            env.spec = gymnasium.spec("owlrl/Pendulum-v0" if make is PendulumEnv else "Pendulum-v1")
            check(env)
        said.append([str(warning.message) for warning in caught])
    assert said[0] == said[1]
    assert all("normalized" in message for message in said[0])  # of the torques from −2 to 2


def test_standard_at_zero():
    ours = gymnasium.make("owlrl/Pendulum-v0")
    theirs = gymnasium.make("Pendulum-v1")
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert np.array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    for action in np.random.default_rng(0).uniform(-3, 3, (200, 1)).astype(np.float32):
        one, other = ours.step(action), theirs.step(action)
        assert np.array_equal(one[0], other[0])
        assert one[1:] == other[1:]
    assert one[3]


@settings(max_examples=50)
@given(ANGLES, st.floats(-20, 20), st.floats(-8, 8), st.floats(-2, 2))
def test_reward_is_the_formula(angle, theta, speed, torque):
    env = PendulumEnv(angle)
    env.reset(seed=0)
    env.state = np.array([theta, speed])
    reward = env.step(np.array([torque]))[1]
    assert isinstance(reward, float)
    assert reward == pytest.approx(reward_by_hand(theta, speed, torque, angle), abs=1e-9)


@pytest.mark.parametrize("angle", [90, -90])
def test_what_can_be_held_for_a_right_angle(angle):
    """The torque holds the pole where |sin θ| ≤ 0.4, and no nearer to ±90°."""
    env = PendulumEnv(angle)
    torque = np.array([-2.0 if angle > 0 else 2.0])
    held = math.copysign(math.pi - math.asin(0.4), angle)
    env.reset(seed=0)
    env.state = np.array([held, 0.0])
    rewards = [env.step(torque)[1] for _ in range(200)]
    assert env.state[0] == pytest.approx(held, abs=1e-6)
    assert sum(rewards) == pytest.approx(200 * -1.348, rel=1e-3)


def test_render_marks_the_angle():
    pictures = {}
    for angle in (90, -90):
        env = PendulumEnv(angle, render_mode="rgb_array")
        env.reset(seed=0)
        pictures[angle] = env.render()
        env.close()
    green = {a: np.argwhere((p == (60, 160, 60)).all(axis=-1)).mean(axis=0) for a, p in pictures.items()}
    assert pictures[90].shape == (500, 500, 3)
    assert green[90] == pytest.approx([250, 250 - 1.25 * 500 / 4.4], abs=1)  # to the left
    assert green[-90] == pytest.approx([250, 250 + 1.25 * 500 / 4.4], abs=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"angle": math.nan}, "angle is nan; expected a finite number >= -180 and <= 180"),
        ({"angle": 181}, "angle is 181"),
        ({"angle": "90"}, "angle is '90'"),
        ({"angle": True}, "angle is True"),
        ({"g": -1.0}, "g is -1.0"),
        ({"angle": math.inf, "g": math.nan}, "2 problems"),
    ],
)
def test_bad_arguments(arguments, message):
    for make in (PendulumEnv, lambda **more: PendulumVectorEnv(1, **more)):
        with pytest.raises(OwlValueError, match=message):
            make(**arguments)


def test_bad_arguments_of_one_kind():
    with pytest.raises(OwlValueError, match="render_mode is 'ansi'"):
        PendulumEnv(render_mode="ansi")
    with pytest.raises(OwlValueError, match="4 problems"):
        PendulumVectorEnv(0, angle=math.nan, g=math.inf, max_episode_steps=0)
    with pytest.raises(OwlValueError, match=r"num_envs is 2\.0; expected an int"):
        PendulumVectorEnv(2.0)


@pytest.mark.parametrize("action", [[math.nan], [0.0, 0.0], 0.0, [[0.0]]])
def test_bad_actions_of_the_single_change_nothing(action):
    env = PendulumEnv(90)
    env.reset(seed=0)
    before = env.state.copy()
    with pytest.raises(OwlValueError, match="expected one number"):
        env.step(np.array(action))
    assert np.array_equal(env.state, before)


@settings(max_examples=30)
@given(ANGLES, st.integers(1, 5), st.sampled_from([4.0, 10.0]), st.integers(0, 1000))
def test_a_step_of_many_is_so_many_single_steps(angle, num_envs, g, seed):
    generator = np.random.default_rng(seed)
    many, single = PendulumVectorEnv(num_envs, angle=angle, g=g), PendulumEnv(angle, g=g)
    many.reset(seed=0)
    single.reset(seed=0)
    for _ in range(20):
        states = generator.uniform([-20, -8], [20, 8], (num_envs, 2))
        actions = generator.uniform(-3, 3, (num_envs, 1)).astype(np.float32)
        many.states = states
        observations, rewards, *_ = many.step(actions)
        for k in range(num_envs):
            single.state = states[k]
            observation, reward, *_ = single.step(actions[k])
            assert observations[k] == pytest.approx(observation, abs=1e-6)
            assert rewards[k] == pytest.approx(reward, abs=1e-6)
            assert many.states[k] == pytest.approx(single.state, abs=1e-6)


def test_equal_to_gymnasiums_vector_of_the_single():
    """Seeds, starts and ends included; torques of double precision, which the single one then keeps."""
    ours, theirs = PendulumVectorEnv(3, angle=90), vector_of_single(3, angle=90)
    assert np.array_equal(ours.reset(seed=7)[0], theirs.reset(seed=7)[0])
    for step, actions in enumerate(np.random.default_rng(1).uniform(-2, 2, (450, 3, 1)), start=1):
        one, other = ours.step(actions), theirs.step(actions)
        assert one[0] == pytest.approx(other[0], abs=1e-5)
        assert one[1] == pytest.approx(other[1], abs=1e-5)
        for k in (0, 1, 2, 3):
            assert (one[k].dtype, one[k].shape) == (other[k].dtype, other[k].shape)
        assert np.array_equal(one[2], other[2]) and np.array_equal(one[3], other[3])
        assert one[4].keys() == other[4].keys()
        assert bool(one[4]) == (step in (200, 400))
        if one[4]:
            assert np.stack(one[4]["final_obs"]) == pytest.approx(np.stack(other[4]["final_obs"]), abs=1e-5)
            assert np.array_equal(one[4]["_final_obs"], other[4]["_final_obs"])
            assert one[4]["final_info"] == other[4]["final_info"] == {}
            assert one[4]["_final_info"].all()
    assert ours.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    for name in ("single_observation_space", "single_action_space", "observation_space", "action_space"):
        assert getattr(ours, name) == getattr(theirs, name)


def test_made_by_gymnasium_too():
    envs = gymnasium.make_vec("owlrl/Pendulum-v0", num_envs=4, angle=-90)
    assert isinstance(envs, PendulumVectorEnv)
    assert (envs.num_envs, envs.angle, envs.max_episode_steps) == (4, -90, 200)
    assert repr(envs) == "PendulumVectorEnv(num_envs=4, angle=-90)"


def test_gymnasiums_wrappers_take_it():
    envs = RecordEpisodeStatistics(PendulumVectorEnv(2, max_episode_steps=5))
    envs.reset(seed=0)
    infos = [envs.step(np.zeros((2, 1), np.float32))[4] for _ in range(5)]
    assert infos[-1]["episode"]["l"].tolist() == [5, 5]


def test_arrays_are_the_callers_own():
    envs, twin = PendulumVectorEnv(2, max_episode_steps=3), PendulumVectorEnv(2, max_episode_steps=3)
    first, other = envs.reset(seed=0)[0], twin.reset(seed=0)[0]
    for _ in range(8):
        assert np.array_equal(first, other)
        first[...] = 9.0
        envs.states[...] = 9.0
        first, *flags, info = envs.step(np.ones((2, 1)))
        for array in (*flags, *(v for v in info.values() if isinstance(v, np.ndarray) and v.dtype == bool)):
            array[...] = 1
        other = twin.step(np.ones((2, 1)))[0]


def test_some_copies_start_anew():
    envs = PendulumVectorEnv(3, max_episode_steps=4)
    mask = np.array([True, False, True])
    with pytest.raises(OwlStateError, match=r"needs a reset\(\) first"):
        envs.reset(options={"reset_mask": mask})
    envs.reset(seed=0)
    envs.step(np.zeros((3, 1)))
    before = envs.states
    observations, _ = envs.reset(options={"reset_mask": mask})
    after = envs.states
    assert np.array_equal(after[1], before[1]) and not (after[mask] == before[mask]).any()
    assert observations[:, 2] == pytest.approx(after[:, 1])
    ends = [envs.step(np.zeros((3, 1)))[3].tolist() for _ in range(4)]
    assert ends == [[False] * 3, [False] * 3, [False, True, False], [True, False, True]]


def test_starts_within_the_bounds_that_are_asked_for():
    envs, single = PendulumVectorEnv(1), PendulumEnv()
    options = {"x_init": 0.3, "y_init": 0.0}
    assert np.array_equal(envs.reset(seed=2, options=options)[0][0], single.reset(seed=2, options=options)[0])
    with pytest.raises(OwlValueError, match="2 problems"):
        envs.reset(options={"x_init": math.nan, "y_init": "1"})


def test_another_seed_is_another_start_and_none_goes_on():
    envs = PendulumVectorEnv(4)
    one, same, other = (envs.reset(seed=seed)[0] for seed in (0, 0, 1))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert not np.array_equal(envs.reset()[0], other)
    assert not np.array_equal(PendulumVectorEnv(4).reset()[0], PendulumVectorEnv(4).reset()[0])


@pytest.mark.parametrize(
    ("actions", "error", "message"),
    [
        (np.zeros(2), OwlTypeError, r"float64 of shape \(2,\); expected numbers of shape \(2, 1\)"),
        (np.zeros((2, 1), dtype=bool), OwlTypeError, "actions are bool"),
        (np.array([[0.0], [math.nan]]), NonFiniteError, "actions have NaN"),
    ],
)
def test_bad_actions_of_many_change_nothing(actions, error, message):
    envs = PendulumVectorEnv(2)
    with pytest.raises(OwlStateError, match=r"needs a reset\(\) first"):
        envs.step(np.zeros((2, 1)))
    envs.reset(seed=0)
    before = envs.states
    with pytest.raises(error, match=message):
        envs.step(actions)
    assert np.array_equal(envs.states, before)


@pytest.mark.parametrize("mask", [[True, False], np.array([1, 0]), np.array([True])])
def test_bad_masks_and_states(mask):
    envs = PendulumVectorEnv(2)
    envs.reset(seed=0)
    with pytest.raises(OwlValueError, match=r"expected a bool array of shape \(2,\)"):
        envs.reset(options={"reset_mask": mask})
    for states in (np.zeros(2), [[0.0, math.inf], [0.0, 0.0]]):
        with pytest.raises(OwlValueError, match=r"expected finite numbers, \(2, 2\)"):
            envs.states = states


def test_infinite_torques_are_cut_like_any_beyond_the_bounds():
    envs = PendulumVectorEnv(2)
    envs.reset(seed=0)
    envs.states = np.zeros((2, 2))
    envs.step(np.array([[math.inf], [2.0]]))
    assert np.array_equal(*envs.states)
