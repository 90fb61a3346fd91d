from __future__ import annotations

import shlex

import pytest

from owlrl import cli
from owlrl.experiments import Run, study_runs
from owlrl.experiments.report import commands_for, train_command
from tests.experiments.helpers import tiny

RUNS = [
    Run(),
    Run("crossroads-4", arguments={"breadcrumbs": True, "length": 2}, seed=3, frames=7, method="owl"),
    Run(
        "owlrl/SimpleCrossing-v0:3,7",
        rounds=2,
        learner="paper",
        overrides={"n_step": 3, "epsilon": [1.0, 0.1]},
    ),
    Run("SC3", strength=2.5, policies=("oracle", "hedge+td"), episodes=4, consecutive=3, unseen=("S9N1:2",)),
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.id)
def test_the_command_asks_for_the_very_same_run(run):
    words = shlex.split(train_command(run))
    assert words[:2] == ["owlrl", "train"]
    assert cli._parse(words[1:]).run() == run


@pytest.mark.parametrize("run", [tiny(frames_by_task={"crossroads-0": 5}), Run("owlrl/Pendulum-v0:90,-90")])
def test_what_the_command_has_no_option_for_is_python(monkeypatch, run):
    python, flag, code = shlex.split(train_command(run))
    assert (python, flag) == ("python", "-c")
    asked = []
    monkeypatch.setattr("owlrl.experiments.run_experiment", asked.append)
    monkeypatch.setattr("owlrl.experiments.write_result", lambda directory, result: None)
    exec(code, {})
    assert asked == [run]


def test_whole_studies_are_one_command():
    two = study_runs("sc3", seeds=2)
    assert commands_for(two) == ["owlrl reproduce sc3 --seeds 2"]
    assert commands_for([*two, RUNS[1]])[1:] == [train_command(RUNS[1])]
    lone = study_runs("sc3", seeds=3)[-1]  # of a third seed that is not complete
    assert commands_for([*two, lone]) == ["owlrl reproduce sc3 --seeds 2", train_command(lone)]
    assert commands_for([]) == []
