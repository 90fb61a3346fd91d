"""What can be wrong with a described actor and its critics, found without changing anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.describe._problems import head_problems, ownership_problems, target_problems
from owlrl.describe._trained import TrainedNetwork
from owlrl.describe.outputs import CriticOutput, QValues
from owlrl.heads.growth import owning_group
from owlrl.heads.modes import probing
from owlrl.heads.view import joined

__all__ = [
    "alpha_problems",
    "optimizer_problems",
    "part_problems",
    "probe_problems",
    "reading_problems",
    "replay_problems",
]


def part_problems(
    critics: Sequence[object],
    target_critics: Sequence[object] | None,
    critic_optimizers: Sequence[object] | None,
) -> list[str]:
    """Types and counts of what comes in several; None stands for "one for all" or "there is none"."""
    found = [
        f"critics[{k}] is a {type(critic).__name__}; expected an nn.Module"
        for k, critic in enumerate(critics)
        if not isinstance(critic, nn.Module)
    ]
    if not critics:
        found.append("critics is empty; expected an nn.Module or several")
    if len({id(c) for c in critics}) < len(critics):
        found.append("critics holds the same module twice; expected networks of their own")
    for name, several in (("target_critics", target_critics), ("critic_optimizer", critic_optimizers)):
        if several is not None and len(several) != len(critics):
            found.append(f"{name} has {len(several)} entries for {len(critics)} critics; expected one each")
    for k, (critic, target) in enumerate(zip_longest(critics, target_critics or ())):
        if critic is not None and target is not None:
            found += target_problems(f"target_critics[{k}]", target, f"critics[{k}]", critic)
    return found


def optimizer_problems(trained: Mapping[str, TrainedNetwork]) -> list[str]:
    """Optimizers that are none, or do not hold what they are to train.

    Output layers must be in their own network's optimizer, which grows with them; any other
    trained parameter may be in another's (a trunk that actor and critics share).
    """
    found = []
    for name, part in trained.items():
        argument = _argument(name)
        if not isinstance(part.optimizer, Optimizer):
            kind = type(part.optimizer).__name__
            found.append(f"{argument} is a {kind}; expected a torch.optim.Optimizer")
        elif isinstance(part.network, nn.Module):
            found += _unowned(name, trained)
    return list(dict.fromkeys(found))


def alpha_problems(log_alpha: object, optimizer: object, alpha: object) -> list[str]:
    """Whether a temperature is described once, and can be trained."""
    found = []
    if alpha is not None:
        number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
        if not number or not (math.isfinite(alpha) and alpha >= 0):  # type: ignore[arg-type,operator]
            found.append(
                f"alpha is {alpha!r}; expected a finite number >= 0, or log_alpha= for a learned one"
            )
        if log_alpha is not None:
            found.append("alpha and log_alpha are both given; pass the fixed or the learned temperature")
    if log_alpha is None:
        if optimizer is not None:
            found.append("alpha_optimizer is given without log_alpha; pass the tensor that it trains")
        return found
    if not isinstance(log_alpha, Tensor):
        kind = type(log_alpha).__name__
        return [*found, f"log_alpha is a {kind}; expected a tensor of one element that is trained"]
    if not (log_alpha.is_leaf and log_alpha.requires_grad) or log_alpha.numel() != 1:
        found.append(
            f"log_alpha has shape {tuple(log_alpha.shape)}, requires_grad={log_alpha.requires_grad} and "
            f"is_leaf={log_alpha.is_leaf}; expected a leaf of one element, e.g. "
            "torch.zeros(1, requires_grad=True)"
        )
    elif not bool(torch.isfinite(log_alpha.detach().exp()).all()):
        value = float(log_alpha.detach())
        found.append(f"log_alpha is {value}, so that alpha is not finite; expected a finite number")
    if not isinstance(optimizer, Optimizer):
        kind = type(optimizer).__name__
        found.append(f"alpha_optimizer is a {kind}; expected the torch.optim.Optimizer of log_alpha")
    elif [p for group in optimizer.param_groups for p in group["params"] if p is not log_alpha]:
        found.append(
            "alpha_optimizer holds other parameters than log_alpha; expected one of its own: its state is "
            "kept per task"
        )
    elif owning_group(optimizer, log_alpha) is None:
        found.append("alpha_optimizer does not hold log_alpha; expected one built from [log_alpha]")
    return found


def reading_problems(distribution: object, q: object, calls: Mapping[str, object]) -> list[str]:
    """Whether the objects that read outputs, and the functions that ask for them, are such."""
    found = []
    for argument, item, members, example in (
        ("distribution", distribution, ("greedy", "sample"), "TanhGaussian()"),
        ("q", q, ("values", "loss"), "QValues()"),
    ):
        if missing := [name for name in members if not callable(getattr(item, name, None))]:
            found.append(
                f"{argument} is {item!r} and lacks {', '.join(missing)}; expected e.g. "
                f"owlrl.describe.outputs.{example}"
            )
        elif isinstance(item, type):
            found.append(f"{argument} is the class {item.__name__}; expected an object, {item.__name__}(...)")
    for argument, call in calls.items():
        if call is not None and not callable(call):
            found.append(f"{argument} is {call!r}; expected a function of the network and its inputs")
    return found


def replay_problems(replay: object) -> list[str]:
    """Whether a replay that says what it holds has room for vectors of real numbers as actions."""
    shape, dtype = getattr(replay, "action_shape", None), getattr(replay, "action_dtype", None)
    if shape is None or dtype is None or (len(shape) == 1 and np.dtype(dtype).kind == "f"):
        return []
    return [
        f"the replay's actions are {dtype} of shape {tuple(shape)}; expected floating ones of shape (A,); "
        "make it with action_shape=(A,) and action_dtype=np.float32, or with action_space="
    ]


def probe_problems(
    trained: Mapping[str, TrainedNetwork],
    example: Callable[[], tuple[Tensor, Tensor]],
    *,
    action_shape: tuple[int, ...] | None,
    q: CriticOutput | None,
) -> list[str]:
    """What shows when the networks are asked once: whether heads can be given, and outputs be read.

    Args:
        trained: actor and critics.
        example: gives one observation and the actor's greedy action for it.
        action_shape: the shape of an action in the replay, where it is known.
        q: how critics are read, if it was told.
    """
    try:
        observation, action = example()
    except Exception as error:  # anything may come: the actor and preprocess are the user's
        if all(part.knows_layers for part in trained.values()):
            return [p for name in trained for p in _layer_problems(name, trained, ())]
        return [
            f"the actor could not be asked for an action ({type(error).__name__}: {error}); let the replay "
            "tell the observation's shape (TaskScopedReplay), pass call_actor= or distribution= if it "
            "answers otherwise, or layers= with the names of all output layers"
        ]
    found = []
    if action.dim() != 2 or (action_shape is not None and tuple(action.shape[1:]) != action_shape):
        expected = "(A,)" if action_shape is None else action_shape
        found.append(
            f"the actor's action has shape {tuple(action.shape[1:])}; expected {expected}, as in the replay; "
            "pass distribution= to say how its output is read"
        )
    for name, part in trained.items():
        inputs = (observation,) if name == "actor" else (observation, action)
        problems = _layer_problems(name, trained, inputs)
        if name != "actor" and not problems:
            problems = _critic_problems(name, part, inputs, q)
        found += problems
    return found


def _layer_problems(
    name: str, trained: Mapping[str, TrainedNetwork], inputs: tuple[Tensor, ...]
) -> list[str]:
    """Whether the output layers can be given heads, and are in their own network's optimizer."""
    part = trained[name]
    found = head_problems(name, part, lambda: inputs)
    if found or _unowned(name, trained):  # the latter was said already
        return found
    ends = {
        f"{layer}.{n}": p
        for layer in part.output_layers(inputs)
        for n, p in part.network.get_submodule(layer).named_parameters()
    }
    return ownership_problems(name, _argument(name), ends, [part.optimizer])


def _critic_problems(
    name: str, part: TrainedNetwork, inputs: tuple[Tensor, ...], q: CriticOutput | None
) -> list[str]:
    try:
        with torch.no_grad(), probing(part.network):
            raw = part.network(*inputs) if part.call is None else part.call(part.network, *inputs)
            output, reading = joined(raw), q or QValues()
            values, loss = reading.values(output), reading.loss(output, torch.zeros(1).to(output))
    except Exception as error:  # somebody's network and functions
        return [f"{name} could not be read ({type(error).__name__}: {error}); pass call_critic= or q="]
    if q is None and isinstance(raw, Tensor) and output.shape[1] > 1:
        return [
            f"{name} gave {output.shape[1]} columns; say how they are read with q=: "
            "owlrl.describe.outputs.QValues() if each is a Q-value, GaussianQ() for means and log-variances"
        ]
    if values.dim() != 2 or len(values) != 1 or loss.shape != (1,):
        return [
            f"{name} is read as values of shape {tuple(values.shape)} and a loss of shape "
            f"{tuple(loss.shape)} for one row; expected (1, K) and (1,)"
        ]
    return []


def _unowned(name: str, trained: Mapping[str, TrainedNetwork]) -> list[str]:
    own = {n: p for n, p in trained[name].network.named_parameters() if p.requires_grad}
    return ownership_problems(name, _argument(name), own, [part.optimizer for part in trained.values()])


def _argument(name: str) -> str:
    return "actor_optimizer" if name == "actor" else "critic_optimizer"
