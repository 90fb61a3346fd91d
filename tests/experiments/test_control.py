"""SAC on opposed Pendulums: the session, its episodes, its evaluation, and what is written of it."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from owlrl.envs import PendulumVectorEnv, TaskSpec, pendulums
from owlrl.errors import OwlStateError, OwlValueError
from owlrl.experiments import METHODS, STUDIES, Session, evaluate, run_experiment, study_runs
from owlrl.experiments.session import final_angles
from owlrl.experiments.tasks import vector_env
from owlrl.learners import SAC_PAPER

from .helpers import tiny, tiny_control

LEFT, RIGHT = "pendulum+90", "pendulum-90"
SEEN = ("oracle", "hedge+model", "hedge+nll", "hedge+reward", "paper+td-squared", "paper+nll-raw", "random")


def trained(run) -> Session:
    session = Session(run)
    for _ in range(run.rounds):
        for task in session.tasks:
            session.train(task, session.env(task), run.frames_of(task))
    return session


@pytest.fixture(scope="module")
def session():
    return trained(tiny_control(policies=SEEN))


@given(arrays(np.float64, (7, 3), elements=st.floats(-10, 10)), st.integers(1, 7))
def test_final_angle_is_the_direction_of_the_mean_unit_vector(angles, last):
    mean = np.exp(1j * angles[-last:]).mean(axis=0)
    found = np.exp(1j * np.radians(final_angles(angles, last=last)))
    assert found * np.abs(mean) == pytest.approx(mean, abs=1e-9)


def test_episodes_are_those_of_the_environment(session):
    """Returns and angles, against one environment that is stepped by the same policy."""
    rows = evaluate(session, session.tasks, ["oracle"], episodes=2)
    rows = [row for row in rows if row["kind"] == "score"]
    for row in rows:
        for lane, start in enumerate((10_000, 10_001)):
            env = gymnasium.make("owlrl/Pendulum-v0", **session.tasks[row["task"]].kwargs)
            policy = session.policy_of("oracle", [row["task"]])
            policy.reset(num_envs=1)
            seen, _ = env.reset(seed=start)
            total, over, angles = 0.0, False, []
            while not over:
                seen, reward, _, over, _ = env.step(policy.act(seen[None])[0])
                total += reward
                angles.append([np.arctan2(seen[1], seen[0])])
            assert row["mean_length"] == 20
            assert row["returns"][lane] == pytest.approx(total, abs=1e-2)
            assert row["final_angles"][lane] == pytest.approx(final_angles(np.array(angles))[0], abs=0.2)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.control is not None])
def test_every_method_for_continuous_actions_trains(method):
    run = tiny_control(method=method, frames=24)
    session, trial = trained(run), run_experiment(run)
    heads = METHODS[method].heads
    assert session.heads == ({LEFT: 0, RIGHT: 1} if heads else {LEFT: 0, RIGHT: 0})
    assert session.learner.networks["actor"].num_heads == (2 if heads else 1)
    assert trial.starts() == [0, 24, 48]
    assert session.agent.updates > 0
    assert [row[:2] for row in trial.course("oracle")] == [(24, LEFT), (48, LEFT), (48, RIGHT)]


def test_methods_are_what_they_say():
    memory, ewc = Session(tiny_control()), Session(tiny_control(method="owl"))
    assert memory._owl.regularizer.strength is None  # the default, as of a bare wrapper
    assert ewc._owl.regularizer.strength == {"actor": 100.0, "critic": 100.0}
    assert Session(tiny_control(method="owl", strength=7.0))._owl.regularizer.strength == 7.0
    assert (memory.agent.replay.warm_start, ewc.agent.replay.warm_start) == (50_000, 0)
    one = Session(tiny_control(method="experience-replay"))
    assert (one.agent.replay.capacity, one.agent.replay.warm_start) == (1_000, 1_000)  # room for both tasks
    assert one._owl.regularizer is None
    assert Session(tiny_control(learner="paper", overrides={})).agent.config == SAC_PAPER


def test_one_head_keeps_its_replay_and_a_head_per_task_does_not():
    rows = {}
    for method in ("experience-replay", "owl"):
        session = trained(tiny_control(method=method))
        rows[method] = len(session.agent.replay)
    assert rows == {"experience-replay": 80, "owl": 40}


def test_a_task_that_comes_back_finds_its_head_and_its_temperature():
    session = trained(tiny_control(rounds=2))
    assert session.heads == {LEFT: 0, RIGHT: 1}
    alphas = [session.learner.alpha_of(head) for head in (0, 1)]
    assert alphas[0] != alphas[1] and max(alphas) < 1.0


def test_the_same_run_twice_is_the_same():
    one, other = (run_experiment(tiny_control(policies=("oracle", "hedge+reward"))) for _ in range(2))
    for kind in ("score", "curve", "trace"):
        assert one.select(kind) == other.select(kind) != []


def test_evaluation_has_returns_and_angles(session):
    rows = evaluate(session, session.tasks, SEEN, episodes=3)
    found = [row for row in rows if row["kind"] == "score"]
    assert [(row["mode"], row["task"]) for row in found] == [(p, t) for p in SEEN for t in (LEFT, RIGHT)]
    for row in found:
        assert len(row["returns"]) == len(row["final_angles"]) == row["episodes"] == 3
        assert row["mean_return"] == pytest.approx(np.mean(row["returns"]), abs=0.01)
        assert "success" not in row and 0 <= row["steps"] <= 20
    assert [row["found"] for row in found if row["mode"] == "oracle"] == [1.0, 1.0]
    traces = [row for row in rows if row["kind"] == "trace" and row["mode"] == "hedge+reward"]
    assert [len(row["angles"]) for row in traces] == [len(row["arms"]) for row in traces] == [20, 20]
    for row in traces:
        starts, _ = vector_env(session.tasks[row["task"]], 3).reset(seed=10_000)
        lowest = np.degrees(np.arccos(starts[:, 0])).max()  # nearest to hanging down
        assert abs(row["angles"][0]) == pytest.approx(lowest, abs=30.0)


def test_other_angles_can_be_asked_for(session):
    rows = evaluate(session, pendulums([0], max_episode_steps=20), SEEN, episodes=1)
    assert {row["mode"] for row in rows} == set(SEEN) - {"oracle"}
    assert not any(row.get("found") for row in rows)


def test_the_curve_has_the_scores_of_the_evaluation(session):
    rows = evaluate(session, session.tasks, ["oracle"], episodes=2)
    told = {row["task"]: row["mean_return"] for row in rows if row["kind"] == "score"}
    looked = session.look(vector_env(session.tasks[LEFT], 2), LEFT, episodes=2, seed=10_000)
    assert looked.mean == pytest.approx(told[LEFT])


def test_policies_need_what_was_learned():
    fresh = Session(tiny_control())
    with pytest.raises(OwlStateError, match="no task has been learned"):
        fresh.policy_of("oracle", [LEFT])


def test_a_saved_session_acts_the_same(session, tmp_path):
    path = tmp_path / "session.safetensors"
    session.save(path)
    loaded = Session.load(path)
    assert loaded.heads == session.heads
    assert [loaded.learner.alpha_of(k) for k in (0, 1)] == [session.learner.alpha_of(k) for k in (0, 1)]
    rows = [evaluate(made, made.tasks, SEEN, episodes=2) for made in (loaded, session)]
    assert rows[0] == rows[1]
    grid = tmp_path / "grid.safetensors"
    Session(tiny()).save(grid)
    assert Session.load(grid).run == tiny()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "full-rehearsal"}, "expected for continuous actions one of experience-replay, owl,"),
        ({"consecutive": 2}, "consecutive is 2; expected 0"),
        ({"unseen": ("S9N1:3",)}, "expected none: these tasks have no levels"),
        ({"tasks": "owlrl/Pendulum-v0:90,up"}, "expected angles from -180 to 180"),
        ({"tasks": "owlrl/Pendulum-v0:nan"}, "expected angles from -180 to 180"),
        ({"tasks": "owlrl/Pendulum-v0:90,90"}, "expected every level once"),
        ({"overrides": {"n_step": 3}}, "overrides has 'n_step'"),
        ({"method": "dqn"}, "method is 'dqn'"),
    ],
)
def test_bad_runs(changes, message):
    with pytest.raises(OwlValueError, match=message):
        tiny_control(**changes)


def test_runs_know_what_they_are_about():
    assert tiny_control().control and not tiny().control
    assert (tiny_control().measure, tiny().measure) == ("mean_return", "success")
    assert tiny_control().sac.critic_hidden == (8, 8) and tiny_control(overrides={}).sac.batch_size == 256
    assert "hedge+nll" in tiny_control(policies=()).acting
    specs = tiny_control(tasks="owlrl/Pendulum-v0:45.5", arguments={"g": 4.0}).specs
    assert specs == {"pendulum+45.5": TaskSpec.of("owlrl/Pendulum-v0", angle=45.5, g=4.0)}


def test_gravity_reaches_the_environments():
    session = Session(tiny_control(arguments={"g": 4.0}))
    env = session.env(LEFT)
    assert isinstance(env, PendulumVectorEnv) and (env.g, env.angle, env.num_envs) == (4.0, 90, 2)


def test_the_study():
    runs = study_runs("pendulum", seeds=2)
    assert len({run.id for run in runs}) == len(runs) == 10
    assert [(r.method, r.tasks[18:]) for r in STUDIES["pendulum"].make(0)] == [
        ("experience-replay", "90,-90"),
        ("owl", "90,-90"),
        ("owl-memory", "90,-90"),
        ("owl-no-ewc", "90"),
        ("owl-no-ewc", "-90"),
    ]


@pytest.mark.slow
def test_owl_learns_both_and_one_head_does_not():
    """What the study shows, in few frames: told, and found out by the reward."""
    torch.manual_seed(0)
    more = {
        "frames": 6_000,
        "num_envs": 4,
        "episodes": 8,
        "eval_every": 10**6,
        "overrides": {},
        "arguments": {},
    }
    owl = run_experiment(tiny_control(policies=("oracle", "hedge+reward"), **more))
    one = run_experiment(tiny_control(method="experience-replay", **more))
    told, adaptive, single = (
        [row["mean_return"] for row in trial.final(name)]
        for trial, name in ((owl, "oracle"), (owl, "hedge+reward"), (one, "oracle"))
    )
    assert min(told) > -420
    assert np.mean(adaptive) > np.mean(told) * 1.1
    assert max(single) < np.mean(told)
