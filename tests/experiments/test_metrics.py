"""Metrics against the slow and obvious way to compute them."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from owlrl.errors import OwlValueError
from owlrl.experiments.metrics import (
    cumulative_performance,
    final_performance,
    forgetting,
    forward_transfer,
    identification_accuracy,
    iqm,
    iqm_over_seeds,
    mean_score,
    probability_of_improvement,
    regret,
    steps_to_identify,
    stratified_bootstrap,
    welch_test,
)

UNIT = st.floats(0, 1, width=16)


@st.composite
def sequences(draw):
    """A table of K tasks learned one after the other with P evaluations each, and when each was trained."""
    tasks, points = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rows, spans = [], {}
    for k in range(tasks):
        spans[f"t{k}"] = (k * points * 10, (k + 1) * points * 10)
        for p in range(1, points + 1):
            step = (k * points + p) * 10
            rows += [(step, f"t{j}", draw(UNIT)) for j in range(k + 1)]
    return draw(st.permutations(rows)), spans


@settings(max_examples=40)
@given(sequences())
def test_performance_equals_plain_averages(sequence):
    rows, _ = sequence
    at = defaultdict(list)
    for step, _task, number in rows:
        at[step].append(number)
    last = at[max(at)]
    assert final_performance(rows) == pytest.approx(sum(last) / len(last))
    means = [sum(found) / len(found) for found in at.values()]
    assert cumulative_performance(rows) == pytest.approx(sum(means) / len(means))


@settings(max_examples=40)
@given(sequences())
def test_forgetting_is_what_was_lost_since_a_task_was_left(sequence):
    rows, spans = sequence
    by = {(step, task): number for step, task, number in rows}
    end = max(step for step, _, _ in rows)
    lost = sum(by[last, task] - by[end, task] for task, (_, last) in spans.items())
    assert forgetting(rows, spans) == pytest.approx(lost / len(spans))


@settings(max_examples=40)
@given(sequences(), st.lists(st.floats(0, 0.9), min_size=4, max_size=4))
def test_forward_transfer_is_the_gain_in_area_over_what_was_left_to_gain(sequence, alone):
    rows, spans = sequence
    reference = dict(zip((f"t{k}" for k in range(4)), alone, strict=True))
    gains = []
    for task, (start, end) in spans.items():
        inside = [number for step, name, number in rows if name == task and start < step <= end]
        area = sum(inside) / len(inside)
        assert mean_score(rows, task, (start, end)) == pytest.approx(area)
        gains.append((area - reference[task]) / (1 - reference[task]))
    assert forward_transfer(rows, spans, reference) == pytest.approx(sum(gains) / len(gains))


def test_forward_transfer_leaves_out_tasks_that_were_perfect_alone():
    rows = [(1, "a", 0.5), (2, "b", 1.0)]
    spans = {"a": (0, 1), "b": (1, 2)}
    assert forward_transfer(rows, spans, {"a": 1.0, "b": 0.5}) == 1.0
    assert math.isnan(forward_transfer(rows, spans, {"a": 1.0, "b": 1.0}))


@st.composite
def acted(draw):
    steps, episodes, heads = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    whole = st.integers(0, heads - 1)
    arms = draw(hnp.arrays(np.int64, (steps, episodes), elements=whole))
    lengths = draw(hnp.arrays(np.int64, (episodes,), elements=st.integers(1, steps)))
    return arms, lengths, draw(hnp.arrays(np.int64, (episodes,), elements=whole))


@settings(max_examples=60)
@given(acted())
def test_identification_equals_a_walk_back_through_each_episode(episodes):
    arms, lengths, truth = episodes
    right, steps = [], []
    for e, length in enumerate(lengths):
        chosen = list(arms[:length, e])
        right.append(chosen[-1] == truth[e])
        while chosen and chosen[-1] == truth[e]:
            chosen.pop()
        steps.append(len(chosen))
    assert identification_accuracy(arms, lengths, truth) == pytest.approx(sum(right) / len(right))
    assert steps_to_identify(arms, lengths, truth).tolist() == steps


def test_regret_is_the_mean_difference():
    assert regret([[1.0, 0.5]], [[0.25, 0.75]]) == pytest.approx(0.25)


@settings(max_examples=40)
@given(st.lists(UNIT, min_size=1, max_size=13))
def test_iqm_is_the_mean_without_a_quarter_at_each_end(scores):
    cut = int(0.25 * len(scores))
    middle = sorted(scores)[cut : len(scores) - cut]
    assert float(iqm(scores)) == pytest.approx(sum(middle) / len(middle))


def test_iqm_works_on_the_last_axis():
    scores = np.random.default_rng(0).random((3, 7))
    assert iqm(scores) == pytest.approx([float(iqm(row)) for row in scores])


def test_iqm_over_seeds_does_not_cut_tasks_away():
    scores = np.random.default_rng(0).random((2, 9, 4))
    slow = [float(iqm([sum(seed) / 4 for seed in block])) for block in scores]
    assert iqm_over_seeds(scores) == pytest.approx(slow)
    assert float(iqm_over_seeds([[1.0, 1.0, 1.0, 0.0]])) == 0.75


def test_bootstrap_equals_a_loop_over_resamples():
    scores = np.random.default_rng(1).random((5, 3))
    drawn = np.random.default_rng(7).integers(5, size=(200, 5, 3))
    found = []
    for resample in drawn:
        means = [sum(scores[resample[s, t], t] for t in range(3)) / 3 for s in range(5)]
        found.append(float(iqm(means)))
    low, high = np.quantile(found, [0.05, 0.95])
    assert stratified_bootstrap(scores, level=0.9, resamples=200, seed=7) == pytest.approx((low, high))


def test_bootstrap_never_mixes_tasks():
    def first_task(scores):
        return scores[..., 0].mean(-1)

    assert stratified_bootstrap([[1.0, 0.0], [1.0, 0.0]], statistic=first_task) == (1.0, 1.0)


def test_bootstrap_interval_covers_the_mean_about_as_often_as_it_says():
    generator = np.random.default_rng(0)
    inside = 0
    for trial in range(100):
        scores = generator.normal(size=(20, 2))
        low, high = stratified_bootstrap(
            scores, statistic=lambda drawn: drawn.mean((-1, -2)), resamples=300, seed=trial
        )
        inside += low <= 0.0 <= high
    assert 85 <= inside <= 99


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: final_performance([]), "the table is empty"),
        (lambda: cumulative_performance([]), "the table is empty"),
        (lambda: forgetting([(1, "a", 1.0)], {"a": (0, 2)}), "no score of 'a' at step 2"),
        (lambda: forgetting([(1, "a", 1.0), (2, "b", 1.0)], {"a": (0, 1)}), "its last, 2"),
        (lambda: mean_score([(1, "a", 1.0)], "a", (1, 2)), "no score of 'a' in steps 1 to 2"),
        (lambda: regret([1.0], [1.0, 1.0]), r"shapes are \(1,\) and \(2,\)"),
        (lambda: regret([], []), "not empty"),
        (lambda: iqm([]), "scores are empty"),
        (lambda: iqm([0.5, float("nan"), 1.0, 2.0]), "some scores are NaN"),
        (lambda: stratified_bootstrap([[1.0]], level=95), "level is 95"),
        (lambda: stratified_bootstrap([[1.0]], resamples=0), "resamples is 0"),
        (lambda: forgetting([(1, "a", 1.0)], {}), "spans are empty"),
        (lambda: forward_transfer([(1, "a", 1.0)], {"a": (0, 1)}, {}), "reference lacks a"),
        (lambda: stratified_bootstrap([1.0]), r"expected \(seeds, tasks\)"),
        (lambda: steps_to_identify([0], [1], [0]), r"expected \(T, E\)"),
        (lambda: steps_to_identify([[0]], [2], [0]), "lengths go from 2 to 2; expected 1 to 1"),
        (lambda: identification_accuracy([[0]], [0], [0]), "expected 1 to 1"),
        (lambda: welch_test([1.0], [1.0, 2.0]), "expected two scores at least"),
        (lambda: probability_of_improvement([], [1.0]), "expected a score per seed"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(OwlValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("first", "second", "p"),  # by scipy.stats.ttest_ind(first, second, equal_var=False)
    [
        ([1.0, 2.0], [5.0, 6.1], 0.03270806627),
        ([1.0, 2.0, 3.0], [2.0, 3.0, 7.0], 0.32134185513),
        ([0.2, 0.4, 0.4, 0.6, 0.2], [1.0, 0.8, 1.0, 1.0, 1.0], 0.00036890842),
    ],
)
def test_welch_s_test_gives_the_p_value_of_the_reference(first, second, p):
    assert welch_test(first, second) == pytest.approx(p, rel=1e-5) == welch_test(second, first)


def test_welch_s_test_where_nothing_varies():
    assert welch_test([0.5, 0.5], [0.5, 0.5]) == 1.0 and welch_test([0.0, 0.0], [1.0, 1.0]) == 0.0


@given(
    hnp.arrays(np.float64, st.integers(1, 6), elements=UNIT),
    hnp.arrays(np.float64, st.integers(1, 6), elements=UNIT),
)
def test_the_probability_of_improvement_counts_pairs(first, second):
    wins = [(x > y) + 0.5 * (x == y) for x in first for y in second]
    found = probability_of_improvement(first, second)
    assert found == pytest.approx(np.mean(wins))
    assert found + probability_of_improvement(second, first) == pytest.approx(1.0)
