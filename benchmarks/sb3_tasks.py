"""Stable-Baselines3 models that learn opposed tasks in turn: bare, wrapped, and one model per task.

    python benchmarks/sb3_tasks.py --models dqn sac td3 --seeds 5 --jobs 2 --output runs/sb3

DQN: CartPole (200 steps), then with its two actions swapped. SAC and TD3: a pendulum paid for +90°, then
for −90°. Each model is a call of `owlrl.experiments.compare`: a rerun goes on, also inside a task.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.noise import NormalActionNoise

from owlrl.envs import SwapActions
from owlrl.experiments import Study, compare


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", max_episode_steps=200)


def swapped() -> gymnasium.Env:
    return SwapActions(cartpole())


CARTPOLES = {"cartpole": cartpole, "swapped": swapped}
PENDULUMS = {f"{a:+d}°": partial(gymnasium.make, "owlrl/Pendulum-v0", angle=float(a)) for a in (90, -90)}


def dqn(env: gymnasium.Env, seed: int, **changes: Any) -> DQN:
    settings: dict[str, Any] = {
        "learning_rate": 1e-3,
        "batch_size": 64,
        "buffer_size": 50_000,
        "learning_starts": 1_000,
        "target_update_interval": 10,
        "tau": 0.05,
        "train_freq": 64,
        "gradient_steps": 32,
        "exploration_fraction": 0.2,
        "exploration_final_eps": 0.04,
        "policy_kwargs": {"net_arch": [128, 128]},
    }
    return DQN("MlpPolicy", env, seed=seed, device="cpu", **(settings | changes))


def sac(env: gymnasium.Env, seed: int) -> SAC:
    net = {"net_arch": [64, 64]}
    return SAC(
        "MlpPolicy", env, learning_rate=1e-3, learning_starts=500, policy_kwargs=net, seed=seed, device="cpu"
    )


def td3(env: gymnasium.Env, seed: int) -> TD3:
    noise = NormalActionNoise(np.zeros(1), 0.2 * np.ones(1))
    net = {"net_arch": [64, 64]}
    return TD3(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        learning_starts=500,
        action_noise=noise,
        policy_kwargs=net,
        seed=seed,
        device="cpu",
    )


# model, tasks, steps per task
MODELS: dict[str, tuple[Callable[..., Any], dict[str, Callable[[], gymnasium.Env]], int]] = {
    "dqn": (dqn, CARTPOLES, 30_000),
    "sac": (sac, PENDULUMS, 3_000),
    "td3": (td3, PENDULUMS, 3_000),
}


def study(kind: str, *, steps: int | None = None, output: Path | None = None, **options: Any) -> Study:
    """One model on its two tasks: bare, alone and in the bare call of `OwlWrapper`."""
    make, tasks, default = MODELS[kind]
    own = None if output is None else output / kind
    return compare(make, tasks=tasks, steps=steps or default, output=own, **options)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to this minus 1 (default: 5)")
    parser.add_argument("--steps", type=int, default=None, help="steps per task (default: by model)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (default: 1)")
    parser.add_argument("--output", type=Path, default=Path("runs/sb3"), help="where runs are kept")
    arguments = parser.parse_args()
    chosen = {"seeds": arguments.seeds, "jobs": arguments.jobs, "output": arguments.output}
    for kind in arguments.models:
        found = study(kind, steps=arguments.steps, **chosen)
        print(f"{kind.upper()}\n\n{found.table()}")
        print(*found.verdicts(), "", sep="\n")


if __name__ == "__main__":
    main()
