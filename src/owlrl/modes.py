"""Context managers that change a module's mode and put it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["eval_mode"]


@contextmanager
def eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every submodule has its own mode back.

    >>> from torch import nn
    >>> from owlrl.modes import eval_mode
    >>> network = nn.Sequential(nn.Dropout())
    >>> with eval_mode(network):
    ...     network[0].training
    False
    >>> network[0].training
    True
    """
    training = [m for module in modules for m in module.modules() if m.training]
    for m in training:
        m.training = False
    try:
        yield
    finally:
        for m in training:
            m.training = True
