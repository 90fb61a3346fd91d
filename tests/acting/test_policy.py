"""AdaptivePolicy: all heads scored in one pass, one environment or many, no module changed."""

import numpy as np
import pytest
import torch

from owlrl import (
    AdaptivePolicy,
    EWCRegularizer,
    ExpWeightsSelector,
    MaxQSelector,
    OracleSelector,
    OwlWrapper,
    TDErrorEvidence,
    UniformSelector,
)
from owlrl.errors import NonFiniteError, OwlStateError, OwlValueError
from tests.own_dqn import SIZE, Signs, make_script, train

SIGNS = np.eye(SIZE, dtype=np.float32)


@pytest.fixture(scope="module")
def owl():
    script = make_script("dueling")
    owl = OwlWrapper(script.learner(), regularizer=EWCRegularizer(100.0), evidence=TDErrorEvidence())
    for name, shift in (("a", 0), ("b", 1), ("c", 2)):
        with owl.task(name):
            train(script, Signs(shift), 160)
    return owl


def test_the_right_head_takes_over(owl):
    policy = owl.policy(ExpWeightsSelector(seed=0), trace=True)
    policy.reset()
    env = Signs(1, length=40)
    obs, _ = env.reset(seed=0)
    for _ in range(40):
        action = policy.act(obs)
        assert isinstance(action, int)
        following, reward, terminated, _, _ = env.step(action)
        policy.observe(obs, action, reward, following, terminated)
        obs = following
    assert policy.tasks[int(policy.probabilities.argmax())] == "b"
    assert len(policy.trace) == 40
    assert all(step.losses.shape == (3,) and step.probabilities.shape == (3,) for step in policy.trace)
    late = [step.arm for step in policy.trace[20:]]
    assert late.count(1) >= 15


def test_no_module_is_changed(owl):
    module = owl.learner.q
    before = {k: v.clone() for k, v in module.state_dict().items()}
    head, training = module.pointer.head, module.training
    policy = owl.policy(UniformSelector(seed=0), trace=True)
    policy.reset()
    policy.observe(SIGNS[0], policy.act(SIGNS[0]), 1.0, SIGNS[1], False)
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert module.pointer.head == head and module.training == training
    assert all(p.grad is None or not p.grad.any() for p in module.heads[0].parameters())


def test_without_evidence_nothing_is_scored(owl, monkeypatch):
    def scored(*_):
        raise AssertionError("nobody asked for evidence")

    told = owl.evaluate(Signs(1), task="b", seed=0)
    monkeypatch.setattr(owl.evidence, "losses", scored)
    again = owl.evaluate(Signs(1), task="b", seed=0)  # a head that is told needs none
    assert np.array_equal(told.returns, again.returns) and told.mean_return > 0
    policy = AdaptivePolicy(owl.learner, UniformSelector(seed=0), None, {"a": 0, "b": 1}, trace=True)
    for envs, shape in ((None, (2,)), (3, (3, 2))):
        policy.reset(num_envs=envs)
        seen = SIGNS[0] if envs is None else SIGNS[:envs]
        rewards, ended = (1.0, False) if envs is None else (np.ones(envs), np.zeros(envs, bool))
        policy.observe(seen, policy.act(seen), rewards, seen, ended)
        assert policy.trace[0].losses.shape == shape and not policy.trace[0].losses.any()


def test_many_environments_equal_one_at_a_time(owl):
    selector = OracleSelector(np.array([0, 1, 2, 1]))
    policy = owl.policy(selector, trace=True)
    policy.reset(num_envs=4)
    observations = SIGNS[[0, 1, 2, 3]]
    actions = policy.act(observations)
    assert actions.tolist() == [0, 2, 0, 0]
    rewards = np.array([1.0, 0.0, 1.0, 0.5])
    policy.observe(
        observations, actions, rewards, observations[::-1].copy(), np.array([False, True, False, False])
    )
    together = policy.trace[0].losses
    assert together.shape == (4, 3)
    for k, arm in enumerate((0, 1, 2, 1)):
        single = owl.policy(OracleSelector(arm), trace=True)
        single.reset()
        assert single.act(observations[k]) == actions[k]
        single.observe(observations[k], actions[k], rewards[k], observations[::-1][k], k == 1)
        np.testing.assert_allclose(single.trace[0].losses, together[k], rtol=1e-3, atol=1e-3)


def test_losses_equal_the_definition(owl):
    q, target, scales = owl.learner.q.double(), owl.learner.target.double(), owl.evidence.scales
    try:
        policy = owl.policy(UniformSelector(seed=0), trace=True)
        policy.reset()
        policy.act(SIGNS[0])
        policy.observe(SIGNS[0], 2, 0.25, SIGNS[3], False)
        got = policy.trace[0].losses
        obs, following = (torch.as_tensor(SIGNS[k][None]).double() for k in (0, 3))
        for head in range(3):
            with torch.no_grad():
                best = int(q(following, head=head)[0].argmax())
                goal = 0.25 + 0.5 * target(following, head=head)[0, best].item()
                delta = goal - q(obs, head=head)[0, 2].item()
            assert got[head] == pytest.approx(min(abs(delta) / scales[head], owl.evidence.clip), rel=1e-6)
    finally:
        q.float(), target.float()


def test_masked_environments_and_partial_resets(owl):
    policy = owl.policy(ExpWeightsSelector(seed=0), trace=True)
    policy.reset(num_envs=2)
    for _ in range(10):
        actions = policy.act(SIGNS[:2])
        rewards = (actions == (np.arange(2) + 1) % SIZE).astype(float)
        policy.observe(
            SIGNS[:2], actions, rewards, SIGNS[2:], np.zeros(2, bool), mask=np.array([True, False])
        )
    assert not np.allclose(policy.probabilities[0], 1 / 3)
    np.testing.assert_allclose(policy.probabilities[1], 1 / 3)
    known = policy.probabilities[0].copy()
    policy.reset(mask=np.array([False, True]))
    np.testing.assert_array_equal(policy.probabilities[0], known)
    policy.reset(mask=np.array([True, False]))
    np.testing.assert_allclose(policy.probabilities[0], 1 / 3)
    assert len(policy.trace) == 10


def test_evidence_can_be_kept_across_episodes(owl):
    policy = owl.policy(ExpWeightsSelector(seed=0), trace=True)
    policy.reset(keep_evidence=True)
    for _ in range(15):
        sign = 0
        action = policy.act(SIGNS[sign])
        policy.observe(SIGNS[sign], action, float(action == 1), SIGNS[1], False)
    known = policy.probabilities.copy()
    policy.reset(keep_evidence=True)
    np.testing.assert_array_equal(policy.probabilities, known)
    assert policy.trace == []
    policy.reset()
    np.testing.assert_allclose(policy.probabilities, 1 / 3)


def test_max_q_sees_the_values_of_every_head(owl):
    policy = owl.policy(MaxQSelector(every_step=True), trace=True)
    policy.reset()
    policy.act(SIGNS[1])
    values = owl.learner.values(torch.as_tensor(SIGNS[1][None]))[:, 0]
    assert policy.trace[0].arm == int(values.argmax())
    policy.reset(num_envs=2)
    policy.act(SIGNS[:2])
    expected = owl.learner.values(torch.as_tensor(SIGNS[:2])).argmax(0)
    assert np.asarray(policy.trace[0].arm).tolist() == expected.tolist()


def test_wrong_calls_are_named(owl):
    policy = owl.policy(UniformSelector(seed=0), trace=True)
    with pytest.raises(OwlStateError, match="call reset"):
        policy.act(SIGNS[0])
    policy.reset(num_envs=2)
    with pytest.raises(OwlValueError, match="leading dimension of 2"):
        policy.act(SIGNS)
    with pytest.raises(OwlValueError, match="3 rewards"):
        policy.observe(SIGNS[:2], np.zeros(2, int), np.zeros(3), SIGNS[:2], np.zeros(2, bool))
    policy.reset()
    with pytest.raises(OwlValueError, match=r"act: .*shape \(3,\).*trained on, several .*num_envs"):
        policy.act(np.zeros(3, np.float32))
    with pytest.raises(OwlValueError, match="observation is 'left'; expected numbers"):
        policy.act("left")
    with pytest.raises(NonFiniteError, match="observation has NaN"):
        policy.act(np.full(SIZE, np.nan, np.float32))
    with pytest.raises(NonFiniteError, match="reward is nan"):
        policy.observe(SIGNS[0], 0, float("nan"), SIGNS[0], False)


def test_repr_names_the_parts(owl):
    text = repr(owl.policy(UniformSelector(seed=0), trace=True))
    assert "UniformSelector" in text and "TDErrorEvidence" in text and "'b'" in text
    assert isinstance(owl.evidence, TDErrorEvidence)


def test_observations_in_parts_are_made_rows_by_the_learner():
    def joined(observation):
        if isinstance(observation, dict):
            observation = torch.cat([torch.as_tensor(part) for part in observation.values()], dim=1)
        return observation.float()

    script = make_script("plain")
    owl = OwlWrapper(script.learner(preprocess=joined))
    with owl.task("a"):
        train(script, Signs(0), 60)
    policy = owl.policy(UniformSelector(seed=0), trace=True)
    policy.reset()
    whole, parts = SIGNS[1], {"first": SIGNS[1][:2], "rest": SIGNS[1][2:]}
    assert policy.act(parts) == policy.act(whole)
    policy.observe(parts, 0, 1.0, parts, False)
    in_parts = policy.trace[-1].losses
    policy.act(whole)
    policy.observe(whole, 0, 1.0, whole, False)
    assert np.array_equal(in_parts, policy.trace[-1].losses)
    policy.reset(num_envs=2)
    assert policy.act({"first": SIGNS[:2, :2], "rest": SIGNS[:2, 2:]}).shape == (2,)
    with pytest.raises(OwlValueError, match="leading dimension of 2"):
        policy.act({"first": SIGNS[:3, :2], "rest": SIGNS[:3, 2:]})
    with pytest.raises(NonFiniteError):
        policy.act({"first": SIGNS[:2, :2] * np.nan, "rest": SIGNS[:2, 2:]})
