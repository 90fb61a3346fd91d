"""The reference DQN learns something real in seconds, and says what is wrong with its input."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from owlrl import DistillationRegularizer, OwlWrapper, PrioritizedSampler, TaskScopedReplay
from owlrl.envs import CrossroadsEnv, TabulatedVectorEnv, tabulate
from owlrl.errors import NonFiniteError, OwlError
from owlrl.experiments.session import greedy_score
from owlrl.learners import DQN, FAST, PAPER, DQNConfig
from tests.own_dqn import SIZE, Signs, score

QUICK = DQNConfig(
    learning_rate=3e-3, batch_size=32, gamma=0.5, n_step=1, update_every=1, learning_starts=40,
    target_rate=0.05, epsilon=(1.0, 0.1), epsilon_frames=150, buffer_size=1_000,
)  # fmt: skip


def shifted() -> gym.Env:
    env = Signs()
    env.action_space = gym.spaces.Discrete(4, start=5)
    return env


def replaced(**changes) -> DQNConfig:
    return DQNConfig(**{**QUICK.__dict__, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_step": 3},
        {"dueling": True, "double": False},
        {"rewarded_share": 0.0, "target_rate": 1.0, "target_every": 20},
    ],
)
def test_an_identity_task_is_learned(changes):
    agent = DQN(Signs(), config=replaced(**changes), seed=0)
    agent.learn(240)
    assert score(agent, Signs()) >= 0.95
    assert agent.updates == 200 and agent.predict(np.eye(SIZE, dtype=np.float32)[2]) == 2
    assert agent.predict(np.eye(SIZE, dtype=np.float32)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vectors_of_environments_are_learned_from(mode):
    envs = SyncVectorEnv([Signs] * 4, autoreset_mode=mode)
    agent = DQN(envs, config=replaced(update_every=2), seed=0)
    agent.learn(700)
    assert score(agent, Signs()) >= 0.95


class Late(gym.Env):
    """A reward at step 30 and no other."""

    observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), float(self.steps == 30), False, False, {}


@pytest.mark.parametrize(("waits", "seen"), [(True, 21), (False, 50)])
def test_exploration_falls_from_the_first_reward_on(waits, seen):
    agent = DQN(Late(), config=replaced(epsilon_waits=waits), seed=0)
    agent.learn(29)
    assert agent.epsilon.value == pytest.approx(1.0 if waits else 1.0 - 0.9 * 29 / 150)
    agent.learn(21)
    assert agent.epsilon.seen == seen


def test_prioritised_replay_is_told_the_errors():
    replay = TaskScopedReplay(
        1_000,
        observation_shape=(SIZE,),
        observation_dtype=np.float32,
        gamma=0.5,
        sampler=PrioritizedSampler(),
        seed=0,
    )
    agent = DQN(Signs(), config=QUICK, replay=replay, seed=0)
    agent.learn(240)
    assert score(agent, Signs()) >= 0.95
    assert replay.sample(32).weight.min() < 1.0


def test_two_contradicting_tasks_with_the_wrapper():
    agent = DQN(Signs(), config=QUICK, seed=0)
    owl = OwlWrapper(agent, regularizer=DistillationRegularizer(1.0, seed=0))
    for name, shift in (("same", 0), ("next", 1)):
        with owl.task(name, env=Signs(shift)):
            assert agent.epsilon.seen == 0
            before = agent.updates
            agent.learn(240)
            assert agent.updates == before + 200
    for name, shift in (("same", 0), ("next", 1)):
        assert owl.evaluate(Signs(shift), task=name, seed=0).mean_return / 8 >= 0.95


def test_the_same_seed_gives_the_same_weights_and_touches_no_global_generator():
    state = torch.get_rng_state()
    agents = [DQN(Signs(), config=QUICK, seed=3) for _ in range(2)]
    for agent in agents:
        agent.learn(120)
    assert torch.equal(state, torch.get_rng_state())
    pairs = zip(agents[0].q.parameters(), agents[1].q.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_what_is_handed_over_is_the_average():
    agent, plain = (DQN(Signs(), config=replaced(hand_over=h), seed=0) for h in (True, False))
    for each in (agent, plain):
        each.learn(100)
        assert not torch.equal(each.q.heads[0].weight, each.target.heads[0].weight)
        each.hand_over()
    assert all(
        torch.equal(a, b) for a, b in zip(agent.q.parameters(), agent.target.parameters(), strict=True)
    )
    assert not torch.equal(plain.q.heads[0].weight, plain.target.heads[0].weight)


def test_what_acts_is_the_average_where_it_is_handed_over():
    for hand_over in (True, False):
        agent = DQN(Signs(), config=replaced(hand_over=hand_over), seed=0)
        signs = np.eye(SIZE, dtype=np.float32)
        with torch.no_grad():
            agent.target.heads[0].weight.zero_(), agent.target.heads[0].bias.copy_(torch.arange(4.0))
            agent.q.heads[0].weight.zero_(), agent.q.heads[0].bias.copy_(-torch.arange(4.0))
        rng = copy.deepcopy(agent._rng)
        assert agent.predict(signs).tolist() == [3 if hand_over else 0] * SIZE
        assert agent.explore(signs, 0.0).tolist() == [0] * SIZE  # while training
        rng.random(SIZE), rng.integers(4, size=SIZE)
        assert agent._rng.random() == rng.random()  # acting draws nothing


def test_what_is_handed_over_holds_a_level_that_was_learned_in_short_pieces():
    envs = TabulatedVectorEnv(tabulate(CrossroadsEnv(2, length=2)), 16)
    agent, held = DQN(envs, seed=0), []
    for piece in range(24):

        def look(agent, frames, piece=piece):
            if piece >= 18 and frames % 160 == 0:
                held.append(greedy_score(agent.target, 0, envs.table).success == 1.0)

        agent.learn(512, callback=look)
    assert len(held) > 15 and all(held)
    agent.hand_over()
    assert greedy_score(agent.q, 0, envs.table).success == 1.0


def weights(agent) -> list[torch.Tensor]:
    return [p.detach().clone() for network in (agent.q, agent.target) for p in network.parameters()]


def same(one, other) -> bool:
    pairs = zip(weights(one), weights(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs) and one.epsilon.value == other.epsilon.value


def makers():
    def single():
        return DQN(Signs(), config=replaced(update_every=3), seed=0)

    def vector(mode):
        envs = SyncVectorEnv([lambda: Signs(length=5)] * 4, autoreset_mode=mode)
        return DQN(envs, config=replaced(update_every=3), seed=0)

    return {
        "single": single,
        "next step": lambda: vector(AutoresetMode.NEXT_STEP),
        "same step": lambda: vector(AutoresetMode.SAME_STEP),
    }


@pytest.mark.parametrize("kind", ["single", "next step", "same step"])
@pytest.mark.parametrize("pieces", [(37, 63), (1,) * 100, (97, 1, 2)])
def test_learning_in_pieces_is_learning_at_once(kind, pieces):
    """Bit for bit, in the middle of an episode, and where environments step further than asked for."""
    whole, parts = makers()[kind](), makers()[kind]()
    whole.learn(sum(pieces))
    for piece in pieces:
        parts.learn(piece)
    assert same(whole, parts) and whole.updates == parts.updates > 10
    assert whole.replay.sample(8).index.tolist() == parts.replay.sample(8).index.tolist()


@pytest.mark.parametrize("kind", ["single", "next step", "same step"])
def test_a_loaded_state_goes_on_bit_for_bit_in_the_middle_of_an_episode(kind):
    agent, other = makers()[kind](), makers()[kind]()
    agent.learn(101)
    other.learn(13)
    state, other.env = agent.state_dict(), copy.deepcopy(agent.env)
    agent.learn(77)
    other.load_state_dict(state)
    other.learn(77)
    assert same(agent, other) and agent.updates == other.updates
    state["q"].popitem()
    with pytest.raises(OwlError, match="q has 6 tensors, and 5 of other names or shapes"):
        other.load_state_dict(state)
    with pytest.raises(OwlError, match="the state has no loop"):
        other.load_state_dict({})


def test_an_environment_that_was_never_reset_starts_an_episode():
    agent, other = (DQN(gym.make("CartPole-v1"), config=QUICK, seed=0) for _ in range(2))
    agent.learn(60)
    other.load_state_dict(agent.state_dict())
    other.learn(60)
    assert other.updates == 80


def test_another_environment_starts_afresh():
    agent = DQN(Signs(), config=QUICK, seed=0)
    agent.learn(145)
    assert agent.updates == 105
    agent.learn(60, env=agent.env)
    assert agent.updates == 165  # the same one goes on
    before = weights(agent)
    agent.set_env(Signs())
    assert torch.equal(agent.q.heads[0].weight, agent.target.heads[0].weight)
    assert not torch.equal(before[-1], before[len(before) // 2 - 1])
    agent.learn(60)
    assert agent.updates == 185  # the first frames in another one are random


def test_a_broken_step_starts_an_episode():
    class Fragile(Signs):
        broken = False
        resets = 0

        def reset(self, **arguments):
            self.resets += 1
            return super().reset(**arguments)

        def step(self, action):
            if self.broken:
                raise RuntimeError("pulled out")
            return super().step(action)

    env = Fragile()
    agent = DQN(env, config=QUICK, seed=0)
    agent.learn(3)
    env.broken = True
    with pytest.raises(RuntimeError, match="pulled out"):
        agent.learn(3)
    env.broken = False
    resets = env.resets
    agent.learn(1)
    assert env.resets == resets + 1


def test_tasks_of_the_wrapper_have_counts_of_their_own():
    agent = DQN(Signs(), config=QUICK, seed=0)
    owl = OwlWrapper(agent)
    updates, seen = [], {}
    for name, shift in (("a", 0), ("b", 1), ("a", 0)):
        with owl.task(name):
            before = agent.updates
            agent.learn(60, env=Signs(shift))
            updates.append(agent.updates - before)
            seen[name] = agent.epsilon.seen
        assert torch.equal(agent.q.heads[0].weight, agent.target.heads[0].weight)
    assert updates == [20, 20, 60]  # a task that comes back has had its random frames
    with owl.task("b"):
        agent.learn(10)
        drawn = agent._rng.random()
        with owl.use("a"):
            assert agent.epsilon.seen == seen["a"]
        assert agent._rng.random() != drawn and agent.epsilon.seen == seen["b"] + 10
        agent.learn(10)


def test_evaluation_in_a_callback_does_not_disturb_learning():
    def trained(*, look):
        agent = DQN(Signs(), config=QUICK, seed=0)
        owl = OwlWrapper(agent)
        with owl.task("a"):
            agent.learn(60)

        def callback(agent, frames):
            if look and frames % 7 == 0:
                owl.evaluate(Signs(), task="a", episodes=1, seed=0)

        with owl.task("b"):
            agent.learn(60, env=Signs(1), callback=callback)
        return agent

    assert same(trained(look=False), trained(look=True))


def test_another_environment_must_fit():
    crossing = gym.make("owlrl/SimpleCrossing-v0", level=3)
    agent = DQN(crossing, seed=0)
    before = agent.env
    for other, message in {
        gym.make(
            "owlrl/SimpleCrossing-v0", level=7, num_actions=7
        ): r"actions Discrete\(7\); expected Discrete\(3\)",
        TabulatedVectorEnv(tabulate(crossing), 4): "a vector of 4; expected 1",
        Signs(): "2 problems",
    }.items():
        with pytest.raises(OwlError, match=message):
            agent.learn(100, env=other)
        assert agent.env is before


def test_bytes_go_to_the_trunk_as_they_are():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(147, 8)

        def forward(self, image):
            return self.linear(image.flatten(1).float())

    level = gym.make("owlrl/SimpleCrossing-v0", level=3)
    agent = DQN(level, config=replaced(learning_starts=0), trunk=Flat(), feature_dim=8, seed=0)
    agent.learn(40)
    assert agent.updates > 0
    with pytest.raises(
        OwlError, match=r"trunk fails on observations \(1, 7, 7, 3\) of torch.uint8.*\.float\(\)"
    ):
        DQN(level, trunk=nn.Sequential(nn.Flatten(), nn.Linear(147, 8)), feature_dim=8)


def test_an_agent_can_be_copied_and_pickled_and_reads_tables():
    agent = DQN(Signs(), config=QUICK, seed=0)
    agent.learn(60)
    frozen = np.eye(SIZE, dtype=np.float32)
    frozen.setflags(write=False)
    for other in (copy.deepcopy(agent), pickle.loads(pickle.dumps(agent))):
        assert other.predict(frozen).tolist() == agent.predict(frozen).tolist()


def test_callbacks_and_trunks_of_one_s_own():
    seen = []
    trunk = nn.Sequential(nn.Linear(SIZE, 8), nn.Tanh())
    agent = DQN(Signs(), config=QUICK, trunk=trunk, feature_dim=8, seed=0)
    agent.learn(50, callback=lambda a, frames: seen.append((a is agent, frames)), progress_bar=True)
    assert seen == [(True, k) for k in range(1, 51)]
    assert "DQN(Sequential, updates=10" in repr(agent)
    assert repr(OwlWrapper(agent)).startswith("OwlWrapper(DQN(MultiHeadQ), ")


def test_heads_of_one_s_own():
    def two_layers(features, actions):
        return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, actions))

    agents = [DQN(Signs(), config=replaced(dueling=True), head=two_layers, seed=0) for _ in range(2)]
    assert [len(network.heads[0]) for network in (agents[0].q, agents[0].target)] == [3, 3]
    assert torch.equal(agents[0].q.heads[0][0].weight, agents[1].q.heads[0][0].weight)  # seeded
    agents[0].q.add_head()
    assert len(agents[0].q.heads[1]) == 3
    agents[1].learn(240)
    assert score(agents[1], Signs()) >= 0.95
    with pytest.raises(OwlError, match="head is 3; expected a function head"):
        DQN(Signs(), head=3)


def test_a_loaded_agent_goes_on_bit_for_bit(tmp_path):
    """With moments for a weight that lies column by column in memory, as the first one of GridMLP does."""
    config = replaced(learning_starts=64, update_every=16)

    def made():
        return DQN(TabulatedVectorEnv(tabulate(CrossroadsEnv(2, length=1)), 4), config=config, seed=0)

    agent, other = made(), made()
    owl = OwlWrapper(agent)
    with owl.task("a"):
        agent.learn(300)
    owl.save(tmp_path / "owl.safetensors")
    loaded = OwlWrapper.load(tmp_path / "owl.safetensors", other)
    for each, model in ((owl, agent), (loaded, other)):
        with each.task("a"):
            model.learn(150)
    assert agent.updates == other.updates > 20
    assert same(agent, other)


def test_a_batch_may_train_another_head():
    agent = DQN(Signs(), config=QUICK, seed=0)
    agent.q.add_head(optimizer=agent.optimizer), agent.target.add_head()
    agent.learn(60)
    kept = agent.q.heads[0].weight.clone()
    agent.head_of = lambda batch: 1
    before = agent.q.heads[1].weight.clone()
    agent.update(agent.replay.sample(16))
    assert torch.equal(kept, agent.q.heads[0].weight) and not torch.equal(before, agent.q.heads[1].weight)


def test_named_settings():
    assert FAST.n_step == 5 and FAST.hand_over
    assert (PAPER.learning_rate, PAPER.batch_size) == (6.25e-5, 32)
    assert (PAPER.target_every, PAPER.update_every) == (80, 4)
    assert PAPER.dueling and PAPER.double and (PAPER.gamma, PAPER.n_step) == (0.99, 1)
    assert (PAPER.epsilon, PAPER.epsilon_frames, PAPER.learning_starts) == ((0.9, 0.01), 250_000, 10_000)
    assert (PAPER.buffer_size, PAPER.target_rate, PAPER.hand_over) == (1_000_000, 1.0, False)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DQN(gym.make("Pendulum-v1")), "expected Discrete"),
        (lambda: DQN(Signs(), trunk=nn.Identity()), "go together"),
        (lambda: DQN(Signs(), config=QUICK).learn(0), "expected an int >= 1"),
        (lambda: DQN(Signs(), config=QUICK).learn(True), "expected an int >= 1"),
        (lambda: DQNConfig(batch_size=0, n_step=1.5, learning_starts=-1), "3 problems"),
        (lambda: DQNConfig(learning_rate=float("nan"), max_grad_norm=0.0, target_rate=0.0), "3 problems"),
        (lambda: DQNConfig(gamma=2.0, epsilon=(1.0, -0.1), rewarded_share=1.5), "3 problems"),
        (lambda: DQNConfig(rewarded_reach=0), "rewarded_reach is 0; expected an int >= 1"),
        (lambda: DQNConfig(rewarded_above=-0.1), r"rewarded_above is -0\.1; expected a finite number >= 0"),
        (lambda: DQNConfig(epsilon_shape="cosine"), "expected 'linear' or 'exponential'"),
        (lambda: DQNConfig(gamma="a", learning_rate="b", max_grad_norm=None, epsilon=0.1), "4 problems"),
        (lambda: DQNConfig(epsilon=(1.0, 0.5, 0.1)), "expected a pair of numbers"),
        (
            lambda: DQNConfig(buffer_size=10, batch_size=32),
            "buffer_size is 10; expected room for a batch of 32",
        ),
        (lambda: DQN(Signs(), trunk=nn.Linear(SIZE, 8), feature_dim=9), r"into \(1, 8\); expected \(1, 9\)"),
        (lambda: DQN(shifted()), "starts at 0"),
        (
            lambda: DQN(
                Signs(), replay=TaskScopedReplay(9, observation_shape=(SIZE,), observation_dtype=np.float32)
            ),
            "replay has n_step 1, config 5",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(OwlError, match=message):
        call()


def test_a_loss_that_is_not_finite_stops_and_names_the_update():
    agent = DQN(Signs(), config=QUICK, seed=0)
    agent.learn(60)
    agent.q.trunk[0].weight.data[0, 0] = float("nan")
    before = agent.q.heads[0].weight.clone()
    with pytest.raises(NonFiniteError, match=r"update 21: the loss is nan"):
        agent.update(agent.replay.sample(16))
    assert torch.equal(before, agent.q.heads[0].weight)
