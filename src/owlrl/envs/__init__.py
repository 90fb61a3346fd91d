"""Tasks for continual learning, registered under ``owlrl/…`` when this package is imported.

``gymnasium.make("owlrl.envs:owlrl/SimpleCrossing-v0", level=3)`` imports it by itself. The Pendulum has
continuous actions. All others are deterministic MiniGrid environments with 7×7×3 image observations: they can
be tabulated, stepped by look-up, and asked how much they contradict each other.
"""

from __future__ import annotations

from owlrl.envs._register import register
from owlrl.envs.conflict import Interference, contradiction, interference
from owlrl.envs.crossroads import CrossroadsEnv
from owlrl.envs.estimate import estimate_interference
from owlrl.envs.grid_levels import DoorKeyEnv, GridTaskEnv, SimpleCrossingEnv
from owlrl.envs.pendulum import PendulumEnv, PendulumVectorEnv
from owlrl.envs.screen import ScreenResult, screen_level
from owlrl.envs.table import Table
from owlrl.envs.tabulated import TabulatedEnv, TabulatedVectorEnv
from owlrl.envs.tabulation import tabulate
from owlrl.envs.task_sets import (
    TASK_SETS,
    UNSEEN_KINDS,
    TaskSpec,
    levels,
    pendulums,
    task_set,
    unseen_levels,
)
from owlrl.envs.wrappers import CountBonus, ScaleGoalReward

__all__ = [
    "TASK_SETS",
    "UNSEEN_KINDS",
    "CountBonus",
    "CrossroadsEnv",
    "DoorKeyEnv",
    "GridTaskEnv",
    "Interference",
    "PendulumEnv",
    "PendulumVectorEnv",
    "ScaleGoalReward",
    "ScreenResult",
    "SimpleCrossingEnv",
    "Table",
    "TabulatedEnv",
    "TabulatedVectorEnv",
    "TaskSpec",
    "contradiction",
    "estimate_interference",
    "interference",
    "levels",
    "pendulums",
    "screen_level",
    "tabulate",
    "task_set",
    "unseen_levels",
]

register()
