"""The command ``owlrl train``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from owlrl.experiments.commands._options import named_values, print_json, say, task_text
from owlrl.experiments.config import Run
from owlrl.experiments.fanout import unfinished
from owlrl.experiments.results import make_directory, read_result, result_path, write_result
from owlrl.experiments.tables import result_text
from owlrl.experiments.tasks import is_control
from owlrl.experiments.training import run_experiment

__all__ = ["Train"]

CONTROL_DEFAULTS: dict[str, Any] = {"frames": 20_000, "num_envs": 4, "eval_every": 5_000}


@dataclass(frozen=True)
class Train:
    """Train a method on tasks one after the other, and evaluate it.

    >>> from owlrl.experiments.commands import Train
    >>> Train(env_id="owlrl/SimpleCrossing-v0", levels=(3, 7)).run().tasks
    'owlrl/SimpleCrossing-v0:3,7'
    """

    tasks: str | None = None
    """a set: SC2, SC3, SC5, SC12, SC3+DK2, Crossroads-2 … Crossroads-8; SC3 if no levels are given"""
    env_id: str | None = None
    """environment whose levels are taken; owlrl/SimpleCrossing-v0 if left out"""
    levels: tuple[int, ...] = ()
    """levels instead of a set, e.g. 3 7 14"""
    angles: tuple[float, ...] = ()
    """of owlrl/Pendulum-v0 instead of levels, e.g. 90 -90"""
    arguments: tuple[str, ...] = ()
    """arguments of the environments, e.g. breadcrumbs=true"""
    method: str = "owl-memory"
    """experience-replay, one-head-rehearsal, owl, owl-loss, owl-warm-start, owl-no-ewc, owl-distill-current,
    full-rehearsal, owl-mlp-head, owl-epsilon-restart-1x, owl-epsilon-restart-2x, owl-dropout-0.05,
    owl-dropout-0.1, owl-dropout-0.2 or owl-memory"""
    seed: int = 0
    """of everything"""
    frames: int | None = None
    """per task and round; 190000, or 20000 for the Pendulum"""
    rounds: int = 1
    """how often the tasks are gone through"""
    learner: Literal["fast", "conv", "curious", "paper"] = "fast"
    """settings of the DQN, or of the SAC for the Pendulum"""
    set: tuple[str, ...] = ()
    """settings of it that differ, e.g. n_step=3 learning_rate=0.001"""
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

    def run(self) -> Run:
        """What is asked for."""
        tasks = task_text(self.tasks, self.env_id, self.levels, self.angles) or "SC3"
        own = CONTROL_DEFAULTS if is_control(tasks) else {}
        frames = own.get("frames", Run.frames) if self.frames is None else self.frames
        return Run(
            **{**own, "tasks": tasks, "frames": frames},
            arguments=named_values("arguments", self.arguments),
            method=self.method,
            seed=self.seed,
            rounds=self.rounds,
            learner=self.learner,
            overrides=named_values("set", self.set),
            strength=self.strength,
            policies=self.policies,
            episodes=self.episodes,
            consecutive=self.in_a_row,
            unseen=self.unseen,
        )

    def __call__(self) -> int:
        """Train unless it is done, print the result."""
        run = self.run()
        path, checkpoint = result_path(self.output, run), self.output / f"{run.id}.safetensors"
        if not unfinished([run], self.output) and checkpoint.is_file():
            say(self.json, f"{path} is there already")
            result = read_result(path)
        else:
            make_directory(self.output)
            part = self.output / f"{run.id}.part"
            if part.is_file():
                say(self.json, f"going on from {part}")
            result = run_experiment(run, checkpoint=checkpoint, progress=True, resume=part)
            write_result(self.output, result)
            part.unlink(missing_ok=True)
        say(self.json, result_text(result), f"\nresult: {path}\nfor owlrl evaluate: {checkpoint}")
        if self.json:
            print_json(result, file=str(path), checkpoint=str(checkpoint), seconds=result.info["seconds"])
        return 0
