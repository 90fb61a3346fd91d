"""Observations go into rows and come out as the model's own preparation would have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from owlrl.adapters.sb3.replay import ObservationRows
from owlrl.errors import OwlTypeError
from tests.adapters.helpers import OBSERVATIONS, Guess, dqn

BATCH = 4


def raw_batch(name):
    env = Guess(observations=name)
    observations = [env.reset(seed=k)[0] for k in range(BATCH)]
    if name == "dict":
        return {key: np.stack([o[key] for o in observations]) for key in observations[0]}
    return np.stack(observations)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_rows_give_what_the_models_own_preparation_gives(name):
    model, batch = dqn(observations=name), raw_batch(name)
    rows = ObservationRows(model.observation_space)
    prepared = rows.prepare(batch if name == "dict" else torch.as_tensor(batch))
    assert prepared.shape == (BATCH, *rows.shape)
    assert torch.equal(rows.prepare(prepared), prepared)  # what is prepared stays as it is
    expected, _ = model.policy.obs_to_tensor(batch)
    with torch.no_grad():
        assert torch.equal(model.q_net(rows.unpack(prepared)), model.q_net(expected))


def test_parts_of_an_unknown_dict_are_named():
    rows = ObservationRows(spaces.Dict({"a": spaces.Box(0, 1, (2,))}))
    with pytest.raises(OwlTypeError, match=r"dict of \['b'\]; expected a dict of \['a'\]"):
        rows.prepare({"b": np.zeros((1, 2))})
    with pytest.raises(OwlTypeError, match="expected an array"):
        ObservationRows(spaces.Box(0, 1, (2,))).prepare({"a": np.zeros((1, 2))})
