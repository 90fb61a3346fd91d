"""The command ``owlrl demo``."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from owlrl.errors import OwlValueError
from owlrl.experiments.demo import run_demo
from owlrl.experiments.pendulum_demo import run_pendulum_demo
from owlrl.experiments.training import repeatable

__all__ = ["Demo"]


@dataclass(frozen=True)
class Demo:
    """Show in two minutes what one head cannot do and OWL can.

    >>> from owlrl.experiments.commands import Demo
    >>> Demo().name
    'crossroads'
    """

    name: Literal["crossroads", "pendulum"] = "crossroads"
    """which one; it may be said without the option's name"""
    arms: int | None = None
    """tasks at the crossroads, 2 to 8; 4 if left out"""
    frames: int | None = None
    """per task; 30000 at the crossroads, 5000 for the Pendulum"""
    seed: int = 0
    """of everything"""
    picture: Path = Path("runs/demo.png")
    """where the picture goes"""

    def __call__(self) -> int:
        """Train, print the table, draw the picture."""
        start = time.monotonic()
        pendulum = self.name == "pendulum"
        if pendulum and self.arms is not None:
            raise OwlValueError(f"arms is {self.arms}; the Pendulum has none, leave it out")
        chosen: dict[str, Any] = {"arms": self.arms, "frames": self.frames}
        given = {name: value for name, value in chosen.items() if value is not None}
        with repeatable(self.seed):
            run = run_pendulum_demo if pendulum else run_demo
            demo = run(seed=self.seed, output=self.picture, **given)
        shown = "Return of an episode" if pendulum else "Share of episodes that reached the goal that pays"
        print(f"\n{shown}:\n\n{demo.table()}\n")
        moving = (
            f" {self.picture.with_suffix('.gif')} shows one episode, the task not told." if pendulum else ""
        )
        print(f"{time.monotonic() - start:.0f} s. The picture is {self.picture}.{moving}")
        return 0
