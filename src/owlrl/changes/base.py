"""`Detector`: the base class of change detectors; `Judgement`: what they return."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from owlrl.changes.steps import Steps
from owlrl.errors import OwlError, OwlValueError

__all__ = ["Detector", "Judgement", "TaskModel", "log_ratio"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Judgement:
    """Evidence of steps for and against a task.

    Attributes:
        evidence: (C, B) log of how much likelier each step is in another task than in this one, counted in C
            sums; 0 is neutral.
        comparable: (B,) whether the task knows such steps at all.
        contradicts: (B,) whether the task has another outcome for them.
        which: (B,) hashes that are equal for the same contradiction; None where each is different.

    >>> import numpy as np
    >>> from owlrl.changes import Judgement
    >>> Judgement.silent(2).evidence
    array([[0., 0.]])
    """

    evidence: FloatArray
    comparable: BoolArray
    contradicts: BoolArray
    which: npt.NDArray[np.uint64] | None = None

    @staticmethod
    def silent(count: int, sums: int = 1) -> Judgement:
        """A neutral judgement of ``count`` steps."""
        return Judgement(np.zeros((sums, count)), np.zeros(count, np.bool_), np.zeros(count, np.bool_))


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

    def __init__(self) -> None:
        self.tasks: dict[str, Any] = {}

    @abstractmethod
    def make(self) -> TaskModel:
        """A model of a task of which nothing is known yet."""

    def judge(self, task: str, steps: Steps, *, stride: int = 1) -> Judgement:
        """Evidence of ``steps`` for and against ``task``."""
        found: Judgement = self.open(task).judge(steps, stride=stride)
        return found

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
        try:
            for task, state in state_dict["tasks"].items():
                loaded[str(task)] = self.make()
                loaded[str(task)].load_state_dict(state)
        except (LookupError, TypeError, ValueError, AttributeError, OwlError) as error:
            raise OwlValueError(
                f"{type(self).__name__}.load_state_dict: the state does not fit or is damaged "
                f"({type(error).__name__}: {error}); pass what state_dict() returned"
            ) from error
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
