"""Which rows a replay draws: uniformly, by priority, or with a share that leads to a reward.

A sampler has settings that may be changed at any time (``replay.sampler.beta = 1.0``). What it remembers of
the rows of one ring is in the `RowDraw` that `Sampler.bind` makes.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from owlrl._arguments import Arguments
from owlrl.replay.ring import FrameRing

__all__ = ["PrioritizedSampler", "RewardBalancedSampler", "RowDraw", "Sampler", "UniformSampler"]


Drawn = tuple[np.ndarray, np.ndarray | None]  # rows (B,) int64; importance weights (B,) float32, or None


class RowDraw:
    """A sampler bound to one ring: draws live rows, and is notified of every change to them.

    This base draws uniformly and remembers nothing.

    >>> import numpy as np
    >>> from owlrl.replay import RowDraw, TaskScopedReplay
    >>> class Newest:  # a sampler of the row that came last
    ...     def bind(self, ring):
    ...         draw = RowDraw(ring)
    ...         draw.changed = lambda added, dropped: setattr(draw, "last", added[-1])
    ...         draw.draw = lambda count, rng, n_step: (np.full(count, draw.last), None)
    ...         return draw
    >>> replay = TaskScopedReplay(9, observation_shape=(), observation_dtype=np.int64, sampler=Newest())
    >>> for step in range(5):
    ...     replay.add(step, 0, 0.0, step + 1, False, False)
    >>> replay.sample(2).observation
    tensor([4, 4])
    """

    def __init__(self, ring: FrameRing) -> None:
        self._ring = ring

    def changed(self, added: np.ndarray, dropped: np.ndarray) -> None:
        """Rows were overwritten (``dropped``), then rows became live (``added``, may repeat them)."""

    def cleared(self) -> None:
        """No row is live any more."""

    def draw(self, count: int, rng: np.random.Generator, n_step: int) -> Drawn:
        """``count`` live rows, which will be looked up as ``n_step`` returns, and their weights."""
        return self._ring.draw(count, rng), None

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Live ``rows`` have new ``priorities``, finite and >= 0."""

    def state_dict(self) -> dict[str, Any]:
        """What cannot be read off the ring."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; the ring's rows are there already. ValueError if they do not fit."""


@runtime_checkable
class Sampler(Protocol):
    """Makes a `RowDraw` for a ring; one sampler may serve several rings.

    >>> from owlrl.replay import Sampler, UniformSampler
    >>> isinstance(UniformSampler(), Sampler)
    True
    """

    def bind(self, ring: FrameRing) -> RowDraw:
        """Start drawing from ``ring``, which is empty."""
        ...


class UniformSampler:
    """Every row is equally likely.

    >>> from owlrl.replay import UniformSampler
    >>> UniformSampler()
    UniformSampler()
    """

    def bind(self, ring: FrameRing) -> RowDraw:
        """Start drawing from ``ring``."""
        return RowDraw(ring)

    def __repr__(self) -> str:
        return "UniformSampler()"


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
        arguments = Arguments("PrioritizedSampler")
        self.alpha = arguments.number("alpha", alpha, least=0.0, most=1.0)
        self.beta = arguments.number("beta", beta, least=0.0, most=1.0)
        self.epsilon = arguments.number("epsilon", epsilon, least=0.0)
        arguments.check()

    def bind(self, ring: FrameRing) -> RowDraw:
        """Start drawing from ``ring``."""
        return _PrioritizedDraw(self, ring)

    def __repr__(self) -> str:
        return f"PrioritizedSampler(alpha={self.alpha}, beta={self.beta}, epsilon={self.epsilon})"


class _PrioritizedDraw(RowDraw):
    def __init__(self, settings: PrioritizedSampler, ring: FrameRing) -> None:
        super().__init__(ring)
        self._settings = settings
        self._tree = SumTree(ring.num_rows)
        self._largest = 1.0

    def changed(self, added: np.ndarray, dropped: np.ndarray) -> None:
        if len(dropped):
            self._tree.set(dropped, 0.0)
        self._tree.set(added, self._weight(self._largest))

    def cleared(self) -> None:
        self._tree.clear()
        self._largest = 1.0

    def draw(self, count: int, rng: np.random.Generator, n_step: int) -> Drawn:
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
        weight: np.ndarray = np.power(bounded, self._settings.alpha)
        return weight

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


WIDTH = 32  # children per node: wide nodes mean few levels, so few numpy calls for a whole batch
TOP = 1024  # the top level may be this long; it is searched as one sorted array


class SumTree:
    """Non-negative weights with their sums; every sum is recomputed from its children, so none drifts.

    ``levels[0]`` holds the leaves as (nodes, WIDTH); each entry of ``levels[j + 1]`` is the
    sum of one node of ``levels[j]``; the last level is one long node.

    >>> import numpy as np
    >>> from owlrl.replay.samplers import SumTree
    >>> tree = SumTree(5000)
    >>> tree.set(np.array([3, 4000]), np.array([1.0, 2.0]))
    >>> tree.total
    3.0
    >>> tree.find(np.array([0.5, 1.0, 2.9]))
    array([   3, 4000, 4000])
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.levels: list[np.ndarray] = []
        while size > TOP:
            size = -(-size // WIDTH)
            self.levels.append(np.zeros((size, WIDTH)))
        self.levels.append(np.zeros((1, size)))

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self.levels[-1].sum())

    def get(self, rows: np.ndarray) -> np.ndarray:
        """Weights of ``rows``."""
        return self.levels[0].take(rows)

    def set(self, rows: np.ndarray, weights: np.ndarray | float) -> None:
        """Give ``rows`` new weights and bring every sum above them up to date."""
        self.levels[0].reshape(-1)[rows] = weights
        for below, above in zip(self.levels[:-1], self.levels[1:], strict=True):
            rows = rows // WIDTH  # a node met twice is computed twice, to the same value
            above.reshape(-1)[rows] = below.take(rows, axis=0).sum(axis=1)

    def clear(self) -> None:
        """Set every weight to zero."""
        for level in self.levels:
            level[:] = 0.0

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaf at which the running sum of weights first exceeds ``mass`` (B,), 0 <= mass < total.

        Rounding may leave slightly more mass than a node has; it is cut, so that no step leads
        past the node's last weight: a leaf without weight is never found.
        """
        sums = self.levels[-1][0].cumsum()
        mass = np.minimum(mass, np.nextafter(sums[-1], 0.0))
        node: np.ndarray = sums.searchsorted(mass, "right")
        mass = mass - np.where(node > 0, sums[node - 1], 0.0)
        every = np.arange(len(mass))
        for level in self.levels[-2::-1]:
            sums = np.add.accumulate(level.take(node, axis=0), axis=1)  # (B, WIDTH)
            mass = np.minimum(mass, np.nextafter(sums[:, -1], 0.0))
            child = (sums <= mass[:, None]).argmin(axis=1)  # the first false
            mass = mass - np.where(child > 0, sums[every, child - 1], 0.0)
            node = node * WIDTH + child
        return node


class RewardBalancedSampler:
    """A fixed share of every batch from rows that lead to a reward; the rest uniform.

    With sparse rewards a uniform batch rarely holds one. A rewarded row is drawn uniformly from those with a
    reward, good or bad; the draw then steps back by 0 to ``reach`` - 1 steps within the episode, so that
    the way to the reward is drawn, too. The rewarded rows come first in the batch.

    The batch is biased on purpose, without weights, which would make the rewards rare again. Values
    learned for deterministic tasks do not suffer; where outcomes are random, rewarded outcomes are overrated.

    Args:
        fraction: share of the batch, on average where ``fraction * batch_size`` is not a whole number.
        above: rewards up to this size are not counted: an exploration bonus is on every row.
        reach: how far before a reward rows are drawn; None for the replay's ``n_step``. A longer reach
            teaches the way after a single success.

    >>> import numpy as np
    >>> from owlrl.replay import RewardBalancedSampler, TaskScopedReplay
    >>> replay = TaskScopedReplay(100, observation_shape=(), observation_dtype=np.int64, seed=0,
    ...                           sampler=RewardBalancedSampler(0.25))
    >>> for step in range(100):
    ...     replay.add(step, 0, float(step == 7), step + 1, False, False)
    >>> (replay.sample(64).reward == 1.0).sum() >= 16
    tensor(True)
    """

    def __init__(self, fraction: float = 1 / 8, *, above: float = 0.0, reach: int | None = None) -> None:
        arguments = Arguments("RewardBalancedSampler")
        self.fraction = arguments.number("fraction", fraction, least=0.0, most=1.0)
        self.above = arguments.number("above", above, least=0.0)
        self.reach = arguments.integer("reach", reach, none=True)
        arguments.check()

    def bind(self, ring: FrameRing) -> RowDraw:
        """Start drawing from ``ring``."""
        return _RewardBalancedDraw(self, ring)

    def __repr__(self) -> str:
        above = f", above={self.above}" if self.above else ""
        reach = f", reach={self.reach}" if self.reach else ""
        return f"RewardBalancedSampler({self.fraction}{above}{reach})"


class _RewardBalancedDraw(RowDraw):
    """Keeps the rewarded rows as a dense list, with each row's place in it."""

    def __init__(self, settings: RewardBalancedSampler, ring: FrameRing) -> None:
        super().__init__(ring)
        self._settings = settings
        self._rows = np.zeros(16, np.int64)
        self._size = 0
        self._place = np.full(ring.num_rows, -1, np.int32)

    def changed(self, added: np.ndarray, dropped: np.ndarray) -> None:
        self._forget(dropped[self._place[dropped] >= 0])
        self._remember(added[self._rewarded(added)])

    def _rewarded(self, rows: np.ndarray) -> np.ndarray:
        found: np.ndarray = np.abs(self._ring.steps["reward"][rows]) > self._settings.above
        return found

    def _remember(self, rows: np.ndarray) -> None:
        size = self._size + len(rows)
        if size > len(self._rows):
            self._rows = np.concatenate((self._rows[: self._size], np.zeros(2 * size, np.int64)))
        self._rows[self._size : size] = rows
        self._place[rows] = np.arange(self._size, size)
        self._size = size

    def _forget(self, rows: np.ndarray) -> None:
        size = self._size - len(rows)
        holes = self._place[rows]
        self._place[rows] = -1
        # The list's last entries fill the holes, so that it stays dense.
        tail = self._rows[size : self._size]
        tail = tail[self._place[tail] >= 0]
        holes = holes[holes < size]
        self._rows[holes] = tail
        self._place[tail] = holes
        self._size = size

    def cleared(self) -> None:
        self._place[self._rows[: self._size]] = -1
        self._size = 0

    def draw(self, count: int, rng: np.random.Generator, n_step: int) -> Drawn:
        rewarded = int(self._settings.fraction * count + rng.random()) if self._size else 0
        rows = self._ring.draw(count, rng)
        if rewarded:
            chosen = self._rows[(rng.random(rewarded) * self._size).astype(np.int64)]
            rows[:rewarded] = self._step_back(chosen, rng, self._settings.reach or n_step)
        return rows, None

    def _step_back(self, rows: np.ndarray, rng: np.random.Generator, reach: int) -> np.ndarray:
        if reach == 1:
            return rows
        wish = (rng.random(len(rows)) * reach).astype(np.int64)
        moving = np.ones(len(rows), np.bool_)
        for step in range(1, reach):
            before = self._ring.previous(rows)
            moving &= (wish >= step) & self._ring.live[before]
            rows = np.where(moving, before, rows)
        return rows

    def state_dict(self) -> dict[str, Any]:
        # The order of the list decides which row a random number picks.
        return {"rows": self._rows[: self._size].copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows = np.asarray(state["rows"], np.int64)
        live = self._ring.live_rows()
        expected = live[self._rewarded(live)]
        if not np.array_equal(np.sort(rows), expected):
            raise ValueError(f"rows lists {len(rows)} rows; expected the {len(expected)} live rewarded rows")
        self.cleared()
        self._remember(rows)
