"""SAC and TD3 as a user would write them in one file, and the smallest continuous tasks that contradict."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import nn

from owlrl import ActorCriticLearner, TaskScopedReplay, Trained

GAMMA = 0.9


class Push(gym.Env):
    """Shows a number x; the paying push is sign · (1 + x / 2), one per step; episodes end at ``length``."""

    def __init__(self, sign: float = 1.0, length: int = 1) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.sign, self.length = sign, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.steps = 0
        return self._show(), {}

    def step(self, action):
        reward = -((float(np.asarray(action).reshape(-1)[0]) - self.goal()) ** 2)
        self.steps += 1
        return self._show(), reward, self.steps == self.length, False, {}

    def goal(self) -> float:
        return self.sign * (1.0 + 0.5 * float(self.shown[0]))

    def _show(self):
        self.shown = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return self.shown


class Actor(nn.Module):
    """CleanRL's convention: forward gives mean and log-std, the module knows scale and bias of actions."""

    def __init__(self, observations: int = 2, actions: int = 1, scale: float = 2.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observations, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.mean, self.log_std = nn.Linear(32, actions), nn.Linear(32, actions)
        self.register_buffer("action_scale", torch.full((actions,), scale))
        self.register_buffer("action_bias", torch.zeros(actions))

    def forward(self, observation):
        features = self.body(observation)
        return self.mean(features), -5 + 3.5 * (torch.tanh(self.log_std(features)) + 1)

    def sample(self, observation):
        mean, log_std = self(observation)
        raw = mean + log_std.exp() * torch.randn_like(mean)
        unit = torch.tanh(raw)
        log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw)
        log_prob = log_prob - torch.log(self.action_scale * (1 - unit.pow(2)) + 1e-6)
        return unit * self.action_scale + self.action_bias, log_prob.sum(1, keepdim=True)

    def greedy(self, observation):
        return torch.tanh(self(observation)[0]) * self.action_scale + self.action_bias


class Pusher(nn.Module):
    """A deterministic actor."""

    def __init__(self, observations: int = 2, actions: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(observations, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.out = nn.Linear(32, actions)

    def forward(self, observation):
        return 2.0 * torch.tanh(self.out(self.body(observation)))

    greedy = forward


class Critic(nn.Module):
    def __init__(self, observations: int = 2, actions: int = 1, outputs: int = 1) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(observations + actions, 32), nn.Linear(32, 32)
        self.out = nn.Linear(32, outputs)

    def forward(self, observation, action):
        x = F.relu(self.first(torch.cat([observation, action], 1)))
        return self.out(F.relu(self.second(x)))


class Twins(nn.Module):
    """Two critics in one module, which answers with a tuple, as some libraries have it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Critic(), Critic()

    def forward(self, observation, action):
        return self.one(observation, action), self.two(observation, action)


@dataclass
class Script:
    """What such a script has lying around."""

    kind: str
    actor: nn.Module
    critics: list[nn.Module]
    target_critics: list[nn.Module]
    target_actor: nn.Module | None
    actor_optimizer: torch.optim.Optimizer
    critic_optimizer: torch.optim.Optimizer
    replay: Any
    log_alpha: torch.Tensor | None = None
    alpha_optimizer: torch.optim.Optimizer | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    updates: int = 0

    def learner(self, *, init: str = "zero", **options: Any) -> ActorCriticLearner:
        """Described; `options` go to the learner, except those that have a network's name in front."""
        parts = {name: {"init": init, **options.pop(name, {})} for name in ("for_actor", "for_critics")}
        given = {
            "temperature": None if self.log_alpha is None else (self.log_alpha, self.alpha_optimizer),
            "replay": self.replay,
            "gamma": GAMMA,
        }
        optimizers = self.critic_optimizer
        if not isinstance(optimizers, list):
            optimizers = [optimizers] * len(self.critics)
        targets = self.target_critics or [None] * len(self.critics)
        critics = [
            Trained(*each, **parts["for_critics"])
            for each in zip(self.critics, optimizers, targets, strict=True)
        ]
        actor = Trained(self.actor, self.actor_optimizer, self.target_actor, **parts["for_actor"])
        return ActorCriticLearner(actor, critics, **{**given, **options})

    def qs(self, critics: list[nn.Module], observation, action) -> list[torch.Tensor]:
        found = [critic(observation, action) for critic in critics]
        return [q for out in found for q in (out if isinstance(out, tuple) else (out,))]


def make_replay(kind: str, **options: Any) -> Any:
    if kind == "deque":
        return deque(maxlen=2_000)
    known = {"observation_shape": (2,), "observation_dtype": np.float32, "gamma": GAMMA, "seed": 0}
    return TaskScopedReplay(
        2_000, warm_start=500, action_shape=(1,), action_dtype=np.float32, **known, **options
    )


def make_script(kind: str = "sac", *, twins: bool = False, replay: str = "scoped", seed: int = 0) -> Script:
    torch.manual_seed(seed)
    actor = Actor() if kind == "sac" else Pusher()
    critics: list[nn.Module] = [Twins()] if twins else [Critic(), Critic()]
    log_alpha = torch.zeros(1, requires_grad=True) if kind == "sac" else None
    return Script(
        kind,
        actor,
        critics,
        copy.deepcopy(critics),
        None if kind == "sac" else copy.deepcopy(actor),
        torch.optim.Adam(actor.parameters(), lr=3e-3),
        torch.optim.Adam([p for critic in critics for p in critic.parameters()], lr=3e-3),
        make_replay(replay),
        log_alpha,
        None if log_alpha is None else torch.optim.Adam([log_alpha], lr=3e-3),
        np.random.default_rng(seed),
    )


def batch_of(script: Script, size: int = 64):
    if isinstance(script.replay, deque):
        rows = [script.replay[i] for i in script.rng.integers(len(script.replay), size=size)]
        columns = [torch.as_tensor(np.stack(c)).float() for c in zip(*rows, strict=True)]
        return columns[0], columns[1], columns[2][:, None], columns[3], columns[4][:, None]
    rows = script.replay.sample(size)
    return (
        rows.observation,
        rows.action,
        rows.reward[:, None],
        rows.next_observation,
        rows.terminated.float()[:, None],
    )


def update(script: Script) -> None:
    """One update, written out as scripts do."""
    observation, action, reward, following, done = batch_of(script)
    script.updates += 1
    alpha = None if script.log_alpha is None else script.log_alpha.exp().item()
    with torch.no_grad():
        if script.kind == "sac":
            next_action, log_prob = script.actor.sample(following)
        else:
            noise = (torch.randn_like(action) * 0.2).clamp(-0.5, 0.5)
            next_action = (script.target_actor(following) + noise).clamp(-2, 2)
            log_prob, alpha = torch.zeros_like(reward), 0.0
        least = torch.stack(script.qs(script.target_critics, following, next_action)).amin(0)
        target = reward + GAMMA * (1 - done) * (least - alpha * log_prob)
    loss = sum(F.mse_loss(q, target) for q in script.qs(script.critics, observation, action))
    script.critic_optimizer.zero_grad()
    loss.backward()
    script.critic_optimizer.step()
    if script.kind == "sac":
        chosen, log_prob = script.actor.sample(observation)
        actor_loss = alpha * log_prob - torch.stack(script.qs(script.critics, observation, chosen)).amin(0)
        step_actor(script, actor_loss.mean())
        script.alpha_optimizer.zero_grad()
        (-script.log_alpha.exp() * (log_prob.detach() - 1.0)).mean().backward()
        script.alpha_optimizer.step()
    elif script.updates % 2 == 0:
        step_actor(script, -script.qs(script.critics, observation, script.actor(observation))[0].mean())
    pairs = list(zip(script.target_critics, script.critics, strict=True))
    for target_net, online in [
        *pairs,
        *([(script.target_actor, script.actor)] if script.target_actor else []),
    ]:
        for old, new in zip(target_net.parameters(), online.parameters(), strict=True):
            old.data.copy_(0.95 * old.data + 0.05 * new.data)


def step_actor(script: Script, loss: torch.Tensor) -> None:
    script.actor_optimizer.zero_grad()
    loss.backward()
    script.actor_optimizer.step()


def train(script: Script, env: gym.Env, steps: int = 300, *, seed: int = 0) -> None:
    """The script's own loop: act, store, learn. Knows nothing of tasks."""
    observation, _ = env.reset(seed=seed)
    for step in range(steps):
        if step < 64:
            action = script.rng.uniform(-2, 2, 1).astype(np.float32)
        else:
            with torch.no_grad():
                shown = torch.as_tensor(observation)[None]
                if script.kind == "sac":
                    action = script.actor.sample(shown)[0][0].numpy()
                else:
                    action = script.actor(shown)[0].numpy() + script.rng.normal(0, 0.3, 1).astype(np.float32)
                    action = action.clip(-2, 2)
        following, reward, terminated, truncated, _ = env.step(action)
        if isinstance(script.replay, deque):
            script.replay.append((observation, action, reward, following, terminated))
        else:
            script.replay.add(observation, action, reward, following, terminated, truncated)
        observation = env.reset()[0] if terminated or truncated else following
        if step >= 64:
            update(script)


def state(script: Script) -> list[torch.Tensor]:
    """All that training changes."""
    modules = [script.actor, *script.critics, *script.target_critics]
    modules += [] if script.target_actor is None else [script.target_actor]
    found = [p.detach().clone() for module in modules for p in module.parameters()]
    return found if script.log_alpha is None else [*found, script.log_alpha.detach().clone()]
