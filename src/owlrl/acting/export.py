"""The greedy policy of one head as a program that needs no owlrl."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from owlrl.protocols import OffPolicyLearner

__all__ = ["export_policy"]


def export_policy(learner: OffPolicyLearner, head: int, observation: Any) -> torch.export.ExportedProgram:
    """Greedy actions of ``head`` for a batch of observations of any number, by `torch.export`.

    Args:
        learner: whose networks act.
        head: the head.
        observation: one observation, for shape and dtype.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.acting.export import export_policy
    >>> q = MultiHeadQ(nn.Identity(), 3, 3)
    >>> with torch.no_grad():
    ...     _ = q.heads[0].weight.copy_(torch.eye(3)), q.heads[0].bias.zero_()
    >>> program = export_policy(QLearner(q, None, None), 0, torch.zeros(3))
    >>> program.module()(torch.eye(3))
    tensor([0, 1, 2])
    """
    row = torch.as_tensor(np.asarray(observation))
    example = torch.stack([row, row])  # one row would be taken for the only number there is
    policy = _GreedyPolicy(learner, head).eval()
    with torch.no_grad():
        shapes = ({0: torch.export.Dim("rows")},)
        program = torch.export.export(policy, (example,), dynamic_shapes=shapes, strict=False)
    # heads are views of one tensor in training; in a file each weight is by itself
    for name, weight in program.state_dict.items():
        own = weight.detach().clone()
        kept = nn.Parameter(own, requires_grad=False) if isinstance(weight, nn.Parameter) else own
        program.state_dict[name] = kept
    return program


class _GreedyPolicy(nn.Module):
    def __init__(self, learner: OffPolicyLearner, head: int) -> None:
        super().__init__()
        self.networks = nn.ModuleList(network.module for network in learner.networks.values())
        self._act = learner.act
        self._head = head

    def forward(self, observation: Tensor) -> Tensor:
        return self._act(observation, self._head)
