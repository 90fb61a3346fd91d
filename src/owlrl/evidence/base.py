"""`Evidence`: the base class of all evidence, also of your own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from owlrl._arguments import Arguments
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError, raise_problems
from owlrl.protocols import OffPolicyLearner
from owlrl.types import Transitions

__all__ = ["Evidence", "FloatArray", "IntArray", "calibrated_loss"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FIELDS = ("observation", "action", "reward", "next_observation", "discount", "weight")


class Evidence(ABC):
    """Scores each head on the last step: the lower, the more it looks like the head's task.

    A subclass writes two methods. `fit` gets rows of one task, when it has been learned, and
    returns what is kept of it; `score` returns the loss of each head on each row. This class does
    the rest: rows and heads are checked, and the result of `fit` is kept in ``fitted``, saved, loaded and
    dropped. A subclass with an ``__init__`` calls ``super().__init__()`` in it.

    Losses should be of about the same size for every right head, and bounded, so that one surprise cannot
    outweigh all earlier steps: `calibrated_loss` does both.

    Attributes:
        samples: most rows that `fit` is given, spread evenly over those of the task.
        calibrated: whether `score` needs what `fit` keeps; heads without it are refused then.
        fitted: what `fit` returned, by head.
        version: a number that changes whenever ``fitted`` does.

    >>> import torch
    >>> from owlrl import Transitions
    >>> from owlrl.evidence import Evidence, calibrated_loss
    >>> class MeanReward(Evidence):
    ...     def fit(self, learner, head, rows):
    ...         return {"mean": float(rows.reward.mean()), "std": float(rows.reward.std())}
    ...     def score(self, learner, rows, heads):
    ...         kept = [self.fitted[head] for head in heads]
    ...         return [calibrated_loss(rows.reward - k["mean"], k["std"]) for k in kept]
    >>> def paying(*rewards):
    ...     x = torch.zeros(len(rewards), 1)
    ...     return Transitions(x, x, torch.tensor(rewards), x, x[:, 0] > 5, x[:, 0])
    >>> evidence = MeanReward()
    >>> evidence.calibrate(None, 0, paying(1.0, 2.0, 3.0))
    >>> evidence.calibrate(None, 1, paying(5.0, 7.0, 9.0))
    >>> evidence.losses(None, paying(3.0, 7.0), [0, 1])  # a line for each head
    array([[1., 5.],
           [2., 0.]])
    """

    samples: int = 20_000
    calibrated: bool = True

    def __init__(self) -> None:
        self.fitted: dict[int, Any] = {}
        self.version = 0

    @abstractmethod
    def fit(self, learner: Any, head: int, rows: Transitions) -> Any:
        """Fit the task of ``head`` to its rows and return what is kept.

        Numbers, strings, arrays, tensors, or lists and dicts of them. ``rows.weight``, where it is not None,
        is how much each row counts (mean 1).
        """

    @abstractmethod
    def score(self, learner: Any, rows: Transitions, heads: IntArray) -> Any:
        """Non-negative finite losses (len(heads), len(rows)): an array, a tensor or a list of them."""

    def kept_problem(self, kept: Any) -> str | None:
        """What is wrong with a loaded result of `fit`, as "expected ..."; or None."""
        return None

    def calibrate(self, learner: OffPolicyLearner | None, head: int, rows: Transitions) -> None:
        """Fit ``head`` to rows of its task, when it has been learned; a second fit replaces the first."""
        where = f"{type(self).__name__}.calibrate"
        if isinstance(head, bool) or not isinstance(head, int | np.integer) or head < 0:
            raise OwlTypeError(f"{where}: head is {head!r}; expected an int >= 0")
        if not len(rows):
            raise OwlValueError(f"{where}: rows are empty; expected rows of the task of head {head}")
        _check_finite(where, rows)
        if len(rows) > self.samples:
            rows = rows[torch.arange(self.samples) * len(rows) // self.samples]
        kept = self.fit(learner, int(head), rows)
        self.fitted[int(head)] = kept
        self.version += 1

    def losses(
        self, learner: OffPolicyLearner | None, rows: Transitions, heads: npt.ArrayLike | Tensor
    ) -> FloatArray:
        """Losses (len(heads), len(rows)) of the given heads, all heads in one pass."""
        where = f"{type(self).__name__}.losses"
        _check_finite(where, rows)
        chosen = np.asarray(heads)
        if chosen.ndim != 1 or chosen.dtype.kind not in "iu":
            raise OwlTypeError(f"{where}: heads is {heads!r}; expected an array (n,) of ints")
        if self.calibrated and (unknown := [h for h in chosen.tolist() if h not in self.fitted]):
            raise OwlStateError(
                f"{where}: heads {unknown} were never calibrated; call calibrate(learner, head, rows) at the "
                "end of their tasks, or choose among the others"
            )
        found = self.score(learner, rows, chosen.astype(np.int64, copy=False))
        scores = np.asarray(found, dtype=np.float64) if len(chosen) else np.zeros((0, len(rows)))
        if scores.shape != (len(chosen), len(rows)):
            raise OwlValueError(
                f"{where}: score returned shape {scores.shape}; expected {(len(chosen), len(rows))}: a line "
                "per head, a column per row"
            )
        return scores

    def forget(self, head: int) -> None:
        """Drop what is kept of ``head``, if anything is."""
        if int(head) in self.fitted:
            del self.fitted[int(head)]
            self.version += 1

    def state_dict(self) -> dict[str, Any]:
        """What is kept of each head."""
        return {"heads": {str(head): kept for head, kept in self.fitted.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned."""
        self.fitted = self._heads_of(state_dict)
        self.version += 1

    def _heads_of(self, state_dict: Mapping[str, Any]) -> dict[int, Any]:
        """What is kept of each head in a state of `state_dict`; or an error with all problems."""
        where = f"{type(self).__name__}.load_state_dict"
        heads = state_dict.get("heads")
        if not isinstance(heads, Mapping):
            raise OwlValueError(f"{where}: heads is {heads!r}; expected what state_dict() returned, by head")
        problems = []
        for head, kept in heads.items():
            if not str(head).isdecimal():
                problems.append(f"heads[{head!r}] is of no head; expected a number from 0 on")
            if problem := self.kept_problem(kept):
                problems.append(f"heads[{head!r}] is {repr(kept)[:80]}; {problem}")
        raise_problems(where, problems)
        return {int(head): kept for head, kept in heads.items()}


class ScaledEvidence(Evidence):
    """Evidence that keeps one number per head: the scale of its errors on its own task."""

    @property
    def scales(self) -> dict[int, float]:
        """The scale of every head measured so far."""
        return dict(self.fitted)

    def kept_problem(self, kept: Any) -> str | None:
        """A scale is a finite number > 0."""
        return positive_scale(kept)


def calibrated_loss(
    delta: npt.ArrayLike | Tensor, scale: npt.ArrayLike, *, clip: float = 5.0, power: float = 1.0
) -> FloatArray:
    """Loss in units of the head's own scale: ``min(|δ| / scale, clip) ** power``; shapes broadcast.

    A δ that is not finite, such as that of an action which a head does not have, counts as ``clip``.

    >>> import numpy as np
    >>> from owlrl.evidence import calibrated_loss
    >>> calibrated_loss(np.array([0.2, -0.4, 9.0, -np.inf]), 0.2)
    array([1., 2., 5., 5.])
    """
    error = np.asarray(delta, dtype=np.float64)
    with np.errstate(over="ignore"):
        ratio = np.abs(np.where(np.isfinite(error), error, np.inf)) / np.asarray(scale)
    bounded: FloatArray = np.minimum(ratio, clip) ** power
    return bounded


def rms(numbers: npt.NDArray[Any], weight: FloatArray | None = None) -> float:
    """Root (weighted) mean square, of the numbers over their largest so that no square overflows."""
    largest = float(np.abs(numbers).max())
    if largest == 0.0:
        return 0.0
    return largest * float(np.sqrt(np.average(np.square(numbers / largest), weights=weight)))


def positive_scale(kept: object) -> str | None:
    """What is wrong with a scale that was loaded; it is a finite number > 0."""
    arguments = Arguments("scale")
    arguments.number("scale", kept, above=0.0)
    return "expected a finite number > 0" if arguments.problems else None


def check_keys(where: str, state_dict: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raise, naming all of them, if ``state_dict`` lacks some of ``keys``."""
    missing = [f"{key} is missing; pass what state_dict() returned" for key in keys if key not in state_dict]
    raise_problems(where, missing)


def row_weights(rows: Transitions) -> FloatArray:
    """How much each row counts, (B,): ones where the rows have no weights."""
    return np.ones(len(rows)) if rows.weight is None else rows.weight.detach().cpu().double().numpy()


def encoded(where: str, encode: Callable[[Tensor], Tensor], observation: Tensor) -> Tensor:
    """``encode(observation)`` (B, F), with the shape checked, since the function is the user's."""
    out = encode(observation)
    if out.ndim != 2 or len(out) != len(observation):
        raise OwlTypeError(
            f"{where}: encode returned shape {tuple(out.shape)} for {len(observation)} observations; "
            f"expected ({len(observation)}, features)"
        )
    return out.detach().cpu()


def _check_finite(where: str, rows: Transitions) -> None:
    """Raise, naming every field, if a number of ``rows`` is NaN or infinite."""
    problems = [
        f"{name} has entries that are NaN or infinite; expected finite numbers"
        for name in FIELDS
        if (tensor := getattr(rows, name)) is not None
        and tensor.is_floating_point()
        and not bool(torch.isfinite(tensor).all())
    ]
    raise_problems(where, problems, kind=NonFiniteError)
