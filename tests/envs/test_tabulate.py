"""tabulate: equal to the environment step for step, and a plain word about what cannot be tabulated."""

from __future__ import annotations

import threading

import gymnasium
import minigrid.envs
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils import EzPickle
from gymnasium.wrappers import FlattenObservation, TimeAwareObservation, TimeLimit
from minigrid.core.world_object import Box, Goal, Key
from minigrid.wrappers import ImgObsWrapper

from owlrl.envs import CountBonus, CrossroadsEnv, DoorKeyEnv, ScaleGoalReward, SimpleCrossingEnv, tabulate
from owlrl.errors import OwlTypeError, OwlValueError

from .helpers import differences

CLIFF = max(name for name in gymnasium.registry if name.startswith("CliffWalking-v"))


def lake(**kwargs):
    return gymnasium.make("FrozenLake-v1", **{"is_slippery": False, **kwargs})


def square(env):
    return env.unwrapped.s


CASES = {
    "crossing": (lambda: gymnasium.make("owlrl/SimpleCrossing-v0", level=3), {}),
    "door and key, 7 actions": (lambda: DoorKeyEnv(3, size=6, max_steps=60), {}),
    "crossroads": (lambda: CrossroadsEnv(5, 2, breadcrumbs=True), {}),
    "goal reward ×100": (lambda: ScaleGoalReward(SimpleCrossingEnv(3)), {}),
    "shorter limit": (lambda: TimeLimit(SimpleCrossingEnv(3), 40), {}),
    "flat": (lambda: FlattenObservation(CrossroadsEnv(2)), {}),
    "lake": (lake, {"state_key": square}),
    "cliff": (lambda: gymnasium.make(CLIFF), {"state_key": square}),
}


@pytest.mark.parametrize("name", CASES)
def test_equal_step_for_step(name):
    make, arguments = CASES[name]
    table = tabulate(make(), **arguments, verify_steps=200)
    found, successes = differences(make(), table, steps=500, seed=1, purpose=0.8)
    assert found == []
    assert successes > 10 or name == "cliff"


class _Reseeded(gymnasium.Wrapper):
    def __init__(self, env, seed):
        super().__init__(env)
        self.seed = seed

    def reset(self, **_):
        return self.env.reset(seed=self.seed)


@pytest.mark.slow
@pytest.mark.parametrize("make", [lambda: SimpleCrossingEnv(3), lambda: DoorKeyEnv(4)])
@pytest.mark.parametrize("purpose", [0.0, 0.7])
def test_equal_over_100_000_steps(make, purpose):
    table = tabulate(make())
    found, successes = differences(make(), table, steps=100_000, seed=2, purpose=purpose)
    assert found == []
    assert successes > 1_000 or not purpose
    assert table.num_states == {3: 169, 7: 8260}[table.num_actions]


def test_a_minigrid_environment_that_is_not_ours():
    make = lambda: ImgObsWrapper(minigrid.envs.DoorKeyEnv(size=5, max_steps=30))  # noqa: E731
    table = tabulate(make(), seed=11, verify_steps=0)
    found, successes = differences(_Reseeded(make(), 11), table, steps=1_000, seed=4, purpose=0.8)
    assert found == []
    assert successes > 0
    assert table.name == "DoorKeyEnv"


def test_fast_states_are_those_of_whole_copies():
    def value_key(env):
        base = env.unwrapped
        carrying = base.carrying and base.carrying.encode()
        return tuple(map(int, base.agent_pos)), base.agent_dir, carrying, base.grid.encode().tobytes()

    make = lambda: DoorKeyEnv(3, size=5, num_actions=6, max_steps=50)  # noqa: E731
    fast = tabulate(make(), verify_steps=0)
    slow = tabulate(make(), state_key=value_key, verify_steps=0)
    for name in ("observations", "obs_index", "next_state", "reward", "terminated", "goal_reward", "cell"):
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name


def test_what_is_in_a_box_comes_out_of_it():
    class BoxEnv(SimpleCrossingEnv):
        def _gen_grid(self, width, height):
            super()._gen_grid(width, height)
            self.grid.set(2, 1, Box("red", contains=Key("blue")))

    make = lambda: BoxEnv(3, size=5, num_crossings=1, num_actions=7)  # noqa: E731
    found, successes = differences(make(), tabulate(make()), steps=1_500, seed=0, purpose=0.6)
    assert found == []
    assert successes > 0


def test_the_environment_itself_is_not_touched():
    env = SimpleCrossingEnv(3)
    env.reset(seed=4)
    env.step(1)
    before = (env.agent_pos, env.agent_dir, env.step_count, env.np_random.bit_generator.state)
    tabulate(env, verify_steps=10)
    assert before == (env.agent_pos, env.agent_dir, env.step_count, env.np_random.bit_generator.state)
    assert "gen_obs" not in vars(env)


def test_names_limits_and_rewards():
    table = tabulate(
        gymnasium.make("owlrl/SimpleCrossing-v0", level=3, render_mode="rgb_array", max_steps=60)
    )
    assert table.name == "owlrl/SimpleCrossing-v0(level=3, max_steps=60)"
    assert table.max_episode_steps == 60
    assert table.goal_reward[1:].tolist() == [1 - 0.9 * (step / 60) for step in range(1, 61)]
    assert table.cell.max() + 1 == 43
    assert tabulate(lake(max_episode_steps=7), state_key=square).max_episode_steps == 7
    cut = tabulate(TimeLimit(SimpleCrossingEnv(3), 200), verify_steps=150)
    assert cut.max_episode_steps == 100


def test_randomness_is_seen():
    with pytest.raises(OwlValueError, match="did two different things in one state"):
        tabulate(lake(is_slippery=True), state_key=square)
    with pytest.raises(OwlValueError, match="tabulate"):
        tabulate(ImgObsWrapper(minigrid.envs.DynamicObstaclesEnv(size=5, n_obstacles=1)))


class Hidden(gymnasium.Env):
    """Two states; what it tells of the number of steps is up to the test."""

    observation_space = spaces.Discrete(2)
    action_space = spaces.Discrete(2)

    def __init__(self, *, reward=lambda steps: 0.0, observation=lambda state, steps: state, limit=None):
        self.laws = reward, observation, limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.steps = 0
        return 0, {}

    def step(self, action):
        reward, observation, limit = self.laws
        self.state = action
        self.steps += 1
        return observation(self.state, self.steps), reward(self.steps), False, self.steps == limit, {}


def of_state(env):
    return env.unwrapped.state


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            Hidden(reward=lambda steps: float(steps > 3)),
            "reward is 1.0 and the table's 0.0",
        ),
        (Hidden(limit=9), "truncated is True and the table's False"),
        (Hidden(observation=lambda state, steps: int(steps > 3)), "observation"),
        (
            Hidden(observation=lambda state, steps: (state + steps) % 2),
            "with two different observations",
        ),
    ],
)
def test_a_key_that_leaves_something_out_is_seen(env, message):
    with pytest.raises(OwlValueError, match=message):
        tabulate(env, state_key=of_state)


def test_a_count_bonus_cannot_be_tabulated():
    with pytest.raises(OwlValueError, match="take off wrappers that count"):
        tabulate(CountBonus(CrossroadsEnv(2)))


def test_too_many_states():
    with pytest.raises(OwlValueError, match=r"more than max_states=168 states; pass a larger max_states="):
        tabulate(SimpleCrossingEnv(3), max_states=168)
    assert tabulate(SimpleCrossingEnv(3), max_states=169, verify_steps=0).num_states == 169
    with pytest.raises(OwlValueError, match="max_states=50"):
        tabulate(Hidden(), state_key=lambda env: (env.unwrapped.state, env.unwrapped.steps), max_states=50)


@pytest.mark.parametrize(
    ("env", "arguments", "message"),
    [
        ("env", {}, "expected a gymnasium.Env"),
        (gymnasium.make("Pendulum-v1"), {"state_key": square}, r"expected Discrete\(n\)"),
        (minigrid.envs.DoorKeyEnv(size=5), {}, "ImgObsWrapper"),
        (lake(), {}, "pass state_key="),
        (lake(), {"state_key": 3}, "expected a function"),
        (lake(), {"state_key": lambda env: np.array([env.unwrapped.s])}, "returned a ndarray .*hashable"),
        (TimeAwareObservation(lake(), flatten=False), {}, "2 problems"),
    ],
)
def test_what_cannot_be_tabulated(env, arguments, message):
    with pytest.raises(OwlTypeError, match=message):
        tabulate(env, **arguments)


def test_an_environment_that_cannot_be_copied():
    env = CrossroadsEnv(2)
    env.lock = threading.Lock()
    with pytest.raises(OwlTypeError, match="cannot be deep-copied"):
        tabulate(env)


def test_bad_arguments_are_all_named():
    with pytest.raises(OwlValueError, match="3 problems"):
        tabulate(CrossroadsEnv(2), seed=-1, max_states=0, verify_steps=1.5)


class Slip(SimpleCrossingEnv):
    """Random at one place, for one action."""

    def step(self, action):
        if tuple(map(int, self.agent_pos)) == (7, 6) and action == 2 and self.np_random.random() < 0.5:
            action = 0
        return super().step(action)


@pytest.mark.parametrize("level", [3, 14, 17])  # where the place can be reached
def test_randomness_at_a_single_place_is_seen(level):
    with pytest.raises(OwlValueError, match="action 2 did two different things in one state"):
        tabulate(Slip(level))


class TwoGoals(SimpleCrossingEnv):
    """A second goal in the other corner, which pays half."""

    def _gen_grid(self, width, height):
        super()._gen_grid(width, height)
        self.put_obj(Goal(), 1, height - 2)

    def _reward(self):
        return super()._reward() * (1.0 if tuple(map(int, self.agent_pos)) == (7, 7) else 0.5)


def test_goals_that_pay_differently_by_the_step_are_refused():
    with pytest.raises(OwlValueError, match="two successes are paid differently"):
        tabulate(TwoGoals(3))


def test_the_limit_is_the_one_after_reset():
    class Late(SimpleCrossingEnv):
        def reset(self, **kwargs):
            self.max_steps = 30
            return super().reset(**kwargs)

    table = tabulate(Late(3))
    assert table.max_episode_steps == 30 and len(table.goal_reward) == 31


def test_levels_of_babyai_need_a_key():
    env = ImgObsWrapper(gymnasium.make("BabyAI-GoToObj-v0"))
    with pytest.raises(OwlTypeError, match="level of BabyAI, whose mission remembers more"):
        tabulate(env)


class Rebuilt(gymnasium.Env, EzPickle):
    """A walk over a ring; a deep copy is constructed from scratch, as with Deep Sea Treasure.

    ``early`` says whether there is a place before the first reset, at which a copy then stands.
    """

    observation_space = spaces.Discrete(9)
    action_space = spaces.Discrete(2)

    def __init__(self, *, early=True, drifts=False):
        EzPickle.__init__(self, early=early, drifts=drifts)
        self.drifts = drifts
        self.resets = 0
        if early:
            self.place = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.resets % 9 if self.drifts else 0
        self.resets += 1
        self.started = True
        return self.place, {}

    def step(self, action):
        assert self.started  # a copy from scratch has not been
        self.place = (self.place + (1, 4)[action]) % 9
        return self.place, float(self.place == 8), self.place == 8, False, {}


def place(env):
    return env.unwrapped.place


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("limit", [None, 30])
def test_an_environment_whose_copies_start_from_scratch_is_replayed(early, limit):
    def make():
        env = Rebuilt(early=early)
        return env if limit is None else TimeLimit(env, limit)

    env = make()
    env.reset(seed=0)
    env.step(0)
    table = tabulate(env, state_key=place)
    assert (table.num_states, table.max_episode_steps) == (9, limit)
    assert place(env) == 1  # not touched
    found, successes = differences(make(), table, steps=500, seed=0)
    assert found == [] and successes > 10


def test_what_neither_a_copy_nor_a_replay_brings_back_is_refused():
    with pytest.raises(OwlValueError, match=r"deep copy .* reset\(seed=3\) and the same 0 actions"):
        tabulate(Rebuilt(drifts=True), state_key=place, seed=3)


def test_copies_that_continue_are_used():
    """A replay would give the same table for the price of all those resets."""
    resets = []

    class Counted(Hidden):
        def reset(self, **kwargs):
            resets.append(1)
            return super().reset(**kwargs)

    assert tabulate(Counted(), state_key=of_state, verify_steps=0).num_states == 2
    assert len(resets) == 3  # to see whether copies continue, for the search, and to verify
