"""The formulas of elastic weight consolidation, on tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["ewc_penalty", "merge_terms"]


def ewc_penalty(parameter: Tensor, importance: Tensor, anchor: Tensor, strength: float = 1.0) -> Tensor:
    """``½ λ Σ_i F_i (θ_i − θ*_i)²``: three tensors of one shape → a scalar.

    >>> import torch
    >>> from owlrl.regularizers import ewc_penalty
    >>> ewc_penalty(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 0.0]), torch.tensor([3.0, 1.0]), 10.0)
    tensor(60.)
    """
    return 0.5 * strength * (importance * (parameter - anchor).square()).sum()


def merge_terms(terms: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """One quadratic for many: ``Σ_t F_t (θ − θ*_t)² = A (θ − m)² + c``, all of the parameter's shape.

    ``A = Σ F_t`` and ``m = Σ F_t θ*_t / Σ F_t`` (0 where nothing matters). Terms are taken in one
    after the other, by the weighted-mean update: nothing large is subtracted from something large.

    Args:
        terms: importance F_t and anchor θ*_t of each task, at least one.

    >>> import torch
    >>> from owlrl.regularizers import merge_terms
    >>> one, three = torch.tensor(1.0), torch.tensor(3.0)
    >>> merge_terms([(one, torch.tensor(0.0)), (three, torch.tensor(4.0))])  # 1·θ² + 3·(θ − 4)²
    (tensor(4.), tensor(3.), tensor(12.))
    """
    pairs = list(terms)
    total = torch.zeros_like(pairs[0][0])
    centre, constant = total.clone(), total.clone()
    for importance, anchor in pairs:
        before, total = total, total + importance
        share = torch.where(total > 0, importance / total, torch.zeros_like(total))
        distance = anchor - centre
        centre = centre + share * distance
        constant = constant + before * share * distance.square()
    return total, centre, constant
