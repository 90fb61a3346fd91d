"""`Contradiction`: the same state and action, but an outcome that the task has never shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from owlrl.changes._neighbours import NearIndex
from owlrl.changes.base import DEPTHS, BoolArray, Detector, Judgement, Steps, hashes, log_ratio, mixed
from owlrl.memory._reservoir import majority_vote

__all__ = ["Contradiction"]

TRIAL = 128  # steps after which it is known whether observations repeat exactly
MATURE = 1024  # steps after which neighbours are near enough to trust what they say
YOUNG = 4096  # steps in which places that look alike may still be met for the first time
KNOWN = 0.01  # share of steps that are unknown below which hardly any are left
AGAIN = 0.3  # share of the steps of the trial that must come again for that
RARE = 0.1  # at most this share of steps are events, if events are counted by themselves


class Contradiction(Detector):
    """Counts contradictions: steps like known ones of the task, with an outcome that it has never shown.

    Unknown states count neither way, so that a policy may explore; steps that agree count against a
    change. Where observations repeat exactly (grids), outcomes are looked up; else the five nearest rows
    are compared. The rate at which a task contradicts itself is measured in each region. Rare events, the
    ends of episodes and uncommon rewards, are also counted separately, since they would be lost among the
    other steps.

    Args:
        threshold: of the sums of evidence; a change is e^threshold times likelier than none there.
        changed: share of comparable steps that contradict the old task after a change, at least.
        stride: with neighbours, only every ``stride``-th step is compared, since consecutive steps are alike.

    >>> import torch
    >>> from owlrl.changes import Contradiction, History
    >>> from owlrl.types import Transitions
    >>> state = torch.arange(400.0) % 8
    >>> def rows(pays):
    ...     return Transitions(state, state.long() * 0, (state == pays).float(), (state + 1) % 8, state < 0,
    ...                        torch.ones(400))
    >>> history, detector = History(), Contradiction()
    >>> detector.learn("left", history.follow(rows(2)))
    >>> said = detector.judge("left", history.follow(rows(5)))
    >>> int(said.comparable.sum()) > 300, said.contradicts[:8].tolist()
    (True, [False, False, True, False, False, True, False, False])
    """

    def __init__(self, *, threshold: float = 16.0, changed: float = 0.3, stride: int = 4) -> None:
        super().__init__()
        self.threshold = threshold
        self.changed = changed
        self.stride = stride
        self.least = float(np.log1p(-changed))

    @property
    def hashed(self) -> bool:
        """Neighbours need no hashes."""
        return not (self.tasks and all(isinstance(m.index, NearIndex) for m in self.tasks.values()))

    def examine(self, task: str, steps: Steps) -> Judgement:
        """With neighbours, outcomes are compared with what the nearest rows foretell."""
        model = self.open(task)
        index = model.index if isinstance(model, ContradictionModel) else None
        return index.examine(steps) if isinstance(index, NearIndex) else model.judge(steps)

    def make(self) -> ContradictionModel:
        """A model that has seen nothing."""
        return ContradictionModel(self.changed)


class ContradictionModel:
    """A model of one task: an index of its steps, and its common rewards."""

    def __init__(self, changed: float) -> None:
        self.changed = changed
        self.index: ExactIndex | NearIndex | None = None
        self.seen = self.events = 0
        self._trial: list[Steps] = []
        self._common, self._votes = 0.0, 0  # the most common reward, by `majority_vote`

    @property
    def mature(self) -> bool:
        if isinstance(self.index, ExactIndex):
            return self.seen >= YOUNG or self.index.unknown < KNOWN
        return self.seen >= MATURE

    @property
    def doubt(self) -> float:
        if isinstance(self.index, ExactIndex):
            return 3.0 if self.seen < YOUNG else 1.0
        return 1.5  # steps of one swing through places that are hardly known contradict together

    @property
    def unknown(self) -> float:
        return np.nan if self.index is None else self.index.unknown

    def judge(self, steps: Steps, *, stride: int = 1) -> Judgement:
        if self.index is None:
            return Judgement.silent(len(steps), 2)
        made = self.index.judge(steps, self._events(steps), stride)
        if self.events > RARE * self.seen:
            made.evidence[1] = 0.0
        return made

    def learn(self, steps: Steps, judgement: Judgement) -> None:
        self._common, self._votes = majority_vote(self._common, self._votes, steps.reward.tolist())
        event = self._events(steps)
        self.seen, self.events = self.seen + len(steps), self.events + int(event.sum())
        if self.index is None:
            self._trial.append(steps)
            if self.seen >= TRIAL:
                self._begin(Steps.joined(self._trial))
        else:
            self.index.learn(steps, event, judgement)

    def _begin(self, steps: Steps) -> None:
        """Choose the index by the first steps."""
        alone = mixed(hashes(steps.observation), hashes(steps.action))
        again = 1.0 - len(np.unique(alone)) / len(steps)
        kind: type[ExactIndex | NearIndex] = ExactIndex if again > AGAIN else NearIndex
        self.index, self._trial = kind(self.changed), []
        self.index.learn(steps, self._events(steps), Judgement.silent(len(steps)))

    def _events(self, steps: Steps) -> BoolArray:
        made: BoolArray = steps.terminated | (steps.reward != self._common)
        return made

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "seen": self.seen,
            "events": self.events,
            "common": [self._common, self._votes],
            "kind": "" if self.index is None else type(self.index).__name__,
        }
        if self.index is not None:
            return {**state, "index": self.index.state_dict()}
        return {**state, "trial": [steps.arrays() for steps in self._trial]}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.seen, self.events = int(state_dict["seen"]), int(state_dict["events"])
        common, votes = state_dict["common"]
        self._common, self._votes = float(common), int(votes)
        kinds = {kind.__name__: kind for kind in (ExactIndex, NearIndex)}
        self.index, self._trial = None, []
        if state_dict["kind"]:
            self.index = kinds[state_dict["kind"]](self.changed)
            self.index.load_state_dict(state_dict["index"])
        else:
            self._trial = [Steps.from_arrays(arrays) for arrays in state_dict["trial"]]


MOST_KEYS = 2**17  # per depth
MOST_EVIDENCE = 5.0  # of one step
CLEAR = 0.02  # share of ambiguous steps below which a third of the usual contradictions tell a change

# of a key: how often it came, how often with a new outcome, whether an event was among them, and
# its outcomes with their least and largest reward
Entry = list[Any]


class ExactIndex:
    """Outcomes by observation and action, and where those are ambiguous, by the steps before as well.

    A step contradicts the task if its key is known and its outcome, the next observation with the end of the
    episode, or its reward was never seen there. How often a key had a new outcome before, and which share of
    the task's keys has several, decides how much that means.
    """

    def __init__(self, changed: float) -> None:
        self.changed = changed
        self.tables: list[dict[int, Entry]] = [{} for _ in range(DEPTHS)]
        # keys that came twice, and those that had another outcome then or later; per depth, all and events
        self.twice, self.several = ([[0, 0] for _ in range(DEPTHS)] for _ in range(2))

    @property
    def unknown(self) -> float:
        """The share of steps that came once (Good 1953)."""
        visits = [entry[0] for entry in self.tables[0].values()]
        return (visits.count(1) + 1) / (sum(visits) + 10) if len(visits) < MOST_KEYS else np.nan

    @property
    def ambiguous(self) -> np.ndarray:
        """The share of keys with several outcomes, per depth, all and of events; from a tenth on."""
        made: np.ndarray = (np.array(self.several) + 1) / (np.array(self.twice) + 10)
        return made

    def judge(self, steps: Steps, event: BoolArray, stride: int) -> Judgement:
        if not len(steps):
            return Judgement.silent(0, 2)
        keys, tables = steps.keys.tolist(), self.tables
        said = [(0, 0, 0, False, False, 0)] * len(steps)  # key, visits, new outcomes, event, wrong, depth
        lines = zip(keys[0], steps.outcome.tolist(), steps.reward.tolist(), strict=True)
        for row, (key, outcome, reward) in enumerate(lines):
            entry, depth = tables[0].get(key), 0
            while entry is not None and len(entry[3]) > 1 and depth < DEPTHS - 1:
                depth += 1  # it had several outcomes: with the steps before
                key = keys[depth][row]
                entry = tables[depth].get(key)
            if entry is not None:
                known = entry[3].get(outcome)
                # most rewards are between those known, and a call costs as much as the rest
                odd = known is None or not (known[0] <= reward <= known[1] or agrees(known, reward))
                said[row] = (key, entry[0], entry[1], entry[2], odd, depth)
        which, *columns = zip(*said, strict=True)
        visits, novel, rare, wrong, depths = map(np.array, columns)
        strange, ambiguous = visits == 0, self.ambiguous
        changed = self.changed / 3 if ambiguous[0, 0] < CLEAR else self.changed
        rates = np.where(strange, np.nan, (novel + ambiguous[depths].T) / (visits + 1))
        evidence = log_ratio(wrong, rates, changed=changed, most=MOST_EVIDENCE)
        evidence[1] *= rare | event
        return Judgement(evidence, ~strange, wrong, mixed(np.array(which, np.uint64), steps.outcome), strange)

    def learn(self, steps: Steps, event: BoolArray, judgement: Judgement) -> None:
        outcomes, rewards, events = steps.outcome.tolist(), steps.reward.tolist(), event.tolist()
        for depth, table in enumerate(self.tables):
            for row, key in enumerate(steps.keys[depth].tolist()):
                if not key:
                    continue
                outcome, reward = outcomes[row], rewards[row]
                entry = table.get(key)
                if entry is None:
                    if len(table) < MOST_KEYS:
                        table[key] = [1, 0, events[row], {outcome: [reward, reward]}]
                    continue
                known = entry[3].get(outcome)
                inside = known is not None and known[0] <= reward <= known[1]
                novel = not inside and not agrees(known, reward)
                entry[0], entry[1], entry[2] = entry[0] + 1, entry[1] + novel, entry[2] or events[row]
                if entry[0] == 2 or (novel and entry[1] == 1):
                    for kind in range(1 + entry[2]):
                        self.twice[depth][kind] += entry[0] == 2
                        self.several[depth][kind] += novel and entry[1] == 1
                if known is None:
                    entry[3][outcome] = [reward, reward]
                elif not inside:
                    known[:] = min(known[0], reward), max(known[1], reward)

    def state_dict(self) -> dict[str, Any]:
        return {
            "counts": np.array([self.twice, self.several]),
            "tables": [_packed(table) for table in self.tables],
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.twice, self.several = np.array(state_dict["counts"], np.int64).reshape(2, DEPTHS, 2).tolist()
        self.tables = [_unpacked(packed) for packed in state_dict["tables"]]


def agrees(known: list[float] | None, reward: float) -> bool:
    """Whether a reward is among the known ones, within the differences between those.

    >>> agrees([1.0, 1.0], 1.0), agrees([1.0, 1.0], 0.9), agrees([0.8, 1.0], 0.7), agrees(None, 1.0)
    (True, False, True, False)
    """
    if known is None:
        return False
    low, high = known
    width = high - low + 1e-4 * (abs(low) + abs(high))
    return low - width <= reward <= high + width


def _packed(table: dict[int, Entry]) -> dict[str, np.ndarray]:
    entries = list(table.values())
    outcomes = [(k, *bounds) for entry in entries for k, bounds in entry[3].items()]
    return {
        "key": np.array(list(table), np.uint64).view(np.int64),
        "counts": np.array([[e[0], e[1], e[2], len(e[3])] for e in entries], np.int64).reshape(-1, 4),
        "outcome": np.array([k for k, _, _ in outcomes], np.uint64).view(np.int64),
        "reward": np.array([bounds for _, *bounds in outcomes], np.float64).reshape(-1, 2),
    }


def _unpacked(packed: dict[str, Any]) -> dict[int, Entry]:
    key, outcome = (np.asarray(packed[name]).view(np.uint64).tolist() for name in ("key", "outcome"))
    counts, reward = (np.asarray(packed[name]).tolist() for name in ("counts", "reward"))
    table: dict[int, Entry] = {}
    place = 0
    for name, (visits, novel, event, size) in zip(key, counts, strict=True):
        found = zip(outcome[place : place + size], reward[place : place + size], strict=True)
        table[name] = [visits, novel, bool(event), dict(found)]
        place += size
    if place != len(outcome):
        raise ValueError(f"{len(outcome)} outcomes were saved; expected {place} by the counts")
    return table
