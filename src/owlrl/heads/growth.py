"""Optimizers that follow a network when it gains or loses heads, and see no idle ones while it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from owlrl.errors import OwlStateError, OwlValueError
from owlrl.types import HeadPointer

__all__ = [
    "HEAD_INITS",
    "IdleHeads",
    "Owned",
    "all_parameters",
    "check_last",
    "extend_optimizer",
    "lend",
    "owning_group",
    "shrink_optimizer",
]

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
    """Remove ``parameters`` and their state from the optimizer.

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


class IdleHeads:
    """Keeps idle heads out of an optimizer's groups: its loops then cost the same for any number of heads.

    Groups stay the objects they are, for schedulers, and what the optimizer keeps of a parameter stays in its
    ``state``. A hidden parameter that gets a gradient, by a backward pass or by `lend`, is in its group until
    the next step has been made. For ``state_dict`` and ``load_state_dict`` all are there.

    Args:
        optimizer: any optimizer.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.heads.growth import IdleHeads
    >>> trunk, old = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> optimizer = torch.optim.Adam([*trunk.parameters(), *old.parameters()])
    >>> idle = IdleHeads(optimizer)
    >>> idle.hide(old.parameters())
    >>> len(optimizer.param_groups[0]["params"]), len(optimizer.state_dict()["param_groups"][0]["params"])
    (2, 4)
    >>> idle.show()
    >>> len(optimizer.param_groups[0]["params"])
    4
    """

    needs_no_gradient = True  # of a step: what is trained is not hidden

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.hidden: dict[int, tuple[Tensor, dict[str, Any]]] = {}  # by id: a parameter and its group
        self._full: list[tuple[dict[str, Any], list[Tensor], list[str] | None]] = []
        self._left: list[int] = []  # parameters that each of these groups was left with
        self._lent: set[int] = set()
        self._waiting: list[Tensor] = []
        self._watched: list[RemovableHandle] = []
        _IDLE[optimizer] = self
        self._handles = [
            optimizer.register_state_dict_pre_hook(self._before_state),
            optimizer.register_state_dict_post_hook(self._after_state),
            optimizer.register_load_state_dict_pre_hook(self._before_state),
            optimizer.register_load_state_dict_post_hook(self._after_state),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def hide(self, parameters: Iterable[Tensor]) -> None:
        """Take ``parameters`` out of the groups; those hidden before are shown again."""
        self.show()
        idle = {id(p): p for p in parameters}
        for group in self.optimizer.param_groups:
            params, names = group["params"], group.get("param_names")
            kept = [k for k, p in enumerate(params) if id(p) not in idle]
            if len(kept) == len(params):
                continue
            hidden = [p for p in params if id(p) in idle]
            self.hidden.update((id(p), (p, group)) for p in hidden)
            self._full.append((group, list(params), None if names is None else list(names)))
            params[:] = [params[k] for k in kept]
            if names is not None:
                names[:] = [names[k] for k in kept]
            self._left.append(len(kept))
            self._watched += [
                p.register_post_accumulate_grad_hook(self.lend) for p in hidden if p.requires_grad
            ]

    def show(self) -> None:
        """Put everything back, at its place."""
        self.take_back()
        for group, params, names in self._full:
            group["params"][:] = params
            if names is not None:
                group["param_names"][:] = names
        for handle in self._watched:
            handle.remove()
        self._full, self._left, self._watched, self.hidden = [], [], [], {}

    def lend(self, parameter: Tensor) -> None:
        """Put a hidden parameter into its group until a step has been made; others are there already."""
        number = id(parameter)
        if number in self.hidden and number not in self._lent:
            self._lent.add(number)
            self.hidden[number][1]["params"].append(parameter)

    def take_back(self) -> None:
        """Undo `lend`; the parameters have no gradient afterwards."""
        if not self._lent:
            return
        for (group, *_), left in zip(self._full, self._left, strict=True):
            for parameter in group["params"][left:]:
                parameter.grad = None
            del group["params"][left:]
        self._lent.clear()

    def detach(self) -> None:
        """Show everything and remove the hooks from the optimizer."""
        self.show()
        _IDLE.pop(self.optimizer, None)
        while self._handles:
            self._handles.pop().remove()

    def _after_step(self, *_: object) -> None:
        self.take_back()

    def _before_state(self, *_: object) -> None:
        self._waiting = [parameter for parameter, _ in self.hidden.values()]
        self.show()

    def _after_state(self, *_: object) -> None:
        self.hide(self._waiting)
        self._waiting = []


_IDLE: WeakKeyDictionary[Optimizer, IdleHeads] = WeakKeyDictionary()


def all_parameters(optimizer: Optimizer) -> list[Tensor]:
    """An optimizer's parameters in the order of its ``state_dict()``, hidden ones included.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.heads.growth import IdleHeads, all_parameters
    >>> layer = nn.Linear(1, 1)
    >>> optimizer = torch.optim.Adam(layer.parameters())
    >>> IdleHeads(optimizer).hide([layer.weight])
    >>> all_parameters(optimizer)[0] is layer.weight
    True
    """
    idle = _IDLE.get(optimizer)
    full = {} if idle is None else {id(group): params for group, params, _ in idle._full}
    return [p for group in optimizer.param_groups for p in full.get(id(group), group["params"])]


class Owned:
    """The ids of an optimizer's parameters, hidden ones included, for ``id(p) in owned``.

    Args:
        optimizer: the optimizer.
        number: which of several it is.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.heads.growth import Owned
    >>> layer = nn.Linear(1, 1)
    >>> id(layer.bias) in Owned(torch.optim.Adam([layer.weight]))
    False
    """

    def __init__(self, optimizer: Optimizer, number: int = 0) -> None:
        self.number = number
        self._optimizer = optimizer
        self._known: tuple[set[int], Mapping[int, object]] | None = None

    def __contains__(self, number: object) -> bool:
        if self._known is None:  # many steps never ask
            idle = _IDLE.get(self._optimizer)
            shown = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
            self._known = shown, {} if idle is None else idle.hidden
        return number in self._known[0] or number in self._known[1]


def lend(optimizer: Optimizer, parameters: Iterable[Tensor]) -> None:
    """Let ``optimizer`` step those of ``parameters`` that `IdleHeads` hides from it, once.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.heads.growth import IdleHeads, lend
    >>> old = nn.Linear(1, 1, bias=False)
    >>> optimizer = torch.optim.SGD(old.parameters(), lr=1.0)
    >>> idle = IdleHeads(optimizer)
    >>> idle.hide(old.parameters())
    >>> lend(optimizer, old.parameters())
    >>> len(optimizer.param_groups[0]["params"])
    1
    >>> optimizer.step()
    >>> len(optimizer.param_groups[0]["params"])
    0
    """
    idle = _IDLE.get(optimizer)
    if idle is not None and idle.hidden:
        for parameter in parameters:
            idle.lend(parameter)


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
