"""Importance of every parameter from 60,000 transitions: closed form and vmap against the loop over rows.

    python benchmarks/fisher.py [--quick]

The paper's network (7 x 7 x 3 observations, dueling), one thread, all rows different unless the line
says otherwise. Contestants take turns and the median counts. The loop is timed on a part of the rows
and scaled: it takes a minute otherwise, and every row costs it the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from common import Row, command, paper_network, side_by_side
from torch import Tensor

from owlrl.fisher import squared_gradients
from owlrl.heads import MultiHeadQ
from owlrl.td import taken

ROWS = 60_000
MEMORY_LIMIT = 200.0  # MB beside the rows themselves


def transitions(rows: int, distinct: int | None = None) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    observation = torch.randint(0, 11, (distinct or rows, 7, 7, 3), generator=generator).float()
    action = torch.randint(0, 3, (distinct or rows,), generator=generator)
    if distinct is None:
        return observation, action
    index = torch.randint(0, distinct, (rows,), generator=generator)
    return observation[index], action[index]


def loop(q: MultiHeadQ, observation: Tensor, action: Tensor) -> list[Tensor]:
    """The plain way: a forward and a backward pass per row."""
    parameters = list(q.parameters())
    total = [torch.zeros_like(p) for p in parameters]
    for row in range(len(action)):
        value = taken(q(observation[row : row + 1]), action[row : row + 1]).sum()
        for sums, grad in zip(total, torch.autograd.grad(value, parameters), strict=True):
            sums += grad * grad
    return [sums / len(action) for sums in total]


def extra_memory(call: Callable[[], object]) -> float:
    """How many MB more than before the process held at the most during ``call`` (Linux; NaN elsewhere)."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not clear.exists():
        return float("nan")

    def held(what: str) -> float:
        return next(float(line.split()[1]) for line in status.read_text().splitlines() if what in line) / 1024

    clear.write_text("5")  # the peak so far is forgotten
    before = held("VmRSS")
    call()
    return held("VmHWM") - before


def main(*, quick: bool = False) -> list[Row]:
    rows, looped, repeats = (6_000, 100, 3) if quick else (ROWS, 600, 5)
    torch.manual_seed(0)
    q = paper_network()
    observation, action = transitions(rows)
    few_observations, few_actions = transitions(rows, distinct=rows // 100)

    def by(method: str, x: Tensor = observation, a: Tensor = action) -> dict[str, Tensor]:
        return squared_gradients(q, taken, (x,), targets=(a,), method=method)  # type: ignore[arg-type]

    for method in ("hooks", "vmap", "loop"):
        by(method, observation[:64], action[:64])  # what the libraries allocate once is nobody's share
    memory = extra_memory(lambda: by("hooks"))
    contestants = [
        lambda: loop(q, observation[:looped], action[:looped]),
        lambda: by("hooks"),
        lambda: by("vmap"),
        lambda: by("auto", few_observations, few_actions),
    ]
    plain, closed, vectorized, repeated = side_by_side(contestants, rounds=repeats, calls=1)
    plain *= rows / looped
    against = "against a loop over rows"
    return [
        Row(f"Fisher of {rows} rows, closed form, {against}", plain, closed),
        Row(f"Fisher of {rows} rows, vmap, {against}", plain, vectorized),
        Row(f"Fisher of {rows} rows, {rows // 100} of them distinct, {against}", plain, repeated),
        Row("Fisher, closed form, extra memory: the limit against what it took", MEMORY_LIMIT, memory, "MB"),
    ]


if __name__ == "__main__":
    command(main, __doc__)
