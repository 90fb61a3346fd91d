"""Small networks, tasks and optimizers that the tests of the regularizers share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from owlrl.heads import MultiHeadQ
from owlrl.protocols import Consolidation, MultiHead
from owlrl.td import taken
from owlrl.types import Transitions

FEATURES, ACTIONS = 3, 2

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "adam": lambda p: Adam(p, lr=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.1),
    "sgd": lambda p: SGD(p, lr=0.01, momentum=0.9),
}


class NoStep(Optimizer):
    """Runs its hooks and moves nothing."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    def step(self, closure: None = None) -> None:
        pass


def make_q(heads: int = 1, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> MultiHeadQ:
    torch.manual_seed(seed)
    q = MultiHeadQ(nn.Sequential(nn.Linear(FEATURES, 5), nn.Tanh()), 5, ACTIONS).to(dtype)
    for _ in range(heads - 1):
        q.add_head()
    return q


def observations(rows: int = 6, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def output(q: Tensor, action: Tensor, goal: Tensor) -> Tensor:
    return taken(q, action)


def loss(q: Tensor, action: Tensor, goal: Tensor) -> Tensor:
    return F.smooth_l1_loss(taken(q, action), goal, reduction="none")


def context(
    network: MultiHead, head: int, *, rows: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Consolidation:
    x = observations(rows, seed=seed, dtype=dtype)
    action = torch.arange(rows) % ACTIONS
    goal = torch.linspace(-1, 1, rows, dtype=dtype)
    return Consolidation(network, head, (x,), (action, goal), output, loss)


def transitions(rows: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Transitions:
    x = observations(rows, seed=seed, dtype=dtype)
    zeros = torch.zeros(rows)
    return Transitions(x, torch.zeros(rows, dtype=torch.int64), zeros, x, zeros.bool(), zeros)


class Learner:
    """As much of a learner as a regularizer looks at: networks, a replay, what a network is called with."""

    def __init__(
        self, networks: Mapping[str, object], sample: Callable[[int], Transitions] | None = None
    ) -> None:
        self.networks = networks
        self.replay = None if sample is None else Replay(sample)

    def inputs(self, name: str, rows: Transitions) -> tuple[Tensor, ...]:
        return (rows.observation, rows.action) if name.startswith("critic") else (rows.observation,)


class Replay:
    def __init__(self, sample: Callable[[int], Transitions]) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 1_000


class Rows:
    """A task's memory, as much of it as a regularizer looks at."""

    def __init__(self, rows: Transitions) -> None:
        self.rows, self.version, self.asked = rows, 0, 0

    def __len__(self) -> int:
        return len(self.rows)

    def gather(self, index: np.ndarray) -> Transitions:
        self.asked += 1
        return self.rows[torch.from_numpy(index)]


def jolt(module: nn.Module, *, seed: int = 0, size: float = 0.1) -> None:
    """Move every parameter, as training would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(size * torch.randn(p.shape, generator=generator, dtype=p.dtype))


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def gradients(module: nn.Module) -> dict[str, Tensor | None]:
    return {name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()}


def assert_same_tree(got: object, expected: object) -> None:
    """Nested dicts, lists, tensors and values are equal bit by bit."""
    assert type(got) is type(expected)
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_same_tree(got[key], expected[key])
    elif isinstance(expected, list):
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert_same_tree(a, b)
    elif isinstance(expected, Tensor):
        assert got.dtype == expected.dtype and torch.equal(got, expected)
    else:
        assert got == expected
