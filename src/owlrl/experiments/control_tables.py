"""Results with continuous actions as Markdown tables: returns, the head that was found, the pole's angle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from owlrl.envs.pendulum import angle_from
from owlrl.experiments._markdown import DASH, number, table
from owlrl.experiments.policies import ORACLE
from owlrl.experiments.summary import Group

__all__ = ["control_section"]

ABOUT = (
    "Return per episode of 200 steps, mean over seeds and episodes for each task; then the mean over tasks, "
    "interquartile mean over seeds [95 % stratified bootstrap]; what it loses against the head told; share "
    "of episodes with the right head at the end and steps until it stays; the pole's mean direction over "
    "the last 50 steps, in the most typical episode."
)


def control_section(title: str, groups: Sequence[Group], alone: Sequence[Group] = ()) -> str:
    """One table for one sequence of tasks: a row per method and way to act.

    Args:
        title: what was trained.
        groups: the methods.
        alone: results among which tasks that were trained by themselves are looked for.

    >>> from owlrl.experiments import Result, Run
    >>> from owlrl.experiments.control_tables import control_section
    >>> from owlrl.experiments.summary import Group
    >>> row = {"kind": "evaluation", "set": "seen", "policy": "oracle", "task": "pendulum+90",
    ...        "mean_return": -300.0, "final_angles": [156.0, 157.0]}
    >>> result = Result(Run("owlrl/Pendulum-v0:90"), [row], {})
    >>> print(control_section("one task", [Group((result,))]).splitlines()[-1])
    | owl-memory | oracle | 1 | -300.0 | -300.00 | – | – | – | +156° | – |
    """
    tasks = list(groups[0].run.specs)
    rows = [_separate(found, tasks)] if (found := _trained_alone(groups[0], tasks, alone)) else []
    rows += [_row(group, policy, tasks) for group in groups for policy in group.policies()]
    header = ["method", "policy", "seeds", *tasks, "mean", "loss", "right head", "steps"]
    header += [f"angle, {task}" for task in tasks] + ["core-minutes per seed"]
    return f"### {title}\n\n{ABOUT}\n\n{table(header, rows)}"


def _row(group: Group, policy: str, tasks: Sequence[str]) -> list[str]:
    returns = group.scores(policy).mean(axis=0)
    told = group.scores(ORACLE).mean() if ORACLE in group.policies() and policy != ORACLE else None
    loss = None if told is None else 100.0 * (told - returns.mean()) / abs(told)
    found = policy != ORACLE
    return [
        *(group.label, policy, str(len(group.results))),
        *(f"{value:.1f}" for value in returns),
        str(group.estimate(policy)),
        DASH if loss is None else f"{loss:.1f} %",
        number(group.mean_of("identified", policy) if found else None),
        number(group.mean_of("steps_to_identify", policy) if found else None, 1),
        *(_angle(group, policy, task) for task in tasks),
        number(group.minutes(), 1),
    ]


def _separate(alone: dict[str, Group], tasks: Sequence[str]) -> list[str]:
    """The row of what was trained alone."""
    returns = [alone[task].scores(ORACLE).mean() for task in tasks]
    minutes = [alone[task].minutes() for task in tasks]
    return [
        *("separately trained", ORACLE, str(min(len(alone[task].results) for task in tasks))),
        *(f"{value:.1f}" for value in returns),
        f"{np.mean(returns):.2f}",
        *(DASH, DASH, DASH),
        *(_angle(alone[task], ORACLE, task) for task in tasks),
        DASH if None in minutes else f"{sum(m for m in minutes if m is not None):.1f}",
    ]


def _angle(group: Group, policy: str, task: str) -> str:
    """That of the episode which is nearest to all others, of all seeds.

    A mean would mislead: 23° and 157° are equally good for +90°, and some episodes end in either.
    """
    rows = [row for result in group.results for row in result.select("evaluation", policy=policy, task=task)]
    every = np.array([angle for row in rows for angle in row["final_angles"]])
    apart = np.abs(angle_from(np.radians(every[:, None] - every), 0.0)).sum(axis=0)
    return f"{every[apart.argmin()]:+.0f}°"


def _trained_alone(like: Group, tasks: Sequence[str], groups: Sequence[Group]) -> dict[str, Group] | None:
    """Of each task a group that had nothing else to learn, in as many frames; None if one is missing."""
    env_id = like.run.tasks.rpartition(":")[0]
    wanted = {
        task: replace(like.run, tasks=f"{env_id}:{dict(spec.arguments)['angle']:g}").specs
        for task, spec in like.run.specs.items()
    }
    same = [g for g in groups if _schedule(g) == _schedule(like) and ORACLE in g.policies()]
    found = {task: group for task, specs in wanted.items() for group in same if group.run.specs == specs}
    return found if len(tasks) > 1 and set(found) == set(tasks) else None


def _schedule(group: Group) -> tuple[object, ...]:
    run = group.run
    each = {task: run.rounds * frames for task, frames in run.frames_by_task.items()}
    return run.arguments, run.rounds * run.frames, each, run.learner, run.overrides, run.num_envs
