"""Acting when the task is unknown, with many tasks: `act` and `observe` with model evidence.

    python benchmarks/acting.py [--quick]

"Plain" is the budget of an environment-step: 2 ms for one environment, 0.3 ms for each of 16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from common import Row, command, side_by_side

from owlrl import AdaptivePolicy, ExpWeightsSelector, ModelEvidence, Transitions
from owlrl.learners import DQN

VECTORS = gymnasium.spaces.Box(-1, 1, (16,), np.float32)
IMAGES = gymnasium.spaces.Box(0, 10, (7, 7, 3), np.uint8)


def rows(space: Any, count: int, task: int) -> Transitions:
    rng = np.random.default_rng(task)
    if space is VECTORS:
        seen = rng.normal(size=(count, 16)).astype(np.float32)
        following = seen + np.float32(0.1 * task)
    else:
        seen = np.stack([rng.integers(0, n, (count, 7, 7)) for n in (11, 6, 3)], -1).astype(np.uint8)
        following = np.roll(seen, task, axis=1)
    reward, ended = torch.rand(count), torch.zeros(count, dtype=torch.bool)
    action = torch.from_numpy(rng.integers(0, 4, count))
    pair = torch.from_numpy(seen), torch.from_numpy(following)
    return Transitions(pair[0], action, reward, pair[1], ended, torch.full((count,), 0.99))


def stepping(space: Any, tasks: int, copies: int) -> Callable[[], None]:
    env = gymnasium.Env()
    env.observation_space, env.action_space = space, gymnasium.spaces.Discrete(4)
    agent, evidence = DQN(env, device="cpu", seed=0), ModelEvidence(seed=0)
    for task in range(tasks):
        if task:
            agent.q.add_head()
            agent.target.add_head()
        evidence.calibrate(None, task, rows(space, 400, task))
    policy = AdaptivePolicy(
        agent.describe(), ExpWeightsSelector(seed=0), evidence, {str(k): k for k in range(tasks)}
    )
    policy.reset(num_envs=copies)
    batch = rows(space, copies, 1)
    seen, following = batch.observation.numpy(), batch.next_observation.numpy()
    reward, ended = np.zeros(copies, np.float32), np.zeros(copies, bool)
    return lambda: policy.observe(seen, policy.act(seen), reward, following, ended)


def main(*, quick: bool = False) -> list[Row]:
    found = []
    for name, space, tasks, copies, budget in (
        ("vectors of 16", VECTORS, 200 if quick else 1_000, 1, 2.0),
        ("vectors of 16", VECTORS, 200 if quick else 1_000, 16, 0.3),
        ("images of 7 x 7 x 3", IMAGES, 200, 1, 2.0),
    ):
        (time,) = side_by_side([stepping(space, tasks, copies)], rounds=7 if quick else 21, calls=10)
        title = f"act and observe, {name}, {tasks:,} tasks, one of {copies} environments, budget against time"
        found.append(Row(title, budget, time / copies))
    return found


if __name__ == "__main__":
    command(main, __doc__)
