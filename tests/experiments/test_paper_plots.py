"""The paper's remaining pictures: what is drawn is what the rows say."""

from __future__ import annotations

import numpy as np
import pytest

from owlrl.errors import OwlValueError
from owlrl.experiments import Run, Trial, completions, head_errors, selection_bars, selections
from owlrl.experiments.summary import Group


def checks(method: str, seed: int, scores: dict[str, list[float]]) -> Trial:
    rows = [{"kind": "training", "visit": 0, "task": "a", "steps": 40}]
    rows += [
        {"kind": "curve", "visit": 0, "step": 10 * (k + 1), "task": task, "mode": "oracle", "success": score}
        for task, of_task in scores.items()
        for k, score in enumerate(of_task)
    ]
    return Trial.of(Run("SC2", method=method, seed=seed), rows)


def test_completions_are_sums_of_solved_checks_with_quartiles():
    results = [checks("owl", seed, {"a": [1, seed, 1], "b": [0, 0, 0]}) for seed in (0, 1)]
    figure = completions([*results, checks("experience-replay", 0, {"a": [0, 0, 1], "b": [1, 1, 1]})])
    first, second = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["a", "b"]
    lines = {line.get_label(): line for line in first.get_lines()}
    assert np.allclose(lines["owl"].get_xdata(), [10, 20, 30])
    assert np.allclose(lines["owl"].get_ydata(), [1, 1.5, 2.5])  # the median of two seeds
    assert np.allclose(second.get_lines()[0].get_ydata(), 0)
    assert np.allclose(second.get_lines()[1].get_ydata(), [1, 2, 3])
    with pytest.raises(OwlValueError, match="no trial has checks with 'hedge'"):
        completions(results, mode="hedge")


def test_errors_of_heads_are_drawn_per_episode_and_the_right_head_is_bold():
    seen = {"task": "a", "mode": "hedge+td", "heads": ["a", "b"], "losses": [[0.1, 2.0], [0.2, 3.0]]}
    figure = head_errors([seen, {**seen, "task": "elsewhere"}])
    known, unknown = figure.axes
    assert known.get_title() == "a: seen" and unknown.get_title() == "elsewhere: not seen"
    assert np.allclose([line.get_ydata() for line in known.get_lines()], np.transpose(seen["losses"]))
    widths = [line.get_linewidth() for line in known.get_lines()]
    assert widths[0] > widths[1] == unknown.get_lines()[0].get_linewidth()
    with pytest.raises(OwlValueError, match="no traces"):
        head_errors([])


def evaluated(scores: dict[str, list[float]]) -> Group:
    seeds = len(next(iter(scores.values())))
    return Group(
        tuple(
            Trial.of(
                Run("SC2", seed=seed),
                [
                    {"kind": "score", "visit": 0, "mode": name, "task": "a", "success": of[seed]}
                    for name, of in scores.items()
                ],
            )
            for seed in range(seeds)
        )
    )


def test_ways_to_select_are_compared_with_random_heads():
    group = evaluated({"hedge+td": [1.0, 2.0, 3.0], "random": [2.0, 3.0, 7.0]})
    hedge, random = selections(group)
    assert hedge.scores == (1.0, 2.0, 3.0)
    assert hedge.p == pytest.approx(0.32134, abs=1e-4)  # by scipy.stats.ttest_ind(equal_var=False)
    assert hedge.better == pytest.approx(2 / 9)  # wins 1 of 9 pairs, ties 2
    assert random.p == 1.0 and random.better == 0.5
    (axes,) = selection_bars(group).axes
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([2.0, 4.0])
    assert "p = 0.32, better in 22%" in [text.get_text() for text in axes.texts]
    assert np.isnan(selections(evaluated({"random": [0.5]}))[0].p)
    with pytest.raises(OwlValueError, match="not evaluated with 'random'"):
        selections(evaluated({"hedge+td": [1.0]}))
