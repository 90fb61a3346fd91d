"""A network asked through a function: its several outputs as one tensor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from owlrl.errors import OwlTypeError

__all__ = ["Call"]

Call = Callable[..., Any]  # call(network, *inputs) -> a tensor, or several


def joined(output: Tensor | Sequence[Tensor]) -> Tensor:
    """Several outputs side by side along the last axis; a number per row, (B,), becomes (B, 1)."""
    parts = [output] if isinstance(output, Tensor) else output
    if not isinstance(parts, list | tuple) or not all(isinstance(part, Tensor) for part in parts):
        got = [type(part).__name__ for part in parts] if isinstance(parts, list | tuple) else type(parts)
        raise OwlTypeError(
            f"the network gave {got}; expected a tensor or a tuple of them; pass a function that picks them, "
            "e.g. call=lambda network, x: network(x)[:2]"
        )
    columns = [part.unsqueeze(-1) if part.dim() == 1 else part for part in parts]
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)


class NetworkView(nn.Module):
    """``network`` itself, except that its plain call is ``call(network, *inputs)``, joined.

    Parameters, buffers, modes and names are the network's own: both objects have the same
    attributes, so whoever swaps parameters in one (``torch.func.functional_call``) does in both.
    """

    __slots__ = ("_call", "_network")  # all else lives in the dict that is the network's
    _call: Call
    _network: nn.Module

    def __init__(self, network: nn.Module, call: Call) -> None:
        # not nn.Module's own __init__ and __setattr__: they would write into the network
        object.__setattr__(self, "__dict__", network.__dict__)
        object.__setattr__(self, "_network", network)
        object.__setattr__(self, "_call", call)

    def __deepcopy__(self, memo: dict[int, Any]) -> NetworkView:
        return NetworkView(copy.deepcopy(self._network, memo), self._call)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The network's outputs by ``call``, side by side."""
        return joined(self._call(self._network, *inputs))
