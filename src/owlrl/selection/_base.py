"""What all selectors have in common: how many arms and episodes there are, and checks of what comes in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError, raise_problems
from owlrl.selection.updates import FloatArray

__all__ = ["BoolArray", "EpisodeSelector", "IntArray", "Rows", "bool_problem", "int_problem", "real_problem"]

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]
Rows = BoolArray | slice  # which of the E episodes


class EpisodeSelector(ABC):
    """A selector for one episode or for E side by side; inside, it is always (E, n)."""

    #: Whether the policy must call ``observe_values`` before every ``select``.
    needs_values: ClassVar[bool] = False

    def __init__(self) -> None:
        self._num_heads = 0  # 0 until the first reset
        self._num_episodes: int | None = None

    def reset(
        self, num_heads: int, *, num_episodes: int | None = None, mask: npt.ArrayLike | None = None
    ) -> None:
        """Forget all evidence; with ``mask`` (E,) only that of the episodes marked true.

        Args:
            num_heads: how many heads can be chosen from, n.
            num_episodes: E, for arrays (E,) and (E, n); None for an int and arrays (n,).
            mask: (E,) bool; ``num_heads`` and ``num_episodes`` must then be those of the last reset.
        """
        where = f"{type(self).__name__}.reset"
        problems = int_problem("num_heads", num_heads, least=1)
        if num_episodes is not None:
            problems += int_problem("num_episodes", num_episodes, least=1)
        if not problems:
            problems = self._reset_problems(num_heads, num_episodes)
        if not problems and mask is not None:
            problems = self._change_problems(num_heads, num_episodes) + _mask_problems(mask, num_episodes)
        raise_problems(where, problems)
        fresh = mask is None
        self._num_heads, self._num_episodes = int(num_heads), num_episodes
        rows = np.ones(num_episodes or 1, dtype=np.bool_) if fresh else np.asarray(mask)
        self._start(rows, fresh=fresh)

    @abstractmethod
    def select(self) -> int | IntArray:
        """The head to act with now: an int, or (E,)."""

    def update(self, losses: npt.ArrayLike, *, mask: npt.ArrayLike | None = None) -> None:
        """Take in one loss per head, lower is better: (n,) or (E, n); ``mask`` (E,) marks some episodes."""
        self._require_reset("update")
        if mask is not None:
            raise_problems(f"{type(self).__name__}.update", _mask_problems(mask, self._num_episodes))
        rows: Rows = slice(None) if mask is None else np.asarray(mask)
        self._learn(self._checked("update", "losses", losses, rows), rows)

    def observe_values(self, values: npt.ArrayLike) -> None:
        """Take in the greedy value of each head at the current observation: (n,) or (E, n)."""
        self._require_reset("observe_values")
        self._checked("observe_values", "values", values, slice(None))

    @property
    def probabilities(self) -> FloatArray:
        """Probability of each head: (n,) or (E, n); empty before the first reset."""
        # No error there: isinstance(selector, HeadSelector) reads properties in Python 3.10 and 3.11.
        if not self._num_heads:
            return np.zeros(0)
        probabilities = self._probabilities()
        return probabilities[0] if self._num_episodes is None else probabilities

    @abstractmethod
    def _start(self, rows: BoolArray, *, fresh: bool) -> None:
        """Begin the marked episodes anew; ``fresh`` if sizes may have changed."""

    @abstractmethod
    def _learn(self, losses: FloatArray, rows: Rows) -> None:
        """Take in checked losses (R, n) of the R marked episodes."""

    @abstractmethod
    def _probabilities(self) -> FloatArray:
        """Probabilities (E, n), an array of the caller's own."""

    def _reset_problems(self, num_heads: int, num_episodes: int | None) -> list[str]:
        """What a subclass has against these sizes."""
        return []

    def _change_problems(self, num_heads: int, num_episodes: int | None) -> list[str]:
        """What is wrong with these sizes if some episodes are to go on."""
        now, before = (num_heads, num_episodes), (self._num_heads, self._num_episodes)
        if not self._num_heads:
            return ["mask is given before the first reset; call reset(num_heads, num_episodes=...) first"]
        if now != before:
            return [
                f"(num_heads, num_episodes) are {now} with a mask; expected {before} as at the last "
                "reset; reset without a mask to change them"
            ]
        return []

    def _require_reset(self, method: str) -> None:
        if not self._num_heads:
            raise OwlStateError(
                f"{type(self).__name__}.{method}: no episode has begun; call reset(num_heads) first"
            )

    def _checked(self, method: str, name: str, numbers: npt.ArrayLike, rows: Rows) -> FloatArray:
        """``numbers`` of the marked episodes as (R, n) float64, or an error that names what is not finite."""
        where = f"{type(self).__name__}.{method}"
        array = _real_array(where, name, numbers)
        single = self._num_episodes is None
        expected = (self._num_heads,) if single else (self._num_episodes, self._num_heads)
        if array.shape != expected:
            raise OwlValueError(
                f"{where}: {name} has shape {array.shape}; expected {expected}, one number per head"
            )
        table = array.reshape(-1, self._num_heads)
        marked = table[rows]
        if not np.isfinite(marked).all():
            episode, head = np.argwhere(~np.isfinite(marked))[0]
            number = marked[episode, head]
            place = "" if single else f" in episode {np.arange(len(table))[rows][episode]}"
            raise NonFiniteError(
                f"{where}: {name} of head {head}{place} is {number}; expected finite numbers; "
                "nothing was changed"
            )
        return marked

    def _arms(self, arms: IntArray) -> int | IntArray:
        return int(arms[0]) if self._num_episodes is None else arms.copy()


def int_problem(name: str, value: object, *, least: int) -> list[str]:
    """A message, in a list, if ``value`` is not an int of at least ``least``."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= least:
        return []
    return [f"{name} is {value!r}; expected an int >= {least}"]


def real_problem(name: str, value: object, expected: str, fits: Callable[[float], bool]) -> list[str]:
    """A message, in a list, if ``value`` is not a real number that fits (NaN never does)."""
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        number: float = value  # type: ignore[assignment]
        if fits(number):
            return []
    return [f"{name} is {value!r}; expected {expected}"]


def bool_problem(name: str, value: object) -> list[str]:
    """A message, in a list, if ``value`` is not a bool."""
    return [] if isinstance(value, bool) else [f"{name} is {value!r}; expected True or False"]


def _mask_problems(mask: npt.ArrayLike, num_episodes: int | None) -> list[str]:
    """A message, in a list, if ``mask`` does not mark some of ``num_episodes`` episodes."""
    array = np.asarray(mask)
    if num_episodes is None:
        return ["mask is given for one episode; pass num_episodes=... to reset, or leave the mask out"]
    if array.dtype != np.bool_ or array.shape != (num_episodes,):
        return [f"mask has dtype {array.dtype} and shape {array.shape}; expected bool and ({num_episodes},)"]
    return []


def _real_array(where: str, name: str, numbers: npt.ArrayLike) -> FloatArray:
    """``numbers`` as float64, or an error if they are bools, complex or no numbers at all."""
    try:
        array = np.asarray(numbers)
    except ValueError as error:
        raise OwlValueError(f"{where}: {name} is ragged; expected one number per head") from error
    if array.dtype.kind not in "iuf":
        raise OwlTypeError(f"{where}: {name} has dtype {array.dtype}; expected real numbers")
    return array.astype(np.float64)
