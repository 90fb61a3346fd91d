"""`diagnose`: do the tasks of a study contradict each other, by their tables or by trained heads?"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from owlrl.envs import estimate_interference, interference, tabulate
from owlrl.errors import OwlTypeError, OwlValueError
from owlrl.experiments.comparison import plan_of_file
from owlrl.experiments.methods import Wrapped
from owlrl.experiments.models import make_env, seed_env
from owlrl.experiments.repeatable import repeatable

__all__ = ["diagnose"]


def diagnose(path: str | os.PathLike[str], *, steps: int | None = None, seed: int = 0) -> str:
    """How much the tasks of a study file (see `compare_file`) contradict each other, in a sentence.

    Tasks that `tabulate` can write out (grids) are compared exactly, without training. Otherwise
    the study's model is wrapped and trained on each task, and its heads are compared on the rows it
    remembers, which needs a Q-network.

    Args:
        path: the file.
        steps: of training on each task, where it is needed; the file's if left out.
        seed: of tables and training.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments import diagnose
    >>> path = Path(tempfile.mkdtemp()) / "my_study.py"
    >>> _ = path.write_text('''
    ... from functools import partial
    ... import gymnasium
    ... from owlrl.learners import DQN
    ... tasks = {str(k): partial(gymnasium.make, "owlrl/Crossroads-v0", arms=2, task=k) for k in range(2)}
    ... steps = 1_000
    ... def make_model(env, seed):
    ...     return DQN(env, seed=seed)
    ... ''')
    >>> print(diagnose(path))  # doctest: +NORMALIZE_WHITESPACE
    2 tasks share 28 observations, 100% contradictory; one policy solves 1 (exact), own policies 2;
    mean return 0.48 instead of 0.961
    """
    plan = plan_of_file(path, steps=steps)
    with ExitStack() as stack, repeatable(seed):
        envs = {task: make_env(made, seed) for task, made in plan.tasks.items()}
        for env in envs.values():
            stack.callback(env.close)
            seed_env(env, seed)
        try:
            return str(interference(*(tabulate(env, seed=seed) for env in envs.values())))
        except (OwlTypeError, OwlValueError) as error:
            why = str(error).partition(";")[0]
        learned: Any = Wrapped("owl").start(plan.make_model, next(iter(envs.values())), seed)
        for task, env in envs.items():
            learned.train(task, env, plan.steps[task])
        owl = learned.owl
        found = estimate_interference(owl, [owl.memory[task].rows() for task in envs])
    lost = ", ".join(f"{task} {value:.3g}" for task, value in zip(envs, found.lost, strict=True))
    return (
        f"no tables ({why}); by heads trained for {plan.total:,} steps: on {found.contradiction:.0%} of "
        f"remembered observations no action is good for all tasks; one shared action costs {lost} in value"
    )
