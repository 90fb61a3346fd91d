"""`run_experiment`: train as a `Run` says, watch how it goes, evaluate it in the end."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from owlrl.checkpoint import load_state, save_state
from owlrl.errors import OwlValueError
from owlrl.experiments.config import Run
from owlrl.experiments.control import ControlSession
from owlrl.experiments.evaluation import AnySession, evaluate, evaluate_in_a_row
from owlrl.experiments.policies import ORACLE
from owlrl.experiments.results import Result, environment
from owlrl.experiments.session import Session
from owlrl.learners import DQN, SAC

__all__ = ["Curve", "Resume", "evaluate_session", "kept_generators", "repeatable", "run_experiment", "train"]

Row = dict[str, Any]


class Resume:
    """Keeps a session and the rows of training so far, task after task; without a path it keeps nothing.

    Args:
        path: of the file; None for none.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments import Run, Session
    >>> from owlrl.experiments.training import Resume
    >>> path, run = Path(tempfile.mkdtemp()) / "run.part", Run("Crossroads-2", policies=("oracle",))
    >>> Resume(path).save(Session(run), {"finished": 1})
    >>> Resume(path).load(Session(run))
    {'finished': 1}
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self.path = None if path is None else Path(path)
        self._begun = time.time(), time.process_time()

    def load(self, session: Session | ControlSession) -> dict[str, Any]:
        """Put the session where it was and return what was kept beside it; nothing if there is no file."""
        if self.path is None or not self.path.is_file():
            return {}
        try:
            state = load_state(self.path)
        except OwlValueError as error:
            raise OwlValueError(f"Resume: {error}; remove it to start from scratch") from error
        if not isinstance(state, dict) or state.get("run") != session.run.to_json():
            raise OwlValueError(f"Resume: {self.path} is of another run; remove it to start from scratch")
        session.load_state_dict(state["session"])
        session.spent = state["spent"]
        torch.set_rng_state(state["session"]["learner"]["rng"]["torch"])
        kept: dict[str, Any] = state["kept"]
        return kept

    def save(self, session: Session | ControlSession, kept: dict[str, Any]) -> None:
        """Write down where the session is, atomically, and ``kept`` beside it."""
        if self.path is None:
            return
        wall, cpu = self._begun
        spent = {
            "seconds": session.spent["seconds"] + time.time() - wall,
            "cpu": session.spent["cpu"] + time.process_time() - cpu,
        }
        state = {"run": session.run.to_json(), "session": session.state_dict(), "spent": spent}
        save_state(self.path, {**state, "kept": kept})


FOLLOWED = ("hedge+model", "released+td-raw")  # how these two do is looked at after each task as well
CONTROL_FOLLOWED = ("hedge+reward", "paper+nll-raw")
TRACED = ("hedge+model", "hedge+td", "hedge+reward")  # of these one episode per task is kept for pictures
CONTROL_TRACED = (ORACLE, "hedge+reward", "hedge+nll", "paper+nll-raw", "paper+td-squared")


class Curve:
    """How well the tasks seen so far are solved with the task given, every so many frames.

    Asked is the network that the agent would hand over if its training ended now; for continuous actions
    the score is a mean return. Rows have kind "score": ``step`` (frames of all tasks so far), ``task``,
    ``policy``, ``score``, ``training`` (the task in training).

    >>> from owlrl.experiments import Run, Session
    >>> from owlrl.experiments.training import Curve
    >>> session = Session(Run("Crossroads-2"))
    >>> curve = Curve(session, every=100)
    >>> curve.record({"crossroads-0": 0}, training="crossroads-0")
    >>> curve.rows[0]["step"], curve.rows[0]["score"]
    (0, 0.0)
    """

    def __init__(self, session: AnySession, *, every: int) -> None:
        self.session = session
        self.every = every
        self.step = 0  # frames of all tasks so far
        self.rows: list[Row] = []

    def record(self, heads: dict[str, int], *, training: str) -> None:
        """Ask every task of ``heads``."""
        for task, head in heads.items():
            score = self.session.score(task, head)
            self.rows.append(_score(self.step, task, ORACLE, score, training))

    @contextmanager
    def watch(self, task: str, head: int, frames: int) -> Iterator[Any]:
        """Gives the agent's callback for the training of ``task``; afterwards its frames are counted."""
        start, after = self.step, self.every

        def callback(agent: DQN | SAC, seen: int) -> None:
            nonlocal after
            if after <= seen < frames:
                self.step, after = start + seen, after + self.every
                self.record({**self.session.heads, task: head}, training=task)

        yield callback
        self.step = start + frames


def train(
    run: Run, *, progress: bool = False, resume: str | os.PathLike[str] | None = None
) -> tuple[AnySession, list[Row]]:
    """Learn all tasks of a run; the session, and rows of kind "training" and "score".

    With a file to ``resume`` from, training is written there after each task, and goes on from there.

    A training row says: ``round``, ``task``, ``start`` and ``end`` (steps), ``updates``, ``learn_seconds``
    and ``seconds``, which has what comes at a task's end in it as well.

    >>> from owlrl.experiments import Run, train
    >>> session, rows = train(Run("Crossroads-2", frames=300, policies=("oracle",)))
    >>> [row["end"] for row in rows if row["kind"] == "training"]
    [300, 600]
    """
    session = ControlSession(run) if run.control else Session(run)
    curve = Curve(session, every=run.eval_every)
    rows: list[Row] = []
    kept = Resume(resume)
    if told := kept.load(session):
        rows, curve.rows, curve.step = told["rows"], told["curve"], told["step"]
    finished = len([row for row in rows if row["kind"] == "training"])
    followed = [name for name in (CONTROL_FOLLOWED if run.control else FOLLOWED) if name in run.acting]
    visits = [(number, task) for number in range(run.rounds) for task in session.tasks]
    for number, task in visits[finished:]:
        rows.append(_train_task(session, curve, number, task, progress=progress))
        curve.record(session.heads, training=task)
        seen = {name: session.tasks[name] for name in session.heads}
        for row in evaluate(session, seen, followed, episodes=run.episodes):
            rows.append(_score(curve.step, row["task"], row["policy"], row[run.measure], task))
        kept.save(session, {"rows": rows, "curve": curve.rows, "step": curve.step})
    return session, rows + curve.rows


def evaluate_session(session: AnySession) -> list[Row]:
    """All evaluations that the session's run asks for, after the last task.

    >>> from owlrl.experiments import Run, evaluate_session, train
    >>> session, _ = train(Run("Crossroads-2", frames=300, policies=("oracle", "random")))
    >>> [(row["policy"], row["task"]) for row in evaluate_session(session)][-1]
    ('random', 'crossroads-1')
    """
    run, traced = session.run, CONTROL_TRACED if session.run.control else TRACED
    rows = evaluate(session, session.tasks, run.acting, episodes=run.episodes, traces=traced)
    if run.consecutive and isinstance(session, Session):
        found = evaluate_in_a_row(
            session, session.tables, run.acting, consecutive=run.consecutive, episodes=run.episodes
        )
        rows += found
    if isinstance(session, Session):
        for text in run.unseen:
            rows += evaluate(session, session.unseen(text), run.acting, episodes=run.episodes, label=text)
    return rows


def run_experiment(
    run: Run,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = False,
    resume: str | os.PathLike[str] | None = None,
) -> Result:
    """Train and evaluate; everything is decided by ``run``, on one thread.

    Args:
        run: what to do.
        checkpoint: where to write what was trained, for `Session.load`.
        progress: show a bar for each task (needs tqdm).
        resume: a file that training is written to after each task: stopped, the same call goes on with the
            next one, to the same numbers. It can be removed when the result is kept.

    >>> from owlrl.experiments import Run, run_experiment
    >>> result = run_experiment(Run("Crossroads-2", frames=300, policies=("oracle",)))
    >>> len(result.select("evaluation", policy="oracle"))
    2
    """
    begun, worked = time.time(), time.process_time()
    with repeatable(run.seed):
        session, rows = train(run, progress=progress, resume=resume)
        trained = time.time()
        rows += evaluate_session(session)
        if checkpoint is not None:
            session.save(checkpoint)
    seconds = {"train": session.spent["seconds"] + trained - begun, "evaluate": time.time() - trained}
    cpu = session.spent["cpu"] + time.process_time() - worked
    return Result(run, rows, {**environment(), "started": begun, "seconds": seconds, "cpu_seconds": cpu})


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


def _train_task(session: AnySession, curve: Curve, number: int, task: str, *, progress: bool) -> Row:
    frames, start = session.run.frames_of(task), curve.step
    agent, begun = session.agent, time.perf_counter()
    updates = agent.updates
    with session.task(task) as head:
        with curve.watch(task, head, frames) as callback:
            agent.learn(frames, env=session.env(task), callback=callback, progress_bar=progress)
        learned = time.perf_counter()
    return {
        "kind": "training",
        "round": number,
        "task": task,
        "start": start,
        "end": curve.step,
        "updates": agent.updates - updates,
        "learn_seconds": learned - begun,
        "seconds": time.perf_counter() - begun,
    }


def _score(step: int, task: str, policy: str, score: float, training: str) -> Row:
    return {
        "kind": "score",
        "step": step,
        "task": task,
        "policy": policy,
        "score": score,
        "training": training,
    }
