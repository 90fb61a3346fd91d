"""The merged quadratic against the sum over tasks, term by term."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.regularizers import ewc_penalty, merge_terms

numbers = st.floats(-10, 10)
importances = st.one_of(st.just(0.0), st.floats(1e-12, 1e6))


@settings(max_examples=150)
@given(st.lists(st.tuples(importances, numbers), min_size=1, max_size=6), numbers)
def test_merged_terms_are_the_sum_over_tasks(terms, at):
    tensors = [(torch.tensor(f, dtype=torch.float64), torch.tensor(a, dtype=torch.float64)) for f, a in terms]
    total, centre, constant = merge_terms(tensors)
    expected = sum(f * (at - a) ** 2 for f, a in terms)
    slope = sum(2 * f * (at - a) for f, a in terms)
    scale = sum(f for f, _ in terms)
    assert abs(float(total * (at - centre) ** 2 + constant) - expected) <= 1e-9 * scale * 400
    assert abs(float(2 * total * (at - centre)) - slope) <= 1e-9 * scale * 40
    assert constant >= 0


def test_one_term_is_itself_to_the_bit_and_what_does_not_matter_has_no_centre():
    f, a = torch.tensor([3e-30, 0.1, 0.0]), torch.tensor([0.1, -0.7, 5.0])
    total, centre, constant = merge_terms([(f, a)])
    assert torch.equal(total, f) and torch.equal(centre[:2], a[:2])
    assert centre[2] == 0 and not constant.any()


def test_equal_anchors_stay_where_they_are():
    anchor = torch.tensor([0.1, 0.3])
    _, centre, constant = merge_terms([(torch.rand(2) + 0.1, anchor) for _ in range(9)])
    assert torch.equal(centre, anchor) and not constant.any()


def test_penalty_by_hand_and_its_gradient():
    parameter = torch.tensor([1.0, 2.0], requires_grad=True)
    penalty = ewc_penalty(parameter, torch.tensor([4.0, 1.0]), torch.tensor([0.0, 5.0]), 2.0)
    assert penalty.item() == 0.5 * 2.0 * (4.0 * 1.0 + 1.0 * 9.0)
    penalty.backward()
    assert parameter.grad.tolist() == [8.0, -6.0]  # λ F (θ − θ*)
