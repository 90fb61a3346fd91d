"""Optimizers that follow a network when it gains or loses heads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.errors import OwlStateError, OwlValueError
from owlrl.types import HeadPointer

__all__ = ["HEAD_INITS", "check_last", "extend_optimizer", "owning_group", "shrink_optimizer"]

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


def check_last(where: str, num_heads: int, pointer: HeadPointer) -> None:
    """Raise if the last head cannot be removed: it is the only one, or the active one.

    >>> from owlrl.heads.growth import check_last
    >>> from owlrl.types import HeadPointer
    >>> check_last("q", 2, HeadPointer())
    >>> check_last("q", 1, HeadPointer())
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlStateError: q: there is 1 head and 0 is active; activate another, or add_head() first
    """
    if num_heads == 1 or pointer.head == num_heads - 1:
        there = "is 1 head" if num_heads == 1 else f"are {num_heads} heads"
        raise OwlStateError(
            f"{where}: there {there} and {pointer.head} is active; activate another, or add_head() first"
        )
