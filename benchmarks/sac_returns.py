"""SAC: the return on Gymnasium's Pendulum, against Stable-Baselines3's SAC at equal steps.

    python benchmarks/sac_returns.py [--frames 6000] [--seeds 5] [--output FILE]

Same sizes of networks and batches, step sizes, target rate, random frames and an update per frame; the same
seeds. Every 1,000 frames the greedy policy plays 20 episodes from the same starts. Some minutes per seed and
learner; each run is a line of the JSONL file, and a run that is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import SAC as TheirSAC
from stable_baselines3.common.callbacks import BaseCallback

from owlrl.learners import SAC, SAC_FAST

EVERY, EPISODES, STEPS = 1_000, 20, 200
Predict = Callable[[np.ndarray], np.ndarray]


def mean_return(predict: Predict) -> float:
    """Mean return of greedy episodes, always from the same starts."""
    envs = gym.make_vec("Pendulum-v1", EPISODES, vectorization_mode="sync")
    observation, _ = envs.reset(seed=10_000)
    total = np.zeros(EPISODES)
    for _ in range(STEPS):
        observation, reward, *_ = envs.step(predict(observation))
        total += reward
    return float(total.mean())


def train_ours(frames: int, seed: int) -> list[float]:
    agent, curve = SAC(gym.make("Pendulum-v1"), config=SAC_FAST, seed=seed, device="cpu"), []

    def callback(agent: SAC, seen: int) -> None:
        if seen % EVERY == 0:
            curve.append(mean_return(agent.predict))

    agent.learn(frames, callback=callback)
    return [*curve[:-1], mean_return(agent.predict)]  # of what is handed over in the end


def train_theirs(frames: int, seed: int) -> list[float]:
    settings, curve = SAC_FAST, []
    model = TheirSAC(
        "MlpPolicy",
        gym.make("Pendulum-v1"),
        learning_rate=settings.learning_rate,
        batch_size=settings.batch_size,
        buffer_size=settings.buffer_size,
        learning_starts=settings.learning_starts,
        tau=settings.target_rate,
        gamma=settings.gamma,
        policy_kwargs={"net_arch": {"pi": list(settings.actor_hidden), "qf": list(settings.critic_hidden)}},
        seed=seed,
        device="cpu",
    )

    class Curve(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % EVERY == 0:
                curve.append(mean_return(lambda x: model.predict(x, deterministic=True)[0]))
            return True

    model.learn(frames, callback=Curve())
    return curve


LEARNERS = {"owlrl": train_ours, "sb3": train_theirs}


def runs(path: Path, frames: int, seeds: int) -> dict[tuple[str, int], list[float]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    done = [json.loads(line) for line in lines]
    found = {(r["learner"], r["seed"]): r["curve"] for r in done if r["frames"] == frames}
    for seed in range(seeds):
        for name, train in LEARNERS.items():
            if (name, seed) in found:
                continue
            start = time.process_time()
            curve = [round(value, 1) for value in train(frames, seed)]
            run = {"learner": name, "seed": seed, "frames": frames, "curve": curve}
            run["cpu_seconds"] = round(time.process_time() - start, 1)
            with path.open("a", encoding="utf-8") as file:
                print(json.dumps(run), file=file)
            print(f"{name:6} seed {seed}: {curve}", flush=True)
            found[name, seed] = curve
    return {key: curve for key, curve in found.items() if key[1] < seeds}


def report(found: dict[tuple[str, int], list[float]], frames: int, seeds: int) -> None:
    last = {name: [found[name, seed][-1] for seed in range(seeds)] for name in LEARNERS}
    for name, values in last.items():
        spread = statistics.stdev(values) if seeds > 1 else 0.0
        print(
            f"{name:6} return after {frames} frames, {seeds} seeds: "
            f"{statistics.mean(values):8.1f} ± {spread:.1f}"
        )
    curves = np.array([[found[name, seed] for seed in range(seeds)] for name in LEARNERS])
    for step, (ours, theirs) in enumerate(curves.mean(1).T, 1):
        print(f"{step * EVERY:7} frames: owlrl {ours:8.1f}   sb3 {theirs:8.1f}")
    difference = np.subtract(last["owlrl"], last["sb3"])
    draws = np.random.default_rng(0).choice(difference, (10_000, seeds)).mean(1)
    low, high = np.quantile(draws, [0.025, 0.975])
    print(f"owlrl − sb3: {difference.mean():.1f}, 95 % bootstrap interval {low:.1f} to {high:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--frames", type=int, default=6_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("sac_returns.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    report(runs(options.output, options.frames, options.seeds), options.frames, options.seeds)


if __name__ == "__main__":
    main()
