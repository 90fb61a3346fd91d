"""The study of the arm with four goals: the goals are not seen, and the bound holds (needs "benchmarks")."""

from __future__ import annotations

import numpy as np
import pytest

from owlrl.experiments import reacher

pytestmark = pytest.mark.filterwarnings("ignore")  # of others, about types of spaces


@pytest.fixture
def envs(tmp_path, monkeypatch):
    pytest.importorskip("mujoco")
    pytest.importorskip("mo_gymnasium")
    monkeypatch.chdir(tmp_path)  # where the simulator writes its log
    found = [make() for make in reacher.tasks.values()]
    yield found
    for env in found:
        env.close()


def test_goals_are_not_seen_and_no_place_pays_more_than_the_bound_in_the_mean(envs):
    rng = np.random.default_rng(0)
    seen = [env.reset(seed=0)[0] for env in envs]
    assert len({observation.tobytes() for observation in seen}) == 1
    for _ in range(50):
        action = int(rng.integers(9))
        after = [env.step(action) for env in envs]
        assert len({observation.tobytes() for observation, *_ in after}) == 1
        assert np.mean([reward for _, reward, *_ in after]) <= 22.0 / 50 + 1e-6
    assert all(truncated for *_, truncated, _ in after)


def test_the_bound_is_that_of_the_centre():
    goals = np.array([(0.14, 0.0), (-0.14, 0.0), (0.0, 0.14), (0.0, -0.14)])
    places = np.random.default_rng(0).uniform(-0.21, 0.21, (2_000, 1, 2))
    means = (1.0 - 4.0 * np.linalg.norm(places - goals, axis=2)).mean(axis=1)
    centre = float((1.0 - 4.0 * np.linalg.norm(goals, axis=1)).mean())
    assert means.max() <= centre and 50 * centre == pytest.approx(22.0)
    assert "22.0" in reacher.note
