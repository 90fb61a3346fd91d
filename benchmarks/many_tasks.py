"""What earlier tasks cost: the reference DQN with 2, 20, 100 and 1,000 tasks.

    python benchmarks/many_tasks.py [--quick]

FAST on images, every task with 200 remembered rows. An update with the default guard, and with EWC; then
entering and leaving a task, saving, the file and the memory. The last column is two tasks / many:
1 / 1.1 = 0.91 would be 10 % more.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from common import Measured, Row, command, side_by_side

from owlrl import EWCRegularizer, OwlWrapper
from owlrl.learners import DQN, FAST

ROWS = 200  # of each task


class Space(gymnasium.Env[Any, Any]):
    """Nothing but its spaces."""

    observation_space = gymnasium.spaces.Box(0, 10, (7, 7, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)


class Learned:
    """A wrapped DQN inside the last of ``tasks`` tasks."""

    def __init__(self, tasks: int, **parts: Any) -> None:
        self.agent = DQN(Space(), config=FAST, device="cpu", seed=0)
        if parts.get("regularizer") == "ewc":
            parts = {**parts, "regularizer": EWCRegularizer(10.0)}
        self.owl = OwlWrapper(self.agent, seed=0, **parts)
        self.rng, self.entered, self.left = np.random.default_rng(0), [], []
        for task in range(tasks - 1):
            self.visit(str(task))
        self.block = self.owl.task("last")
        self.block.__enter__()
        self.fill()
        self.batch = self.agent.replay.sample(FAST.batch_size)

    def fill(self) -> None:
        images = self.rng.integers(0, 3, (ROWS + 1, 7, 7, 3), dtype=np.uint8)
        for k in range(ROWS):
            self.agent.replay.add(images[k], k % 3, float(k % 50 == 0), images[k + 1], k % 50 == 49, False)

    def visit(self, task: str) -> None:
        start = time.process_time()
        with self.owl.task(task):
            self.entered.append(1e3 * (time.process_time() - start))
            self.fill()
            start = time.process_time()
        self.left.append(1e3 * (time.process_time() - start))

    def update(self) -> None:
        self.agent.update(self.batch)

    def saved(self) -> tuple[float, float]:
        """Milliseconds and MB of a file."""
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            self.owl.save(Path(folder) / "owl")
            return 1e3 * (time.process_time() - start), (Path(folder) / "owl").stat().st_size / 1e6


def updates(counts: list[int], name: str, *, quick: bool, **parts: Any) -> tuple[list[Row], list[Learned]]:
    learned = [Learned(count, **parts) for count in counts]
    times = side_by_side([each.update for each in learned], rounds=7 if quick else 21, calls=10)
    pairs = list(zip(counts, times, strict=True))[1:]
    return [
        Row(f"DQN update with {name}, 2 tasks against {count:,}", times[0], t) for count, t in pairs
    ], learned


def main(*, quick: bool = False) -> list[Row]:
    counts = [2, 20, 100] if quick else [2, 20, 100, 1_000]
    found, learned = updates(counts, "the default guard", quick=quick)
    first = learned[0]
    for count, each in zip(counts[1:], learned[1:], strict=True):
        for what, few, many in (
            ("entering", first.entered, each.entered),
            ("leaving", first.left, each.left),
        ):
            found.append(
                Row(f"{what} a task, the first against number {count - 1:,}", few[0], Measured.of(many[-5:]))
            )
        (plain, small), (ours, large) = first.saved(), each.saved()
        found.append(Row(f"saving, 2 tasks against {count:,}", plain, ours))
        found.append(Row(f"a file, 2 tasks against {count:,}", small, large, "MB"))
        sizes = [sum(memory.nbytes for memory in owl.memory.values()) / 1e6 for owl in (first.owl, each.owl)]
        found.append(Row(f"remembered rows, 2 tasks against {count:,}", *sizes, "MB"))
    for each in learned:
        each.block.__exit__(None, None, None)
    guarded, _ = updates(counts, "EWC", quick=quick, regularizer="ewc", evidence=None)
    return found + guarded


if __name__ == "__main__":
    command(main, __doc__)
