"""Pictures of ways to select a head say what the rows say."""

from __future__ import annotations

import numpy as np
import pytest

from owlrl.errors import OwlValueError
from owlrl.experiments import Run, Trial, selection_bars, selection_curves, selections
from owlrl.experiments.results import Group


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


def followed(seed: int, shares: list[float], *, method: str = "owl") -> Trial:
    """Two tasks for ten frames each; after each visit the share of right heads is also every score."""
    rows = []
    for visit, task in enumerate("ab"):
        rows.append({"kind": "training", "visit": visit, "task": task, "steps": 10})
        rows.append(
            {"kind": "curve", "visit": visit, "step": 5, "task": task, "mode": "oracle", "success": 1}
        )
        for mode, found in (("oracle", 1.0), ("hedge+td", shares[visit])):
            for of in "ab":
                told = {"task": of, "success": found, "found": found if of <= task else None}
                rows.append({"kind": "score", "visit": visit, "mode": mode, **told})
    return Trial.of(Run("SC2", method=method, seed=seed), rows)


def test_scores_and_right_heads_are_followed_through_training():
    trials = [followed(seed, [1.0, share]) for seed, share in enumerate((0.0, 0.5, 0.75))]
    score, right = selection_curves(trials).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in score.get_lines()}
    assert lines["oracle"] == [[5, 1.0], [10, 1.0], [15, 1.0], [20, 1.0]]
    assert lines["hedge+td"] == [[10, 1.0], [20, 0.5]]  # the median seed
    (line,) = right.get_lines()  # with the task given, no head is looked for
    assert line.get_xydata().tolist() == [[10, 1.0], [20, 0.5]]
    (shade,) = right.collections
    heights = shade.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (0.25, 1.0)  # quartiles
    (only,) = selection_curves(trials, modes=["hedge+td"]).axes[0].get_lines()
    assert only.get_label() == "hedge+td"


def test_curves_of_other_runs_and_modes_are_refused():
    with pytest.raises(OwlValueError, match="trials are of 2 runs; expected those of one"):
        selection_curves([followed(0, [1, 1]), followed(0, [1, 1], method="owl-loss")])
    with pytest.raises(OwlValueError, match="trials are of 0 runs"):
        selection_curves([])
    with pytest.raises(OwlValueError, match=r"modes has random; owl has oracle, hedge\+td"):
        selection_curves([followed(0, [1, 1])], modes=["random"])
