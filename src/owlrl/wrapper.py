"""`OwlWrapper`: tells a learner which task it is in and guards what it has learned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from torch.optim import Optimizer

from owlrl.acting.episodes import Evaluation, run_episodes
from owlrl.acting.policy import AdaptivePolicy
from owlrl.checkpoint import load_state, save_state, set_rng_state
from owlrl.describe.check import check_bound, check_learner, part_problem
from owlrl.describe.given import as_env, as_learner, as_replay
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError, int_problem, raise_problems
from owlrl.evidence import TDErrorEvidence
from owlrl.protocols import Evidence, HeadSelector, OffPolicyLearner, Regularizer, Stateful, TaskReplay
from owlrl.selection import ExpWeightsSelector, OracleSelector
from owlrl.step_guard import StepGuard
from owlrl.types import HeadPointer, Transitions
from owlrl.wrapper_state import TaskRecord, load_own_state, own_state, restore_wrapper, wrapper_state

__all__ = ["OwlWrapper"]


class OwlWrapper:
    """Lets the learner you have learn task after task, and act when the task is not told.

    Args:
        learner: a `QLearner` or `ActorCriticLearner` that describes your own, a live Stable-Baselines3
            model, or any `owlrl.protocols.OffPolicyLearner`.
        regularizer: guards what earlier tasks need, e.g. ``EWCRegularizer(500.0)``.
        replay: used instead of the learner's own description of its replay.
        evidence: what head selection is fed with; `TDErrorEvidence` by default.
        samples: at most this many rows of a task are looked at when it has been learned.

    >>> import numpy as np, torch
    >>> from torch import nn
    >>> from owlrl import EWCRegularizer, MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay
    >>> q = MultiHeadQ(nn.Sequential(nn.Linear(2, 8), nn.ReLU()), 8, 3)
    >>> optimizer = torch.optim.Adam(q.parameters())
    >>> replay = TaskScopedReplay(100, observation_shape=(2,), observation_dtype=np.float32)
    >>> owl = OwlWrapper(QLearner(q, None, optimizer, replay=replay), regularizer=EWCRegularizer(500.0))
    >>> for name, paying in (("left", 0), ("right", 2)):
    ...     with owl.task(name):  # your loop, unchanged
    ...         for action in range(3):
    ...             replay.add(np.ones(2, np.float32), action, float(action == paying),
    ...                        np.ones(2, np.float32), True, False)
    >>> owl
    OwlWrapper(QLearner(MultiHeadQ), regularizer=EWCRegularizer, replay=TaskScopedReplay, \
tasks=['left', 'right'])
    >>> q.num_heads
    2
    """

    def __init__(
        self,
        learner: Any,
        *,
        regularizer: Regularizer | None = None,
        replay: Any = None,
        evidence: Evidence | None = None,
        samples: int = 60_000,
    ) -> None:
        self.learner = learner = as_learner(learner)
        check_learner(learner)
        self.regularizer = regularizer
        self.replay: TaskReplay | None = (
            learner.replay if replay is None else as_replay(replay, gamma=learner.gamma)
        )
        self.evidence = TDErrorEvidence() if evidence is None else evidence
        self.samples = samples
        self.tasks: dict[str, TaskRecord] = {}
        self._current: str | None = None
        self._unwrapped = False
        raise_problems("OwlWrapper", self._problems())
        learner.bind()
        attached: list[Optimizer] = []
        try:
            raise_problems("OwlWrapper", check_bound(learner))
            if self._pointer.owner is not None:
                raise OwlStateError(
                    "OwlWrapper: these networks are wrapped already; unwrap() the first wrapper"
                )
            if regularizer is not None:
                regularizer.bind(learner, None)
                for optimizer in {id(o): o for o in learner.optimizers.values()}.values():
                    regularizer.attach(optimizer)
                    attached.append(optimizer)
        except BaseException:
            if attached and regularizer is not None:
                regularizer.detach()
            learner.unbind(0)
            raise
        self._pointer.owner = self
        self._initial = self._own_state()
        self._guard = StepGuard(learner)  # last, so that it sees the regularizer's gradient too

    @property
    def current_task(self) -> str | None:
        """The task whose ``with owl.task(...)`` block is open, or None."""
        return self._current

    @contextmanager
    def task(self, name: str, env: object = None, *, num_actions: int | None = None) -> Iterator[TaskRecord]:
        """Learn ``name`` inside the block, with your own loop.

        On entry the task gets its head (a new one the first time), an emptied replay, refilled
        with what was kept of the task, and its own schedules. On a normal exit the regularizer
        takes in what the task needs, the head's scale is measured and the replay keeps its
        sample. On an exception nothing of that happens: the head that was active before is
        active again, and the task can be entered anew.

        Args:
            name: the task's name; a name seen before is a revisit.
            env: handed to the learner, for learners that step an environment by themselves.
            num_actions: if this task has another number of actions; only on its first visit.
        """
        self._check_entry(name, num_actions)
        if env is not None:
            self.learner.set_env(env)
        record = self._record(name, num_actions)
        before, own_before = self._pointer.head, self._own_state()
        try:
            self._enter(name, record)
            yield record
            self._consolidate(name, record)
        except BaseException:
            self._activate(before)
            self._load_own(own_before)
            raise
        finally:
            self._guard.end()
            self._current = None

    @contextmanager
    def use(self, name: str) -> Iterator[None]:
        """Act as task ``name`` inside the block, without training it (steps are refused); then as before."""
        self._refuse_unwrapped(f"use({name!r})")
        record, own_before = self._learned(name), self._own_state()
        try:
            with self._pointer.at(record.head), self._guard.paused():
                self._load_own(record.own)
                yield
        finally:
            self._load_own(own_before)

    def policy(self, selector: HeadSelector | None = None) -> AdaptivePolicy:
        """A policy that finds out by itself which task it is in.

        Args:
            selector: how a head is chosen; `ExpWeightsSelector` by default.
        """
        self._refuse_unwrapped("policy")
        heads = {name: record.head for name, record in self.tasks.items() if record.visits}
        if not heads:
            raise OwlStateError("OwlWrapper.policy: no task has been learned yet; use `with owl.task(name):`")
        chosen = ExpWeightsSelector() if selector is None else selector
        problems = part_problem("selector", chosen, HeadSelector, "ExpWeightsSelector()")
        raise_problems("OwlWrapper.policy", problems, kind=OwlTypeError)
        return AdaptivePolicy(self.learner, chosen, self.evidence, heads)

    def evaluate(
        self,
        env: Any,
        *,
        task: str | None = None,
        selector: HeadSelector | None = None,
        episodes: int = 16,
        seed: int | None = None,
        max_steps: int | None = None,
        keep_evidence: bool = False,
    ) -> Evaluation:
        """Run greedy episodes in ``env`` (a Gymnasium environment, or a vector of them).

        With ``task`` the head is told (the paper's oracle), as inside `use`; without, it is found by
        ``selector``.
        """
        if task is not None and selector is not None:
            raise OwlValueError(
                "OwlWrapper.evaluate: task= tells the head and selector= finds it; pass one of them"
            )
        if task is not None:
            self._learned(task)
            arms = [name for name, record in self.tasks.items() if record.visits]
            selector = OracleSelector(arms.index(task))
        elif selector is None:
            selector = ExpWeightsSelector(seed=seed)
        policy = self.policy(selector)
        if task is not None:
            policy.evidence = None  # there is nothing to find out
        with nullcontext() if task is None else self.use(task):
            return run_episodes(
                policy,
                as_env(env),
                episodes=episodes,
                seed=seed,
                max_steps=max_steps,
                keep_evidence=keep_evidence,
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything needed to go on to one file, atomically (see `owlrl.checkpoint`).

        Heads, targets, optimizers, regularizer, replay with its kept samples, schedules of each
        task, calibration and the global generators' states; not your environment's state.
        """
        self._refuse_inside("save")
        save_state(path, wrapper_state(self.learner, self.tasks, self._parts()))

    @classmethod
    def load(cls, path: str | os.PathLike[str], learner: Any, **arguments: Any) -> OwlWrapper:
        """Wrap ``learner``, built anew as it was before its first wrap, and put everything back.

        Args:
            path: a file that `save` wrote.
            learner: a fresh learner of the same make.
            arguments: as for the constructor; the same parts as when it was saved.
        """
        state = load_state(path)
        owl = cls(learner, **arguments)
        try:
            owl.tasks.update(restore_wrapper(owl.learner, state, owl._parts()))
            owl._activate(state["active"])
            set_rng_state(state["rng"])
        except BaseException:
            owl.unwrap()
            raise
        return owl

    def unwrap(self, task: str | None = None) -> OffPolicyLearner:
        """Undo the wrapping and return the learner, with ``task``'s head (by default the active one).

        Networks that were given heads here are plain again; a `MultiHeadQ` keeps its heads.
        """
        self._refuse_inside("unwrap")
        head = self._pointer.head if task is None else self._learned(task).head
        self._guard.detach()
        if self.regularizer is not None:
            self.regularizer.detach()
        self._activate(head)
        if task is not None:
            self._load_own(self._learned(task).own)
        self._pointer.owner = None
        self.learner.unbind(head)
        self._unwrapped = True
        return self.learner

    def __deepcopy__(self, memo: object) -> OwlWrapper:
        raise OwlStateError(
            "OwlWrapper: a deep copy would lose the optimizers' hooks and share the active head; save() it "
            "and load() it into a fresh learner instead"
        )

    def __repr__(self) -> str:
        regularizer = None if self.regularizer is None else type(self.regularizer).__name__
        replay = None if self.replay is None else type(self.replay).__name__
        tasks = list(self.tasks)
        return f"OwlWrapper({self.learner!r}, regularizer={regularizer}, replay={replay}, tasks={tasks})"

    @property
    def _pointer(self) -> HeadPointer:
        return next(iter(self.learner.networks.values())).pointer

    def _problems(self) -> list[str]:
        found = []
        if self.replay is None:
            found.append(
                "there is no replay; pass replay= here or to the learner, the one your loop writes to"
            )
        else:
            found += part_problem("replay", self.replay, TaskReplay, "TaskScopedReplay(...)")
        if self.regularizer is not None:
            found += part_problem("regularizer", self.regularizer, Regularizer, "EWCRegularizer(500.0)")
        found += part_problem("evidence", self.evidence, Evidence, "TDErrorEvidence()")
        if problem := int_problem("samples", self.samples):
            found.append(problem)
        return found

    def _check_entry(self, name: str, num_actions: int | None) -> None:
        if not isinstance(name, str) or not name:
            raise OwlTypeError(
                f"OwlWrapper.task: the name is {name!r}; expected a non-empty str, e.g. str({name!r})"
            )
        self._refuse_inside(f"task({name!r})")
        if num_actions is not None and name in self.tasks:
            raise OwlValueError(
                f"OwlWrapper.task: {name!r} has its head already; leave num_actions out on a revisit"
            )

    def _refuse_unwrapped(self, what: str) -> None:
        if self._unwrapped:
            raise OwlStateError(f"OwlWrapper.{what}: this was unwrapped; make a new OwlWrapper(learner)")

    def _refuse_inside(self, what: str) -> None:
        self._refuse_unwrapped(what)
        if self._current is not None:
            raise OwlStateError(
                f"OwlWrapper.{what}: the block of task {self._current!r} is still open; leave it first"
            )

    def _learned(self, name: str) -> TaskRecord:
        record = self.tasks.get(name)
        if record is None or not record.visits:
            learned = [task for task, r in self.tasks.items() if r.visits]
            raise OwlValueError(f"OwlWrapper: task {name!r} has not been learned; learned are {learned}")
        return record

    def _record(self, name: str, num_actions: int | None) -> TaskRecord:
        if name not in self.tasks:
            heads = next(iter(self.learner.networks.values())).num_heads
            free = set(range(heads)) - {record.head for record in self.tasks.values()}
            fitting = [k for k in sorted(free) if num_actions in (None, self._num_outputs(k))]
            head = fitting[0] if fitting else self.learner.add_head(num_actions=num_actions)
            outputs = self._num_outputs(head)  # a learner may know them from its environment
            own_number = num_actions or (outputs if outputs != self._num_outputs(0) else None)
            self.tasks[name] = TaskRecord(head=head, num_actions=own_number)
        return self.tasks[name]

    def _num_outputs(self, head: int) -> int:
        *_, last = next(iter(self.learner.networks.values())).head_parameters(head).values()
        return len(last)

    def _enter(self, name: str, record: TaskRecord) -> None:
        assert self.replay is not None
        self.replay.begin_task(name)
        self._activate(record.head)  # first: what is loaded is this head's
        self._load_own(record.own or self._initial)
        self._guard.begin(name)
        self._current = name

    def _consolidate(self, name: str, record: TaskRecord) -> None:
        assert self.replay is not None
        if not len(self.replay):
            raise OwlStateError(
                f"OwlWrapper: task {name!r} left no transition in its {type(self.replay).__name__}; "
                "does your loop write to the replay that was given to the wrapper?"
            )
        self._guard.check_weights()
        rows = self.replay.sample_distinct(self.samples)
        known = self.evidence.state_dict()
        self.evidence.calibrate(self.learner, record.head, rows)
        try:
            if self.regularizer is not None:
                self.regularizer.remember(name, self.learner.consolidation(rows))
            self.replay.end_task()
        except BaseException:
            self.evidence.load_state_dict(known)
            raise
        record.visits += 1
        record.steps += self._guard.steps
        record.own = self._own_state()

    def _activate(self, head: int) -> None:
        self._pointer.index = head
        # an idle head must have no gradient at all, or momentum and weight decay move it
        for network in self.learner.networks.values():
            for k in range(network.num_heads):
                for parameter in network.head_parameters(k).values():
                    parameter.grad = None

    def _parts(self) -> dict[str, Stateful | None]:
        return {"regularizer": self.regularizer, "replay": self.replay, "evidence": self.evidence}

    def _own_state(self) -> dict[str, Any]:
        return {name: own_state(item) for name, item in self.learner.per_task.items()}

    def _load_own(self, state: dict[str, Any]) -> None:
        for name, item in self.learner.per_task.items():
            load_own_state(item, state[name])

    def _sample(self, batch_size: int) -> Transitions:
        assert self.replay is not None
        rows = self.replay.sample(min(batch_size, len(self.replay)))
        observation, following = (
            self.learner.prepare(seen) for seen in (rows.observation, rows.next_observation)
        )
        return replace(rows, observation=observation, next_observation=following)
