"""The wrappers against sums done by hand and against the environments inside."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import SAC
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.monitor import Monitor

from owlrl import OwlWrapper
from owlrl.checkpoint import load_state, save_state
from owlrl.envs import (
    CountBonus,
    CrossroadsEnv,
    Resumable,
    ScaleGoalReward,
    SimpleCrossingEnv,
    SwapActions,
    TabulatedEnv,
    WeakPush,
    cart_poles,
    tabulate,
)
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.learners import DQN, DQNConfig
from owlrl.wrapper_state import same_state
from tests.adapters.helpers import BOX, Guess, any_model


@pytest.mark.parametrize("tabulated", [False, True])
def test_count_bonus_counts_cells_over_episodes(tabulated):
    base = SimpleCrossingEnv(3, max_steps=30)
    env = TabulatedEnv(tabulate(base)) if tabulated else base
    bonus, plain, where = CountBonus(env, scale=0.3), SimpleCrossingEnv(3, max_steps=30), {}
    generator = np.random.default_rng(0)
    for _ in range(5):
        bonus.reset()
        plain.reset()
        for action in generator.choice(3, p=[0.2, 0.2, 0.6], size=30).tolist():
            seen, reward, *rest = bonus.step(action)
            expected = plain.step(action)
            place = tuple(map(int, plain.agent_pos))
            where[place] = where.get(place, 0) + 1
            assert reward == pytest.approx(expected[1] + 0.3 * where[place] ** -0.5)
            assert np.array_equal(seen, expected[0])
            assert rest == list(expected[2:])
    assert len(where) > 5


def test_count_bonus_of_any_environment():
    env = CountBonus(
        gymnasium.make("FrozenLake-v1", is_slippery=False), 1.0, cell=lambda env: env.unwrapped.s
    )
    env.reset(seed=0)
    assert [env.step(0)[1] for _ in range(2)] == pytest.approx([1.0, 2**-0.5])
    with pytest.raises(OwlTypeError, match="cell="):
        CountBonus(gymnasium.make("FrozenLake-v1"))


def test_goal_reward_is_scaled_and_nothing_else():
    env = ScaleGoalReward(CrossroadsEnv(2, 0, length=2, breadcrumbs=True), factor=10.0)
    env.reset()
    assert [env.step(action)[1] for action in (1, 2, 2)] == pytest.approx([0.0, 0.05, 10.5])
    env.reset()
    last = [env.step(action) for action in (0, 2, 2)][-1]
    assert last[1:] == (0.0, True, False, {"is_success": False})


def test_wrappers_are_part_of_the_spec():
    env = CountBonus(ScaleGoalReward(gymnasium.make("owlrl/Crossroads-v0"), factor=2.0), scale=0.5)
    again = gymnasium.make(env.spec)
    assert (again.scale, again.env.factor) == (0.5, 2.0)


@pytest.mark.parametrize("scale", [-1.0, float("inf"), "1", True])
def test_bad_scales(scale):
    with pytest.raises(OwlValueError, match="scale is"):
        CountBonus(CrossroadsEnv(2), scale)
    with pytest.raises(OwlValueError, match="factor is"):
        ScaleGoalReward(CrossroadsEnv(2), scale)


def test_a_success_must_still_be_seen():
    with pytest.raises(OwlValueError, match=r"factor is 0\.0; expected a finite number > 0"):
        ScaleGoalReward(CrossroadsEnv(2), 0.0)


@pytest.mark.parametrize("env_id", ["owlrl/FlippedCartPole-v0", "owlrl/WeakCartPole-v0"])
@pytest.mark.filterwarnings("ignore:.*is different from the unwrapped version", "ignore:.*infinity")
def test_cart_poles_are_checked(env_id):
    env = gymnasium.make(env_id)
    check_env(env, skip_render_check=True)
    sb3_check_env(env)
    assert env.spec.max_episode_steps == 500
    assert type(gymnasium.make(env.spec)) is type(env)
    assert gymnasium.make_vec(env_id, num_envs=2).reset(seed=0)[0].shape == (2, 4)


def walk(env, actions):
    env.reset(seed=1)
    return [env.step(action) for action in actions]


def test_swapped_actions_are_the_others():
    actions = [0, 1, 1, 0, 1]
    plain = walk(gymnasium.make("CartPole-v1"), actions)
    swapped = walk(gymnasium.make("owlrl/FlippedCartPole-v0"), [1 - action for action in actions])
    for one, other in zip(plain, swapped, strict=True):
        assert np.array_equal(one[0], other[0]) and one[1:] == other[1:]
    level = SwapActions(CrossroadsEnv(2, length=1), order=np.array([2, 0, 1]))
    level.reset()
    assert [level.step(action)[1] for action in (2, 0)] == [0.0, 1.0]  # turn right, forward
    assert SwapActions(CrossroadsEnv(2)).order == (2, 1, 0)


def test_a_push_of_another_force():
    """The first step's speed after Gymnasium's formula, with half of the force."""
    env, plain = gymnasium.make("owlrl/WeakCartPole-v0"), gymnasium.make("CartPole-v1")
    plain.unwrapped.force_mag = 5.0
    for one, other in zip(walk(env, [0, 1, 1]), walk(plain, [0, 1, 1]), strict=True):
        assert np.array_equal(one[0], other[0])
    assert env.unwrapped.force_mag == 10.0
    twice = WeakPush(WeakPush(gymnasium.make("CartPole-v1"), 0.5), np.float32(2.0))
    usual = walk(gymnasium.make("CartPole-v1"), [0, 1, 1])
    assert np.array_equal(walk(twice, [0, 1, 1])[-1][0], usual[-1][0])
    with pytest.raises(AssertionError):
        env.step(7)
    assert env.unwrapped.force_mag == 10.0


def test_the_three_cart_poles():
    tasks = cart_poles(render_mode="rgb_array")
    assert [spec.env_id for spec in tasks.values()] == [
        "CartPole-v1",
        "owlrl/FlippedCartPole-v0",
        "owlrl/WeakCartPole-v0",
    ]
    assert all(spec().unwrapped.render_mode == "rgb_array" for spec in tasks.values())


def test_what_cannot_be_swapped_or_pushed():
    with pytest.raises(OwlTypeError, match=r"expected Discrete\(n\)"):
        SwapActions(gymnasium.make("Pendulum-v1"))
    for order in ([0], [0, 0], [0, 2], [1.5, 0]):
        with pytest.raises(OwlValueError, match=r"expected each of \[0, 1\] once"):
            SwapActions(gymnasium.make("CartPole-v1"), order)
    with pytest.raises(OwlTypeError, match="expected a CartPole"):
        WeakPush(CrossroadsEnv(2))
    with pytest.raises(OwlValueError, match="factor is -1"):
        WeakPush(gymnasium.make("CartPole-v1"), -1)


MAKERS = {
    "box": lambda: gymnasium.make("Pendulum-v1"),
    "discrete": lambda: gymnasium.make("CartPole-v1"),
    "dict": lambda: gymnasium.make("MiniGrid-Empty-Random-5x5-v0"),
    "monitored": lambda: Monitor(Guess(BOX)),
}


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("kind", MAKERS)
def test_the_same_place_is_found_from_a_file(kind, seed, tmp_path):
    env = Resumable(MAKERS[kind]())
    env.action_space.seed(0)
    env.reset(seed=1)
    for _ in range(2):
        env.step(env.action_space.sample())
    env.reset(seed=seed)
    for _ in range(4):
        env.step(env.action_space.sample())
    save_state(tmp_path / "env", env.state_dict())
    again = Resumable(MAKERS[kind]())
    again.load_state_dict(load_state(tmp_path / "env"))
    action = env.action_space.sample()
    for _ in range(2):
        (seen, *rest, _), (other, *others, _) = env.step(action), again.step(action)
        assert same_state(seen, other) and rest[:3] == others[:3]
    assert same_state(env.reset()[0], again.reset()[0])  # the generator is there, too


def test_before_the_first_reset_there_is_nothing_to_find():
    env = Resumable(Guess())
    env.load_state_dict(Resumable(Guess()).state_dict())
    assert env.unwrapped.resets == 0


def test_other_randomness_is_refused():
    class Odd(Guess):
        drawn = iter(range(100))

        def _observation(self, space):
            return np.full(3, next(self.drawn), np.float32)

    env = Resumable(Odd())
    env.reset()
    with pytest.raises(OwlStateError, match=r"same place .*the same 0 actions.*pickle it"):
        Resumable(Odd()).load_state_dict(env.state_dict())


@pytest.mark.parametrize("state", [{}, {"begun": 3, "actions": None, "seen": None}])
def test_a_state_that_does_not_fit_is_refused(state):
    with pytest.raises(OwlValueError, match="does not fit"):
        Resumable(Guess()).load_state_dict(state)


def new_agent(kind):
    if kind == "DQN":
        env = Resumable(gymnasium.wrappers.OrderEnforcing(Guess()))
        agent = DQN(
            env, config=DQNConfig(learning_starts=10, batch_size=8, buffer_size=500), seed=0, device="cpu"
        )
    else:
        env = Resumable(Monitor(Guess(BOX)))
        agent = any_model(SAC, env=env, train_freq=1)
    return env, agent, OwlWrapper(agent, seed=0)


@pytest.mark.parametrize("kind", ["DQN", "SAC"])
def test_a_run_goes_on_exactly_with_the_environment_in_the_same_file(kind, tmp_path):
    path, border = tmp_path / "state", 32  # four steps into an episode of seven
    env, agent, owl = new_agent(kind)
    count = [0]

    def save():
        count[0] += 1
        if count[0] == (border if kind == "DQN" else border + 1):
            save_state(path, {"owl": owl.state_dict(), "env": env.state_dict()})

    remove = owl.learner.at_border(save)
    with owl.task("a"):
        agent.learn(60)
    remove()

    env, agent, again = new_agent(kind)
    state = load_state(path)
    again.load_state_dict(state["owl"])
    env.load_state_dict(state["env"])
    with again.task("a", env=env):
        if kind == "DQN":
            agent.learn(60 - border)
        else:
            agent.learn(60 - agent.num_timesteps, reset_num_timesteps=False)
    assert same_state(owl.state_dict(), again.state_dict())
