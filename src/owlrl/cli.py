"""The command ``owlrl``: train, evaluate, reproduce, demo, report."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from owlrl.errors import OwlError, OwlStateError, OwlValueError

__all__ = ["Demo", "Evaluate", "Report", "Reproduce", "Train", "main"]

STOPPED = 130  # what a shell gives after Ctrl-C


@dataclass(frozen=True)
class Train:
    """Train a method on tasks one after the other, and evaluate it.

    >>> from owlrl.cli import Train
    >>> Train(env_id="owlrl/SimpleCrossing-v0", levels=(3, 7)).run().tasks
    'owlrl/SimpleCrossing-v0:3,7'
    """

    tasks: str | None = None
    """a set: SC2, SC3, SC5, SC12, SC3+DK2, Crossroads-2 … Crossroads-8; SC3 if no levels are given"""
    env_id: str = "owlrl/SimpleCrossing-v0"
    """environment whose levels are taken"""
    levels: tuple[int, ...] = ()
    """levels instead of a set, e.g. 3 7 14"""
    arguments: tuple[str, ...] = ()
    """arguments of the environments, e.g. breadcrumbs=true"""
    method: str = "owl-memory"
    """owl, owl-memory, experience-replay, full-rehearsal, …"""
    seed: int = 0
    """of everything"""
    frames: int = 190_000
    """per task and round"""
    rounds: int = 1
    """how often the tasks are gone through"""
    learner: Literal["fast", "paper"] = "fast"
    """settings of the DQN"""
    set: tuple[str, ...] = ()
    """settings of the DQN that differ, e.g. n_step=3 learning_rate=0.001"""
    strength: float | None = None
    """of the regularizer; the method's own if left out"""
    policies: tuple[str, ...] = ()
    """how to act in the evaluation, e.g. oracle hedge+td; all if left out"""
    episodes: int = 16
    """per task and policy"""
    in_a_row: int = 0
    """episodes in a row with kept evidence, evaluated as well"""
    unseen: tuple[str, ...] = ()
    """levels for generalisation, e.g. S9N1:100"""
    output: Path = Path("runs")
    """directory of results"""
    json: bool = False
    """print the result as one line of JSON at the end"""

    def run(self) -> Any:
        """The `owlrl.experiments.Run` that is asked for."""
        from owlrl.experiments import Run

        return Run(
            tasks=_tasks(self.tasks, self.env_id, self.levels) or "SC3",
            arguments=_pairs("arguments", self.arguments),
            method=self.method,
            seed=self.seed,
            frames=self.frames,
            rounds=self.rounds,
            learner=self.learner,
            overrides=_pairs("set", self.set),
            strength=self.strength,
            policies=self.policies,
            episodes=self.episodes,
            consecutive=self.in_a_row,
            unseen=self.unseen,
        )

    def __call__(self) -> int:
        """Train unless it is done, print the result."""
        from owlrl.experiments import is_done, read_result, result_path, write_result
        from owlrl.experiments.tables import result_text
        from owlrl.experiments.training import run_and_keep

        run = self.run()
        path, checkpoint = result_path(self.output, run), self.output / f"{run.id}.safetensors"
        if is_done(self.output, run) and checkpoint.is_file():
            _say(self.json, f"{path} is there already")
            result = read_result(path)
        else:
            result = run_and_keep(run, checkpoint, progress=not self.json)
            write_result(self.output, result)
        _say(self.json, result_text(result), f"\nresult: {path}\nfor owlrl evaluate: {checkpoint}")
        if self.json:
            _print_json(result.rows, id=run.id, result=str(path), checkpoint=str(checkpoint), **result.info)
        return 0


@dataclass(frozen=True)
class Evaluate:
    """Evaluate what was trained, on its own tasks or on any levels.

    >>> from owlrl.cli import Evaluate
    >>> Evaluate(Path("runs/x.safetensors"), levels=(1, 2)).episodes
    16
    """

    checkpoint: Annotated[Path, "positional"]
    """the .safetensors file that owlrl train wrote"""
    tasks: str | None = None
    """a set; the tasks that were trained if nothing is given"""
    env_id: str = "owlrl/SimpleCrossing-v0"
    """environment whose levels are taken"""
    levels: tuple[int, ...] = ()
    """levels instead of a set, e.g. 3 7 14"""
    arguments: tuple[str, ...] = ()
    """arguments of the environments, e.g. breadcrumbs=true"""
    policies: tuple[str, ...] = ()
    """how to act, e.g. oracle hedge+td; as in training if left out"""
    episodes: int = 16
    """per task and policy"""
    json: bool = False
    """print the result as one line of JSON at the end"""

    def __call__(self) -> int:
        """Load, run episodes, print."""
        from owlrl.experiments import Result, Session, environment, evaluate, resolve_tasks
        from owlrl.experiments.tables import result_text
        from owlrl.experiments.tasks import tables_of
        from owlrl.experiments.training import repeatable

        if not self.checkpoint.is_file():
            raise OwlValueError(f"checkpoint is {self.checkpoint}; there is no such file")
        if self.episodes < 1:
            raise OwlValueError(f"episodes is {self.episodes}; expected an int >= 1")
        session = Session.load(self.checkpoint)
        text = _tasks(self.tasks, self.env_id, self.levels)
        tables = session.tables
        if text is not None:
            own = _pairs("arguments", self.arguments)
            tables = tables_of(resolve_tasks(text, own), goal_scale=session.run.preset.goal_scale)
        policies = replace(session.run, policies=self.policies).acting if self.policies else session.run.acting
        with repeatable(session.run.seed):
            rows = evaluate(session, tables, policies, episodes=self.episodes)
        _say(self.json, result_text(Result(session.run, rows, environment())))
        if self.json:
            _print_json(rows, id=session.run.id)
        return 0
