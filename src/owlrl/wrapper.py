"""`OwlWrapper`: gives a learner a head, a memory and schedules per task, and protects what it has learned."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Literal

import torch
from torch.optim import Optimizer

from owlrl._arguments import Arguments
from owlrl.acting.episodes import Evaluation, collect_rows, run_episodes, space_problems
from owlrl.acting.policy import AdaptivePolicy, export_policy
from owlrl.autosave import Autosave
from owlrl.checkpoint import load_state, save_state, set_rng_state
from owlrl.describe.given import as_env, as_learner, as_replay, check_bound, check_learner, part_problem
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError, raise_problems
from owlrl.evidence import ModelEvidence
from owlrl.memory import TaskMemories
from owlrl.protocols import Evidence, HeadSelector, OffPolicyLearner, Regularizer, Stateful, TaskReplay
from owlrl.regularizers import DistillationRegularizer
from owlrl.replay import SharedReplay
from owlrl.selection import ExpWeightsSelector, OracleSelector
from owlrl.step_guard import StepGuard
from owlrl.stream import Stream, Streaming
from owlrl.types import HeadPointer, Transitions
from owlrl.wrapper_state import TaskRecord, load_own_state, own_state, restore_wrapper, wrapper_state

__all__ = ["OwlWrapper"]

LOOK_EVERY = 32  # optimizer steps between two looks at what the learner stored
LOOK_ROWS = 512  # or four times as many, where so few rows come and they are half of the replay at most
Watcher = Callable[[int, dict[str, float]], None]


class OwlWrapper(Streaming):
    """Lets your learner learn task after task, and act when the task is unknown.

    ``OwlWrapper(learner)`` alone is what we recommend: a head per task that starts at zero, old heads that
    keep their outputs on remembered rows, and a model per task to find the task with. With one task the
    learner is bit for bit the bare one.

    Args:
        learner: a Stable-Baselines3 model, an `owlrl.learners.DQN` or `SAC`, a `QLearner` or
            `ActorCriticLearner` that describes your own, or any `owlrl.protocols.OffPolicyLearner`.
        regularizer: protects earlier tasks; by default a `DistillationRegularizer`, None for none.
        evidence: scores the heads when the task is unknown; by default a `ModelEvidence`, None for none.
        replay: used instead of the learner's own replay.
        memory_rows: rows remembered of each task (see `owlrl.memory.TaskMemory`).
        max_bytes: bytes of all remembered rows together.
        seed: of the parts made here and of the memory; by default the learner's.
        watch: called with the steps so far and a dict of `numbers`.
        watch_every: optimizer steps between two calls of ``watch``.
        acting: only act, as after ``load(..., acting=True)``: the learner needs no replay and no optimizer.

    >>> import numpy as np, torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay
    >>> q = MultiHeadQ(nn.Sequential(nn.Linear(2, 8), nn.ReLU()), 8, 3)
    >>> optimizer = torch.optim.Adam(q.parameters())
    >>> replay = TaskScopedReplay(100, observation_shape=(2,), observation_dtype=np.float32)
    >>> owl = OwlWrapper(QLearner(q, None, optimizer, replay=replay), seed=0)
    >>> for name, paying in (("left", 0), ("right", 2)):
    ...     with owl.task(name):  # your loop, unchanged
    ...         for action in range(3):
    ...             replay.add(np.ones(2, np.float32), action, float(action == paying),
    ...                        np.ones(2, np.float32), True, False)
    >>> owl
    OwlWrapper(QLearner(MultiHeadQ), regularizer=DistillationRegularizer, evidence=ModelEvidence, \
replay=TaskScopedReplay, tasks=['left', 'right'])
    >>> q.num_heads
    2
    """

    def __init__(
        self,
        learner: Any,
        *,
        regularizer: Regularizer | Literal["default"] | None = "default",
        evidence: Evidence | Literal["default"] | None = "default",
        replay: Any = None,
        memory_rows: int = 20_000,
        max_bytes: int = 2**30,
        seed: int | None = None,
        watch: Watcher | None = None,
        watch_every: int = 1_000,
        acting: bool = False,
    ) -> None:
        self.acting = acting
        self.learner = learner = as_learner(learner)
        check_learner(learner)
        arguments = Arguments("OwlWrapper")
        self.memory_rows = arguments.integer("memory_rows", memory_rows)
        self.max_bytes = arguments.integer("max_bytes", max_bytes)
        self.seed = arguments.integer("seed", learner.seed if seed is None else seed, least=0, none=True)
        self.watch = arguments.function("watch", watch, "of a step and a dict of numbers", none=True)
        self.watch_every = arguments.integer("watch_every", watch_every)
        self.replay: TaskReplay | None = (
            learner.replay if replay is None else as_replay(replay, gamma=learner.gamma)
        )
        self._check_parts(arguments, regularizer, evidence)
        arguments.check()
        default = None if acting else DistillationRegularizer(seed=self.seed)
        self.regularizer = default if acting or isinstance(regularizer, str) else regularizer
        self.evidence = ModelEvidence(seed=self.seed) if isinstance(evidence, str) else evidence
        self.memory = TaskMemories(self.memory_rows, max_bytes=self.max_bytes, seed=self.seed)
        self.tasks: dict[str, TaskRecord] = {}
        self._stream = Stream(self)
        self._current: str | None = None
        self._open: str | None = None  # the task whose visit has begun and not been ended
        self._unwrapped = False
        self._bind()

    def _bind(self) -> None:
        learner, regularizer = self.learner, self.regularizer
        learner.bind()
        attached: list[Optimizer] = []
        try:
            raise_problems("OwlWrapper", [] if self.acting else check_bound(learner))
            if self._pointer.owner is not None:
                raise OwlStateError("OwlWrapper: these networks are wrapped already; unwrap() the first")
            raise_problems("OwlWrapper", learner.trial(None))
            if regularizer is not None:
                regularizer.bind(learner, self.memory)
                for optimizer in {id(o): o for o in learner.optimizers.values()}.values():
                    regularizer.attach(optimizer)
                    attached.append(optimizer)
        except BaseException:
            if attached and regularizer is not None:
                regularizer.detach()
            learner.unbind(0)
            raise
        self._pointer.owner = self
        self._initial, self._look_every = self._own_state(), LOOK_EVERY
        # last: sees the regularizer's gradient
        self._guard = StepGuard(learner, self._on_step, self.replay, lambda: self._stream.after_update())

    @property
    def current_task(self) -> str | None:
        """The task whose ``with owl.task(...)`` block is open, or None."""
        return self._current

    @contextmanager
    def task(self, name: str, env: object = None, *, num_actions: int | None = None) -> Iterator[TaskRecord]:
        """Learn task ``name`` inside the block, with your own loop.

        On entry the task gets its head (a new one the first time), an emptied replay, refilled with what
        was kept of the task, and its own schedules. At the end its rows are remembered, its model is
        fitted and its head's outputs are stored. After an exception, in the block or at its end, nothing
        of that has happened and nothing is lost: the head that was active before is active again, and
        entering the same task again continues with the same visit.

        Args:
            name: the task's name; a name seen before is a revisit.
            env: passed to the learner, for learners that step their own environment.
            num_actions: if this task has another number of actions; only on its first visit.
        """
        self._check_entry(name, num_actions)
        if env is not None:
            self.learner.set_env(env)
        if not self.tasks and self.learner.pretrained:
            warnings.warn(
                f"OwlWrapper: the learner was trained before it was wrapped, and task {name!r} continues "
                "with the head it has. If that was another task, adopt it first: owl.adopt(name, env=...)",
                UserWarning,
                stacklevel=3,
            )
        record = self._record(name, num_actions)
        before, own_before = self._pointer.head, self._own_state()
        try:
            self._enter(name, record)
            yield record
            self._finish(name, record)
        except BaseException as error:
            self._break_off(name, before, own_before, error)
            raise
        finally:
            record.steps += self._guard.end()
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

    def adopt(
        self, name: str, *, rows: Transitions | None = None, env: Any = None, steps: int = 5_000
    ) -> None:
        """Make task ``name`` of what the learner knew before it was wrapped, without training.

        Call it before the first task: the network's own output layer becomes that task's head. Its
        outputs are stored and its model is fitted on ``rows``, or on rows collected in ``env`` by the
        greedy policy with one action in five at random.

        Args:
            name: the task's name.
            rows: rows of the task.
            env: a Gymnasium environment (or id) of the task to collect rows in, where there are none.
            steps: how many rows to collect.
        """
        self._check_entry(name, None)
        if self.tasks:
            raise OwlStateError(
                f"OwlWrapper.adopt: {list(self.tasks)} came before, so the network's own head is taken; "
                f"adopt({name!r}) before the first task"
            )
        if (rows is None) == (env is None):
            raise OwlValueError("OwlWrapper.adopt: pass rows= or env=, one of them")
        if rows is None:
            rows = collect_rows(self.learner, as_env(env), steps=steps, seed=self.seed)
        record = self._record(name, None)
        try:
            self.memory.open(name).add(rows)
            self._remember(name, record)
        except BaseException:
            self._drop(name)
            raise
        record.visits, record.own = 1, self._own_state()

    def remove(self, name: str) -> None:
        """Forget task ``name``: its rows, outputs, model and schedules; its head is free for a new task."""
        self._refuse_inside(f"remove({name!r})")
        if name not in self.tasks:
            raise OwlValueError(f"OwlWrapper.remove: there is no task {name!r}; tasks are {list(self.tasks)}")
        head = self.tasks[name].head
        self._drop(name)
        self.learner.reset_head(head)

    def policy(self, selector: HeadSelector | None = None, *, trace: bool = False) -> AdaptivePolicy:
        """A policy that finds the task by itself.

        Args:
            selector: how a head is chosen; `ExpWeightsSelector` by default.
            trace: keep every step's choice, probabilities and losses in ``policy.trace``.
        """
        self._refuse_unwrapped("policy")
        heads = self._arms
        if not heads:
            raise OwlStateError("OwlWrapper.policy: no task has been learned yet; use `with owl.task(name):`")
        if selector is None and self.evidence is None:
            raise OwlStateError(
                "OwlWrapper.policy: evidence=None was given, so there is nothing to find the task with; wrap "
                "with evidence=ModelEvidence(), or pass a selector that needs none, e.g. UniformSelector()"
            )
        chosen = ExpWeightsSelector(seed=self.seed) if selector is None else selector
        problems = part_problem("selector", chosen, HeadSelector, "ExpWeightsSelector()")
        raise_problems("OwlWrapper.policy", problems, kind=OwlTypeError)
        look = None if self.acting else self._stream.familiarity
        return AdaptivePolicy(self.learner, chosen, self.evidence, heads, trace=trace, familiarity=look)

    def evaluate(
        self,
        env: Any,
        *,
        task: str | None = None,
        true_task: str | None = None,
        selector: HeadSelector | None = None,
        episodes: int = 16,
        seed: int | None = None,
        max_steps: int | None = None,
        keep_evidence: bool = False,
    ) -> Evaluation:
        """Run greedy episodes in ``env`` (a Gymnasium environment, its id, or a vector of them).

        With ``task`` the head is given (the paper's oracle), as inside `use`. Without, the task is unknown
        and ``selector`` finds it; pass ``true_task`` to see whether it was found (`Evaluation.found`).
        """
        if task is not None and (selector is not None or true_task is not None):
            raise OwlValueError(
                "OwlWrapper.evaluate: task= gives the head; selector= and true_task= are for an unknown task"
            )
        if named := task or true_task:
            self._learned(named)
        if task is not None:
            selector = OracleSelector(list(self._arms).index(task))
        elif selector is None and self.evidence is not None:
            selector = ExpWeightsSelector(seed=self.seed if seed is None else seed)
        policy = self.policy(selector)
        env = as_env(env)
        most = max(self._num_outputs(head) for name, head in self._arms.items() if task in (None, name))
        raise_problems("OwlWrapper.evaluate", space_problems(env, self.replay, most))
        if task is not None:
            policy.evidence = None  # there is nothing to find out
        with nullcontext() if task is None else self.use(task):
            return run_episodes(
                policy,
                env,
                episodes=episodes,
                seed=seed,
                max_steps=max_steps,
                keep_evidence=keep_evidence,
                true_task=true_task,
            )

    def export(self, task: str, observation: Any) -> torch.export.ExportedProgram:
        """The greedy policy of one learned task as a program without owlrl (`torch.export`).

        It takes a batch of observations of any size and returns their actions; ``observation`` is one of
        them, for shape and dtype.
        """
        self._refuse_unwrapped("export")
        return export_policy(self.learner, self._learned(task).head, observation)

    def numbers(self) -> dict[str, float]:
        """What ``watch`` is called with: active head, rows in memory, drift of old heads, pull on them."""
        found = {"head": float(self._pointer.head), "tasks": float(len(self.tasks))}
        found |= {"memory/rows": float(sum(map(len, self.memory.values())))}
        found |= {"memory/bytes": float(self.memory.nbytes)}
        return found | ({} if self.regularizer is None else self.regularizer.watch())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything needed to continue to one file, atomically (see `owlrl.checkpoint`).

        Heads, targets, optimizers, regularizer, evidence, memory, replay with its kept samples, schedules
        of each task and the global generators' states; not your environment's state. Inside a block the
        visit is saved as it is: after loading, entering the same task again continues with it. In a callback
        of a Stable-Baselines3 model a step is half done: the file is written when its rollout is over.
        """
        self._refuse_unwrapped("save")
        # a learner that runs its own loop may wait with it
        wait = getattr(self.learner, "when_whole", lambda key, action: action())
        wait(str(path), lambda: save_state(path, self.state_dict()))

    def autosave(
        self, path: Any, *, seconds: float | None = 60.0, steps: int | None = None, keep: int = 1
    ) -> Autosave:
        """Save at intervals while the learner trains: see `owlrl.autosave.Autosave`."""
        return Autosave(
            self.save, self.learner.at_border, self._guard, path, seconds=seconds, steps=steps, keep=keep
        )

    def state_dict(self) -> dict[str, Any]:
        """What `save` writes, as one tree of tensors, arrays, numbers, strings, lists and dicts."""
        state = wrapper_state(self.learner, self.tasks, self._parts(), visit=self._open)
        if self._current is not None:
            record = state["tasks"][self._current]
            record["unfinished"], record["steps"] = self._own_state(), record["steps"] + self._guard.steps
        return state

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Restore what `state_dict` returned, including the global generators; everything or nothing."""
        self._refuse_inside("load_state_dict")
        self.tasks = restore_wrapper(self.learner, state_dict, self._parts(), acting=self.acting)
        self._activate(state_dict["active"])
        self._open = state_dict.get("visit")
        set_rng_state(state_dict["rng"])

    @classmethod
    def load(cls, path: str | os.PathLike[str], learner: Any, **arguments: Any) -> OwlWrapper:
        """Wrap ``learner``, built as it was before it was first wrapped, and restore what `save` wrote.

        ``arguments`` are those of the constructor, with the same parts as when it was saved. With
        ``acting=True`` only what acting needs is restored: networks, heads and evidence. The learner then
        needs neither replay nor optimizer nor target, e.g. ``QLearner(q, None, None)``.
        """
        state = load_state(path)
        owl = cls(learner, **arguments)
        try:
            owl.load_state_dict(state)
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

    def __reduce__(self) -> str:
        raise OwlStateError(
            "OwlWrapper: a copy or a pickle would lose the optimizers' hooks and share the active head; "
            "save() it and load() it into a fresh learner instead"
        )

    def __repr__(self) -> str:
        named = {name: getattr(self, name) for name in ("regularizer", "evidence", "replay")}
        parts = (f"{name}={None if part is None else type(part).__name__}" for name, part in named.items())
        return f"OwlWrapper({self.learner!r}, {', '.join(parts)}, tasks={list(self.tasks)})"

    @property
    def _pointer(self) -> HeadPointer:
        return next(iter(self.learner.networks.values())).pointer

    @property
    def _arms(self) -> dict[str, int]:
        """The heads that may act: those of tasks that were learned, by name."""
        return {name: record.head for name, record in self.tasks.items() if record.visits}

    def _check_parts(self, arguments: Arguments, regularizer: object, evidence: object) -> None:
        """Note what is wrong with the replay and with the parts that were given."""
        if self.acting:
            return
        if not self.learner.optimizers:
            arguments.problem("the learner has no optimizer; pass it, or acting=True to load and act only")
        if self.replay is None:
            arguments.problem("there is no replay; pass replay=, the one that your loop writes to")
        parts = (
            ("replay", self.replay, TaskReplay, "TaskScopedReplay(...)"),
            ("regularizer", regularizer, Regularizer, "EWCRegularizer(500.0)"),
            ("evidence", evidence, Evidence, "ModelEvidence()"),
        )
        for name, part, kind, example in parts:
            if part is not None and not (name != "replay" and part == "default"):
                arguments.problems += part_problem(name, part, kind, example)
        if isinstance(self.replay, SharedReplay):
            arguments.problem(
                "replay is a SharedReplay, which mixes the rows of all tasks, so every head would learn from "
                "all of them; pass a TaskScopedReplay, or a RehearsalReplay to train old heads on old rows"
            )

    def _check_entry(self, name: str, num_actions: int | None) -> None:
        if self.acting:
            raise OwlStateError(
                f"OwlWrapper.task({name!r}): this was loaded to act only; load it without acting=True"
            )
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
            raise OwlStateError(f"OwlWrapper.{what}: task {self._current!r} is still open; leave its block")
        if self._pointer.pointed:  # a task would train the head that is used, instead of its own
            raise OwlStateError(f"OwlWrapper.{what}: a block of owl.use(...) is still open; leave it first")

    def _learned(self, name: str) -> TaskRecord:
        record = self.tasks.get(name)
        if record is None or not record.visits:
            learned = list(self._arms)
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
        goes_on = self._open == name and record.unfinished is not None
        if not goes_on:
            self.replay.begin_task(name)
            self.memory.open(name)
        elif hasattr(self.replay, "resume_task"):  # only some replays have something to resume
            self.replay.resume_task(name)
        self._activate(record.head)  # first: what is loaded is this head's
        self._load_own(record.unfinished if goes_on and record.unfinished else record.own or self._initial)
        self._guard.begin(name)
        self._current = self._open = name

    def _finish(self, name: str, record: TaskRecord) -> None:
        """End the visit: all is remembered, or nothing has changed and it can be ended again.

        Memory, evidence, regularizer (which may change shared weights: it lets them settle), replay.
        """
        assert self.replay is not None
        self._look()
        if not self.memory[name].seen:
            raise OwlStateError(
                f"OwlWrapper: task {name!r} left no transition in its {type(self.replay).__name__}; "
                "does your loop write to the replay that was given to the wrapper?"
            )
        self._guard.check_weights()
        self.learner.finish_task()
        self._remember(name, record)
        self.replay.end_task()
        record.visits += 1
        record.own, record.unfinished, self._open = self._own_state(), None, None

    def _break_off(self, name: str, before: int, own_before: dict[str, Any], error: BaseException) -> None:
        """Keep a visit as it is, to go on with, and make active what was before it."""
        if sys.is_finalizing():  # the block was open when the interpreter ended, and torch went first
            return
        if self._current == self._open == name:
            with suppress(Exception):  # rows that cannot be read may be the reason for all this
                self._look()
            self.tasks[name].unfinished = self._own_state()
        self._activate(before)
        self._load_own(own_before)
        self._guard.explain(error)

    def _remember(self, name: str, record: TaskRecord) -> None:
        """Fit the task's model and store its outputs on its remembered rows; both or neither."""
        memory = self.memory[name]
        memory.settle()
        memory.scaling = self.learner.scaling()
        rows = memory.rows()
        known = None if self.evidence is None else self.evidence.state_dict()
        try:
            if self.evidence is not None:
                self.evidence.calibrate(self.learner, record.head, rows)
            if self.regularizer is not None:
                self.regularizer.remember(name, self.learner.consolidation(rows))
        except BaseException:
            if self.evidence is not None and known is not None:
                self.evidence.load_state_dict(known)
            raise

    def _drop(self, name: str) -> None:
        """Forget a task in every part."""
        record = self.tasks.pop(name)
        for part in (self.regularizer, self.replay, self.memory):
            if part is not None:
                part.forget(name)
        if self.evidence is not None:
            self.evidence.forget(record.head)
        self._open = None if self._open == name else self._open

    def _on_step(self, step: int) -> None:
        """Before an optimizer step inside a task."""
        if step == 1 or (step % self._look_every == 0 and not self._stream.active):
            found, some = self._look(first=step == 1), min(LOOK_ROWS, len(self.replay or ()) // 2)
            rarely = step > 1 and 4 * LOOK_EVERY * found <= some * self._look_every
            self._look_every = 4 * LOOK_EVERY if rarely else LOOK_EVERY
        if step % self.watch_every == 0:
            numbers = self.numbers()
            self.learner.record(numbers)
            if self.watch is not None:
                self.watch(self._guard.total, numbers)

    def _look(self, *, first: bool = False) -> int:
        """Take what the learner stored since the last look into the task's memory; how many rows."""
        assert self.replay is not None and self._current is not None
        if (rows := self.replay.new_rows()) is None:
            return 0
        if first:
            raise_problems(f"task {self._current!r}, first row", self.learner.trial(rows[:1]))
        self.memory[self._current].add(rows)
        if self._stream.active:
            self._stream.see(rows)
        return len(rows)

    def _activate(self, head: int) -> None:
        self._pointer.index = head
        # an idle head must have no gradient at all, or momentum and weight decay move it
        for network in self.learner.networks.values():
            for k in range(network.num_heads):
                for parameter in network.head_parameters(k).values():
                    parameter.grad = None

    def _parts(self) -> dict[str, Stateful | None]:
        if self.acting:
            return {"evidence": self.evidence}
        named = ("regularizer", "replay", "evidence", "memory")
        return {**{name: getattr(self, name) for name in named}, "stream": self._stream}

    def _own_state(self) -> dict[str, Any]:
        return {name: own_state(item) for name, item in self.learner.per_task.items()}

    def _load_own(self, state: dict[str, Any]) -> None:
        if not sys.is_finalizing():
            for name, item in self.learner.per_task.items():
                load_own_state(item, state[name])
