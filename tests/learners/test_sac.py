"""The reference SAC learns something real in seconds, and says what is wrong with its input."""

import copy
import math
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch.distributions import Normal

from owlrl import (
    DistillationRegularizer,
    OwlWrapper,
    PrioritizedSampler,
    TaskScopedReplay,
)
from owlrl.errors import NonFiniteError, OwlError
from owlrl.evidence import GaussianNLLEvidence
from owlrl.learners import SAC, SAC_FAST, SAC_PAPER, SACConfig
from tests.own_actor_critic import Push

QUICK = SACConfig(
    learning_rate=5e-3, batch_size=64, gamma=0.5, actor_hidden=(64, 64), critic_hidden=(64, 64),
    learning_starts=100, target_rate=0.05, initial_alpha=0.1, buffer_size=2_000,
)  # fmt: skip


class Still(gym.Env):
    """Shows nothing and pays ``reward`` plus noise; each episode is one step, ended or cut off."""

    def __init__(self, *, action=None, observation=None, cut=False, reward=1.0, noise=0.0):
        self.observation_space = observation or spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = action or spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.cut, self.reward, self.noise = cut, reward, noise

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        reward = self.reward + self.noise * self.np_random.standard_normal()
        return np.zeros(self.observation_space.shape, np.float32), reward, not self.cut, self.cut, {}


def miss(agent, sign=1.0):
    """Root mean square distance from the paying push, which lies between ±0.5 and ±1.5."""
    x = np.linspace(-1, 1, 21, dtype=np.float32)
    pushed = agent.predict(np.stack([x, 0 * x], 1))[:, 0]
    return float(np.sqrt(np.mean((pushed - sign * (1 + x / 2)) ** 2)))


@pytest.mark.parametrize("changes", [{}, {"mean_loss": "likelihood"}, {"num_critics": 1}])
def test_a_continuous_bandit_is_learned(changes):
    agent = SAC(Push(), config=replace(QUICK, **changes), seed=0)
    before = miss(agent)
    agent.learn(250)
    assert miss(agent) < 0.2 < 0.5 < before
    assert agent.updates == 150 and agent.predict(np.zeros(2, np.float32)).shape == (1,)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vectors_of_environments_are_learned_from(mode):
    envs = SyncVectorEnv([lambda: Push(length=3)] * 4, autoreset_mode=mode)
    agent = SAC(envs, config=replace(QUICK, update_every=4), seed=0)
    agent.learn(800)
    assert miss(agent) < 0.2 and 150 < agent.updates < 250


def test_the_average_of_the_last_iterates_is_handed_over():
    class Steps:
        def __init__(self):
            self.iterates = []

        def __call__(self, agent, seen):
            self.iterates.append(agent.actor.output.bias.detach().clone())

    last, average = (SAC(Push(), config=replace(QUICK, hand_over=h), seed=0) for h in (False, True))
    steps = Steps()
    last.learn(180, callback=steps)
    average.learn(180)
    acting = average.predict(np.zeros(2, np.float32))
    average.hand_over()
    assert average.predict(np.zeros(2, np.float32)) == pytest.approx(acting), "acting had the average before"
    trained = torch.stack(steps.iterates[100:])  # after each of 80 updates, one per frame
    mean = steps.iterates[0].double()
    for done, iterate in enumerate(trained.double(), start=1):
        mean += (iterate - mean) * 10 / (done + 9)
    assert torch.equal(last.actor.output.bias, trained[-1])
    torch.testing.assert_close(average.actor.output.bias.double(), mean, rtol=1e-4, atol=1e-6)
    assert not torch.equal(average.actor.output.bias, trained[-1])


@pytest.mark.parametrize(("cut", "value"), [(False, 1.0), (True, 2.0)])
def test_a_cut_off_episode_bootstraps_and_an_ended_one_does_not(cut, value):
    config = replace(QUICK, initial_alpha=1e-6, target_rate=0.2)
    agent = SAC(Still(cut=cut), config=config, seed=0)
    agent.learn(300)
    mean = agent.critics.means(torch.zeros(1, 1), torch.zeros(1, 1))
    assert mean[0].tolist() == pytest.approx([value] * 2, abs=0.1)


def test_critics_know_how_noisy_a_reward_is():
    agent = SAC(Still(reward=0.0, noise=0.5), config=replace(QUICK, initial_alpha=1e-6), seed=0)
    agent.learn(600)
    mean, log_variance = agent.critics(torch.zeros(1, 1), torch.zeros(1, 1))[0].chunk(2)
    assert mean.abs().max() < 0.15
    assert log_variance.exp().tolist() == pytest.approx([0.25] * 2, rel=0.3)


def slow_update(agent, batch, noise):
    """Every number of an update again, in float64 and row by row, with plain gradient steps of 0.01."""
    actor, critics, targets = (copy.deepcopy(n).double() for n in (agent.actor, agent.critics, agent.targets))
    alpha, gamma = math.exp(agent.log_alpha.item()), agent.config.gamma
    squared = agent.config.mean_loss == "squared"

    def draw(observation, e):
        mean, log_std = actor(observation[None])[0].chunk(2)
        raw = mean + log_std.exp() * e
        density = Normal(mean, log_std.exp()).log_prob(raw) - torch.log(1 - raw.tanh() ** 2)
        return (agent.actor.action_bias + agent.actor.action_scale * raw.tanh())[None], density.sum()

    likelihood, errors = 0.0, 0.0
    for k in range(len(batch)):
        following = batch.next_observation[k].double()
        action, log_prob = draw(following, noise[0, k].double())
        value = min(targets(following[None], action)[0, :2]) - alpha * log_prob
        goal = batch.reward[k].double() + (0.0 if batch.terminated[k] else gamma * value.detach())
        output = critics(batch.observation[k : k + 1].double(), batch.action[k : k + 1].double())[0]
        for mean, log_variance in zip(output[:2], output[2:], strict=True):
            error = (goal - mean) ** 2
            errors = errors + 0.5 * error / len(batch)
            own = error.detach() if squared else error
            likelihood = likelihood + 0.5 * (log_variance + own / log_variance.exp()) / len(batch)
    critic_loss = (likelihood + (errors if squared else 0.0)).item()
    names, parameters = zip(*critics.named_parameters(), strict=True)
    critic_grads = torch.autograd.grad(likelihood, parameters, retain_graph=True)
    if squared:  # the likelihood is nothing to the trunks
        pulls = zip(names, critic_grads, torch.autograd.grad(errors, parameters), strict=True)
        critic_grads = [g + nll if name.startswith("outputs") else g for name, nll, g in pulls]
    with torch.no_grad():
        for p, g in zip(critics.parameters(), critic_grads, strict=True):
            p -= 0.01 * g
    actor_loss, log_probs = 0.0, []
    for k in range(len(batch)):
        observation = batch.observation[k].double()
        action, log_prob = draw(observation, noise[1, k].double())
        log_probs.append(log_prob.item())
        actor_loss = actor_loss + (alpha * log_prob - min(critics(observation[None], action)[0, :2])) / len(
            batch
        )
    actor_grads = torch.autograd.grad(actor_loss, list(actor.parameters()))
    with torch.no_grad():
        for p, g in zip(actor.parameters(), actor_grads, strict=True):
            p -= 0.01 * g
        for p, q in zip(targets.parameters(), critics.parameters(), strict=True):
            p += agent.config.target_rate * (q - p)
    log_alpha = agent.log_alpha.item() + 0.01 * (np.mean(log_probs) + agent.target_entropy)
    losses = {"alpha": alpha, "critic": critic_loss, "actor": actor_loss.item()}
    return losses, (actor, critics, targets), critic_grads, log_alpha


@pytest.mark.parametrize("mean_loss", ["squared", "likelihood"])
def test_an_update_equals_a_slow_one(mean_loss):
    env = Still(action=spaces.Box(np.array([0.0, -3.0], np.float32), np.array([10.0, -1.0], np.float32)))
    agent = SAC(env, config=replace(QUICK, mean_loss=mean_loss, learning_starts=60), seed=0)
    agent.learn(70)
    agent.env.cut = True
    agent.learn(70)
    batch = agent.replay.sample(16)
    assert batch.terminated.any() and not batch.terminated.all()
    for name, parameters in (
        ("actor_optimizer", agent.actor.parameters()),
        ("critic_optimizer", agent.critics.parameters()),
        ("alpha_optimizer", [agent.log_alpha]),
    ):
        setattr(agent, name, torch.optim.SGD(parameters, lr=0.01))
    generator = torch.Generator()
    generator.set_state(agent._generator.get_state())
    losses, networks, grads, log_alpha = slow_update(agent, batch, torch.randn(2, 16, 2, generator=generator))
    found = agent.update(batch)
    assert found == pytest.approx(losses, rel=1e-4) and agent.log_alpha.item() == pytest.approx(
        log_alpha, rel=1e-5
    )
    for own, slow in zip((agent.actor, agent.critics, agent.targets), networks, strict=True):
        for a, b in zip(own.parameters(), slow.parameters(), strict=True):
            assert torch.allclose(a.double(), b, atol=2e-6)
    for parameter, grad in zip(agent.critics.parameters(), grads, strict=True):
        assert torch.allclose(parameter.grad.double(), grad, atol=1e-4), "the policy's loss adds nothing"


def test_alpha_is_learned_until_the_policy_has_its_entropy():
    agent = SAC(Push(), config=replace(QUICK, initial_alpha=1.0), seed=0)
    agent.learn(200)
    assert agent.target_entropy == -1.0 and agent.alpha < 0.7
    greedy = SAC(Push(), config=replace(QUICK, initial_alpha=1e-3, target_entropy=0.5), seed=0)
    greedy.learn(220)
    assert greedy.alpha > 1.5e-3


def test_two_contradicting_tasks_with_the_wrapper(tmp_path):
    def fresh():
        agent = SAC(Push(), config=QUICK, seed=0)
        regularizer = DistillationRegularizer(1.0, seed=0)
        return agent, {"regularizer": regularizer, "evidence": GaussianNLLEvidence()}

    agent, parts = fresh()
    owl = OwlWrapper(agent, **parts)
    for name, sign in (("up", 1.0), ("down", -1.0)):
        with owl.task(name, env=Push(sign)):
            assert agent.alpha == pytest.approx(0.1), "each task starts with its own temperature"
            before = agent.updates
            agent.learn(250)
            assert agent.updates == before + 150
    for name, sign in (("up", 1.0), ("down", -1.0)):
        with owl.use(name):
            assert miss(agent, sign) < 0.3
    owl.save(tmp_path / "owl.safetensors")
    other, parts = fresh()
    loaded = OwlWrapper.load(tmp_path / "owl.safetensors", other, **parts)
    for each, model in ((owl, agent), (loaded, other)):
        with each.task("up", env=Push(1.0)):
            model.learn(20)
    for name in ("actor", "critics", "targets"):
        mine, theirs = (getattr(model, name).state_dict() for model in (agent, other))
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)
    assert torch.equal(agent.log_alpha, other.log_alpha)


def test_prioritised_replay_is_told_the_errors():
    replay = TaskScopedReplay(
        1_000, observation_space=Push().observation_space, action_space=Push().action_space, gamma=0.5,
        sampler=PrioritizedSampler(), seed=0,
    )  # fmt: skip
    agent = SAC(Push(), config=QUICK, replay=replay, seed=0)
    agent.learn(250)
    assert miss(agent) < 0.2 and replay.sample(32).weight.min() < 1.0


def test_the_same_seed_gives_the_same_weights_and_touches_no_global_generator():
    state = torch.get_rng_state()
    agents = [SAC(Push(), config=QUICK, seed=3) for _ in range(2)]
    for agent in agents:
        agent.learn(130)
    assert torch.equal(state, torch.get_rng_state())
    pairs = zip(agents[0].actor.parameters(), agents[1].actor.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    seen = np.zeros(2, np.float32)
    drawn = [agents[0].predict(seen, deterministic=False) for _ in range(2)]
    assert drawn[0] != drawn[1] and agents[0].predict(seen) == agents[1].predict(seen)


@pytest.mark.parametrize(
    "box",
    [
        spaces.Box(0.0, 5.0, (2, 2), np.float64),
        spaces.Box(-3e38, 3e38, (1,), np.float32),
        spaces.Box(np.array([-1.0, 10.0]), np.array([1.0, 10.5]), dtype=np.float64),
    ],
)
def test_actions_of_any_bounded_box(box):
    agent = SAC(Still(action=box, observation=spaces.Box(-1.0, 1.0, (2, 3))), config=QUICK, seed=0)
    agent.learn(110)  # the environment looks at each action
    one, batch = agent.predict(np.zeros((2, 3), np.float32)), agent.predict(np.zeros((4, 2, 3), np.float32))
    assert box.contains(one) and batch.shape == (4, *box.shape) and batch.dtype == box.dtype


def weights(agent) -> list[torch.Tensor]:
    networks = (agent.actor, agent.critics, agent.targets)
    return [agent.log_alpha, *agent._average.values(), *(p for n in networks for p in n.parameters())]


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


def vector() -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Push(length=3)] * 4, autoreset_mode=AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("make", [lambda: Push(length=7), vector])
@pytest.mark.parametrize("pieces", [(120, 20), (1,) * 140])
def test_learning_in_pieces_is_learning_at_once(make, pieces):
    whole, parts = (SAC(make(), config=replace(QUICK, update_every=3), seed=0) for _ in range(2))
    whole.learn(sum(pieces))
    for piece in pieces:
        parts.learn(piece)
    assert same(whole, parts) and whole.updates == parts.updates > 10
    seen = np.zeros(2, np.float32)
    assert whole.predict(seen, deterministic=False) == parts.predict(seen, deterministic=False)


@pytest.mark.parametrize("make", [lambda: Push(length=7), vector])
def test_a_loaded_state_goes_on_bit_for_bit_in_the_middle_of_an_episode(make):
    agent, other = (SAC(make(), config=QUICK, seed=seed) for seed in (0, 1))
    agent.learn(125)
    other.learn(110)
    state, other.env = agent.state_dict(), copy.deepcopy(agent.env)
    agent.learn(30)
    other.load_state_dict(state)
    other.learn(30)
    assert same(agent, other) and agent.updates == other.updates


def test_a_task_that_has_rows_learns_at_once():
    agent = SAC(Push(), config=QUICK, seed=0)
    agent.learn(99)
    assert agent.updates == 0
    agent.learn(11)
    assert agent.updates == 10


@pytest.mark.parametrize("scale", [1e6, 1e-6])
def test_rewards_of_any_size_leave_training_finite(scale):
    class Scaled(Push):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, scale * reward, *rest

    agent = SAC(Scaled(length=5), config=QUICK, seed=0)
    agent.learn(180)
    for network in (agent.actor, agent.critics, agent.targets):
        assert all(p.isfinite().all() for p in network.parameters())
    low, high = agent.config.log_variance
    log_variance = agent.critics(torch.zeros(1, 2), torch.zeros(1, 1))[:, 2:]
    assert ((low <= log_variance) & (log_variance <= high)).all() and math.isfinite(agent.alpha)


@pytest.mark.parametrize("bias", [-1e4, 1e4])
def test_log_variances_at_their_bounds_leave_training_finite(bias):
    agent = SAC(Push(), config=QUICK, seed=0)
    with torch.no_grad():
        for layer in agent.critics.outputs:
            layer.bias[1] = bias
    agent.learn(150)
    assert all(p.isfinite().all() for p in agent.critics.parameters())
    mean = agent.critics.means(torch.zeros(1, 2), torch.zeros(1, 1))
    assert mean.isfinite().all()


def test_callbacks_and_repr():
    seen = []
    agent = SAC(Push(), config=QUICK, seed=0)
    agent.learn(105, callback=lambda a, frames: seen.append((a is agent, frames)), progress_bar=True)
    assert seen == [(True, k) for k in range(1, 106)]
    assert repr(agent).startswith("SAC(alpha=0.09") and "updates=5" in repr(agent)
    assert repr(OwlWrapper(agent)).startswith("OwlWrapper(SAC(")


def test_named_settings():
    assert SACConfig() == SAC_FAST and SAC_PAPER.mean_loss == "likelihood"
    assert (SAC_PAPER.learning_rate, SAC_PAPER.target_rate, SAC_PAPER.buffer_size) == (3e-4, 0.01, 1_000_000)
    assert (len(SAC_PAPER.critic_hidden), len(SAC_PAPER.actor_hidden)) == (4, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SAC(gym.make("CartPole-v1")), r"action space is Discrete\(2\); expected a Box of floats"),
        (lambda: SAC(Still(action=spaces.MultiBinary(2))), "expected a Box of floats"),
        (lambda: SAC(Still(action=spaces.Box(0, 9, (1,), np.int64))), "expected a Box of floats"),
        (lambda: SAC(Still(action=spaces.Box(-np.inf, np.inf, (1,)))), "expected finite bounds"),
        (lambda: SAC(Still(action=spaces.Box(0.0, np.inf, (1,)))), "expected finite bounds"),
        (lambda: SAC(Still(action=spaces.Box(1.0, 1.0, (1,)))), "low < high"),
        (lambda: SAC(Still(observation=spaces.Dict(x=spaces.Discrete(2)))), "expected a Box"),
        (lambda: SAC(Push(), config=QUICK).learn(0), "expected an int >= 1"),
        (lambda: SACConfig(initial_alpha=0.0, log_std=(1.0, 1.0), num_critics=0), "3 problems"),
        (lambda: SACConfig(learning_rate=0.0, target_rate=2.0, gamma=-1.0, mean_loss="other"), "4 problems"),
        (lambda: SACConfig(actor_hidden=(), learning_starts=100, buffer_size=150), "2 problems"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(OwlError, match=message):
        call()


@pytest.mark.parametrize(
    ("spoil", "quantity"),
    [
        (lambda agent: agent.log_alpha.data.fill_(torch.nan), "alpha is nan"),
        (lambda agent: agent.log_alpha.data.fill_(1e4), "alpha is inf"),
        (
            lambda agent: agent.critics.outputs[1].bias.data.fill_(torch.nan),
            "critic loss is nan; no weight was changed",
        ),
        (
            lambda agent: agent.actor.output.bias.data.fill_(torch.nan),
            "actor loss is nan; the critics made their step, nothing else was changed",
        ),
    ],
)
def test_a_number_that_is_not_finite_stops_and_is_named(spoil, quantity):
    agent = SAC(Push(), config=QUICK, seed=0)  # all rows are terminal: a bad policy shows in its own loss
    agent.replay.begin_task("up")
    agent.learn(110)
    spoil(agent)
    before = copy.deepcopy(agent.actor.state_dict())
    with pytest.raises(NonFiniteError, match=rf"task 'up', update 11: the {quantity}"):
        agent.update(agent.replay.sample(16))
    after = agent.actor.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before if "output.bias" not in k)
