"""Temporal-difference formulas, each once, as pure functions on tensors."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["double_q_value", "max_q_value", "soft_value", "taken", "td_target"]


def td_target(reward: Tensor, discount: Tensor, terminated: Tensor, next_value: Tensor) -> Tensor:
    """Target of a value: ``r + γᵏ · (1 − terminated) · v(s')`` (paper, Eq. 1).

    All arguments broadcast: ``next_value`` may be (B,) or (H, B) for H heads.
    Truncated transitions are not terminated: they bootstrap.

    >>> import torch
    >>> from owlrl.td import td_target
    >>> td_target(torch.tensor([1.0, 1.0]), torch.tensor([0.5, 0.5]),
    ...           torch.tensor([False, True]), torch.tensor([4.0, 4.0]))
    tensor([3., 1.])
    """
    # (B,) + (B,) * (B,) * (..., B) -> (..., B); where, not a product, so that a value
    # that was never asked for (a terminal row's) cannot spoil the target with NaN.
    return reward + discount * torch.where(terminated.bool(), torch.zeros_like(next_value), next_value)


def max_q_value(next_q: Tensor) -> Tensor:
    """Value of the greedy action: ``max_a Q(s', a)``; (..., B, A) → (..., B).

    >>> import torch
    >>> from owlrl.td import max_q_value
    >>> max_q_value(torch.tensor([[1.0, 3.0], [2.0, 0.0]]))
    tensor([3., 2.])
    """
    return next_q.amax(-1)


def double_q_value(next_q: Tensor, next_q_target: Tensor) -> Tensor:
    """Double DQN: the online network picks the action, the target network values it.

    Both (..., B, A) → (..., B).

    >>> import torch
    >>> from owlrl.td import double_q_value
    >>> double_q_value(torch.tensor([[1.0, 3.0]]), torch.tensor([[7.0, 5.0]]))
    tensor([5.])
    """
    return next_q_target.gather(-1, next_q.argmax(-1, keepdim=True)).squeeze(-1)


def soft_value(next_q: Tensor, next_log_prob: Tensor, alpha: Tensor | float) -> Tensor:
    """SAC: the minimum over critics of a sampled action's value, plus its entropy bonus.

    ``min_l Q_l(s', a') − α log π(a' | s')``: (L, ..., B) of L critics and (..., B) → (..., B).

    >>> import torch
    >>> from owlrl.td import soft_value
    >>> soft_value(torch.tensor([[4.0], [3.0]]), torch.tensor([-2.0]), 0.5)
    tensor([4.])
    """
    return next_q.min(0).values - alpha * next_log_prob


def taken(q: Tensor, action: Tensor) -> Tensor:
    """Value of the action that was taken: (..., B, A) and (B,) int64 → (..., B).

    >>> import torch
    >>> from owlrl.td import taken
    >>> taken(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([1, 0]))
    tensor([2., 3.])
    """
    index = action.long().unsqueeze(-1).expand(*q.shape[:-1], 1)
    return q.gather(-1, index).squeeze(-1)
