"""`ActorCriticLearner`: a hand-written SAC, TD3 or DDPG, described in one call from what its script has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.describe._actor_critic_model import ActorCriticModel
from owlrl.describe._actor_critic_networks import plain_call, several, trained_networks
from owlrl.describe._actor_critic_problems import (
    alpha_problems,
    optimizer_problems,
    part_problems,
    probe_problems,
    reading_problems,
    replay_problems,
)
from owlrl.describe._problems import common_problems, target_problems
from owlrl.describe.given import as_replay
from owlrl.describe.outputs import CriticOutput, Deterministic, Distribution, GaussianQ, QValues, TanhGaussian
from owlrl.describe.temperature import TaskTemperature
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.heads import MultiHeadQ
from owlrl.heads.modes import probing
from owlrl.heads.output_layers import default_input
from owlrl.heads.view import Call, joined
from owlrl.protocols import Consolidation, MultiHead, Stateful, TaskReplay
from owlrl.types import HeadPointer, Transitions

__all__ = ["ActorCriticLearner"]


class ActorCriticLearner:
    """What `OwlWrapper` needs to know of an actor with critics that somebody wrote: its parts, not its loop.

    Heads are given in place to the output layers of actor, critics and targets (an actor's mean and
    log-std are two of them), and grow together with the optimizers. Networks are called
    "critic" (or "critic_0", "critic_1", …) and "actor"; regularizers take strengths under these names,
    ``{"actor": 10.0, "critic": 500.0}``.

    Args:
        actor: the policy network.
        critics: the Q-network or Q-networks of (observation, action).
        actor_optimizer: trains the actor.
        critic_optimizer: trains all critics, or one for each.
        target_critics: the critics' target networks, in the same form.
        target_actor: the actor's target network, where there is one (TD3, DDPG).
        log_alpha: the logarithm of a learned temperature, a leaf tensor of one element. Every task has
            its own: a new one starts from the value at wrapping, a revisited one resumes.
        alpha_optimizer: trains ``log_alpha`` and nothing else; its state is per task, too.
        alpha: a fixed temperature instead.
        replay: where the script puts its transitions: a `TaskScopedReplay` or one of its siblings, the
            ``ReplayBuffer`` of Stable-Baselines3 or CleanRL, or a list or ``deque`` of (observation,
            action, reward, next_observation, done).
        gamma: the script's discount.
        distribution: how the actor's output becomes actions; by default `TanhGaussian` where there is a
            temperature (with the actor's ``action_scale`` and ``action_bias``, if it has them), else
            `Deterministic`.
        q: how a critic's output is read: `QValues` by default, `GaussianQ` for a mean and a log-variance.
        call_actor: ``call_actor(actor, observation)``, where the plain call is not what tells mean and
            log-std (an actor that samples). Several outputs are joined along the last axis.
        call_critic: ``call_critic(critic, observation, action)``, likewise.
        per_task: what every task has of its own (a schedule, say), by name.
        preprocess: how a batch of raw observations becomes the networks' input; by default a cast to
            the actor's dtype and device.
        layers: names of the output layers by network name, where they are not found by themselves.
        init: how a new task's heads start, "fresh", answering "zero" or as a "copy" of the active ones.
        on_task_end: called when a task is left, before anything is remembered: hand over averaged weights.

    >>> import copy, torch
    >>> from collections import deque
    >>> from torch import nn
    >>> from owlrl import ActorCriticLearner, OwlWrapper
    >>> class Critic(nn.Sequential):
    ...     def forward(self, observation, action):
    ...         return super().forward(torch.cat([observation, action], 1))
    >>> actor = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1), nn.Tanh())
    >>> critic = Critic(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> learner = ActorCriticLearner(
    ...     actor, critic, target_actor=copy.deepcopy(actor), target_critics=copy.deepcopy(critic),
    ...     actor_optimizer=torch.optim.Adam(actor.parameters()),
    ...     critic_optimizer=torch.optim.Adam(critic.parameters()), replay=deque(maxlen=1000))
    >>> OwlWrapper(learner)
    OwlWrapper(ActorCriticLearner(Sequential, Critic), regularizer=None, replay=ListReplay, tasks=[])
    """

    def __init__(
        self,
        actor: nn.Module,
        critics: nn.Module | Sequence[nn.Module],
        *,
        actor_optimizer: Optimizer,
        critic_optimizer: Optimizer | Sequence[Optimizer],
        target_critics: nn.Module | Sequence[nn.Module] | None = None,
        target_actor: nn.Module | None = None,
        log_alpha: Tensor | None = None,
        alpha_optimizer: Optimizer | None = None,
        alpha: float | None = None,
        replay: Any = None,
        gamma: float = 0.99,
        distribution: Distribution | None = None,
        q: CriticOutput | None = None,
        call_actor: Call | None = None,
        call_critic: Call | None = None,
        per_task: Mapping[str, Stateful] | None = None,
        preprocess: Callable[[Tensor], Tensor] | None = None,
        layers: Mapping[str, Sequence[str]] | None = None,
        init: Literal["fresh", "zero", "copy"] = "fresh",
        on_task_end: Callable[[], None] | None = None,
    ) -> None:
        self.actor = actor
        self.critics = critics
        self.actor_optimizer = actor_optimizer
        self.critic_optimizer = critic_optimizer
        self.target_critics = target_critics
        self.target_actor = target_actor
        self.log_alpha = log_alpha
        self.alpha_optimizer = alpha_optimizer
        self.alpha = alpha
        self.replay: TaskReplay | None = as_replay(replay, gamma=gamma)
        self.gamma = gamma
        self.distribution = distribution
        self.q = q
        self.call_actor = call_actor
        self.call_critic = call_critic
        self.per_task: Mapping[str, Stateful] = dict(per_task or {})
        self.preprocess = preprocess
        self.layers = layers
        self.init = init
        self.on_task_end = on_task_end
        self._temperature: TaskTemperature | None = None
        self._own_alpha = "alpha" in self.per_task
        if isinstance(log_alpha, Tensor) and isinstance(alpha_optimizer, Optimizer):
            self._temperature = TaskTemperature(log_alpha, alpha_optimizer)
            self.per_task = {**self.per_task, "alpha": self._temperature}
        self._trained = trained_networks(
            (critics, target_critics, critic_optimizer),
            (actor, target_actor, actor_optimizer),
            call_critic=call_critic,
            call_actor=call_actor,
            layers=layers,
        )

    @property
    def networks(self) -> dict[str, MultiHead]:
        """The critics and the actor, by name."""
        return {name: part.heads for name, part in self._trained.items()}

    @property
    def targets(self) -> dict[str, MultiHead]:
        """The target networks, under the same names."""
        heads = {name: part.target_heads for name, part in self._trained.items()}
        return {name: target for name, target in heads.items() if target is not None}

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizer of each network, under the network's name."""
        return {name: part.optimizer for name, part in self._trained.items()}

    def problems(self) -> list[str]:
        """Everything that is wrong with this description, found without changing anything."""
        found = part_problems(
            several(self.critics),
            None if self.target_critics is None else several(self.target_critics),
            list(self.critic_optimizer) if isinstance(self.critic_optimizer, list | tuple) else None,
        )
        if not isinstance(self.actor, nn.Module):
            found.append(f"actor is a {type(self.actor).__name__}; expected an nn.Module")
        if self.target_actor is not None:
            found += target_problems("target_actor", self.target_actor, "actor", self.actor)
        found += optimizer_problems(self._trained)
        found += alpha_problems(self.log_alpha, self.alpha_optimizer, self.alpha)
        if self._own_alpha and self.log_alpha is not None:
            found.append('per_task has "alpha", the name of what log_alpha= describes; leave it out')
        calls = {"call_actor": self.call_actor, "call_critic": self.call_critic}
        found += reading_problems(self._distribution, self.q or QValues(), calls)
        found += common_problems(
            gamma=self.gamma,
            replay=self.replay,
            per_task=self.per_task,
            init=self.init,
            preprocess=self.preprocess,
        )
        if self.layers is not None and (
            not isinstance(self.layers, Mapping) or set(self.layers) - set(self._trained)
        ):
            found.append(
                f"layers is {self.layers!r}; expected lists of names by network; the networks are "
                f"{list(self._trained)}"
            )
        unfit = replay_problems(self.replay)
        shape = None if unfit else getattr(self.replay, "action_shape", None)
        # asking the networks makes sense only where they are networks
        if all(isinstance(part.network, nn.Module) for part in self._trained.values()):
            found += probe_problems(self._trained, self._example, action_shape=shape, q=self.q)
        return found + unfit

    def bind(self) -> None:
        """Give actor, critics and targets their heads; all follow one active head."""
        example: tuple[Tensor, ...] = ()
        if not all(part.knows_layers for part in self._trained.values()):
            example = self._example()
        layers = {  # all are found before any is changed
            name: part.output_layers(example[:1] if name == "actor" else example)
            for name, part in self._trained.items()
        }
        native = [part.network for part in self._trained.values() if isinstance(part.network, MultiHeadQ)]
        pointer = native[0].pointer if native else HeadPointer()
        for name, part in self._trained.items():
            part.bind(layers[name], pointer)
        if self._temperature is not None:
            self._temperature.follow(pointer)

    def unbind(self, head: int) -> None:
        """Give plain networks back their single output layers, with the values of ``head``."""
        for part in self._trained.values():
            part.unbind(head)

    def add_head(self, *, num_actions: int | None = None) -> int:
        """Grow actor, critics, targets and optimizers together; the targets' heads are equal."""
        if num_actions is not None:
            raise OwlValueError(
                f"ActorCriticLearner: num_actions is {num_actions!r}, but actions are continuous here; leave "
                "it out: all tasks have actions of one size"
            )
        indices = [part.add_head(init=self.init) for part in self._trained.values()]
        return indices[0]

    def set_env(self, env: object) -> None:
        """Refused: the loop of a hand-written learner has its environment in its own hands."""
        raise OwlStateError(
            "ActorCriticLearner: env= was given, but this learner's own loop chooses its environment; "
            "leave it out and step that environment inside the block"
        )

    def finish_task(self) -> None:
        """The task is being left."""
        if self.on_task_end is not None:
            self.on_task_end()

    def prepare(self, observation: Tensor) -> Tensor:
        """What the networks are called with for a batch of raw observations."""
        if self.preprocess is not None:
            return self.preprocess(observation)
        like = next(self.actor.parameters())
        return observation.to(device=like.device, dtype=like.dtype)

    def alpha_of(self, head: int) -> float:
        """The temperature of a head's task; 0 where there is none."""
        if self._temperature is not None:
            return self._temperature.of_head(head)
        return float(self.alpha or 0.0)

    def act(self, observation: Tensor, heads: Tensor) -> Tensor:
        """Greedy actions (B, A), row ``b`` by head ``heads[b]``."""
        return self._model.act(observation, heads)

    def values(self, observation: Tensor) -> Tensor:
        """The value of every head's greedy action, the least among its critics, (H, B)."""
        return self._model.values(observation)

    def td_errors(self, transitions: Transitions, heads: np.ndarray) -> Tensor:
        """δ = target − mean over the critics of Q(s, a), (len(heads), B), each head by itself (Eq. 1).

        A head's target has its own actor head, temperature and target critics:
        ``r + γ (min_i Q'_i(s', a') − α log π(a'|s'))``. For a Gaussian actor it is the mean over eight
        fixed, equally likely points of its noise (`normal_points`), so that no random numbers are drawn and a
        transition has one error; TD3's noise on the target's action is left out.
        """
        model, index = self._model, torch.as_tensor(heads)
        return model.targets(transitions, index) - model.values_in(model.outputs(transitions, index)).mean(-2)

    def predictions(self, transitions: Transitions, heads: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """What probabilistic critics (`GaussianQ`) say of transitions, for likelihood as evidence.

        Mean and variance of Q(s, a) of each of the L critics, (len(heads), L, B), and the target
        (len(heads), B) that `td_errors` compares with the mean of the means.
        """
        model, index = self._model, torch.as_tensor(heads)
        if not isinstance(model.reading, GaussianQ):
            raise OwlTypeError(
                f"ActorCriticLearner.predictions: the critics are read by {type(model.reading).__name__} and "
                "have no variance; pass q=GaussianQ() for critics with a mean and a log-variance"
            )
        outputs = model.outputs(transitions, index)
        variance = torch.cat([model.reading.variances(output) for output in outputs], dim=-1)
        return model.values_in(outputs), variance.transpose(-1, -2), model.targets(transitions, index)

    def consolidation(self, rows: Transitions) -> dict[str, Consolidation]:
        """Rows of the active head's task for a regularizer, for every network.

        A critic's output is Q(s, a) and its loss the TD loss. The actor's output is the one whose
        squared gradient is the policy's Fisher information (`policy_information`), its loss
        ``α log π(a|s) − min_i Q_i(s, a)``.
        """
        return self._model.consolidation(rows, self._trained["actor"].heads.pointer.head)

    def __repr__(self) -> str:
        critics = [type(critic).__name__ for critic in several(self.critics)]
        return f"ActorCriticLearner({', '.join([type(self.actor).__name__, *critics])})"

    @property
    def _distribution(self) -> Distribution:
        if self.distribution is not None:
            return self.distribution
        if self.log_alpha is None and self.alpha is None:
            return Deterministic()
        return TanhGaussian(getattr(self.actor, "action_scale", 1.0), getattr(self.actor, "action_bias", 0.0))

    @property
    def _model(self) -> ActorCriticModel:
        critics = {name: part for name, part in self._trained.items() if name != "actor"}
        return ActorCriticModel(
            actor=self._trained["actor"],
            critics=critics,
            distribution=self._distribution,
            reading=self.q or QValues(),
            prepare=self.prepare,
            alpha_of=self.alpha_of,
        )

    def _example(self) -> tuple[Tensor, Tensor]:
        """One observation of zeros as the networks take it, and the actor's action for it."""
        shape = getattr(self.replay, "observation_shape", None)
        if shape is None:
            observation = default_input(self.actor)
        else:
            dtype = getattr(self.replay, "observation_dtype", np.float32)
            observation = self.prepare(torch.from_numpy(np.zeros((1, *shape), dtype=dtype)))
        call = self._trained["actor"].call or plain_call
        with torch.no_grad(), probing(self.actor):
            return observation, self._distribution.greedy(joined(call(self.actor, observation)))
