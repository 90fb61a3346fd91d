"""Continuous actions: which spaces a learner takes, and arrays that fit into them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from owlrl.errors import OwlTypeError, OwlValueError

__all__ = ["ActionBox", "check_observations"]


class ActionBox:
    """A bounded Box of floats; anything else is refused."""

    def __init__(self, where: str, space: Any) -> None:
        low, high = getattr(space, "low", None), getattr(space, "high", None)
        if low is None or high is None or np.dtype(space.dtype).kind != "f":
            raise OwlTypeError(f"{where}: the action space is {space}; expected a Box of floats")
        if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
            raise OwlValueError(
                f"{where}: the action space is {space}; expected finite bounds with low < high for every "
                "action (gymnasium.wrappers.RescaleAction gives an environment others)"
            )
        self.low, self.high = np.asarray(low), np.asarray(high)
        self.size = int(self.low.size)

    def draw(self, rng: np.random.Generator, rows: int) -> np.ndarray:
        """Actions ``(rows, *shape)``, uniform between the bounds."""
        share = rng.random((rows, *self.low.shape))
        # a share of each bound, since their difference may overflow
        return self._fit((1 - share) * self.low + share * self.high)

    def array(self, action: torch.Tensor) -> np.ndarray:
        """A tensor (rows, size) as ``(rows, *shape)`` in the dtype of the space and within its bounds."""
        return self._fit(action.detach().cpu().numpy().reshape(-1, *self.low.shape))

    def _fit(self, action: np.ndarray) -> np.ndarray:
        # rounding may lead out of the bounds by a bit
        action = action.astype(self.low.dtype, copy=False)
        fitting: np.ndarray = np.minimum(np.maximum(action, self.low), self.high)  # faster than np.clip
        return fitting


def check_observations(where: str, space: Any) -> int:
    """How many numbers an observation has; spaces without one shape are refused."""
    shape = getattr(space, "shape", None)
    if shape is None:
        raise OwlTypeError(
            f"{where}: the observation space is {space}; expected a Box "
            "(gymnasium.wrappers.FlattenObservation makes one)"
        )
    return int(np.prod(shape))
