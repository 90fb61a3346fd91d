"""`Selector`: the base class of built-in selectors and of your own: episodes, held draws, checks, saving."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from owlrl._arguments import Arguments, own_generator
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError, raise_problems

__all__ = ["Selector", "distribution", "draw"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Rows = BoolArray | slice  # which of the E episodes

# A head is not held any longer once it is half as likely as when it was drawn: where a wrong
# choice ends the episode, keeping to it against the evidence is what loses.
DROP = 0.5


class Selector(ABC):
    """Draws the head that acts; subclasses define the probability of each.

    An episode has a score for each head, (n,), 0 at its start. A subclass writes `learn`, which returns the
    scores after a step, and may write `chances`, which turns scores into probabilities (softmax if it does
    not), `look` and `start`. This class does the rest: one episode or E side by side, masks, draws, how long
    a head is held, checks of arguments, saving and loading. A subclass with an ``__init__`` calls
    ``super().__init__(hold=..., seed=...)`` in it.

    Args:
        hold: a drawn head is kept for this many calls of `select`, unless it has become half as likely as
            it was when it was drawn.
        seed: of the draws; `reset` does not seed again. None for torch's (`torch.initial_seed`).

    Attributes:
        needs_values: whether the policy must call `observe_values` before every `select`.
        batched: whether the methods that a subclass writes take all episodes at once, scores (E, n) and
            arms (E,), which is faster for many.

    >>> import numpy as np
    >>> from owlrl.selection import Selector
    >>> class Leader(Selector):  # the head whose losses are the least so far
    ...     def learn(self, scores, losses, arm):
    ...         return scores - losses
    ...     def chances(self, scores):
    ...         return np.eye(len(scores))[scores.argmax()]
    >>> selector = Leader()
    >>> selector.reset(3, num_episodes=2)
    >>> selector.update([[0.5, 0.1, 0.3], [0.5, 0.4, 0.3]])
    >>> selector.select()
    array([1, 2])
    """

    needs_values: ClassVar[bool] = False
    batched: ClassVar[bool] = False

    def __init__(self, *, hold: int = 1, seed: int | None = None) -> None:
        arguments = Arguments(type(self).__name__)
        self._hold = arguments.integer("hold", hold)
        seed = arguments.integer("seed", seed, least=0, none=True)
        arguments.check()
        self._generator = own_generator(seed, *type(self).__name__.encode())
        self._num_heads = 0  # 0 until the first reset
        self._num_episodes: int | None = None
        self._scores: FloatArray = np.zeros((0, 0))
        self._seen: BoolArray = np.zeros(0, dtype=np.bool_)  # whether values came since the episode began
        self._arms: IntArray = np.zeros(0, dtype=np.int64)  # who acts; -1 where nothing was drawn yet
        self._left: IntArray = np.zeros(0, dtype=np.int64)  # steps that the head is still held for
        self._chance: FloatArray = np.zeros(0)  # how likely the head was when it was drawn
        self._known: FloatArray | None = None  # probabilities (E, n) of the scores as they are

    @abstractmethod
    def learn(self, scores: FloatArray, losses: FloatArray, arm: Any) -> FloatArray:
        """Scores (n,) after a step, from those before it and one loss per head, lower is better.

        ``arm`` is the head that acted, -1 if none was drawn yet.
        """

    def chances(self, scores: FloatArray) -> FloatArray:
        """Probability of each head, (n,)."""
        return distribution(scores)

    def look(self, scores: FloatArray, values: FloatArray, arm: Any) -> FloatArray:
        """Scores (n,) after seeing the greedy value of each head, where ``needs_values``."""
        return scores

    def start(self, num_heads: int) -> FloatArray:
        """Scores (n,) at the start of an episode."""
        return np.zeros(num_heads)

    def reset(
        self, num_heads: int, *, num_episodes: int | None = None, mask: npt.ArrayLike | None = None
    ) -> None:
        """Forget all evidence; with ``mask`` (E,) only that of the episodes marked true.

        Args:
            num_heads: how many heads can be chosen from, n.
            num_episodes: E, for arrays (E,) and (E, n); None for an int and arrays (n,).
            mask: (E,) bool; ``num_heads`` and ``num_episodes`` must then be those of the last reset.
        """
        arguments = Arguments(f"{type(self).__name__}.reset")
        num_heads = arguments.integer("num_heads", num_heads)
        if num_episodes is not None:
            num_episodes = arguments.integer("num_episodes", num_episodes)
        arguments.check()
        raise_problems(arguments.where, self._size_problems(num_heads, num_episodes))
        now, before = (num_heads, num_episodes), (self._num_heads, self._num_episodes)
        if mask is not None:
            if not self._num_heads:
                arguments.problem(
                    "mask is given before the first reset; call reset(num_heads, num_episodes=...) first"
                )
            elif now != before:
                arguments.problem(
                    f"(num_heads, num_episodes) are {now} with a mask; expected {before} as at the last "
                    "reset; reset without a mask to change them"
                )
            arguments.problems += _mask_problems(mask, num_episodes)
            arguments.check()
        self._num_heads, self._num_episodes = now
        rows = np.ones(num_episodes or 1, dtype=np.bool_) if mask is None else np.asarray(mask)
        self._begin(rows, fresh=mask is None)

    def select(self) -> int | IntArray:
        """The head to act with now, an int or (E,): drawn from ``probabilities``, or the one still held."""
        self._require_values()
        probabilities = self._probabilities()
        now = probabilities[np.arange(len(probabilities)), self._arms]
        due = (self._left == 0) | (now < DROP * self._chance)
        if due.any():
            drawn = draw(probabilities[due], self._generator.random(int(due.sum())))
            self._arms[due], self._left[due] = drawn, self._hold
            self._chance[due] = probabilities[due, drawn]
        self._left -= 1
        return self._shaped(self._arms)

    def update(self, losses: npt.ArrayLike, *, mask: npt.ArrayLike | None = None) -> None:
        """Update with a loss per head, lower is better: (n,) or (E, n); ``mask`` (E,) marks some episodes."""
        self._require_reset("update")
        if mask is not None:
            raise_problems(f"{type(self).__name__}.update", _mask_problems(mask, self._num_episodes))
        rows: Rows = slice(None) if mask is None else np.asarray(mask)
        self._learn(self._checked("update", "losses", losses, rows), rows)

    def observe_values(self, values: npt.ArrayLike) -> None:
        """Update with the greedy value of each head at the current observation: (n,) or (E, n)."""
        self._require_reset("observe_values")
        self._look(self._checked("observe_values", "values", values, slice(None)))
        self._seen[:] = True

    @property
    def probabilities(self) -> FloatArray:
        """Probability of each head: (n,) or (E, n); empty before the first reset."""
        # No error there: isinstance(selector, HeadSelector) reads properties in Python 3.10 and 3.11.
        if not self._num_heads:
            return np.zeros(0)
        probabilities = self._probabilities().copy()
        single: FloatArray = probabilities[0]
        return single if self._num_episodes is None else probabilities

    def state_dict(self) -> dict[str, Any]:
        """Scores, held heads and the generator; hyper-parameters are the constructor's."""
        return {
            "num_heads": self._num_heads,
            "num_episodes": self._num_episodes,
            "scores": self._scores.copy(),
            "seen": self._seen.copy(),
            "arms": self._arms.copy(),
            "left": self._left.copy(),
            "chance": self._chance.copy(),
            "generator": self._generator.bit_generator.state,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned, draws included; an invalid one changes nothing."""
        where = f"{type(self).__name__}.load_state_dict"
        raise_problems(where, [f"{key} is missing" for key in self.state_dict() if key not in state_dict])
        arguments = Arguments(where)
        num_heads = arguments.integer("num_heads", state_dict["num_heads"], least=0)
        num_episodes = arguments.integer("num_episodes", state_dict["num_episodes"], none=True)
        arguments.check()
        # num_heads 0 is the state before the first reset: there are no rows yet.
        count = (num_episodes or 1) if num_heads else 0
        problems = self._size_problems(num_heads, num_episodes) if num_heads else []
        arrays, wrong = _state_arrays(state_dict, count, num_heads, self._hold)
        generator = np.random.default_rng(0)
        try:
            generator.bit_generator.state = state_dict["generator"]
        except (KeyError, TypeError, ValueError) as error:
            wrong.append(f"generator is not the state of a PCG64 generator ({error!r})")
        raise_problems(where, problems + wrong)
        self._num_heads, self._num_episodes, self._generator = num_heads, num_episodes, generator
        self._scores, self._seen, self._arms, self._left, self._chance = arrays
        self._known = None

    def _begin(self, rows: BoolArray, *, fresh: bool) -> None:
        """Begin the marked episodes from the start; ``fresh`` if sizes may have changed."""
        if fresh:
            count = len(rows)
            self._scores, self._seen = np.zeros((count, self._num_heads)), np.zeros(count, dtype=np.bool_)
            self._arms, self._left = (np.zeros(count, dtype=np.int64) for _ in range(2))
            self._chance = np.zeros(count)
        self._scores[rows] = self.start(self._num_heads)
        self._seen[rows] = False
        self._arms[rows] = -1
        self._left[rows] = 0
        self._chance[rows] = 0.0
        self._known = None

    def _learn(self, losses: FloatArray, rows: Rows) -> None:
        """Take in checked losses (R, n) of the R marked episodes."""
        self._scores[rows] = self._moved("learn", self.learn, self._scores[rows], losses, self._arms[rows])
        self._known = None

    def _look(self, values: FloatArray) -> None:
        """Take in checked values (E, n)."""
        if self.needs_values:
            self._scores = self._moved("look", self.look, self._scores, values, self._arms)
            self._known = None

    def _probabilities(self) -> FloatArray:
        """Probabilities (E, n), not to be changed."""
        if self._known is None:
            found = self._each("chances", self.chances, self._scores)
            if self.needs_values:
                found[~self._seen] = 1.0 / self._num_heads
            if not (found >= 0.0).all() or not np.allclose(found.sum(axis=-1), 1.0, rtol=0.0, atol=1e-6):
                raise OwlValueError(
                    f"{type(self).__name__}.chances returned {found}; expected probabilities, which sum to 1"
                )
            self._known = found
        return self._known

    def _moved(self, name: str, core: Callable[..., FloatArray], *arrays: npt.NDArray[Any]) -> FloatArray:
        scores = self._each(name, core, *arrays)
        if not np.isfinite(scores).all():
            raise NonFiniteError(f"{type(self).__name__}.{name} returned scores that are not finite")
        return scores

    def _each(self, name: str, core: Callable[..., FloatArray], *arrays: npt.NDArray[Any]) -> FloatArray:
        """``core`` applied to each episode's rows, (R, n), as a new array."""
        if self.batched:
            found = core(*arrays)
        else:
            found = np.array([core(*rows) for rows in zip(*(a.copy() for a in arrays), strict=True)])
        if np.shape(found) != arrays[0].shape and len(arrays[0]):
            raise OwlValueError(
                f"{type(self).__name__}.{name} returned shape {np.shape(found)[1:]}; expected "
                f"({self._num_heads},), one number per head"
            )
        return np.array(found, dtype=np.float64).reshape(arrays[0].shape)

    def _size_problems(self, num_heads: int, num_episodes: int | None) -> list[str]:
        """Problems that a subclass has with these sizes."""
        return []

    def _require_reset(self, method: str) -> None:
        if not self._num_heads:
            raise OwlStateError(
                f"{type(self).__name__}.{method}: no episode has begun; call reset(num_heads) first"
            )

    def _require_values(self) -> None:
        self._require_reset("select")
        if self.needs_values and not self._seen.all():
            raise OwlStateError(
                f"{type(self).__name__}.select: no values were seen since reset; call "
                "observe_values(values) first"
            )

    def _checked(self, method: str, name: str, numbers: npt.ArrayLike, rows: Rows) -> FloatArray:
        """``numbers`` of the marked episodes as (R, n) float64, or an error that names what is not finite."""
        where = f"{type(self).__name__}.{method}"
        try:
            array = np.asarray(numbers)
        except ValueError as error:
            raise OwlValueError(f"{where}: {name} is ragged; expected one number per head") from error
        if array.dtype.kind not in "iuf":
            raise OwlTypeError(f"{where}: {name} has dtype {array.dtype}; expected real numbers")
        array = array.astype(np.float64)
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

    def _shaped(self, arms: IntArray) -> int | IntArray:
        return int(arms[0]) if self._num_episodes is None else arms.copy()


def distribution(log_weights: FloatArray, floor: float = 0.0) -> FloatArray:
    """Probabilities ``(1 − n · floor) · softmax(ℓ) + floor``; (..., n) → (..., n), rows sum to 1.

    >>> import numpy as np
    >>> from owlrl.selection import distribution
    >>> distribution(np.array([[0.0, -1e300]]), floor=0.1)
    array([[0.9, 0.1]])
    """
    weights: FloatArray = np.exp(log_weights - log_weights.max(axis=-1, keepdims=True))
    softmax: FloatArray = weights / weights.sum(axis=-1, keepdims=True)
    mixed: FloatArray = (1.0 - log_weights.shape[-1] * floor) * softmax + floor
    return mixed


def draw(probabilities: FloatArray, uniforms: FloatArray) -> IntArray:
    """Inverse CDF per row: the first arm whose cumulative probability exceeds the uniform number.

    ``probabilities`` (E, n) and ``uniforms`` (E,) in [0, 1) → arms (E,). An arm of
    probability zero is never drawn.

    >>> import numpy as np
    >>> from owlrl.selection import draw
    >>> draw(np.array([[0.5, 0.5], [0.0, 1.0]]), np.array([0.7, 0.0]))
    array([1, 1])
    """
    cumulative = probabilities.cumsum(axis=-1)
    # Times the last entry, because rounding can leave it a little off 1.
    thresholds = uniforms[:, None] * cumulative[:, -1:]
    arms: IntArray = (cumulative <= thresholds).sum(axis=-1, dtype=np.int64)
    return arms


def _mask_problems(mask: npt.ArrayLike, num_episodes: int | None) -> list[str]:
    """A message, in a list, if ``mask`` does not mark some of ``num_episodes`` episodes."""
    array = np.asarray(mask)
    if num_episodes is None:
        return ["mask is given for one episode; pass num_episodes=... to reset, or leave the mask out"]
    if array.dtype != np.bool_ or array.shape != (num_episodes,):
        return [f"mask has dtype {array.dtype} and shape {array.shape}; expected bool and ({num_episodes},)"]
    return []


def _state_arrays(
    state: Mapping[str, Any], count: int, heads: int, hold: int
) -> tuple[tuple[FloatArray, BoolArray, IntArray, IntArray, FloatArray], list[str]]:
    """Copies of a saved selector's arrays, and all that is wrong with them."""
    problems: list[str] = []

    def array(name: str, kinds: str, shape: tuple[int, ...], expected: str, low: float, high: float) -> Any:
        found = np.asarray(state[name])
        fits = found.size == int(np.prod(shape)) and (not found.size or found.dtype.kind in kinds)
        if not fits or not ((found >= low) & (found <= high)).all():
            got = repr(state[name]) if found.size <= 6 else f"{found.dtype} of shape {found.shape}"
            problems.append(f"{name} is {got}; expected {expected}")
            return np.zeros(shape)
        return found.reshape(shape)

    finite = np.finfo(np.float64).max
    expected = f"{(count, heads)} finite numbers"
    scores = array("scores", "iuf", (count, heads), expected, -finite, finite).astype(np.float64)
    seen = array("seen", "b", (count,), f"{count} times True or False", 0, 1).astype(np.bool_)
    ints = f"{count} ints from -1 to {heads - 1}", f"{count} ints from 0 to {hold - 1}"
    arms = array("arms", "iu", (count,), ints[0], -1, heads - 1).astype(np.int64)
    left = array("left", "iu", (count,), ints[1], 0, hold - 1).astype(np.int64)
    chance = array("chance", "iuf", (count,), f"{count} numbers from 0 to 1", 0.0, 1.0).astype(np.float64)
    if not problems and ((arms < 0) & (left > 0)).any():
        problems.append("left is positive where no arm was drawn")
    return (scores, seen, arms, left, chance), problems
