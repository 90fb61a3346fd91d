"""Saved at a border or inside a task, loaded in a new process: bit for bit the run without a stop.

One kind of each sort is in the default run, the others are in ``make slow``.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from owlrl.checkpoint import load_state
from tests.going_on import MOMENTS, RUNS

ROOT = Path(__file__).parent.parent
QUICK = ("OwnDQN", "AgentSAC", "ModelDQN", "ModelSACNormalized")


def differences(one: Any, other: Any, where: str = "state") -> Iterator[str]:
    """Where two trees differ."""
    if type(one) is not type(other):
        yield f"{where}: {type(one).__name__} and {type(other).__name__}"
    elif isinstance(one, Mapping):
        if list(one) != list(other):
            yield f"{where}: {list(one)} and {list(other)}"
        for key in one.keys() & other.keys():
            yield from differences(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            yield f"{where}: {len(one)} and {len(other)} entries"
        for index, pair in enumerate(zip(one, other, strict=False)):
            yield from differences(*pair, f"{where}.{index}")
    elif isinstance(one, torch.Tensor | np.ndarray):
        first, second = np.asarray(one), np.asarray(other)
        if first.dtype != second.dtype or not np.array_equal(first, second):
            yield f"{where}: arrays {first.shape} and {second.shape}"
    elif one != other:
        yield f"{where}: {str(one)[:50]} and {str(other)[:50]}"


def check(kinds: tuple[str, ...], folder: Path) -> None:
    for kind in kinds:
        (folder / kind).mkdir()
        torch.manual_seed(0)
        np.random.seed(0)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "OwlWrapper.task: VecNormalize has statistics per task")
            RUNS[kind](folder / kind).run()
    command = [sys.executable, "-m", "tests.going_on", *(f"{kind}={folder / kind}" for kind in kinds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    found = []
    for kind in kinds:
        whole = load_state(folder / kind / "end-None.safetensors")
        assert whole["tasks"]["a"]["visits"] == 2 and whole["tasks"]["b"]["visits"] == 1
        for moment in MOMENTS:
            gone_on = load_state(folder / kind / f"end-{moment}.safetensors")
            found += [f"{kind}, {moment}: {each}" for each in differences(whole, gone_on)]
    assert not found, "\n".join(found)


def test_going_on_is_exact(tmp_path):
    check(QUICK, tmp_path)


@pytest.mark.parametrize("kind", ["OwnDQN", "AgentDQN", "ModelDQN"])
def test_saving_changes_nothing(kind, tmp_path):
    ends = []
    for saving in (True, False):
        torch.manual_seed(0)
        np.random.seed(0)
        run = RUNS[kind](tmp_path)
        run.saving = saving
        run.run()
        ends.append(load_state(tmp_path / "end-None.safetensors"))
    assert not list(differences(*ends))


@pytest.mark.parametrize("kind", ["AgentDQN", "ModelDQN"])
@pytest.mark.filterwarnings("ignore:OwlWrapper.task. VecNormalize has statistics per task")
def test_an_environment_that_is_not_handed_back_starts_an_episode(kind, tmp_path):
    run = RUNS[kind](tmp_path)
    run.run()
    again = RUNS[kind](tmp_path, resume="middle")
    again.handed = {}
    again.run()
    assert again.owl.tasks["b"].visits == 1 and again.owl.memory["b"].seen == again.steps
    # the row before the stop is the last of its episode; with it back, it is not
    kept = {each: each.owl.replay.state_dict() for each in (run, again)}
    if kind == "ModelDQN":
        flags = [kept[each]["kept"]["b"]["timeouts"][:, 0] > 0.5 for each in (run, again)]
        assert not flags[0][again.middle - 1] and flags[1][again.middle - 1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in RUNS if kind not in QUICK])
def test_going_on_is_exact_for_the_others(kind, tmp_path):
    check((kind,), tmp_path)
