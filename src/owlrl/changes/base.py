"""`Detector`: the base class of change detectors. They look at `Steps` and return a `Judgement`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from owlrl.errors import refusing
from owlrl.memory import TaskMemory
from owlrl.memory._incoming import in_time_order
from owlrl.types import Transitions

__all__ = ["DEPTHS", "Detector", "History", "Judgement", "Steps", "TaskModel", "log_ratio"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
Keys = npt.NDArray[np.uint64]
HASHED = ("keys", "outcome")
DEPTHS = 3  # a step alone, with the step before it, with two of them
MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(29), np.uint64(1))
UNKNOWN = np.uint64(0)  # the key of a step whose history is not known


@dataclass(frozen=True)
class Judgement:
    """Evidence of steps for and against a task.

    Attributes:
        evidence: (C, B) log of how much likelier each step is in another task than in this one, counted in C
            sums; 0 is neutral.
        comparable: (B,) whether the task knows such steps at all.
        contradicts: (B,) whether the task has another outcome for them.
        which: (B,) hashes that are equal for the same contradiction; None where each is different.
        strange: (B,) whether the task knows nothing even nearly like such steps; None if that is not told.
        error: (B,) of what the task foretold, as part of an error that contradicts it; 1 where it foretells
            nothing; None if not told.

    >>> import numpy as np
    >>> from owlrl.changes import Judgement
    >>> Judgement.silent(2).evidence
    array([[0., 0.]])
    """

    evidence: FloatArray
    comparable: BoolArray
    contradicts: BoolArray
    which: npt.NDArray[np.uint64] | None = None
    strange: BoolArray | None = None
    error: npt.NDArray[np.floating] | None = None

    @staticmethod
    def silent(count: int, sums: int = 1) -> Judgement:
        """A neutral judgement of ``count`` steps."""
        return Judgement(np.zeros((sums, count)), np.zeros(count, np.bool_), np.zeros(count, np.bool_))

    @staticmethod
    def joined(pieces: Sequence[Judgement]) -> Judgement:
        """Of all steps, one piece after the other; what may be None is so if it is in one of them."""

        def column(name: str) -> Any:
            found = [getattr(piece, name) for piece in pieces]
            return None if any(part is None for part in found) else np.concatenate(found, axis=-1)

        return Judgement(*(column(field.name) for field in fields(Judgement)))


class TaskModel(Protocol):
    """What a detector knows about one task."""

    @property
    def mature(self) -> bool:
        """Whether it knows enough of the task for contradictions to mean a new one."""
        ...

    @property
    def doubt(self) -> float:
        """How many times the threshold a change needs: more than once while little of the task is known."""
        ...

    @property
    def unknown(self) -> float:
        """Share of the task's own next steps that will be strange to it; NaN while that is not known."""
        ...

    def judge(self, steps: Steps, *, stride: int = 1) -> Judgement:
        """Judge steps (every ``stride``-th at least) without learning from them."""
        ...

    def learn(self, steps: Steps, judgement: Judgement) -> None:
        """The steps were the task's own; ``judgement`` is what `judge` said of them."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from there."""
        ...


class Detector(ABC):
    """Has a model of each task, and judges steps by it. A subclass writes `make`.

    Sums of evidence that never fall below zero (CUSUM) tell when a task has changed: at ``threshold``
    the steps are e^threshold times likelier in another task.

    >>> import numpy as np
    >>> from owlrl.changes import Contradiction, Detector
    >>> isinstance(Contradiction(), Detector)
    True
    """

    threshold: float = 16.0
    stride: int = 1
    least: float = -np.inf  # evidence of one step

    @property
    def hashed(self) -> bool:
        """Whether steps need their hashes."""
        return True

    def __init__(self) -> None:
        self.tasks: dict[str, Any] = {}

    @abstractmethod
    def make(self) -> TaskModel:
        """A model of a task of which nothing is known yet."""

    def judge(self, task: str, steps: Steps, *, stride: int = 1) -> Judgement:
        """Evidence of ``steps`` for and against ``task``."""
        found: Judgement = self.open(task).judge(steps, stride=stride)
        return found

    def examine(self, task: str, steps: Steps) -> Judgement:
        """`judge`, for `Familiarity`: with more care, if the detector has a way to take it."""
        return self.judge(task, steps)

    def learn(self, task: str, steps: Steps, judgement: Judgement | None = None) -> None:
        """``steps`` were of ``task``."""
        model = self.open(task)
        model.learn(steps, model.judge(steps) if judgement is None else judgement)

    def open(self, task: str) -> TaskModel:
        """The model of ``task``, a new one the first time."""
        if task not in self.tasks:
            self.tasks[task] = self.make()
        model: TaskModel = self.tasks[task]
        return model

    def forget(self, task: str) -> None:
        """Drop the model of ``task``."""
        self.tasks.pop(task, None)

    def rename(self, old: str, new: str) -> None:
        """Rename a task."""
        self.tasks = {new if task == old else task: model for task, model in self.tasks.items()}

    def state_dict(self) -> dict[str, Any]:
        """What is known of each task."""
        return {"tasks": {task: model.state_dict() for task, model in self.tasks.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned; refused with nothing changed."""
        loaded: dict[str, Any] = {}
        with refusing(f"{type(self).__name__}.load_state_dict"):
            for task, state in state_dict["tasks"].items():
                loaded[str(task)] = self.make()
                loaded[str(task)].load_state_dict(state)
        self.tasks = loaded

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.tasks)} tasks)"


def log_ratio(contradicts: BoolArray, usual: FloatArray, *, changed: float, most: float) -> FloatArray:
    """Evidence of steps whose task is contradicted at a rate ``usual`` (B,); in another one at ``changed``.

    ``log(changed / usual)`` of a contradiction, at most ``most``, and ``log((1 − changed) / (1 − usual))`` of
    an agreement; 0 where ``usual`` is NaN, or so large that contradictions carry no information.

    >>> import numpy as np
    >>> from owlrl.changes.base import log_ratio
    >>> usual = np.array([0.003, 0.003, 0.5])
    >>> log_ratio(np.array([True, False, True]), usual, changed=0.3, most=9.0).round(2)
    array([ 4.61, -0.35,  0.  ])
    """
    told = usual < 0.8 * changed  # NaN is not
    rate = np.where(told, usual, changed)
    ratio = np.where(contradicts, np.log(changed / rate), np.log((1.0 - changed) / (1.0 - rate)))
    made: FloatArray = np.where(told, np.minimum(ratio, most), 0.0)
    return made


@dataclass(frozen=True)
class Steps:
    """One-step rows in the order of time, as arrays.

    Attributes:
        observation: ``(B, *observation shape)``.
        action: (B,) ints, or ``(B, *action shape)`` floats.
        reward: (B,).
        next_observation: ``(B, *observation shape)``.
        terminated: (B,) bool.
        keys: (3, B) hashes of observation and action, alone, with those of the step before, and of the two
            steps before; 0 where those are not known.
        outcome: (B,) hashes of next observation and end.

    >>> import torch
    >>> from owlrl.changes import History
    >>> from owlrl.types import Transitions
    >>> x = torch.arange(3.0)
    >>> steps = History().follow(Transitions(x, x.long(), x, x + 1, x > 5, torch.ones(3)))
    >>> len(steps), len(steps[1:])
    (3, 2)
    """

    observation: Array
    action: Array
    reward: npt.NDArray[np.float32]
    next_observation: Array
    terminated: npt.NDArray[np.bool_]
    keys: Keys
    outcome: Keys

    def __len__(self) -> int:
        return len(self.reward)

    def __getitem__(self, rows: slice | Array) -> Steps:
        return Steps(
            **{
                f.name: getattr(self, f.name)[:, rows] if f.name == "keys" else getattr(self, f.name)[rows]
                for f in fields(self)
            }
        )

    def arrays(self) -> dict[str, Array]:
        """The fields by name, hashes as int64, for a file."""
        return {
            f.name: getattr(self, f.name).view(np.int64) if f.name in HASHED else getattr(self, f.name)
            for f in fields(self)
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, Any]) -> Steps:
        """What `arrays` returned."""
        made: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
        return Steps(**{name: a.view(np.uint64) if name in HASHED else a for name, a in made.items()})

    @staticmethod
    def joined(pieces: Iterable[Steps]) -> Steps:
        """All pieces, one after the other."""
        some = list(pieces)
        return Steps(
            **{
                f.name: np.concatenate([getattr(s, f.name) for s in some], axis=int(f.name == "keys"))
                for f in fields(Steps)
            }
        )


class History:
    """Follows a stream of rows and gives each its history: what was seen and done in the two steps before.

    >>> import torch
    >>> from owlrl.changes import History
    >>> from owlrl.types import Transitions
    >>> x = torch.zeros(3)
    >>> rows = Transitions(x, x.long(), x, x, torch.tensor([False, True, False]), torch.ones(3))
    >>> keys = History().follow(rows).keys
    >>> [len(set(line)) for line in keys.tolist()]  # the third step begins an episode as the first did
    [1, 2, 2]
    """

    def __init__(self) -> None:
        # per environment: the keys of its newest step and of the one before, and what it led to; None
        # after the end of an episode
        self._last: dict[int, tuple[int, int, int] | None] = {}

    def follow(self, rows: Transitions, *, hashed: bool = True) -> Steps:
        """The next rows of the stream, in the order of time; without hashes those are 0, the unknown."""
        columns = in_time_order(columns_of(rows))
        count = len(columns["reward"])
        if not hashed:
            self._last = {}
            return _steps(columns, np.zeros((DEPTHS, count), np.uint64), np.zeros(count, np.uint64))
        seen, led_to = np.split(
            hashes(np.concatenate([columns["observation"], columns["next_observation"]])), 2
        )
        plain = mixed(seen, hashes(columns["action"]))
        keys = np.tile(plain, (DEPTHS, 1))
        ended = (columns["terminated"] | columns["truncated"]).tolist()
        before, two_before = np.zeros((2, count), np.uint64)
        last_of, lines = self._last, zip(columns["env"].tolist(), seen.tolist(), strict=True)
        alone, after = plain.tolist(), led_to.tolist()
        for row, (env, here) in enumerate(lines):
            last = last_of.get(env)
            if last is not None and last[2] == here:  # else an episode begins
                before[row], two_before[row] = last[0], last[1]
                last_of[env] = None if ended[row] else (alone[row], last[0], after[row])
            else:
                last_of[env] = None if ended[row] else (alone[row], 0, after[row])
        keys[1] = mixed(plain, before)
        keys[2] = mixed(keys[1], two_before)
        return _steps(columns, keys, led_to)

    def state_dict(self) -> dict[str, Any]:
        """The newest step of each environment."""
        return {str(env): [str(k) for k in last] for env, last in self._last.items() if last is not None}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from there."""
        self._last = {int(env): (int(a), int(b), int(c)) for env, (a, b, c) in state_dict.items()}


def remembered(memory: TaskMemory) -> Steps:
    """The rows of a memory; their history is known as far as it was kept."""
    rows = memory.rows()
    columns = columns_of(rows)
    plain = mixed(hashes(columns["observation"]), hashes(columns["action"]))
    keys = np.tile(plain, (DEPTHS, 1))
    previous = memory.previous(np.arange(len(plain)))
    two_before = np.where(previous >= 0, previous[np.maximum(previous, 0)], -1)
    keys[1] = np.where(previous >= 0, mixed(plain, plain[previous]), UNKNOWN)
    keys[2] = np.where(two_before >= 0, mixed(keys[1], plain[two_before]), UNKNOWN)
    return _steps(columns, keys, hashes(columns["next_observation"]))


def columns_of(rows: Transitions) -> dict[str, Array]:
    """The fields that matter, as arrays."""
    names = ("observation", "action", "reward", "next_observation", "terminated")
    columns = {name: getattr(rows, name).numpy(force=True) for name in names}
    count = len(rows)
    columns["truncated"] = (
        np.zeros(count, bool) if rows.truncated is None else rows.truncated.numpy(force=True)
    )
    columns["env"] = np.zeros(count, np.int64) if rows.env is None else rows.env.numpy(force=True)
    return columns


def _steps(columns: dict[str, Array], keys: Keys, led_to: Keys) -> Steps:
    terminated = columns["terminated"].astype(bool)
    return Steps(
        columns["observation"],
        columns["action"],
        columns["reward"].astype(np.float32, copy=False),
        columns["next_observation"],
        terminated,
        keys,
        np.where(terminated, mixed(led_to, led_to), led_to) if terminated.any() else led_to,
    )


@lru_cache(maxsize=8)
def _weights(size: int) -> Keys:
    made: Keys = np.random.default_rng(size).integers(2**64 - 1, size=size, dtype=np.uint64)
    made |= np.uint64(1)
    return made


def hashes(values: Array) -> Keys:
    """One number per row (B, ...), equal for equal bytes, the same in every process."""
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    raw = flat.view(np.uint8) if flat.itemsize == 1 else flat.view(f"u{min(8, flat.itemsize)}")
    wide: Keys = raw.astype(np.uint64)
    return mixed((wide * _weights(wide.shape[1])).sum(axis=1, dtype=np.uint64), MIX[3])


def mixed(one: Keys, other: Keys | np.uint64) -> Keys:
    """A hash of two hashes, ``one`` an array; never 0."""
    made: Keys = (one ^ (other * MIX[0])) * MIX[1]
    made ^= made >> MIX[2]
    made |= MIX[3]
    return made
