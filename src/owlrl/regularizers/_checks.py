"""Checks that the regularizers share."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from owlrl.errors import OwlError, raise_problems
from owlrl.protocols import Consolidation, MultiHead
from owlrl.types import check_head

__all__ = [
    "Strength",
    "check_consolidation",
    "every",
    "is_count",
    "is_number",
    "network_problems",
    "strength_of",
    "strength_problems",
    "tensor_problems",
    "tensors_of",
]

Strength = float | Mapping[str, float]


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number >= 0."""
    return (
        not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value) and value >= 0
    )


def is_count(value: object) -> bool:
    """Whether ``value`` is an int >= 1."""
    return not isinstance(value, bool) and isinstance(value, int) and value >= 1


def strength_problems(strength: object) -> list[str]:
    """What is wrong with a constructor's ``strength``."""
    if isinstance(strength, Mapping):
        wrong = {name: value for name, value in strength.items() if not is_number(value)}
        if strength and not wrong:
            return []
    elif is_number(strength):
        return []
    return [f"strength is {strength!r}; expected a finite number >= 0, or one per network name"]


def strength_of(strength: Strength, network: str) -> float:
    """The strength for one network; "critic" stands for "critic_0", "critic_1", … as well."""
    return float(strength[_key(strength, network)] if isinstance(strength, Mapping) else strength)


def _key(strength: Mapping[str, float], network: str) -> str:
    """The name in ``strength`` that is meant for ``network``: its own, or that of all its like."""
    kind, _, number = network.rpartition("_")
    return kind if network not in strength and number.isdecimal() else network


def network_problems(strength: Strength, networks: Mapping[str, MultiHead], *, every_name: bool) -> list[str]:
    """Networks that are none or have no strength; with ``every_name`` also strengths without network."""
    found = [
        f"network {name!r} is a {type(network).__name__}; expected a MultiHead; "
        "make one with MultiHeadQ or promote_output_layers"
        for name, network in networks.items()
        if not isinstance(network, MultiHead)
    ]
    if isinstance(strength, Mapping):
        meant = {_key(strength, name) for name in networks}
        missing = meant - set(strength)
        unknown = set(strength) - meant if every_name else set()
        if missing or unknown:
            found.append(
                f"strength is for {sorted(strength)}; expected the networks {sorted(networks)}; "
                "give each a number (0 leaves it free)"
            )
    return found


def check_consolidation(where: str, task: object, context: object, strength: Strength) -> None:
    """Raise one error with all that is wrong with the arguments of ``consolidate``."""
    found = []
    if not isinstance(task, str) or not task:
        found.append(f"task is {task!r}; expected a name")
    entries = context if isinstance(context, Mapping) else {}
    if not entries:
        found.append(f"context is {context!r}; expected a Consolidation per network name")
    right = {name: c for name, c in entries.items() if isinstance(c, Consolidation)}
    found += [
        f"context[{name!r}] is a {type(c).__name__}; expected a Consolidation"
        for name, c in entries.items()
        if name not in right
    ]
    found += network_problems(strength, {name: c.network for name, c in right.items()}, every_name=False)
    for name, c in right.items():
        found += _row_problems(name, c)
    raise_problems(where, found)


def _row_problems(name: str, c: Consolidation) -> list[str]:
    found = []
    if isinstance(c.network, MultiHead):
        try:
            check_head(f"context[{name!r}]", c.head, c.network.num_heads)
        except OwlError as error:
            found.append(str(error))
    tensors = (*c.inputs, *c.targets)
    if not c.inputs or any(not isinstance(x, Tensor) or x.dim() == 0 for x in tensors):
        found.append(f"context[{name!r}]: inputs and targets must be tuples of tensors with a row per sample")
    elif len({len(x) for x in tensors}) > 1 or len(tensors[0]) == 0:
        rows = [len(x) for x in tensors]
        found.append(f"context[{name!r}]: inputs and targets have {rows} rows; expected the same number >= 1")
    return found


def every(tensors: tuple[Tensor, ...], at_most: int) -> tuple[Tensor, ...]:
    """At most ``at_most`` rows, evenly spread: (N, ...) → (min(N, at_most), ...) for each."""
    total = len(tensors[0]) if tensors else 0
    if total <= at_most:
        return tensors
    rows = torch.arange(at_most) * total // at_most
    return tuple(x[rows.to(x.device)] for x in tensors)


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name, those that share a tensor under each of their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def tensor_problems(where: str, stored: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Stored tensors that a network does not have, or has in another shape."""
    found = []
    for name, tensor in stored.items():
        if name not in own:
            found.append(f"{where} has {name!r}, which the network has not")
        elif own[name].shape != tensor.shape:
            found.append(
                f"{where} has {name!r} of shape {tuple(tensor.shape)}; "
                f"the network's is {tuple(own[name].shape)}"
            )
    return found
