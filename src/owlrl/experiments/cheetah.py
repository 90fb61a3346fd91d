"""HalfCheetah forward and backward: a study for `owlrl compare`, and `owlrl reproduce cheetah`.

Needs the extras ``mujoco`` and ``sb3``. Why one policy that sees no rewards has a mean of at most 0 is
derived in docs/results.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium

from owlrl.experiments._optional import optional

__all__: list[str] = []

# the same body and the same observations, which do not have the position; only the reward differs
make = partial(gymnasium.make, "HalfCheetah-v5")
tasks = {
    "forward": partial(make, forward_reward_weight=1.0),
    "backward": partial(make, forward_reward_weight=-1.0),
}
steps = 50_000
methods = ["bare", "alone", "owl"]
seeds = 5
eval_every = 10_000
eval_episodes = 10
note = "bound: one policy that sees no rewards has a mean of at most 0 over the two tasks"


def make_model(env: Any, seed: int) -> Any:
    """Soft actor-critic of Stable-Baselines3 with its own defaults."""
    sb3 = optional("stable_baselines3", extra="sb3", what="the study cheetah")
    return sb3.SAC("MlpPolicy", env, seed=seed, device="cpu")
