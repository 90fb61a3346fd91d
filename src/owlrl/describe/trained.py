"""`Trained`: a network of a script with its optimizer and target."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.errors import OwlStateError
from owlrl.heads import (
    MultiHeadLinear,
    MultiHeadQ,
    PromotedNetwork,
    find_output_layers,
    promote_output_layers,
)
from owlrl.heads.growth import HEAD_INITS, owning_group
from owlrl.heads.promote import Call, check_promotable
from owlrl.types import HeadPointer

__all__ = ["HeadedNetwork", "Trained"]

HeadedNetwork = MultiHeadQ | PromotedNetwork

JAX = ("flax", "haiku", "equinox", "jax", "jaxlib", "sbx")


class Trained:
    """One trained network with its optimizer, its target, and how it is called.

    Nothing is changed before its learner is wrapped. Then its output layers are given
    heads in place (a `MultiHeadQ` has them already), together with the target's and in the optimizer.

    Args:
        network: the network that is trained.
        optimizer: trains it; several networks may share one. None if it only acts
            (``OwlWrapper.load(..., acting=True)``).
        target: its target network, or None.
        layers: names of its output layers, if they are not found automatically.
        call: ``call(network, *inputs)``, used instead of the plain call (for an actor that samples, say).
            Several outputs are joined along the last axis.
        output: how the output is read: a `owlrl.describe.outputs.Distribution` for an actor, a
            `owlrl.describe.outputs.CriticOutput` for a critic; by default the learner's usual one.
        init: how a new task's head starts: "zero" outputs 0, "fresh" draws new weights, "copy" takes
            those of the active head. At zero no action looks better than another, and an actor acts in the
            middle of its range; a random head on a trained trunk outputs noise of any size.

    >>> import copy, torch
    >>> from torch import nn
    >>> from owlrl import Trained
    >>> network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> Trained(network, torch.optim.Adam(network.parameters()), copy.deepcopy(network))
    Trained(Sequential, Adam, target=Sequential)
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer | None,
        target: nn.Module | None = None,
        *,
        layers: Sequence[str] | None = None,
        call: Call | None = None,
        output: Any = None,
        init: Literal["zero", "fresh", "copy"] = "zero",
    ) -> None:
        self.network = network
        self.optimizer = optimizer
        self.target = target
        self.layers = layers
        self.call = call
        self.output = output
        self.init = init
        self._heads: HeadedNetwork | None = network if isinstance(network, MultiHeadQ) else None
        self._target_heads: HeadedNetwork | None = target if isinstance(target, MultiHeadQ) else None

    @property
    def heads(self) -> HeadedNetwork:
        """The network with its heads."""
        return _bound(self._heads)

    @property
    def target_heads(self) -> HeadedNetwork | None:
        """The target with its heads, or None if there is no target."""
        return None if self.target is None else _bound(self._target_heads)

    @property
    def lagged(self) -> HeadedNetwork:
        """What values are bootstrapped from: the target, or the network where there is none."""
        return self.target_heads or self.heads

    @property
    def is_bound(self) -> bool:
        """Whether network and target have their heads."""
        return self._heads is not None and (self.target is None or self._target_heads is not None)

    @property
    def knows_layers(self) -> bool:
        """Whether the output layers need not be searched for."""
        return self.layers is not None or isinstance(self.network, MultiHeadQ)

    @property
    def can_be_asked(self) -> bool:
        """Whether the network can be called: a module with ``forward``, or with ``call``."""
        if not isinstance(self.network, nn.Module):
            return False
        return self.call is not None or type(self.network).forward is not nn.Module.forward

    def ask(self, *inputs: Tensor) -> Any:
        """The network's raw output: a tensor, or several."""
        return self.network(*inputs) if self.call is None else self.call(self.network, *inputs)

    def output_layers(self, example: Tensor | Sequence[Tensor] | None) -> list[str]:
        """The layers that `bind` will give heads; raises if that cannot be done."""
        if isinstance(self.network, MultiHeadQ):
            return []
        names = self.layers
        if names is None:
            names = find_output_layers(self.network, example, call=self.call)
        check_promotable(self.network, names)
        return list(names)

    def bind(self, layers: Sequence[str], pointer: HeadPointer, *, join: bool) -> None:
        """Give both networks heads on ``layers``, which follow ``pointer``.

        Args:
            layers: names of the output layers.
            pointer: the active head.
            join: whether the network may return something else than one (B, O) tensor: several tensors
                are then joined, also for those who call its module.
        """
        call = self.call or (_plain_call if join else None)
        self._heads = _with_heads(self.network, layers, pointer, call)
        if self.target is not None:
            self._target_heads = _with_heads(self.target, layers, pointer, call)

    def unbind(self, head: int) -> None:
        """Give plain networks back their output layers, with the values of ``head``."""
        for heads, optimizer in ((self._heads, self.optimizer), (self._target_heads, None)):
            if isinstance(heads, PromotedNetwork):
                heads.demote(head, optimizer=optimizer)
        if not isinstance(self.network, MultiHeadQ):
            self._heads = self._target_heads = None

    def add_head(self, *, num_actions: int | None = None) -> int:
        """Grow network, optimizer and target together; the target's head is equal."""
        index = self.heads.add_head(init=self.init, num_actions=num_actions, optimizer=self.optimizer)
        if self.target_heads is not None:
            self.target_heads.add_head(init="zero", num_actions=num_actions)
        self._copy_to_target(index)
        return index

    def reset_head(self, head: int) -> None:
        """Initialise a head again, with an equal one in the target and without optimizer state."""
        self.heads.reset_head(head, init=self.init)
        for parameter in self.heads.head_parameters(head).values():
            if self.optimizer is not None:
                self.optimizer.state.pop(parameter, None)
        self._copy_to_target(head)

    def _copy_to_target(self, head: int) -> None:
        if self.target_heads is None:
            return
        own, new = (h.head_parameters(head).values() for h in (self.target_heads, self.heads))
        with torch.no_grad():
            for old, value in zip(own, new, strict=True):
                old.copy_(value)

    def rehearsal(
        self, layers: Sequence[str], pointer: HeadPointer, memo: dict[int, Any], *, join: bool
    ) -> Trained:
        """A copy with two heads, for trials that must not change the network itself."""
        network, target = copy.deepcopy(self.network, memo), copy.deepcopy(self.target, memo)
        twin = Trained(network, None, target, call=self.call, output=self.output, init="zero")
        twin.bind(layers, pointer, join=join)
        while twin.heads.num_heads < 2:
            twin.add_head()
        return twin

    def problems(self, name: str) -> list[str]:
        """What is wrong with the description of the network that is called ``name``."""
        found = []
        if not isinstance(self.optimizer, Optimizer | None):
            found.append(f"{name}'s optimizer is {kind_of(self.optimizer)}; expected a torch.optim.Optimizer")
        if self.call is not None and not callable(self.call):
            found.append(f"{name}'s call is {self.call!r}; expected a function of the network and its inputs")
        if self.init not in HEAD_INITS:
            found.append(f"{name}'s init is {self.init!r}; expected one of {HEAD_INITS}")
        if not isinstance(self.network, nn.Module):
            return [f"{name} is {kind_of(self.network)}; expected an nn.Module", *found]
        if not self.can_be_asked:
            kind = type(self.network).__name__
            found.append(f"{name} is a {kind} without forward; define it, or pass the module that has one")
        if self.target is not None:
            found += _target_problems(name, self.target, self.network)
        return found

    def head_problems(self, name: str, example: Callable[[], Sequence[Tensor] | None]) -> list[str]:
        """Why its output layers cannot be given heads; ``example()`` is what it is called with."""
        if any(isinstance(m, MultiHeadLinear) for m in self.network.modules()):
            return [f"{name} already has heads; unwrap() its OwlWrapper first"]
        try:
            self.output_layers(example())
        except Exception as error:  # the network is the user's: anything may come
            said = str(error).replace("\n", "\n  ")  # its own list, one level deeper
            return [f"{name} cannot be given heads: {type(error).__name__}: {said}"]
        return []

    def __repr__(self) -> str:
        parts = [type(self.network).__name__, type(self.optimizer).__name__]
        if self.target is not None:
            parts.append(f"target={type(self.target).__name__}")
        return f"Trained({', '.join(parts)})"


def ownership_problems(name: str, parameters: Mapping[str, Tensor], optimizers: Iterable[Any]) -> list[str]:
    """Parameters of the network ``name`` that none of the optimizers holds."""
    known = [o for o in optimizers if isinstance(o, Optimizer)]
    missing = [n for n, p in parameters.items() if all(owning_group(o, p) is None for o in known)]
    if not missing or not known:
        return []
    return [
        f"{name}'s optimizer does not hold {name}'s parameters {missing}; expected one built from "
        f"{name}.parameters() (a deep copy of the network or of the optimizer holds other tensors)"
    ]


def kind_of(item: object) -> str:
    """The kind of an object, for a message; JAX models are named as such."""
    if isinstance(item, type):
        return f"the class {item.__name__}"
    libraries = {base.__module__.partition(".")[0] for base in type(item).__mro__}
    found = next((name for name in JAX if name in libraries), None)
    own = type(item).__name__
    name = f"an {own}" if own[0] in "aeiouAEIO" else f"a {own}"
    return name if found is None else f"{name} of {found}, a JAX library, and owlrl works with torch modules"


def _target_problems(name: str, target: object, online: nn.Module) -> list[str]:
    """Whether a target network is a copy of its online network with separate parameters."""
    if not isinstance(target, nn.Module):
        return [f"{name}'s target is {kind_of(target)}; expected an nn.Module or None"]
    own = {id(p) for p in online.parameters()}
    if any(id(p) in own for p in target.parameters()):
        return [
            f"{name}'s target is {name} itself or shares parameters with it; expected "
            f"copy.deepcopy({name}), or None"
        ]
    shapes, others = (
        {n: tuple(p.shape) for n, p in module.named_parameters()} for module in (online, target)
    )
    if shapes != others:
        odd = sorted(n for n in {*shapes, *others} if shapes.get(n) != others.get(n))
        return [f"{name}'s target differs from {name} in {odd}; expected the same names and shapes"]
    return []


def _plain_call(network: nn.Module, *inputs: Tensor) -> Any:
    return network(*inputs)


def _with_heads(
    network: nn.Module, layers: Sequence[str], pointer: HeadPointer, call: Call | None
) -> HeadedNetwork:
    if isinstance(network, MultiHeadQ):
        network.pointer = network.heads.pointer = pointer
        return network
    return promote_output_layers(network, layers=layers, pointer=pointer, call=call)


def _bound(heads: HeadedNetwork | None) -> HeadedNetwork:
    if heads is None:
        raise OwlStateError("the learner is not wrapped yet; OwlWrapper(learner) gives its networks heads")
    return heads
