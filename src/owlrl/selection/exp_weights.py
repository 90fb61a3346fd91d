"""Exponential weights over heads: the paper's selector, and a better one."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from owlrl._arguments import Arguments
from owlrl.errors import OwlStateError
from owlrl.selection.base import FloatArray, IntArray, Selector, distribution

__all__ = [
    "ExpWeightsSelector",
    "Variant",
    "fixed_share",
    "hedge_update",
    "paper_update",
    "relative_losses",
    "released_update",
    "score",
]

Variant = Literal["hedge", "paper", "released"]

# What a variant takes for an argument that is None.
_DECAY: dict[Variant, float] = {"hedge": 1.0, "paper": 1.0, "released": 0.9}
_SHARE: dict[Variant, float] = {"hedge": 0.001, "paper": 0.0, "released": 0.0}
_HOLD: dict[Variant, int] = {"hedge": 8, "paper": 1, "released": 1}

# The formulas: E episodes side by side, n heads (the arms), ``log_weights`` ℓ (E, n), p(i) ∝ exp ℓ(i). All
# stay finite for every finite input up to ±1e300, so the probabilities always sum to 1.
SCORE_CAP = 50.0  # the paper's cap on 1 / Ĝ
_LIMIT = 1e300  # keeps sums of two log-weights inside float64


class ExpWeightsSelector(Selector):
    """Draws a head with probability ∝ exp ℓ and updates ℓ by each head's loss.

    Three updates, each a pure function: ``"hedge"`` (`hedge_update`: every head learns from every
    step), ``"paper"`` (`paper_update`, Eq. 2: only the drawn head does) and ``"released"``
    (`released_update`, what the published code does). Log-weights are float64: probabilities
    are finite and sum to 1 for any finite losses. NaN and infinities are refused.

    The losses come from the evidence, e.g. `TDErrorEvidence`. They are
    meant to be non-negative. Below zero, ``"hedge"`` with ``relative=False`` sees differences
    only, with ``relative=True`` it divides by the largest magnitude, and the other two take
    such a loss for a perfect one.

    The defaults were best, or as good as the best, over 20 seeds of six kinds of simulated look-alike
    tasks at low noise; ``docs/results/selection.md`` has the table.

    Args:
        eta: step size η; the paper's 0.88 for DQN.
        decay: factor on ℓ before each step, under 1 to forget old evidence.
            None: 1 for hedge and paper, 0.9 for released.
        variant: which update.
        floor: smallest probability of any head, mixed in as ``(1 − n·floor)·p + floor``. Of a
            floor above 1/(2n) only that much is used, so that evidence keeps half of the weight.
        share: fixed share, in [0, 1): the part of the weight spread evenly after each step
            (`fixed_share`), so that no head is ruled out forever and a task that changes in
            the middle of an episode is followed. None: 0.001 for hedge, 0 for the others.
        hold: a drawn head is kept for this many calls of ``select``, to give it time,
            unless it has become half as likely as it was when it was drawn.
            None: 8 for hedge, 1 for the others.
        relative: hedge only: divide the losses of each step by their largest (`relative_losses`);
            for losses of unknown size, such as those of ``TDErrorEvidence(calibrated=False)``.
        seed: of the draws, as for `Selector`.

    >>> from owlrl.selection import ExpWeightsSelector
    >>> selector = ExpWeightsSelector(seed=0)
    >>> selector.reset(3)
    >>> for _ in range(20):
    ...     head = selector.select()
    ...     selector.update([0.9, 0.1, 0.8])
    >>> int(selector.probabilities.argmax())
    1
    """

    batched = True

    def __init__(
        self,
        *,
        eta: float = 0.88,
        decay: float | None = None,
        variant: Variant = "hedge",
        floor: float = 0.0,
        share: float | None = None,
        hold: int | None = None,
        relative: bool = False,
        seed: int | None = None,
    ) -> None:
        arguments = Arguments("ExpWeightsSelector")
        self.eta = arguments.number("eta", eta, above=0.0)
        self.decay = arguments.number("decay", decay, least=0.0, most=1.0, none=True)
        self.variant = arguments.choice("variant", variant, get_args(Variant))
        self.floor = arguments.number("floor", floor, least=0.0, below=1.0)
        self.share = arguments.number("share", share, least=0.0, below=1.0, none=True)
        self.hold = arguments.integer("hold", hold, none=True)
        self.relative = arguments.boolean("relative", relative)
        self.seed = arguments.integer("seed", seed, least=0, none=True)
        arguments.check()
        super().__init__(hold=_HOLD[self.variant] if self.hold is None else self.hold, seed=self.seed)

    def __repr__(self) -> str:
        return (
            f"ExpWeightsSelector(eta={self.eta}, decay={self.decay}, variant={self.variant!r}, "
            f"floor={self.floor}, share={self.share}, hold={self.hold}, relative={self.relative})"
        )

    def learn(self, scores: FloatArray, losses: FloatArray, arm: Any) -> FloatArray:
        """Log-weights (E, n) after a step, by the variant's update."""
        decay = _DECAY[self.variant] if self.decay is None else self.decay
        share = _SHARE[self.variant] if self.share is None else self.share
        if self.variant == "hedge":
            seen = relative_losses(losses) if self.relative else losses
            after = hedge_update(scores, seen, eta=self.eta, decay=decay)
        elif self.variant == "released":
            after = released_update(scores, losses, eta=self.eta, decay=decay)
        else:
            if (arm < 0).any():
                raise OwlStateError(
                    "ExpWeightsSelector.update: the paper's update moves the drawn head, and none was "
                    "drawn since reset; call select() first"
                )
            after = paper_update(scores, losses, arm, self.chances(scores), eta=self.eta, decay=decay)
        return fixed_share(after, share)

    def chances(self, scores: FloatArray) -> FloatArray:
        """Softmax of the log-weights, with the floor mixed in."""
        return distribution(scores, min(self.floor, 0.5 / scores.shape[-1]))


def relative_losses(losses: FloatArray) -> FloatArray:
    """Losses of a step divided by the largest of that step: ``l(i) / max_j |l(j)|``; (E, n) → (E, n).

    Evidence then weighs the same in tasks with rewards of 0.01 and of 100. All-zero rows stay zero.

    >>> import numpy as np
    >>> from owlrl.selection import relative_losses
    >>> relative_losses(np.array([[1.0, 4.0], [0.0, 0.0]]))
    array([[0.25, 1.  ],
           [0.  , 0.  ]])
    """
    largest: FloatArray = np.abs(losses).max(axis=-1, keepdims=True)
    zeros: FloatArray = np.zeros_like(losses)
    return np.divide(losses, largest, out=zeros, where=largest > 0)


def score(losses: FloatArray) -> FloatArray:
    """The paper's feedback, higher is better: ``min(1 / loss, 50)`` (Algorithm 2); any shape.

    A loss of zero or less counts as perfect and scores 50.

    >>> import numpy as np
    >>> from owlrl.selection import score
    >>> score(np.array([[2.0, 0.0]]))
    array([[ 0.5, 50. ]])
    """
    return 1.0 / np.maximum(losses, 1.0 / SCORE_CAP)


def hedge_update(
    log_weights: FloatArray, losses: FloatArray, *, eta: float, decay: float = 1.0
) -> FloatArray:
    """Exponential weights with full information: ``ℓ(i) ← decay · ℓ(i) − η · l(i)``; (E, n) → (E, n).

    Every head can score every transition, so every arm learns from each step; the paper's
    Eq. 2 is the bandit form of this. Adding one number to all losses of a row changes nothing.

    >>> import numpy as np
    >>> from owlrl.selection import hedge_update
    >>> hedge_update(np.zeros((1, 2)), np.array([[3.0, 1.0]]), eta=0.5)
    array([[-1.,  0.]])
    """
    with np.errstate(over="ignore"):  # an overflow means "ruled out", which the limit says too
        excess = eta * (losses - losses.min(axis=-1, keepdims=True))
    return _normalised(decay * log_weights - np.minimum(excess, _LIMIT))


def paper_update(
    log_weights: FloatArray,
    losses: FloatArray,
    arms: IntArray,
    probabilities: FloatArray,
    *,
    eta: float,
    decay: float = 1.0,
) -> FloatArray:
    """The paper's bandit (Eq. 2): ``ℓ(i) ← ℓ(i) + η · min(1 / l(i), 50) / p(i)`` for the drawn arm only.

    ``arms`` (E,) are the drawn arms and ``probabilities`` (E, n) what they were drawn from.
    The paper has no decay.

    >>> import numpy as np
    >>> from owlrl.selection import paper_update
    >>> paper_update(np.zeros((1, 2)), np.array([[2.0, 0.1]]), np.array([0]),
    ...              np.array([[0.5, 0.5]]), eta=1.0)
    array([[ 0., -1.]])
    """
    drawn = np.arange(len(arms)), arms
    with np.errstate(over="ignore", divide="ignore"):
        gain = np.minimum(eta * score(losses[drawn]) / probabilities[drawn], _LIMIT)  # (E,)
    moved = decay * log_weights
    moved[drawn] += gain
    return _normalised(moved)


def released_update(
    log_weights: FloatArray, losses: FloatArray, *, eta: float, decay: float = 0.9
) -> FloatArray:
    """The bandit of the published code: ``ℓ ← decay · ℓ``, then ``ℓ(i) ← ℓ(i) + η · s(i) / d(i)`` for all.

    ``s(i) = min(1 / l(i), 50)`` and ``d(i) = max(exp ℓ(i), 1e-4)``. It replaces Eq. 2 of the
    paper. The divisor makes ℓ itself matter and not only its differences: no shift is taken out.

    >>> import numpy as np
    >>> from owlrl.selection import released_update
    >>> released_update(np.zeros((1, 2)), np.array([[2.0, 1.0]]), eta=1.0)
    array([[0.5, 1. ]])
    """
    decayed = decay * log_weights
    with np.errstate(over="ignore"):
        divisor = np.maximum(np.exp(np.minimum(decayed, 700.0)), 1e-4)  # exp(710) is not a float
        gain = eta * score(losses) / divisor
    return np.minimum(decayed + gain, _LIMIT)


def fixed_share(log_weights: FloatArray, share: float) -> FloatArray:
    """Fixed share (Herbster and Warmuth, 1998): ``w(i) ← (1 − share) · w(i) + share · mean(w)``.

    Every arm keeps a part of the weight that it can grow from, so a task that changes in the
    middle of an episode is followed in few steps. The sum of the weights stays.

    >>> import numpy as np
    >>> from owlrl.selection import fixed_share
    >>> np.exp(fixed_share(np.log([[0.9, 0.1]]), 0.5)).round(3)
    array([[0.7, 0.3]])
    """
    if share == 0.0:
        return log_weights
    top: FloatArray = log_weights.max(axis=-1, keepdims=True)
    weights: FloatArray = np.exp(log_weights - top)
    shared: FloatArray = (1.0 - share) * weights + share * weights.mean(axis=-1, keepdims=True)
    logs: FloatArray = np.log(np.maximum(shared, np.finfo(np.float64).tiny))
    return top + logs


def _normalised(log_weights: FloatArray) -> FloatArray:
    """The same distribution with the largest log-weight at 0 and none under the limit."""
    top: FloatArray = log_weights.max(axis=-1, keepdims=True)
    return np.maximum(log_weights - top, -_LIMIT)
