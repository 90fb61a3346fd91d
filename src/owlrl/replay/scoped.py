"""The replay of OWL: rows of one task at a time, and a sample of each task kept for its return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from owlrl.errors import OwlStateError
from owlrl.replay._base import RingReplay
from owlrl.replay._checks import check_task
from owlrl.replay._spec import positive_int
from owlrl.replay._store import ring_state
from owlrl.replay.samplers import Sampler

__all__ = ["TaskScopedReplay"]


class TaskScopedReplay(RingReplay):
    """Rows of the current task only; each task finds its last rows again when it comes back.

    `begin_task` empties the replay and refills it with what `end_task` stored when that task
    was last left: its newest ``warm_start`` rows (paper, Algorithm 1 and its warm start). A
    task that is left without `end_task`, by an exception for example, loses the rows of that
    visit and keeps its earlier stored sample. Rows added before the first `begin_task` belong
    to no task and go with it. `sample` never returns a row of another task.

    Every observation is stored once, in its own dtype, in a ring allocated once: a row's next
    observation is the next row's observation. An episode's end takes one extra row for its
    final observation, so a full replay holds ``capacity`` rows less one per stored episode.
    Terminated and truncated are different things: `owlrl.types.Transitions` bootstraps from a
    truncated row. n-step sums stay inside one episode and end at the newest row, where
    ``discount`` is gamma to the number of steps that were summed.

    Args:
        capacity: rows over all environments, rounded down to a multiple of ``num_envs``.
        observation_space: anything with ``shape`` and ``dtype``; or give both by themselves:
        observation_shape: shape of one observation.
        observation_dtype: dtype in which observations are stored and returned.
        action_space: anything with ``shape`` and ``dtype``; or give both by themselves:
        action_shape: shape of one action; () for a discrete one.
        action_dtype: dtype in which actions are stored; samples hold int64 or float32.
        num_envs: environments that run side by side, for `add_batch`.
        warm_start: rows kept of each task for its return; 0 keeps none.
        sampler: `UniformSampler` (the default), `PrioritizedSampler` or `RewardBalancedSampler`.
            Refilled rows count as new to it.
        n_step: rewards summed per row.
        gamma: discount per step.
        seed: of the replay's own random numbers.
        device: where samples are put.

    >>> import numpy as np
    >>> from owlrl.replay import TaskScopedReplay
    >>> replay = TaskScopedReplay(1000, observation_shape=(2,), observation_dtype=np.float32, seed=0)
    >>> for task in ("left", "right", "left"):
    ...     replay.begin_task(task)
    ...     print(task, "starts with", len(replay), "rows")
    ...     for step in range(10):
    ...         replay.add(np.zeros(2), 0, 1.0, np.ones(2), terminated=False, truncated=True)
    ...     batch = replay.sample(4)
    ...     replay.end_task()
    left starts with 0 rows
    right starts with 0 rows
    left starts with 10 rows
    >>> batch.observation.shape, batch.discount, batch.task
    (torch.Size([4, 2]), tensor([0.9900, 0.9900, 0.9900, 0.9900]), 'left')
    """

    def __init__(
        self,
        capacity: int,
        *,
        observation_space: object | None = None,
        observation_shape: Sequence[int] | None = None,
        observation_dtype: npt.DTypeLike | None = None,
        action_space: object | None = None,
        action_shape: Sequence[int] = (),
        action_dtype: npt.DTypeLike = np.int64,
        num_envs: int = 1,
        warm_start: int = 50_000,
        sampler: Sampler | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        problems: list[str] = []
        positive_int("warm_start", warm_start, problems, least=0)
        super().__init__(
            capacity,
            observation_space=observation_space,
            observation_shape=observation_shape,
            observation_dtype=observation_dtype,
            action_space=action_space,
            action_shape=action_shape,
            action_dtype=action_dtype,
            num_envs=num_envs,
            sampler=sampler,
            n_step=n_step,
            gamma=gamma,
            seed=seed,
            device=device,
            problems=problems,
        )
        self.warm_start = warm_start
        self._stored: dict[str, dict[str, Any]] = {}

    @property
    def stored(self) -> dict[str, int]:
        """How many rows each task that was left will start from when it comes back."""
        return {task: int(frames["live"].sum()) for task, frames in self._stored.items()}

    def begin_task(self, task: str) -> None:
        """Empty the replay and refill it with the stored sample of ``task``, if there is one."""
        check_task("TaskScopedReplay.begin_task", task)
        if task in self._stored:
            self._store.refill(self._stored[task])
        else:
            self._store.clear()
        self._task = task

    def end_task(self) -> None:
        """Store the newest ``warm_start`` rows; they can be drawn until the next `begin_task`.

        With several environments each gives the same number, as far as it has as many.
        """
        if self._task is None:
            raise OwlStateError("TaskScopedReplay.end_task: no task was begun; call begin_task(task) first")
        if self.warm_start:
            self._stored[self._task] = self._store.ring.newest(self.warm_start)

    def _more(self) -> str:
        return f", warm_start={self.warm_start}, stored={self.stored}"

    def _contents(self) -> dict[str, Any]:
        stored = {
            task: {name: array.copy() for name, array in frames.items()}
            for task, frames in self._stored.items()
        }
        return {"store": self._store.state_dict(), "stored": stored}

    def _restore(self, contents: Mapping[str, Any], task: str | None) -> None:
        store = self._new_store()
        store.load_state_dict(contents["store"])
        self._stored = {name: ring_state(store.ring, frames) for name, frames in contents["stored"].items()}
        self._store = store
