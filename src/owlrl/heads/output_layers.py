"""Which layers produce a network's output, and whether they can be given heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from owlrl.errors import OwlValueError, raise_problems
from owlrl.heads.modes import probing
from owlrl.heads.view import Call

__all__ = ["check_promotable", "default_input", "find_output_layers"]


def check_promotable(network: nn.Module, layers: Sequence[str]) -> None:
    """Raise, naming all that is wrong and the candidates, unless every layer can be given heads.

    >>> from torch import nn
    >>> from owlrl.heads.output_layers import check_promotable
    >>> check_promotable(nn.Sequential(nn.Linear(4, 2)), ["0"])
    """
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
    output (a normalised or noisy last layer), or if the layer's weight is computed. ``call`` is
    how the network is asked, ``call(network, *inputs)``, where its plain call is not it.

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
    """One row of zeros for a network that starts with an ``nn.Linear``; raises for any other.

    >>> from torch import nn
    >>> from owlrl.heads.output_layers import default_input
    >>> default_input(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    tensor([[0., 0., 0., 0.]])
    """
    first = next((m for m in network.modules() if not any(True for _ in m.children())), None)
    if not isinstance(first, nn.Linear):
        raise OwlValueError(
            f"find_output_layers: {type(network).__name__} does not start with an nn.Linear, so the shape of "
            "its input is not known; pass example=torch.zeros(1, *observation_shape) or layers=[...]; "
            + _candidates(network)
        )
    return torch.zeros(1, first.in_features, device=first.weight.device, dtype=first.weight.dtype)


def _unpromotable(network: nn.Module, name: str) -> str | None:
    try:
        layer = network.get_submodule(name)
    except AttributeError:
        return f"there is no layer {name!r}"
    if type(layer) is not nn.Linear:
        return f"layer {name!r} is a {type(layer).__name__}; expected exactly nn.Linear"
    if layer._parameters.get("weight") is None:
        return f"the weight of layer {name!r} is computed by a hook (weight or spectral norm)"
    return None


def _candidates(network: nn.Module) -> str:
    names = [name for name, module in network.named_modules() if type(module) is nn.Linear]
    return f"pass layers=[...] with the output layers' names; its nn.Linear layers are {names}"
