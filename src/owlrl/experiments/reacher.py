"""Reacher with four goals, DQN of Stable-Baselines3 (extras benchmarks, mujoco, sb3).

One arm, one observation (angles and their speeds), four goals of which only the rewards tell. Why one policy
that sees no rewards earns at most 22 of 50 is derived in docs/results/reacher.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from owlrl.experiments._optional import optional

__all__: list[str] = []

GOALS = ("east", "west", "north", "south")  # in the order of the environment's rewards


def make(goal: int) -> Any:
    """The arm, paid for being near one of the goals: 1 − 4 · distance a step, 50 steps."""
    games = optional("mo_gymnasium", extra="benchmarks", what="the study reacher")
    return games.wrappers.LinearReward(games.make("mo-reacher-v5"), weight=np.eye(len(GOALS))[goal])


tasks = {goal: partial(make, number) for number, goal in enumerate(GOALS)}
steps = 30_000
methods = ["bare", "alone", "owl"]
seeds = 5
eval_episodes = 20
note = "bound: one policy that sees no rewards earns at most 22.0 of 50 in the mean over the four goals"


def make_model(env: Any, seed: int) -> Any:
    """Deep Q-learning of Stable-Baselines3 with 9 actions, an update for every step."""
    sb3 = optional("stable_baselines3", extra="sb3", what="the study reacher")
    return sb3.DQN(
        "MlpPolicy",
        env,
        learning_rate=5e-4,
        buffer_size=30_000,
        learning_starts=1_000,
        batch_size=128,
        gamma=0.9,
        train_freq=4,
        gradient_steps=4,
        target_update_interval=500,
        exploration_fraction=0.3,
        seed=seed,
        device="cpu",
    )
