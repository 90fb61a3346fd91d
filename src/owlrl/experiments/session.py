"""`Session`: the parts of one run put together, ready to learn task after task."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from owlrl import (
    AdaptivePolicy,
    MultiHeadQ,
    OracleSelector,
    OwlWrapper,
    RehearsalReplay,
    SharedReplay,
    TaskScopedReplay,
)
from owlrl.checkpoint import load_state, save_state, set_rng_state
from owlrl.envs import Table
from owlrl.envs.vector import ArrayVectorEnv
from owlrl.errors import OwlError, OwlStateError, OwlValueError
from owlrl.experiments.config import Run
from owlrl.experiments.episodes import Lanes, greedy_success, run_lanes
from owlrl.experiments.evidence import make_evidence
from owlrl.experiments.least_tried import LeastTried
from owlrl.experiments.policies import ORACLE, make_selector, parse_policy
from owlrl.experiments.tasks import resolve_unseen, table_of, tables_of, vector_env
from owlrl.learners import DQN, SAC
from owlrl.wrapper_state import restore_wrapper, wrapper_state

__all__ = ["Session"]

Replay = TaskScopedReplay | SharedReplay | RehearsalReplay
ONE_HEAD = "every task"  # what a learner with one head takes all tasks for


class Session:
    """An agent, its replay, its regularizer and its evidence, as a `Run` says.

    The agent is a DQN on levels, and a SAC where actions are continuous.

    Attributes:
        run: what was asked for.
        tasks: by name and in order; levels as tables, poles as their specifications.
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
        scale = run.preset.goal_scale
        self.tasks: dict[str, Any] = {
            name: spec if run.control else table_of(spec, goal_scale=scale)
            for name, spec in run.specs.items()
        }
        first = self.env(next(iter(self.tasks)))
        self.agent = _make_sac(run, first) if run.control else _make_dqn(run, first, self.tasks)
        self.learner = self.agent.describe(init=run.recipe.init)
        self._first_loop = self.learner.per_task["loop"].state_dict()
        needed = {parse_policy(name, control=run.control).evidence for name in run.acting}
        self.evidence = make_evidence(needed, seed=run.seed, control=run.control)
        self.heads: dict[str, int] = {}
        self._open: str | None = None  # the task whose visit has begun and not been ended
        self._unfinished: dict[str, Any] | None = None  # where the learner stood in it, when it was loaded
        self._visits: dict[str, int] = {}
        self._exploration: dict[str, dict[str, Any]] = {}
        self._owl: OwlWrapper | None = None
        if run.recipe.heads or run.control:
            self._owl = OwlWrapper(self.learner, regularizer=_regularizer(run), evidence=self.evidence)
        if run.recipe.heads and run.recipe.replay == "rehearsal" and isinstance(self.agent, DQN):
            self.agent.head_of = self._head_of_batch

    def env(self, task: str) -> ArrayVectorEnv:
        """The task as it is trained in: copies of it, with the learner's bonus."""
        return vector_env(self.tasks[task], self.run.num_envs, count_bonus=self.run.preset.count_bonus)

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
            with self._owl.task(name if self.run.recipe.heads else ONE_HEAD, env=env) as record:
                if isinstance(self.agent, DQN):
                    self._restart_exploration(self.agent, name, goes_on=goes_on)
                self._unfinished = None
                yield record.head
            self.heads[name] = record.head
        self._open = None
        self._visits[name] = self._visits.get(name, 0) + 1

    def policy(self, name: str, truth: Sequence[str]) -> AdaptivePolicy | LeastTried:
        """A policy by name; the oracle is given ``truth``, the task of each lane it will act in."""
        heads = self.run.recipe.heads
        if heads and not self.heads:
            raise OwlStateError("Session.policy: no task has been learned yet")
        selector, evidence, least_tried = parse_policy(name, control=self.run.control)
        arms = dict(self.heads) if heads else {ONE_HEAD: 0}
        if selector != ORACLE:
            chosen, found = make_selector(selector, self.run.seed), self.evidence.part(evidence)
        elif unknown := sorted(set(truth) - set(arms)) if heads else []:
            raise OwlValueError(f"Session.policy: the oracle has no head for {', '.join(unknown)}")
        else:
            places = {task: place for place, task in enumerate(arms)}
            told = np.array([places.get(task, 0) for task in truth], dtype=np.int64)
            chosen, found = OracleSelector(told), None
        policy = AdaptivePolicy(self.learner, chosen, found, arms, trace=True)
        if not least_tried or not isinstance(self.agent, DQN):
            return policy
        return LeastTried(policy, self.agent.num_actions, seed=self.run.seed)

    def unseen(self, text: str) -> dict[str, Table]:
        """Levels that are none of those trained on, e.g. ``"S9N1:100"``."""
        actions = next(iter(self.tasks.values())).num_actions
        levels = resolve_unseen(text, self.run.specs, num_actions=actions)
        return tables_of(levels, goal_scale=self.run.preset.goal_scale)

    def lanes(self, tasks: Sequence[Any], copies: int) -> Lanes:
        """Where episodes for an evaluation run; the same starts each time."""
        return Lanes(tasks, copies, seed=10_000 + self.run.seed)

    def score(self, task: str, head: int) -> float:
        """How well the network that the agent would hand over now does ``task`` with ``head``.

        Of a level 1 if it is solved, else 0; otherwise the mean return of some episodes.
        """
        if isinstance(self.agent, DQN):
            network = self.agent.target if self.agent.config.hand_over else self.agent.q
            return float(greedy_success(network, head, self.tasks[task]))
        told = AdaptivePolicy(self.learner, OracleSelector(0), None, {task: head})
        return float(run_lanes(told, self.lanes([self.tasks[task]], self.run.episodes)).returns.mean())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what acting needs to a file, atomically: networks, heads and evidence; no replay."""
        tasks = {} if self._owl is None else self._owl.tasks
        state = {"run": self.run.to_json(), "heads": self.heads}
        save_state(
            path, {**state, "learner": wrapper_state(self.learner, tasks, {"evidence": self.evidence})}
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Session:
        """A session that acts as the saved one did; it cannot go on learning."""
        state = load_state(path)
        if not isinstance(state, dict) or set(state) != {"run", "heads", "learner"}:
            raise OwlValueError(
                f"Session.load: {path} is a checkpoint of something else; expected a session's"
            )
        try:
            session = cls(Run.from_json(state["run"]))
            parts = {"evidence": session.evidence}
            records = restore_wrapper(session.learner, state["learner"], parts, acting=True)
            if session._owl is not None:
                session._owl.tasks.update(records)
            session.heads = {task: int(head) for task, head in state["heads"].items()}
        except (RuntimeError, TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
            if isinstance(error, OwlError) and str(path) in str(error):
                raise
            what = " ".join(f"{error}".split())
            raise OwlValueError(
                f"{path} does not fit this version of owlrl ({type(error).__name__}: {what[:200]}); train "
                "again"
            ) from error
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
        assert isinstance(self.agent, DQN)  # a SAC with one head is wrapped
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

    def _restart_exploration(self, agent: DQN, name: str, *, goes_on: bool) -> None:
        rate = self.run.recipe.epsilon_restart
        agent.epsilon.frames = self.run.config.epsilon_frames
        if rate is not None and self._visits.get(name, 0) > 0:
            agent.epsilon.seen = agent.epsilon.seen if goes_on else 0
            agent.epsilon.frames = max(1, round(self.run.config.epsilon_frames / rate))

    def _head_of_batch(self, batch: Any) -> int | None:
        assert self._owl is not None
        return None if batch.task is None else self._owl.tasks[batch.task].head


def _regularizer(run: Run) -> Any:
    make, recipe = run.recipe.regularizer, run.recipe
    own = (recipe.control or {}) if run.control else recipe.strength
    return None if make is None else make(own if run.strength is None else run.strength, run.seed)


def _make_dqn(run: Run, env: ArrayVectorEnv, tables: Mapping[str, Table]) -> DQN:
    actions = {table.num_actions for table in tables.values()}
    if len(actions) > 1:
        raise OwlValueError(
            f"Session: the tasks have {sorted(actions)} actions; expected the same number in all"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        trunk, features = run.preset.trunk()
        if run.recipe.dropout:
            trunk = nn.Sequential(trunk, nn.Dropout(run.recipe.dropout))
        more = {"n_step": run.config.n_step, "sampler": run.config.sampler}
        agent = DQN(
            env,
            config=run.config,
            trunk=trunk,
            feature_dim=features,
            replay=_make_replay(run, run.config.buffer_size, run.config.gamma, env, **more),
            seed=run.seed,
            device="cpu",
            compile=run.compile,
        )
        if run.recipe.head is not None:  # not DQN(head=...), which would begin with other weights than so far
            agent.q = MultiHeadQ(trunk, features, agent.num_actions, head=run.recipe.head)
            agent.target = copy.deepcopy(agent.q)
            agent.optimizer = torch.optim.Adam(agent.q.parameters(), lr=run.config.learning_rate, fused=True)
    return agent


def _make_sac(run: Run, env: ArrayVectorEnv) -> SAC:
    space = env.single_action_space
    replay = _make_replay(run, run.sac.buffer_size, run.sac.gamma, env, action_space=space)
    return SAC(env, config=run.sac, replay=replay, seed=run.seed, device="cpu", compile=run.compile)


def _make_replay(run: Run, room: int, gamma: float, env: ArrayVectorEnv, **more: Any) -> Replay:
    common: dict[str, Any] = {
        "observation_space": env.single_observation_space,
        "num_envs": env.num_envs,
        "gamma": gamma,
        "seed": run.seed,
        **more,
    }
    every = room * len(run.specs)  # room for all tasks, as in the paper
    if run.recipe.replay == "shared" and run.control:  # one task as far as the wrapper knows
        return TaskScopedReplay(every, warm_start=every, **common)
    if run.recipe.replay == "shared":
        return SharedReplay(every, **common)
    if run.recipe.replay == "rehearsal":
        return RehearsalReplay(room, **common)
    return TaskScopedReplay(room, warm_start=run.recipe.warm_start, **common)
