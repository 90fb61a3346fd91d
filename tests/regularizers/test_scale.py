"""The pull without a strength follows the learner's gradient, whatever the scale of rewards.

Adam's steps do not scale with rewards, so a plain learner itself behaves differently at another scale: its
unguarded heads drift 1.7 spreads at rewards × 0.01 and 0.15 at × 100. Equal curves are therefore asked of
learners whose own training is the same at every scale, and of plain ones that the drift is held at each.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch.nn.functional as F

from tests.regularizers.small_learners import actor_critic_drift, dqn_drift

SCALES = (0.01, 1.0, 100.0)
SEEDS = (100, 101, 102)


def test_mse_dqn_drifts_alike_at_every_scale():
    small, one, large = (dqn_drift(None, scale, F.mse_loss, 100, fair=True, steps=60) for scale in SCALES)
    assert min(one) > 0.001
    np.testing.assert_allclose(small, one, rtol=1e-4)
    np.testing.assert_allclose(large, one, rtol=1e-4)


def test_actor_and_critic_drift_alike_at_every_scale():
    small, one, large = (actor_critic_drift(None, scale, 100, fair=True, steps=60) for scale in SCALES)
    for name in ("actor", "critic"):
        assert max(one[name]) > 0.001
        np.testing.assert_allclose(small[name], one[name], rtol=1e-4)
        np.testing.assert_allclose(large[name], one[name], rtol=1e-4)


def test_a_strength_is_not_free_of_scale_for_an_actor():
    """The control of the test above: it can fail, and does with the plain penalty."""
    one, large = (actor_critic_drift(1.0, scale, 100, fair=True, steps=60)["actor"] for scale in (1.0, 100.0))
    assert np.mean(large) > 1.2 * np.mean(one)


def test_huber_dqn_drifts_alike_within_the_noise_of_seeds_and_with_a_strength_it_does_not():
    def means(strength: float | None, scale: float) -> list[float]:
        runs = (dqn_drift(strength, scale, F.smooth_l1_loss, s, fair=True, steps=80) for s in SEEDS)
        return [float(np.mean(run)) for run in runs]

    free = {scale: means(None, scale) for scale in SCALES}
    noise = max(np.std(found) for found in free.values())
    centres = [np.mean(found) for found in free.values()]
    assert max(centres) - min(centres) < 2 * noise
    raw = {scale: np.mean(means(1.0, scale)) for scale in (1.0, 100.0)}
    assert raw[1.0] > 3 * raw[100.0]  # Huber's gradient is bounded, the plain penalty's is not


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss])
def test_plain_learners_are_held_at_every_scale(scale, loss):
    free, held = (
        np.mean(dqn_drift(strength, scale, loss, SEEDS[0], fair=False, steps=80)) for strength in (0.0, None)
    )
    assert held < 0.3 * free and held < 0.2
