"""The memories of all tasks, bounded together."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from owlrl._arguments import Arguments, own_seed
from owlrl.memory._incoming import naturals
from owlrl.memory.task_memory import TaskMemory, _nobody, readable_bytes, refusing

__all__ = ["TaskMemories"]


class TaskMemories(Mapping[str, TaskMemory]):
    """One `TaskMemory` per task, by name, that together stay within ``max_bytes``.

    When they would take more, the memories with the most rows are thinned to one smaller number of rows,
    the same for all of them, at which everything takes seven eighths of ``max_bytes``; memories with fewer
    rows stay as they are. Each keeps what it would have kept with that capacity from the start: the
    shares of its strata, and within a stratum a uniform sample.

    Args:
        rows: capacity of each memory.
        max_bytes: of all memories together. While a task is being learned, its arrays are counted
            with the room they may take to grow.
        segment: as in `TaskMemory`.
        quarantine: as in `TaskMemory`.
        seed: each task's memory gets a seed made of this one and the task's name; by default
            from torch's global seed, which is read but not advanced.

    >>> import torch
    >>> from owlrl.memory import TaskMemories
    >>> from owlrl.types import Transitions
    >>> x = torch.zeros(500, 4)
    >>> rows = Transitions(x, x[:, 0].long(), x[:, 0], x, x[:, 0].bool(), torch.ones(500))
    >>> memories = TaskMemories(rows=1000, seed=0)
    >>> memories.open("left").add(rows)
    >>> memories.open("right").add(rows)
    >>> for memory in memories.values():
    ...     memory.settle()
    >>> memories
    TaskMemories(2 tasks, 1,000 rows, 38.9 KB of at most 1.0 GB)
    >>> memories.forget("left")
    >>> list(memories)
    ['right']
    """

    def __init__(
        self,
        rows: int = 20_000,
        max_bytes: int = 2**30,
        *,
        segment: int = 8,
        quarantine: int = 0,
        seed: int | None = None,
    ) -> None:
        arguments = Arguments("TaskMemories")
        self.rows: int = arguments.integer("rows", rows)
        self.max_bytes: int = arguments.integer("max_bytes", max_bytes)
        self.segment: int = arguments.integer("segment", segment, most=2**16)
        self.quarantine: int = arguments.integer("quarantine", quarantine, least=0)
        self.seed: int | None = arguments.integer("seed", seed, least=0, none=True)
        if not arguments.problems and self.rows < self.segment:
            arguments.problem(f"rows is {rows}; expected at least segment, {segment}")
        arguments.check()
        self._seed = own_seed(self.seed)
        self._memories: dict[str, TaskMemory] = {}
        self._warned = False

    def __getitem__(self, task: str) -> TaskMemory:
        return self._memories[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self._memories)

    def __len__(self) -> int:
        return len(self._memories)

    @property
    def nbytes(self) -> int:
        """Bytes of all memories."""
        return sum(memory.nbytes for memory in self._memories.values())

    def open(self, task: str) -> TaskMemory:
        """The memory of ``task``; an empty one the first time."""
        if task in self._memories:
            return self._memories[task]
        arguments = Arguments("TaskMemories.open")
        arguments.text("task", task)
        arguments.check()
        memory = self._memories[task] = self._made(task)
        memory._changed = self._bound
        return memory

    def _made(self, task: str) -> TaskMemory:
        digest = hashlib.blake2b(f"{self._seed}:{task}".encode(), digest_size=7).digest()
        return TaskMemory(
            self.rows, segment=self.segment, quarantine=self.quarantine, seed=int.from_bytes(digest, "big")
        )

    def forget(self, task: str) -> None:
        """Drop the memory of ``task``, if there is one."""
        memory = self._memories.pop(task, None)
        if memory is not None:
            memory._changed = _nobody

    def _charged(self) -> int:
        return sum(sum(memory._charge()) for memory in self._memories.values())

    def _bound(self) -> None:
        """Thin the largest memories to the most rows at which all take seven eighths of ``max_bytes``.

        Called after each change of a memory; done when they take more than ``max_bytes``.
        """
        charged = self._charged()
        if charged <= self.max_bytes:
            return
        # per memory: rows, and bytes of each
        kept = [(len(m), m._charge()[0] / len(m)) for m in self._memories.values() if len(m)]
        fixed = charged - sum(m._charge()[0] for m in self._memories.values() if len(m))
        low, high = self.segment, max((count for count, _ in kept), default=self.segment)
        while low < high:
            middle = (low + high + 1) // 2
            total = fixed + sum(min(middle, count) * each for count, each in kept)
            low, high = (middle, high) if total <= self.max_bytes * 7 / 8 else (low, middle - 1)
        for memory in self._memories.values():
            if len(memory) > low:
                memory._thin(low)
        charged = self._charged()
        if charged > self.max_bytes and not self._warned:
            self._warned = True
            warnings.warn(
                f"TaskMemories: {len(self)} tasks of {low} rows each take {readable_bytes(charged)}, "
                f"more than max_bytes, {readable_bytes(self.max_bytes)}; pass more, or a smaller quarantine",
                UserWarning,
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit."""
        return {
            "seed": self._seed,
            "memories": {task: memory.state_dict() for task, memory in self._memories.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned, with new memories; an invalid state changes nothing.

        The bounds ``rows`` and ``max_bytes`` are this object's: larger memories are thinned to them.
        """
        memories: dict[str, TaskMemory] = {}
        with refusing("TaskMemories.load_state_dict"):
            (seed,) = naturals(state_dict["seed"])
            for task, state in state_dict["memories"].items():
                if not isinstance(task, str) or not task:
                    raise ValueError(f"{task!r} is no task's name")
                memories[task] = self._made(task)
                memories[task].load_state_dict(state)
        for memory in self._memories.values():
            memory._changed = _nobody
        for memory in memories.values():
            memory._changed = self._bound
        self._seed, self._memories = seed, memories
        self._bound()

    def __repr__(self) -> str:
        tasks = f"{len(self)} task{'s' * (len(self) != 1)}"
        rows = sum(len(memory) for memory in self._memories.values())
        return (
            f"TaskMemories({tasks}, {rows:,} rows, {readable_bytes(self.nbytes)} "
            f"of at most {readable_bytes(self.max_bytes)})"
        )
