"""`AdaptivePolicy`: acts when the task is unknown (the paper's Algorithm 2)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from owlrl.changes import Familiarity
from owlrl.errors import NonFiniteError, OwlStateError, OwlValueError
from owlrl.heads.promote import NetworkView
from owlrl.protocols import Evidence, HeadSelector, OffPolicyLearner
from owlrl.types import Transitions

__all__ = ["AdaptivePolicy", "TraceStep", "Unfamiliar"]

SURE = 0.99  # probability from which on no task is taken to explain what is seen


@dataclass(frozen=True)
class TraceStep:
    """One step of a trace: which arm acted, the probability of each, and their losses afterwards.

    Attributes:
        arm: index into `AdaptivePolicy.tasks`; an array (E,) for E environments.
        probabilities: (n,) or (E, n) at the moment of the choice.
        losses: the evidence of that step, same shape; None until it has been observed.

    >>> from owlrl.acting.policy import TraceStep
    >>> TraceStep(arm=0, probabilities=None).losses is None
    True
    """

    arm: int | np.ndarray
    probabilities: np.ndarray
    losses: np.ndarray | None = None


@dataclass(frozen=True)
class Unfamiliar:
    """No learned task explains the episode: an event of `AdaptivePolicy.look_out`, once per episode.

    Attributes:
        step: steps observed since `AdaptivePolicy.look_out`.
        env: which environment, 0 for a single one.
        probability: that no learned task explains it.

    >>> from owlrl.acting.policy import Unfamiliar
    >>> Unfamiliar(step=8, env=0, probability=0.995).step
    8
    """

    step: int
    env: int
    probability: float


class AdaptivePolicy:
    """Draws a head, acts with it, scores every head on what happened, and draws again.

    Made by `OwlWrapper.policy`. Only heads of tasks that were learned are arms. No module is
    changed. If ``evidence`` is None nothing is scored and every loss is 0: enough for a selector that
    ignores losses. For one environment observations come without a batch dimension; after
    ``reset(num_envs=E)`` everything has a leading dimension E. Several threads may act, each with its own
    policy and selector.

    Args:
        learner: whose heads act.
        selector: chooses among them.
        evidence: scores them, or None.
        heads: the head of each task that may act.
        trace: keep every step in ``trace``; it grows until `reset`.
        familiarity: makes what `look_out` compares with.

    >>> import numpy as np, torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay, UniformSelector
    >>> q = MultiHeadQ(nn.Linear(2, 8), 8, 3)
    >>> replay = TaskScopedReplay(100, observation_shape=(2,), observation_dtype=np.float32)
    >>> owl = OwlWrapper(QLearner(q, None, torch.optim.SGD(q.parameters(), 0.1), replay=replay))
    >>> observation = np.zeros(2, np.float32)
    >>> with owl.task("only"):
    ...     replay.add(observation, 0, 1.0, observation, True, False)
    >>> policy = owl.policy(UniformSelector(seed=0), trace=True)
    >>> policy.reset()
    >>> action = policy.act(observation)
    >>> policy.observe(observation, action, 1.0, observation, terminated=True)
    >>> policy.tasks, policy.trace[0].probabilities
    (['only'], array([1.]))
    """

    def __init__(
        self,
        learner: OffPolicyLearner,
        selector: HeadSelector,
        evidence: Evidence | None,
        heads: dict[str, int],
        *,
        trace: bool = False,
        familiarity: Callable[[], Familiarity] | None = None,
    ) -> None:
        self.selector = selector
        self.evidence = evidence
        self.trace: list[TraceStep] = []
        self.arm: int | np.ndarray = 0
        """Index into `tasks` of the head that acted last; (E,) for E environments."""
        self._traces = trace
        self._learner = learner
        self._heads = np.array(list(heads.values()), dtype=np.int64)
        self._tasks = list(heads)
        self._num_envs: int | None = None
        self._ready = False
        self._make_familiarity = familiarity
        self._familiarity: Familiarity | None = None
        self._fallback: Callable[[Any], Any] | None = None
        self.events: list[Unfamiliar] = []
        """When no task explained an episode, since `look_out`."""
        self._on_event: Callable[[Unfamiliar], None] | None = None
        self._observed = 0
        self._known = np.ones(0, np.bool_)  # (E,) environments without an event in this episode

    @property
    def tasks(self) -> list[str]:
        """The arms: names of the tasks whose heads may act."""
        return list(self._tasks)

    @property
    def num_envs(self) -> int | None:
        """How many environments it acts in side by side; None for one without a leading dimension."""
        return self._num_envs

    @property
    def probabilities(self) -> np.ndarray:
        """How likely each task is to be chosen next, (n,) or (E, n)."""
        return self.selector.probabilities

    def look_out(
        self,
        fallback: Callable[[Any], Any] | None = None,
        *,
        callback: Callable[[Unfamiliar], None] | None = None,
    ) -> None:
        """Compare each step with all learned tasks from now on (`owlrl.changes.Familiarity`).

        Args:
            fallback: acts instead, ``fallback(observation)``, while no task explains the episode
                (`unfamiliar` above 0.99): your safe policy.
            callback: called with an `Unfamiliar` when that begins, once per episode; they are also
                kept in ``events``.
        """
        if self._make_familiarity is None:
            raise OwlStateError(
                "AdaptivePolicy.look_out: there are no remembered rows to compare with; make the policy by "
                "owl.policy(), not of a wrapper that was loaded with acting=True"
            )
        self._familiarity, self._fallback = self._make_familiarity(), fallback
        self._familiarity.reset(self._num_envs or 1)
        self.events, self._on_event, self._observed = [], callback, 0
        self._known = np.ones(self._num_envs or 1, np.bool_)

    @property
    def unfamiliar(self) -> Any:
        """The probability that no learned task explains what was seen in this episode; (E,) for E."""
        if self._familiarity is None:
            raise OwlStateError("AdaptivePolicy.unfamiliar: call look_out() first")
        found = self._familiarity.unfamiliar
        return found if self._num_envs is not None else float(found[0])

    def reset(
        self, *, num_envs: int | None = None, keep_evidence: bool = False, mask: np.ndarray | None = None
    ) -> None:
        """Start an episode.

        Args:
            num_envs: act in this many environments side by side from now on.
            keep_evidence: keep what earlier episodes showed about the task.
            mask: (E,) which of the running environments start a new episode; the trace then continues.
        """
        if mask is None:
            self.trace = []
        if keep_evidence and self._ready and (num_envs is None or num_envs == self._num_envs):
            return
        envs = self._num_envs if mask is not None else num_envs
        self.selector.reset(len(self._heads), num_episodes=envs, mask=mask)
        self._num_envs = envs
        self._ready = True
        if self._familiarity is not None:
            self._familiarity.reset(envs or 1, mask)
            self._known = np.ones(envs or 1, np.bool_) if mask is None else self._known | mask

    def act(self, observation: Any) -> Any:
        """Greedy action of a head drawn now: an int (or array) for one environment, (E, ...) for E."""
        batch = self._batch("observation", observation)
        if self.selector.needs_values:
            values = self._learner.values(batch).cpu().numpy()[self._heads].T
            self.selector.observe_values(values if self._num_envs is not None else values[0])
        probabilities = self.selector.probabilities if self._traces else None
        self.arm = arm = self.selector.select()
        if probabilities is not None:
            self.trace.append(TraceStep(arm, probabilities))
        heads = torch.as_tensor(np.atleast_1d(self._heads[arm]), device=batch.device)
        actions = answer("AdaptivePolicy.act", self._learner.act, batch, heads).cpu().numpy()
        if self._fallback is not None and np.any(strange := self.unfamiliar > SURE):
            if self._num_envs is None:
                return self._fallback(observation)
            actions = actions.copy()
            actions[strange] = np.asarray(self._fallback(observation))[strange]
        if self._num_envs is not None:
            return actions
        return int(actions[0]) if actions.ndim == 1 else actions[0]

    def proposals(self, observation: Any, rows: np.ndarray) -> np.ndarray:
        """The greedy action of every arm in some of the environments: (len(rows), n, ...)."""
        batch = self._batch("observation", observation)[torch.as_tensor(rows)]
        heads = (torch.full((len(batch),), int(head), device=batch.device) for head in self._heads)
        return np.stack([self._learner.act(batch, head).cpu().numpy() for head in heads], axis=1)

    def observe(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        *,
        mask: np.ndarray | None = None,
    ) -> None:
        """Process what the last action led to; a truncated step is not a terminated one.

        ``mask`` (E,) leaves out environments whose step was no transition (an automatic reset).
        """
        transitions = self._transitions(observation, action, reward, next_observation, terminated)
        losses = np.zeros((len(transitions), len(self._heads)))
        if self.evidence is not None:
            losses = np.ascontiguousarray(self.evidence.losses(self._learner, transitions, self._heads).T)
        if self._num_envs is None:
            losses = losses[0]
        self.selector.update(losses, mask=mask)
        if self._familiarity is not None:
            self._look(self._familiarity, observation, next_observation, transitions, mask)
        if self.trace and self.trace[-1].losses is None:
            self.trace[-1] = replace(self.trace[-1], losses=losses)

    def _look(
        self,
        familiarity: Familiarity,
        observation: Any,
        next_observation: Any,
        rows: Transitions,
        mask: np.ndarray | None,
    ) -> None:
        """Compare a step of each environment with all learned tasks."""
        raw = (np.asarray(o) for o in (observation, next_observation))
        seen, after = (torch.from_numpy(o if self._num_envs is not None else o[None]) for o in raw)
        env = torch.arange(len(rows))
        familiarity.observe(replace(rows, observation=seen, next_observation=after, env=env), mask)
        self._observed += 1
        found = familiarity.unfamiliar
        for number in np.flatnonzero(self._known & (found > SURE)).tolist():
            self._known[number] = False
            self.events.append(Unfamiliar(self._observed, number, float(found[number])))
            if self._on_event is not None:
                self._on_event(self.events[-1])

    def __repr__(self) -> str:
        return f"AdaptivePolicy({self.selector!r}, evidence={self.evidence!r}, tasks={self._tasks})"

    def _transitions(
        self, observation: Any, action: Any, reward: Any, next_observation: Any, terminated: Any
    ) -> Transitions:
        rewards = np.atleast_1d(np.asarray(reward, dtype=np.float32))
        actions = np.asarray(action)
        actions = actions[None] if self._num_envs is None else actions
        ended = np.atleast_1d(np.asarray(terminated, dtype=bool))
        rows = self._num_envs or 1
        if not len(rewards) == len(actions) == len(ended) == rows:
            raise OwlValueError(
                f"AdaptivePolicy.observe: got {len(actions)} actions, {len(rewards)} rewards and "
                f"{len(ended)} terminated for {rows} environments; reset(num_envs=...) says how many"
            )
        if not np.isfinite(rewards).all():
            raise NonFiniteError(f"AdaptivePolicy.observe: reward is {reward!r}; expected finite numbers")
        return Transitions(
            observation=self._batch("observation", observation),
            action=torch.as_tensor(actions),
            reward=torch.from_numpy(rewards),
            next_observation=self._batch("next_observation", next_observation),
            terminated=torch.from_numpy(ended),
            discount=torch.full((rows,), self._learner.gamma),
        )

    def _batch(self, name: str, observation: Any) -> Tensor:
        if not self._ready:
            raise OwlStateError("AdaptivePolicy: no episode has begun; call reset() first")
        one = self._num_envs is None
        if isinstance(observation, Mapping):  # the learner makes one tensor of its parts
            parts = {key: np.asarray(part) for key, part in observation.items()}
            batch = self._learner.prepare({key: part[None] if one else part for key, part in parts.items()})
        else:
            batch = _tensor(f"AdaptivePolicy: {name}", observation)
            batch = batch.unsqueeze(0) if one else batch
        if batch.is_floating_point() and not bool(torch.isfinite(batch).all()):
            raise NonFiniteError(f"AdaptivePolicy: {name} has NaN or infinity; expected finite numbers")
        if not one and (batch.ndim == 0 or len(batch) != self._num_envs):
            raise OwlValueError(
                f"AdaptivePolicy: {name} has shape {tuple(batch.shape)}; expected a leading dimension of "
                f"{self._num_envs}, the number of environments given to reset"
            )
        return batch


def _tensor(where: str, observation: Any) -> Tensor:
    try:
        return torch.as_tensor(np.asarray(observation))
    except (TypeError, ValueError) as error:
        raise OwlValueError(
            f"{where} is {observation!r:.60}; expected numbers, as the environment returns them"
        ) from error


def answer(where: str, act: Callable[..., Tensor], batch: Tensor, heads: Tensor | int) -> Tensor:
    """``act(batch, heads)``; where the networks cannot take the observations, an error that shows these."""
    try:
        return act(batch, heads)
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # one of ours, or of a device
            raise
        raise OwlValueError(
            f"{where}: the networks cannot take observations of shape {tuple(batch.shape[1:])} and dtype "
            f"{batch.dtype} ({error}); expected those that they were trained on, several side by side only "
            "after reset(num_envs=...)"
        ) from error


def export_policy(learner: OffPolicyLearner, head: int, observation: Any) -> torch.export.ExportedProgram:
    """Greedy actions of ``head`` for a batch of observations of any number, by `torch.export`.

    The program needs no owlrl and holds the weights that the head acts with, and no others; ``observation``
    is one of them, for shape and dtype.
    """
    row = _tensor("OwlWrapper.export: observation", observation)
    example = torch.stack([row, row])  # one row would be taken for the only number there is
    with torch.no_grad():
        answer("OwlWrapper.export", learner.act, example, head)
    policy = _GreedyPolicy(learner, head).eval()
    with torch.no_grad(), warnings.catch_warnings():
        # before 2.6 torch warns that it does not know where the networks are; it needs only their weights
        warnings.filterwarnings("ignore", "Unable to find the path of the module", UserWarning)
        shapes = ({0: torch.export.Dim("rows")},)
        program = torch.export.export(policy, (example,), dynamic_shapes=shapes, strict=False)
    places = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    used = []
    for spec in program.graph_signature.input_specs:
        place, name = places[spec.arg.name], spec.target
        if name is None or place.users:
            used.append(spec)
        else:  # other heads, critics
            program.graph.erase_node(place)
            del program.state_dict[name]
    program.graph_signature.input_specs[:] = used
    program.graph_module.recompile()
    # heads are views of one tensor in training; in a file each weight is by itself
    for name, weight in program.state_dict.items():
        own = weight.detach().clone()
        kept = nn.Parameter(own, requires_grad=False) if isinstance(weight, nn.Parameter) else own
        program.state_dict[name] = kept
    return program


class _GreedyPolicy(nn.Module):
    def __init__(self, learner: OffPolicyLearner, head: int) -> None:
        super().__init__()
        modules = [network.module for network in learner.networks.values()]
        # torch 2.5 cannot trace a view; the network behind it has the same weights
        self.networks = nn.ModuleList(m._network if isinstance(m, NetworkView) else m for m in modules)
        self._act = learner.act
        self._head = head

    def forward(self, observation: Tensor) -> Tensor:
        return self._act(observation, self._head)
