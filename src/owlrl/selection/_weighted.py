"""Selectors that draw from log-weights: the weights, the draws and their saved state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from owlrl.errors import raise_problems
from owlrl.selection._base import BoolArray, EpisodeSelector, IntArray, int_problem
from owlrl.selection._draws import HeldDraws
from owlrl.selection.updates import FloatArray, distribution

__all__ = ["WeightedSelector"]


class WeightedSelector(EpisodeSelector):
    """Draws from p ∝ exp ℓ with a generator of its own; subclasses say how ℓ (E, n) learns."""

    def __init__(self, *, hold: int, seed: int | None) -> None:
        super().__init__()
        self._log_weights: FloatArray = np.zeros((0, 0))
        self._draws = HeldDraws(hold=hold, seed=seed)

    def select(self) -> int | IntArray:
        """The head to act with now: drawn from ``probabilities``, or the one still held."""
        self._require_reset("select")
        return self._arms(self._draws.step(self._probabilities()))

    def state_dict(self) -> dict[str, Any]:
        """Log-weights, held heads and the generator; hyper-parameters are the constructor's."""
        return {
            "num_heads": self._num_heads,
            "num_episodes": self._num_episodes,
            "log_weights": self._log_weights.copy(),
            **self._draws.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` gave, draws included."""
        where = f"{type(self).__name__}.load_state_dict"
        raise_problems(where, [f"{key} is missing" for key in self.state_dict() if key not in state_dict])
        num_heads, num_episodes = state_dict["num_heads"], state_dict["num_episodes"]
        problems = int_problem("num_heads", num_heads, least=0)
        if num_episodes is not None:
            problems += int_problem("num_episodes", num_episodes, least=1)
        if not problems and num_heads:
            problems = self._reset_problems(num_heads, num_episodes)
        raise_problems(where, problems)
        # num_heads 0 is the state before the first reset: there are no rows yet.
        rows = (num_episodes or 1) if num_heads else 0
        log_weights = np.asarray(state_dict["log_weights"])
        wanted = (rows, num_heads)
        if log_weights.dtype.kind not in "iuf" or log_weights.size != rows * num_heads:
            problems.append(f"log_weights has shape {log_weights.shape}; expected {wanted} numbers")
        elif not np.isfinite(log_weights).all():
            problems.append("log_weights has entries that are not finite")
        raise_problems(where, problems)
        draws = self._draws.prepared(where, state_dict, episodes=rows, arms=num_heads)
        self._num_heads, self._num_episodes = int(num_heads), num_episodes
        self._log_weights = log_weights.astype(np.float64).reshape(wanted)
        self._draws = draws

    def _start(self, rows: BoolArray, *, fresh: bool) -> None:
        if fresh:
            self._log_weights = np.zeros((len(rows), self._num_heads))
        self._log_weights[rows] = 0.0
        self._draws.start(rows, fresh=fresh)

    def _probabilities(self) -> FloatArray:
        return distribution(self._log_weights, self._smallest())

    def _smallest(self) -> float:
        """The probability that every arm keeps."""
        return 0.0
