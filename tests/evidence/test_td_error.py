"""Evidence against a loop over heads and rows; calibration; what is not finite."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.evidence import TDErrorEvidence, calibrated_loss, plain_loss, td_scale
from owlrl.protocols import Evidence
from owlrl.td import max_q_value, taken, td_target
from owlrl.types import Transitions

FINITE = st.floats(-1e300, 1e300, allow_nan=False, allow_infinity=False)


class TableLearner:
    """Heads that are tables (H, S, A); observations are rows of one-hot numbers (B, S)."""

    def __init__(self, tables):
        self.tables = torch.as_tensor(tables)
        self.calls = []

    def td_errors(self, transitions, heads):
        self.calls.append(np.array(heads))
        tables = self.tables[torch.as_tensor(np.array(heads, dtype=np.int64))]
        q = tables[:, transitions.observation.argmax(-1)]
        next_q = tables[:, transitions.next_observation.argmax(-1)]
        target = td_target(
            transitions.reward, transitions.discount, transitions.terminated, max_q_value(next_q)
        )
        return target - taken(q, transitions.action)


def rows(rng, count, *, states=4, actions=3):
    def one_hot():
        return torch.eye(states)[torch.as_tensor(rng.integers(states, size=count))]

    return Transitions(
        observation=one_hot(),
        action=torch.as_tensor(rng.integers(actions, size=count)),
        reward=torch.as_tensor(rng.standard_normal(count), dtype=torch.float32),
        next_observation=one_hot(),
        terminated=torch.as_tensor(rng.random(count) < 0.3),
        discount=torch.full((count,), 0.9),
    )


def oracle_deltas(tables, transitions):
    """δ (H, B), one number at a time."""
    deltas = []
    for table in np.asarray(tables):
        row = []
        for b in range(len(transitions)):
            s = int(transitions.observation[b].argmax())
            after = int(transitions.next_observation[b].argmax())
            going = 0.0 if bool(transitions.terminated[b]) else 1.0
            target = float(transitions.reward[b]) + float(transitions.discount[b]) * going * max(table[after])
            row.append(target - table[s][int(transitions.action[b])])
        deltas.append(row)
    return np.array(deltas).reshape(len(deltas), len(transitions))


def rms(numbers):
    return math.sqrt(math.fsum(x * x for x in numbers) / len(numbers))


# --- formulas ---------------------------------------------------------------------------------------


@given(
    hnp.arrays(np.float64, st.integers(1, 9), elements=st.floats(-100, 100)),
    hnp.arrays(np.float64, st.integers(1, 9), elements=st.floats(-100, 100)),
)
def test_td_scale_equals_the_loop(delta, values):
    wanted = max(rms(delta.tolist()), 0.01 * rms(values.tolist()), 1e-8)
    assert td_scale(delta, values) == pytest.approx(wanted, rel=1e-9)


@given(hnp.arrays(np.float64, st.integers(1, 5), elements=FINITE))
def test_td_scale_is_finite_and_positive(numbers):
    assert 0 < td_scale(numbers, numbers) < math.inf


@given(
    hnp.arrays(np.float64, (2, 3), elements=st.floats(-50, 50)),
    hnp.arrays(np.float64, (2, 1), elements=st.floats(1e-3, 50)),
    st.floats(0.1, 10),
    st.sampled_from([0.5, 1, 2]),
)
def test_calibrated_loss_equals_the_loop(delta, scale, clip, power):
    got = calibrated_loss(delta, scale, clip=clip, power=power)
    for h, b in np.ndindex(2, 3):
        assert got[h, b] == pytest.approx(min(abs(delta[h, b]) / scale[h, 0], clip) ** power)


@given(st.floats(allow_nan=True), st.floats(1e-8, 1e8))
def test_calibrated_loss_is_never_above_the_clip(delta, scale):
    got = calibrated_loss(np.array([delta]), scale, clip=5.0, power=2).item()
    assert 0 <= got <= 25
    assert math.isfinite(delta) or got == 25


def test_plain_loss_by_hand():
    delta = np.array([[0.5, np.nan, 0.0], [-2.0, np.inf, -np.inf]])
    assert plain_loss(delta).tolist() == [[0.5, 5.0, 0.0], [2.0, 5.0, 5.0]]
    assert plain_loss(np.array([[3.0], [np.nan]]), clip=2.0, power=2).tolist() == [[9.0], [36.0]]


# --- the class --------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.integers(1, 4), st.integers(0, 6), st.integers(0, 2**31), st.sampled_from([1, 2]))
def test_losses_equal_the_loop(heads, count, seed, power):
    rng = np.random.default_rng(seed)
    tables = rng.standard_normal((heads, 4, 3))
    learner, transitions = TableLearner(tables), rows(rng, count)
    evidence, plain = TDErrorEvidence(power=power), TDErrorEvidence(calibrated=False, power=power)
    own = [rows(rng, 20) for _ in range(heads)]
    for head, batch in enumerate(own):
        evidence.calibrate(learner, head, batch)
    learner.calls.clear()
    order = rng.permutation(heads)
    delta = oracle_deltas(tables[order], transitions)
    scale = [rms(oracle_deltas(tables[[h]], own[h])[0]) for h in order]
    wanted = np.minimum(np.abs(delta) / np.reshape(scale, (-1, 1)), 5.0) ** power
    losses = evidence.losses(learner, transitions, order)
    assert losses.shape == (heads, count)
    assert losses.dtype == np.float64
    np.testing.assert_allclose(losses, wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        plain.losses(learner, transitions, order), np.abs(delta) ** power, rtol=1e-4, atol=1e-5
    )
    assert [call.tolist() for call in learner.calls] == [order.tolist()] * 2  # all heads in one pass


def test_is_evidence():
    assert isinstance(TDErrorEvidence(), Evidence)


def test_a_head_of_small_values_does_not_win_everywhere():
    class Told(TableLearner):
        def td_errors(self, transitions, heads):
            return torch.tensor(
                [[0.05, 0.01], [0.3, 1.5]]
            )  # a row of the rough head's task, one of the small's

    batch = rows(np.random.default_rng(0), 2)
    calibrated, plain = TDErrorEvidence(), TDErrorEvidence(calibrated=False)
    calibrated.load_state_dict({"heads": {"0": 0.01, "1": 0.3}})
    learner = Told(np.ones((2, 4, 3)))
    np.testing.assert_allclose(
        calibrated.losses(learner, batch, np.array([0, 1])), [[5.0, 1.0], [1.0, 5.0]], rtol=1e-6
    )
    assert plain.losses(learner, batch, np.array([0, 1])).argmin(0).tolist() == [0, 0]


def test_calibration_floor_is_a_hundredth_of_the_values():
    table = np.full((1, 2, 1), 4.0)
    learner = TableLearner(table)
    state = torch.eye(2)
    perfect = Transitions(
        observation=state,
        action=torch.zeros(2, dtype=torch.int64),
        reward=torch.full((2,), 4.0 - 0.5 * 4.0),
        next_observation=state,
        terminated=torch.zeros(2, dtype=torch.bool),
        discount=torch.full((2,), 0.5),
    )
    evidence = TDErrorEvidence()
    evidence.calibrate(learner, 0, perfect)
    assert evidence.scales[0] == pytest.approx(0.04)
    assert perfect.reward.tolist() == [2.0, 2.0]
    assert not perfect.terminated.any()
    evidence.calibrate(TableLearner(np.zeros((1, 2, 1))), 0, replace(perfect, reward=torch.zeros(2)))
    assert evidence.scales[0] == 1e-8


def test_a_revisit_calibrates_again():
    rng = np.random.default_rng(0)
    learner, evidence = TableLearner(rng.standard_normal((2, 4, 3))), TDErrorEvidence()
    evidence.calibrate(learner, np.int64(1), rows(rng, 10))
    first = evidence.scales
    evidence.calibrate(learner, 1, rows(rng, 10))
    assert evidence.scales != first
    assert list(evidence.scales) == [1]
    evidence.scales[1] = 99.0
    assert evidence.scales[1] != 99.0


@pytest.mark.parametrize(("count", "samples", "used"), [(10, 10, 10), (10, 3, 3), (11, 5, 5), (5, 100, 5)])
def test_calibration_looks_at_no_more_rows_than_told(count, samples, used):
    class Counting(TableLearner):
        def td_errors(self, transitions, heads):
            counts.append(len(transitions))
            return super().td_errors(transitions, heads)

    counts = []
    rng = np.random.default_rng(0)
    TDErrorEvidence(samples=samples).calibrate(Counting(np.ones((1, 4, 3))), 0, rows(rng, count))
    assert counts == [used, used]


def test_needs_no_gradient():
    tables = torch.randn(1, 4, 3, requires_grad=True)
    evidence, batch = TDErrorEvidence(), rows(np.random.default_rng(0), 4)
    evidence.calibrate(TableLearner(tables), 0, batch)
    assert evidence.losses(TableLearner(tables), batch, np.array([0])).shape == (1, 4)


# --- what is not finite -----------------------------------------------------------------------------


def test_an_action_that_a_head_does_not_have_costs_the_clip():
    tables = np.ones((2, 4, 3))
    tables[1, :, 2] = -np.inf
    learner, evidence = TableLearner(tables), TDErrorEvidence(clip=4.0)
    evidence.load_state_dict({"heads": {"0": 1.0, "1": 1.0}})
    batch = replace(rows(np.random.default_rng(0), 3), action=torch.tensor([0, 2, 2]))
    losses = evidence.losses(learner, batch, np.array([0, 1]))
    assert losses[1, 1:].tolist() == [4.0, 4.0]
    assert losses[0, 0] == losses[1, 0]
    plain = TDErrorEvidence(calibrated=False, clip=4.0).losses(learner, batch, np.array([0, 1]))
    np.testing.assert_allclose(plain[1, 1:], 4.0 * plain[0, 1:])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_not_finite_are_refused(bad):
    rng = np.random.default_rng(0)
    learner, evidence = TableLearner(np.ones((1, 4, 3))), TDErrorEvidence(calibrated=False)
    good = rows(rng, 3)
    for call in (
        lambda batch: evidence.losses(learner, batch, np.array([0])),
        lambda batch: evidence.calibrate(learner, 0, batch),
    ):
        for field in ("observation", "reward", "next_observation", "discount"):
            spoiled = getattr(good, field).clone()
            spoiled.view(-1)[-1] = bad
            with pytest.raises(NonFiniteError, match=f"{field} has entries"):
                call(replace(good, **{field: spoiled}))
        with pytest.raises(NonFiniteError, match="2 problems"):
            call(replace(good, reward=good.reward * bad, discount=good.discount * bad))
    assert learner.calls == []
    assert evidence.scales == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_head_that_diverged_is_not_calibrated(bad):
    evidence = TDErrorEvidence()
    with pytest.raises(NonFiniteError, match="head 0 gives TD errors that are not finite on its own task"):
        evidence.calibrate(TableLearner(np.full((1, 4, 3), bad)), 0, rows(np.random.default_rng(0), 3))
    assert evidence.scales == {}


def test_bytes_are_observations_too():
    batch = rows(np.random.default_rng(0), 3)
    as_bytes = replace(
        batch, observation=batch.observation.byte(), next_observation=batch.next_observation.byte()
    )
    learner, evidence = (
        TableLearner(np.random.default_rng(1).random((1, 4, 3))),
        TDErrorEvidence(calibrated=False),
    )
    np.testing.assert_array_equal(
        evidence.losses(learner, as_bytes, np.array([0])), evidence.losses(learner, batch, np.array([0]))
    )


# --- refused ----------------------------------------------------------------------------------------


def test_a_head_never_calibrated_is_refused():
    evidence, rng = TDErrorEvidence(), np.random.default_rng(0)
    learner = TableLearner(np.ones((3, 4, 3)))
    evidence.calibrate(learner, 1, rows(rng, 3))
    with pytest.raises(OwlStateError, match=r"heads \[0, 2\] were never calibrated"):
        evidence.losses(learner, rows(rng, 3), np.array([0, 1, 2]))


@pytest.mark.parametrize("heads", [0, [[0]], [0.0], [True], ["a"]])
def test_bad_heads(heads):
    with pytest.raises(OwlTypeError, match="heads is"):
        TDErrorEvidence(calibrated=False).losses(
            TableLearner(np.ones((1, 4, 3))), rows(np.random.default_rng(0), 2), heads
        )


@pytest.mark.parametrize("head", [-1, True, 1.0, "a", None])
def test_bad_head_of_calibrate(head):
    with pytest.raises(OwlTypeError, match="head is"):
        TDErrorEvidence().calibrate(TableLearner(np.ones((1, 4, 3))), head, rows(np.random.default_rng(0), 2))


def test_calibration_needs_rows():
    with pytest.raises(OwlValueError, match="rows are empty; expected rows of the task of head 0"):
        TDErrorEvidence().calibrate(TableLearner(np.ones((1, 4, 3))), 0, rows(np.random.default_rng(0), 0))


def test_a_learner_that_answers_in_another_shape():
    class Transposed(TableLearner):
        def td_errors(self, transitions, heads):
            return super().td_errors(transitions, heads).T

    with pytest.raises(OwlValueError, match=r"td_errors returned shape \(2, 1\); expected \(1, 2\)"):
        TDErrorEvidence().calibrate(Transposed(np.ones((1, 4, 3))), 0, rows(np.random.default_rng(0), 2))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"calibrated": 1}, "calibrated is 1; expected True or False"),
        ({"clip": 0.0}, "clip is 0.0; expected a finite number > 0"),
        ({"clip": math.inf}, "clip is inf"),
        ({"clip": None}, "clip is None"),
        ({"power": -1}, "power is -1"),
        ({"power": True}, "power is True"),
        ({"samples": 0}, "samples is 0; expected an int >= 1"),
        ({"samples": 2.0}, "samples is 2.0"),
        ({"samples": True}, "samples is True"),
        ({"clip": -1, "power": math.nan}, "2 problems"),
    ],
)
def test_bad_arguments(options, said):
    with pytest.raises(OwlValueError, match="TDErrorEvidence") as caught:
        TDErrorEvidence(**options)
    assert said in str(caught.value)


# --- saving -----------------------------------------------------------------------------------------


def test_state_survives_json():
    rng = np.random.default_rng(0)
    first, second = TDErrorEvidence(), TDErrorEvidence()
    for head in (0, 12):
        first.calibrate(TableLearner(rng.random((13, 4, 3))), head, rows(rng, 9))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.scales == first.scales
    assert set(first.scales) == {0, 12}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({}, "heads is None"),
        ({"heads": [1.0]}, r"heads is \[1.0\]"),
        ({"heads": {"-1": 1.0}}, r"heads\['-1'\] is of no head"),
        ({"heads": {"a": 1.0, "0": 0.0, "1": math.nan, "2": "x", "3": True}}, "5 problems"),
    ],
)
def test_bad_state_changes_nothing(state, said):
    evidence = TDErrorEvidence()
    evidence.load_state_dict({"heads": {"0": 0.5}})
    with pytest.raises(OwlValueError, match=said):
        evidence.load_state_dict(state)
    assert evidence.scales == {0: 0.5}


def test_repr_shows_the_hyper_parameters():
    assert (
        repr(TDErrorEvidence(clip=3.0)) == "TDErrorEvidence(calibrated=True, clip=3.0, power=1, samples=2000)"
    )
