"""Importing owlrl.envs registers, once, and importing owlrl does not."""

from __future__ import annotations

import subprocess
import sys

import gymnasium

from owlrl.envs import _REGISTERED, _register

PROBE = """
import sys, gymnasium
before = set(gymnasium.registry)
import owlrl
assert "owlrl.envs" not in sys.modules
env = gymnasium.make("owlrl.envs:owlrl/DoorKey-v0", level=4)
assert {name for name in set(gymnasium.registry) - before if name.startswith("owlrl/")} == {
    "owlrl/SimpleCrossing-v0", "owlrl/DoorKey-v0", "owlrl/Crossroads-v0", "owlrl/Pendulum-v0",
    "owlrl/Reach-v0", "owlrl/FlippedCartPole-v0", "owlrl/WeakCartPole-v0"}
"""


def test_registered_when_asked_for():
    done = subprocess.run([sys.executable, "-W", "error", "-c", PROBE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_second_time_changes_nothing():
    specs = {env_id: gymnasium.registry[env_id] for env_id in _REGISTERED}
    _register()
    assert all(gymnasium.registry[env_id] is spec for env_id, spec in specs.items())
