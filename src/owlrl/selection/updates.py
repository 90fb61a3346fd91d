"""The formulas of selection, each once, as pure functions on arrays.

E episodes side by side, n heads (the arms). ``log_weights`` is ℓ (E, n), and p(i) ∝ exp ℓ(i).
All stay finite for every finite input up to ±1e300, so the probabilities always sum to 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = [
    "SCORE_CAP",
    "distribution",
    "draw",
    "fixed_share",
    "hedge_update",
    "paper_update",
    "relative_losses",
    "released_update",
    "score",
]

FloatArray = npt.NDArray[np.float64]

SCORE_CAP = 50.0  # the paper's cap on 1 / Ĝ
_LIMIT = 1e300  # keeps sums of two log-weights inside float64


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

    A loss of zero, or below it, cannot be told from a perfect one and scores 50.

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
    arms: npt.NDArray[np.int64],
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


def distribution(log_weights: FloatArray, floor: float = 0.0) -> FloatArray:
    """Probabilities ``(1 − n · floor) · softmax(ℓ) + floor``; (E, n) → (E, n), rows sum to 1.

    >>> import numpy as np
    >>> from owlrl.selection import distribution
    >>> distribution(np.array([[0.0, -1e300]]), floor=0.1)
    array([[0.9, 0.1]])
    """
    weights: FloatArray = np.exp(log_weights - log_weights.max(axis=-1, keepdims=True))
    softmax: FloatArray = weights / weights.sum(axis=-1, keepdims=True)
    mixed: FloatArray = (1.0 - log_weights.shape[-1] * floor) * softmax + floor
    return mixed


def draw(probabilities: FloatArray, uniforms: FloatArray) -> npt.NDArray[np.int64]:
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
    arms: npt.NDArray[np.int64] = (cumulative <= thresholds).sum(axis=-1, dtype=np.int64)
    return arms


def _normalised(log_weights: FloatArray) -> FloatArray:
    """The same distribution with the largest log-weight at 0 and none under the limit."""
    top: FloatArray = log_weights.max(axis=-1, keepdims=True)
    return np.maximum(log_weights - top, -_LIMIT)
