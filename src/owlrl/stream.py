"""`Stream`: training while the task changes at unknown times; made by ``with owl.stream():``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from owlrl._arguments import Arguments
from owlrl.changes import Change, ChangeFinder, Contradiction, Detector, Familiarity
from owlrl.changes.base import remembered
from owlrl.errors import OwlStateError, raise_problems, refusing
from owlrl.types import Transitions

__all__ = ["Event", "Stream", "Streaming"]

LOOK_AT = 48  # rows between two looks, about; of several environments side by side
LOOK_STEPS = 4  # steps of each, if those are more
QUARANTINE = 4096  # rows of a memory that can be had back
Callback = Callable[["Event"], None]


def rows_of_look(copies: int, suspicion: float) -> float:
    """How many rows to look at together; half as many while a change is suspected."""
    return max(LOOK_AT, LOOK_STEPS * copies) / (2 if suspicion else 1)


@dataclass(frozen=True)
class Event:
    """A change of the task that was found.

    Attributes:
        step: rows of the stream when it was found.
        left: the task before.
        to: the task from then on.
        new: whether ``to`` was not known.
        confidence: probability that there was a change, by the evidence.
        delay: rows between the change and its discovery; they were moved to ``to``.
        merged: ``left`` was ``to`` all along and has been removed.
        mistaken: ``left`` had been entered by mistake; all rows since then were moved to ``to``.

    >>> from owlrl.stream import Event
    >>> Event(1_000, "task 0", "task 1", new=True, confidence=0.99, delay=40).merged
    False
    """

    step: int
    left: str
    to: str
    new: bool
    confidence: float
    delay: int
    merged: bool = False
    mistaken: bool = False


class Stream:
    """Watches the rows of a learner, and changes the task of its `OwlWrapper` when the rows' task changes.

    Made by ``owl.stream()``. Between two steps of the learner: rows since the change are moved to the right
    task's replay and memory, the old head gets back the weights it had before any suspicion, the old
    task is ended as if its block had ended, and the other one is entered.

    >>> import gymnasium
    >>> from owlrl import OwlWrapper
    >>> from owlrl.learners import DQN
    >>> agent = DQN(gymnasium.make("CartPole-v1"), seed=0)
    >>> owl = OwlWrapper(agent)
    >>> with owl.stream() as stream:
    ...     agent.learn(1_500)
    >>> stream
    Stream(task='task 0', 1500 rows, 0 changes)
    """

    def __init__(self, owl: Any, detector: Detector | None = None) -> None:
        self._owl = owl
        self.finder = ChangeFinder(Contradiction() if detector is None else detector)
        self.events: list[Event] = []
        self.rows = 0
        self.callback: Callback | None = None
        self.active = False
        self.borders = False  # the learner says when nothing is half done
        self._found: Change | None = None
        self._calls, self._wait = 0, 1  # of borders since the last look, and until the next
        self._clean: list[tuple[Tensor, Tensor]] = []  # the head's weights without suspicion
        self._entered: list[tuple[Tensor, Tensor]] = []  # and when the task was entered

    @property
    def task(self) -> str:
        """The task of the newest rows."""
        return self.finder.task

    @property
    def suspicion(self) -> float:
        """How near the evidence for a change is to its threshold, from 0 to 1."""
        return self.finder.suspicion

    def begin(self, *, new: bool = False) -> str:
        """Prepare; return the task to begin with: that of the last block, the first one, or a new one."""
        owl, detector = self._owl, self.finder.detector
        self._calls, self._wait = 0, 1
        for task, memory in owl.memory.items():
            if task not in detector.tasks and len(memory):
                detector.learn(task, remembered(memory))
        known = [] if new else [self.finder.task, *reversed(owl.tasks)]
        return next((task for task in known if task in owl.tasks), self._name())

    def familiarity(self) -> Familiarity:
        """What compares steps with all tasks that were learned."""
        self.begin()
        return Familiarity(self.finder.detector, list(self._owl._arms))

    def enter(self, task: str, *, new: bool) -> None:
        """The wrapper is in ``task`` now."""
        memory = self._owl.memory[task]
        memory.quarantine = QUARANTINE
        if self.finder.task != task or self._found is not None:
            self.finder.enter(task, new=new)
        self._found = None
        self._clean = self._entered = self._head()

    def see(self, rows: Transitions) -> None:
        """Rows were stored; called by the wrapper when it looks."""
        self.rows += len(rows)
        self._found = self.finder.see(rows)
        copies = 1 if rows.env is None else int(rows.env.max()) + 1
        wanted = rows_of_look(copies, self.finder.suspicion)
        self._wait = max(1, round(self._calls * wanted / len(rows))) if self._calls else self._wait
        self._calls = 0
        if self._found is None and not self.finder.suspicion:
            self._clean = self._head()

    def after_update(self) -> None:
        """An update is complete: a border, for learners that do not report borders."""
        if self.active and not self.borders:
            self.check()

    def check(self) -> None:
        """Between two steps of the learner: look if it is time, and change the task if it has changed."""
        self._calls += 1
        if self._calls < self._wait or not self.active:
            return
        self._owl._look()
        if self._found is not None:
            self._change(self._found)
            self._calls = 0

    def _change(self, found: Change) -> None:
        owl, left = self._owl, self.task
        old, memory = owl.tasks[left], owl.memory[left]
        rows = memory.take_back(min(found.rows, memory.quarantined))
        new = found.to is None
        to = self._name() if found.to is None else found.to
        staying = getattr(owl.learner, "staying", nullcontext)
        with staying():
            moved = owl.replay.take_back(rows)
            if found.merged or not memory.seen:
                self._leave_nothing(left)
            else:
                _restore(self._entered if found.mistaken else self._clean)
                owl._finish(left, old)
                memory.quarantine = 0
            old.steps += owl._guard.end()
            record = owl._record(to, None)
            owl._enter(to, record)
            owl.replay.put(moved)
        owl.memory[to].quarantine = QUARANTINE  # it may be a mistake
        owl.memory[to].add(rows)
        self.enter(to, new=new)
        event = Event(self.rows, left, to, new, found.confidence, len(rows), found.merged, found.mistaken)
        self.events.append(event)
        if self.callback is not None:
            self.callback(event)

    def _leave_nothing(self, task: str) -> None:
        """All rows of ``task`` belong to another task: remove it."""
        owl = self._owl
        head = owl.tasks[task].head
        owl._drop(task)
        owl.learner.reset_head(head)
        self.finder.detector.forget(task)

    def _name(self) -> str:
        taken = {*self._owl.tasks, *self.finder.detector.tasks}
        return next(name for k in range(len(taken) + 1) if (name := f"task {k}") not in taken)

    def _head(self) -> list[tuple[Tensor, Tensor]]:
        """The parameters of the current head and of its targets, with copies of their values."""
        learner, head = self._owl.learner, self._owl._pointer.head
        networks = [*learner.networks.values(), *learner.targets.values()]
        return [
            (parameter, parameter.detach().clone())
            for network in networks
            for parameter in network.head_parameters(head).values()
        ]

    def state_dict(self) -> dict[str, Any]:
        """Events, and everything that the finder knows."""
        if not self.finder.task:
            return {"rows": self.rows, "events": []}
        events = [asdict(event) for event in self.events]
        return {"rows": self.rows, "events": events, "finder": self.finder.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned."""
        with refusing("Stream.load_state_dict"):
            events = [Event(**event) for event in state_dict["events"]]
            rows = int(state_dict["rows"])
            if "finder" in state_dict:
                self.finder.load_state_dict(state_dict["finder"])
        self.events, self.rows = events, rows

    def __repr__(self) -> str:
        return f"Stream(task={self.task!r}, {self.rows} rows, {len(self.events)} changes)"


def _restore(copies: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for parameter, value in copies:
            parameter.copy_(value)


class Streaming:
    """The part of `OwlWrapper` for streams.

    >>> from owlrl import OwlWrapper
    >>> from owlrl.stream import Streaming
    >>> issubclass(OwlWrapper, Streaming)
    True
    """

    _stream: Stream

    @contextmanager
    def stream(
        self,
        *,
        detector: Detector | None = None,
        schedule_steps: int | None = None,
        callback: Callback | None = None,
        new: bool = False,
    ) -> Iterator[Stream]:
        """Learn inside the block while the environment changes its task at unknown times.

        The wrapper detects changes (`owlrl.changes`): it goes back to a task that it knows, or
        opens a new one, ``task 0``, ``task 1``, …. Rows since the change go to the right task. At the end of
        the block the current task is ended as by ``owl.task``; a later block continues it.

        Args:
            detector: detects changes; by default a `Contradiction`. Only for the first block.
            schedule_steps: for Stable-Baselines3: a task's steps over which exploration and step size are
                scheduled, since its length is unknown; by default those of ``learn``.
            callback: called with each `Event`.
            new: begin with a new task, e.g. because ``policy.unfamiliar`` is high; if its rows turn out
                to be those of a known task, they go there.
        """
        owl: Any = self
        owl._refuse_inside("stream")
        _check_stream(owl, detector, callback, schedule_steps, new)
        if detector is not None:
            owl._stream = Stream(owl, detector)
        stream: Stream = owl._stream
        name = stream.begin(new=new)
        owl._check_entry(name, None)
        if schedule_steps is not None:
            owl.learner.schedule_steps = schedule_steps
        unknown = name not in owl.tasks
        record = owl._record(name, None)
        before, own_before = owl._pointer.head, owl._own_state()
        border = getattr(owl.learner, "at_rollout_end", owl.learner.at_border)
        stop = None
        try:
            owl._enter(name, record)
            stream.enter(name, new=unknown)
            stream.callback, stream.active = callback, True
            stop = border(stream.check)
            stream.borders = stop is not None
            yield stream
            stream._calls = stream._wait
            stream.check()  # what came since the last look
            stream.finder.settle()
            owl._finish(stream.task, owl.tasks[stream.task])
        except BaseException as error:
            owl._break_off(stream.task, before, own_before, error)
            raise
        finally:
            stream.active = False
            if stop is not None:
                stop()
            if stream.task in owl.tasks:
                owl.tasks[stream.task].steps += owl._guard.end()
                owl.memory[stream.task].quarantine = 0
            owl._current = None

    def rename(self, old: str, new: str) -> None:
        """Rename a task that a stream made, e.g. ``task 0``."""
        owl: Any = self
        owl._refuse_inside(f"rename({old!r}, {new!r})")
        arguments = Arguments("OwlWrapper.rename")
        arguments.choice("old", old, [task for task in owl.tasks if task.startswith("task ")])
        arguments.text("new", new)
        if new in owl.tasks:
            arguments.problem(f"new is {new!r}, and there is such a task; expected another name")
        arguments.check()
        # names of streams' tasks have a space, as no other key of a state has
        owl.load_state_dict(_renamed(owl.state_dict(), old, new))


def _renamed(tree: Any, old: str, new: str) -> Any:
    """A tree of state in which every ``old`` is ``new``."""
    if isinstance(tree, Mapping):
        return {_renamed(key, old, new): _renamed(value, old, new) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_renamed(value, old, new) for value in tree]
    return new if isinstance(tree, str) and tree == old else tree


def _check_stream(owl: Any, detector: object, callback: object, schedule_steps: object, new: object) -> None:
    """Raise, naming all that is wrong, before anything is changed."""
    arguments = Arguments("OwlWrapper.stream")
    arguments.boolean("new", new)
    arguments.instance("detector", detector, Detector, "e.g. owlrl.changes.Contradiction()", none=True)
    arguments.function("callback", callback, "of an Event", none=True)
    arguments.integer("schedule_steps", schedule_steps, none=True)
    if owl.acting:
        arguments.problem("this was loaded to act only; load it without acting=True")
    if detector is not None and owl._stream.finder.task:
        arguments.problem("a detector was given, and one has begun already; leave it out from then on")
    if schedule_steps is not None and not hasattr(owl.learner, "schedule_steps"):
        arguments.problem(
            "schedule_steps is for Stable-Baselines3 models; here the schedules are the learner's own"
        )
    for method in ("take_back", "put"):
        if not hasattr(owl.replay, method):
            arguments.problem(
                f"the replay, a {type(owl.replay).__name__}, has no {method}(), so that rows of one task "
                "cannot be moved to another; use a TaskScopedReplay, a list, a deque or a ReplayBuffer"
            )
    sizes = {owl._num_outputs(record.head) for record in owl.tasks.values()}
    if len(sizes) > 1:
        arguments.problem(f"tasks have {sorted(sizes)} actions; a stream's tasks have the same spaces")
    raise_problems(arguments.where, arguments.problems, kind=OwlStateError)
