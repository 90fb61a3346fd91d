"""The reference DQN learns something real in seconds, and says what is wrong with its input."""

import copy
import pickle

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from owlrl import DistillationRegularizer, OwlWrapper, PrioritizedSampler, QLearner, TaskScopedReplay
from owlrl.envs import CrossroadsEnv, TabulatedVectorEnv, tabulate
from owlrl.errors import NonFiniteError, OwlError
from owlrl.experiments.episodes import greedy_success
from owlrl.learners import DQN, FAST, PAPER, DQNConfig
from tests.own_dqn import SIZE, Signs, score

QUICK = DQNConfig(
    learning_rate=3e-3, batch_size=32, gamma=0.5, n_step=1, update_every=1, learning_starts=40,
    target_rate=0.05, epsilon=(1.0, 0.1), epsilon_frames=200, buffer_size=1_000,
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
    agent.learn(350)
    assert score(agent, Signs()) >= 0.95
    assert agent.updates == 310 and agent.predict(np.eye(SIZE, dtype=np.float32)[2]) == 2
    assert agent.predict(np.eye(SIZE, dtype=np.float32)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_vectors_of_environments_are_learned_from(mode):
    envs = SyncVectorEnv([Signs] * 4, autoreset_mode=mode)
    agent = DQN(envs, config=replaced(update_every=2), seed=0)
    agent.learn(1_000)
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
    assert agent.epsilon.value == (1.0 if waits else 1.0 - 0.9 * 29 / 200)
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
    agent.learn(350)
    assert score(agent, Signs()) >= 0.95
    assert replay.sample(32).weight.min() < 1.0


def test_two_contradicting_tasks_with_the_wrapper():
    agent = DQN(Signs(), config=QUICK, seed=0)
    parts = {"replay": agent.replay, "per_task": {"epsilon": agent.epsilon}}
    learner = QLearner(agent.q, agent.target, agent.optimizer, gamma=0.5, **parts)
    owl = OwlWrapper(learner, regularizer=DistillationRegularizer(1.0, seed=0))
    for name, shift in (("same", 0), ("next", 1)):
        with owl.task(name):
            assert agent.epsilon.seen == 0
            agent.learn(350, env=Signs(shift))
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
    agent = DQN(Signs(), config=QUICK, seed=0)
    agent.learn(100)
    pairs = zip(agent.q.parameters(), agent.target.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    plain = DQN(Signs(), config=replaced(hand_over=False), seed=0)
    plain.learn(100)
    assert not torch.equal(plain.q.heads[0].weight, plain.target.heads[0].weight)


def test_what_is_handed_over_holds_a_level():
    envs = TabulatedVectorEnv(tabulate(CrossroadsEnv(2, length=2)), 16)
    held = []

    def look(agent, frames):
        if frames > 9_000 and frames % 160 == 0:
            held.append(greedy_success(agent.target, 0, envs.table))

    agent = DQN(envs, seed=0)
    agent.learn(12_000, callback=look)
    assert len(held) > 15 and all(held)
    assert greedy_success(agent.q, 0, envs.table)


def test_learning_in_pieces_is_learning():
    agent = DQN(Signs(), config=QUICK, seed=0)
    for _ in range(35):
        agent.learn(10)
    assert agent.updates == 310  # the random frames at first are not begun anew
    assert score(agent, Signs()) >= 0.95
    agent.learn(60, env=Signs())
    assert agent.updates == 330  # in another environment they are


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


def test_heads_of_one_s_own():
    def two_layers(features, actions):
        return nn.Sequential(nn.Linear(features, 16), nn.ReLU(), nn.Linear(16, actions))

    agents = [DQN(Signs(), config=replaced(dueling=True), head=two_layers, seed=0) for _ in range(2)]
    assert [len(network.heads[0]) for network in (agents[0].q, agents[0].target)] == [3, 3]
    assert torch.equal(agents[0].q.heads[0][0].weight, agents[1].q.heads[0][0].weight)  # seeded
    agents[0].q.add_head()
    assert len(agents[0].q.heads[1]) == 3
    agents[1].learn(350)
    assert score(agents[1], Signs()) >= 0.95
    with pytest.raises(OwlError, match="head is 3; expected a factory"):
        DQN(Signs(), head=3)


def test_a_loaded_agent_goes_on_bit_for_bit(tmp_path):
    """With moments for a weight that lies column by column in memory, as the first one of GridMLP does."""
    config = replaced(learning_starts=64, update_every=16)

    def made():
        agent = DQN(TabulatedVectorEnv(tabulate(CrossroadsEnv(2, length=1)), 4), config=config, seed=0)
        parts = {"replay": agent.replay, "per_task": {"epsilon": agent.epsilon}}
        return agent, QLearner(agent.q, agent.target, agent.optimizer, gamma=0.5, **parts)

    agent, learner = made()
    owl = OwlWrapper(learner)
    with owl.task("a"):
        agent.learn(400)
    owl.save(tmp_path / "owl.safetensors")
    other, fresh = made()
    loaded = OwlWrapper.load(tmp_path / "owl.safetensors", fresh)
    other.load_state_dict(agent.state_dict())
    for each, model in ((owl, agent), (loaded, other)):
        with each.task("a"):
            model.learn(200)
    assert agent.updates == other.updates > 25
    pairs = zip(agent.q.parameters(), other.q.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


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
