"""The plain detectors find what they can see, and are blind to the rest."""

from __future__ import annotations

import numpy as np

from owlrl.changes import ChangeFinder, History, ModelErrors, RewardDrift
from tests.changes.test_finder import follow
from tests.changes.worlds import ball


def found_by(detector, pieces):
    finder = ChangeFinder(detector)
    finder.enter("task 0", new=True)
    return follow(pieces, finder=finder)[1]


def test_reward_drift_sees_rewards_alone():
    rows = ball(0, 2000)
    assert found_by(RewardDrift(), [rows, ball(0, 1000, seed=1, target=3.0)])[1]
    moved = ball(0, 1000, seed=1)
    moved.next_observation.add_(1.0)  # other dynamics, the same rewards
    detector, history = RewardDrift(), History()
    detector.learn("a", history.follow(rows))
    assert detector.judge("a", history.follow(moved)).evidence.mean() < 0
    assert found_by(ModelErrors(), [rows, moved])[1]


def test_mean_and_deviation_are_those_of_all_rewards():
    detector, history, rows = RewardDrift(), History(), ball(0, 700)
    for low in range(0, 700, 64):
        detector.learn("a", history.follow(rows[low : low + 64]))
    model = detector.tasks["a"]
    np.testing.assert_allclose(
        [model.mean, model.squares / 700], [rows.reward.mean(), rows.reward.numpy().var()], rtol=1e-5
    )


def test_states_go_on():
    steps = History().follow(ball(0, 600))
    for kind in (RewardDrift, ModelErrors):
        one, other = kind(), kind()
        one.learn("a", steps)
        other.load_state_dict(one.state_dict())
        np.testing.assert_array_equal(one.judge("a", steps).evidence, other.judge("a", steps).evidence)
