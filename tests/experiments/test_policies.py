"""Scales that are measured again: drift, failure half way, saving."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from owlrl import MultiHeadQ, QLearner, TDErrorEvidence, Transitions
from owlrl.checkpoint import load_state, save_state
from owlrl.errors import NonFiniteError, OwlValueError
from owlrl.experiments.policies import DropoutEvidence, EvidenceSet, RecalibratedEvidence, make_evidence
from owlrl.protocols import Evidence


class Noted:
    """Evidence that says its number and remembers what it was calibrated on."""

    def __init__(self, number: float) -> None:
        self.number = number
        self.rows: Transitions | None = None

    def calibrate(self, learner, head, transitions):
        self.rows = transitions

    def losses(self, learner, rows, heads):
        return np.full((len(heads), len(rows)), self.number)

    def forget(self, head):
        self.rows = None

    def state_dict(self):
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


def learner(*, dropout: float = 0.0) -> QLearner:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(dropout))
    q = MultiHeadQ(trunk, 16, 3)
    q.add_head()
    return QLearner(q, None, torch.optim.SGD(q.parameters(), 0.1))


def rows(count: int = 4) -> Transitions:
    generator = torch.Generator().manual_seed(1)
    seen = torch.rand(count, 2, generator=generator)
    return Transitions(
        seen,
        torch.arange(count) % 3,
        torch.ones(count),
        seen + 1,
        torch.zeros(count) > 0,
        torch.full((count,), 0.9),
    )


def test_a_set_calibrates_all_parts_and_is_their_sum():
    parts = {"a": Noted(1.0), "b": Noted(0.5)}
    both = EvidenceSet(parts)
    wrapped = learner()
    given = rows()
    both.calibrate(wrapped, 0, given)
    assert all(part.rows is given for part in parts.values())
    assert both.losses(wrapped, rows(), np.arange(2)).tolist() == [[1.5] * 4] * 2
    both.forget(0)
    assert all(part.rows is None for part in parts.values())
    assert both.part("a") is parts["a"]
    assert both.part("a-and-b").losses(wrapped, rows(1), np.arange(1)).item() == 1.5
    assert both.part("none") is None
    with pytest.raises(OwlValueError, match="evidence c was not collected in training, only a, b; name"):
        both.part("a-and-c")


def test_a_set_keeps_the_state_of_its_parts():
    state = EvidenceSet({"a": Noted(3.0)}).state_dict()
    other = EvidenceSet({"a": Noted(0.0)})
    other.load_state_dict(state)
    assert other.parts["a"].number == 3.0


def test_made_is_what_is_needed():
    assert set(make_evidence(["none"], seed=0).parts) == set()
    made = make_evidence(["td-raw", "td-squared", "td-and-reward", "nll"], seed=0)
    assert set(made.parts) == {"td", "td-raw", "td-squared", "reward", "nll"}
    assert (made.parts["td-squared"].power, made.parts["td-squared"].calibrated) == (2, False)
    assert isinstance(made.parts["td"], TDErrorEvidence) and made.parts["td"].calibrated
    with pytest.raises(OwlValueError, match="evidence is luck"):
        make_evidence(["luck"], seed=0)


def test_dropout_evidence_likes_the_head_whose_target_is_met():
    wrapped = learner(dropout=0.3)
    q = wrapped.q
    with torch.no_grad():  # head 1 says 100 everywhere, and sees a reward of 1 and a value of 0 after
        q.heads[1].bias.fill_(100.0)
    evidence = DropoutEvidence(passes=8, clip=5.0)
    ended = Transitions(
        rows().observation,
        rows().action,
        torch.zeros(4),
        rows().observation,
        torch.ones(4) > 0,
        torch.ones(4),
    )
    q.train()
    losses = evidence.losses(wrapped, ended, np.arange(2))
    assert losses.shape == (2, 4)
    assert (losses[0] == 0.0).all()
    assert (losses[1] == 5.0).all()
    assert q.training
    assert evidence.losses(wrapped, ended, np.array([1])).tolist() == [[0.0] * 4]
    evidence.calibrate(wrapped, 0, ended)
    evidence.load_state_dict(evidence.state_dict())


class Heads:
    """Head h is wrong by ``errors[h]`` wherever it is asked, more on rows with large observations."""

    def __init__(self, *errors: float) -> None:
        self.errors = torch.tensor(errors)

    def td_errors(self, rows, heads):
        return self.errors[torch.as_tensor(heads)][:, None] * rows.observation[:, 0]


def alike(value: float, n: int = 10, **more) -> Transitions:
    x = torch.full((n, 1), value)
    return Transitions(x, x, x[:, 0], x, torch.zeros(n, dtype=torch.bool), torch.ones(n), **more)


def test_every_head_is_measured_on_its_own_rows_each_time():
    evidence = RecalibratedEvidence(TDErrorEvidence())
    assert isinstance(evidence, Evidence)
    evidence.calibrate(Heads(1.0, 9.0), 0, alike(1.0, weight=torch.ones(10), index=np.arange(10)))
    assert evidence.evidence.scales == {0: 1.0}
    evidence.calibrate(Heads(4.0, 2.0), 1, alike(3.0))
    assert evidence.evidence.scales == {0: 4.0, 1: 6.0}
    evidence.calibrate(Heads(5.0, 1.0), 0, alike(2.0))  # a revisit replaces its rows
    assert evidence.evidence.scales == {0: 10.0, 1: 3.0}
    assert evidence.losses(Heads(5.0, 1.0), alike(2.0), [1, 0])[:, 0] == pytest.approx([2 / 3, 1.0])


def test_few_rows_are_kept():
    evidence = RecalibratedEvidence(TDErrorEvidence(), samples=3)
    evidence.calibrate(Heads(1.0), 0, alike(1.0, n=10))
    assert len(evidence.state_dict()["heads"]["0"]["reward"]) == 3


def test_a_failure_leaves_all_as_it_was():
    evidence = RecalibratedEvidence(TDErrorEvidence())
    evidence.calibrate(Heads(1.0, 1.0), 0, alike(1.0))
    with pytest.raises(NonFiniteError):
        evidence.calibrate(Heads(2.0, float("nan")), 1, alike(1.0))
    assert evidence.evidence.scales == {0: 1.0} and list(evidence.state_dict()["heads"]) == ["0"]
    with pytest.raises(NonFiniteError, match="reward"):
        evidence.calibrate(Heads(1.0, 1.0), 1, alike(float("nan")))


def test_saved_and_loaded_it_goes_on_the_same(tmp_path):
    evidence, other = (RecalibratedEvidence(TDErrorEvidence()) for _ in range(2))
    evidence.calibrate(Heads(1.0, 1.0), 0, alike(1.0))
    save_state(tmp_path / "evidence", evidence.state_dict())
    other.load_state_dict(load_state(tmp_path / "evidence"))
    for item in (evidence, other):
        item.calibrate(Heads(3.0, 1.0), 1, alike(2.0))
    assert evidence.evidence.scales == other.evidence.scales == {0: 3.0, 1: 2.0}


def test_a_forgotten_head_is_measured_no_more():
    evidence = RecalibratedEvidence(TDErrorEvidence())
    for head in (0, 1):
        evidence.calibrate(Heads(1.0, 1.0), head, alike(1.0))
    evidence.forget(0)
    evidence.calibrate(Heads(3.0, 2.0), 1, alike(1.0))
    assert evidence.evidence.scales == {1: 2.0} and list(evidence.fitted) == [1]


def test_weights_of_the_kept_rows_count():
    evidence = RecalibratedEvidence(TDErrorEvidence())
    two = alike(1.0, n=2, weight=torch.tensor([2.0, 0.0]))
    two.observation[1] = 9.0
    evidence.calibrate(Heads(1.0), 0, two)
    assert evidence.evidence.scales == {0: pytest.approx(1.0)}


def test_bad_arguments():
    with pytest.raises(OwlValueError, match="samples is 0"):
        RecalibratedEvidence(TDErrorEvidence(), samples=0)
    with pytest.raises(OwlValueError, match="2 problems"):
        RecalibratedEvidence(TDErrorEvidence()).load_state_dict({})
    assert repr(RecalibratedEvidence(TDErrorEvidence())).startswith("RecalibratedEvidence(TDErrorEvidence(")
