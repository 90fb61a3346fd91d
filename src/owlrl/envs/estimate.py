"""`estimate_interference`: how much trained heads contradict each other, for tasks without a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from owlrl.envs._checks import real_problem
from owlrl.envs.conflict import contradiction
from owlrl.errors import NonFiniteError, OwlTypeError, OwlValueError, raise_problems
from owlrl.heads.modes import eval_mode
from owlrl.wrapper import OwlWrapper

__all__ = ["estimate_interference"]


def estimate_interference(
    owl: OwlWrapper,
    observations: npt.ArrayLike,
    *,
    tasks: Sequence[str] | None = None,
    tolerance: float = 0.005,
) -> float:
    """The share of ``observations`` for which the heads of the learned tasks have no good action in common.

    What `interference` finds from tables, looked up in trained heads instead: an estimate, as good as their
    values are. An action is good for a head if its value is within ``tolerance`` of the best, relative to
    the best: at a discount of 0.99 a wasted step costs a hundredth.

    Args:
        owl: has learned the tasks, with a Q-network (discrete actions).
        observations: (N, ...), ones that occur in all of the tasks.
        tasks: which of the learned tasks are compared; all by default.
        tolerance: how much worse than the best a good action may be.

    >>> import numpy as np, torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay
    >>> from owlrl.envs import estimate_interference
    >>> q = MultiHeadQ(nn.Linear(2, 8), 8, 3)
    >>> replay = TaskScopedReplay(100, observation_shape=(2,), observation_dtype=np.float32)
    >>> owl = OwlWrapper(QLearner(q, None, torch.optim.SGD(q.parameters(), 0.1), replay=replay))
    >>> for task, action in (("left", 0), ("right", 2)):
    ...     with owl.task(task) as record, torch.no_grad():
    ...         replay.add(np.ones(2, np.float32), action, 1.0, np.ones(2, np.float32), True, False)
    ...         _ = q.heads[record.head].bias[action].add_(100.0)  # as if it had learned that this pays
    >>> estimate_interference(owl, np.ones((4, 2), np.float32))
    1.0
    """
    where, learned = "estimate_interference", [name for name, record in owl.tasks.items() if record.visits]
    chosen = learned if tasks is None else list(tasks)
    problems = real_problem("tolerance", tolerance, least=0, most=1)
    problems += [
        f"task {name!r} has not been learned; learned are {learned}" for name in chosen if name not in learned
    ]
    if len(set(chosen)) < 2:
        problems.append(f"got the tasks {chosen}; expected at least 2 different ones")
    raise_problems(where, problems)
    networks = owl.learner.networks
    if list(networks) != ["q"]:
        raise OwlTypeError(
            f"{where}: the learner has the networks {list(networks)}; expected a Q-network alone"
        )
    values = _values(owl, np.asarray(observations))[[owl.tasks[name].head for name in chosen]]
    if not np.isfinite(values).all():
        raise NonFiniteError(
            f"{where}: some of the values are NaN or infinite; expected finite observations and heads"
        )
    best = values.max(axis=2, keepdims=True)
    good = values >= best - tolerance * np.abs(best)
    return contradiction(good)[1]


def _values(owl: OwlWrapper, observations: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values (H, N, A) of every head."""
    if observations.ndim < 2 or not len(observations):
        raise OwlValueError(
            f"estimate_interference: observations have shape {observations.shape}; expected a batch (N, ...)"
        )
    network = owl.learner.networks["q"]
    with torch.no_grad(), eval_mode(network.module):
        values: npt.NDArray[Any] = (
            network.all_heads(owl.learner.prepare(torch.as_tensor(observations))).cpu().numpy()
        )
    return values
