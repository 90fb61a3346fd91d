"""`Trial`: one run on disk and in memory, a file of JSON lines that is complete or absent."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

import owlrl
from owlrl.checkpoint import write_atomically
from owlrl.errors import OwlError, OwlValueError
from owlrl.experiments.config import Run

__all__ = ["MEASURES", "TIMES", "Trial", "environment", "load_trials", "slug", "without_times"]

Row = dict[str, Any]
When = Literal["right after", "final"]
FORMAT, EARLIER = "owlrl-compare-1", "owlrl-result-1"
SEEN = "seen"  # the set of the tasks that are trained in
MEASURES = {"return": "mean_return", "success": "success"}  # the field of a row that has it
NUMBER = int | float
FIELDS: dict[str, dict[str, Any]] = {  # of rows by their kind: what tables and pictures rely on
    "training": {"task": str},
    "score": {"task": str, "mode": str, "visit": int},
    "curve": {"task": str, "visit": int, "step": int},
    "in-a-row": {"task": str, "mode": str, "by_episode": list, "failures": NUMBER},
    "trace": {"task": str, "mode": str, "heads": list, "arms": list, "probabilities": list, "losses": list},
}
OFTEN: dict[str, dict[str, Any]] = {  # what a row need not have
    "training": {"steps": int, "round": int},
    "score": {"found": NUMBER | None, "steps": NUMBER | None, "set": str},
    "curve": {"mode": str},
}
INFO = {"started": NUMBER, "seconds": NUMBER, "cpu_seconds": NUMBER, "versions": dict, "git": str | None}
TIMES = ("started", "seconds", "cpu_seconds", "compile_seconds")  # in rows and info: all else is repeatable


@dataclass(frozen=True)
class Trial:
    """One seed of one method: its settings and its results.

    Attributes:
        method: its name.
        seed: of everything.
        settings: ``tasks`` (names), ``steps`` of each, ``rounds``, ``eval_every``, ``eval_episodes``;
            ``measure`` where it is not the return, ``unseen`` where there is any, and ``run`` of a `Run`.
        source: the fingerprint of model, tasks and method; empty for a `Run`, whose settings say all.
        about: the method in a few words.
        modes: the ways it acts, e.g. "given" the task, with the task "unknown", or both.
        rows: of kind "training", "score", "curve", "in-a-row" and "trace" (see `run_trial`).
        info: versions, git revision, when it was started (seconds since 1970), seconds, and seconds that it
            kept a core busy.

    >>> from owlrl.experiments import Trial
    >>> Trial("owl, my way", 3, {"tasks": ["left"]}).id
    'owl-my-way-s3-1d2bce32'
    """

    method: str
    seed: int
    settings: dict[str, Any]
    source: str = ""
    about: str = ""
    modes: tuple[str, ...] = ("unknown",)
    rows: Sequence[Row] = ()
    info: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, run: Run, rows: Sequence[Row] = (), info: Mapping[str, Any] | None = None) -> Trial:
        """That of a `Run`; its modes are those that the last rows have, else what the run asks for."""
        known = [row["visit"] for row in rows if row["kind"] == "score"]
        last = [row["mode"] for row in rows if row["kind"] == "score" and row["visit"] == max(known)]
        modes = tuple(dict.fromkeys(last)) or run.acting
        return cls(run.method, run.seed, run.settings(), "", run.about, modes, rows, info)

    @cached_property
    def run(self) -> Run | None:
        """The run of ``owlrl train`` or ``owlrl reproduce``; None for other models and tasks."""
        told = self.settings.get("run")
        return None if told is None else Run.from_json({**told, "method": self.method, "seed": self.seed})

    @property
    def id(self) -> str:
        """Method, seed and eight digits over the method's name and the settings: the name of its file."""
        if self.run is not None:
            return self.run.id
        text = json.dumps([self.method, self.settings], sort_keys=True)
        return f"{slug(self.method)}-s{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def part(self) -> str:
        """The name, without its ending, of the file in which it is kept while it is under way."""
        return f"{self.id}-{self.source[:8]}" if self.source else self.id

    @property
    def steps(self) -> int:
        """Of training, in all."""
        return int(self.settings.get("rounds", 1) * sum(self.settings["steps"].values()))

    @property
    def measure(self) -> str:
        """The field of a row with its score: "mean_return" or "success"."""
        return MEASURES[self.settings.get("measure", "return")]

    def same(self, other: Trial) -> bool:
        """Whether both are of the same run, whatever the results."""
        names = ("method", "seed", "settings", "source")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def write(self, directory: str | os.PathLike[str]) -> Path:
        """Write it to its file, as a whole or not at all."""
        path = Path(directory) / f"{self.id}.jsonl"
        names = ("method", "seed", "settings", "source", "about", "modes", "info")
        head = {"format": FORMAT, **{name: getattr(self, name) for name in names}}
        write_lines(path, head, self.rows)
        return path

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Trial:
        """What `write` wrote, or a result of version 0.1; an `OwlValueError` says why it cannot be read.

        >>> Trial.read("nowhere.jsonl")
        Traceback (most recent call last):
        ...
        owlrl.errors.OwlValueError: Trial.read: nowhere.jsonl is no result (No such file or directory)
        """
        try:
            return read_trial(*read_lines(path, FORMAT, EARLIER))
        except OSError as error:
            raise OwlValueError(f"Trial.read: {path} is no result ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError, OwlError) as error:
            raise OwlValueError(
                f"Trial.read: {path} is no result ({error}); remove it to continue"
            ) from error

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

    @property
    def visits(self) -> list[str]:
        """The task of each training, in order."""
        return [row["task"] for row in self.select("training")]

    def final(self, mode: str | None = None, *, label: str = SEEN) -> list[Row]:
        """The evaluations at the end of all training, by task; ``label`` is a set that was not trained in."""
        last = max(0, len(self.visits) - 1)
        rows = self.select("score", visit=last, set=None if label == SEEN else label)
        return rows if mode is None else [row for row in rows if row["mode"] == mode]

    def scores(self, when: When, mode: str) -> list[float]:
        """A score per task, NaN where it could not act; "right after" its last training, or "final"."""
        visits, tasks = self.visits, self.settings["tasks"]
        rows = self.select("score", mode=mode, set=None)
        found = {(row["visit"], row["task"]): row[self.measure] for row in rows}
        last = {task: visit for visit, task in enumerate(visits)}
        when_of = {task: len(visits) - 1 if when == "final" else last[task] for task in tasks}
        return [found.get((when_of[task], task), float("nan")) for task in tasks]

    def course(self, mode: str) -> list[tuple[int, str, float]]:
        """Steps of all tasks so far, task and score, in the order of training, of tasks trained in so far.

        The points of the learning curve are of the first mode, unless they say of which.
        """
        starts, known, found = self.starts(), list[str](), dict[tuple[int, str], float]()
        for visit, task in enumerate(self.visits):
            known = list(dict.fromkeys([*known, task]))
            for row in self.select("curve", visit=visit):
                if row.get("mode", self.modes[0]) == mode:
                    found[starts[visit] + row["step"], row["task"]] = row[self.measure]
            for row in self.select("score", visit=visit, mode=mode, set=None):
                if row["task"] in known:
                    found[starts[visit + 1], row["task"]] = row[self.measure]
        rows = [(step, task, score) for (step, task), score in found.items()]
        return sorted(rows, key=lambda row: (row[0], [*known, row[1]].index(row[1])))

    def followed(self) -> list[str]:
        """The modes that were evaluated after each visit, and that of the learning curve."""
        watched = [row.get("mode", self.modes[0]) for row in self.select("curve")[:1]]
        first = self.select("score", visit=0, set=None) if len(self.visits) > 1 else []
        return list(dict.fromkeys([*watched, *(row["mode"] for row in first)]))

    def starts(self) -> list[int]:
        """Steps of all tasks before each visit, and after the last one."""
        rows, steps = self.select("training"), self.settings["steps"]
        each = [row["steps"] if "steps" in row else steps[row["task"]] for row in rows]
        return [sum(each[:k]) for k in range(len(each) + 1)]

    def spans(self, number: int | None = None) -> dict[str, tuple[int, int]]:
        """First and last step of each task's last training, or of that in one round."""
        starts, rounds = self.starts(), [row.get("round", 0) for row in self.select("training")]
        return {
            task: (starts[k], starts[k + 1])
            for k, task in enumerate(self.visits)
            if number is None or rounds[k] == number
        }


def read_trial(head: Row, rows: Sequence[Row]) -> Trial:
    """The trial of a file's lines; what is not as it should be is a ``TypeError`` or a ``KeyError``.

    >>> from owlrl.experiments.results import read_trial
    >>> read_trial({"format": "owlrl-compare-1"}, [])
    Traceback (most recent call last):
    ...
    KeyError: 'method'
    """
    if head["format"] == EARLIER:
        trial = _earlier(head, rows)
    else:
        names = ("method", "seed", "settings", "source", "about", "info")
        trial = Trial(**{name: head[name] for name in names}, modes=tuple(head["modes"]), rows=rows)
    _check_fields("info", trial.info or {}, INFO, optional=True)
    for number, row in enumerate(trial.rows, 1):
        kind = str(row.get("kind"))
        measured = {trial.measure: NUMBER} if kind in ("score", "curve") else {}
        _check_fields(f"row {number}", row, {"kind": str, **FIELDS.get(kind, {}), **measured})
        _check_fields(f"row {number}", row, OFTEN.get(kind, {}), optional=True)
        for name in ("arms", "probabilities", "losses") if kind == "trace" else ():
            np.asarray(row[name], dtype=np.float64)  # or a ``ValueError`` says that it is no table of numbers
    _ = trial.id  # a run that is none is refused here
    return trial


def _earlier(head: Row, rows: Sequence[Row]) -> Trial:
    """A result of version 0.1, which had one score per step and policy, and evaluations at the end."""
    run = Run.from_json(head["run"])
    info, found, ends = dict(head["info"]), list[Row](), list[int]()
    if isinstance(info.get("seconds"), dict):
        info["seconds"] = sum(info["seconds"].values())
    starts = [0]
    for row in (row for row in rows if row["kind"] == "training"):
        ends.append(row["end"])
        starts.append(row["end"])
        found.append({**row, "visit": len(ends) - 1, "steps": row["end"] - row["start"]})
    last = max(0, len(ends) - 1)
    asked = {(row["policy"], row["task"]) for row in rows if row["kind"] == "evaluation"}
    names = {"policy": "mode", "identified": "found", "steps_to_identify": "steps", "score": run.measure}
    for row in rows:
        known = {names.get(name, name): value for name, value in row.items()}
        if row["kind"] == "score":
            step = known.pop("step")
            visit = next(k for k, end in enumerate(ends) if step <= end)
            if step == ends[visit] and (visit < last or (row["policy"], row["task"]) not in asked):
                found.append({**known, "visit": visit})
            elif step < ends[visit]:
                found.append({**known, "kind": "curve", "visit": visit, "step": step - starts[visit]})
        elif row["kind"] == "evaluation":
            label = {} if known.pop("set") == SEEN else {"set": row["set"]}
            found.append({**known, "kind": "score", "visit": last, **label})
        elif row["kind"] != "training":
            found.append(known)
    return Trial.of(run, found, info)


def slug(text: str) -> str:
    """A text as a part of a file's name.

    >>> from owlrl.experiments.results import slug
    >>> slug("owl, my way")
    'owl-my-way'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]


def without_times(row: Mapping[str, Any]) -> Row:
    """A row, or the info of a result, without times: everything else is equal in every repetition.

    >>> from owlrl.experiments.results import without_times
    >>> without_times({"kind": "training", "updates": 9, "seconds": 1.5})
    {'kind': 'training', 'updates': 9}
    """
    return {name: value for name, value in row.items() if name not in TIMES}


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


def read_lines(path: str | os.PathLike[str], *forms: str) -> tuple[Row, list[Row]]:
    """Head and rows of a file that `write_lines` wrote with one of these formats.

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
    if head["format"] not in forms:
        raise ValueError(f"its format is {head['format']!r}")
    if head.get("rows", len(rows)) != len(rows):
        raise ValueError(f"it has {len(rows)} of {head['rows']} rows")
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("it has rows that are no objects")
    return head, rows


def _check_fields(where: str, row: Any, fields: Mapping[str, Any], *, optional: bool = False) -> None:
    """A ``TypeError`` names what is not of the kind that tables and pictures rely on."""
    if not isinstance(row, Mapping):
        raise TypeError(f"{where} is {row!r}")
    for name, kind in fields.items():
        if name in row and (not isinstance(row[name], kind) or isinstance(row[name], bool)):
            raise TypeError(f"{where} has {name} {row[name]!r}")
    if not optional and (missing := [name for name in fields if name not in row]):
        raise TypeError(f"{where} has no {', '.join(missing)}")


def load_trials(directory: str | os.PathLike[str]) -> Iterator[Trial]:
    """All results of a directory, by file name.

    >>> from owlrl.experiments import load_trials
    >>> list(load_trials("nowhere"))
    []
    """
    for path in sorted(Path(directory).glob("*.jsonl")):
        yield Trial.read(path)


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
