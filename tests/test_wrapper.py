"""OwlWrapper end to end: the point of the library, exceptions, bit equality, save and load."""

import copy
import pickle
import subprocess
import sys
import threading
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from owlrl import (
    DistillationRegularizer,
    EWCRegularizer,
    ExpWeightsSelector,
    MultiHeadQ,
    OracleSelector,
    OwlWrapper,
    QLearner,
    RewardEvidence,
    TDErrorEvidence,
    UniformSelector,
)
from owlrl.errors import NonFiniteError, OwlError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.td import taken
from tests import own_actor_critic
from tests.own_dqn import SIZE, Signs, make_replay, make_script, score, train
from tests.rows import rows_of

TASKS = {"same": Signs(0), "next": Signs(1)}


class Epsilon:
    """An exploration schedule as people write them."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return 1.0 / self.calls

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


def weights(script) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in script.q.state_dict().items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


# ------------------------------------------------------------------------------- the point


@pytest.mark.parametrize(
    ("kind", "replay"),
    [("plain", "scoped"), ("plain", "deque"), ("multihead", "scoped"), ("dueling", "scoped")],
)
def test_two_tasks_that_contradict_each_other_are_both_learned(kind, replay):
    script = make_script(kind, replay=replay)
    owl = OwlWrapper(script.learner(), regularizer=EWCRegularizer(100.0))
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env)
    for name, env in TASKS.items():
        told = owl.evaluate(env, task=name, episodes=4, seed=0).mean_return / env.length
        assert told >= 0.95, f"told it is {name}: {told}"
        found = owl.evaluate(
            Signs(env.shift, length=60), selector=ExpWeightsSelector(seed=0), episodes=2, seed=0
        )
        assert found.mean_return / 60 >= 0.8, f"not told it is {name}: {found}"


def test_one_head_with_a_shared_replay_learns_neither_in_full():
    script = make_script("plain", replay="shared")
    for env in TASKS.values():
        train(script, env)
    assert sum(score(script, env) for env in TASKS.values()) <= 1.05  # 2.0 would be both


def test_one_head_without_owl_forgets_the_first():
    script = make_script("plain")
    for env in TASKS.values():
        script.replay.begin_task("any")
        train(script, env)
    assert score(script, TASKS["next"]) >= 0.95 and score(script, TASKS["same"]) <= 0.1


@pytest.mark.parametrize("states", ["memory", "current"])
def test_distillation_keeps_the_first_task(states):
    script = make_script()
    owl = OwlWrapper(script.learner(), regularizer=DistillationRegularizer(1.0, states=states, seed=0))
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env)
    for name, env in TASKS.items():
        assert owl.evaluate(env, task=name, seed=0).mean_return / env.length >= 0.95


def test_current_distillation_sees_what_the_network_sees():
    script, seen = make_script(), []

    def double(observation):
        seen.append(observation)
        return 2 * observation

    learner = script.learner(preprocess=double)
    owl = OwlWrapper(
        learner, regularizer=DistillationRegularizer(1.0, states="current", batch_size=8, seed=0)
    )
    with owl.task("same"):
        train(script, TASKS["same"], 40)
    with owl.task("next"):
        train(script, TASKS["next"], 40)
        (observation,) = owl.learner.inputs("q", script.replay.sample(8))
        assert torch.equal(observation.amax(1), torch.full((8,), 2.0))
    assert len(seen) > 0


# ------------------------------------------------------------------------- one task, bare


@pytest.mark.parametrize("kind", ["plain", "multihead", "dueling"])
@pytest.mark.parametrize("regularizer", [None, EWCRegularizer(1e6), DistillationRegularizer(1e6)])
def test_with_one_task_the_wrapped_learner_equals_the_bare_one_bit_for_bit(kind, regularizer):
    bare = make_script(kind)
    bare.replay.begin_task("same")
    expected = train(bare, Signs(0), 90)
    script = make_script(kind)
    owl = OwlWrapper(script.learner(), regularizer=copy.deepcopy(regularizer))
    with owl.task("same"):
        assert train(script, Signs(0), 90) == expected
    assert equal(weights(script), weights(bare))
    assert equal(script.target.state_dict(), bare.target.state_dict())


# ---------------------------------------------------------------------------- the block


def test_heads_are_made_on_first_visits_and_selected_again():
    script = make_script()
    owl = OwlWrapper(script.learner())
    for name in ("a", "b", "a", "c"):
        with owl.task(name) as record:
            train(script, Signs(0), 40)
            assert script.q.pointer.head == record.head == {"a": 0, "b": 1, "c": 2}[name]
            assert owl.current_task == name
    assert script.q.num_heads == script.target.num_heads == 3
    assert {name: r.visits for name, r in owl.tasks.items()} == {"a": 2, "b": 1, "c": 1}
    assert owl.tasks["a"].steps == 16 and owl.current_task is None


def test_heads_enter_a_task_without_a_gradient():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(), 40)
        script.q(torch.ones(1, SIZE)).sum().backward()
        assert all(p.grad is not None for p in script.q.heads[0].parameters())
    with owl.task("b"):
        assert all(p.grad is None for head in script.q.heads for p in head.parameters())
        train(script, Signs(), 40)


def test_idle_heads_do_not_move():
    script = make_script("plain")
    owl = OwlWrapper(script.learner(), regularizer=EWCRegularizer(10.0))
    with owl.task("a"):
        train(script, Signs(0), 60)
    kept = [p.clone() for p in owl.learner.networks["q"].head_parameters(0).values()]
    with owl.task("b"):
        train(script, Signs(1), 60)
    now = owl.learner.networks["q"].head_parameters(0).values()
    assert all(torch.equal(a, b) for a, b in zip(kept, now, strict=True))


def test_a_new_target_head_equals_its_online_head():
    for kind in ("plain", "dueling"):
        script = make_script(kind)
        owl = OwlWrapper(script.learner())
        with owl.task("a"):
            train(script, Signs(0), 40)
        with owl.task("b"):
            online, target = owl.learner.networks["q"], owl.learner.targets["q"]
            pairs = zip(online.head_parameters(1).values(), target.head_parameters(1).values(), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)
            train(script, Signs(1), 40)


def test_the_replay_is_scoped_and_warm_started():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(0), 100)
    with owl.task("b"):
        assert len(script.replay) == 0
        train(script, Signs(1), 50)
    with owl.task("a"):
        assert len(script.replay) == 100 and script.replay.sample(4).task == "a"


def test_each_task_has_its_own_schedule():
    script, epsilon = make_script(), Epsilon()
    owl = OwlWrapper(script.learner(per_task={"epsilon": epsilon}))
    with owl.task("a"):
        train(script, Signs(0), 40)
        for _ in range(5):
            epsilon()
    with owl.task("b"):
        assert epsilon.calls == 0
        train(script, Signs(1), 40)
        epsilon()
    with owl.task("a"):
        assert epsilon.calls == 5
        train(script, Signs(0), 40)


def test_use_and_unwrap_bring_the_tasks_own_schedule_along():
    script, epsilon = make_script(), Epsilon()
    owl = OwlWrapper(script.learner(per_task={"epsilon": epsilon}))
    for name, calls in (("a", 5), ("b", 1)):
        with owl.task(name):
            train(script, Signs(0), 40)
            for _ in range(calls):
                epsilon()
    with pytest.raises(KeyError), owl.use("a"):
        assert epsilon.calls == 5
        raise KeyError
    assert epsilon.calls == 1
    owl.unwrap("a")
    assert epsilon.calls == 5


def test_an_exception_consolidates_nothing_and_leaves_all_usable():
    script, epsilon = make_script(), Epsilon()
    regularizer = EWCRegularizer(10.0)
    owl = OwlWrapper(script.learner(per_task={"epsilon": epsilon}), regularizer=regularizer)
    with owl.task("a"):
        train(script, Signs(0), 60)
        epsilon()
    saved = regularizer.state_dict()
    with pytest.raises(KeyboardInterrupt), owl.task("b"):
        train(script, Signs(1), 40)
        epsilon()
        raise KeyboardInterrupt
    assert script.q.pointer.head == 0 and owl.current_task is None and owl.tasks["b"].visits == 0
    assert epsilon.calls == 1 and repr(regularizer.state_dict()) == repr(saved)
    assert owl.policy().tasks == ["a"]
    with pytest.raises(OwlValueError, match="not been learned"), owl.use("b"):
        pass
    with owl.task("b") as record:
        assert len(script.replay) == 40 and record.head == 1  # the visit goes on
    assert owl.policy().tasks == ["a", "b"]


def test_a_block_that_stored_nothing_is_refused():
    owl = OwlWrapper(make_script().learner())
    with pytest.raises(OwlStateError, match="left no transition"), owl.task("a"):
        pass
    assert owl.tasks["a"].visits == 0


def test_use_acts_as_a_task_and_goes_back():
    script = make_script("plain")
    owl = OwlWrapper(script.learner(), regularizer=EWCRegularizer(100.0))
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env)
    with owl.use("same"):
        assert score(script, TASKS["same"]) >= 0.95
    assert score(script, TASKS["next"]) >= 0.95


def test_tasks_may_have_other_numbers_of_actions():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(0), 40)
    with owl.task("b", num_actions=SIZE + 2) as record:
        assert script.q(torch.zeros(1, SIZE)).shape == (1, SIZE + 2)
        train(script, Signs(1), 40)
    assert record.num_actions == SIZE + 2
    with pytest.raises(OwlValueError, match="has its head already"), owl.task("b", num_actions=3):
        pass
    policy = owl.policy(UniformSelector(seed=0), trace=True)
    policy.reset()
    action = policy.act(np.zeros(SIZE, np.float32))
    policy.observe(np.zeros(SIZE, np.float32), SIZE + 1, 0.0, np.zeros(SIZE, np.float32), False)
    assert np.isfinite(policy.trace[0].losses).all() and 0 <= action < SIZE + 2


# ------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize("name", ["", None, 3, b"a"])
def test_task_names_are_strings(name):
    owl = OwlWrapper(make_script().learner())
    with pytest.raises(OwlTypeError, match="non-empty str"), owl.task(name):
        pass
    assert not owl.tasks


def test_blocks_do_not_nest_and_inside_one_nothing_is_unwrapped_adopted_or_removed():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        refused = (owl.task("b").__enter__, owl.unwrap, lambda: owl.adopt("c"), lambda: owl.remove("a"))
        for call in refused:
            with pytest.raises(OwlStateError, match="still open"):
                call()
        train(script, Signs(0), 40)
    assert list(owl.tasks) == ["a"]


def test_training_outside_a_task_is_refused():
    script = make_script()
    OwlWrapper(script.learner())
    with pytest.raises(OwlStateError, match="outside a task"):
        train(script, Signs(0), 40)


@pytest.mark.parametrize("kind", ["plain", "multihead"])
def test_a_second_wrap_is_refused_until_unwrapped(kind):
    script = make_script(kind)
    owl = OwlWrapper(script.learner())
    before = weights(script)
    with pytest.raises(OwlError, match="already"):
        OwlWrapper(script.learner())
    with pytest.raises(OwlError, match="already"):
        OwlWrapper(owl.learner)
    assert equal(before, weights(script))
    with owl.task("a"):
        train(script, Signs(0), 40)
    owl.unwrap()
    OwlWrapper(script.learner())


def test_non_finite_gradients_stop_training_and_name_step_and_task():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(0), 60)
    before = weights(script)
    message = r"task 'a', step 1: the loss is not finite"
    with pytest.raises(NonFiniteError, match=message), owl.task("a"):
        train(script, Signs(0), 60, extra=lambda: script.q(torch.ones(1, SIZE)).sum() * float("inf"))
    assert equal(before, weights(script)) and owl.tasks["a"].visits == 1


def test_non_finite_weights_are_not_consolidated():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with pytest.raises(NonFiniteError, match=r"weights 'trunk.0.bias' of network 'q'"), owl.task("a"):
        train(script, Signs(0), 40)
        script.q.trunk[0].bias.data[0] = float("nan")
    assert owl.tasks["a"].visits == 0


def test_non_finite_rewards_are_refused_by_the_replay():
    script = make_script()
    owl = OwlWrapper(script.learner())
    zeros = np.zeros(SIZE, np.float32)
    with pytest.raises(NonFiniteError, match="reward"), owl.task("a"):
        script.replay.add(zeros, 0, float("nan"), zeros, False, False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"regularizer": EWCRegularizer}, "the class EWCRegularizer"),
        ({"regularizer": EWCRegularizer({"critic": 1.0})}, "critic"),
        ({"regularizer": 500.0}, "expected a Regularizer"),
        ({"evidence": 3}, "expected an Evidence"),
        ({"memory_rows": 0}, "expected an int >= 1"),
        ({"max_bytes": True}, "expected an int >= 1"),
        ({"seed": -1}, "expected an int >= 0, or None"),
        ({"watch": 3}, "expected a function"),
        ({"replay": object()}, "expected a TaskReplay"),
    ],
)
def test_bad_arguments_leave_the_learner_alone(arguments, message):
    script = make_script("plain")
    with pytest.raises(OwlError, match=message):
        OwlWrapper(script.learner(), **arguments)
    assert type(script.q[-1]) is nn.Linear and not script.optimizer._optimizer_step_pre_hooks
    OwlWrapper(script.learner())  # and now it goes


def test_a_replay_is_needed_and_may_be_given_here():
    script = make_script()
    learner = QLearner(script.q, script.target, script.optimizer)
    with pytest.raises(OwlValueError, match="there is no replay"):
        OwlWrapper(learner)
    assert OwlWrapper(learner, replay=script.replay).replay is script.replay


def test_env_is_for_learners_that_step_one():
    owl = OwlWrapper(make_script().learner())
    with pytest.raises(OwlStateError, match="own loop chooses its environment"), owl.task("a", env=Signs()):
        pass
    assert not owl.tasks


def test_policy_and_evaluate_refuse_what_makes_no_sense():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with pytest.raises(OwlStateError, match="no task has been learned"):
        owl.policy()
    with owl.task("a"):
        train(script, Signs(0), 40)
    with pytest.raises(OwlTypeError, match="expected a HeadSelector"):
        owl.policy(selector=3)
    with pytest.raises(OwlValueError, match="are for an unknown task"):
        owl.evaluate(Signs(), task="a", selector=UniformSelector())
    with pytest.raises(OwlValueError, match="learned are"):
        owl.evaluate(Signs(), task="z")


def test_one_regularizer_guards_one_learner():
    regularizer = EWCRegularizer(10.0)
    first, second = make_script("plain"), make_script("plain")
    owl = OwlWrapper(first.learner(), regularizer=regularizer)
    with pytest.raises(OwlStateError, match="make another EWCRegularizer"):
        OwlWrapper(second.learner(), regularizer=regularizer)
    assert type(second.q[-1]) is nn.Linear and not second.optimizer._optimizer_step_pre_hooks
    with owl.task("a"):
        train(first, Signs(0), 40)
    assert regularizer.tasks == ["a"]


def test_nothing_is_entered_or_changed_inside_use():
    script = make_script("plain")
    owl = OwlWrapper(script.learner())
    for shift, name in enumerate(("a", "b")):
        with owl.task(name):
            train(script, Signs(shift), 60)
    state, rows = owl.state_dict(), len(script.replay)
    calls = {
        "task": lambda: owl.task("c").__enter__(),
        "stream": lambda: owl.stream().__enter__(),
        "remove": lambda: owl.remove("a"),
        "load_state_dict": lambda: owl.load_state_dict(state),
        "unwrap": owl.unwrap,
    }
    for name, call in calls.items():
        with owl.use("a"), pytest.raises(OwlStateError, match=rf"{name}.*block of owl\.use.*leave it first"):
            call()
    assert list(owl.tasks) == ["a", "b"] and len(script.replay) == rows
    with owl.task("c"):  # outside of the block it is fine
        train(script, Signs(2), 60)


def test_training_inside_use_is_refused_and_moves_no_head():
    script = make_script()
    owl = OwlWrapper(script.learner(), regularizer=None)
    with owl.task("a"):
        train(script, Signs(0), 40)
    kept = script.q.heads[0].weight.clone()
    with owl.task("b"):
        train(script, Signs(1), 40)
        with owl.use("a"), pytest.raises(OwlStateError, match="not inside"):
            train(script, Signs(1), 40)
        train(script, Signs(1), 40)
    assert torch.equal(kept, script.q.heads[0].weight)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_and_pickles_are_refused(copied):
    with pytest.raises(OwlStateError, match="save"):
        copied(OwlWrapper(make_script().learner()))


def test_a_first_task_that_says_its_number_of_actions_takes_the_head_there_is():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("a", num_actions=SIZE) as record:
        train(script, Signs(0), 40)
    assert record.head == 0 and script.q.num_heads == 1


def test_evidence_is_the_heads_own_whatever_their_order():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("wide", num_actions=SIZE + 1) as wide:
        train(script, Signs(0), 60)
    with owl.task("narrow") as narrow:
        train(script, Signs(1), 60)
    assert (wide.head, narrow.head) == (1, 0)
    rows = script.replay.sample(16)
    swapped = owl.learner.td_errors(rows, np.array([1, 0]))
    assert torch.equal(swapped, owl.learner.td_errors(rows, np.array([0, 1])).flip(0))


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 8),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=50),
    ],
)
def test_step_sizes_start_anew_and_resume_with_their_schedule(make, tmp_path):
    script = make_script()
    schedule = make(script.optimizer)
    owl = OwlWrapper(script.learner(per_task={"rate": schedule}))
    rates: dict[str, list[float]] = {"a": [], "b": []}
    for name in ("a", "b", "a"):
        with owl.task(name):
            for _ in range(4):
                rates[name].append(script.optimizer.param_groups[0]["lr"])
                train(script, Signs(0), 33)
                schedule.step()
    assert rates["a"][:4] == rates["b"] and len(set(rates["a"])) == 8
    owl.save(tmp_path / "s")


def test_a_failed_consolidation_leaves_the_evidence_as_it_was(monkeypatch):
    script, owl, _ = wrapped("multihead")
    with owl.task("a"):
        train(script, Signs(0), 40)
    known = owl.evidence.state_dict()

    def broken(*_):
        raise MemoryError

    monkeypatch.setattr(owl.regularizer, "remember", broken)
    with pytest.raises(MemoryError), owl.task("a"):
        train(script, Signs(0), 60)
    assert owl.evidence.state_dict() == known and owl.tasks["a"].visits == 1


def test_a_plain_list_may_be_given_to_the_wrapper():
    script = make_script(replay="deque")
    owl = OwlWrapper(QLearner(script.q, script.target, script.optimizer, gamma=0.5), replay=script.replay)
    with owl.task("a"):
        train(script, Signs(0), 40)
    assert owl.tasks["a"].visits == 1


def test_without_a_task_the_seed_makes_evaluation_repeatable():
    script, owl, _ = wrapped("multihead")
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env, 60)
    returns = [owl.evaluate(Signs(0), seed=4, episodes=4).returns.tolist() for _ in range(2)]
    assert returns[0] == returns[1]


# ------------------------------------------------------------------------- save and load


def wrapped(kind="plain", *, seed=0, replay="scoped", regularizer=None):
    script = make_script(kind, seed=seed, replay=replay)
    epsilon = Epsilon()
    owl = OwlWrapper(
        script.learner(per_task={"epsilon": epsilon}),
        regularizer=EWCRegularizer(10.0) if regularizer is None else regularizer,
    )
    return script, owl, epsilon


@pytest.mark.parametrize("kind", ["plain", "multihead", "dueling"])
def test_saved_and_loaded_training_continues_bit_for_bit(kind, tmp_path):
    script, owl, epsilon = wrapped(kind)
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env, 60)
            epsilon()
    owl.save(tmp_path / "owl.safetensors")
    rng = copy.deepcopy(script.rng)
    with owl.task("same"):
        expected = train(script, Signs(0), 50)
        calls = epsilon.calls

    fresh = make_script(kind, seed=9)
    fresh.rng, new_epsilon = rng, Epsilon()
    back = OwlWrapper.load(
        tmp_path / "owl.safetensors",
        fresh.learner(per_task={"epsilon": new_epsilon}),
        regularizer=EWCRegularizer(10.0),
    )
    assert back.tasks.keys() == owl.tasks.keys() and back.tasks["next"].visits == 1
    with back.task("same"):
        assert train(fresh, Signs(0), 50) == expected
        assert new_epsilon.calls == calls
    assert equal(weights(fresh), weights(script))
    found = [
        w.evaluate(Signs(1), selector=ExpWeightsSelector(seed=1), seed=0).returns.tolist()
        for w in (owl, back)
    ]
    assert found[0] == found[1]


def test_loading_into_another_learner_names_everything_and_undoes_itself(tmp_path):
    script, owl, _ = wrapped()
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env, 60)
    owl.save(tmp_path / "s")
    other = make_script("plain")
    with pytest.raises(OwlValueError) as caught:
        OwlWrapper.load(tmp_path / "s", other.learner())
    assert "regularizer is DistillationRegularizer, but EWCRegularizer was saved" in str(caught.value)
    assert "per_task are [], but ['epsilon'] were saved" in str(caught.value)
    assert type(other.q[-1]) is nn.Linear
    other.q = nn.Sequential(nn.Linear(SIZE, 8), nn.ReLU(), nn.Linear(8, SIZE))
    other.target, other.optimizer = copy.deepcopy(other.q), torch.optim.Adam(other.q.parameters())
    before = weights(other)
    learner = other.learner(per_task={"epsilon": Epsilon()})
    with pytest.raises(OwlValueError, match=r"'0.weight' of shape \(8, 4\), but \(32, 4\) was saved"):
        OwlWrapper.load(tmp_path / "s", learner, regularizer=EWCRegularizer(10.0))
    assert type(other.q[-1]) is nn.Linear and equal(before, weights(other))


def test_a_refused_load_makes_no_heads(tmp_path):
    script, owl, _ = wrapped("multihead")
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env, 40)
    owl.save(tmp_path / "s")
    q = MultiHeadQ(nn.Linear(SIZE, 8), 8, SIZE)
    learner = QLearner(
        q, copy.deepcopy(q), torch.optim.Adam(q.parameters()), replay=make_replay("scoped"), gamma=0.5,
        per_task={"epsilon": Epsilon()},
    )  # fmt: skip
    with pytest.raises(OwlValueError, match="was saved"):
        OwlWrapper.load(tmp_path / "s", learner, regularizer=EWCRegularizer(10.0))
    assert q.num_heads == 1


def test_loading_refuses_another_optimizer_or_discount(tmp_path):
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(0), 40)
    owl.save(tmp_path / "s")
    other = make_script()
    other.optimizer = torch.optim.SGD(other.q.parameters(), lr=0.1)
    before = weights(other)
    with pytest.raises(OwlValueError, match="'Adam'} were saved"):
        OwlWrapper.load(tmp_path / "s", other.learner())
    grouped = make_script()
    grouped.optimizer = torch.optim.Adam([{"params": [p]} for p in grouped.q.parameters()])
    with pytest.raises(OwlValueError, match="groups of"):
        OwlWrapper.load(tmp_path / "s", grouped.learner())
    assert equal(before, weights(other))
    learner = QLearner(other.q, other.target, other.optimizer, replay=make_replay("deque"), gamma=0.9)
    with pytest.raises(OwlValueError, match=r"gamma is 0.9, but 0.5 was saved"):
        OwlWrapper.load(tmp_path / "s", learner)
    with pytest.raises(FileNotFoundError, match="make it first"):
        owl.save(tmp_path / "missing" / "s")
    with pytest.raises(IsADirectoryError, match="name a file"):
        owl.save(tmp_path)


def test_loading_restores_heads_with_other_numbers_of_actions(tmp_path):
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(0), 40)
    with owl.task("b", num_actions=SIZE + 1):
        train(script, Signs(1), 40)
    owl.save(tmp_path / "s")
    fresh = make_script(seed=5)
    OwlWrapper.load(tmp_path / "s", fresh.learner())
    assert equal(weights(fresh), weights(script)) and fresh.q.pointer.head == 1


# -------------------------------------------------------------------------------- unwrap


def test_unwrap_gives_the_plain_network_back_with_the_task_asked_for():
    script, owl, _ = wrapped("plain")
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env)
    keys = [f"{k}.{p}" for k in (0, 2, 4) for p in ("weight", "bias")]
    assert owl.unwrap("same") is owl.learner
    assert list(script.q.state_dict()) == keys == list(script.target.state_dict())
    assert score(script, TASKS["same"]) >= 0.95
    assert len(script.optimizer.param_groups[0]["params"]) == 6
    train(script, Signs(0), 60)  # and it trains on without any guard
    assert not script.optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("kind", ["plain", "multihead"])
def test_nothing_goes_on_after_unwrapping(kind, tmp_path):
    script, owl, _ = wrapped(kind)
    with owl.task("a"):
        train(script, Signs(0), 40)
    owl.unwrap()
    calls = (
        lambda: owl.task("a").__enter__(),
        lambda: owl.use("a").__enter__(),
        lambda: owl.save(tmp_path / "s"),
        lambda: owl.evaluate(Signs()),
        owl.policy,
        owl.unwrap,
    )
    for call in calls:
        with pytest.raises(OwlStateError, match="this was unwrapped"):
            call()


def test_repr_shows_the_stack():
    _, owl, _ = wrapped("multihead")
    assert repr(owl) == (
        "OwlWrapper(QLearner(MultiHeadQ), regularizer=EWCRegularizer, evidence=ModelEvidence, "
        "replay=TaskScopedReplay, tasks=[])"
    )


def test_a_failing_bind_is_undone(monkeypatch):
    script = make_script("plain")
    learner = script.learner()
    monkeypatch.setattr(QLearner, "optimizers", property(lambda self: {"other": self.optimizer}))
    with pytest.raises(OwlValueError, match="expected the names of networks"):
        OwlWrapper(learner)
    assert type(script.q[-1]) is nn.Linear


def test_evidence_is_measured_for_each_head():
    script = make_script()
    evidence = TDErrorEvidence()
    owl = OwlWrapper(script.learner(), evidence=evidence)
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env, 100)
    assert set(evidence.scales) == {0, 1} and all(s > 0 for s in evidence.scales.values())


# ------------------------------------------------------------------------------- defaults


@pytest.mark.parametrize("kind", ["plain", "multihead", "dueling"])
def test_the_bare_call_keeps_the_first_task_and_finds_both(kind):
    script = make_script(kind)
    owl = OwlWrapper(script.learner(), seed=0)
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env)
    for name, env in TASKS.items():
        assert owl.evaluate(env, task=name, seed=1).mean_return > 7.5
        unknown = owl.evaluate(env, true_task=name, seed=1)
        assert unknown.found.mean() > 0.9 and unknown.mean_return > 6.0


class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SIZE, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2))
        self.last = nn.Linear(16, SIZE)

    def forward(self, x):
        return self.last(self.body(x))


def test_with_one_task_the_bare_call_changes_no_bit_of_a_network_with_dropout_and_batch_norm():
    ended = []
    for wrapped in (False, True):
        torch.manual_seed(3)
        q = Dropping()
        optimizer, replay = torch.optim.Adam(q.parameters(), lr=1e-2), make_replay("scoped")
        owl = OwlWrapper(QLearner(q, None, optimizer, replay=replay, gamma=0.5)) if wrapped else None
        if owl is None:
            replay.begin_task("only")
        with owl.task("only") if owl is not None else nullcontext():
            rng = np.random.default_rng(0)
            for _ in range(200):
                sign, action = np.eye(SIZE, dtype=np.float32)[rng.integers(SIZE)], int(rng.integers(SIZE))
                replay.add(sign, action, float(action), sign, True, False)
                if len(replay) < 16:
                    continue
                batch = replay.sample(16)
                loss = (taken(q(batch.observation), batch.action) - batch.reward).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            ended.append(({k: v.clone() for k, v in q.state_dict().items()}, torch.get_rng_state()))
    assert equal(ended[0][0], ended[1][0]) and torch.equal(ended[0][1], ended[1][1])


def test_a_seeded_learner_gives_the_same_bits_twice_with_nothing_else_seeded():
    states = []
    for _ in range(2):
        script = make_script("plain", seed=5)
        owl = OwlWrapper(script.learner())
        for name, env in TASKS.items():
            with owl.task(name):
                train(script, env, steps=100)
        states.append(weights(script))
    assert equal(*states)


def test_parts_can_be_turned_off():
    script = make_script()
    owl = OwlWrapper(script.learner(), regularizer=None, evidence=None)
    with owl.task("same"):
        train(script, TASKS["same"], steps=50)
    assert owl.regularizer is None and owl.evidence is None
    with pytest.raises(OwlStateError, match=r"evidence=ModelEvidence\(\)"):
        owl.policy()
    assert owl.evaluate(TASKS["same"], task="same", episodes=1).returns.shape == (1,)
    assert owl.evaluate(TASKS["same"], selector=UniformSelector(seed=0), episodes=1).returns.shape == (1,)


def test_a_replay_that_mixes_tasks_is_refused():
    script = make_script(replay="shared")
    with pytest.raises(OwlValueError, match="mixes the rows of all tasks"):
        OwlWrapper(script.learner())


# --------------------------------------------------------------------- visits that are interrupted


def test_a_visit_goes_on_after_an_exception():
    script = make_script()
    owl = OwlWrapper(script.learner(per_task={"epsilon": (epsilon := Epsilon())}), seed=0)
    with pytest.raises(KeyboardInterrupt), owl.task("same"):
        train(script, TASKS["same"], steps=50)
        epsilon(), epsilon()
        stored = len(script.replay)
        raise KeyboardInterrupt
    assert epsilon.calls == 0 and not owl.tasks["same"].visits
    with owl.task("same"):
        assert (epsilon.calls, len(script.replay)) == (2, stored)
    assert owl.tasks["same"].visits == 1 and owl.memory["same"].seen == stored


def test_a_failed_end_loses_nothing_and_can_be_repeated(monkeypatch):
    script = make_script()
    owl = OwlWrapper(script.learner(), seed=0)
    with monkeypatch.context() as broken:
        broken.setattr(owl.regularizer, "remember", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError), owl.task("same"):
            train(script, TASKS["same"], steps=50)
            trained = weights(script)
    assert equal(weights(script), trained)
    with owl.task("same"):
        assert len(script.replay) == owl.memory["same"].seen > 0
    assert owl.tasks["same"].visits == 1


def test_another_task_in_between_starts_the_visit_over_and_keeps_what_is_remembered():
    script = make_script()
    owl = OwlWrapper(script.learner(), seed=0)
    with pytest.raises(KeyError), owl.task("same"):
        train(script, TASKS["same"], steps=50)
        raise KeyError
    with owl.task("next"):
        train(script, TASKS["next"], steps=50)
    with owl.task("same"):
        assert not len(script.replay)
        train(script, TASKS["same"], steps=50)
    assert owl.tasks["same"].visits == 1 and owl.memory["same"].seen == 100  # nothing was overlooked


@pytest.mark.parametrize("kind", ["plain", "multihead"])
def test_saved_inside_a_block_and_loaded_the_visit_goes_on_bit_for_bit(kind, tmp_path):
    def make():
        script = make_script(kind, seed=2)
        return script, script.learner()

    script, learner = make()
    owl = OwlWrapper(learner, seed=0)
    with owl.task("same"):
        train(script, TASKS["same"], steps=80)
    with owl.task("next"):
        train(script, TASKS["next"], steps=60)
        owl.save(tmp_path / "inside.safetensors")
        python_state = script.rng.getstate()
        train(script, Signs(1), steps=60)
    again, learner = make()
    loaded = OwlWrapper.load(tmp_path / "inside.safetensors", learner, seed=0)
    with loaded.task("next"):
        again.rng.setstate(python_state)
        train(again, Signs(1), steps=60)
    assert equal(weights(script), weights(again))
    assert loaded.tasks["next"].steps == owl.tasks["next"].steps
    assert loaded.memory["next"].seen == owl.memory["next"].seen


# ------------------------------------------------------------------------------- removing, adopting


def test_a_removed_task_is_gone_everywhere_and_its_head_is_used_again():
    script = make_script()
    owl = OwlWrapper(script.learner(), seed=0)
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env, steps=100)
    owl.remove("same")
    assert list(owl.tasks) == ["next"] == list(owl.memory) == owl.policy().tasks
    assert script.q(torch.eye(SIZE), head=0).eq(0).all()
    with owl.task("third"):
        train(script, Signs(2), steps=100)
    assert owl.tasks["third"].head == 0 and script.q.num_heads == 2
    with pytest.raises(OwlValueError, match="no task 'same'"):
        owl.remove("same")


@pytest.mark.parametrize("source", ["rows", "env"])
def test_what_a_learner_knew_before_is_adopted_without_training(source):
    script = make_script("plain")
    script.replay.begin_task("before")
    train(script, TASKS["same"])
    known = weights(script)
    owl = OwlWrapper(script.learner(), seed=0)
    given = {"rows": rows_of(script.replay)} if source == "rows" else {"env": TASKS["same"]}
    owl.adopt("same", **given)
    assert equal(weights(script), known)
    with owl.task("next"):
        train(script, TASKS["next"])
    assert owl.evaluate(TASKS["same"], task="same", seed=1).mean_return > 7.5
    assert owl.evaluate(TASKS["same"], true_task="same", seed=1).found.mean() > 0.9
    with pytest.raises(OwlStateError, match="before the first task"):
        owl.adopt("late", env=TASKS["same"])


def test_adopting_needs_rows_or_an_environment():
    owl = OwlWrapper(make_script().learner())
    with pytest.raises(OwlValueError, match="rows= or env="):
        owl.adopt("same")
    assert not owl.tasks


# ------------------------------------------------------------------------------- watching


@pytest.mark.parametrize("replay", ["scoped", "deque"])
@pytest.mark.parametrize(
    ("env", "steps", "problem"),
    [
        ("CartPole-v1", 10, "env has 2 actions; expected 4, as many as the heads have"),
        ("Pendulum-v1", 10, r"observations.* of shape \((1, )?3,?\)"),
        (Signs(0), 0, "steps is 0; expected an int >= 1"),
    ],
)
def test_adopting_refuses_an_environment_of_another_kind(replay, env, steps, problem):
    owl = OwlWrapper(make_script("plain", replay=replay).learner())
    with pytest.raises(OwlValueError, match=f"(?s)^OwlWrapper.adopt: .*{problem}"):
        owl.adopt("old", env=env, steps=steps)
    assert not owl.tasks and not len(owl.memory)


def test_numbers_are_handed_to_whoever_watches():
    seen = []
    script = make_script()
    owl = OwlWrapper(
        script.learner(), watch=lambda step, numbers: seen.append((step, numbers)), watch_every=10
    )
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env, steps=100)
    steps, numbers = zip(*seen, strict=True)
    assert set(steps) >= {10, 20} and {n["head"] for n in numbers} == {0.0, 1.0}
    assert numbers[-1]["memory/rows"] > 0 and any("drift" in key for key in numbers[-1])


def test_threads_may_act_beside_training():
    script = make_script()
    owl = OwlWrapper(script.learner(), seed=0)
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env)
    wrong, stop = [], threading.Event()
    signs = np.eye(SIZE, dtype=np.float32)

    def act(shift: int) -> None:
        policy = owl.policy(OracleSelector(shift))
        policy.reset(num_envs=SIZE)
        while not stop.wait(1e-3):  # long enough for training to get its turn
            if (policy.act(signs) != (np.arange(SIZE) + shift) % SIZE).any():
                wrong.append(shift)

    threads = [threading.Thread(target=act, args=(shift,)) for shift in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    with owl.task("third"):
        train(script, Signs(2), 80)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


# ------------------------------------------------------------------------------- deploying


@pytest.mark.parametrize("kind", ["plain", "dueling"])
def test_loaded_for_acting_it_needs_no_replay_optimizer_or_target(kind, tmp_path):
    script = make_script(kind)
    owl = OwlWrapper(script.learner(per_task={"epsilon": Epsilon()}), seed=0)
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env)
    owl.save(tmp_path / "state")
    fresh = make_script(kind, seed=9)
    learner = QLearner(fresh.q, None, None, gamma=0.5)
    acting = OwlWrapper.load(tmp_path / "state", learner, acting=True, seed=0)
    for name, env in TASKS.items():
        before, after = (w.evaluate(env, true_task=name, seed=1) for w in (owl, acting))
        assert np.array_equal(before.returns, after.returns) and after.found.all()
    with pytest.raises(OwlStateError, match="to act only"), acting.task("third"):
        pass
    with pytest.raises(OwlStateError, match=r"(?s)stream: .*to act only"), acting.stream():
        pass
    with pytest.raises(OwlValueError, match="no optimizer"):
        OwlWrapper(QLearner(make_script(kind).q, None, None, gamma=0.5), replay=make_replay("scoped"))


@pytest.mark.parametrize("kind", ["plain", "multihead"])
def test_a_task_is_exported_as_a_program_without_owlrl(kind, tmp_path):
    script = make_script(kind)
    owl = OwlWrapper(script.learner())
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env)
    with pytest.raises(OwlValueError, match=r"export: .*shape \(3,\)"):
        owl.export("same", np.zeros(3, np.float32))
    signs = torch.eye(SIZE)
    for shift, name in enumerate(TASKS):
        program = owl.export(name, np.zeros(SIZE, np.float32))
        torch.export.save(program, tmp_path / f"{name}.pt2")
        module = torch.export.load(tmp_path / f"{name}.pt2").module()
        assert module(signs).tolist() == [(k + shift) % SIZE for k in range(SIZE)]
        assert module(signs[:1]).shape == (1,)
        # its own head's weights and the trunk's, and no other head's
        network = owl.learner.networks["q"]
        own = {**network.shared_parameters(), **network.head_parameters(owl.tasks[name].head)}
        assert {key.removeprefix("networks.0.") for key in program.state_dict} == set(own)
        assert all(torch.equal(program.state_dict[f"networks.0.{key}"], own[key]) for key in own)


def test_a_program_of_an_actor_has_no_critics():
    script = own_actor_critic.make_script("sac")
    owl, x = OwlWrapper(script.learner()), torch.rand(8, 2)
    for name in ("a", "b"):
        with owl.task(name):
            for row in x.numpy():
                owl.replay.add(row, np.zeros(1, np.float32), 0.0, row, False, False)
    program = owl.export("b", np.zeros(2, np.float32))
    assert {key.split(".")[2] for key in program.state_dict} >= {"body", "mean"}
    assert not [key for key in program.state_dict if "mean.weight" in key]  # that of head 0
    torch.testing.assert_close(program.module()(x), owl.learner.act(x, 1))


def test_evaluation_uses_the_selector_and_the_seed_that_it_is_given(monkeypatch):
    script, seeds = make_script(), []
    owl = OwlWrapper(script.learner(), seed=5)
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env, 30)
    given = UniformSelector(seed=0)
    owl.evaluate(Signs(), selector=given, episodes=1)
    assert given.probabilities.tolist() == [0.5, 0.5]

    class Counted(UniformSelector):
        resets = 0

        def reset(self, *arguments, **options):
            self.resets += 1
            super().reset(*arguments, **options)

    for kept, resets in (({}, 3), ({"keep_evidence": True}, 1)):  # by default each episode starts over
        counted = Counted(seed=0)
        owl.evaluate(Signs(), selector=counted, episodes=3, **kept)
        assert counted.resets == resets

    def noted(seed):
        seeds.append(seed)
        return ExpWeightsSelector(seed=seed)

    monkeypatch.setattr("owlrl.wrapper.ExpWeightsSelector", noted)
    owl.evaluate(Signs(), episodes=1)
    owl.evaluate(Signs(), episodes=1, seed=3)
    assert seeds == [5, 3]


def test_gradients_of_heads_are_gone_when_another_task_begins_or_goes():
    script = make_script("multihead")
    owl = OwlWrapper(script.learner(), evidence=RewardEvidence(updates=20, seed=0))
    for name, env in TASKS.items():
        with owl.task(name):
            train(script, env, 30)
            network = owl.learner.networks["q"]
            for head in range(network.num_heads):
                for parameter in network.head_parameters(head).values():
                    parameter.grad = torch.ones_like(parameter)
    with owl.task("same"):
        assert all(p.grad is None for head in range(2) for p in network.head_parameters(head).values())
        train(script, TASKS["same"], 5)
    assert set(owl.evidence.fitted) == {0, 1}
    owl.remove("same")
    assert set(owl.evidence.fitted) == {1}


def test_evaluation_takes_an_id_and_looks_at_the_spaces_first():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(0), 60)
    with pytest.raises(OwlValueError) as caught:
        owl.evaluate("Acrobot-v1")
    assert "observations of shape (6,); expected (4,)" in str(caught.value)
    assert "3 actions; expected 4" in str(caught.value)
    with pytest.raises(OwlValueError, match="'Nonsense-v9', which cannot be made"):
        owl.evaluate("Nonsense-v9")
    for wrong, named in ((42, "an int"), (Signs, "the class Signs")):
        with pytest.raises(OwlTypeError, match=f"env is {named}; expected a Gymnasium environment"):
            owl.evaluate(wrong)
    assert len(owl.evaluate(Signs(0), episodes=np.int64(2), seed=np.int64(0)).returns) == 2


def test_evaluation_of_a_script_with_a_list_refuses_environments_that_do_not_fit():
    script = make_script("plain", replay="deque")
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(0), 60)
    with pytest.raises(OwlValueError, match=r"cannot take observations of shape \(3,\) .*trained on"):
        owl.evaluate("Pendulum-v1", task="a")


def test_a_learner_that_was_trained_before_says_which_head_its_first_task_takes():
    script = make_script("plain")
    script.replay.begin_task("before")
    train(script, Signs(0), 60)
    owl = OwlWrapper(script.learner())
    with pytest.warns(UserWarning, match=r"continues with the head it has.*owl\.adopt"), owl.task("same"):
        train(script, Signs(0), 60)


def test_a_policy_keeps_its_trace_only_where_it_is_asked_for():
    script = make_script("plain")
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(0), 60)
    seen = np.zeros(SIZE, np.float32)
    for policy, steps in ((owl.policy(), 0), (owl.policy(trace=True), 3)):
        policy.reset()
        for _ in range(3):
            policy.observe(seen, policy.act(seen), 0.0, seen, False)
        assert len(policy.trace) == steps


def test_the_first_row_is_tried_at_the_first_optimizer_step():
    """What cannot be known when a script is wrapped: its deque is empty then."""
    script = make_script("plain", replay="deque")
    owl, steps = OwlWrapper(script.learner()), 0
    with (
        pytest.raises(OwlValueError, match=r"task 'a', first row: the actions of the rows are .*float32"),
        owl.task("a"),
    ):
        seen = np.zeros(SIZE, np.float32)
        script.replay.append((seen, 0.5, 1.0, seen, True))  # reward and action in each other's place
        for _ in range(3):
            script.optimizer.zero_grad()
            script.q(torch.zeros(1, SIZE)).sum().backward()
            script.optimizer.step()
            steps += 1
    assert not steps and not owl.tasks["a"].visits


def test_rows_are_looked_at_during_a_visit():
    script = make_script()
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(0), 140)  # 108 steps: looks at the 1st, 32nd, 64th and 96th
        assert owl.memory["a"].seen == 128


def test_a_visit_that_another_task_came_after_starts_over():
    class Counter:
        calls = 0

        def state_dict(self):
            return {"calls": self.calls}

        def load_state_dict(self, state):
            self.calls = state["calls"]

    script, counter = make_script(), Counter()
    owl = OwlWrapper(script.learner(per_task={"counter": counter}))
    with pytest.raises(KeyboardInterrupt), owl.task("a"):
        counter.calls = 5
        raise KeyboardInterrupt
    with owl.task("a"):
        assert counter.calls == 5  # it goes on
        train(script, Signs(0), 40)
    with pytest.raises(KeyboardInterrupt), owl.task("a"):
        counter.calls = 9
        raise KeyboardInterrupt
    with owl.task("b"):
        train(script, Signs(1), 40)
    with owl.task("a"):
        assert counter.calls == 5  # as it was left
        train(script, Signs(0), 40)


def test_the_given_head_alone_must_fit_the_environment():
    script = make_script("plain")
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(0), 40)
    with owl.task("b", num_actions=SIZE + 2):
        train(script, Signs(1), 40)
    assert owl.evaluate(Signs(0), task="a", episodes=1).returns.size == 1
    with pytest.raises(OwlError, match="actions"):
        owl.evaluate(Signs(0), task="b", episodes=1)


LEFT_OPEN = """
import os, sys
from owlrl import OwlWrapper
from tests.own_actor_critic import Push, make_script, train
script = make_script("sac")
owl = OwlWrapper(script.learner())
with owl.task("a"):
    train(script, Push(1.0), 60)
for enter in (lambda: owl.task("b"), lambda: owl.stream(), lambda: owl.use("a")):
    if not (child := os.fork()):  # and ends as every interpreter does, inside its block
        block = enter()
        block.__enter__()
        print("inside")
        break
    if os.waitpid(child, 0)[1]:
        sys.exit("an interpreter failed at its end")
else:
    os._exit(0)  # it is the children's ends that matter
"""


def test_an_interpreter_may_end_inside_a_block():
    """Generators that are open then are closed when torch is gone: its tensors abort the process."""
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "inside\n" * 3, "")
