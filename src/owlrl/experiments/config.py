"""`Run`: everything that determines one training and its evaluation."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from owlrl.envs import TaskSpec
from owlrl.errors import OwlError, raise_problems
from owlrl.experiments.policies import LEAST_TRIED, ORACLE, default_policies, parse_policy
from owlrl.experiments.presets import PRESETS, Preset, with_overrides
from owlrl.experiments.recipes import METHODS, Recipe, recipe_of
from owlrl.experiments.tasks import canonical_name, is_control, parse_unseen, resolve_tasks
from owlrl.learners import DQNConfig, SACConfig

__all__ = ["Run"]

Json = Any  # what json.loads can give
LEAST = {
    "seed": 0,
    "frames": 1,
    "rounds": 1,
    "num_envs": 1,
    "episodes": 1,
    "consecutive": 0,
    "eval_every": 1,
}


@dataclass(frozen=True)
class Run:
    """One seed of one method on one sequence of tasks. All fields are plain data; `id` names its file.

    Attributes:
        tasks: a named set such as ``"SC3"`` or ``"Crossroads-4"``, or ``"environment id:3,7,14"``; angles for
            ``"owlrl/Pendulum-v0:90,-90"``, which SAC learns.
        arguments: for every environment, e.g. ``{"breadcrumbs": True}``.
        method: a key of ``METHODS``, or ``"package.module:name"`` of a `Recipe`.
        seed: of everything.
        frames: of each task in each round.
        frames_by_task: for tasks that get another number of frames.
        rounds: how often the sequence of tasks is repeated.
        num_envs: copies of a task that are stepped at once.
        learner: a key of ``PRESETS``.
        overrides: settings of the DQN or SAC that differ from the preset's.
        strength: of the regularizer; None for the method's own.
        policies: those of the evaluation; empty for all that fit the method.
        episodes: per task and policy in the evaluation.
        consecutive: episodes in a row with kept evidence, evaluated as well if more than 0.
        unseen: levels for generalisation, e.g. ``("S9N1:100",)``.
        eval_every: frames between two points of the training curve.
        compile: whether the learner's update is compiled.

    >>> from owlrl.experiments import Run
    >>> run = Run("SC3", method="owl", seed=1)
    >>> run.id
    'sc3-owl-s1-bed13339'
    >>> Run.from_json(run.to_json()) == run
    True
    """

    tasks: str = "SC3"
    arguments: dict[str, Json] = field(default_factory=dict)
    method: str = "owl-memory"
    seed: int = 0
    frames: int = 190_000
    frames_by_task: dict[str, int] = field(default_factory=dict)
    rounds: int = 1
    num_envs: int = 32
    learner: str = "fast"
    overrides: dict[str, Json] = field(default_factory=dict)
    strength: float | None = None
    policies: tuple[str, ...] = ()
    episodes: int = 16
    consecutive: int = 0
    unseen: tuple[str, ...] = ()
    eval_every: int = 10_000
    compile: bool = False

    def __post_init__(self) -> None:
        for name in ("policies", "unseen"):  # JSON knows lists only
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        raise_problems("Run", self._kind_problems() or self._problems())
        # One name for one set, so that the same run has the same id.
        object.__setattr__(self, "tasks", canonical_name(self.tasks))

    @property
    def id(self) -> str:
        """A short name: tasks, method, seed, and eight digits over all that is not a default."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.tasks.lower()).strip("-")[:40]
        # Defaults are left out, so that a field added later changes no name.
        text = json.dumps(self._changed(), sort_keys=True)
        method = re.sub(r"[^\w.+-]+", "-", self.method)
        return f"{slug}-{method}-s{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    @property
    def specs(self) -> dict[str, TaskSpec]:
        """The tasks by name, in order."""
        return resolve_tasks(self.tasks, self.arguments)

    @property
    def control(self) -> bool:
        """Whether actions are continuous: then SAC learns, and the score is the return."""
        return is_control(self.tasks)

    @property
    def measure(self) -> str:
        """The field of an evaluation that says how well it went."""
        return "mean_return" if self.control else "success"

    @property
    def recipe(self) -> Recipe:
        """The method itself."""
        return recipe_of(self.method)

    @property
    def about(self) -> str:
        """The method in a few words; empty for a method that is not known here."""
        return METHODS[self.method].about if self.method in METHODS else ""

    @property
    def preset(self) -> Preset:
        """The named settings of the base learner."""
        return PRESETS[self.learner]

    @property
    def config(self) -> DQNConfig:
        """The settings of the DQN, overrides included."""
        return with_overrides(self.preset.config, self.overrides)

    @property
    def sac(self) -> SACConfig:
        """The settings of the SAC, overrides included."""
        return with_overrides(self.preset.sac, self.overrides)

    @property
    def acting(self) -> tuple[str, ...]:
        """The policies that are evaluated."""
        return self.policies or default_policies(self.recipe, control=self.control)

    def frames_of(self, task: str) -> int:
        """Frames of ``task`` in each round."""
        return self.frames_by_task.get(task, self.frames)

    def settings(self) -> dict[str, Json]:
        """What a `Trial` records of it, besides method and seed."""
        each = {task: self.frames_of(task) for task in self.specs}
        told = {"tasks": list(each), "steps": each, "rounds": self.rounds, "eval_every": self.eval_every}
        told |= {"eval_episodes": self.episodes, **({} if self.control else {"measure": "success"})}
        own = {name: value for name, value in self._changed().items() if name not in ("method", "seed")}
        return {**told, "run": json.loads(json.dumps(own))}

    def to_json(self) -> dict[str, Json]:
        """All fields, ready for ``json.dumps``."""
        data: dict[str, Json] = json.loads(json.dumps(asdict(self)))
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Run:
        """The run that `to_json` was taken from; fields that are missing have their defaults."""
        known = {f.name for f in fields(cls)}
        odd = [f"there is a field {name!r}" for name in data if name not in known]
        raise_problems("Run.from_json", odd)
        return cls(**data)

    def _changed(self) -> dict[str, Json]:
        default: dict[str, Json] = {
            f.name: f.default if f.default_factory is not dict else {} for f in fields(self)
        }
        return {name: value for name, value in asdict(self).items() if value != default[name]}

    def _kind_problems(self) -> list[str]:
        """What is not even of the right kind, as a file may have it."""
        kinds: dict[str, tuple[type, str]] = dict.fromkeys(("tasks", "method", "learner"), (str, "a text"))
        kinds |= dict.fromkeys(("arguments", "overrides", "frames_by_task"), (dict, "a dict"))
        kinds |= dict.fromkeys(("policies", "unseen"), (tuple, "a tuple of texts"))
        given = {name: getattr(self, name) for name in kinds}
        return [
            f"{name} is {given[name]!r}; expected {expected}"
            for name, (kind, expected) in kinds.items()
            if not isinstance(given[name], kind)
            or (kind is tuple and not all(isinstance(item, str) for item in given[name]))
        ]

    def _problems(self) -> list[str]:
        found = []
        for name, smallest in LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
                found.append(f"{name} is {value!r}; expected an int >= {smallest}")
        if isinstance(self.seed, int) and self.seed >= 2**63:
            found.append(f"seed is {self.seed}; expected an int below 2**63")
        if self.strength is not None and not _finite(self.strength):
            found.append(f"strength is {self.strength!r}; expected a finite number >= 0, or None")
        if self.learner not in PRESETS:
            found.append(f"learner is {self.learner!r}; expected one of {', '.join(PRESETS)}")
        else:
            found += _complaints(lambda: self.sac if self.control else self.config)
        if ":" in self.method:  # somebody's own, who need not be here to read what came of it
            return found + (_complaints(lambda: self.specs) or self._task_problems())
        found += _complaints(lambda: self.recipe) or self._policy_problems()
        return found + (_complaints(lambda: self.specs) or self._task_problems())

    def _policy_problems(self) -> list[str]:
        twice = {name for name in self.policies if self.policies.count(name) > 1}
        found = [f"policies has {name!r} twice" for name in sorted(twice)]
        for name in self.policies:
            found += _complaints(lambda name=name: parse_policy(name, control=self.control))  # type: ignore[misc]
            way = name.removesuffix(LEAST_TRIED)
            if not self.recipe.heads and way != ORACLE:
                found.append(f"policy is {name!r}; expected {ORACLE!r}: {self.method} has one head")
            if way.endswith("nll") and not self.recipe.dropout and not self.control:
                found.append(f"policy is {name!r}; expected a method with dropout, {self.method} has none")
        return found

    def _task_problems(self) -> list[str]:
        specs = self.specs
        found = self._control_problems() if self.control else []
        for name, frames in self.frames_by_task.items():
            if name not in specs:
                found.append(f"frames_by_task has {name!r}; expected some of {', '.join(specs)}")
            if isinstance(frames, bool) or not isinstance(frames, int) or frames < 1:
                found.append(f"frames_by_task[{name!r}] is {frames!r}; expected an int >= 1")
        return found + [p for text in self.unseen for p in _complaints(lambda text=text: parse_unseen(text))]  # type: ignore[misc]

    def _control_problems(self) -> list[str]:
        found = []
        if self.method in METHODS and self.recipe.control is None:
            names = ", ".join(name for name, method in METHODS.items() if method.control is not None)
            found.append(f"method is {self.method!r}; expected for continuous actions one of {names}")
        if self.consecutive:
            found.append(f"consecutive is {self.consecutive}; expected 0: no success is counted here")
        if self.unseen:
            found.append(f"unseen is {self.unseen}; expected none: these tasks have no levels")
        return found


def _complaints(make: Callable[[], object]) -> list[str]:
    """The error of a call, as a list of at most one."""
    try:
        make()
    except OwlError as error:
        return [str(error)]
    return []


def _finite(number: object) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < float("inf")
