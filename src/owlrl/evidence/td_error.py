"""`TDErrorEvidence`: a head whose values explain what happened is likely of the right task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from owlrl.errors import NonFiniteError, OwlValueError, raise_problems
from owlrl.evidence._common import (
    FloatArray,
    argument_problems,
    calibrated_loss,
    check_arms,
    check_finite,
    check_rows,
    rms,
    scales_from,
    spread,
)
from owlrl.protocols import OffPolicyLearner
from owlrl.types import Transitions

__all__ = ["TDErrorEvidence", "plain_loss", "td_scale"]

# A head is not trusted to be right to more than a hundredth of its own values: a
# deterministic task learned to the last bit would else be ruled out by rounding.
_PRECISION = 0.01
_SMALLEST = 1e-8  # where rewards and values are all zero: any error at all is then a full one


def td_scale(delta: FloatArray, values: FloatArray) -> float:
    """A head's own scale on its own task: ``max(rms(δ), 0.01 · rms(Q(s, a)), 1e-8)``; both (B,).

    >>> import numpy as np
    >>> from owlrl.evidence import td_scale
    >>> td_scale(np.array([0.3, -0.4]), np.array([1.0, 1.0])) == (0.25 / 2) ** 0.5
    True
    >>> td_scale(np.zeros(2), np.array([1.0, -1.0]))
    0.01
    """
    return max(rms(delta), _PRECISION * rms(values), _SMALLEST)


def plain_loss(delta: FloatArray, *, clip: float = 5.0, power: float = 1.0) -> FloatArray:
    """Loss as the paper has it: ``|δ| ** power`` (power 2 is its G); (H, B) → (H, B), unclipped.

    A δ that is not finite counts as ``clip`` times the largest finite ``|δ|`` of its transition.

    >>> import numpy as np
    >>> from owlrl.evidence import plain_loss
    >>> plain_loss(np.array([[0.5], [-2.0], [-np.inf]]))[:, 0]
    array([ 0.5,  2. , 10. ])
    """
    known = np.isfinite(delta)
    size = np.where(known, np.abs(delta), 0.0)
    # Bounded by the others, since one huge number would drown what they say.
    worst = clip * size.max(axis=0, keepdims=True)
    worst = np.where(worst > 0.0, worst, clip)
    loss: FloatArray = np.where(known, size, worst) ** power
    return loss


class TDErrorEvidence:
    """Scores each head by its TD error, bootstrapped from itself: the lower, the likelier its task.

    TD errors of two tasks need not be of one size: a head of small values makes small errors
    everywhere, and would win everywhere (the paper names this as its limitation). So each head's ``|δ|``
    is divided by the root mean square of its δ on its own task (`td_scale`), measured by `calibrate`
    when that task has been learned, and again when it has been revisited.

    Args:
        calibrated: divide by the head's own scale and clip; False gives plain ``|δ|``.
        clip: largest calibrated error: one surprise cannot outweigh all that was seen before.
        power: exponent of the loss; 2 with ``calibrated=False`` is the paper's G for DQN.
        samples: most rows that `calibrate` looks at, spread evenly over those it is given.

    >>> from owlrl.evidence import TDErrorEvidence
    >>> evidence = TDErrorEvidence()
    >>> evidence.load_state_dict({"scales": {"0": 0.5}})
    >>> evidence.scales
    {0: 0.5}
    """

    def __init__(
        self, *, calibrated: bool = True, clip: float = 5.0, power: float = 1, samples: int = 2_000
    ) -> None:
        positive = {"clip": clip, "power": power}
        problems = argument_problems(counts={"samples": samples}, positive=positive, calibrated=calibrated)
        raise_problems("TDErrorEvidence", problems)
        self.calibrated = calibrated
        self.clip = clip
        self.power = power
        self.samples = samples
        self._scales: dict[int, float] = {}

    @property
    def scales(self) -> dict[int, float]:
        """The scale of every head measured so far."""
        return dict(self._scales)

    def calibrate(self, learner: OffPolicyLearner, head: int, transitions: Transitions) -> None:
        """Measure ``head``'s own scale on rows of its own task; a second time replaces the first."""
        where = "TDErrorEvidence.calibrate"
        check_rows(where, head, transitions)
        rows = spread(transitions, self.samples)
        delta = _deltas(where, learner, rows, np.array([head]))[0]
        # The error of a transition that ends at once without reward is the value itself.
        ending = replace(
            rows,
            reward=torch.zeros_like(rows.reward),
            terminated=torch.ones_like(rows.terminated, dtype=torch.bool),
        )
        values = _deltas(where, learner, ending, np.array([head]))[0]
        if not (np.isfinite(delta).all() and np.isfinite(values).all()):
            raise NonFiniteError(
                f"{where}: head {head} gives TD errors that are not finite on its own task; expected "
                "finite ones; has its training diverged?"
            )
        self._scales[int(head)] = td_scale(delta, values)

    def losses(self, learner: OffPolicyLearner, transitions: Transitions, heads: npt.ArrayLike) -> FloatArray:
        """Losses (B, len(heads)) of the given heads on B transitions, all heads in one pass."""
        where = "TDErrorEvidence.losses"
        check_finite(where, transitions)
        arms = check_arms(where, heads, self._scales if self.calibrated else None)
        delta = _deltas(where, learner, transitions, arms)  # (n, B)
        if not self.calibrated:
            return np.ascontiguousarray(plain_loss(delta, clip=self.clip, power=self.power).T)
        scale = np.array([self._scales[int(h)] for h in arms]).reshape(-1, 1)
        return np.ascontiguousarray(calibrated_loss(delta, scale, clip=self.clip, power=self.power).T)

    def state_dict(self) -> dict[str, Any]:
        """The scales, ready for JSON."""
        return {"scales": {str(head): scale for head, scale in self._scales.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` gave."""
        self._scales = scales_from("TDErrorEvidence.load_state_dict", state_dict)

    def __repr__(self) -> str:
        return (
            f"TDErrorEvidence(calibrated={self.calibrated}, clip={self.clip}, power={self.power}, "
            f"samples={self.samples})"
        )


def _deltas(
    where: str, learner: OffPolicyLearner, transitions: Transitions, heads: npt.NDArray[np.int64]
) -> FloatArray:
    """δ (n, B) as float64, with the shape checked because a learner is someone else's."""
    with torch.no_grad():
        delta = learner.td_errors(transitions, heads)
    expected = (len(heads), len(transitions))
    if tuple(delta.shape) != expected:
        raise OwlValueError(
            f"{where}: {type(learner).__name__}.td_errors gave shape {tuple(delta.shape)}; expected "
            f"{expected}: one row per head, one column per transition"
        )
    errors: FloatArray = delta.detach().cpu().to(torch.float64).numpy()
    return errors
