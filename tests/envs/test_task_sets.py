"""The named sets, and levels that no training has seen."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from owlrl.envs import TASK_SETS, UNSEEN_KINDS, TaskSpec, levels, pendulums, tabulate, task_set, unseen_levels
from owlrl.envs.task_sets import layout_of
from owlrl.errors import OwlValueError


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("SC2", [3, 7]),
        ("SC3", [3, 7, 14]),
        ("SC5", [2, 7, 17, 24, 31]),
        ("SC12", [2, 3, 7, 9, 13, 14, 17, 23, 24, 27, 31, 54]),
    ],
)
def test_crossing_sets(name, numbers):
    tasks = task_set(name)
    assert list(tasks) == [f"simplecrossing-{number}" for number in numbers]
    for number, task in zip(numbers, tasks.values(), strict=True):
        env = task().unwrapped
        assert (env.level, env.width, env.num_crossings, env.num_actions) == (number, 9, 1, 3)
    assert len({layout_of(task) for task in tasks.values()}) == len(numbers)


def test_crossings_with_doors_share_their_actions():
    tasks = task_set("SC3+DK2", max_steps=70)
    assert list(tasks) == [
        "simplecrossing-3",
        "simplecrossing-7",
        "simplecrossing-14",
        "doorkey-4",
        "doorkey-6",
    ]
    for task in tasks.values():
        env = task()
        assert env.action_space.n == 7
        assert env.unwrapped.max_steps == 70
        assert env.observation_space.shape == (7, 7, 3)


@pytest.mark.parametrize("arms", range(2, 9))
def test_crossroads_sets(arms):
    tasks = task_set(f"Crossroads-{arms}", breadcrumbs=True)
    made = [task().unwrapped for task in tasks.values()]
    assert [(env.arms, env.task, env.breadcrumbs) for env in made] == [
        (arms, task, True) for task in range(arms)
    ]


def test_all_sets_can_be_asked_for():
    assert all(isinstance(task, TaskSpec) for name in TASK_SETS for task in task_set(name).values())
    with pytest.raises(OwlValueError, match="expected one of SC2, SC3"):
        task_set("SC4")


def test_a_spec_makes_new_environments_and_one_table():
    spec = TaskSpec.of("owlrl/Crossroads-v0", arms=2, length=2)
    assert spec() is not spec()
    assert spec(task=1).unwrapped.task == 1
    assert spec.kwargs == {"arms": 2, "length": 2}
    assert spec.table() is TaskSpec.of("owlrl/Crossroads-v0", arms=2, length=2).table()
    assert spec.table().name == "owlrl/Crossroads-v0(arms=2, length=2)"
    assert eval(repr(spec), {"TaskSpec": TaskSpec}) == spec


def test_levels_of_any_environment():
    assert levels("owlrl/DoorKey-v0", [4], size=6) == {
        "doorkey-4": TaskSpec.of("owlrl/DoorKey-v0", level=4, size=6)
    }
    assert list(levels("odd", [1])) == ["odd-1"]


@pytest.mark.parametrize("kind", UNSEEN_KINDS)
def test_unseen_levels(kind):
    trained = task_set("SC5")
    tasks = unseen_levels(kind, 30, exclude=trained.values(), max_steps=50)
    assert len(tasks) == 30
    avoid = {layout_of(task) for task in trained.values()}
    env = next(iter(tasks.values()))().unwrapped
    assert (env.width, env.num_crossings, env.max_steps) == (*UNSEEN_KINDS[kind].values(), 50)
    assert not avoid & {layout_of(task) for task in tasks.values()}
    assert tasks == unseen_levels(kind, 30, exclude=(2, 7, 17, 24, 31), max_steps=50) or kind != "S9N1"


def test_distinct_levels_run_out():
    found = unseen_levels("S9N1", 37, exclude=task_set("SC5"), distinct=True)
    assert len({layout_of(task) for task in found.values()}) == 37
    with pytest.raises(OwlValueError, match="n is 38 and S9N1 has only 37 layouts left"):
        unseen_levels("S9N1", 38, exclude=task_set("SC5").values(), distinct=True)


def test_bad_arguments_are_all_named():
    with pytest.raises(OwlValueError, match="4 problems"):
        unseen_levels("S9", 0, first=-1, distinct=1)


def test_the_registry_needs_no_import_of_ours():
    env = gymnasium.make("owlrl.envs:owlrl/SimpleCrossing-v0", level=3)
    seen, _ = env.reset()
    assert np.array_equal(seen, task_set("SC3")["simplecrossing-3"]().reset()[0])


def test_numbers_may_be_numpy_s():
    (task,) = levels("owlrl/SimpleCrossing-v0", np.arange(3, 4)).values()
    task().reset(seed=0)
    assert tabulate(task(), seed=np.int64(0)).num_states == 169
    assert unseen_levels("S9N1", 1, first=np.int64(5), exclude=np.array([3])) == unseen_levels(
        "S9N1", 1, first=5, exclude=[3]
    )


def test_only_levels_can_be_excluded():
    with pytest.raises(OwlValueError, match="expected levels of MiniGrid"):
        unseen_levels("S9N1", 1, exclude=pendulums([90]))
