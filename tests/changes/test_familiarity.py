"""A left-out task is unfamiliar within ten steps, a known one is not."""

from __future__ import annotations

import numpy as np
import pytest

from owlrl import OwlWrapper
from owlrl.changes import Contradiction, Familiarity, History
from owlrl.errors import OwlError
from tests.changes.worlds import ball, ring
from tests.test_stream import Line, small_dqn


@pytest.mark.parametrize(("make", "tasks"), [(ring, (3, 8, 6)), (ball, (0, 2, -2))])
def test_left_out_task_is_told_from_known_ones(make, tasks):
    *known, left_out = tasks
    detector = Contradiction()
    for k, task in enumerate(known):
        history, rows = History(), make(task, 3000, seed=k)
        for low in range(0, 3000, 100):
            detector.learn(str(k), history.follow(rows[low : low + 100]))
    familiarity = Familiarity(detector, ["0", "1"])

    def after_ten(task, seed):
        familiarity.reset(1)
        rows = make(task, 10, seed=seed)
        for step in range(10):
            familiarity.observe(rows[step : step + 1])
        return float(familiarity.unfamiliar[0])

    own = np.array([after_ten(task, seed) for task in known for seed in range(10, 30)])
    other = np.array([after_ten(left_out, seed) for seed in range(10, 30)])
    assert (other[:, None] > own).mean() >= 0.85 and (own > 0.99).mean() <= 0.05


def test_policy_says_so_and_the_fallback_acts():
    env = Line(1)
    agent = small_dqn(env)
    owl = OwlWrapper(agent)
    with owl.task("right"):
        agent.learn(600)
    policy = owl.policy()
    with pytest.raises(OwlError, match="look_out"):
        _ = policy.unfamiliar
    called = []
    policy.look_out(fallback=lambda observation: "fallback", callback=called.append)
    for sign, expected in ((1, 0.0), (-1, 1.0)):
        world = Line(sign)
        seen, _ = world.reset(seed=0)
        policy.reset()
        for _ in range(8):
            action = policy.act(seen)
            if action == "fallback":
                break
            after, reward, terminated, *_ = world.step(action)
            policy.observe(seen, action, reward, after, terminated)
            seen = after
        assert policy.unfamiliar == pytest.approx(expected, abs=0.01)
        assert (action == "fallback") == (sign == -1)
        assert policy.events == called and [event.env for event in called] == [0] * (sign == -1)
    assert called[0].probability > 0.99 and called[0].step > 8
