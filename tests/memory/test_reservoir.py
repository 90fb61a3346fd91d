"""Quotas of the strata against the exact level of the water."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from owlrl.memory._reservoir import SHARES, quotas

SEEN = st.lists(st.integers(0, 500), min_size=3, max_size=3)


def level(capacity, seen):
    """The level at which min(seen, level · share) add up to the capacity, by trying each end of a stratum."""
    for full in sorted(Fraction(rows, share) for rows, share in zip(seen, SHARES, strict=True)):
        if sum(min(rows, full * share) for rows, share in zip(seen, SHARES, strict=True)) >= capacity:
            lower = [rows for rows, share in zip(seen, SHARES, strict=True) if Fraction(rows, share) < full]
            rest = [share for rows, share in zip(seen, SHARES, strict=True) if Fraction(rows, share) >= full]
            return Fraction(capacity - sum(lower), sum(rest))
    return None


@given(st.integers(1, 600), SEEN)
def test_quotas_are_shares_of_what_others_leave(capacity, seen):
    found = quotas(capacity, seen)
    assert sum(found) <= capacity
    water = level(capacity, seen)
    if water is None or sum(seen) <= capacity:
        assert found == seen
        return
    for quota, rows, share in zip(found, seen, SHARES, strict=True):
        assert abs(quota - min(rows, water * share)) <= 2
    assert sum(found) > capacity - 3


@given(st.integers(1, 600), SEEN, st.integers(0, 2), st.integers(1, 50), st.integers(0, 50))
def test_a_quota_that_binds_never_grows(capacity, seen, stratum, more, less):
    before = quotas(capacity, seen)
    later = list(seen)
    later[stratum] += more
    after = quotas(max(1, capacity - less), later)
    for place in range(3):
        if before[place] < seen[place]:
            assert after[place] <= before[place]
