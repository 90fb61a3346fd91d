"""StepGuard: steps only inside a task and only with finite gradients."""

import copy
import inspect
import weakref
from concurrent.futures import ThreadPoolExecutor

import gymnasium
import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import DDPG, DQN, SAC, TD3
from torch import nn

from owlrl import ActorCriticLearner, MultiHeadQ, OwlWrapper, QLearner, Trained, step_guard
from owlrl.describe.outputs import GaussianQ
from owlrl.errors import NonFiniteError, OwlStateError
from owlrl.learners import SAC as OurSAC
from owlrl.learners import SACConfig, compiled
from owlrl.step_guard import StepGuard, all_finite
from tests import own_actor_critic
from tests.adapters.helpers import BOX, KINDS, Guess, any_model, same, weights
from tests.own_dqn import SIZE, Signs, make_script, train


def make():
    q = MultiHeadQ(nn.Linear(2, 4), 4, 2)
    optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    return q, optimizer, StepGuard(QLearner(q, None, optimizer))


def backward(q, optimizer, factor=1.0):
    optimizer.zero_grad()
    (q(torch.ones(1, 2)).sum() * factor).backward()


def test_steps_are_counted_inside_a_task_and_refused_outside():
    q, optimizer, guard = make()
    guard.begin("a")
    for _ in range(3):
        backward(q, optimizer)
        optimizer.step()
    assert guard.steps == 3
    guard.end()
    with pytest.raises(OwlStateError, match="outside a task"):
        optimizer.step()
    guard.detach()
    optimizer.step()


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), -float("inf")])
def test_a_step_with_bad_numbers_is_not_made(factor):
    q, optimizer, guard = make()
    guard.begin("a")
    before = q.trunk.weight.clone()
    backward(q, optimizer, factor)
    with pytest.raises(NonFiniteError, match=r"task 'a', step 1: the loss is not finite"):
        optimizer.step()
    assert torch.equal(before, q.trunk.weight)


def test_bad_numbers_that_the_head_does_not_see_are_found_too():
    q, optimizer, guard = make()
    guard.begin("b")
    backward(q, optimizer)
    q.trunk.bias.grad[1] = float("nan")
    before = q.heads[0].weight.clone()
    with pytest.raises(NonFiniteError, match=r"'trunk.bias' in network 'q'"):
        optimizer.step()
    assert torch.equal(before, q.heads[0].weight)


@pytest.mark.parametrize("bad", range(3))
def test_every_one_of_large_and_small_tensors_counts(bad):
    tensors = [torch.ones(3), torch.ones(step_guard.SMALL + 1), torch.ones(150, 150)]
    assert all_finite(tensors, large=True)
    tensors[bad].view(-1)[-1] = torch.nan
    assert not all_finite(tensors, large=True)


def test_idle_heads_are_out_of_the_optimizer_and_the_parameters_inside_a_task():
    q, optimizer, guard = make()
    q.add_head(optimizer=optimizer)
    mine, idle = list(q.heads[0].parameters()), list(q.heads[1].parameters())

    def there(found):
        return [sum(p is q for q in found) for p in (*mine, *idle)]

    def everywhere():
        return there([p for group in optimizer.param_groups for p in group["params"]]), there(
            list(q.parameters())
        )

    for _ in range(2):
        assert everywhere() == ([1, 1, 1, 1], [1, 1, 1, 1])
        guard.begin("a")
        assert everywhere() == ([1, 1, 0, 0], [1, 1, 0, 0])
        guard.end()
    guard.begin("a")
    guard.detach()
    assert everywhere() == ([1, 1, 1, 1], [1, 1, 1, 1])


def test_steps_are_refused_while_paused():
    q, optimizer, guard = make()
    guard.begin("a")
    backward(q, optimizer)
    with guard.paused(), pytest.raises(OwlStateError, match="outside a task"):
        optimizer.step()
    optimizer.step()
    assert guard.steps == 1


def test_weights_are_checked_by_name():
    q, _, guard = make()
    guard.begin("a")
    guard.check_weights()
    q.trunk.weight.data[0, 0] = float("inf")
    with pytest.raises(NonFiniteError, match=r"the weights 'trunk.weight' of network 'q'"):
        guard.check_weights()


def test_weights_of_targets_are_checked_too():
    q, target = MultiHeadQ(nn.Linear(2, 4), 4, 2), MultiHeadQ(nn.Linear(2, 4), 4, 2)
    guard = StepGuard(QLearner(q, target, torch.optim.SGD(q.parameters(), lr=0.1)))
    guard.begin("a")
    guard.check_weights()
    target.trunk.bias.data[1] = float("nan")
    with pytest.raises(NonFiniteError, match=r"the weights 'trunk.bias' of the target of 'q' are not finite"):
        guard.check_weights()


def test_weights_that_no_gradient_shows_are_found_at_the_next_step():
    q, optimizer, guard = make()
    guard.begin("a")
    q.trunk.bias.grad = torch.ones(4)
    optimizer.step()
    q.trunk.weight.data[0, 0] = -float("inf")
    message = (
        r"task 'a', step 2: the weights 'trunk.weight' of network 'q' are not finite \(-inf\); the step was "
        "not made and the weights are as before. Go back"
    )
    before = q.trunk.bias.clone()
    with pytest.raises(NonFiniteError, match=message):
        optimizer.step()
    assert guard.steps == 1 and torch.equal(before, q.trunk.bias)


@pytest.mark.parametrize("block", ["task", "stream"])
def test_an_error_that_bad_weights_led_to_names_them(block):
    """As a log-variance that is not finite, at which torch's distributions stop."""
    script = own_actor_critic.make_script("sac")
    owl = OwlWrapper(script.learner())
    with pytest.raises(NonFiniteError) as caught, owl.task("a") if block == "task" else owl.stream():
        own_actor_critic.train(script, own_actor_critic.Push(1.0), 120)
        with torch.no_grad():
            script.actor.log_std.bias.fill_(float("nan"))
        torch.distributions.Normal(*script.actor(torch.zeros(1, 2)), validate_args=True)
    said = "the weights 'log_std.bias' of network 'actor' are not finite (nan), and there was a ValueError"
    assert said in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)
    assert not owl.tasks["a" if block == "task" else "task 0"].visits
    script.actor.log_std.bias.data.zero_()
    with pytest.raises(KeyError), owl.task("b"):  # other errors stay what they are
        raise KeyError("b")


class Spoiled(gymnasium.Wrapper):
    """One number that is not finite, in one step: in its reward or in what is seen then."""

    def __init__(self, env, quantity, value, at=41):
        super().__init__(env)
        self.quantity, self.value, self.left = quantity, value, at

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        self.left -= 1
        if self.left == 0:
            if self.quantity == "reward":
                reward = self.value
            else:
                observation = np.full_like(observation, self.value)
        return observation, reward, *rest


FAULTS = [("reward", np.inf), ("reward", np.nan), ("next_observation", -np.inf)]


@pytest.mark.parametrize(("quantity", "value"), FAULTS)
@pytest.mark.parametrize("replay", ["deque", "scoped"])
def test_a_number_in_a_script_is_stopped_at_its_step(replay, quantity, value):
    clean, script = make_script(replay=replay), make_script(replay=replay)
    with OwlWrapper(clean.learner()).task("a"):
        train(clean, Signs(), 40)
    owl = OwlWrapper(script.learner())
    # owlrl's own replay refuses the row, a deque takes it and the step is refused: 8 were made before
    message = rf"(TaskScopedReplay.add|^task 'a', step 9): .*{quantity}.*"
    message += r"\(task 'a'\)" if replay == "scoped" else r"of row 40 of task 'a' .*the step was not made"
    with pytest.raises(NonFiniteError, match=message), owl.task("a"):
        train(script, Spoiled(Signs(), quantity, value), 60)
    assert same(clean.q.state_dict(), script.q.state_dict())
    assert owl.tasks["a"].steps == 8


@pytest.mark.parametrize(
    ("kind", "quantity", "value"),
    [
        (DQN, *FAULTS[0]),
        (DQN, *FAULTS[1]),
        *((kind, *FAULTS[k % 3]) for k, kind in enumerate(KINDS, start=2)),
    ],
)
def test_a_number_in_a_model_is_stopped_at_its_step(kind, quantity, value):
    def made(spoil):
        env = Guess(BOX) if kind in (SAC, TD3, DDPG) else Guess()
        return any_model(kind, env=Spoiled(env, quantity, value) if spoil else env, train_freq=1)

    clean = made(False)
    with OwlWrapper(clean).task("a"):
        clean.learn(60, callback=lambda local, _: local["self"].num_timesteps <= 40)
    model = made(True)
    owl = OwlWrapper(model)
    message = rf"^task 'a', step \d+: {quantity} is {value} at place 40 of the ReplayBuffer, environment 0"
    with pytest.raises(NonFiniteError, match=message + ".* was not made"), owl.task("a"):
        model.learn(60)
    assert same(weights(clean), weights(model))


def test_an_action_is_stopped_too_and_the_step_can_be_made_when_it_is_put_right():
    model = any_model(DDPG, train_freq=1)
    owl = OwlWrapper(model)

    def spoil(local, _):
        if local["self"].num_timesteps == 41:
            local["replay_buffer"].actions[39] = np.nan  # of the newest step that is stored
        return True

    with pytest.raises(NonFiniteError, match="action is nan at place 39"), owl.task("a"):
        model.learn(60, callback=spoil)
    buffer = model.replay_buffer
    with pytest.raises(NonFiniteError, match="action is nan at place 39"), owl.task("a"):
        model.learn(2, reset_num_timesteps=False)
    buffer.actions[39] = 0.0
    with owl.task("a"):
        model.learn(2, reset_num_timesteps=False)
    assert owl.tasks["a"].visits == 1


@pytest.mark.parametrize(
    ("value", "quantity"),
    [
        (1000.0, r"alpha \(log_alpha is 1000\) is not finite \(inf\)"),
        (-torch.inf, r"log_alpha is not finite \(-inf\)"),
    ],
)
def test_a_temperature_is_looked_at_before_the_steps_of_others(value, quantity):
    script = own_actor_critic.make_script("sac")
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        own_actor_critic.train(script, own_actor_critic.Push(), 80)
    with (
        pytest.raises(
            NonFiniteError, match=rf": {quantity}; the step of the 'critic_0' optimizer was not made"
        ),
        owl.task("a"),
    ):
        script.log_alpha.data.fill_(value)
        own_actor_critic.train(script, own_actor_critic.Push(), 80)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_looked_at_whatever_torch_makes_by_default(dtype):
    torch.set_default_dtype(dtype)
    try:
        for made in (torch.float32, torch.float64):
            assert all_finite([torch.ones(2, dtype=made)])
            assert not all_finite([torch.ones(2, dtype=made), torch.full((1,), torch.nan, dtype=made)])
    finally:
        torch.set_default_dtype(torch.float32)


def test_numbers_are_looked_at_together_and_in_any_precision():
    several = [torch.ones(2), torch.ones(3, dtype=torch.float64), torch.ones(2, 2, dtype=torch.bfloat16).t()]
    assert all_finite([]) and all_finite(several) and all_finite([*several, torch.ones(2**15)], large=True)
    assert all_finite([torch.full((9,), 6e4, dtype=torch.float16)])  # whose squares it could not hold
    for bad in (torch.nan, torch.inf, -torch.inf, 1e20):
        for numbers in (1, 2**15):
            assert not all_finite([torch.ones(2), torch.full((numbers,), bad), torch.ones(2)], large=True)
            assert not all_finite([*several, torch.full((numbers,), bad)]) or bad == 1e20  # in float64
    assert all_finite([torch.ones(2), torch.ones(2, device="meta")]) is False  # cannot be looked at


class Clipped(nn.Module):
    """A log-variance that is kept within bounds, beside a mean."""

    def __init__(self):
        super().__init__()
        self.trunk, self.mean, self.log_variance = nn.Linear(3, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, observation, action):
        x = torch.relu(self.trunk(torch.cat([observation, action], 1)))
        return torch.cat([self.mean(x), self.log_variance(x).clamp(-10, 20)], 1)


def blow_up(layer, size=3e38):
    """From now on ``layer`` is given such numbers, and answers with infinities; its weights stay."""
    layer.register_forward_pre_hook(lambda _, inputs: (torch.full_like(inputs[0], size),))


@pytest.mark.parametrize("kind", ["multihead", "dueling", "plain"])
@pytest.mark.parametrize("which", ["q", "target"])
@pytest.mark.parametrize("replay", ["deque", "scoped"])
def test_infinite_values_are_stopped_at_their_step(kind, which, replay):
    """A Huber loss has a finite gradient for them."""
    script = make_script(kind, replay=replay)
    owl = OwlWrapper(script.learner())
    name = "the target of 'q'" if which == "target" else "network 'q'"
    what = "outputs of layer '4'" if kind == "plain" else "Q-values"
    message = rf"task 'a', step 9: the {what} of {name} are (not finite|too large to be squared) \("
    with pytest.raises(NonFiniteError, match=message + ".*not made.* Look for"), owl.task("a"):
        train(script, Signs(), 40)
        before = [weights_of(script.q), weights_of(script.target)]
        network = getattr(script, which)
        blow_up(network[4] if kind == "plain" else network.trunk[2])
        train(script, Signs(), 40)
    assert before == [weights_of(script.q), weights_of(script.target)] and owl.tasks["a"].steps == 8


def weights_of(module):
    return {name: value.tolist() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("which", ["actor.log_std", "actor.mean", "critics.0.out", "target_critics.1.out"])
def test_infinite_outputs_of_actors_and_critics_are_stopped_at_their_step(which):
    script = own_actor_critic.make_script("sac")
    owl = OwlWrapper(script.learner())
    layer = which.split(".")[-1]
    message = rf"task 'a', step 17: the outputs of layer '{layer}' of .* are (not finite|too large)"
    with pytest.raises(NonFiniteError, match=message), owl.task("a"):
        own_actor_critic.train(script, own_actor_critic.Push(), 80)
        before = own_actor_critic.state(script)
        part = script
        for name in which.split("."):
            part = part[int(name)] if name.isdigit() else getattr(part, name)
        blow_up(part)
        own_actor_critic.update(script)
    assert all(map(torch.equal, before[:-1], own_actor_critic.state(script)[:-1]))  # all but log_alpha


def test_a_log_variance_behind_its_bounds_is_stopped_at_its_step():
    script = own_actor_critic.make_script("td3")
    critic = Clipped()
    optimizer = torch.optim.Adam(critic.parameters())
    learner = ActorCriticLearner(
        Trained(script.actor, script.actor_optimizer),
        Trained(critic, optimizer, output=GaussianQ()),
        replay=script.replay,
        gamma=own_actor_critic.GAMMA,
    )
    message = r"step 1: the outputs of layer 'log_variance' of network 'critic' are not finite \(inf\)"
    with pytest.raises(NonFiniteError, match=message), OwlWrapper(learner).task("a"):
        script.replay.add(np.zeros(2), np.zeros(1), 0.0, np.zeros(2), False, False)
        blow_up(critic.log_variance)
        critic.log_variance.weight.data.fill_(1.0)
        mean, log_variance = critic(torch.zeros(4, 2), torch.zeros(4, 1)).chunk(2, 1)
        (mean.square() * (-log_variance).exp() + log_variance).mean().backward()
        assert torch.isfinite(optimizer.param_groups[0]["params"][0].grad).all()
        optimizer.step()


OUTPUTS = {  # of models with one hidden layer
    DQN: ("q_net.q_net.2", "q_net_target.q_net.2"),
    QRDQN: ("quantile_net.quantile_net.2", "quantile_net_target.quantile_net.2"),
    SAC: ("critic.qf0.2", "critic_target.qf1.2", "actor.mu", "actor.log_std"),
    TD3: ("critic.qf1.2", "critic_target.qf0.2", "actor.mu.2", "actor_target.mu.2"),
    DDPG: ("critic.qf0.2", "critic_target.qf0.2", "actor.mu.2", "actor_target.mu.2"),
}


@pytest.mark.parametrize(("kind", "layer"), [(kind, name) for kind in KINDS for name in OUTPUTS[kind]])
def test_infinite_outputs_of_models_are_stopped_at_their_step(kind, layer):
    model = any_model(kind, train_freq=1, learning_starts=30)
    owl = OwlWrapper(model)

    def spoil(local, _):
        assert not before  # the update that follows is stopped
        if local["self"].num_timesteps == 42:
            before.update(weights(model))
            blow_up(model.policy.get_submodule(layer))
        return True

    before, name = {}, layer.split(".", 1)[1]
    message = rf"^task 'a', step \d+: the outputs of layer '{name}' of .* are (not finite|too large)"
    with pytest.raises(NonFiniteError, match=message), owl.task("a"):
        model.learn(60, callback=spoil)
    own = [key for key in before if not layer.startswith("actor.mu.") or key.startswith("actor.")]
    after = weights(model)  # the critics of TD3 and DDPG do not need the actor: they have made their step
    assert same({key: before[key] for key in own}, {key: after[key] for key in own})


@pytest.mark.parametrize("compile", [False, True])
def test_values_of_our_own_learners_are_stopped_at_their_step(compile, monkeypatch):
    """Of a target with finite weights: the others' minimum hides it, and bounds a log-variance."""
    monkeypatch.setattr(compiled, "BACKEND", None)
    config = SACConfig(actor_hidden=(8, 8), critic_hidden=(8, 8), batch_size=16, learning_starts=16)
    agent = OurSAC(gymnasium.make("Pendulum-v1"), config=config, seed=0, compile=compile)
    owl = OwlWrapper(agent, evidence=None)
    said = r"update 5: the critic loss is (inf|nan) \(or its gradient, or what a network answered\); no w"
    if not compile:
        said = r"step 5: the means of the target of 'critic' are (not finite|too large)"
    with pytest.raises(NonFiniteError, match=said), owl.task("a"):
        agent.learn(20)
        for layer in agent.targets.trunks:
            layer.weight.data[0] = layer.weight.data[0].abs() * 1e15
        agent.targets.outputs[0].weight.data[0] = 1e15
        before = copy.deepcopy(agent.critics.state_dict())
        agent.learn(1)
    assert same(before, agent.critics.state_dict())


def test_masks_that_are_written_into_outputs_are_no_fault():
    q, optimizer, guard = make()
    guard.begin("a")
    with torch.no_grad():
        values = q(torch.ones(3, 2))
        values[:, 0] = -torch.inf
    with torch.inference_mode():
        q(torch.ones(3, 2))[:, 1] = -torch.inf
    backward(q, optimizer)
    optimizer.step()
    assert guard.steps == 1


class Masked(nn.Linear):
    def forward(self, features):
        out = super().forward(features)
        return torch.cat([out[:, :1], torch.full_like(out[:, 1:], -torch.inf)], 1)


def test_actions_that_a_head_lacks_are_no_fault():
    q = MultiHeadQ(nn.Linear(2, 4), 4, 2, head=Masked)
    q.add_head(num_actions=3)
    optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    guard = StepGuard(QLearner(q, None, optimizer))
    guard.begin("a")
    q(torch.ones(3, 2))[:, 0].sum().backward()
    with torch.no_grad():
        assert q.per_row(torch.ones(2, 2), heads=torch.tensor([0, 1])).isinf().any()
    optimizer.step()
    with torch.no_grad():
        q(torch.full((1, 2), torch.nan))
    with pytest.raises(NonFiniteError, match=r"the Q-values of network 'q' are not finite \(nan\)"):
        optimizer.step()


def test_what_was_answered_is_forgotten_after_a_step_and_at_the_end():
    q, optimizer, guard = make()
    guard.begin("a")
    backward(q, optimizer)
    answer = q(torch.ones(1, 2))
    assert answer.grad_fn is not None and guard._answers[-1][1].grad_fn is None  # no graph is kept
    kept = weakref.ref(guard._answers[-1][1])
    optimizer.step()
    assert kept() is None
    with torch.no_grad():
        for _ in range(1_000):
            kept = weakref.ref(q(torch.ones(1, 2)))
    assert kept() is not None and len(guard._answers) < 200
    guard.end()
    assert kept() is None
    q(torch.ones(1, 2))
    assert not guard._answers


def test_other_threads_may_answer_what_they_want_and_one_may_train():
    q, optimizer, guard = make()
    guard.begin("a")
    bad = torch.full((1, 2), torch.nan)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(q, bad).result()
        backward(q, optimizer)
        optimizer.step()

        def train_there():
            for x in (torch.ones(1, 2), bad):
                optimizer.zero_grad()
                q(torch.ones(1, 2)).sum().backward()
                with torch.no_grad():
                    q(x)
                optimizer.step()

        with pytest.raises(
            NonFiniteError, match=r"step 3: the Q-values of network 'q' are not finite \(nan\)"
        ):
            pool.submit(train_there).result()


def test_transforms_compilers_copies_and_exports_work_inside_a_task(tmp_path):
    script = make_script("plain")
    owl = OwlWrapper(script.learner())
    with owl.task("a"):
        train(script, Signs(), 40)
        rows = torch.eye(SIZE)
        plain = script.q(rows)
        mapped = torch.func.vmap(lambda x: script.q(x[None])[0])(rows)
        exported = torch.export.export(script.q, (rows,), strict=False).module()
        traced = torch.compile(script.q, backend="eager")
        for other in (mapped, exported(rows), traced(rows)):
            torch.testing.assert_close(other, plain)
        torch.save(script.q, tmp_path / "q")
        for network in (copy.deepcopy(script.q), torch.load(tmp_path / "q", weights_only=False)):
            assert torch.equal(network(rows), plain)
        train(script, Signs(), 40)
        torch.func.vmap(lambda x: script.q(x[None])[0])(rows * torch.nan)
        script.optimizer.step()  # what a transform computes with is not looked at
    assert owl.tasks["a"].steps == 17


def test_a_squared_error_that_overflows_is_stopped():
    q, optimizer, guard = make()
    guard.begin("a")
    loss = (q(torch.ones(1, 2)) - 1e20).square().mean()
    loss.backward()
    assert torch.isinf(loss) and all(torch.isfinite(p.grad).all() for p in q.parameters())
    with pytest.raises(NonFiniteError, match=r"the loss is not finite \(inf\)"):
        optimizer.step()


@pytest.mark.parametrize("call", [torch.Tensor.backward, lambda loss: torch.autograd.backward([loss])])
def test_an_infinite_loss_with_a_finite_gradient_is_stopped(call):
    q, optimizer, guard = make()
    guard.begin("a")
    before = q.trunk.weight.clone()
    for number in (1e30, torch.inf, 0.0):  # a large loss is allowed to be; the last of several may be finite
        call(q(torch.ones(1, 2)).sum() + number)
        if number == 1e30:
            optimizer.step()
            assert not torch.equal(before, q.trunk.weight)
            before = q.trunk.weight.clone()
    with pytest.raises(NonFiniteError, match=r"task 'a', step 2: the loss is not finite \(inf\)"):
        optimizer.step()
    assert torch.equal(before, q.trunk.weight)
    optimizer.zero_grad()
    call(q(torch.ones(1, 2)).sum())
    optimizer.step()
    assert guard.steps == 2


@pytest.fixture
def plain(monkeypatch):
    """Torch's own ``backward``, whatever tasks other tests have left open."""
    monkeypatch.setattr(step_guard, "_listeners", weakref.WeakKeyDictionary())
    monkeypatch.setattr(step_guard, "_replaced", False)
    monkeypatch.setattr(torch.autograd, "backward", inspect.unwrap(torch.autograd.backward))
    return torch.autograd.backward


def test_torch_is_as_it_was_when_no_task_is_open(plain):
    _, _, one = make()
    q, optimizer, two = make()
    one.begin("a")
    two.begin("b")
    one.end()
    assert torch.autograd.backward is not plain
    (q(torch.ones(1, 2)).sum() + torch.nan).backward()
    with pytest.raises(NonFiniteError, match="task 'b', step 1: the loss is not finite"):
        optimizer.step()
    two.end()
    assert torch.autograd.backward is plain


def test_what_others_put_around_backward_stays(plain):
    calls = []
    q, optimizer, guard = make()
    guard.begin("a")
    ours = torch.autograd.backward

    def theirs(*args, **kwargs):
        calls.append(args)
        return ours(*args, **kwargs)

    torch.autograd.backward = theirs
    try:
        guard.end()
        q(torch.ones(1, 2)).sum().backward()
        guard.begin("a")
        assert torch.autograd.backward is theirs
        (q(torch.ones(1, 2)).sum() + torch.inf).backward()
        assert len(calls) == 2
        with pytest.raises(NonFiniteError, match="the loss is not finite"):
            optimizer.step()
    finally:
        torch.autograd.backward = ours
        guard.end()
    assert torch.autograd.backward is plain


def test_ours_still_works_for_somebody_who_kept_it(plain, monkeypatch):
    q, _, guard = make()
    guard.begin("a")
    ours = torch.autograd.backward
    guard.end()
    for _ in range(2):  # put back by hand, outside a task and before the next one
        monkeypatch.setattr(torch.autograd, "backward", ours)
        q(torch.ones(1, 2)).sum().backward()
        guard.begin("a")
        q(torch.ones(1, 2)).sum().backward()
        guard.end()


def test_the_loss_of_another_thread_is_another_ones():
    q, optimizer, guard = make()
    guard.begin("a")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (torch.ones(1, requires_grad=True) * torch.inf).sum().backward()).result()
    backward(q, optimizer)
    optimizer.step()
    assert guard.steps == 1


def test_an_error_that_outputs_led_to_names_them():
    script = own_actor_critic.make_script("sac")
    with pytest.raises(NonFiniteError) as caught, OwlWrapper(script.learner()).task("a"):
        own_actor_critic.train(script, own_actor_critic.Push(), 80)
        blow_up(script.actor.mean, torch.nan)
        torch.distributions.Normal(*script.actor(torch.zeros(1, 2)), validate_args=True)
    said = "the outputs of layer 'mean' of network 'actor' are not finite (nan), and there was a ValueError"
    assert said in str(caught.value) and isinstance(caught.value.__cause__, ValueError)


def test_an_error_stays_what_it_is_where_rows_cannot_be_read():
    script = make_script(replay="deque")
    with pytest.raises(KeyError, match="mine"), OwlWrapper(script.learner()).task("a"):
        train(script, Signs(), 40)
        script.replay.append("no row")
        raise KeyError("mine")


def test_idle_heads_are_looked_at_when_a_task_ends():
    script = make_script()
    owl = OwlWrapper(script.learner(), regularizer=None)
    with owl.task("a"):
        train(script, Signs(), 40)
    with pytest.raises(NonFiniteError, match=r"'heads.0.bias' of network 'q'.*consolidated"), owl.task("b"):
        train(script, Signs(), 40)
        script.q.heads[0].bias.data[0] = torch.nan
