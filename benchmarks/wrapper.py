"""What wrapping costs: a bare DQN update against the same update inside `owl.task`, with EWC.

    python benchmarks/wrapper.py [--quick]

The paper's network (a plain module that is given heads), batch 32, Adam, one update sampled from the
replay. The last column is bare / wrapped: 0.95 would be an overhead of 5 %.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from common import Row, command, paper_trunk, side_by_side
from torch import Tensor, nn

from owlrl import EWCRegularizer, OwlWrapper, QLearner, TaskScopedReplay


class Plain(nn.Module):
    """The paper's dueling network as somebody would write it."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.value, self.advantage = paper_trunk(), nn.Linear(200, 1), nn.Linear(200, 3)

    def forward(self, observation: Tensor) -> Tensor:
        features = self.trunk(observation)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(1, keepdim=True)


class Script:
    """A bare DQN: network, target, optimizer, replay and an update."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.q = Plain()
        self.target = copy.deepcopy(self.q)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=1e-4)
        self.replay = TaskScopedReplay(
            20_000, observation_shape=(7, 7, 3), observation_dtype=np.uint8, seed=0
        )

    def fill(self, rows: int) -> None:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 10, (rows + 1, 7, 7, 3), dtype=np.uint8)
        for k in range(rows):
            self.replay.add(images[k], int(rng.integers(3)), float(rng.random()), images[k + 1], False, False)

    def update(self) -> None:
        batch = self.replay.sample(32)
        with torch.no_grad():
            following = batch.next_observation.float()
            best = self.q(following).argmax(1, keepdim=True)
            goal = batch.reward + 0.99 * (~batch.terminated) * self.target(following).gather(1, best).squeeze(
                1
            )
        predicted = self.q(batch.observation.float()).gather(1, batch.action[:, None]).squeeze(1)
        loss = F.smooth_l1_loss(predicted, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def wrapped(tasks: int) -> tuple[Callable[[], None], object]:
    """The update in the last of ``tasks`` tasks, its block still open."""
    script = Script()
    learner = QLearner(script.q, script.target, script.optimizer, replay=script.replay)
    owl = OwlWrapper(learner, regularizer=EWCRegularizer(500.0))
    for task in range(tasks - 1):
        with owl.task(str(task)):
            script.fill(200)
            script.update()
    block = owl.task("last")
    block.__enter__()
    script.fill(10_000)
    return script.update, block


def main(*, quick: bool = False) -> list[Row]:
    bare = Script()
    bare.fill(10_000)
    one, block_one = wrapped(1)
    ten, block_ten = wrapped(10)
    times = side_by_side([bare.update, one, ten], rounds=20 if quick else 150, calls=10)
    rows: list[Row] = []
    for name, ours in (("one task", times[1]), ("ten tasks, EWC on nine", times[2])):
        rows.append(Row(f"DQN update inside owl.task, {name}, against bare", times[0], ours))
    del block_one, block_ten
    return rows


if __name__ == "__main__":
    command(main, __doc__)
