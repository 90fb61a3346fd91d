"""`Keeper`: saves the state of long work in a file; after any interruption, the same call continues."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import owlrl
from owlrl._arguments import Arguments
from owlrl.checkpoint import load_state, save_state
from owlrl.errors import OwlError, OwlValueError

__all__ = ["SAVE_EVERY", "Keeper"]

SAVE_EVERY = 60.0  # seconds of work that a kill may cost


class Keeper:
    """Saves a state every so many seconds, and returns it to the next process.

    A file is replaced when the new one is complete, so that a kill at any moment leaves a whole one. A state
    that cannot be written (a full disk) gives a warning; the old file stays, and the work continues.

    Args:
        path: of the file; None keeps nothing.
        identity: what the state belongs to, as plain data; the file of something else is refused.
        seconds: between two states; 0 keeps every one that is offered.

    Attributes:
        saves: how many states were written.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments.keeping import Keeper
    >>> path = Path(tempfile.mkdtemp()) / "run.part"
    >>> Keeper(path, "my run", seconds=0).tick(lambda: {"step": 3})
    >>> Keeper(path, "my run").load()
    {'step': 3}
    >>> Keeper(path, "another").load()
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: .../run.part is of another run; remove it to start from scratch
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, identity: Any, *, seconds: float = SAVE_EVERY
    ) -> None:
        arguments = Arguments("Keeper")
        self.seconds = arguments.number("seconds", seconds, least=0.0)
        arguments.check()
        self.path = None if path is None else Path(path)
        self.identity = {"of": identity, "owlrl": owlrl.__version__}
        self.saves = 0
        self._spent = {"seconds": 0.0, "cpu": 0.0}  # before this process
        self._begun = time.time(), time.process_time()
        self._last = time.monotonic()

    @property
    def spent(self) -> dict[str, float]:
        """Seconds, and seconds of a busy core, that it took so far, those of earlier processes included."""
        wall, cpu = self._begun
        return {
            "seconds": self._spent["seconds"] + time.time() - wall,
            "cpu": self._spent["cpu"] + time.process_time() - cpu,
        }

    @property
    def times(self) -> dict[str, float]:
        """What a trial notes of it: when this process began, and what was spent."""
        spent = self.spent
        return {"started": self._begun[0], "seconds": spent["seconds"], "cpu_seconds": spent["cpu"]}

    def load(self) -> dict[str, Any] | None:
        """The state that was kept last; None if there is no file."""
        if self.path is None or not self.path.is_file():
            return None
        try:
            kept = load_state(self.path)
        except OwlValueError as error:
            raise OwlValueError(f"{error}; remove it to start from scratch") from error
        if not isinstance(kept, dict) or kept.get("identity") != self.identity:
            raise OwlValueError(f"{self.path} is of another run; remove it to start from scratch")
        self._spent = kept["spent"]
        state: dict[str, Any] = kept["state"]
        return state

    def tick(self, state: Callable[[], dict[str, Any] | None]) -> None:
        """A safe moment: save a state if it is time, and if there is one."""
        if self.path is not None and time.monotonic() - self._last >= self.seconds:
            try:
                found = state()
                if found is not None:
                    self.save(found)
            except OwlError as error:  # of somebody's own objects, say
                self.path = None
                warnings.warn(f"{error}; unfinished work is not kept", UserWarning, stacklevel=3)

    def save(self, state: dict[str, Any]) -> None:
        """Save a state now."""
        if self.path is None:
            return
        try:
            save_state(self.path, {"identity": self.identity, "spent": self.spent, "state": state})
            self.saves += 1
        except OSError as error:  # the work is worth more than one file
            warnings.warn(f"{error}; the work continues", UserWarning, stacklevel=3)
        self._last = time.monotonic()

    def remove(self) -> None:
        """The work is done and its result is kept: the file is no longer needed."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
