"""Replays scoped to tasks: OWL's own, and the paper's two baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import Unpack

from owlrl._arguments import Arguments
from owlrl.errors import OwlStateError
from owlrl.replay.base import Choice, RingOptions, RingReplay, RowStore

__all__ = ["RehearsalReplay", "SharedReplay", "TaskScopedReplay"]


class TaskScopedReplay(RingReplay):
    """Rows of the current task only; on a revisit a task gets back its newest rows.

    `begin_task` empties the replay and refills it with what `end_task` stored when that task
    was last left: its newest ``warm_start`` rows (paper, Algorithm 1 and its warm start). A
    task that is left without `end_task`, by an exception for example, loses the rows of that
    visit and keeps its earlier stored sample. Rows added before the first `begin_task` belong
    to no task and go with it. `sample` never returns a row of another task.

    Every observation is stored once, in its own dtype, in a ring allocated once: a row's next
    observation is the next row's observation. An episode's end takes one extra row for its
    final observation, so a full replay holds ``capacity`` rows less one per stored episode.
    Terminated and truncated are distinguished: `owlrl.types.Transitions` bootstraps from a
    truncated row. n-step sums stay inside one episode and end at the newest row, where
    ``discount`` is gamma to the number of steps that were summed.

    Args:
        capacity: rows over all environments, rounded down to a multiple of ``num_envs``.
        observation_space: anything with ``shape`` and ``dtype``; or pass both separately:
        observation_shape: shape of one observation.
        observation_dtype: dtype in which observations are stored and returned.
        action_space: anything with ``shape`` and ``dtype``; or pass both separately:
        action_shape: shape of one action; () for a discrete one.
        action_dtype: dtype in which actions are stored; samples hold int64 or float32.
        num_envs: environments that run side by side, for `add_batch`.
        warm_start: rows kept of each task for a revisit; 0 keeps none.
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

    def __init__(self, capacity: int, *, warm_start: int = 50_000, **options: Unpack[RingOptions]) -> None:
        self.warm_start = warm_start
        self._stored: dict[str, dict[str, Any]] = {}
        super().__init__(capacity, **options)

    def _check(self, arguments: Arguments) -> None:
        self.warm_start = arguments.integer("warm_start", self.warm_start, least=0)

    @property
    def stored(self) -> dict[str, int]:
        """How many rows each earlier task will start from on a revisit."""
        return {task: int(frames["live"].sum()) for task, frames in self._stored.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of the ring and of all stored samples."""
        stored = sum(int(a.nbytes) for frames in self._stored.values() for a in frames.values())
        return super().nbytes + stored

    def _begin(self, task: str) -> None:
        if task in self._stored:
            self._store.refill(self._stored[task])
        else:
            self._store.clear()

    def _end(self, task: str) -> None:
        if self.warm_start:  # of several environments each gives the same number, as far as it has as many
            self._stored[task] = self._store.ring.newest(self.warm_start)

    def _forget(self, task: str) -> None:
        self._stored.pop(task, None)

    def _more(self) -> str:
        return f", warm_start={self.warm_start}, stored={self.stored}"

    def _contents(self) -> dict[str, Any]:
        return {**super()._contents(), "stored": {task: dict(kept) for task, kept in self._stored.items()}}

    def _restore(self, contents: Mapping[str, Any], task: str | None) -> None:
        ring = self._store.ring
        stored = {
            name: {key: array.copy() for key, array in ring.checked(frames).items()}
            for name, frames in contents["stored"].items()
        }
        super()._restore(contents, task)
        self._stored = stored


class SharedReplay(RingReplay):
    """One ring for all tasks, never emptied: the paper's Experience Replay baseline.

    Arguments and methods are those of `TaskScopedReplay` without ``warm_start``. Rows of all
    tasks mix in a batch, so its ``task`` is None. No n-step sum crosses from one task to the next.
    For a learner with one head: inside an `OwlWrapper` a head would be trained on other tasks' rows.

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

    def _begin(self, task: str) -> None:
        self._store.ring.close()  # no episode runs on into the task

    def _end(self, task: str) -> None:
        self._store.ring.close()

    def _forget(self, task: str) -> None:
        raise OwlStateError(
            f"SharedReplay.forget: all tasks share one ring, so the rows of {task!r} are not known; "
            "clear() forgets all tasks; a TaskScopedReplay keeps them apart"
        )

    def _choose(self, batch_size: int) -> Choice:
        return self._store, None, 0


class RehearsalReplay(RingReplay):
    """A ring for each task, all kept; a batch comes from one task: the paper's Full Rehearsal.

    With probability ``current`` that is the current task, otherwise an earlier one drawn
    uniformly; ``Transitions.task`` names it. Arguments and methods are those of
    `TaskScopedReplay`, with ``current`` instead of ``warm_start``; there is a ring of
    ``capacity`` rows per task, whose memory is allocated as it fills. ``len`` and
    `clear` are about the current task. Earlier tasks with fewer rows than a batch
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

    def __init__(self, capacity: int, *, current: float = 0.75, **options: Unpack[RingOptions]) -> None:
        self.current = current
        self._by_task: dict[str, RowStore] = {}
        super().__init__(capacity, **options)

    def _check(self, arguments: Arguments) -> None:
        self.current = arguments.number("current", self.current, least=0.0, most=1.0)

    @property
    def tasks(self) -> dict[str, int]:
        """Each task's number of rows, in the order in which they were first begun."""
        return {task: len(store) for task, store in self._by_task.items()}

    def _begin(self, task: str) -> None:
        if task not in self._by_task:
            self._by_task[task] = self._new_store()
        self._store = self._by_task[task]
        self._store.ring.close()

    def _end(self, task: str) -> None:
        self._store.ring.close()

    def _forget(self, task: str) -> None:
        self._by_task.pop(task, None)

    def _stores(self) -> Sequence[RowStore]:
        own = [self._store] if self._task is None else []  # rows of no task
        return [*self._by_task.values(), *own]

    def _choose(self, batch_size: int) -> Choice:
        tasks, task = list(self._by_task), self._task
        earlier = [name for name in tasks if name != task and len(self._by_task[name]) >= batch_size]
        if earlier and self._rng.random() >= self.current:
            task = earlier[int(self._rng.random() * len(earlier))]
        place = len(tasks) if task is None else tasks.index(task)
        store = self._store if task is None else self._by_task[task]
        return store, task, place * store.ring.num_rows

    def _more(self) -> str:
        return f", current={self.current}, tasks={self.tasks}"

    def _contents(self) -> dict[str, Any]:
        contents: dict[str, Any] = {
            "by_task": {task: store.state_dict() for task, store in self._by_task.items()}
        }
        return contents if self._task is not None else {**contents, "store": self._store.state_dict()}

    def _restore(self, contents: Mapping[str, Any], task: str | None) -> None:
        by_task = {name: self._restored(state) for name, state in contents["by_task"].items()}
        self._store = self._restored(contents["store"]) if task is None else by_task[task]
        self._by_task = by_task
