"""Changes are found soon, tasks are recognised, and nothing else raises an alarm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from owlrl import OwlWrapper
from owlrl.changes import ChangeFinder, Contradiction, Familiarity, History
from owlrl.envs import task_set
from owlrl.errors import OwlError
from owlrl.types import Transitions
from tests.changes.worlds import ball, ring, transitions, walk
from tests.test_stream import Line, small_dqn


def follow(pieces, *, batch=64, finder=None):
    """Feed pieces of rows one after the other; per piece what was found: (rows since, to or None, merged)."""
    if finder is None:
        finder = ChangeFinder(Contradiction())
        finder.enter("task 0", new=True)
    found = []
    for rows in pieces:
        found.append([])
        for low in range(0, len(rows), batch):
            change = finder.see(rows[low : low + batch])
            if change is None:
                continue
            left = finder.task
            name = change.to or f"task {len(finder.detector.tasks)}"
            if change.merged:
                finder.detector.forget(left)
            finder.enter(name, new=change.to is None)
            found[-1].append((low + batch, name))
    return finder, found


def test_grid_changes_are_found_at_once_and_tasks_come_back():
    _, found = follow([ring(p, 1500, seed=k) for k, p in enumerate((3, 8, 5, 3, 8, 5))])
    names = [[name for _, name in piece] for piece in found]
    assert names == [[], ["task 1"], ["task 2"], ["task 0"], ["task 1"], ["task 2"]]
    assert all(delay <= 128 for piece in found for delay, _ in piece)


def test_only_the_goal_differs():
    """Rare outcomes are counted by themselves: one row in dozens, the others agree."""
    _, found = follow([ring(p, 4000, seed=k, crumbs=False) for k, p in enumerate((3, 8, 3))])
    assert [[name for _, name in piece] for piece in found] == [[], ["task 1"], ["task 0"]]


def test_reward_of_a_speed_among_many_numbers():
    """Neighbours are far in many dimensions; what a trend explains of rewards is no difference."""

    def robot(sign, count, seed):
        rng = np.random.default_rng(seed)
        state, rows = np.zeros(16), []
        for _ in range(count):
            action = rng.uniform(-1, 1, 6)
            after = 0.9 * state + 0.3 * rng.normal(size=16)
            after[0] += 0.2 * action.sum()
            rows.append((state, action, sign * (state[0] + after[0]), after, False))
            state = after
        return transitions(rows, np.float32)

    _, found = follow([robot(sign, 2000, seed) for seed, sign in enumerate((1, -1, 1, -1))])
    assert [[name for _, name in piece] for piece in found] == [[], ["task 1"], ["task 0"], ["task 1"]]


def test_continuous_changes_of_dynamics_and_of_rewards():
    pieces = [ball(0, 2000), ball(3, 2000, seed=1), ball(0, 1000, seed=2), ball(0, 2000, seed=3, target=2.0)]
    pieces += [ball(3, 1000, seed=4), ball(0, 1000, seed=5, target=2.0)]
    _, found = follow(pieces)
    names = [[name for _, name in piece] for piece in found]
    assert names == [[], ["task 1"], ["task 0"], ["task 2"], ["task 1"], ["task 2"]]
    assert all(delay <= 128 for piece in found for delay, _ in piece)


@pytest.mark.parametrize(
    "rows",
    [
        ring(3, 6000, slip=0.1),
        ring(3, 6000, noise=0.3),
        ring(3, 6000, pull=lambda t: 0.5 + 0.5 * t),
        ball(0, 6000, noise=0.3),
        # a policy that moves to places where it has never been
        ball(0, 6000, push=lambda rng, x, v, t: np.clip(4 * t - 2 - x, -1, 1) + 0.1 * rng.normal()),
    ],
    ids=["slippery", "noisy rewards", "policy moves", "noisy rewards of the ball", "ball moves on"],
)
def test_one_task_raises_no_alarm(rows):
    finder, (found,) = follow([rows])
    assert found == [] and finder.suspicion < 1


def test_exploration_bonus_that_fades_is_no_change():
    rows = ring(3, 6000)
    rows.reward.add_(0.5 / (1 + torch.arange(6000) / 500))
    assert follow([rows])[1] == [[]]


def test_aliased_observations_are_told_apart_by_their_history():
    """Two rooms that look alike: what follows depends on the room, and the task swaps the rooms' ends."""

    def rooms(swapped, seed):
        rows = ring(3, 3000, seed=seed, crumbs=False)
        ended = rows.terminated
        room = (ended.cumsum(0) - ended.long()) % 2
        # the start tells the room: cell 0 in one, cell 100 in the other; all other cells look alike
        for column in (rows.observation, rows.next_observation):
            column[(column == 0) & (room == 1)] = 100
        rows.reward.copy_((ended & (room == int(swapped))).float())
        return rows

    one_task = follow([rooms(False, 0), rooms(False, 1)])[1]
    assert one_task == [[], []]


def test_several_copies_side_by_side_that_meet_the_same_at_once():
    """All copies find a new place together: one contradiction, not thirty-two."""
    known = ring(3, 3000)
    odd = known[torch.full((32,), 5)]
    odd = Transitions(
        odd.observation,
        odd.action,
        odd.reward,
        odd.next_observation + 50,
        odd.terminated,
        odd.discount,
        env=torch.arange(32),
    )
    assert follow([known, odd, ring(3, 500, seed=1)])[1] == [[], [], []]


def test_rows_that_contradict_a_known_task_do_not_teach_it_otherwise():
    """It may be entered by mistake, and then they are what tells so."""
    finder = ChangeFinder(Contradiction())
    finder.detector.learn("left", History().follow(ring(3, 2000)))
    finder.enter("somewhere", new=True)
    rows = ring(8, 64, seed=1)
    finder.see(rows)

    def contradicting():
        return int(finder.detector.judge("left", History().follow(rows)).contradicts.sum())

    before = contradicting()
    finder.enter("left", new=False)
    assert contradicting() == before > 0


@pytest.mark.parametrize("world", ["ring", "ball"])
def test_tasks_that_the_first_rows_refuse_are_not_asked_about_the_rest(world, monkeypatch):
    """And the same changes are found as with all of them asked about all rows."""

    def run():
        judged = []
        judge = Contradiction.judge

        def counting(self, task, steps, **options):
            judged.append(len(steps))
            return judge(self, task, steps, **options)

        finder = ChangeFinder(Contradiction())
        for k in range(8):
            rows = ring(k + 2, 4500, seed=k) if world == "ring" else ball(3 * k, 3000, seed=k)
            finder.detector.learn(str(k), History().follow(rows))
        finder.enter("0", new=False)
        with monkeypatch.context() as patch:
            patch.setattr(Contradiction, "judge", counting)
            later = (
                ring(k + 2, 600, seed=9) if world == "ring" else ball(3 * k, 600, seed=9) for k in (4, 1)
            )
            found = follow(
                [*later, ball(-9, 1200, seed=9) if world == "ball" else ring(11, 1200)], finder=finder
            )[1]
        return found, sum(judged)

    found, judged = run()
    monkeypatch.setattr(ChangeFinder, "_refused", lambda *args, **options: False)
    all_asked, all_judged = run()
    assert found == all_asked and [name for _, name in found[1]] == ["1"]
    assert judged < all_judged


def test_rows_that_need_no_hashes_get_none():
    """Neighbours do without; a task that begins among them hashes its first rows by itself."""
    detector = Contradiction()
    assert detector.hashed
    detector.learn("a", History().follow(ball(0, 300)))
    assert not detector.hashed
    bare = History().follow(ball(1, 200, seed=1), hashed=False)
    assert not bare.keys.any() and not bare.outcome.any()
    detector.learn("b", bare)
    assert type(detector.tasks["b"].index) is type(detector.tasks["a"].index)
    detector.learn("c", bare[:10])
    assert detector.hashed  # until it is known what kind it is


def test_rows_since_the_change_are_given_back():
    finder = ChangeFinder(Contradiction())
    finder.enter("task 0", new=True)
    follow([ring(3, 2016)], finder=finder)
    changed = ring(8, 256, seed=1)
    for low in range(0, 256, 32):
        change = finder.see(changed[low : low + 32])
        if change is not None:
            break
    assert change is not None and change.to is None and change.confidence > 0.99
    assert low < change.rows <= low + 32 + 8  # all rows of the new task, and hardly one of the old
    assert finder.held == change.rows


@pytest.mark.parametrize("odd", [0, 20])
def test_young_task_that_was_known_is_merged(odd):
    """The first rows after the change were too few to recognise the task, or contradicted it in a burst."""
    finder, _ = follow([ball(0, 3000), ball(3, 3000, seed=1)])
    known = finder.detector.tasks
    finder.settle()
    finder.enter("task 9", new=True)  # as if nothing had fitted
    _, found = follow([ball(6, 20, seed=2)[:odd], ball(0, 1000, seed=7)], finder=finder)
    assert [name for _, name in found[1]] == ["task 0"] and "task 9" not in known


def test_task_that_knows_few_of_the_rows_gets_time():
    """The first rows after a change are in states that their task hardly knows: a few more tell."""
    finder = ChangeFinder(Contradiction())
    known, later = ball(3, 12000, seed=1), ball(3, 6000, seed=3)
    finder.detector.learn("now", History().follow(ball(0, 4000)))
    finder.detector.learn("upwards", History().follow(known[known.observation[:, 1] > 0.6]))
    finder.enter("now", new=False)
    rising = later.observation[:, 1] > 0.6
    up, down = later[rising], later[~rising]
    pieces = [down[:40], up[:8], down[40:80], up[8:16], up[16:48]]
    _, found = follow([ball(0, 512, seed=2), *pieces], finder=finder, batch=32)
    assert not any(found) and finder.suspicion >= 1
    other = ChangeFinder(Contradiction())
    other.load_state_dict(finder.state_dict())  # it goes on waiting
    for one in (finder, other):
        _, found = follow([up[48:400]], finder=one, batch=32)
        assert [name for piece in found for _, name in piece] == ["upwards"]


def slope(left, right, low, count):
    """Places between ``low`` and 2, worth their distance from 0 times a slope on either side."""
    x = low + (2 - low) * torch.rand(count, generator=torch.Generator().manual_seed(count))
    reward = torch.where(x < 0, left * -x, right * x)
    x, never = x[:, None], torch.zeros(count, dtype=bool)
    return Transitions(x, torch.zeros(count, 1), reward, x + 0.1, never, torch.ones(count))


def test_known_task_that_was_entered_by_mistake_keeps_no_rows():
    """Two known tasks differ in a part of the states only, and that is visited late."""

    def rows(task, low, count):
        return slope(*[(0, 1), (2, 1), (3, -1)][task], low, count)

    finder = ChangeFinder(Contradiction())
    for name, task in (("like it", 0), ("it", 1), ("now", 2)):
        finder.detector.learn(name, History().follow(rows(task, -2.0, 4800)))
    finder.enter("now", new=False)
    _, found = follow([rows(2, -2.0, 600), rows(1, 0.0, 240)], finder=finder, batch=24)
    assert [[name for _, name in piece] for piece in found] == [[], ["like it"]]
    change = None
    seen, later = 0, rows(1, -2.0, 240)
    while change is None:
        change = finder.see(later[seen : seen + 24])
        seen += 24
    assert (change.to, change.mistaken, change.rows) == ("it", True, 240 + seen)
    other = ChangeFinder(Contradiction())
    finder.enter("it", new=False)
    other.load_state_dict(finder.state_dict())
    assert other.held == 0 and [len(piece) for piece, _ in other._trial] == [240 + seen]


def test_known_task_that_is_refused_at_first_sight_is_looked_at_with_care(monkeypatch):
    """Neighbours may err together where a task was seldom; a new task is opened only if a fit errs, too."""
    finder = ChangeFinder(Contradiction())
    for name, task in (("it", (0, 1)), ("other", (2, 2)), ("now", (3, -1))):
        finder.detector.learn(name, History().follow(slope(*task, -2.0, 4800)))
    judge = finder.detector.judge

    def hasty(task, steps, **how):
        said = judge(task, steps, **how)
        if task == finder.task:
            return said
        every, odd = np.ones(len(steps), np.bool_), np.arange(len(steps)) % 5 < 2
        evidence = np.where(odd, 3.0, -0.35) * np.ones((2, 1))
        return replace(said, evidence=evidence, comparable=every, contradicts=odd)

    monkeypatch.setattr(finder.detector, "judge", hasty)
    finder.enter("now", new=False)
    pieces = slope(3, -1, -2.0, 600), slope(0, 1, -2.0, 120), slope(3, -1, -2.0, 600), slope(-2, 5, -2.0, 120)
    _, found = follow(pieces[:2], finder=finder, batch=24)
    assert [[name for _, name in piece] for piece in found] == [[], ["it"]]
    monkeypatch.undo()
    _, found = follow(pieces[2:], finder=finder, batch=24)
    assert [[name for _, name in piece] for piece in found] == [["now"], ["task 3"]]


def test_views_that_look_alike_open_no_second_task():
    """In a level that is hardly known yet, the same view is met in places where it leads elsewhere."""
    tables = [spec.table() for spec in task_set("SC5").values()]
    finder, _ = follow([walk(table, 6400, seed=k) for k, table in enumerate(tables)], batch=32)
    assert len(finder.detector.tasks) == len(tables)


def test_slow_drift_opens_few_tasks():
    pieces = [ball(g, 200, seed=k) for k, g in enumerate(np.linspace(0, 3, 40))]
    finder, _ = follow(pieces)
    assert len(finder.detector.tasks) <= 4


@pytest.mark.parametrize("make", [lambda seed: ring(3, 700, seed=seed), lambda seed: ball(0, 700, seed=seed)])
def test_going_on_from_a_state_is_the_same(make):
    finder, _ = follow([make(0)])
    state = finder.state_dict()
    other = ChangeFinder(Contradiction())
    other.load_state_dict(state)
    for low in range(0, 256, 64):
        rows = make(1)[low : low + 64]
        assert finder.see(rows) == other.see(rows)
        assert finder.suspicion == other.suspicion and finder.held == other.held


def test_known_task_whose_states_the_current_one_never_saw():
    """Unknown states contradict nothing, but another task knows them."""

    def far(count, seed):
        rows = ring(3, count, seed=seed)
        rows.observation.add_(1000)
        rows.next_observation.add_(1000)
        return rows

    finder = ChangeFinder(Contradiction())
    for task, rows in (("near", ring(3, 5000)), ("far", far(5000, 1))):
        finder.detector.learn(task, History().follow(rows))
    finder.enter("near", new=False)
    _, found = follow([ring(3, 1000, seed=2), far(1000, 3), ring(3, 1000, seed=4)], finder=finder)
    assert [[name for _, name in piece] for piece in found] == [[], ["far"], ["near"]]
    assert all(delay <= 256 for piece in found for delay, _ in piece)


# A left-out task is unfamiliar within ten steps, a known one is not.


@pytest.mark.parametrize(("make", "tasks"), [(ring, (3, 8, 6)), (ball, (0, 2, -2))])
def test_left_out_task_is_told_from_known_ones(make, tasks):
    *known, left_out = tasks
    detector = Contradiction()
    for k, task in enumerate(known):
        history, rows = History(), make(task, 3000, seed=k)
        for low in range(0, 3000, 100):
            detector.learn(str(k), history.follow(rows[low : low + 100]))
    familiarity = Familiarity(detector, ["0", "1"])

    def after_ten(task, seed, far=0):
        familiarity.reset(1)
        rows = make(task, 10, seed=seed)
        rows.observation.add_(far)
        rows.next_observation.add_(far)
        for step in range(10):
            familiarity.observe(rows[step : step + 1])
        return float(familiarity.unfamiliar[0])

    own = np.array([after_ten(task, seed) for task in known for seed in range(10, 30)])
    other = np.array([after_ten(left_out, seed) for seed in range(10, 30)])
    assert (other[:, None] > own).mean() >= 0.85 and (own > 0.99).mean() <= 0.05
    # the same task in states that no task has shown
    assert all(after_ten(known[0], seed, far=1000) > 0.99 for seed in range(10, 30))


def test_errors_that_contradict_nothing_rank_episodes():
    detector = Contradiction()
    detector.learn("it", History().follow(ball(0, 4000, noise=0.1)))
    familiarity = Familiarity(detector, ["it"])

    def slight(shift, seed):
        familiarity.reset(1)
        rows = ball(0, 10, seed=seed, noise=0.1)
        rows.reward.add_(shift)
        for step in range(10):
            familiarity.observe(rows[step : step + 1])
        return float(familiarity.unfamiliar[0])

    own, other = (np.array([slight(shift, seed) for seed in range(50, 90)]) for shift in (0.0, 0.2))
    own, other = own[own < 0.01], other[other < 0.01]  # no sum is above zero
    assert len(own) > 30 and len(other) > 10
    assert (other[:, None] > own).mean() > 0.8


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
