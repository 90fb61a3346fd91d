"""The study of HalfCheetah: its two tasks are opposed, and its bound holds (needs the extra "mujoco")."""

from __future__ import annotations

import numpy as np
import pytest

from owlrl.experiments import cheetah
from owlrl.learners import SAC


@pytest.fixture
def envs(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)  # where the simulator writes its log
    found = [make() for make in cheetah.tasks.values()]
    yield found
    for env in found:
        env.close()


def test_rewards_are_opposed_but_for_the_cost_of_actions(envs):
    """So that the mean over both tasks of what any actions give is minus their cost."""
    observations = [env.reset(seed=0)[0] for env in envs]
    rng = np.random.default_rng(0)
    for _ in range(20):
        action = rng.uniform(-1, 1, 6).astype(np.float32)
        (one, forward, *_), (other, backward, *_) = (env.step(action) for env in envs)
        np.testing.assert_array_equal(one, other)
        assert forward + backward == pytest.approx(-2 * 0.1 * float(np.square(action).sum()), abs=1e-6)
    assert observations[0].shape == (17,)


def test_both_learners_are_sac_of_one_size(envs):
    model = cheetah.make_model(envs[0], 3)
    assert type(model).__name__ == "SAC" and model.seed == 3 and model.batch_size == 128
    learned = cheetah.methods[-1].start(cheetah.make_model, envs[0], 3)
    assert isinstance(learned.model, SAC) and learned.model.config.batch_size == 128
    sizes = [sum(w.numel() for w in net.parameters()) for net in (model.actor.mu, model.actor.latent_pi)]
    assert sum(sizes) == 6 * 65 + 64 * 18 + 64 * 65
