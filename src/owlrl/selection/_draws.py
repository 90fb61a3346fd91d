"""Random draws of arms, each held for some steps, from a generator of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from owlrl.errors import raise_problems
from owlrl.selection._base import BoolArray, IntArray
from owlrl.selection.updates import FloatArray, draw

__all__ = ["HeldDraws"]


# An arm is not held any longer once it is half as likely as when it was drawn: where a wrong
# choice ends the episode, keeping to it against the evidence is what loses.
DROP = 0.5


class HeldDraws:
    """The arm (E,) that each episode acts with, drawn anew every ``hold`` steps or when it is given up."""

    def __init__(self, *, hold: int, seed: int | None) -> None:
        self._hold = hold
        self._generator = np.random.default_rng(seed)
        self.arms: IntArray = np.empty(0, dtype=np.int64)  # -1 where nothing was drawn yet
        self._left: IntArray = np.empty(0, dtype=np.int64)  # steps that the arm still has
        self._chance: FloatArray = np.empty(0)  # how likely the arm was when it was drawn

    def start(self, rows: BoolArray, *, fresh: bool) -> None:
        """Forget the arms of the marked episodes."""
        if fresh:
            self.arms = np.empty(len(rows), dtype=np.int64)
            self._left = np.empty(len(rows), dtype=np.int64)
            self._chance = np.empty(len(rows))
        self.arms[rows] = -1
        self._left[rows] = 0
        self._chance[rows] = 0.0

    def step(self, probabilities: FloatArray) -> IntArray:
        """The arms (E,) of this step, drawn from ``probabilities`` (E, n) where none is held."""
        now = probabilities[np.arange(len(probabilities)), self.arms]
        due = (self._left == 0) | (now < DROP * self._chance)
        if due.any():
            drawn = draw(probabilities[due], self._generator.random(int(due.sum())))
            self.arms[due], self._left[due] = drawn, self._hold
            self._chance[due] = probabilities[due, drawn]
        self._left -= 1
        return self.arms

    def state_dict(self) -> dict[str, Any]:
        """Arms, steps left, chances when drawn and the generator's state."""
        return {
            "arms": self.arms.copy(),
            "left": self._left.copy(),
            "chance": self._chance.copy(),
            "generator": self._generator.bit_generator.state,
        }

    def prepared(self, where: str, state: Mapping[str, Any], *, episodes: int, arms: int) -> HeldDraws:
        """A new object in the given state; raises, naming every problem, and changes nothing."""
        raise_problems(where, [f"{key} is missing" for key in self.state_dict() if key not in state])
        made = HeldDraws(hold=self._hold, seed=0)
        problems = _ints_problem("arms", state["arms"], episodes, least=-1, below=arms)
        problems += _ints_problem("left", state["left"], episodes, least=0, below=self._hold)
        chance = np.asarray(state["chance"], dtype=np.float64)
        if chance.shape != (episodes,) or not ((chance >= 0) & (chance <= 1)).all():
            problems.append(f"chance is {state['chance']!r}; expected {episodes} numbers from 0 to 1")
        try:
            made._generator.bit_generator.state = state["generator"]
        except (KeyError, TypeError, ValueError) as error:
            problems.append(f"generator is not the state of a PCG64 generator ({error!r})")
        if not problems and any(np.less(state["arms"], 0) & np.greater(state["left"], 0)):
            problems.append("left is positive where no arm was drawn")
        raise_problems(where, problems)
        made.arms = np.array(state["arms"], dtype=np.int64)
        made._left = np.array(state["left"], dtype=np.int64)
        made._chance = chance.copy()
        return made


def _ints_problem(name: str, value: npt.ArrayLike, size: int, *, least: int, below: int) -> list[str]:
    array = np.asarray(value)
    fits = array.shape == (size,) and (size == 0 or array.dtype.kind in "iu")
    if fits and np.all((array >= least) & (array < below)):
        return []
    return [f"{name} is {value!r}; expected {size} ints from {least} to {below - 1}"]
