"""`ExactIndex`: what followed each observation and action, where observations repeat exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from owlrl.changes.base import Judgement, log_ratio
from owlrl.changes.steps import DEPTHS, Steps, mixed

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

    def __init__(self, *, changed: float) -> None:
        self.changed = changed
        self.tables: list[dict[int, Entry]] = [{} for _ in range(DEPTHS)]
        # keys that came twice, and those that had another outcome then or later; per depth, all and events
        self.twice, self.several = ([[0, 0] for _ in range(DEPTHS)] for _ in range(2))

    @property
    def ambiguous(self) -> np.ndarray:
        """The share of keys with several outcomes, per depth, all and of events; from a tenth on."""
        made: np.ndarray = (np.array(self.several) + 1) / (np.array(self.twice) + 10)
        return made

    def judge(self, steps: Steps, event: np.ndarray) -> Judgement:
        count, ambiguous = len(steps), self.ambiguous.tolist()
        usual, among_events = np.full((2, count), np.nan)
        wrong, rare = np.zeros((2, count), np.bool_)
        which = np.zeros(count, np.uint64)
        lines = zip(*steps.keys.tolist(), steps.outcome.tolist(), steps.reward.tolist(), strict=True)
        for row, (*keys, outcome, reward) in enumerate(lines):
            found = self._entry(keys)
            if found is None:
                continue
            key, entry, depth = found
            wrong[row] = not agrees(entry[3].get(outcome), reward)
            rare[row] = entry[2]
            which[row] = key
            usual[row], among_events[row] = ((entry[1] + a) / (entry[0] + 1) for a in ambiguous[depth])
        changed = self.changed / 3 if ambiguous[0][0] < CLEAR else self.changed
        evidence = [
            log_ratio(wrong, each, changed=changed, most=MOST_EVIDENCE) for each in (usual, among_events)
        ]
        evidence[1] *= rare | event
        return Judgement(np.stack(evidence), ~np.isnan(usual), wrong, mixed(which, steps.outcome))

    def _entry(self, keys: list[int]) -> tuple[int, Entry, int] | None:
        """What is known of a step: by itself if that had one outcome, else with the steps before it."""
        for depth, (key, table) in enumerate(zip(keys, self.tables, strict=True)):
            entry = table.get(key)
            if entry is None or len(entry[3]) == 1 or depth == DEPTHS - 1:
                break
        return None if entry is None else (key, entry, depth)

    def learn(self, steps: Steps, event: np.ndarray) -> None:
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
                novel = not agrees(known, reward)
                entry[0], entry[1], entry[2] = entry[0] + 1, entry[1] + novel, entry[2] or events[row]
                if entry[0] == 2 or (novel and entry[1] == 1):
                    for kind in range(1 + entry[2]):
                        self.twice[depth][kind] += entry[0] == 2
                        self.several[depth][kind] += novel and entry[1] == 1
                if known is None:
                    entry[3][outcome] = [reward, reward]
                elif novel or not known[0] <= reward <= known[1]:
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
