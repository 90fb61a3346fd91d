"""A DQN as a user would write it, and the smallest tasks that contradict each other."""

from __future__ import annotations

import copy
import random
from collections import deque
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import nn

from owlrl import MultiHeadQ, QLearner, SharedReplay, TaskScopedReplay

SIZE = 4


class Signs(gym.Env):
    """Shows one of four signs; the paying action is the sign plus the task's shift, modulo four.

    Every task shows the same observations and no two tasks agree on any of them.
    """

    def __init__(self, shift: int = 0, length: int = 8) -> None:
        self.observation_space = spaces.Box(0.0, 1.0, (SIZE,), np.float32)
        self.action_space = spaces.Discrete(SIZE)
        self.shift, self.length = shift, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def step(self, action):
        reward = float(action == (self.sign + self.shift) % SIZE)
        self.steps += 1
        return self._show(), reward, False, self.steps == self.length, {}

    def _show(self):
        self.sign = int(self.np_random.integers(SIZE))
        return np.eye(SIZE, dtype=np.float32)[self.sign]


@dataclass
class Script:
    """What a script has lying around: networks, an optimizer, a buffer."""

    q: nn.Module
    target: nn.Module
    optimizer: torch.optim.Optimizer
    replay: Any
    rng: random.Random

    def learner(self, **options: Any) -> QLearner:
        return QLearner(self.q, self.target, self.optimizer, replay=self.replay, gamma=0.5, **options)


def network(kind: str) -> nn.Module:
    trunk = nn.Sequential(nn.Linear(SIZE, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    if kind == "plain":
        return nn.Sequential(*trunk, nn.Linear(32, SIZE))
    return MultiHeadQ(trunk, 32, SIZE, dueling=kind == "dueling")


def make_replay(kind: str, **options: Any) -> Any:
    if kind == "deque":
        return deque(maxlen=2_000)
    known = {"observation_shape": (SIZE,), "observation_dtype": np.float32, "gamma": 0.5, "seed": 0}
    if kind == "shared":
        return SharedReplay(2_000, **known)
    return TaskScopedReplay(2_000, warm_start=500, **known, **options)


def make_script(kind: str = "multihead", *, replay: str = "scoped", seed: int = 0, **options: Any) -> Script:
    torch.manual_seed(seed)
    q = network(kind)
    target = copy.deepcopy(q)
    optimizer = torch.optim.Adam(q.parameters(), lr=3e-3)
    return Script(q, target, optimizer, make_replay(replay, **options), random.Random(seed))


def loss_of(script: Script, batch_size: int = 32) -> torch.Tensor:
    """One TD loss on a batch, written out as scripts do."""
    if isinstance(script.replay, deque):
        rows = script.rng.sample(list(script.replay), batch_size)
        obs, action, reward, following, done = (torch.as_tensor(np.stack(c)) for c in zip(*rows, strict=True))
        keep = 1.0 - done.float()
    else:
        batch = script.replay.sample(batch_size)
        obs, action, reward, following = batch.observation, batch.action, batch.reward, batch.next_observation
        keep = (~batch.terminated).float()
    with torch.no_grad():
        best = script.q(following).argmax(1, keepdim=True)
        goal = reward.float() + 0.5 * keep * script.target(following).gather(1, best).squeeze(1)
    return F.smooth_l1_loss(script.q(obs).gather(1, action.view(-1, 1)).squeeze(1), goal)


def train(script: Script, env: gym.Env, steps: int = 160, *, seed: int = 0, extra=lambda: 0.0) -> list[float]:
    """The script's own loop: act, store, learn. Knows nothing of tasks."""
    obs, _ = env.reset(seed=seed)
    losses = []
    for step in range(steps):
        epsilon = max(0.1, 1.0 - step / 80)
        if script.rng.random() < epsilon:
            action = script.rng.randrange(SIZE)
        else:
            with torch.no_grad():
                action = int(script.q(torch.as_tensor(obs).unsqueeze(0)).argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        if isinstance(script.replay, deque):
            script.replay.append((obs, action, reward, following, terminated))
        else:
            script.replay.add(obs, action, reward, following, terminated, truncated)
        obs = env.reset()[0] if terminated or truncated else following
        if step >= 32:
            loss = loss_of(script) + extra()
            script.optimizer.zero_grad()
            loss.backward()
            script.optimizer.step()
            losses.append(loss.item())
            with torch.no_grad():
                for old, new in zip(script.target.parameters(), script.q.parameters(), strict=True):
                    old.data.copy_(0.95 * old.data + 0.05 * new.data)
    return losses


def score(script: Script, env: gym.Env, *, episodes: int = 10) -> float:
    """Share of right actions of the network as it is, greedily."""
    total = 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        ended = False
        while not ended:
            with torch.no_grad():
                action = int(script.q(torch.as_tensor(obs).unsqueeze(0)).argmax())
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            ended = terminated or truncated
    return total / (episodes * env.length)
