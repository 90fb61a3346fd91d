"""Rows of a ``ReplayBuffer`` as Stable-Baselines3 has it and CleanRL copied it: read, and put back."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["Kept", "read_columns", "refill", "valid_steps"]

COLUMNS = ("actions", "rewards", "dones", "timeouts")
Kept = dict[str, Any]  # arrays (steps, environments, ...) by column; dicts of arrays for dict observations


def valid_steps(buffer: Any) -> np.ndarray:
    """Places of the valid steps in the ring, oldest first.

    >>> from gymnasium import spaces
    >>> from stable_baselines3.common.buffers import ReplayBuffer
    >>> from owlrl.adapters.buffer_rows import valid_steps
    >>> valid_steps(ReplayBuffer(10, spaces.Box(0, 1, (2,)), spaces.Discrete(2)))
    array([], dtype=int64)
    """
    if not buffer.full:
        return np.arange(buffer.pos)
    # with optimize_memory_usage the oldest step has lost its observation to the newest one
    oldest = buffer.pos + int(buffer.optimize_memory_usage)
    return np.arange(oldest, buffer.pos + buffer.buffer_size) % int(buffer.buffer_size)


def read_columns(buffer: Any, steps: np.ndarray, envs: Any) -> Kept:
    """Rows as the buffer has them, copied.

    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from stable_baselines3.common.buffers import ReplayBuffer
    >>> from owlrl.adapters.buffer_rows import read_columns
    >>> buffer = ReplayBuffer(10, spaces.Box(0, 1, (2,)), spaces.Discrete(2))
    >>> buffer.add(np.zeros((1, 2)), np.ones((1, 2)), np.array([1]), np.array([5.0]), np.array([True]), [{}])
    >>> read_columns(buffer, np.array([0]), slice(None))["rewards"]
    array([[5.]], dtype=float32)
    """
    following = buffer.observations if buffer.optimize_memory_usage else buffer.next_observations
    later = (steps + 1) % buffer.buffer_size if buffer.optimize_memory_usage else steps
    return {
        "observations": _take(buffer.observations, steps, envs),
        "next_observations": _take(following, later, envs),
        **{name: getattr(buffer, name)[steps, envs].copy() for name in COLUMNS},
    }


def refill(buffer: Any, kept: Kept) -> None:
    """Add kept rows to an empty buffer through its own ``add``, so that any kind does its bookkeeping.

    What follows in the buffer is another episode, so the last step ends one: as if time had run
    out, where the buffer tells that from a real end. Where it does not and every row stands for itself,
    the last step stays as it is.

    >>> from stable_baselines3 import DQN
    >>> from owlrl.adapters.buffer_rows import refill
    >>> from owlrl.adapters.sb3.replay import new_buffer
    >>> buffer = new_buffer(DQN("MlpPolicy", "CartPole-v1", buffer_size=10))
    >>> refill(buffer, {})
    >>> buffer.size()
    0
    """
    alone = type(buffer).__name__ == "ReplayBuffer" and not buffer.optimize_memory_usage
    ends = buffer.handle_timeout_termination or not alone
    total = len(kept["rewards"]) if kept else 0
    for step in range(max(0, total - buffer.buffer_size), total):
        done = kept["dones"][step] > 0.5
        cut = ~done if ends and step == total - 1 else np.zeros_like(done)
        ran_out = (kept["timeouts"][step] > 0.5) | cut
        buffer.add(
            _step(kept["observations"], step),
            _step(kept["next_observations"], step),
            kept["actions"][step],
            kept["rewards"][step],
            done | cut,
            [{"TimeLimit.truncated": bool(flag)} for flag in ran_out],
        )


def _take(arrays: Any, steps: np.ndarray, envs: Any) -> Any:
    if isinstance(arrays, dict):
        return {name: array[steps, envs].copy() for name, array in arrays.items()}
    return arrays[steps, envs].copy()


def _step(arrays: Any, step: int) -> Any:
    return {name: a[step] for name, a in arrays.items()} if isinstance(arrays, dict) else arrays[step]
