"""Prioritised replay: rows in proportion to how wrong they were."""

from __future__ import annotations

from typing import Any

import numpy as np

from owlrl.errors import raise_problems
from owlrl.replay._spec import number
from owlrl.replay.ring import FrameRing
from owlrl.replay.samplers import RowDraw
from owlrl.replay.sumtree import SumTree

__all__ = ["PrioritizedSampler"]


class PrioritizedSampler:
    """Rows in proportion to ``(priority + epsilon) ** alpha`` (Schaul et al. 2016, proportional).

    New rows get the largest priority seen so far. The weights ``(N · P(row)) ** -beta`` are
    divided by the largest of the batch, so they only ever scale a loss down.

    Args:
        alpha: 0 draws uniformly, 1 in full proportion. Fixed once rows are stored.
        beta: how much of the bias the weights correct, 1 is all; set ``sampler.beta`` to anneal it.
        epsilon: keeps rows without error in the draw.

    >>> import numpy as np
    >>> from owlrl.replay import PrioritizedSampler, TaskScopedReplay
    >>> replay = TaskScopedReplay(4, observation_shape=(), observation_dtype=np.int64, seed=0,
    ...                           sampler=PrioritizedSampler(alpha=1.0, epsilon=0.0))
    >>> for step in range(3):
    ...     replay.add(step, 0, 0.0, step + 1, False, False)
    >>> replay.update_priorities(np.array([0, 1, 2]), np.array([0.0, 1.0, 3.0]))
    >>> drawn = [replay.sample(3).observation.tolist() for _ in range(1000)]
    >>> np.bincount(np.ravel(drawn)) / 3000
    array([0.        , 0.25133333, 0.74866667])
    """

    def __init__(self, alpha: float = 0.6, *, beta: float = 0.4, epsilon: float = 1e-6) -> None:
        problems: list[str] = []
        number("alpha", alpha, problems, most=1.0)
        number("beta", beta, problems, most=1.0)
        number("epsilon", epsilon, problems)
        raise_problems("PrioritizedSampler", problems)
        self.alpha = alpha
        self.beta = beta
        self.epsilon = epsilon

    def bind(self, ring: FrameRing) -> RowDraw:
        """Start drawing from ``ring``."""
        return _PrioritizedDraw(self, ring)

    def __repr__(self) -> str:
        return f"PrioritizedSampler(alpha={self.alpha}, beta={self.beta}, epsilon={self.epsilon})"


class _PrioritizedDraw:
    def __init__(self, settings: PrioritizedSampler, ring: FrameRing) -> None:
        self._settings = settings
        self._ring = ring
        self._tree = SumTree(ring.num_rows)
        self._largest = 1.0

    def changed(self, added: np.ndarray, dropped: np.ndarray) -> None:
        if len(dropped):
            self._tree.set(dropped, 0.0)
        self._tree.set(added, self._weight(self._largest))

    def cleared(self) -> None:
        self._tree.clear()
        self._largest = 1.0

    def draw(self, count: int, rng: np.random.Generator, n_step: int) -> tuple[np.ndarray, np.ndarray | None]:
        total = self._tree.total
        if total == 0.0:  # every priority and epsilon are zero: nothing is preferred
            return self._ring.draw(count, rng), np.ones(count, np.float32)
        rows = self._tree.find(rng.random(count) * total)
        weight = self._tree.get(rows)
        return rows, ((weight.min() / weight) ** self._settings.beta).astype(np.float32)

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        self._tree.set(rows, self._weight(priorities))
        self._largest = max(self._largest, float(priorities.max(initial=0.0)))

    def _weight(self, priority: np.ndarray | float) -> np.ndarray:
        # the sum over all rows has to stay finite
        bounded = np.minimum(np.add(priority, self._settings.epsilon), 1e200)
        return np.power(bounded, self._settings.alpha)

    def state_dict(self) -> dict[str, Any]:
        return {"largest": self._largest, "weight": self._tree.get(self._ring.live_rows())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows, weight = self._ring.live_rows(), np.asarray(state["weight"], np.float64)
        if weight.shape != rows.shape or not (np.isfinite(weight).all() and (weight >= 0).all()):
            raise ValueError(f"weight has shape {weight.shape}; expected {rows.shape}, finite and >= 0")
        largest = float(state["largest"])
        if not 0 <= largest < np.inf:
            raise ValueError(f"largest is {largest}; expected a finite number >= 0")
        self._tree.set(rows, weight)
        self._largest = largest
