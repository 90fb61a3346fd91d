"""The environments' names in Gymnasium's registry."""

from __future__ import annotations

from typing import Any

import gymnasium

__all__ = ["register"]

ENTRY_POINTS = {
    "owlrl/SimpleCrossing-v0": "owlrl.envs.grid_levels:SimpleCrossingEnv",
    "owlrl/DoorKey-v0": "owlrl.envs.grid_levels:DoorKeyEnv",
    "owlrl/Crossroads-v0": "owlrl.envs.crossroads:CrossroadsEnv",
    "owlrl/Pendulum-v0": "owlrl.envs.pendulum:PendulumEnv",
}
MORE: dict[str, dict[str, Any]] = {  # the Pendulum does not end by itself
    "owlrl/Pendulum-v0": {
        "vector_entry_point": "owlrl.envs.pendulum:PendulumVectorEnv",
        "max_episode_steps": 200,
    }
}


def register() -> None:
    """Make the environments known to ``gymnasium.make``; a second call changes nothing."""
    for env_id, entry_point in ENTRY_POINTS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(env_id, entry_point=entry_point, **MORE.get(env_id, {}))
