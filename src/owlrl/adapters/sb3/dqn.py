"""DQN of Stable-Baselines3 and QR-DQN of sb3-contrib, described as a `owlrl.describe.q_learner.QLearner`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from owlrl.adapters.sb3.observations import ObservationRows
from owlrl.describe.q_learner import QLearner
from owlrl.heads.view import NetworkView
from owlrl.protocols import Stateful, TaskReplay

__all__ = ["describe_dqn"]


def describe_dqn(
    model: Any,
    *,
    observations: ObservationRows,
    replay: TaskReplay,
    per_task: Mapping[str, Stateful],
    layers: Sequence[str] | None = None,
    init: Literal["fresh", "zero", "copy"] = "fresh",
) -> QLearner:
    """The model's networks, optimizer and settings; a QR-DQN's Q-values are the means of its quantiles.

    >>> from stable_baselines3 import DQN
    >>> from owlrl.adapters.sb3.dqn import describe_dqn
    >>> from owlrl.adapters.sb3.observations import ObservationRows
    >>> model = DQN("MlpPolicy", "CartPole-v1", buffer_size=10)
    >>> rows = ObservationRows(model.observation_space)
    >>> describe_dqn(model, observations=rows, replay=None, per_task={}).double
    False
    """
    quantiles = hasattr(model, "quantile_net")

    def ask(network: nn.Module, rows: Tensor) -> Tensor:
        out: Tensor = network(observations.unpack(rows))  # (B, A), or (B, quantiles, A)
        return out.mean(1) if quantiles else out

    online, target = (
        (model.quantile_net, model.quantile_net_target) if quantiles else (model.q_net, model.q_net_target)
    )
    return QLearner(
        NetworkView(online, ask),
        NetworkView(target, ask),
        model.policy.optimizer,
        replay=replay,
        gamma=model.gamma,
        double=False,
        per_task=per_task,
        preprocess=observations.prepare,
        layers=layers,
        init=init,
    )
