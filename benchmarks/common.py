"""What the benchmarks share: the paper's network, and timing side by side in one run."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from owlrl.heads import MultiHeadQ


class Measured(float):
    """The median of several rounds, which are kept."""

    rounds: tuple[float, ...]

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Measured:
        own = cls(statistics.median(rounds))
        own.rounds = tuple(rounds)
        return own

    def __truediv__(self, number: float) -> Measured:
        return Measured.of([r / number for r in self.rounds])


class Row(NamedTuple):
    """What was measured, how much it took the plain way and ours."""

    name: str
    plain: float
    ours: float
    unit: str = "ms"

    @property
    def ratio(self) -> float:
        """Median over rounds of plain / ours where both were measured in turns."""
        return statistics.median(self.ratios)

    @property
    def ratios(self) -> list[float]:
        """Of each round."""
        if isinstance(self.plain, Measured) and isinstance(self.ours, Measured):
            pairs = list(zip(self.plain.rounds, self.ours.rounds, strict=False))
            return [plain / ours for plain, ours in pairs]
        return [self.plain / self.ours]

    @property
    def spread(self) -> str:
        """The middle half of the ratios."""
        found = sorted(self.ratios)
        if len(found) < 4:
            return ""
        low, _, high = statistics.quantiles(found, n=4)
        return f"{low:.3g} to {high:.3g}"


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


def side_by_side(
    contestants: Sequence[Callable[[], object]], *, rounds: int, calls: int | Sequence[int]
) -> list[Measured]:
    """Median milliseconds of CPU time per call of each, in turns: a busy machine then slows all alike."""
    counts = [calls] * len(contestants) if isinstance(calls, int) else calls
    times: list[list[float]] = [[] for _ in contestants]
    for _ in range(rounds):
        for contestant, count, seconds in zip(contestants, counts, times, strict=True):
            contestant()  # what the one before threw out of the caches is not this one's fault
            start = time.process_time()
            for _ in range(count):
                contestant()
            seconds.append((time.process_time() - start) / count)
    return [Measured.of([1e3 * s for s in seconds]) for seconds in times]


def print_rows(rows: Sequence[Row]) -> None:
    for row in rows:
        figures = (
            f"{row.plain:12.4g} {row.unit:>7} {row.ours:12.4g} {row.unit:>7} {row.ratio:9.3g}x  {row.spread}"
        )
        print(f"{row.name:74}{figures}", flush=True)


def command(main: Callable[..., list[Row]], description: str | None) -> None:
    """Run ``main`` from the shell with one thread and an optional ``--quick``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions, for a look")
    torch.set_num_threads(1)
    print_rows(main(quick=parser.parse_args().quick))
