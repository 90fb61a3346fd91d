"""`Contradiction`: the same state and action, but an outcome that the task has never shown."""

from __future__ import annotations

from typing import Any

import numpy as np

from owlrl.changes._exact import ExactIndex
from owlrl.changes._near import NearIndex
from owlrl.changes.base import BoolArray, Detector, FloatArray, Judgement
from owlrl.changes.steps import Steps

__all__ = ["Contradiction"]

TRIAL = 128  # steps after which it is known whether observations repeat exactly
MATURE = 1024  # steps after which neighbours are near enough to trust what they say
YOUNG = 4096  # steps in which places that look alike may still be met for the first time
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
        # the most common reward by majority vote (Boyer and Moore): right whenever it is more than half
        self._common, self._votes = 0.0, 0

    @property
    def mature(self) -> bool:
        return isinstance(self.index, ExactIndex) or self.seen >= MATURE

    @property
    def doubt(self) -> float:
        if isinstance(self.index, ExactIndex):
            return 3.0 if self.seen < YOUNG else 1.0
        return 1.5  # steps of one swing through places that are hardly known contradict together

    def judge(self, steps: Steps, *, stride: int = 1) -> Judgement:
        if self.index is None:
            return Judgement.silent(len(steps), 2)
        event = self._events(steps)
        if isinstance(self.index, ExactIndex):
            made = self.index.judge(steps, event)
        else:
            made = self.index.judge(steps, event, stride=stride)
        if self.events > RARE * self.seen:
            made.evidence[1] = 0.0
        return made

    def learn(self, steps: Steps, judgement: Judgement) -> None:
        self._vote(steps.reward)
        event = self._events(steps)
        self.seen, self.events = self.seen + len(steps), self.events + int(event.sum())
        if self.index is None:
            self._trial.append(steps)
            if self.seen >= TRIAL:
                self._begin(Steps.joined(self._trial))
        elif isinstance(self.index, ExactIndex):
            self.index.learn(steps, event)
        else:
            self.index.learn(steps, event, judgement)

    def _begin(self, steps: Steps) -> None:
        """Choose the index by the first steps."""
        again = 1.0 - len(np.unique(steps.keys[0])) / len(steps)
        self._trial = []
        if again > AGAIN:
            self.index = ExactIndex(changed=self.changed)
            self.index.learn(steps, self._events(steps))
        else:
            self.index = NearIndex(changed=self.changed)
            self.index.learn(steps, self._events(steps), Judgement.silent(len(steps)))

    def _vote(self, rewards: FloatArray | Any) -> None:
        for reward in rewards.tolist():
            if reward == self._common:
                self._votes += 1
            elif self._votes:
                self._votes -= 1
            else:
                self._common, self._votes = reward, 1

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
            self.index = kinds[state_dict["kind"]](changed=self.changed)
            self.index.load_state_dict(state_dict["index"])
        else:
            self._trial = [Steps.from_arrays(arrays) for arrays in state_dict["trial"]]
