"""Replays that know which task their rows belong to.

`TaskScopedReplay` holds the rows of one task at a time; `SharedReplay` and `RehearsalReplay` are
the paper's baselines. Which rows are drawn is decided by a sampler: `UniformSampler`,
`PrioritizedSampler` or `RewardBalancedSampler`. A script's own list or buffer is scoped by
`owlrl.adapters`.
"""

from __future__ import annotations

from owlrl.replay.balanced import RewardBalancedSampler
from owlrl.replay.prioritized import PrioritizedSampler
from owlrl.replay.samplers import RowDraw, Sampler, UniformSampler
from owlrl.replay.scoped import TaskScopedReplay
from owlrl.replay.siblings import RehearsalReplay, SharedReplay

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
