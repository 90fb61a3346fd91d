"""`Visits`: the tasks of one trial of `compare`, trained in turn; it can be resumed after a kill."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from owlrl._arguments import kind_of
from owlrl.checkpoint import get_rng_state, set_rng_state
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.experiments.keeping import Journal, Keeper, kept_generators
from owlrl.experiments.methods import Learned, Method, Row
from owlrl.experiments.models import Envs, Watch, make_env, seed_env, share_statistics
from owlrl.experiments.plan import EVALUATION, Plan
from owlrl.experiments.progress import TensorBoard
from owlrl.experiments.results import MEASURES
from owlrl.replay.ring import spaces_of

__all__: list[str] = []

NUMBERS = 1_000  # steps between two looks at a method's own numbers


class Visits:
    """One seed of one method: training, task after task, and all evaluations on the way.

    Args:
        plan: of the study.
        method: the method.
        seed: of everything.
        keeper: what keeps the work between processes.
        tell: called with what is being done and how many steps of all are done.
        tensorboard: directory for scores, points of the curve and what `Learned.numbers` says.
    """

    learned: Learned

    def __init__(
        self,
        plan: Plan,
        method: Method,
        seed: int,
        keeper: Keeper,
        tell: Callable[[str, int], None],
        tensorboard: str | os.PathLike[str] | None = None,
    ) -> None:
        self.plan, self.method, self.seed, self.keeper, self._tell = plan, method, seed, keeper, tell
        self._directory = tensorboard
        self._board: TensorBoard | None = None
        self.envs = Envs(self._fresh)
        self.rows: list[Row] = []
        self._journals: dict[str, Journal] = {}
        self._exact: bool | None = None  # whether environments can be put back; None until it was tried
        self._made: list[Any] = []
        self._visit = 0
        self._scored: int | None = None  # scores after the visit so far; None while it is trained
        self._seconds = 0.0  # that the visit's training took so far

    def run(self) -> None:
        """Run everything that is not done yet."""
        every = self.plan.visits
        self._before = [sum(self.plan.steps[task] for _, task in every[:k]) for k in range(len(every) + 1)]
        watch = self._go_on(every)
        if watch is None:
            self._start()
        if self._directory is not None:
            self._board = TensorBoard(self._directory, after=self._steps(watch.done) if watch else None)
        for visit, (number, task) in list(enumerate(every))[self._visit :]:
            self._visit = visit
            self.tell(task, watch.done if watch else 0)
            if self._scored is None:
                self._train(watch or _Look(self, task), number, task)
            watch = None
            for label, others, mode in self._asked(last=visit == len(every) - 1)[self._scored :]:
                where = others[0] if len(others) == 1 else label or "all tasks"
                self.tell(f"{task}, evaluated in {where}", self.plan.steps[task])
                self.rows += self._score(label, others, mode, last=visit == len(every) - 1)
                self._scored = (self._scored or 0) + 1
                self._keep(task)
            self._finish_curve(task)
            self._scored = None

    def _asked(self, *, last: bool) -> list[tuple[str | None, list[str], str]]:
        """What is evaluated after a visit: set (None for what is trained in), tasks of it, and mode."""
        learned = self.learned
        modes = learned.modes if last or learned.followed is None else learned.followed
        sets: dict[str | None, Mapping[str, Any]] = {None: self.plan.tasks}
        if last:
            sets |= self.plan.unseen  # type: ignore[arg-type]
        return [
            (label, some, mode)
            for label, tasks in sets.items()
            for some in ([list(tasks)] if learned.together else [[task] for task in tasks])
            for mode in modes
        ]

    def tell(self, what: str, seen: int) -> None:
        """Say what is done, and how many steps of this visit are."""
        number = f"{self._visit + 1} of {len(self._before) - 1}"
        self._tell(f"{self.method.name}, seed {self.seed}: {what} ({number})", self._steps(seen))

    def show(self, seen: int, numbers: Mapping[str, float]) -> None:
        """Write numbers for TensorBoard, at a step of this visit."""
        if self._board is not None:
            self._board(self._steps(seen), numbers)

    def show_numbers(self, seen: int) -> None:
        """Write the method's own numbers for TensorBoard."""
        if self._board is not None:
            self.show(seen, self.learned.numbers())

    def _steps(self, seen: int) -> int:
        """Steps of all visits so far, ``seen`` of them in this one."""
        done = seen if self._scored is None else self._before[self._visit + 1] - self._before[self._visit]
        return self._before[self._visit] + done

    def close(self) -> None:
        """Close all environments, and what TensorBoard reads."""
        if self._board is not None:
            self._board.close()
        for env in self._made:
            env.close()

    def _start(self) -> None:
        for task in self.plan.tasks:
            env = self._env(task)
            if self.keeper.path is not None:
                self._journals[task] = Journal(env)
            seed_env(env, self.seed)
            self.envs[task] = env
        _check_alike(self.envs)
        self.learned = self.method.start(self.plan.make_model, next(iter(self.envs.values())), self.seed)

    def _go_on(self, every: list[tuple[int, str]]) -> _Look | None:
        """Restore everything that was kept; the task that was in training, if any."""
        kept = self.keeper.load()
        if kept is None:
            return None
        self._exact = kept["envs"] is not None
        for task in self.plan.tasks:
            self.envs[task] = self._env(task)
            self._journals[task] = Journal(self.envs[task])
            if self._exact and not self._journals[task].replay(kept["envs"][task]):
                raise OwlStateError(
                    f"the environment of {task!r} behaved differently when its actions were repeated, so "
                    f"that the run cannot continue; remove {self.keeper.path} to start it again"
                )
            if not self._exact:
                seed_env(self.envs[task], self.seed)
            self.envs[task].action_space.seed(self.seed)
        self._visit, self._scored, self._seconds = kept["visit"], kept["scored"], kept["seconds"]
        self.rows = kept["rows"]
        task, first = every[self._visit][1], next(iter(self.plan.tasks))
        self.learned = self.method.start(self.plan.make_model, self._fresh(first), self.seed)
        self.learned.load_state_dict(kept["learned"], self.envs, task)
        set_rng_state(kept["rng"])
        look = _Look(self, task)
        look.done = look.seen = kept["seen"]
        look.goal, look.due = kept["goal"], kept["due"]
        return look

    def _train(self, watch: _Look, number: int, task: str) -> None:
        watch.begun = time.perf_counter() - self._seconds
        self.learned.train(task, self.envs[task], self.plan.steps[task], watch)
        took = time.perf_counter() - watch.begun
        row = {"kind": "training", "visit": self._visit, "round": number, "task": task}
        self.rows.append({**row, "steps": self.plan.steps[task], "seconds": took})
        self._scored, self._seconds = 0, 0.0
        self._keep(task)

    def keep_training(self, look: _Look) -> None:
        """Here the model that is trained can be written down."""
        if look.seen and self._exact is not False:
            self._seconds = time.perf_counter() - look.begun
            self.keeper.tick(lambda: self._state(look))

    def _keep(self, task: str) -> None:
        """Between two visits: here a new episode begins anyway."""
        self.keeper.tick(lambda: self._state(_Look(self, task)))

    def _state(self, look: _Look) -> dict[str, Any] | None:
        if self._exact is None:
            self._exact = all(self._can_be_put_back(task) for task in self.plan.tasks)
        if not self._exact and self._scored is None:
            return None
        envs = {name: journal.state_dict() for name, journal in self._journals.items()}
        return {
            "visit": self._visit,
            "scored": self._scored,
            "seen": look.seen,
            "goal": look.goal,
            "due": look.due,
            "seconds": self._seconds,
            "rows": self.rows,
            "envs": envs if self._exact else None,
            "learned": self.learned.state_dict(),
            "rng": get_rng_state(),
        }

    def _can_be_put_back(self, task: str) -> bool:
        """Try what another process would do."""
        with kept_generators(), closing(self._env(task)) as env:
            if Journal(env).replay(self._journals[task].state_dict()):
                return True
        warnings.warn(
            f"compare: {self.method.name}, seed {self.seed} is kept after each task only: the environment of "
            f"{task!r} is not decided by its seed and its actions, so that it cannot be put back inside one",
            UserWarning,
            stacklevel=8,
        )
        return False

    def _env(self, task: str) -> Any:
        made = make_env(self.plan.tasks[task], self.seed, training=True)
        if not (callable(getattr(made, "reset", None)) and callable(getattr(made, "step", None))):
            raise OwlTypeError(
                f"compare: the factory of task {task!r} returned {kind_of(made)}; expected a "
                "Gymnasium environment or a vector of them"
            )
        env = self.method.view(made)
        self._made.append(env)
        return env

    def _fresh(self, task: str) -> Any:
        env = self._env(task)
        seed_env(env, self.seed)
        return env

    def _score(self, label: str | None, tasks: list[str], mode: str, *, last: bool) -> list[Row]:
        """One evaluation, in new environments; nothing of tasks in which the method cannot act yet."""
        with ExitStack() as stack:
            envs = {task: stack.enter_context(self._evaluating(label, task)) for task in tasks}
            found = self.learned.rows(envs, mode=mode, last=last, **self._episodes)
        for row in found:
            if row["kind"] == "score" and label is None:
                if MEASURES[self.plan.measure] not in row:
                    raise OwlValueError(
                        f"compare: measure is {self.plan.measure!r}, but no episode of task {row['task']!r} "
                        "ended with info['is_success']; let a wrapper put it there, or leave measure out"
                    )
                value = float(row[MEASURES[self.plan.measure]])
                self.show(self.plan.steps[row["task"]], {f"score {mode}/{row['task']}": value})
        where = {"visit": self._visit} if label is None else {"visit": self._visit, "set": label}
        return [{"kind": row["kind"], **where, **row} for row in found]

    def look_at(self, training: str, seen: int) -> None:
        """Points of the learning curve: of the task in training, and of others that the method watches."""
        for task in self.learned.watched(training):
            with self._evaluating(None, task) as env:
                found = self.learned.look(env, task, **self._episodes)
            self._point(task, seen, {"mean_return": found.mean, "success": found.success})
            self.show(seen, {f"curve/{task}": found.mean})

    def _finish_curve(self, task: str) -> None:
        """The score right after belongs to the curve."""
        own = [row for row in self.rows if row["visit"] == self._visit and row["task"] == task]
        mode = self.learned.watching or self.learned.modes[0]
        after = [row for row in own if row["kind"] == "score" and row["mode"] == mode]
        if after and any(row["kind"] == "curve" for row in own):
            self._point(task, self.plan.steps[task], after[0])

    def _point(self, task: str, step: int, found: Mapping[str, Any]) -> None:
        row = {"kind": "curve", "visit": self._visit, "task": task, "step": step}
        row |= {} if self.learned.watching is None else {"mode": self.learned.watching}
        told = {name: found.get(name) for name in MEASURES.values()}
        self.rows.append({**row, **{name: value for name, value in told.items() if value is not None}})

    @property
    def _episodes(self) -> dict[str, Any]:
        return {"episodes": self.plan.eval_episodes, "seed": EVALUATION + self.seed}

    @contextmanager
    def _evaluating(self, label: str | None, task: str) -> Iterator[Any]:
        """A new environment of a task; what is drawn inside changes no training."""
        tasks = self.plan.tasks if label is None else self.plan.unseen[label]
        env = self.method.view(make_env(tasks[task], self.seed))
        if label is None:
            share_statistics(self.envs[task], env)
        with kept_generators(), closing(env):
            yield env


def _check_alike(envs: Mapping[str, Any]) -> None:
    """Raise unless one model can act in all environments."""
    first, *others = envs
    for task in others:
        for what, space, expected in zip(
            ("observations", "actions"), spaces_of(envs[task]), spaces_of(envs[first]), strict=False
        ):
            if _kind(space) != _kind(expected):
                raise OwlValueError(
                    f"compare: task {task!r} has {what} {space}; expected {expected} as in {first!r}, since "
                    "one model learns all tasks: a wrapper can pad them"
                )


def _kind(space: Any) -> Any:
    """What a network's shape depends on."""
    parts = getattr(space, "spaces", None)
    if isinstance(parts, Mapping):
        return {name: _kind(part) for name, part in parts.items()}
    return space.shape, space.dtype, getattr(space, "n", None)


class _Look(Watch):
    """Watches while a task is trained: points of the curve, and moments to save the work."""

    def __init__(self, visits: Visits, task: str) -> None:
        self.visits, self.task = visits, task
        self.seen = 0
        self.begun = 0.0
        self.due = visits.plan.eval_every  # the step from which the curve has its next point
        self.shown = 0  # steps at which numbers were written last

    def __call__(self, seen: int) -> None:
        self.seen, plan = seen, self.visits.plan
        self.visits.tell(self.task, seen)
        if seen - self.shown >= NUMBERS:
            self.shown = seen
            self.visits.show_numbers(seen)
        if plan.eval_every is not None and self.due is not None and self.due <= seen < plan.steps[self.task]:
            self.due = seen - seen % plan.eval_every + plan.eval_every
            self.visits.look_at(self.task, seen)

    def border(self) -> None:
        self.visits.keep_training(self)
