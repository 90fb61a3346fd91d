from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from owlrl import DistillationRegularizer, EWCRegularizer, RehearsalReplay, SharedReplay, TaskScopedReplay
from owlrl.acting import run_episodes
from owlrl.checkpoint import save_state
from owlrl.envs import TabulatedVectorEnv
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.experiments import METHODS, Run, Session, evaluate, resolve_tasks, table_of
from owlrl.experiments.config import recipe_of
from owlrl.experiments.session import greedy_score
from owlrl.heads.modes import eval_mode
from tests.experiments.helpers import QUICK, TINY, tiny


def learn(session: Session, *tasks: str, frames: int = 128) -> None:
    for task in tasks:
        session.train(task, session.env(task), frames)


LEFT, RIGHT = "crossroads-0", "crossroads-1"


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_learns_two_tasks_and_acts(method):
    session = Session(tiny(method=method))
    learn(session, LEFT, RIGHT)
    assert session.heads == ({LEFT: 0, RIGHT: 1} if METHODS[method].heads else {LEFT: 0, RIGHT: 0})
    assert session.agent.q.num_heads == (2 if METHODS[method].heads else 1)
    assert session.agent.updates > 0
    policy = session.policy_of("oracle", [LEFT, RIGHT])
    policy.reset(num_envs=2)
    assert policy.act(np.zeros((2, 7, 7, 3), np.uint8)).shape == (2,)


SETTINGS = ("strength", "states", "memory_size", "batch_size", "every")


def test_parts_are_those_of_the_method():
    kinds = {
        "experience-replay": (SharedReplay, None),
        "full-rehearsal": (RehearsalReplay, None),
        "one-head-rehearsal": (RehearsalReplay, None),
        "owl": (TaskScopedReplay, EWCRegularizer),
        "owl-loss": (TaskScopedReplay, EWCRegularizer),
        "owl-memory": (TaskScopedReplay, DistillationRegularizer),
        "owl-distill-current": (TaskScopedReplay, DistillationRegularizer),
        "owl-no-ewc": (TaskScopedReplay, None),
    }
    for name, (replay, regularizer) in kinds.items():
        session = Session(tiny(method=name))
        assert type(session.agent.replay) is replay
        found = None if session._owl is None else session._owl.regularizer
        assert (None if found is None else type(found)) is regularizer
    ours, default = Session(tiny(method="owl-memory"))._owl.regularizer, DistillationRegularizer()
    assert {n: getattr(ours, n) for n in SETTINGS} == {n: getattr(default, n) for n in SETTINGS}
    assert Session(tiny(method="owl-memory", strength=7.0))._owl.regularizer.strength == 7.0
    assert Session(tiny(method="owl"))._owl.regularizer.importance == "output"
    assert Session(tiny(method="owl-loss"))._owl.regularizer.importance == "loss"
    assert Session(tiny(method="owl-distill-current"))._owl.regularizer.states == "current"
    assert Session(tiny(method="owl")).agent.replay.warm_start == 0
    assert Session(tiny(method="owl-warm-start")).agent.replay.warm_start == 50_000
    assert isinstance(Session(tiny(method="owl-mlp-head")).agent.q.heads[0], nn.Sequential)
    assert any(isinstance(m, nn.Dropout) for m in Session(tiny(method="owl-dropout-0.1")).agent.q.modules())
    with pytest.raises(OwlValueError, match="method is 'x'"):
        recipe_of("x")


def test_the_base_learner_is_the_same_for_all_methods():
    first, second = (Session(tiny(method=m, seed=3)).agent for m in ("experience-replay", "owl-memory"))
    assert first.config == second.config
    for one, other in zip(first.q.parameters(), second.q.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_shared_replay_has_room_for_all_tasks_and_keeps_them():
    session = Session(tiny(method="experience-replay"))
    assert session.agent.replay.capacity == 2 * TINY["buffer_size"]
    learn(session, LEFT)
    before = len(session.agent.replay)
    learn(session, RIGHT)
    assert len(session.agent.replay) > before


def test_rehearsal_trains_old_heads_too():
    session = Session(tiny(method="full-rehearsal"))
    learn(session, LEFT, frames=256)
    old = session.agent.q.heads[0].weight.detach().clone()
    learn(session, RIGHT, frames=512)
    assert not torch.equal(old, session.agent.q.heads[0].weight)
    scoped = Session(tiny(method="owl-no-ewc"))
    learn(scoped, LEFT, frames=256)
    old = scoped.agent.q.heads[0].weight.detach().clone()
    learn(scoped, RIGHT, frames=512)
    assert torch.equal(old, scoped.agent.q.heads[0].weight)


@pytest.mark.parametrize(
    ("method", "seen", "frames"),
    [
        ("owl", 256, 1_000),
        ("experience-replay", 256, 1_000),
        ("owl-epsilon-restart-1x", 128, 1_000),
        ("owl-epsilon-restart-2x", 128, 500),
    ],
)
def test_exploration_of_a_revisited_task(method, seen, frames):
    session = Session(
        tiny(method=method, overrides={**TINY, "epsilon_frames": 1_000, "epsilon_waits": False})
    )
    learn(session, LEFT)
    assert session.agent.epsilon.seen == 128
    learn(session, RIGHT)
    assert (session.agent.epsilon.seen, session.agent.epsilon.frames) == (128, 1_000)
    learn(session, LEFT)
    assert (session.agent.epsilon.seen, session.agent.epsilon.frames) == (seen, frames)


def test_the_papers_learner():
    session = Session(tiny(learner="paper", overrides={"learning_starts": 64, "buffer_size": 500}))
    assert type(session.agent.q.trunk).__name__ == "GridConv"
    assert session.env(LEFT).count_bonus == 1.0
    assert session.tasks[LEFT].reward.max() == pytest.approx(100.0 * 1.05)
    learn(session, LEFT)
    assert session.agent.updates == 16  # one per four frames after the random ones


def test_the_oracle_is_told_the_task_of_each_lane():
    session = Session(tiny())
    with pytest.raises(OwlStateError, match="no task has been learned"):
        session.policy_of("oracle", [LEFT])
    learn(session, LEFT, RIGHT)
    policy = session.policy_of("oracle", [RIGHT, LEFT, RIGHT])
    policy.reset(num_envs=3)
    policy.act(np.zeros((3, 7, 7, 3), np.uint8))
    assert policy.trace[0].arm.tolist() == [1, 0, 1]
    with pytest.raises(OwlValueError, match="the oracle has no head for elsewhere"):
        session.policy_of("oracle", ["elsewhere"])
    one = Session(tiny(method="experience-replay")).policy_of("oracle", ["elsewhere"])
    one.reset(num_envs=1)
    one.act(np.zeros((1, 7, 7, 3), np.uint8))


def test_tasks_with_different_actions_are_refused():
    class Mixed(Run):
        @property
        def specs(self):
            return {
                **resolve_tasks("Crossroads-2", {"length": 1}),
                **resolve_tasks("owlrl/DoorKey-v0:4", {"size": 5}),
            }

    with pytest.raises(OwlValueError, match=r"the tasks have \[3, 7\] actions"):
        Session(Mixed())


@pytest.mark.parametrize("method", ["owl-memory", "experience-replay", "owl-mlp-head"])
def test_a_saved_session_acts_as_before(method, tmp_path):
    policies = ("oracle", "hedge+td") if METHODS[method].heads else ("oracle",)
    session = Session(tiny(method=method, policies=policies))
    learn(session, LEFT, RIGHT)
    session.save(tmp_path / "kept.safetensors")
    again = Session.load(tmp_path / "kept.safetensors")
    assert again.run == session.run
    assert again.heads == session.heads
    seen = torch.tensor(session.tasks[LEFT].observations)
    for name in ("q", "target"):
        one, other = getattr(session.agent, name), getattr(again.agent, name)
        assert torch.equal(one.all_heads(seen), other.all_heads(seen))
    assert again.evidence.state_dict() == session.evidence.state_dict()


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    save_state(tmp_path / "x.safetensors", {"q": torch.zeros(1)})
    with pytest.raises(OwlValueError, match="a checkpoint of something else"):
        Session.load(tmp_path / "x.safetensors")


POLICIES = (
    "oracle",
    "hedge+td",
    "hedge+reward",
    "released+td-raw",
    "paper+td-squared",
    "random",
    "max-q-once",
    "max-q-every-step",
)


@pytest.fixture(scope="module")
def session() -> Session:
    made = Session(tiny(policies=POLICIES, overrides=QUICK, consecutive=5))
    learn(made, LEFT, RIGHT, frames=600)
    return made


def scores(session, tasks, policies, **more):
    return [row for row in evaluate(session, tasks, policies, **more) if row["kind"] == "score"]


def test_a_row_per_policy_and_task(session):
    rows = scores(session, session.tasks, POLICIES, episodes=4)
    assert [(row["mode"], row["task"]) for row in rows] == [(p, t) for p in POLICIES for t in (LEFT, RIGHT)]
    for row in rows:
        assert row["episodes"] == 4 and "set" not in row
        assert 0 <= row["success"] <= 1 and 0 <= row["found"] <= 1
        assert 0 <= row["steps"] <= row["mean_length"] <= 12


def test_the_told_heads_solve_their_tasks_and_max_q_cannot_solve_both(session):
    rows = scores(session, session.tasks, POLICIES)
    success = {(row["mode"], row["task"]): row["success"] for row in rows}
    assert success["oracle", LEFT] == success["oracle", RIGHT] == 1.0
    assert success["max-q-once", LEFT] + success["max-q-once", RIGHT] <= 1.0
    assert [row["found"] for row in rows if row["mode"] == "oracle"] == [1.0, 1.0]


def test_a_trace_is_one_episode(session):
    rows = evaluate(session, session.tasks, ["hedge+reward", "random"], episodes=2)
    traces = [row for row in rows if row["kind"] == "trace"]
    assert [(row["mode"], row["task"]) for row in traces] == [("hedge+reward", LEFT), ("hedge+reward", RIGHT)]
    for row in traces:
        assert row["heads"] == [LEFT, RIGHT]
        assert len(row["arms"]) == len(row["probabilities"]) == len(row["losses"]) <= 12
        assert all(sum(p) == pytest.approx(1.0, abs=1e-3) for p in row["probabilities"])
        assert row["probabilities"][0] == [0.5, 0.5] != row["probabilities"][-1]  # evidence moves them


def test_tasks_that_were_not_learned_have_no_oracle_and_no_right_head(session):
    arguments = {"length": 1, "max_steps": 12}
    other = {"crossroads-2": table_of(resolve_tasks("Crossroads-3", arguments)["crossroads-2"])}
    assert evaluate(session, other, ["oracle"]) == []
    (row,) = evaluate(session, other, ["oracle", "random"], episodes=2, label="others")
    assert (row["mode"], row["set"]) == ("random", "others")
    assert row["found"] is None and row["steps"] is None
    two = {**other, "crossroads-again": other["crossroads-2"]}
    rows = evaluate(session, two, ["hedge+reward"], episodes=2, label="others")
    (trace,) = (row for row in rows if row["kind"] == "trace")  # of the first of them
    assert (trace["task"], trace["set"], trace["heads"]) == ("crossroads-2", "others", [LEFT, RIGHT])
    assert [row["task"] for row in scores(session, {**session.tasks, **other}, ["oracle"])] == [LEFT, RIGHT]


def test_a_task_that_is_still_to_come_is_not_asked():
    session = Session(tiny(policies=("oracle", "random")))
    learn(session, LEFT)
    assert {row["task"] for row in scores(session, session.tasks, ["oracle", "random"])} == {LEFT}


def test_one_head_is_evaluated_on_anything():
    one = Session(tiny(method="experience-replay"))
    other = {"longer": table_of(resolve_tasks("Crossroads-2", {"length": 3})["crossroads-0"])}
    (row,) = evaluate(one, other, ["oracle"], label="x")
    assert row["set"] == "x" and row["found"] is None
    bare, freed = scores(one, other, ["oracle", "oracle+least-tried"], episodes=8)
    assert bare["success"] == 0.0 < freed["success"]


def test_in_a_row_counts_failures(session):
    rows = evaluate(session, session.tasks, ["oracle", "random", "oracle+least-tried"], episodes=6)
    rows = [row for row in rows if row["kind"] == "in-a-row"]
    assert len(rows) == 6
    for row in rows:
        assert row["episodes"] == 6 and len(row["by_episode"]) == 5
        assert row["failures"] == pytest.approx(5 - sum(row["by_episode"]))
    # what was tried is forgotten between episodes, so that a told head is left as it is
    assert [row["failures"] for row in rows if row["mode"].startswith("oracle")] == [0.0] * 4


def test_the_curve_is_an_episode_of_the_told_head(session):
    for task, head in session.heads.items():
        for other in (LEFT, RIGHT):
            env = TabulatedVectorEnv(session.tasks[other], 1)
            told = run_episodes(session.policy_of("oracle", [task]), env, episodes=1, seed=0)
            found = greedy_score(session.agent.q, head, session.tasks[other])
            assert found.returns == pytest.approx(told.returns) and found.success == told.success[0]
    solved = [
        greedy_score(session.agent.q, session.heads[t], session.tasks[t]).success for t in (LEFT, RIGHT)
    ]
    assert solved == [1.0, 1.0]


def test_a_look_changes_no_mode():
    session = Session(tiny(method="owl-dropout-0.1"))
    q, table = session.agent.q, session.tasks[LEFT]
    q.train()
    before = torch.get_rng_state()
    greedy_score(q, 0, table)
    assert q.training
    assert torch.equal(before, torch.get_rng_state())  # nothing was dropped
    with eval_mode(q):
        greedy_score(q, 0, table)
        assert not q.training


def test_a_head_that_never_ends_fails(session):
    table = session.tasks[LEFT]
    turn = torch.zeros(table.num_observations, 3)
    turn[:, 0] = 1.0  # left, for ever

    class Turning:
        module = torch.nn.Linear(1, 1)

        def __call__(self, seen, head):
            return turn

    assert greedy_score(Turning(), 0, table).success == 0.0
