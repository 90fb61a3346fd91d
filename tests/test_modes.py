"""eval_mode puts every submodule's own mode back, whatever happens."""

import pytest
from torch import nn

from owlrl.modes import eval_mode


def test_each_submodule_gets_its_own_mode_back():
    network = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2), nn.Linear(2, 2))
    network[1].eval()
    with pytest.raises(KeyError), eval_mode(network, network[0]):
        assert not any(m.training for m in (network, network[0], network[1]))
        raise KeyError
    assert [m.training for m in network.modules()] == [True, True, False, True]
