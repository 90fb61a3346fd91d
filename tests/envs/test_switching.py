"""Switching: who acts when, what is carried over, and many copies against single ones."""

from __future__ import annotations

import copy
from itertools import pairwise

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from owlrl.envs import (
    CrossroadsEnv,
    PendulumVectorEnv,
    ReachVectorEnv,
    Switching,
    SwitchingVectorEnv,
    TabulatedVectorEnv,
    cart_poles,
    pendulums,
    reaches,
    tabulate,
    task_set,
)
from owlrl.errors import OwlTypeError, OwlValueError

GOALS = {"right": (1.0, 0.0), "left": (-1.0, 0.0), "up": (0.0, 1.0)}
TORQUE = np.zeros(1, np.float32)


def reaching(number=2, limit=20, **kwargs):
    envs = {name: ReachVectorEnv(number, goal=goal, max_episode_steps=limit) for name, goal in GOALS.items()}
    return SwitchingVectorEnv(envs, **kwargs)


def run(env, steps, action):
    """Infos' tasks, rewards and ends of so many steps, with resets in between."""
    found = []
    env.reset(seed=0)
    for _ in range(steps):
        _, reward, terminated, truncated, info = env.step(action)
        found.append((info["task"], reward, terminated or truncated))
        if found[-1][2]:
            env.reset()
    return found


@pytest.mark.parametrize("tasks", [cart_poles(), reaches([(1, 0), (0, 1)]), task_set("Crossroads-2")])
@pytest.mark.filterwarnings("ignore:.*infinity")  # CartPole's bounds
def test_checks(tasks):
    env = Switching(tasks, seed=0)
    check_env(env, skip_render_check=True)
    if env.observation_space.shape != (7, 7, 3):  # of whose size Stable-Baselines3 warns
        sb3_check_env(Switching(tasks, seed=0))


def test_the_schedule_is_kept_within_episodes():
    tasks = reaches(GOALS.values())
    schedule = [("reach-0", 7), ("reach-1", 30), ("reach-0", 4), ("reach-2", 1)]
    env = Switching(tasks, schedule=schedule)
    found = run(env, 60, np.zeros(2))
    assert [task for task, _, _ in found] == (
        ["reach-0"] * 7 + ["reach-1"] * 30 + ["reach-0"] * 4 + ["reach-2"] * 19
    )  # the last stays
    assert [step + 1 for step, (_, _, ended) in enumerate(found) if ended] == [20, 40, 60]  # limits go on
    assert env.changes == [(0, "reach-0"), (7, "reach-1"), (37, "reach-0"), (41, "reach-2")]
    assert env.task == "reach-2"


def test_the_state_is_carried_over():
    """A Pendulum's motion goes on as if nothing had happened; only the reward changes."""
    switched = Switching(pendulums([90, -90]), schedule=[("pendulum+90", 13), ("pendulum-90", 1)])
    plain = {name: spec() for name, spec in pendulums([90, -90]).items()}
    seen = [env.reset(seed=5)[0] for env in (switched, *plain.values())]
    assert np.array_equal(seen[0], seen[1])
    rng = np.random.default_rng(0)
    for step in range(200):
        torque = rng.uniform(-2, 2, 1).astype(np.float32)
        ours, *theirs = (env.step(torque) for env in (switched, *plain.values()))
        assert np.array_equal(ours[0], theirs[0][0])
        assert ours[1] == theirs[step >= 13][1]
        assert ours[3] == (step == 199)


def test_a_push_that_becomes_weaker_in_mid_air():
    env = Switching(cart_poles(), schedule=[("cartpole", 2), ("cartpole-weak", 1)])
    env.reset(seed=0)
    speeds = [env.step(1)[0][1] for _ in range(4)]
    gains = np.diff(speeds)
    assert gains[0] == pytest.approx(0.195, abs=0.005)  # of a whole push
    assert gains[1:] == pytest.approx([0.098, 0.098], abs=0.005)


@pytest.mark.parametrize("mid_episode", [True, False])
def test_what_cannot_be_carried_over_waits_for_the_end_of_the_episode(mid_episode):
    limit = 10
    tasks = {"a": CrossroadsEnv(2, 0, max_steps=limit), "b": CrossroadsEnv(2, 1, max_steps=limit)}
    env = Switching(tasks, schedule=[("a", 4), ("b", 11), ("a", 1)], mid_episode=mid_episode)
    found = run(env, 40, 0)
    assert [task for task, _, _ in found] == ["a"] * 10 + ["b"] * 20 + ["a"] * 10
    assert env.changes == [(0, "a"), (10, "b"), (30, "a")]


def test_it_waits_if_asked_to():
    schedule = [("reach-0", 7), ("reach-1", 1)]
    env = Switching(reaches([(1, 0), (0, 1)]), schedule=schedule, mid_episode=False)
    assert [task for task, _, _ in run(env, 25, np.zeros(2))] == ["reach-0"] * 20 + ["reach-1"] * 5


def test_drawn_times_and_tasks():
    tasks = reaches(GOALS.values())
    one, same, other = (Switching(tasks, stay=(3, 9), seed=seed) for seed in (1, 1, 2))
    for env in (one, same, other):
        run(env, 2_000, np.zeros(2))
    assert one.changes == same.changes != other.changes
    steps, names = zip(*one.changes, strict=True)
    lengths = np.diff(steps)
    assert (steps[0], names[0]) == (0, "reach-0")
    assert set(lengths.tolist()) == set(range(3, 10))
    assert all(a != b for a, b in pairwise(names))
    counts = [names.count(name) for name in tasks]
    assert min(counts) > 60  # of about 330


def test_a_reset_with_a_seed_seeds_all_and_turns_no_clock_back():
    env = Switching(pendulums([90, -90]), schedule=[("pendulum+90", 3), ("pendulum-90", 1)])
    plain = pendulums([90])["pendulum+90"]()
    for seed in (3, 4):
        assert np.array_equal(env.reset(seed=seed)[0], plain.reset(seed=seed)[0])
        env.step(TORQUE)
        env.step(TORQUE)
    assert env.changes[-1] == (3, "pendulum-90")
    again = copy.deepcopy(env)
    assert np.array_equal(again.step(TORQUE)[0], env.step(TORQUE)[0])


@settings(max_examples=15)
@given(seed=st.integers(0, 99), limit=st.integers(4, 9), mid=st.booleans())
def test_vectors_change_together_and_as_single_ones_do(seed, limit, mid):
    """Against Gymnasium's vector of single ones, where states are carried over or ends coincide."""
    tasks = reaches(GOALS.values())
    stay = (1, 12) if mid else (limit, limit)

    def single():
        made = {name: spec(max_episode_steps=limit) for name, spec in tasks.items()}
        return Switching(made, stay=stay, seed=seed, mid_episode=mid)

    twins = {
        name: ReachVectorEnv(3, goal=spec.kwargs["goal"], max_episode_steps=limit)
        for name, spec in tasks.items()
    }
    ours = SwitchingVectorEnv(twins, stay=stay, seed=seed, mid_episode=mid)
    theirs = SyncVectorEnv([single] * 3, autoreset_mode="SameStep")
    assert np.array_equal(ours.reset(seed=0)[0], theirs.reset(seed=0)[0])
    for actions in np.random.default_rng(seed).uniform(-1, 1, (40, 3, 2)):
        one, other = ours.step(actions), theirs.step(actions)
        assert all(map(np.array_equal, one[:4], other[:4]))
        assert one[4].keys() == other[4].keys()
        assert one[4]["task"].tolist() == other[4]["task"].tolist()
        if "final_obs" in one[4]:
            assert np.array_equal(np.stack(one[4]["final_obs"]), np.stack(other[4]["final_obs"]))
            assert one[4]["final_info"]["task"].tolist() == other[4]["final_info"]["task"].tolist()
    assert ours.changes == theirs.envs[0].changes and len(ours.changes) > 2


def test_pendulums_as_arrays_go_on_where_they_are():
    schedule = [("a", 5), ("b", 7), ("a", 1)]
    ours = SwitchingVectorEnv(
        {"a": PendulumVectorEnv(2, angle=90), "b": PendulumVectorEnv(2, angle=-90)}, schedule=schedule
    )
    plain = PendulumVectorEnv(2, angle=90)
    assert np.array_equal(ours.reset(seed=3)[0], plain.reset(seed=3)[0])
    for step, torque in enumerate(np.random.default_rng(0).uniform(-2, 2, (200, 2, 1))):
        one, other = ours.step(torque), plain.step(torque)
        if step < 199:  # the next episode's start is another draw
            assert one[0] == pytest.approx(other[0], abs=1e-6)
        assert np.array_equal(one[3], other[3])
        assert (one[1] == other[1]).all() == (not 5 <= step < 12)


def test_vectors_without_a_state_to_carry_are_cut():
    tables = [tabulate(CrossroadsEnv(2, k, max_steps=10), verify_steps=0) for k in range(2)]
    envs = SwitchingVectorEnv(
        {"a": TabulatedVectorEnv(tables[0], 3), "b": TabulatedVectorEnv(tables[1], 3)},
        schedule=[("a", 6), ("b", 1)],
    )
    first, infos = envs.reset(seed=0)
    assert infos["task"].tolist() == ["a"] * 3
    # the second copy walks to its goal and ends before
    plan = [[0, 1, 0], [0, 2, 0], [1, 2, 0], [0, 2, 1], [1, 2, 0], [0, 0, 0], [0, 0, 0]]
    steps = [envs.step(np.array(row)) for row in plan]
    assert [step[3].all() for step in steps] == [False] * 5 + [True, False]
    _, _, terminated, truncated, infos = steps[4]
    assert terminated.tolist() == [False, True, False] and infos["final_info"]["task"][1] == "a"
    observations, _, terminated, truncated, infos = steps[5]
    assert not terminated.any() and truncated.all() and infos["_final_obs"].all()
    assert np.array_equal(observations, first)
    assert not np.array_equal(infos["final_obs"][0], first[0])
    assert infos["final_info"]["task"].tolist() == ["a"] * 3 and infos["task"].tolist() == ["b"] * 3
    assert steps[6][4]["task"].tolist() == ["b"] * 3


def test_an_end_at_the_cut_keeps_its_termination():
    tables = [tabulate(CrossroadsEnv(2, k, length=1), verify_steps=0) for k in range(2)]
    envs = SwitchingVectorEnv(
        {"a": TabulatedVectorEnv(tables[0], 2), "b": TabulatedVectorEnv(tables[1], 2)},
        schedule=[("a", 2), ("b", 1)],
    )
    envs.reset(seed=0)
    envs.step(np.array([1, 0]))
    _, rewards, terminated, truncated, infos = envs.step(np.array([2, 0]))
    assert rewards.tolist() == [1, 0]
    assert terminated.tolist() == [True, False] and truncated.tolist() == [False, True]
    assert infos["final_info"]["is_success"].tolist() == [True, False]


def test_words_for_both():
    env = Switching(reaches([(1, 0), (0, 1)]))
    assert repr(env) == "Switching(['reach-0', 'reach-1'], task='reach-0')"
    envs = reaching(seed=0)
    assert repr(envs) == "SwitchingVectorEnv(['right', 'left', 'up'], num_envs=2, task='right')"
    envs.close()
    env.close()


def test_render_is_the_present_tasks():
    tasks = {name: spec(render_mode="rgb_array") for name, spec in pendulums([90, -90]).items()}
    env = Switching(tasks, schedule=[("pendulum+90", 1), ("pendulum-90", 1)])
    env.reset(seed=0)
    env.step(TORQUE)
    before = env.render()
    env.step(TORQUE)
    assert before.shape == (500, 500, 3)
    green = [np.argwhere((p == (60, 160, 60)).all(axis=-1)).mean(axis=0)[1] for p in (before, env.render())]
    assert green[0] < 250 < green[1]
    env.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stay": (5, 3)}, "the smaller number first"),
        ({"stay": 5}, "2 problems"),
        ({"stay": (0, 1.5)}, "2 problems"),
        ({"seed": -1}, "seed is -1"),
        ({"mid_episode": 1}, "mid_episode is 1"),
        ({"schedule": []}, "schedule is empty"),
        ({"schedule": [("right", 0), ("down", 2)]}, "2 problems"),
        ({"schedule": [("right", 1), ("right", 2)]}, "again; expected another task"),
    ],
)
def test_bad_arguments(arguments, message):
    envs = {name: ReachVectorEnv(1, goal=goal) for name, goal in GOALS.items()}
    single = {name: reaches([goal])["reach-0"]() for name, goal in GOALS.items()}
    for make in (lambda: SwitchingVectorEnv(envs, **arguments), lambda: Switching(single, **arguments)):
        with pytest.raises(OwlValueError, match=message):
            make()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # gymnasium 1.1's __del__
def test_environments_that_do_not_go_together():
    one, other = gymnasium.make("CartPole-v1"), gymnasium.make("owlrl/Reach-v0")
    with pytest.raises(OwlTypeError, match="at least 2 environments by name"):
        Switching([one, other])
    with pytest.raises(OwlTypeError, match="at least 2 environments by name"):
        Switching({"a": one})
    with pytest.raises(OwlTypeError, match=r"envs\['b'\] is an int"):
        Switching({"a": one, "b": 3})
    with pytest.raises(OwlValueError, match="2 problems"):
        Switching({"a": one, "b": other})
    with pytest.raises(OwlValueError, match="one environment twice"):
        Switching({"a": one, "b": one})
    sync = SyncVectorEnv([lambda: gymnasium.make("owlrl/Reach-v0")] * 2)
    with pytest.raises(OwlValueError, match=r"autoreset mode AutoresetMode\.NEXT_STEP"):
        SwitchingVectorEnv({"a": ReachVectorEnv(2), "b": sync})
    with pytest.raises(OwlValueError, match="expected"):
        SwitchingVectorEnv({"a": ReachVectorEnv(2), "b": ReachVectorEnv(3)})
