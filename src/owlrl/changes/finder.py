"""`ChangeFinder`: when has the task of a stream changed, and to which? `Familiarity`: is it any known one?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from owlrl.changes.base import Detector, History, Judgement, Steps, log_ratio
from owlrl.types import Transitions

__all__ = ["Change", "ChangeFinder", "Familiarity"]

MOST_HELD = 2048  # rows under suspicion at most
NEWEST = 128  # rows that are held without suspicion: a task that learned them would know them
AT_ONCE = 2  # how often the same step counts in one look: copies side by side meet it together
IN_ALL = 8  # how often the same contradiction counts
PROBATION = 1024  # rows in which a new task may turn out to be a known one
LEAST = 8  # comparable rows before a task is recognised
CONTRADICTED = 0.15  # a task that is contradicted by a larger share of comparable rows is another
PATIENCE = 160  # rows up to which it waits for one known task to fit better than another
SOON = 384  # rows after which the known task that was entered is no longer thought to be a mistake
STRANGE = 128  # rows of which a task that has learned enough knows at least a quarter
ELSEWHERE = 0.3  # share of steps that are strange to a task where none fits, at least
MOST_STRANGE = 1.0  # evidence of one strange step
SLIGHT = 0.01  # at most the evidence of errors that contradict nothing
COMPARED = 16  # steps of a look that are compared at most, if not all need to be
MOST_EXAMINED = 256  # steps that are looked at with care at most
FIRST = 16  # steps that are enough to refuse most tasks


@dataclass(frozen=True)
class Change:
    """The task has changed.

    Attributes:
        to: the task that fits; None for one that is not known.
        rows: how many of the newest rows were of it.
        confidence: probability that it was a change, by the evidence.
        merged: the previous task did not exist: all its rows belong to ``to``.
        mistaken: the previous task was entered by mistake: all rows of its visit belong to ``to``.

    >>> from owlrl.changes import Change
    >>> Change("left", 12, 0.99).merged
    False
    """

    to: str | None
    rows: int
    confidence: float
    merged: bool = False
    mistaken: bool = False


class Sums:
    """Sums of evidence that never fall below zero (CUSUM), over rows that are numbered from 0 on.

    The same contradiction counts a few times only: copies of an environment meet it together.

    >>> import numpy as np
    >>> from owlrl.changes import Judgement
    >>> from owlrl.changes.finder import Sums
    >>> sums = Sums()
    >>> evidence = np.array([[-1.0, 2.0, 0.0, -0.5, 3.0]])
    >>> sums.add(Judgement(evidence, evidence[0] != 0, evidence[0] > 0), threshold=4.0)
    (1, 4.5)
    """

    def __init__(self) -> None:
        self.values = np.zeros(0)
        self.begun = np.zeros(0, np.int64)  # of each: the row at which it left zero
        self.clear = 0  # behind the last row that agreed
        self._rows = 0
        self._repeats: Counter[int] = Counter()

    def add(self, judgement: Judgement, threshold: float) -> tuple[int, float] | None:
        """Add the next rows; where a sum is full, the row at which it began, and the sum."""
        if len(self.values) != len(judgement.evidence):
            self.values, self.begun = (
                np.zeros(len(judgement.evidence)),
                np.zeros(len(judgement.evidence), int),
            )
        before, now = self._rows, Counter[int]()
        self._rows += judgement.evidence.shape[1]
        rows = np.flatnonzero(judgement.evidence.any(0))
        which = None if judgement.which is None else judgement.which[rows].tolist()
        contradicts, lines = judgement.contradicts[rows].tolist(), judgement.evidence[:, rows].T.tolist()
        values, repeats = self.values.tolist(), self._repeats
        for place, (row, line) in enumerate(zip(rows.tolist(), lines, strict=True)):
            if which is not None:
                key = which[place]
                now[key] += 1
                if now[key] > AT_ONCE or repeats[key] == IN_ALL:
                    continue
                if contradicts[place]:
                    repeats[key] += 1
            for k, evidence in enumerate(line):
                if evidence > 0 and not values[k]:
                    self.begun[k] = self.clear if k == 0 else before + row
                values[k] = max(0.0, values[k] + evidence)
                if values[k] >= threshold:
                    self.values = np.array(values)
                    return int(self.begun[k]), values[k]
            if line[0] < 0:
                self.clear = before + row + 1
        self.values = np.array(values)
        if not self.values.any():
            self._repeats.clear()
        return None

    def drop(self, rows: int) -> None:
        """The first ``rows`` rows are gone, with what began in them; number the others from 0 on."""
        self.values[self.begun < rows] = 0.0  # suspicion that led to nothing
        self._rows -= rows
        self.begun, self.clear = np.maximum(self.begun - rows, 0), max(self.clear - rows, 0)


Settled = Callable[[Judgement, int], bool]  # by a judgement of the first steps, and how many are left


class Said:
    """What models say of steps, each judged once while more come and the models stay as they are."""

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self._said: dict[str, Judgement] = {}

    def __call__(self, task: str, steps: Steps, settled: Settled | None = None) -> Judgement | None:
        """Of all ``steps``, the first of which are those of the last call.

        None as soon as what is said of the first steps has ``settled`` it, whatever the rest will say.
        """
        said = self._said.get(task)
        while said is None or len(said.comparable) < len(steps):
            known = 0 if said is None else len(said.comparable)
            if said is not None and settled is not None and settled(said, len(steps) - known):
                return None
            size = len(steps) if settled is None else max(FIRST, known)
            more = self.detector.judge(task, steps[known : known + size])
            said = self._said[task] = more if said is None else Judgement.joined([said, more])
        return said


class ChangeFinder:
    """Sums the evidence of a `Detector` over a stream, holds back suspicious rows, and decides.

    Feed it all rows with `see`. Rows beyond suspicion are learned as the current task's. A `Change` comes
    when a sum reaches the detector's threshold times the model's doubt: to the known task that fits best, or
    to a new one if none fits and the current model is mature. It also comes when a known task explains
    rows in states strange to this one, and when two tasks turn out to be one (``merged``). After it call
    `enter` with the task's name; the rows since the change are then that task's.

    Args:
        detector: distinguishes tasks.

    >>> import torch
    >>> from owlrl.changes import ChangeFinder, Contradiction
    >>> from owlrl.types import Transitions
    >>> state = torch.arange(64.0) % 8
    >>> def rows(pays):
    ...     return Transitions(state, state.long() * 0, (state == pays).float(), (state + 1) % 8, state < 0,
    ...                        torch.ones(64))
    >>> finder = ChangeFinder(Contradiction())
    >>> finder.enter("task 0", new=True)
    >>> [finder.see(rows(2)) for _ in range(80)] == [None] * 80
    True
    >>> finder.see(rows(5))
    Change(to=None, rows=62, confidence=0.999..., merged=False, mistaken=False)
    """

    def __init__(self, detector: Detector) -> None:
        self.detector = detector
        self.task = ""
        self.age = 0  # rows learned in this visit
        self._history = History()
        self._young: list[Steps] | None = None  # all rows of a task on probation
        self._tested = 0  # how many of them there were at the last test
        self._trial: list[tuple[Steps, Judgement]] | None = None  # of a visit that may be a mistake
        self._held: list[tuple[Steps, Judgement]] = []
        self._sums = Sums()  # over the rows that are held
        self._alarm: tuple[int, float] | None = None  # that waits for more rows
        self._said_since = Said(detector)  # of the rows since then
        self._said_young = Said(detector)  # of those of a task on probation
        self._left: set[str] = set()  # tasks that rows led away from, one soon after the other
        self._recent: list[tuple[Steps, int]] = []  # the newest rows, and how many the task knew of them

    @property
    def suspicion(self) -> float:
        """The largest sum, as a part of the threshold."""
        return float(self._sums.values.max(initial=0.0)) / self._threshold

    @property
    def held(self) -> int:
        """Rows that may turn out to be another task's."""
        return sum(len(steps) for steps, _ in self._held)

    @property
    def _threshold(self) -> float:
        return self.detector.threshold * self.detector.open(self.task).doubt

    def enter(self, task: str, *, new: bool) -> None:
        """The held rows, and those that follow, belong to ``task``."""
        steps = [steps for steps, _ in self._held]
        soon = self._left if self.age < SOON else set()
        self._left = {*soon, self.task} if steps else set()
        self.task, self.age, self._held = task, 0, []
        self._young, self._tested, self._trial = [] if new else None, 0, None if new else []
        self._sums, self._recent, self._alarm = Sums(), [], None
        self._said_since, self._said_young = Said(self.detector), Said(self.detector)
        for piece in steps:
            judgement = self.detector.judge(task, piece)
            if judgement.which is not None:  # what contradicts the task may be another's all the same
                agreeing = np.flatnonzero(~judgement.contradicts)
                piece, judgement = piece[agreeing], _part(judgement, agreeing)
            self._learn(piece, judgement)
        self.age = 0

    def settle(self) -> None:
        """The held rows belong to the current task after all."""
        for steps, judgement in self._held:
            self._learn(steps, judgement)
        self._held, self._sums, self._recent = [], Sums(), []
        self._alarm, self._said_since = None, Said(self.detector)
        self._confirm()

    def see(self, rows: Transitions) -> Change | None:
        """Process the newest rows; return a change, if there was one."""
        steps = self._history.follow(rows, hashed=self.detector.hashed)
        judgement = self.detector.judge(self.task, steps, stride=self._stride(steps))
        self._held.append((steps, judgement))
        alarm = self._alarm or self._sums.add(judgement, self._threshold)
        if alarm is not None:
            return self._decide(*alarm)
        self._release()
        return self._merge() if self._young is not None else self._elsewhere(steps, judgement)

    def _stride(self, steps: Steps) -> int:
        """Copies side by side show much in one look: comparing some of it is enough to find a change."""
        stride = self.detector.stride
        return stride if stride == 1 else max(stride, len(steps) // COMPARED)

    def _elsewhere(self, steps: Steps, judgement: Judgement) -> Change | None:
        """A known task that explains the newest rows, where the current one hardly knows any of them.

        Unknown states contradict nothing, and the policies of two levels may never visit the same states.
        """
        share = 1 if judgement.which is not None else self._stride(steps)
        self._recent.append((steps, share * int(judgement.comparable.sum())))
        while sum(len(piece) for piece, _ in self._recent[1:]) >= STRANGE:
            self._recent.pop(0)
        count = sum(len(piece) for piece, _ in self._recent)
        if count < STRANGE or 4 * sum(known for _, known in self._recent) >= count:
            return None
        model = self.detector.open(self.task)
        if len(self.detector.tasks) < 2 or not model.mature or model.doubt > 2.0:
            return None
        rows = Steps.joined(piece for piece, _ in self._recent)
        judge = partial(Said(self.detector), steps=rows)
        fitting, _ = self._fitting(judge, np.ones(count, np.bool_), 3 * count // 4)
        if not fitting:
            return None
        self._confirm()
        self._hold(rows)
        return Change(fitting[0], count, float(1.0 - np.exp(-self.detector.threshold)))

    def _release(self) -> None:
        """Learn the rows that are beyond suspicion."""
        sums, held = self._sums, self.held
        suspected = sums.begun[sums.values > 0]
        keep_from = min([held - NEWEST, *suspected.tolist()])
        out = max(keep_from, held - MOST_HELD, 0)
        sums.drop(out)
        while out:
            steps, judgement = self._held.pop(0)
            if len(steps) > out:
                self._held.insert(0, (steps[out:], _part(judgement, slice(out, None))))
                steps, judgement = steps[:out], _part(judgement, slice(out))
            out -= len(steps)
            self._learn(steps, judgement)

    def _learn(self, steps: Steps, judgement: Judgement) -> None:
        self.age += len(steps)
        if self._trial is not None and judgement.which is None:
            self._trial.append((steps, judgement))
            if self.age >= SOON:
                self._confirm()
            return
        self.detector.learn(self.task, steps, judgement)
        if self._young is not None:
            self._young.append(steps)

    def _confirm(self) -> None:
        """The known task was not entered by mistake: it learns the rows of this visit."""
        trial, self._trial = self._trial or [], None
        for steps, judgement in trial:
            self.detector.learn(self.task, steps, judgement)

    def _mistaken(self, to: str | None) -> bool:
        """Whether all rows of this visit are of ``to``, or of a new task.

        Two changes so soon one after the other are as unlikely as one change is without evidence.
        """
        if not self._trial:
            return False
        visit = Steps.joined(steps for steps, _ in self._trial)
        here = self.detector.examine(self.task, visit)
        if to is None:
            return bool(-here.evidence[0].sum() < self.detector.threshold)
        return _better(here, self.detector.examine(to, visit)) < self.detector.threshold

    def _decide(self, begun: int, total: float) -> Change | None:
        """An alarm: which task were the rows since the change began?"""
        held = Steps.joined(steps for steps, _ in self._held)
        suspected = held[begun:]
        said = self._said_since(self.task, suspected)  # this time all of them
        assert said is not None  # nothing settles it sooner
        first = int(np.argmax(said.contradicts))
        agreed = np.flatnonzero((said.comparable & ~said.contradicts)[:first])
        later = int(agreed[-1]) + 1 if len(agreed) else 0  # rows that were still the current task's
        since = slice(later, None)

        def judge(task: str, settled: Settled) -> Judgement | None:
            found = self._said_since(task, suspected, lambda s, left: settled(_part(s, since), left))
            return None if found is None else _part(found, since)

        fitting, perhaps = self._fitting(judge, said.contradicts[since], LEAST)
        near = said.which is None
        if near and len(fitting) + len(perhaps) > 1:
            clear = self._clear([*fitting, *perhaps], suspected[since])
            fitting, perhaps = ([clear], []) if clear else (fitting, perhaps)
        if (len(fitting) > 1 or (perhaps and not fitting)) and len(suspected) - later < PATIENCE:
            self._alarm = begun, total
            return None  # more rows will tell; those that are held stay so
        begun += later
        self._alarm, self._said_since = None, Said(self.detector)
        if begun:
            self._learn(held[:begun], self.detector.judge(self.task, held[:begun]))
        to = fitting[0] if fitting else None
        if near and to is None:
            to = self._known_with_care(held[begun:])
        self._hold(held[begun:])
        if near and self._evidence(self.detector.judge(self.task, held[begun:])) <= 0:
            self._sums = Sums()  # the rows before, or those after the alarm, explain what was unknown
            self._sums.add(self._held[0][1], np.inf)
            return None
        if to is None and not self.detector.open(self.task).mature:
            self._held, self._sums = [], Sums()
            self._learn(held[begun:], self.detector.judge(self.task, held[begun:]))
            return None
        if near and to is not None and self._young and self._known_after_all(self._young) == to:
            self._hold(Steps.joined([*self._young, held[begun:]]))
            return Change(to, self.held, 1.0, merged=True)
        if self._mistaken(to):
            visit, self._trial = self._trial or [], None
            self._hold(Steps.joined([*(steps for steps, _ in visit), held[begun:]]))
            return Change(to, self.held, float(1.0 - np.exp(-total)), mistaken=True)
        self._confirm()
        return Change(to, len(held) - begun, float(1.0 - np.exp(-total)))

    def _hold(self, steps: Steps) -> None:
        """Hold these rows alone."""
        self._held = [(steps, Judgement.silent(len(steps)))]

    def _evidence(self, said: Judgement, *, whole: bool = False) -> float:
        """The evidence that steps are not of the task that was judged, in parts of what is enough for that.

        With neighbours, and if the steps are of one task as a ``whole``, the evidence in total counts, and
        not where it rises most: in places that a task hardly knows, steps contradict it together.
        """
        if said.which is None or whole:
            return float(said.evidence.sum(1).max() / (self.detector.threshold / 2))
        many = said.contradicts.sum() > CONTRADICTED * said.comparable.sum()
        return float(many or Sums().add(said, self.detector.threshold / 2) is not None)

    def _refused(self, said: Judgement, left: int, *, whole: bool) -> bool:
        """Whether the evidence against a task is enough, whatever the ``left`` steps will say."""
        enough = self.detector.threshold / 2
        if said.which is None or whole:
            return bool(said.evidence.sum(1).max() + left * self.detector.least >= enough)
        return Sums().add(said, enough) is not None

    def _fitting(
        self,
        judge: Callable[..., Judgement | None],
        wrong: np.ndarray,
        least: int,
        *,
        whole: bool = False,
    ) -> tuple[list[str], list[str]]:
        """The tasks that explain steps which contradict the current one at ``wrong``, the best first.

        And others that explain some of them, and know too little to tell. ``judge`` says what a task's model
        makes of the steps, or None as soon as the task is refused.
        """
        refused = partial(self._refused, whole=whole)
        found: list[tuple[int, str]] = []
        perhaps: list[str] = []
        soon = self.age < SOON if self._young is None else len(self._left) > 1
        for task in self.detector.tasks:
            if task == self.task:
                continue
            said = judge(task, settled=refused)
            if said is None:
                continue
            comparable, against = int(said.comparable.sum()), int(said.contradicts.sum())
            explained = said.comparable & ~said.contradicts & wrong
            evidence = self._evidence(said, whole=whole)
            if evidence >= 1 or not explained.any():
                continue
            if task in self._left and soon and said.which is not None:
                continue  # what led away from it is not to be forgotten
            if evidence > 0 or comparable < min(least, len(wrong)) or 2 * explained.sum() < wrong.sum():
                perhaps.append(task)
                continue
            found.append((comparable - 2 * against, task))
        return [task for _, task in sorted(found, key=lambda each: -each[0])], perhaps

    def _known_with_care(self, steps: Steps) -> str | None:
        """A known task that explains steps which none seems to explain, looked at with more care."""
        some = steps[:: max(1, len(steps) // MOST_EXAMINED)]
        few = some[:: max(1, len(some) // (4 * FIRST))]
        found: list[tuple[float, str]] = []
        for task in self.detector.tasks:
            if task == self.task:
                continue
            first = self.detector.judge(task, few)
            if first.which is not None or 2 * first.contradicts.sum() > first.comparable.sum():
                continue  # there is no other way to look, or no need for it
            said = self.detector.examine(task, some)
            evidence = float(said.evidence[0].sum())
            if evidence < 0 and 2 * (said.comparable & ~said.contradicts).sum() >= max(len(some), 2 * LEAST):
                found.append((evidence, task))
        return min(found)[1] if found else None

    def _clear(self, tasks: list[str], steps: Steps) -> str | None:
        """The task that explains the steps much better than each other one, looked at with more care."""
        said = {task: self.detector.examine(task, steps) for task in tasks}
        enough = self.detector.threshold / 2
        for task in tasks:
            others = (said[other] for other in tasks if other != task)
            fits = said[task].evidence[0].sum() < enough
            if fits and all(_better(said[task], other) >= enough for other in others):
                return task
        return None

    def _merge(self) -> Change | None:
        """A task on probation that is a known one after all; tested four times, without suspicion."""
        young = self._young or []
        count = sum(map(len, young))
        if count >= 2 * PROBATION:
            self._young = None
        if count < self._tested + PROBATION // 4 or self._sums.values.any():
            return None
        self._tested = count
        known = self._known_after_all(young)
        if count >= PROBATION:
            self._young = None
        if known is None:
            return None
        self._hold(Steps.joined([*young, *(piece for piece, _ in self._held)]))
        return Change(known, self.held, 1.0, merged=True)

    def _known_after_all(self, young: list[Steps]) -> str | None:
        """The known task that explains all rows of the one on probation, if there is just one."""
        steps = Steps.joined(young)
        everywhere, most = np.ones(len(steps), np.bool_), len(steps) // 2
        judge = partial(self._said_young, steps=steps)
        fitting, perhaps = self._fitting(judge, everywhere, most, whole=True)
        return fitting[0] if len(fitting) == 1 and not perhaps else self._known_with_care(steps)

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue."""
        return {
            "task": self.task,
            "age": self.age,
            "history": self._history.state_dict(),
            "detector": self.detector.state_dict(),
            "held": [steps.arrays() for steps, _ in self._held],
            "young": None if self._young is None else [steps.arrays() for steps in self._young],
            "tested": self._tested,
            "trial": None if self._trial is None else [steps.arrays() for steps, _ in self._trial],
            "alarm": None if self._alarm is None else list(self._alarm),
            "left": sorted(self._left),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned; rows that were held are looked at again."""
        self.detector.load_state_dict(state_dict["detector"])
        self._history.load_state_dict(state_dict["history"])
        self.task, self.age = str(state_dict["task"]), int(state_dict["age"])
        young = state_dict["young"]
        self._young = None if young is None else [Steps.from_arrays(arrays) for arrays in young]
        self._tested, self._left = int(state_dict["tested"]), set(state_dict["left"])
        trial = state_dict["trial"]
        pieces = [Steps.from_arrays(arrays) for arrays in trial or []]
        judged = [(steps, self.detector.judge(self.task, steps)) for steps in pieces]
        self._trial = None if trial is None else judged
        alarm = state_dict["alarm"]
        self._alarm = None if alarm is None else (int(alarm[0]), float(alarm[1]))
        self._held, self._sums, self._recent = [], Sums(), []
        self._said_since, self._said_young = Said(self.detector), Said(self.detector)
        for arrays in state_dict["held"]:
            steps = Steps.from_arrays(arrays)
            judgement = self.detector.judge(self.task, steps, stride=self._stride(steps))
            self._held.append((steps, judgement))
            self._sums.add(judgement, np.inf)


def _better(one: Judgement, other: Judgement) -> float:
    """By how much one task explains steps better than another, of those that both know."""
    both = one.comparable & other.comparable
    return float((other.evidence[0] - one.evidence[0])[both].sum())


def _part(judgement: Judgement, rows: slice | np.ndarray) -> Judgement:
    which = None if judgement.which is None else judgement.which[rows]
    return Judgement(
        judgement.evidence[:, rows], judgement.comparable[rows], judgement.contradicts[rows], which
    )


class Familiarity:
    """Sums up, for each task and environment, the evidence against the task.

    There are two sums: of outcomes that the task has never shown, and of steps that are strange to it. A
    policy that no longer learns seldom meets such steps in its own task; how seldom is known of each task.
    Where both sums are zero, the largest error so far says which environment is the less familiar one.

    Args:
        detector: knows the tasks.
        tasks: the tasks to compare with.

    >>> import torch
    >>> from owlrl.changes import Contradiction, Familiarity, History
    >>> from owlrl.types import Transitions
    >>> state = torch.arange(400.0) % 8
    >>> def rows(pays):
    ...     return Transitions(state, state.long() * 0, (state == pays).float(), (state + 1) % 8, state < 0,
    ...                        torch.ones(400))
    >>> detector = Contradiction()
    >>> for pays in (2, 3):
    ...     detector.learn(f"pays at {pays}", History().follow(rows(pays)))
    >>> familiarity = Familiarity(detector, ["pays at 2", "pays at 3"])
    >>> for pays in (3, 5):
    ...     familiarity.reset(1)
    ...     for step in range(8):
    ...         familiarity.observe(rows(pays)[step : step + 1])
    ...     print(familiarity.unfamiliar > 0.9)
    [False]
    [ True]
    """

    def __init__(self, detector: Detector, tasks: Sequence[str]) -> None:
        self.detector = detector
        self.tasks = list(tasks)
        models = [detector.open(task) for task in self.tasks]
        self._unknown, self._doubt = [m.unknown for m in models], [m.doubt for m in models]
        self.reset(1)

    def reset(self, num_envs: int, mask: np.ndarray | None = None) -> None:
        """Forget what was seen; with ``mask`` (E,) only in the environments marked true."""
        if mask is None:
            self._sums = np.zeros((len(self.tasks), 2, num_envs))
            self._errors = np.zeros((len(self.tasks), num_envs))
            self._history = History()
        else:
            self._sums[..., mask] = 0.0
            self._errors[:, mask] = 0.0

    def observe(self, rows: Transitions, mask: np.ndarray | None = None) -> None:
        """Process a step of each environment; ``mask`` (E,) leaves out those without one."""
        env = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
        if not len(env):
            return
        steps = self._history.follow(rows[torch.from_numpy(env)], hashed=self.detector.hashed)
        for k, (task, usual, doubt) in enumerate(zip(self.tasks, self._unknown, self._doubt, strict=True)):
            sums = self._sums[k]
            said = self.detector.examine(task, steps)
            sums[0, env] = np.maximum(0.0, sums[0, env] + said.evidence[0] / doubt)
            if said.strange is not None:
                rate = np.full(len(env), usual)
                evidence = log_ratio(said.strange, rate, changed=ELSEWHERE, most=MOST_STRANGE)
                sums[1, env] = np.maximum(0.0, sums[1, env] + evidence)
            if said.error is not None:
                self._errors[k, env] = np.maximum(self._errors[k, env], said.error)

    @property
    def unfamiliar(self) -> np.ndarray:
        """The probability that no task explains what was seen: (E,)."""
        slight = SLIGHT * self._errors / (1.0 + self._errors)
        made: np.ndarray = 1.0 - np.exp(-(self._sums.max(axis=1) + slight).min(axis=0))
        return made
