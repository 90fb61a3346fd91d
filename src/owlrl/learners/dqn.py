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

from owlrl.errors import NonFiniteError, OwlTypeError, OwlValueError, int_problem, raise_problems
from owlrl.heads import MultiHeadQ
from owlrl.heads.modes import eval_mode, parameters_of
from owlrl.learners._loop import auto_device, check_successor, progress, spaces_of
from owlrl.learners.dqn_config import FAST, DQNConfig
from owlrl.learners.encoders import default_trunk
from owlrl.learners.schedules import EpsilonSchedule
from owlrl.acting.stepping import Stepper
from owlrl.replay import TaskScopedReplay
from owlrl.td import double_q_value, max_q_value, taken, td_target
from owlrl.types import Transitions

__all__ = ["DQN"]


class DQN:
    """Deep Q-learning with the usual improvements, for one environment or a vector of them.

    Args:
        env: a Gymnasium environment, or a vector of them, with discrete actions.
        config: settings; `FAST` by default. `PAPER` has the paper's numbers, and its network is
            ``trunk=GridConv(), feature_dim=200``.
        trunk: a module from observations to ``feature_dim`` features; chosen by the
            observation space if left out. It gets bytes as bytes and all other numbers as float32.
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

    What it hands over at the end of ``learn`` is the average of its last iterates (the target network,
    ``config.hand_over``), and not the last one: on a level that is learned, single iterates flicker between
    solving it and going in circles.
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
        if not hasattr(action_space, "n") or int(getattr(action_space, "start", False)):
            raise OwlTypeError(f"DQN: the action space is {action_space}; expected Discrete that starts at 0")
        if (trunk is None) != (feature_dim is None):
            raise OwlValueError("DQN: trunk and feature_dim go together; pass both or neither")
        self.env = env
        self.config = config
        self.num_actions = int(action_space.n)
        self.device = auto_device(device)
        self.updates = 0
        self.head_of: Callable[[Transitions], int | None] = _active_head
        """Which head a batch trains, None for the active one; rehearsal of old tasks sets it."""
        if replay is not None:
            _check_replay(replay, config)
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
            _check_trunk(trunk, feature_dim, observation_space)
            q = MultiHeadQ(trunk, feature_dim, self.num_actions, dueling=dueling, head=head)
        self.q = q.to(self.device)
        self.target = copy.deepcopy(self.q)
        self.optimizer = torch.optim.Adam(self.q.parameters(), lr=config.learning_rate, fused=True)
        self._rng = np.random.default_rng(seed)
        self._seed = seed
        self._warmed = 0  # random frames in this environment so far

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
            env: learn here from now on; the first frames in another environment are random again.
            callback: called with the agent and the frames so far, after each step.
            progress_bar: show one (needs tqdm).
        """
        if problem := int_problem("frames", frames):
            raise OwlValueError(f"DQN.learn: {problem}")
        if env is not None and env is not self.env:
            check_successor("DQN.learn", env, self.env)
            self.env, self._warmed = env, 0
        stepper = Stepper(self.env, seed=None if self._seed is None else int(self._rng.integers(2**31)))
        settings, owed = self.config, 0
        with progress("DQN.learn", frames, show=progress_bar) as bar:
            for seen in range(stepper.num_envs, frames + stepper.num_envs, stepper.num_envs):
                random = self._warmed + stepper.num_envs <= settings.learning_starts
                self._warmed += stepper.num_envs if random else 0
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
            following = _cast(batch.next_observation)
            next_target = self.target(following, head=head)
            value = max_q_value(next_target)
            if settings.double:
                value = double_q_value(self.q(following, head=head), next_target)
            goal = td_target(batch.reward, batch.discount, batch.terminated, value)
        predicted = taken(self.q(_cast(batch.observation), head=head), batch.action)
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
        """Updates, random frames, generator; networks, optimizer, ε and replay have states of their own."""
        return {"updates": self.updates, "warmed": self._warmed, "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on from what ``state_dict`` gave."""
        self.updates, self._warmed = int(state_dict["updates"]), int(state_dict["warmed"])
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
        own = np.require(observation, requirements=["C", "W"])  # torch warns of what is read-only
        return _cast(torch.from_numpy(own).to(self.device))

    def __repr__(self) -> str:
        return f"DQN({type(self.q.trunk).__name__}, updates={self.updates}, device={self.device})"


def _active_head(batch: Transitions) -> None:
    """No head in particular."""


def _cast(observation: Tensor) -> Tensor:
    return observation if observation.dtype == torch.uint8 else observation.float()


def _check_replay(replay: Any, config: DQNConfig) -> None:
    """A replay sums and discounts rewards by itself; it must do so as the settings say."""
    wanted = {"n_step": config.n_step, "gamma": config.gamma}
    problems = [
        f"replay has {name} {getattr(replay, name)}, config {value}; expected the same in both"
        for name, value in wanted.items()
        if getattr(replay, name, value) != value
    ]
    raise_problems("DQN", problems)


def _check_trunk(trunk: nn.Module, feature_dim: int, space: Any) -> None:
    """Try the trunk on an observation of zeros."""
    device = next((parameter.device for parameter in trunk.parameters()), None)
    seen = _cast(torch.as_tensor(np.zeros((1, *space.shape), space.dtype), device=device))
    kind = f"{tuple(seen.shape)} of {seen.dtype}"
    try:
        with torch.no_grad(), eval_mode(trunk):
            shape = tuple(trunk(seen).shape)
    except Exception as error:  # a module may fail in any way
        raise OwlValueError(
            f"DQN: the trunk fails on observations {kind} ({type(error).__name__}: {error}); expected it to "
            "take them as they are: where they are bytes, let it begin with their .float()"
        ) from error
    if shape != (1, feature_dim):
        raise OwlValueError(
            f"DQN: the trunk turns {kind} into {shape}; expected {(1, feature_dim)}, as feature_dim says"
        )
