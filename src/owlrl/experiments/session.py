"""`Session`: the parts of one run put together, ready to learn task after task."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from owlrl import (
    AdaptivePolicy,
    MultiHeadQ,
    OracleSelector,
    OwlWrapper,
    QLearner,
    RehearsalReplay,
    SharedReplay,
    TaskScopedReplay,
)
from owlrl.checkpoint import load_state, save_state, set_rng_state
from owlrl.envs import Table, TabulatedVectorEnv
from owlrl.envs.vector import ArrayVectorEnv
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.experiments.config import Run
from owlrl.experiments.episodes import Lanes, greedy_success
from owlrl.experiments.evidence import EvidenceSet, make_evidence
from owlrl.experiments.least_tried import LeastTried
from owlrl.experiments.policies import ORACLE, make_selector, parse_policy
from owlrl.experiments.recipes import Recipe
from owlrl.experiments.tasks import resolve_unseen, table_of, tables_of
from owlrl.learners import DQN, DQNConfig
from owlrl.protocols import OffPolicyLearner
from owlrl.wrapper_state import restore_wrapper, wrapper_state

__all__ = ["Session", "Trained", "acting_policy"]

Replay = TaskScopedReplay | SharedReplay | RehearsalReplay


class Trained(Protocol):
    """What acting needs of a session."""

    run: Run
    evidence: EvidenceSet
    heads: dict[str, int]

    @property
    def learner(self) -> OffPolicyLearner:
        """The agent as `OwlWrapper` sees it."""
        ...


class Session:
    """An agent, its replay, its regularizer and its evidence, as a `Run` says.

    Attributes:
        run: what was asked for.
        tables: the tasks, tabulated.
        agent: the learner.
        learner: the agent as `OwlWrapper` sees it.
        evidence: all evidence that the run's policies need.
        heads: the head of each task that was learned.

    >>> from owlrl.experiments import Run, Session
    >>> session = Session(Run("Crossroads-2", policies=("oracle",)))
    >>> with session.task("crossroads-0") as head:
    ...     session.agent.learn(200)
    >>> head, session.heads
    (0, {'crossroads-0': 0})
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.tables = {
            name: table_of(spec, goal_scale=run.preset.goal_scale) for name, spec in run.specs.items()
        }
        self.agent = _make_agent(run, list(self.tables.values()))
        self.learner = self.agent.describe(init=run.recipe.init)
        self._first_loop = self.learner.per_task["loop"].state_dict()
        self.evidence = make_evidence({parse_policy(name).evidence for name in run.acting}, seed=run.seed)
        self.heads: dict[str, int] = {}
        self._open: str | None = None  # the task whose visit has begun and not been ended
        self._unfinished: dict[str, Any] | None = None  # where the learner stood in it, when it was loaded
        self._visits: dict[str, int] = {}
        self._exploration: dict[str, dict[str, Any]] = {}
        self._owl = _wrap(run, self.learner, self.evidence) if run.recipe.heads else None
        if run.recipe.heads and run.recipe.replay == "rehearsal":
            self.agent.head_of = self._head_of_batch

    @property
    def tasks(self) -> dict[str, Table]:
        """The tasks by name, in order."""
        return self.tables

    def env(self, task: str) -> TabulatedVectorEnv:
        """The task as it is trained in: copies of it, with the learner's bonus."""
        bonus = self.run.preset.count_bonus
        return TabulatedVectorEnv(self.tables[task], self.run.num_envs, count_bonus=bonus)

    @contextmanager
    def task(self, name: str, env: ArrayVectorEnv | None = None) -> Iterator[int]:
        """Learn a task inside the block; gives the head that is trained.

        Args:
            name: of the task.
            env: to train in, by default a new one. A visit that was loaded goes on: with the environment
                put back as it was, in the middle of its episodes.
        """
        env = env or self.env(name)
        goes_on, self._open = self._unfinished is not None, name
        if self._owl is None:
            with self._one_head(name, env):
                yield 0
            self.heads[name] = 0
        else:
            with self._owl.task(name, env=env) as record:
                self._restart_exploration(name, goes_on=goes_on)
                self._unfinished = None
                yield record.head
            self.heads[name] = record.head
        self._open = None
        self._visits[name] = self._visits.get(name, 0) + 1

    def policy(self, name: str, truth: Sequence[str]) -> AdaptivePolicy | LeastTried:
        """A policy by name; the oracle is given ``truth``, the task of each lane it will act in."""
        policy = acting_policy(self, name, truth)
        if not parse_policy(name).least_tried:
            return policy
        return LeastTried(policy, self.agent.num_actions, seed=self.run.seed)

    def unseen(self, text: str) -> dict[str, Table]:
        """Levels that are none of those trained on, e.g. ``"S9N1:100"``."""
        levels = resolve_unseen(text, self.run.specs, num_actions=self.agent.num_actions)
        return tables_of(levels, goal_scale=self.run.preset.goal_scale)

    def lanes(self, tables: Sequence[Table], copies: int) -> Lanes:
        """Where episodes for an evaluation run."""
        return Lanes(tables, copies)

    def score(self, task: str, head: int) -> float:
        """1 if the network that the agent would hand over now solves ``task`` with ``head``, else 0."""
        network = self.agent.target if self.agent.config.hand_over else self.agent.q
        return float(greedy_success(network, head, self.tables[task]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what acting needs to a file, atomically: networks, heads and evidence; no replay."""
        state = {
            "run": self.run.to_json(),
            "q": dict(self.agent.q.state_dict()),
            "target": dict(self.agent.target.state_dict()),
            "heads": self.heads,
            "evidence": self.evidence.state_dict(),
        }
        save_state(path, state)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Session:
        """A session that acts as the saved one did; it cannot go on learning."""
        state = load_state(path)
        if not isinstance(state, dict) or set(state) != {"run", "q", "target", "heads", "evidence"}:
            raise OwlValueError(
                f"Session.load: {path} is a checkpoint of something else; expected a session's"
            )
        session = cls(Run.from_json(state["run"]))
        session.agent.q.load_state_dict(state["q"])
        session.agent.target.load_state_dict(state["target"])
        session.evidence.load_state_dict(state["evidence"])
        session.heads = {task: int(head) for task, head in state["heads"].items()}
        return session

    def state_dict(self) -> dict[str, Any]:
        """All that it takes to go on learning, bit for bit; inside a task all but its environment."""
        alone = {"replay": self.agent.replay}  # of a learner that is not wrapped
        return {
            "learner": wrapper_state(self.learner, {}, alone)
            if self._owl is None
            else self._owl.state_dict(),
            "heads": dict(self.heads),
            "visits": dict(self._visits),
            "exploration": dict(self._exploration),
            "open": self._open,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on from what ``state_dict`` gave; for a session that is new."""
        learner = state_dict["learner"]
        if self._owl is None:
            restore_wrapper(self.learner, learner, {"replay": self.agent.replay})
            set_rng_state(learner["rng"])
        else:
            self._owl.load_state_dict(learner)
        self._unfinished = None if state_dict["open"] is None else learner["per_task"]
        self.heads = dict(state_dict["heads"])
        self._visits = dict(state_dict["visits"])
        self._exploration = dict(state_dict["exploration"])

    @contextmanager
    def _one_head(self, name: str, env: ArrayVectorEnv) -> Iterator[None]:
        """What the wrapper does for exploration and replay, for a learner that keeps its one head."""
        epsilon, replay, loop = self.agent.epsilon, self.agent.replay, self.learner.per_task["loop"]
        self.agent.set_env(env)
        if self._unfinished is None:
            replay.begin_task(name)
            epsilon.load_state_dict(self._exploration.get(name, {"seen": 0}))
            loop.load_state_dict(self._first_loop)
        else:  # all else was loaded; the loop needs its environment
            loop.load_state_dict(self._unfinished["loop"]["state"])
            self._unfinished = None
        yield
        self.agent.hand_over()
        self._exploration[name] = epsilon.state_dict()
        replay.end_task()

    def _restart_exploration(self, name: str, *, goes_on: bool) -> None:
        rate = self.run.recipe.epsilon_restart
        again = rate is not None and self._visits.get(name, 0) > 0
        self.agent.epsilon.frames = self.run.config.epsilon_frames
        if again:
            assert rate is not None
            self.agent.epsilon.seen = self.agent.epsilon.seen if goes_on else 0
            self.agent.epsilon.frames = max(1, round(self.run.config.epsilon_frames / rate))

    def _head_of_batch(self, batch: Any) -> int | None:
        assert self._owl is not None
        return None if batch.task is None else self._owl.tasks[batch.task].head


def acting_policy(session: Trained, name: str, truth: Sequence[str]) -> AdaptivePolicy:
    """A policy by name for what a session has learned; the oracle is given ``truth``, a task per lane.

    >>> from owlrl.experiments import Run, Session
    >>> from owlrl.experiments.session import acting_policy
    >>> session = Session(Run("Crossroads-2", method="experience-replay"))
    >>> acting_policy(session, "oracle", ["crossroads-0"]).tasks
    ['every task']
    """
    heads = session.run.recipe.heads
    if heads and not session.heads:
        raise OwlStateError("Session.policy: no task has been learned yet")
    selector, evidence, _ = parse_policy(name, control=session.run.control)
    arms = dict(session.heads) if heads else {"every task": 0}
    if selector != ORACLE:
        chosen = make_selector(selector, session.run.seed)
        return AdaptivePolicy(session.learner, chosen, session.evidence.part(evidence), arms, trace=True)
    if unknown := sorted(set(truth) - set(arms)) if heads else []:
        raise OwlValueError(f"Session.policy: the oracle has no head for {', '.join(unknown)}")
    places = {task: place for place, task in enumerate(arms)}
    told = OracleSelector(np.array([places.get(task, 0) for task in truth], dtype=np.int64))
    return AdaptivePolicy(session.learner, told, None, arms, trace=True)


def _make_agent(run: Run, tables: Sequence[Table]) -> DQN:
    actions = {table.num_actions for table in tables}
    if len(actions) > 1:
        raise OwlValueError(
            f"Session: the tasks have {sorted(actions)} actions; expected the same number in all"
        )
    env = TabulatedVectorEnv(tables[0], run.num_envs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        trunk, features = run.preset.trunk()
        if run.recipe.dropout:
            trunk = nn.Sequential(trunk, nn.Dropout(run.recipe.dropout))
        agent = DQN(
            env,
            config=run.config,
            trunk=trunk,
            feature_dim=features,
            replay=_make_replay(run.recipe, run.config, env, run.seed, len(tables)),
            seed=run.seed,
            device="cpu",
            compile=run.compile,
        )
        if run.recipe.head is not None:  # not DQN(head=...), which would begin with other weights than so far
            agent.q = MultiHeadQ(trunk, features, agent.num_actions, head=run.recipe.head)
            agent.target = copy.deepcopy(agent.q)
            agent.optimizer = torch.optim.Adam(agent.q.parameters(), lr=run.config.learning_rate, fused=True)
    return agent


def _make_replay(
    method: Recipe, config: DQNConfig, env: TabulatedVectorEnv, seed: int, num_tasks: int
) -> Replay:
    common: dict[str, Any] = {
        "observation_space": env.single_observation_space,
        "num_envs": env.num_envs,
        "n_step": config.n_step,
        "gamma": config.gamma,
        "sampler": config.sampler,
        "seed": seed,
    }
    if method.replay == "shared":  # room for all tasks, as in the paper
        return SharedReplay(config.buffer_size * num_tasks, **common)
    if method.replay == "rehearsal":
        return RehearsalReplay(config.buffer_size, **common)
    return TaskScopedReplay(config.buffer_size, warm_start=method.warm_start, **common)


def _wrap(run: Run, learner: QLearner, evidence: EvidenceSet) -> OwlWrapper:
    make = run.recipe.regularizer
    strength = run.recipe.strength if run.strength is None else run.strength
    regularizer = None if make is None else make(strength, run.seed)
    return OwlWrapper(learner, regularizer=regularizer, evidence=evidence)
