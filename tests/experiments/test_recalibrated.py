"""Scales that are measured again: drift, failure half way, saving."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from owlrl import TDErrorEvidence, Transitions
from owlrl.checkpoint import load_state, save_state
from owlrl.errors import NonFiniteError, OwlValueError
from owlrl.experiments.evidence import RecalibratedEvidence
from owlrl.protocols import Evidence


class Heads:
    """Head h is wrong by ``errors[h]`` wherever it is asked, more on rows with large observations."""

    def __init__(self, *errors: float) -> None:
        self.errors = torch.tensor(errors)

    def td_errors(self, rows, heads):
        return self.errors[torch.as_tensor(heads)][:, None] * rows.observation[:, 0]


def rows(value: float, n: int = 10, **more) -> Transitions:
    x = torch.full((n, 1), value)
    return Transitions(x, x, x[:, 0], x, torch.zeros(n, dtype=torch.bool), torch.ones(n), **more)


def test_every_head_is_measured_on_its_own_rows_each_time():
    evidence = RecalibratedEvidence(TDErrorEvidence())
    assert isinstance(evidence, Evidence)
    evidence.calibrate(Heads(1.0, 9.0), 0, rows(1.0, weight=torch.ones(10), index=np.arange(10)))
    assert evidence.evidence.scales == {0: 1.0}
    evidence.calibrate(Heads(4.0, 2.0), 1, rows(3.0))
    assert evidence.evidence.scales == {0: 4.0, 1: 6.0}
    evidence.calibrate(Heads(5.0, 1.0), 0, rows(2.0))  # a revisit replaces its rows
    assert evidence.evidence.scales == {0: 10.0, 1: 3.0}
    assert evidence.losses(Heads(5.0, 1.0), rows(2.0), [1, 0])[:, 0] == pytest.approx([2 / 3, 1.0])


def test_few_rows_are_kept():
    evidence = RecalibratedEvidence(TDErrorEvidence(), samples=3)
    evidence.calibrate(Heads(1.0), 0, rows(1.0, n=10))
    assert len(evidence.state_dict()["heads"]["0"]["reward"]) == 3


def test_a_failure_leaves_all_as_it_was():
    evidence = RecalibratedEvidence(TDErrorEvidence())
    evidence.calibrate(Heads(1.0, 1.0), 0, rows(1.0))
    with pytest.raises(NonFiniteError):
        evidence.calibrate(Heads(2.0, float("nan")), 1, rows(1.0))
    assert evidence.evidence.scales == {0: 1.0} and list(evidence.state_dict()["heads"]) == ["0"]
    with pytest.raises(NonFiniteError, match="reward"):
        evidence.calibrate(Heads(1.0, 1.0), 1, rows(float("nan")))


def test_saved_and_loaded_it_goes_on_the_same(tmp_path):
    evidence, other = (RecalibratedEvidence(TDErrorEvidence()) for _ in range(2))
    evidence.calibrate(Heads(1.0, 1.0), 0, rows(1.0))
    save_state(tmp_path / "evidence", evidence.state_dict())
    other.load_state_dict(load_state(tmp_path / "evidence"))
    for item in (evidence, other):
        item.calibrate(Heads(3.0, 1.0), 1, rows(2.0))
    assert evidence.evidence.scales == other.evidence.scales == {0: 3.0, 1: 2.0}


def test_a_forgotten_head_is_measured_no_more():
    evidence = RecalibratedEvidence(TDErrorEvidence())
    for head in (0, 1):
        evidence.calibrate(Heads(1.0, 1.0), head, rows(1.0))
    evidence.forget(0)
    evidence.calibrate(Heads(3.0, 2.0), 1, rows(1.0))
    assert evidence.evidence.scales == {1: 2.0} and list(evidence.fitted) == [1]


def test_weights_of_the_kept_rows_count():
    evidence = RecalibratedEvidence(TDErrorEvidence())
    two = rows(1.0, n=2, weight=torch.tensor([2.0, 0.0]))
    two.observation[1] = 9.0
    evidence.calibrate(Heads(1.0), 0, two)
    assert evidence.evidence.scales == {0: pytest.approx(1.0)}


def test_bad_arguments():
    with pytest.raises(OwlValueError, match="samples is 0"):
        RecalibratedEvidence(TDErrorEvidence(), samples=0)
    with pytest.raises(OwlValueError, match="2 problems"):
        RecalibratedEvidence(TDErrorEvidence()).load_state_dict({})
    assert repr(RecalibratedEvidence(TDErrorEvidence())).startswith("RecalibratedEvidence(TDErrorEvidence(")
