"""What wrapping costs a Stable-Baselines3 model: ``model.learn`` bare and inside `owl.task`.

    python benchmarks/sb3.py [--quick]

`OwlWrapper(model)` with all defaults; the models' own defaults, too, on MountainCar for DQN and Pendulum for
SAC and TD3, after the warm-up. The last column is bare / wrapped: 0.95 would be an overhead of 5 %.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
from common import Row, command, side_by_side
from stable_baselines3 import DQN, SAC, TD3

from owlrl import OwlWrapper

# episodes of a fixed length: how well a model plays must not decide how often it is reset
ENVS = {DQN: "MountainCar-v0", SAC: "Pendulum-v1", TD3: "Pendulum-v1"}
STEPS = {DQN: 100, SAC: 8, TD3: 8}  # per call: about a tenth of a second


def build(kind: type) -> Any:
    return kind("MlpPolicy", gymnasium.make(ENVS[kind]), buffer_size=50_000, seed=0, device="cpu")


def going_on(model: Any, steps: int) -> Callable[[], object]:
    return lambda: model.learn(steps, reset_num_timesteps=False)


def wrapped(kind: type, tasks: int) -> tuple[Callable[[], object], object]:
    """Learning in the last of ``tasks`` tasks, its block still open."""
    model = build(kind)
    owl = OwlWrapper(model)
    for task in range(tasks - 1):
        with owl.task(str(task), env=gymnasium.make(ENVS[kind])):
            model.learn(150)
    block = owl.task("last", env=gymnasium.make(ENVS[kind]))
    block.__enter__()
    model.learn(200)
    return going_on(model, STEPS[kind]), block


def main(*, quick: bool = False) -> list[Row]:
    rows: list[Row] = []
    for kind in (DQN, SAC, TD3):
        bare = build(kind)
        bare.learn(200)
        one, block_one = wrapped(kind, 1)
        many, block_many = wrapped(kind, 20)
        contestants = [going_on(bare, STEPS[kind]), one, many]
        times = [t / STEPS[kind] for t in side_by_side(contestants, rounds=10 if quick else 40, calls=1)]
        for name, ours in (("one task", times[1]), ("twenty tasks", times[2])):
            rows.append(
                Row(f"a step of {kind.__name__}.learn inside owl.task, {name}, against bare", times[0], ours)
            )
        del block_one, block_many
    return rows


if __name__ == "__main__":
    command(main, __doc__)
