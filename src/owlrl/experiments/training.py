"""`run_experiment`: train as a `Run` says, watch how it goes, evaluate it in the end."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from owlrl.experiments.config import Run
from owlrl.experiments.evaluation import evaluate, evaluate_in_a_row
from owlrl.experiments.keeping import SAVE_EVERY, Keeper
from owlrl.experiments.policies import ORACLE
from owlrl.experiments.results import Result, environment
from owlrl.experiments.session import Session
from owlrl.learners import DQN, SAC

__all__ = ["Course", "evaluate_session", "kept_generators", "repeatable", "run_experiment", "train"]

Row = dict[str, Any]


FOLLOWED = ("hedge+model", "released+td-raw")  # how these two do is looked at after each task as well
CONTROL_FOLLOWED = ("hedge+reward", "paper+nll-raw")
TRACED = ("hedge+model", "hedge+td", "hedge+reward")  # of these one episode per task is kept for pictures
CONTROL_TRACED = (ORACLE, "hedge+reward", "hedge+nll", "paper+nll-raw", "paper+td-squared")


class Course:
    """A run under way: its session, its rows and where it stands. It can be killed at any moment and gone on.

    Rows of kind "training" say: ``round``, ``task``, ``start`` and ``end`` (steps), ``updates``,
    ``learn_seconds`` and ``seconds``, which has what comes at a task's end in it as well. Rows of kind
    "score" say how well a task is solved, with the task given every ``run.eval_every`` frames:
    ``step`` (frames of all tasks so far), ``task``, ``policy``, ``score``, ``training`` (the task in
    training). Asked is the network that the agent would hand over if its training ended now; for continuous
    actions the score is a mean return.

    Args:
        run: what to do.
        keeper: what keeps the course between processes.

    >>> from owlrl.experiments import Run
    >>> from owlrl.experiments.keeping import Keeper
    >>> from owlrl.experiments.training import Course
    >>> run = Run("Crossroads-2", frames=300, policies=("oracle",))
    >>> course = Course(run, Keeper(None, run.to_json()))
    >>> course.train()
    >>> course.step, course.session.heads
    (600, {'crossroads-0': 0, 'crossroads-1': 1})
    """

    def __init__(self, run: Run, keeper: Keeper) -> None:
        self.run, self.keeper = run, keeper
        self.session = Session(run)
        self.step = 0  # frames of all tasks so far
        self.rows: list[Row] = []  # of training and of what is looked at after each task
        self.curve: list[Row] = []  # of scores during it
        self.found: list[Row] = []  # by the evaluation in the end
        self.evaluated = 0  # how many parts of it are done
        self.trained: float | None = None  # seconds that training took
        self._visit: dict[str, Any] | None = None  # that was interrupted
        kept = keeper.load()
        if kept is not None:
            self.session.load_state_dict(kept["session"])
            self._visit, self.step, self.evaluated = kept["visit"], kept["step"], kept["evaluated"]
            self.rows, self.curve, self.found = kept["rows"], kept["curve"], kept["found"]
            self.trained = kept["trained"]

    def train(self, *, progress: bool = False) -> None:
        """Learn all tasks that are not learned yet."""
        run, session = self.run, self.session
        finished = len([row for row in self.rows if row["kind"] == "training"])
        followed = [name for name in (CONTROL_FOLLOWED if run.control else FOLLOWED) if name in run.acting]
        visits = [(number, task) for number in range(run.rounds) for task in session.tasks]
        for number, task in visits[finished:]:
            self.rows.append(self._learn(number, task, progress=progress))
            self._record(session.heads, training=task)
            seen = {name: session.tasks[name] for name in session.heads}
            for row in evaluate(session, seen, followed, episodes=run.episodes):
                self.rows.append(_score(self.step, row["task"], row["policy"], row[run.measure], task))
            self.keeper.save(self._state())
        if self.trained is None:
            self.trained = self.keeper.spent["seconds"]

    def evaluate(self) -> None:
        """Do what is left of the evaluation."""
        for part in _evaluations(self.session)[self.evaluated :]:
            self.found += part()
            self.evaluated += 1
            self.keeper.tick(self._state)

    def _learn(self, number: int, task: str, *, progress: bool) -> Row:
        """One visit of a task, from its beginning or from where it was interrupted."""
        run, session, agent = self.run, self.session, self.session.agent
        frames, env = run.frames_of(task), session.env(task)
        visit, self._visit = self._visit, None
        if visit is not None:
            env.load_state_dict(visit["env"])
        begun = time.perf_counter() - (0.0 if visit is None else visit["seconds"])
        with session.task(task, env) as head:
            now = visit or self._begin(frames)
            done, goal, start = now["seen"], now["goal"], now["start"]

            def look(agent: DQN | SAC, seen: int) -> None:
                now["seen"] = done + seen
                if now["after"] <= now["seen"] < frames:
                    self.step, now["after"] = start + now["seen"], now["after"] + run.eval_every
                    self._record({**session.heads, task: head}, training=task)
                if now["seen"] < goal:
                    self.keeper.tick(state)

            def state() -> dict[str, Any]:
                spent = time.perf_counter() - begun
                return self._state({**now, "seconds": spent, "env": env.state_dict()})

            left = goal - done if done else frames
            agent.learn(left, callback=look, progress_bar=progress)
            learned = time.perf_counter()
        self.step = start + frames
        return {
            "kind": "training",
            "round": number,
            "task": task,
            "start": start,
            "end": self.step,
            "updates": agent.updates - now["updates"],
            "learn_seconds": learned - begun,
            "seconds": time.perf_counter() - begun,
        }

    def _begin(self, frames: int) -> dict[str, Any]:
        """Where a visit stands that begins; inside the task's block."""
        agent = self.session.agent
        # environments step together: what the last visit made too much counts for this one
        goal = frames - agent.loop_state()["ahead"]
        after, updates = self.run.eval_every, agent.updates
        return {"seen": 0, "goal": goal, "after": after, "start": self.step, "updates": updates}

    def _record(self, heads: dict[str, int], *, training: str) -> None:
        for task, head in heads.items():
            score = self.session.score(task, head)
            self.curve.append(_score(self.step, task, ORACLE, score, training))

    def _state(self, visit: dict[str, Any] | None = None) -> dict[str, Any]:
        names = ("step", "rows", "curve", "found", "evaluated", "trained")
        kept = {name: getattr(self, name) for name in names}
        return {"session": self.session.state_dict(), "visit": visit, **kept}


def train(run: Run, *, progress: bool = False) -> tuple[Session, list[Row]]:
    """Learn all tasks of a run; the session, and rows of kind "training" and "score" (see ``Course``).

    >>> from owlrl.experiments import Run, train
    >>> session, rows = train(Run("Crossroads-2", frames=300, policies=("oracle",)))
    >>> [row["end"] for row in rows if row["kind"] == "training"]
    [300, 600]
    """
    course = Course(run, Keeper(None, run.to_json()))
    course.train(progress=progress)
    return course.session, course.rows + course.curve


def evaluate_session(session: Session) -> list[Row]:
    """All evaluations that the session's run asks for, after the last task.

    >>> from owlrl.experiments import Run, evaluate_session, train
    >>> session, _ = train(Run("Crossroads-2", frames=300, policies=("oracle", "random")))
    >>> [(row["policy"], row["task"]) for row in evaluate_session(session)][-1]
    ('random', 'crossroads-1')
    """
    return [row for part in _evaluations(session) for row in part()]


def _evaluations(session: Session) -> list[Callable[[], list[Row]]]:
    """The parts of the evaluation, one per policy and set of tasks."""
    run, traced = session.run, CONTROL_TRACED if session.run.control else TRACED
    parts: list[Callable[[], list[Row]]] = [
        partial(evaluate, session, session.tasks, [name], episodes=run.episodes, traces=traced)
        for name in run.acting
    ]
    if run.consecutive:
        chosen: dict[str, Any] = {"consecutive": run.consecutive, "episodes": run.episodes}
        parts += [partial(evaluate_in_a_row, session, session.tasks, [name], **chosen) for name in run.acting]
    for text in run.unseen:
        tables = session.unseen(text)
        parts += [
            partial(evaluate, session, tables, [name], episodes=run.episodes, label=text)
            for name in run.acting
        ]
    return parts


def run_experiment(
    run: Run,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
    resume: str | os.PathLike[str] | None = None,
    save_every: float = SAVE_EVERY,
) -> Result:
    """Train and evaluate; everything but the times is decided by ``run``, on one thread.

    Args:
        run: what to do.
        checkpoint: where to write what was trained, for `Session.load`.
        progress: show a bar for each task (needs tqdm).
        resume: a file in which the work is kept while it is under way. Stopped or killed at any moment, the
            same call goes on from there, also in the middle of a task, to the same result and the same
            checkpoint, bit for bit (``owlrl.experiments.results.TIMES`` names what differs). It can be
            removed when the result is kept.
        save_every: seconds of work that a kill may cost.

    >>> from owlrl.experiments import Run, run_experiment
    >>> result = run_experiment(Run("Crossroads-2", frames=300, policies=("oracle",)))
    >>> len(result.select("evaluation", policy="oracle"))
    2
    """
    started, keeper = time.time(), Keeper(resume, run.to_json(), seconds=save_every)
    with repeatable(run.seed):
        course = Course(run, keeper)
        course.train(progress=progress)
        course.evaluate()
        if checkpoint is not None:
            course.session.save(checkpoint)
    spent, trained = keeper.spent, course.trained
    assert trained is not None
    seconds = {"train": trained, "evaluate": spent["seconds"] - trained}
    if run.compile:
        seconds["compile"] = course.session.agent.compile_seconds
    times = {"started": started, "seconds": seconds, "cpu_seconds": spent["cpu"]}
    return Result(run, course.rows + course.curve + course.found, {**environment(), **times})


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """One thread and seeded global generators inside the block; all is as before afterwards.

    Another number of threads gives other bits.

    >>> import torch
    >>> from owlrl.experiments.training import repeatable
    >>> with repeatable(0):
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    with kept_generators():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Draws from the global generators of Python, numpy and torch inside the block change nothing after it.

    >>> import numpy as np
    >>> from owlrl.experiments.training import kept_generators
    >>> with kept_generators():
    ...     inside = np.random.random()
    >>> np.random.random() == inside
    True
    """
    own, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(numbers)


def _score(step: int, task: str, policy: str, score: float, training: str) -> Row:
    return {
        "kind": "score",
        "step": step,
        "task": task,
        "policy": policy,
        "score": score,
        "training": training,
    }
