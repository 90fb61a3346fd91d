"""The base of all evidence: a user's own, what is checked, kept, saved and forgotten."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl import ExpWeightsSelector, OwlWrapper, Transitions
from owlrl.checkpoint import load_state, save_state
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.evidence import (
    Evidence,
    GaussianNLLEvidence,
    ModelEvidence,
    RewardEvidence,
    TDErrorEvidence,
    calibrated_loss,
)
from owlrl.evidence.base import rms
from owlrl.experiments.policies import RecalibratedEvidence
from owlrl.protocols import Evidence as EvidenceProtocol
from tests.own_dqn import Signs, make_script, train


class RewardTable(Evidence):
    """Mean and deviation of the reward of each action, as in the page on extending owlrl."""

    def fit(self, learner, head, rows):
        paid = [rows.reward[rows.action == a] for a in range(int(rows.action.max()) + 1)]
        mean = torch.stack([r.mean() if len(r) else torch.tensor(0.0) for r in paid])
        return {"mean": mean, "scale": float(rows.reward.std()) + 1e-3}

    def score(self, learner, rows, heads):
        kept = [self.fitted[head] for head in heads]
        return [calibrated_loss(rows.reward - k["mean"][rows.action], k["scale"]) for k in kept]


def rows(*rewards: float, action: int = 0) -> Transitions:
    n = len(rewards)
    x = torch.zeros(n, 1)
    actions = torch.full((n,), action)
    return Transitions(x, actions, torch.tensor(rewards), x, torch.zeros(n, dtype=torch.bool), torch.ones(n))


def test_a_users_evidence_scores_saves_and_forgets(tmp_path):
    evidence = RewardTable()
    assert isinstance(evidence, EvidenceProtocol)
    evidence.calibrate(None, 0, rows(1.0, 2.0, 3.0))
    evidence.calibrate(None, np.int64(4), rows(6.0, 7.0, 8.0))
    losses = evidence.losses(None, rows(2.0, 7.0), torch.tensor([4, 0]))
    assert losses.shape == (2, 2) and losses.dtype == np.float64
    assert losses[1, 0] == 0.0 and losses[0, 1] == 0.0 and losses[0, 0] == losses[1, 1] > 4.9
    save_state(tmp_path / "state", evidence.state_dict())
    other = RewardTable()
    other.load_state_dict(load_state(tmp_path / "state"))
    np.testing.assert_array_equal(other.losses(None, rows(2.0, 7.0), [4, 0]), losses)
    evidence.forget(4)
    evidence.forget(4)
    with pytest.raises(OwlStateError, match=r"RewardTable.losses: heads \[4\] were never calibrated"):
        evidence.losses(None, rows(2.0), [0, 4])


def test_a_users_evidence_in_a_wrapper():
    class Explained(RewardTable):
        """The reward that a sign and an action were followed by."""

        def fit(self, learner, head, rows):
            sign = rows.observation.argmax(1)
            paid = torch.zeros(4, 4)
            paid[sign, rows.action] = rows.reward
            return {"paid": paid}

        def score(self, learner, rows, heads):
            paid = torch.stack([self.fitted[head]["paid"] for head in heads])
            return (paid[:, rows.observation.argmax(1), rows.action] - rows.reward).abs()

    script = make_script()
    owl = OwlWrapper(script.learner(), evidence=Explained())
    for name, shift in (("a", 0), ("b", 1)):
        with owl.task(name):
            train(script, Signs(shift), 120)
    policy = owl.policy(ExpWeightsSelector(seed=0))
    policy.reset()
    env = Signs(1, length=12)
    obs, _ = env.reset(seed=0)
    for _ in range(12):
        action = policy.act(obs)
        following, reward, terminated, _, _ = env.step(action)
        policy.observe(obs, action, reward, following, terminated)
        obs = following
    assert policy.tasks[int(policy.probabilities.argmax())] == "b"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("cfls"), st.integers(0, 3), st.floats(-5, 5)), max_size=12))
def test_any_order_of_calls_keeps_what_a_dict_would(calls):
    evidence, mean = RewardTable(), {}
    for kind, head, number in calls:
        before, known = evidence.version, dict(mean)
        if kind == "c":
            evidence.calibrate(None, head, rows(number, number))
            mean[head] = number
        elif kind == "f":
            evidence.forget(head)
            mean.pop(head, None)
        elif kind == "s":
            state = evidence.state_dict()
            evidence = RewardTable()
            evidence.load_state_dict(state)
            continue
        elif mean:
            heads = sorted(mean)
            got = evidence.losses(None, rows(number), heads)[:, 0]
            wanted = [min(abs(np.float32(number) - np.float32(mean[h])) / 1e-3, 5.0) for h in heads]
            np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)
        assert sorted(evidence.fitted) == sorted(mean)
        assert (evidence.version != before) is (kind == "c" or known.keys() != mean.keys())


BUILT_IN = [
    TDErrorEvidence,
    GaussianNLLEvidence,
    lambda: RewardEvidence(updates=1, seed=0),
    lambda: ModelEvidence(seed=0),
    lambda: RecalibratedEvidence(TDErrorEvidence()),
    RewardTable,
]


@pytest.mark.parametrize("make", BUILT_IN)
def test_all_evidence_has_the_base_and_refuses_alike(make):
    evidence = make()
    assert isinstance(evidence, Evidence) and isinstance(evidence, EvidenceProtocol)
    evidence.forget(3)
    for head in (-1, True, 1.0, "a"):
        with pytest.raises(OwlTypeError, match="head is"):
            evidence.calibrate(None, head, rows(1.0))
    with pytest.raises(OwlValueError, match="rows are empty; expected rows of the task of head 0"):
        evidence.calibrate(None, 0, rows())
    with pytest.raises(NonFiniteError, match="weight has entries"):
        evidence.calibrate(None, 0, replace(rows(1.0), weight=torch.tensor([torch.nan])))
    for heads in (0, [[0]], [0.5], ["a"]):
        with pytest.raises(OwlTypeError, match="heads is"):
            evidence.losses(None, rows(1.0), heads)
    with pytest.raises(OwlStateError, match="never calibrated"):
        evidence.losses(None, rows(1.0), [0])
    with pytest.raises(OwlValueError, match="heads is"):
        evidence.load_state_dict(
            {"heads": 3, "actions": 0, "generator": 0, "seed": 0, "columns": None, "evidence": {}}
        )


def test_fit_is_given_so_many_rows_spread_evenly():
    class Few(RewardTable):
        samples = 4

        def fit(self, learner, head, rows):
            return rows.reward.tolist()

    evidence = Few()
    evidence.calibrate(None, 0, rows(*map(float, range(10))))
    assert evidence.fitted[0] == [0.0, 2.0, 5.0, 7.0]
    evidence.calibrate(None, 0, rows(1.0, 2.0))
    assert evidence.fitted[0] == [1.0, 2.0]


def test_a_failed_fit_leaves_what_was_there():
    class Failing(RewardTable):
        def fit(self, learner, head, rows):
            if rows.reward[0] < 0:
                raise OwlValueError("no")
            return super().fit(learner, head, rows)

    evidence = Failing()
    evidence.calibrate(None, 0, rows(1.0, 2.0))
    known, version = dict(evidence.fitted), evidence.version
    with pytest.raises(OwlValueError, match="no"):
        evidence.calibrate(None, 0, rows(-1.0))
    assert evidence.fitted == known and evidence.version == version


def test_scores_of_a_wrong_shape_are_named():
    class Turned(RewardTable):
        def score(self, learner, rows, heads):
            return np.zeros((len(rows), len(heads)))

    evidence = Turned()
    evidence.calibrate(None, 0, rows(1.0, 2.0))
    with pytest.raises(OwlValueError, match=r"score returned shape \(3, 1\); expected \(1, 3\): a line per"):
        evidence.losses(None, rows(1.0, 2.0, 3.0), [0])


def test_no_heads_and_no_rows_are_answered():
    evidence = RewardTable()
    evidence.calibrate(None, 0, rows(1.0, 2.0))
    assert evidence.losses(None, rows(1.0), np.array([], dtype=np.int64)).shape == (0, 1)
    assert evidence.losses(None, rows()[:0], [0]).shape == (1, 0)


@given(st.lists(st.tuples(st.floats(-1e150, 1e150), st.floats(0.1, 5)), min_size=1, max_size=8))
def test_rms_is_weighted(pairs):
    numbers, weight = (np.array(part) for part in zip(*pairs, strict=True))
    largest = np.abs(numbers).max() or 1.0
    slow = sum(w * (x / largest) ** 2 for x, w in pairs) / sum(w for _, w in pairs)
    assert rms(numbers, weight) == pytest.approx(largest * slow**0.5)
    assert rms(numbers, np.ones(len(numbers))) == pytest.approx(rms(numbers))
