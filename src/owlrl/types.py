"""The plain types that the parts exchange."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.compiler import is_compiling

from owlrl.errors import OwlTypeError, OwlValueError

__all__ = ["HeadPointer", "Transitions", "check_head", "check_heads"]

Answer = tuple[object, Tensor]  # who answered, and what


@dataclass(frozen=True, slots=True)
class Transitions:
    """A batch of transitions, as tensors; row ``b`` is one step (or one n-step return).

    The target of row ``b`` is ``reward + discount * (1 - terminated) * value(next_observation)``
    (see `owlrl.td.td_target`). Truncation never ends the return: a truncated row still
    bootstraps from ``next_observation``.

    Attributes:
        observation: ``(B, *observation shape)``, in the environment's dtype.
        action: (B,) int64 for discrete actions, ``(B, *action shape)`` float32 otherwise.
        reward: (B,) float32; for n-step returns the discounted sum.
        next_observation: ``(B, *observation shape)``.
        terminated: (B,) bool; true only where the environment itself ended the episode.
        discount: (B,) float32, γ to the number of steps summed in ``reward``.
        weight: (B,) float32 importance weights, or None for a uniform draw.
        index: (B,) int64 rows of the replay, for ``update_priorities``; None elsewhere.
        task: the task the rows came from, where the source knows it.
        truncated: (B,) bool; true where the episode was cut off after this row; None where the source
            does not know.
        env: (B,) int64, which of several environments side by side the row is of; None where there is one.

    >>> import torch
    >>> from owlrl.types import Transitions
    >>> t = Transitions(torch.zeros(2, 3), torch.tensor([0, 1]), torch.ones(2),
    ...                 torch.zeros(2, 3), torch.tensor([True, False]), torch.full((2,), 0.99))
    >>> len(t), len(t[:1])
    (2, 1)
    """

    observation: Tensor
    action: Tensor
    reward: Tensor
    next_observation: Tensor
    terminated: Tensor
    discount: Tensor
    weight: Tensor | None = None
    index: np.ndarray | None = None
    task: str | None = None
    truncated: Tensor | None = None
    env: Tensor | None = None

    def __len__(self) -> int:
        return len(self.reward)

    def __getitem__(self, rows: slice | Tensor) -> Transitions:
        index = None if self.index is None else self.index[np.arange(len(self))[rows]]
        chosen: dict[str, Any] = {name: tensor[rows] for name, tensor in self._tensors().items()}
        return replace(self, **chosen, index=index)

    def to(self, device: torch.device | str) -> Transitions:
        """The same transitions with every tensor on ``device``; from the CPU in one transfer."""
        if self.reward.device == device == self.observation.device:
            return self  # already
        own = self._tensors()
        there: dict[str, Any] = dict(zip(own, moved([*own.values()], device), strict=True))
        return replace(self, **there)

    def _tensors(self) -> dict[str, Tensor]:
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, Tensor)}


def as_array(value: object) -> np.ndarray:
    """``value`` as an array: tensors are detached and brought to the CPU first.

    >>> import torch
    >>> from owlrl.types import as_array
    >>> as_array(torch.ones(2, requires_grad=True))
    array([1., 1.], dtype=float32)
    """
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def moved(tensors: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Tensors without gradient on ``device``; those of the CPU go to another device in one transfer.

    >>> import torch
    >>> from owlrl.types import moved
    >>> [tensor.device.type for tensor in moved([torch.zeros(2, 3), torch.ones(5) > 0], "meta")]
    ['meta', 'meta']
    """
    if torch.device(device).type == "cpu" or any(tensor.device.type != "cpu" for tensor in tensors):
        return [tensor.to(device) for tensor in tensors]
    sizes = [-(-tensor.nbytes // 8) * 8 for tensor in tensors]  # each begins at a multiple of 8 bytes
    packed = torch.empty(sum(sizes), dtype=torch.uint8)
    for part, tensor in zip(torch.split(packed, sizes), tensors, strict=True):
        part[: tensor.nbytes] = tensor.detach().contiguous().view(-1).view(torch.uint8)
    parts = zip(torch.split(packed.to(device), sizes), tensors, strict=True)
    return [part[: t.nbytes].view(t.dtype).view(t.shape) for part, t in parts]


class _Local(threading.local):
    """What a `HeadPointer` has for one thread; defaults of the class, since a miss takes long."""

    index: int | str | Tensor | None = None  # inside the blocks of `HeadPointer.at`
    fixed: dict[Any, Any] | None = None  # inside those of `HeadPointer.fixed`
    answers: deque[Answer] | None = None  # of `HeadPointer.listen`


class HeadPointer:
    """Which head is active: one object shared by a network, its target and its copies.

    ``index`` is an int in training, and the same for all threads. `at` changes it for the length of a
    ``with`` block and for the calling thread only, so several threads may act with different heads. A deep
    copy of a module keeps the *same* pointer, so a deep-copied target network follows its online network.

    >>> import copy
    >>> from owlrl.types import HeadPointer
    >>> pointer = HeadPointer()
    >>> copy.deepcopy(pointer) is pointer
    True
    >>> with pointer.at(2):
    ...     pointer.index
    2
    >>> pointer.index
    0
    """

    ALL = "all"

    __slots__ = ("_active", "_local", "alone", "owner")

    def __init__(self) -> None:
        self._active: int = 0
        self._local = _Local()
        self.alone = False  # whether idle heads are left out of ``parameters()``: inside a task
        self.owner: object = None  # the wrapper that sets it; a second one is refused

    @property
    def index(self) -> int | str | Tensor:
        """The active head; inside the library also "all" or a head per row."""
        index = self._local.index
        return self._active if index is None else index

    @index.setter
    def index(self, head: int) -> None:
        self._active = head

    @property
    def head(self) -> int:
        """The active head as an int; only inside the library is it ever anything else."""
        index = self.index
        if not isinstance(index, int):
            raise OwlTypeError("HeadPointer.head: several heads are active inside this call")
        return index

    @contextmanager
    def at(self, index: int | str | Tensor) -> Iterator[None]:
        """Point this thread at ``index`` inside the block; restored afterwards in any case."""
        before, self._local.index = self._local.index, index
        try:
            yield
        finally:
            self._local.index = before

    @property
    def pointed(self) -> bool:
        """Whether this thread is inside a block of `at`."""
        return self._local.index is not None

    @property
    def active(self) -> int:
        """The head that is trained, whatever a thread is pointed at."""
        return self._active

    def listen(self, answers: deque[Answer] | None) -> None:
        """Let what this thread's calls answer inside a task go to ``answers``; None ends it."""
        self._local.answers = answers

    def note(self, source: object, output: Tensor, *, missing: bool = False) -> None:
        """Somebody answered: keep a reference without its graph where `listen` was called.

        With ``missing`` there may be −∞, the value of an action that a head lacks: it is kept as 0.
        """
        if is_compiling():  # asked first: an old compiler cannot even look at what is kept
            return
        answers = self._local.answers
        if answers is not None and self.alone:
            output = output.detach() if output.requires_grad else output
            answers.append((source, without_missing(output) if missing else output))

    @property
    def fixed_weights(self) -> dict[Any, Any] | None:
        """The argument of the enclosing block of `fixed`."""
        return self._local.fixed

    @contextmanager
    def fixed(self, weights: dict[Any, Any] | None) -> Iterator[None]:
        """Heads get no gradient from what this thread computes per row inside the block, unless it is None.

        The rows' weights are put into ``weights``, and taken from it if it is given again with the same rows.
        """
        self._local.fixed = weights
        try:
            yield
        finally:
            self._local.fixed = None

    def __copy__(self) -> HeadPointer:
        return self

    def __deepcopy__(self, memo: dict[int, object]) -> HeadPointer:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _pointer_at, (self._active,)

    def __repr__(self) -> str:
        return f"HeadPointer({self.index!r})"


def without_missing(output: Tensor) -> Tensor:
    """Q-values with 0 instead of −∞, the value of an action that a head lacks.

    >>> import torch
    >>> from owlrl.types import without_missing
    >>> without_missing(torch.tensor([1.0, -torch.inf, torch.inf]))
    tensor([1., 0., inf])
    """
    return output.nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=0.0)


def _pointer_at(head: int) -> HeadPointer:
    """The pointer of an unpickled network: a separate one."""
    pointer = HeadPointer()
    pointer.index = head
    return pointer


def check_head(where: str, head: object, num_heads: int) -> int:
    """Return ``head`` as an int, or raise an error with what was expected.

    >>> from owlrl.types import check_head
    >>> check_head("q", 1, 2)
    1
    >>> check_head("q", -1, 2)
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: q: head is -1; expected 0 to 1 (2 heads; add_head() makes another)
    """
    if isinstance(head, bool) or not isinstance(head, int | np.integer):
        raise OwlTypeError(
            f"{where}: head is {head!r} ({type(head).__name__}); expected an int from 0 to {num_heads - 1}"
        )
    if not 0 <= head < num_heads:
        raise OwlValueError(
            f"{where}: head is {head}; expected 0 to {num_heads - 1} "
            f"({num_heads} head{'s' * (num_heads != 1)}; add_head() makes another)"
        )
    return int(head)


def check_heads(where: str, heads: object, num_heads: int, rows: int) -> None:
    """Raise unless ``heads`` is a tensor (rows,) of heads that there are.

    >>> import torch
    >>> from owlrl.types import check_heads
    >>> check_heads("q", torch.tensor([1, 0]), 2, 2)
    >>> check_heads("q", torch.tensor([1, 2]), 2, 2)
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: q: heads has 2; expected 0 to 1 (2 heads)
    """
    if not isinstance(heads, Tensor) or heads.dtype not in (torch.int64, torch.int32):
        got = heads.dtype if isinstance(heads, Tensor) else type(heads).__name__
        raise OwlTypeError(f"{where}: heads is {got}; expected an int64 tensor, one head per row")
    if heads.shape != (rows,):
        raise OwlValueError(f"{where}: heads has shape {tuple(heads.shape)}; expected ({rows},), one per row")
    if rows:
        low, high = (int(x) for x in heads.aminmax())
        if low < 0 or high >= num_heads:
            wrong = low if low < 0 else high
            raise OwlValueError(
                f"{where}: heads has {wrong}; expected 0 to {num_heads - 1} ({num_heads} heads)"
            )
