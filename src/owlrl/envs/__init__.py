"""Tasks for continual learning, registered under ``owlrl/…`` when this package is imported.

``gymnasium.make("owlrl.envs:owlrl/SimpleCrossing-v0", level=3)`` also imports it. Levels and Crossroads
are deterministic MiniGrid environments with 7×7×3 image observations: they can be tabulated, stepped by
look-up, and tested for how much they contradict each other. Pendulum and Reach have continuous actions.
`Switching` makes a stream of unlabelled tasks of any of them.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.envs.registration import WrapperSpec

from owlrl.envs.crossroads import CrossroadsEnv
from owlrl.envs.grid_levels import DoorKeyEnv, GridTaskEnv, SimpleCrossingEnv
from owlrl.envs.interference import (
    Interference,
    InterferenceEstimate,
    contradiction,
    estimate_interference,
    interference,
)
from owlrl.envs.pendulum import PendulumEnv, PendulumVectorEnv
from owlrl.envs.reach import ReachEnv, ReachVectorEnv, best_return, reach_goals, single_policy_bound
from owlrl.envs.screen import ScreenResult, screen_level
from owlrl.envs.switching import Switching, SwitchingVectorEnv
from owlrl.envs.table import Table, TabulatedEnv, TabulatedVectorEnv
from owlrl.envs.tabulate import tabulate
from owlrl.envs.task_sets import (
    TASK_SETS,
    UNSEEN_KINDS,
    TaskSpec,
    cart_poles,
    levels,
    pendulums,
    reaches,
    task_set,
    unseen_levels,
)
from owlrl.envs.wrappers import CountBonus, Resumable, ScaleGoalReward, SwapActions, WeakPush

__all__ = [
    "TASK_SETS",
    "UNSEEN_KINDS",
    "CountBonus",
    "CrossroadsEnv",
    "DoorKeyEnv",
    "GridTaskEnv",
    "Interference",
    "InterferenceEstimate",
    "PendulumEnv",
    "PendulumVectorEnv",
    "ReachEnv",
    "ReachVectorEnv",
    "Resumable",
    "ScaleGoalReward",
    "ScreenResult",
    "SimpleCrossingEnv",
    "SwapActions",
    "Switching",
    "SwitchingVectorEnv",
    "Table",
    "TabulatedEnv",
    "TabulatedVectorEnv",
    "TaskSpec",
    "WeakPush",
    "best_return",
    "cart_poles",
    "contradiction",
    "estimate_interference",
    "interference",
    "levels",
    "pendulums",
    "reach_goals",
    "reaches",
    "screen_level",
    "single_policy_bound",
    "tabulate",
    "task_set",
    "unseen_levels",
]


def _wrapped_cart_pole(wrapper: str, **kwargs: Any) -> dict[str, Any]:
    spec = WrapperSpec(wrapper, f"owlrl.envs.wrappers:{wrapper}", kwargs)
    entry_point = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    return {"entry_point": entry_point, "max_episode_steps": 500, "additional_wrappers": (spec,)}


_REGISTERED: dict[str, dict[str, Any]] = {
    "owlrl/SimpleCrossing-v0": {"entry_point": "owlrl.envs.grid_levels:SimpleCrossingEnv"},
    "owlrl/DoorKey-v0": {"entry_point": "owlrl.envs.grid_levels:DoorKeyEnv"},
    "owlrl/Crossroads-v0": {"entry_point": "owlrl.envs.crossroads:CrossroadsEnv"},
    "owlrl/Pendulum-v0": {
        "entry_point": "owlrl.envs.pendulum:PendulumEnv",
        "vector_entry_point": "owlrl.envs.pendulum:PendulumVectorEnv",
        "max_episode_steps": 200,
    },
    "owlrl/Reach-v0": {
        "entry_point": "owlrl.envs.reach:ReachEnv",
        "vector_entry_point": "owlrl.envs.reach:ReachVectorEnv",
        "max_episode_steps": 20,
    },
    "owlrl/FlippedCartPole-v0": _wrapped_cart_pole("SwapActions", order=None),
    "owlrl/WeakCartPole-v0": _wrapped_cart_pole("WeakPush", factor=0.5),
}


def _register() -> None:
    """Make the environments known to ``gymnasium.make``; a second call changes nothing."""
    for env_id, arguments in _REGISTERED.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, **arguments)


_register()
