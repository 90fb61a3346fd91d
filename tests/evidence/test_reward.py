"""RewardEvidence: predictors fitted to rewards, scored in one pass, saved and loaded."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from owlrl import OwlWrapper, RewardEvidence, Transitions
from owlrl.checkpoint import load_state, save_state
from owlrl.errors import NonFiniteError, OwlError, OwlStateError
from owlrl.evidence import predict_rewards
from owlrl.protocols import Evidence
from tests.own_dqn import Signs, make_script, train


def rows(paying: int, n: int = 400, *, actions: int = 3, seed: int = 0, noise: float = 0.0) -> Transitions:
    """Three signs; the action (sign + paying) % 3 pays."""
    generator = torch.Generator().manual_seed(seed)
    sign = torch.randint(3, (n,), generator=generator)
    action = torch.randint(actions, (n,), generator=generator)
    reward = (action == (sign + paying) % 3).float() + noise * torch.randn(n, generator=generator)
    x = torch.eye(3)[sign]
    ended = torch.zeros(n, dtype=torch.bool)
    return Transitions(x, action, reward, x.roll(1, 0), ended, torch.full((n,), 0.9))


@pytest.fixture(scope="module")
def fitted() -> RewardEvidence:
    evidence = RewardEvidence(seed=0, updates=300, hidden=32)
    for head, paying in enumerate((0, 1, 2)):
        evidence.calibrate(None, head, rows(paying))
    return evidence


def test_satisfies_the_protocol(fitted):
    assert isinstance(fitted, Evidence)


def test_predictions_equal_a_plain_loop():
    generator = torch.Generator().manual_seed(0)
    shapes = {"w1": (3, 5, 4), "b1": (3, 5), "w2": (3, 5), "b2": (3,)}
    weights = {name: torch.randn(shape, generator=generator).double() for name, shape in shapes.items()}
    x = torch.randn(6, 4, generator=generator).double()
    got = predict_rewards(x, weights)
    for h in range(3):
        for b in range(6):
            hidden = [max(0.0, float(weights["w1"][h, k] @ x[b] + weights["b1"][h, k])) for k in range(5)]
            out = [u * float(w) for u, w in zip(hidden, weights["w2"][h], strict=True)]
            expected = sum(out) + float(weights["b2"][h])
            assert got[h, b].item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("paying", [0, 1, 2])
def test_the_right_task_explains_its_rewards(fitted, paying):
    losses = fitted.losses(None, rows(paying, seed=7), np.arange(3))
    assert losses.shape == (3, 400) and np.isfinite(losses).all() and losses.max() <= fitted.clip
    assert losses.mean(1).argmin() == paying
    wrong = np.delete(losses.mean(1), paying)
    assert losses.mean(1)[paying] < 0.5 * wrong.min()


def test_large_rewards_are_predicted_in_their_own_size():
    evidence = RewardEvidence(seed=0, updates=500, hidden=32)
    seen = rows(0)
    evidence.calibrate(None, 0, replace(seen, reward=1_000.0 + 200.0 * seen.reward))
    assert evidence.scales[0] < 30.0


def test_any_choice_and_order_of_heads(fitted):
    seen = rows(1, 5, seed=3)
    every = fitted.losses(None, seen, np.arange(3))
    np.testing.assert_allclose(fitted.losses(None, seen, [2, 0]), every[[2, 0]])
    np.testing.assert_allclose(fitted.losses(None, seen[:1], [1]), every[[1], :1], rtol=1e-5, atol=1e-6)


def test_the_scale_is_the_error_on_rows_that_were_kept_apart():
    evidence = RewardEvidence(seed=0, updates=500)
    evidence.calibrate(None, 0, rows(0, 4_000, noise=0.3))
    assert evidence.scales[0] == pytest.approx(0.3, rel=0.15)
    evidence = RewardEvidence(seed=0, updates=500)
    seen = torch.randn(60, 30, generator=torch.Generator().manual_seed(1))
    evidence.calibrate(
        None, 0, replace(rows(0, 60, noise=3.0), observation=seen)
    )  # 54 rows in 33 columns can be learned by heart, the other six not
    assert evidence.scales[0] > 1.5


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_rewards_of_any_size_are_told_apart(size):
    evidence = RewardEvidence(seed=0, updates=300)
    for head in range(2):
        data = rows(head)
        data.reward.mul_(size)
        evidence.calibrate(None, head, data)
    seen = rows(1, 50, seed=9)
    seen.reward.mul_(size)
    assert evidence.losses(None, seen, [0, 1]).mean(1).argmin() == 1


def test_a_perfect_predictor_is_not_trusted_beyond_a_hundredth():
    evidence = RewardEvidence(seed=0, updates=1_000)
    evidence.calibrate(None, 0, rows(0))
    share = float((rows(0).reward ** 2).mean()) ** 0.5
    assert evidence.scales[0] >= 0.0099 * share


def test_a_task_with_more_actions_comes_later(fitted):
    evidence = RewardEvidence(seed=0, updates=300, hidden=32)
    evidence.calibrate(None, 0, rows(0))
    before = evidence.losses(None, rows(0, 9, seed=5), [0])
    evidence.calibrate(None, 1, rows(1, actions=6))
    np.testing.assert_allclose(evidence.losses(None, rows(0, 9, seed=5), [0]), before, rtol=1e-5, atol=1e-6)
    unknown = rows(0, 20, actions=9, seed=2)  # actions that no task had
    assert np.isfinite(evidence.losses(None, unknown, [0, 1])).all()


def test_continuous_actions():
    generator = torch.Generator().manual_seed(0)
    action = torch.rand(500, 2, generator=generator) * 2 - 1
    x = torch.zeros(500, 1)
    made = [
        Transitions(x, action, sign * action[:, 0], x, torch.zeros(500, dtype=torch.bool), torch.ones(500))
        for sign in (1.0, -1.0)
    ]
    evidence = RewardEvidence(seed=0, updates=300)
    for head, data in enumerate(made):
        evidence.calibrate(None, head, data)
    assert evidence.losses(None, made[1], [0, 1]).mean(1).argmin() == 1


def test_observations_are_encoded_as_asked():
    seen = []

    def encode(observation):
        seen.append(observation.dtype)
        return observation.flatten(1).float() / 255

    evidence = RewardEvidence(encode=encode, seed=0, updates=5)
    images = torch.zeros(20, 2, 2, dtype=torch.uint8)
    ended = torch.zeros(20, dtype=torch.bool)
    data = Transitions(images, torch.arange(20) % 2, torch.ones(20), images, ended, torch.ones(20))
    evidence.calibrate(None, 0, data)
    assert torch.uint8 in seen and evidence.losses(None, data, [0]).shape == (1, 20)


def test_the_same_seed_gives_the_same_losses_and_touches_no_global_generator():
    state = torch.get_rng_state()
    found = []
    for _ in range(2):
        evidence = RewardEvidence(seed=4, updates=20)
        evidence.calibrate(None, 0, rows(0))
        found.append(evidence.losses(None, rows(1), [0]))
    np.testing.assert_array_equal(*found)
    assert torch.equal(state, torch.get_rng_state())


def test_saved_and_loaded_it_goes_on_the_same(fitted, tmp_path):
    save_state(tmp_path / "s", fitted.state_dict())
    other = RewardEvidence(updates=300, hidden=32)
    other.load_state_dict(load_state(tmp_path / "s"))
    losses = [evidence.losses(None, rows(2), [0, 1, 2]) for evidence in (other, fitted)]
    np.testing.assert_array_equal(*losses)
    assert other.scales == fitted.scales
    with pytest.raises(OwlError, match="generator is missing"):
        other.load_state_dict({"actions": 1, "heads": {}})


def test_it_finds_the_task_of_a_wrapped_learner():
    script = make_script()
    owl = OwlWrapper(script.learner(), evidence=RewardEvidence(seed=0, updates=300))
    for name, shift in (("a", 0), ("b", 1), ("c", 2)):
        with owl.task(name):
            train(script, Signs(shift), 120)
    policy = owl.policy()
    policy.reset()
    env = Signs(2, length=12)
    obs, _ = env.reset(seed=0)
    for _ in range(12):
        action = policy.act(obs)
        following, reward, terminated, _, _ = env.step(action)
        policy.observe(obs, action, reward, following, terminated)
        obs = following
    assert policy.tasks[int(policy.probabilities.argmax())] == "c" and policy.probabilities.max() > 0.9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, "hidden is 0"),
        ({"updates": True}, "updates is True"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"encode": 3}, "encode is 3"),
        ({"seed": -1}, "seed is -1; expected an int >= 0, or None"),
        ({"batch_size": -1, "samples": 0.5}, "2 problems"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(OwlError, match=message):
        RewardEvidence(**options)


def test_bad_rows_and_heads_are_refused_and_nothing_is_changed(fitted):
    with pytest.raises(OwlStateError, match=r"heads \[7\] were never calibrated"):
        fitted.losses(None, rows(0, 2), [0, 7])
    spoiled = rows(0, 4)
    spoiled.reward[1] = float("nan")
    with pytest.raises(NonFiniteError, match="reward"):
        fitted.losses(None, spoiled, [0])
    scales = fitted.scales
    with pytest.raises(NonFiniteError, match="reward"):
        fitted.calibrate(None, 0, spoiled)
    with pytest.raises(OwlError, match="empty"):
        fitted.calibrate(None, 0, rows(0, 0))
    huge = rows(0, 50)
    huge.observation.mul_(1e38)
    with pytest.raises(OwlError, match="diverged"):
        fitted.calibrate(None, 5, huge)
    assert fitted.scales == scales
    assert repr(fitted) == "RewardEvidence(hidden=32, updates=300, clip=5.0)"
