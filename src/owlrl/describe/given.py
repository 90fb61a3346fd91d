"""What the wrapper is given: other people's objects made usable, and everything wrong said at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from owlrl.describe.trained import kind_of
from owlrl.errors import OwlTypeError, raise_problems
from owlrl.protocols import Consolidation, MultiHead, OffPolicyLearner, Stateful, TaskReplay, missing_members
from owlrl.types import Transitions

__all__ = [
    "as_env",
    "as_learner",
    "as_replay",
    "check_bound",
    "check_learner",
    "part_problem",
    "trial_problems",
]

ADAPTERS = {
    "sb3_contrib": "owlrl.adapters.sb3",
    "sbx": "owlrl.adapters.sb3",
    "stable_baselines3": "owlrl.adapters.sb3",
}
# what the ReplayBuffer of Stable-Baselines3 and its copies in other people's files have in common
BUFFER_PARTS = (
    *("observations", "actions", "rewards", "dones", "timeouts", "pos", "full", "buffer_size"),
    *("n_envs", "optimize_memory_usage", "handle_timeout_termination", "add", "reset"),
)


def as_learner(item: Any) -> OffPolicyLearner:
    """What an adapter makes of ``item``, or what its own ``describe()`` gives; else ``item`` itself.

    An adapter is imported only when something of its library is there.

    >>> from owlrl.describe.given import as_learner
    >>> as_learner("no model")
    'no model'
    """
    adapter = _adapter(item)
    learner: OffPolicyLearner = item
    if adapter is not None:
        learner = adapter.adapt(item)
    elif missing_members(item, OffPolicyLearner) and callable(getattr(item, "describe", None)):
        learner = item.describe() if not isinstance(item, type) else learner
    return learner


def as_env(env: Any) -> Any:
    """A library's own kind of environment in Gymnasium's interface, or one made from its id; else as it is.

    >>> from owlrl.describe.given import as_env
    >>> as_env("CartPole-v1").spec.id
    'CartPole-v1'
    """
    if isinstance(env, str):
        return import_module("gymnasium").make(env)
    adapter = _adapter(env)
    return env if adapter is None else adapter.adapt_env(env)


def as_replay(item: Any, *, gamma: float) -> Any:
    """A script's list, deque or ``ReplayBuffer`` as a replay that knows of tasks; any other as it is.

    >>> from owlrl.describe.given import as_replay
    >>> as_replay([], gamma=0.9)
    ListReplay(0 rows in a list, task=None, warm_start=50000, stored={})
    """
    if isinstance(item, MutableSequence):
        return import_module("owlrl.adapters.lists").ListReplay(item, gamma=gamma)
    is_buffer = not isinstance(item, type) and all(hasattr(item, name) for name in BUFFER_PARTS)
    if is_buffer and not isinstance(item.observations, Mapping):
        return import_module("owlrl.adapters.buffers").BufferReplay(item, gamma=gamma)
    return item


def check_learner(learner: Any) -> None:
    """Raise one error that names every way in which ``learner`` cannot be wrapped; else return.

    If its description is right, a row of zeros is run through all that is needed later (forward pass,
    heads, TD errors, consolidation). Nothing of the learner is changed. As for `OwlWrapper`, it may be a
    Stable-Baselines3 model, or an object with a method ``describe``.

    >>> from owlrl import check_learner
    >>> check_learner(object())
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlTypeError: check_learner: object misses act, add_head, at_border, bind, consolidation, \
finish_task, gamma, inputs, networks, optimizers, per_task, prepare, pretrained, problems, record, \
replay, reset_head, scaling, seed, set_env, targets, td_errors, trial, unbind, values; describe a DQN with \
QLearner(q, target, optimizer, replay=...), an actor with critics with \
ActorCriticLearner(Trained(actor, ...), [Trained(critic, ...)], ...), or write these as \
owlrl.protocols.OffPolicyLearner says
    """
    learner = as_learner(learner)
    if isinstance(learner, type):
        name = learner.__name__
        raise OwlTypeError(f"check_learner: got the class {name}; expected an object, {name}(...)")
    if missing := missing_members(learner, OffPolicyLearner):
        kind = kind_of(learner)
        name = type(learner).__name__ if kind == f"a {type(learner).__name__}" else f"this is {kind}. It"
        raise OwlTypeError(
            f"check_learner: {name} misses {', '.join(missing)}; describe a DQN with "
            "QLearner(q, target, optimizer, replay=...), an actor with critics with "
            "ActorCriticLearner(Trained(actor, ...), [Trained(critic, ...)], ...), or write these as "
            "owlrl.protocols.OffPolicyLearner says"
        )
    where = f"check_learner: {type(learner).__name__}"
    raise_problems(where, learner.problems())
    raise_problems(where, learner.trial(None))


def check_bound(learner: OffPolicyLearner) -> list[str]:
    """What is wrong with a learner whose networks have their heads: names, pointers, optimizers.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.describe.given import check_bound
    >>> q = MultiHeadQ(nn.Linear(2, 4), 4, 2)
    >>> check_bound(QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1)))
    []
    """
    networks, targets, optimizers = learner.networks, learner.targets, learner.optimizers
    found = _kinds("networks", networks, MultiHead) + _kinds("targets", targets, MultiHead)
    found += _kinds("optimizers", optimizers, Optimizer) + _kinds("per_task", learner.per_task, Stateful)
    if not networks:
        found.append("networks is empty; expected at least one network")
    if odd := sorted(set(targets) - set(networks)):
        found.append(f"targets has {odd}, which networks has not; expected the same names")
    if set(optimizers) != set(networks):
        found.append(
            f"optimizers has {sorted(optimizers)}; expected the names of networks, {sorted(networks)}"
        )
    if learner.replay is not None:
        found += part_problem("replay", learner.replay, TaskReplay, "TaskScopedReplay(...)")
    if not found:
        heads = [*networks.values(), *targets.values()]
        if len({id(h.pointer) for h in heads}) > 1:
            found.append("the networks and targets have several pointers; expected one shared by all")
        if len({h.num_heads for h in heads}) > 1:
            found.append(f"the networks have {[h.num_heads for h in heads]} heads; expected the same number")
    return found


def part_problem(name: str, item: object, protocol: type, example: str) -> list[str]:
    """A message, in a list, if ``item`` lacks something of ``protocol``.

    >>> from owlrl.describe.given import part_problem
    >>> from owlrl.protocols import Stateful
    >>> part_problem("schedule", 3, Stateful, "an optimizer")
    ['schedule is a int and lacks load_state_dict, state_dict; expected a Stateful, e.g. an optimizer']
    """
    if missing := missing_members(item, protocol):
        lacks = ", ".join(missing)
        return [
            f"{name} is {kind_of(item)} and lacks {lacks}; expected a {protocol.__name__}, e.g. {example}"
        ]
    return []


def trial_problems(learner: OffPolicyLearner, rows: Transitions) -> list[str]:
    """What fails when ``rows`` are run through all that is asked of a learner whose networks have heads.

    For ``trial`` of a learner: the caller sees to evaluation mode and to the generators.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner, Transitions
    >>> from owlrl.describe.given import trial_problems
    >>> q = MultiHeadQ(nn.Linear(2, 4), 4, 3)
    >>> learner = QLearner(q, None, torch.optim.SGD(q.parameters(), lr=0.1))
    >>> row = Transitions(torch.zeros(1, 2), torch.tensor([1]), torch.zeros(1), torch.zeros(1, 2),
    ...                   torch.tensor([False]), torch.tensor([0.9]))
    >>> trial_problems(learner, row)
    []
    """
    count = len(rows)
    heads = next(iter(learner.networks.values())).num_heads
    index = torch.arange(count) % heads
    shapes = [tuple(column.shape[1:]) for column in (rows.observation, rows.action)]
    seen = f"observations of shape {shapes[0]} and actions of {shapes[1]}"
    found: list[str] = []

    def attempt(what: str, ask: Callable[[], Tensor], *expected: int | None) -> None:
        try:
            answer = ask()
            shape = tuple(answer.shape)
        except Exception as error:  # networks and functions are the user's: anything may come
            found.append(f"{what} failed for {seen} ({type(error).__name__}: {error})")
            return
        fits = len(shape) == len(expected) and all(
            e in (None, s) for e, s in zip(expected, shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if e is None else str(e) for e in expected)
            found.append(f"{what} gave shape {shape} for {seen}; expected ({wanted})")
        elif not bool((answer.isfinite() | answer.isneginf()).all()):  # −∞: an action that a head lacks
            found.append(f"{what} is not finite for {seen}; look at the weights and at preprocess")

    for name, network in learner.networks.items():
        before = len(found)
        ask = partial(_asked, learner, name, network, rows)
        attempt(f"network {name!r}", ask, count, None)
        if len(found) == before:  # else these would say the same again
            attempt(f"network {name!r}, all heads at once,", partial(ask, "all"), heads, count, None)
            attempt(f"network {name!r}, a head for each row,", partial(ask, index), count, None)
    if found:
        return found
    # (B,) or (B, *action shape)
    attempt("act", lambda: learner.act(rows.observation, index).reshape(count, -1), count, None)
    attempt("values", lambda: learner.values(rows.observation), heads, count)
    # of the active head alone: another may not have the row's action
    active = np.array([next(iter(learner.networks.values())).pointer.head])
    attempt("td_errors", lambda: learner.td_errors(rows, active), 1, count)
    try:
        contexts = learner.consolidation(rows)
    except Exception as error:
        return [*found, f"consolidation failed for {seen} ({type(error).__name__}: {error})"]
    for name, context in contexts.items():
        for part in ("output", "loss"):
            what = f"the {part} of network {name!r} in consolidation"
            attempt(what, partial(_consolidated, context, part), count)
    return found


def _asked(
    learner: OffPolicyLearner,
    name: str,
    network: MultiHead,
    rows: Transitions,
    heads: Tensor | str | None = None,
) -> Tensor:
    inputs = learner.inputs(name, rows)
    if isinstance(heads, Tensor):
        return network.per_row(*inputs, heads=heads.to(inputs[0].device))
    return network(*inputs) if heads is None else network.all_heads(*inputs)


def _consolidated(context: Consolidation, part: str) -> Tensor:
    function = context.output if part == "output" else context.loss
    return function(context.network(*context.inputs, head=context.head), *context.targets)


def _adapter(item: Any) -> ModuleType | None:
    """The adapter for the first library that ``item``'s class comes from, its bases included."""
    libraries = (base.__module__.partition(".")[0] for base in type(item).__mro__)
    found = next((ADAPTERS[name] for name in libraries if name in ADAPTERS), None)
    return None if found is None else import_module(found)


def _kinds(name: str, items: Mapping[str, object], kind: type) -> list[str]:
    return [
        f"{name}[{key!r}] is a {type(item).__name__}; expected a {kind.__name__}"
        for key, item in items.items()
        if (missing_members(item, kind) if kind is not Optimizer else not isinstance(item, Optimizer))
    ]
