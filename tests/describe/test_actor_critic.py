"""ActorCriticLearner: equal to the bare script, scores by the definition, growth, saving, problems."""

import copy
import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal

from owlrl import (
    ActorCriticLearner,
    DistillationRegularizer,
    EWCRegularizer,
    MultiHeadQ,
    OwlWrapper,
    TaskScopedReplay,
    Trained,
    Transitions,
    UniformSelector,
    check_learner,
)
from owlrl.describe.outputs import Deterministic, GaussianQ, QValues, normal_points
from owlrl.describe.temperature import TaskTemperature
from owlrl.errors import NonFiniteError, OwlError, OwlStateError, OwlTypeError, OwlValueError
from owlrl.fisher import squared_gradients
from owlrl.protocols import OffPolicyLearner, missing_members
from tests.own_actor_critic import GAMMA, Actor, Critic, Push, Pusher, Script, make_script, state, train


def transitions(n=5, *, actions=1, dtype=torch.float64) -> Transitions:
    generator = torch.Generator().manual_seed(1)
    return Transitions(
        observation=torch.rand(n, 2, generator=generator, dtype=dtype),
        action=torch.rand(n, actions, generator=generator, dtype=dtype) * 2 - 1,
        reward=torch.rand(n, generator=generator),
        next_observation=torch.rand(n, 2, generator=generator, dtype=dtype),
        terminated=torch.arange(n) % 3 == 0,
        discount=torch.full((n,), GAMMA),
    )


def scramble(learner: ActorCriticLearner) -> None:
    """Targets that differ from their networks."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for target in learner.targets.values():
            for p in target.module.parameters():
                p.add_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))


def bound(kind: str, *, heads=3, actions=2) -> ActorCriticLearner:
    """A learner in float64 with its heads, of the given kind."""
    torch.manual_seed(0)
    actor = Pusher(actions=actions) if kind in ("td3", "ddpg") else Actor(actions=actions)
    critics = [Critic(actions=actions), Critic(actions=actions)]
    if kind == "ddpg":
        critics = [Critic(actions=actions)]
    if kind == "gaussian":
        critics = [Critic(actions=actions, outputs=2), Critic(actions=actions, outputs=2)]
    for module in (actor, *critics):
        module.double()
    shared = torch.optim.SGD([p for critic in critics for p in critic.parameters()], lr=0.1)
    described = [
        Trained(
            critic,
            shared,
            None if kind == "sac without targets" else copy.deepcopy(critic),
            output=GaussianQ() if kind == "gaussian" else None,
            init="fresh",
        )
        for critic in critics
    ]
    deterministic = kind in ("td3", "ddpg")
    learner = ActorCriticLearner(
        Trained(
            actor,
            torch.optim.SGD(actor.parameters(), lr=0.1),
            copy.deepcopy(actor) if deterministic else None,
            init="fresh",
        ),
        described[0] if kind == "ddpg" else described,
        temperature=None if deterministic else 0.3,
        gamma=GAMMA,
    )
    check_learner(learner)
    learner.bind()
    for _ in range(heads - 1):
        learner.add_head()
    scramble(learner)
    return learner


KINDS = ["sac", "sac without targets", "gaussian", "td3", "ddpg"]


def slow_target(learner: ActorCriticLearner, rows: Transitions, head: int, b: int) -> float:
    critics = {n: net for n, net in learner.networks.items() if n != "actor"}
    targets = [learner.targets.get(name, net) for name, net in critics.items()]
    actor = learner.targets.get("actor", learner.networks["actor"])
    x = rows.next_observation[b : b + 1]
    output = actor(x, head=head)
    outcomes = []
    for z in normal_points(2):
        if learner.temperature is None:
            action, entropy = output, 0.0
        else:
            mean, log_std = output[:, :2], output[:, 2:]
            raw = mean + log_std.exp() * z
            action = 2.0 * raw.tanh()
            log_prob = Normal(mean, log_std.exp()).log_prob(raw) - torch.log(2.0 * (1 - raw.tanh() ** 2))
            entropy = -0.3 * log_prob.sum().item()
        outcomes.append(min(target(x, action, head=head)[0, 0].item() for target in targets) + entropy)
    follow = 0.0 if rows.terminated[b] else GAMMA * float(np.mean(outcomes))
    return rows.reward[b].item() + follow


@pytest.mark.parametrize("kind", KINDS)
def test_td_errors_equal_the_definition(kind):
    learner, rows = bound(kind), transitions(actions=2)
    state = torch.get_rng_state()
    delta = learner.td_errors(rows, np.arange(3))
    assert torch.equal(torch.get_rng_state(), state)  # nobody's random numbers are drawn
    critics = [net for name, net in learner.networks.items() if name != "actor"]
    with torch.no_grad():
        for head, b in itertools.product(range(3), range(5)):
            row = slice(b, b + 1)
            q = [net(rows.observation[row], rows.action[row], head=head)[0, 0].item() for net in critics]
            expected = slow_target(learner, rows, head, b) - float(np.mean(q))
            assert delta[head, b].item() == pytest.approx(expected, abs=1e-6)
    torch.testing.assert_close(learner.td_errors(rows, np.array([2, 0])), delta[[2, 0]])
    torch.testing.assert_close(learner.td_errors(rows[1:2], np.array([1])), delta[1:2, 1:2])


LEARNERS = {kind: bound(kind, heads=4) for kind in ("sac", "td3")}


@settings(max_examples=20, deadline=None)
@given(
    kind=st.sampled_from(sorted(LEARNERS)),
    heads=st.lists(st.integers(0, 3), min_size=1, max_size=6),
    rows=st.lists(st.integers(0, 4), max_size=7),
)
def test_what_a_head_says_of_a_row_depends_on_nothing_else(kind, heads, rows):
    """Any heads in any order and number, any rows, none at all: the same numbers."""
    learner, every = LEARNERS[kind], transitions(actions=2)
    index = torch.tensor(rows, dtype=torch.int64)
    expected = learner.td_errors(every, np.arange(4))[heads][:, index]
    torch.testing.assert_close(learner.td_errors(every[index], np.array(heads)), expected)
    seen = every.observation[index]
    torch.testing.assert_close(learner.values(seen), learner.values(every.observation)[:, index])


@pytest.mark.parametrize("kind", KINDS)
def test_acting_and_values_equal_the_heads(kind):
    learner, rows = bound(kind), transitions(actions=2)
    actor = learner.networks["actor"]
    critics = [net for name, net in learner.networks.items() if name != "actor"]

    def slow(head, b):
        x = rows.observation[b : b + 1]
        out = actor(x, head=head)
        action = out if learner.temperature is None else 2.0 * out[:, :2].tanh()
        return action, min(net(x, action, head=head)[0, 0].item() for net in critics)

    heads = torch.tensor([2, 0, 1, 1, 0])
    with torch.no_grad():
        expected = torch.cat([slow(int(h), b)[0] for b, h in enumerate(heads)])
        torch.testing.assert_close(learner.act(rows.observation, heads), expected)
        values = [[slow(h, b)[1] for b in range(5)] for h in range(3)]
        torch.testing.assert_close(learner.values(rows.observation), torch.tensor(values).double())


def test_predictions_are_what_td_errors_compare():
    learner, rows = bound("gaussian"), transitions(actions=2)
    mean, variance, target = learner.predictions(rows, np.array([2, 0]))
    assert mean.shape == variance.shape == (2, 2, 5) and target.shape == (2, 5)
    torch.testing.assert_close(target - mean.mean(1), learner.td_errors(rows, np.array([2, 0])))
    with torch.no_grad():
        output = learner.networks["critic_1"](rows.observation, rows.action, head=2)
    torch.testing.assert_close(mean[0, 1], output[:, 0])
    torch.testing.assert_close(variance[0, 1], output[:, 1].exp())
    with pytest.raises(OwlTypeError, match="no variance"):
        bound("sac").predictions(rows, np.array([0]))


@pytest.mark.parametrize("kind", ["gaussian", "td3"])
@pytest.mark.parametrize("importance", ["output", "loss"])
def test_consolidation_is_the_same_by_every_path_to_the_fisher_information(kind, importance):
    learner, rows = bound(kind), transitions(actions=2)
    state = torch.get_rng_state()
    with learner.networks["actor"].pointer.at(1):
        context = learner.consolidation(rows)
        assert torch.equal(torch.get_rng_state(), state)
        assert list(context) == ["critic_0", "critic_1", "actor"]
        for c in context.values():
            assert c.head == 1
            own = {**c.network.shared_parameters(), **c.network.head_parameters(1)}
            function = c.output if importance == "output" else c.loss
            loop, hooks, vmap = (
                squared_gradients(
                    c.network.module, function, c.inputs, targets=c.targets, parameters=own, method=method
                )
                for method in ("loop", "hooks", "vmap")
            )
            assert any(f.any() for f in loop.values())
            for name, expected in loop.items():
                torch.testing.assert_close(hooks[name], expected, rtol=1e-5, atol=1e-10)
                torch.testing.assert_close(vmap[name], expected, rtol=1e-5, atol=1e-10)


def test_consolidation_has_the_learner_s_losses():
    learner, rows = bound("gaussian"), transitions(actions=2)
    with learner.networks["actor"].pointer.at(2):
        context = learner.consolidation(rows)
    critic = context["critic_0"]
    output = critic.network(*critic.inputs, head=2)
    torch.testing.assert_close(critic.output(output, *critic.targets), output[:, 0])
    goal = torch.tensor([slow_target(learner, rows, 2, b) for b in range(5)]).double()
    expected = 0.5 * (output[:, 1] + (goal - output[:, 0]) ** 2 / output[:, 1].exp())
    torch.testing.assert_close(critic.loss(output, *critic.targets), expected, atol=1e-6, rtol=1e-6)
    actor = context["actor"]
    noise = actor.targets[-1]
    out = actor.network(*actor.inputs, head=2)
    raw = out[:, :2] + out[:, 2:].exp() * noise
    log_prob = Normal(out[:, :2], out[:, 2:].exp()).log_prob(raw) - torch.log(2 * (1 - raw.tanh() ** 2))
    qs = [
        learner.networks[name](rows.observation, 2 * raw.tanh(), head=2)[:, 0]
        for name in ("critic_0", "critic_1")
    ]
    expected = 0.3 * log_prob.sum(1) - torch.minimum(*qs)
    torch.testing.assert_close(actor.loss(out, *actor.targets), expected)


@pytest.mark.parametrize(("kind", "twins", "replay"), [("sac", False, "scoped"), ("td3", True, "deque")])
def test_one_task_equals_the_bare_script_bit_for_bit(kind, twins, replay):
    results = []
    for wrapped in (False, True):
        script = make_script(kind, twins=twins, replay=replay)
        if wrapped:
            owl = OwlWrapper(script.learner(), regularizer=EWCRegularizer({"actor": 5.0, "critic": 50.0}))
            torch.manual_seed(7)
            with owl.task("only"):
                train(script, Push(length=3), 114)
        else:
            torch.manual_seed(7)
            train(script, Push(length=3), 114)
        assert script.updates == 50
        results.append([*state(script), torch.rand(3)])
    assert all(torch.equal(bare, own) for bare, own in zip(*results, strict=True))


def error(script: Script, sign: float) -> float:
    """How far the script's greedy action is from the paying one, on average."""
    x = torch.stack([torch.linspace(-1, 1, 21), torch.zeros(21)], 1)
    with torch.no_grad():
        return float((script.actor.greedy(x)[:, 0] - sign * (1 + 0.5 * x[:, 0])).abs().mean())


@pytest.mark.parametrize(("kind", "steps"), [("sac", 220), pytest.param("td3", 450, marks=pytest.mark.slow)])
def test_each_head_keeps_its_own_action_where_the_bare_script_forgets(kind, steps):
    bare, script = make_script(kind), make_script(kind)
    for sign in (1.0, -1.0):
        train(bare, Push(sign), 120)
    assert error(bare, 1.0) > 0.4  # one network and one buffer: nothing fits both
    owl = OwlWrapper(
        script.learner(), regularizer=DistillationRegularizer({"actor": 1.0, "critic": 1.0}, seed=0)
    )
    for name, sign in (("right", 1.0), ("left", -1.0)):
        with owl.task(name):
            train(script, Push(sign), steps)
    for name, sign in (("right", 1.0), ("left", -1.0)):
        with owl.use(name):
            assert error(script, sign) < 0.25
        told = owl.evaluate(Push(sign, length=4), task=name, episodes=5, seed=0)
        assert told.mean_return > -1.0
    # nobody tells: a wrong head costs about 4 per step, and is found out in one or two
    found = owl.evaluate(Push(-1.0, length=8), episodes=4, seed=0)
    assert found.mean_return > -8.0
    policy = owl.policy(UniformSelector(seed=0))
    policy.reset(num_envs=3)
    actions = policy.act(np.zeros((3, 2), np.float32))
    assert actions.shape == (3, 1)
    policy.observe(np.zeros((3, 2)), actions, np.zeros(3), np.zeros((3, 2)), np.ones(3, bool))


@pytest.mark.parametrize("regularizer", ["ewc", "ewc on losses", "memory", "current"])
def test_every_regularizer_guards_actor_and_critics(regularizer):
    make = {
        "ewc": lambda: EWCRegularizer({"actor": 2.0, "critic": 3.0}),
        "ewc on losses": lambda: EWCRegularizer(2.0, importance="loss"),
        "memory": lambda: DistillationRegularizer({"actor": 1.0, "critic_0": 2.0, "critic": 3.0}, seed=0),
        "current": lambda: DistillationRegularizer(1.0, states="current", seed=0),
    }[regularizer]
    script = make_script("sac")
    owl = OwlWrapper(script.learner(), regularizer=make())
    with owl.task("a"):
        train(script, Push(1.0), 80)
    with owl.task("b"):
        train(script, Push(-1.0), 80)
        assert owl.regularizer.penalty().item() > 0
        owl.regularizer.penalty().backward()
        for network in owl.learner.networks.values():
            pulled = [p.grad for p in network.shared_parameters().values() if p.grad is not None]
            assert pulled and all(bool(g.isfinite().all()) for g in pulled)


def test_strengths_are_told_apart_by_network():
    """The same change costs each network its own strength; "critic" stands for both critics."""
    penalties = {}
    for strength in (1.0, {"actor": 2.0, "critic": 3.0}, {"actor": 2.0, "critic": 3.0, "critic_1": 5.0}):
        script = make_script("sac")
        owl = OwlWrapper(script.learner(), regularizer=EWCRegularizer(strength), evidence=None)
        with owl.task("a"):
            train(script, Push(1.0), 70)
        for moved in ("actor", "critic_0", "critic_1"):
            shared = list(owl.learner.networks[moved].shared_parameters().values())
            kept = [p.detach().clone() for p in shared]
            torch._foreach_add_([p.data for p in shared], 0.1)
            penalties[moved, str(strength)] = owl.regularizer.penalty().item()
            torch._foreach_copy_([p.data for p in shared], kept)
    one, kinds, named = (
        [penalties[m, s] for m in ("actor", "critic_0", "critic_1")]
        for s in dict.fromkeys(s for _, s in penalties)
    )
    assert [k / o for k, o in zip(kinds, one, strict=True)] == pytest.approx([2.0, 3.0, 3.0], rel=1e-4)
    assert [n / o for n, o in zip(named, one, strict=True)] == pytest.approx([2.0, 3.0, 5.0], rel=1e-4)
    for wrong in ({"actor": 1.0}, {"actor": 1.0, "critic": 1.0, "q": 1.0}):
        script = make_script("sac")
        with pytest.raises(OwlValueError, match="strength is for"):
            OwlWrapper(script.learner(), regularizer=EWCRegularizer(wrong))
        assert type(script.actor.mean) is nn.Linear  # nothing half done


def test_growth_is_of_all_networks_targets_and_optimizers_at_once():
    script = make_script("td3")
    optimizers = [torch.optim.Adam(c.parameters()) for c in script.critics]
    script.critic_optimizer = optimizers
    learner = script.learner(init="copy")
    owl = OwlWrapper(learner)
    for name in ("a", "b", "c"):
        with owl.task(name):
            train_one(script)
    assert list(learner.networks) == list(learner.targets) == ["critic_0", "critic_1", "actor"]
    for name, network in learner.networks.items():
        target = learner.targets[name]
        assert network.num_heads == target.num_heads == 3 and network.pointer is target.pointer
        held = {id(p) for group in learner.optimizers[name].param_groups for p in group["params"]}
        assert held == {id(p) for p in network.module.parameters()}
        assert len(learner.optimizers[name].param_groups) == 1
    index = learner.add_head()
    for name, network in learner.networks.items():
        own, new = (list(n.head_parameters(index).values()) for n in (learner.targets[name], network))
        assert all(torch.equal(a, b) and a is not b for a, b in zip(own, new, strict=True))
        active = network.head_parameters(2).values()
        assert all(torch.equal(a, b) for a, b in zip(active, new, strict=True))
    with pytest.raises(OwlValueError, match="num_actions"):
        learner.add_head(num_actions=3)
    with pytest.raises(OwlStateError, match="env= was given"):
        learner.set_env(None)


def train_one(script: Script) -> None:
    rng = np.random.default_rng(0)
    for _ in range(3):
        script.replay.add(
            rng.random(2, np.float32), rng.random(1, np.float32), 1.0, rng.random(2, np.float32), False, False
        )


def test_alpha_is_of_a_task_and_of_its_head():
    script = make_script("sac")
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Push(1.0), 100)
    first, moments = script.log_alpha.item(), copy.deepcopy(script.alpha_optimizer.state_dict()["state"])
    assert first < 0
    with owl.task("b"):
        assert script.log_alpha.item() == 0.0 and not script.alpha_optimizer.state
        train(script, Push(-1.0), 80)
        second = script.log_alpha.item()
        learner, rows = owl.learner, transitions(dtype=torch.float32)
        assert (learner.alpha_of(0), learner.alpha_of(1)) == pytest.approx((np.exp(first), np.exp(second)))
        expected = learner.td_errors(rows, np.arange(2))
    assert first != second
    # a head's target has its own temperature, whatever task is current
    with owl.use("a"):
        torch.testing.assert_close(learner.td_errors(rows, np.arange(2)), expected)
    fixed = [make_script("sac").learner(temperature=learner.alpha_of(k)) for k in (0, 1)]
    for k, other in enumerate(fixed):
        other.bind(), other.add_head()
        for name, network in learner.networks.items():
            other.networks[name].module.load_state_dict(network.module.state_dict())
            if name in learner.targets:
                other.targets[name].module.load_state_dict(learner.targets[name].module.state_dict())
        torch.testing.assert_close(other.td_errors(rows, np.array([k]))[0], expected[k])
    with owl.task("a"):
        assert script.log_alpha.item() == first
        again = script.alpha_optimizer.state_dict()["state"]
        assert all(
            torch.equal(torch.as_tensor(again[0][k]), torch.as_tensor(moments[0][k])) for k in moments[0]
        )


@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_training_goes_on_from_a_file_bit_for_bit(kind, tmp_path):
    def wrap(script):
        return script.learner(), {"regularizer": EWCRegularizer({"actor": 1.0, "critic": 10.0})}

    script = make_script(kind)
    learner, parts = wrap(script)
    owl = OwlWrapper(learner, **parts)
    for name, sign in (("a", 1.0), ("b", -1.0)):
        with owl.task(name):
            train(script, Push(sign), 75)
    owl.save(tmp_path / "owl.safetensors")
    fresh = make_script(kind, seed=3)
    learner, parts = wrap(fresh)
    loaded = OwlWrapper.load(tmp_path / "owl.safetensors", learner, **parts)
    assert [loaded.learner.alpha_of(k) for k in (0, 1)] == [owl.learner.alpha_of(k) for k in (0, 1)]
    rows = transitions(dtype=torch.float32)
    assert torch.equal(
        loaded.learner.td_errors(rows, np.arange(2)), owl.learner.td_errors(rows, np.arange(2))
    )
    fresh.rng, fresh.updates = copy.deepcopy(script.rng), script.updates
    results = []
    for one, of in ((owl, script), (loaded, fresh)):
        torch.manual_seed(5)
        for name, sign in (("a", 1.0), ("c", 2.0)):
            with one.task(name):
                train(of, Push(sign), 75)
        results.append(state(of))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_unwrapping_gives_plain_networks_with_a_task_s_heads():
    script = make_script("td3", twins=True)
    modules = [script.actor, *script.critics, *script.target_critics, script.target_actor]
    keys = [list(m.state_dict()) for m in modules]
    owl = OwlWrapper(script.learner())
    for name, sign in (("a", 1.0), ("b", -1.0)):
        with owl.task(name):
            train(script, Push(sign), 70)
    x = torch.rand(4, 2)
    with owl.use("a"), torch.no_grad():
        expected = script.actor(x), script.target_actor(x)
    owl.unwrap("a")
    assert [list(m.state_dict()) for m in modules] == keys
    assert type(script.actor.out) is nn.Linear
    with torch.no_grad():
        assert torch.equal(script.actor(x), expected[0]) and torch.equal(script.target_actor(x), expected[1])
    assert sum(len(g["params"]) for g in script.actor_optimizer.param_groups) == len(
        list(script.actor.parameters())
    )
    train(script, Push(1.0), 70)  # the bare script goes on
    OwlWrapper(script.learner())  # and may be wrapped again


def test_an_exception_in_a_block_leaves_everything_usable():
    script = make_script("sac")
    owl = OwlWrapper(script.learner(), regularizer=EWCRegularizer(1.0))
    with owl.task("a"):
        train(script, Push(1.0), 70)
    alpha = script.log_alpha.item()
    with pytest.raises(KeyboardInterrupt), owl.task("b"):
        assert script.log_alpha.item() == 0.0
        train(script, Push(-1.0), 70)
        interrupted, moments = script.log_alpha.item(), len(script.alpha_optimizer.state)
        raise KeyboardInterrupt
    assert script.log_alpha.item() == alpha and owl.learner.networks["actor"].pointer.head == 0
    assert owl.regularizer.tasks == ["a"]
    with owl.task("b"):  # goes on
        assert script.log_alpha.item() == interrupted not in (alpha, 0.0)
        assert len(script.alpha_optimizer.state) == moments == 1
        train(script, Push(-1.0), 70)
    assert owl.tasks["b"].head == 1 and owl.tasks["b"].steps == 12


def test_steps_are_looked_at_by_task_step_and_quantity():
    script = make_script("sac")
    owl = OwlWrapper(script.learner())
    with pytest.raises(OwlStateError, match="outside a task"):
        script.alpha_optimizer.step()
    broken = r"task 'a', step 7: the gradient of log_alpha is not finite"
    with pytest.raises(NonFiniteError, match=broken), owl.task("a"):
        train(script, Push(1.0), 70)
        before = script.log_alpha.item()
        script.log_alpha.grad = torch.full_like(script.log_alpha, float("nan"))
        script.alpha_optimizer.step()
    broken = r"task 'a', step 1: alpha \(log_alpha is 1000\) is not finite"
    with pytest.raises(NonFiniteError, match=broken), owl.task("a"):
        script.log_alpha.data.fill_(1000.0)
        train(script, Push(1.0), 70)
    assert script.log_alpha.item() == 0.0  # outside as before
    broken = r"log_alpha is nan.*nothing was consolidated"
    with pytest.raises(NonFiniteError, match=broken), owl.task("a"):
        assert script.log_alpha.item() == 1000.0  # as it was broken
        script.log_alpha.data.fill_(before)
        train(script, Push(1.0), 70)
        script.log_alpha.data.fill_(float("nan"))
    with owl.task("a"):
        script.log_alpha.data.fill_(before)
        train(script, Push(1.0), 70)
    assert owl.tasks["a"].visits == 1


class Shared(nn.Module):
    """An actor that sees through the critics' encoder, which their optimizer trains."""

    def __init__(self, encoder: nn.Module, inputs: int, outputs: int) -> None:
        super().__init__()
        self.encoder, self.out = encoder, nn.Linear(inputs, outputs)

    def forward(self, observation, action=None):
        x = torch.relu(self.encoder(observation))
        return self.out(x if action is None else torch.cat([x, action], 1))


def test_actor_and_critic_may_share_a_trunk():
    encoder = nn.Linear(2, 8)
    actor, critic = Shared(encoder, 8, 1), Shared(encoder, 9, 1)
    learner = ActorCriticLearner(
        Trained(actor, torch.optim.Adam(actor.out.parameters())),
        Trained(critic, torch.optim.Adam(critic.parameters())),
        replay=[],
    )
    owl = OwlWrapper(learner, regularizer=EWCRegularizer(1.0))
    for name in ("a", "b"):
        with owl.task(name):
            learner.replay.rows.extend(
                [(np.ones(2, np.float32), np.ones(1), 1.0, np.ones(2, np.float32), True)] * 4
            )
            critic(torch.ones(1, 2), torch.ones(1, 1)).sum().backward()
            learner.optimizers["critic"].step()
    assert learner.networks["critic"].layers == learner.networks["actor"].layers == ("out",)


def test_native_heads_are_taken_as_they_are():
    actor = MultiHeadQ(nn.Sequential(nn.Linear(2, 8), nn.ReLU()), 8, 2)

    class Trunk(nn.Linear):
        def forward(self, observation, action):
            return torch.relu(super().forward(torch.cat([observation, action], 1)))

    critics = [MultiHeadQ(Trunk(3, 8), 8, 1) for _ in range(2)]
    optimizer = torch.optim.Adam([p for c in critics for p in c.parameters()])
    learner = ActorCriticLearner(
        Trained(actor, torch.optim.Adam(actor.parameters())),
        [Trained(critic, optimizer, copy.deepcopy(critic)) for critic in critics],
        temperature=0.1,
        replay=[],
    )
    OwlWrapper(learner)
    learner.add_head()
    assert len({id(n.pointer) for n in (*learner.networks.values(), *learner.targets.values())}) == 1
    assert learner.act(torch.rand(3, 2), torch.tensor([0, 1, 1])).shape == (3, 1)
    assert learner.td_errors(transitions(dtype=torch.float32), np.arange(2)).shape == (2, 5)


def test_actions_of_one_number_in_a_list_are_columns():
    script = make_script("td3", replay="deque")
    learner = script.learner()
    learner.bind()
    script.replay.extend([(np.zeros(2, np.float32), 0.5, 1.0, np.zeros(2, np.float32), False)] * 3)
    learner.replay.begin_task("a")
    script.replay.extend([(np.zeros(2, np.float32), 0.5, 1.0, np.zeros(2, np.float32), False)] * 3)
    assert learner.td_errors(learner.replay.sample(3), np.arange(1)).shape == (1, 3)


def test_satisfies_the_protocol_and_passes_its_own_check_without_changing_anything():
    learner = make_script("sac").learner()
    actor = learner.actor.network
    script_state, rng = copy.deepcopy(actor.state_dict()), torch.get_rng_state()
    assert not missing_members(learner, OffPolicyLearner)
    check_learner(learner)
    assert torch.equal(torch.get_rng_state(), rng) and actor.training
    assert type(actor.mean) is nn.Linear
    assert all(torch.equal(v, script_state[k]) for k, v in actor.state_dict().items())
    assert repr(learner) == "ActorCriticLearner(Actor, Critic, Critic)"
    with pytest.raises(OwlStateError, match="not wrapped yet"):
        _ = learner.networks


class Sampler(Actor):
    """Its plain call is a random action; what it is drawn from must be asked for."""

    def forward(self, observation):
        mean, log_std = self.told(observation)
        return torch.tanh(mean + log_std.exp() * torch.randn_like(mean))

    def told(self, observation):
        return Actor.forward(self, observation)


def test_an_actor_that_samples_is_asked_through_a_function():
    actor, critic = Sampler(), Critic()
    learner = ActorCriticLearner(
        Trained(actor, torch.optim.Adam(actor.parameters()), call=Sampler.told),
        Trained(critic, torch.optim.Adam(critic.parameters())),
        temperature=0.1,
        replay=[],
    )
    x, rng = torch.rand(3, 2), torch.get_rng_state()
    OwlWrapper(learner)
    acted = learner.act(x, torch.zeros(3, dtype=torch.int64))
    assert torch.equal(torch.get_rng_state(), rng)
    torch.testing.assert_close(acted, 2.0 * actor.told(x)[0].tanh().detach())


def problems_of(kind="sac", **changes) -> str:
    """What wrapping a script says when something of it is exchanged."""
    script = make_script(kind)
    for name in [name for name in changes if hasattr(script, name) and name != "replay"]:
        setattr(script, name, changes.pop(name))
    modules = [m for m in (script.actor, *script.critics) if isinstance(m, nn.Module)]
    before = [[type(m) for m in module.modules()] for module in modules]
    with pytest.raises(OwlError) as caught:
        OwlWrapper(script.learner(**changes))
    assert [[type(m) for m in module.modules()] for module in modules] == before
    return str(caught.value)


def other_optimizer():
    return torch.optim.Adam(nn.Linear(1, 1).parameters())


def test_every_problem_is_named_at_once():
    text = problems_of(
        gamma=2,
        replay=3,
        per_task={"e": 1},
        init="warm",
        actor_optimizer="adam",
        target_critics=["t", "u"],
        log_alpha=torch.zeros(2),
        for_actor={"output": 3, "call": 1},
        for_critics={"output": GaussianQ, "layers": ["mean"]},
        on_task_end=5,
    )
    for part in (
        "gamma is 2",
        "replay is an int",
        "per_task['e'] is an int",
        "actor's init is 'warm'",
        "critic_1's init is 'warm'",
        "actor's optimizer is a str",
        "critic_0's target is a str",
        "log_alpha has shape (2,)",
        "actor's output is 3",
        "critic_1's output is the class GaussianQ",
        "actor's call is 1",
        "on_task_end is 5",
    ):
        assert part in text, part


def alpha(value=0.0, **options):
    return torch.full((1,), value, requires_grad=True, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actor": "net"}, "actor is a str"),
        ({"critics": [], "target_critics": None}, "critics is empty"),
        ({"critics": [Critic()] * 2, "target_critics": None}, "the same network twice"),
        ({"critics": [Critic(), "q"], "target_critics": None}, "critic_1 is a str"),
        ({"target_critics": [Critic(), nn.Linear(2, 1)]}, "critic_1's target differs from critic_1"),
        ({"target_actor": Pusher()}, "actor's target differs from actor"),
        ({"critic_optimizer": other_optimizer()}, "critic_0's optimizer does not hold critic_0's parameters"),
        ({"actor_optimizer": other_optimizer()}, "actor's optimizer does not hold actor's parameters"),
        ({"log_alpha": 0.0}, "log_alpha is a float"),
        ({"log_alpha": torch.zeros(1)}, "expected a leaf of one element"),
        ({"log_alpha": alpha() * 2}, "is_leaf=False"),
        ({"log_alpha": alpha(torch.inf)}, "alpha is not finite"),
        ({"log_alpha": alpha(100.0)}, "alpha is not finite"),
        ({"alpha_optimizer": None}, "temperature's optimizer is a NoneType"),
        ({"alpha_optimizer": other_optimizer()}, "holds other parameters"),
        ({"log_alpha": alpha()}, "holds other parameters than log_alpha"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": True}, "temperature is True"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": "auto"}, "temperature is 'auto'"),
        ({"temperature": (alpha(),)}, "expected a finite number >= 0, or (log_alpha, optimizer)"),
        ({"per_task": {"alpha": nn.Linear(1, 1)}}, 'per_task has "alpha"'),
        ({"gamma": 0.5}, "the replay's is 0.9"),
        ({"for_actor": {"layers": ["mean", "nose"]}}, "there is no layer 'nose'"),
        ({"for_actor": {"output": Deterministic()}}, "action has shape (2,)"),
        (
            {"critics": [Critic(outputs=2), Critic(outputs=2)], "target_critics": None},
            "critic_0 gave 2 columns",
        ),
        ({"for_critics": {"output": QValues(nn.MSELoss())}}, "critic_0 could not be read"),
        ({"for_critics": {"call": lambda critic, x, a: critic(x)}}, "critic_0 cannot be given heads"),
        ({"for_actor": {"call": lambda actor, x: {"mean": x}}}, "the actor returned no action"),
        ({"preprocess": 3}, "preprocess is 3"),
        ({"init": None}, "init is None"),
    ],
)
def test_single_problems(changes, message):
    assert message in problems_of(**changes)


@pytest.mark.parametrize("wrong", ["network", None, nn.Linear(1, 1)])
def test_networks_come_with_their_optimizers(wrong):
    script = make_script("td3")
    critic = Trained(script.critics[0], script.critic_optimizer)
    actor = Trained(script.actor, script.actor_optimizer)
    for parts in ((wrong, critic), (actor, [critic, wrong])):
        with pytest.raises(OwlValueError, match=r"expected Trained\(network, optimizer, target\)"):
            check_learner(ActorCriticLearner(*parts))


def test_problems_of_a_script_s_own_objects():
    script = make_script("td3")
    assert "critic_0's target is critic_0 itself" in problems_of(
        "td3", critics=script.critics, target_critics=script.critics
    )
    copied = copy.deepcopy(script.actor_optimizer)
    assert "a deep copy of the network or of the optimizer" in problems_of("td3", actor_optimizer=copied)
    normed = nn.Sequential(nn.Linear(2, 1), nn.LayerNorm(1))
    text = problems_of(
        "td3", actor=normed, target_actor=None, actor_optimizer=torch.optim.Adam(normed.parameters())
    )
    assert "actor cannot be given heads" in text and "its nn.Linear layers are ['0']" in text
    wide = TaskScopedReplay(
        9,
        observation_shape=(2,),
        observation_dtype=np.float32,
        action_shape=(3,),
        action_dtype=np.float32,
        gamma=GAMMA,
    )
    assert "expected (3,), as in the replay" in problems_of(replay=wide)
    discrete = TaskScopedReplay(9, observation_shape=(2,), observation_dtype=np.float32, gamma=GAMMA)
    assert "actions are int64 of shape ()" in problems_of(replay=discrete)
    conv = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(8, 1))
    text = problems_of(
        "td3", actor=conv, target_actor=None, actor_optimizer=torch.optim.Adam(conv.parameters()), replay=[]
    )
    assert "does not start with an nn.Linear" in text
    assert "actor is a Module without forward" in problems_of(
        "td3", actor=nn.Module(), target_actor=None, actor_optimizer=other_optimizer()
    )


def test_a_second_wrap_is_refused():
    script = make_script("sac")
    owl = OwlWrapper(script.learner())
    with pytest.raises(OwlError, match="already has heads"):
        OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Push(1.0), 70)


def test_layers_by_name_need_no_example():
    encoder = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten())
    actor = nn.Sequential(encoder, nn.Linear(8, 1))

    class Judge(nn.Module):
        def __init__(self):
            super().__init__()
            self.eye, self.out = copy.deepcopy(encoder), nn.Linear(9, 1)

        def forward(self, x, action):
            return self.out(torch.cat([self.eye(x), action], 1)).squeeze(-1)

    critic = Judge()
    learner = ActorCriticLearner(
        Trained(actor, torch.optim.Adam(actor.parameters()), layers=["1"]),
        Trained(critic, torch.optim.Adam(critic.parameters()), layers=["out"]),
        preprocess=lambda x: x.float()[:, None] / 255,
        replay=[],
    )
    OwlWrapper(learner)
    learner.add_head()
    assert learner.values(torch.zeros(4, 3, 3, dtype=torch.uint8)).shape == (2, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_trial_passes_and_names_what_fails(kind):
    learner, rows = bound(kind), transitions(1, actions=2)
    rng = torch.get_rng_state()
    assert learner.trial(None) == learner.trial(rows) == []
    assert torch.equal(torch.get_rng_state(), rng)
    wide = dataclasses.replace(rows, action=torch.zeros(1, 3))
    found = learner.trial(wide)
    critics = [name for name in learner.networks if name != "actor"]
    assert [text.split("'")[1] for text in found] == critics  # each of them, and not the actor
    assert "observations of shape (2,) and actions of (3,)" in found[0]


def test_a_trial_before_wrapping_touches_nothing():
    script = make_script("sac", twins=True)
    learner = script.learner()
    modules = [script.actor, *script.critics, *script.target_critics]
    kinds = [[type(m) for m in module.modules()] for module in modules]
    before, rng = state(script), torch.get_rng_state()
    assert learner.trial() == []
    assert [[type(m) for m in module.modules()] for module in modules] == kinds
    assert all(torch.equal(a, b) for a, b in zip(before, state(script), strict=True))
    assert torch.equal(torch.get_rng_state(), rng) and script.actor.training
    assert [len(g["params"]) for g in script.critic_optimizer.param_groups] == [12]


def test_critics_may_be_read_differently():
    """One with a variance beside one without: values of both, no predictions."""
    plain, wide = Critic(), Critic(outputs=2)
    actor = Pusher()
    learner = ActorCriticLearner(
        Trained(actor, torch.optim.Adam(actor.parameters())),
        [
            Trained(plain, torch.optim.Adam(plain.parameters())),
            Trained(wide, torch.optim.Adam(wide.parameters()), output=GaussianQ()),
        ],
        gamma=GAMMA,
    )
    check_learner(learner)
    learner.bind()
    rows = transitions(dtype=torch.float32)
    with torch.no_grad():
        action = actor(rows.observation)
        both = [net(rows.observation, action)[:, 0] for net in (plain, wide)]
    torch.testing.assert_close(learner.values(rows.observation)[0], torch.minimum(*both))
    with pytest.raises(OwlTypeError, match="GaussianQ, QValues and have no variance"):
        learner.predictions(rows, np.array([0]))


def test_inputs_are_what_the_networks_are_called_with_and_weights_come_along():
    learner = bound("sac")
    rows = dataclasses.replace(transitions(actions=2), weight=torch.arange(5.0))
    contexts = learner.consolidation(rows)
    for name, context in contexts.items():
        inputs = learner.inputs(name, rows)
        assert len(inputs) == (1 if name == "actor" else 2)
        assert all(torch.equal(a, b) for a, b in zip(inputs, context.inputs, strict=True))
        assert torch.equal(context.weight, torch.arange(5.0))


def test_new_heads_start_at_zero_in_actor_and_critics():
    script = make_script("sac")
    learner = script.learner()
    learner.bind()
    learner.add_head()
    x = torch.rand(3, 2)
    assert not learner.act(x, torch.ones(3, dtype=torch.int64)).any()  # the middle of the range
    assert not learner.values(x)[1].any()
    with torch.no_grad():
        spread = learner.networks["actor"](x, head=1)[:, 1]
    assert torch.equal(spread, torch.full((3,), -1.5))  # the middle of what the script lets it be


def test_a_temperature_may_be_given_ready_made():
    script = make_script("sac")
    ready = TaskTemperature(script.log_alpha, script.alpha_optimizer)
    learner = script.learner(temperature=ready)
    check_learner(learner)
    assert learner.per_task["alpha"] is ready and learner.alpha_of(0) == 1.0
    fixed = script.learner(temperature=np.float32(0.25))
    check_learner(fixed)
    assert fixed.alpha_of(3) == 0.25 and "alpha" not in fixed.per_task
