"""Results on disk: one JSON-lines file per run, there as a whole or not at all."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import owlrl
from owlrl.checkpoint import write_atomically
from owlrl.errors import OwlError, OwlValueError
from owlrl.experiments.config import Run

__all__ = [
    "TIMES",
    "Result",
    "environment",
    "is_done",
    "load_results",
    "read_result",
    "result_path",
    "without_times",
    "write_result",
]

Row = dict[str, Any]
FORMAT = "owlrl-result-1"
NUMBER = int | float
OFTEN = ("identified", "steps_to_identify")  # of tasks that were learned
FIELDS: dict[str, dict[str, Any]] = {  # of rows by their kind
    "training": {"task": str, "start": int, "end": int},
    "score": {"step": int, "task": str, "policy": str, "score": NUMBER, "training": str},
    "evaluation": {"policy": str, "set": str, "task": str, **dict.fromkeys(OFTEN, NUMBER)},
    "in-a-row": {"policy": str, "task": str, "by_episode": list, "failures": NUMBER},
    "trace": {"policy": str, "task": str, "heads": list, "arms": list, "probabilities": list, "losses": list},
}
INFO = {"started": NUMBER, "seconds": dict, "cpu_seconds": NUMBER, "versions": dict, "git": str | None}
TIMES = ("started", "seconds", "learn_seconds", "cpu_seconds")  # in rows and info: all else is repeatable


@dataclass(frozen=True)
class Result:
    """What one run gave.

    Attributes:
        run: what was run.
        rows: plain dicts, each with a "kind": "training", "score", "evaluation", "in-a-row", "trace".
        info: versions, git revision, when it was started (seconds since 1970), how long it took, and how long
            it kept a core busy.

    >>> from owlrl.experiments import Result, Run
    >>> result = Result(Run("SC2"), [{"kind": "score", "task": "a", "score": 1.0}], {})
    >>> result.select("score", task="a")
    [{'kind': 'score', 'task': 'a', 'score': 1.0}]
    """

    run: Run
    rows: Sequence[Row]
    info: dict[str, Any]

    def select(self, kind: str, **values: object) -> list[Row]:
        """The rows of a kind whose fields have the given values."""
        found = self._by_kind.get(kind, [])
        for name, value in values.items():
            found = [row for row in found if row.get(name) == value]
        return list(found)

    @cached_property
    def _by_kind(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row["kind"], []).append(row)
        return found


def without_times(row: Mapping[str, Any]) -> Row:
    """A row, or the info of a result, without what the clock says: all else is the same in every repetition.

    >>> from owlrl.experiments.results import without_times
    >>> without_times({"kind": "training", "updates": 9, "seconds": 1.5})
    {'kind': 'training', 'updates': 9}
    """
    return {name: value for name, value in row.items() if name not in TIMES}


def result_path(directory: str | os.PathLike[str], run: Run) -> Path:
    """Where the result of a run belongs.

    >>> from owlrl.experiments import Run, result_path
    >>> result_path("runs", Run("SC2")).name.startswith("sc2-owl-memory-s0-")
    True
    """
    return Path(directory) / f"{run.id}.jsonl"


def part_path(directory: str | os.PathLike[str], run: Run) -> Path:
    """Where a run is kept while it is under way.

    >>> from owlrl.experiments import Run
    >>> from owlrl.experiments.results import part_path
    >>> part_path("runs", Run("SC2")).suffix
    '.part'
    """
    return Path(directory) / f"{run.id}.part"


def make_directory(directory: str | os.PathLike[str]) -> None:
    """Make a directory for results, before anything is done that belongs there.

    >>> from owlrl.experiments.results import make_directory
    >>> make_directory(__file__)
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: output is ...results.py, which is a file; expected a directory
    """
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (FileExistsError, NotADirectoryError) as error:
        raise OwlValueError(f"output is {directory}, which is a file; expected a directory") from error
    except OSError as error:
        raise OwlValueError(
            f"output is {directory}, where nothing can be written ({error.strerror}); expected another"
        ) from error


def write_result(directory: str | os.PathLike[str], result: Result) -> Path:
    """Write a result beside its final place, flush it to disk, then move it there.

    The first line is ``{"format": …, "run": …, "info": …, "rows": …}``, every further line one of the rows.

    >>> import tempfile
    >>> from owlrl.experiments import Result, Run, read_result, write_result
    >>> path = write_result(tempfile.mkdtemp(), Result(Run("SC2"), [{"kind": "mine"}], {"git": None}))
    >>> read_result(path).rows
    [{'kind': 'mine'}]
    """
    path = result_path(directory, result.run)
    write_lines(path, {"format": FORMAT, "run": result.run.to_json(), "info": result.info}, result.rows)
    return path


def write_lines(path: Path, head: Row, rows: Sequence[Row]) -> None:
    """Write a file of JSON lines as a whole: the head, which then says how many rows follow, and the rows.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments.results import read_lines, write_lines
    >>> path = Path(tempfile.mkdtemp()) / "file.jsonl"
    >>> write_lines(path, {"format": "mine"}, [{"kind": "score"}])
    >>> read_lines(path, "mine")[1]
    [{'kind': 'score'}]
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ({**head, "rows": len(rows)}, *rows)
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    write_atomically(path, text.encode("utf-8"))


def read_lines(path: str | os.PathLike[str], form: str) -> tuple[Row, list[Row]]:
    """Head and rows of a file that `write_lines` wrote with that format.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments.results import read_lines
    >>> path = Path(tempfile.mkdtemp()) / "file.jsonl"
    >>> _ = path.write_text('{"format": "other"}')
    >>> read_lines(path, "mine")
    Traceback (most recent call last):
    ...
    ValueError: its format is 'other'
    """
    head, *rows = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]
    if head["format"] != form:
        raise ValueError(f"its format is {head['format']!r}")
    if head.get("rows", len(rows)) != len(rows):
        raise ValueError(f"it has {len(rows)} of {head['rows']} rows")
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("it has rows that are no objects")
    return head, rows


def read_result(path: str | os.PathLike[str]) -> Result:
    """Read what `write_result` wrote.

    >>> from owlrl.experiments import read_result
    >>> read_result("nowhere.jsonl")
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: read_result: nowhere.jsonl is no result (No such file or directory)
    """
    try:
        head, rows = read_lines(path, FORMAT)
        _check_fields("info", head["info"], INFO)
        _check_fields("seconds", head["info"].get("seconds", {}), {"train": NUMBER, "evaluate": NUMBER})
        run = Run.from_json(head["run"])
        for number, row in enumerate(rows, 1):
            fields = {"kind": str, **FIELDS.get(str(row.get("kind")), {})}
            if row.get("kind") == "evaluation":
                fields[run.measure] = NUMBER
            _check_fields(f"row {number}", row, fields)
        return Result(run, rows, head["info"])
    except OSError as error:
        raise OwlValueError(f"read_result: {path} is no result ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, OwlError) as error:
        raise OwlValueError(f"read_result: {path} is no result ({error}); remove it to go on") from error


def _check_fields(where: str, row: Any, fields: Mapping[str, Any]) -> None:
    """A ``TypeError`` names what is not of the kind that tables and pictures rely on."""
    if not isinstance(row, dict):
        raise TypeError(f"{where} is {row!r}")
    for name, kind in fields.items():
        if name in row and (not isinstance(row[name], kind) or isinstance(row[name], bool)):
            raise TypeError(f"{where} has {name} {row[name]!r}")
    if row and (missing := [name for name in fields if name not in row and name not in (*OFTEN, *INFO)]):
        raise TypeError(f"{where} has no {', '.join(missing)}")


def is_done(directory: str | os.PathLike[str], run: Run) -> bool:
    """Whether a directory has the result of exactly this run.

    >>> from owlrl.experiments import Run, is_done
    >>> is_done("nowhere", Run("SC2"))
    False
    """
    path = result_path(directory, run)
    return path.is_file() and read_result(path).run == run


def load_results(directory: str | os.PathLike[str]) -> Iterator[Result]:
    """All results of a directory, by file name.

    >>> from owlrl.experiments import load_results
    >>> list(load_results("nowhere"))
    []
    """
    for path in sorted(Path(directory).glob("*.jsonl")):
        yield read_result(path)


@lru_cache(maxsize=1)
def environment() -> dict[str, Any]:
    """Versions of what takes part, and the git revision of owlrl's source if it is in a repository.

    >>> from owlrl.experiments import environment
    >>> sorted(environment()["versions"])
    ['gymnasium', 'minigrid', 'numpy', 'owlrl', 'python', 'torch']
    """
    versions = {
        name: importlib.metadata.version(name) for name in ("gymnasium", "minigrid", "numpy", "torch")
    }
    versions |= {"owlrl": owlrl.__version__, "python": platform.python_version()}
    return {"versions": versions, "git": _revision(), "machine": platform.machine(), "cpus": os.cpu_count()}


def _revision() -> str | None:
    """Commit of the source, with "-dirty" if it was changed since; None outside a repository."""
    package = Path(owlrl.__file__).resolve().parent
    try:
        if Path(_git("rev-parse", "--show-toplevel")) != package.parents[1]:
            return None  # installed inside of somebody else's repository
        return _git("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*command: str) -> str:
    settings: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 10, "check": True}
    return str(subprocess.run(["git", *command], cwd=Path(__file__).parent, **settings).stdout).strip()
