"""What a wrapper knows about its tasks, and how its state is saved and restored.

Restoring changes everything or nothing: the state is compared with the learner as far as possible, then
everything that loading touches is recorded, and a failure afterwards is undone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from owlrl._arguments import kind_of
from owlrl.checkpoint import get_rng_state, set_rng_state
from owlrl.errors import OwlError, OwlStateError, OwlValueError, raise_problems
from owlrl.protocols import MultiHead, OffPolicyLearner, Stateful

__all__ = ["TaskRecord", "restore_wrapper", "same_state", "wrapper_state"]

WHERE = "OwlWrapper.load"


@dataclass
class TaskRecord:
    """What the wrapper knows about a task.

    Attributes:
        head: its head.
        visits: how often it was learned to the end; 0 means its head is not an arm yet.
        steps: optimizer steps made in it.
        num_actions: its number of actions, where that was given.
        own: states of the learner's ``per_task`` objects when the task last ended.
        unfinished: the same at the moment when a visit was interrupted; None if there is no such visit.

    >>> from owlrl.wrapper_state import TaskRecord
    >>> TaskRecord(head=0).visits
    0
    """

    head: int
    visits: int = 0
    steps: int = 0
    num_actions: int | None = None
    own: dict[str, Any] = field(default_factory=dict)
    unfinished: dict[str, Any] | None = None


def own_state(item: Stateful) -> dict[str, Any]:
    """The per-task state of ``item``; of a learning-rate scheduler also what it set in its optimizer."""
    state: dict[str, Any] = {"state": copy.deepcopy(item.state_dict())}
    if isinstance(item, LRScheduler):
        groups = item.optimizer.param_groups
        kept = [{k: v for k, v in group.items() if not k.startswith("param")} for group in groups]
        state["groups"] = copy.deepcopy(kept)
    return state


def load_own_state(item: Stateful, state: Mapping[str, Any]) -> None:
    """Restore what `own_state` returned."""
    item.load_state_dict(copy.deepcopy(state["state"]))
    if isinstance(item, LRScheduler):
        for group, kept in zip(item.optimizer.param_groups, state["groups"], strict=True):
            group.update(copy.deepcopy(kept))


def wrapper_state(
    learner: OffPolicyLearner,
    tasks: Mapping[str, TaskRecord],
    parts: Mapping[str, Stateful | None],
    *,
    visit: str | None = None,
) -> dict[str, Any]:
    """Everything a wrapper needs to continue, as one tree for `owlrl.checkpoint.save_state`.

    ``parts`` are regularizer, replay, evidence and memory, by these names; ``visit`` is the task whose
    visit has begun and not been ended.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.wrapper_state import wrapper_state
    >>> q = MultiHeadQ(nn.Linear(1, 2), 2, 2)
    >>> learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1))
    >>> sorted(wrapper_state(learner, {}, {}))
    ['active', 'gamma', 'heads', 'kinds', 'networks', 'optimizers', 'parts', 'per_task', 'rng', 'targets', \
'tasks', 'visit']
    """
    first = _first(learner)
    return {
        "tasks": {name: asdict(record) for name, record in tasks.items()},
        "visit": visit,
        "active": first.pointer.head,
        "heads": [_num_outputs(first, head) for head in range(first.num_heads)],
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
    learner: OffPolicyLearner,
    state: Mapping[str, Any],
    parts: Mapping[str, Stateful | None],
    *,
    acting: bool = False,
) -> dict[str, TaskRecord]:
    """Put what `wrapper_state` wrote into a fresh learner and its parts; return the tasks.

    The active head and the global generators are left to the caller, who can rely on ``state["active"]`` and
    ``state["rng"]`` being right. If anything fails, learner, parts and generators are what they were.

    Args:
        learner: built like the one that was saved.
        state: what `wrapper_state` returned, before or after a trip through a file.
        parts: those that take their state; other saved parts are skipped.
        acting: only what acting needs: optimizers are neither compared nor loaded.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.wrapper_state import restore_wrapper, wrapper_state
    >>> q = MultiHeadQ(nn.Linear(1, 2), 2, 2)
    >>> learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1))
    >>> restore_wrapper(learner, wrapper_state(learner, {}, {}), {})
    {}
    """
    raise_problems(WHERE, _form_problems(state))
    problems = _part_problems(learner, state, parts, acting=acting)
    if not problems:  # what is there must fit before heads are made for the rest
        problems = _shape_problems(learner, state, saved_too=False)
    raise_problems(WHERE, problems)
    records = {name: TaskRecord(**record) for name, record in state["tasks"].items()}
    with _all_or_nothing(learner, parts):
        _grow(learner, state["heads"], {record.head: record.num_actions for record in records.values()})
        problems = _shape_problems(learner, state)
        if not acting:
            problems += _optimizer_problems(learner, state["optimizers"])
        raise_problems(WHERE, problems)
        _load(learner, state, parts, records, acting=acting)
    return records


def _grow(learner: OffPolicyLearner, heads: list[int], of_tasks: Mapping[int, int | None]) -> None:
    """Make the heads that were saved and are not there; one that no task has any more takes its old size."""
    for head in range(_first(learner).num_heads, len(heads)):
        other = heads[head] if heads[head] != heads[0] else None
        with _naming(f"head {head}"):
            learner.add_head(num_actions=of_tasks.get(head, other))


def _load(
    learner: OffPolicyLearner,
    state: Mapping[str, Any],
    parts: Mapping[str, Stateful | None],
    records: Mapping[str, TaskRecord],
    *,
    acting: bool,
) -> None:
    for name, part in parts.items():
        if part is not None:
            with _naming(f"the {name}, {kind_of(part)},"):
                part.load_state_dict(state["parts"][name]["state"])
    for group, name, network in _all_networks(learner):
        with _naming(f"{group}[{name!r}]"):
            network.module.load_state_dict(state[group][name])
    for name, optimizer in learner.optimizers.items() if not acting else ():
        with _naming(f"optimizers[{name!r}]"):
            _load_optimizer(optimizer, state["optimizers"][name])
    # every task's own passes by, so that what is known by head is known again; the current one's stays
    owned = [(record.head, record.own) for record in records.values() if record.own]
    for head, own in [*owned, (state["active"], state["per_task"])]:
        with _first(learner).pointer.at(head):
            for name, item in learner.per_task.items():
                with _naming(f"per_task[{name!r}]"):
                    load_own_state(item, own[name])


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


def _all_networks(learner: OffPolicyLearner) -> Iterator[tuple[str, str, MultiHead]]:
    """Group, name and network of each."""
    for group, networks in (("networks", learner.networks), ("targets", learner.targets)):
        yield from ((group, name, network) for name, network in networks.items())


def _num_outputs(network: MultiHead, head: int) -> int:
    sizes = [len(parameter) for parameter in network.head_parameters(head).values() if parameter.ndim]
    return sizes[-1] if sizes else 0


def _kinds(learner: OffPolicyLearner) -> dict[str, str]:
    return {name: type(optimizer).__name__ for name, optimizer in learner.optimizers.items()}


# ---------------------------------------------------------------------------------------- look before loading


FORM = {
    **dict.fromkeys(
        ("tasks", "networks", "targets", "optimizers", "per_task", "kinds", "parts", "rng"), Mapping
    ),
    "heads": list,
    "active": int,
    "gamma": float,
}


def _form_problems(state: object) -> list[str]:
    """Deviations from the form of `wrapper_state`."""
    if not isinstance(state, Mapping):
        return [f"the state is {kind_of(state)}; expected what OwlWrapper.save wrote"]
    found = []
    for key, kind in FORM.items():
        if key not in state:
            found.append(f"the state has no {key!r}; expected what OwlWrapper.save wrote")
        elif not isinstance(state[key], kind) or isinstance(state[key], bool):
            found.append(f"the state's {key!r} is {kind_of(state[key])}; expected a {kind.__name__}")
    if found:
        return found
    heads, tasks, visit = state["heads"], state["tasks"], state.get("visit")
    # every head has a tensor in the first network's state: no more heads are made than the state has room for
    room = max((len(saved) for saved in state["networks"].values() if isinstance(saved, Mapping)), default=0)
    if not all(_is_int(size, 0) for size in heads) or not 0 < len(heads) <= room:
        found.append(f"the state's 'heads' are {str(heads)[:60]}; expected the sizes of up to {room} heads")
    if not _is_int(state["active"], 0, len(heads)):
        found.append(f"the active head is {state['active']!r}; expected one of {len(heads)}")
    for task, record in tasks.items():
        found += _record_problems(task, record, len(heads), state["per_task"])
    found += _own_problems("per_task has", state["per_task"])
    if visit is not None and visit not in list(tasks):
        found.append(f"the visit is of {str(visit)[:60]}; expected one of {list(tasks)[:9]}")
    for name, saved in state["parts"].items():
        if saved is not None and not (isinstance(saved, Mapping) and {"kind", "state"} <= set(saved)):
            found.append(f"the state of the {name} is {str(saved)[:60]}; expected its kind and its state")
    for group in ("networks", "targets"):
        for name, saved in state[group].items():
            found += _tensor_problems(f"{group}[{name!r}]", saved)
    for name, saved in state["optimizers"].items():
        if not _is_optimizer_state(saved):
            found.append(f"optimizers[{name!r}] is {str(saved)[:60]}; expected an optimizer's state_dict()")
    return found


def _is_int(value: object, least: int, below: float = math.inf) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < below


def _is_optimizer_state(saved: object) -> bool:
    groups = saved.get("param_groups") if isinstance(saved, Mapping) else None
    if not isinstance(groups, list) or not isinstance(saved.get("state"), Mapping):  # type: ignore[attr-defined]
        return False
    numbers = [group.get("params") if isinstance(group, Mapping) else None for group in groups]
    return all(isinstance(n, list) and all(_is_int(index, 0) for index in n) for n in numbers)


def _record_problems(task: object, saved: object, heads: int, own: Mapping[str, Any]) -> list[str]:
    what = f"task {task!r} was saved"
    known = {f.name for f in fields(TaskRecord)}
    if not isinstance(task, str) or not isinstance(saved, Mapping) or not {"head"} <= set(saved) <= known:
        return [f"{what} as {str(saved)[:80]}; expected a name with {sorted(known)}"]
    record = TaskRecord(**saved)
    head, visits, steps, actions = record.head, record.visits, record.steps, record.num_actions
    found = [
        f"{what} with {got}"
        for good, got in (
            (_is_int(head, 0, heads), f"head {head!r}; expected one of {heads}"),
            (_is_int(visits, 0), f"{visits!r} visits; expected an int >= 0"),
            (_is_int(steps, 0), f"{steps!r} steps; expected an int >= 0"),
            (
                actions is None or _is_int(actions, 1),
                f"num_actions={actions!r}; expected an int >= 1 or None",
            ),
        )
        if not good
    ]
    for kept in (record.own, record.unfinished or {}):
        if not isinstance(kept, Mapping) or (kept and set(kept) != set(own)):
            found.append(f"{what} with an own state of {str(kept)[:60]}; expected one of each of {list(own)}")
        else:
            found += _own_problems(f"{what} with", kept)
    return found


def _own_problems(what: str, own: Mapping[str, Any]) -> list[str]:
    return [
        f"{what} a state of {name!r} that is {str(kept)[:60]}; expected what its state_dict() returned"
        for name, kept in own.items()
        if not isinstance(kept, Mapping) or not isinstance(kept.get("state"), Mapping)
    ]


def _tensor_problems(where: str, saved: object) -> list[str]:
    if not isinstance(saved, Mapping):
        return [f"{where} is {kind_of(saved)}; expected tensors by name"]
    return [
        f"{where} has {key!r}, {kind_of(value)}; expected a tensor"
        for key, value in saved.items()
        if not isinstance(value, Tensor) and not str(key).endswith("_extra_state")
    ]


def _part_problems(
    learner: OffPolicyLearner,
    state: Mapping[str, Any],
    parts: Mapping[str, Stateful | None],
    *,
    acting: bool,
) -> list[str]:
    found = []
    for name, part in parts.items():
        saved = None if state["parts"].get(name) is None else state["parts"][name]["kind"]
        own = None if part is None else type(part).__name__
        if saved != own:
            found.append(f"{name} is {own}, but {saved} was saved; pass the same")
    for group in ("networks", "targets", "optimizers", "per_task"):
        items = getattr(learner, group)
        if set(items) != set(state[group]) and not (acting and group != "networks"):
            found.append(f"the learner's {group} are {sorted(items)}, but {list(state[group])} were saved")
    if not found and not acting and _kinds(learner) != state["kinds"]:
        found.append(f"the optimizers are {_kinds(learner)}, but {state['kinds']} were saved")
    if float(learner.gamma) != state["gamma"]:
        found.append(f"gamma is {learner.gamma}, but {state['gamma']} was saved")
    before = get_rng_state()
    try:
        set_rng_state(state["rng"])
    except OwlValueError as error:
        found.append(f"the generators' states were not taken: {error}")
    finally:
        set_rng_state(before)
    return found


# What optimizers keep in the shape of a parameter; torch takes any shape, and fails at the next step.
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum", "exp_inf")


def _optimizer_problems(learner: OffPolicyLearner, saved: Mapping[str, Any]) -> list[str]:
    found = []
    for name, optimizer in learner.optimizers.items():
        where, state = f"optimizers[{name!r}] has", saved[name]["state"]
        own = [group["params"] for group in optimizer.param_groups]
        other = [group["params"] for group in saved[name]["param_groups"]]
        if (sizes := [*map(len, own)]) != (were := [*map(len, other)]):
            found.append(f"{where} groups of {sizes} parameters, but {were} were saved")
            continue
        for index, parameter in zip(chain(*other), chain(*own), strict=True):
            kept = state.get(index, {})
            if not isinstance(kept, Mapping):
                found.append(f"{where} {str(kept)[:40]} of parameter {index}; expected a dict")
                continue
            for key in set(MOMENTS) & set(kept):
                shape = getattr(kept[key], "shape", type(kept[key]))
                if kept[key] is not None and shape != parameter.shape:
                    found.append(f"{where} {key} of parameter {index} of {shape}; expected {parameter.shape}")
    return found


def _shape_problems(
    learner: OffPolicyLearner, state: Mapping[str, Any], *, saved_too: bool = True
) -> list[str]:
    found = []
    for group, name, network in _all_networks(learner):
        own, other = _shapes(network.module.state_dict()), _shapes(state[group][name])
        for key in sorted({*own, *(other if saved_too else ())}):
            if own.get(key) != other.get(key):
                found.append(
                    f"{group}[{name!r}] has {key!r} of shape {own.get(key)}, but {other.get(key)} was saved; "
                    "build the learner as it was"
                )
    return found


def _shapes(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Shape of each tensor, with its dtype where that is not torch's usual one."""
    return {
        key: f"{tuple(value.shape)}" + f" of {value.dtype}" * (value.dtype != torch.float32)
        for key, value in tensors.items()
        if isinstance(value, Tensor)
    }


# ------------------------------------------------------------------------------------------- all or nothing


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Say what did not take its state."""
    try:
        yield
    except Exception as error:
        kind = "" if isinstance(error, OwlError) else f"{type(error).__name__}: "
        raise OwlValueError(
            f"{WHERE}: {what} did not take what was saved ({kind}{error}); build it as it was; "
            "everything is as before the load"
        ) from error


@contextmanager
def _all_or_nothing(learner: OffPolicyLearner, parts: Mapping[str, Stateful | None]) -> Iterator[None]:
    """If the block fails, undo everything that it did to learner, parts and global generators."""
    generators, pointer = get_rng_state(), _first(learner).pointer
    active, with_gradients, blocks = pointer.head, torch.is_grad_enabled(), dict(vars(pointer._local))
    items = {f"per_task[{name!r}]": item for name, item in learner.per_task.items()}
    items |= {name: part for name, part in parts.items() if part is not None}
    states = {name: own_state(item) for name, item in items.items()}
    networks = [network for _, _, network in _all_networks(learner)]
    heads = [network.num_heads for network in networks]
    undo = [_undo_network(network) for network in networks]
    undo += [_undo_optimizer(optimizer) for optimizer in learner.optimizers.values()]
    undo_items = [_undo_item(item, states[name]) for name, item in items.items()]
    set_rng_state(generators)  # should a state_dict() have drawn something
    try:
        yield
    except BaseException as error:
        # an interrupt may have come between a block and its end
        torch.set_grad_enabled(with_gradients)
        vars(pointer._local).clear()
        vars(pointer._local).update(blocks)
        with pointer.at(active):
            # the networks once more at the end: an item may have a say in them
            for back in (*undo, *undo_items, *undo):
                with suppress(Exception):
                    back()
            left = [name for name, item in items.items() if not same_state(own_state(item), states[name])]
        left += ["the heads"] * ([network.num_heads for network in networks] != heads)
        set_rng_state(generators)
        if left:
            raise OwlStateError(
                f"{error}; and {', '.join(left)} could not be put back as before: build the learner again"
            ) from error
        raise


def _undo_network(network: MultiHead) -> Callable[[], None]:
    heads, state = network.num_heads, copy.deepcopy(network.module.state_dict())

    def back() -> None:
        remove: Any = getattr(network, "remove_last_head", None)  # somebody's MultiHead may not have it
        while remove is not None and network.num_heads > heads:
            remove()
        network.module.load_state_dict(state, strict=remove is not None)

    return back


def _undo_optimizer(optimizer: Optimizer) -> Callable[[], None]:
    groups, state = optimizer.param_groups, optimizer.state
    contents = [
        (group, {key: list(value) if isinstance(value, list) else value for key, value in group.items()})
        for group in groups
    ]
    kept = {parameter: copy.deepcopy(value) for parameter, value in state.items()}

    def back() -> None:
        groups[:] = [group for group, _ in contents]
        for group, content in contents:
            group.clear()
            group.update(content)
        state.clear()
        state.update(kept)
        optimizer.param_groups, optimizer.state = groups, state

    return back


def _undo_item(item: Stateful, state: dict[str, Any]) -> Callable[[], None]:
    """For a foreign object, of which only its state_dict and its attributes are known."""
    attributes = getattr(item, "__dict__", {})
    before = dict(attributes)
    contents = {name: copy.copy(v) for name, v in before.items() if type(v) in (dict, list, set)}
    values = {
        name: v.detach().clone() if isinstance(v, Tensor) else v.copy()
        for name, v in before.items()
        if isinstance(v, Tensor | np.ndarray)
    }
    gradients = [(v, v.grad) for v in before.values() if isinstance(v, Tensor) and v.is_leaf]
    optimizers = [_undo_optimizer(v) for v in before.values() if isinstance(v, Optimizer)]

    def put(names: Iterable[str]) -> None:
        for name in set(attributes) - set(before):
            del attributes[name]
        for name in names:
            value = attributes[name] = before[name]
            if name in contents:
                value.clear()
                (value.extend if isinstance(value, list) else value.update)(contents[name])
            elif name in values:
                with torch.no_grad():
                    value[...] = values[name]

    def back() -> None:
        put(before)
        # one that never takes a state fails again; whether it is as before is looked at later
        with suppress(Exception):
            load_own_state(item, state)
        # loading counts and remembers things that are in no state_dict
        put(name for name, v in before.items() if name in values or _is_plain(contents.get(name, v)))
        for undo_optimizer in optimizers:
            undo_optimizer()
        for tensor, gradient in gradients:
            tensor.grad = gradient

    return back


def _is_plain(value: object) -> bool:
    if isinstance(value, dict | list | set | tuple):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float | str)


def same_state(one: object, other: object) -> bool:
    """Whether two trees of state are equal bit for bit; lists and tuples are alike, as in a file.

    >>> import torch
    >>> from owlrl.wrapper_state import same_state
    >>> same_state({"a": torch.zeros(2), "b": [float("nan")]}, {"a": torch.zeros(2), "b": (float("nan"),)})
    True
    >>> same_state({"a": torch.zeros(2)}, {"a": -torch.zeros(2)})
    False
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return list(one) == list(other) and all(same_state(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_state, one, other))
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        forms = [(t.dtype, t.shape, t.device) for t in (one, other)]
        raw = (t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
        return forms[0] == forms[1] and torch.equal(*raw)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return one == other or (one != one and other != other)
