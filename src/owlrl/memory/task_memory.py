"""What is remembered of the tasks: a sample of the rows of each, and all of them bounded together."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from owlrl._arguments import Arguments, own_generator, own_seed
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError, raise_problems, refusing
from owlrl.memory._incoming import (
    Columns,
    Form,
    Incoming,
    checked_rows,
    concatenated,
    in_time_order,
    naturals,
    size,
    taken,
)
from owlrl.memory._reservoir import STRATA, Reservoir
from owlrl.memory.scaling import Scaling
from owlrl.types import Transitions

__all__ = ["TaskMemories", "TaskMemory"]

PIECE = 4096  # rows taken in at a time
GENERATOR = 0x6D656D  # tells the generator from others of the same seed


def _nobody() -> None:
    """Called when a memory changes that is in no `TaskMemories`."""


class TaskMemory:
    """A bounded, reproducible sample of everything a learner stored of one task.

    Rows are kept as short contiguous **segments**: up to ``segment`` steps of one environment, cut at
    the end of an episode. All rows are kept until there are ``capacity``; from then on each stratum keeps
    a uniform sample of its segments:

    - ``starts``: segments that start an episode, a quarter of the capacity;
    - ``rare``: segments with a reward unlike the most common one so far, while at most one segment in
      ten has such a reward; a quarter. One that also starts an episode belongs here;
    - ``rest``: half.

    The others use what one stratum does not need. ``weight`` of a row is (rows seen / rows kept) of its
    stratum, scaled to mean 1: weighted means over the memory estimate means over everything seen.

    Rows come in some dozens at a time, once they are out of quarantine and their segment is complete;
    `settle` lets all in. Call it when a task is left. All visits of a task are one stream: the next visit
    continues with `add` on the same object.

    Rows are copied and stored raw, in their own dtype; one observation that is the next of one row and the
    first of the next row is stored once. The first rows decide shapes and dtypes.

    Args:
        capacity: rows kept at most.
        segment: steps of a segment at most.
        quarantine: how many of the newest rows wait, so that `take_back` can return them; may be set later.
        seed: of the choice; by default from torch's global seed, which is read but not advanced.

    Attributes:
        capacity: rows kept at most; `thin` lowers it.
        seen: rows given so far, without those taken back.
        version: changes whenever the rows that can be drawn, their numbers or their scaling change. It is
            saved and loaded with the rows: save it beside anything that is computed from them.

    >>> import torch
    >>> from owlrl.memory import TaskMemory
    >>> from owlrl.types import Transitions
    >>> steps = torch.arange(1000)
    >>> memory = TaskMemory(200, seed=0)
    >>> memory.add(Transitions(steps.float(), steps % 2, (steps % 100 == 99).float(), steps + 1.0,
    ...                        steps % 100 == 99, torch.full((1000,), 0.99)))
    >>> memory.settle()
    >>> memory
    TaskMemory(192 of at most 200 rows, 1,000 seen, 5.3 KB)
    >>> rows = memory.rows(limit=32)
    >>> len(rows), float((rows.weight * rows.reward).mean()) < 0.05
    (32, True)
    """

    def __init__(
        self,
        capacity: int = 20_000,
        *,
        segment: int = 8,
        quarantine: int = 0,
        seed: int | None = None,
    ) -> None:
        arguments = Arguments("TaskMemory")
        self.segment: int = arguments.integer("segment", segment, most=2**16)
        self._most: int = arguments.integer("capacity", capacity)
        self._quarantine: int = arguments.integer("quarantine", quarantine, least=0)
        self.seed: int | None = arguments.integer("seed", seed, least=0, none=True)
        if not arguments.problems and self._most < self.segment:
            arguments.problem(f"capacity is {capacity}; expected at least segment, {segment}")
        arguments.check()
        self.capacity: int = self._most
        self._rng = own_generator(self.seed, GENERATOR)
        self._incoming = Incoming(self.segment)
        self._reservoir: Reservoir | None = None  # there when the form of the rows is
        self._truncation_known = True  # all rows came with ``truncated``; if not, rows are given without it
        self.seen = 0
        self.version = 0
        self._settled = True
        self._scaling: Scaling | None = None
        self._changed: Callable[[], None] = _nobody  # called at each change of what is charged

    @property
    def waiting(self) -> int:
        """Rows that were given and cannot be drawn yet: in quarantine or in an open segment."""
        return self._incoming.rows

    @property
    def quarantined(self) -> int:
        """Rows in quarantine, which `take_back` can give back."""
        return size(self._incoming.queue)

    @property
    def quarantine(self) -> int:
        """The newest rows that wait; a smaller number lets rows in at the next `add`."""
        return self._quarantine

    @quarantine.setter
    def quarantine(self, rows: int) -> None:
        arguments = Arguments("TaskMemory.quarantine")
        checked: int = arguments.integer("quarantine", rows, least=0)
        arguments.check()
        self._quarantine = checked

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, those that wait included."""
        return self._incoming.nbytes + (0 if self._reservoir is None else self._reservoir.nbytes)

    @property
    def strata(self) -> dict[str, tuple[int, int]]:
        """Rows seen and rows kept of each stratum."""
        if self._reservoir is None:
            return dict.fromkeys(STRATA, (0, 0))
        pairs = zip(self._reservoir.seen.tolist(), self._reservoir.kept.tolist(), strict=True)
        return dict(zip(STRATA, pairs, strict=True))

    @property
    def scaling(self) -> Scaling | None:
        """Applied by `rows` and `gather`; None gives rows as they were stored."""
        return self._scaling

    @scaling.setter
    def scaling(self, scaling: Scaling | None) -> None:
        arguments = Arguments("TaskMemory.scaling")
        arguments.instance("scaling", scaling, Scaling, "a Scaling", none=True)
        arguments.check()
        if scaling is not None and self._reservoir is not None:
            raise_problems(arguments.where, scaling.problems(self._reservoir.form.observation[0]))
        self._scaling = scaling
        self.version += 1

    def __len__(self) -> int:
        return 0 if self._reservoir is None else self._reservoir.rows

    def add(self, rows: Transitions) -> None:
        """Take in one-step rows, oldest first within each environment (``rows.env``); they are copied.

        What cannot be stored is an error that names the row and the field, and changes nothing.
        """
        known = None if self._reservoir is None else self._reservoir.form
        columns, form = checked_rows("TaskMemory.add", rows, known)
        if known is None and self._scaling is not None:
            raise_problems("TaskMemory.add", self._scaling.problems(form.observation[0]))
        count = size(columns)
        if not count:
            return
        if self._reservoir is None:
            self._reservoir = Reservoir(self.capacity, form, self._rng)
        self._truncation_known &= rows.truncated is not None
        self.seen += count
        self._settled = False
        columns = in_time_order(columns)
        for low in range(0, count, PIECE):
            if self._incoming.add(taken(columns, slice(low, low + PIECE)), self._quarantine):
                self._let_in()
        self._changed()

    def _let_in(self, *, close: bool = False) -> None:
        columns, length = self._incoming.cut(close=close)
        if columns and self._reservoir is not None and self._reservoir.offer(columns, length):
            self.version += 1

    def settle(self) -> None:
        """Let all rows in: quarantine and open segments end. The next rows belong to another visit."""
        self._incoming.add({}, 0)
        self._let_in(close=True)
        self._incoming.last.clear()
        self._settled = True
        if self._reservoir is not None:
            self._reservoir.fit()
        self._changed()

    def take_back(self, count: int) -> Transitions:
        """Remove and return the newest ``count`` rows of the quarantine, oldest first, raw."""
        arguments = Arguments("TaskMemory.take_back")
        count = arguments.integer("count", count)
        arguments.check()
        if count > self.quarantined:
            raise OwlValueError(
                f"TaskMemory.take_back: count is {count}; expected at most {self.quarantined}, the rows in "
                f"quarantine (quarantine={self._quarantine}); older rows are in the memory"
            )
        columns = self._incoming.take_back(count)
        self.seen -= count
        self._changed()
        del columns["known"]
        return to_transitions(columns, self._truncation_known)

    def rows(self, limit: int | None = None) -> Transitions:
        """All rows, or ``limit`` different ones spread over all of them; the same ones while ``version`` is.

        Rows of a segment follow each other; ``index`` are their numbers for `gather`. ``weight`` has mean 1.
        """
        arguments = Arguments("TaskMemory.rows")
        limit = arguments.integer("limit", limit, none=True)
        arguments.check()
        count = len(self)
        if not count:
            raise OwlStateError(
                f"TaskMemory.rows: there are none yet ({self.waiting} wait); add(rows) first, and "
                "settle() lets in those that wait"
            )
        if limit is None or limit >= count:
            return self.gather(np.arange(count))
        # one of each of `limit` equal parts, at no fixed place: steps of a fixed width could
        # hit the same place of every segment
        edges = np.arange(limit + 1) * count // limit
        chance = np.random.default_rng([count, limit]).random(limit)
        found = self.gather(edges[:-1] + (chance * np.diff(edges)).astype(np.int64))
        assert found.weight is not None
        found.weight.div_(found.weight.mean())
        return found

    def gather(self, index: np.ndarray | Tensor) -> Transitions:
        """The rows with these numbers, from 0 to ``len(self) - 1``, as fresh tensors on the CPU.

        Numbers are valid while ``version`` is the same. Over all rows ``weight`` has mean 1.
        """
        numbers = index.numpy(force=True) if isinstance(index, Tensor) else np.asarray(index)
        return gather_rows([self], [numbers])

    def _gathered(self, index: np.ndarray) -> Columns:
        """As `gather`, as arrays."""
        numbers = self._numbers("gather", index)
        if self._reservoir is None:
            raise OwlStateError("TaskMemory.gather: there are no rows yet; add(rows) first")
        columns = self._reservoir.gather(numbers)
        if self._scaling is not None:
            for name in ("observation", "next_observation"):
                columns[name] = self._scaling.observation(columns[name])
            columns["reward"] = self._scaling.reward(columns["reward"])
        return columns

    def _numbers(self, where: str, index: np.ndarray) -> np.ndarray:
        """``index`` as int64, or an error where it has other than numbers of rows."""
        if index.ndim != 1 or (index.dtype.kind not in "iu" and index.size):
            raise OwlTypeError(
                f"TaskMemory.{where}: index is {index.dtype} {index.shape}; expected ints (B,)"
            )
        numbers = index.astype(np.int64, copy=False)
        # as uint64 a negative number is a large one
        if self._reservoir is not None and len(numbers) and numbers.view(np.uint64).max() >= len(self):
            raise OwlValueError(
                f"TaskMemory.{where}: index runs from {numbers.min()} to {numbers.max()}; "
                f"expected 0 to {len(self) - 1} (has version changed since the numbers were made?)"
            )
        return numbers

    def previous(self, index: np.ndarray) -> np.ndarray:
        """The number of the row one step before each, −1 where its segment begins with it.

        >>> import torch
        >>> from owlrl.memory import TaskMemory
        >>> from owlrl.types import Transitions
        >>> x = torch.arange(4.0)
        >>> memory = TaskMemory(seed=0)
        >>> memory.add(Transitions(x, x.long(), x, x + 1, x == 1, torch.ones(4)))
        >>> memory.settle()
        >>> memory.previous(memory.rows().index)
        array([-1,  0, -1,  2])
        """
        numbers = self._numbers("previous", np.asarray(index))
        return numbers if self._reservoir is None else self._reservoir.previous(numbers)

    def thin(self, capacity: int) -> None:
        """Keep at most ``capacity`` rows from now on: what a memory of that capacity would have kept."""
        arguments = Arguments("TaskMemory.thin")
        capacity = arguments.integer("capacity", capacity, least=self.segment, most=self.capacity)
        arguments.check()
        self._thin(capacity)
        self._changed()

    def _thin(self, capacity: int) -> None:
        self.capacity = capacity
        if self._reservoir is not None and self._reservoir.thin(capacity):
            self.version += 1

    def _charge(self) -> tuple[int, int]:
        """Bytes that are accounted for, of the kept rows and of those that wait; `nbytes` is never more.

        A function of the rows alone, not of when arrays grew: a resumed run thins at the same moment.
        """
        if self._reservoir is None:
            return 0, 0
        form, incoming = self._reservoir.form, self._incoming
        waits = incoming.rows * form.row_bytes + len(incoming.last) * form.observation_bytes
        return self._reservoir.charge(settled=self._settled), waits

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit; arrays are copies."""
        reservoir = self._reservoir
        return {
            "segment": self.segment,
            "capacity": self.capacity,
            "quarantine": self._quarantine,
            "seen": self.seen,
            "version": self.version,
            "settled": self._settled,
            "truncation_known": self._truncation_known,
            "rng": self._rng.bit_generator.state,
            "scaling": None if self._scaling is None else self._scaling.state_dict(),
            "form": None if reservoir is None else reservoir.form.state_dict(),
            "reservoir": None if reservoir is None else reservoir.state_dict(),
            "incoming": self._incoming.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned; what does not fit is refused, with nothing changed.

        ``segment`` must be the same. A saved memory with a larger capacity than this one was made with is
        thinned.
        """
        with refusing("TaskMemory.load_state_dict"):
            loaded = self._loaded(state_dict)
        loaded.seed, loaded._most, loaded._changed = self.seed, self._most, self._changed
        vars(self).update(vars(loaded))
        if self.capacity > self._most:
            self._thin(self._most)
        self._changed()

    def _loaded(self, state: dict[str, Any]) -> TaskMemory:
        """A memory from ``state``; raises if it is damaged."""
        if state["segment"] != self.segment:
            raise ValueError(f"segment is {state['segment']!r} in the state; expected {self.segment}")
        made = TaskMemory(state["capacity"], segment=self.segment, quarantine=state["quarantine"])
        made._rng.bit_generator.state = dict(state["rng"])
        form = None if state["form"] is None else Form.from_state(state["form"])
        made._incoming = Incoming.from_state(self.segment, state["incoming"], form)
        counted = made._incoming.rows
        if form is not None:
            made._reservoir = Reservoir.from_state(state["reservoir"], form, self.segment, made._rng)
            if made._reservoir.capacity != made.capacity:
                raise ValueError(f"capacity is {made.capacity} and {made._reservoir.capacity}")
            counted += int(made._reservoir.seen.sum())
        elif state["reservoir"] is not None:
            raise ValueError("there are rows and no form of a row")
        if state["scaling"] is not None:
            made.scaling = Scaling.from_state(state["scaling"])
        made.seen, made.version = naturals(state["seen"], state["version"])
        if made.seen != counted:
            raise ValueError(f"seen is {made.seen}; expected {counted} by the rows there")
        made._settled, made._truncation_known = state["settled"], state["truncation_known"]
        if not isinstance(made._settled, bool) or not isinstance(made._truncation_known, bool):
            raise ValueError("settled or truncation_known is not True or False")
        return made

    def __repr__(self) -> str:
        waiting = f", {self.waiting:,} waiting" if self.waiting else ""
        return (
            f"TaskMemory({len(self):,} of at most {self.capacity:,} rows, {self.seen:,} seen{waiting}, "
            f"{readable_bytes(self.nbytes)})"
        )


def gather_rows(memories: Sequence[TaskMemory], index: Sequence[np.ndarray]) -> Transitions:
    """Rows of several tasks, one after the other, by their numbers: `TaskMemory.gather` in one go.

    >>> import numpy as np, torch
    >>> from owlrl.memory import TaskMemory
    >>> from owlrl.memory.task_memory import gather_rows
    >>> from owlrl.types import Transitions
    >>> x, memory = torch.arange(4.0), TaskMemory(seed=0)
    >>> memory.add(Transitions(x, x.long(), x, x + 1, x == 1, torch.ones(4)))
    >>> memory.settle()
    >>> gather_rows([memory, memory], [np.array([2]), np.array([0])]).reward
    tensor([2., 0.])
    """
    parts = [memory._gathered(numbers) for memory, numbers in zip(memories, index, strict=True)]
    known = all(memory._truncation_known for memory in memories)
    numbers = index[0] if len(index) == 1 else np.concatenate(index)
    return to_transitions(concatenated(*parts), known, numbers.astype(np.int64, copy=False))


def to_transitions(columns: Columns, truncation_known: bool, index: np.ndarray | None = None) -> Transitions:
    """Columns, named as the fields are, as `Transitions`, which share their memory."""
    tensors: dict[str, Any] = {name: torch.from_numpy(column) for name, column in columns.items()}
    if not truncation_known:
        del tensors["truncated"]
    return Transitions(**tensors, index=index)


def readable_bytes(count: int) -> str:
    """A readable number of bytes: 100 bytes, 5.0 MB, 1.0 GB."""
    if count < 1024:
        return f"{count} bytes"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {['KB', 'MB', 'GB', 'TB'][power - 1]}"


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
