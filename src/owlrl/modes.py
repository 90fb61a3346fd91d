"""Context managers that change a module's mode and put it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["eval_mode"]


@contextmanager
def eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every submodule has its own mode back.

    Plain linear layers, which have no mode, are passed over.

    >>> from torch import nn
    >>> from owlrl.modes import eval_mode
    >>> network = nn.Sequential(nn.Dropout())
    >>> with eval_mode(network):
    ...     network[0].training
    False
    >>> network[0].training
    True
    """
    training = [m for module in modules for m in _in_training(module)]
    for m in training:
        # past nn.Module.__setattr__, which looks for parameters first: heads are many
        m.__dict__["training"] = False
    try:
        yield
    finally:
        for m in training:
            m.__dict__["training"] = True


def _in_training(module: nn.Module) -> list[nn.Module]:
    found, waiting = [], [module]
    while waiting:
        m = waiting.pop()
        if type(m) is nn.Linear:  # has no mode, and there is one per head
            continue
        if m.training:
            found.append(m)
        waiting.extend(child for child in m._modules.values() if child is not None)
    return found
