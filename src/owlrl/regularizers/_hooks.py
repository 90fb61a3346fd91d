"""Hooks that add a gradient before an optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from owlrl.errors import OwlStateError, OwlTypeError
from owlrl.protocols import MultiHead

__all__ = ["StepHooks", "gradient_scale", "owned"]


class StepHooks:
    """The optimizers a regularizer is attached to, each at most once.

    A step pre-hook sees gradients that are complete whatever the loop does: accumulated,
    unscaled by a ``GradScaler``, zeroed in place or set to None.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._attached: list[tuple[Optimizer, RemovableHandle]] = []

    def attach(self, optimizer: Optimizer, add_gradient: Callable[[Optimizer], None]) -> None:
        """Call ``add_gradient(optimizer)`` before each of its steps."""
        if not isinstance(optimizer, Optimizer):
            raise OwlTypeError(
                f"{self.owner}.attach: optimizer is a {type(optimizer).__name__}; expected a torch Optimizer"
            )
        if any(other is optimizer for other, _ in self._attached):
            raise OwlStateError(
                f"{self.owner}.attach: this {type(optimizer).__name__} is attached already, and twice would "
                "double the penalty; detach() first"
            )

        def hook(stepping: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if kwargs.get("closure", args[1] if len(args) > 1 else None) is not None:
                raise OwlStateError(
                    f"{self.owner}: optimizer.step was given a closure, which computes gradients after this "
                    "hook; detach() and add penalty() to the loss inside the closure"
                )
            add_gradient(stepping)

        self._attached.append((optimizer, optimizer.register_step_pre_hook(hook)))

    def refuse_others(self, bound: Mapping[str, MultiHead], networks: Mapping[str, MultiHead]) -> None:
        """Raise if it is attached for other networks: it cannot guard two learners at once."""
        if self._attached and any(networks.get(name) is not network for name, network in bound.items()):
            raise OwlStateError(
                f"{self.owner}.bind: it is attached to an optimizer already; make another {self.owner} for "
                "another learner, or detach() this one first"
            )

    def detach(self) -> None:
        """Remove every hook."""
        while self._attached:
            self._attached.pop()[1].remove()


def owned(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def gradient_scale(optimizer: Optimizer) -> Tensor | None:
    """By what a ``GradScaler`` left the gradients scaled: fused optimizers unscale in their step."""
    scale: Tensor | None = getattr(optimizer, "grad_scale", None)
    return scale
