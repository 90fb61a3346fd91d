"""`TDErrorEvidence`: a head whose values explain the step is likely the right one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from owlrl._arguments import Arguments
from owlrl.errors import NonFiniteError, OwlValueError
from owlrl.evidence.base import (
    FloatArray,
    IntArray,
    ScaledEvidence,
    calibrated_loss,
    rms,
    row_weights,
)
from owlrl.protocols import OffPolicyLearner
from owlrl.types import Transitions

__all__ = ["TDErrorEvidence", "plain_loss", "td_scale"]

# A head is not trusted to be right to more than a hundredth of its values: a
# deterministic task learned to the last bit would else be ruled out by rounding.
_PRECISION = 0.01
_SMALLEST = 1e-8  # where rewards and values are all zero: any error at all is then a full one


def td_scale(delta: FloatArray, values: FloatArray, weight: FloatArray | None = None) -> float:
    """A head's own scale on its own task: ``max(rms(δ), 0.01 · rms(Q(s, a)), 1e-8)``; all (B,).

    >>> import numpy as np
    >>> from owlrl.evidence import td_scale
    >>> td_scale(np.array([0.3, -0.4]), np.array([1.0, 1.0])) == (0.25 / 2) ** 0.5
    True
    >>> td_scale(np.zeros(2), np.array([1.0, -1.0]))
    0.01
    """
    return max(rms(delta, weight), _PRECISION * rms(values, weight), _SMALLEST)


def plain_loss(delta: FloatArray, *, clip: float = 5.0, power: float = 1.0) -> FloatArray:
    """The paper's loss: ``|δ| ** power`` (power 2 is its G); (H, B) → (H, B), unclipped.

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


class TDErrorEvidence(ScaledEvidence):
    """Scores each head by its TD error, bootstrapped from itself: the lower, the likelier its task.

    TD errors of two tasks need not be of one size: a head of small values makes small errors
    everywhere, and would win everywhere (the paper names this as its limitation). So each head's ``|δ|``
    is divided by the root mean square of its δ on its own task (`td_scale`), measured by `calibrate`
    when that task has been learned, and again when it has been revisited.

    Args:
        calibrated: divide by the head's own scale and clip; False gives plain ``|δ|``.
        clip: largest calibrated error: one surprise cannot outweigh all earlier steps.
        power: exponent of the loss; 2 with ``calibrated=False`` is the paper's G for DQN.
        samples: most rows that `calibrate` uses, spread evenly over those given.

    >>> from owlrl.evidence import TDErrorEvidence
    >>> evidence = TDErrorEvidence()
    >>> evidence.load_state_dict({"heads": {"0": 0.5}})
    >>> evidence.scales
    {0: 0.5}
    """

    def __init__(
        self, *, calibrated: bool = True, clip: float = 5.0, power: float = 1, samples: int = 2_000
    ) -> None:
        arguments = Arguments("TDErrorEvidence")
        self.calibrated = arguments.boolean("calibrated", calibrated)
        self.clip = arguments.number("clip", clip, above=0.0)
        self.power = arguments.number("power", power, above=0.0)
        self.samples = arguments.integer("samples", samples)
        arguments.check()
        super().__init__()

    def fit(self, learner: OffPolicyLearner, head: int, rows: Transitions) -> float:
        """``head``'s own scale."""
        delta = _deltas(learner, rows, [head])[0]
        # The error of a transition that ends at once without reward is the value itself.
        ending = replace(
            rows,
            reward=torch.zeros_like(rows.reward),
            terminated=torch.ones_like(rows.terminated, dtype=torch.bool),
        )
        values = _deltas(learner, ending, [head])[0]
        if not (np.isfinite(delta).all() and np.isfinite(values).all()):
            raise NonFiniteError(
                f"TDErrorEvidence.calibrate: head {head} gives TD errors that are not finite on its own "
                "task; expected finite ones; has its training diverged?"
            )
        return td_scale(delta, values, row_weights(rows))

    def score(self, learner: OffPolicyLearner, rows: Transitions, heads: IntArray) -> FloatArray:
        """TD errors of the heads, in units of their scales and clipped, or as they are."""
        delta = _deltas(learner, rows, heads)
        if not self.calibrated:
            return plain_loss(delta, clip=self.clip, power=self.power)
        scale = np.array([[self.fitted[h]] for h in heads.tolist()])
        return calibrated_loss(delta, scale, clip=self.clip, power=self.power)

    def __repr__(self) -> str:
        return (
            f"TDErrorEvidence(calibrated={self.calibrated}, clip={self.clip}, power={self.power}, "
            f"samples={self.samples})"
        )


def _deltas(learner: OffPolicyLearner, rows: Transitions, heads: npt.ArrayLike) -> FloatArray:
    """δ (n, B) as float64, with the shape checked, since the learner may be the user's."""
    chosen = np.asarray(heads, dtype=np.int64)
    with torch.no_grad():
        delta = learner.td_errors(rows, chosen)
    expected = (len(chosen), len(rows))
    if tuple(delta.shape) != expected:
        raise OwlValueError(
            f"TDErrorEvidence: {type(learner).__name__}.td_errors returned shape {tuple(delta.shape)}; "
            f"expected {expected}: one line per head, one column per row"
        )
    errors: FloatArray = delta.detach().cpu().to(torch.float64).numpy()
    return errors
