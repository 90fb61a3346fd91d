"""A model of Stable-Baselines3 that is not wrapped, written down at a border and gone on with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN

from owlrl.adapters.sb3.whole import at_border, load_model_state, model_state, put_back
from owlrl.checkpoint import load_state, save_state
from owlrl.experiments.keeping import Journal, repeatable
from tests.adapters.helpers import BOX, KINDS, Guess, any_model, same, weights


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_model_goes_on_exactly(kind, tmp_path):
    def env():
        return Guess(3 if kind is DQN or "QR" in kind.__name__ else BOX)

    with repeatable(0):
        first = env()
        journal, model = Journal(first), any_model(kind, env=first)
        kept: list = []

        def keep() -> None:
            if 40 <= model.num_timesteps < 50 and not kept:
                kept.append(journal.state_dict())
                save_state(tmp_path / "model", {"rng": torch.get_rng_state(), **model_state(model)})
                kept.append(np.random.get_state())

        remove = at_border(model, keep)
        model.learn(90)
        remove()
    with repeatable(1):
        second = env()
        assert Journal(second).replay(kept[0])
        other = any_model(kind, env=env())
        other.set_env(put_back(other, second))
        state = load_state(tmp_path / "model")
        load_model_state(other, state)
        torch.set_rng_state(state["rng"])
        np.random.set_state(kept[1])
        other.learn(90 - other.num_timesteps, reset_num_timesteps=False)
    assert other.num_timesteps == model.num_timesteps
    assert same(weights(model), weights(other))
