"""What several commands do alike: options to tasks and settings, results to text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from owlrl.envs.task_sets import CROSSING, PENDULUM
from owlrl.errors import OwlValueError
from owlrl.experiments.results import Result

__all__ = ["named_values", "print_json", "say", "task_text"]


def task_text(
    name: str | None, env_id: str | None, levels: Sequence[int], angles: Sequence[float]
) -> str | None:
    """A set, levels or angles as `owlrl.experiments.resolve_tasks` takes them; None if none is given."""
    given = {"tasks": name, "levels": levels, "angles": angles}
    if len(told := {key: value for key, value in given.items() if value}) > 1:
        text = " and ".join(f"{key} {'is' if key == 'tasks' else 'are'} {v!r}" for key, v in told.items())
        raise OwlValueError(f"{text}; give one of them")
    if angles and env_id != PENDULUM:
        raise OwlValueError(f"angles are {angles} and env_id is {env_id!r}; they are for {PENDULUM!r}")
    numbers = [f"{angle:g}" for angle in angles] or list(map(str, levels))
    if env_id is not None and not numbers:
        example = "angles, e.g. --angles 90 -90" if env_id == PENDULUM else "levels, e.g. --levels 3 7 14"
        raise OwlValueError(f"env_id is {env_id!r}, of which nothing is chosen; give {example} with it")
    return f"{env_id or CROSSING}:{','.join(numbers)}" if numbers else name


def named_values(where: str, texts: Sequence[str]) -> dict[str, Any]:
    """``name=value`` texts as a dict; values are JSON, or text where they are not."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise OwlValueError(f"{where} has {text!r}; expected name=value")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def say(quiet: bool, *texts: str) -> None:
    """Print lines, unless all that is wanted is JSON."""
    if not quiet:
        print(*texts, sep="\n")


def print_json(result: Result, **more: object) -> None:
    """One line: mean success (or return) per policy, of trained tasks and of other sets; all evaluations."""
    rows = [row for row in result.rows if row["kind"] in ("evaluation", "in-a-row")]
    scores: dict[str, dict[str, list[float]]] = {"seen": {}}
    for row in result.select("evaluation"):
        scores.setdefault(row["set"], {}).setdefault(row["policy"], []).append(row[result.run.measure])
    means = {
        label: {policy: sum(found) / len(found) for policy, found in by_policy.items()}
        for label, by_policy in scores.items()
    }
    summary = {result.run.measure: means.pop("seen"), "others": means}
    print(json.dumps({"id": result.run.id, **summary, **more, "rows": rows}))
