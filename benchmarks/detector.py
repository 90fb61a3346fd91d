"""The detector alone: rows of learners that learn one task from scratch, recorded once, and given to it.

python benchmarks/detector.py record --seeds 1 --frames 3000000   # rows to build/rows, or --rows DIR
python benchmarks/detector.py alarms                              # one task after all: any alarm is false
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import owlrl.envs  # noqa: F401, registers the environments
from benchmarks.stream import angles, grids, poles
from owlrl.learners import DQN, SAC, SAC_FAST
from owlrl.types import Transitions

ROWS = Path("build/rows")
COLUMNS = ("observation", "action", "reward", "next_observation", "terminated", "truncated", "env")


def dqn(env: Any, seed: int) -> DQN:
    return DQN(env, seed=seed, device="cpu")


def sac(env: Any, seed: int) -> SAC:
    return SAC(env, config=replace(SAC_FAST, update_every=env.num_envs), seed=seed, device="cpu")


# tasks, copies side by side, learner
FAMILIES = {
    "crossroads": (lambda: grids("Crossroads-4", breadcrumbs=True), 32, dqn),
    "crossroads-plain": (lambda: grids("Crossroads-4"), 32, dqn),
    "sc5": (lambda: grids("SC5"), 32, dqn),
    "pendulum": (angles, 1, sac),
    "pendulum-16": (angles, 16, sac),
    "cartpole": (poles, 1, dqn),
    "cartpole-32": (poles, 32, dqn),
}


class Recorder:
    """Rows as a learner stored them; observations that come again are kept once."""

    def __init__(self) -> None:
        self.columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}

    def take(self, rows: Transitions | None) -> None:
        if rows is None:
            return
        for name in COLUMNS:
            value = getattr(rows, name)
            column = np.zeros(len(rows), np.int32) if value is None else value.numpy()
            self.columns[name].append(column.astype(np.int32) if name == "env" else column.copy())

    def save(self, file: Path) -> None:
        columns = {name: np.concatenate(parts) for name, parts in self.columns.items()}
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part.npz")
        if columns["observation"].dtype == np.uint8:
            both = [columns.pop(name) for name in ("observation", "next_observation")]
            flat = np.concatenate([b.reshape(len(b), -1) for b in both])
            whole = np.ascontiguousarray(flat).view(np.dtype((np.void, flat.shape[1]))).ravel()
            _, first, index = np.unique(whole, return_index=True, return_inverse=True)
            columns["table"] = np.concatenate(both)[first]
            columns["seen"], columns["after"] = index.astype(np.int32).reshape(2, -1)
        np.savez(part, **columns)
        part.replace(file)


def load(file: Path) -> Transitions:
    with np.load(file) as stored:
        columns = dict(stored)
    if "table" in columns:
        table = columns.pop("table")
        columns["observation"], columns["next_observation"] = (
            table[columns.pop("seen")],
            table[columns.pop("after")],
        )
    tensors = {name: torch.from_numpy(columns[name]) for name in COLUMNS}
    tensors["env"] = tensors["env"].long()
    return Transitions(**tensors, discount=torch.ones(len(tensors["reward"])))


def record(family: str, seed: int, frames: int, rows: Path) -> None:
    torch.set_num_threads(1)
    make_tasks, copies, make_learner = FAMILIES[family]
    for number, (task, make) in enumerate(make_tasks().items()):
        file = rows / f"{family}-{seed}-{number}.npz"
        if file.exists():
            continue
        torch.manual_seed(seed)
        agent = make_learner(make(copies), seed)
        recorder = Recorder()
        agent.replay.begin_task("only")
        for done in range(0, frames, 32 * copies):
            agent.learn(min(32 * copies, frames - done))
            recorder.take(agent.replay.new_rows())
        recorder.save(file)
        print(f"{family}, seed {seed}, {task}: {frames} rows", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("family")
    parser.add_argument("seed", type=int)
    parser.add_argument("frames", type=int)
    parser.add_argument("--rows", type=Path, default=ROWS)
    a = parser.parse_args()
    record(a.family, a.seed, a.frames, a.rows)
