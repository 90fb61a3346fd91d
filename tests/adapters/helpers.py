"""Small environments and models that learn a few hundred steps in well under a second."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN
from stable_baselines3 import DDPG, DQN, SAC, TD3

OBSERVATIONS = {
    "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "discrete": spaces.Discrete(5),
    "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
    "dict": spaces.Dict(
        {
            "where": spaces.Box(-1.0, 1.0, (2,), np.float32),
            "door": spaces.Discrete(4),
            "image": spaces.Box(0, 255, (36, 36, 1), np.uint8),
        }
    ),
}
POLICIES = {"box": "MlpPolicy", "discrete": "MlpPolicy", "image": "CnnPolicy", "dict": "MultiInputPolicy"}


class Guess(gymnasium.Env[Any, Any]):
    """Seven guesses an episode of what is paid; observations are noise from the environment's own seed.

    Discrete: action 0 pays 1 where ``sign`` is 1, the last action where it is −1; ending with ``ends``
    (else by time). Box: the nearer to ``sign`` the better.
    """

    def __init__(
        self, actions: Any = 3, *, observations: str = "box", sign: int = 1, ends: bool = False
    ) -> None:
        self.action_space = spaces.Discrete(actions) if isinstance(actions, int) else actions
        self.observation_space = OBSERVATIONS[observations]
        self.sign = sign
        self.ends = ends
        self.resets = 0
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.resets += 1
        self.step_in_episode = 0
        return self._observation(self.observation_space), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.step_in_episode += 1
        if isinstance(self.action_space, spaces.Discrete):
            paying = 0 if self.sign > 0 else int(self.action_space.n) - 1
            reward = float(action == paying)
        else:
            reward = -float(np.abs(np.asarray(action) - self.sign).mean())
        over = self.step_in_episode == 7
        observation = self._observation(self.observation_space)
        return observation, reward, over and self.ends, over and not self.ends, {}

    def _observation(self, space: spaces.Space[Any]) -> Any:
        if isinstance(space, spaces.Dict):
            return {name: self._observation(part) for name, part in space.items()}
        if isinstance(space, spaces.Discrete):
            return int(self.np_random.integers(space.n))
        if space.dtype == np.uint8:
            return self.np_random.integers(0, 256, space.shape, dtype=np.uint8)
        return self.np_random.uniform(-1, 1, space.shape).astype(np.float32)


BOX = spaces.Box(-2.0, 2.0, (1,), np.float32)
SMALL = {"learning_starts": 20, "buffer_size": 1_000, "batch_size": 16, "seed": 0, "device": "cpu"}


def dqn(kind: type = DQN, *, env: Any = None, observations: str = "box", **changes: Any) -> Any:
    """A small DQN or QRDQN that updates every other step."""
    policy_kwargs = {"net_arch": [16], **changes.pop("policy_kwargs", {})}
    if kind is QRDQN:
        policy_kwargs.setdefault("n_quantiles", 5)
    settings = {
        **SMALL,
        "train_freq": 2,
        "target_update_interval": 10,
        "exploration_fraction": 0.5,
        **changes,
    }
    env = Guess(observations=observations) if env is None else env
    return kind(POLICIES[observations], env, policy_kwargs=policy_kwargs, **settings)


def actor_critic(kind: type, *, env: Any = None, observations: str = "box", **changes: Any) -> Any:
    """A small SAC, TD3 or DDPG that updates every other step."""
    policy_kwargs = {"net_arch": [16], **changes.pop("policy_kwargs", {})}
    env = Guess(BOX, observations=observations) if env is None else env
    return kind(
        POLICIES[observations], env, policy_kwargs=policy_kwargs, **{**SMALL, "train_freq": 2, **changes}
    )


def any_model(kind: type, **changes: Any) -> Any:
    return (dqn if kind in (DQN, QRDQN) else actor_critic)(kind, **changes)


def other_env(model: Any, **changes: Any) -> Guess:
    """An environment for a second task of a model made here."""
    names = {str(space): name for name, space in OBSERVATIONS.items()}
    own = model.get_env().get_attr("observation_space")[0]
    return (
        Guess(model.action_space, observations=names[str(own)], sign=-1, **changes)
        if not isinstance(model.action_space, spaces.Discrete)
        else Guess(int(model.action_space.n), observations=names[str(own)], sign=-1, **changes)
    )


KINDS = [DQN, QRDQN, SAC, TD3, DDPG]


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
