"""SAC, TD3 and DDPG of Stable-Baselines3, described as a `owlrl.describe.actor_critic.ActorCriticLearner`.

A model keeps actions scaled to [−1, 1]; what is described here takes and gives them in the
environment's units, which is what a policy sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.adapters.sb3.observations import ObservationRows
from owlrl.describe.actor_critic import ActorCriticLearner
from owlrl.describe.outputs import Deterministic, Distribution, TanhGaussian
from owlrl.protocols import Stateful, TaskReplay

__all__ = ["ActionBox", "ScaledActions", "TaskParameter", "describe_actor_critic"]


class ActionBox:
    """A Box of actions between [−1, 1] and the environment's units.

    >>> import torch
    >>> from gymnasium import spaces
    >>> from owlrl.adapters.sb3.actor_critic import ActionBox
    >>> box = ActionBox(spaces.Box(-2.0, 6.0, (1,)))
    >>> box.unscale(torch.tensor([[0.5]])), box.scale(torch.tensor([[4.0]]))
    (tensor([[4.]]), tensor([[0.5000]]))
    """

    def __init__(self, space: Any) -> None:
        low, high = (torch.as_tensor(b, dtype=torch.float32).flatten() for b in (space.low, space.high))
        self._half, self._middle = (high - low) / 2, (high + low) / 2

    def scale(self, action: Tensor) -> Tensor:
        """To [−1, 1]; (..., A) → (..., A)."""
        return (action - self._middle.to(action)) / self._half.to(action)

    def unscale(self, action: Tensor) -> Tensor:
        """To the environment's units; (..., A) → (..., A)."""
        return action * self._half.to(action) + self._middle.to(action)


@dataclass(frozen=True)
class ScaledActions:
    """A distribution of actions in [−1, 1], given in the environment's units.

    The density stays that of the scaled action, as in the model's own targets.

    >>> import torch
    >>> from gymnasium import spaces
    >>> from owlrl.adapters.sb3.actor_critic import ActionBox, ScaledActions
    >>> from owlrl.describe.outputs import TanhGaussian
    >>> box = ActionBox(spaces.Box(-2.0, 2.0, (1,)))
    >>> ScaledActions(TanhGaussian(), box).greedy(torch.tensor([[9.0, 0.0]]))
    tensor([[2.0000]])
    """

    unit: Distribution
    box: ActionBox

    def greedy(self, output: Tensor) -> Tensor:
        """The action without noise, (..., A)."""
        return self.box.unscale(self.unit.greedy(output))

    def sample(self, output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """An action (..., A), and the log-density (...) of its scaled form."""
        action, log_prob = self.unit.sample(output, noise)
        return self.box.unscale(action), log_prob


class TaskParameter:
    """A parameter beside the networks' heads that every task has of its own, with its optimizer's state.

    For the noise of gSDE: how much a task is explored is not to be carried over to the next.

    >>> import torch
    >>> from owlrl.adapters.sb3.actor_critic import TaskParameter
    >>> parameter = torch.nn.Parameter(torch.zeros(2))
    >>> own = TaskParameter(parameter, torch.optim.Adam([parameter]))
    >>> fresh = own.state_dict()
    >>> _ = parameter.data.fill_(3.0)
    >>> own.load_state_dict(fresh)
    >>> parameter.data
    tensor([0., 0.])
    """

    def __init__(self, parameter: nn.Parameter, optimizer: Optimizer) -> None:
        self.parameter = parameter
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """The value, and what the optimizer keeps of it."""
        kept = self.optimizer.state.get(self.parameter, {})
        return {"value": self.parameter.detach().clone(), "optimizer": dict(kept)}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Put both back in place."""
        with torch.no_grad():
            self.parameter.copy_(state_dict["value"])
        self.parameter.grad = None
        self.optimizer.state.pop(self.parameter, None)
        if state_dict["optimizer"]:
            self.optimizer.state[self.parameter] = dict(state_dict["optimizer"])


def describe_actor_critic(
    model: Any,
    *,
    observations: ObservationRows,
    replay: TaskReplay,
    per_task: Mapping[str, Stateful],
    layers: Mapping[str, Sequence[str]] | None = None,
    init: Literal["fresh", "zero", "copy"] = "fresh",
) -> ActorCriticLearner:
    """The model's networks, optimizers, temperature and settings.

    With gSDE only the mean of the actions is described: TD errors leave the entropy out, and
    the noise's parameters, which are no output layer, are kept per task.

    >>> from stable_baselines3 import TD3
    >>> from owlrl.adapters.sb3.actor_critic import describe_actor_critic
    >>> from owlrl.adapters.sb3.observations import ObservationRows
    >>> model = TD3("MlpPolicy", "Pendulum-v1", buffer_size=10)
    >>> rows = ObservationRows(model.observation_space)
    >>> describe_actor_critic(model, observations=rows, replay=None, per_task={})
    ActorCriticLearner(Actor, ContinuousCritic)
    """
    box = ActionBox(model.action_space)
    gaussian = hasattr(model, "ent_coef") and not model.use_sde

    def ask_actor(actor: Any, rows: Tensor) -> Any:
        seen = observations.unpack(rows)
        if gaussian:
            return actor.get_action_dist_params(seen)[:2]  # mean and log-std, (B, A) each
        unit = actor.get_action_dist_params(seen)[0].tanh() if model.use_sde else actor(seen)
        return box.unscale(unit)

    def ask_critic(critic: nn.Module, rows: Tensor, action: Tensor) -> Any:
        return critic(observations.unpack(rows), box.scale(action))  # (B, 1) per critic inside

    own = dict(per_task)
    if model.use_sde:
        own["log_std"] = TaskParameter(model.actor.log_std, model.actor.optimizer)
    learned = getattr(model, "ent_coef_optimizer", None) is not None
    fixed = getattr(model, "ent_coef_tensor", None)
    return ActorCriticLearner(
        model.actor,
        model.critic,
        actor_optimizer=model.actor.optimizer,
        critic_optimizer=model.critic.optimizer,
        target_critics=model.critic_target,
        target_actor=getattr(model, "actor_target", None),
        log_alpha=model.log_ent_coef if learned else None,
        alpha_optimizer=model.ent_coef_optimizer if learned else None,
        alpha=None if learned or fixed is None else float(fixed),
        replay=replay,
        gamma=model.gamma,
        distribution=ScaledActions(TanhGaussian(), box) if gaussian else Deterministic(),
        call_actor=ask_actor,
        call_critic=ask_critic,
        per_task=own,
        preprocess=observations.prepare,
        layers=layers,
        init=init,
    )
