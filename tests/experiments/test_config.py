from __future__ import annotations

import hashlib
import json
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owlrl.errors import OwlValueError
from owlrl.experiments import METHODS, Run
from owlrl.experiments.config import default_policies

TASKS = ("SC3", "crossroads-2", "owlrl/SimpleCrossing-v0:3,7", "SC3+DK2")


@settings(max_examples=40)
@given(
    tasks=st.sampled_from(TASKS),
    method=st.sampled_from(sorted(METHODS)),
    seed=st.integers(0, 10**6),
    frames=st.integers(1, 10**7),
    overrides=st.sampled_from([{}, {"n_step": 3}, {"epsilon": [1.0, 0.1]}]),
    strength=st.none() | st.floats(0, 1e6),
    unseen=st.sampled_from([(), ("S9N1:10",)]),
)
def test_json_round_trip(**given_fields):
    run = Run(**given_fields)
    again = Run.from_json(json.loads(json.dumps(run.to_json())))
    assert again == run
    assert again.id == run.id
    assert set(run.to_json()) == {f.name for f in fields(Run)}


def test_every_field_makes_another_id():
    changed = {
        "tasks": "SC5",
        "arguments": {"max_steps": 50},
        "method": "owl",
        "seed": 1,
        "frames": 1,
        "frames_by_task": {"simplecrossing-3": 5},
        "rounds": 2,
        "num_envs": 1,
        "learner": "paper",
        "overrides": {"n_step": 1},
        "strength": 2.0,
        "policies": ("oracle",),
        "episodes": 1,
        "consecutive": 1,
        "unseen": ("S9N1:1",),
        "eval_every": 1,
        "compile": True,
    }
    assert set(changed) == {f.name for f in fields(Run)}
    ids = [Run().id, *(Run(**{name: value}).id for name, value in changed.items())]
    assert len(set(ids)) == len(ids)


def test_id_is_stable_and_a_file_name():
    changed = b'{"method": "owl", "tasks": "owlrl/SimpleCrossing-v0:3,7"}'  # what is not a default
    digits = hashlib.sha256(changed).hexdigest()[:8]
    run = Run("owlrl/SimpleCrossing-v0:3,7", method="owl")
    assert run.id == f"owlrl-simplecrossing-v0-3-7-owl-s0-{digits}"


def test_a_set_has_one_name():
    assert Run("sc3+dk2") == Run("SC3+DK2")
    assert Run("sc3").id == Run("SC3").id


def test_frames_of_a_task():
    run = Run("SC2", frames=10, frames_by_task={"simplecrossing-7": 20})
    assert [run.frames_of(task) for task in run.specs] == [10, 20]


def test_overrides_reach_the_learner():
    config = Run(overrides={"learning_rate": 1, "epsilon": [1.0, 0.5], "double": False}).config
    assert (config.learning_rate, config.epsilon, config.double) == (1.0, (1.0, 0.5), False)
    assert isinstance(config.learning_rate, float)


def test_policies_fit_the_method():
    assert Run(method="experience-replay").acting == ("oracle",)
    assert "hedge+nll" in Run(method="owl-dropout-0.1").acting
    assert "hedge+nll" not in Run(method="owl").acting
    assert Run(policies=["random"]).acting == ("random",)
    for method in METHODS.values():
        assert Run(method=method.name, policies=default_policies(method)).acting == default_policies(method)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tasks": "SC4"}, "tasks is 'SC4'; expected one of SC2"),
        ({"tasks": "owlrl/Nothing-v0:1"}, "no environment is registered as 'owlrl/Nothing-v0'"),
        ({"tasks": "owlrl/SimpleCrossing-v0:1,-2"}, "expected numbers >= 0 after the colon"),
        ({"tasks": "owlrl/SimpleCrossing-v0:1,1"}, "expected every level once"),
        ({"method": "dqn"}, "method is 'dqn'; expected one of experience-replay"),
        ({"seed": -1}, "seed is -1; expected an int >= 0"),
        ({"frames": True}, "frames is True; expected an int >= 1"),
        ({"frames": 1e5}, "frames is 100000.0; expected an int >= 1"),
        ({"strength": float("nan")}, "strength is nan"),
        ({"strength": True}, "strength is True"),
        ({"learner": "slow"}, "learner is 'slow'; expected one of fast, conv, curious, paper"),
        ({"overrides": {"lr": 1.0}}, "overrides has 'lr'; expected one of learning_rate"),
        ({"overrides": {"n_step": 1.5}}, r"overrides\['n_step'\] is 1.5; expected the like of 5"),
        ({"overrides": {"double": 1}}, r"overrides\['double'\] is 1"),
        ({"overrides": {"epsilon": [1.0]}}, r"overrides\['epsilon'\] is \(1.0,\)"),
        ({"policies": ("hedge",)}, "policy is 'hedge'; expected oracle"),
        ({"policies": ("random+td",)}, r"policy is 'random\+td'"),
        ({"policies": ("hedge+luck",)}, r"policy is 'hedge\+luck'"),
        ({"policies": ("hedge+nll",)}, "expected a method with dropout, owl-memory has none"),
        ({"policies": ("hedge+nll+least-tried",)}, "expected a method with dropout"),
        ({"policies": ("least-tried",)}, "policy is 'least-tried'; expected oracle"),
        ({"method": "experience-replay", "policies": ("random",)}, "experience-replay has one head"),
        ({"method": "experience-replay", "policies": ("random+least-tried",)}, "has one head"),
        (
            {"tasks": "owlrl/Pendulum-v0:90,-90", "policies": ("random+least-tried",)},
            "expected it without .least-tried: actions are continuous here",
        ),
        ({"unseen": ("S9N1",)}, "unseen is 'S9N1'"),
        ({"unseen": ("S8N1:3",)}, "unseen is 'S8N1:3'; expected one of S9N1"),
        ({"frames_by_task": {"doorkey-4": 1}}, "frames_by_task has 'doorkey-4'"),
        ({"frames_by_task": {"simplecrossing-3": 0}}, r"frames_by_task\['simplecrossing-3'\] is 0"),
    ],
)
def test_bad_fields_are_named(arguments, message):
    with pytest.raises(OwlValueError, match=message):
        Run(**arguments)


def test_all_problems_are_named_at_once():
    with pytest.raises(OwlValueError, match="3 problems") as caught:
        Run("SC4", method="dqn", seed=-1)
    assert all(word in str(caught.value) for word in ("SC4", "dqn", "seed"))


def test_from_json_refuses_what_it_does_not_know():
    with pytest.raises(OwlValueError, match="there is a field 'colour'"):
        Run.from_json({"colour": "red"})
