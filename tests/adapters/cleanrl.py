"""A DQN with the buffer and the loop that CleanRL's scripts have (written for these tests)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
import torch.nn.functional as F
from stable_baselines3.common.buffers import ReplayBuffer
from torch import nn

from owlrl import QLearner
from tests.own_dqn import SIZE, Signs


class CopiedBuffer:
    """A ring as CleanRL has it in a file of its own: the same parts, no class of Stable-Baselines3."""

    add, reset = ReplayBuffer.add, ReplayBuffer.reset

    def __init__(self, *arguments: Any, **options: Any) -> None:
        vars(self).update(vars(ReplayBuffer(*arguments, **options)))

    def sample(self, batch_size: int) -> Any:
        return ReplayBuffer.sample(_Plain(self), batch_size)


class _Plain(ReplayBuffer):
    def __init__(self, copied: CopiedBuffer) -> None:
        self.__dict__ = vars(copied)


@dataclass
class Script:
    """What the file has at its top level."""

    q: nn.Module
    target: nn.Module
    optimizer: torch.optim.Optimizer
    rb: Any

    def learner(self, **options: Any) -> QLearner:
        return QLearner(
            self.q, self.target, self.optimizer, replay=self.rb, gamma=0.5, double=False, **options
        )


def make_script(kind: type = ReplayBuffer, *, num_envs: int = 2, size: int = 1_000, seed: int = 0) -> Script:
    torch.manual_seed(seed)
    np.random.seed(seed)
    q = nn.Sequential(nn.Linear(SIZE, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, SIZE))
    env = Signs()
    rb = kind(
        size,
        env.observation_space,
        env.action_space,
        "cpu",
        n_envs=num_envs,
        handle_timeout_termination=False,
    )
    return Script(q, copy.deepcopy(q), torch.optim.Adam(q.parameters(), lr=5e-3), rb)


def train(script: Script, shift: int, steps: int = 200) -> None:
    """The loop: several environments, rows added for all of them at once, no word of tasks."""
    q, target, optimizer, rb = script.q, script.target, script.optimizer, script.rb
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    envs = gymnasium.vector.SyncVectorEnv([lambda: Signs(shift)] * rb.n_envs, autoreset_mode=mode)
    observation, _ = envs.reset(seed=1)
    for step in range(steps):
        epsilon = max(0.1, 1 - step / 100)
        with torch.no_grad():
            actions = q(torch.as_tensor(observation)).argmax(1).numpy()
        if np.random.random() < epsilon:
            actions = np.random.randint(0, SIZE, rb.n_envs)
        following, reward, terminated, truncated, infos = envs.step(actions)
        last = following.copy()
        for k in np.flatnonzero(truncated):
            last[k] = infos["final_obs"][k]
        rb.add(observation, last, actions, reward, terminated, infos)
        observation = following
        if step < 20:
            continue
        data = rb.sample(32)
        with torch.no_grad():
            best = target(data.next_observations).amax(1)
            goal = data.rewards.flatten() + 0.5 * best * (1 - data.dones.flatten())
        loss = F.mse_loss(q(data.observations).gather(1, data.actions).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for old, new in zip(target.parameters(), q.parameters(), strict=True):
            old.data.copy_(0.05 * new.data + 0.95 * old.data)


def score(script: Script, shift: int) -> float:
    """Share of the signs that are answered right."""
    with torch.no_grad():
        chosen = script.q(torch.eye(SIZE)).argmax(1)
    return float((chosen == (torch.arange(SIZE) + shift) % SIZE).float().mean())
