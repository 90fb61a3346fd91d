"""The commands that make results again, from the runs alone."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import fields

from owlrl.experiments.config import Run
from owlrl.experiments.studies import STUDIES

__all__ = ["commands_for", "train_command"]

# What `owlrl train` can be told, and how; the rest of a run needs Python.
OPTIONS = {
    "tasks": "tasks",
    "arguments": "arguments",
    "method": "method",
    "seed": "seed",
    "frames": "frames",
    "rounds": "rounds",
    "learner": "learner",
    "overrides": "set",
    "strength": "strength",
    "policies": "policies",
    "episodes": "episodes",
    "consecutive": "in-a-row",
    "unseen": "unseen",
}


def commands_for(runs: Sequence[Run]) -> list[str]:
    """As few commands as do: whole studies, then single runs."""
    left = {run.id: run for run in runs}
    there = set(left)
    found = []
    for name, study in STUDIES.items():
        seeds = 0
        while {run.id for run in study.make(seeds)} <= there:
            seeds += 1
        covered = {run.id for seed in range(seeds) for run in study.make(seed)}
        if covered & set(left):
            found.append(f"owlrl reproduce {shlex.quote(name)} --seeds {seeds}")
            left = {key: run for key, run in left.items() if key not in covered}
    return found + [train_command(run) for run in left.values()]


def train_command(run: Run) -> str:
    """``owlrl train`` with all that is not a default; Python where the command has no option for it."""
    default = Run()
    changed = {f.name: getattr(run, f.name) for f in fields(run)}
    changed = {name: value for name, value in changed.items() if value != getattr(default, name)}
    if run.control or not set(changed) <= set(OPTIONS):  # the command has other defaults for control
        code = "from owlrl.experiments import Run, run_experiment, write_result; "
        code += f"write_result('runs', run_experiment(Run(**{changed!r})))"
        if '"' not in code:
            code = code.replace("'", '"')  # a shell's own quotes are single ones
        return f"python -c {shlex.quote(code)}"
    words = ["owlrl", "train"]
    for name, value in changed.items():
        words += _words(name, value)
    return shlex.join(words)


def _words(name: str, value: object) -> list[str]:
    option = f"--{OPTIONS[name]}"
    if isinstance(value, dict):
        return [option, *(f"{key}={json.dumps(item)}" for key, item in value.items())]
    return [option, *map(str, value)] if isinstance(value, tuple) else [option, str(value)]
