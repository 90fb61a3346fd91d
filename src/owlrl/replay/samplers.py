"""Which rows a replay draws: what a sampler is, and the uniform one.

A sampler is a small object with settings that may be changed at any time
(``replay.sampler.beta = 1.0``); what it has to remember about the rows of one ring lives in
the `RowDraw` that `Sampler.bind` makes.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from owlrl.replay.ring import FrameRing

__all__ = ["RowDraw", "Sampler", "UniformSampler"]


class RowDraw(Protocol):
    """A sampler bound to one ring: draws live rows, and is told of every change to them."""

    def changed(self, added: np.ndarray, dropped: np.ndarray) -> None:
        """Rows were overwritten (``dropped``), then rows became live (``added``, may repeat them)."""
        ...

    def cleared(self) -> None:
        """No row is live any more."""
        ...

    def draw(self, count: int, rng: np.random.Generator, n_step: int) -> tuple[np.ndarray, np.ndarray | None]:
        """``count`` live rows (count,) int64, and importance weights (count,) float32 or None.

        The rows will be looked up as ``n_step`` returns.
        """
        ...

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Live ``rows`` have new ``priorities``, finite and >= 0."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What cannot be read off the ring."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``; the ring's rows are there already. ValueError if they do not fit."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """Anything that can make a `RowDraw` for a ring; one sampler may serve several rings.

    >>> from owlrl.replay import Sampler, UniformSampler
    >>> isinstance(UniformSampler(), Sampler)
    True
    """

    def bind(self, ring: FrameRing) -> RowDraw:
        """Start drawing from ``ring``, which is empty."""
        ...


class UniformSampler:
    """Every row is as likely as any other.

    >>> from owlrl.replay import UniformSampler
    >>> UniformSampler()
    UniformSampler()
    """

    def bind(self, ring: FrameRing) -> RowDraw:
        """Start drawing from ``ring``."""
        return _UniformDraw(ring)

    def __repr__(self) -> str:
        return "UniformSampler()"


class _UniformDraw:
    def __init__(self, ring: FrameRing) -> None:
        self._ring = ring

    def changed(self, added: np.ndarray, dropped: np.ndarray) -> None:
        """The ring knows its live rows."""

    def cleared(self) -> None:
        """The ring knows its live rows."""

    def draw(self, count: int, rng: np.random.Generator, n_step: int) -> tuple[np.ndarray, np.ndarray | None]:
        return self._ring.draw(count, rng), None

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """All rows stay equal, so a learner may report priorities to any sampler."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to load."""
