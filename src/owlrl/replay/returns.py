"""n-step returns, once, as a pure function."""

from __future__ import annotations

import numpy as np

__all__ = ["n_step_return"]


def n_step_return(
    reward: np.ndarray, live: np.ndarray, gamma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Discounted sums of the rewards up to the first row that is not live.

    ``reward`` and ``live`` are (B, n): row b looks n steps ahead, and ``live[:, 0]`` is true.
    Returns the sums ``Σ_{i<k} γ^i r_i`` (B,) float32, the discounts ``γ^k`` (B,) float32 and the
    number of steps summed, k (B,), from 1 to n.

    >>> import numpy as np
    >>> from owlrl.replay.returns import n_step_return
    >>> n_step_return(np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]),
    ...               np.array([[True, True, True], [True, False, True]]), 0.5)
    (array([3., 1.], dtype=float32), array([0.125, 0.5  ], dtype=float32), array([3, 1]))
    """
    summed = np.logical_and.accumulate(live, axis=1)
    steps = summed.sum(axis=1)
    powers = np.power(gamma, np.arange(reward.shape[1] + 1))  # (n + 1,) float64, rounded once at the end
    sums = (reward * summed) @ powers[:-1]
    return sums.astype(np.float32), powers[steps].astype(np.float32), steps
