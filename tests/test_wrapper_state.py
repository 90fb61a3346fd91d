"""Putting a wrapper's state back: all of it, or nothing, whatever goes wrong and wherever."""

import copy
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from owlrl import EWCRegularizer, MultiHeadQ, OwlWrapper, QLearner
from owlrl.checkpoint import get_rng_state, load_state, save_state
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.wrapper_state import TaskRecord, restore_wrapper, same_state, wrapper_state
from scripts.faults.loads import (
    LEARNERS,
    copied,
    everything,
    failed_loads,
    interrupted,
    interrupted_loads,
    trained_state,
    wrapped,
)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    return {kind: trained_state(kind, tmp_path_factory.mktemp("states")) for kind in LEARNERS}


def restore(owl, state, **options):
    return restore_wrapper(owl.learner, state, owl._parts(), **options)


def assert_refused_without_a_trace(owl, state, message, *, kind=OwlValueError):
    before = everything(owl)
    with pytest.raises(kind, match=message):
        restore(owl, state)
    after = everything(owl)
    assert not [key for key in before if not same_state(before[key], after[key])]


@pytest.mark.parametrize("kind", LEARNERS)
def test_a_good_state_is_taken_whole(kind, states):
    _, owl = wrapped(kind, seed=9)
    generators = get_rng_state()
    records = restore(owl, states[kind])
    assert {name: record.head for name, record in records.items()} == {"task 0": 0, "task 1": 1}
    owl._pointer.index = states[kind]["active"]
    again = wrapper_state(owl.learner, records, owl._parts())
    assert [key for key in again if not same_state(again[key], states[kind][key])] == ["rng"]
    assert not same_state(generators, states[kind]["rng"])  # which are left to the caller


def test_an_interrupt_between_a_block_and_its_end_points_at_no_other_head(states):
    for _ in range(2):  # the first load of a process has more lines
        _, owl = wrapped("DQN", seed=9)
        with interrupted(-1) as counted:
            restore(owl, copied(states["DQN"]))
    for back in range(12):
        _, owl = wrapped("DQN", seed=9)
        with pytest.raises(KeyboardInterrupt), interrupted(counted[0] - back):
            restore(owl, copied(states["DQN"]))
        assert owl._pointer.index == 0


@pytest.mark.parametrize("kind", ["DQN", "SAC"])
def test_a_state_with_one_thing_wrong_changes_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.faults.loads.LEARNERS", {kind: LEARNERS[kind]})
    outcome = failed_loads(20, random.Random(1), tmp_path)
    assert outcome.runs == 20 and not outcome.faults


@pytest.mark.parametrize("kind", ["DQN with heads", "TD3"])
def test_an_interrupted_load_changes_nothing(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("scripts.faults.loads.LEARNERS", {kind: LEARNERS[kind]})
    outcome = interrupted_loads(6, random.Random(2), tmp_path)
    assert outcome.runs == 6 and not outcome.faults


@pytest.mark.parametrize("kind", ["DQN", "SAC"])
@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("optimizers",), ..., "the state has no 'optimizers'"),
        (("gamma",), "high", "'gamma' is a str; expected a float"),
        (("active",), True, "'active' is a bool"),
        (("active",), 2, "the active head is 2; expected one of 2"),
        (("heads",), [4] * 1_000_000, "expected the sizes of up to"),
        (("heads",), [], "expected the sizes of up to"),
        (("heads",), ["4", "4"], "expected the sizes of up to"),
        (("rng", "torch"), torch.zeros(3), "the generators' states were not taken"),
        (("rng", "python"), ..., "the generators' states were not taken"),
        (("tasks", "task 1", "head"), 7, "task 'task 1' was saved with head 7; expected one of 2"),
        (("tasks", "task 1", "head"), ..., "task 'task 1' was saved as"),
        (("tasks", "task 1", "visits"), -1, "with -1 visits"),
        (("tasks", "task 1", "num_actions"), 0, "with num_actions=0"),
        (("tasks", "task 1", "own"), {"other": {}}, "expected one of each of"),
        (("tasks", "task 0", "own", "counter"), 3, "a state of 'counter' that is 3"),
        (("tasks", "task 0", "own", "counter", "state", "calls"), ..., r"per_task\['counter'\] did not take"),
        (("per_task", "counter", "state"), None, "per_task has a state of 'counter' that is"),
        (("parts", "replay", "state"), {}, "the replay, a TaskScopedReplay, did not take what was saved"),
        (("parts", "replay"), [], "the state of the replay is"),
        (("parts", "regularizer"), ..., "regularizer is EWCRegularizer, but None was saved"),
        (("parts", "evidence", "kind"), "Other", "but Other was saved; pass the same"),
    ],
)
def test_what_is_wrong_is_named(kind, path, value, message, states):
    _, owl = wrapped(kind, seed=9)
    state = node = copied(states[kind])
    for key in path[:-1]:
        node = node[key]
    if value is ...:
        del node[path[-1]]
    else:
        node[path[-1]] = value
    assert_refused_without_a_trace(owl, state, message)


@pytest.mark.parametrize("value", [None, [], "text"])
def test_what_is_no_state_is_named(value):
    assert_refused_without_a_trace(wrapped("DQN")[1], value, "expected what OwlWrapper.save wrote")


def test_weights_and_moments_must_have_their_shape_and_type(states):
    _, owl = wrapped("DQN", seed=9)
    weight = states["DQN"]["networks"]["q"]["4.extra_heads.0.weight"]
    for value, message in [
        (weight[:2], r"'4.extra_heads.0.weight' of shape \(4, 32\), but \(2, 32\) was saved"),
        (weight.double(), r"but \(4, 32\) of torch.float64 was saved"),
        ("text", "a str; expected a tensor"),
    ]:
        state = copied(states["DQN"])
        state["networks"]["q"]["4.extra_heads.0.weight"] = value
        assert_refused_without_a_trace(owl, state, message)
    for value in (weight[:2], "text"):
        state = copied(states["DQN"])
        state["optimizers"]["q"]["state"][6]["exp_avg"] = value
        assert_refused_without_a_trace(owl, state, "exp_avg of parameter 6 of .*expected")
    for value, message in [([3], "parameter 6"), (None, "parameter 6")]:
        state = copied(states["DQN"])
        state["optimizers"]["q"]["state"][6] = value
        assert_refused_without_a_trace(owl, state, message)
    state = copied(states["DQN"])
    state["optimizers"]["q"]["param_groups"][0]["params"].pop()
    assert_refused_without_a_trace(owl, state, r"has groups of \[8\] parameters, but \[7\]")
    state["optimizers"]["q"]["param_groups"][0]["params"] = [{}]
    assert_refused_without_a_trace(owl, state, "expected an optimizer's state_dict")


class Stubborn:
    """Changes in every way there is, then fails; at the first load, or at every one."""

    def __init__(self, fails):
        self.budget = SimpleNamespace(fails=fails)
        self.tensor, self.array = torch.ones(3, requires_grad=True), np.ones(3)
        self.tensor.grad = torch.full((3,), 5.0)
        self.inner, self.numbers, self.known = {"a": torch.ones(2)}, [1, 2], {0: 0.5}
        self.optimizer = torch.optim.SGD([self.tensor], lr=0.1, momentum=0.9)
        self.optimizer.state[self.tensor]["momentum_buffer"] = torch.full((3,), 7.0)

    def state_dict(self):
        return {
            "tensor": self.tensor.detach(),
            "a": self.inner["a"],
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state_dict, /):
        self.known[len(self.known)] = 1.0  # told by no state_dict
        self.numbers = [*self.numbers, 3]
        self.new = True
        self.array += 1
        with torch.no_grad():
            self.tensor.copy_(state_dict["tensor"])
        self.tensor.grad = None
        self.inner["a"] = state_dict["a"].clone()
        self.optimizer.load_state_dict(state_dict["optimizer"])
        if self.budget.fails:
            self.budget.fails -= 1
            raise KeyError("half done")


def attributes(item):
    plain = {key: value for key, value in vars(item).items() if key not in ("optimizer", "budget")}
    return copy.deepcopy({**plain, "optimizer": item.optimizer.state_dict(), "grad": item.tensor.grad})


@pytest.mark.parametrize("fails", [1, 10])
@pytest.mark.parametrize("as_part", [True, False])
def test_somebody_s_object_that_fails_half_way_is_put_back(fails, as_part):
    def learner_and_parts(item, seed):
        torch.manual_seed(seed)
        q = MultiHeadQ(nn.Linear(2, 4), 4, 3)
        per_task = {} if as_part else {"item": item}
        learner = QLearner(q, copy.deepcopy(q), torch.optim.Adam(q.parameters()), per_task=per_task)
        return learner, {"replay": None, **({"item": item} if as_part else {})}

    good, parts = learner_and_parts(Stubborn(0), 0)
    good.add_head()
    with torch.no_grad():
        (good.per_task["item"] if not as_part else parts["item"]).tensor.fill_(3.0)
    state = wrapper_state(good, {"a": TaskRecord(0), "b": TaskRecord(1)}, parts)
    item = Stubborn(fails)
    learner, parts = learner_and_parts(item, 1)
    before, networks = attributes(item), copy.deepcopy(learner.q.state_dict())
    tensors = [item.tensor, item.array, item.known]
    with pytest.raises(OwlValueError, match=r"did not take what was saved \(KeyError: 'half done'\)"):
        restore_wrapper(learner, state, parts)
    assert same_state(attributes(item), before) and same_state(learner.q.state_dict(), networks)
    assert all(a is b for a, b in zip(tensors, [item.tensor, item.array, item.known], strict=True))
    item.budget.fails = 0
    assert set(restore_wrapper(learner, state, parts)) == {"a", "b"} and learner.q.num_heads == 2
    assert item.tensor.tolist() == [3.0] * 3


def test_what_cannot_be_put_back_is_named():
    class Lossy(Stubborn):
        def load_state_dict(self, state_dict, /):
            object.__setattr__(self.hidden, "value", 5)
            raise ValueError("no")

        def state_dict(self):
            return {"value": self.hidden.value}

    item = Lossy(0)
    item.hidden = type("Hidden", (), {"value": 1})()
    q = MultiHeadQ(nn.Linear(2, 4), 4, 3)
    learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1))
    state = wrapper_state(learner, {}, {"item": item})
    with pytest.raises(OwlStateError, match="and item could not be put back as before"):
        restore_wrapper(learner, state, {"item": item})


def test_heads_that_cannot_be_removed_are_named(states, monkeypatch):
    _, owl = wrapped("DQN", seed=9)
    monkeypatch.delattr(type(owl.learner.networks["q"]), "remove_last_head")
    state = copied(states["DQN"])
    state["per_task"]["counter"]["state"] = {}
    weight = owl.learner.q[0].weight.clone()
    with pytest.raises(OwlStateError, match="the heads could not be put back as before"):
        restore(owl, state)
    assert torch.equal(owl.learner.q[0].weight, weight)


@pytest.mark.parametrize(("kind", "after"), [("DQN", 0), ("DQN", 1), ("SAC", 0), ("SAC", 2), ("SAC", 4)])
def test_heads_that_were_made_are_removed_again(kind, after, states, monkeypatch):
    """Also where a network has its head already and its target or the next network has not."""
    _, owl = wrapped(kind, seed=9)
    cls = type(next(iter(owl.learner.networks.values())))
    calls, add = [], cls.add_head

    def failing(self, **options):
        calls.append(self)
        if len(calls) > after:
            raise RuntimeError("no more heads")
        return add(self, **options)

    monkeypatch.setattr(cls, "add_head", failing)
    assert_refused_without_a_trace(owl, states[kind], r"head 1 did not take .*no more heads")
    monkeypatch.undo()
    assert len(restore(owl, states[kind])) == 2


def test_a_head_whose_task_is_gone_is_made_too(states):
    state = copied(states["DQN with heads"])
    del state["tasks"]["task 1"]
    state["active"] = 0
    _, owl = wrapped("DQN with heads", seed=9)
    assert list(restore(owl, state)) == ["task 0"] and owl.learner.q.num_heads == 2


def test_a_head_of_another_size_whose_task_is_gone_is_made_too():
    def learner():
        q = MultiHeadQ(nn.Linear(2, 4), 4, 3)
        return QLearner(q, copy.deepcopy(q), torch.optim.Adam(q.parameters()))

    first, second = learner(), learner()
    first.add_head(num_actions=5)
    restore_wrapper(second, wrapper_state(first, {}, {}), {})
    assert same_state(first.q.state_dict(), second.q.state_dict())


def test_for_acting_optimizers_are_passed_over(states):
    _, owl = wrapped("DQN", seed=9)
    state = copied(states["DQN"])
    state["optimizers"], state["kinds"] = {}, {}
    with pytest.raises(OwlValueError, match="optimizers"):
        restore(owl, state)
    before = copy.deepcopy(owl.learner.optimizer.state_dict()["state"])
    parts = {"evidence": owl.evidence}
    restore_wrapper(owl.learner, state, parts, acting=True)
    assert same_state(dict(owl.learner.networks["q"].module.state_dict()), state["networks"]["q"])
    assert same_state(owl.learner.optimizer.state_dict()["state"], before)


def test_a_scheduler_and_its_optimizer_are_put_back():
    def learner():
        q = MultiHeadQ(nn.Linear(2, 4), 4, 3)
        optimizer = torch.optim.SGD(q.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return QLearner(q, None, optimizer, per_task={"lr": schedule, "later": Stubborn(0)})

    first, second = learner(), learner()
    first.optimizer.step()
    first.per_task["lr"].step()
    state = wrapper_state(first, {}, {})
    second.per_task["later"].budget.fails = 1
    with pytest.raises(OwlValueError, match="half done"):
        restore_wrapper(second, state, {})
    assert second.optimizer.param_groups[0]["lr"] == 1.0 and second.per_task["lr"].last_epoch == 0
    restore_wrapper(second, state, {})
    assert second.optimizer.param_groups[0]["lr"] == 0.5 and second.per_task["lr"].last_epoch == 1


def test_a_failed_load_of_a_wrapper_leaves_the_script_as_it_was(tmp_path):
    _, owl = wrapped("DQN")
    save_state(tmp_path / "s", wrapper_state(owl.learner, owl.tasks, owl._parts()))
    state = load_state(tmp_path / "s")
    state["per_task"]["counter"]["state"] = {}
    save_state(tmp_path / "s", state)
    fresh = LEARNERS["DQN"](9)
    learner = fresh.learner(per_task=dict(owl.learner.per_task))
    objects = (fresh.q, fresh.target, fresh.optimizer)
    before = copy.deepcopy([item.state_dict() for item in objects]), get_rng_state()
    with pytest.raises(OwlValueError, match="counter"):
        OwlWrapper.load(tmp_path / "s", learner, regularizer=EWCRegularizer(10.0))
    assert same_state(before, ([item.state_dict() for item in objects], get_rng_state()))
    assert type(fresh.q[-1]) is nn.Linear


def test_same_state_sees_every_difference():
    tree = {"a": [torch.ones(2), np.ones(2)], "b": {"c": 1, "d": "x", "e": None}}
    assert same_state(tree, copy.deepcopy(tree))
    for change in [
        {"a": [torch.ones(2).double(), np.ones(2)]},
        {"a": [torch.ones(2, 1), np.ones(2)]},
        {"a": [torch.ones(2), np.ones(2, np.float32)]},
        {"a": [torch.ones(2), -np.ones(2)]},
        {"a": [torch.ones(2)]},
        {"b": {"c": 1.0, "d": "x", "e": None}},
        {"b": {"c": 1, "d": "x"}},
        {"b": None},
    ]:
        assert not same_state(tree, {**tree, **change})


def test_states_of_other_types_and_of_one_nan_are_not_the_same():
    assert not same_state(torch.zeros(2), torch.zeros(2, dtype=torch.int32))
    assert not same_state(torch.zeros(2), torch.zeros(1, 2))
    assert not same_state(float("nan"), 1.0) and not same_state(1.0, float("nan"))
    assert same_state(torch.ones(2), torch.ones(2)) and same_state(float("nan"), float("nan"))


def test_extra_state_of_a_network_need_not_be_a_tensor():
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"seen": 3}

        def set_extra_state(self, state):
            self.seen = state["seen"]

    def made():
        q = MultiHeadQ(Extra(2, 4), 4, 2)
        return QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1))

    learner = made()
    restore_wrapper(learner, wrapper_state(made(), {}, {}), {})
    assert learner.networks["q"].module.trunk.seen == 3
