"""`RestlessSelector`: a head that makes no progress is replaced by another for some steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from owlrl._arguments import Arguments
from owlrl.errors import OwlTypeError, OwlValueError, raise_problems
from owlrl.protocols import HeadSelector, Stateful, missing_members
from owlrl.selection.base import BoolArray, FloatArray, IntArray, Rows, Selector

__all__ = ["RestlessSelector"]

_OWN = {
    "values": np.float64,
    "chosen": np.int64,
    "best": np.float64,
    "idle": np.int64,
    "away": np.int64,
    "guest": np.int64,
}


class RestlessSelector(Selector):
    """Another selector, with a detour whenever the head it chose makes no progress.

    On the way to a goal a head's value rises. After a wrong head has acted, the right head may be in unknown
    states and walk in circles, although all evidence favours it. So when the value of the chosen head has
    not reached a new high for ``patience`` steps, a head drawn from the others acts for ``detour`` steps;
    then the chosen one continues, from another place. Meant for goals that have to be reached: where rewards
    come all the time, a value that no longer rises may be the best there is.

    Args:
        selector: chooses the head and takes in the evidence.
        patience: steps without a new high before a detour.
        detour: steps that another head then acts for.
        seed: of the draws; None for torch's (`torch.initial_seed`).

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
        arguments = Arguments("RestlessSelector")
        # not isinstance, which would run the object's properties
        if isinstance(selector, type) or missing_members(selector, HeadSelector):
            arguments.instance(
                "selector", selector, Selector, "a head selector, such as ExpWeightsSelector()"
            )
            arguments.check(kind=OwlTypeError)
        self.patience = arguments.integer("patience", patience)
        self.detour = arguments.integer("detour", detour)
        self.seed = arguments.integer("seed", seed, least=0, none=True)
        arguments.check()
        super().__init__(seed=self.seed)
        self.selector = selector
        self._values: FloatArray = np.zeros((0, 0))
        self._chosen: IntArray = np.zeros(0, dtype=np.int64)  # by the other selector; -1 for none yet
        self._best: FloatArray = np.zeros(0)  # the chosen head's highest value
        self._idle: IntArray = np.zeros(0, dtype=np.int64)  # steps since then
        self._away: IntArray = np.zeros(0, dtype=np.int64)  # steps that a detour still has
        self._guest: IntArray = np.zeros(0, dtype=np.int64)  # who acts on it

    def reset(
        self, num_heads: int, *, num_episodes: int | None = None, mask: npt.ArrayLike | None = None
    ) -> None:
        """Begin from the start, as the other selector does; with ``mask`` (E,) the marked episodes only."""
        super().reset(num_heads, num_episodes=num_episodes, mask=mask)
        marked = None if mask is None else np.asarray(mask)
        self.selector.reset(num_heads, num_episodes=num_episodes, mask=marked)

    def learn(self, scores: FloatArray, losses: FloatArray, arm: Any) -> FloatArray:
        """The other selector learns; this one has no scores."""
        return scores

    def observe_values(self, values: npt.ArrayLike) -> None:
        """Update with the greedy value of each head at the current observation: (n,) or (E, n)."""
        super().observe_values(values)
        if self.selector.needs_values:
            self.selector.observe_values(np.asarray(values))

    def select(self) -> int | IntArray:
        """The head to act with now: the other selector's, or the one of a detour."""
        self._require_values()
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
            self._chosen[stuck] = -1  # it begins again afterwards
        away = self._away > 0
        self._away[away] -= 1
        return self._shaped(np.where(away, self._guest, chosen))

    def state_dict(self) -> dict[str, Any]:
        """Where each episode is on its way, the generator, and the state of the other selector."""
        if not isinstance(self.selector, Stateful):
            raise OwlTypeError(
                f"RestlessSelector.state_dict: {type(self.selector).__name__} has no state_dict and "
                "load_state_dict; expected a selector that can be saved, such as one made from Selector"
            )
        own = {name: getattr(self, f"_{name}").copy() for name in _OWN}
        return {**super().state_dict(), **own, "selector": self.selector.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned, the other selector too."""
        where = "RestlessSelector.load_state_dict"
        raise_problems(where, [f"{key} is missing" for key in self.state_dict() if key not in state_dict])
        heads, episodes = state_dict["num_heads"], state_dict["num_episodes"]
        count = (episodes or 1) if heads else 0
        own = {name: np.array(state_dict[name], dtype=kind) for name, kind in _OWN.items()}
        sizes = {name: count * (heads if name == "values" else 1) for name in _OWN}
        if odd := [name for name, array in own.items() if array.size != sizes[name]]:
            raise OwlValueError(
                f"{where}: {', '.join(odd)} do not fit {count} episodes and {heads} heads; pass what "
                "state_dict() returned"
            )
        own["values"] = own["values"].reshape(count, heads)
        before = super().state_dict()
        super().load_state_dict(state_dict)
        try:
            self.selector.load_state_dict(state_dict["selector"])  # type: ignore[attr-defined]
        except BaseException:
            super().load_state_dict(before)
            raise
        for name, array in own.items():
            setattr(self, f"_{name}", array)

    def __repr__(self) -> str:
        return f"RestlessSelector({self.selector!r}, patience={self.patience}, detour={self.detour})"

    def _begin(self, rows: BoolArray, *, fresh: bool) -> None:
        super()._begin(rows, fresh=fresh)
        if fresh:
            count = len(rows)
            self._values = np.zeros((count, self._num_heads))
            self._chosen, self._guest, self._idle, self._away = (
                np.zeros(count, dtype=np.int64) for _ in range(4)
            )
            self._best = np.zeros(count)
        self._chosen[rows] = -1
        self._away[rows] = 0

    def _look(self, values: FloatArray) -> None:
        self._values = values

    def _learn(self, losses: FloatArray, rows: Rows) -> None:
        every = np.zeros((self._num_episodes or 1, self._num_heads))
        every[rows] = losses
        mask = None if isinstance(rows, slice) else rows
        self.selector.update(every[0] if self._num_episodes is None else every, mask=mask)

    def _probabilities(self) -> FloatArray:
        return np.atleast_2d(self.selector.probabilities)
