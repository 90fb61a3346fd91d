"""Adapts learners, environments and replays of other libraries, with all problems in one error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl._arguments import article, kind_of
from owlrl.errors import OwlTypeError, OwlValueError, raise_problems
from owlrl.protocols import MultiHead, OffPolicyLearner, Stateful, TaskReplay, missing_members
from owlrl.types import Transitions

__all__ = ["check_learner"]

ADAPTERS = {
    "sb3_contrib": "owlrl.adapters.sb3",
    "sbx": "owlrl.adapters.sb3",
    "stable_baselines3": "owlrl.adapters.sb3",
}
MANY = 20  # missing members: such an object was not meant to be a learner
# what the ReplayBuffer of Stable-Baselines3 and its copies in scripts have in common
BUFFER_PARTS = (
    *("observations", "actions", "rewards", "dones", "timeouts", "pos", "full", "buffer_size"),
    *("n_envs", "optimize_memory_usage", "handle_timeout_termination", "add", "reset"),
)


def as_learner(item: Any) -> OffPolicyLearner:
    """The learner that an adapter or ``item.describe()`` makes of ``item``; else ``item`` itself.

    An adapter is imported only if its library is in use.
    """
    adapter, learner = _adapter(item), item
    if adapter is not None:
        learner = adapter.adapt(item)
    elif not isinstance(item, type) and missing_members(item, OffPolicyLearner):
        learner = item.describe() if callable(getattr(item, "describe", None)) else item
    found: OffPolicyLearner = learner
    return found


def as_env(env: Any) -> Any:
    """An environment in Gymnasium's interface: adapted, made from its id, or as it is."""
    if isinstance(env, str):
        gymnasium = import_module("gymnasium")
        try:
            return gymnasium.make(env)
        except gymnasium.error.Error as error:
            raise OwlValueError(
                f"env is {env!r}, which cannot be made ({error}); expected an environment, or the id of a "
                "registered one, e.g. 'CartPole-v1'"
            ) from error
    adapter = _adapter(env)
    env = env if adapter is None else adapter.adapt_env(env)
    if isinstance(env, type) or not (callable(getattr(env, "reset", None)) and hasattr(env, "step")):
        raise OwlTypeError(
            f"env is {kind_of(env)}; expected a Gymnasium environment, its id or a vector of them, e.g. "
            "gymnasium.make('CartPole-v1')"
        )
    return env


def as_replay(item: Any, *, gamma: float) -> Any:
    """A script's list, deque or ``ReplayBuffer`` as a replay per task; anything else as it is."""
    if isinstance(item, MutableSequence):
        return import_module("owlrl.adapters.lists").ListReplay(item, gamma=gamma)
    is_buffer = not isinstance(item, type) and all(hasattr(item, name) for name in BUFFER_PARTS)
    if is_buffer and not isinstance(item.observations, Mapping):
        return import_module("owlrl.adapters.buffers").BufferReplay(item, gamma=gamma)
    return item


def check_learner(learner: Any) -> None:
    """Raise one error that lists everything that prevents ``learner`` from being wrapped, or return.

    If the description is valid, a row of zeros is run through everything needed later (forward pass,
    heads, TD errors, consolidation). Nothing of the learner is changed. As for `OwlWrapper`, it may be a
    Stable-Baselines3 model, or an object with a method ``describe``.

    >>> from owlrl import check_learner
    >>> check_learner(object())
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlTypeError: check_learner: an object is no learner; describe a DQN with \
QLearner(q, target, optimizer, replay=...), an actor with critics with \
ActorCriticLearner(Trained(actor, ...), [Trained(critic, ...)], ...), or implement \
owlrl.protocols.OffPolicyLearner
    """
    learner = as_learner(learner)
    if isinstance(learner, type):
        name = learner.__name__
        raise OwlTypeError(f"check_learner: got the class {name}; expected an object, {name}(...)")
    if missing := missing_members(learner, OffPolicyLearner):
        kind = kind_of(learner)
        if "JAX" in kind:
            raise OwlTypeError(
                f"check_learner: this is {kind}; write the learner with torch modules, or take a model of "
                "stable_baselines3"
            )
        what = "is a network, and a learner has an optimizer and a replay, too"
        if not isinstance(learner, nn.Module):  # names help one who has written some of them
            what = f"lacks {', '.join(missing)}" if len(missing) < MANY else "is no learner"
        raise OwlTypeError(
            f"check_learner: {kind} {what}; describe a DQN with "
            "QLearner(q, target, optimizer, replay=...), an actor with critics with "
            "ActorCriticLearner(Trained(actor, ...), [Trained(critic, ...)], ...), or implement "
            "owlrl.protocols.OffPolicyLearner"
        )
    where = f"check_learner: {type(learner).__name__}"
    raise_problems(where, learner.problems())
    raise_problems(where, learner.trial(None))


def check_bound(learner: OffPolicyLearner) -> list[str]:
    """What is wrong with a learner whose networks have their heads: names, pointers, optimizers."""
    networks, targets, optimizers = learner.networks, learner.targets, learner.optimizers
    parts: list[tuple[str, Mapping[str, object], type]] = [
        ("networks", networks, MultiHead),
        ("targets", targets, MultiHead),
    ]
    parts += [("optimizers", optimizers, Optimizer), ("per_task", learner.per_task, Stateful)]
    found = [
        f"{name}[{key!r}] is {kind_of(item)}; expected a {kind.__name__}"
        for name, items, kind in parts
        for key, item in items.items()
        if (missing_members(item, kind) if kind is not Optimizer else not isinstance(item, Optimizer))
    ]
    if not networks:
        found.append("networks is empty; expected at least one network")
    if odd := sorted(set(targets) - set(networks)):
        found.append(f"targets has {odd}, which networks does not have; expected the same names")
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
    """A message, in a list, if ``item`` lacks something of ``protocol``."""
    missing = missing_members(item, protocol)
    if not missing:
        return []
    own = type(item).__module__ != "builtins" and not isinstance(item, type)
    lacks = f" and lacks {', '.join(missing)}" if own else ""  # names help one who has written some of them
    expected = f"{article(protocol.__name__)} {protocol.__name__}"
    return [f"{name} is {kind_of(item)}{lacks}; expected {expected}, e.g. {example}"]


def trial_problems(learner: OffPolicyLearner, rows: Transitions) -> list[str]:
    """What fails when ``rows`` are run through every call that a learner with heads must support.

    For ``trial`` of a learner: the caller sets evaluation mode and restores the random generators.
    """
    count, active = len(rows), next(iter(learner.networks.values())).pointer.head
    heads = next(iter(learner.networks.values())).num_heads
    index = torch.arange(count) % heads
    shapes = [tuple(column.shape[1:]) for column in (rows.observation, rows.action)]
    seen = f"observations of shape {shapes[0]} and actions of {shapes[1]}"
    if shapes[0][:1] == (1,) and len(shapes[0]) > 1:
        seen += " (if the rows hold batches of one, store observation[0])"
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
            found.append(f"{what} returned shape {shape} for {seen}; expected ({wanted})")
        elif not bool((answer.isfinite() | answer.isneginf()).all()):  # −∞: an action that a head lacks
            found.append(f"{what} is not finite for {seen}; look at the weights and at preprocess")

    for name, network in learner.networks.items():

        def ask(how: str = "active", name: str = name, network: MultiHead = network) -> Tensor:
            inputs = learner.inputs(name, rows)
            if how == "per row":
                return network.per_row(*inputs, heads=index.to(inputs[0].device))
            return network(*inputs) if how == "active" else network.all_heads(*inputs)

        before = len(found)
        attempt(f"network {name!r}", ask, count, None)
        if len(found) == before:  # else these would say the same again
            attempt(f"network {name!r}, all heads at once,", partial(ask, "all"), heads, count, None)
            attempt(f"network {name!r}, a head for each row,", partial(ask, "per row"), count, None)
    if found:
        return found
    # (B,) or (B, *action shape)
    attempt("act", lambda: learner.act(rows.observation, index).reshape(count, -1), count, None)
    attempt("values", lambda: learner.values(rows.observation), heads, count)
    # of the active head alone: another may not have the row's action
    attempt("td_errors", lambda: learner.td_errors(rows, np.array([active])), 1, count)
    try:
        contexts = learner.consolidation(rows)
    except Exception as error:
        return [*found, f"consolidation failed for {seen} ({type(error).__name__}: {error})"]
    for name, c in contexts.items():
        for part, of in (("output", c.output), ("loss", c.loss)):
            answer = partial(lambda c, of: of(c.network(*c.inputs, head=c.head), *c.targets), c, of)
            attempt(f"the {part} of network {name!r} in consolidation", answer, count)
    return found


def _adapter(item: Any) -> ModuleType | None:
    """The adapter for the first library that ``item``'s class comes from, its bases included."""
    libraries = (base.__module__.partition(".")[0] for base in type(item).__mro__)
    found = next((ADAPTERS[name] for name in libraries if name in ADAPTERS), None)
    return None if found is None else import_module(found)
