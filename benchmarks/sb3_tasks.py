"""Stable-Baselines3 models that learn opposed tasks in turn: bare, wrapped, and one model per task.

    python benchmarks/sb3_tasks.py --models dqn sac td3 --seeds 5 --output runs/sb3

DQN: CartPole (200 steps), then with its two actions swapped. SAC and TD3: a pendulum paid for +90°, then
for −90°. Each seed is written to a file of its own, so that a rerun goes on; the table has means and
standard errors over seeds. Returns of the pendulum are negative, so there a score is the part of the way
from random actions (0) to the model that was trained for that task alone (1).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from tqdm import tqdm

import owlrl.envs  # noqa: F401, registers the pendulum
from owlrl import DistillationRegularizer, ModelEvidence, OwlWrapper

EPISODES = 20


class Swapped(gymnasium.ActionWrapper):
    """The two actions the other way round."""

    def action(self, action: int) -> int:
        return 1 - action


def cartpole(swapped: bool) -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1", max_episode_steps=200)
    return Swapped(env) if swapped else env


def pendulum(angle: float) -> gymnasium.Env:
    return gymnasium.make("owlrl/Pendulum-v0", angle=angle)


CARTPOLES = {"cartpole": lambda: cartpole(False), "swapped": lambda: cartpole(True)}
PENDULUMS = {"+90°": lambda: pendulum(90.0), "-90°": lambda: pendulum(-90.0)}


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


# model, tasks, steps per task, strength of the guard
MODELS: dict[str, tuple[Callable[..., Any], dict[str, Callable[[], gymnasium.Env]], int, Any]] = {
    "dqn": (dqn, CARTPOLES, 30_000, 1.0),
    "sac": (sac, PENDULUMS, 3_000, {"actor": 10.0, "critic": 1.0}),
    "td3": (td3, PENDULUMS, 3_000, {"actor": 10.0, "critic": 1.0}),
}


def score(model: Any, env: gymnasium.Env) -> float:
    env.reset(seed=1_000)
    returns, _ = evaluate_policy(
        model, env, n_eval_episodes=EPISODES, return_episode_rewards=True, warn=False
    )
    return float(np.mean(returns))


def random_score(env: gymnasium.Env) -> float:
    env.action_space.seed(0)
    returns = []
    for episode in range(EPISODES):
        env.reset(seed=1_000 + episode)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def one_seed(kind: str, seed: int, steps: int | None) -> dict[str, Any]:
    """All that is measured with one seed: mean returns by method and task."""
    make, tasks, default, strength = MODELS[kind]
    frames = default if steps is None else steps
    begun = time.perf_counter()
    found: dict[str, Any] = {
        "kind": kind,
        "seed": seed,
        "frames": frames,
        "random": {},
        "alone": {},
        "bare": {},
    }
    first = next(iter(tasks.values()))
    bare = make(first(), seed)
    for name, env in tasks.items():
        found["random"][name] = random_score(env())
        alone = make(env(), seed)
        alone.learn(frames)
        found["alone"][name] = score(alone, env())
        bare.set_env(env())
        bare.learn(frames)
    found["bare"] = {name: score(bare, env()) for name, env in tasks.items()}

    model = make(first(), seed)
    owl = OwlWrapper(
        model, regularizer=DistillationRegularizer(strength, seed=seed), evidence=ModelEvidence(seed=seed)
    )
    found |= {"right after": {}}
    started = time.perf_counter()
    for name, env in tasks.items():
        with owl.task(name, env=env()):
            model.learn(frames)
        found["right after"][name] = owl.evaluate(env(), task=name, episodes=EPISODES, seed=1_000).mean_return
    found["seconds wrapped"] = time.perf_counter() - started
    for name, env in tasks.items():
        found.setdefault("told", {})[name] = owl.evaluate(
            env(), task=name, episodes=EPISODES, seed=1_000
        ).mean_return
        found.setdefault("not told", {})[name] = owl.evaluate(
            env(), episodes=EPISODES, seed=1_000
        ).mean_return
    return found | {"seconds": time.perf_counter() - begun}


METHODS = ("alone", "bare", "right after", "told", "not told")


def normalised(result: dict[str, Any], method: str, task: str) -> float:
    low, high = result["random"][task], result["alone"][task]
    return (result[method][task] - low) / (high - low)


def table(results: list[dict[str, Any]]) -> str:
    lines = [
        "| model | task | seeds | trained alone | bare, in sequence | wrapped, right after | wrapped, told | "
        "wrapped, not told |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in MODELS:
        own = [r for r in results if r["kind"] == kind]
        for task in own[0]["alone"] if own else ():
            cells = []
            for method in METHODS:
                returns = np.array([r[method][task] for r in own])
                parts = np.array([normalised(r, method, task) for r in own])
                error = returns.std(ddof=1) / len(own) ** 0.5 if len(own) > 1 else float("nan")
                cells.append(f"{returns.mean():.0f} ± {error:.0f} ({parts.mean():.2f})")
            lines.append(f"| {kind.upper()} | {task} | {len(own)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to this minus 1 (default: 5)")
    parser.add_argument("--steps", type=int, default=None, help="steps per task (default: by model)")
    parser.add_argument("--output", type=Path, default=Path("runs/sb3"), help="where finished seeds are kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.output.mkdir(parents=True, exist_ok=True)
    todo = [(kind, seed) for seed in range(arguments.seeds) for kind in arguments.models]
    results = []
    for kind, seed in tqdm(todo, disable=None):
        frames = MODELS[kind][2] if arguments.steps is None else arguments.steps
        file = arguments.output / f"{kind}-{frames}-{seed}.json"
        if not file.exists():
            text = json.dumps(one_seed(kind, seed, arguments.steps))
            file.with_suffix(".tmp").write_text(text)
            file.with_suffix(".tmp").replace(file)
        results.append(json.loads(file.read_text()))
    print(table(results))


if __name__ == "__main__":
    main()
