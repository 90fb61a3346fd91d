"""Training while nobody says when the task changes, in closed loop, at small size."""

from __future__ import annotations

from collections import deque

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

from owlrl import MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay
from owlrl.changes import Change
from owlrl.envs import Switching
from owlrl.errors import OwlError
from owlrl.learners import DQN, FAST

CELLS = 8


class Line(gymnasium.Env):
    """A ring of cells; moving right pays ``sign`` and moving left its opposite. Ten steps."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (CELLS,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, sign):
        self.sign, self.state, self.steps = sign, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.steps = int(self.np_random.integers(CELLS)), 0
        return self._seen(), {}

    def step(self, action):
        right = 1 if action else -1
        self.state, self.steps = (self.state + right) % CELLS, self.steps + 1
        return self._seen(), float(self.sign * right), False, self.steps >= 10, {}

    def _seen(self):
        return np.eye(CELLS, dtype=np.float32)[self.state]


SCHEDULE = [("right", 700), ("left", 700), ("right", 600), ("left", 500)]
FRAMES = sum(steps for _, steps in SCHEDULE)


def lines(schedule=SCHEDULE):
    tasks = {"right": lambda: Line(1), "left": lambda: Line(-1)}
    return Switching(tasks, schedule=schedule, seed=0)


def small_dqn(env):
    settings = dict(learning_starts=64, batch_size=32, update_every=4, epsilon_frames=300, n_step=1)
    return DQN(env, config=FAST.__class__(**settings, rewarded_share=0.0), seed=0, device="cpu")


def right_share(owl, task):
    """How often the head of ``task`` goes right, over all cells."""
    with owl.use(task):
        q = next(iter(owl.learner.networks.values()))
        return float(q(torch.eye(CELLS)).argmax(1).float().mean())


def test_reference_learner_finds_tasks_that_come_back_learns_both_and_mixes_no_rows():
    env = lines()
    agent = small_dqn(env)
    owl, events = OwlWrapper(agent, evidence=None), []
    with owl.stream(callback=events.append) as stream:
        agent.learn(FRAMES)
    assert [(e.left, e.to, e.new) for e in stream.events] == [
        ("task 0", "task 1", True),
        ("task 1", "task 0", False),
        ("task 0", "task 1", False),
    ]
    assert events == stream.events
    for event, (step, _) in zip(events, env.changes[1:], strict=True):
        assert 0 < event.step - step <= 128 and abs(event.step - step - event.delay) <= 8
    assert {name: record.visits for name, record in owl.tasks.items()} == {"task 0": 2, "task 1": 2}
    assert [right_share(owl, task) for task in owl.tasks] == [1.0, 0.0]
    assert owl.current_task is None and owl.memory["task 0"].quarantine == 0
    for task, sign in (("task 0", 1.0), ("task 1", -1.0)):
        rows = owl.memory[task].rows()
        right = 2.0 * rows.action - 1.0
        assert len(rows) > 900 and (rows.reward != sign * right).float().mean() <= 0.005
        with owl.task(task):
            batch = agent.replay.sample(900)
            wrong = batch.reward != sign * (2.0 * batch.action - 1.0)
            assert len(agent.replay) > 900 and wrong.float().mean() <= 0.005
            agent.learn(4)


def test_visit_by_mistake_leaves_nothing_in_the_task_that_was_entered(monkeypatch):
    """Its rows are moved, and its head is as it was."""
    env = lines([("right", 600), ("left", 600), ("right", 400), ("left", 800)])
    agent = small_dqn(env)
    owl = OwlWrapper(agent, evidence=None)
    heads = []

    def head():
        (q,) = owl.learner.networks.values()
        return [p.detach().clone() for p in q.head_parameters(owl.tasks["task 0"].head).values()]

    with owl.stream() as stream:
        see = stream.finder.see

        def mistaken(rows):
            found, now = see(rows), stream.rows
            if len(stream.events) == 3 and found is None and not heads:  # "left", as it should be
                heads.append(head())
                return Change("task 0", 96, 0.9)
            if len(stream.events) == 4 and now - stream.events[-1].step > 96:
                heads.append(head())
                return Change("task 1", 96 + now - stream.events[-1].step, 0.9, mistaken=True)
            if len(stream.events) == 4:
                stream.finder.settle()  # beyond suspicion
                return None
            return found

        monkeypatch.setattr(stream.finder, "see", mistaken)
        agent.learn(2400)
    assert [(e.to, e.mistaken) for e in stream.events][3:] == [("task 0", False), ("task 1", True)]
    before, during = heads
    assert any(not torch.equal(a, b) for a, b in zip(before, during, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, head(), strict=True))
    for task, sign in (("task 0", 1.0), ("task 1", -1.0)):
        rows = owl.memory[task].rows()
        assert (rows.reward != sign * (2.0 * rows.action - 1.0)).float().mean() <= 0.005
    assert len(owl.memory["task 1"].rows()) > 1200


def own_script(replay_kind, *, steps=FRAMES, schedule=SCHEDULE):
    """A plain DQN loop of a user around a deque or a TaskScopedReplay."""
    torch.manual_seed(0)
    rng, env = np.random.default_rng(0), lines(schedule)
    q = MultiHeadQ(nn.Sequential(nn.Linear(CELLS, 32), nn.ReLU()), 32, 2)
    optimizer = torch.optim.Adam(q.parameters(), 1e-2)
    rows = (
        deque(maxlen=5_000)
        if replay_kind == "deque"
        else TaskScopedReplay.for_env(env, 5_000, seed=0, gamma=0.5)
    )
    owl = OwlWrapper(QLearner(q, None, optimizer, replay=rows, gamma=0.5), evidence=None, seed=0)

    def train():
        seen, _ = env.reset(seed=0)
        for step in range(steps):
            greedy = int(q(torch.from_numpy(seen)[None]).argmax())
            action = int(rng.integers(2)) if rng.random() < 0.3 else greedy
            after, reward, terminated, truncated, _ = env.step(action)
            if replay_kind == "deque":
                rows.append((seen, action, reward, after, terminated, truncated))
            else:
                rows.add(seen, action, reward, after, terminated, truncated)
            seen = env.reset()[0] if terminated or truncated else after
            if len(owl.replay) >= 32 and step % 2 == 0:
                batch = owl.replay.sample(32)
                with torch.no_grad():
                    goal = batch.reward + 0.5 * q(batch.next_observation).amax(1)
                value = q(batch.observation).gather(1, batch.action[:, None])[:, 0]
                optimizer.zero_grad()
                nn.functional.smooth_l1_loss(value, goal).backward()
                optimizer.step()

    return owl, train


@pytest.mark.parametrize("kind", ["deque", "scoped"])
def test_own_script_is_watched_at_its_optimizer_steps(kind):
    """And between the drawing of a batch and the last step of its update the head stays."""
    owl, train = own_script(kind)
    heads, sample = [], owl.replay.sample

    def sampled(count):
        heads.append(owl._pointer.head)
        return sample(count)

    def before_step(*_):
        assert heads[-1] == owl._pointer.head

    owl.replay.sample = sampled
    owl.learner.optimizers["q"].register_step_pre_hook(before_step)  # after the wrapper's own
    with owl.stream() as stream:
        train()
    assert set(heads) == {0, 1}
    assert [(e.left, e.to) for e in stream.events] == [
        ("task 0", "task 1"),
        ("task 1", "task 0"),
        ("task 0", "task 1"),
    ]
    assert [right_share(owl, task) for task in owl.tasks] == [1.0, 0.0]


def test_tasks_that_were_given_are_recognised():
    agent = small_dqn(lines([("right", 500), ("left", 500)]))
    owl = OwlWrapper(agent, evidence=None)
    with owl.task("to the left", env=Line(-1)):
        agent.learn(500)
    with owl.task("to the right", env=lines([("right", 500), ("left", 5_000)])):
        agent.learn(400)
    with owl.stream() as stream:
        agent.learn(400)
    assert [(e.left, e.to, e.new) for e in stream.events] == [("to the right", "to the left", False)]


def test_blocks_go_on_and_states_are_saved(tmp_path):
    agent = small_dqn(lines())
    owl = OwlWrapper(agent, evidence=None)
    with owl.stream():
        agent.learn(900)
    path = tmp_path / "owl.safetensors"
    owl.save(path)
    other = small_dqn(lines([("left", 300), ("right", 5_000)]))
    loaded = OwlWrapper.load(path, other, evidence=None)
    with loaded.stream() as stream:
        other.learn(600)
    assert [(e.left, e.to, e.new) for e in stream.events] == [
        ("task 0", "task 1", True),
        ("task 1", "task 0", False),
    ]


def test_tasks_can_be_renamed():
    agent = small_dqn(lines())
    owl = OwlWrapper(agent, evidence=None)
    with owl.stream():
        agent.learn(900)
    owl.rename("task 0", "to the right")
    assert list(owl.tasks) == list(owl.memory) == ["to the right", "task 1"]
    with owl.stream() as stream:
        agent.learn(600)
    assert [(e.left, e.to) for e in stream.events] == [("to the right", "task 1"), ("task 1", "to the right")]
    assert [right_share(owl, task) for task in owl.tasks] == [1.0, 0.0]
    with pytest.raises(OwlError, match="old is 'to the right'; expected 'task 1'"):
        owl.rename("to the right", "right")
    with pytest.raises(OwlError, match="there is such a task"):
        owl.rename("task 1", "to the right")


def test_one_task_stays_bit_for_bit_the_bare_learner():
    one, other = (small_dqn(lines([("right", 5_000)])) for _ in range(2))
    owl = OwlWrapper(one)
    with owl.stream():
        one.learn(700)
        weights = one.q.heads[0].weight.detach().clone()
    other.learn(700)
    assert torch.equal(weights, other.q.heads[0].weight)


def test_an_exception_in_the_block_loses_nothing():
    agent = small_dqn(lines())
    owl = OwlWrapper(agent, evidence=None)
    with pytest.raises(KeyboardInterrupt), owl.stream():
        agent.learn(800)
        raise KeyboardInterrupt
    assert owl.current_task is None and owl.tasks["task 1"].visits == 0
    with owl.stream() as stream:
        assert stream.task == "task 1"
        agent.learn(700)
    assert [e.to for e in stream.events] == ["task 1", "task 0"]


def test_refusals_say_what_to_do():
    owl, _ = own_script("deque")
    with pytest.raises(OwlError, match="detector is a str; expected"), owl.stream(detector="adwin"):
        pass
    with (
        pytest.raises(OwlError, match="schedule_steps is for Stable-Baselines3"),
        owl.stream(schedule_steps=9),
    ):
        pass
    with owl.task("a"):
        with pytest.raises(OwlError, match="still open"), owl.stream():
            pass
        owl.replay.rows.append((np.zeros(CELLS, np.float32), 0, 0.0, np.zeros(CELLS, np.float32), False))
    owl.replay = object()
    with pytest.raises(OwlError, match="has no take_back"), owl.stream():
        pass


def everything(replay):
    """Observation and reward of each row of a TaskScopedReplay."""
    ring = replay._store.ring
    found = ring.gather(ring.live_rows(), 1, 0.9)
    return sorted(zip(found[0].tolist(), found[2].tolist(), strict=True))


def test_rows_can_be_taken_back_from_rings_and_put_elsewhere():
    """The newest rows go, the others stay, through wraps and several lanes."""
    rng = np.random.default_rng(0)
    replay = TaskScopedReplay(24, observation_shape=(), observation_dtype=np.int64, num_envs=2, seed=0)
    replay.begin_task("a")
    for step in range(30):
        seen, ended = np.array([step, 100 + step]), rng.random(2) < 0.2
        replay.add_batch(seen, seen * 0, np.full(2, step), seen + 1, ended, np.zeros(2, bool))
        if step % 5 == 1:
            replay.new_rows()
    before, newest = everything(replay), replay.new_rows()
    assert newest is not None and len(newest) == 6
    replay.take_back(newest)
    left = everything(replay)
    assert left == [row for row in before if row[1] < 27] and replay.new_rows() is None
    replay.end_task()
    replay.begin_task("b")
    replay.put(newest)
    assert everything(replay) == [row for row in before if row[1] >= 27] and replay.new_rows() is None
    replay.begin_task("a")
    assert everything(replay) == left
    assert len(replay.sample(8)) == 8


def test_a_stream_opens_a_task_where_no_head_fits():
    agent = small_dqn(Line(1))
    owl = OwlWrapper(agent, evidence=None)
    with owl.task("right"):
        agent.learn(600)
    with owl.stream(new=True) as stream:
        agent.learn(400, env=Line(-1))
    assert stream.events == [] and list(owl.tasks) == ["right", "task 0"]
    assert [right_share(owl, task) for task in owl.tasks] == [1.0, 0.0]
    with owl.stream(new=True) as stream:
        agent.learn(700, env=Line(1))
    assert [(e.to, e.merged) for e in stream.events] == [("right", True)]
    assert list(owl.tasks) == ["right", "task 0"]
