"""What `DistillationRegularizer` keeps, as a state dict and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from owlrl.protocols import MultiHead
from owlrl.regularizers._checks import tensor_problems, tensors_of
from owlrl.regularizers._memory import Memory, TaskMemory
from owlrl.regularizers._previous import Previous

__all__ = ["dump", "misfits", "parse", "parse_generator"]

Kept = dict[str, Memory | Previous]  # by network name


def dump(kept: Kept) -> dict[str, Any]:
    """Own copies of all rows and weights: parts of one tensor cannot be saved apart."""
    return {name: _dump_memory(k) if isinstance(k, Memory) else _dump_previous(k) for name, k in kept.items()}


def _dump_memory(memory: Memory) -> dict[str, Any]:
    return {
        task: {
            "head": t.head,
            "inputs": [x.clone() for x in t.inputs],
            "outputs": t.outputs.clone(),
        }
        for task, t in memory.tasks.items()
    }


def _dump_previous(previous: Previous) -> dict[str, Any]:
    return {
        "task": previous.task,
        "head": previous.head,
        "weights": {name: w.clone() for name, w in previous.weights.items()},
        "like": [x.clone() for x in previous.like],
    }


def parse(states: str, state_dict: Any) -> tuple[Kept, list[str]]:
    """What a state dict holds, and all that is wrong with it."""
    needed = {"states", "kept", "generator"}
    if (
        not isinstance(state_dict, Mapping)
        or not needed <= set(state_dict)
        or not isinstance(state_dict["kept"], Mapping)
    ):
        return {}, ['state_dict lacks "states", "kept" or "generator"; expected what state_dict() gave']
    if state_dict["states"] != states:
        return {}, [
            f"state_dict is of states={state_dict['states']!r}; this regularizer has states={states!r}"
        ]
    kept: Kept = {}
    found: list[str] = []
    for network, entry in state_dict["kept"].items():
        try:
            kept[network] = _parse_memory(entry) if states == "memory" else _parse_previous(entry)
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
            found.append(f"kept[{network!r}] cannot be read: {type(error).__name__}: {error}")
    return kept, found


def _parse_memory(entry: Mapping[str, Any]) -> Memory:
    tasks = {}
    for task, t in entry.items():
        inputs, outputs = tuple(t["inputs"]), t["outputs"]
        if not inputs or {len(x) for x in inputs} != {len(outputs)} or outputs.dim() != 2:
            raise ValueError(f"task {task!r} has inputs and outputs that do not fit each other")
        tasks[task] = TaskMemory(int(t["head"]), inputs, outputs)
    return Memory(tasks)


def _parse_previous(entry: Mapping[str, Any]) -> Previous:
    weights = {name: w.detach().clone() for name, w in entry["weights"].items()}
    return Previous(str(entry["task"]), int(entry["head"]), weights, tuple(entry["like"]))


def parse_generator(state: Any) -> tuple[np.random.Generator, list[str]]:
    """A generator in the given state."""
    rng = np.random.default_rng(0)
    try:
        rng.bit_generator.state = state
    except (KeyError, TypeError, ValueError) as error:
        return rng, [f"generator cannot be read: {error}"]
    return rng, []


def misfits(kept: Kept, networks: Mapping[str, MultiHead], *, every_name: bool) -> list[str]:
    """Heads and weights that are kept and that the networks do not have."""
    found = [
        f"something is kept for network {name!r}; the networks are {sorted(networks)}"
        for name in kept
        if every_name and name not in networks
    ]
    for name, network in networks.items():
        entry = kept.get(name)
        heads: dict[str, int] = {}
        if isinstance(entry, Memory):
            heads = {task: t.head for task, t in entry.tasks.items()}
        elif isinstance(entry, Previous):
            heads = {entry.task: entry.head}
            own = tensors_of(network.module)
            found += tensor_problems(f"what is kept for network {name!r}", entry.weights, own)
        found += [
            f"task {task!r} has head {head} of network {name!r}, which has {network.num_heads}"
            for task, head in heads.items()
            if not 0 <= head < network.num_heads
        ]
    return found
