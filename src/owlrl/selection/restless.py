"""`RestlessSelector`: a head that gets nowhere gives way to another for some steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from owlrl.errors import OwlStateError, OwlTypeError, raise_problems
from owlrl.protocols import HeadSelector
from owlrl.selection._base import BoolArray, EpisodeSelector, IntArray, Rows, int_problem
from owlrl.selection.updates import FloatArray

__all__ = ["RestlessSelector"]


class RestlessSelector(EpisodeSelector):
    """Another selector, with a detour whenever the head it chose makes no progress.

    On the way to a goal a head's value rises. One that has been led off its way by a wrong head may go in
    circles instead, though it is the right one by all evidence. So when the value of the chosen head has
    not reached a new high for ``patience`` steps, a head drawn from the others acts for ``detour`` steps;
    then the chosen one goes on, from another place. Meant for goals that are to be reached: where rewards
    come all the time, a value that no longer rises may be the best there is.

    Args:
        selector: chooses the head and takes in the evidence.
        patience: steps without a new high before a detour.
        detour: steps that another head then acts for.
        seed: of the draws.

    >>> from owlrl.selection import OracleSelector, RestlessSelector
    >>> selector = RestlessSelector(OracleSelector(0), patience=2, detour=1, seed=0)
    >>> selector.reset(2)
    >>> for value in (0.5, 0.6, 0.5, 0.6, 0.5):
    ...     selector.observe_values([value, 0.0])
    ...     print(selector.select())
    0
    0
    0
    1
    0
    """

    needs_values = True

    def __init__(
        self, selector: HeadSelector, *, patience: int = 8, detour: int = 4, seed: int | None = None
    ) -> None:
        if not isinstance(selector, HeadSelector):
            raise OwlTypeError(
                f"RestlessSelector: selector is a {type(selector).__name__}; expected a head selector, "
                "such as ExpWeightsSelector()"
            )
        problems = int_problem("patience", patience, least=1) + int_problem("detour", detour, least=1)
        if seed is not None:
            problems += int_problem("seed", seed, least=0)
        raise_problems("RestlessSelector", problems)
        super().__init__()
        self.selector = selector
        self.patience = patience
        self.detour = detour
        self._generator = np.random.default_rng(seed)
        self._values: FloatArray = np.zeros((0, 0))
        self._chosen: IntArray = np.zeros(0, dtype=np.int64)  # by the other selector; -1 for none yet
        self._best: FloatArray = np.zeros(0)  # the chosen head's highest value
        self._idle: IntArray = np.zeros(0, dtype=np.int64)  # steps since then
        self._away: IntArray = np.zeros(0, dtype=np.int64)  # steps that a detour still has
        self._guest: IntArray = np.zeros(0, dtype=np.int64)  # who acts on it

    def reset(
        self, num_heads: int, *, num_episodes: int | None = None, mask: npt.ArrayLike | None = None
    ) -> None:
        """Begin anew, as the other selector does; with ``mask`` (E,) the marked episodes only."""
        super().reset(num_heads, num_episodes=num_episodes, mask=mask)
        marked = None if mask is None else np.asarray(mask)
        self.selector.reset(num_heads, num_episodes=num_episodes, mask=marked)

    def observe_values(self, values: npt.ArrayLike) -> None:
        """Take in the greedy value of each head at the current observation: (n,) or (E, n)."""
        self._require_reset("observe_values")
        self._values = self._checked("observe_values", "values", values, slice(None))
        if self.selector.needs_values:
            self.selector.observe_values(np.asarray(values))

    def select(self) -> int | IntArray:
        """The head to act with now: the other selector's, or a guest's."""
        self._require_reset("select")
        if not self._values.size:
            raise OwlStateError(
                "RestlessSelector.select: no values were seen since reset; call observe_values(values) first"
            )
        chosen = np.atleast_1d(np.asarray(self.selector.select()))
        here = self._away == 0
        value = self._values[np.arange(len(chosen)), chosen]
        higher = (value > self._best) | (chosen != self._chosen)
        self._best = np.where(here & higher, value, self._best)
        self._idle = np.where(higher, 0, self._idle + 1) * here
        self._chosen = np.where(here, chosen, self._chosen)
        stuck = here & (self._idle >= self.patience) & (self._num_heads > 1)
        if stuck.any():
            others = self._generator.integers(1, self._num_heads, size=int(stuck.sum()))
            self._guest[stuck] = (chosen[stuck] + others) % self._num_heads
            self._away[stuck] = self.detour
            self._chosen[stuck] = -1  # it begins anew afterwards
        away = self._away > 0
        self._away[away] -= 1
        return self._arms(np.where(away, self._guest, chosen))

    def __repr__(self) -> str:
        return f"RestlessSelector({self.selector!r}, patience={self.patience}, detour={self.detour})"

    def _start(self, rows: BoolArray, *, fresh: bool) -> None:
        if fresh:
            count = len(rows)
            self._values = np.zeros((0, 0))
            self._chosen, self._guest, self._idle, self._away = (
                np.zeros(count, dtype=np.int64) for _ in range(4)
            )
            self._best = np.zeros(count)
        self._chosen[rows] = -1
        self._away[rows] = 0

    def _learn(self, losses: FloatArray, rows: Rows) -> None:
        every = np.zeros((self._num_episodes or 1, self._num_heads))
        every[rows] = losses
        mask = None if isinstance(rows, slice) else rows
        self.selector.update(every[0] if self._num_episodes is None else every, mask=mask)

    def _probabilities(self) -> FloatArray:
        return np.atleast_2d(self.selector.probabilities)
