"""`Trial`: one run on disk and in memory, a file of JSON lines; `Group`: one run with several seeds."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

import owlrl
from owlrl.checkpoint import write_atomically
from owlrl.errors import OwlError, OwlTypeError, OwlValueError
from owlrl.experiments.config import Run, slug
from owlrl.experiments.metrics import (
    Interval,
    cumulative_performance,
    forgetting,
    forward_transfer,
    iqm_over_seeds,
    mean_score,
    stratified_bootstrap,
)
from owlrl.experiments.policies import ORACLE

__all__ = ["TIMES", "Group", "Trial", "environment", "group_by_run", "load_trials"]

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
FloatArray = npt.NDArray[np.float64]
BASE = ("learner", "overrides", "arguments", "num_envs")  # tasks and base learner, without the method


@dataclass(frozen=True)
class Trial:
    """One seed of one method: its settings and its results.

    Attributes:
        method: its name.
        seed: of everything.
        settings: ``tasks`` (names), ``steps`` of each, ``rounds``, ``eval_every``, ``eval_episodes``;
            ``measure`` where it is not the return, ``order`` and ``unseen`` where there are any, and
            ``run`` of a `Run`.
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
        steps = self.settings["steps"]
        if "order" in self.settings:
            return sum(steps[task] for task in self.settings["order"])
        return int(self.settings.get("rounds", 1) * sum(steps.values()))

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
        path.parent.mkdir(parents=True, exist_ok=True)
        names = ("method", "seed", "settings", "source", "about", "modes", "info")
        head = {"format": FORMAT, **{name: getattr(self, name) for name in names}, "rows": len(self.rows)}
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in (head, *self.rows))
        write_atomically(path, text.encode("utf-8"))
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
            lines = Path(path).read_text(encoding="utf-8").splitlines()
            return read_trial(*map(json.loads, lines))
        except OSError as error:
            raise OwlValueError(f"Trial.read: {path} is no result ({error.strerror})") from error
        except (ValueError, KeyError, TypeError, AttributeError, OwlError) as error:
            raise OwlValueError(
                f"Trial.read: {path} is no result ({error}); remove it to continue"
            ) from error

    def select(self, kind: str, **values: object) -> list[Row]:
        """The rows of a kind whose fields have the given values."""
        found = self._by_kind.get(kind, [])
        if isinstance(visit := values.get("visit"), int):
            found = self._by_visit.get((kind, visit), [])
        for name, value in values.items():
            found = [row for row in found if row.get(name) == value]
        return list(found)

    @cached_property
    def _by_kind(self) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row["kind"], []).append(row)
        return found

    @cached_property
    def _by_visit(self) -> dict[tuple[str, int], list[Row]]:
        found: dict[tuple[str, int], list[Row]] = {}
        for row in self.rows:
            if isinstance(row.get("visit"), int):  # in a damaged file it may be anything
                found.setdefault((row["kind"], row["visit"]), []).append(row)
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


def read_trial(head: Row, *rows: Row) -> Trial:
    """The trial of a file's lines; a built-in error says what is not as it should be."""
    if head["format"] not in (FORMAT, EARLIER):
        raise ValueError(f"its format is {head['format']!r}")
    if head.get("rows", len(rows)) != len(rows):
        raise ValueError(f"it has {len(rows)} of {head['rows']} rows")
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("it has rows that are no objects")
    if head["format"] == EARLIER:
        trial = _earlier(head, rows)
    else:
        names = ("method", "seed", "settings", "source", "about", "info")
        trial = Trial(**{name: head[name] for name in names}, modes=tuple(head["modes"]), rows=list(rows))
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


def without_times(row: Mapping[str, Any]) -> Row:
    """A row, or the info of a result, without times: everything else is equal in every repetition."""
    return {name: value for name, value in row.items() if name not in TIMES}


def make_directory(directory: str | os.PathLike[str], name: str = "output") -> None:
    """Make a directory for results, before anything is done that belongs there; ``name`` is the option's."""
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except TypeError as error:
        raise OwlTypeError(f"{name} is {directory!r}; expected the path of a directory") from error
    except (FileExistsError, NotADirectoryError) as error:
        raise OwlValueError(f"{name} is {directory}, which is a file; expected a directory") from error
    except OSError as error:
        raise OwlValueError(
            f"{name} is {directory}, where nothing can be written ({error.strerror}); expected another"
        ) from error


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


def readable_trials(directory: str | os.PathLike[str]) -> tuple[list[Trial], list[str]]:
    """The results of a directory, and why other files are none."""
    trials, unreadable = list[Trial](), list[str]()
    for path in sorted(Path(directory).glob("*.jsonl")):
        try:
            trials.append(Trial.read(path))
        except OwlError as error:
            unreadable.append(str(error))
    return trials, unreadable


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


class Estimate(NamedTuple):
    """An interquartile mean over seeds with its 95 % interval; of one seed there is none."""

    value: float
    interval: Interval | None

    @classmethod
    def of(cls, scores: FloatArray) -> Estimate:
        """Interquartile mean over seeds of the mean over tasks, from (seeds, tasks)."""
        interval = stratified_bootstrap(scores) if len(scores) > 1 else None
        return cls(float(iqm_over_seeds(scores)), interval)

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.interval.low:.2f}, {self.interval.high:.2f}]"


class Quartiles(NamedTuple):
    """Median over seeds with the quartiles, in the order in which the paper writes them."""

    median: float
    upper: float
    lower: float

    @classmethod
    def of(cls, numbers: npt.ArrayLike) -> Quartiles:
        """The quartiles of some numbers, one per seed."""
        lower, median, upper = np.quantile(np.asarray(numbers, dtype=np.float64), [0.25, 0.5, 0.75])
        return cls(float(median), float(upper), float(lower))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.upper:.2f}, {self.lower:.2f})"


@dataclass(frozen=True)
class Group:
    """Trials of one run with several seeds; unseen levels need not be evaluated in all of them.

    >>> from owlrl.experiments import Run, Trial
    >>> from owlrl.experiments.results import Group
    >>> row = {"kind": "score", "visit": 0, "mode": "oracle", "task": "a", "success": 1.0}
    >>> Group((Trial.of(Run("SC2"), [row]),)).scores("oracle")
    array([[1.]])
    """

    trials: tuple[Trial, ...]

    @property
    def run(self) -> Run:
        """The run, with the seed of the first trial."""
        run = self.trials[0].run
        assert run is not None
        return run

    @property
    def label(self) -> str:
        """The method, and the strength of its regularizer if it is not the method's own."""
        strength = "" if self.run.strength is None else f" ({self.run.strength:g})"
        return f"{self.run.method}{strength}"

    def modes(self, label: str = SEEN) -> list[str]:
        """What all trials that were evaluated on a set were evaluated with there."""
        found = [modes for t in self.trials if (modes := {row["mode"]: 0 for row in t.final(label=label)})]
        return [mode for mode in found[0] if all(mode in modes for modes in found)] if found else []

    def scores(self, mode: str, *, label: str = SEEN) -> FloatArray:
        """Share of episodes that succeeded, or mean return with continuous actions, (seeds, tasks)."""
        rows = [trial.final(mode, label=label) for trial in self.trials]
        return np.array([[row[self.run.measure] for row in of_seed] for of_seed in rows if of_seed])

    def mean_of(self, field: str, mode: str) -> float:
        """Mean over seeds and tasks of another field of the evaluations, e.g. "found"."""
        rows = [row for trial in self.trials for row in trial.final(mode)]
        found = [row[field] for row in rows if row.get(field) is not None]
        return float(np.mean(found)) if found else float("nan")

    def estimate(self, mode: str, *, label: str = SEEN) -> Estimate:
        """Interquartile mean over seeds of the mean over tasks, with its interval."""
        return Estimate.of(self.scores(mode, label=label))

    def quartiles(self, mode: str, *, label: str = SEEN) -> Quartiles:
        """Over seeds, of the mean over tasks."""
        return Quartiles.of(self.scores(mode, label=label).mean(axis=1))

    def cumulative(self, mode: str) -> Quartiles | None:
        """Of the cumulative performance; None if the mode was not followed through training."""
        courses = self._courses(mode)
        return Quartiles.of([cumulative_performance(rows) for rows in courses]) if courses else None

    def after_each_task(self, mode: str) -> Quartiles | None:
        """Of the mean over the ends of all trainings; None if the mode was not evaluated there."""
        ends = set(self.trials[0].starts()[1:])
        courses = [[row for row in rows if row[0] in ends] for rows in self._courses(mode)]
        return Quartiles.of([cumulative_performance(rows) for rows in courses]) if courses else None

    def forgetting(self) -> float | None:
        """Mean over seeds, with the task given; None if training was not followed."""
        pairs = zip(self._courses(ORACLE), self.trials, strict=False)
        lost = [forgetting(rows, trial.spans()) for rows, trial in pairs]
        return float(np.mean(lost)) if lost else None

    def forward_transfer(self, alone: dict[str, float]) -> float | None:
        """Mean over seeds; None if a task was not trained alone, or if training was not followed."""
        tasks = set(self.trials[0].spans(0))
        if not tasks or not tasks <= set(alone):
            return None
        pairs = zip(self._courses(ORACLE), self.trials, strict=False)
        gains = [forward_transfer(rows, trial.spans(0), alone) for rows, trial in pairs]
        return float(np.mean(gains)) if gains else None

    def _courses(self, mode: str) -> list[list[tuple[int, str, float]]]:
        """Scores of each trial in training; nothing if one was not evaluated at the end of each task."""
        found = [trial.course(mode) for trial in self.trials]
        ends = [set(trial.starts()[1:]) for trial in self.trials]
        asked = [end and end <= {row[0] for row in rows} for rows, end in zip(found, ends, strict=True)]
        return found if all(asked) else []

    def failures(self, mode: str) -> float | None:
        """Mean failed episodes in a row of them with kept evidence; None if that was not evaluated."""
        rows = [row for trial in self.trials for row in trial.select("in-a-row", mode=mode)]
        return float(np.mean([row["failures"] for row in rows])) if rows else None

    def minutes(self) -> float | None:
        """CPU minutes of training and evaluation, mean over seeds; None if not measured."""
        infos = [trial.info or {} for trial in self.trials]
        if not all("cpu_seconds" in info for info in infos):
            return None
        return float(np.mean([info["cpu_seconds"] for info in infos])) / 60.0


def group_by_run(trials: Iterable[Trial]) -> list[Group]:
    """Put trials together whose runs differ by the seed and unseen levels only, in the order they come.

    >>> from owlrl.experiments import Run, Trial
    >>> from owlrl.experiments.results import group_by_run
    >>> trials = [Trial.of(Run("SC2", seed=k % 2, rounds=1 + k // 2)) for k in range(4)]
    >>> [len(group.trials) for group in group_by_run(trials)]
    [2, 2]
    """
    groups: dict[str, dict[int, Trial]] = {}
    for trial in trials:
        run = trial.run
        if run is None:
            continue
        key = json.dumps(replace(run, seed=0, unseen=()).to_json(), sort_keys=True)
        other = groups.setdefault(key, {}).setdefault(run.seed, trial)
        if len(run.unseen) > len(other.run.unseen if other.run else ()):  # the same training, asked more
            groups[key][run.seed] = trial
    return [Group(tuple(found[seed] for seed in sorted(found))) for found in groups.values()]


def single_task_scores(groups: Sequence[Group], like: Run) -> dict[str, float]:
    """Mean score in training of each task that was trained alone, as otherwise in ``like``.

    By the same method if there is such a run, or else by another: with one task there is nothing to keep.
    """
    found = {}
    for group in sorted(groups, key=lambda group: group.run.method == like.method):
        run, spans = group.run, group.trials[0].spans()
        same = all(getattr(run, name) == getattr(like, name) for name in BASE)
        if len(spans) == 1 and run.rounds == 1 and same:
            (task,) = spans
            if run.frames_of(task) == like.frames_of(task):
                scores = [mean_score(t.course(ORACLE), task, t.spans()[task]) for t in group.trials]
                found[task] = float(np.mean(scores))
    return found
