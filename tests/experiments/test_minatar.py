"""The study of three games: all have one form, and their seeds decide them (needs "benchmarks")."""

from __future__ import annotations

import numpy as np
import pytest

from owlrl.experiments import minatar


def test_games_have_one_form_and_a_seed_decides_them():
    pytest.importorskip("minatar.gym")
    for game in minatar.GAMES:
        one, other = minatar.make_one(game), minatar.make_one(game)
        assert one.observation_space.shape == (10, 10, minatar.CHANNELS) and one.action_space.n == 6
        seen = [env.reset(seed=3)[0] for env in (one, other)]
        assert seen[0].dtype == np.uint8 and seen[0].any()
        for action in np.random.default_rng(0).integers(6, size=30):
            steps = [env.step(int(action)) for env in (one, other)]
            np.testing.assert_array_equal(steps[0][0], steps[1][0])
            if steps[0][2]:
                break


def test_the_network_takes_all_channels_of_a_vector_of_games():
    pytest.importorskip("minatar.gym")
    env = minatar.make("breakout")
    env.reset(seed=0)
    model = minatar.make_model(env, 0)
    model.learn(64)
    assert model.q.trunk(model._tensor(env.reset(seed=0)[0])).shape == (minatar.COPIES, 128)
