"""Reward-balanced replay: a share of every batch from rows that lead to a reward."""

from __future__ import annotations

from typing import Any

import numpy as np

from owlrl.errors import int_problem, raise_problems
from owlrl.replay._spec import number
from owlrl.replay.ring import FrameRing
from owlrl.replay.samplers import RowDraw

__all__ = ["RewardBalancedSampler"]


class RewardBalancedSampler:
    """A fixed share of every batch from rows that lead to a reward; the rest uniform.

    With sparse rewards a uniform batch rarely holds one. A rewarded row is drawn uniformly
    from those with a reward, good or bad; the draw then steps back by 0 to ``reach`` - 1 steps
    (not beyond the episode's start), so that the way to the reward has its turn, too.

    The batch is biased on purpose: there are no weights to undo it, since undoing it would
    make the rewards rare again. The values learned for deterministic tasks do not suffer;
    where outcomes are random, rewarded outcomes are overrated. The rewarded rows come first
    in the batch. Without any rewarded row all rows are uniform.

    Args:
        fraction: share of the batch; where ``fraction * batch_size`` is no whole number, it
            is rounded up or down at random, so that it holds on average.
        above: rewards up to this size are not counted: an exploration bonus is on every row.
        reach: how far before a reward rows are drawn; None for the replay's ``n_step``, the returns that
            contain it. A longer reach teaches the way after a single success.

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
        problems: list[str] = []
        number("fraction", fraction, problems, most=1.0)
        number("above", above, problems)
        if reach is not None and (problem := int_problem("reach", reach)):
            problems.append(problem)
        raise_problems("RewardBalancedSampler", problems)
        self.fraction = fraction
        self.above = above
        self.reach = reach

    def bind(self, ring: FrameRing) -> RowDraw:
        """Start drawing from ``ring``."""
        return _RewardBalancedDraw(self, ring)

    def __repr__(self) -> str:
        above = f", above={self.above}" if self.above else ""
        reach = f", reach={self.reach}" if self.reach else ""
        return f"RewardBalancedSampler({self.fraction}{above}{reach})"


class _RewardBalancedDraw:
    """Keeps the rewarded rows as a dense list, with each row's place in it."""

    def __init__(self, settings: RewardBalancedSampler, ring: FrameRing) -> None:
        self._settings = settings
        self._ring = ring
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

    def draw(self, count: int, rng: np.random.Generator, n_step: int) -> tuple[np.ndarray, np.ndarray | None]:
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

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Rewards alone decide."""

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
