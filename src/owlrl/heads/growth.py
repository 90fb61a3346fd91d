"""Optimizers that follow a network when it gains or loses heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.errors import OwlValueError

__all__ = ["HEAD_INITS", "extend_optimizer", "owning_group", "shrink_optimizer"]

HEAD_INITS = ("fresh", "zero", "copy")  # how a new head starts


def owning_group(optimizer: Optimizer, parameter: Tensor) -> int | None:
    """Index of the parameter group that holds ``parameter``, or None.

    >>> import torch
    >>> from torch import Tensor, nn
    >>> from owlrl.heads.growth import owning_group
    >>> layer = nn.Linear(1, 1)
    >>> owning_group(torch.optim.SGD(layer.parameters(), lr=0.1), layer.weight)
    0
    """
    for index, group in enumerate(optimizer.param_groups):
        if any(p is parameter for p in group["params"]):
            return index
    return None


def extend_optimizer(
    optimizer: Optimizer, siblings: Iterable[Tensor], parameters: Mapping[str, nn.Parameter]
) -> None:
    """Add each of ``parameters`` to the group that holds its sibling.

    Groups grow instead of new ones being added: learning-rate schedulers count groups.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.heads.growth import extend_optimizer
    >>> old, new = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> optimizer = torch.optim.Adam(old.parameters(), lr=0.1)
    >>> extend_optimizer(optimizer, old.parameters(), dict(new.named_parameters()))
    >>> len(optimizer.param_groups), len(optimizer.param_groups[0]["params"])
    (1, 4)
    """
    owners = [owning_group(optimizer, sibling) for sibling in siblings]
    if None in owners:
        raise OwlValueError(
            f"extend_optimizer: {type(optimizer).__name__} does not hold the parameters of the network's "
            "first head; expected the optimizer that trains this network (a deep copy of the network or "
            "of the optimizer holds other tensors); pass the one built from network.parameters()"
        )
    for owner, (name, parameter) in zip(owners, parameters.items(), strict=True):
        group = optimizer.param_groups[owner or 0]
        group["params"].append(parameter)
        if "param_names" in group:
            group["param_names"].append(name)


def shrink_optimizer(optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
    """Take ``parameters`` and their state out of the optimizer again.

    >>> import torch
    >>> from torch import Tensor, nn
    >>> from owlrl.heads.growth import shrink_optimizer
    >>> layer = nn.Linear(1, 1)
    >>> optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    >>> shrink_optimizer(optimizer, [layer.bias])
    >>> len(optimizer.param_groups[0]["params"])
    1
    """
    gone = {id(p) for p in parameters}
    for group in optimizer.param_groups:
        kept = [k for k, p in enumerate(group["params"]) if id(p) not in gone]
        if "param_names" in group:
            group["param_names"] = [group["param_names"][k] for k in kept]
        group["params"] = [group["params"][k] for k in kept]
    for parameter in parameters:
        optimizer.state.pop(parameter, None)
