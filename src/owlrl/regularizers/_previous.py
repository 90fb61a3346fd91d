"""The network as it was when the previous task ended, by its weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.protocols import Consolidation, MultiHead
from owlrl.regularizers._checks import tensors_of
from owlrl.regularizers._memory import answers
from owlrl.types import Transitions

__all__ = ["Previous"]


@dataclass(frozen=True)
class Previous:
    """A task's head, the weights and buffers that computed it, and what its inputs look like."""

    task: str
    head: int
    weights: dict[str, Tensor]
    like: tuple[Tensor, ...]  # no rows: only shapes and dtypes

    @classmethod
    def of(cls, task: str, name: str, c: Consolidation) -> Previous:
        """Keep the network of ``c``, called ``name``, as it is now."""
        if len(c.inputs) > 2:
            raise OwlValueError(
                f"DistillationRegularizer.consolidate: network {name!r} takes {len(c.inputs)} inputs; "
                'with states="current" expected an observation, or observation and action; '
                'use states="memory"'
            )
        answers(name, c.network, c.head, tuple(x[:1] for x in c.inputs))  # raises if it cannot be held
        network = c.network
        kept = {
            **network.shared_parameters(),
            **network.head_parameters(c.head),
            **dict(network.module.named_buffers()),
        }
        weights = {name: tensor.detach().clone() for name, tensor in kept.items()}
        return cls(task, c.head, weights, tuple(x[:0].detach().clone() for x in c.inputs))

    def inputs_of(self, transitions: Transitions) -> tuple[Tensor, ...]:
        """What the network is called with: observations, and actions if it takes two inputs."""
        inputs = (transitions.observation, transitions.action)[: len(self.like)]
        got, expected = ([(tuple(x.shape[1:]), x.dtype) for x in rows] for rows in (inputs, self.like))
        if [_kind(x) for x in inputs] != [_kind(x) for x in self.like]:
            raise OwlTypeError(
                f'DistillationRegularizer: with states="current" sample() gave rows of {got}; expected '
                f"{expected}, what the network was consolidated with; let sample() return what the network "
                'is called with, or use states="memory"'
            )
        return inputs

    def before(self, network: MultiHead, inputs: tuple[Tensor, ...]) -> Tensor:
        """What the kept weights answer: ``g_τ ∘ f_old``, without gradient."""
        own = tensors_of(network.module)
        weights = {name: w.to(own[name]) for name, w in self.weights.items()}
        with torch.no_grad(), network.pointer.at(self.head):
            old: Tensor = functional_call(network.module, weights, inputs)
        return old

    def now(self, network: MultiHead, inputs: tuple[Tensor, ...]) -> Tensor:
        """What the trunk of today answers through the same head: ``g_τ ∘ f_new``.

        The equation regularizes the trunk and has one g_τ on both sides: the head gets no gradient.
        """
        head = {name: p.detach() for name, p in network.head_parameters(self.head).items()}
        with network.pointer.at(self.head):
            new: Tensor = functional_call(network.module, head, inputs)
        return new


def _kind(x: Tensor) -> tuple[object, ...]:
    return (x.shape[1:], "floating" if x.is_floating_point() else x.dtype)
