"""Stable-Baselines3: `SB3Learner` tells `OwlWrapper` all it needs to know of a live model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from torch import Tensor
from torch.optim import Optimizer

from owlrl.adapters.sb3.actor_critic import describe_actor_critic
from owlrl.adapters.sb3.dqn import describe_dqn
from owlrl.adapters.sb3.envs import TaskEnvs, VectorEnvView, actions_in, refuse_in_learn
from owlrl.adapters.sb3.observations import ObservationRows
from owlrl.adapters.sb3.replay import SB3Replay
from owlrl.adapters.sb3.state import TaskState
from owlrl.errors import OwlTypeError, OwlValueError, int_problem
from owlrl.protocols import Consolidation, MultiHead, OffPolicyLearner, Stateful
from owlrl.types import Transitions

__all__ = ["SB3Learner", "adapt", "adapt_env"]


class SB3Learner:
    """A live DQN, QR-DQN, SAC, TD3 or DDPG of Stable-Baselines3, as `owlrl.protocols.OffPolicyLearner`.

    ``OwlWrapper(model)`` makes one by itself; make it yourself to change its settings. The
    model's own ``learn`` trains it, inside ``with owl.task(name, env=env):``. Its networks are
    called with observations as its training environment gives them, as ``model.predict`` is.

    Args:
        model: the model, built with an environment.
        warm_start: rows kept of each task for its return; 0 keeps none.
        init: how a new task's head starts, "fresh", answering "zero" or as a "copy" of the active one.
        layers: names of the output layers, where they are not found by themselves: a list for a
            Q-network, a dict of "actor" and "critic" otherwise.

    >>> from stable_baselines3 import DQN
    >>> from owlrl import OwlWrapper
    >>> from owlrl.adapters.sb3 import SB3Learner
    >>> model = DQN("MlpPolicy", "CartPole-v1", buffer_size=1_000, learning_starts=10)
    >>> owl = OwlWrapper(SB3Learner(model, warm_start=500))
    >>> with owl.task("upright"):
    ...     _ = model.learn(40)
    >>> owl.learner, owl.tasks["upright"].steps
    (SB3Learner(DQN), 8)
    """

    def __init__(
        self,
        model: OffPolicyAlgorithm,
        *,
        warm_start: int = 50_000,
        init: Literal["fresh", "zero", "copy"] = "fresh",
        layers: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.model = _supported(model)
        self.warm_start = warm_start
        self.init = init
        self.layers = layers
        self._state = TaskState(model)
        self._envs = TaskEnvs(model, any_num_actions=isinstance(model, DQN))
        rows = ObservationRows(model.observation_space, device=model.device)
        self._replay = SB3Replay(model, self._envs, self._state, rows, warm_start=warm_start)
        self._inner = self._describe(rows)

    @property
    def networks(self) -> Mapping[str, MultiHead]:
        """The trained networks by name: "q", or "critic" and "actor"."""
        return self._inner.networks

    @property
    def targets(self) -> Mapping[str, MultiHead]:
        """Their target networks under the same names."""
        return self._inner.targets

    @property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """Their optimizers under the same names."""
        return self._inner.optimizers

    @property
    def replay(self) -> SB3Replay:
        """The model's replay buffers."""
        return self._replay

    @property
    def per_task(self) -> Mapping[str, Stateful]:
        """Counters, exploration and statistics; for SAC also the temperature."""
        return self._inner.per_task

    @property
    def gamma(self) -> float:
        """The model's discount."""
        return self._inner.gamma

    def problems(self) -> list[str]:
        """Everything wrong that can be seen before anything is changed."""
        found = [] if self.model.env is not None else ["the model has no environment; model.set_env(env)"]
        if problem := int_problem("warm_start", self.warm_start, least=0):
            found.append(problem)
        return [*found, *self._buffer_problems(), *self._inner.problems()]

    def bind(self) -> None:
        """Give the networks their heads."""
        refuse_in_learn(self.model, "wrap a model")
        self._inner.bind()
        self._state.close()

    def unbind(self, head: int) -> None:
        """Give the model back with ``head`` as its only one and its own settings."""
        actions = self._actions_of(head)
        self._inner.unbind(head)
        self._state.release(actions)

    def add_head(self, *, num_actions: int | None = None) -> int:
        """Grow networks, targets and optimizers; by default for the actions of the environment to come."""
        refuse_in_learn(self.model, "begin a task")
        try:
            to_come = actions_in(self._envs.to_come().action_space)
            # a wrapper that is loaded makes heads before any task has begun
            if num_actions is not None and (len(self._envs) or not self._envs.any_num_actions):
                if num_actions != to_come:
                    raise OwlValueError(
                        f"OwlWrapper.task: num_actions is {num_actions}, but the environment's actions are "
                        f"{self._envs.to_come().action_space}; leave it out, a model takes it from env="
                    )
                num_actions = None
            if num_actions is None and to_come != self._actions_of(0):
                num_actions = to_come
            return self._inner.add_head(num_actions=num_actions)
        except BaseException:
            self._envs.withdraw()
            raise

    def set_env(self, env: object) -> None:
        """Train the task that begins next in ``env``, wrapped as the model would and seeded alike."""
        refuse_in_learn(self.model, "change the environment")
        self._envs.offer(env)

    def prepare(self, observation: Any) -> Tensor:
        """Observations, dicts of arrays included, as rows of one tensor."""
        return self._inner.prepare(observation)

    def act(self, observation: Tensor, heads: Tensor) -> Tensor:
        """Greedy actions in the environment's units, row ``b`` by head ``heads[b]``."""
        actions = self._inner.act(observation, heads)
        if actions_in(self.model.action_space) is not None:
            return actions
        return actions.reshape(len(actions), *self.model.action_space.shape)

    def values(self, observation: Tensor) -> Tensor:
        """The greedy value of every head, (H, B)."""
        return self._inner.values(observation)

    def td_errors(self, transitions: Transitions, heads: np.ndarray) -> Tensor:
        """δ (len(heads), B) of the given heads, each bootstrapped from itself."""
        return self._inner.td_errors(transitions, heads)

    def consolidation(self, rows: Transitions) -> Mapping[str, Consolidation]:
        """What a regularizer may look at, per network."""
        return self._inner.consolidation(rows)

    def __repr__(self) -> str:
        return f"SB3Learner({type(self.model).__name__})"

    def _describe(self, rows: ObservationRows) -> OffPolicyLearner:
        parts: dict[str, Any] = {
            "observations": rows,
            "replay": self._replay,
            "per_task": {"model": self._state},
            "layers": self.layers,
            "init": self.init,
        }
        describe = describe_actor_critic if isinstance(self.model, SAC | TD3) else describe_dqn
        return describe(self.model, **parts)

    def _actions_of(self, head: int) -> int | None:
        """How many actions ``head`` has; None for a Box."""
        if not self._envs.any_num_actions:
            return actions_in(self.model.action_space)
        *_, last = self._inner.networks["q"].head_parameters(head).values()
        return len(last)

    def _buffer_problems(self) -> list[str]:
        buffer, kind = self.model.replay_buffer, self.model.replay_buffer_class
        if not isinstance(buffer, ReplayBuffer):
            return [
                f"model.replay_buffer is a {type(buffer).__name__}; expected a ReplayBuffer; build the model "
                "anew, or call model.load_replay_buffer(path)"
            ]
        found = []
        if type(buffer) is not kind:
            found.append(
                f"model.replay_buffer is a {type(buffer).__name__}, but every task's buffer is made by "
                f"model.replay_buffer_class, which is {kind}; set it to {type(buffer).__name__}"
            )
        if isinstance(buffer, HerReplayBuffer) and buffer.copy_info_dict and self.warm_start:
            found.append(
                "the HerReplayBuffer has copy_info_dict=True, and info dicts cannot be kept for a task's "
                "return; pass SB3Learner(model, warm_start=0)"
            )
        return found


def adapt(model: BaseAlgorithm) -> SB3Learner:
    """What `OwlWrapper` wraps instead of a model.

    >>> from stable_baselines3 import DQN, PPO
    >>> from owlrl.adapters.sb3 import adapt
    >>> adapt(DQN("MlpPolicy", "CartPole-v1", buffer_size=10))
    SB3Learner(DQN)
    >>> adapt(PPO("MlpPolicy", "CartPole-v1", device="cpu"))
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlTypeError: OwlWrapper: PPO learns on-policy: it has no replay to scope and no Q-values \
to find the task with; use DQN or QRDQN for discrete actions, SAC, TD3 or DDPG for a Box
    """
    return SB3Learner(_supported(model))


def adapt_env(env: Any) -> Any:
    """A ``VecEnv`` in Gymnasium's interface; any other environment as it is.

    >>> from stable_baselines3.common.env_util import make_vec_env
    >>> from owlrl.adapters.sb3 import adapt_env
    >>> adapt_env(make_vec_env("CartPole-v1", n_envs=3)).num_envs
    3
    """
    return VectorEnvView(env) if isinstance(env, VecEnv) else env


def _supported(model: object) -> Any:
    kinds = {f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(model).__mro__}
    if isinstance(model, DQN | SAC | TD3) or "sb3_contrib.QRDQN" in kinds:
        return model
    name = type(model).__name__
    instead = "use DQN or QRDQN for discrete actions, SAC, TD3 or DDPG for a Box"
    if isinstance(model, OnPolicyAlgorithm):
        raise OwlTypeError(
            f"OwlWrapper: {name} learns on-policy: it has no replay to scope and no Q-values to find the "
            f"task with; {instead}"
        )
    raise OwlTypeError(
        f"OwlWrapper: a {name} is not among the models that are known; expected a DQN, QRDQN, SAC, TD3 or "
        f"DDPG; {instead}, or describe your own with QLearner or ActorCriticLearner"
    )
