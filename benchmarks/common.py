"""What the benchmarks share: the paper's network, and timing side by side in one run."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from owlrl.heads import MultiHeadQ

Row = tuple[str, float, float, float]
"""What was measured, seconds the plain way, seconds our way, plain / ours."""


class ChannelsFirst(nn.Module):
    def forward(self, observation: Tensor) -> Tensor:
        return observation.permute(0, 3, 1, 2)


def paper_trunk() -> nn.Sequential:
    return nn.Sequential(
        ChannelsFirst(),
        *(nn.Conv2d(3, 16, 2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 2), nn.ReLU(), nn.Conv2d(32, 64, 2), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(64, 200), nn.ReLU()),
    )


def paper_network(heads: int = 1) -> MultiHeadQ:
    q = MultiHeadQ(paper_trunk(), 200, 3, dueling=True)
    for _ in range(heads - 1):
        q.add_head()
    return q


def side_by_side(contestants: Sequence[Callable[[], object]], *, rounds: int, calls: int) -> list[float]:
    """Median seconds per call of each, measured in turns so that a busy machine slows all alike."""
    for contestant in contestants:
        contestant()
    times: list[list[float]] = [[] for _ in contestants]
    for _ in range(rounds):
        for k, contestant in enumerate(contestants):
            start = time.perf_counter()
            for _ in range(calls):
                contestant()
            times[k].append((time.perf_counter() - start) / calls)
    return [statistics.median(t) for t in times]


def print_rows(rows: Sequence[Row]) -> None:
    for name, plain, ours, ratio in rows:
        print(f"{name:70} {plain * 1e3:10.4f} ms {ours * 1e3:10.4f} ms {ratio:8.2f}x", flush=True)


def command(main: Callable[..., list[Row]], description: str | None) -> None:
    """Run ``main`` from the shell with one thread and an optional ``--quick``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, for a look")
    torch.set_num_threads(1)
    print_rows(main(quick=parser.parse_args().quick))
