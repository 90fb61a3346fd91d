"""The compiled gradient is the eager one, for every task, with whatever hangs on the optimizer."""

import copy
import math
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from owlrl import DistillationRegularizer, EWCRegularizer, OwlWrapper
from owlrl.errors import NonFiniteError, OwlError, OwlStateError
from owlrl.learners import DQN, PAPER, SAC, GridConv, compiled, mlp
from owlrl.learners.compiled import ActiveParameters, CompiledStep
from owlrl.learners.config import DQNConfig, SACConfig
from owlrl.regularizers import Regularizer
from owlrl.types import Transitions
from tests.own_dqn import SIZE, Signs

QUICK = DQNConfig(
    learning_rate=3e-3, batch_size=16, n_step=1, learning_starts=20, update_every=1, buffer_size=1_000
)


class Images(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 10, (7, 7, 3), np.uint8), gym.spaces.Discrete(3)


class Doubles(nn.Module):
    """Vectors as float64 through an MLP."""

    def __init__(self):
        super().__init__()
        self.layers = mlp(SIZE, (16, 8))

    def forward(self, x):
        return self.layers(x.to(next(self.parameters()).dtype))


@pytest.fixture(autouse=True)
def fresh_compiler():
    yield
    torch._dynamo.reset()


@pytest.fixture
def functional(monkeypatch):
    """The function that is compiled, not compiled: what it computes, in no time."""
    monkeypatch.setattr(compiled, "BACKEND", None)


@pytest.fixture
def traced(monkeypatch):
    """Compile with a backend that counts and runs what was traced; the list of compilations."""
    found = []

    def backend(graph, inputs):
        found.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", backend)
    return found


def dqn(*, compile, paper=False, **settings):
    torch.manual_seed(0)
    if paper:
        agent = DQN(Images(), config=PAPER, trunk=GridConv(), feature_dim=200, seed=0, compile=compile)
    else:
        config = DQNConfig(**{**QUICK.__dict__, **settings})
        agent = DQN(Signs(), config=config, trunk=Doubles(), feature_dim=8, seed=0, compile=compile)
    agent.q.double()
    agent.target.double()
    return agent


def sac(*, compile, **settings):
    config = SACConfig(actor_hidden=(16, 16), critic_hidden=(16, 16), batch_size=16, **settings)
    agent = SAC(gym.make("Pendulum-v1"), config=config, seed=0, compile=compile)
    for module in (agent.actor, agent.critics, agent.targets):
        module.double()
    agent.log_alpha.data = agent.log_alpha.data.double()
    return agent


def rows(agent, seed, size=16):
    rng = np.random.default_rng(seed)
    space = agent.env.observation_space

    def observations():
        if space.dtype == np.uint8:
            return torch.from_numpy(rng.integers(0, 6, (size, *space.shape), dtype=np.uint8))
        return torch.from_numpy(rng.normal(size=(size, *space.shape)).astype(np.float32))

    if isinstance(agent, DQN):
        action = torch.from_numpy(rng.integers(agent.num_actions, size=size))
    else:
        action = torch.from_numpy(rng.uniform(-2, 2, (size, 1)).astype(np.float32))
    reward, ended = (
        torch.from_numpy(rng.normal(size=size).astype(np.float32)),
        torch.from_numpy(rng.random(size) < 0.2),
    )
    return Transitions(observations(), action, reward, observations(), ended, torch.full((size,), 0.9))


def networks(agent):
    return [agent.q, agent.target] if isinstance(agent, DQN) else [agent.actor, agent.critics, agent.targets]


def far_apart(one, other):
    own, others = ([p for network in networks(agent) for p in network.parameters()] for agent in (one, other))
    return max(float((p - o).detach().abs().max()) for p, o in zip(own, others, strict=True))


@pytest.mark.parametrize(
    "build", [dqn, lambda compile: dqn(compile=compile, double=False, dueling=True), sac,
              lambda compile: sac(compile=compile, mean_loss="likelihood")]
)  # fmt: skip
def test_what_is_compiled_is_what_eager_computes(functional, build):
    plain, fast = build(compile=False), build(compile=True)
    torch.set_default_dtype(torch.float64)
    try:
        found = [[agent.update(rows(agent, k)) for k in range(10)] for agent in (plain, fast)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert far_apart(plain, fast) < 1e-12
    assert (
        found[0] == pytest.approx(found[1])
        if isinstance(plain, DQN)
        else found[0][-1] == pytest.approx(found[1][-1])
    )


@pytest.mark.slow
@pytest.mark.parametrize("build", [dqn, lambda compile: dqn(compile=compile, paper=True), sac])
def test_a_hundred_compiled_updates_are_eager_ones(build):
    plain, fast = build(compile=False), build(compile=True)
    torch.set_default_dtype(torch.float64)
    try:
        for k in range(100):
            batch = rows(plain, k)
            plain.update(batch), fast.update(batch)
    finally:
        torch.set_default_dtype(torch.float32)
    assert far_apart(plain, fast) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("regularizer", [EWCRegularizer(10.0), "default"])
@pytest.mark.parametrize("build", [dqn, lambda compile: dqn(compile=compile, paper=True), sac])
def test_a_hundred_compiled_updates_with_a_pull_are_eager_ones(build, regularizer):
    agents = [build(compile=compile) for compile in (False, True)]
    torch.set_default_dtype(torch.float64)
    try:
        for agent in agents:
            owl = OwlWrapper(agent, regularizer=copy.deepcopy(regularizer), evidence=None, seed=0)
            for task in ("one", "two"):
                with owl.task(task):
                    batch = rows(agent, 7, size=64)
                    columns = (batch.observation, batch.action, batch.reward, batch.next_observation)
                    for row in zip(*columns, batch.terminated, strict=True):
                        agent.replay.add(*(x.numpy() for x in row), False)
                    for k in range(20 if task == "one" else 100):
                        agent.update(rows(agent, k))
    finally:
        torch.set_default_dtype(torch.float32)
    assert far_apart(*agents) < 1e-9


@pytest.mark.parametrize("regularizer", [EWCRegularizer(10.0), None])
def test_regularizers_act(functional, regularizer):
    agents = learned_twice(regularizer)
    assert far_apart(*agents) < 1e-10


@pytest.mark.parametrize("regularizer", [EWCRegularizer(10.0), "default"])
def test_the_pull_is_part_of_the_compiled_step(functional, regularizer, monkeypatch):
    agent = dqn(compile=True, learning_starts=16, batch_size=16)
    made = torch.optim.Adam.step

    def step(optimizer: torch.optim.Adam) -> None:  # of the learner's none, of others those of settling
        assert optimizer is not agent.optimizer, "Adam made a step of its own"
        made(optimizer)

    monkeypatch.setattr(torch.optim.Adam, "step", step)
    owl = OwlWrapper(agent, regularizer=regularizer, evidence=None, seed=0)
    for task in ("one", "two", "three"):
        before = [p.detach().clone() for p in agent.q.heads[0].parameters()]
        with owl.task(task):
            agent.learn(40)
    assert all(torch.equal(p, b) for p, b in zip(agent.q.heads[0].parameters(), before, strict=True))
    assert owl.regularizer.watch()["pull/q"] > 0.0


def test_what_is_watched_and_saved_of_the_pull_is_the_same(functional):
    found = []
    for compile in (False, True):
        agent = dqn(compile=compile, learning_starts=16, batch_size=16)
        owl, calls = OwlWrapper(agent, evidence=None, seed=0), []
        agent.optimizer.register_step_post_hook(Free(calls).after)
        for task in ("one", "two", "three"):
            with owl.task(task):
                agent.learn(40)
        found.append((owl.regularizer.watch(), owl.regularizer.state_dict(), len(calls)))
    (watched, state, calls), (others, other, as_many) = found
    assert watched == pytest.approx(others) and set(watched) >= {"pull/q", "drift/q/one", "drift/q/two"}
    assert state["gradient"] == pytest.approx(other["gradient"]) and state["gradient"]["q"] > 0
    assert (state["steps"], state["drawn"], calls) == (other["steps"], other["drawn"], as_many)
    assert (state["since"], state["calm"]) == (other["since"], other["calm"])


class Free:
    """A hook that needs no gradient, and counts."""

    needs_no_gradient = True

    def __init__(self, calls):
        self.calls = calls

    def after(self, *_):
        self.calls.append(1)


def test_a_pull_of_another_form_is_made_by_a_hook(functional):
    agents = [dqn(compile=compile, learning_starts=16, batch_size=16) for compile in (False, True)]
    for agent in agents:
        held = DistillationRegularizer(0.5, seed=0)  # trains old heads, too
        owl = OwlWrapper(agent, regularizer=held, evidence=None, seed=0)
        for task in ("one", "two"):
            with owl.task(task):
                agent.learn(40)
        assert held.fused(agent.optimizer, list(agent.q.parameters())) is None
    assert far_apart(*agents) < 1e-10


def test_a_pull_that_is_not_finite_changes_nothing(functional):
    agent = dqn(compile=True, learning_starts=16, batch_size=16)
    owl = OwlWrapper(agent, evidence=None, seed=0)
    with owl.task("one"):
        agent.learn(40)
    with pytest.raises(NonFiniteError, match="the loss is"), owl.task("two"):
        agent.learn(20)
        owl.regularizer._gradient["q"] = math.inf
        before = copy.deepcopy(agent.q.state_dict())
        agent.update(rows(agent, 0))
    assert all(torch.equal(before[k], v) for k, v in agent.q.state_dict().items())


def test_one_compilation_serves_all_tasks(traced):
    agents = learned_twice("default")
    assert far_apart(*agents) < 1e-10
    assert len(traced) == 2 and agents[1].q.num_heads == 3  # the first task's, and that of all others
    assert agents[1].compile_seconds > 0 == agents[0].compile_seconds
    assert "compiled in" in repr(agents[1]._compiled["q"])


def learned_twice(regularizer):
    """Four visits of three tasks, eager and compiled."""
    agents = [dqn(compile=compile, learning_starts=16, batch_size=16) for compile in (False, True)]
    for agent in agents:
        owl = OwlWrapper(agent, regularizer=copy.deepcopy(regularizer), evidence=None, seed=0)
        for task in ("one", "two", "three", "one"):
            with owl.task(task):
                agent.learn(40)
    return agents


@pytest.mark.parametrize("counted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_actor_critic_keeps_its_compilations_when_it_is_wrapped(counted, request):
    found = request.getfixturevalue("traced" if counted else "functional")
    config = SACConfig(actor_hidden=(8,), critic_hidden=(8,), batch_size=16, learning_starts=16)
    agents = [SAC(gym.make("Pendulum-v1"), config=config, seed=0, compile=c) for c in (False, True)]
    for agent in agents:
        agent.learn(20)  # not wrapped yet
        owl = OwlWrapper(agent, evidence=None, seed=0)
        with pytest.warns(UserWarning, match="trained before"), owl.task("one"):
            agent.learn(20)
        with owl.task("two"):
            agent.learn(20)
    assert far_apart(*agents) < 1e-3 and (not counted or len(found) == 4)


def test_the_guard_refuses_steps_as_always(functional):
    agent = dqn(compile=True)
    owl = OwlWrapper(agent, evidence=None, seed=0)
    with owl.task("one"):
        agent.learn(40)
    with pytest.raises(OwlStateError, match="outside a task"):
        agent.update(rows(agent, 0))
    before = copy.deepcopy(agent.q.state_dict())
    batch = rows(agent, 0)
    batch.reward[3] = torch.inf
    with pytest.raises(NonFiniteError, match="the loss is"), owl.task("one"):
        agent.update(batch)
    assert all(torch.equal(before[k], v) for k, v in agent.q.state_dict().items())


def test_another_head_leaves_no_gradient_behind(functional):
    agent = dqn(compile=True)
    agent.q.add_head(optimizer=agent.optimizer)
    agent.target.add_head()
    agent.head_of = lambda batch: 1
    before = agent.q.heads[0].weight.detach().clone()
    agent.update(rows(agent, 0))
    assert agent.q.heads[0].weight.grad is None and torch.equal(before, agent.q.heads[0].weight)
    agent.head_of = lambda batch: 0
    agent.update(rows(agent, 0))
    assert agent.q.heads[1].weight.grad is None


def test_a_state_goes_on_exactly_and_copies_compile_again(functional):
    agent = dqn(compile=True)
    agent.update(rows(agent, 0))
    other = dqn(compile=True)
    other.load_state_dict(agent.state_dict())
    twin = pickle.loads(pickle.dumps(agent._compiled["q"]))
    assert "not compiled" in repr(twin)
    agent.update(rows(agent, 1))
    other.update(rows(agent, 1))
    assert far_apart(agent, other) == 0.0


def test_shared_parameters_count_once_and_other_trunks_are_noticed():
    agent = dqn(compile=False)
    parameters = ActiveParameters(agent.q)
    assert [id(p) for p in parameters()] == [id(p) for p in agent.q.parameters()]
    agent.q.trunk = nn.Sequential(nn.Linear(SIZE, 8), tied := nn.Linear(8, 8), nn.ReLU(), tied)
    assert [id(p) for p in parameters()] == [id(p) for p in agent.q.parameters()]


def test_what_cannot_be_compiled_is_named(monkeypatch, traced):
    with pytest.raises(OwlError, match=r"\['Dropout'\] in the network, which have a training mode"):
        DQN(Signs(), trunk=nn.Sequential(nn.Linear(SIZE, 8), nn.Dropout()), feature_dim=8, compile=True)

    class Branches(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            return out if float(out.sum()) > 0 else -out

    agent = DQN(Signs(), config=QUICK, trunk=Branches(SIZE, 8), feature_dim=8, compile=True, seed=0)
    with pytest.raises(OwlStateError, match=r"_td_loss of \['MultiHeadQ', 'MultiHeadQ'\] cannot be compiled"):
        agent.update(rows(agent, 0))


def test_without_a_compiler_there_is_an_error_at_once(monkeypatch):
    from torch._inductor import cpp_builder

    def none():
        raise RuntimeError("No working C++ compiler found")

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(OwlStateError, match="DQN: compile=True needs a C\\+\\+ compiler, and none was found"):
        dqn(compile=True)
    monkeypatch.undo()
    monkeypatch.setattr(compiled.sysconfig, "get_paths", lambda: {"include": "/nowhere"})
    with pytest.raises(OwlStateError, match=r"SAC: compile=True needs Python.h, and it is not in /nowhere"):
        sac(compile=True)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_a_step_is_that_of_the_optimizer_with_clipping(functional, make):
    def squares(network, x):
        return (network(x).square().sum(),)

    networks = [nn.Linear(3, 2).double() for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    optimizers = [make(network.parameters(), lr=0.1) for network in networks]
    step = CompiledStep(squares, max_norm=0.5)
    for k in range(5):
        x = torch.randn(5, 3, dtype=torch.float64)
        (loss,) = step(optimizers[0], [networks[0]], x)
        optimizers[1].zero_grad()
        (value := squares(networks[1], x)[0]).backward()
        nn.utils.clip_grad_norm_(networks[1].parameters(), 0.5)
        optimizers[1].step()
        assert loss.item() == pytest.approx(value.item())
        for optimizer in optimizers:  # a schedule is followed
            optimizer.param_groups[0]["lr"] = 0.1 / (k + 2)
    for own, other in zip(*(network.parameters() for network in networks), strict=True):
        assert torch.allclose(own, other, rtol=0, atol=1e-12)
    states = [[state for state in o.state_dict()["state"].values()] for o in optimizers]
    for one, other in zip(*states, strict=True):
        assert one.keys() == other.keys() and all(torch.allclose(one[k], other[k]) for k in one)


def test_hooks_schedulers_and_other_optimizers_get_their_step(functional):
    def squares(network, x):
        return (network(x).square().sum(),)

    network, x = nn.Linear(3, 2), torch.randn(5, 3)
    seen = []
    optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    step = CompiledStep(squares)
    step(optimizer, [network], x)
    assert network.weight.grad is None  # all in one
    handle = optimizer.register_step_pre_hook(lambda o, a, k: seen.append(network.weight.grad.clone()))
    step(optimizer, [network], x)
    assert len(seen) == 1 and seen[0].abs().sum() > 0
    handle.remove()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    step(optimizer, [network], x)
    scheduler.step()  # would warn of steps that were not made


def test_a_regularizer_that_keeps_nothing_still_acts(functional):
    class Small(Regularizer):
        def remember(self, task, context):
            pass

        def term(self, name):
            return sum(p.square().sum() for p in self.networks[name].shared_parameters().values())

    agents = [dqn(compile=compile, learning_starts=16, batch_size=16) for compile in (False, True)]
    for agent in agents:
        with OwlWrapper(agent, regularizer=Small(10.0), evidence=None, seed=0).task("one"):
            agent.learn(40)
    assert far_apart(*agents) < 1e-10


@pytest.mark.parametrize("custom", [False, True])
def test_an_output_that_the_loss_does_not_show_changes_nothing(custom, functional):
    """A target's value that is never the greatest."""

    def one_layer(features, actions):
        return nn.Sequential(nn.Linear(features, actions))

    torch.manual_seed(0)
    head = one_layer if custom else None
    agent = DQN(
        Signs(), config=QUICK, trunk=Doubles(), feature_dim=8, head=head, seed=0, compile=True, device="cpu"
    )
    owl = OwlWrapper(agent, evidence=None)
    with (
        pytest.raises(NonFiniteError, match=r"the loss is inf \(or its gradient, .*; no w"),
        owl.task("a"),
    ):
        agent.learn(40)
        own = agent.target.heads[0][0] if custom else agent.target.heads[0]
        own.weight.data[0], own.bias.data[0] = 0.0, -1e18
        agent.learn(1)  # finite, and so are the squares of its weights
        own.bias.data[0] = -1.7e19  # 16 rows: the sum of squares is infinite
        before = copy.deepcopy(agent.q.state_dict())
        agent.learn(1)
    assert all(torch.equal(before[k], v) for k, v in agent.q.state_dict().items())
