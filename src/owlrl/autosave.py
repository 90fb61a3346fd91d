"""`Autosave`: saves a wrapper while its learner trains, so that a crash costs at most a minute."""

from __future__ import annotations

import os
import shutil
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from owlrl._arguments import Arguments, kind_of

__all__ = ["Autosave"]

Callback = Callable[[], None]


class Counter(Protocol):
    """Counts in ``total``."""

    total: int


class Autosave:
    """Saves at intervals; `OwlWrapper.autosave` makes it.

    A learner that runs its own loop (a Stable-Baselines3 model, an `owlrl.learners.DQN` or `SAC`) calls it at
    moments from which training can be resumed exactly: before a rollout, after a frame. In your own loop
    only you know these moments: call `tick` at the end of each iteration, when the row is stored and the
    update is made. Without ticks it saves only at the end of the block.

    The newest state is at ``path``, e.g. ``state.safetensors``, those before it at ``state.1.safetensors``,
    ``state.2.safetensors`` and so on. A file is replaced only when the new one is complete, so there is
    always a complete one. A save that fails (a full disk) gives a warning, and training continues.
    If an exception ends the block, nothing is saved: the last file can be resumed from exactly.

    Args:
        save: writes a file, e.g. ``owl.save``.
        at_border: calls back at safe moments, e.g. ``learner.at_border``; returns None if it cannot.
        counter: its ``total`` is what ``steps`` counts: the wrapper's guard, for optimizer steps.
        path: the file to write.
        seconds: save when so many have passed; None for no such limit.
        steps: save when so many optimizer steps were made, if that is sooner; None for no such limit.
        keep: how many files to keep.

    Attributes:
        saves: how many files were written.
        failures: how many saves failed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np, torch
    >>> from owlrl import MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay
    >>> q = MultiHeadQ(torch.nn.Linear(2, 8), 8, 3)
    >>> replay = TaskScopedReplay(100, observation_shape=(2,), observation_dtype=np.float32)
    >>> owl = OwlWrapper(QLearner(q, None, torch.optim.Adam(q.parameters()), replay=replay))
    >>> path = Path(tempfile.mkdtemp()) / "state.safetensors"
    >>> with owl.autosave(path, seconds=60, keep=2) as autosave, owl.task("left"):
    ...     for step in range(50):  # your loop
    ...         replay.add(np.ones(2, np.float32), 1, 1.0, np.ones(2, np.float32), True, False)
    ...         autosave.tick()
    >>> autosave.saves, path.exists()  # one at the end of the block: a minute had not passed
    (1, True)
    """

    def __init__(
        self,
        save: Callable[[Path], None],
        at_border: Callable[[Callback], Callback | None],
        counter: Counter,
        path: str | os.PathLike[str],
        *,
        seconds: float | None = 60.0,
        steps: int | None = None,
        keep: int = 1,
    ) -> None:
        arguments = Arguments("OwlWrapper.autosave")
        self.seconds: float | None = arguments.number("seconds", seconds, above=0.0, none=True)
        self.steps: int | None = arguments.integer("steps", steps, none=True)
        self.keep: int = arguments.integer("keep", keep)
        if seconds is None and steps is None:
            arguments.problem("seconds and steps are None; expected a limit, e.g. seconds=60")
        if not isinstance(path, str | os.PathLike):
            arguments.problem(f"path is {kind_of(path)}; expected a str or a Path")
        arguments.check()
        self.path = Path(path)
        self.saves = 0
        self.failures = 0
        self._save, self._counter = save, counter
        self._rest()
        self._remove: Callback | None = at_border(self.tick)
        self._stopped = False

    def tick(self) -> None:
        """A safe moment: save if it is time."""
        late = self.seconds is not None and time.monotonic() - self._at >= self.seconds
        many = self.steps is not None and self._counter.total - self._made >= self.steps
        if not self._stopped and (late or many):
            self.now()

    def now(self) -> bool:
        """Save now; False, with a warning, if it failed."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            previous = self._second_name() if self.keep > 1 else None
            self._save(self.path)
            self._shift(previous)
        except Exception as error:  # training is worth more than one file
            self.failures += 1
            warnings.warn(
                f"OwlWrapper.autosave: {self.path} could not be written ({type(error).__name__}: {error}); "
                "the old file stays, and training continues",
                UserWarning,
                stacklevel=3,
            )
            return False
        finally:
            with suppress(OSError):
                self._aside.unlink(missing_ok=True)
            self._rest()
        self.saves += 1
        return True

    def stop(self) -> None:
        """Save once more, then stop."""
        if self._stopped:
            return
        self.cancel()
        self.now()

    def cancel(self) -> None:
        """Stop saving."""
        self._stopped = True
        if self._remove is not None:
            self._remove()

    def __enter__(self) -> Autosave:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        # what an exception left in the middle of something must not replace what can be gone on from
        if kind is None:
            self.stop()
        else:
            self.cancel()

    def __repr__(self) -> str:
        every = [f"{self.seconds:g} s"] * (self.seconds is not None)
        every += [f"{self.steps} steps"] * (self.steps is not None)
        return (
            f"Autosave({str(self.path)!r}, every {' or '.join(every)}, keep={self.keep}, saves={self.saves})"
        )

    def _rest(self) -> None:
        self._at, self._made = time.monotonic(), self._counter.total

    def _older(self, age: int) -> Path:
        return self.path.with_name(f"{self.path.stem}.{age}{self.path.suffix}")

    @property
    def _aside(self) -> Path:
        return self.path.with_name(f".{self.path.name}.previous")

    def _second_name(self) -> Path | None:
        """A second name for the file that is there, since the first will be the new one's."""
        if not self.path.exists():
            return None
        self._aside.unlink(missing_ok=True)
        there: Any = os.path.realpath(self.path)
        try:
            os.link(there, self._aside)
        except OSError:  # not on every file system
            shutil.copy2(there, self._aside)
        return self._aside

    def _shift(self, previous: Path | None) -> None:
        """Rename every older file by one."""
        if previous is None:
            return
        for age in range(self.keep - 1, 1, -1):
            if self._older(age - 1).exists():
                os.replace(self._older(age - 1), self._older(age))
        os.replace(previous, self._older(1))
