"""A reference SAC with probabilistic critics, written as a user would write one; it knows of no tasks."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from owlrl.errors import NonFiniteError, OwlValueError, int_problem
from owlrl.gaussian import gaussian_nll
from owlrl.learners._boxes import ActionBox, check_observations
from owlrl.learners._loop import auto_device, check_successor, progress, spaces_of
from owlrl.learners.gaussian import GaussianActor, GaussianCritics
from owlrl.learners.sac_config import SAC_FAST, SACConfig
from owlrl.acting.stepping import Stepper
from owlrl.replay import TaskScopedReplay
from owlrl.td import soft_value, td_target
from owlrl.types import Transitions

__all__ = ["SAC"]

TAIL = 10  # the average that is handed over is of about the last 1/TAIL of the iterates


class SAC:
    """Soft actor-critic whose critics predict a mean and a variance, for one environment or a vector of them.

    Args:
        env: a Gymnasium environment, or a vector of them, whose actions are a bounded Box of floats.
        config: settings; `SAC_FAST` by default, `SAC_PAPER` as in the paper.
        replay: where transitions go; a `TaskScopedReplay` if left out.
        seed: of weights, exploration and replay.
        device: "auto" takes a GPU if there is one.

    >>> import gymnasium
    >>> from owlrl.learners import SAC
    >>> agent = SAC(gymnasium.make("Pendulum-v1"), seed=0)
    >>> agent.learn(510)
    >>> agent.updates, agent.predict(agent.env.reset(seed=0)[0]).shape
    (11, (1,))
    """

    def __init__(
        self,
        env: Any,
        *,
        config: SACConfig = SAC_FAST,
        replay: Any = None,
        seed: int | None = None,
        device: torch.device | str = "auto",
    ) -> None:
        observation_space, action_space = spaces_of(env)
        size = check_observations("SAC", observation_space)
        self._box = ActionBox("SAC", action_space)
        self.env = env
        self.config = config
        self.device = auto_device(device)
        self.updates = 0
        self.replay = self._new_replay(observation_space, action_space, seed) if replay is None else replay
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
        self._rng = np.random.default_rng(seed)
        self._generator = torch.Generator(self.device)
        self._generator.manual_seed(int(self._rng.integers(2**62)))
        self._seed = seed

    @property
    def alpha(self) -> float:
        """α, the price of entropy."""
        return self.log_alpha.exp().item()

    def learn(
        self,
        frames: int,
        *,
        env: Any = None,
        callback: Callable[[SAC, int], None] | None = None,
        progress_bar: bool = False,
    ) -> None:
        """Act and learn for ``frames`` frames.

        Args:
            frames: over all environments together.
            env: learn here instead of in the environment given at first.
            callback: called with the agent and the frames so far, after each step.
            progress_bar: show one (needs tqdm).
        """
        if problem := int_problem("frames", frames):
            raise OwlValueError(f"SAC.learn: {problem}")
        if env is not None:
            check_successor("SAC.learn", env, self.env)
            self.env = env
        stepper = Stepper(self.env, seed=None if self._seed is None else int(self._rng.integers(2**31)))
        settings, owed, done = self.config, 0, 0
        average = [parameter.detach().clone() for parameter in self.actor.parameters()]
        with progress("SAC.learn", frames, show=progress_bar) as bar:
            for seen in range(stepper.num_envs, frames + stepper.num_envs, stepper.num_envs):
                random = len(self.replay) < settings.learning_starts
                steps = stepper.step(self._act(stepper.observation, random=random))
                steps.add_to(self.replay)
                if len(self.replay) >= max(settings.learning_starts, settings.batch_size):
                    owed += stepper.num_envs
                    while owed >= settings.update_every:
                        self.update(self.replay.sample(settings.batch_size))
                        done += 1
                        _move(average, [*self.actor.parameters()], TAIL / (done + TAIL - 1))
                        owed -= settings.update_every
                bar.update(stepper.num_envs)
                if callback is not None:
                    callback(self, seen)
        if settings.hand_over:
            _move([*self.actor.parameters()], average, 1.0)

    def predict(self, observation: np.ndarray, *, deterministic: bool = True) -> np.ndarray:
        """The policy's action for one observation or a batch; drawn from it if not ``deterministic``."""
        batch = np.asarray(observation)
        single = batch.ndim == len(self.replay.observation_shape)
        actions = self._act(batch[None] if single else batch, deterministic=deterministic)
        return actions[0] if single else actions

    def update(self, batch: Transitions) -> dict[str, float]:
        """One gradient step of critics, policy and α on ``batch``; returns both losses and α."""
        batch = batch.to(self.device)
        observation, action = batch.observation.float(), batch.action.float()
        noise = self._noise(2, len(batch))
        alpha = self._finite(batch, "alpha", self.alpha)
        goal = self._goal(batch, alpha, noise[0])
        mean, losses = self._critic_losses(observation, action, goal)
        critic_loss = _mean(losses.sum(-1), batch.weight)
        found = {"alpha": alpha, "critic": self._finite(batch, "critic loss", critic_loss.item())}
        self._step(self.critic_optimizer, critic_loss)

        drawn, log_prob = self.actor.draw(observation, noise[1])
        value = soft_value(self.critics.means(observation, drawn).t(), log_prob, alpha)
        actor_loss = -_mean(value, batch.weight)
        found["actor"] = self._finite(batch, "actor loss", actor_loss.item())
        self._step(self.actor_optimizer, actor_loss)
        self._update_alpha(log_prob)
        self._move_targets()
        if batch.weight is not None and batch.index is not None:
            self.replay.update_priorities(batch.index, (goal - mean.mean(-1)).detach().abs().cpu())
        self.updates += 1
        return found

    def state_dict(self) -> dict[str, Any]:
        """Updates made and generators; networks, optimizers, α and replay have states of their own."""
        generator = self._generator.get_state()
        return {"updates": self.updates, "rng": self._rng.bit_generator.state, "generator": generator}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on from what ``state_dict`` gave."""
        self.updates = int(state_dict["updates"])
        self._rng.bit_generator.state = state_dict["rng"]
        self._generator.set_state(state_dict["generator"])

    def _goal(self, batch: Transitions, alpha: float, noise: Tensor) -> Tensor:
        with torch.no_grad():
            following = batch.next_observation.float()
            action, log_prob = self.actor.draw(following, noise)
            value = soft_value(self.targets.means(following, action).t(), log_prob, alpha)
            return td_target(batch.reward, batch.discount, batch.terminated, value)

    def _critic_losses(self, observation: Tensor, action: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
        """The critics' means and losses, (B, L) each."""
        apart = self.config.mean_loss == "squared"
        mean, log_variance = self.critics.moments(observation, action, apart=apart)
        if not apart:
            return mean, gaussian_nll(mean, log_variance, goal[:, None])
        likelihood = gaussian_nll(mean.detach(), log_variance, goal[:, None])
        return mean, likelihood + 0.5 * (mean - goal[:, None]).square()

    def _step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for parameter in own:
            parameter.grad = None
        # to its own parameters only: the policy's loss costs the critics no gradient
        loss.backward(inputs=own)  # type: ignore[no-untyped-call]
        optimizer.step()

    def _update_alpha(self, log_prob: Tensor) -> None:
        # the loss, −log α · mean(log π + target entropy), is linear: its gradient needs no backward pass
        self.log_alpha.grad = -(log_prob.detach().mean() + self.target_entropy)
        self.alpha_optimizer.step()

    def _move_targets(self) -> None:
        _move([*self.targets.parameters()], [*self.critics.parameters()], self.config.target_rate)

    def _finite(self, batch: Transitions, quantity: str, number: float) -> float:
        if not math.isfinite(number):
            raise NonFiniteError(
                f"SAC: task {batch.task!r}, update {self.updates + 1}: the {quantity} is {number}"
            )
        return number

    def _act(
        self, observation: np.ndarray, *, random: bool = False, deterministic: bool = False
    ) -> np.ndarray:
        if random:
            return self._box.draw(self._rng, len(observation))
        with torch.no_grad():
            seen = torch.from_numpy(np.ascontiguousarray(observation)).to(self.device).float()
            return self._box.array(self.actor.act(seen, None if deterministic else self._noise(len(seen))))

    def _noise(self, *rows: int) -> Tensor:
        return torch.randn(*rows, self._box.size, generator=self._generator, device=self.device)

    def _new_replay(self, observation: Any, action: Any, seed: int | None) -> TaskScopedReplay:
        return TaskScopedReplay(
            self.config.buffer_size,
            observation_space=observation,
            action_space=action,
            num_envs=int(getattr(self.env, "num_envs", None) or 1),
            gamma=self.config.gamma,
            seed=seed,
        )

    def __repr__(self) -> str:
        return f"SAC(alpha={self.alpha:.3g}, updates={self.updates}, device={self.device})"


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


def _mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    return losses.mean() if weight is None else (weight * losses).mean()
