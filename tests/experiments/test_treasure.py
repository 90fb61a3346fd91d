"""Worlds whose rewards are weighted: what is exact, and a look at the comparison (needs "benchmarks")."""

from __future__ import annotations

import numpy as np
import pytest

from owlrl.envs import Table, interference
from owlrl.experiments import reproduce, treasure
from scripts.compared import STUDIES

from ..envs.helpers import line

pytestmark = pytest.mark.filterwarnings("ignore")  # of others, about types of spaces


@pytest.fixture(autouse=True)
def worlds():
    pytest.importorskip("mo_gymnasium")


@pytest.mark.parametrize(
    "world, states, mean, together",
    [("deep-sea", 72, 6.36, 2.45), ("fruit-tree", 127, 8.91, 3.95), ("resources", 94, 1.0, 1.0)],
)
def test_what_is_exact(world, states, mean, together):
    """Deep copies of these environments start over; still every state is found."""
    tables = [treasure.table_of(world, task) for task in treasure.WORLDS[world].weights]
    assert tables[0].num_states == states
    separate, found = treasure.exact(world)
    assert np.mean(list(separate.values())) == pytest.approx(mean, abs=0.005)
    assert found == pytest.approx(together, abs=0.005)
    if world in STUDIES:
        assert STUDIES[world].bound == pytest.approx(found, abs=0.005)
    discounted = interference(*tables, gamma=0.9999, tries=20)
    assert discounted.exact and discounted.best_shared == pytest.approx(found, rel=0.005)


def test_the_best_return_counts_the_steps_of_an_episode():
    table: Table = line(4, max_episode_steps=2)
    assert treasure.best_return(table, table.reward) == 0.0  # the end is three steps away
    enough = line(4, max_episode_steps=3)
    assert treasure.best_return(enough, enough.reward) == enough.reward.max()


def test_a_first_look_prints_bounds_and_tables(tmp_path):
    chosen = {"seeds": 1, "methods": ("owl",), "frames": 64, "progress": False}
    printed, errors = reproduce("treasure", tmp_path, **chosen)
    assert not errors
    assert "deep-sea: exact: separate policies deep 19.43" in printed
    assert printed.count("| owl | unknown |") == 2 and "resources: exact" in printed
    assert len(list((tmp_path / "treasure" / "fruit-tree").glob("owl-*.jsonl"))) == 1
