"""Exploration that each task goes through by itself."""

from __future__ import annotations

import math
from typing import Any, Literal

from owlrl.errors import raise_problems

__all__ = ["EpsilonSchedule"]


class EpsilonSchedule:
    """ε from ``start`` to ``end`` over ``frames`` frames, linearly or exponentially.

    Hand it to ``QLearner(..., per_task={"epsilon": schedule})``: each task then starts it anew,
    and a task that comes back resumes it (restarting it did worse in the paper).

    Args:
        start: ε at the first frame.
        end: ε in the end.
        frames: frames it takes (linear), or the decay constant (exponential).
        shape: "linear", or "exponential": ``end + (start − end)·exp(−t / frames)``.

    >>> from owlrl.learners import EpsilonSchedule
    >>> epsilon = EpsilonSchedule(1.0, 0.2, frames=100)
    >>> epsilon.advance(50)
    >>> epsilon.value
    0.6
    """

    def __init__(
        self, start: float, end: float, *, frames: int, shape: Literal["linear", "exponential"] = "linear"
    ) -> None:
        problems = [
            f"{name} is {value!r}; expected a number from 0 to 1"
            for name, value in (("start", start), ("end", end))
            if not 0 <= value <= 1
        ]
        if frames < 1:
            problems.append(f"frames is {frames!r}; expected an int >= 1")
        if shape not in ("linear", "exponential"):
            problems.append(f"shape is {shape!r}; expected 'linear' or 'exponential'")
        raise_problems("EpsilonSchedule", problems)
        self.start = start
        self.end = end
        self.frames = frames
        self.shape = shape
        self.seen = 0

    @property
    def value(self) -> float:
        """ε now."""
        if self.shape == "exponential":
            return self.end + (self.start - self.end) * math.exp(-self.seen / self.frames)
        return self.start + (self.end - self.start) * min(1.0, self.seen / self.frames)

    def advance(self, frames: int) -> None:
        """Count ``frames`` more."""
        self.seen += frames

    def state_dict(self) -> dict[str, Any]:
        """How many frames were seen."""
        return {"seen": self.seen}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Go on from there."""
        self.seen = int(state_dict["seen"])
