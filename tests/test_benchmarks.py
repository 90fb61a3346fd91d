"""benchmarks/RESULTS.md has a table for each benchmark that is run, with the rows that it makes."""

import ast
import json
import re
from functools import partial
from pathlib import Path

from benchmarks import mixed_rewards
from owlrl.experiments import Run, resolve_tasks

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def modules():
    """The names in ``MODULES`` of run.py, in order."""
    tree = ast.parse((BENCHMARKS / "run.py").read_text(encoding="utf-8"))
    (found,) = (
        node.value for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "MODULES"
    )  # fmt: skip
    return [item.id for item in found.elts]


def pattern(node):
    """A regular expression of a row's name as it is written in the source."""
    if isinstance(node, ast.JoinedStr):
        return "".join(re.escape(v.value) if isinstance(v, ast.Constant) else ".*" for v in node.values)
    return re.escape(node.value)


def patterns(module):
    """Of all names that a benchmark gives its rows."""
    tree = ast.parse((BENCHMARKS / f"{module}.py").read_text(encoding="utf-8"))
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", None) == "Row"]
    assigned = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.JoinedStr):
            assigned[getattr(node.targets[0], "id", None)] = node.value
    names = [assigned[c.args[0].id] if isinstance(c.args[0], ast.Name) else c.args[0] for c in calls]
    return [pattern(name) for name in names]


def tables():
    """Names of rows by benchmark, as RESULTS.md has them."""
    text = (BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8")
    found = {}
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        lines = [line for line in section.splitlines() if line.startswith("| ")]
        found[section.split("\n", 1)[0]] = [line.split(" | ")[0].removeprefix("| ") for line in lines[1:]]
    return found


def test_every_benchmark_has_its_table():
    assert list(tables()) == modules()


def test_rows_are_those_that_the_benchmarks_make():
    for module, rows in tables().items():
        wanted = patterns(module)
        assert wanted and rows, module
        odd = [row for row in rows if not any(re.fullmatch(p, row) for p in wanted)]
        missing = [p for p in wanted if not any(re.fullmatch(p, row) for row in rows)]
        assert not odd and not missing, (module, odd, missing, "make bench")


def test_mixed_rewards_measures_all_ways_to_act_and_tables_what_is_there(tmp_path, monkeypatch):
    small = {"length": 1, "max_steps": 8, "breadcrumbs": True}
    monkeypatch.setattr(mixed_rewards, "Run", partial(Run, arguments=small))
    monkeypatch.setattr(mixed_rewards, "resolve_tasks", lambda tasks, _: resolve_tasks(tasks, small))
    monkeypatch.setattr(mixed_rewards, "EPISODES", 8)
    monkeypatch.setattr(mixed_rewards, "IN_A_ROW", 2)
    session = mixed_rewards.trained(0, scale=10.0, frames=64)
    assert session.tasks["crossroads-2"].reward.max() > 5 > session.tasks["crossroads-0"].reward.max()
    ways = ("oracle", *mixed_rewards.POLICIES)
    found = {policy: mixed_rewards.measured(session, policy) for policy in ways}
    assert found["oracle"]["sparse"] == 0.0 < found["random"]["sparse"] < 1.0
    (tmp_path / "0.json").write_text(json.dumps({"seed": 0, "scale": 10.0, "policies": found}))
    lines = mixed_rewards.table(tmp_path).splitlines()
    assert len(lines) == 2 + len(ways) and lines[2].startswith("| × 10 | task given | 1 | 0.00 (0.00–0.00) |")
