"""`Regularizer`: what a subclass of two methods gets from it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim import LBFGS, SGD, Adam

from owlrl import protocols
from owlrl.checkpoint import load_state, save_state
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.heads import MultiHeadQ
from owlrl.regularizers import Regularizer
from tests.regularizers.helpers import (
    Learner,
    NoStep,
    assert_same_tree,
    context,
    gradients,
    jolt,
    make_q,
    observations,
    weights,
)


class Near(Regularizer):
    def remember(self, task, context):
        self.kept[task] = {
            name: {key: p.detach().clone() for key, p in c.network.shared_parameters().items()}
            for name, c in context.items()
        }

    def term(self, name):
        own = self.networks[name].shared_parameters()
        old = [entry[name] for entry in self.kept.values() if name in entry]
        return sum((own[k] - p).square().sum() for o in old for k, p in o.items()) if old else None


class Flipped(Near):
    def adjust(self, name, gradients):
        return {key: -grad for key, grad in gradients.items() if key.startswith("trunk")}


def learned(kind: type[Near] = Near, **options) -> tuple[MultiHeadQ, Near]:
    q, near = make_q(3), kind(**{"strength": 2.0, **options})
    near.bind(Learner({"q": q}))
    near.remember("one", {"q": context(q, 0)})
    jolt(q)
    q.activate(1)
    return q, near


def pull(q: MultiHeadQ, near: Near) -> dict[str, Tensor]:
    """By hand: the gradient of 2 Σ (θ − θ*)² is 4 (θ − θ*)."""
    old, own = near.kept["one"]["q"], q.shared_parameters()
    return {key: 4 * (own[key].detach() - p) for key, p in old.items()}


def test_it_is_a_regularizer_and_its_penalty_is_strength_times_term():
    q, near = learned()
    assert isinstance(near, protocols.Regularizer) and near.tasks == ["one"]
    assert near.penalty().item() == pytest.approx(
        sum(float(p.square().sum()) for p in pull(q, near).values()) / 8
    )
    near.forget("two")
    near.forget("one")
    assert near.tasks == [] and near.penalty().item() == 0


@pytest.mark.parametrize("scale", [None, 8.0])
def test_hook_adds_the_terms_gradient_where_it_reaches(scale):
    q, near = learned()
    optimizer = NoStep(q.parameters())
    if scale is not None:
        optimizer.grad_scale = torch.tensor(scale)  # as a GradScaler leaves it for fused optimizers
    near.attach(optimizer)
    q(observations()).sum().backward()
    before = gradients(q)
    optimizer.step()
    expected = pull(q, near)
    for name, grad in gradients(q).items():
        if name in expected:
            torch.testing.assert_close(grad - before[name], (scale or 1.0) * expected[name])
        elif before[name] is None:
            assert grad is None  # idle heads
        else:
            assert torch.equal(grad, before[name])
    own = torch.cat([before[name].flatten() for name in expected]).norm()
    added = (scale or 1.0) * torch.cat([p.flatten() for p in expected.values()]).norm()
    assert near.watch() == {"pull/q": pytest.approx(float(added / own))}


@pytest.mark.parametrize("scale", [None, 8.0])
def test_adjust_sees_the_sum_unscaled_and_what_it_leaves_out_stays(scale):
    q, flipped = learned(Flipped)
    seen: dict[str, Tensor] = {}
    inner = flipped.adjust

    def spy(name: str, grads: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.update({key: grad.clone() for key, grad in grads.items()})
        return inner(name, grads)

    flipped.adjust = spy
    optimizer = NoStep(q.parameters())
    if scale is not None:
        optimizer.grad_scale = torch.tensor(scale)
    flipped.attach(optimizer)
    q(observations()).sum().backward()
    before = gradients(q)
    optimizer.step()
    now, factor = gradients(q), scale or 1.0
    for name, added in pull(q, flipped).items():
        torch.testing.assert_close(seen[name], before[name] / factor + added)
        torch.testing.assert_close(now[name], -(before[name] + factor * added))
    assert torch.equal(now["heads.1.weight"], before["heads.1.weight"]) and now["heads.0.weight"] is None


def test_adjust_may_not_name_others():
    q, flipped = learned(Flipped)
    flipped.adjust = lambda name, grads: {"heads.0.weight": torch.zeros(1)}
    optimizer = NoStep(q.parameters())
    flipped.attach(optimizer)
    q(observations()).sum().backward()
    with pytest.raises(OwlStateError, match=r"adjust gave a gradient for 'heads\.0\.weight'"):
        optimizer.step()


def test_a_free_network_is_not_asked_and_one_task_changes_nothing():
    q, near = learned(strength={"q": 0.0})
    near.term = lambda name: pytest.fail("asked")
    assert near.penalty().item() == 0
    results = []
    for guarded in (False, True):
        q, near = make_q(), Near(1e6)
        optimizer = Adam(q.parameters(), lr=0.01)
        if guarded:
            near.bind(Learner({"q": q}))
            near.attach(optimizer)
        for step in range(4):
            optimizer.zero_grad()
            q(observations(seed=step)).square().mean().backward()
            optimizer.step()
        results.append(weights(q))
    assert_same_tree(*results)


def test_what_is_kept_is_saved(tmp_path):
    q, near = learned()
    save_state(tmp_path / "state", near.state_dict())
    later = Near(2.0)
    later.load_state_dict(load_state(tmp_path / "state"))
    assert_same_tree(later.state_dict(), near.state_dict())
    with pytest.raises(OwlStateError, match=r"kept for \['q'\], whose networks are not known; call bind"):
        later.penalty()
    optimizer = SGD(q.parameters(), lr=0.0)
    later.attach(optimizer)
    with pytest.raises(OwlStateError, match="call bind"):
        optimizer.step()
    with pytest.raises(OwlValueError, match="kept for network 'q'; the networks are"):
        later.bind(Learner({"critic": q}))
    later.bind(Learner({"q": q}))
    assert torch.equal(later.penalty(), near.penalty())
    for bad in ({}, None, {"kept": 3}):
        with pytest.raises(OwlValueError, match='no "kept"'):
            later.load_state_dict(bad)
    assert later.tasks == ["one"]


def test_refusals():
    q, near = learned()
    optimizer = LBFGS(q.parameters())
    near.attach(optimizer)
    with pytest.raises(OwlStateError, match="attached already"):
        near.attach(optimizer)
    with pytest.raises(OwlStateError, match="make another Near for another learner"):
        near.bind(Learner({"q": make_q()}))
    near.bind(Learner({"q": q}))  # the same networks once more
    with pytest.raises(OwlStateError, match="inside the closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(OwlTypeError, match="optimizer is a list"):
        near.attach([])
    near.detach()
    near.bind(Learner({"q": make_q()}))
    with pytest.raises(TypeError, match=r"abstract.*remember.*term"):
        Regularizer()


def test_numpy_numbers_are_numbers_and_bad_strengths_are_named():
    assert Near(np.float32(2.0)).strength == 2.0 and type(Near(np.int64(2)).strength) is float
    for wrong in (-1.0, float("nan"), True, "1", None, {}, {"q": -1.0}):
        with pytest.raises(OwlValueError, match="Near: strength is"):
            Near(wrong)


def test_forgetting_one_task_keeps_those_before_and_after_it():
    q, near = learned()
    for task in ("two", "three"):
        near.remember(task, {"q": context(q, 0)})
    near.forget("two")
    assert list(near.kept) == ["one", "three"]


def test_the_pull_is_measured_again_every_sixteenth_time():
    q, near = learned()
    optimizer = NoStep(q.parameters())
    near.attach(optimizer)
    shown = []
    for step in range(17):
        q.zero_grad()
        q(observations(4)).square().sum().mul(1.0 + step).backward()
        own = torch.stack([p.grad.norm() for p in q.shared_parameters().values()]).norm()
        added = torch.stack([g.norm() for g in pull(q, near).values()]).norm()
        optimizer.step()
        shown.append(near.watch()["pull/q"])
        if step in (0, 16):
            assert shown[-1] == pytest.approx(float(added / own))
    assert len(set(shown[:16])) == 1 and shown[16] == pytest.approx(shown[0] / 17)
