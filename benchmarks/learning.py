"""`learn` in the same real environment: the reference DQN and Stable-Baselines3's, and SC3 from end to end.

    python benchmarks/learning.py [--quick]

MiniGrid's SimpleCrossing, the paper's network on both sides, batch 32, an update per frame, as the
released code has it. SC3 is what `owlrl train` does with all defaults; 0.1 took 118 CPU seconds for it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import gymnasium
import torch
from common import Row, command, paper_trunk, side_by_side
from stable_baselines3 import DQN as TheirDQN
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

from owlrl.envs import task_set
from owlrl.experiments import Run, run_experiment
from owlrl.learners import DQN, PAPER, GridConv

FRAMES = 40  # of learn in a row
SC3 = 118.0  # CPU seconds of 0.1


class Features(BaseFeaturesExtractor):
    """The paper's trunk."""

    def __init__(self, space: Any) -> None:
        super().__init__(space, 200)
        self.trunk = paper_trunk()[1:]  # they put the channels first themselves

    def forward(self, observation: Tensor) -> Tensor:
        return self.trunk(observation)


def env() -> gymnasium.Env[Any, Any]:
    return next(iter(task_set("SC3").values()))()


def theirs() -> TheirDQN:
    kwargs = {"features_extractor_class": Features, "net_arch": [], "normalize_images": False}
    return TheirDQN(
        "MlpPolicy", env(), policy_kwargs=kwargs, batch_size=32, train_freq=1, gradient_steps=1,
        learning_starts=100, buffer_size=20_000, exploration_fraction=1e-6, seed=0, device="cpu",
    )  # fmt: skip


def ours(*, compile: bool) -> DQN:
    config = replace(
        PAPER, update_every=1, learning_starts=100, buffer_size=20_000, dueling=False, epsilon_frames=1
    )
    return DQN(env(), config=config, trunk=GridConv(), feature_dim=200, seed=0, device="cpu", compile=compile)


def main(*, quick: bool = False) -> list[Row]:
    their, agents = theirs(), [ours(compile=False), ours(compile=True)]
    their.learn(150)
    for agent in agents:
        agent.learn(150)
    contestants = [
        lambda: their.learn(FRAMES, reset_num_timesteps=False),
        *(lambda agent=agent: agent.learn(FRAMES) for agent in agents),
    ]
    times = [t / FRAMES for t in side_by_side(contestants, rounds=7 if quick else 15, calls=1)]
    found = [
        Row("a frame of DQN.learn with its update, paper's network, against SB3", times[0], times[1]),
        Row(
            "a frame of DQN.learn with its update, paper's network, compile=True, against SB3",
            times[0],
            times[2],
        ),
    ]
    start = time.process_time()
    run_experiment(Run("SC3", frames=19_000 if quick else Run.frames))
    spent = time.process_time() - start
    whole = SC3 / 10 if quick else SC3
    found.append(Row("SC3 from end to end, CPU seconds of 0.1 against now", whole, spent, "s"))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    command(main, __doc__)
