"""Importance of every parameter from 60,000 transitions: closed form and vmap against the loop over rows.

    python benchmarks/fisher.py [--quick]

The paper's network (7 x 7 x 3 observations, dueling), one thread, all rows different unless the line
says otherwise. Contestants take turns and the median counts. The loop is timed on a part of the rows
and scaled: it takes a minute otherwise, and every row costs it the same.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from owlrl.fisher import squared_gradients
from owlrl.heads import MultiHeadQ
from owlrl.td import taken

ROWS = 60_000
MEMORY_LIMIT = 200.0  # MB beside the rows themselves
Row = tuple[str, float, float, float]


class ChannelsFirst(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return observation.permute(0, 3, 1, 2)


def paper_network() -> MultiHeadQ:
    convolutions = [
        nn.Conv2d(3, 16, 2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 2), nn.ReLU(), nn.Conv2d(32, 64, 2), nn.ReLU(), nn.Flatten(),
    ]  # fmt: skip
    trunk = nn.Sequential(ChannelsFirst(), *convolutions, nn.Linear(64, 200), nn.ReLU())
    return MultiHeadQ(trunk, 200, 3, dueling=True)


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


def medians(contestants: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """Seconds per call of each contestant, taken in turns."""
    seconds: list[list[float]] = [[] for _ in contestants]
    for _ in range(repeats):
        for call, times in zip(contestants, seconds, strict=True):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return [statistics.median(times) for times in seconds]


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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(quick)
    finally:
        torch.set_num_threads(threads)


def _measure(quick: bool) -> list[Row]:
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
    plain, closed, vectorized, repeated = medians(contestants, repeats)
    plain *= rows / looped
    return [
        (f"closed form, {rows} rows, s", plain, closed, plain / closed),
        (f"vmap, {rows} rows, s", plain, vectorized, plain / vectorized),
        (f"{rows} rows, {rows // 100} of them distinct, s", plain, repeated, plain / repeated),
        (
            "closed form, extra memory against the limit, MB",
            MEMORY_LIMIT,
            memory,
            MEMORY_LIMIT / max(memory, 1e-9),
        ),
    ]


def show(rows: Sequence[Row]) -> None:
    print(f"{'Fisher (baseline: one row at a time)':52}{'baseline':>12}{'owlrl':>12}{'ratio':>10}")
    for name, baseline, ours, ratio in rows:
        print(f"{name:52}{baseline:12.3f}{ours:12.3f}{ratio:9.1f}x")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and repeats: does it run at all")
    show(main(quick=parser.parse_args().quick))
