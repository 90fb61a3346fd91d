"""The networks of a described actor-critic by name, each with its target and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from owlrl.describe._trained import TrainedNetwork
from owlrl.heads.view import Call

__all__ = ["plain_call", "several", "trained_networks"]


def trained_networks(
    critics: tuple[Any, Any, Any],
    actor: tuple[Any, Any, Any],
    *,
    call_critic: Call | None,
    call_actor: Call | None,
    layers: object,
) -> dict[str, TrainedNetwork]:
    """Named "critic", or "critic_0" and so on, then "actor", from (networks, targets, optimizers).

    Nothing is checked here: what does not fit is left out, and named by ``problems()``.
    """
    networks, targets, optimizers = (several(given) for given in critics)
    if len(optimizers) == 1:
        optimizers *= len(networks)
    names = ["critic"] if len(networks) == 1 else [f"critic_{k}" for k in range(len(networks))]
    known = layers if isinstance(layers, Mapping) else {}
    rows = zip(names, networks, _padded(targets, networks), _padded(optimizers, networks), strict=True)
    trained = {
        name: TrainedNetwork(*parts, layers=known.get(name), call=call_critic or plain_call)
        for name, *parts in rows
    }
    trained["actor"] = TrainedNetwork(*actor, layers=known.get("actor"), call=call_actor or plain_call)
    return trained


def plain_call(network: nn.Module, *inputs: Tensor) -> Any:
    """The network's plain call, for one whose several outputs are to be joined."""
    return network(*inputs)


def several(given: Any) -> list[Any]:
    """What was given alone, or in a list or module list, as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, list | tuple | nn.ModuleList) else [given]


def _padded(items: list[Any], like: list[Any]) -> list[Any]:
    return [items[k] if k < len(items) else None for k in range(len(like))]
