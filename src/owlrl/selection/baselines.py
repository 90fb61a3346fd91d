"""The selectors that the paper compares with: the head given, a random one, the largest value."""

from __future__ import annotations

from typing import Any

import numpy as np

from owlrl._arguments import Arguments
from owlrl.selection.base import BoolArray, FloatArray, IntArray, Selector

__all__ = ["MaxQSelector", "OracleSelector", "UniformSelector"]


class OracleSelector(Selector):
    """Always the given head: the upper bound for selection.

    Args:
        head: the arm, or an array (E,) with the arm of each of E episodes: an index into the
            heads that can be chosen from, in the policy's order.

    >>> import numpy as np
    >>> from owlrl.selection import OracleSelector
    >>> selector = OracleSelector(1)
    >>> selector.reset(3)
    >>> selector.select(), selector.probabilities
    (1, array([0., 1., 0.]))
    """

    batched = True

    def __init__(self, head: int | IntArray) -> None:
        heads, arguments = np.asarray(head), Arguments("OracleSelector")
        if heads.dtype.kind not in "iu" or heads.ndim > 1 or heads.size == 0 or (heads < 0).any():
            arguments.problem(f"head is {head!r}; expected an int >= 0, or an array (E,) of them")
        arguments.check()
        super().__init__(seed=0)
        self.head = head
        self._heads = heads.astype(np.int64)

    def learn(self, scores: FloatArray, losses: FloatArray, arm: Any) -> FloatArray:
        """There is nothing to learn."""
        return scores

    def chances(self, scores: FloatArray) -> FloatArray:
        """1 for the given head."""
        return _one_hot(np.broadcast_to(self._heads, len(scores)), scores.shape[1])

    def __repr__(self) -> str:
        return f"OracleSelector({self.head!r})"

    def _size_problems(self, num_heads: int, num_episodes: int | None) -> list[str]:
        problems = []
        if self._heads.ndim and self._heads.shape != (num_episodes,):
            problems.append(
                f"num_episodes is {num_episodes}; expected {len(self._heads)}, one per given head"
            )
        if (self._heads >= num_heads).any():
            problems.append(f"head is {self.head}; expected 0 to {num_heads - 1} ({num_heads} heads)")
        return problems


class UniformSelector(Selector):
    """A random head at every step, whatever the losses: the lower bound.

    Args:
        hold: a drawn head is kept for this many calls of ``select``.
        seed: of the draws, as for `Selector`.

    >>> from owlrl.selection import UniformSelector
    >>> selector = UniformSelector(seed=0)
    >>> selector.reset(4)
    >>> selector.probabilities
    array([0.25, 0.25, 0.25, 0.25])
    >>> selector.select() in range(4)
    True
    """

    batched = True

    def __init__(self, *, hold: int = 1, seed: int | None = None) -> None:
        super().__init__(hold=hold, seed=seed)
        self.hold = hold
        self.seed = seed

    def learn(self, scores: FloatArray, losses: FloatArray, arm: Any) -> FloatArray:
        """There is nothing to learn."""
        return scores

    def __repr__(self) -> str:
        return f"UniformSelector(hold={self.hold})"


class MaxQSelector(Selector):
    """The head with the largest ``max_a Q(s, a)`` at the current observation.

    The values come by `observe_values`, which the policy calls before every ``select`` because
    ``needs_values`` is true. Losses are checked and not used. Of equal heads the first is chosen.

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
    batched = True

    def __init__(self, *, every_step: bool = False) -> None:
        arguments = Arguments("MaxQSelector")
        self.every_step = arguments.boolean("every_step", every_step)
        arguments.check()
        super().__init__(seed=0)

    def learn(self, scores: FloatArray, losses: FloatArray, arm: Any) -> FloatArray:
        """There is nothing to learn."""
        return scores

    def look(self, scores: FloatArray, values: FloatArray, arm: Any) -> FloatArray:
        """The values, unless a head was chosen from earlier ones."""
        chosen: BoolArray = (arm >= 0) & (not self.every_step)
        return np.where(chosen[:, None], scores, values)

    def chances(self, scores: FloatArray) -> FloatArray:
        """1 for the head with the largest value."""
        return _one_hot(scores.argmax(axis=1), scores.shape[1])

    def __repr__(self) -> str:
        return f"MaxQSelector(every_step={self.every_step})"


def _one_hot(arms: IntArray, num_heads: int) -> FloatArray:
    marked: BoolArray = arms[:, None] == np.arange(num_heads)
    return marked.astype(np.float64)
