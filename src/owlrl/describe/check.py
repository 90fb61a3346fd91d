"""`check_learner`: everything that is wrong with a learner, said at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from owlrl.describe.given import as_learner
from owlrl.errors import OwlTypeError, raise_problems
from owlrl.protocols import MultiHead, OffPolicyLearner, Stateful, TaskReplay, missing_members

__all__ = ["check_bound", "check_learner", "part_problem"]


def check_learner(learner: Any) -> None:
    """Raise one error that names every way in which ``learner`` cannot be wrapped; else return.

    Nothing of the learner is changed. As for `OwlWrapper`, it may be a Stable-Baselines3 model.

    >>> from owlrl import check_learner
    >>> check_learner(object())
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlTypeError: check_learner: object misses act, add_head, bind, consolidation, gamma, \
networks, optimizers, per_task, prepare, problems, replay, set_env, targets, td_errors, unbind, values; \
describe a DQN with QLearner(q, target, optimizer, replay=...), an actor with critics with \
ActorCriticLearner(actor, critics, ...), or write these as owlrl.protocols.OffPolicyLearner says
    """
    learner = as_learner(learner)
    if isinstance(learner, type):
        name = learner.__name__
        raise OwlTypeError(f"check_learner: got the class {name}; expected an object, {name}(...)")
    if missing := missing_members(learner, OffPolicyLearner):
        raise OwlTypeError(
            f"check_learner: {type(learner).__name__} misses {', '.join(missing)}; describe a DQN with "
            "QLearner(q, target, optimizer, replay=...), an actor with critics with "
            "ActorCriticLearner(actor, critics, ...), or write these as owlrl.protocols.OffPolicyLearner says"
        )
    raise_problems(f"check_learner: {type(learner).__name__}", learner.problems())


def check_bound(learner: OffPolicyLearner) -> list[str]:
    """What is wrong with a learner whose networks have their heads: names, pointers, optimizers.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.describe.check import check_bound
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

    >>> from owlrl.describe.check import part_problem
    >>> from owlrl.protocols import Stateful
    >>> part_problem("schedule", 3, Stateful, "an optimizer")
    ['schedule is a int and lacks load_state_dict, state_dict; expected a Stateful, e.g. an optimizer']
    """
    if missing := missing_members(item, protocol):
        got = f"the class {item.__name__}" if isinstance(item, type) else f"a {type(item).__name__}"
        lacks = ", ".join(missing)
        return [f"{name} is {got} and lacks {lacks}; expected a {protocol.__name__}, e.g. {example}"]
    return []


def _kinds(name: str, items: Mapping[str, object], kind: type) -> list[str]:
    return [
        f"{name}[{key!r}] is a {type(item).__name__}; expected a {kind.__name__}"
        for key, item in items.items()
        if (missing_members(item, kind) if kind is not Optimizer else not isinstance(item, Optimizer))
    ]
