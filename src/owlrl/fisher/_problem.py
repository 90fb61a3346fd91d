"""What every path is given: the function to differentiate, and rows to do it on, equal ones counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from owlrl.errors import OwlValueError
from owlrl.heads.modes import eval_mode

__all__ = ["Problem", "Rows", "Sums", "accumulator", "distinct_rows", "undisturbed"]

CHUNK = 4096  # rows hashed and compared at once

Sums = dict[str, Tensor]  # parameter name -> sum over rows of the squared gradient


@dataclass(frozen=True)
class Rows:
    """n rows of inputs and targets, and the root of each row's weight.

    Scaling a row's objective by the root scales its squared gradient by the weight.
    """

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    root_weight: Tensor

    def __len__(self) -> int:
        return len(self.root_weight)

    def take(self, rows: slice | Tensor) -> Rows:
        """The given rows."""
        return Rows(
            tuple(x[rows] for x in self.inputs), tuple(t[rows] for t in self.targets), self.root_weight[rows]
        )

    def chunks(self, size: int, device: torch.device) -> Iterator[Rows]:
        """Pieces of at most ``size`` rows, each moved to ``device`` when its turn comes."""
        for start in range(0, len(self), size):
            piece = self.take(slice(start, start + size))
            yield Rows(
                tuple(x.to(device) for x in piece.inputs),
                tuple(t.to(device) for t in piece.targets),
                piece.root_weight.to(device),
            )


@dataclass(frozen=True)
class Problem:
    """``objective(module(*inputs), *targets) -> (B,)`` and the parameters it is differentiated by."""

    module: nn.Module
    objective: Callable[..., Tensor]
    parameters: Mapping[str, nn.Parameter]

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self.parameters.values())).device

    def weighted(self, output: object, targets: tuple[Tensor, ...], root_weight: Tensor) -> Tensor:
        """The objective's values (B,), each times the root of its row's weight."""
        value: object = self.objective(output, *targets)
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if not isinstance(value, Tensor) or shape != tuple(root_weight.shape):
            raise OwlValueError(
                f"squared_gradients: objective gave {shape} for {len(root_weight)} rows; "
                f"expected one number per row, {tuple(root_weight.shape)}; do not reduce over the batch"
            )
        return value * root_weight.to(value.dtype)

    def values(self, rows: Rows) -> Tensor:
        """`weighted` of a whole batch, by a plain call of the module."""
        return self.weighted(self.module(*rows.inputs), rows.targets, rows.root_weight)


def accumulator(parameter: Tensor) -> Tensor:
    """Zeros like ``parameter``, in float32 at least: squares underflow in half precision."""
    return torch.zeros_like(
        parameter, dtype=torch.promote_types(parameter.dtype, torch.float32), requires_grad=False
    )


@contextmanager
def undisturbed(problem: Problem) -> Iterator[None]:
    """Evaluation mode with gradients on; whatever a forward pass may change is put back."""
    module = problem.module
    frozen = [p for p in problem.parameters.values() if not p.requires_grad]
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    homes = [
        (m._buffers, name, b) for m in module.modules() for name, b in m._buffers.items() if b is not None
    ]
    stand_ins = {id(b): b.clone() for _, _, b in homes}  # one per buffer, however often it is shared
    with eval_mode(module), torch.random.fork_rng(devices=list(devices)):
        try:
            for buffers, name, buffer in homes:
                buffers[name] = stand_ins[id(buffer)]
            for parameter in frozen:
                parameter.requires_grad_(True)
            with torch.inference_mode(False), torch.enable_grad():
                yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)
            for buffers, name, buffer in homes:
                buffers[name] = buffer


def distinct_rows(tensors: Sequence[Tensor], weight: Tensor) -> tuple[Tensor, Tensor] | None:
    """Index of one row of each kind and the kinds' total weights; None where under half are repeats.

    Small worlds show the same few rows again and again: each is computed once.

    Rows are the same if they are so in every tensor. Kinds are found by a hash and then
    compared, so the answer is exact; a collision only costs the saving.
    """
    device = tensors[0].device
    key = sum(_hash(x, seed).to(device) for seed, x in enumerate(tensors))
    assert isinstance(key, Tensor)
    kinds, kind = torch.unique(key, return_inverse=True)
    if 2 * len(kinds) > len(key):
        return None
    first = torch.empty_like(kinds).scatter_(0, kind, torch.arange(len(key), device=device))
    if not all(_same(x, first[kind]) for x in tensors):
        return None
    total = torch.zeros(len(kinds), dtype=weight.dtype, device=device)
    return first, total.index_add_(0, kind, weight.to(device))


def _hash(x: Tensor, seed: int) -> Tensor:
    """A 64-bit sum per row, (N, ...) → (N,): the row's 32-bit words times random odd numbers."""
    rows = x.detach().reshape(len(x), x[0].numel())
    words = -(-rows.shape[1] * rows.element_size() // 4)
    generator = torch.Generator().manual_seed(seed)
    factors = torch.randint(-(2**62), 2**62, (words,), generator=generator).mul_(2).add_(1).to(x.device)
    sums = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    if words == 0:
        return sums
    for start in range(0, len(x), CHUNK):
        chunk = rows[start : start + CHUNK].contiguous().view(torch.uint8)
        chunk = F.pad(chunk, (0, 4 * words - chunk.shape[1])).view(torch.int32)
        sums[start : start + CHUNK] = (chunk.long() * factors).sum(1)
    return sums


def _same(x: Tensor, first: Tensor) -> bool:
    """Whether every row equals the row that ``first`` (N,) names for it."""
    first = first.to(x.device)
    return all(
        torch.equal(x[start : start + CHUNK], x[first[start : start + CHUNK]])
        for start in range(0, len(x), CHUNK)
    )
