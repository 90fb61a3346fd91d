"""What a wrapper knows of its tasks, and how all of its state is written down and put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

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

    >>> from owlrl.tasks import TaskRecord
    >>> TaskRecord(head=0).visits
    0
    """

    head: int
    visits: int = 0
    steps: int = 0
    num_actions: int | None = None
    own: dict[str, Any] = field(default_factory=dict)


def wrapper_state(
    learner: OffPolicyLearner, tasks: Mapping[str, TaskRecord], parts: Mapping[str, Stateful | None]
) -> dict[str, Any]:
    """Everything a wrapper needs to go on, as one tree for `owlrl.checkpoint.save_state`.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.tasks import wrapper_state
    >>> q = MultiHeadQ(nn.Linear(1, 2), 2, 2)
    >>> learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1))
    >>> sorted(wrapper_state(learner, {}, {}))
    ['active', 'networks', 'optimizers', 'parts', 'per_task', 'rng', 'targets', 'tasks']
    """
    return {
        "tasks": {name: asdict(record) for name, record in tasks.items()},
        "active": _first(learner).pointer.head,
        "networks": {name: network.module.state_dict() for name, network in learner.networks.items()},
        "targets": {name: network.module.state_dict() for name, network in learner.targets.items()},
        "optimizers": {name: optimizer.state_dict() for name, optimizer in learner.optimizers.items()},
        "per_task": {name: item.state_dict() for name, item in learner.per_task.items()},
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
    >>> from owlrl.tasks import restore_wrapper, wrapper_state
    >>> q = MultiHeadQ(nn.Linear(1, 2), 2, 2)
    >>> learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1))
    >>> restore_wrapper(learner, wrapper_state(learner, {}, {}), {})
    {}
    """
    raise_problems("OwlWrapper.load", _part_problems(learner, state, parts))
    records = {name: TaskRecord(**record) for name, record in state["tasks"].items()}
    for record in sorted(records.values(), key=lambda r: r.head):
        while _first(learner).num_heads <= record.head:
            learner.add_head(num_actions=record.num_actions)
    groups = (("networks", learner.networks), ("targets", learner.targets))
    problems = [p for group, networks in groups for p in _shape_problems(group, networks, state[group])]
    raise_problems("OwlWrapper.load", problems)
    for group, networks in groups:
        for name, network in networks.items():
            network.module.load_state_dict(state[group][name])
    for group, items in (("optimizers", learner.optimizers), ("per_task", learner.per_task)):
        for name, item in items.items():
            item.load_state_dict(state[group][name])
    for name, part in parts.items():
        if part is not None:
            part.load_state_dict(state["parts"][name]["state"])
    return records


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
    return found


def _shape_problems(
    group: str, networks: Mapping[str, MultiHead], saved: Mapping[str, Mapping[str, Tensor]]
) -> list[str]:
    found = []
    for name, network in networks.items():
        own = {key: tuple(value.shape) for key, value in network.module.state_dict().items()}
        other = {key: tuple(value.shape) for key, value in saved[name].items()}
        for key in sorted({*own, *other}):
            if own.get(key) != other.get(key):
                found.append(
                    f"{group}[{name!r}] has {key!r} of shape {own.get(key)}, but {other.get(key)} was saved; "
                    "build the learner as it was"
                )
    return found
