"""The paper's two baselines: one replay for all tasks, and one kept for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from owlrl.errors import OwlStateError
from owlrl.replay._base import Choice, RingReplay
from owlrl.replay._checks import check_task
from owlrl.replay._spec import number
from owlrl.replay._store import RowStore
from owlrl.replay.samplers import Sampler

__all__ = ["RehearsalReplay", "SharedReplay"]


class SharedReplay(RingReplay):
    """One ring for all tasks, never emptied: the paper's Experience Replay baseline.

    Arguments and methods are those of `TaskScopedReplay` without ``warm_start``. Rows of all
    tasks mix in a batch, so its ``task`` is None. No n-step sum crosses from one task to the next.
    It is meant for a learner with one head: `sample_distinct` mixes tasks as well, so inside an
    `OwlWrapper` a head would be taught and measured by other tasks' rows.

    >>> import numpy as np
    >>> from owlrl.replay import SharedReplay
    >>> replay = SharedReplay(1000, observation_shape=(), observation_dtype=np.int64, seed=0)
    >>> for number, task in enumerate(["left", "right"]):
    ...     replay.begin_task(task)
    ...     for step in range(10):
    ...         replay.add(number, 0, 1.0, number, terminated=False, truncated=False)
    ...     replay.end_task()
    >>> len(replay), sorted(set(replay.sample(20).observation.tolist()))
    (20, [0, 1])
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
        sampler: Sampler | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
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
            problems=[],
        )

    def begin_task(self, task: str) -> None:
        """Note the task and let no episode run on into it; all rows stay."""
        check_task("SharedReplay.begin_task", task)
        self._store.ring.close()
        self._task = task

    def end_task(self) -> None:
        """Nothing is to be stored: all rows stay."""
        if self._task is None:
            raise OwlStateError("SharedReplay.end_task: no task was begun; call begin_task(task) first")
        self._store.ring.close()

    def _current(self) -> Choice:
        return self._store, None, 0

    def _contents(self) -> dict[str, Any]:
        return {"store": self._store.state_dict()}

    def _restore(self, contents: Mapping[str, Any], task: str | None) -> None:
        store = self._new_store()
        store.load_state_dict(contents["store"])
        self._store = store


class RehearsalReplay(RingReplay):
    """A ring for each task, all kept; a batch comes from one task: the paper's Full Rehearsal.

    With probability ``current`` that is the current task, otherwise an earlier one drawn
    uniformly; ``Transitions.task`` tells which. Arguments and methods are those of
    `TaskScopedReplay`, with ``current`` instead of ``warm_start``; each task has a ring of
    ``capacity`` rows of its own, whose memory the system hands out as it fills. ``len``, `clear`
    and `sample_distinct` are about the current task. Earlier tasks with fewer rows than a batch
    are left out of the draw. Rows added before the first `begin_task` go with it. A loop that uses
    it must train the head of ``batch.task``, not the active one (`owlrl.learners.DQN.head_of`).

    Args:
        capacity: rows per task.
        current: probability of a batch from the current task, when there are earlier ones.

    >>> import numpy as np
    >>> from owlrl.replay import RehearsalReplay
    >>> replay = RehearsalReplay(1000, observation_shape=(), observation_dtype=np.int64, seed=0)
    >>> for number, task in enumerate(["left", "right"]):
    ...     replay.begin_task(task)
    ...     for step in range(10):
    ...         replay.add(number, 0, 1.0, number, terminated=False, truncated=False)
    ...     replay.end_task()
    >>> tasks = [replay.sample(2).task for _ in range(1000)]
    >>> tasks.count("left"), tasks.count("right")
    (246, 754)
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
        current: float = 0.75,
        sampler: Sampler | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        problems: list[str] = []
        number("current", current, problems, most=1.0)
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
        self.current = current
        self._by_task: dict[str, RowStore] = {}

    @property
    def tasks(self) -> dict[str, int]:
        """Each task's number of rows, in the order in which they were first begun."""
        return {task: len(store) for task, store in self._by_task.items()}

    @property
    def nbytes(self) -> int:
        """Bytes reserved for rows of all tasks."""
        return sum(store.ring.nbytes for store in self._stores())

    def begin_task(self, task: str) -> None:
        """Add rows to the ring of ``task`` from now on, where its earlier rows still are."""
        check_task("RehearsalReplay.begin_task", task)
        if task not in self._by_task:
            self._by_task[task] = self._new_store()
        self._store = self._by_task[task]
        self._store.ring.close()
        self._task = task

    def end_task(self) -> None:
        """Nothing is to be stored: all rows stay."""
        if self._task is None:
            raise OwlStateError("RehearsalReplay.end_task: no task was begun; call begin_task(task) first")
        self._store.ring.close()

    def _stores(self) -> Sequence[RowStore]:
        return list(self._by_task.values()) or [self._store]

    def _choice(self, task: str | None) -> Choice:
        if task is None:
            return self._store, None, 0
        place = list(self._by_task).index(task)
        return self._by_task[task], task, place * self._store.ring.num_rows

    def _current(self) -> Choice:
        return self._choice(self._task)

    def _choose(self, batch_size: int) -> Choice:
        earlier = [
            task for task, store in self._by_task.items() if task != self._task and len(store) >= batch_size
        ]
        if earlier and self._rng.random() >= self.current:
            return self._choice(earlier[int(self._rng.random() * len(earlier))])
        return self._current()

    def _more(self) -> str:
        return f", current={self.current}, tasks={self.tasks}"

    def _contents(self) -> dict[str, Any]:
        if self._task is None:
            return {"store": self._store.state_dict()}
        return {"by_task": {task: store.state_dict() for task, store in self._by_task.items()}}

    def _restore(self, contents: Mapping[str, Any], task: str | None) -> None:
        by_task = {}
        for name, state in contents.get("by_task", {}).items():
            by_task[name] = self._new_store()
            by_task[name].load_state_dict(state)
        if task is None:
            store = self._new_store()
            store.load_state_dict(contents["store"])
        else:
            store = by_task[task]
        self._store, self._by_task = store, by_task
