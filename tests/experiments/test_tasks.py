from __future__ import annotations

import numpy as np
import pytest

from owlrl.envs import TaskSpec, task_set
from owlrl.errors import OwlValueError
from owlrl.experiments import Run
from owlrl.experiments.session import unseen_specs
from owlrl.experiments.tasks import SideBySide, resolve_tasks, table_of, tables_of, vector_env


def test_sets_in_any_case_and_levels():
    assert resolve_tasks("crossroads-3") == task_set("Crossroads-3")
    assert resolve_tasks("SC2", {"max_steps": 50}) == task_set("SC2", max_steps=50)
    found = resolve_tasks("owlrl/SimpleCrossing-v0:14,3", {"size": 11})
    assert found == {
        f"simplecrossing-{level}": TaskSpec.of("owlrl/SimpleCrossing-v0", level=level, size=11)
        for level in (14, 3)
    }


def test_unseen_levels_have_the_actions_of_the_trained_ones():
    run = Run("owlrl/DoorKey-v0:4", arguments={"size": 5}, policies=("random",), num_envs=2)
    levels = unseen_specs(run, "S9N1:2")  # seven actions, though nobody says so
    assert [table_of(spec).num_actions for spec in levels.values()] == [7, 7]
    assert [table_of(spec).num_actions for spec in unseen_specs(Run("SC2"), "S9N2:1").values()] == [3]


def test_what_a_task_says_itself_cannot_be_an_argument():
    for text, name in {"SC3": "level", "Crossroads-3": "arms", "owlrl/Pendulum-v0:90": "angle"}.items():
        with pytest.raises(OwlValueError, match=f"arguments has {name}; expected others"):
            resolve_tasks(text, {name: 4})


def test_goal_scale_multiplies_the_reward_of_a_success_only():
    spec = resolve_tasks("Crossroads-2", {"length": 1, "breadcrumbs": True})["crossroads-0"]
    plain, scaled = table_of(spec), table_of(spec, goal_scale=100.0)
    assert np.allclose(scaled.reward, np.where(plain.goal, 100.0 * plain.reward, plain.reward))
    assert table_of(spec, goal_scale=100.0) is scaled


def test_levels_with_one_layout_share_a_table():
    def layout(level):
        env = TaskSpec.of("owlrl/SimpleCrossing-v0", level=level)(disable_env_checker=True).unwrapped
        env.reset()
        return env.grid.encode().tobytes()

    first = {}
    alike = next(
        (first[drawn], level)  # 42 layouts: two of so many must be the same
        for level in range(60)
        if first.setdefault(drawn := layout(level), level) != level
    )
    tables = tables_of(resolve_tasks("owlrl/SimpleCrossing-v0:" + ",".join(map(str, (*alike, 3)))))
    one, same, other = tables.values()
    assert one is same
    assert one is not other


@pytest.mark.parametrize(
    "spec",
    [
        TaskSpec.of("owlrl/Crossroads-v0", level=3),  # it takes no level
        TaskSpec.of("owlrl/Nothing-v0"),
        TaskSpec.of("owlrl/SimpleCrossing-v0", size=8),
    ],
)
def test_what_an_environment_objects_to_is_one_of_our_errors(spec):
    with pytest.raises(OwlValueError):
        table_of(spec)


@pytest.mark.parametrize(
    ("arguments", "message"), [({"length": 3}, "cannot be made: .*'length'"), ({"g": -1.0}, "g is -1.0")]
)
def test_what_a_pendulum_objects_to_is_said_before_anything_begins(arguments, message):
    with pytest.raises(OwlValueError, match=message):
        resolve_tasks("owlrl/Pendulum-v0:90", arguments)


def test_vectors_side_by_side_are_those_vectors():
    """Step by step against each by itself, with what ends where and how."""
    tables = [
        table_of(spec) for spec in resolve_tasks("Crossroads-2", {"length": 1, "max_steps": 5}).values()
    ]
    together, apart = (SideBySide([vector_env(t, 3) for t in tables]), [vector_env(t, 3) for t in tables])
    seen, _ = together.reset(seed=1)
    assert np.array_equal(seen, np.concatenate([env.reset(seed=1)[0] for env in apart]))
    rng, ends = np.random.default_rng(0), 0
    for _ in range(30):
        actions = rng.integers(3, size=6)
        found, infos = together.step(actions), []
        for k, env in enumerate(apart):
            own = env.step(actions[3 * k : 3 * k + 3])
            assert all(np.array_equal(found[j][3 * k : 3 * k + 3], own[j]) for j in range(4))
            infos.append(own[4])
        ended = [k for k in range(6) if infos[k // 3].get("_final_obs", np.zeros(3, bool))[k % 3]]
        assert (np.flatnonzero(found[4]["_final_obs"]).tolist() if ended else []) == ended
        for k in ended:
            ends += 1
            own = infos[k // 3]
            assert np.array_equal(found[4]["final_obs"][k], own["final_obs"][k % 3])
            assert found[4]["final_info"]["is_success"][k] == own["final_info"]["is_success"][k % 3]
    assert ends > 10
