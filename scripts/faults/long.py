"""Long uses: flat memory, no foreign row, acting beside training."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from owlrl import ExpWeightsSelector, OwlWrapper, TaskScopedReplay
from owlrl.adapters.buffers import BufferReplay
from owlrl.adapters.lists import ListReplay
from owlrl.memory import TaskMemories
from scripts.faults.checks import CannotRunError, Outcome, check
from tests.own_dqn import SIZE, Signs, make_script, train

TASKS = ("a", "b", "c")
MEGABYTE = 2**20


def _used() -> tuple[float, int]:
    """Memory of this process in MB, and how many files it has open."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE, len(os.listdir("/proc/self/fd"))
    except OSError as error:
        raise CannotRunError(f"needs /proc ({error})") from error


class Flat:
    """Whether memory and file handles are, after a tenth of the work, what they are at its end."""

    def __init__(self, count: int) -> None:
        self.tenth, self.before = count // 10, (0.0, 0)

    def look(self, done: int) -> None:
        """Note what is used when a tenth is done."""
        if not self.before[0] and done >= self.tenth:
            self.before = _used()

    def judge(self, outcome: Outcome) -> None:
        """Compare with the end: 10 MB are allowed, no file handle is."""
        (memory, files), (later, open_later) = self.before, _used()
        if later - memory > 10.0 or open_later > files:
            outcome.faults.append(f"from {memory:.0f} to {later:.0f} MB, from {files} to {open_later} files")
        outcome.note = f"{memory:.0f} MB after a tenth, {later:.0f} MB at the end, {open_later} open files"


@check("replay rows, memory and file handles", short=20_000, quick=10**6, full=10**7)
def rows(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Rows of three tasks in turns through replay and task memories."""
    envs, outcome, flat = 100, Outcome(runs=count), Flat(count)
    replay = TaskScopedReplay(
        50_000, observation_shape=(4,), observation_dtype=np.float32, num_envs=envs, warm_start=5_000, seed=0
    )
    memories = TaskMemories(2_000, seed=0)
    draw = np.random.default_rng(0)
    observation, no = draw.random((envs, 4), np.float32), np.zeros(envs, np.bool_)
    per_visit = max(1, count // envs // 30)
    for step in range(count // envs):
        if step % per_visit == 0:
            if step:
                replay.end_task()
            task = TASKS[step // per_visit % len(TASKS)]
            replay.begin_task(task)
            memory = memories.open(task)
        following = draw.random((envs, 4), np.float32)
        replay.add_batch(observation, draw.integers(0, 3, envs), draw.random(envs), following, no, no)
        observation = following
        if step % 10 == 9:
            memory.add(replay.new_rows())
            replay.sample(64)
        flat.look(step * envs)
    flat.judge(outcome)
    return outcome


def _learned(steps: int = 60) -> tuple[Any, OwlWrapper]:
    script = make_script()
    owl = OwlWrapper(script.learner(), seed=0)
    for shift, task in enumerate(TASKS):
        with owl.task(task):
            train(script, Signs(shift), steps)
    return script, owl


@check("steps of an adaptive policy, memory and file handles", short=2_000, quick=10**5, full=10**6)
def adaptive(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Acting, evidence and selection in 500 episodes side by side that end now and then."""
    envs, outcome, flat = 500, Outcome(runs=count), Flat(count)
    _, owl = _learned()
    policy, draw = owl.policy(ExpWeightsSelector(seed=0)), np.random.default_rng(0)
    policy.reset(num_envs=envs)
    eye, sign = np.eye(SIZE, dtype=np.float32), draw.integers(0, SIZE, envs)
    for step in range(count // envs):
        action = policy.act(eye[sign])
        following = draw.integers(0, SIZE, envs)
        reward, ended = (action == (sign + 1) % SIZE).astype(np.float64), draw.random(envs) < 0.05
        policy.observe(eye[sign], action, reward, eye[following], terminated=ended)
        policy.reset(mask=ended)
        sign = following
        flat.look(step * envs)
    flat.judge(outcome)
    return outcome


@check("draws of rows, none of another task", short=5_000, quick=10**5, full=10**6)
def draws(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Tasks in turns through the replay, a deque, a foreign buffer and the memories: rows name their task."""
    shown = spaces.Box(0.0, 9.0, (2,), np.float32)
    listed: deque[Any] = deque(maxlen=500)
    ring = ReplayBuffer(500, shown, spaces.Discrete(2), handle_timeout_termination=False)
    scoped = TaskScopedReplay(
        1_000, observation_shape=(2,), observation_dtype=np.float32, warm_start=100, seed=0
    )
    replays: list[Any] = [
        scoped,
        ListReplay(listed, warm_start=100, seed=0),
        BufferReplay(ring, warm_start=100),
    ]
    memories, batch, foreign, drawn = TaskMemories(300, seed=0), 250, 0, 0
    while drawn < count:
        number = rng.randrange(9)
        row = np.full(2, number, np.float32)
        for replay in replays:
            replay.begin_task(str(number))
        memory = memories.open(str(number))
        for _ in range(rng.randrange(1, 700)):
            scoped.add(row, 1, float(number), row, False, False)
            listed.append((row, 1, float(number), row, False))
            ring.add(row[None], row[None], np.array([1]), np.array([number]), np.array([False]), [{}])
        memory.add(scoped.new_rows())
        for _ in range(4):
            found = [replay.sample(min(batch, len(replay))) for replay in replays] + [memory.rows()]
            for rows in found:
                values = torch.cat([rows.observation, rows.next_observation, rows.reward[:, None]], 1)
                foreign += int((values != number).any(1).sum())
                drawn += len(rows)
        for replay in replays:
            replay.end_task()
    return Outcome(drawn, [f"{foreign} rows of other tasks"] * bool(foreign), "of four kinds of stores")


@check("acting in three threads beside training", short=10, quick=500, full=5_000)
def threads(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Training must end bit-equal to training alone, and acting must neither fail nor stop."""
    ends, acts, failed = [], [0] * 3, []
    for beside in (False, True):
        script, owl = _learned()
        over = threading.Event()

        def act(k: int, owl: OwlWrapper = owl, over: threading.Event = over) -> None:
            try:
                policy = owl.policy(ExpWeightsSelector(seed=k))
                policy.reset()
                seen = np.eye(SIZE, dtype=np.float32)[k]
                while not over.is_set():
                    action = policy.act(seen)
                    policy.observe(seen, action, 1.0, seen, terminated=False)
                    acts[k] += 1
            except Exception as error:
                failed.append(f"{type(error).__name__}: {error}")

        actors = [threading.Thread(target=act, args=(k,)) for k in range(3)] if beside else []
        for actor in actors:
            actor.start()
        until = time.monotonic() + 60.0
        while actors and not all(acts) and not failed and time.monotonic() < until:
            time.sleep(0.01)
        try:
            with owl.task("a"):
                train(script, Signs(0), count)
        finally:
            over.set()
            for actor in actors:
                actor.join()
        ends.append(script.q.state_dict())
    same = all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    outcome = Outcome(count, failed, f"{sum(acts)} actions meanwhile; weights bit-equal to training alone")
    outcome.faults += ["the weights differ from training alone"] * (not same)
    outcome.faults += ["a thread did not act"] * (not all(acts))
    return outcome
