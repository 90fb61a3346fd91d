"""What a wrapper knows of its tasks, and how all of its state is written down and put back."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from owlrl.checkpoint import get_rng_state
from owlrl.errors import raise_problems
from owlrl.protocols import MultiHead, OffPolicyLearner, Stateful

__all__ = ["TaskRecord", "restore_wrapper", "wrapper_state"]


@dataclass
class TaskRecord:
    """What the wrapper knows of a task.

    Attributes:
        head: its head.
        visits: how often it was learned to the end; 0 means its head is not an arm yet.
        steps: optimizer steps made in it.
        num_actions: its number of actions, where that was told.
        own: states of the learner's ``per_task`` objects when the task was last left.

    >>> from owlrl.wrapper_state import TaskRecord
    >>> TaskRecord(head=0).visits
    0
    """

    head: int
    visits: int = 0
    steps: int = 0
    num_actions: int | None = None
    own: dict[str, Any] = field(default_factory=dict)


def own_state(item: Stateful) -> dict[str, Any]:
    """What a task has of its own in ``item``; of a learning-rate scheduler also what it set in its optimizer.

    >>> import torch
    >>> from owlrl.wrapper_state import load_own_state, own_state
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
    >>> schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    >>> fresh = own_state(schedule)
    >>> optimizer.step(), schedule.step()
    (None, None)
    >>> load_own_state(schedule, fresh)
    >>> optimizer.param_groups[0]["lr"]
    1.0
    """
    state: dict[str, Any] = {"state": copy.deepcopy(item.state_dict())}
    if isinstance(item, LRScheduler):
        groups = item.optimizer.param_groups
        kept = [{k: v for k, v in group.items() if not k.startswith("param")} for group in groups]
        state["groups"] = copy.deepcopy(kept)
    return state


def load_own_state(item: Stateful, state: Mapping[str, Any]) -> None:
    """Put back what `own_state` gave.

    >>> import torch
    >>> from owlrl.wrapper_state import load_own_state, own_state
    >>> module = torch.nn.Linear(1, 1)
    >>> load_own_state(module, own_state(module))
    """
    item.load_state_dict(copy.deepcopy(state["state"]))
    if isinstance(item, LRScheduler):
        for group, kept in zip(item.optimizer.param_groups, state["groups"], strict=True):
            group.update(copy.deepcopy(kept))


def wrapper_state(
    learner: OffPolicyLearner, tasks: Mapping[str, TaskRecord], parts: Mapping[str, Stateful | None]
) -> dict[str, Any]:
    """Everything a wrapper needs to go on, as one tree for `owlrl.checkpoint.save_state`.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.wrapper_state import wrapper_state
    >>> q = MultiHeadQ(nn.Linear(1, 2), 2, 2)
    >>> learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1))
    >>> sorted(wrapper_state(learner, {}, {}))
    ['active', 'gamma', 'kinds', 'networks', 'optimizers', 'parts', 'per_task', 'rng', 'targets', 'tasks']
    """
    return {
        "tasks": {name: asdict(record) for name, record in tasks.items()},
        "active": _first(learner).pointer.head,
        "networks": {name: network.module.state_dict() for name, network in learner.networks.items()},
        "targets": {name: network.module.state_dict() for name, network in learner.targets.items()},
        "optimizers": {name: optimizer.state_dict() for name, optimizer in learner.optimizers.items()},
        "per_task": {name: own_state(item) for name, item in learner.per_task.items()},
        "kinds": _kinds(learner),
        "gamma": float(learner.gamma),
        "parts": {
            name: None if part is None else {"kind": type(part).__name__, "state": part.state_dict()}
            for name, part in parts.items()
        },
        "rng": get_rng_state(),
    }


def restore_wrapper(
    learner: OffPolicyLearner, state: Mapping[str, Any], parts: Mapping[str, Stateful | None]
) -> dict[str, TaskRecord]:
    """Put what `wrapper_state` wrote into a fresh learner and its parts; return the tasks.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.wrapper_state import restore_wrapper, wrapper_state
    >>> q = MultiHeadQ(nn.Linear(1, 2), 2, 2)
    >>> learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1))
    >>> restore_wrapper(learner, wrapper_state(learner, {}, {}), {})
    {}
    """
    groups = (("networks", learner.networks), ("targets", learner.targets))
    problems = _part_problems(learner, state, parts)
    # what is there must fit before heads are made for the rest
    for group, networks in groups if not problems else ():
        problems += _shape_problems(group, networks, state[group], saved_too=False)
    raise_problems("OwlWrapper.load", problems)
    records = {name: TaskRecord(**record) for name, record in state["tasks"].items()}
    for record in sorted(records.values(), key=lambda r: r.head):
        while _first(learner).num_heads <= record.head:
            learner.add_head(num_actions=record.num_actions)
    problems = [p for group, networks in groups for p in _shape_problems(group, networks, state[group])]
    problems += _group_problems(learner, state["optimizers"])
    raise_problems("OwlWrapper.load", problems)
    # the parts look at what they are given before they take it, so they come first; the rest was looked at
    for name, part in parts.items():
        if part is not None:
            part.load_state_dict(state["parts"][name]["state"])
    for group, networks in groups:
        for name, network in networks.items():
            network.module.load_state_dict(state[group][name])
    for name, optimizer in learner.optimizers.items():
        _load_optimizer(optimizer, state["optimizers"][name])
    # every task's own passes by, so that what is known by head is known again; the current one's stays
    owned = [(record.head, record.own) for record in records.values() if record.own]
    for head, own in [*owned, (state["active"], state["per_task"])]:
        with _first(learner).pointer.at(head):
            for name, item in learner.per_task.items():
                load_own_state(item, own[name])
    return records


def _load_optimizer(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Load it, with what it keeps of a parameter laid out in memory as the parameter is.

    A file has all tensors row by row, and a fused optimizer walks through memory: beside a parameter that is
    laid out column by column it would take the moments of one weight for those of another.
    """
    optimizer.load_state_dict(state)
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                kept[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _first(learner: OffPolicyLearner) -> MultiHead:
    return next(iter(learner.networks.values()))


def _part_problems(
    learner: OffPolicyLearner, state: Mapping[str, Any], parts: Mapping[str, Stateful | None]
) -> list[str]:
    found = []
    for name, part in parts.items():
        saved = None if state["parts"][name] is None else state["parts"][name]["kind"]
        own = None if part is None else type(part).__name__
        if saved != own:
            found.append(f"{name} is {own}, but {saved} was saved; pass the same")
    for group, items in (
        ("networks", learner.networks),
        ("targets", learner.targets),
        ("optimizers", learner.optimizers),
        ("per_task", learner.per_task),
    ):
        if sorted(items) != sorted(state[group]):
            found.append(f"the learner's {group} are {sorted(items)}, but {sorted(state[group])} were saved")
    if not found and _kinds(learner) != state["kinds"]:
        found.append(f"the optimizers are {_kinds(learner)}, but {state['kinds']} were saved")
    if float(learner.gamma) != state["gamma"]:
        found.append(f"gamma is {learner.gamma}, but {state['gamma']} was saved")
    return found


def _kinds(learner: OffPolicyLearner) -> dict[str, str]:
    return {name: type(optimizer).__name__ for name, optimizer in learner.optimizers.items()}


def _group_problems(learner: OffPolicyLearner, saved: Mapping[str, Any]) -> list[str]:
    found = []
    for name, optimizer in learner.optimizers.items():
        own = [len(group["params"]) for group in optimizer.param_groups]
        other = [len(group["params"]) for group in saved[name]["param_groups"]]
        if own != other:
            found.append(f"optimizers[{name!r}] has groups of {own} parameters, but {other} were saved")
    return found


def _shape_problems(
    group: str,
    networks: Mapping[str, MultiHead],
    saved: Mapping[str, Mapping[str, Tensor]],
    *,
    saved_too: bool = True,
) -> list[str]:
    found = []
    for name, network in networks.items():
        own = {key: tuple(value.shape) for key, value in network.module.state_dict().items()}
        other = {key: tuple(value.shape) for key, value in saved[name].items()}
        for key in sorted({*own, *(other if saved_too else ())}):
            if own.get(key) != other.get(key):
                found.append(
                    f"{group}[{name!r}] has {key!r} of shape {own.get(key)}, but {other.get(key)} was saved; "
                    "build the learner as it was"
                )
    return found
