"""`promote_output_layers`: a head per task for any network, in place and reversible."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl._arguments import Arguments, kind_of
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError, raise_problems
from owlrl.heads.growth import HEAD_INITS, check_last, extend_optimizer, shrink_optimizer
from owlrl.heads.linear import MultiHeadLinear, occurring, pad_columns
from owlrl.heads.modes import probing
from owlrl.types import HeadPointer, check_head, check_heads

__all__ = ["Call", "PromotedNetwork", "find_output_layers", "promote_output_layers"]

HEAD_INFIX = "extra_heads."
Call = Callable[..., Any]  # call(network, *inputs) -> a tensor, or several


class PromotedNetwork:
    """A network whose output layers have a head per task; its owner can keep using it.

    Made by `promote_output_layers`. Satisfies `owlrl.protocols.MultiHead`. A network with several
    outputs returns all of them side by side.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.heads import promote_output_layers
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> heads = promote_output_layers(network)
    >>> heads.add_head()
    1
    >>> heads.all_heads(torch.zeros(3, 4)).shape
    torch.Size([2, 3, 2])
    >>> heads
    PromotedNetwork(Sequential, layers=['2'], num_heads=2)
    """

    def __init__(
        self, network: nn.Module, layers: Sequence[str], pointer: HeadPointer, call: Call | None = None
    ) -> None:
        self.module = network if call is None else NetworkView(network, call)
        self._network = network
        self.layers = tuple(layers)
        self.pointer = pointer
        self._shared: list[tuple[str, nn.Module, str]] | None = None
        self._same: tuple[tuple[int, nn.Module], bool] | None = None
        for name in self.layers:
            layer = network.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            MultiHeadLinear.promote(layer, pointer)

    @property
    def num_heads(self) -> int:
        """How many heads there are."""
        return self._layers()[0].num_heads

    def __call__(self, *inputs: Tensor, head: int | None = None) -> Tensor:
        """Output (B, A) of the active head, or of ``head``."""
        if head is None:
            return self._output(*inputs)
        with self.pointer.at(check_head("PromotedNetwork", head, self.num_heads)):
            return self._output(*inputs)

    def all_heads(self, *inputs: Tensor) -> Tensor:
        """Outputs (H, B, A) of every head from one pass through the trunk.

        The output layers compute all heads at once, stacked along the batch, and what follows
        them (e.g. the sum of dueling streams) works row by row. A network that mixes rows there,
        or whose heads differ in size, is called head by head.
        """
        if self._uniform():
            out = torch.empty(0)
            # a foreign forward may mix the H*B rows with B other rows: then it cannot be batched
            with self.pointer.at(HeadPointer.ALL), suppress(RuntimeError):
                out = self._output(*inputs)
            if len(out) == self.num_heads * len(inputs[0]):
                return out.view(self.num_heads, len(inputs[0]), *out.shape[1:])
        return torch.stack(pad_columns([self(*inputs, head=k) for k in range(self.num_heads)]))

    def per_row(self, *inputs: Tensor, heads: Tensor) -> Tensor:
        """Outputs (B, A), row ``b`` by head ``heads[b]``."""
        known = bool(self.pointer.fixed_weights)
        if not known:
            check_heads("PromotedNetwork.per_row", heads, self.num_heads, len(inputs[0]))
        if known or self._uniform():
            with self.pointer.at(heads):
                return self._output(*inputs)
        present, place = occurring(heads)
        outputs = pad_columns([self(*inputs, head=k) for k in present])
        return torch.stack(outputs)[place, torch.arange(len(place), device=place.device)]

    def add_head(
        self,
        *,
        init: Literal["fresh", "zero", "copy"] = "fresh",
        num_actions: int | None = None,
        optimizer: Optimizer | None = None,
    ) -> int:
        """Make a head on every output layer and return its index.

        Args:
            init: "fresh" draws new weights, "zero" outputs 0 at first, "copy" starts from the active head's.
            num_actions: outputs of the new head, for a network with one output layer.
            optimizer: also trains the new head, in the group that holds the first one.
        """
        arguments = Arguments("PromotedNetwork.add_head")
        arguments.choice("init", init, HEAD_INITS)
        num_actions = arguments.integer("num_actions", num_actions, none=True)
        if num_actions is not None and (len(self.layers) > 1 or init == "copy"):
            arguments.problem(
                "num_actions goes with one output layer, and not with init='copy'; "
                f"this network has {list(self.layers)}, init={init!r}"
            )
        arguments.check()
        active, index = self.pointer.head, self.num_heads
        new = [_new_linear(layer.linear(active), init, num_actions) for layer in self._layers()]
        names = {
            f"{_inside(name)}{HEAD_INFIX}{index - 1}.{part}": parameter
            for name, layer in zip(self.layers, new, strict=True)
            for part, parameter in layer.named_parameters()
        }
        if optimizer is not None:
            extend_optimizer(optimizer, self.head_parameters(0).values(), names)
        for layer, head in zip(self._layers(), new, strict=True):
            layer.add_head(head)
        return index

    def reset_head(self, head: int, *, init: Literal["fresh", "zero", "copy"] = "fresh") -> None:
        """Initialise ``head`` again, as `add_head` would."""
        head = check_head("PromotedNetwork.reset_head", head, self.num_heads)
        for layer in self._layers():
            old = layer.linear(head)
            new = _new_linear(layer.linear(self.pointer.head), init, old.out_features)
            with torch.no_grad():
                old.weight.copy_(new.weight)
                if old.bias is not None:
                    old.bias.copy_(new.bias)

    def remove_last_head(self) -> None:
        """Undo `add_head`; an optimizer that holds the head needs `shrink_optimizer`, too."""
        check_last("PromotedNetwork.remove_last_head", self.num_heads, self.pointer)
        for layer in self._layers():
            del layer.extra_heads[-1]

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """Everything that is not an output layer, by name."""
        if self._shared is None:  # which they are does not change, and looking for them takes a walk
            inside = tuple(map(_inside, self.layers))
            named = [n for n, _ in self.module.named_parameters() if not f"{n}.".startswith(inside)]
            owners = [(n, self._network.get_submodule(n.rpartition(".")[0])) for n in named]
            self._shared = [(n, owner, n.rpartition(".")[2]) for n, owner in owners]
        return {n: cast(nn.Parameter, owner._parameters[own]) for n, owner, own in self._shared}

    def head_parameters(self, head: int) -> dict[str, nn.Parameter]:
        """One head's parameters on every output layer, by name."""
        head = check_head("PromotedNetwork.head_parameters", head, self.num_heads)
        infix = f"{HEAD_INFIX}{head - 1}." if head else ""
        return {
            f"{_inside(name)}{infix}{part}": parameter
            for name, layer in zip(self.layers, self._layers(), strict=True)
            for part, parameter in layer.linear(head).named_parameters(recurse=False)
        }

    def demote(self, head: int, *, optimizer: Optimizer | None = None) -> nn.Module:
        """Make the network plain again, with the values (and optimizer state) of ``head``."""
        head = check_head("PromotedNetwork.demote", head, self.num_heads)
        if optimizer is not None:
            firsts, chosen = (self.head_parameters(k).values() for k in (0, head))
            for own, kept in zip(firsts, chosen, strict=True):
                if head:  # its state, or none: another head's would be of other weights
                    optimizer.state.pop(own, None)
                    if kept in optimizer.state:
                        optimizer.state[own] = optimizer.state[kept]
            extra = [p for k in range(1, self.num_heads) for p in self.head_parameters(k).values()]
            shrink_optimizer(optimizer, extra)
        for layer in self._layers():
            layer.demote(head)
        return self._network

    def __repr__(self) -> str:
        name = type(self._network).__name__
        return f"PromotedNetwork({name}, layers={list(self.layers)}, num_heads={self.num_heads})"

    def _layers(self) -> list[MultiHeadLinear]:
        layers = [self._network.get_submodule(name) for name in self.layers]
        return [layer for layer in layers if isinstance(layer, MultiHeadLinear)]

    def _uniform(self) -> bool:
        layers = self._layers()
        key = (layers[0].num_heads, layers[0].linear(layers[0].num_heads - 1))
        if self._same is None or self._same[0][0] != key[0] or self._same[0][1] is not key[1]:
            sizes = [{layer.linear(k).out_features for k in range(layer.num_heads)} for layer in layers]
            self._same = key, all(len(size) == 1 for size in sizes)
        return self._same[1]

    def _output(self, *inputs: Tensor) -> Tensor:
        return joined(self.module(*inputs))


def promote_output_layers(
    network: nn.Module,
    *,
    example: Tensor | Sequence[Tensor] | None = None,
    layers: Sequence[str] | None = None,
    pointer: HeadPointer | None = None,
    call: Call | None = None,
) -> PromotedNetwork:
    """Turn the output ``nn.Linear`` layer(s) of ``network`` into multi-head ones, in place.

    The layer keeps its identity, parameters and state-dict keys as head 0, so optimizers,
    aliases and checkpoints continue working; further heads come with `PromotedNetwork.add_head`.
    For a target network call it again with ``layers=`` and ``pointer=`` of the first result.

    Args:
        network: any module that maps a batch to (B, outputs), or to a tuple of such tensors.
        example: an input to find the output layers with, one row is enough (zeros do); not
            needed where the first layer is an ``nn.Linear`` or ``layers`` is given.
        layers: names of the output layers, to skip the search.
        pointer: the active head to follow; a new one by default.
        call: ``call(network, *inputs)``, used instead of the plain call where that samples (an actor) or
            returns a tuple. ``PromotedNetwork.module``, which regularizers call, is then a view of the
            network that returns one tensor.

    >>> import copy
    >>> from torch import nn
    >>> from owlrl.heads import promote_output_layers
    >>> network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> target = copy.deepcopy(network)
    >>> heads = promote_output_layers(network)
    >>> target_heads = promote_output_layers(target, layers=heads.layers, pointer=heads.pointer)
    >>> heads.layers, target_heads.layers
    (('2',), ('2',))
    """
    if any(isinstance(m, MultiHeadLinear) for m in network.modules()):
        raise OwlStateError(
            f"promote_output_layers: {type(network).__name__} already has heads; use the PromotedNetwork "
            "made before, or demote() it first"
        )
    if isinstance(layers, str):
        raise OwlTypeError(
            f"promote_output_layers: layers is {layers!r}; expected a list of names, [{layers!r}]"
        )
    names = find_output_layers(network, example, call=call) if layers is None else list(layers)
    check_promotable(network, names)
    return PromotedNetwork(network, names, HeadPointer() if pointer is None else pointer, call)


def _inside(layer: str) -> str:
    """What the names of a layer's parameters begin with; nothing where the network is that layer."""
    return f"{layer}." if layer else ""


def _new_linear(like: nn.Linear, init: str, num_actions: int | None) -> nn.Linear:
    new = nn.Linear(
        like.in_features,
        num_actions or like.out_features,
        bias=like.bias is not None,
        device=like.weight.device,
        dtype=like.weight.dtype,
    )
    if init != "fresh":
        with torch.no_grad():
            for own, other in ((new.weight, like.weight), (new.bias, like.bias)):
                if own is not None:
                    own.copy_(other) if init == "copy" else own.zero_()
    return new.train(like.training)


def check_promotable(network: nn.Module, layers: Sequence[str]) -> None:
    """Raise, naming all that is wrong and the candidates, unless every layer can be given heads."""
    problems = [p for name in layers if (p := _unpromotable(network, name))]
    if not layers:
        problems.append("layers is empty; expected at least one name")
    raise_problems("promote_output_layers", [*problems, _candidates(network)] if problems else [])


def find_output_layers(
    network: nn.Module, example: Tensor | Sequence[Tensor] | None = None, *, call: Call | None = None
) -> list[str]:
    """Names of the ``nn.Linear`` layers that produce the network's output.

    Walks back from the output through the autograd graph to the first linear layer on each
    path. Raises, naming the candidates, if a parameter lies between such a layer and the
    output (a normalised or noisy last layer), or if the layer's weight is computed.
    ``call(network, *inputs)`` is used instead of the plain call.

    >>> from torch import nn
    >>> from owlrl.heads import find_output_layers
    >>> find_output_layers(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(-1)))
    ['2']
    """
    inputs = (example,) if isinstance(example, Tensor) else example
    nodes, produced = _trace(network, (default_input(network),) if inputs is None else inputs, call)
    found: set[str] = set()
    seen = set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in produced:
            found.add(produced[node])
        elif hasattr(node, "variable"):  # a leaf: a parameter reached without passing a linear layer
            own = next((n for n, p in network.named_parameters() if p is node.variable), "a parameter")
            raise OwlValueError(
                f"find_output_layers: {own!r} lies between the last nn.Linear and the output (a normalised, "
                f"noisy or parametrised layer?); {_candidates(network)}"
            )
        else:
            nodes.extend(parent for parent, _ in node.next_functions)
    if not found:
        raise OwlValueError(f"find_output_layers: no nn.Linear produces the output; {_candidates(network)}")
    return [name for name, _ in network.named_modules() if name in found]


def _trace(
    network: nn.Module, inputs: Sequence[Tensor], call: Call | None
) -> tuple[list[Any], dict[Any, str]]:
    """The outputs' autograd nodes, and which linear layer produced which node."""
    produced: dict[Any, str] = {}

    def remember(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: object, output: Tensor) -> None:
            produced[output.grad_fn] = name

        return hook

    layers = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    handles = [module.register_forward_hook(remember(name)) for name, module in layers]
    try:
        # a network may sample: its owner's random numbers are not ours to draw
        with probing(network), torch.enable_grad():
            output = network(*inputs) if call is None else call(network, *inputs)
    except RuntimeError as error:
        shapes = [tuple(x.shape) for x in inputs]
        raise OwlValueError(
            f"find_output_layers: {type(network).__name__} could not be called with inputs of shape {shapes} "
            f"({error}); pass example= with an input that fits, or layers=; {_candidates(network)}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return [out.grad_fn for out in ([output] if isinstance(output, Tensor) else output)], produced


def default_input(network: nn.Module) -> Tensor:
    """One row of zeros for a network that starts with an ``nn.Linear``; raises for any other."""
    first = next((m for m in network.modules() if not any(True for _ in m.children())), None)
    if not isinstance(first, nn.Linear):
        raise OwlValueError(
            f"find_output_layers: {type(network).__name__} does not start with an nn.Linear, so the shape of "
            f"its input is not known; {_candidates(network)}; or give the shape: by a TaskScopedReplay to a "
            "learner, by example=torch.zeros(1, *observation_shape) to promote_output_layers"
        )
    return torch.zeros(1, first.in_features, device=first.weight.device, dtype=first.weight.dtype)


def _unpromotable(network: nn.Module, name: str) -> str | None:
    try:
        layer = network.get_submodule(name)
    except AttributeError:
        return f"there is no layer {name!r}"
    if type(layer) is not nn.Linear:
        return f"layer {name!r} is {kind_of(layer)}; expected exactly nn.Linear"
    if layer._parameters.get("weight") is None:
        return f"the weight of layer {name!r} is computed by a hook (weight or spectral norm)"
    return None


def _candidates(network: nn.Module) -> str:
    names = [name for name, module in network.named_modules() if type(module) is nn.Linear]
    return f"pass layers=[...] with the output layers' names; its nn.Linear layers are {names}"


def joined(output: Tensor | Sequence[Tensor]) -> Tensor:
    """Several outputs side by side along the last axis; a number per row, (B,), becomes (B, 1)."""
    parts = [output] if isinstance(output, Tensor) else output
    if not isinstance(parts, list | tuple) or not all(isinstance(part, Tensor) for part in parts):
        got = [type(part).__name__ for part in parts] if isinstance(parts, list | tuple) else type(parts)
        raise OwlTypeError(
            f"the network returned {got}; expected a tensor or a tuple of them; pass a function that picks "
            "them, e.g. call=lambda network, x: network(x)[:2]"
        )
    columns = [part.unsqueeze(-1) if part.dim() == 1 else part for part in parts]
    return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)


class NetworkView(nn.Module):
    """``network`` itself, except that its plain call is ``call(network, *inputs)``, joined.

    Parameters, buffers, modes and names are the network's own: both objects have the same
    attributes, so swapping parameters in one (``torch.func.functional_call``) swaps them in both.
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
