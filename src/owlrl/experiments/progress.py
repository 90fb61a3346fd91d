"""A study while it runs: what is running, how long it will take, and its numbers for TensorBoard."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from owlrl.errors import OwlError
from owlrl.experiments._optional import optional

__all__ = ["TensorBoard", "time_text"]


class Post:
    """Writes the progress of a run to a small file (None: to none), once a second; a `Clock` reads it."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = None if path is None else Path(path)
        self._begun, self._first, self._last = time.monotonic(), -1, 0.0

    def __call__(self, text: str, steps: int) -> None:
        """Report the steps done so far and what is being done."""
        now = time.monotonic()
        if self._first < 0:  # of a run that goes on, some were made before
            self._begun, self._first = now, steps
        if self._path is None or now - self._last < 1.0:
            return
        self._last = now
        told = {"text": text, "steps": steps, "made": steps - self._first, "seconds": now - self._begun}
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(told), encoding="utf-8")
        beside.replace(self._path)

    @staticmethod
    def read(path: Path) -> dict[str, Any]:
        """The last report; nothing if there is none."""
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found


class Clock:
    """Shows what is running and how long it will take, from the reports of the runs.

    Args:
        runs: method and steps of each run that takes time, by the name of its file in ``directory``.
        jobs: how many at once.
        directory: of the runs' reports.
        bar: shows it in a terminal.
        say: called with a line when the first estimate is there, and then ever more rarely.
        first: seconds until the first estimate.
        where: the caller, for messages.
    """

    def __init__(
        self,
        runs: dict[str, tuple[str, int]],
        jobs: int,
        directory: str | os.PathLike[str],
        bar: Any,
        say: Callable[[str], None],
        *,
        first: float = 10.0,
        where: str = "compare",
    ) -> None:
        self._left, self._jobs, self._total, self._where = dict(runs), jobs, len(runs), where
        self._directory, self._bar, self._say = Path(directory), bar, say
        self._began, self._next = time.monotonic(), first
        self._rates: dict[str, list[float]] = {}  # seconds per step of finished runs, by method
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Clock:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def done(self, name: str, seconds: float | None) -> None:
        """A run has ended; how long it took, if it is known."""
        ended, first = self._left.pop(name, None), not self._rates
        if ended is not None and seconds is not None:
            self._rates.setdefault(ended[0], []).append(seconds / ended[1])
        self.show(now=first and bool(self._rates))

    def show(self, *, now: bool = False) -> None:
        """Show what runs and how long it will take."""
        posts = {name: told for name in list(self._left) if (told := Post.read(self._directory / name))}
        seconds = self.seconds_left(posts)
        about = "" if seconds is None else f"about {time_text(seconds)} to go"
        running = "; ".join(told["text"] for told in posts.values())
        self._bar.set_description_str(" | ".join(text for text in (running, about) if text))
        passed = time.monotonic() - self._began
        if about and self._left and (now or passed >= self._next):
            self._next = 2 * max(passed, self._next)
            ended = self._total - len(self._left)
            self._say(f"{self._where}: {ended} of {self._total} runs done, {about}")

    def seconds_left(self, posts: dict[str, dict[str, Any]]) -> float | None:
        """By the speed of finished and of running runs; None as long as nothing has shown it."""
        rates = {method: list(found) for method, found in self._rates.items()}
        for name, told in posts.items():
            if told["made"] > 0 and told["seconds"] > 0 and name in self._left:
                rates.setdefault(self._left[name][0], []).append(told["seconds"] / told["made"])
        if not rates:
            return None
        every = _mean([_mean(found) for found in rates.values()])
        each = [
            (steps - posts.get(name, {}).get("steps", 0)) * _mean(rates.get(method, [every]))
            for name, (method, steps) in list(self._left.items())
        ]
        return max([sum(each) / self._jobs, *each], default=0.0)

    def _watch(self) -> None:
        while not self._over.wait(2.0):
            self.show()


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def time_text(seconds: float) -> str:
    """A readable time.

    >>> from owlrl.experiments.progress import time_text
    >>> time_text(40.0), time_text(600.0), time_text(9000.0)
    ('40 s', '10 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class StepBar:
    """A bar over the steps of one run, which says what is being done; for `run_trial`."""

    def __init__(self, total: int, progress: bool) -> None:
        self._bar = progress_bar(total, progress, unit="step")
        self._seen = 0

    def __call__(self, text: str, steps: int) -> None:
        """Show the steps done so far and what is being done."""
        self._bar.set_description_str(text, refresh=False)
        self._bar.update(steps - self._seen)
        self._seen = steps


class _NoBar:
    def __enter__(self) -> _NoBar:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, number: int) -> None:
        """Nothing to show."""

    def set_description_str(self, text: str, refresh: bool = True) -> None:
        """Nothing to show."""


def progress_bar(total: int, progress: bool, *, unit: str = "run") -> Any:
    """A bar of so many runs or steps; without tqdm, outside of a terminal or unwanted it shows nothing."""
    if not progress:
        return _NoBar()
    try:
        tqdm = optional("tqdm", extra="cli", what="a progress bar")
    except OwlError:
        return _NoBar()  # a bar is not worth an error
    return tqdm.tqdm(total=total, unit=unit, unit_scale=unit != "run", disable=None)


class TensorBoard:
    """Writes numbers as scalars; for ``OwlWrapper(watch=...)``, and what ``compare(tensorboard=...)`` uses.

    Args:
        directory: of the run; a run per directory, as TensorBoard has it.
        after: steps from which on an earlier process may have written: what is there counts no more.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments import TensorBoard
    >>> directory = tempfile.mkdtemp()
    >>> with TensorBoard(directory) as board:
    ...     board(100, {"memory/rows": 64.0})
    >>> len(list(Path(directory).glob("events.out.*")))
    1
    """

    def __init__(self, directory: str | os.PathLike[str], *, after: int | None = None) -> None:
        module = optional("torch.utils.tensorboard", extra="tensorboard", what="TensorBoard")
        self.directory = Path(directory)
        self._writer = module.SummaryWriter(str(self.directory), purge_step=after)

    def __call__(self, step: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of one step."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is not written yet."""
        self._writer.close()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
