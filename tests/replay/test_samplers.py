"""What the uniform sampler promises; its draws are the ring's (test_ring)."""

from __future__ import annotations

import numpy as np

from owlrl.replay import PrioritizedSampler, RewardBalancedSampler, Sampler, TaskScopedReplay, UniformSampler


def test_samplers_are_samplers():
    for sampler in (UniformSampler(), PrioritizedSampler(), RewardBalancedSampler()):
        assert isinstance(sampler, Sampler)
    assert not isinstance(object(), Sampler)


def test_uniform_has_no_weights_and_ignores_priorities():
    replay = TaskScopedReplay(8, observation_shape=(), observation_dtype=np.int64, seed=0)
    for step in range(8):
        replay.add(step, 0, 0.0, step + 1, False, False)
    batch = replay.sample(8)
    assert batch.weight is None
    replay.update_priorities(np.arange(8), np.eye(8)[0])
    counts = np.bincount(np.concatenate([replay.sample(8).observation for _ in range(2000)]), minlength=8)
    np.testing.assert_allclose(counts / 2000, 1.0, atol=5 / np.sqrt(2000))


def test_one_sampler_serves_several_replays():
    sampler = PrioritizedSampler(alpha=1.0, epsilon=0.0)
    first, second = (
        TaskScopedReplay(4, observation_shape=(), observation_dtype=np.int64, seed=0, sampler=sampler)
        for _ in range(2)
    )
    for replay in (first, second):
        for step in range(2):
            replay.add(step, 0, 0.0, step + 1, False, False)
    first.update_priorities(np.array([0, 1]), np.array([0.0, 1.0]))
    second.update_priorities(np.array([0, 1]), np.array([1.0, 0.0]))
    assert {first.sample(1).observation.item() for _ in range(20)} == {1}
    assert {second.sample(1).observation.item() for _ in range(20)} == {0}
