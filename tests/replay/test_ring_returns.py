"""n-step sums against a loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.replay.ring import n_step_return


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(0, 6),
    n=st.integers(1, 6),
    gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    seed=st.integers(0, 1000),
)
def test_equals_the_loop(rows, n, gamma, seed):
    rng = np.random.default_rng(seed)
    reward = rng.normal(size=(rows, n)).astype(np.float32)
    live = rng.random((rows, n)) < 0.7
    live[:, 0] = True
    sums, discounts, steps = n_step_return(reward, live, gamma)
    for b in range(rows):
        total, k = 0.0, 0
        while k < n and live[b, k]:
            total += gamma**k * float(reward[b, k])
            k += 1
        assert steps[b] == k
        np.testing.assert_allclose(discounts[b], gamma**k, rtol=1e-6)
        np.testing.assert_allclose(sums[b], total, rtol=1e-6, atol=1e-7)
    assert sums.dtype == discounts.dtype == np.float32
    assert sums.shape == discounts.shape == steps.shape == (rows,)
