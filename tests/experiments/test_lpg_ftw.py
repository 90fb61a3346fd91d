"""LPG-FTW: every formula against a slow one, pendulums learned and kept, runs that go on after a kill."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.env_util import make_vec_env

from owlrl.envs import PendulumVectorEnv
from owlrl.errors import NonFiniteError, OwlTypeError, OwlValueError
from owlrl.experiments import Plan
from owlrl.experiments.keeping import Keeper, repeatable
from owlrl.experiments.lpg_ftw import (
    DAMPING,
    LPGFTW,
    STD,
    advantages_of,
    fisher,
    fitted_columns,
    fitted_values,
    in_coordinates,
    mean_and_std,
    natural_step,
    policy_gradient,
)
from owlrl.experiments.methods import find_method
from owlrl.experiments.paper import lpg_ftw_plan, parts
from owlrl.experiments.results import without_times
from owlrl.experiments.visits import Visits
from owlrl.wrapper_state import same_state
from tests.adapters.helpers import BOX, Guess
from tests.experiments.fragile import killed_again_and_again

SIZES = st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3))  # rows, features, actions
SEEDS = st.integers(0, 1_000)


def policy_of(rng, n, actions):
    theta = rng.normal(size=(actions, n + 1))
    theta[:, -1] = np.clip(theta[:, -1], -1.0, 0.9)  # log σ has bounds
    return theta


def gaussian(features, theta):
    """The policy in torch, for gradients by autograd."""
    mean = torch.from_numpy(features) @ theta[:, :-1].T
    return torch.distributions.Normal(mean, STD * theta[:, -1].exp())


def spread(rng, *shape):
    """Positive definite matrices."""
    root = rng.normal(size=(*shape, shape[-1]))
    return root @ np.swapaxes(root, -1, -2) + 0.1 * np.eye(shape[-1])


@given(SIZES, SEEDS)
def test_the_gradient_is_that_of_the_log_likelihood_times_the_advantage(sizes, seed):
    (rows, n, actions), rng = sizes, np.random.default_rng(seed)
    features, drawn, gains = (rng.normal(size=shape) for shape in ((rows, n), (rows, actions), rows))
    theta = torch.tensor(policy_of(rng, n, actions), requires_grad=True)
    score = gaussian(features, theta).log_prob(torch.from_numpy(drawn)).sum(1) * torch.from_numpy(gains)
    (slow,) = torch.autograd.grad(score.mean(), theta)
    found = policy_gradient(features, drawn, theta.detach().numpy(), gains)
    np.testing.assert_allclose(found, slow.numpy(), rtol=1e-9, atol=1e-10)


@given(SIZES, SEEDS)
def test_fisher_s_information_is_the_second_derivative_of_the_divergence(sizes, seed):
    (rows, n, actions), rng = sizes, np.random.default_rng(seed)
    features, theta = rng.normal(size=(rows, n)), torch.from_numpy(policy_of(rng, n, actions))

    def divergence(flat):
        other = gaussian(features, flat.reshape(theta.shape))
        return torch.distributions.kl_divergence(gaussian(features, theta), other).sum(1).mean()

    slow = torch.autograd.functional.hessian(divergence, theta.flatten().clone())
    slow = slow.reshape(actions, n + 1, actions, n + 1).numpy()
    found = fisher(features, theta.numpy())
    for a in range(actions):
        for b in range(actions):
            expected = found[a] if a == b else np.zeros_like(found[a])  # actions do not meet
            np.testing.assert_allclose(expected, slow[a, :, b], rtol=1e-8, atol=1e-9)


@given(st.integers(1, 6), SEEDS)
def test_the_natural_step_solves_fisher_s_system_and_no_other_step_gains_more(size, seed):
    rng = np.random.default_rng(seed)
    gradient, information = rng.normal(size=size), spread(rng, size)
    step, eta = natural_step(gradient, information, kl=0.03)
    damped = information + DAMPING * np.diag(information).mean() * np.eye(size)
    np.testing.assert_allclose(step, eta * np.linalg.inv(damped) @ gradient, rtol=1e-8)
    np.testing.assert_allclose(step @ damped @ step / 2, 0.03, rtol=1e-8)
    for other in rng.normal(size=(50, size)):
        other *= np.sqrt(2 * 0.03 / (other @ damped @ other))  # moves the policy as far
        assert other @ gradient <= step @ gradient + 1e-12
    assert not natural_step(np.zeros(size), information, kl=0.03)[0].any()


@given(SIZES, st.integers(1, 5), SEEDS)
def test_coordinates_follow_the_chain_rule(sizes, count, seed):
    (rows, n, actions), rng = sizes, np.random.default_rng(seed)
    features, theta = rng.normal(size=(rows, n)), policy_of(rng, n, actions)
    basis, gradient = rng.normal(size=(actions, n + 1, count)), rng.normal(size=theta.shape)
    blocks = fisher(features, theta)
    flat = basis.reshape(-1, count)
    whole = torch.block_diag(*map(torch.from_numpy, blocks)).numpy()
    along, information = in_coordinates(basis, gradient, blocks)
    np.testing.assert_allclose(along, flat.T @ gradient.ravel(), atol=1e-10)
    np.testing.assert_allclose(information, flat.T @ whole @ flat, rtol=1e-8, atol=1e-9)


@given(st.integers(1, 4), SIZES, SEEDS)
def test_columns_in_closed_form_are_those_of_least_squares(tasks, sizes, seed):
    (k, n, actions), rng, ridge = sizes, np.random.default_rng(seed), 0.02
    targets, codes = rng.normal(size=(tasks, actions, n + 1)), rng.normal(size=(tasks, k))
    curvatures = spread(rng, tasks, actions, n + 1)
    found = fitted_columns(targets, codes, curvatures, ridge=ridge)
    for action in range(actions):  # rows √H L s = √H θ of all tasks, and √(ridge · T) L = 0
        roots = [np.linalg.cholesky(h[action]).T for h in curvatures]
        rows = [np.kron(root, code) for root, code in zip(roots, codes, strict=True)]
        wanted = [root @ target[action] for root, target in zip(roots, targets, strict=True)]
        rows.append(np.sqrt(ridge * tasks) * np.eye(k * (n + 1)))
        wanted.append(np.zeros(k * (n + 1)))
        slow = np.linalg.lstsq(np.concatenate(rows), np.concatenate(wanted), rcond=None)[0]
        np.testing.assert_allclose(found[action].ravel(), slow, rtol=1e-6, atol=1e-8)


def test_columns_are_where_the_objective_s_gradient_is_zero():
    rng = np.random.default_rng(0)
    targets, codes, curvatures = rng.normal(size=(3, 2, 4)), rng.normal(size=(3, 2)), spread(rng, 3, 2, 4)
    found = torch.tensor(fitted_columns(targets, codes, curvatures, ridge=0.3), requires_grad=True)
    total = 0.3 * found.square().sum()
    for target, code, curvature in zip(targets, codes, curvatures, strict=True):
        for a in range(2):
            away = torch.from_numpy(target[a]) - found[a] @ torch.from_numpy(code)
            total = total + away @ torch.from_numpy(curvature[a]) @ away / 3
    (slope,) = torch.autograd.grad(total, found)
    assert slope.abs().max() < 1e-10


def test_values_are_those_of_a_chain_of_states():
    states = np.eye(3)  # 0 → 1 → 2 → the end, rewards 1, 2 and 4
    found = fitted_values(
        states, np.roll(states, -1, 0), np.array([1.0, 2.0, 4.0]), np.array([0, 0, 1], bool), gamma=0.5
    )
    np.testing.assert_allclose(found, [3.0, 4.0, 4.0], rtol=2e-3)


@given(st.integers(0, 5), st.integers(1, 3), SEEDS)
def test_advantages_end_with_their_episode(steps, copies, seed):
    rng = np.random.default_rng(seed)
    errors, ended = rng.normal(size=(steps, copies)), rng.random((steps, copies)) < 0.3
    found = advantages_of(errors, ended, decay=0.9)
    for step in range(steps):
        for copy in range(copies):
            slow, weight = 0.0, 1.0
            for later in range(step, steps):
                slow, weight = slow + weight * errors[later, copy], weight * 0.9
                if ended[later, copy]:
                    break
            np.testing.assert_allclose(found[step, copy], slow)


def test_deviations_have_bounds():
    theta = np.array([[0.0, 0.0], [0.0, 90.0], [0.0, -90.0]])
    std = mean_and_std(np.ones((1, 1)), theta)[1]
    np.testing.assert_allclose(std, STD * np.exp([0.0, 1.0, -4.0]))


ANGLES = {"left": 90, "right": -90}


def score(learned, task):
    env = PendulumVectorEnv(16, angle=ANGLES[task])
    return learned.score(env, task, mode="given", episodes=16, seed=10_007).mean


def started(seed=7, **settings):
    envs = {task: PendulumVectorEnv(10, angle=angle) for task, angle in ANGLES.items()}
    return LPGFTW(times=1, **settings).start(None, envs["left"], seed), envs


def test_pendulums_are_learned_and_kept():
    learned, envs = started()
    learned.train("left", envs["left"], 24_000)
    alone = score(learned, "left")
    assert alone > -420  # random actions have −910, a SAC by itself −342
    assert learned.score(envs["right"], "right", mode="given", episodes=1, seed=0) is None
    learned.train("right", envs["right"], 24_000)
    assert score(learned, "right") > -420
    assert score(learned, "left") == alone  # another column changes nothing
    learned.train("left", envs["left"], 20_000)  # fits both columns again
    assert score(learned, "left") > -420 and score(learned, "right") > -420
    assert learned.policy(None, 0) is None


def test_one_column_is_kept_for_the_task_that_it_fits():
    learned, envs = started(columns=1)
    learned.train("left", envs["left"], 20_000)
    before = score(learned, "left")
    learned.train("right", envs["right"], 6_000)
    assert len(learned._tasks) == 2 and learned._columns.shape[-1] == 1
    assert abs(score(learned, "left") - before) < 60 and score(learned, "right") < -500


def not_asked(env, seed):
    raise AssertionError("the method has a policy of its own")


def plan_of(tasks, **settings):
    method = LPGFTW(columns=1, times=1.3, batch=7, refit=2, features=3, **settings)
    chosen = {"seeds": 1, "rounds": 2, "eval_every": 20, "eval_episodes": 2}
    return Plan.of(not_asked, tasks=tasks, steps=47, methods=[method], **chosen)


def finish(plan, keeper):
    with repeatable(0):
        visits = Visits(plan, plan.methods[0], 0, keeper, lambda text, steps: None)
        visits.run()
    return visits


def several(sign, mode):
    return gymnasium.vector.SyncVectorEnv([partial(Guess, BOX, sign=sign)] * 3, autoreset_mode=mode)


def short(angle):
    return PendulumVectorEnv(10, angle=angle, max_episode_steps=15)


def vec_env(sign):
    return make_vec_env(partial(Guess, BOX, sign=sign), 2)


SIGNS = {"a": 1, "b": -1}
MODES = gymnasium.vector.AutoresetMode
ONE = {task: partial(Guess, BOX, sign=sign) for task, sign in SIGNS.items()}
CASES = {
    "one": ONE,
    "next step": {task: partial(several, sign, MODES.NEXT_STEP) for task, sign in SIGNS.items()},
    "same step": {task: partial(several, sign, MODES.SAME_STEP) for task, sign in SIGNS.items()},
    "VecEnv": {task: partial(vec_env, sign) for task, sign in SIGNS.items()},
    "pendulums": {task: partial(short, angle) for task, angle in ANGLES.items()},
}


@pytest.mark.parametrize("case", CASES)
def test_a_killed_trial_goes_on_as_if_nothing_had_been(case, tmp_path):
    plan = plan_of(CASES[case])
    killed, kills = killed_again_and_again(tmp_path / "x.part", "x", partial(finish, plan))
    whole = finish(plan, Keeper(None, "x"))
    assert kills
    assert list(map(without_times, killed.rows)) == list(map(without_times, whole.rows))
    assert same_state(killed.learned.state_dict(), whole.learned.state_dict())
    assert len([row for row in whole.rows if row["kind"] == "curve"]) == 12  # at 20, 40 and 47 of 4 visits


def test_seeds_reproduce_and_differ():
    found = [finish(plan_of(ONE), Keeper(None, "x")).learned.state_dict() for _ in range(2)]
    assert same_state(*found)
    env = ONE["a"]()
    first, other = (LPGFTW().start(None, env, seed) for seed in (0, 1))
    assert not same_state(first.state_dict(), other.state_dict())


def test_it_is_known_by_its_name_and_says_what_it_needs():
    method = find_method("lpg-ftw")
    assert isinstance(method, LPGFTW) and "2.5 times the steps" in method.about
    with pytest.raises(OwlValueError, match="'paper', 'lpg-ftw', or yours as 'package"):
        find_method("lpg")
    with pytest.raises(OwlTypeError, match=r"lpg-ftw: the action space is Discrete\(2\).*expected a Box"):
        method.start(None, gymnasium.make("CartPole-v1"), 0)
    with pytest.raises(OwlTypeError, match=r"lpg-ftw: the observation space is .*FlattenObservation"):
        method.start(None, Guess(BOX, observations="dict"), 0)
    with pytest.raises(OwlValueError, match=r"(?s)LPGFTW: 2 problems.*columns is 0.*gamma is 1\.5"):
        LPGFTW(columns=0, gamma=1.5)


class Broken(gymnasium.Env):
    """Its rewards are not numbers."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float("nan"), False, False, {}


def test_rewards_that_are_no_numbers_are_said():
    learned = LPGFTW(batch=10).start(None, Broken(), 0)
    with pytest.raises(NonFiniteError, match=r"lpg-ftw: the policy's gradient in 'a' is not finite"):
        learned.train("a", Broken(), 20)


def test_the_paper_s_pendulums_are_a_part_of_its_study(tmp_path):
    (part,) = parts(seeds=1, methods=("lpg-ftw",), frames=30)
    assert [work.trial.method for work in part.work] == ["lpg-ftw", "random actions"] * 3
    assert {tuple(work.trial.settings["tasks"]) for work in part.work} == {
        ("pendulum+90", "pendulum-90"),
        ("pendulum+90",),
        ("pendulum-90",),
    }
    assert lpg_ftw_plan((90, -90), 3).total == 3 * 2 * 20_000 and lpg_ftw_plan((90,), 3).total == 60_000
    work = part.work[0]
    trial = work.do(work.trial)
    told = part.show([trial], [], tmp_path).splitlines()
    scores = [row["mean_return"] for row in trial.select("score") if row["task"] == "pendulum-90"]
    assert len(told) == 4 and len(scores) == 5  # it is not asked before its first visit
    first, last = (f"{score:.0f} ({score:.0f} to {score:.0f})" for score in (scores[0], scores[-1]))
    assert told[-1] == f"| in turn | pendulum-90 | 1 | 2.5 × 90 | {first} | {last} |"
    assert [p.directory for p in parts(seeds=1)] == ["paper", "lpg-ftw"]
