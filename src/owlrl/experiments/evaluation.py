"""Evaluation of a trained session: every way to act, on tasks that were learned and on others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from owlrl.envs import Table
from owlrl.experiments.episodes import Episodes, FloatArray, Lanes, run_lanes
from owlrl.experiments.metrics import identification_accuracy, steps_to_identify
from owlrl.experiments.policies import ORACLE, parse_policy
from owlrl.experiments.session import Session

__all__ = ["evaluate", "evaluate_in_a_row", "final_angles"]

Row = dict[str, Any]


def evaluate(
    session: Session,
    tables: Mapping[str, Any],
    policies: Sequence[str],
    *,
    episodes: int = 16,
    label: str = "seen",
    traces: Sequence[str] = (),
) -> list[Row]:
    """Run first episodes of every task with every policy; one row per policy and task.

    Rows have kind "evaluation": ``policy``, ``set`` (the label), ``task``, ``episodes``, ``success`` (share
    that reached a goal that pays), ``mean_return``, ``mean_length``, and for tasks that were learned
    ``identified`` (`identification_accuracy`) and ``steps_to_identify`` (mean). Policies in ``traces`` add
    rows of kind "trace" with one episode of each task: ``heads``, ``arms``, ``probabilities``, ``losses``.
    The oracle is left out for tasks that have no head. ``tables`` are a session's ``tasks``, or the like.

    Tasks with continuous actions have no success. They have ``returns`` of all episodes and ``final_angles``
    of the pole instead, and ``angles`` in a trace, in degrees.

    >>> from owlrl.experiments import Run, Session, evaluate
    >>> session = Session(Run("Crossroads-2", method="experience-replay", arguments={"max_steps": 5}))
    >>> evaluate(session, session.tasks, ["oracle"], episodes=2)[0]["success"]
    0.0
    """
    rows: list[Row] = []
    for policy in policies:
        chosen = dict(tables)
        if parse_policy(policy, control=session.run.control).selector == ORACLE and session.run.recipe.heads:
            chosen = {name: table for name, table in tables.items() if name in session.heads}
        if not chosen:
            continue
        # With the task given, a head acts the same in every episode of a deterministic task.
        copies = 1 if policy == ORACLE and not session.run.control else episodes
        side_by_side = session.lanes(list(chosen.values()), copies)
        found = run_lanes(_policy(session, policy, chosen, copies), side_by_side)
        angles = _angles(side_by_side)
        for place, task in enumerate(chosen):
            lanes = slice(place * copies, (place + 1) * copies)
            lane = lanes.start
            if angles is not None:  # the one that starts nearest to hanging down
                lane += int(np.abs(angles[0, lanes]).argmax())
            shown = [_row(session, policy, label, task, found, lanes)]
            if policy in traces:
                shown.append(_trace(session, policy, task, found, lane))
            if angles is not None:
                shown = [_of_pendulum(row, found, angles, lanes, lane) for row in shown]
            rows += shown
    return rows


def evaluate_in_a_row(
    session: Session,
    tables: Mapping[str, Table],
    policies: Sequence[str],
    *,
    consecutive: int,
    episodes: int = 16,
) -> list[Row]:
    """Run several episodes in a row with kept evidence, as when the task reveals itself only at its end.

    Rows have kind "in-a-row": ``policy``, ``task``, ``episodes`` (how many sequences), ``by_episode``
    (success of the first, second, … episode) and ``failures`` (mean number of failed episodes in a sequence).

    >>> from owlrl.experiments import Run, Session, evaluate_in_a_row
    >>> session = Session(Run("Crossroads-2", method="experience-replay", arguments={"max_steps": 5}))
    >>> evaluate_in_a_row(session, session.tasks, ["oracle"], consecutive=3)[0]["failures"]
    3.0
    """
    rows: list[Row] = []
    for policy in policies:
        lanes = Lanes(list(tables.values()), episodes)
        found = run_lanes(_policy(session, policy, tables, episodes), lanes, consecutive=consecutive)
        for place, task in enumerate(tables):
            success = found.success[:, place * episodes : (place + 1) * episodes]  # (N, episodes)
            rows.append(
                {
                    "kind": "in-a-row",
                    "policy": policy,
                    "task": task,
                    "episodes": episodes,
                    "by_episode": success.mean(axis=1).tolist(),
                    "failures": float((~success).sum(axis=0).mean()),
                }
            )
    return rows


def final_angles(angles: FloatArray, *, last: int = 50) -> FloatArray:
    """Mean direction of the pole over the last steps, in degrees; (T, E) radians → (E,).

    It is the direction of the mean of unit vectors: 179° and −179° give 180°, and not 0°.

    >>> import numpy as np
    >>> from owlrl.experiments.evaluation import final_angles
    >>> final_angles(np.radians([[50.0, 10.0], [179.0, 10.0], [-179.0, 20.0]]), last=2).round(6)
    array([180.,  15.])
    """
    ends = angles[-last:]
    found: FloatArray = np.degrees(np.arctan2(np.sin(ends).mean(0), np.cos(ends).mean(0)))
    return found


def _angles(lanes: Lanes) -> FloatArray | None:
    """Of the poles in radians, (T, E), after each step; None for levels."""
    if not lanes.finals:
        return None
    seen = np.array(lanes.finals)
    found: FloatArray = np.arctan2(seen[..., 1], seen[..., 0]).astype(np.float64)
    return found


def _policy(session: Session, name: str, tables: Mapping[str, Any], copies: int) -> Any:
    return session.policy(name, [task for task in tables for _ in range(copies)])


def _row(session: Session, policy: str, label: str, task: str, found: Episodes, lanes: slice) -> Row:
    lengths = found.lengths[0, lanes]
    row: Row = {
        "kind": "evaluation",
        "policy": policy,
        "set": label,
        "task": task,
        "episodes": len(lengths),
        "success": float(found.success[0, lanes].mean()),
        "mean_return": float(found.returns[0, lanes].mean()),
        "mean_length": float(lengths.mean()),
    }
    if session.run.recipe.heads and task in session.heads:
        truth = np.full(len(lengths), list(session.heads).index(task))
        row["identified"] = identification_accuracy(found.arms[:, lanes], lengths, truth)
        row["steps_to_identify"] = float(steps_to_identify(found.arms[:, lanes], lengths, truth).mean())
    return row


def _trace(session: Session, policy: str, task: str, found: Episodes, lane: int) -> Row:
    steps = int(found.lengths[0, lane])
    return {
        "kind": "trace",
        "policy": policy,
        "task": task,
        "heads": list(session.heads),
        "success": bool(found.success[0, lane]),
        "arms": found.arms[:steps, lane].tolist(),
        "probabilities": found.probabilities[:steps, lane].round(4).tolist(),
        "losses": found.losses[:steps, lane].round(4).tolist(),
    }


def _of_pendulum(row: Row, found: Episodes, angles: FloatArray, lanes: slice, lane: int) -> Row:
    """The row with angles (T, E), and without the success that there is none of."""
    row = {name: value for name, value in row.items() if name != "success"}
    if row["kind"] == "trace":
        return {**row, "angles": np.degrees(angles[:, lane]).round(1).tolist()}
    row["returns"] = found.returns[0, lanes].round(2).tolist()
    row["final_angles"] = final_angles(angles[:, lanes]).round(1).tolist()
    return row
