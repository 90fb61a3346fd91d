"""Equal rows counted instead of repeated: small worlds show the same few rows again and again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["distinct_rows"]

CHUNK = 4096


def distinct_rows(tensors: Sequence[Tensor]) -> tuple[Tensor, Tensor] | None:
    """Index of one row of each kind and the kinds' counts; None where under half are repeats.

    Rows are the same if they are so in every tensor. Kinds are found by a hash and then
    compared, so the answer is exact; a collision only costs the saving.
    """
    device = tensors[0].device
    key = sum(_hash(x, seed).to(device) for seed, x in enumerate(tensors))
    assert isinstance(key, Tensor)
    kinds, kind, count = torch.unique(key, return_inverse=True, return_counts=True)
    if 2 * len(kinds) > len(key):
        return None
    first = torch.empty_like(kinds).scatter_(0, kind, torch.arange(len(key), device=device))
    return (first, count) if all(_same(x, first[kind]) for x in tensors) else None


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
