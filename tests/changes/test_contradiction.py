"""Contradictions beside a slow and obvious count of them."""

from __future__ import annotations

import numpy as np
import pytest

from owlrl.changes import Contradiction, History
from owlrl.changes._neighbours import NearIndex
from owlrl.changes.base import remembered
from owlrl.changes.contradiction import ExactIndex
from owlrl.errors import OwlValueError
from owlrl.memory import TaskMemory
from tests.changes.worlds import ball, ring


def learned(rows, batch=64):
    detector, history = Contradiction(), History()
    for low in range(0, len(rows), batch):
        detector.learn("a", history.follow(rows[low : low + batch]))
    return detector


def test_index_is_chosen_by_whether_observations_come_again():
    assert isinstance(learned(ring(3, 200)).tasks["a"].index, ExactIndex)
    assert isinstance(learned(ball(0, 300)).tasks["a"].index, NearIndex)


def test_exact_contradictions_are_those_of_a_plain_dictionary():
    known, new = ring(3, 2000), ring(8, 300, seed=1)
    outcomes = {}
    for s, a, r, n, e in _tuples(known):
        outcomes.setdefault((s, a), set()).add((n, e, r))
    said = learned(known).judge("a", History().follow(new))
    rows = list(_tuples(new))
    expected = [(s, a) in outcomes and (n, e, r) not in outcomes[s, a] for s, a, r, n, e in rows]
    assert said.comparable.tolist() == [(s, a) in outcomes for s, a, *_ in rows]
    assert said.contradicts.tolist() == expected and any(expected) and not all(expected)


def test_near_rows_are_those_of_a_plain_search():
    rows = ball(0, 1500)
    index = learned(rows).tasks["a"].index
    x = np.concatenate([rows.observation.numpy(), rows.action.numpy()], axis=1)
    scale = index._fitted["x_scale"]
    probe = ball(0, 20, seed=3)
    steps = History().follow(probe)
    from owlrl.changes._neighbours import columns_of_steps

    found = index._compare(columns_of_steps(steps, np.zeros(20, bool)))
    for row, place in enumerate(np.concatenate([probe.observation, probe.action], axis=1)):
        distance = np.sort(np.sqrt(np.square((x - place) / scale).sum(1)))[:5]
        np.testing.assert_allclose(found.distance[row], distance, atol=2e-3)


def test_unknown_states_say_nothing():
    detector = learned(ring(3, 2000))
    rows = ring(3, 50, seed=1)
    rows.observation.add_(1000)
    assert not detector.judge("a", History().follow(rows)).evidence.any()
    rows = ball(0, 50)
    rows.observation.add_(1000)
    assert not learned(ball(0, 2000)).judge("a", History().follow(rows)).evidence.any()


def test_a_memory_can_be_learned():
    """A task whose border was given is known by its memory."""
    memory = TaskMemory(seed=0)
    memory.add(ring(3, 2000))
    memory.settle()
    detector = Contradiction()
    detector.learn("a", remembered(memory))
    own, other = (detector.judge("a", History().follow(ring(p, 500, seed=2))) for p in (3, 8))
    assert own.contradicts.mean() < 0.01 < 0.2 < other.contradicts.mean()


@pytest.mark.parametrize("rows", [ring(3, 100), ring(3, 600), ball(0, 600)], ids=["trial", "exact", "near"])
def test_state_is_all_there_is(rows):
    detector = learned(rows)
    other = Contradiction()
    other.load_state_dict(detector.state_dict())
    steps = History().follow(rows)
    for one, two in ((detector, other), (detector, other)):
        said, again = one.judge("a", steps), two.judge("a", steps)
        np.testing.assert_array_equal(said.evidence, again.evidence)
        detector.learn("a", steps)
        other.learn("a", steps)


def test_damaged_state_is_refused_with_nothing_changed():
    detector = learned(ring(3, 600))
    state = detector.state_dict()
    before = detector.tasks
    state["tasks"]["a"]["index"]["tables"][0]["outcome"] = np.zeros(1, np.int64)
    with pytest.raises(OwlValueError, match="damaged"):
        detector.load_state_dict(state)
    assert detector.tasks is before


def _tuples(rows):
    columns = (rows.observation, rows.action, rows.reward, rows.next_observation, rows.terminated)
    return zip(*(column.tolist() for column in columns), strict=True)
