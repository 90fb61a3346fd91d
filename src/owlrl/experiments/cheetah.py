"""HalfCheetah forward and backward, SAC of Stable-Baselines3 and owlrl's own (extras mujoco, sb3).

Why one policy that sees no rewards has a mean of at most 0 is derived in docs/results/cheetah.md.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium

from owlrl.experiments._optional import optional
from owlrl.experiments.methods import Learned, MakeModel, Wrapped
from owlrl.learners import SAC, SACConfig

__all__: list[str] = []


class OwnSAC(Wrapped):
    """The wrapper with its defaults around the reference SAC, with networks and batches of the same size."""

    def start(self, make_model: MakeModel, env: Any, seed: int) -> Learned:
        """Whatever the study's model is."""
        return super().start(own_sac, env, seed)


def own_sac(env: Any, seed: int) -> SAC:
    """The reference learner, as near to `make_model` as it comes."""
    return SAC(env, config=SACConfig(batch_size=128), seed=seed, device="cpu")


# the same body and the same observations, which do not have the position; only the reward differs
make = partial(gymnasium.make, "HalfCheetah-v5")
tasks = {
    "forward": partial(make, forward_reward_weight=1.0),
    "backward": partial(make, forward_reward_weight=-1.0),
}
steps = 30_000
methods = [
    *("bare", "alone", "owl"),
    OwnSAC("owl, owlrl.learners.SAC", about="OwlWrapper(SAC(env)), the reference learner"),
]
seeds = 5
eval_episodes = 6  # of 1,000 steps, which differ little
note = "bound: one policy that sees no rewards has a mean of at most 0 over the two tasks"


def make_model(env: Any, seed: int) -> Any:
    """Soft actor-critic of Stable-Baselines3 with small networks: as it comes it takes four times as long."""
    sb3 = optional("stable_baselines3", extra="sb3", what="the study cheetah")
    sizes = {"net_arch": [64, 64]}
    more: dict[str, Any] = {"learning_rate": 1e-3, "batch_size": 128, "policy_kwargs": sizes}
    return sb3.SAC("MlpPolicy", env, seed=seed, device="cpu", **more)
