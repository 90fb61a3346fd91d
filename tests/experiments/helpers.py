"""Tiny runs, and trials written by hand, in rows as version 0.1 had them."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

from owlrl.experiments import Run, Trial
from owlrl.experiments.results import EARLIER, read_trial

TINY = {"learning_starts": 64, "batch_size": 16, "buffer_size": 2_000}
# Enough to solve a corridor of one cell in some hundred frames.
QUICK = {**TINY, "update_every": 4, "learning_rate": 0.003, "target_rate": 0.05, "batch_size": 32}


def tiny(**more: Any) -> Run:
    """Two corridors, a few hundred frames, only what is asked for."""
    chosen = {
        "tasks": "Crossroads-2",
        "arguments": {"length": 1, "max_steps": 12, "breadcrumbs": True},
        "frames": 256,
        "num_envs": 8,
        "episodes": 3,
        "eval_every": 128,
        "policies": ("oracle",),
        "overrides": TINY,
    }
    return Run(**{**chosen, **more})


def evaluation(policy: str, task: str, success: float, **more: Any) -> dict[str, Any]:
    return {
        "kind": "evaluation",
        "policy": policy,
        "set": "seen",
        "task": task,
        "success": success,
        "identified": 1.0,
        "steps_to_identify": 2.0,
        **more,
    }


def score(step: int, task: str, number: float, policy: str = "oracle") -> dict[str, Any]:
    return {"kind": "score", "step": step, "task": task, "policy": policy, "score": number, "training": task}


def training(task: str, start: int, end: int, number: int = 0) -> dict[str, Any]:
    return {"kind": "training", "round": number, "task": task, "start": start, "end": end}


def result(run: Run, *rows: dict[str, Any], minutes: float = 1.0) -> Trial:
    info = {"seconds": {"train": 90 * minutes, "evaluate": 1.0}, "cpu_seconds": 60 * minutes}
    return read_trial({"format": EARLIER, "run": run.to_json(), "info": info}, *rows)


SMALL_SAC = {
    "learning_starts": 16,
    "batch_size": 8,
    "buffer_size": 500,
    "actor_hidden": [8, 8],
    "critic_hidden": [8, 8],
}


def tiny_control(**more: Any) -> Run:
    """Two opposed Pendulums, some dozen frames, only what is asked for."""
    chosen = {
        "tasks": "owlrl/Pendulum-v0:90,-90",
        "arguments": {"max_episode_steps": 20},
        "frames": 40,
        "num_envs": 2,
        "episodes": 2,
        "eval_every": 30,
        "policies": ("oracle",),
        "overrides": SMALL_SAC,
    }
    return Run(**{**chosen, **more})


def control_evaluation(
    policy: str, task: str, mean_return: float, angle: float, **more: Any
) -> dict[str, Any]:
    return {
        "kind": "evaluation",
        "policy": policy,
        "set": "seen",
        "task": task,
        "mean_return": mean_return,
        "final_angles": [angle, angle],
        "identified": 1.0,
        "steps_to_identify": 2.0,
        **more,
    }


class Joblib:
    """In place of joblib: does at once and in turn what it is given; notes how it was configured."""

    def __init__(self):
        self.settings = []
        self.delayed = lambda function: lambda *a: (function, a)

    @contextmanager
    def parallel_config(self, **settings):
        self.settings.append(settings)
        yield

    def Parallel(self, **_):  # joblib's name
        return lambda calls: (function(*a) for function, a in calls)
