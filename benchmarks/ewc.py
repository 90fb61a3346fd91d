"""The gradient of EWC per update: one merged quadratic in a hook against a loop over tasks in the loss.

    python benchmarks/ewc.py [--quick]

The paper's network with a head per task, one thread. Only the penalty is timed: for the loop, the sum
over tasks and its backward pass; for ours, the hook that `attach` puts before the optimizer's step.
Contestants take turns and the median block counts.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import Row, command, paper_network, side_by_side
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.heads import MultiHeadQ
from owlrl.protocols import Consolidation
from owlrl.regularizers import EWCRegularizer, ewc_penalty
from owlrl.td import taken

TASKS = (1, 5, 20)
STRENGTH = 500.0
Terms = list[tuple[dict[str, Tensor], dict[str, Tensor]]]


class NoStep(Optimizer):
    """Holds parameters and moves none: what is left of a step are its hooks."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        pass


def learned(tasks: int) -> tuple[MultiHeadQ, EWCRegularizer]:
    """A network with ``tasks`` consolidated tasks at the start of one more, all gradients there."""
    q, ewc = paper_network(), EWCRegularizer(STRENGTH)
    for task in range(tasks):
        q.activate(task)
        observation, action = torch.rand(64, 7, 7, 3), torch.randint(0, 3, (64,))
        ewc.remember(str(task), {"q": Consolidation(q, task, (observation,), (action,), taken, taken)})
        with torch.no_grad():
            for parameter in q.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
        q.add_head()
    q.activate(tasks)
    q(torch.rand(32, 7, 7, 3)).sum().backward()
    return q, ewc


def loop_over_tasks(q: MultiHeadQ, terms: Terms) -> Callable[[], None]:
    """The plain way: every task's penalty is part of the loss, and autograd finds the gradient."""

    def update() -> None:
        own = {**q.shared_parameters(), **q.head_parameters(q.pointer.head)}
        penalty = torch.zeros(())
        for importance, anchor in terms:
            for name, f in importance.items():
                if name in own:
                    penalty = penalty + ewc_penalty(own[name], f, anchor[name], STRENGTH)
        penalty.backward()

    return update


def main(*, quick: bool = False) -> list[Row]:
    torch.manual_seed(0)
    contestants: list[Callable[[], object]] = []
    for tasks in TASKS:
        q, ewc = learned(tasks)
        terms = [(kept["q"]["importance"], kept["q"]["anchor"]) for kept in ewc.kept.values()]
        optimizer = NoStep(list(q.parameters()))
        ewc.attach(optimizer)
        contestants += [loop_over_tasks(q, terms), optimizer.step]
    calls = [
        max(2, (20 if quick else 100) // TASKS[k // 2]) if k % 2 == 0 else 200
        for k in range(len(contestants))
    ]
    times = side_by_side(contestants, rounds=3 if quick else 15, calls=calls)
    rows = [
        Row(
            f"EWC gradient per update, {tasks} task{'s' * (tasks > 1)}, against a loop in the loss",
            plain,
            ours,
        )
        for tasks, plain, ours in zip(TASKS, times[::2], times[1::2], strict=True)
    ]
    rows.append(Row("EWC gradient per update, our own cost with 1 task against 20", times[1], times[-1]))
    return rows


if __name__ == "__main__":
    command(main, __doc__)
