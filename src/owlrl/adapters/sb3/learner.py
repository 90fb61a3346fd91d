"""`SB3Learner`: describes a Stable-Baselines3 model to `OwlWrapper`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl._arguments import Arguments, kind_of
from owlrl.adapters.sb3.envs import TaskEnvs, VectorEnvView, actions_in
from owlrl.adapters.sb3.replay import ObservationRows, SB3Replay
from owlrl.adapters.sb3.rollouts import Rollouts
from owlrl.adapters.sb3.state import TaskParameter, TaskState, one_head
from owlrl.describe.actor_critic import ActorCriticLearner
from owlrl.describe.base import Trained
from owlrl.describe.outputs import ActionBox, Deterministic, ScaledActions, TanhGaussian
from owlrl.describe.q_learner import QLearner
from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.heads.promote import NetworkView
from owlrl.memory import Scaling
from owlrl.protocols import Consolidation, MultiHead, Stateful
from owlrl.types import Transitions

__all__ = ["SB3Learner", "adapt", "adapt_env"]


class SB3Learner:
    """A DQN, QR-DQN, SAC, TD3 or DDPG of Stable-Baselines3 as an `owlrl.protocols.OffPolicyLearner`.

    ``OwlWrapper(model)`` makes one; make it yourself to change its settings. The
    model's own ``learn`` trains it, inside ``with owl.task(name, env=env):``. Its networks are
    called with observations as its training environment gives them, as ``model.predict`` is.

    Args:
        model: the model, built with an environment.
        warm_start: rows kept of each task for a revisit; 0 keeps none.
        init: how a new task's head starts: "zero", "fresh" (random) or a "copy" of the active one.
        layers: names of the output layers, if they are not found automatically: a list for a
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
        init: Literal["zero", "fresh", "copy"] = "zero",
        layers: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.model = _supported(model)
        arguments = Arguments("SB3Learner")
        self.warm_start: int = arguments.integer("warm_start", warm_start, least=0)
        self._wrong_arguments = arguments.problems
        self.init = init
        self.layers = layers
        self._state = TaskState(model)
        self._rollouts = Rollouts(model, self._state)
        self._envs = TaskEnvs(model, any_num_actions=isinstance(model, DQN))
        self._rows = rows = ObservationRows(model.observation_space, device=model.device)
        keep = 0 if self._wrong_arguments else self.warm_start
        self._replay = SB3Replay(model, self._envs, self._state, rows, self._rollouts, warm_start=keep)
        self._inner = self._actor_critic() if isinstance(model, SAC | TD3) else self._q_learner()

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

    @property
    def seed(self) -> int | None:
        """The model's seed."""
        seed: int | None = self.model.seed
        return seed

    @property
    def pretrained(self) -> bool:
        """Whether the model has made steps already: its first task continues with the head it has."""
        return bool(self.model.num_timesteps)

    @property
    def schedule_steps(self) -> int | None:
        """A task's steps over which exploration and step size are scheduled; None for those of ``learn``."""
        return self._state.schedule_steps

    @schedule_steps.setter
    def schedule_steps(self, steps: int | None) -> None:
        arguments = Arguments("SB3Learner")
        self._state.schedule_steps = arguments.integer("schedule_steps", steps, none=True)
        arguments.check()

    def at_rollout_end(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback()`` after each rollout of ``learn``, before its updates; the result stops it.

        The only moment inside ``learn`` when tasks may be changed: every step that was made is stored, and
        no update is half done. (A state that is saved here is resumed without the rollout's updates,
        since ``learn`` begins with a rollout; save in `at_border` instead.)
        """
        return self._rollouts.at_end(callback)

    def at_border(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback()`` before each rollout of ``learn``, after all updates; the result stops it.

        What is saved there can be resumed exactly: ``learn`` begins with a rollout.
        """
        return self._rollouts.at_start(callback)

    def when_whole(self, key: str, action: Callable[[], None]) -> None:
        """Run ``action()`` now, or in a callback of ``learn`` at the next border (`Rollouts.when_whole`)."""
        self._rollouts.when_whole(key, action)

    def record(self, numbers: Mapping[str, float]) -> None:
        """Write numbers to the model's logger under ``owl/``, if it has one yet (``learn`` makes it)."""
        logger = getattr(self.model, "_logger", None)
        if logger is not None:
            for name, value in numbers.items():
                logger.record(f"owl/{name}", value)

    def reset_head(self, head: int) -> None:
        """Initialise a head of every network and target again."""
        self._inner.reset_head(head)

    def scaling(self) -> Scaling | None:
        """The statistics of the model's ``VecNormalize`` as they are now; None where there is none."""
        env = self.model.get_vec_normalize_env()
        if env is None or not (env.norm_obs or env.norm_reward):
            return None
        made: dict[str, Any] = {}
        if env.norm_obs:
            mean, std, clip = self._rows.statistics(env)
            made = {"observation_mean": mean, "observation_std": std, "observation_clip": clip}
        if env.norm_reward:
            made["reward_std"] = float(np.sqrt(env.ret_rms.var + env.epsilon))
            made["reward_clip"] = float(env.clip_reward)
        return Scaling(**made)

    def finish_task(self) -> None:
        """Does nothing; refused while ``learn`` is in the middle of a rollout or an update."""
        self._rollouts.refuse("leave a task")

    def trial(self, row: Transitions | None = None) -> list[str]:
        """Run one row through all that is needed later, and return what fails."""
        return self._inner.trial(row)

    def problems(self) -> list[str]:
        """All problems that can be found before anything is changed."""
        found = [] if self.model.env is not None else ["the model has no environment; model.set_env(env)"]
        wrong = [*found, *self._wrong_arguments, *self._buffer_problems()]
        # what needs rows has been reported; the rest can be checked without them
        return [*wrong, *self._inner.problems()]

    def bind(self) -> None:
        """Give the networks their heads."""
        self._inner.bind()
        self._rollouts.install()
        self._rollouts.plain = lambda found: one_head(self.model, found, self.networks)
        self._state.close()

    def unbind(self, head: int) -> None:
        """Make the model plain again, with ``head`` as its only one and its own settings."""
        actions = self._actions_of(head)
        self._rollouts.refuse("unwrap a model")
        self._inner.unbind(head)
        self._rollouts.uninstall()
        self._state.release(actions)

    def add_head(self, *, num_actions: int | None = None) -> int:
        """Grow networks, targets and optimizers; by default for the actions of the environment to come."""
        self._rollouts.refuse("begin a task")
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
        self._rollouts.refuse("change the environment")
        self._envs.offer(env)

    def prepare(self, observation: Any) -> Tensor:
        """Observations, dicts of arrays included, as rows of one tensor."""
        return self._inner.prepare(observation)

    def inputs(self, name: str, rows: Transitions) -> tuple[Tensor, ...]:
        """What network ``name`` is called with: observations, for a critic actions too."""
        return self._inner.inputs(name, rows)

    def act(self, observation: Tensor, heads: Tensor | int) -> Tensor:
        """Greedy actions in the environment's units, row ``b`` by head ``heads[b]``, or all by one head."""
        actions = self._inner.act(observation, heads)
        if actions_in(self.model.action_space) is not None:
            return actions
        return actions.reshape(actions.shape[0], *self.model.action_space.shape)

    def values(self, observation: Tensor) -> Tensor:
        """The greedy value of every head, (H, B)."""
        return self._inner.values(observation)

    def td_errors(self, transitions: Transitions, heads: np.ndarray) -> Tensor:
        """δ (len(heads), B) of the given heads, each bootstrapped from itself."""
        return self._inner.td_errors(transitions, heads)

    def consolidation(self, rows: Transitions) -> Mapping[str, Consolidation]:
        """What a regularizer is given, per network."""
        return self._inner.consolidation(rows)

    def __repr__(self) -> str:
        return f"SB3Learner({type(self.model).__name__})"

    def _q_learner(self) -> QLearner:
        """A DQN, or a QR-DQN whose Q-values are the means of its quantiles."""
        model, rows = self.model, self._rows
        quantiles = hasattr(model, "quantile_net")

        def ask(network: nn.Module, observation: Tensor) -> Tensor:
            out: Tensor = network(rows.unpack(observation))  # (B, A), or (B, quantiles, A)
            return out.mean(1) if quantiles else out

        names = ("quantile_net", "quantile_net_target") if quantiles else ("q_net", "q_net_target")
        online, target = (NetworkView(getattr(model, name), ask) for name in names)
        return QLearner(
            online,
            target,
            model.policy.optimizer,
            replay=self._replay,
            gamma=model.gamma,
            double=False,
            per_task={"model": self._state},
            preprocess=rows.prepare,
            layers=self.layers,  # type: ignore[arg-type]  # checked with the other arguments
            init=self.init,
        )

    def _actor_critic(self) -> ActorCriticLearner:
        """A SAC, TD3 or DDPG, with actions in the environment's units (a model keeps them in [−1, 1]).

        With gSDE only the mean of the actions is described: TD errors leave the entropy out, and the
        noise's parameters, which are no output layer, are kept per task.
        """
        model, rows = self.model, self._rows
        box = ActionBox(model.action_space, where="OwlWrapper")
        gaussian = hasattr(model, "ent_coef") and not model.use_sde

        def ask_actor(actor: Any, observation: Tensor) -> Any:
            seen = rows.unpack(observation)
            if gaussian:
                return actor.get_action_dist_params(seen)[:2]  # mean and log-std, (B, A) each
            unit = actor.get_action_dist_params(seen)[0].tanh() if model.use_sde else actor(seen)
            return box.unscale(unit)

        def ask_critic(critic: nn.Module, observation: Tensor, action: Tensor) -> Any:
            return critic(rows.unpack(observation), box.scale(action))  # (B, 1) per critic inside

        own: dict[str, Stateful] = {"model": self._state}
        if model.use_sde:
            own["log_std"] = TaskParameter(model.actor.log_std, model.actor.optimizer)
        learned, fixed = getattr(model, "ent_coef_optimizer", None), getattr(model, "ent_coef_tensor", None)
        temperature: Any = None if fixed is None else float(fixed)
        layers: Mapping[str, Any] = dict(self.layers or {})  # type: ignore[arg-type]  # as the docstring says
        return ActorCriticLearner(
            Trained(
                model.actor,
                model.actor.optimizer,
                getattr(model, "actor_target", None),
                layers=layers.get("actor"),
                call=ask_actor,
                output=ScaledActions(TanhGaussian(), box) if gaussian else Deterministic(),
                init=self.init,
            ),
            Trained(
                model.critic,
                model.critic.optimizer,
                model.critic_target,
                layers=layers.get("critic"),
                call=ask_critic,
                init=self.init,
            ),
            temperature=temperature if learned is None else (model.log_ent_coef, learned),
            replay=self._replay,
            gamma=model.gamma,
            per_task=own,
            preprocess=rows.prepare,
        )

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
                f"model.replay_buffer is {kind_of(buffer)}; expected a ReplayBuffer; build another "
                "model, or call model.load_replay_buffer(path)"
            ]
        found = []
        if type(buffer) is not kind:
            found.append(
                f"model.replay_buffer is {kind_of(buffer)}, but every task's buffer is made by "
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
    name, kind = type(model).__name__, kind_of(model)
    if "JAX" in kind:
        raise OwlTypeError(
            f"OwlWrapper: this is {kind}; use the DQN, SAC, TD3 or DDPG of stable_baselines3, which has them "
            "in torch with the same settings"
        )
    instead = "use DQN or QRDQN for discrete actions, SAC, TD3 or DDPG for a Box"
    if isinstance(model, OnPolicyAlgorithm):
        raise OwlTypeError(
            f"OwlWrapper: {name} learns on-policy: it has no replay to scope and no Q-values to find the "
            f"task with; {instead}"
        )
    raise OwlTypeError(
        f"OwlWrapper: {kind} is not supported; expected a DQN, QRDQN, SAC, TD3 or "
        f"DDPG; {instead}, or describe your own with QLearner or ActorCriticLearner"
    )
