"""Three games of MinAtar, one after the other, in seven visits; owlrl's DQN (extra benchmarks).

Screens of 10 × 10 cells with a channel per kind of thing; games with fewer kinds have empty channels.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit
from torch import Tensor, nn

from owlrl.experiments._optional import optional
from owlrl.experiments.config import DENSE
from owlrl.learners import DQN

__all__: list[str] = []

GAMES = ("breakout", "asterix", "space_invaders")
CHANNELS, COPIES, LONGEST = 6, 16, 2_500


class Padded(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Empty channels after a game's own, so that all games have the same form."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        rows, columns, channels = env.observation_space.shape or ()
        self._empty = np.zeros((rows, columns, CHANNELS - channels), np.uint8)
        self.observation_space = gymnasium.spaces.Box(0, 1, (rows, columns, CHANNELS), np.uint8)

    def observation(self, observation: Any) -> np.ndarray:
        """A byte per cell and channel."""
        return np.concatenate([observation, self._empty], axis=2, dtype=np.uint8)


def make_one(game: str) -> gymnasium.Env[Any, Any]:
    """One copy, with all six actions and repeated ones, as the games come."""
    games = optional("minatar.gym", extra="benchmarks", what="the study minatar")
    return Padded(TimeLimit(games.BaseEnv(game), LONGEST))


def make(game: str) -> SyncVectorEnv:
    """Copies of a game side by side."""
    return SyncVectorEnv([partial(make_one, game)] * COPIES, autoreset_mode=AutoresetMode.SAME_STEP)


class Cells(nn.Module):
    """One layer of 16 filters and one of 128 units, the network of the games' authors."""

    def __init__(self) -> None:
        super().__init__()
        seen = nn.Sequential(nn.Conv2d(CHANNELS, 16, 3), nn.ReLU(), nn.Flatten())
        self.layers = nn.Sequential(seen, nn.Linear(16 * 8 * 8, 128), nn.ReLU())

    def forward(self, cells: Tensor) -> Tensor:
        """(B, 10, 10, C) bytes → (B, 128)."""
        found: Tensor = self.layers(cells.permute(0, 3, 1, 2).float())
        return found


tasks = {game: partial(make, game) for game in GAMES}
steps = 200_000
order = [*GAMES, *GAMES, GAMES[0]]  # seven visits
methods = ["bare", "alone", "one head with rehearsal", "owl"]
seeds = 2
eval_episodes = 32


def make_model(env: Any, seed: int) -> DQN:
    """The reference DQN with an update for every 16 frames, compiled (which needs a C++ compiler)."""
    more: dict[str, Any] = {"update_every": 16, "target_rate": 0.01, "buffer_size": 100_000}
    config = replace(DENSE, learning_rate=5e-4, learning_starts=2_000, epsilon_frames=60_000, **more)
    return DQN(env, config=config, trunk=Cells(), feature_dim=128, seed=seed, device="cpu", compile=True)
