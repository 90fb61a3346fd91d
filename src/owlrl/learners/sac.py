"""A reference SAC with probabilistic critics; `SAC.describe` describes it to the wrapper."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from owlrl.describe.actor_critic import ActorCriticLearner
from owlrl.describe.base import Trained
from owlrl.describe.given import as_env
from owlrl.describe.outputs import ActionBox, GaussianQ
from owlrl.describe.temperature import TaskTemperature
from owlrl.errors import OwlTypeError
from owlrl.gaussian import gaussian_nll
from owlrl.learners.compiled import ActiveParameters, CompiledStep, check_compiles
from owlrl.learners.config import SAC_FAST, SACConfig
from owlrl.learners.gaussian import GaussianActor, GaussianCritics
from owlrl.learners.loop import DescribedLoop, LearningLoop, TaskLoop
from owlrl.protocols import Stateful
from owlrl.replay import TaskScopedReplay
from owlrl.replay.ring import spaces_of
from owlrl.td import soft_value, td_target
from owlrl.types import Transitions

__all__ = ["SAC"]

TAIL = 10  # the average that is handed over is of about the last 1/TAIL of the iterates


class SAC(LearningLoop):
    """Soft actor-critic whose critics predict a mean and a variance, for one environment or a vector of them.

    Args:
        env: a Gymnasium environment (or its id), or a vector of them, whose actions are a bounded Box.
        config: settings; `SAC_FAST` by default, `SAC_PAPER` as in the paper.
        replay: where transitions go; a `TaskScopedReplay` if left out.
        seed: of weights, exploration and replay.
        device: "auto" takes a GPU if there is one.
        compile: compile targets, losses and gradients into two functions (`torch.compile`): faster for small
            networks, after some tens of seconds at the first update. Needs a C++ compiler.

    >>> import gymnasium
    >>> from owlrl.learners import SAC
    >>> agent = SAC(gymnasium.make("Pendulum-v1"), seed=0)
    >>> agent.learn(510)
    >>> agent.updates, agent.predict(agent.env.reset(seed=0)[0]).shape
    (10, (1,))

    Task after task, with heads and a temperature per task:

    >>> from owlrl import OwlWrapper
    >>> owl = OwlWrapper(SAC(gymnasium.make("Pendulum-v1"), seed=0))
    """

    config: SACConfig

    def __init__(
        self,
        env: Any,
        *,
        config: SACConfig = SAC_FAST,
        replay: Any = None,
        seed: int | None = None,
        device: torch.device | str = "auto",
        compile: bool = False,
    ) -> None:
        env = as_env(env) if isinstance(env, str) else env
        observation_space, action_space, _ = spaces_of(env)
        size = _observation_size("SAC", observation_space)
        self._box = ActionBox(action_space, where="SAC")
        if replay is None:
            replay = TaskScopedReplay.for_env(env, config.buffer_size, gamma=config.gamma, seed=seed)
        super().__init__(env, replay=replay, seed=seed, device=device)
        self.config = config
        with torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.manual_seed(seed)
            actor, critics = _networks(config, size, self._box)
        self.actor, self.critics = actor.to(self.device), critics.to(self.device)
        self.targets = copy.deepcopy(self.critics)
        rate = config.learning_rate
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=rate, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), lr=rate, fused=True)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(config.initial_alpha), device=self.device))
        self.alpha_optimizer = torch.optim.Adam([self.log_alpha], lr=rate, fused=True)
        entropy = config.target_entropy
        self.target_entropy = -float(self._box.size) if entropy is None else entropy
        self._generator = torch.Generator(self.device)
        self._generator.manual_seed(int(self._rng.integers(2**62)))
        self._critic_loss = partial(_critic_loss, apart=config.mean_loss == "squared")
        if compile:
            check_compiles("SAC", [self.actor, self.critics], self.device)
            self._compiled = {
                "critic": CompiledStep(self._critic_loss),
                "actor": CompiledStep(_actor_loss),
            }
        trained = {"actor": self.actor, "critics": self.critics, "targets": self.targets}
        self._trained = {name: ActiveParameters(network) for name, network in trained.items()}
        self._average: dict[str, Tensor] = {}  # of the policy's iterates in this task
        self._averaged = 0  # how many they are

    @property
    def alpha(self) -> float:
        """α, the weight of the entropy."""
        return self.log_alpha.exp().item()

    def predict(self, observation: np.ndarray, *, deterministic: bool = True) -> np.ndarray:
        """The policy's action for one observation or a batch; drawn from it if not ``deterministic``.

        With ``config.hand_over`` it is the averaged policy.
        """
        batch = np.asarray(observation)
        single = batch.ndim == len(self.replay.observation_shape)
        seen = self._tensor(batch[None] if single else batch).float()
        with torch.no_grad():
            output = functional_call(self.actor, self._average, (seen,))
            if deterministic:
                action = self.actor.greedy(output)
            else:
                action, _ = self.actor.sample(output, self._noise(len(seen)))
        actions = self._box.array(action)
        return actions[0] if single else actions

    def describe(self, *, init: Literal["fresh", "zero", "copy"] = "zero") -> ActorCriticLearner:
        """This agent as described to `OwlWrapper`; ``OwlWrapper(agent)`` calls it.

        Temperature and the count of random frames are per task, and the policy takes over the average when a
        task ends.

        Args:
            init: how a new task's heads start, "fresh" (random), "zero" or a "copy" of the active ones.
        """
        return _DescribedSAC(self, init=init)

    def _update(self, batch: Transitions) -> dict[str, float]:
        """Both losses and α."""
        batch = batch.to(self.device)
        dtype = self.critics.unit_scale.dtype  # that of all weights
        observation, noise = batch.observation.to(dtype), self._noise(2, len(batch))
        alpha = self._finite(batch, "alpha", self.alpha)
        price = self.log_alpha.detach().exp() if self._compiled else alpha
        rows: Any = (observation, batch.action.to(dtype), batch.reward, batch.next_observation.to(dtype))
        rows += (batch.terminated, batch.discount, batch.weight, noise[0], price)
        networks = [self.critics, self.actor, self.targets]
        loss, error = self._step("critic", self.critic_optimizer, self._critic_loss, networks, *rows)
        found = {"alpha": alpha, "critic": self._finite(batch, "critic loss", loss)}
        rows = observation, batch.weight, noise[1], price
        loss, log_prob = self._step("actor", self.actor_optimizer, _actor_loss, networks[1::-1], *rows)
        made = "the critics made their step, nothing else was changed"
        found["actor"] = self._finite(batch, "actor loss", loss, made)
        # the loss, −log α · mean(log π + target entropy), is linear: its gradient needs no backward pass
        self.log_alpha.grad = -(log_prob.mean() + self.target_entropy)
        self.alpha_optimizer.step()
        _move(self._trained["targets"](), self._trained["critics"](), self.config.target_rate)
        if batch.weight is not None and batch.index is not None:
            self.replay.update_priorities(batch.index, error.abs().cpu())
        self.updates += 1
        if self.config.hand_over:
            self._move_average()
        return found

    def loop_state(self) -> dict[str, Any]:
        """The loop's state, with the noise's generator and the average of this task's policy."""
        average = {name: tensor.clone() for name, tensor in self._average.items()}
        own = {"average": average, "averaged": self._averaged, "generator": self._generator.get_state()}
        return {**super().loop_state(), **own}

    def load_loop_state(self, state: Mapping[str, Any], *, task: bool = False) -> None:
        """Continue from what `loop_state` returned."""
        if not (task and state["clock"] < self._clock):
            self._generator.set_state(torch.as_tensor(state["generator"]))
        self._average = {name: tensor.clone() for name, tensor in state["average"].items()}
        self._averaged = int(state["averaged"])
        super().load_loop_state(state, task=task)

    def _parts(self) -> dict[str, Stateful]:
        return {
            "actor": self.actor,
            "critics": self.critics,
            "targets": self.targets,
            "actor_optimizer": self.actor_optimizer,
            "critic_optimizer": self.critic_optimizer,
            "temperature": TaskTemperature(self.log_alpha, self.alpha_optimizer),
        }

    def _move_average(self) -> None:
        """Average over about the last 1/TAIL of this task's iterates, each weighing as the others."""
        policy = self._trained["actor"]()
        if len(self._average) != len(policy):
            names = {id(p): name for name, p in self.actor.named_parameters()}
            self._average, self._averaged = {names[id(p)]: p.detach().clone() for p in policy}, 0
        self._averaged += 1
        _move([*self._average.values()], policy, TAIL / (self._averaged + TAIL - 1))

    def _take_average(self) -> None:
        if self._average:
            named = dict(self.actor.named_parameters())
            _move([named[name] for name in self._average], [*self._average.values()], 1.0)
        self._average, self._averaged = {}, 0

    def _act(self, observation: np.ndarray, *, random: bool) -> np.ndarray:
        if random:
            return self._box.draw(self._rng, len(observation))
        with torch.no_grad():
            seen = self._tensor(observation).float()
            return self._box.array(self.actor.act(seen, self._noise(len(seen))))

    def _noise(self, *rows: int) -> Tensor:
        return torch.randn(*rows, self._box.size, generator=self._generator, device=self.device)

    def __repr__(self) -> str:
        return f"SAC(alpha={self.alpha:.3g}, updates={self.updates}, device={self.device})"


class _DescribedSAC(DescribedLoop, ActorCriticLearner):
    def __init__(self, agent: SAC, *, init: Literal["fresh", "zero", "copy"]) -> None:
        self.agent = agent
        super().__init__(
            Trained(agent.actor, agent.actor_optimizer, output=agent.actor, init=init),
            Trained(agent.critics, agent.critic_optimizer, agent.targets, output=GaussianQ(), init=init),
            temperature=(agent.log_alpha, agent.alpha_optimizer),
            replay=agent.replay,
            gamma=agent.config.gamma,
            per_task={"loop": TaskLoop(agent)},
        )


def _observation_size(where: str, space: Any) -> int:
    """How many numbers an observation has; spaces without one shape are refused."""
    shape = getattr(space, "shape", None)
    if shape is None:
        raise OwlTypeError(
            f"{where}: the observation space is {space}; expected a Box "
            "(gymnasium.wrappers.FlattenObservation makes one)"
        )
    return int(np.prod(shape))


def _networks(config: SACConfig, size: int, box: ActionBox) -> tuple[GaussianActor, GaussianCritics]:
    low, high = box.low.ravel(), box.high.ravel()
    actor = GaussianActor(size, low, high, hidden=config.actor_hidden, log_std=config.log_std)
    critics = GaussianCritics(
        size,
        low,
        high,
        hidden=config.critic_hidden,
        count=config.num_critics,
        log_variance=config.log_variance,
    )
    return actor, critics


def _move(tensors: Sequence[Tensor], towards: Sequence[Tensor], rate: float) -> None:
    with torch.no_grad():
        torch._foreach_lerp_(list(tensors), list(towards), rate)


def _critic_loss(
    critics: GaussianCritics,
    actor: GaussianActor,
    targets: GaussianCritics,
    observation: Tensor,
    action: Tensor,
    reward: Tensor,
    following: Tensor,
    terminated: Tensor,
    discount: Tensor,
    weight: Tensor | None,
    noise: Tensor,
    alpha: Tensor | float,
    *,
    apart: bool,
) -> tuple[Tensor, Tensor]:
    """Sum of the critics' losses; TD errors of their mean (B,). ``apart``: means learn by squared errors."""
    with torch.no_grad():
        drawn, log_prob = actor.draw(following, noise)
        value = soft_value(targets.means(following, drawn).t(), log_prob, alpha)
        goal = td_target(reward, discount, terminated, value)
    mean, log_variance = critics.moments(observation, action, apart=apart)  # (B, L) each
    losses = gaussian_nll(mean.detach() if apart else mean, log_variance, goal[:, None])
    if apart:
        losses = losses + 0.5 * (mean - goal[:, None]).square()
    return _mean(losses.sum(-1), weight), goal - mean.mean(-1)


def _actor_loss(
    actor: GaussianActor,
    critics: GaussianCritics,
    observation: Tensor,
    weight: Tensor | None,
    noise: Tensor,
    alpha: Tensor | float,
) -> tuple[Tensor, Tensor]:
    """Minus the soft value of drawn actions; their log-densities (B,)."""
    drawn, log_prob = actor.draw(observation, noise)
    value = soft_value(critics.means(observation, drawn).t(), log_prob, alpha)
    return -_mean(value, weight), log_prob


def _mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    return losses.mean() if weight is None else (weight * losses).mean()
