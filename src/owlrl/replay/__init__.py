"""Replays that know which task their rows belong to.

`TaskScopedReplay` holds the rows of one task at a time; `SharedReplay` and `RehearsalReplay` are
the paper's baselines. Which rows are drawn is decided by a sampler: `UniformSampler`,
`PrioritizedSampler` or `RewardBalancedSampler`.
"""

from __future__ import annotations

from owlrl.replay.samplers import (
    PrioritizedSampler,
    RewardBalancedSampler,
    RowDraw,
    Sampler,
    UniformSampler,
)
from owlrl.replay.scoped import RehearsalReplay, SharedReplay, TaskScopedReplay

__all__ = [
    "PrioritizedSampler",
    "RehearsalReplay",
    "RewardBalancedSampler",
    "RowDraw",
    "Sampler",
    "SharedReplay",
    "TaskScopedReplay",
    "UniformSampler",
]
