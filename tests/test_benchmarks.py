"""benchmarks/RESULTS.md has a table for each benchmark that is run, with the rows that it makes."""

import ast
import json
import re
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import torch

from benchmarks import detector, mixed_rewards, slow_drift
from owlrl.changes import Contradiction, contradiction
from owlrl.experiments import Run, resolve_tasks
from owlrl.types import Transitions

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


def ring(pays, length):
    """Round and round eight places, of which the even ones pay, or the odd ones."""
    place = torch.arange(float(length)) % 8
    ends = torch.zeros(length, dtype=torch.bool)
    paid = (place % 2 == pays).float()
    columns = (place, place.long() * 0, paid, (place + 1) % 8, ends, torch.ones(length))
    return Transitions(*columns, truncated=ends)


class Jump:
    """In place of a test of river: an alarm where two rewards in a row pay."""

    def __init__(self):
        self.last, self.drift_detected = 0.0, False

    def update(self, reward):
        self.drift_detected = self.last == reward == 1.0
        self.last = reward


class Still:
    """In place of an environment and of its learner, which takes a while."""

    def __init__(self, copies):
        assert copies == 1

    def learn(self, steps):
        sum(range(100 * steps))


def test_detectors_are_measured_on_recorded_rows(tmp_path, monkeypatch):
    tasks = {"0": None, "1": None}
    monkeypatch.setattr(detector, "FAMILIES", {"ring": (lambda: tasks, 1, None)})
    monkeypatch.setattr(detector, "LENGTHS", {"ring": 1_200})
    monkeypatch.setattr(
        detector,
        "shown_by",
        lambda case, tasks, task, rows: (rows.reward == (rows.observation % 2 == int(task))).numpy(),
    )
    kinds = {
        "Contradiction": detector.BASELINES["Contradiction"],
        "RewardDrift": detector.BASELINES["RewardDrift"],
        "jump": lambda: detector.River(Jump),
    }
    monkeypatch.setattr(detector, "BASELINES", kinds)
    for number, task in enumerate(tasks):
        recorder = detector.Recorder()
        recorder.take(ring(int(task), 4_096))
        recorder.save(tmp_path / f"ring-0-{number}.npz")
    found = detector.alarms("ring", 0, tmp_path)
    assert found["rows"] == 2 * 4_096 and found["alarms"] == {"Contradiction": 0, "RewardDrift": 0, "jump": 0}
    made = detector.streams("ring", 0, tmp_path, kinds)
    changes = detector.ORDERS * 5
    assert len(made["least"]) == changes and max(made["least"]) == 1
    ours = [delay for stream in made["streams"]["Contradiction"] for delay in stream["delays"]]
    assert len(ours) == changes and None not in ours
    assert all(mine >= least for mine, least in zip(ours, made["least"], strict=True))
    assert all(s["tasks"] == 0 and s["other"] == 0 for s in made["streams"]["Contradiction"])
    missed = [delay for stream in made["streams"]["RewardDrift"] for delay in stream["delays"]]
    assert missed == [None] * changes  # both tasks pay as much
    monkeypatch.setattr(detector, "FAMILIES", {"ring": (lambda: {"0": Still, "1": Still}, 1, lambda e, s: e)})
    monkeypatch.setattr(detector, "VISIT", 128)
    monkeypatch.setattr(detector, "LEARNED", 1_024)
    spent = detector.cost("ring", 0, tmp_path)
    assert list(spent["looking"]) == ["128", "1200"]  # rows of a visit
    for looking in spent["looking"].values():
        assert list(looking) == ["1", "5", "20"] and min(looking.values()) > 0
    out = tmp_path / "out"
    out.mkdir()
    for kind, one in (("alarms", found), ("streams", made), ("cost", spent)):
        (out / f"{kind}-ring-0.json").write_text(json.dumps(one))
    text = detector.table(out)
    assert (
        "| ring | 8,192 | 0 | 0 | 0 |" in text
        and f"| ring | Contradiction | {changes} of {changes} |" in text
    )


def test_inner_numbers_are_halved_and_put_back():
    before = contradiction.MATURE
    with detector.changed("MATURE", 0.5) as make:
        assert (
            before // 2 == contradiction.MATURE
            and make().finder.detector.threshold == Contradiction().threshold
        )
    assert before == contradiction.MATURE
    with detector.changed("threshold", 2.0) as make:
        assert make().finder.detector.threshold == 2 * Contradiction().threshold
    for module, names in detector.NUMBERS.items():
        assert all(isinstance(getattr(module, name), int | float) for name in names)


def test_gravity_drifts_between_two_calm_parts(monkeypatch):
    monkeypatch.setattr(slow_drift, "CALM", 5)
    monkeypatch.setattr(slow_drift, "DRIFT", 10)
    env = slow_drift.Drifting(gymnasium.make("Pendulum-v1"))
    env.reset(seed=0)
    seen = []
    for _ in range(20):
        env.step(env.action_space.sample())
        seen.append(env.unwrapped.g)
    assert seen[:6] == [10.0] * 6 and seen[15:] == [14.0] * 5
    assert np.allclose(np.diff(seen[5:16]), 0.4)
