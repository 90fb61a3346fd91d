"""ModelEvidence: models in closed form, scored in one pass, saved and loaded."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from owlrl import ModelEvidence, OwlWrapper, Transitions
from owlrl.checkpoint import load_state, save_state
from owlrl.errors import NonFiniteError, OwlError, OwlStateError
from owlrl.evidence import ridge_fit
from owlrl.evidence._random_features import RandomFeatures
from owlrl.protocols import Evidence
from tests.own_dqn import Signs, make_script, train


def walk(
    step: float, *, pay: float = 0.0, n: int = 600, seed: int = 0, continuous: bool = False
) -> Transitions:
    """A point in a plane is pushed along the first axis; ``pay`` times the second is the reward."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    action = rng.uniform(-1, 1, size=(n, 1)) if continuous else rng.integers(2, size=n)
    push = action[:, 0] if continuous else 2.0 * action - 1
    following = x + np.column_stack([step * push, np.zeros(n)])
    return Transitions(
        torch.tensor(x, dtype=torch.float32),
        torch.tensor(action, dtype=torch.float32 if continuous else torch.int64),
        torch.tensor(pay * x[:, 1], dtype=torch.float32),
        torch.tensor(following, dtype=torch.float32),
        torch.zeros(n, dtype=torch.bool),
        torch.full((n,), 0.9),
    )


def fitted(*tasks: Transitions, **arguments) -> ModelEvidence:
    evidence = ModelEvidence(seed=0, features=128, **arguments)
    for head, rows in enumerate(tasks):
        evidence.calibrate(None, head, rows)
    return evidence


def test_satisfies_the_protocol():
    assert isinstance(ModelEvidence(), Evidence)


def test_ridge_fit_solves_its_problem():
    rng = np.random.default_rng(0)
    x, y, weight = rng.normal(size=(20, 4)), rng.normal(size=(20, 3)), rng.uniform(0.5, 2, size=20)
    found = ridge_fit(x, y, weight, ridge=0.1)
    # at the minimum the gradient of the penalised sum is zero
    gradient = np.zeros_like(found)
    for row in range(20):
        gradient += weight[row] * np.outer(x[row], x[row] @ found - y[row])
    np.testing.assert_allclose(gradient + 0.1 * weight.sum() * found, 0.0, atol=1e-10)


@pytest.mark.parametrize("continuous", [False, True])
def test_tasks_that_move_differently_are_told_apart(continuous):
    tasks = [walk(1.0, continuous=continuous), walk(-1.0, continuous=continuous)]
    evidence = fitted(*tasks)
    for truth, step in enumerate((1.0, -1.0)):
        losses = evidence.losses(None, walk(step, seed=5, continuous=continuous), [0, 1])
        assert losses.shape == (600, 2) and np.isfinite(losses).all() and (losses >= 0).all()
        right, wrong = losses[:, truth], losses[:, 1 - truth]
        assert right.mean() < 0.3 * wrong.mean()


def test_tasks_that_pay_differently_are_told_apart():
    evidence = fitted(walk(1.0, pay=0.1), walk(1.0, pay=-0.1))
    losses = evidence.losses(None, walk(1.0, pay=-0.1, seed=5), [0, 1]).mean(0)
    assert losses[1] < 0.3 * losses[0]


def test_losses_are_errors_in_units_of_the_models_own():
    evidence = fitted(walk(1.0, pay=0.5))
    rows = walk(1.0, pay=0.5, seed=9, n=7)
    x = evidence._features(rows)
    error = evidence._outcomes(rows) - x @ evidence._models[0]
    scale = evidence.scales[0]
    for row in range(7):
        surprise = np.sqrt(sum(e**2 for e in error[row, :-1]) / 2)
        expected = min(surprise / scale[0], 5.0) + min(abs(error[row, -1]) / scale[1], 5.0)
        assert evidence.losses(None, rows, [0])[row, 0] == pytest.approx(expected, rel=1e-9)


def test_heads_are_scored_in_the_order_asked_for():
    evidence = fitted(walk(1.0), walk(-1.0), walk(0.0))
    rows = walk(1.0, seed=3, n=5)
    np.testing.assert_allclose(
        evidence.losses(None, rows, [2, 0]), evidence.losses(None, rows, [0, 1, 2])[:, [2, 0]]
    )


def test_wide_observations_are_projected():
    rows = walk(1.0, n=50)
    wide = torch.zeros(50, 5, 40)
    wide[:, 0, :2] = rows.observation
    rows = Transitions(wide, rows.action, rows.reward, wide.roll(1, 0), rows.terminated, rows.discount)
    evidence = ModelEvidence(seed=0, outputs=8, features=32)
    evidence.calibrate(None, 0, rows)
    assert evidence._models[0].shape == (1 + 8 + 32, 9)
    assert evidence.losses(None, rows, [0]).shape == (50, 1)


def test_a_task_with_more_actions_may_come_later():
    few = walk(1.0)
    more = replace(few, action=few.action + 5)
    evidence = fitted(few, more)
    assert np.isfinite(evidence.losses(None, more[:9], [0, 1])).all()


@pytest.mark.parametrize("reward", [0.0, 1e6, 1e-12])
def test_rewards_of_any_size_are_finite(reward):
    evidence = fitted(walk(1.0, pay=reward), walk(1.0, pay=-reward))
    losses = evidence.losses(None, walk(1.0, pay=reward, seed=2), [0, 1])
    assert np.isfinite(losses).all() and losses.max() <= 10.0


def test_constant_observations_and_one_row_are_enough_to_go_on():
    row = walk(1.0, n=1)
    evidence = fitted(row)
    assert np.isfinite(evidence.losses(None, row, [0])).all()


def test_columns_that_hardly_change_are_not_blown_up():
    x = np.column_stack([np.arange(100.0), np.arange(100.0) * 10, np.zeros(100)])
    scale = RandomFeatures.measure(x, features=4, outputs=4, seed=0).scale
    assert scale[0] == scale[2] == np.median(x.std(axis=0)[:2]) and scale[1] == x[:, 1].std()


def test_the_same_seed_gives_the_same_losses_and_another_does_not():
    rows = walk(1.0, n=100)
    one, two = fitted(rows), fitted(rows)
    np.testing.assert_array_equal(one.losses(None, rows, [0]), two.losses(None, rows, [0]))
    other = ModelEvidence(seed=1, features=128)
    other.calibrate(None, 0, rows)
    assert (one.losses(None, rows, [0]) != other.losses(None, rows, [0])).any()


def test_the_global_generators_are_left_alone():
    numpy_before, torch_before = np.random.get_state()[1:3], torch.get_rng_state()
    fitted(walk(1.0)).losses(None, walk(1.0), [0])
    keys, place = np.random.get_state()[1:3]
    assert (keys == numpy_before[0]).all() and place == numpy_before[1]
    assert torch.equal(torch.get_rng_state(), torch_before)


def test_state_goes_through_a_file(tmp_path):
    evidence = fitted(walk(1.0, pay=1.0), walk(-1.0))
    save_state(tmp_path / "evidence", evidence.state_dict())
    again = ModelEvidence(features=128)
    again.load_state_dict(load_state(tmp_path / "evidence"))
    rows = walk(1.0, seed=4)
    np.testing.assert_array_equal(again.losses(None, rows, [0, 1]), evidence.losses(None, rows, [0, 1]))
    assert again.scales == evidence.scales


def test_an_empty_state_is_loaded_too():
    evidence = fitted(walk(1.0))
    evidence.load_state_dict(ModelEvidence(seed=3).state_dict())
    assert evidence.scales == {} and evidence.seed == 3


def test_bad_states_change_nothing():
    evidence = fitted(walk(1.0))
    before = evidence.losses(None, walk(1.0), [0])
    for state in ({}, {**fitted(walk(1.0)).state_dict(), "models": {"0": np.zeros((2, 2))}}):
        with pytest.raises(OwlError):
            evidence.load_state_dict(state)
    np.testing.assert_array_equal(evidence.losses(None, walk(1.0), [0]), before)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"features": 0}, "features is 0"),
        ({"outputs": 1.5}, "outputs is 1.5"),
        ({"ridge": 0.0}, "ridge is 0.0"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"encode": 3}, "encode is 3"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_bad_arguments_are_refused(arguments, words):
    with pytest.raises(OwlError, match=words):
        ModelEvidence(**arguments)


def test_heads_without_a_model_and_rows_that_are_not_finite_are_refused():
    evidence = fitted(walk(1.0))
    with pytest.raises(OwlStateError, match=r"heads \[1\] have no model"):
        evidence.losses(None, walk(1.0), [0, 1])
    rows = walk(1.0)
    rows.reward[3] = torch.nan
    with pytest.raises(NonFiniteError, match="reward"):
        evidence.calibrate(None, 0, rows)
    with pytest.raises(NonFiniteError, match="reward"):
        evidence.losses(None, rows, [0])


def test_an_encoder_of_the_wrong_shape_is_named():
    with pytest.raises(OwlError, match="encode gave shape"):
        fitted(walk(1.0), encode=lambda observation: observation.sum())


def test_in_a_wrapper_it_finds_the_task_by_its_rewards():
    script = make_script()
    owl = OwlWrapper(script.learner(), evidence=ModelEvidence(seed=0))
    for name, shift in (("a", 0), ("b", 1)):
        with owl.task(name):
            train(script, Signs(shift), 200)
    policy = owl.policy()
    for truth, shift in (("a", 0), ("b", 1)):
        env = Signs(shift, length=12)
        obs, _ = env.reset(seed=0)
        policy.reset()
        for _ in range(12):
            action = policy.act(obs)
            following, reward, terminated, _, _ = env.step(action)
            policy.observe(obs, action, reward, following, terminated)
            obs = following
        assert policy.tasks[int(policy.probabilities.argmax())] == truth
        assert policy.probabilities.max() > 0.9
