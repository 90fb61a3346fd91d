"""`BufferReplay`: the ``ReplayBuffer`` of a hand-written script in CleanRL's manner, one task at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from owlrl.adapters.buffer_rows import COLUMNS, Kept, read_columns, refill, valid_steps
from owlrl.errors import OwlStateError, OwlValueError, int_problem, raise_problems
from owlrl.types import Transitions

__all__ = ["BufferReplay"]


class BufferReplay:
    """Lets a script go on with the ``ReplayBuffer`` of Stable-Baselines3, or CleanRL's copy of it.

    The same object stays in use: `begin_task` empties it in place and refills it with the last rows
    of that task. `QLearner` and `ActorCriticLearner` make one by themselves from ``replay=rb``; make it
    yourself to keep fewer rows. Actions are taken as the script stores them.

    Args:
        buffer: the script's buffer; not one of dict observations.
        gamma: the script's discount.
        warm_start: steps kept of each task for its return, over all environments; 0 keeps none.
        seed: of the replay's own random numbers; the script's own draws are not touched.

    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from stable_baselines3.common.buffers import ReplayBuffer
    >>> from owlrl.adapters.buffers import BufferReplay
    >>> rb = ReplayBuffer(100, spaces.Box(0, 1, (2,)), spaces.Discrete(3))
    >>> replay = BufferReplay(rb)
    >>> replay.begin_task("left")
    >>> rb.add(np.zeros((1, 2)), np.ones((1, 2)), np.array([1]), np.array([0.5]), np.array([True]), [{}])
    >>> replay.sample(2).reward
    tensor([0.5000, 0.5000])
    >>> replay.end_task()
    >>> replay.begin_task("right"); len(replay)
    0
    >>> replay.begin_task("left"); replay
    BufferReplay(ReplayBuffer of 1 rows, task='left', warm_start=50000, kept={'left': 1})
    """

    def __init__(
        self, buffer: Any, *, gamma: float = 0.99, warm_start: int = 50_000, seed: int | None = None
    ) -> None:
        problem = int_problem("warm_start", warm_start, least=0)
        raise_problems("BufferReplay", [] if problem is None else [problem])
        self.buffer = buffer
        self.gamma = gamma
        self.warm_start = warm_start
        self.seed = seed
        self.observation_shape: tuple[int, ...] = buffer.observations.shape[2:]
        self.observation_dtype: np.dtype[Any] = buffer.observations.dtype
        self._discrete = buffer.actions.dtype.kind in "iu"
        self.action_shape: tuple[int, ...] = () if self._discrete else buffer.actions.shape[2:]
        self.action_dtype: np.dtype[Any] = buffer.actions.dtype
        self._task: str | None = None
        self._kept: dict[str, Kept] = {}
        self._rng = np.random.default_rng(seed)

    def begin_task(self, task: str) -> None:
        """Empty the buffer and refill it with what was kept of ``task``."""
        self.buffer.reset()
        refill(self.buffer, self._kept.get(task, {}))
        self._task = task

    def end_task(self) -> None:
        """Keep the last ``warm_start`` steps of the task; the buffer keeps its rows until the next one."""
        if self._task is None:
            raise OwlStateError("BufferReplay.end_task: no task was begun; call begin_task(task) first")
        count = self.warm_start // self.buffer.n_envs
        if count:
            self._kept[self._task] = read_columns(self.buffer, valid_steps(self.buffer)[-count:], slice(None))

    def sample(self, batch_size: int) -> Transitions:
        """Draw rows uniformly with replacement."""
        return self._transitions(self._rng.integers(0, len(self), batch_size))

    def sample_distinct(self, limit: int) -> Transitions:
        """Up to ``limit`` different rows, all if there are no more."""
        index = np.arange(len(self))
        if limit < len(index):
            index = self._rng.choice(index, limit, replace=False, shuffle=False)
        return self._transitions(index)

    def state_dict(self) -> dict[str, Any]:
        """The kept rows and the random state; the buffer itself is refilled from them at the next task."""
        return {"kept": dict(self._kept), "rng": self._rng.bit_generator.state}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` gave."""
        rng = np.random.default_rng()
        try:
            rng.bit_generator.state = state_dict["rng"]
            kept = dict(state_dict["kept"])
            for task, columns in kept.items():
                for name in ("observations", *COLUMNS):
                    given, own = columns[name].shape[1:], getattr(self.buffer, name).shape[1:]
                    if given != own:
                        raise ValueError(f"{name} of task {task!r} have shape {given}, not {own}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OwlValueError(
                f"BufferReplay.load_state_dict: the state does not fit ({type(error).__name__}: {error}); "
                "expected what state_dict() gave for a buffer of the same spaces and number of environments"
            ) from error
        self._kept, self._rng = kept, rng

    def __len__(self) -> int:
        return len(valid_steps(self.buffer)) * int(self.buffer.n_envs)

    def __repr__(self) -> str:
        kept = {task: columns["rewards"].size for task, columns in self._kept.items()}
        return (
            f"BufferReplay({type(self.buffer).__name__} of {len(self)} rows, task={self._task!r}, "
            f"warm_start={self.warm_start}, kept={kept})"
        )

    def _transitions(self, index: np.ndarray) -> Transitions:
        envs = int(self.buffer.n_envs)
        columns = read_columns(self.buffer, valid_steps(self.buffer)[index // envs], index % envs)
        actions = columns["actions"]  # (B, 1) or (B, A)
        kind = np.int64 if self._discrete else np.float32
        ended = columns["dones"] * (1 - columns["timeouts"])
        return Transitions(
            observation=torch.from_numpy(columns["observations"]),
            action=torch.from_numpy((actions[:, 0] if self._discrete else actions).astype(kind)),
            reward=torch.from_numpy(columns["rewards"].astype(np.float32)),
            next_observation=torch.from_numpy(columns["next_observations"]),
            terminated=torch.from_numpy(ended > 0.5),
            discount=torch.full((len(index),), float(self.gamma)),
            task=self._task,
        )
