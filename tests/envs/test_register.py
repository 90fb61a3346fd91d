"""Importing owlrl.envs registers once; that importing owlrl does not is seen in test_architecture.py."""

from __future__ import annotations

import gymnasium

from owlrl.envs import _REGISTERED, _register


def test_a_second_time_changes_nothing():
    specs = {env_id: gymnasium.registry[env_id] for env_id in _REGISTERED}
    _register()
    assert all(gymnasium.registry[env_id] is spec for env_id, spec in specs.items())
