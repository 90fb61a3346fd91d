"""Replay: sampling and adding, side by side with Stable-Baselines3 and with a plain deque.

    python benchmarks/replay.py [--quick]

A million uint8 observations of 7 x 7 x 3 in episodes of 100 steps. Times are CPU times of the one thread;
the contestants of a line take turns in blocks of calls and the median block counts, so whatever else the
machine does slows all of them alike.
"""

from __future__ import annotations

import random
from collections import deque
from functools import partial

import numpy as np
import torch
from common import Row, command, side_by_side
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from owlrl.replay import PrioritizedSampler, Sampler, TaskScopedReplay
from owlrl.types import Transitions

OBSERVATION = spaces.Box(0, 255, (7, 7, 3), np.uint8)
ACTION = spaces.Discrete(7)
EPISODE = 100


class PlainDeque:
    """The way small scripts do it: a deque of tuples, ``random.sample``, arrays stacked into tensors."""

    def __init__(self, rows: int) -> None:
        self.rows: deque[tuple[np.ndarray, int, float, np.ndarray, bool]] = deque(maxlen=rows)

    def sample(self, batch_size: int) -> tuple[torch.Tensor, ...]:
        columns = zip(*random.sample(self.rows, batch_size), strict=True)
        return tuple(torch.as_tensor(np.array(column)) for column in columns)


def frames(rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (rows, 7, 7, 3), np.uint8)


def filled_deque(rows: int) -> PlainDeque:
    plain, seen = PlainDeque(rows), frames(rows)
    for i in range(rows):
        plain.rows.append((seen[i], i % 7, 0.0, seen[(i + 1) % rows], i % EPISODE == EPISODE - 1))
    return plain


def filled_sb3(rows: int, *, compact: bool) -> ReplayBuffer:
    buffer = ReplayBuffer(
        rows,
        OBSERVATION,
        ACTION,
        "cpu",
        optimize_memory_usage=compact,
        handle_timeout_termination=not compact,
    )
    buffer.observations[:, 0] = frames(rows)
    if not compact:
        buffer.next_observations[:, 0] = np.roll(buffer.observations[:, 0], -1, axis=0)
    buffer.actions[:, 0, 0] = np.arange(rows) % 7
    buffer.dones[:, 0] = np.arange(rows) % EPISODE == EPISODE - 1
    buffer.full = True
    return buffer


def filled(rows: int, *, sampler: Sampler | None = None, n_step: int = 1) -> TaskScopedReplay:
    replay = TaskScopedReplay(
        rows, observation_space=OBSERVATION, action_space=ACTION, seed=0, sampler=sampler, n_step=n_step
    )
    # Through the state, since adding a million rows one by one takes half a minute.
    state = replay.state_dict()
    last = np.arange(rows + 1) % (EPISODE + 1) == EPISODE  # an episode's end takes one row more
    last[-1] = True
    state["contents"]["store"]["ring"] = {
        "observation": frames(rows + 1),
        "action": np.arange(rows + 1) % 7,
        "reward": np.zeros(rows + 1, np.float32),
        "terminated": np.roll(last, -1),
        "truncated": np.zeros(rows + 1, np.bool_),
        "live": ~last,
        "used": np.array([rows + 1]),
        "tail": np.array([rows]),
        "open": np.array([True]),
    }
    if sampler is not None:
        state["contents"]["store"]["draw"] = {"largest": 1.0, "weight": np.ones((~last).sum())}
    replay.load_state_dict(state)
    return replay


def sampling(rows: int, repeats: int) -> list[Row]:
    ours, prioritized = filled(rows), filled(rows, sampler=PrioritizedSampler())
    five_step = filled(rows, n_step=5)
    baselines = {
        "SB3 ReplayBuffer": filled_sb3(rows, compact=False),
        "SB3 optimize_memory_usage": filled_sb3(rows, compact=True),
        "plain deque": filled_deque(rows),
    }
    table: list[Row] = []
    for batch in (32, 256):
        for name, baseline in baselines.items():
            calls = 2 if name == "plain deque" else 100
            before, after = side_by_side(
                [partial(baseline.sample, batch), partial(ours.sample, batch)], rounds=repeats, calls=calls
            )
            table.append(Row(f"sample {batch} of {rows:,}, against {name}", before, after))
        table.append(against_choice(prioritized, rows, batch, repeats))
        before, after = side_by_side(
            [partial(baselines["SB3 ReplayBuffer"].sample, batch), partial(five_step.sample, batch)],
            rounds=repeats,
            calls=100,
        )
        name = f"sample {batch} of {rows:,} as 5-step returns, against SB3 ReplayBuffer with 1-step"
        table.append(Row(name, before, after))
    return table


def against_choice(replay: TaskScopedReplay, rows: int, batch: int, repeats: int) -> Row:
    """Prioritised: a draw and an update, against ``Generator.choice`` alone, without fetching rows."""
    generator, priority, errors = np.random.default_rng(0), np.ones(rows), np.ones(batch)

    def plain() -> None:
        chosen = generator.choice(rows, batch, p=priority / priority.sum())
        priority[chosen] = errors

    def ours() -> Transitions:
        drawn = replay.sample(batch)
        assert drawn.index is not None
        replay.update_priorities(drawn.index, errors)
        return drawn

    before, after = side_by_side([plain, ours], rounds=max(3, repeats // 5), calls=5)
    return Row(f"prioritised: sample {batch} of {rows:,} and update, against Generator.choice", before, after)


def adding(rows: int, repeats: int) -> list[Row]:
    table: list[Row] = []
    for envs in (1, 16):
        ours = TaskScopedReplay(rows, observation_space=OBSERVATION, action_space=ACTION, num_envs=envs)
        theirs = ReplayBuffer(rows, OBSERVATION, ACTION, "cpu", n_envs=envs)
        seen = frames(64 * envs).reshape(64, envs, 7, 7, 3)
        action, reward, no = np.zeros(envs, np.int64), np.zeros(envs, np.float32), np.zeros(envs, np.bool_)
        infos: list[dict[str, object]] = [{} for _ in range(envs)]
        clocks = [0, 0]

        def sb3(theirs=theirs, seen=seen, action=action, reward=reward, no=no, infos=infos, clocks=clocks):
            clocks[0] = t = (clocks[0] + 1) % 63
            theirs.add(seen[t], seen[t + 1], action, reward, no, infos)

        def owl(ours=ours, seen=seen, action=action, reward=reward, no=no, clocks=clocks):
            clocks[1] = t = (clocks[1] + 1) % 63
            ours.add_batch(seen[t], action, reward, seen[t + 1], no, no)

        before, after = side_by_side([sb3, owl], rounds=repeats, calls=200)
        table.append(
            Row(f"add {envs} rows at once, checked, against SB3 ReplayBuffer, unchecked", before, after)
        )
    return table


def main(*, quick: bool = False) -> list[Row]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    random.seed(0)
    rows, repeats = (100_000, 15) if quick else (1_000_000, 50)
    try:
        return sampling(rows, repeats) + adding(rows, repeats)
    finally:
        torch.set_num_threads(threads)


if __name__ == "__main__":
    command(main, __doc__)
