"""Random features of observation and action, the same for every task."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from owlrl.evidence._common import FloatArray

__all__ = ["RandomFeatures"]


class RandomFeatures:
    """``[1, P z, relu(W_a z + b_a)]`` of the standardised observation z, with a W for each action.

    A continuous action is part of z instead. All weights are drawn from ``seed``, so nothing but the
    mean and scale of the columns needs to be kept.
    """

    def __init__(
        self, *, mean: npt.ArrayLike, scale: npt.ArrayLike, features: int, outputs: int, seed: int
    ) -> None:
        self.mean = np.asarray(mean, dtype=np.float64)
        self.scale = np.asarray(scale, dtype=np.float64)
        self.features = features
        self.seed = seed
        self.num_outputs = min(outputs, len(self.mean))
        self.size = 1 + self.num_outputs + features
        self._projection: FloatArray | None = None
        if self.num_outputs < len(self.mean):
            draws = np.random.default_rng([seed, 0]).normal(size=(len(self.mean), outputs))
            self._projection = draws / np.sqrt(len(self.mean))
        self._weights: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}

    @classmethod
    def measure(cls, x: FloatArray, *, features: int, outputs: int, seed: int) -> RandomFeatures:
        """Features for observations like ``x`` (B, F)."""
        deviation = x.std(axis=0)
        usual = float(np.median(deviation[deviation > 0])) if deviation.any() else 1.0
        scale = np.maximum(deviation, usual)  # a column that hardly ever changes is not blown up
        return cls(mean=x.mean(axis=0), scale=scale, features=features, outputs=outputs, seed=seed)

    def state_dict(self) -> dict[str, Any]:
        """Mean and scale of the columns."""
        return {"mean": self.mean, "scale": self.scale}

    def project(self, x: FloatArray) -> FloatArray:
        """The standardised observations, (B, outputs): projected if they are wider."""
        z = (x - self.mean) / self.scale
        return z if self._projection is None else z @ self._projection

    def __call__(self, x: FloatArray, action: npt.NDArray[Any]) -> FloatArray:
        """Features (B, size) of observations (B, F) and actions (B,) or (B, D)."""
        z = (x - self.mean) / self.scale
        hidden = np.empty((len(z), self.features))
        if action.dtype.kind == "f":
            wide = np.column_stack([z, action.reshape(len(z), -1)])
            hidden[:] = self._hidden(wide, 0)
        else:
            for a in np.unique(action):
                hidden[action == a] = self._hidden(z[action == a], int(a))
        return np.column_stack([np.ones(len(z)), self.project(x), np.maximum(hidden, 0.0)])

    def _hidden(self, z: FloatArray, action: int) -> FloatArray:
        key = (z.shape[1], action)
        if key not in self._weights:
            rng = np.random.default_rng([self.seed, 1, action])
            weight = rng.normal(size=(z.shape[1], self.features)) / np.sqrt(z.shape[1])
            self._weights[key] = weight, rng.normal(size=self.features)
        weight, bias = self._weights[key]
        hidden: FloatArray = z @ weight + bias
        return hidden
