"""`DistillationRegularizer` against the penalty written out row by row."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam

from owlrl.checkpoint import load_state, save_state
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.heads import MultiHeadQ, promote_output_layers
from owlrl.protocols import Consolidation, Regularizer
from owlrl.regularizers import DistillationRegularizer, distillation_loss, output_spread
from owlrl.regularizers.answers import MOST_PULL, PULL, pull_factor
from owlrl.regularizers.drawing import AT_ONCE, MOST_TASKS, MOST_TRAINED
from owlrl.td import taken
from owlrl.types import Transitions
from tests.regularizers.helpers import (
    OPTIMIZERS,
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
    weights,
)


def after(
    tasks: list[int], *, moved: bool = True, **options: object
) -> tuple[MultiHeadQ, DistillationRegularizer, dict[int, Tensor]]:
    """A network that learned the given heads' tasks; what each head then answered on its own rows."""
    q = make_q(max(tasks) + 2)
    regularizer, answers = DistillationRegularizer(2.0, **{"seed": 0, "every": 1, **options}), {}
    for visit, head in enumerate(tasks):
        c = context(q, head, seed=head)
        regularizer.remember(f"task {head}", {"q": c})
        with torch.no_grad():
            answers[head] = q(c.inputs[0], head=head).clone()
        if moved:
            jolt(q, seed=visit)
    return q, regularizer, answers


def train_step(q: MultiHeadQ, penalty: Tensor | float = 0.0, seed: int = 9) -> None:
    (q(observations(seed=seed)).square().mean() + penalty).backward()


# --- the formula ------------------------------------------------------------


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.data())
def test_loss_is_the_mean_over_rows_of_the_mean_over_outputs(rows, width, wider, data):
    counts = data.draw(st.lists(st.integers(1, width), min_size=rows, max_size=rows))
    output = torch.randn(
        rows, width + wider, dtype=torch.float64, generator=torch.Generator().manual_seed(rows)
    )
    output.requires_grad_(True)
    stored = torch.randn(rows, width, dtype=torch.float64, generator=torch.Generator().manual_seed(width))
    expected = 0.0
    for row, count in enumerate(counts):
        stored[row, count:] = -torch.inf
        expected += (
            sum(float(output[row, k].detach() - stored[row, k]) ** 2 for k in range(count)) / count / rows
        )
    padded = output.masked_fill(torch.arange(width + wider) >= torch.tensor(counts)[:, None], -torch.inf)
    loss = distillation_loss(padded, stored)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    loss.backward()
    assert output.grad.isfinite().all()


def test_rows_of_narrow_heads_alone_are_compared_though_the_memory_is_wider():
    stored = torch.tensor([[1.0, 2.0, -torch.inf], [0.0, 0.0, -torch.inf]])  # padded for a head not drawn
    assert distillation_loss(torch.tensor([[1.0, 4.0], [0.0, 0.0]]), stored).item() == pytest.approx(1.0)


def test_memory_penalty_is_the_mean_over_all_rows_if_it_has_one_row_per_task():
    q, regularizer, answers = after([0, 1, 2], memory_size=1, batch_size=6)
    q.activate(3)
    expected = sum(
        float((q(observations(seed=h)[:1], head=h) - answers[h][:1]).square().mean().detach())
        for h in (0, 1, 2)
    )
    assert regularizer.penalty().item() == pytest.approx(2.0 * expected / 3, rel=1e-12)


def test_memory_penalty_estimates_the_mean_over_tasks():
    q, regularizer, answers = after([0, 1], batch_size=64)
    q.activate(2)
    means = [float((q(observations(seed=h), head=h) - answers[h]).square().mean().detach()) for h in (0, 1)]
    drawn = np.mean([regularizer.penalty().item() for _ in range(200)])
    assert drawn == pytest.approx(2.0 * np.mean(means), rel=0.03)


def test_the_active_task_is_not_held():
    q, regularizer, answers = after([0, 1], memory_size=1, batch_size=4)
    q.activate(1)
    expected = float((q(observations(seed=0)[:1], head=0) - answers[0][:1]).square().mean().detach())
    assert regularizer.penalty().item() == pytest.approx(2.0 * expected, rel=1e-12)
    q, regularizer, _ = after([0])
    q.activate(0)
    assert regularizer.penalty().item() == 0


def test_a_revisit_replaces_what_was_kept():
    q, regularizer, _ = after([0, 1])
    regularizer.remember("task 0", {"q": context(q, 0, rows=3, seed=5)})
    kept = regularizer.state_dict()["kept"]
    assert list(kept) == ["task 0", "task 1"]
    assert torch.equal(kept["task 0"]["q"]["inputs"][0], observations(3, seed=5))
    with torch.no_grad():
        assert torch.equal(kept["task 0"]["q"]["outputs"], q(observations(3, seed=5), head=0))


def test_memory_is_limited_and_computed_in_evaluation_mode():
    torch.manual_seed(0)
    q = MultiHeadQ(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)), 4, 2).double().train()
    regularizer, seed = DistillationRegularizer(1.0, memory_size=3), torch.get_rng_state()
    regularizer.remember("one", {"q": context(q, 0, rows=9)})
    kept = regularizer.state_dict()["kept"]["one"]["q"]
    assert torch.equal(kept["inputs"][0], observations(9)[[0, 3, 6]])
    assert torch.equal(torch.get_rng_state(), seed)
    q.activate(q.add_head())
    assert regularizer.penalty().item() == pytest.approx(0, abs=1e-20)  # dropout would make it large
    assert all(m.training for m in q.modules())


def test_heads_of_different_size():
    torch.manual_seed(0)
    q = MultiHeadQ(nn.Linear(3, 4), 4, 2).double()
    q.add_head(num_actions=5)
    q.add_head(num_actions=3)
    regularizer, answers = DistillationRegularizer(2.0, memory_size=1, batch_size=2), {}
    for head in (0, 1):
        c = context(q, head, seed=head)
        regularizer.remember(str(head), {"q": c})
        with torch.no_grad():
            answers[head] = q(c.inputs[0][:1], head=head).clone()
    jolt(q)
    q.activate(2)
    penalty = regularizer.penalty()
    expected = sum(
        float((q(observations(seed=h)[:1], head=h) - answers[h]).square().mean().detach()) for h in (0, 1)
    )
    assert penalty.item() == pytest.approx(2.0 * expected / 2, rel=1e-12)
    penalty.backward()
    assert q.heads[1].bias.grad.abs().min() > 0 and q.heads[2].bias.grad is None
    state = regularizer.state_dict()["kept"]
    assert [tuple(t["q"]["outputs"].shape) for t in state.values()] == [(1, 2), (1, 5)]


def holding(tasks: list[tuple[int, int]], batch_size: int) -> DistillationRegularizer:
    """A regularizer that keeps tasks of the given (head, rows); a row's input is (its task, its number)."""
    q = MultiHeadQ(nn.Linear(2, 2), 2, 1)
    for _ in range(40):
        q.add_head()
    regularizer = DistillationRegularizer(1.0, batch_size=batch_size, seed=0)
    for k, (head, size) in enumerate(tasks):
        x = torch.stack([torch.full((size,), float(k)), torch.arange(size).float()], 1)
        regularizer.remember(str(k), {"q": Consolidation(q, head, (x,), (), taken, taken)})
    return regularizer


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=6),
    st.integers(6, 20),
    st.integers(0, 3),
)
def test_draws_are_spread_evenly_and_come_from_the_right_rows(tasks, batch_size, active):
    regularizer = holding(tasks, batch_size)
    q = regularizer.networks["q"]
    q.activate(active)
    regularizer.strength = None if batch_size % 2 else 1.0
    others = [k for k, (head, _) in enumerate(tasks) if head != active]
    if not others:
        assert regularizer._draw("q") is None
        return
    for _ in range(AT_ONCE + 2):  # the first part is drawn alone, then many at once
        drawn, rows = regularizer._draw("q")
        of_row = rows.inputs[0][:, 0].long().tolist()
        counts = [of_row.count(k) for k in set(of_row)]
        most = MOST_TASKS if regularizer.strength is None else MOST_TRAINED
        assert len(counts) == min(len(others), most) and set(of_row) <= set(others)
        assert sum(counts) == batch_size and max(counts) - min(counts) <= 1
        assert drawn.heads.tolist() == [tasks[k][0] for k in of_row]
        assert [drawn.tasks[place] for place in drawn.of_row] == [str(k) for k in of_row]
        assert all(row < tasks[k][1] for k, row in zip(of_row, rows.inputs[0][:, 1].tolist(), strict=True))
        with torch.no_grad():  # nothing moved: the stored outputs are those of the drawn rows
            output = q.per_row(*rows.inputs, heads=drawn.heads)
            torch.testing.assert_close(output * rows.factor, rows.target)


@pytest.mark.parametrize(("batch_size", "most"), [(128, MOST_TASKS), (3, 3)])
def test_few_tasks_are_drawn_at_a_time_and_each_gets_its_turn(batch_size, most):
    regularizer = holding([(head, 2) for head in range(40)], batch_size)
    regularizer.networks["q"].activate(0)
    regularizer.strength = None
    seen = np.zeros(40)
    draws = 300
    for _ in range(draws):
        regularizer._drawn.clear()  # one part of those that are drawn at once
        heads = torch.unique(regularizer._draw("q")[0].heads)
        assert len(heads) == most
        seen[heads.numpy()] += 1
    assert seen[0] == 0 and seen[1:].min() > 0.5 * draws * most / 39


# --- the hook ----------------------------------------------------------------


@pytest.mark.parametrize("states", ["memory", "current"])
@pytest.mark.parametrize("scale", [None, 8.0])
def test_hook_adds_the_gradient_of_the_penalty(states, scale):
    q, regularizer, _ = after([0, 1], states=states)
    regularizer.bind(Learner({"q": q}, lambda n: transitions(n, seed=3)))
    q.activate(2)
    twin = DistillationRegularizer(2.0, states=states, every=1)
    twin.load_state_dict(regularizer.state_dict())
    twin.bind(Learner({"q": q}, lambda n: transitions(n, seed=3)))
    train_step(q)
    plain = gradients(q)
    twin.penalty().backward()
    expected = gradients(q)
    q.zero_grad()
    optimizer = NoStep(q.parameters())
    if scale is not None:
        optimizer.grad_scale = torch.tensor(scale)  # as a GradScaler leaves it for fused optimizers
    regularizer.attach(optimizer)
    train_step(q)
    optimizer.step()
    for name, grad in gradients(q).items():
        if expected[name] is None:
            assert grad is None, name
            continue
        before = torch.zeros_like(grad) if plain[name] is None else plain[name]
        torch.testing.assert_close(
            grad - before, (scale or 1.0) * (expected[name] - before), rtol=1e-9, atol=1e-12
        )
    assert (q.heads[0].weight.grad is not None) == (states == "memory")
    assert q.trunk[0].weight.grad.ne(plain["trunk.0.weight"]).any()


@pytest.mark.parametrize("every", [2, 3])
def test_every_nth_step_pulls_n_times_as_hard_and_the_count_is_saved(every):
    q, regularizer, _ = after([0, 1], every=every)
    q.activate(2)
    twin = DistillationRegularizer(2.0)
    twin.load_state_dict({**regularizer.state_dict(), "steps": {}})
    twin.bind(Learner({"q": q}))
    twin.penalty().backward()
    expected = gradients(q)
    q.zero_grad()
    optimizer = NoStep(q.parameters())
    regularizer.attach(optimizer)
    optimizer.step()
    assert all(grad is None for grad in gradients(q).values())
    later = DistillationRegularizer(2.0, every=every)
    later.load_state_dict(regularizer.state_dict())
    later.bind(Learner({"q": q}))
    regularizer.detach()
    later.attach(optimizer)
    for _ in range(every - 2):
        optimizer.step()
        assert all(grad is None for grad in gradients(q).values())
    optimizer.step()
    for name, grad in gradients(q).items():
        assert (grad is None) == (expected[name] is None), name
        if grad is not None:
            torch.testing.assert_close(grad, every * expected[name], rtol=1e-9, atol=1e-12)


def test_hook_leaves_parameters_of_others_and_frozen_ones_alone():
    q, regularizer, _ = after([0])
    q.activate(1)
    q.trunk[0].bias.requires_grad_(False)
    trunk, other = SGD(q.trunk.parameters(), lr=0.0), SGD(nn.Linear(1, 1).parameters(), lr=0.0)
    regularizer.attach(trunk)
    regularizer.attach(other)
    state = regularizer.state_dict()["generator"]
    other.step()
    assert regularizer.state_dict()["generator"] == state  # nothing was drawn for it
    trunk.step()
    assert q.trunk[0].weight.grad is not None
    assert q.trunk[0].bias.grad is None and q.heads[0].weight.grad is None
    q.trunk.requires_grad_(False)
    q.zero_grad()
    trunk.step()
    assert all(p.grad is None for p in q.parameters())


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("states", ["memory", "current"])
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("attached", [True, False])
def test_heads_that_are_not_held_are_bit_identical(kind, states, set_to_none, attached):
    q, regularizer, _ = after([0], states=states)
    regularizer.bind(Learner({"q": q}, lambda n: transitions(n, seed=3)))
    q.add_head()
    q.activate(1)  # head 0 is held, head 1 trained, head 2 idle
    optimizer = OPTIMIZERS[kind](list(q.parameters()))
    if attached:
        regularizer.attach(optimizer)
    before = weights(q)
    for step in range(4):
        optimizer.zero_grad(set_to_none=set_to_none)
        train_step(q, 0.0 if attached else regularizer.penalty(), seed=step)
        optimizer.step()
    now = weights(q)
    assert torch.equal(now["heads.2.weight"], before["heads.2.weight"])
    assert torch.equal(now["heads.0.weight"], before["heads.0.weight"]) == (states == "current")
    assert not torch.equal(now["trunk.0.weight"], before["trunk.0.weight"])


@pytest.mark.parametrize("states", ["memory", "current"])
def test_with_one_task_training_is_bit_equal_to_bare(states):
    results = []
    for guarded in (False, True):
        q = make_q(dtype=torch.float32)
        optimizer = Adam(q.parameters(), lr=0.01)
        regularizer = DistillationRegularizer(1e6, states=states, every=1)
        if guarded:
            regularizer.bind(Learner({"q": q}, lambda n: None))
            regularizer.attach(optimizer)
        for step in range(6):
            optimizer.zero_grad()
            q(observations(seed=step, dtype=torch.float32)).square().mean().backward()
            optimizer.step()
            if guarded and step == 3:  # a second visit of the only task
                regularizer.remember("one", {"q": context(q, 0, dtype=torch.float32)})
        results.append(weights(q))
    assert_same_tree(*results)


def test_attached_twice_is_refused_and_detach_detaches():
    q, regularizer, _ = after([0])
    q.activate(1)
    optimizer = SGD(q.parameters(), lr=0.0)
    regularizer.attach(optimizer)
    with pytest.raises(OwlStateError, match="attached already"):
        regularizer.attach(optimizer)
    regularizer.detach()
    optimizer.step()
    assert all(p.grad is None for p in q.parameters())


def test_one_optimizer_of_two_networks_and_strengths_of_each():
    actor, critic, free = make_q(2, seed=1), make_q(2, seed=2), make_q(2, seed=3)
    networks = {"actor": actor, "critic": critic, "free": free}
    regularizer = DistillationRegularizer(
        {"actor": 1.0, "critic": 10.0, "free": 0.0}, memory_size=1, batch_size=1, every=1
    )
    regularizer.remember("one", {name: context(n, 0) for name, n in networks.items()})
    assert set(regularizer.state_dict()["kept"]["one"]) == {"actor", "critic"}
    expected = 0.0
    for name, network in networks.items():
        with torch.no_grad():
            before = network(observations()[:1], head=0)
            jolt(network)
            network.activate(1)
            error = (network(observations()[:1], head=0) - before).square().mean()
            expected += {"actor": 1.0, "critic": 10.0, "free": 0.0}[name] * float(error)
    assert regularizer.penalty().item() == pytest.approx(expected, rel=1e-9)
    optimizer = SGD([*actor.parameters(), *critic.parameters()], lr=0.0)
    regularizer.attach(optimizer)
    optimizer.step()
    assert actor.trunk[0].weight.grad is not None and critic.trunk[0].weight.grad is not None


def test_network_in_another_dtype_is_followed():
    q, regularizer, _ = after([0], memory_size=1)
    q.activate(1)
    expected = regularizer.penalty().item()
    q.float()
    optimizer = SGD(q.parameters(), lr=0.0)
    regularizer.attach(optimizer)
    optimizer.step()
    assert q.trunk[0].weight.grad.dtype == torch.float32
    assert regularizer.penalty().item() == pytest.approx(expected, rel=1e-4)


def test_parameters_that_take_no_part_get_no_gradient():
    torch.manual_seed(0)
    q = MultiHeadQ(nn.Linear(3, 4), 4, 2).double()
    q.trunk.spare = nn.Parameter(torch.ones(1, dtype=torch.float64))
    q.add_head()
    regularizer = DistillationRegularizer(1.0, every=1)
    regularizer.remember("one", {"q": context(q, 0)})
    jolt(q)
    q.activate(1)
    optimizer = SGD(q.parameters(), lr=0.0)
    regularizer.attach(optimizer)
    optimizer.step()
    assert q.trunk.weight.grad is not None and q.trunk.spare.grad is None


# --- the paper's ablation ------------------------------------------------------


def test_current_holds_the_previous_head_on_current_states():
    q, regularizer, _ = after([0, 1], states="current", batch_size=7, moved=False)
    frozen = copy.deepcopy(q)
    jolt(q.trunk, seed=4)
    asked = []

    def sample(n: int) -> Transitions:
        asked.append(n)
        return transitions(n, seed=6)

    regularizer.bind(Learner({"q": q}, sample))
    q.activate(2)
    x = observations(7, seed=6)
    expected = (q(x, head=1) - frozen(x, head=1).detach()).square().mean()
    got = regularizer.penalty()
    assert asked == [7]
    torch.testing.assert_close(got, 2.0 * expected, rtol=1e-12, atol=0)
    got.backward()
    (wanted,) = torch.autograd.grad(2.0 * expected, [q.trunk[0].weight])
    torch.testing.assert_close(q.trunk[0].weight.grad, wanted, rtol=1e-9, atol=1e-14)
    assert all(p.grad is None for p in q.heads.parameters())
    q.activate(1)
    assert regularizer.penalty().item() == 0 and asked == [7]


def test_current_needs_rows_of_the_current_task_that_fit_the_network():
    q, regularizer, _ = after([0], states="current")
    q.activate(1)
    with pytest.raises(OwlStateError, match=r"bind\(learner\) a learner that knows its replay"):
        regularizer.penalty()
    raw = transitions(4)
    for observation, message in (
        (raw.observation.to(torch.uint8), r"\(\(3,\), torch\.uint8\).*expected.*torch\.float64"),
        (raw.observation[:, :2], r"\(2,\).*expected.*\(3,\)"),
    ):
        regularizer.bind(Learner({"q": q}, lambda n, x=observation: dataclasses.replace(raw, observation=x)))
        with pytest.raises(OwlTypeError, match=message):
            regularizer.penalty()
    regularizer.bind(Learner({"q": q}, lambda n: transitions(n, dtype=torch.float32)))
    assert regularizer.penalty().dtype == torch.float64  # a float is a float


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(5, 4), nn.Linear(4, 1)
        self.register_buffer("shift", torch.ones(4), persistent=False)

    def forward(self, observation: Tensor, action: Tensor, *more: Tensor) -> Tensor:
        return self.head(torch.tanh(self.trunk(torch.cat([observation, action], -1)) + self.shift))


def test_networks_of_observation_and_action():
    torch.manual_seed(0)
    critic = promote_output_layers(Critic(), layers=["head"])
    critic.add_head()
    x, a = torch.randn(6, 3), torch.randn(6, 2)
    c = Consolidation(critic, 0, (x, a), (), lambda out: out[:, 0], lambda out: out[:, 0])
    row = torch.zeros(6)
    for states in ("memory", "current"):
        regularizer = DistillationRegularizer(1.0, states=states, batch_size=6)
        regularizer.remember("one", {"critic": c})
        regularizer.bind(Learner({"critic": critic}, lambda n: Transitions(x, a, row, x, row.bool(), row)))
        with critic.pointer.at(1):
            assert regularizer.penalty().item() == pytest.approx(0, abs=1e-12)
            jolt(critic.module)
            assert regularizer.penalty().item() > 1e-4


# --- saving --------------------------------------------------------------------


@pytest.mark.parametrize("states", ["memory", "current"])
def test_state_comes_back_to_the_bit_and_goes_on_alike(states, tmp_path):
    q, regularizer, _ = after([0, 1], states=states)
    regularizer.bind(Learner({"q": q}, lambda n: transitions(n, seed=3)))
    q.activate(2)
    regularizer.penalty()
    state = regularizer.state_dict()
    save_state(tmp_path / "state", state)
    later = DistillationRegularizer(2.0, states=states, every=1, seed=99)
    later.load_state_dict(load_state(tmp_path / "state"))
    assert_same_tree(later.state_dict(), state)
    with pytest.raises(OwlStateError, match="not known; call bind"):
        later.penalty()
    optimizer = SGD(q.parameters(), lr=0.0)
    later.attach(optimizer)
    with pytest.raises(OwlStateError, match="not known; call bind"):
        optimizer.step()
    later.bind(Learner({"q": q}, lambda n: transitions(n, seed=3)))
    for _ in range(3):
        assert torch.equal(later.penalty(), regularizer.penalty())


def test_draws_depend_on_the_seed_alone():
    torch.manual_seed(1)
    same = [after([0], batch_size=2)[1] for _ in range(2)]
    torch.manual_seed(2)
    np.random.seed(3)
    penalties = []
    for regularizer in same:
        regularizer.networks["q"].activate(1)
        penalties.append([regularizer.penalty().item() for _ in range(4)])
    assert penalties[0] == penalties[1] and len(set(penalties[0])) > 1


@pytest.mark.parametrize("states", ["memory", "current"])
def test_misfits_are_named_and_change_nothing(states):
    q, regularizer, _ = after([0, 1], states=states)
    state = regularizer.state_dict()
    small = MultiHeadQ(nn.Sequential(nn.Linear(3, 7), nn.Tanh()), 7, 2).double()
    for order in ("bind first", "load first"):
        fresh = DistillationRegularizer(1.0, states=states)
        steps = [lambda f=fresh: f.bind(Learner({"q": small})), lambda f=fresh: f.load_state_dict(state)]
        first, second = steps if order == "bind first" else reversed(steps)
        first()
        with pytest.raises(OwlValueError, match="network 'q' is of head 1, and the network has 1") as caught:
            second()
        assert ("trunk.0.weight" in str(caught.value)) == (states == "current")
        assert (fresh.state_dict()["kept"] == {}) == (order == "bind first")
    with pytest.raises(OwlValueError, match="kept for network 'q'; the networks are"):
        regularizer.bind(Learner({"critic": q}))
    if states == "memory":
        with pytest.raises(OwlValueError, match="the network has 1"):
            regularizer.remember("t", {"q": context(small, 0)})


@pytest.mark.parametrize("states", ["memory", "current"])
def test_bad_states_are_refused(states):
    _, regularizer, _ = after([0], states=states)
    before = regularizer.state_dict()
    other = "current" if states == "memory" else "memory"
    entry = {"head": 0, "inputs": [torch.zeros(2, 1)], "outputs": torch.zeros(3, 1)}
    for change, message in [
        ({"states": other}, f"state_dict is of states='{other}'"),
        ({"kept": 3}, 'has no "kept"'),
        ({"kept": {"t": 3}}, "cannot be read"),
        ({"kept": {"t": {"q": 3}}}, "cannot be read"),
        ({"kept": {"t": {"q": {}}}}, "cannot be read"),
        ({"kept": {"t": {"q": entry}}}, "cannot be read"),
        ({"generator": {}}, "generator cannot be read"),
        ({"generator": None}, "generator cannot be read"),
    ]:
        with pytest.raises(OwlValueError, match=message):
            regularizer.load_state_dict({**before, **change})
        with pytest.raises(OwlValueError, match="expected what state_dict"):
            regularizer.load_state_dict({})
        assert_same_tree(regularizer.state_dict(), before)


# --- bad input -------------------------------------------------------------------


def test_constructor_names_all_problems_and_keeps_its_arguments():
    with pytest.raises(OwlValueError, match="5 problems"):
        DistillationRegularizer(-1.0, states="old", memory_size=True, batch_size=0, seed=-1)  # type: ignore[arg-type]
    regularizer = DistillationRegularizer(3, states="current", memory_size=4, batch_size=5, seed=6)
    kept = (regularizer.strength, regularizer.states, regularizer.memory_size, regularizer.batch_size)
    assert (*kept, regularizer.seed) == (3, "current", 4, 5, 6)
    assert isinstance(regularizer, Regularizer) and "states='current'" in repr(regularizer)


def test_bad_consolidations_change_nothing():
    q, regularizer, _ = after([0])
    before = regularizer.state_dict()
    c = context(q, 0)
    with pytest.raises(OwlValueError, match="head is 7"):
        regularizer.remember("t", {"q": Consolidation(q, 7, c.inputs, c.targets, c.output, c.loss)})
    with pytest.raises(OwlValueError, match="unlike those of earlier tasks"):
        regularizer.remember("t", {"q": context(q.float(), 0, dtype=torch.float32)})
    q.double()
    bad = context(q, 0)
    bad.inputs[0][0] = torch.nan
    with pytest.raises(NonFiniteError, match="outputs of head 0 of network 'q'"):
        regularizer.remember("t", {"q": bad})
    assert_same_tree(regularizer.state_dict(), before)
    torch.manual_seed(0)
    square = MultiHeadQ(nn.Identity(), 3, 2, head=lambda f, a: nn.Unflatten(1, (f, 1))).double()
    object.__setattr__(square, "_parameters", {"p": nn.Parameter(torch.zeros(1))})
    with pytest.raises(OwlValueError, match=r"gave \(6, 3, 1\); expected"):
        DistillationRegularizer(1.0).remember(
            "t", {"q": Consolidation(square, 0, (observations(),), (), taken, taken)}
        )


# --- what it is for -----------------------------------------------------------------


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize("states", ["memory", "current"])
def test_the_first_tasks_answers_move_less_with_it(states, attached):
    x, drift = observations(64), {}
    for strength in (0.0, 100.0):
        q = make_q(2)
        regularizer = DistillationRegularizer(strength, states=states, every=1, seed=0)
        optimizer = Adam(q.parameters(), lr=0.01)
        if attached:
            regularizer.attach(optimizer)
        with torch.no_grad():
            learned = q(x, head=0).clone()
        regularizer.remember("one", {"q": context(q, 0, rows=64)})
        regularizer.bind(Learner({"q": q}, lambda n: transitions(n, seed=n)))
        q.activate(1)
        for step in range(100):
            optimizer.zero_grad()
            error = (q(observations(32, seed=step)) - 3.0).square().mean()
            (error if attached else error + regularizer.penalty()).backward()
            optimizer.step()
        with torch.no_grad():
            drift[strength] = float((q(x, head=0) - learned).square().mean())
    assert drift[100.0] < 0.1 * drift[0.0]


# --- without a strength ---------------------------------------------------------------


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("actions", [1, 3])
def test_spread_by_hand(each, actions):
    outputs = torch.randn(50, actions, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs = 7.0 + outputs * torch.tensor([3.0, 1.0, 0.01])[:actions].double()
    got = output_spread(outputs, each=each)
    if each or actions == 1:
        expected = outputs.std(0, correction=0)
        expected = torch.maximum(expected, 0.1 * expected.max())
    else:
        ranked = sorted(float(np.std(row)) for row in outputs.numpy())
        expected = torch.full((actions,), ranked[(len(ranked) - 1) // 2], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=0)
    torch.testing.assert_close(output_spread(100 * outputs, each=each), 100 * got, rtol=1e-5, atol=0)


def test_spread_has_a_floor_and_passes_over_missing_outputs():
    level = torch.linspace(0, 10, 11, dtype=torch.float64)[:, None].expand(11, 2)
    floor = 0.01 * level[:, 0].std(correction=0).item()
    assert output_spread(level)[0].item() == pytest.approx(floor, rel=1e-3)
    assert output_spread(torch.zeros(5, 2)).min() > 0
    q = torch.tensor([[1.0, 3.0], [5.0, 3.0]])
    padded = torch.cat([q, torch.full((2, 1), -torch.inf)], 1)
    assert output_spread(padded)[0] == output_spread(q)[0] == 1.0


def test_few_rows_with_a_fatal_action_do_not_hide_the_others():
    ordinary = torch.tensor([[10.0, 10.2], [14.0, 13.8], [12.0, 12.2]], dtype=torch.float64).repeat(5, 1)
    fatal = torch.tensor([[12.0, 0.0]], dtype=torch.float64).repeat(4, 1)
    assert output_spread(ordinary).tolist() == pytest.approx([0.1, 0.1])
    assert output_spread(torch.cat([ordinary, fatal])).tolist() == pytest.approx([0.1, 0.1])


@pytest.mark.parametrize("scale", [None, 8.0])
@pytest.mark.parametrize("every", [1, 3])
def test_pull_has_a_norm_that_follows_gradient_and_drift(scale, every):
    q, raw, _ = after([0], every=every, batch_size=6)
    regularizer = DistillationRegularizer(every=every, batch_size=6, seed=0)
    regularizer.load_state_dict(raw.state_dict())
    regularizer.bind(Learner({"q": q}))
    q.activate(1)
    twin = copy.deepcopy(regularizer.state_dict())
    optimizer = NoStep(q.parameters())
    if scale is not None:
        optimizer.grad_scale = torch.tensor(scale, dtype=torch.float64)
    regularizer.attach(optimizer)
    for _ in range(every):
        q.zero_grad()
        train_step(q)
        before = gradients(q)
        optimizer.step()
    again = DistillationRegularizer(every=every, batch_size=6)
    again.load_state_dict(twin)
    again.bind(Learner({"q": q}))
    square = again.term("q")  # the same draw
    slope = torch.autograd.grad(square, [q.trunk[0].weight, q.trunk[0].bias])
    names = ["trunk.0.weight", "trunk.0.bias"]
    now = gradients(q)
    added = [now[n] - before[n] for n in names]

    def norm(tensors: list[Tensor]) -> float:
        return float(torch.cat([t.flatten() for t in tensors]).norm())

    own = norm([before[n] for n in names])  # with the scale in it, as the pull that is added
    assert norm(added) == pytest.approx(
        every * own * min(PULL * float(square.detach().sqrt()), MOST_PULL), rel=1e-6
    )
    factor = norm(added) / norm(list(slope))
    for got, want in zip(added, slope, strict=True):
        torch.testing.assert_close(got, factor * want, rtol=1e-6, atol=1e-12)
    assert now["heads.1.weight"].equal(before["heads.1.weight"])
    assert now["heads.0.weight"] is None  # an optimizer leaves the old head as it is
    assert regularizer.watch()["drift/q/task 0"] == pytest.approx(float(square.detach().sqrt()))


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(0.0, 10.0))
def test_pull_factor_gives_the_norm_of_the_formula(length, gradient, drift):
    got = length * pull_factor(length, gradient, drift)
    assert got == pytest.approx(gradient * min(PULL * drift, MOST_PULL))
    assert pull_factor(0.0, gradient, drift) == 0.0


def test_no_pull_where_the_learner_does_not_train_the_trunk():
    q, regularizer, _ = after([0], every=1)
    regularizer.strength = None
    q.activate(1)
    optimizer = NoStep(q.parameters())
    regularizer.attach(optimizer)
    optimizer.step()
    assert all(p.grad is None for p in q.parameters())
    train_step(q)
    q.trunk[0].weight.grad[0, 0] = torch.inf  # the step guard will refuse the step; the mean stays clean
    regularizer._gradient["q"] = 2.0
    optimizer.step()
    assert regularizer._gradient["q"] == 2.0


def test_running_mean_is_saved_and_going_on_is_exact(tmp_path):
    def train(regularizer: DistillationRegularizer, q: MultiHeadQ, steps: range) -> None:
        optimizer = SGD(q.parameters(), lr=0.01)
        regularizer.attach(optimizer)
        for step in steps:
            optimizer.zero_grad()
            train_step(q, seed=step)
            optimizer.step()
        regularizer.detach()

    q, regularizer, _ = after([0])
    regularizer.strength = None
    q.activate(1)
    train(regularizer, q, range(5))
    other = copy.deepcopy(q)
    save_state(tmp_path / "state", regularizer.state_dict())
    later = DistillationRegularizer(every=1)
    later.load_state_dict(load_state(tmp_path / "state"))
    later.bind(Learner({"q": other}))
    train(regularizer, q, range(5, 9))
    train(later, other, range(5, 9))
    assert_same_tree(weights(other), weights(q))


def test_held_heads_that_drift_for_long_are_warned_about_once():
    q, regularizer, _ = after([0], every=1)
    regularizer.strength = 1e-9
    q.activate(1)
    jolt(q, size=10.0)
    message = "heads of network 'q' drift although they are held.*'task 0'"
    with pytest.warns(UserWarning, match=message) as caught:
        for _ in range(8 * 120):
            regularizer.term("q")
    assert len(caught) == 1 and regularizer.watch()["drift/q/task 0"] > 1
    calm, quiet, _ = after([0], every=1, moved=False)
    calm.activate(1)
    for _ in range(8 * 60):
        quiet.term("q")
    assert quiet.watch()["drift/q/task 0"] < 1e-6


# --- rows of the tasks' memories ---------------------------------------------------------


def with_memories(**options) -> tuple[MultiHeadQ, DistillationRegularizer, dict[str, Rows]]:
    q = make_q(3)
    memories = {"one": Rows(transitions(9, seed=1)), "two": Rows(transitions(5, seed=2))}
    regularizer = DistillationRegularizer(2.0, **{"seed": 0, "every": 1, **options})
    regularizer.bind(Learner({"q": q}), memories)
    for head, task in enumerate(memories):
        regularizer.remember(task, {"q": context(q, head)})
    return q, regularizer, memories


def test_only_answers_are_kept_and_rows_come_from_the_memory():
    q, regularizer, memories = with_memories(batch_size=400)
    kept = regularizer.state_dict()["kept"]
    assert set(kept["one"]["q"]) == {"head", "outputs", "unit", "version"}
    with torch.no_grad():
        assert torch.equal(kept["one"]["q"]["outputs"], q(memories["one"].rows.observation, head=0))
    jolt(q)
    q.activate(2)
    with torch.no_grad():
        errors = [
            (q(rows.rows.observation, head=head) - kept[task]["q"]["outputs"]).square().mean()
            for head, (task, rows) in enumerate(memories.items())
        ]
    got = np.mean([regularizer.penalty().item() for _ in range(40)])
    assert got == pytest.approx(2.0 * float(sum(errors)) / 2, rel=0.05)


def test_rows_that_changed_are_answered_again_by_the_head():
    q, regularizer, memories = with_memories()
    jolt(q)
    q.activate(2)
    assert regularizer.penalty() > 1e-4
    for memory in memories.values():
        memory.rows, memory.version = transitions(7, seed=8), 1
    assert regularizer.penalty().item() == pytest.approx(0, abs=1e-20)  # held to what it answers now
    jolt(q, seed=1)
    assert regularizer.penalty() > 1e-4
    memories["one"].rows, memories["one"].version = transitions(4, seed=9), 2
    regularizer.remember("one", {"q": context(q, 0)})  # the end of a revisit
    with torch.no_grad():
        expected = q(transitions(4, seed=9).observation, head=0)
    assert torch.equal(regularizer.kept["one"]["q"]["outputs"], expected)


def test_a_memory_that_is_gone_or_empty():
    q, regularizer, memories = with_memories()
    q.activate(2)
    del memories["one"]
    with pytest.raises(OwlStateError, match="its memory is not there"):
        regularizer.penalty()
    regularizer.forget("one")
    regularizer.penalty()
    memories["three"] = Rows(transitions(0))
    regularizer.remember("three", {"q": context(q, 1)})
    assert "inputs" in regularizer.kept["three"]["q"]  # it keeps what it was given


def test_answers_come_back_with_the_memories(tmp_path):
    q, regularizer, memories = with_memories()
    save_state(tmp_path / "state", regularizer.state_dict())
    later = DistillationRegularizer(2.0, every=1)
    later.load_state_dict(load_state(tmp_path / "state"))
    later.bind(Learner({"q": q}), memories)
    jolt(q)
    q.activate(2)
    for _ in range(3):
        assert torch.equal(later.penalty(), regularizer.penalty())


def test_cost_does_not_grow_with_tasks():
    q = make_q(61)
    memories = {str(k): Rows(transitions(4, seed=k)) for k in range(60)}
    regularizer = DistillationRegularizer(seed=0)
    regularizer.bind(Learner({"q": q}), memories)
    for k in range(60):
        regularizer.remember(str(k), {"q": context(q, k)})
    q.activate(60)
    before = sum(m.asked for m in memories.values())
    regularizer.term("q")
    assert sum(m.asked for m in memories.values()) - before == MOST_TASKS
