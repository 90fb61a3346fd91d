"""QLearner: values, TD errors and consolidation by the definition; every problem named."""

import copy
import dataclasses
import random

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from owlrl import (
    MultiHeadQ,
    OwlWrapper,
    QLearner,
    TaskScopedReplay,
    TDErrorEvidence,
    Transitions,
    check_learner,
)
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.protocols import OffPolicyLearner
from tests.own_dqn import SIZE, Signs, make_script, train


def transitions(n=6, dtype=torch.float64) -> Transitions:
    generator = torch.Generator().manual_seed(1)
    return Transitions(
        observation=torch.rand(n, SIZE, generator=generator, dtype=dtype),
        action=torch.randint(SIZE, (n,), generator=generator),
        reward=torch.rand(n, generator=generator),
        next_observation=torch.rand(n, SIZE, generator=generator, dtype=dtype),
        terminated=torch.arange(n) % 3 == 0,
        discount=torch.full((n,), 0.5),
    )


def bound(kind="multihead", *, target=True, heads=3, **options) -> QLearner:
    script = make_script(kind)
    script.q.double(), script.target.double()
    learner = QLearner(script.q, script.target if target else None, script.optimizer, gamma=0.5, **options)
    learner.bind()
    for _ in range(heads - 1):
        learner.add_head()
    return learner


def slow_delta(learner: QLearner, rows: Transitions, head: int, b: int) -> float:
    q = learner.networks["q"]
    target = learner.targets.get("q", q)
    with torch.no_grad():
        values = target(rows.next_observation[b : b + 1], head=head)[0]
        chooser = q(rows.next_observation[b : b + 1], head=head)[0] if learner.double else values
        follow = 0.0 if rows.terminated[b] else 0.5 * values[int(chooser.argmax())].item()
        return (
            rows.reward[b].item()
            + follow
            - q(rows.observation[b : b + 1], head=head)[0, rows.action[b]].item()
        )


@pytest.mark.parametrize("kind", ["plain", "multihead", "dueling"])
@pytest.mark.parametrize("target", [True, False])
@pytest.mark.parametrize("double", [True, False])
def test_td_errors_equal_the_definition(kind, target, double):
    learner, rows = bound(kind, target=target, double=double), transitions()
    delta = learner.td_errors(rows, np.arange(3))
    assert delta.shape == (3, 6)
    for head in range(3):
        for b in range(6):
            assert delta[head, b].item() == pytest.approx(slow_delta(learner, rows, head, b), abs=1e-6)
    torch.testing.assert_close(learner.td_errors(rows, np.array([2, 0])), delta[[2, 0]])


@pytest.mark.parametrize("kind", ["plain", "dueling"])
def test_acting_and_values_equal_the_heads(kind):
    learner, rows = bound(kind), transitions()
    heads = torch.tensor([0, 1, 2, 2, 1, 0])
    network = learner.networks["q"]
    expected = [int(network(rows.observation[b : b + 1], head=int(h)).argmax()) for b, h in enumerate(heads)]
    assert learner.act(rows.observation, heads).tolist() == expected
    per_head = torch.stack([network(rows.observation, head=k).amax(1) for k in range(3)])
    torch.testing.assert_close(learner.values(rows.observation), per_head)


@pytest.mark.parametrize("double", [True, False])
def test_consolidation_measures_outputs_and_losses_of_the_active_head(double):
    learner, rows = bound("plain", double=double), transitions()
    with learner.networks["q"].pointer.at(1):
        context = learner.consolidation(rows)["q"]
    assert context.head == 1
    output = context.network(*context.inputs, head=1)
    chosen = context.output(output, *context.targets)
    torch.testing.assert_close(chosen, output[torch.arange(6), rows.action])
    goal = (
        torch.tensor([slow_delta(learner, rows, 1, b) for b in range(6)], dtype=torch.float64)
        + chosen.detach()
    )
    torch.testing.assert_close(
        context.loss(output, *context.targets),
        F.smooth_l1_loss(chosen, goal, reduction="none"),
        atol=1e-6,
        rtol=1e-6,
    )


def test_dropout_is_off_where_heads_are_measured_and_on_again_after():
    torch.manual_seed(0)
    q = nn.Sequential(nn.Linear(SIZE, 16), nn.Dropout(0.5), nn.Linear(16, SIZE))
    learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1), replay=[])
    learner.bind()
    rows = transitions(dtype=torch.float32)
    assert torch.equal(learner.td_errors(rows, np.arange(1)), learner.td_errors(rows, np.arange(1)))
    assert q.training and q[1].training


def test_preprocess_is_used_for_every_input():
    seen = []

    def scale(observation):
        seen.append(observation.dtype)
        return observation.float() / 255

    q = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    replay = TaskScopedReplay(10, observation_shape=(2, 2), observation_dtype=np.uint8)
    learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1), replay=replay, preprocess=scale)
    OwlWrapper(learner)
    learner.act(torch.zeros(1, 2, 2, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    assert torch.uint8 in seen


def test_a_convolutional_network_is_found_through_the_replay_s_shape():
    q = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 3))
    replay = TaskScopedReplay(10, observation_shape=(1, 3, 3), observation_dtype=np.uint8)
    learner = QLearner(q, copy.deepcopy(q), torch.optim.SGD(q.parameters(), lr=0.1), replay=replay)
    OwlWrapper(learner)
    assert learner.networks["q"].layers == learner.targets["q"].layers == ("2",)


def test_satisfies_the_protocol_and_passes_its_own_check():
    learner = make_script().learner()
    assert isinstance(learner, OffPolicyLearner)
    check_learner(learner)


def test_nothing_works_before_it_is_wrapped():
    learner = make_script("plain").learner()
    with pytest.raises(OwlStateError, match="not wrapped yet"):
        _ = learner.networks
    with pytest.raises(OwlStateError, match="not wrapped yet"):
        learner.act(torch.zeros(1, SIZE), torch.zeros(1, dtype=torch.int64))


def test_a_separate_multihead_target_is_made_to_follow():
    make = lambda: MultiHeadQ(nn.Linear(SIZE, 8), 8, SIZE)  # noqa: E731
    q, target = make(), make()
    owl = OwlWrapper(QLearner(q, target, torch.optim.SGD(q.parameters(), lr=0.1), replay=[]))
    assert target.pointer is q.pointer and owl.learner.targets["q"] is target


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(SIZE, 8), nn.Linear(8, SIZE), nn.LayerNorm(SIZE))

    def forward(self, x):
        return self.net(x)


def problems_of(**changes) -> str:
    script = make_script("plain")
    arguments = {
        "q": script.q,
        "target": script.target,
        "optimizer": script.optimizer,
        "replay": script.replay,
    }
    arguments |= {"gamma": 0.5} | changes
    before = [type(m) for m in script.q.modules()]
    with pytest.raises(OwlValueError) as caught:
        check_learner(
            QLearner(arguments.pop("q"), arguments.pop("target"), arguments.pop("optimizer"), **arguments)
        )
    assert [type(m) for m in script.q.modules()] == before
    return str(caught.value)


def test_every_problem_is_named_at_once():
    text = problems_of(gamma=2, replay=3, per_task={"e": 1}, init="warm", optimizer="adam", target="t")
    for part in (
        "gamma is 2",
        "replay is an int",
        "per_task['e'] is an int",
        "init is 'warm'",
        "optimizer is a str",
        "target is a str",
    ):
        assert part in text, part
    assert "6 problems" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": "net"}, "q is a str"),
        ({"gamma": float("nan")}, "gamma is nan"),
        ({"gamma": True}, "gamma is True"),
        ({"gamma": 0.9}, "the replay's is 0.5"),
        ({"target": nn.Sequential(nn.Linear(SIZE, 3))}, "q's target differs from q in"),
        (
            {"optimizer": torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)},
            "does not hold q's parameters",
        ),
        ({"layers": ["9"]}, "there is no layer '9'"),
        ({"loss": nn.SmoothL1Loss()}, "loss could not be called"),
        ({"loss": lambda q, goal, reduction: (q - goal).mean()}, "a number per row"),
        ({"double": "yes"}, "double is 'yes'"),
        ({"preprocess": 3}, "preprocess is 3"),
        ({"per_task": {"o": torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)}}, "not an optimizer"),
    ],
)
def test_single_problems(changes, message):
    assert message in problems_of(**changes)


def test_a_target_that_is_the_network_itself():
    script = make_script("plain")
    assert "target is q itself" in problems_of(q=script.q, target=script.q, optimizer=script.optimizer)


def test_a_normalised_output_names_the_candidates():
    q = Normalised()
    text = problems_of(q=q, target=None, optimizer=torch.optim.SGD(q.parameters(), lr=0.1))
    assert "cannot be given heads" in text and "net.1" in text


def two_outputs(q):
    class WithState(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = q

        def forward(self, x):
            return self.q(x), x

    return WithState()


class Atoms(nn.Module):
    """C51: a distribution of three atoms for each action."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(SIZE, SIZE * 3)

    def forward(self, x):
        return self.out(x).view(-1, SIZE, 3).softmax(-1)


class NoForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(SIZE, SIZE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: two_outputs(nn.Linear(SIZE, SIZE)), "q returns 2 things (a tuple)"),
        (Atoms, "q returns shape (1, 4, 3)"),
        (NoForward, "q is a NoForward without forward"),
    ],
)
def test_networks_that_do_not_answer_with_q_values_are_refused(make, message):
    q = make()
    text = problems_of(q=q, target=None, optimizer=torch.optim.SGD(q.parameters(), lr=0.1))
    assert message in text
    if "forward" not in message:
        assert "pass a small module around it whose forward returns Q-values" in text


def test_the_number_of_actions_is_compared_where_it_is_known():
    q = nn.Linear(2, 12)  # three actions with four atoms each, flat
    shape = {"observation_shape": (2,), "observation_dtype": np.float32}
    replay = TaskScopedReplay(9, action_space=gymnasium.spaces.Discrete(3), **shape)
    optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    with pytest.raises(OwlValueError, match="q returns 12 numbers for 3 actions"):
        OwlWrapper(QLearner(q, None, optimizer, replay=replay))
    right = nn.Linear(2, 3)
    OwlWrapper(QLearner(right, None, torch.optim.SGD(right.parameters(), lr=0.1), replay=replay))


def test_flax_modules_are_named():
    foreign = type("Dense", (), {"__module__": "flax.linen"})()
    with pytest.raises(OwlValueError, match="q is a Dense of flax, a JAX library"):
        check_learner(QLearner(foreign, None, None))


class Moody(nn.Module):
    """Dropout, BatchNorm and a draw in its forward pass: whoever asks it must not be noticed."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.out = nn.Linear(SIZE, 8), nn.BatchNorm1d(8), nn.Linear(8, SIZE)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        torch.rand(1), np.random.random(), random.random()
        return self.out(self.drop(self.norm(self.first(x))))


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("real", [False, True])
def test_a_trial_is_not_noticed(wrapped, real):
    q = Moody()
    learner = QLearner(q, copy.deepcopy(q), torch.optim.Adam(q.parameters()), replay=[])
    if wrapped:
        OwlWrapper(learner)
    state = copy.deepcopy(q.state_dict())
    numbers = torch.get_rng_state(), repr(np.random.get_state()), random.getstate()
    kinds = [type(m) for m in q.modules()]
    assert learner.trial(transitions(1, torch.float32) if real else None) == []
    assert all(torch.equal(value, state[name]) for name, value in q.state_dict().items())
    assert q.training and q.norm.training and kinds == [type(m) for m in q.modules()]
    assert torch.equal(numbers[0], torch.get_rng_state())
    assert numbers[1:] == (repr(np.random.get_state()), random.getstate())


def test_a_trial_names_all_that_fails():
    q = nn.Sequential(nn.Linear(SIZE, 8), nn.Linear(8, SIZE))
    target = copy.deepcopy(q)
    learner = QLearner(q, target, torch.optim.Adam(q.parameters()), replay=[])
    OwlWrapper(learner)
    row = transitions(2, torch.float32)[1:]  # it does not end an episode
    assert learner.trial(row) == []
    wide = dataclasses.replace(row, observation=torch.zeros(1, SIZE + 1))
    (text,) = learner.trial(wide)
    assert "network 'q' failed for observations of shape (5,)" in text
    (text,) = learner.trial(dataclasses.replace(row, action=torch.zeros(1, 2), reward=torch.ones(1)))
    assert "the first row has action [0.0, 0.0] and reward 1); expected one int per row" in text
    stacked = dataclasses.replace(row, observation=torch.zeros(1, 1, SIZE))
    assert "if the rows hold batches of one, store observation[0]" in learner.trial(stacked)[0]
    beyond = learner.trial(dataclasses.replace(row, action=torch.tensor([SIZE])))
    assert [text.split(" ")[0] for text in beyond] == ["td_errors", "the", "the"]
    with torch.no_grad():
        target[0].weight.fill_(float("nan"))
    found = learner.trial(row)
    assert any("td_errors is not finite" in text for text in found)


def test_a_failure_in_the_trial_is_found_when_it_is_wrapped():
    """The description is right, the loss fails on what the network says."""

    def loss(q, goal, reduction):
        if len(q) == 3 and q.dtype == torch.float64:
            raise ZeroDivisionError("in the loss")
        return F.mse_loss(q, goal, reduction=reduction)

    q = nn.Linear(SIZE, SIZE).double()
    with pytest.raises(OwlValueError, match=r"loss of network 'q' in consolidation failed .*in the loss"):
        OwlWrapper(QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1), replay=[], loss=loss))
    assert type(q) is nn.Linear


def test_what_cannot_be_tried_yet_waits_for_the_first_row():
    q = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1), replay=[], layers=["1"])
    check_learner(learner)
    OwlWrapper(learner)
    assert learner.trial(None) == []
    wrong = Transitions(*(torch.zeros(1, 5), torch.tensor([0]), torch.zeros(1), torch.zeros(1, 5)),
                        torch.tensor([False]), torch.ones(1))  # fmt: skip
    assert "network 'q' failed" in learner.trial(wrong)[0]


def test_what_was_learned_is_handed_over_when_a_task_is_left():
    class Evidence(TDErrorEvidence):
        def calibrate(self, *arguments):
            calls.append("remembered")
            super().calibrate(*arguments)

    script, calls = make_script("plain"), []
    owl = OwlWrapper(script.learner(on_task_end=lambda: calls.append("left")), evidence=Evidence())
    with owl.task("a"):
        train(script, Signs(1), 3)
        assert not calls
    assert calls == ["left", "remembered"]
    make_script("plain").learner().finish_task()  # there is nothing to call
    assert "on_task_end is 3" in problems_of(on_task_end=3)


def test_heads_start_at_zero_and_what_was_trained_is_known():
    learner = bound("plain")
    x = torch.rand(2, SIZE, dtype=torch.float64)
    assert not learner.networks["q"](x, head=1).any() and learner.networks["q"](x, head=0).any()
    script = make_script("plain")
    described = script.learner()
    assert (described.pretrained, described.seed, described.scaling()) == (False, None, None)
    script.q(torch.ones(1, SIZE)).sum().backward()
    script.optimizer.step()
    assert described.pretrained


def test_inputs_are_what_the_network_is_called_with_and_weights_come_along():
    learner, rows = bound("plain"), transitions()
    weighted = dataclasses.replace(rows, weight=torch.arange(6.0))
    (x,) = learner.inputs("q", weighted)
    context = learner.consolidation(weighted)["q"]
    assert torch.equal(x, context.inputs[0]) and torch.equal(context.weight, torch.arange(6.0))
    assert learner.consolidation(rows)["q"].weight is None


def test_numpy_numbers_are_numbers():
    script = make_script("plain")
    learner = QLearner(script.q, None, script.optimizer, gamma=np.float64(0.5), double=np.bool_(False))
    check_learner(learner)
    assert type(learner.gamma) is float
