"""`TrainedNetwork`: a network, its target and the optimizer that trains it, given heads together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.errors import OwlStateError
from owlrl.heads import MultiHeadQ, PromotedNetwork, find_output_layers, promote_output_layers
from owlrl.heads.output_layers import check_promotable
from owlrl.heads.view import Call
from owlrl.types import HeadPointer

__all__ = ["HeadedNetwork", "TrainedNetwork"]

HeadedNetwork = MultiHeadQ | PromotedNetwork


class TrainedNetwork:
    """One network of a described learner; what has heads of its own (`MultiHeadQ`) keeps them.

    Args:
        network: the network that is trained.
        target: its target network, or None.
        optimizer: what trains it.
        layers: names of its output layers, where they are not found by themselves.
        call: how network and target are asked, where a plain call is not it.
    """

    def __init__(
        self,
        network: nn.Module,
        target: nn.Module | None,
        optimizer: Optimizer,
        *,
        layers: Sequence[str] | None = None,
        call: Call | None = None,
    ) -> None:
        self.network = network
        self.target = target
        self.optimizer = optimizer
        self.layers = layers
        self.call = call
        self._heads: HeadedNetwork | None = network if isinstance(network, MultiHeadQ) else None
        self._target_heads: HeadedNetwork | None = target if isinstance(target, MultiHeadQ) else None

    @property
    def heads(self) -> HeadedNetwork:
        """The network with its heads."""
        return _bound(self._heads)

    @property
    def target_heads(self) -> HeadedNetwork | None:
        """The target with its heads, or None if there is no target."""
        return None if self.target is None else _bound(self._target_heads)

    @property
    def lagged(self) -> HeadedNetwork:
        """What values are bootstrapped from: the target, or the network where there is none."""
        return self.target_heads or self.heads

    @property
    def knows_layers(self) -> bool:
        """Whether the output layers need not be searched for."""
        return self.layers is not None or isinstance(self.network, MultiHeadQ)

    def output_layers(self, example: Tensor | Sequence[Tensor] | None) -> list[str]:
        """The layers that `bind` will give heads; raises if that cannot be done."""
        if isinstance(self.network, MultiHeadQ):
            return []
        names = self.layers
        if names is None:
            names = find_output_layers(self.network, example, call=self.call)
        check_promotable(self.network, names)
        return list(names)

    def bind(self, layers: Sequence[str], pointer: HeadPointer) -> None:
        """Give both networks heads on ``layers``; both follow ``pointer``."""
        self._heads = _with_heads(self.network, layers, pointer, self.call)
        if self.target is not None:
            self._target_heads = _with_heads(self.target, layers, pointer, self.call)

    def unbind(self, head: int) -> None:
        """Give plain networks back their output layers, with the values of ``head``."""
        for heads, optimizer in ((self._heads, self.optimizer), (self._target_heads, None)):
            if isinstance(heads, PromotedNetwork):
                heads.demote(head, optimizer=optimizer)
        if not isinstance(self.network, MultiHeadQ):
            self._heads = self._target_heads = None

    def add_head(self, *, init: Literal["fresh", "zero", "copy"], num_actions: int | None = None) -> int:
        """Grow network, optimizer and target together; the target's head is equal."""
        index = self.heads.add_head(init=init, num_actions=num_actions, optimizer=self.optimizer)
        target = self.target_heads
        if target is not None:
            target.add_head(init="fresh", num_actions=num_actions)
            own, new = (h.head_parameters(index).values() for h in (target, self.heads))
            with torch.no_grad():
                for old, value in zip(own, new, strict=True):
                    old.copy_(value)
        return index


def _with_heads(
    network: nn.Module, layers: Sequence[str], pointer: HeadPointer, call: Call | None
) -> HeadedNetwork:
    if isinstance(network, MultiHeadQ):
        network.pointer = pointer
        return network
    return promote_output_layers(network, layers=layers, pointer=pointer, call=call)


def _bound(heads: HeadedNetwork | None) -> HeadedNetwork:
    if heads is None:
        raise OwlStateError("the learner is not wrapped yet; OwlWrapper(learner) gives its networks heads")
    return heads
