"""`CombinedRegularizer`: the sum of its parts, and all of them or none."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from owlrl import protocols
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.protocols import Consolidation, MultiHead
from owlrl.regularizers import CombinedRegularizer, DistillationRegularizer, EWCRegularizer, Regularizer
from tests.regularizers.helpers import (
    Learner,
    assert_same_tree,
    context,
    gradients,
    jolt,
    make_q,
    observations,
    transitions,
)


class Failing(EWCRegularizer):
    """Does what it is told, then complains."""

    def remember(self, task: str, context: dict[str, Consolidation]) -> None:
        raise NonFiniteError("no")

    def load_state_dict(self, state_dict: dict, /) -> None:
        if state_dict["kept"]:
            raise OwlValueError("no")


def parts() -> tuple[EWCRegularizer, DistillationRegularizer]:
    return EWCRegularizer(3.0), DistillationRegularizer(2.0, every=1, seed=0)


def learned() -> tuple[MultiHead, CombinedRegularizer, tuple[Regularizer, ...]]:
    """Two parts and their twins, after one task, with the network moved and another head active."""
    q = make_q(2)
    both, apart = CombinedRegularizer(parts()), parts()
    for regularizer in (both, *apart):
        regularizer.bind(Learner({"q": q}, lambda n: transitions(n)))
        regularizer.remember("one", {"q": context(q, 0)})
    jolt(q)
    q.activate(1)
    return q, both, apart


def test_penalty_is_the_sum():
    _, both, apart = learned()
    expected = sum(part.penalty() for part in apart)
    assert expected > 0
    torch.testing.assert_close(both.penalty(), expected, rtol=1e-12, atol=0)


def test_attached_gradients_are_the_sum_and_detach_removes_all():
    q, both, apart = learned()
    optimizer = SGD(q.parameters(), lr=0.0)
    q(observations()).sum().backward()
    before = gradients(q)
    both.attach(optimizer)
    optimizer.step()
    got = gradients(q)
    q.zero_grad()
    q(observations()).sum().backward()
    for part in apart:
        part.attach(optimizer)
    both.detach()
    optimizer.step()
    for name, grad in gradients(q).items():
        assert (grad is None) == (got[name] is None)
        if grad is not None:
            torch.testing.assert_close(got[name], grad)
    assert not torch.equal(got["trunk.0.weight"], before["trunk.0.weight"])
    for part in apart:
        part.detach()
    assert not optimizer._optimizer_step_pre_hooks


def test_attached_twice_or_beside_a_part_is_refused():
    q, _, _ = learned()
    ewc, distillation = parts()
    both = CombinedRegularizer([ewc, distillation])
    first, second = (SGD(q.parameters(), lr=0.0) for _ in range(2))
    both.attach(first)
    with pytest.raises(OwlStateError, match="attached already"):
        both.attach(first)
    distillation.attach(second)
    with pytest.raises(OwlStateError, match="a part is attached to this SGD already"):
        both.attach(second)
    assert (len(first._optimizer_step_pre_hooks), len(second._optimizer_step_pre_hooks)) == (1, 1)
    distillation.detach()
    both.attach(second)
    both.detach()
    assert (len(first._optimizer_step_pre_hooks), len(second._optimizer_step_pre_hooks)) == (0, 0)


class Halving(Regularizer):
    """Halves what it is given; holds nothing."""

    def remember(self, task: str, context: dict[str, Consolidation]) -> None:
        self.kept[task] = dict.fromkeys(context, 1)

    def term(self, name: str) -> None:
        return None

    def adjust(self, name: str, gradients: dict) -> dict:
        return {key: grad / 2 for key, grad in gradients.items()}


def test_parts_adjust_the_sum_and_forget_together():
    q, both, apart = learned()
    ewc = apart[0]
    pair = CombinedRegularizer([ewc, Halving()])
    pair.bind(Learner({"q": q}))
    optimizer = SGD(q.parameters(), lr=0.0)
    q(observations()).sum().backward()
    (own,) = torch.autograd.grad(ewc.penalty(), [q.trunk[0].weight])
    expected = (q.trunk[0].weight.grad + own) / 2
    pair.attach(optimizer)
    optimizer.step()
    torch.testing.assert_close(q.trunk[0].weight.grad, expected)
    assert both.tasks == ["one"]
    both.forget("one")
    assert both.tasks == [] and both.penalty().item() == 0


def test_watch_names_the_parts():
    q, both, _ = learned()
    optimizer = SGD(q.parameters(), lr=0.0)
    both.attach(optimizer)
    q(observations()).sum().backward()
    optimizer.step()
    found = both.watch()
    assert {"pull/q", "0/pull/q", "1/pull/q", "1/drift/q/one"} <= set(found)
    assert all(value > 0 for value in found.values())


def test_a_part_that_fails_leaves_all_as_they_were():
    q, both, _ = learned()
    ewc, distillation = both.regularizers
    broken = CombinedRegularizer([ewc, distillation, Failing(1.0)])
    before = broken.state_dict()
    with pytest.raises(NonFiniteError):
        broken.remember("two", {"q": context(q, 1)})
    assert_same_tree(broken.state_dict(), before)
    bad = broken.state_dict()
    bad["parts"][0] = {"kept": {}}
    bad["parts"][2] = {"kept": {"t": {"q": {}}}}
    with pytest.raises(OwlValueError, match="no"):
        broken.load_state_dict(bad)
    assert_same_tree(broken.state_dict(), before)


def test_state_round_trip():
    q, both, _ = learned()
    state = both.state_dict()
    assert isinstance(state["parts"], list) and len(state["parts"]) == 2
    later = CombinedRegularizer(parts())
    later.load_state_dict(state)
    later.bind(Learner({"q": q}, lambda n: transitions(n)))
    assert_same_tree(later.state_dict(), state)
    assert torch.equal(later.penalty(), both.penalty())
    for wrong, got in (({"parts": state["parts"][:1]}, 1), ({}, "none"), (None, "none")):
        with pytest.raises(OwlValueError, match=f"is of {got} regularizers; expected 2"):
            later.load_state_dict(wrong)


def test_bad_parts_are_refused():
    ewc = EWCRegularizer(1.0)
    with pytest.raises(OwlValueError, match="the same object twice"):
        CombinedRegularizer([ewc, ewc])
    with pytest.raises(OwlValueError, match="is empty"):
        CombinedRegularizer([])
    with pytest.raises(OwlTypeError, match=r"holds \['Linear'\]"):
        CombinedRegularizer([ewc, nn.Linear(1, 1)])  # type: ignore[list-item]
    nested = CombinedRegularizer([CombinedRegularizer([ewc]), EWCRegularizer(1.0)])
    assert isinstance(nested, protocols.Regularizer) and nested.penalty().item() == 0
    assert repr(nested).startswith("CombinedRegularizer([CombinedRegularizer([EWC")
