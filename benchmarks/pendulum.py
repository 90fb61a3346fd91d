"""One step of the Pendulum: Gymnasium's own and ours, one copy, against `PendulumVectorEnv`.

Torques are random and drawn beforehand; resets are part of it. The time of a step of n copies is divided
by n. The single environments are made without Gymnasium's own checker, which would slow them down.

python benchmarks/pendulum.py [--quick]
"""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
from common import Row, command, side_by_side

from owlrl.envs import PendulumVectorEnv

COPIES = (16, 256)
STEPS = 200  # per timed call; one episode


def single_steps(env_id: str, **arguments: float) -> Callable[[], object]:
    env = gymnasium.make(env_id, disable_env_checker=True, **arguments)
    actions = np.random.default_rng(0).uniform(-2, 2, size=(STEPS, 1)).astype(np.float32)

    def run() -> None:
        env.reset()
        for action in actions:
            env.step(action)

    return run


def vector_steps(copies: int) -> Callable[[], object]:
    envs = PendulumVectorEnv(copies, angle=90)
    envs.reset(seed=0)
    actions = np.random.default_rng(0).uniform(-2, 2, size=(STEPS, copies, 1)).astype(np.float32)

    def run() -> None:
        for row in actions:
            envs.step(row)

    return run


def main(*, quick: bool = False) -> list[Row]:
    single = {
        "owlrl/Pendulum-v0": single_steps("owlrl/Pendulum-v0", angle=90),
        "Gymnasium's Pendulum-v1": single_steps("Pendulum-v1"),
    }
    contestants = [*single.values(), *(vector_steps(copies) for copies in COPIES)]
    times = side_by_side(contestants, rounds=5 if quick else 25, calls=5)
    rows: list[Row] = []
    for name, plain in zip(single, times, strict=False):
        for copies, ours in zip(COPIES, times[len(single) :], strict=True):
            per_step = 1e3 * plain / STEPS, 1e3 * ours / (STEPS * copies)
            rows.append(Row(f"one step of {name}, {copies} copies as arrays", *per_step, unit="µs"))
    return rows


if __name__ == "__main__":
    command(main, __doc__)
