"""What can be wrong with the parts of a learner that somebody describes, found without changing anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.describe._trained import TrainedNetwork
from owlrl.heads import MultiHeadLinear
from owlrl.heads.growth import HEAD_INITS, owning_group
from owlrl.protocols import Stateful, TaskReplay, missing_members

__all__ = [
    "common_problems",
    "head_problems",
    "loss_problems",
    "ownership_problems",
    "target_problems",
]


def common_problems(
    *, gamma: object, replay: object, per_task: Mapping[str, object], init: object, preprocess: object
) -> list[str]:
    """What every described learner has: discount, replay, schedules, the start of a head."""
    found = []
    if isinstance(gamma, bool) or not isinstance(gamma, int | float) or not 0 <= gamma <= 1:
        found.append(f"gamma is {gamma!r}; expected a number from 0 to 1")
    if replay is not None and (missing := missing_members(replay, TaskReplay)):
        found.append(
            f"replay is a {type(replay).__name__} and lacks {', '.join(missing)}; expected a "
            "TaskScopedReplay, a list or deque of transitions, or the ReplayBuffer of CleanRL's scripts"
        )
    replayed = getattr(replay, "gamma", gamma)
    if replayed != gamma:
        found.append(f"gamma is {gamma!r} but the replay's is {replayed!r}; give both the same")
    for name, item in per_task.items():
        if missing_members(item, Stateful) or isinstance(item, Optimizer):
            found.append(
                f"per_task[{name!r}] is a {type(item).__name__}; expected an object with state_dict and "
                "load_state_dict that is not an optimizer (those grow with the heads)"
            )
    if init not in HEAD_INITS:
        found.append(f"init is {init!r}; expected one of {HEAD_INITS}")
    if preprocess is not None and not callable(preprocess):
        found.append(f"preprocess is {preprocess!r}; expected a function of a batch of observations")
    return found


def loss_problems(loss: Callable[..., Tensor]) -> list[str]:
    """Whether ``loss(q, target, reduction="none")`` gives a number per row."""
    try:
        shape = tuple(loss(torch.zeros(3), torch.ones(3), reduction="none").shape)
    except Exception as error:  # somebody's function
        return [
            f"loss could not be called ({type(error).__name__}: {error}); expected "
            'loss(q, target, reduction="none") -> a number per row, as torch.nn.functional.smooth_l1_loss'
        ]
    return [] if shape == (3,) else [f"loss gave shape {shape} for 3 rows; expected (3,), a number per row"]


def target_problems(name: str, target: object, online_name: str, online: object) -> list[str]:
    """Whether a target network is a copy of its online network with parameters of its own."""
    if not isinstance(target, nn.Module):
        return [f"{name} is a {type(target).__name__}; expected an nn.Module or None"]
    if not isinstance(online, nn.Module):
        return []
    own = {id(p) for p in online.parameters()}
    if any(id(p) in own for p in target.parameters()):
        return [
            f"{name} is {online_name} itself or shares parameters with it; expected "
            f"copy.deepcopy({online_name}), or None"
        ]
    shapes, others = (
        {n: tuple(p.shape) for n, p in module.named_parameters()} for module in (online, target)
    )
    if shapes != others:
        odd = sorted(n for n in {*shapes, *others} if shapes.get(n) != others.get(n))
        return [
            f"{name}'s parameters differ from {online_name}'s in {odd}; expected the same names and shapes"
        ]
    return []


def head_problems(
    name: str, trained: TrainedNetwork, example: Callable[[], Tensor | Sequence[Tensor] | None]
) -> list[str]:
    """Whether the network's output layers can be given heads."""
    if any(isinstance(m, MultiHeadLinear) for m in trained.network.modules()):
        return [f"{name} has been given heads already; unwrap() its OwlWrapper first"]
    try:
        trained.output_layers(example())
    except Exception as error:  # the network and preprocess are the user's: anything may come
        said = str(error).replace("\n", "\n  ")  # its own list, one level deeper
        return [f"{name} cannot be given heads: {type(error).__name__}: {said}"]
    return []


def ownership_problems(
    name: str, optimizer_name: str, parameters: Mapping[str, Tensor], optimizers: Iterable[Any]
) -> list[str]:
    """Parameters that none of the optimizers holds."""
    known = [o for o in optimizers if isinstance(o, Optimizer)]
    missing = [n for n, p in parameters.items() if all(owning_group(o, p) is None for o in known)]
    if not missing or not known:
        return []
    return [
        f"{optimizer_name} does not hold {name}'s parameters {missing}; expected one built from "
        f"{name}.parameters() (a deep copy of the network or of the optimizer holds other tensors)"
    ]
