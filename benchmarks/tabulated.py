"""One step of an environment: the real level against `TabulatedVectorEnv` on its table.

Actions are random and drawn beforehand; resets are part of it. The time of a step of n copies is divided
by n. The real environment is made without Gymnasium's own checker, which would slow it down.

python benchmarks/tabulated.py [--quick]
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from common import Row, command, side_by_side

from owlrl.envs import TabulatedVectorEnv, TaskSpec

TASKS = {
    "SimpleCrossing": TaskSpec.of("owlrl/SimpleCrossing-v0", level=3),
    "DoorKey": TaskSpec.of("owlrl/DoorKey-v0", level=4),
    "Crossroads-4": TaskSpec.of("owlrl/Crossroads-v0", arms=4),
}
COPIES = (16, 256)
STEPS = 500  # per timed call; five episodes


def real_steps(task: TaskSpec) -> Callable[[], object]:
    env = task(disable_env_checker=True)
    actions = np.random.default_rng(0).integers(env.action_space.n, size=STEPS).tolist()

    def run() -> None:
        env.reset()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()

    return run


def table_steps(task: TaskSpec, copies: int) -> Callable[[], object]:
    envs = TabulatedVectorEnv(task.table(), copies)
    actions = np.random.default_rng(0).integers(envs.table.num_actions, size=(STEPS, copies))

    def run() -> None:
        envs.reset()
        for row in actions:
            envs.step(row)

    return run


def main(*, quick: bool = False) -> list[Row]:
    rows: list[Row] = []
    for name, task in list(TASKS.items())[: 1 if quick else None]:
        contestants = [real_steps(task), *(table_steps(task, copies) for copies in COPIES)]
        rounds = 5 if quick else 15
        plain, *ours = side_by_side(contestants, rounds=rounds, calls=[1, *(10 for _ in COPIES)])
        for copies, milliseconds in zip(COPIES, ours, strict=True):
            per_step = 1e3 * plain / STEPS, 1e3 * milliseconds / (STEPS * copies)
            rows.append(Row(f"one step of {name}, {copies} tabulated copies", *per_step, unit="µs"))
    return rows


if __name__ == "__main__":
    command(main, __doc__)
