"""The selectors that the paper compares with: told the head, a random one, the largest value."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from owlrl.errors import OwlStateError, raise_problems
from owlrl.selection._base import BoolArray, EpisodeSelector, IntArray, Rows, bool_problem, int_problem
from owlrl.selection._weighted import WeightedSelector
from owlrl.selection.updates import FloatArray

__all__ = ["MaxQSelector", "OracleSelector", "UniformSelector"]


class OracleSelector(EpisodeSelector):
    """Always the head it was told: the upper bound of what selection can reach.

    Args:
        head: the arm, or an array (E,) with the arm of each of E episodes. It counts among the
            heads that can be chosen from, in the order the policy offers them.

    >>> import numpy as np
    >>> from owlrl.selection import OracleSelector
    >>> selector = OracleSelector(1)
    >>> selector.reset(3)
    >>> selector.select(), selector.probabilities
    (1, array([0., 1., 0.]))
    """

    def __init__(self, head: int | IntArray) -> None:
        heads = np.asarray(head)
        if heads.dtype.kind not in "iu" or heads.ndim > 1 or heads.size == 0 or (heads < 0).any():
            raise_problems(
                "OracleSelector", [f"head is {head!r}; expected an int >= 0, or an array (E,) of them"]
            )
        super().__init__()
        self.head = head
        self._heads = heads.astype(np.int64)

    def select(self) -> int | IntArray:
        """The head it was told: an int, or (E,)."""
        self._require_reset("select")
        return self._arms(self._each())

    def __repr__(self) -> str:
        return f"OracleSelector({self.head!r})"

    def _each(self) -> IntArray:
        return np.broadcast_to(self._heads, (self._num_episodes or 1,))

    def _reset_problems(self, num_heads: int, num_episodes: int | None) -> list[str]:
        problems = []
        if self._heads.ndim and self._heads.shape != (num_episodes,):
            problems.append(
                f"num_episodes is {num_episodes}; expected {len(self._heads)}, one per given head"
            )
        if (self._heads >= num_heads).any():
            problems.append(f"head is {self.head}; expected 0 to {num_heads - 1} ({num_heads} heads)")
        return problems

    def _start(self, rows: BoolArray, *, fresh: bool) -> None:
        """There is nothing to forget."""

    def _learn(self, losses: FloatArray, rows: Rows) -> None:
        """There is nothing to learn."""

    def _probabilities(self) -> FloatArray:
        return _one_hot(self._each(), self._num_heads)


class UniformSelector(WeightedSelector):
    """A random head at every step, whatever the losses say: the lower bound.

    Args:
        hold: a drawn head is kept for this many calls of ``select``.
        seed: of the selector's own generator; ``reset`` does not seed again.

    >>> from owlrl.selection import UniformSelector
    >>> selector = UniformSelector(seed=0)
    >>> selector.reset(4)
    >>> selector.probabilities
    array([0.25, 0.25, 0.25, 0.25])
    >>> selector.select() in range(4)
    True
    """

    def __init__(self, *, hold: int = 1, seed: int | None = None) -> None:
        problems = int_problem("hold", hold, least=1)
        if seed is not None:
            problems += int_problem("seed", seed, least=0)
        raise_problems("UniformSelector", problems)
        super().__init__(hold=hold, seed=seed)
        self.hold = hold
        self.seed = seed

    def __repr__(self) -> str:
        return f"UniformSelector(hold={self.hold})"

    def _learn(self, losses: FloatArray, rows: Rows) -> None:
        """There is nothing to learn."""


class MaxQSelector(EpisodeSelector):
    """The head that promises most: the largest ``max_a Q(s, a)`` at the current observation.

    The values come by `observe_values`, which the policy calls before every ``select`` because
    ``needs_values`` is true. Losses are checked and not used.

    Args:
        every_step: choose at every step; otherwise once, at the first step of an episode.

    >>> from owlrl.selection import MaxQSelector
    >>> selector = MaxQSelector()
    >>> selector.reset(2)
    >>> selector.observe_values([0.3, 0.7])
    >>> selector.select()
    1
    """

    needs_values = True

    def __init__(self, *, every_step: bool = False) -> None:
        raise_problems("MaxQSelector", bool_problem("every_step", every_step))
        super().__init__()
        self.every_step = every_step
        self._best: IntArray = np.empty(0, dtype=np.int64)  # (E,), -1 where no values were seen yet
        self._chosen: BoolArray = np.empty(0, dtype=np.bool_)  # (E,), whether the choice is final

    def observe_values(self, values: npt.ArrayLike) -> None:
        """Take in ``max_a Q(s, a)`` of every head at the current observation: (n,) or (E, n)."""
        self._require_reset("observe_values")
        best = self._checked("observe_values", "values", values, slice(None)).argmax(axis=-1)
        self._best = np.where(self._chosen, self._best, best)

    def select(self) -> int | IntArray:
        """The head with the largest value seen; the first of equals."""
        self._require_reset("select")
        if (self._best < 0).any():
            raise OwlStateError(
                "MaxQSelector.select: no values were seen since reset; call observe_values(values) first"
            )
        self._chosen[:] = not self.every_step
        return self._arms(self._best)

    def __repr__(self) -> str:
        return f"MaxQSelector(every_step={self.every_step})"

    def _start(self, rows: BoolArray, *, fresh: bool) -> None:
        if fresh:
            self._best = np.empty(len(rows), dtype=np.int64)
            self._chosen = np.empty(len(rows), dtype=np.bool_)
        self._best[rows] = -1
        self._chosen[rows] = False

    def _learn(self, losses: FloatArray, rows: Rows) -> None:
        """There is nothing to learn."""

    def _probabilities(self) -> FloatArray:
        known = _one_hot(self._best, self._num_heads)  # a row of zeros where it is -1
        known[self._best < 0] = 1.0 / self._num_heads
        return known


def _one_hot(arms: IntArray, num_heads: int) -> FloatArray:
    marked: BoolArray = arms[:, None] == np.arange(num_heads)
    return marked.astype(np.float64)
