"""`EWCRegularizer` against the sum over tasks written out, and against everything that must not move."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam

from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.fisher import squared_gradients
from owlrl.heads import MultiHeadQ, promote_output_layers
from owlrl.protocols import Consolidation, MultiHead, Regularizer
from owlrl.regularizers import EWCRegularizer
from tests.regularizers.helpers import (
    OPTIMIZERS,
    Learner,
    assert_same_tree,
    context,
    gradients,
    jolt,
    make_q,
    observations,
    weights,
)

Terms = dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]]


def importance_of(c: Consolidation, kind: str = "output") -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Importance and anchor by the definition: a row at a time, through the task's own head."""
    own = {**c.network.shared_parameters(), **c.network.head_parameters(c.head)}
    total = {name: torch.zeros_like(p) for name, p in own.items()}
    function = c.output if kind == "output" else c.loss
    rows = len(c.inputs[0])
    for row in range(rows):
        out = c.network(*(x[row : row + 1] for x in c.inputs), head=c.head)
        value = function(out, *(t[row : row + 1] for t in c.targets)).sum()
        for name, grad in zip(own, torch.autograd.grad(value, list(own.values())), strict=True):
            total[name] += grad.square() / rows
    return total, {name: p.detach().clone() for name, p in own.items()}


def sum_over_tasks(q: MultiHead, terms: Terms, strength: float) -> Tensor:
    """Σ_tasks ½ λ Σ F (θ − θ*)² over shared parameters and the active head."""
    own = {**q.shared_parameters(), **q.head_parameters(q.pointer.head)}
    total = torch.zeros((), dtype=torch.float64)
    for importance, anchor in terms.values():
        for name in set(importance) & set(own):
            total = total + 0.5 * strength * (importance[name] * (own[name] - anchor[name]) ** 2).sum()
    return total


def after(
    tasks: list[int], kind: str = "output", strength: float = 3.0
) -> tuple[MultiHeadQ, EWCRegularizer, Terms]:
    """A network that learned the given heads' tasks one after the other, and has moved since."""
    q, ewc, terms = make_q(max(tasks) + 2), EWCRegularizer(strength, importance=kind), {}
    for visit, head in enumerate(tasks):
        c = context(q, head, seed=visit)
        ewc.remember(f"task {head}", {"q": c})
        terms[f"task {head}"] = importance_of(c, kind)
        jolt(q, seed=visit)
    return q, ewc, terms


def train_step(q: MultiHeadQ, penalty: Tensor | float = 0.0, seed: int = 9) -> None:
    (q(observations(seed=seed)).square().mean() + penalty).backward()


# --- the formula ------------------------------------------------------------


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.sampled_from(["output", "loss"]),
    st.floats(0.1, 1000.0),
    st.data(),
)
def test_penalty_and_gradient_are_the_sum_over_tasks(tasks, kind, strength, data):
    q, ewc, terms = after(tasks, kind, strength)
    q.activate(data.draw(st.integers(0, q.num_heads - 1)))
    expected = sum_over_tasks(q, terms, strength)
    got = ewc.penalty()
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=0)
    own = {**q.shared_parameters(), **q.head_parameters(q.pointer.head)}
    wanted = torch.autograd.grad(expected, list(own.values()), allow_unused=True)
    for grad, want in zip(
        torch.autograd.grad(got, list(own.values()), allow_unused=True), wanted, strict=True
    ):
        assert (grad is None) == (want is None)
        if want is not None:
            torch.testing.assert_close(grad, want, rtol=1e-8, atol=1e-12)


@settings(max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.data())
def test_hook_adds_what_the_penalty_in_the_loss_would(tasks, data):
    q, ewc, _ = after(tasks)
    q.activate(data.draw(st.integers(0, q.num_heads - 1)))
    train_step(q, ewc.penalty())
    expected = gradients(q)
    q.zero_grad()
    optimizer = SGD(q.parameters(), lr=0.0)
    ewc.attach(optimizer)
    train_step(q)
    optimizer.step()
    for name, grad in gradients(q).items():
        assert (grad is None) == (expected[name] is None), name
        if grad is not None:
            torch.testing.assert_close(grad, expected[name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["output", "loss"])
@pytest.mark.parametrize("method", ["auto", "hooks", "vmap", "loop"])
def test_state_holds_importance_and_anchor_of_the_tasks_own_head(kind, method):
    q, ewc = make_q(3), EWCRegularizer(1.0, importance=kind, method=method)
    c = context(q, 1)
    q.activate(2)  # whatever is active, the task's head is asked
    ewc.remember("one", {"q": c})
    importance, anchor = importance_of(c, kind)
    state = ewc.state_dict()["kept"]["one"]["q"]
    assert list(state["importance"]) == ["trunk.0.weight", "trunk.0.bias", "heads.1.weight", "heads.1.bias"]
    for name in importance:
        torch.testing.assert_close(state["importance"][name], importance[name], rtol=1e-9, atol=1e-14)
        assert torch.equal(state["anchor"][name], anchor[name])
    assert q.pointer.head == 2


def test_anchor_stays_when_the_network_moves():
    q, ewc = make_q(), EWCRegularizer(1.0)
    ewc.remember("one", {"q": context(q, 0)})
    with torch.no_grad():
        q.all_heads(observations())  # moves the heads' storage
    before = {name: t.clone() for name, t in ewc.state_dict()["kept"]["one"]["q"]["anchor"].items()}
    jolt(q)
    assert_same_tree(ewc.state_dict()["kept"]["one"]["q"]["anchor"], before)


def test_a_revisit_replaces_its_own_term_and_no_other():
    q, ewc, terms = after([0, 1])
    c = context(q, 0, seed=7)
    ewc.remember("task 0", {"q": c})
    terms["task 0"] = importance_of(c)
    assert ewc.tasks == ["task 0", "task 1"]
    jolt(q, seed=5)
    torch.testing.assert_close(ewc.penalty(), sum_over_tasks(q, terms, 3.0), rtol=1e-9, atol=0)


def test_rows_are_limited_and_evenly_spread():
    q = make_q()
    few, all_rows = EWCRegularizer(1.0, max_samples=3), context(q, 0, rows=9)
    few.remember("one", {"q": all_rows})
    index = torch.tensor([0, 3, 6])
    own = {**q.shared_parameters(), **q.head_parameters(0)}
    expected = squared_gradients(
        q, all_rows.output, (all_rows.inputs[0][index],),
        targets=tuple(t[index] for t in all_rows.targets), parameters=own,
    )  # fmt: skip
    got = few.state_dict()["kept"]["one"]["q"]["importance"]
    for name in own:
        torch.testing.assert_close(got[name], expected[name])


def test_strength_per_network_and_zero_is_free(monkeypatch):
    actor, critic, free = make_q(seed=1), make_q(seed=2), make_q(seed=3)
    networks = {"actor": actor, "critic": critic, "free": free}
    strength = {"actor": 2.0, "critic": 50.0, "free": 0.0}
    ewc = EWCRegularizer(strength)
    ewc.bind(Learner(networks, None))
    contexts = {name: context(network, 0) for name, network in networks.items()}
    terms = {name: {"one": importance_of(c)} for name, c in contexts.items()}
    ewc.remember("one", contexts)
    assert set(ewc.state_dict()["kept"]["one"]) == {"actor", "critic"}
    for k, network in enumerate(networks.values()):
        jolt(network, seed=k)
    expected = sum(sum_over_tasks(networks[name], terms[name], strength[name]) for name in networks)
    torch.testing.assert_close(ewc.penalty(), expected, rtol=1e-9, atol=0)
    for name in ("actor", "critic"):  # an optimizer gets the gradient of its own network
        optimizer = SGD(networks[name].parameters(), lr=0.0)
        ewc.attach(optimizer)
        train_step(networks[name])
        before = gradients(networks[name])["trunk.0.weight"]
        optimizer.step()
        importance, anchor = terms[name]["one"]
        weight = networks[name].trunk[0].weight.detach()
        pull = strength[name] * importance["trunk.0.weight"] * (weight - anchor["trunk.0.weight"])
        torch.testing.assert_close(networks[name].trunk[0].weight.grad - before, pull, rtol=1e-9, atol=1e-12)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("strength 0 must compute nothing")

    monkeypatch.setattr("owlrl.regularizers.ewc.squared_gradients", refuse)
    nothing = EWCRegularizer(0.0)
    nothing.remember("one", {"q": context(actor, 0)})
    assert nothing.penalty().item() == 0 and nothing.tasks == []


# --- what must not move ------------------------------------------------------------


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("attached", [True, False])
def test_idle_heads_are_bit_identical(kind, set_to_none, attached):
    q, ewc = make_q(3), EWCRegularizer(100.0)
    optimizer = OPTIMIZERS[kind](list(q.parameters()))
    if attached:
        ewc.attach(optimizer)
    for head in (0, 1, 2, 0):
        q.activate(head)
        idle = {name: w for name, w in weights(q).items() if "heads" in name and f"heads.{head}." not in name}
        for step in range(4):
            optimizer.zero_grad(set_to_none=set_to_none)
            train_step(q, 0.0 if attached else ewc.penalty(), seed=step)
            optimizer.step()
        now = weights(q)
        assert all(torch.equal(now[name], w) for name, w in idle.items())
        assert all(p.grad is None for k in range(3) if k != head for p in q.head_parameters(k).values())
        ewc.remember(str(head), {"q": context(q, head, seed=head)})


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_before_the_first_consolidation_training_is_bit_equal_to_bare(kind):
    results = []
    for guarded in (False, True):
        q = make_q(dtype=torch.float32)
        optimizer = OPTIMIZERS[kind](list(q.parameters()))
        ewc = EWCRegularizer(1e6, max_grad_norm=1e-3)
        if guarded:
            ewc.bind(Learner({"q": q}, None))
            ewc.attach(optimizer)
        for step in range(5):
            optimizer.zero_grad()
            loss = q(observations(seed=step, dtype=torch.float32)).square().mean()
            (loss + ewc.penalty() if guarded else loss).backward()
            optimizer.step()
        results.append(weights(q))
    assert_same_tree(*results)


def test_parameters_without_gradient_and_of_other_optimizers_are_left_alone():
    q, ewc, _ = after([0])
    trunk, head = SGD(q.trunk.parameters(), lr=0.0), SGD(q.heads.parameters(), lr=0.0)
    ewc.attach(trunk)
    train_step(q)
    q.trunk[0].bias.grad = None
    before = gradients(q)
    head.step()
    assert_same_tree(gradients(q), before)  # that one is not attached
    trunk.step()
    now = gradients(q)
    assert now["trunk.0.bias"] is None
    assert not torch.equal(now["trunk.0.weight"], before["trunk.0.weight"])
    assert torch.equal(now["heads.0.weight"], before["heads.0.weight"])
    q.zero_grad()
    trunk.step()
    assert all(p.grad is None for p in q.parameters())


def test_consolidation_leaves_mode_gradients_and_random_numbers():
    torch.manual_seed(0)
    q = MultiHeadQ(nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)), 4, 2).double().train()
    train_step(q)
    before, seed = gradients(q), torch.get_rng_state()
    EWCRegularizer(1.0).remember("one", {"q": context(q, 0)})
    assert_same_tree(gradients(q), before)
    assert torch.equal(torch.get_rng_state(), seed)
    assert all(m.training for m in q.modules())


# --- the hook ------------------------------------------------------------


def test_attached_twice_is_refused_and_detach_detaches():
    q, ewc, _ = after([0])
    optimizer, other = SGD(q.parameters(), lr=0.0), SGD(q.parameters(), lr=0.0)
    ewc.attach(optimizer)
    ewc.attach(other)
    with pytest.raises(OwlStateError, match="attached already"):
        ewc.attach(optimizer)
    ewc.detach()
    train_step(q)
    before = gradients(q)
    optimizer.step()
    other.step()
    assert_same_tree(gradients(q), before)
    assert not optimizer._optimizer_step_pre_hooks
    ewc.attach(optimizer)
    optimizer.step()
    assert not torch.equal(q.trunk[0].weight.grad, before["trunk.0.weight"])
    with pytest.raises(OwlTypeError, match="optimizer is a list"):
        ewc.attach([])  # type: ignore[arg-type]


def test_growth_moving_and_head_switches_are_followed():
    q, ewc, terms = after([0, 1], strength=2.0)
    optimizer = SGD(q.parameters(), lr=0.0)
    ewc.attach(optimizer)

    def pull() -> dict[str, Tensor]:
        q.zero_grad()
        train_step(q)
        before = gradients(q)
        optimizer.step()
        return {name: g - before[name] for name, g in gradients(q).items() if g is not None}

    assert pull()["heads.0.weight"].abs().max() > 0
    q.activate(q.add_head(optimizer=optimizer))
    new = f"heads.{q.pointer.head}.weight"
    assert not pull()[new].any()
    c = context(q, q.pointer.head)
    ewc.remember("new", {"q": c})
    terms["new"] = importance_of(c)
    jolt(q)
    assert pull()[new].abs().max() > 0
    q.activate(1)
    assert pull()["heads.1.weight"].abs().max() > 0
    expected = pull()["trunk.0.weight"]
    q.float()
    q.zero_grad()
    q(observations(dtype=torch.float32)).square().mean().backward()
    before = q.trunk[0].weight.grad.clone()
    optimizer.step()
    assert q.trunk[0].weight.grad.dtype == torch.float32
    torch.testing.assert_close((q.trunk[0].weight.grad - before).double(), expected, rtol=1e-3, atol=1e-5)
    assert ewc.penalty().dtype == torch.float32


def test_gradients_are_clipped_with_the_penalty_in_them():
    q, ewc, _ = after([0], strength=1e5)
    loose, tight = EWCRegularizer(1e5), EWCRegularizer(1e5, max_grad_norm=0.5)
    for regularizer in (loose, tight):
        regularizer.load_state_dict(ewc.state_dict())
        regularizer.bind(Learner({"q": q}, None))
    norms = []
    for regularizer in (loose, tight):
        optimizer = SGD(q.parameters(), lr=0.0)
        regularizer.attach(optimizer)
        q.zero_grad()
        train_step(q)
        optimizer.step()
        flat = torch.cat([p.grad.flatten() for p in q.parameters() if p.grad is not None])
        norms.append((float(flat.norm()), flat / flat.norm()))
        regularizer.detach()
    assert norms[0][0] > 0.5 and norms[1][0] == pytest.approx(0.5, rel=1e-5)
    torch.testing.assert_close(norms[0][1], norms[1][1])


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_does_not_scale_the_penalty(fused):
    results = []
    for scaled in (False, True):
        q, ewc, _ = after([0], strength=20.0)
        q.float()
        ewc.max_grad_norm = 0.7
        optimizer = Adam(q.parameters(), lr=0.1, fused=fused)
        ewc.attach(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=scaled)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(q(observations(seed=step, dtype=torch.float32)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append(weights(q))
    for name, weight in results[0].items():
        torch.testing.assert_close(results[1][name], weight, rtol=1e-4, atol=1e-6)


def test_a_closure_is_refused_since_its_gradients_come_after_the_hook():
    q, ewc, _ = after([0])
    optimizer = LBFGS(q.parameters())
    ewc.attach(optimizer)
    for step in (lambda: optimizer.step(lambda: 0.0), lambda: optimizer.step(closure=lambda: 0.0)):
        with pytest.raises(OwlStateError, match=r"penalty\(\) to the loss inside the closure"):
            step()


def test_gradients_accumulated_and_zeroed_in_place_get_the_pull_once():
    q, ewc, terms = after([0], strength=2.0)
    optimizer = SGD(q.parameters(), lr=0.0)
    ewc.attach(optimizer)
    optimizer.zero_grad(set_to_none=False)
    for _ in range(3):
        train_step(q)
    accumulated = gradients(q)["trunk.0.weight"]
    optimizer.step()
    importance, anchor = terms["task 0"]
    pull = 2.0 * importance["trunk.0.weight"] * (q.trunk[0].weight.detach() - anchor["trunk.0.weight"])
    torch.testing.assert_close(q.trunk[0].weight.grad, accumulated + pull, rtol=1e-9, atol=1e-12)


# --- saving ------------------------------------------------------------


def test_state_comes_back_to_the_bit_with_and_without_networks():
    q, ewc, _ = after([0, 1, 0])
    state = ewc.state_dict()
    later = EWCRegularizer(3.0)
    later.load_state_dict(state)
    assert_same_tree(later.state_dict(), state)
    with pytest.raises(OwlStateError, match=r"not known; call bind"):
        later.penalty()
    later.bind(Learner({"q": q}))
    assert torch.equal(later.penalty(), ewc.penalty())
    kept = later.state_dict()["kept"]["task 0"]["q"]["anchor"]["trunk.0.bias"].clone()
    state["kept"]["task 0"]["q"]["anchor"]["trunk.0.bias"].add_(1.0)  # its own copies were taken
    assert torch.equal(later.state_dict()["kept"]["task 0"]["q"]["anchor"]["trunk.0.bias"], kept)


def test_misfits_are_named_all_at_once_and_change_nothing():
    q, ewc, _ = after([0])
    other = MultiHeadQ(nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 5)), 5, 2).double()
    state = ewc.state_dict()
    fresh = EWCRegularizer(1.0)
    fresh.load_state_dict(state)
    with pytest.raises(OwlValueError, match="2 problems") as caught:
        fresh.bind(Learner({"q": other}))
    assert "trunk.0.weight" in str(caught.value) and "(5, 3)" in str(caught.value)
    fresh.bind(Learner({"q": q}))
    bound = EWCRegularizer(1.0)
    bound.bind(Learner({"q": other}))
    with pytest.raises(OwlValueError, match="2 problems"):
        bound.load_state_dict(state)
    assert bound.tasks == []
    with pytest.raises(OwlValueError, match="kept for network 'q'"):
        fresh.bind(Learner({"critic": q}))
    small = EWCRegularizer(1.0)
    small.load_state_dict(
        {"kept": {"t": {"q": {"importance": {"x": torch.ones(1)}, "anchor": {"x": torch.ones(1)}}}}}
    )
    with pytest.raises(OwlValueError, match="has 'x', which the network has not"):
        small.remember("u", {"q": context(q, 0)})


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({}, 'no "kept"'),
        ([], 'no "kept"'),
        ({"kept": {"q": 3}}, "cannot be read"),
        ({"kept": {"t": {"q": {"importance": {}}}}}, "cannot be read"),
        ({"kept": {"t": {"q": {"importance": {"a": 1.0}, "anchor": {"a": 1.0}}}}}, "cannot be read"),
        ({"kept": {"t": {"q": {"importance": {"a": torch.ones(1)}, "anchor": {}}}}}, "different parameters"),
        (
            {"kept": {"t": {"q": {"importance": {"a": torch.ones(1)}, "anchor": {"a": torch.ones(2)}}}}},
            "anchor",
        ),
        (
            {"kept": {"t": {"q": {"importance": {"a": -torch.ones(1)}, "anchor": {"a": torch.ones(1)}}}}},
            "negative",
        ),
        (
            {
                "kept": {
                    "t": {
                        "q": {
                            "importance": {"a": torch.ones(1)},
                            "anchor": {"a": torch.full((1,), torch.inf)},
                        }
                    }
                }
            },
            "not finite",
        ),
    ],
)
def test_bad_states_are_refused(state, message):
    _, ewc, _ = after([0])
    before = ewc.state_dict()
    with pytest.raises(OwlValueError, match=message):
        ewc.load_state_dict(state)
    assert_same_tree(ewc.state_dict(), before)


# --- bad input ------------------------------------------------------------


@pytest.mark.parametrize(
    "strength", [-1.0, float("nan"), float("inf"), True, "1", None, {}, {"q": -1.0}, {"q": "x"}]
)
def test_bad_strengths(strength):
    with pytest.raises(OwlValueError, match="strength is"):
        EWCRegularizer(strength)


def test_constructor_names_all_problems_and_keeps_its_arguments():
    with pytest.raises(OwlValueError) as caught:
        EWCRegularizer(-1, importance="fisher", max_samples=0, max_grad_norm=0.0, method="fast")  # type: ignore[arg-type]
    assert "5 problems" in str(caught.value)
    strength = {"q": 1.0}
    ewc = EWCRegularizer(strength, importance="loss", max_samples=7, max_grad_norm=2, method="loop")
    assert ewc.strength is strength and ewc.max_grad_norm == 2
    assert (ewc.importance, ewc.max_samples, ewc.method) == ("loss", 7, "loop")
    assert isinstance(ewc, Regularizer) and "tasks=[]" in repr(ewc)


def bad_contexts() -> dict[str, tuple[object, object, str]]:
    q = make_q(2)
    good, x, a = context(q, 0), observations(), torch.zeros(6, dtype=torch.int64)

    def variant(head: object = 0, inputs: tuple = (x,), targets: tuple = (a,), network: object = q) -> dict:
        return {"q": Consolidation(network, head, inputs, targets, good.output, good.loss)}

    return {
        "task": (3, {"q": good}, "task is 3"),
        "empty task": ("", {"q": good}, "task is ''"),
        "no context": ("t", {}, "context is {}"),
        "context": ("t", None, "context is None"),
        "entry": ("t", {"q": 3}, "is a int; expected a Consolidation"),
        "network": ("t", variant(network=nn.Linear(1, 1)), "is a Linear; expected a MultiHead"),
        "head -1": ("t", variant(head=-1), "head is -1"),
        "head n": ("t", variant(head=2), "head is 2"),
        "head True": ("t", variant(head=True), "head is True"),
        "head float": ("t", variant(head=1.0), "head is 1.0"),
        "head str": ("t", variant(head="a"), "head is 'a'"),
        "no inputs": ("t", variant(inputs=()), "tuples of tensors"),
        "arrays": ("t", variant(inputs=([1.0],)), "tuples of tensors"),
        "no rows": ("t", variant(inputs=(x[:0],), targets=(a[:0],)), r"\[0, 0\] rows"),
        "lengths": ("t", variant(targets=(a[:3],)), r"\[6, 3\] rows"),
    }


@pytest.mark.parametrize("name", bad_contexts())
def test_bad_consolidations_change_nothing(name):
    task, bad, message = bad_contexts()[name]
    _, ewc, _ = after([0])
    before = ewc.state_dict()
    with pytest.raises(OwlValueError, match=message):
        ewc.remember(task, bad)
    assert_same_tree(ewc.state_dict(), before)


def test_strengths_must_cover_the_networks():
    q = make_q()
    ewc = EWCRegularizer({"q": 1.0})
    with pytest.raises(
        OwlValueError, match=r"strength is for \['q'\]; expected the networks \['actor', 'q'\]"
    ):
        ewc.bind(Learner({"q": q, "actor": q}))
    with pytest.raises(OwlValueError, match="expected the networks"):
        EWCRegularizer({"q": 1.0, "typo": 1.0}).bind(Learner({"q": q}))
    with pytest.raises(OwlValueError, match="expected the networks"):
        ewc.remember("t", {"critic": context(q, 0)})
    with pytest.raises(OwlValueError, match="expected a MultiHead"):
        ewc.bind(Learner({"q": nn.Linear(1, 1)}))  # type: ignore[dict-item]
    EWCRegularizer({"q": 1.0, "other": 1.0}).remember("t", {"q": context(q, 0)})  # bare: one at a time


def test_what_is_not_finite_is_refused_before_anything_changes():
    q, ewc, _ = after([0])
    before = ewc.state_dict()
    c = context(q, 0)
    c.inputs[0][0, 0] = torch.nan
    with pytest.raises(NonFiniteError, match=r"trunk\.0\.weight"):
        ewc.remember("task 0", {"q": c})
    with torch.no_grad():
        q.heads[0].bias[0] = torch.inf
    with pytest.raises(NonFiniteError, match=r"parameter 'heads\.0\.bias' is not finite"):
        ewc.remember("task 0", {"q": context(q, 0)})
    assert_same_tree(ewc.state_dict(), before)


def test_running_statistics_are_warned_about_once():
    torch.manual_seed(0)
    q = MultiHeadQ(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), 4, 2).double()
    ewc = EWCRegularizer(1.0)
    with pytest.warns(UserWarning, match="running statistics"):
        ewc.remember("one", {"q": context(q, 0)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ewc.remember("two", {"q": context(q, 0)})
        EWCRegularizer(0.0).remember("one", {"q": context(q, 0)})
        q = MultiHeadQ(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4)), 4, 2).double()
        EWCRegularizer(1.0).remember("one", {"q": context(q, 0)})


# --- what it is for ------------------------------------------------------------


def test_promoted_networks_are_guarded_too():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    heads, ewc = promote_output_layers(network), EWCRegularizer(4.0)
    heads.add_head()
    terms = {}
    for head in (0, 1):
        c = context(heads, head, seed=head)
        ewc.remember(str(head), {"q": c})
        terms[str(head)] = importance_of(c)
        jolt(network, seed=head)
    torch.testing.assert_close(ewc.penalty(), sum_over_tasks(heads, terms, 4.0), rtol=1e-9, atol=0)


@pytest.mark.parametrize("attached", [True, False])
def test_the_first_tasks_answers_move_less_with_it(attached):
    x, drift = observations(64), {}
    for strength in (0.0, 1e4):
        q, ewc = make_q(2), EWCRegularizer(strength)
        optimizer = SGD(q.parameters(), lr=0.02)
        if attached:
            ewc.attach(optimizer)
        with torch.no_grad():
            learned = q(x, head=0).clone()
        ewc.remember("one", {"q": context(q, 0, rows=64)})
        q.activate(1)
        ewc.max_grad_norm = 1.0
        for step in range(100):
            optimizer.zero_grad()
            error = (q(observations(32, seed=step)) - 3.0).square().mean()
            (error if attached else error + ewc.penalty()).backward()
            nn.utils.clip_grad_norm_(q.parameters(), 1.0)
            optimizer.step()
        with torch.no_grad():
            drift[strength] = float((q(x, head=0) - learned).square().mean())
    assert drift[1e4] < 0.1 * drift[0.0]
