"""`Familiarity`: does any known task explain the current episode?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from owlrl.changes.base import Detector
from owlrl.changes.steps import History
from owlrl.types import Transitions

__all__ = ["Familiarity"]


class Familiarity:
    """Sums up, for each task and environment, the evidence against the task.

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
        self.reset(1)

    def reset(self, num_envs: int, mask: np.ndarray | None = None) -> None:
        """Forget what was seen; with ``mask`` (E,) only in the environments marked true."""
        if mask is None:
            self._sums = np.zeros((len(self.tasks), num_envs))
            self._history = History()
        else:
            self._sums[:, mask] = 0.0

    def observe(self, rows: Transitions, mask: np.ndarray | None = None) -> None:
        """Process a step of each environment; ``mask`` (E,) leaves out those without one."""
        env = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
        if not len(env):
            return
        steps = self._history.follow(rows[torch.from_numpy(env)])
        for sums, task in zip(self._sums, self.tasks, strict=True):
            sums[env] = np.maximum(0.0, sums[env] + self.detector.judge(task, steps).evidence[0])

    @property
    def unfamiliar(self) -> np.ndarray:
        """The probability that no task explains what was seen: (E,)."""
        made: np.ndarray = 1.0 - np.exp(-self._sums.min(axis=0))
        return made
