"""The command, from its arguments to what it prints."""

from __future__ import annotations

import copy
import json
import os
import random
import re
import runpy
import signal
import subprocess
import sys
import time
from functools import cache
from inspect import signature
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

import owlrl
import owlrl_command
from owlrl import cli
from owlrl.checkpoint import load_state, save_state
from owlrl.cli import main
from owlrl.envs import tabulate, task_sets
from owlrl.errors import OwlValueError
from owlrl.experiments import (
    METHODS,
    STUDIES,
    Session,
    StudyPlan,
    Trial,
    cheetah,
    commands,
    comparison,
    fanout,
    keeping,
    resolve_tasks,
    studies,
    study_runs,
    thousand,
)
from owlrl.experiments.comparison import file_work
from owlrl.experiments.tasks import seeded_task
from tests.experiments.helpers import Joblib, tiny

SMALL = ["--frames", "128", "--episodes", "2", "--policies", "oracle", "random"]
SETTINGS = ["--set", "learning_starts=32", "batch_size=8", "buffer_size=500"]
CORRIDORS = ["--tasks", "crossroads-2", "--arguments", "length=1", "max_steps=8"]


def refused(capsys, *arguments: str) -> str:
    """The one line that bad input gives, after exit code 2."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("owlrl: ") and err.count("\n") == 1
    return err


@pytest.fixture(autouse=True, scope="module")
def briefly_verified_tables():
    """Tables are compared with their environments in `tests/envs`; here a few steps of it suffice."""
    usual = task_sets._table
    task_sets._table = cache(lambda spec: tabulate(spec(disable_env_checker=True), verify_steps=50))
    yield
    task_sets._table = usual


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    assert main(["train", *CORRIDORS, *SMALL, *SETTINGS, "--output", str(directory)]) == 0
    (checkpoint,) = directory.glob("*.safetensors")
    return checkpoint


def test_train_writes_and_prints(tmp_path, capsys):
    command = ["train", *CORRIDORS, *SMALL, *SETTINGS, "--output", str(tmp_path)]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "oracle" in out and "crossroads-1" in out
    assert len(list(tmp_path.glob("*.jsonl"))) == len(list(tmp_path.glob("*.safetensors"))) == 1
    assert main([*command, "--json"]) == 0  # it is there, and not trained again
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert set(told["success"]) == {"oracle", "random"}
    assert {row["task"] for row in told["rows"]} == {"crossroads-0", "crossroads-1"}
    assert main(command) == 0
    assert "is there already" in capsys.readouterr().out


def test_train_takes_any_levels(tmp_path, capsys):
    levels = ["--env-id", "owlrl/SimpleCrossing-v0", "--levels", "3", "7"]
    command = ["train", *levels, *SMALL, *SETTINGS, "--output", str(tmp_path), "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["id"].startswith("owlrl-simplecrossing-v0-3-7-owl-memory-s0-")
    assert {row["task"] for row in told["rows"]} == {"simplecrossing-3", "simplecrossing-7"}


def test_train_and_evaluate_show_unseen_levels_and_rows_of_episodes(tmp_path, capsys):
    door = ["--env-id", "owlrl/DoorKey-v0", "--levels", "4", "--arguments", "size=5"]  # it has seven actions
    more = ["--unseen", "S9N1:2", "--in-a-row", "2"]
    assert main(["train", *door, *SMALL, *SETTINGS, *more, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "S9N1:2:\n" in out and "failures in 2 episodes in a row" in out
    (checkpoint,) = tmp_path.glob("*.safetensors")
    assert main(["evaluate", str(checkpoint), "--unseen", "S9N1:1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["success"]) == {"oracle", "random"} and set(told["others"]) == {"S9N1:1"}


def test_a_task_of_the_same_name_is_not_the_one_that_was_trained(trained, capsys):
    assert main(["evaluate", str(trained), *CORRIDORS[:2], "--arguments", "length=2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["success"] == {} and set(told["others"]["others"]) == {"random"}  # nobody can be told
    assert {row["task"] for row in told["rows"]} == {"other crossroads-0", "other crossroads-1"}
    assert not any(row["found"] for row in told["rows"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arguments", "nonsense=1"], "unexpected keyword argument 'nonsense'"),
        (["--env-id", "CartPole-v1", "--levels", "3"], "CartPole-v1 has no levels"),
        (["--tasks", "SC3", "--arguments", "level=3"], "arguments has level"),
        (["--policies", "random", "random"], "policies has 'random' twice"),
    ],
)
def test_evaluate_refuses_what_cannot_be_made(trained, capsys, arguments, words):
    assert words in refused(capsys, "evaluate", str(trained), *arguments)


def test_what_cannot_be_written_is_said_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Session, "train", None)  # nothing is trained
    file = tmp_path / "file"
    file.write_text("")
    for command in (["train", *CORRIDORS, *SMALL], ["reproduce", "sc3"]):
        assert "which is a file; expected a directory" in refused(capsys, *command, "--output", str(file))
    (tmp_path / "d.png").mkdir()
    assert "cannot be written" in refused(capsys, "demo", "--picture", str(tmp_path / "d.png"))
    assert "seed is 99999999999999999999" in refused(capsys, "train", "--seed", "99999999999999999999")


def test_a_stopped_training_goes_on(tmp_path, capsys, monkeypatch):
    def stopping(keeper, state):
        if len(stopped) == 4:  # in the middle of a task
            raise KeyboardInterrupt
        keeper.save(state())
        stopped.append(keeper)

    command = ["train", *CORRIDORS, *SMALL, *SETTINGS, "--output", str(tmp_path)]
    stopped = []
    with monkeypatch.context() as patched:
        patched.setattr(keeping.Keeper, "tick", stopping)
        assert main(command) == 130
    assert "the same command continues from there" in capsys.readouterr().err
    (part,) = tmp_path.iterdir()
    assert main(command) == 0
    assert capsys.readouterr().out.startswith(f"continuing from {part}\n")
    (result,) = tmp_path.glob("*.jsonl")
    assert not part.exists() and len(list(tmp_path.iterdir())) == 2
    result.write_text("{", encoding="utf-8")  # what is damaged is done again
    assert main(command) == 0
    assert "is there already" not in capsys.readouterr().out and len(result.read_text()) > 1


SMALL_SAC = [
    *("--frames", "40", "--episodes", "2", "--policies", "oracle", "random"),
    *(
        "--arguments",
        "max_episode_steps=20",
        "--set",
        "learning_starts=16",
        "batch_size=8",
        "buffer_size=500",
    ),
]


def test_train_and_evaluate_angles(tmp_path, capsys):
    angles = ["--env-id", "owlrl/Pendulum-v0", "--angles", "90", "-90"]
    assert main(["train", *angles, *SMALL_SAC, "--output", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["id"].startswith("owlrl-pendulum-v0-90-90-owl-memory-s0-")
    assert set(told["mean_return"]) == {"oracle", "random"} and "success" not in told
    assert {row["task"] for row in told["rows"]} == {"pendulum+90", "pendulum-90"}
    assert main(["evaluate", told["checkpoint"], "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == told["rows"]
    others = ["--env-id", "owlrl/Pendulum-v0", "--angles", "0", "--arguments", "max_episode_steps=20"]
    assert main(["evaluate", told["checkpoint"], *others, "--policies", "random"]) == 0
    assert "pendulum+0" in capsys.readouterr().out
    named = ["--tasks", "owlrl/Pendulum-v0:0", "--policies", "random", "--episodes", "2"]
    assert main(["evaluate", told["checkpoint"], *named]) == 0
    assert "pendulum+0" in capsys.readouterr().out
    shorter = ["--arguments", "max_episode_steps=5", "--policies", "random", "--episodes", "2", "--json"]
    assert main(["evaluate", told["checkpoint"], *shorter]) == 0
    assert {row["mean_length"] for row in json.loads(capsys.readouterr().out)["rows"]} == {5.0}
    for arguments, message in (
        (["--levels", "3"], "was trained; expected the like"),
        (["--arguments", "length=3"], "cannot be made"),
        ([*others[:2], "--angles", "0", "--policies", "oracle"], "no head has learned pendulum+0"),
    ):
        assert message in refused(capsys, "evaluate", told["checkpoint"], *arguments)


def test_frames_are_those_of_the_kind_of_task():
    assert cli._parse(["train"]).run().frames == 190_000
    pendulum = cli._parse(["train", "--tasks", "owlrl/Pendulum-v0:90,-90"]).run()
    assert (pendulum.frames, pendulum.num_envs) == (20_000, 4)
    assert cli._parse(["train", "--tasks", "owlrl/Pendulum-v0:90", "--frames", "7"]).run().frames == 7


def test_a_demo_may_be_named():
    assert cli._parse(["demo", "--arms", "6"]).arms == 6
    assert [cli._parse(["demo", *name]).name for name in ([], ["pendulum"], ["--name", "pendulum"])] == [
        "crossroads",
        "pendulum",
        "pendulum",
    ]


def test_evaluate_on_its_own_tasks_and_on_others(trained, capsys):
    assert main(["evaluate", str(trained), "--episodes", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told["success"]) == {"oracle", "random"}
    assert (
        main(["evaluate", str(trained), "--levels", "1", "2", "--policies", "random", "--episodes", "2"]) == 0
    )
    out = capsys.readouterr().out
    assert "simplecrossing-1" in out and "oracle" not in out


def test_evaluate_equals_the_evaluation_of_training(trained, capsys):
    kept = Trial.read(trained.with_suffix(".jsonl"))
    episodes = str(kept.settings["eval_episodes"])
    assert main(["evaluate", str(trained), "--episodes", episodes, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [{**row, "visit": 1} for row in rows] == kept.final() != []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--tasks", "SC4"], "tasks is 'SC4'"),
        (["train", "--tasks", "SC3", "--levels", "1"], "give one of them"),
        (["train", "--env-id", "nothing", "--levels", "1"], "no environment is registered as 'nothing'"),
        (["train", "--env-id", "owlrl/Crossroads-v0", "--levels", "1"], "owlrl/Crossroads-v0 has no levels"),
        (["train", "--levels", "-1"], "expected numbers >= 0"),
        (["train", "--angles", "90"], "they are for 'owlrl/Pendulum-v0'"),
        (["train", "--angles", "90", "--levels", "3"], "levels are (3,) and angles are (90.0,); give one"),
        (["train", "--env-id", "owlrl/Pendulum-v0", "--angles", "nan"], "expected angles from -180 to 180"),
        (["train", "--env-id", "owlrl/Pendulum-v0", "--levels", "1", "1"], "expected every level once"),
        (["train", "--method", "dqn"], "method is 'dqn'"),
        (["train", "--frames", "0", "--seed", "-1"], "2 problems"),
        (["train", "--set", "n_step"], "set has 'n_step'; expected name=value"),
        (["train", "--set", "n_step=many"], "expected the like of 5"),
        (["train", "--set", "batch_size=0"], "DQNConfig: batch_size is 0"),
        (["train", "--env-id", "owlrl/DoorKey-v0"], "of which nothing is chosen; give levels"),
        (["train", "--env-id", "owlrl/Pendulum-v0"], "give angles, e.g. --angles 90 -90"),
        (["train", "--env-id", "owlrl/Pendulum-v0", "--angles", "9", "--arguments", "x=1"], "cannot be made"),
        (["train", "--arguments", "max_steps=x", *CORRIDORS[:2]], "max_steps is 'x'"),
        (["evaluate", "nowhere.safetensors"], "there is no such file"),
        (["evaluate", __file__], "is not a readable checkpoint"),
        (["reproduce", "sc4"], "name is 'sc4'"),
        (["reproduce"], "which study? One of crossroads, sc3"),
        (["reproduce", "sc3", "--frames", "0"], "frames is 0"),
        (["reproduce", "sc3", "--methods", "owl", "dqn"], "methods has dqn; sc3 has experience-replay, owl"),
        (["compare", "nowhere.py"], "nowhere.py cannot be read"),
        (["compare", os.devnull], "no file, but a device or a pipe"),
        (["diagnose", "."], "cannot be read (a directory)"),
        (["compare", __file__], "has no make_model and no tasks and no steps"),
        (["reproduce", "sc3", "--seeds", "0"], "seeds is 0"),
        (["reproduce", "sc3", "--jobs", "0"], "jobs is 0"),
        (["reproduce", "sc3", "--scheduler", "tcp://x:1"], "go together"),
        (["demo", "--arms", "9"], "arms is 9"),
        (["demo", "--frames", "0", "--seed", "-1"], "2 problems"),
        (["demo", "--picture", "demo.xyz"], "expected a name that ends with .jpg, .pdf, .png, .svg"),
        (["demo", "pendulum", "--picture", "demo.gif"], "picture is demo.gif"),
        (["demo", "pendulum", "--arms", "4"], "arms is 4; the Pendulum has none"),
    ],
)
def test_bad_input_is_one_line(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, *arguments)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_bad_episodes_for_evaluate(trained, capsys):
    assert "episodes is 0" in refused(capsys, "evaluate", str(trained), "--episodes", "0")
    assert "policy is 'x'" in refused(capsys, "evaluate", str(trained), "--policies", "x")
    assert "was not collected" in refused(capsys, "evaluate", str(trained), "--policies", "hedge+td")


@pytest.mark.parametrize("arguments", [["nonsense"], ["train", "--frames", "many"], ["report"]])
def test_what_cannot_be_read_ends_with_2(capsys, arguments):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_help_has_examples(capsys, command):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert (
        f"owlrl {command}"
        in capsys.readouterr().out.split("options")[0].split("usage", 1)[1].split("\n", 1)[1]
    )


def test_help_names_every_study_and_method(capsys):
    for command, names in {"reproduce": [*STUDIES, *studies.MODULES], "train": METHODS}.items():
        with pytest.raises(SystemExit):
            main([command, "--help"])
        words = set(re.split(r"[^\w+.-]+", capsys.readouterr().out))
        assert words >= set(names)


def test_examples_in_the_help_can_be_read():
    for text in cli.EXAMPLES.values():
        for line in text.splitlines():
            if line.startswith("  owlrl "):
                assert cli._parse(line.split()[1:])


def test_reproduce_prints_tables_and_failures(tmp_path, capsys, monkeypatch):
    def make(seed):
        return [tiny(seed=seed, frames=128), tiny(seed=seed, frames=64, method="owl")]

    monkeypatch.setitem(STUDIES, "small", StudyPlan("two", make))
    real = comparison.run_trial

    def failing(plan, trial, **options):
        if trial.method == "owl":
            raise ValueError("no luck")
        return real(plan, trial, **options)

    monkeypatch.setattr(comparison, "run_trial", failing)
    command = ["reproduce", "small", "--seeds", "1", "--output", str(tmp_path)]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert "| owl-memory | oracle | 1 |" in out
    assert "failed: ValueError: no luck" in err
    assert main([*command, "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["done", "missing"]


def test_studies_that_are_modules_are_listed_with_their_methods_and_frames(tmp_path, capsys):
    listed = ["reproduce", "cheetah", "--list", "--seeds", "1", "--methods", "owl", "--output", str(tmp_path)]
    work, _ = file_work(cheetah.__file__, seeds=1, methods=["owl"])
    first, second = (each.trial for each in work)
    first.write(tmp_path / "cheetah")
    (tmp_path / "cheetah" / f"{second.id}.jsonl").touch()  # no result
    assert main(listed) == 0
    assert capsys.readouterr().out.split() == ["done", first.id, "missing", second.id]
    counts = {"thousand": 3, "multi_mnist": 6, "treasure": 8, "reacher": 4, "minatar": 5}
    for name, count in counts.items():
        assert main(["reproduce", name, "--list", "--seeds", "1", "--output", str(tmp_path)]) == 0
        out = capsys.readouterr().out.splitlines()
        assert len(out) == count and all(line.startswith("missing") for line in out)
    assert main(["reproduce", "thousand", "--list", "--methods", "owl", "--frames", "2000"]) == 0
    assert capsys.readouterr().out.startswith("missing owl-s0-")


def test_a_study_that_is_a_module_is_run_by_all_jobs(tmp_path, capsys):
    small = ["--seeds", "1", "--methods", "owl", "bare", "--frames", "1000", "--jobs", "2"]
    real, joblib = thousand.parts, Joblib()
    command = ["reproduce", "thousand", *small, "--output", str(tmp_path)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(thousand, "parts", lambda **chosen: real(**chosen, goals=2))
        patched.setattr(studies, "signature", lambda make: signature(real))
        patched.setattr(fanout, "optional", lambda name, **_: joblib)  # real processes: test_fanout.py
        assert main(command) == 0
        out, err = capsys.readouterr()
    assert "2 runs of 2 to do" in err and "2 at once" in err
    assert [settings["n_jobs"] for settings in joblib.settings] == [2]
    assert [line.split(" | ")[2] for line in out.splitlines()[2:]] == ["1", "2", "1", "2"]
    assert "paper has no --data; leave it out" in refused(capsys, "reproduce", "paper", "--data", "x")


def test_the_paper_s_runs_are_listed(tmp_path, capsys):
    chosen = ["--seeds", "1", "--methods", "experience-replay", "--output", str(tmp_path)]
    assert main(["reproduce", "paper", "--list", *chosen]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split("-s0-")[0] for line in listed] == [
        f"missing {tasks}-experience-replay"
        for tasks in ("sc2", "sc3", "sc5", "sc3-dk2", "owlrl-pendulum-v0-90-90")
    ]


def test_version_and_overview(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"owlrl {owlrl.__version__}\n"
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {command} " in out and f"owlrl {command}" in out for command in cli.COMMANDS)
    assert main([]) == 2
    assert capsys.readouterr() == ("", out)


def test_reproduce_lists_studies_and_takes_some_methods_and_frames(capsys):
    assert main(["reproduce", "--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [*STUDIES, *studies.MODULES]
    some = ["--seeds", "2", "--methods", "owl", "--frames", "77", "--output", "nowhere", "--list"]
    assert main(["reproduce", "sc3+dk2", *some]) == 0
    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert [name.rpartition("-")[0] for name in names] == ["sc3-dk2-owl-s0", "sc3-dk2-owl-s1"]
    runs = study_runs("sc3+dk2", seeds=2, methods=["owl"], frames=77)
    assert [run.id for run in runs] == names
    assert {run.frames_of(task) for run in runs for task in run.specs} == {77}


def test_levels_of_any_environment_that_its_seed_decides(tmp_path, capsys):
    levels = ["--env-id", "CartPole-v1", "--levels", "1", "2", "--episodes", "2", "--frames", "64"]
    assert main(["train", *levels, *SETTINGS, "--output", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "| cartpole-1 | cartpole-2 |" in out and "| owl | unknown | 1 |" in out
    assert len(list(tmp_path.glob("owl-s0-*.jsonl"))) == 1
    assert main(["train", *levels, *SETTINGS, "--output", str(tmp_path), "--json"]) == 0  # it is there
    assert json.loads(capsys.readouterr().out)["scores"].keys() == {"owl, task given", "owl, task unknown"}
    poles = ["--env-id", "Pendulum-v1", "--levels", "4", "--episodes", "1", "--frames", "8"]
    assert main(["train", *poles, "--method", "experience-replay", "--output", str(tmp_path / "b")]) == 0
    assert "| bare | unknown | 1 |" in capsys.readouterr().out
    told = refused(capsys, "train", *levels, "--method", "owl-loss", "--output", str(tmp_path))
    assert "expected --method owl-memory, owl, experience-replay" in told


def test_an_environment_that_its_seed_does_not_decide_has_no_levels():
    class Random(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.random.random(2).astype(np.float32), {}

        def step(self, action):
            return self.reset()[0], 0.0, False, False, {}

    gymnasium.register("tests/Random-v0", Random, disable_env_checker=True)
    try:
        with pytest.raises(OwlValueError, match="has no levels: two episodes after reset"):
            seeded_task("tests/Random-v0", 1)
        with pytest.raises(OwlValueError, match="cannot be made with"):
            seeded_task("CartPole-v1", 1, wheels=3)
    finally:
        del gymnasium.registry["tests/Random-v0"]


def test_levels_of_any_minigrid_environment(tmp_path, capsys):
    levels = ["--env-id", "MiniGrid-LavaCrossingS9N1-v0", "--levels", "1", "2"]
    short = ["--arguments", "max_steps=10", "--output", str(tmp_path), "--json"]
    assert main(["train", *levels, *SMALL, *SETTINGS, *short]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["task"] for row in told["rows"]} == {
        "minigrid-lavacrossings9n1-1", "minigrid-lavacrossings9n1-2",
    }  # fmt: skip
    specs = resolve_tasks("MiniGrid-LavaCrossingS9N1-v0:1,2").values()
    first, second = (spec.table().next_state for spec in specs)
    assert first.shape != second.shape or (first != second).any()


STUDY = """
from tests.experiments.signs import TASKS as tasks, make_model
steps, methods, seeds, eval_episodes = 60, ["bare"], 1, 2
"""


def test_compare_runs_a_file(tmp_path, capsys):
    path, output = tmp_path / "my_study.py", tmp_path / "out"
    path.write_text(STUDY, encoding="utf-8")
    command = ["compare", str(path), "--output", str(output), "--steps", "40", "--seeds", "2"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert "| bare | unknown | 2 |" in out and "bare, plain: " in out and "(40 steps per task)" in out
    assert "compare: 4 runs of 4 to do" in err
    assert len(list(output.glob("*.jsonl"))) == 4 and (output / "report.html").is_file()
    assert main(command) == 0  # nothing is to be done
    assert capsys.readouterr().out == out
    assert main(["report", str(output), "--output", str(tmp_path / "all.html")]) == 0
    assert "A comparison" in (tmp_path / "all.html").read_text(encoding="utf-8")
    assert main([*command, "--methods", "bare", "tests.experiments.signs:Failing"]) == 1
    assert "fails, seed 0 failed: RuntimeError: as it should" in capsys.readouterr().out


def test_ctrl_c_says_how_to_go_on(capsys, monkeypatch, tmp_path):
    def stop(plan, trial, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(comparison, "run_trial", stop)
    assert main(["reproduce", "sc3", "--output", str(tmp_path)]) == 130
    assert "the same command continues from there" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["reproduce", "headline", "--list"], ["demo", "--help"]])
def test_nobody_reads_on(capsys, monkeypatch, command):
    """As in owlrl … | head: no complaint, and none when the interpreter flushes at its end."""
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patched, os.fdopen(writing, "w") as pipe:
        patched.setattr(sys, "stdout", pipe)
        assert main(command) == 141
        print("more", flush=True)
    assert capsys.readouterr().err == ""


def test_fewer_actions_than_were_learned_are_refused(capsys, tmp_path):
    doors = ["--env-id", "owlrl/DoorKey-v0", "--levels", "4", "--arguments", "size=5", "max_steps=10"]
    assert main(["train", *doors, *SMALL, *SETTINGS, "--output", str(tmp_path)]) == 0
    (checkpoint,) = tmp_path.glob("*.safetensors")
    capsys.readouterr()
    asked = ["evaluate", str(checkpoint), "--levels", "3", "--policies", "random", "--episodes", "2"]
    assert "simplecrossing-3 have fewer actions than the 7" in refused(capsys, *asked)
    assert main([*asked, "--arguments", "num_actions=7", "max_steps=10"]) == 0
    assert "simplecrossing-3" in capsys.readouterr().out


def test_demo_prints_its_table_and_draws(capsys, tmp_path):
    picture = tmp_path / "new" / "demo.png"
    assert main(["demo", "--arms", "2", "--frames", "320", "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "one policy solves 1 (exact)" in out and "OWL, task unknown" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("name", "picture"),
    [("crossroads", "demo.png"), ("pendulum", "demo-pendulum.png"), ("stream", "demo-stream.png")],
)
def test_no_demo_overwrites_the_picture_of_another(name, picture, capsys, monkeypatch):
    drawn = []

    def draw(output, **_):
        drawn.append(output)
        return SimpleNamespace(table=str)

    for each in ("run_demo", "run_pendulum_demo", "run_stream_demo"):
        monkeypatch.setattr(commands, each, draw)
    assert main(["demo", name]) == 0
    assert drawn == [Path("runs", picture)] and str(drawn[0]) in capsys.readouterr().out


def test_missing_libraries_are_one_line(capsys, monkeypatch, tmp_path):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    with monkeypatch.context() as patched:
        patched.setattr(cli.importlib, "import_module", missing)
        assert "the command needs tyro" in refused(capsys, "demo")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = refused(capsys, "demo", "--picture", str(tmp_path / "x.png"))
    assert re.search(r'pip install "matplotlib>=[0-9.]+" "pillow>=[0-9.]+"', said)


def test_the_module_is_a_program(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["owlrl", "train", "--tasks", "SC4"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(cli.__file__, run_name="__main__")
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("owlrl: Run: tasks is 'SC4'")


def damaged(lines, rng):
    """The lines of a result with one field changed or left out."""
    lines = copy.deepcopy(lines)
    line = lines[rng.randrange(len(lines))]
    inner = [value for value in line.values() if isinstance(value, dict) and value]
    place = rng.choice([line, *inner])
    name = rng.choice(list(place))
    if rng.random() < 0.4:
        del place[name]
    else:
        place[name] = rng.choice([None, "x", -1, [], {}, [1, "a"], True])
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_no_damaged_file_ends_in_a_traceback(trained, tmp_path, capsys):
    (result,) = trained.parent.glob("*.jsonl")
    lines, rng = [json.loads(line) for line in result.read_text().splitlines()], random.Random(0)
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / result.name).write_text(damaged(lines, rng))
        code = main(["report", str(folder), "--episodes", "1"])
        told = capsys.readouterr().err
        assert code in (0, 2), told
    state = load_state(trained)
    for change in ({"q": {}}, {"target": []}, {"heads": {"a": "b"}}, {"run": {"tasks": 3}}, {"run": []}):
        save_state(tmp_path / "x.safetensors", {**state, **change})
        assert "x.safetensors" in refused(capsys, "evaluate", str(tmp_path / "x.safetensors"))


def test_what_nobody_thought_of_is_one_line(monkeypatch, capsys):
    def fails(given):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(cli, "_run", fails)
    assert main(["train"]) == 70
    told = capsys.readouterr().err
    assert told.startswith("owlrl: ZeroDivisionError: by nothing (test_cli.py:") and told.count("\n") == 1
    monkeypatch.setenv("OWLRL_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["train"])


@pytest.mark.parametrize("columns", ["0", "1", "17"])
def test_a_tiny_terminal(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit) as left:
        main(["reproduce", "--help"])
    assert left.value.code == 0 and "--save-every" in capsys.readouterr().out
    assert os.environ["COLUMNS"] == columns


def test_closed_streams_and_ascii(monkeypatch, tmp_path):
    with monkeypatch.context() as patched:
        for name in ("stdout", "stderr"):
            patched.setattr(sys, name, None)
        assert main(["reproduce", "--list"]) == 0 and sys.stdout is None
        assert main(["reproduce", "nonsense"]) == 2
        with pytest.raises(SystemExit):
            main(["train", "--help"])
    with open(tmp_path / "out", "w", encoding="ascii") as narrow:
        monkeypatch.setattr(sys, "stdout", narrow)
        assert main(["--help"]) == 0
    assert "\\u2026" in (tmp_path / "out").read_text()


def test_a_closed_pipe_for_errors(monkeypatch):
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patched, os.fdopen(writing, "w") as pipe:
        patched.setattr(sys, "stderr", pipe)
        assert main(["reproduce", "nonsense"]) == 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), pipe.fileno())


def test_a_directory_that_is_gone(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        assert "the current directory was removed" in refused(capsys, "reproduce", "--list")
    finally:
        os.chdir(tmp_path)


@pytest.mark.parametrize("wait", [0.05, 0.3])
def test_ctrl_c_while_it_is_imported_is_quiet(wait):
    program = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    program += "from owlrl_command import main; print('go', flush=True); sys.exit(main())"
    paths = os.pathsep.join([str(Path(owlrl.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", program, "reproduce", "--list"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, **pipes) as process:
        process.stdout.readline()
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (-signal.SIGINT, 130, 0) and "Traceback" not in errors


def test_the_program_runs_the_command(monkeypatch, capsys):
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "argv", ["owlrl", "--version"])
    assert owlrl_command.main() == 0 and signal.getsignal(signal.SIGINT) is handler
    assert capsys.readouterr().out == f"owlrl {owlrl.__version__}\n"
