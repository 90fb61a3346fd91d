"""Scoring all heads at test time: one trunk pass and a stacked product against a loop over heads.

    python benchmarks/heads.py [--quick]

The paper's network, one transition per call: Q-values of s and s' and the TD error of every head.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from common import Row, command, paper_network, side_by_side

from owlrl import QLearner, Transitions
from owlrl.td import double_q_value, taken, td_target


def transition() -> Transitions:
    image = lambda: torch.randint(0, 10, (1, 7, 7, 3), dtype=torch.uint8)  # noqa: E731
    reward, ended = torch.zeros(1), torch.zeros(1, dtype=torch.bool)
    return Transitions(image(), torch.tensor([1]), reward, image(), ended, torch.full((1,), 0.99))


def loop_over_heads(learner: QLearner, rows: Transitions) -> Callable[[], object]:
    """The plain way: each head is asked by itself, trunk included."""
    q, target = learner.q, learner.target

    def score() -> torch.Tensor:
        observation, following = rows.observation.float(), rows.next_observation.float()
        deltas = []
        with torch.no_grad():
            for head in range(q.num_heads):
                value = double_q_value(q(following, head=head), target(following, head=head))
                goal = td_target(rows.reward, rows.discount, rows.terminated, value)
                deltas.append(goal - taken(q(observation, head=head), rows.action))
        return torch.stack(deltas)

    return score


def main(*, quick: bool = False) -> list[Row]:
    rows: list[Row] = []
    for heads in (3, 20, 100):
        q, target = paper_network(heads), paper_network(heads)
        learner = QLearner(q, target, torch.optim.SGD(q.parameters(), lr=0.1))
        seen = transition()
        plain = loop_over_heads(learner, seen)
        ours = lambda learner=learner, seen=seen, heads=heads: learner.td_errors(seen, np.arange(heads))  # noqa: E731
        assert torch.allclose(plain(), ours(), atol=1e-5)
        slow, fast = side_by_side([plain, ours], rounds=5 if quick else 25, calls=3)
        rows.append(Row(f"scoring {heads} heads on one transition, against a loop over heads", slow, fast))
    return rows


if __name__ == "__main__":
    command(main, __doc__)
