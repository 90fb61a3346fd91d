"""`ActorCriticLearner`: describes a hand-written SAC, TD3 or DDPG by the objects of its script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl._arguments import Arguments, kind_of
from owlrl.describe.base import DescribedLearner, HeadedNetwork, Preprocess, Trained, ownership_problems
from owlrl.describe.outputs import (
    CriticOutput,
    Deterministic,
    Distribution,
    GaussianQ,
    QValues,
    TanhGaussian,
    normal_points,
    policy_information,
)
from owlrl.describe.temperature import TaskTemperature
from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.heads.modes import eval_mode, probing
from owlrl.heads.promote import joined
from owlrl.protocols import Consolidation, Stateful
from owlrl.td import soft_value, td_target
from owlrl.types import Transitions

__all__ = ["ActorCriticLearner"]

ROWS = 4096  # rows a network is called with at once


class ActorCriticLearner(DescribedLearner):
    """What `OwlWrapper` needs to know about a hand-written actor with critics: its parts, not its loop.

    Heads are given in place to the output layers of actor, critics and targets (an actor's mean and
    log-std are two of them), and grow together with the optimizers. Networks are called
    "critic" (or "critic_0", "critic_1", …) and "actor"; regularizers take strengths under these names,
    ``{"actor": 10.0, "critic": 500.0}``.

    Args:
        actor: the policy network, with its optimizer and, for TD3 and DDPG, its target. Its ``output`` says
            how actions are made: by default `TanhGaussian` where there is a temperature (with the network's
            ``action_scale`` and ``action_bias``, if it has them), else `Deterministic`.
        critics: the Q-network of (observation, action), or several; they may share an optimizer.
            Their ``output`` is `QValues` by default, `GaussianQ` for a mean and a log-variance.
        temperature: α of the entropy: a fixed number, or ``(log_alpha, optimizer)`` where it is learned: a
            leaf tensor of one element and what trains it and nothing else. Every task has its own: a new
            one starts from the value at wrapping, a revisited one resumes.
        replay: where the script puts its transitions: a `TaskScopedReplay` or one of its siblings, the
            ``ReplayBuffer`` of Stable-Baselines3 or CleanRL, or a list or ``deque`` of (observation,
            action, reward, next_observation, done).
        gamma: the script's discount.
        per_task: what is kept per task (a schedule, say), by name.
        preprocess: how a batch of raw observations becomes the networks' input; by default a cast to
            the actor's dtype and device.
        on_task_end: called when a task ends, before anything of it is remembered, e.g. to put averaged
            weights into the networks.

    >>> import copy, torch
    >>> from collections import deque
    >>> from torch import nn
    >>> from owlrl import ActorCriticLearner, OwlWrapper, Trained
    >>> class Critic(nn.Sequential):
    ...     def forward(self, observation, action):
    ...         return super().forward(torch.cat([observation, action], 1))
    >>> actor = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1), nn.Tanh())
    >>> critic = Critic(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> learner = ActorCriticLearner(  # a DDPG
    ...     Trained(actor, torch.optim.Adam(actor.parameters()), copy.deepcopy(actor)),
    ...     Trained(critic, torch.optim.Adam(critic.parameters()), copy.deepcopy(critic)),
    ...     replay=deque(maxlen=1000))
    >>> OwlWrapper(learner)
    OwlWrapper(ActorCriticLearner(Sequential, Critic), regularizer=DistillationRegularizer, \
evidence=ModelEvidence, replay=ListReplay, tasks=[])
    """

    _joins = True

    def __init__(
        self,
        actor: Trained,
        critics: Trained | Sequence[Trained],
        *,
        temperature: float | tuple[Tensor, Optimizer] | TaskTemperature | None = None,
        replay: Any = None,
        gamma: float = 0.99,
        per_task: Mapping[str, Stateful] | None = None,
        preprocess: Preprocess | None = None,
        on_task_end: Callable[[], None] | None = None,
    ) -> None:
        self.actor = actor
        self.critics = critics
        pair = isinstance(temperature, tuple | list) and len(temperature) == 2
        self.temperature: Any = TaskTemperature(*temperature) if pair else temperature  # type: ignore[misc]
        several = list(critics) if isinstance(critics, list | tuple) else [critics]
        names = ["critic"] if len(several) == 1 else [f"critic_{k}" for k in range(len(several))]
        parts = {**dict(zip(names, several, strict=True)), "actor": actor}
        self._strange = {name: part for name, part in parts.items() if not isinstance(part, Trained)}
        super().__init__(
            {name: part for name, part in parts.items() if isinstance(part, Trained)},
            replay=replay,
            gamma=gamma,
            per_task=per_task,
            preprocess=preprocess,
            on_task_end=on_task_end,
        )
        self._own_alpha = "alpha" in self.per_task
        if isinstance(self.temperature, TaskTemperature):
            self.per_task = {**self.per_task, "alpha": self.temperature}

    def problems(self) -> list[str]:
        """Everything that is wrong with this description, found without changing anything."""
        found = [
            f"{name} is {kind_of(part)}; expected Trained(network, optimizer, target)"
            for name, part in self._strange.items()
        ]
        critics = self._critics
        if not critics and not self._strange:
            found.append("critics is empty; expected a Trained or several")
        if len({id(part.network) for part in critics.values()}) < len(critics):
            found.append("critics holds the same network twice; expected different ones")
        for name, part in self._trained.items():
            found += part.problems(name)
        if not self._strange:
            found += self._unowned()
        if isinstance(self.temperature, TaskTemperature):
            found += self.temperature.problems()
            if self._own_alpha:
                found.append('per_task has "alpha", the name of what temperature= describes; leave it out')
        else:
            arguments = Arguments("temperature")
            arguments.number("temperature", self.temperature, least=0.0, none=True)
            found += [
                text.replace(", or None", ", or (log_alpha, optimizer), or None")
                for text in arguments.problems
            ]
        found += self._reading_problems()
        found += self._common_problems()
        unfit = _replay_problems(self.replay)
        # only networks can be called
        if not self._strange and all(part.can_be_asked for part in self._trained.values()):
            found += self._probe_problems(None if unfit else getattr(self.replay, "action_shape", None))
        return found + unfit

    def bind(self) -> None:
        """Give actor, critics and targets their heads; all follow one active head."""
        super().bind()
        if isinstance(self.temperature, TaskTemperature):
            self.temperature.follow(self._trained["actor"].heads.pointer)

    def add_head(self, *, num_actions: int | None = None) -> int:
        """Grow actor, critics, targets and optimizers together; the targets' heads are equal."""
        if num_actions is not None:
            raise OwlValueError(
                f"ActorCriticLearner: num_actions is {num_actions!r}, but actions are continuous here; leave "
                "it out: all tasks have actions of one size"
            )
        return super().add_head()

    def inputs(self, name: str, rows: Transitions) -> tuple[Tensor, ...]:
        """The prepared observations; for a critic also the actions, (B, A)."""
        x = self.prepare(rows.observation)
        return (x,) if name == "actor" else (x, self._action(rows))

    def alpha_of(self, head: int) -> float:
        """The temperature of a head's task; 0 where there is none."""
        if isinstance(self.temperature, TaskTemperature):
            return self.temperature.of_head(head)
        return float(self.temperature or 0.0)

    def act(self, observation: Tensor, heads: Tensor | int) -> Tensor:
        """Greedy actions (B, A), row ``b`` by head ``heads[b]``, or all by one head."""
        return self._distribution.greedy(self.ask("actor", heads, self.prepare(observation)))

    def values(self, observation: Tensor) -> Tensor:
        """The value of every head's greedy action, the minimum over its critics, (H, B)."""
        with torch.no_grad(), self._evaluating():
            x = self.prepare(observation)
            action = self._distribution.greedy(self._trained["actor"].heads.all_heads(x))  # (H, B, A)
            every = torch.arange(len(action), device=x.device)
            online = [critic.heads for critic in self._critics.values()]
            return self._values_of(online, x, action, every).amin(0)

    def td_errors(self, transitions: Transitions, heads: np.ndarray) -> Tensor:
        """δ = target − mean over the critics of Q(s, a), (len(heads), B), each head by itself (Eq. 1).

        A head's target has its own actor head, temperature and target critics:
        ``r + γ (min_i Q'_i(s', a') − α log π(a'|s'))``. For a Gaussian actor it is the mean over eight
        fixed, equally likely points of its noise (`normal_points`), so that no random numbers are drawn and a
        transition has one error; TD3's noise on the target's action is left out.
        """
        index = torch.as_tensor(heads)
        now = self._values_in(self._outputs(transitions, index)).mean(-2)
        return self._targets(transitions, index) - now

    def predictions(self, transitions: Transitions, heads: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Predictions of probabilistic critics (`GaussianQ`) for transitions, for likelihood as evidence.

        Mean and variance of Q(s, a) of each of the L critics, (len(heads), L, B), and the target
        (len(heads), B) that `td_errors` compares with the mean of the means.
        """
        index, readings = torch.as_tensor(heads), self._readings
        if not all(isinstance(reading, GaussianQ) for reading in readings):
            kinds = ", ".join(sorted({type(reading).__name__ for reading in readings}))
            raise OwlTypeError(
                f"ActorCriticLearner.predictions: the critics are read by {kinds} and have no variance; pass "
                "Trained(..., output=GaussianQ()) for critics with a mean and a log-variance"
            )
        outputs = self._outputs(transitions, index)
        pairs = zip(readings, outputs, strict=True)
        variance = torch.cat([r.variances(out) for r, out in pairs if isinstance(r, GaussianQ)], dim=-1)
        return self._values_in(outputs), variance.transpose(-1, -2), self._targets(transitions, index)

    def consolidation(self, rows: Transitions) -> dict[str, Consolidation]:
        """Rows of the active head's task for a regularizer, for every network.

        A critic's output is Q(s, a) and its loss the TD loss. The actor's output is the one whose
        squared gradient is the policy's Fisher information (`policy_information`), its loss
        ``α log π(a|s) − min_i Q_i(s, a)``.
        """
        head = self._trained["actor"].heads.pointer.head
        x, action = self.prepare(rows.observation), self._action(rows)
        goal = self._targets(rows, torch.tensor([head]))[0]
        found = {}
        for (name, critic), reading in zip(self._critics.items(), self._readings, strict=True):
            value = partial(lambda reading, output, _goal: reading.values(output).sum(-1), reading)
            inputs, targets = (x, action), (goal,)
            found[name] = Consolidation(
                critic.heads, head, inputs, targets, output=value, loss=reading.loss, weight=rows.weight
            )
        return {**found, "actor": self._actor_consolidation(x, head, action.shape[1], rows.weight)}

    def __repr__(self) -> str:
        parts = [self._trained["actor"], *self._critics.values()] if not self._strange else []
        return f"ActorCriticLearner({', '.join(type(part.network).__name__ for part in parts)})"

    # L critics, H heads of which n are evaluated, B rows, actions of A components, K points of the
    # policy's noise (one where the actor has none).

    def _outputs(self, transitions: Transitions, heads: Tensor) -> list[Tensor]:
        """Each critic's output for the action taken, (n, B, O), from one trunk pass."""
        found: list[list[Tensor]] = []
        with torch.no_grad(), self._evaluating():
            for rows in _pieces(transitions, ROWS):
                x, action = self.prepare(rows.observation), self._action(rows)
                index = heads.to(x.device)
                found.append([critic.heads.all_heads(x, action)[index] for critic in self._critics.values()])
        return [torch.cat(pieces, dim=1) for pieces in zip(*found, strict=True)]

    def _targets(self, transitions: Transitions, heads: Tensor) -> Tensor:
        """The TD target (n, B) of each head: its own actor head, temperature and target critics (Eq. 1)."""
        points = 1 if isinstance(self._distribution, Deterministic) else len(normal_points(1))
        with torch.no_grad(), self._evaluating():
            found = [
                self._target(rows, heads)
                for rows in _pieces(transitions, max(1, ROWS // (points * len(heads))))
            ]
        return torch.cat(found, dim=1)

    def _target(self, rows: Transitions, heads: Tensor) -> Tensor:
        x, distribution = self.prepare(rows.next_observation), self._distribution
        index = heads.to(x.device)
        output = self._trained["actor"].lagged.all_heads(x)[index]  # (n, B, O)
        action = distribution.greedy(output)[None]  # (1, n, B, A)
        log_prob = torch.zeros_like(action[..., 0])
        if not isinstance(distribution, Deterministic):
            noise = normal_points(action.shape[-1]).to(output)[:, None, None]  # (K, 1, 1, A)
            action, log_prob = distribution.sample(output, noise.expand(-1, *action.shape[1:]))
        alpha = torch.tensor([self.alpha_of(int(head)) for head in heads]).to(output)[:, None]
        q = self._values_of([critic.lagged for critic in self._critics.values()], x, action, index)
        value = soft_value(q, log_prob, alpha).mean(0)  # (L, K, n, B), (K, n, B), (n, 1) -> (n, B)
        return td_target(rows.reward.to(value), rows.discount.to(value), rows.terminated.to(x.device), value)

    def _values_of(self, critics: list[HeadedNetwork], x: Tensor, action: Tensor, heads: Tensor) -> Tensor:
        """Q-values (L, ..., n, B) of actions (..., n, B, A), head by head, at observations (B, ...)."""
        rows = action.shape[:-1]
        seen = x.expand(*rows[:-1], *x.shape).flatten(0, len(rows) - 1)
        of_row = heads[:, None].expand(rows).flatten()
        found = self._values_in([c.per_row(seen, action.flatten(0, -2), heads=of_row) for c in critics])
        return found.view(len(found), *rows)

    def _values_in(self, outputs: list[Tensor]) -> Tensor:
        """The Q-values in the critics' outputs (..., B, O) as (..., L, B)."""
        values = [r.values(output) for r, output in zip(self._readings, outputs, strict=True)]
        return torch.cat(values, dim=-1).transpose(-1, -2)

    def _action(self, rows: Transitions) -> Tensor:
        """The rows' actions as the critics take them, (B, A)."""
        action = rows.action.to(next(self._trained["actor"].network.parameters()))
        return action[:, None] if action.dim() == 1 else action.flatten(1)

    def _actor_consolidation(
        self, x: Tensor, head: int, actions: int, weight: Tensor | None
    ) -> Consolidation:
        actor, distribution = self._trained["actor"].heads, self._distribution
        with torch.no_grad(), eval_mode(actor.module):
            output = torch.cat([actor(x[k : k + ROWS], head=head) for k in range(0, len(x), ROWS)])
        generator = torch.Generator().manual_seed(0)  # a separate generator: the global ones stay as they are
        signs = torch.randint(2, output.shape, generator=generator).to(output) * 2.0 - 1.0
        noise = torch.randn(len(x), actions, generator=generator).to(output)
        frozen = output[:, actions:] if output.shape[1] == 2 * actions else output[:, :0]
        alpha = self.alpha_of(head)

        def loss(output: Tensor, frozen: Tensor, signs: Tensor, x: Tensor, noise: Tensor) -> Tensor:
            action, log_prob = distribution.sample(output, noise)
            with self._evaluating():
                outputs = [critic.heads(x, action, head=head) for critic in self._critics.values()]
            return alpha * log_prob - self._values_in(outputs).amin(-2)

        return Consolidation(
            network=actor,
            head=head,
            inputs=(x,),
            targets=(frozen, signs, x, noise),
            output=lambda output, frozen, signs, *_: policy_information(output, frozen, signs),
            loss=loss,
            weight=weight,
        )

    @property
    def _critics(self) -> dict[str, Trained]:
        return {name: part for name, part in self._trained.items() if name != "actor"}

    @property
    def _readings(self) -> list[CriticOutput]:
        return [QValues() if part.output is None else part.output for part in self._critics.values()]

    @property
    def _distribution(self) -> Distribution:
        actor = self._trained["actor"]
        if actor.output is not None:
            given: Distribution = actor.output
            return given
        if self.temperature is None:
            return Deterministic()
        network = actor.network
        return TanhGaussian(getattr(network, "action_scale", 1.0), getattr(network, "action_bias", 0.0))

    @property
    def _asked_first(self) -> Trained:
        return self._trained["actor"]

    def _evaluating(self) -> AbstractContextManager[None]:
        parts = self._trained.values()
        return eval_mode(*(h.module for part in parts for h in {part.heads, part.lagged}))

    def _output_layers(self) -> dict[str, list[str]]:
        example: tuple[Tensor, ...] = ()
        if not all(part.knows_layers for part in self._trained.values()):
            example = self._example()
        return {
            name: part.output_layers(example[:1] if name == "actor" else example)
            for name, part in self._trained.items()
        }

    def _example(self) -> tuple[Tensor, Tensor]:
        """One observation of zeros as the networks take it, and the actor's action for it."""
        observation, actor = self._prepared_example(), self._trained["actor"]
        with torch.no_grad(), probing(actor.network):
            return observation, self._distribution.greedy(joined(actor.ask(observation)))

    def _zero_action(self, rows: int) -> Tensor:
        return torch.zeros(rows, self._example()[1].shape[1])

    def _unowned(self) -> list[str]:
        """Trained parameters that no optimizer holds; a trunk that is shared may be in another's."""
        found = []
        for name, part in self._trained.items():
            if isinstance(part.network, nn.Module) and isinstance(part.optimizer, Optimizer):
                own = {n: p for n, p in part.network.named_parameters() if p.requires_grad}
                found += ownership_problems(name, own, [other.optimizer for other in self._trained.values()])
        return found

    def _reading_problems(self) -> list[str]:
        """Whether the objects that read outputs are such."""
        found = []
        for name, part in self._trained.items():
            members, example, item = ("values", "loss"), "QValues()", part.output
            if name == "actor":
                members, example = ("greedy", "sample"), "TanhGaussian()"
            if isinstance(item, type):
                kind = item.__name__
                found.append(f"{name}'s output is the class {kind}; expected an object, {kind}(...)")
            elif item is not None and (
                missing := [member for member in members if not callable(getattr(item, member, None))]
            ):
                found.append(
                    f"{name}'s output is {item!r} and lacks {', '.join(missing)}; expected e.g. "
                    f"owlrl.describe.outputs.{example}"
                )
        return found

    def _probe_problems(self, action_shape: tuple[int, ...] | None) -> list[str]:
        """Problems found by calling each network: can it have heads, and can its outputs be read?"""
        try:
            observation, action = self._example()
        except Exception as error:  # anything may come: the actor and preprocess are the user's
            if all(part.knows_layers for part in self._trained.values()):
                return [p for name in self._trained for p in self._layer_problems(name, ())]
            return [
                f"the actor returned no action ({type(error).__name__}: {error}); use a "
                "replay that knows the observation's shape (TaskScopedReplay), pass call= or output= to its "
                "Trained if it returns something else, or layers= with the output layers' names to each"
            ]
        found = []
        if action.dim() != 2 or (action_shape is not None and tuple(action.shape[1:]) != tuple(action_shape)):
            expected = "(A,)" if action_shape is None else tuple(action_shape)
            found.append(
                f"the actor's action has shape {tuple(action.shape[1:])}; expected {expected}, as in the "
                "replay; pass output= to its Trained to define how its output is read"
            )
        for name, part in self._trained.items():
            inputs = (observation,) if name == "actor" else (observation, action)
            problems = self._layer_problems(name, inputs)
            if name != "actor" and not problems:
                problems = _critic_problems(name, part, inputs)
            found += problems
        return found

    def _layer_problems(self, name: str, inputs: tuple[Tensor, ...]) -> list[str]:
        """Whether the output layers can be given heads, and are in their own network's optimizer."""
        part = self._trained[name]
        found = part.head_problems(name, lambda: inputs)
        if found or self._unowned():  # the latter is said once, for all
            return found
        ends = {
            f"{layer}.{n}": p
            for layer in part.output_layers(inputs)
            for n, p in part.network.get_submodule(layer).named_parameters()
        }
        return ownership_problems(name, ends, [part.optimizer])


def _critic_problems(name: str, part: Trained, inputs: tuple[Tensor, ...]) -> list[str]:
    reading: CriticOutput = QValues() if part.output is None else part.output
    try:
        with torch.no_grad(), probing(part.network):
            raw = part.ask(*inputs)
            output = joined(raw)
            values, loss = reading.values(output), reading.loss(output, torch.zeros(1).to(output))
    except Exception as error:  # the network and functions are the user's
        return [
            f"{name} could not be read ({type(error).__name__}: {error}); pass call= or output= to its "
            "Trained"
        ]
    if part.output is None and isinstance(raw, Tensor) and output.shape[-1] > 1:
        return [
            f"{name} gave {output.shape[-1]} columns; say how they are read with Trained(..., output=...): "
            "owlrl.describe.outputs.QValues() if each is a Q-value, GaussianQ() for means and log-variances; "
            "for a distributional critic pass a small module that returns its mean"
        ]
    if values.dim() != 2 or len(values) != 1 or loss.shape != (1,):
        return [
            f"{name} is read as values of shape {tuple(values.shape)} and a loss of shape "
            f"{tuple(loss.shape)} for one row; expected (1, K) and (1,)"
        ]
    return []


def _replay_problems(replay: object) -> list[str]:
    """Whether the replay can store vectors of real numbers as actions, if it says what it stores."""
    shape, dtype = getattr(replay, "action_shape", None), getattr(replay, "action_dtype", None)
    if shape is None or dtype is None or (len(shape) == 1 and np.dtype(dtype).kind == "f"):
        return []
    return [
        f"the replay's actions are {dtype} of shape {tuple(shape)}; expected floating ones of shape (A,); "
        "make it with action_shape=(A,) and action_dtype=np.float32, or with action_space="
    ]


def _pieces(transitions: Transitions, step: int) -> Iterator[Transitions]:
    for start in range(0, max(1, len(transitions)), step):
        yield transitions[start : start + step]
