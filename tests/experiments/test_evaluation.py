from __future__ import annotations

import pytest

from owlrl.experiments import Session, evaluate, evaluate_in_a_row, resolve_tasks, table_of
from tests.experiments.helpers import QUICK, tiny

LEFT, RIGHT = "crossroads-0", "crossroads-1"
POLICIES = (
    "oracle",
    "hedge+reward",
    "released+td-raw",
    "paper+td-squared",
    "random",
    "max-q-once",
    "max-q-every-step",
)


@pytest.fixture(scope="module")
def session() -> Session:
    made = Session(tiny(policies=POLICIES, overrides=QUICK))
    for task in (LEFT, RIGHT):
        with made.task(task):
            made.agent.learn(600, env=made.env(task))
    return made


def test_a_row_per_policy_and_task(session):
    rows = evaluate(session, session.tasks, POLICIES, episodes=4)
    assert [(row["policy"], row["task"]) for row in rows] == [(p, t) for p in POLICIES for t in (LEFT, RIGHT)]
    for row in rows:
        assert row["kind"] == "evaluation" and row["set"] == "seen"
        assert row["episodes"] == (1 if row["policy"] == "oracle" else 4)
        assert 0 <= row["success"] <= 1 and 0 <= row["identified"] <= 1
        assert 0 <= row["steps_to_identify"] <= row["mean_length"] <= 12


def test_the_told_heads_solve_their_tasks_and_max_q_cannot_solve_both(session):
    success = {(r["policy"], r["task"]): r["success"] for r in evaluate(session, session.tasks, POLICIES)}
    assert success["oracle", LEFT] == success["oracle", RIGHT] == 1.0
    assert success["max-q-once", LEFT] + success["max-q-once", RIGHT] <= 1.0
    identified = {r["task"]: r["identified"] for r in evaluate(session, session.tasks, ["oracle"])}
    assert identified == {LEFT: 1.0, RIGHT: 1.0}


def test_a_trace_is_one_episode(session):
    rows = evaluate(session, session.tasks, ["hedge+reward", "random"], episodes=2, traces=["hedge+reward"])
    traces = [row for row in rows if row["kind"] == "trace"]
    assert [(row["policy"], row["task"]) for row in traces] == [
        ("hedge+reward", LEFT),
        ("hedge+reward", RIGHT),
    ]
    for row in traces:
        assert row["heads"] == [LEFT, RIGHT]
        assert len(row["arms"]) == len(row["probabilities"]) == len(row["losses"]) <= 12
        assert all(sum(p) == pytest.approx(1.0, abs=1e-3) for p in row["probabilities"])


def test_tasks_that_were_not_learned_have_no_oracle_and_no_right_head(session):
    arguments = {"length": 1, "max_steps": 12}
    other = {
        n: table_of(s) for n, s in resolve_tasks("Crossroads-3", arguments).items() if n == "crossroads-2"
    }
    assert evaluate(session, other, ["oracle"]) == []
    (row,) = evaluate(session, other, ["oracle", "random"], episodes=2, label="others")
    assert (row["policy"], row["set"]) == ("random", "others")
    assert "identified" not in row and "steps_to_identify" not in row
    both = evaluate(session, {**session.tasks, **other}, ["oracle"])
    assert [row["task"] for row in both] == [LEFT, RIGHT]


def test_one_head_is_evaluated_on_anything():
    one = Session(tiny(method="experience-replay"))
    (row, *_) = evaluate(one, one.tasks, ["oracle"], label="x")
    assert row["episodes"] == 1 and "identified" not in row


def test_in_a_row_counts_failures(session):
    rows = evaluate_in_a_row(session, session.tasks, ["oracle", "random"], consecutive=5, episodes=6)
    assert len(rows) == 4
    for row in rows:
        assert row["kind"] == "in-a-row" and row["episodes"] == 6
        assert len(row["by_episode"]) == 5
        assert row["failures"] == pytest.approx(5 - sum(row["by_episode"]))
    assert [row["failures"] for row in rows if row["policy"] == "oracle"] == [0.0, 0.0]


def test_least_tried_frees_a_head_that_is_caught_in_the_wrong_level(session):
    names = ["random", "random+least-tried", "oracle+least-tried"]
    rows = evaluate(session, session.tasks, names, episodes=8)
    assert [row["episodes"] for row in rows] == [8] * 6
    told = [row["success"] for row in rows if row["policy"] == "oracle+least-tried"]
    assert told == [1.0, 1.0]  # a told head comes by no place twice here
    other = {"longer": table_of(resolve_tasks("Crossroads-2", {"length": 3})["crossroads-0"])}
    assert [row["policy"] for row in evaluate(session, other, names, episodes=2)] == names[:2]
    one = Session(tiny(method="experience-replay"))
    bare, freed = evaluate(one, other, ["oracle", "oracle+least-tried"], episodes=8)
    assert bare["success"] == 0.0 < freed["success"]


def test_what_was_tried_is_forgotten_between_episodes_in_a_row(session):
    rows = evaluate_in_a_row(session, session.tasks, ["oracle+least-tried"], consecutive=4, episodes=2)
    assert [row["failures"] for row in rows] == [0.0, 0.0]
