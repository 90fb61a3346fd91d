"""Importance and anchor of every task: their form in a state dict, and whether they fit a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from owlrl.protocols import MultiHead
from owlrl.regularizers._checks import tensor_problems, tensors_of

__all__ = ["Terms", "misfits", "parse_terms"]

# network name -> task -> (importance, anchor), each by parameter name
Terms = dict[str, dict[str, tuple[dict[str, Tensor], dict[str, Tensor]]]]


def misfits(terms: Terms, networks: Mapping[str, MultiHead], *, every_name: bool) -> list[str]:
    """Every parameter that has a term and is missing, or of another shape, in its network.

    With ``every_name`` also the networks that have terms and are missing themselves.
    """
    found = [
        f"there are terms for network {name!r}; the networks are {sorted(networks)}"
        for name in terms
        if every_name and name not in networks
    ]
    for name, network in networks.items():
        own = tensors_of(network.module)
        for task, (importance, _) in terms.get(name, {}).items():
            found += tensor_problems(f"the term of task {task!r} for network {name!r}", importance, own)
    return found


def parse_terms(state_dict: Any) -> tuple[Terms, list[str]]:
    """The terms in a state dict as own copies, and all that is wrong with it."""
    terms: Terms = {}
    found: list[str] = []
    if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get("terms"), Mapping):
        return terms, ['state_dict has no "terms"; expected what state_dict() gave']
    for network, of_task in state_dict["terms"].items():
        try:
            terms[network] = {task: _term(term) for task, term in of_task.items()}
        except (AttributeError, KeyError, TypeError) as error:
            found.append(f"terms[{network!r}] cannot be read: {type(error).__name__}: {error}")
            continue
        for task, term in terms[network].items():
            found += _value_problems(f"terms[{network!r}][{task!r}]", *term)
    return terms, found


def _term(term: Mapping[str, Mapping[str, Tensor]]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    importance, anchor = (
        {name: tensor.detach().clone() for name, tensor in term[kind].items()}
        for kind in ("importance", "anchor")
    )
    return importance, anchor


def _value_problems(where: str, importance: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> list[str]:
    if set(importance) != set(anchor):
        return [f"{where}: importance and anchor are for different parameters"]
    found = []
    for name, f in importance.items():
        a = anchor[name]
        if f.shape != a.shape:
            found.append(f"{where}: {name!r} has importance {tuple(f.shape)} and anchor {tuple(a.shape)}")
        if not (f.isfinite().all() and a.isfinite().all() and (f >= 0).all()):
            found.append(f"{where}: {name!r} is not finite, or its importance is negative")
    return found
