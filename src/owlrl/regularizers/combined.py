"""`CombinedRegularizer`: several regularizers as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from owlrl.errors import OwlTypeError, OwlValueError, raise_problems
from owlrl.protocols import Consolidation, MultiHead, Regularizer
from owlrl.types import Transitions

__all__ = ["CombinedRegularizer"]


class CombinedRegularizer:
    """The sum of several penalties.

    Attached to an optimizer, the parts add their gradients in the order given; put one with
    ``max_grad_norm`` last, since it clips what is there when its turn comes. A part that fails in
    `consolidate`, `attach` or `load_state_dict` leaves all of them as they were.

    Args:
        regularizers: at least one, each another object.

    >>> from owlrl.regularizers import CombinedRegularizer, DistillationRegularizer, EWCRegularizer
    >>> both = CombinedRegularizer([DistillationRegularizer(1.0), EWCRegularizer(100.0)])
    >>> float(both.penalty())
    0.0
    >>> CombinedRegularizer([])
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: CombinedRegularizer: regularizers is empty; expected at least one
    """

    def __init__(self, regularizers: Sequence[Regularizer]) -> None:
        self.regularizers = regularizers
        parts = tuple(regularizers)
        wrong = [type(part).__name__ for part in parts if not isinstance(part, Regularizer)]
        if wrong:
            raise OwlTypeError(f"CombinedRegularizer: regularizers holds {wrong}; expected Regularizers")
        problems = [] if parts else ["regularizers is empty; expected at least one"]
        if len({id(part) for part in parts}) < len(parts):
            problems.append("regularizers holds the same object twice; make two, or raise its strength")
        raise_problems("CombinedRegularizer", problems)
        self._parts = parts
        self._optimizers: list[Optimizer] = []

    def bind(
        self,
        networks: Mapping[str, MultiHead],
        sample: Callable[[int], Transitions],
    ) -> None:
        """Bind every part."""
        for part in self._parts:
            part.bind(networks, sample)

    def consolidate(self, task: str, context: Mapping[str, Consolidation]) -> None:
        """Consolidate ``task`` in every part, or in none."""
        before = [part.state_dict() for part in self._parts]
        try:
            for part in self._parts:
                part.consolidate(task, context)
        except BaseException:
            self._restore(before)
            raise

    def penalty(self) -> Tensor:
        """The sum of the parts' penalties."""
        total = torch.zeros(())
        for part in self._parts:
            total = total + part.penalty()
        return total

    def attach(self, optimizer: Optimizer) -> None:
        """Attach every part, or none."""
        done: list[Regularizer] = []
        try:
            for part in self._parts:
                part.attach(optimizer)
                done.append(part)
        except BaseException:
            for part in done:
                part.detach()
                for other in self._optimizers:
                    part.attach(other)
            raise
        self._optimizers.append(optimizer)

    def detach(self) -> None:
        """Undo every `attach`."""
        for part in self._parts:
            part.detach()
        self._optimizers.clear()

    def state_dict(self) -> dict[str, Any]:
        """The parts' states, in order."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Load every part, or none."""
        parts = state_dict.get("parts") if isinstance(state_dict, Mapping) else None
        if not isinstance(parts, list | tuple) or len(parts) != len(self._parts):
            got = len(parts) if isinstance(parts, list | tuple) else "none"
            raise OwlValueError(
                f"CombinedRegularizer.load_state_dict: state_dict is of {got} regularizers; "
                f"expected {len(self._parts)}"
            )
        before = [part.state_dict() for part in self._parts]
        try:
            for part, state in zip(self._parts, parts, strict=True):
                part.load_state_dict(state)
        except BaseException:
            self._restore(before)
            raise

    def __repr__(self) -> str:
        return f"CombinedRegularizer([{', '.join(map(repr, self._parts))}])"

    def _restore(self, states: list[dict[str, Any]]) -> None:
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)
