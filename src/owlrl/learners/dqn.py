"""A reference DQN, written as a user would write one; `DQN.describe` describes it to the wrapper."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from owlrl.acting.episodes import Steps
from owlrl.describe.given import as_env
from owlrl.describe.q_learner import QLearner
from owlrl.errors import OwlTypeError, OwlValueError, raise_problems
from owlrl.heads import MultiHeadQ
from owlrl.heads.modes import eval_mode
from owlrl.learners.compiled import CompiledStep, check_compiles
from owlrl.learners.config import FAST, DQNConfig
from owlrl.learners.encoders import GridMLP, check_cells, default_trunk
from owlrl.learners.loop import DescribedLoop, EpsilonSchedule, LearningLoop, TaskLoop
from owlrl.protocols import Stateful
from owlrl.replay import TaskScopedReplay
from owlrl.replay.ring import spaces_of
from owlrl.td import double_q_value, max_q_value, taken, td_target
from owlrl.types import Transitions

__all__ = ["DQN"]

Network = Callable[[Tensor], Tensor]


class DQN(LearningLoop):
    """Deep Q-learning with the usual improvements, for one environment or a vector of them.

    Args:
        env: a Gymnasium environment (or its id), or a vector of them, with discrete actions.
        config: settings; `FAST` by default. `PAPER` has the paper's numbers, and its network is
            ``trunk=GridConv(), feature_dim=200``.
        trunk: a module from observations to ``feature_dim`` features; by default chosen by the
            observation space. It gets bytes as bytes and all other numbers as float32.
        feature_dim: the trunk's output size.
        head: makes heads of another kind, ``head(feature_dim, num_actions) -> nn.Module``; left out, they
            are linear, or have two streams as ``config.dueling`` says.
        replay: where transitions go; a `TaskScopedReplay` if left out.
        seed: of weights, exploration and replay.
        device: "auto" takes a GPU if there is one.
        compile: compile targets, loss and gradient into one function (`torch.compile`): several times faster
            for small networks, after some tens of seconds at the first update. Needs a C++ compiler.

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

    Task after task, with a head and an exploration schedule per task:

    >>> from owlrl import OwlWrapper
    >>> owl = OwlWrapper(DQN(gymnasium.make("CartPole-v1"), seed=0))

    It explores with the last iterate, and acts (`predict`) with the average of its last iterates (the target
    network, ``config.hand_over``): on a level that is learned, single iterates flicker between solving it
    and walking in circles. When a task ends the network takes over the average.
    """

    config: DQNConfig

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
        compile: bool = False,
    ) -> None:
        env = as_env(env) if isinstance(env, str) else env
        observation_space, action_space, _ = spaces_of(env)
        if not hasattr(action_space, "n") or int(getattr(action_space, "start", False)):
            raise OwlTypeError(f"DQN: the action space is {action_space}; expected Discrete that starts at 0")
        if (trunk is None) != (feature_dim is None):
            raise OwlValueError("DQN: trunk and feature_dim go together; pass both or neither")
        if replay is None:
            options: Any = {"n_step": config.n_step, "gamma": config.gamma, "sampler": config.sampler}
            replay = TaskScopedReplay.for_env(env, config.buffer_size, seed=seed, **options)
        _check_replay(replay, config)
        super().__init__(env, replay=replay, seed=seed, device=device)
        self.config = config
        self.num_actions = int(action_space.n)
        self.head_of: Callable[[Transitions], int | None] = _active_head
        """Which head a batch trains, None for the active one; rehearsal of old tasks sets it."""
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
        self._loss = partial(_td_loss, double=config.double)
        if compile:
            check_compiles("DQN", [self.q], self.device)
            self._compiled["q"] = CompiledStep(self._loss, max_norm=config.max_grad_norm)

    def explore(self, observation: np.ndarray, epsilon: float) -> np.ndarray:
        """Greedy actions (E,) for E observations; each is random instead with chance ``epsilon``."""
        random = self._rng.random(len(observation)) < epsilon
        actions = self._rng.integers(self.num_actions, size=len(observation))
        return actions if random.all() else np.where(random, actions, self._greedy(self.q, observation))

    def predict(self, observation: np.ndarray) -> np.ndarray | int:
        """The greedy action of the active head, for one observation or a batch.

        With ``config.hand_over`` it is that of the averaged network.
        """
        batch = np.asarray(observation)
        single = batch.ndim == len(self.replay.observation_shape)
        network = self.target if self.config.hand_over else self.q
        actions = self._greedy(network, batch[None] if single else batch)
        return int(actions[0]) if single else actions

    def describe(self, *, init: Literal["fresh", "zero", "copy"] = "zero") -> QLearner:
        """This agent as described to `OwlWrapper`; ``OwlWrapper(agent)`` calls it.

        Exploration and the count of random frames are per task, and the network takes over the average when
        a task ends.

        Args:
            init: how a new task's head starts, "fresh" (random), "zero" or a "copy" of the active one.
        """
        return _DescribedDQN(self, init=init)

    def _update(self, batch: Transitions) -> float:
        """The loss."""
        batch = batch.to(self.device)
        observation, following = _cast(batch.observation), _cast(batch.next_observation)
        loss, error = self._step(
            "q",
            self.optimizer,
            self._loss,
            [self.q, self.target],
            observation,
            *(batch.action, batch.reward, following, batch.terminated, batch.discount, batch.weight),
            head=self.head_of(batch),
            max_norm=self.config.max_grad_norm,
        )
        self._finite(batch, "loss", loss)
        if batch.weight is not None and batch.index is not None:
            self.replay.update_priorities(batch.index, error.abs().cpu())
        self.updates += 1
        if self.updates % self.config.target_every == 0:
            self._move_target()
        return loss

    def _act(self, observation: np.ndarray, *, random: bool) -> np.ndarray:
        return self.explore(observation, 1.0 if random else self.epsilon.value)

    def _note(self, steps: Steps) -> None:
        if self.epsilon.seen or not self.config.epsilon_waits or steps.reward[steps.real].any():
            self.epsilon.advance(len(steps.real))

    def _check_first(self, observation: np.ndarray) -> None:
        if isinstance(self.q.trunk, GridMLP):
            check_cells("DQN.learn", observation)

    def _take_average(self) -> None:
        if self.config.hand_over and self.updates:
            self.q.load_state_dict(self.target.state_dict())

    def _parts(self) -> dict[str, Stateful]:
        return {"q": self.q, "target": self.target, "optimizer": self.optimizer, "epsilon": self.epsilon}

    def _greedy(self, network: nn.Module, observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            values = network(_cast(self._tensor(observation)))
        actions: np.ndarray = values.argmax(-1).cpu().numpy()
        return actions

    def _move_target(self) -> None:
        with torch.no_grad():
            targets, sources = self.target.packed(), self.q.packed()
            if len(targets) != len(sources):  # one of them lies elsewhere
                targets, sources = [*self.target.parameters()], [*self.q.parameters()]
            torch._foreach_lerp_(targets, sources, self.config.target_rate)

    def __repr__(self) -> str:
        return f"DQN({type(self.q.trunk).__name__}, updates={self.updates}, device={self.device})"


class _DescribedDQN(DescribedLoop, QLearner):
    def __init__(self, agent: DQN, *, init: Literal["fresh", "zero", "copy"]) -> None:
        self.agent = agent
        super().__init__(
            agent.q,
            agent.target,
            agent.optimizer,
            replay=agent.replay,
            gamma=agent.config.gamma,
            double=agent.config.double,
            per_task={"epsilon": agent.epsilon, "loop": TaskLoop(agent)},
            preprocess=self._prepare,
            init=init,
        )

    def _prepare(self, observation: Tensor) -> Tensor:
        return _cast(observation.to(self.agent.device))


def _td_loss(
    q: Network,
    target: Network,
    observation: Tensor,
    action: Tensor,
    reward: Tensor,
    following: Tensor,
    terminated: Tensor,
    discount: Tensor,
    weight: Tensor | None,
    *,
    double: bool,
) -> tuple[Tensor, Tensor]:
    """Huber loss of TD errors, and the errors (B,)."""
    with torch.no_grad():
        next_target = target(following)
        value = double_q_value(q(following), next_target) if double else max_q_value(next_target)
        goal = td_target(reward, discount, terminated, value)
    predicted = taken(q(observation), action)
    losses = F.smooth_l1_loss(predicted, goal, reduction="none")
    return (losses if weight is None else weight * losses).mean(), predicted - goal


def _active_head(batch: Transitions) -> None:
    """No head in particular."""


def _cast(observation: Tensor) -> Tensor:
    return observation if observation.dtype == torch.uint8 else observation.float()


def _check_replay(replay: Any, config: DQNConfig) -> None:
    """The replay sums and discounts rewards; its settings must agree with the config."""
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
