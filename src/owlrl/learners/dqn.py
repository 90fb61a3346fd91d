"""A reference DQN, written as a user would write one; it knows nothing of tasks or of `OwlWrapper`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from owlrl.errors import NonFiniteError, OwlTypeError, OwlValueError, int_problem
from owlrl.heads import MultiHeadQ
from owlrl.learners._loop import auto_device, progress, spaces_of
from owlrl.learners.dqn_config import FAST, DQNConfig
from owlrl.learners.encoders import default_trunk
from owlrl.learners.schedules import EpsilonSchedule
from owlrl.learners.stepping import Stepper
from owlrl.modes import parameters_of
from owlrl.replay import TaskScopedReplay
from owlrl.td import double_q_value, max_q_value, taken, td_target
from owlrl.types import Transitions

__all__ = ["DQN"]


class DQN:
    """Deep Q-learning with the usual improvements, for one environment or a vector of them.

    Args:
        env: a Gymnasium environment, or a vector of them, with discrete actions.
        config: settings; `FAST` by default, `PAPER` as in the paper.
        trunk: a module from observations to ``feature_dim`` features; chosen by the
            observation space if left out.
        feature_dim: the trunk's output size.
        head: makes heads of another kind, ``head(feature_dim, num_actions) -> nn.Module``; left out, they
            are linear, or have two streams as ``config.dueling`` says.
        replay: where transitions go; a `TaskScopedReplay` if left out.
        seed: of weights, exploration and replay.
        device: "auto" takes a GPU if there is one.

    >>> import gymnasium
    >>> from owlrl.learners import DQN
    >>> agent = DQN(gymnasium.make("CartPole-v1"), seed=0)
    >>> agent.learn(1_200)
    >>> agent.updates > 0
    True

    A head of two layers:

    >>> from torch import nn
    >>> def two_layers(features, actions):
    ...     return nn.Sequential(nn.Linear(features, 64), nn.ReLU(), nn.Linear(64, actions))
    >>> len(DQN(gymnasium.make("CartPole-v1"), head=two_layers).q.heads[0])
    3
    """

    def __init__(
        self,
        env: Any,
        *,
        config: DQNConfig = FAST,
        trunk: nn.Module | None = None,
        feature_dim: int | None = None,
        head: Callable[[int, int], nn.Module] | None = None,
        replay: Any = None,
        seed: int | None = None,
        device: torch.device | str = "auto",
    ) -> None:
        observation_space, action_space = spaces_of(env)
        if not hasattr(action_space, "n"):
            raise OwlTypeError(f"DQN: the action space is {action_space}; expected Discrete")
        if (trunk is None) != (feature_dim is None):
            raise OwlValueError("DQN: trunk and feature_dim go together; pass both or neither")
        self.env = env
        self.config = config
        self.num_actions = int(action_space.n)
        self.device = auto_device(device)
        self.updates = 0
        self.head_of: Callable[[Transitions], int | None] = lambda batch: None
        """Which head a batch trains, None for the active one; rehearsal of old tasks sets it."""
        self.replay = self._new_replay(observation_space, seed) if replay is None else replay
        self.epsilon = EpsilonSchedule(
            *config.epsilon, frames=config.epsilon_frames, shape=config.epsilon_shape
        )
        with torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.manual_seed(seed)
            if trunk is None or feature_dim is None:
                trunk, feature_dim = default_trunk(observation_space)
            dueling = config.dueling and head is None
            q = MultiHeadQ(trunk, feature_dim, self.num_actions, dueling=dueling, head=head)
        self.q = q.to(self.device)
        self.target = copy.deepcopy(self.q)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=config.learning_rate, fused=True)
        self._rng = np.random.default_rng(seed)
        self._seed = seed

    def learn(
        self,
        frames: int,
        *,
        env: Any = None,
        callback: Callable[[DQN, int], None] | None = None,
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
            raise OwlValueError(f"DQN.learn: {problem}")
        self.env = self.env if env is None else env
        stepper = Stepper(self.env, seed=None if self._seed is None else int(self._rng.integers(2**31)))
        settings, owed = self.config, 0
        with progress("DQN.learn", frames, show=progress_bar) as bar:
            for seen in range(stepper.num_envs, frames + stepper.num_envs, stepper.num_envs):
                random = seen <= settings.learning_starts
                steps = stepper.step(self.explore(stepper.observation, 1.0 if random else self.epsilon.value))
                steps.add_to(self.replay)
                if self.epsilon.seen or not settings.epsilon_waits or steps.reward[steps.real].any():
                    self.epsilon.advance(stepper.num_envs)
                if not random and len(self.replay) >= settings.batch_size:
                    owed += stepper.num_envs
                    while owed >= settings.update_every:
                        self.update(self.replay.sample(settings.batch_size))
                        owed -= settings.update_every
                bar.update(stepper.num_envs)
                if callback is not None:
                    callback(self, seen)
        if settings.hand_over and self.updates:
            self.q.load_state_dict(self.target.state_dict())

    def explore(self, observation: np.ndarray, epsilon: float) -> np.ndarray:
        """Greedy actions (E,) for E observations; each is random instead with chance ``epsilon``."""
        random = self._rng.random(len(observation)) < epsilon
        actions = self._rng.integers(self.num_actions, size=len(observation))
        if not random.all():
            with torch.no_grad():
                greedy = self.q(self._tensor(observation)).argmax(-1).cpu().numpy()
            actions = np.where(random, actions, greedy)
        return actions

    def predict(self, observation: np.ndarray) -> np.ndarray | int:
        """The greedy action of the active head, for one observation or a batch."""
        shape = np.shape(observation)
        single = len(shape) == len(self.replay.observation_shape)
        actions = self.explore(np.asarray(observation)[None] if single else np.asarray(observation), 0.0)
        return int(actions[0]) if single else actions

    def update(self, batch: Transitions) -> float:
        """One gradient step on ``batch``; returns the loss."""
        settings, head = self.config, self.head_of(batch)
        batch = batch.to(self.device)
        with torch.no_grad():
            following = self._cast(batch.next_observation)
            next_target = self.target(following, head=head)
            value = max_q_value(next_target)
            if settings.double:
                value = double_q_value(self.q(following, head=head), next_target)
            goal = td_target(batch.reward, batch.discount, batch.terminated, value)
        predicted = taken(self.q(self._cast(batch.observation), head=head), batch.action)
        losses = F.smooth_l1_loss(predicted, goal, reduction="none")
        loss = losses.mean() if batch.weight is None else (batch.weight * losses).mean()
        number = float(loss.detach())
        if not np.isfinite(number):
            raise NonFiniteError(f"DQN: task {batch.task!r}, update {self.updates + 1}: the loss is {number}")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(parameters_of(self.q), settings.max_grad_norm)
        self.optimizer.step()
        if batch.weight is not None and batch.index is not None:
            self.replay.update_priorities(batch.index, (predicted - goal).detach().abs().cpu())
        self.updates += 1
        if self.updates % settings.target_every == 0:
            self._move_target()
        return number

    def state_dict(self) -> dict[str, Any]:
        """Updates made and generator; networks, optimizer, ε and replay have states of their own."""
        return {"updates": self.updates, "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on from what ``state_dict`` gave."""
        self.updates = int(state_dict["updates"])
        self._rng.bit_generator.state = state_dict["rng"]

    def _move_target(self) -> None:
        with torch.no_grad():
            targets, sources = parameters_of(self.target), parameters_of(self.q)
            torch._foreach_lerp_([*targets], [*sources], self.config.target_rate)

    def _new_replay(self, space: Any, seed: int | None) -> TaskScopedReplay:
        settings = self.config
        return TaskScopedReplay(
            settings.buffer_size,
            observation_space=space,
            num_envs=int(getattr(self.env, "num_envs", None) or 1),
            n_step=settings.n_step,
            gamma=settings.gamma,
            sampler=settings.sampler,
            seed=seed,
        )

    def _tensor(self, observation: np.ndarray) -> Tensor:
        return self._cast(torch.from_numpy(np.ascontiguousarray(observation)).to(self.device))

    def _cast(self, observation: Tensor) -> Tensor:
        return observation if observation.dtype == torch.uint8 else observation.float()

    def __repr__(self) -> str:
        return f"DQN({type(self.q.trunk).__name__}, updates={self.updates}, device={self.device})"
