"""`GEMRegularizer`: the projection against a slow search over faces, the constraint on real steps, saving."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.optim import SGD

from owlrl import OwlWrapper
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.protocols import Consolidation
from owlrl.regularizers import CombinedRegularizer, EWCRegularizer, GEMRegularizer, project_gradient
from owlrl.td import taken
from tests.own_dqn import SIZE, Signs, make_script, train
from tests.regularizers.helpers import (
    Learner,
    NoStep,
    Rows,
    assert_same_tree,
    context,
    gradients,
    jolt,
    make_q,
    observations,
    transitions,
)


def slow_projection(g: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The nearest point to g with ``rows @ z >= 0``: of the projections on all faces the nearest allowed."""
    best, found = np.inf, np.zeros_like(g)
    for size in range(len(rows) + 1):
        for face in combinations(range(len(rows)), size):
            a = rows[list(face)]
            z = g - np.linalg.pinv(a) @ (a @ g) if size else g
            if (rows @ z >= -1e-9).all() and np.linalg.norm(z - g) < best - 1e-12:
                best, found = np.linalg.norm(z - g), z
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2**16))
def test_projection_is_the_nearest_allowed_gradient(tasks, size, seed):
    rng = np.random.default_rng(seed)
    g, rows = rng.normal(size=size), rng.normal(size=(tasks, size)) * 10.0 ** rng.integers(-3, 4, (tasks, 1))
    rows[rng.random(tasks) < 0.1] = 0.0  # a task that nothing threatens
    if tasks > 1 and seed % 3 == 0:
        rows[0] = -rows[1]  # two that leave nothing but their common plane
    z = project_gradient(torch.from_numpy(g), torch.from_numpy(rows)).numpy()
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    assert (unit @ z).min() >= -1e-9
    np.testing.assert_allclose(z, slow_projection(g, unit[np.abs(unit).sum(1) > 0]), atol=1e-7)


def test_an_allowed_gradient_is_returned_as_it_is_and_a_margin_goes_further():
    g, row = torch.tensor([1.0, 1.0]), torch.tensor([[0.0, 3.0]])
    assert project_gradient(g, row) is g and project_gradient(g, torch.zeros(0, 2)) is g
    torch.testing.assert_close(project_gradient(-g, row, margin=0.5), torch.tensor([-1.0, 0.5]))


def learned(**options: object) -> tuple[object, GEMRegularizer]:
    """Two tasks remembered with heads 0 and 1, head 2 active, everything moved since."""
    q, gem = make_q(3), GEMRegularizer(**options)
    gem.bind(Learner({"q": q}))
    for head, task in enumerate(("one", "two")):
        gem.remember(task, {"q": context(q, head, seed=head)})
    jolt(q)
    q.activate(2)
    return q, gem


def old_loss(q: object, gem: GEMRegularizer, task: str) -> Tensor:
    entry = gem.kept[task]["q"]
    return (q(*entry["inputs"], head=entry["head"]) - entry["stored"]).square().mean()


@pytest.mark.parametrize("averaged", [False, True])
def test_a_step_of_sgd_makes_no_earlier_task_worse(averaged):
    q, gem = learned(averaged=averaged)
    optimizer = SGD(q.parameters(), lr=1e-4)
    gem.attach(optimizer)
    before = [old_loss(q, gem, task).item() for task in gem.tasks]
    # straight uphill for both earlier tasks, and something for the active head
    loss = q(observations()).square().sum() - 50 * sum(old_loss(q, gem, task) for task in gem.tasks)
    loss.backward()
    for head in (0, 1):
        for p in q.head_parameters(head).values():
            p.grad = None  # as while another task is trained
    optimizer.step()
    after = [old_loss(q, gem, task).item() for task in gem.tasks]
    if averaged:
        assert sum(after) <= sum(before) + 1e-7
    else:
        assert all(a <= b + 1e-7 for a, b in zip(after, before, strict=True))


def test_a_gradient_that_harms_nobody_and_idle_heads_stay():
    q, gem = learned()
    optimizer = NoStep(q.parameters())
    gem.attach(optimizer)
    sum(old_loss(q, gem, task) for task in gem.tasks).backward()  # downhill for both
    for head in (0, 1):
        for p in q.head_parameters(head).values():
            p.grad = None
    before = gradients(q)
    optimizer.step()
    for name, grad in gradients(q).items():
        assert grad is None if before[name] is None else torch.equal(grad, before[name]), name
    assert gem.penalty().item() == 0


def test_the_active_heads_own_task_is_no_constraint():
    q, gem = learned()
    gem.forget("two")
    q.activate(0)
    q(observations()).sum().backward()
    before = {name: g.clone() for name, g in gradients(q).items() if g is not None}
    assert_same_tree(gem.adjust("q", before), before)


def test_with_one_head_and_labels_no_step_unlearns():
    """What separates GEM with one head from a head per task: it may not move towards the opposite."""
    network, x = make_q(1), observations(8)
    label = torch.zeros(8, dtype=torch.int64)
    optimizer = SGD(network.parameters(), lr=0.05)
    gem = GEMRegularizer(loss=F.cross_entropy)
    gem.remember("zeros", {"q": Consolidation(network, 0, (x,), (label,), taken, taken)})
    gem.attach(optimizer)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        F.cross_entropy(network(x), 1 - label).backward()
        optimizer.step()
        losses.append(F.cross_entropy(network(x), label).item())
    assert max(losses) <= losses[0] + 0.02


def test_rows_come_from_the_memory_and_follow_its_changes():
    q = make_q(2)
    gem = GEMRegularizer(memory_size=4)
    memory = Rows(transitions(9, seed=1))
    gem.bind(Learner({"q": q}), {"one": memory})
    gem.remember("one", {"q": context(q, 0)})
    assert set(gem.kept["one"]["q"]) == {"head", "stored", "version"} and memory.asked == 1
    q.activate(1)
    grads = {name: torch.ones_like(p) for name, p in q.named_parameters() if not name.startswith("heads.0")}
    gem.adjust("q", grads)
    assert memory.asked == 1
    memory.rows, memory.version = transitions(6, seed=2), 1
    gem.adjust("q", grads)
    assert memory.asked == 2 and gem.kept["one"]["q"]["version"] == 1
    stored = gem.kept["one"]["q"]["stored"]
    expected = q(memory.rows.observation[[0, 1, 3, 4]], head=0)
    torch.testing.assert_close(stored, expected.detach())
    gem.memories = None
    with pytest.raises(OwlStateError, match="its memory is not there"):
        gem.adjust("q", grads)


def test_it_is_saved_and_refuses_what_does_not_fit():
    q, gem = learned()
    other = GEMRegularizer()
    other.bind(Learner({"q": q}))
    other.load_state_dict(gem.state_dict())
    assert_same_tree(other.kept, gem.kept)
    for key, value, message in (
        ("head", 7, "of head 7, and the network has 3"),
        ("stored", torch.zeros(2, 2), "6.* rows for 2 targets"),
        ("inputs", None, "cannot be read"),
    ):
        state = gem.state_dict()
        state["kept"]["one"]["q"][key] = value
        with pytest.raises(OwlValueError, match=message):
            other.load_state_dict(state)
    assert_same_tree(other.kept, gem.kept)
    assert "tasks=['one', 'two']" in repr(gem)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_size": 0}, "memory_size is 0"),
        ({"margin": -1.0}, "margin is -1.0"),
        ({"loss": 3}, "loss is 3"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises((OwlValueError, TypeError), match=message):
        GEMRegularizer(**options)


def test_in_a_wrapper_old_answers_move_less():
    drift = []
    for regularizer in (None, GEMRegularizer(memory_size=32)):
        script, x = make_script(), torch.eye(SIZE)
        owl = OwlWrapper(script.learner(), regularizer=regularizer, seed=0)
        with owl.task("same"):
            train(script, Signs(0))
        before = script.q(x, head=0).detach()
        with owl.task("next"):
            train(script, Signs(1))
        drift.append((script.q(x, head=0) - before).square().mean().item())
        assert owl.evaluate(Signs(1), task="next", seed=0).mean_return == Signs(1).length
    assert 0 < drift[1] < 0.5 * drift[0]


def test_it_combines_with_others():
    both = CombinedRegularizer([EWCRegularizer(10.0), GEMRegularizer()])
    q = make_q(2)
    both.bind(Learner({"q": q}))
    both.remember("one", {"q": context(q, 0)})
    q.activate(1)
    optimizer = NoStep(q.parameters())
    both.attach(optimizer)
    jolt(q)
    q(observations()).sum().backward()
    optimizer.step()
    assert all(g is None or g.isfinite().all() for g in gradients(q).values())
