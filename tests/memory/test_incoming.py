"""Time order of rows of several environments."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from owlrl.memory._incoming import in_time_order, ranges


@given(
    st.lists(st.integers(0, 3), max_size=30)
    | st.builds(lambda n, k: np.tile(range(n), k).tolist(), st.integers(1, 5), st.integers(1, 4))
    | st.builds(lambda n, k: np.repeat(range(n), k).tolist(), st.integers(1, 5), st.integers(1, 4))
)
def test_time_order_goes_step_by_step_and_keeps_each_environments_order(envs):
    columns = {"env": np.array(envs, np.int64), "place": np.arange(len(envs))}
    found = in_time_order(columns)
    steps = {env: 0 for env in set(envs)}
    ranks = []
    for env, place in zip(found["env"].tolist(), found["place"].tolist(), strict=True):
        assert envs[place] == env
        ranks.append(steps[env])
        steps[env] += 1
    assert ranks == sorted(ranks)
    for env in steps:
        assert (np.diff(found["place"][found["env"] == env]) > 0).all()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=8))
def test_ranges(pairs):
    first, length = (np.array([pair[k] for pair in pairs], np.int64) for k in range(2))
    assert ranges(first, length).tolist() == [low + k for low, count in pairs for k in range(count)]
