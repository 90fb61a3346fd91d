"""What saving costs: time, peak memory, share of training; 1, 20, 100 tasks and replays of a million images.

    python benchmarks/saving.py [--quick]

Each case runs in a process of its own, so that its peak memory is its own. The share is that of a busy core
with one save a minute. Prints the table of docs/reliability.md.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from owlrl import MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay
from owlrl.checkpoint import load_state

MILLION = 1_000_000
CASES = {  # tasks, rows of the replay, shape and dtype of an observation, whose replay
    "1 task, 100,000 rows of 17 numbers": (1, 100_000, (17,), np.float32, "owlrl"),
    "20 tasks, 100,000 rows of 17 numbers": (20, 100_000, (17,), np.float32, "owlrl"),
    "100 tasks, 100,000 rows of 17 numbers": (100, 100_000, (17,), np.float32, "owlrl"),
    "1 task, 1,000,000 rows of 70 numbers": (1, MILLION, (70,), np.float32, "owlrl"),
    "1 task, 1,000,000 images of 7 x 7 x 3": (1, MILLION, (7, 7, 3), np.uint8, "owlrl"),
    "the same in a buffer of Stable-Baselines3": (1, MILLION, (7, 7, 3), np.uint8, "sb3"),
    "1 task, 1,000,000 images of 28 x 28 x 3": (1, MILLION, (28, 28, 3), np.uint8, "owlrl"),
}
REPEATS = 3


def make(rows: int, shape: tuple[int, ...], dtype: type, kind: str) -> tuple[OwlWrapper, Any]:
    """A wrapper and its replay."""
    size = int(np.prod(shape))
    trunk = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(size, 256), torch.nn.ReLU())
    q = MultiHeadQ(trunk, 256, 6)
    optimizer = torch.optim.Adam(q.parameters())
    options = {"num_envs": 500, "warm_start": 2_000, "seed": 0}
    replay: Any = TaskScopedReplay(rows, observation_shape=shape, observation_dtype=dtype, **options)
    if kind == "sb3":
        seen = spaces.Box(0, 255, shape, dtype)
        replay = ReplayBuffer(rows, seen, spaces.Discrete(6), n_envs=500, handle_timeout_termination=False)
    learner = QLearner(q, None, optimizer, replay=replay, preprocess=lambda x: x.float())
    return OwlWrapper(learner, evidence=None, memory_rows=2_000, seed=0), replay


def fill(replay: Any, rows: int, shape: tuple[int, ...], dtype: type) -> None:
    """Add rows of images or numbers, 500 at a time."""
    draw, no = np.random.default_rng(0), np.zeros(500, np.bool_)
    pool = draw.integers(0, 255, (8, 500, *shape), np.uint8).astype(dtype, copy=False)  # small: peaks count
    for step in range(rows // 500):
        observation, following = pool[step % 8], pool[(step + 1) % 8]
        action, reward = draw.integers(0, 6, 500), draw.random(500)
        if isinstance(replay, ReplayBuffer):
            replay.add(observation, following, action, reward, no, [{}] * 500)
        else:
            replay.add_batch(observation, action, reward, following, no, no)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def case(name: str, quick: bool) -> dict[str, float]:
    tasks, rows, shape, dtype, kind = CASES[name]
    rows = rows // 100 if quick else rows
    torch.set_num_threads(1)
    owl, replay = make(rows, shape, dtype, kind)
    for task in range(tasks - 1):
        with owl.task(str(task)):
            fill(replay, 2_500, shape, dtype)
    with tempfile.TemporaryDirectory() as directory, owl.task(str(tasks - 1)):
        path = Path(directory) / "state.safetensors"
        fill(replay, rows, shape, dtype)
        before, seconds, busy = peak(), [], []
        for _ in range(REPEATS):
            begun, used = time.perf_counter(), time.process_time()
            owl.save(path)
            seconds.append(time.perf_counter() - begun)
            busy.append(time.process_time() - used)
        after = peak()
        begun = time.process_time()
        load_state(path)
        loading = time.process_time() - begun
        megabytes = os.path.getsize(path) / 2**20
    return {
        "file": megabytes,
        "seconds": float(np.median(seconds)),
        "cpu": float(np.median(busy)),
        "peak": after - before,
        "load": loading,
    }


def main() -> None:
    quick = "--quick" in sys.argv
    if "--case" in sys.argv:
        print(json.dumps(case(sys.argv[sys.argv.index("--case") + 1], quick)))
        return
    print(f"torch {torch.__version__}, one thread, median of {REPEATS} saves\n")
    columns = (
        "state",
        "file, MB",
        "save, s",
        "busy core, s",
        "further MB",
        "share at one a minute",
        "load, s",
    )
    print(f"| {' | '.join(columns)} |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in CASES:
        command = [sys.executable, __file__, "--case", name, *(["--quick"] if quick else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)
        share = found["cpu"] / 60
        numbers = f"{found['file']:.0f} | {found['seconds']:.2f} | {found['cpu']:.2f} | {found['peak']:.0f}"
        print(f"| {name} | {numbers} | {share:.1%} | {found['load']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
