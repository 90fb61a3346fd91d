"""How much tasks contradict each other: the exact answer of grids is its doctest's; here by trained heads."""

from __future__ import annotations

import re

import pytest

from owlrl.cli import main

STUDY = """
import gymnasium
import numpy as np
from owlrl.learners import DQN, DQNConfig

class Bandit(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, pays):
        self.pays = pays

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(2, np.float32), {}

    def step(self, action):
        return np.ones(2, np.float32), float(action == self.pays), True, False, {}

tasks = {"left": lambda: Bandit(0), "right": lambda: Bandit(1)}
steps = 50

def make_model(env, seed):
    config = DQNConfig(learning_rate=0.01, batch_size=16, update_every=1, learning_starts=20, n_step=1)
    return DQN(env, config=config, seed=seed)
"""


def test_opposed_bandits_contradict_each_other_everywhere(tmp_path, capsys):
    path = tmp_path / "my_study.py"
    path.write_text(STUDY, encoding="utf-8")
    assert main(["diagnose", str(path), "--steps", "400"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("no tables (tabulate: ") and "trained for 800 steps" in told
    assert "on 100% of remembered observations no action is good for all tasks" in told


CONTINUOUS = """
import gymnasium
from owlrl.learners import SAC
tasks = {"a": "Pendulum-v1", "b": lambda: gymnasium.make("Pendulum-v1", g=9.0)}
steps = 10**9  # it says so before any of them

def make_model(env, seed):
    return SAC(env, seed=seed)
"""


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (CONTINUOUS, (), "the model has the networks .*actor.*expected a Q-network"),
        (
            STUDY.replace(', "right": lambda: Bandit(1)', ""),
            (),
            "has the task left alone; expected at least 2",
        ),
        (
            STUDY.replace("    return DQN", "    raise KeyError('mine')\n    return DQN"),
            (),
            "KeyError: 'mine' .my_study",
        ),
        (STUDY, ("--seed", "-1"), "seed is -1; expected an int >= 0"),
    ],
)
def test_what_cannot_be_diagnosed_is_named(tmp_path, capsys, text, options, message):
    path = tmp_path / "my_study.py"
    path.write_text(text, encoding="utf-8")
    assert main(["diagnose", str(path), *options]) != 0
    told = capsys.readouterr().err
    assert re.search(f"owlrl: diagnose: .*{message}", told) and "this is a bug" not in told
