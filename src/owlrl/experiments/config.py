"""`Run`: everything that determines one of our own trainings; the methods and the learners it may name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal, TypeVar

from torch import nn

from owlrl import DistillationRegularizer, EWCRegularizer
from owlrl._arguments import Arguments
from owlrl.envs import TaskSpec
from owlrl.errors import OwlError, OwlValueError, raise_problems
from owlrl.experiments._optional import imported
from owlrl.experiments.policies import CONTROL_POLICIES, LEAST_TRIED, ORACLE, WITHOUT_EVIDENCE, parse_policy
from owlrl.experiments.tasks import canonical_name, is_control, parse_unseen, resolve_tasks
from owlrl.learners import FAST, PAPER, SAC_FAST, SAC_PAPER, DQNConfig, GridConv, GridMLP, SACConfig
from owlrl.protocols import Regularizer

__all__ = ["METHODS", "PRESETS", "Preset", "Recipe", "Run"]

Trunk = Callable[[], tuple[nn.Module, int]]
Config = TypeVar("Config", DQNConfig, SACConfig)
Json = Any  # what json.loads can give
Strength = float | Mapping[str, float]
MakeRegularizer = Callable[[Strength, int], Regularizer]  # from strength and seed


@dataclass(frozen=True)
class Preset:
    """A base learner and how it is rewarded in training.

    Attributes:
        config: settings of the DQN, for MiniGrid tasks.
        sac: settings of the SAC, for tasks with continuous actions.
        trunk: makes a trunk for MiniGrid images; returns it and its feature size.
        goal_scale: the reward of a success is multiplied by it.
        count_bonus: β of the bonus ``β / √n`` for the n-th visit of a cell, in training only.

    >>> from owlrl.experiments import PRESETS
    >>> PRESETS["paper"].goal_scale, PRESETS["fast"].goal_scale
    (100.0, 1.0)
    """

    config: DQNConfig
    sac: SACConfig
    trunk: Trunk
    goal_scale: float = 1.0
    count_bonus: float = 0.0


# for tasks whose rewards are not rare
DENSE = DQNConfig(
    batch_size=64, n_step=3, update_every=4, epsilon=(1.0, 0.05), epsilon_waits=False, rewarded_share=0.0
)
PRESETS: dict[str, Preset] = {
    "fast": Preset(FAST, SAC_FAST, trunk=lambda: (GridMLP(), 128)),
    # for levels that are none of the learned ones: what it knows of a place holds in others
    "conv": Preset(FAST, SAC_FAST, trunk=lambda: (GridConv(one_hot=True), 200)),
    # where chance hardly ever finds a goal
    "curious": Preset(
        replace(FAST, gamma=0.97, rewarded_above=0.05),
        SAC_FAST,
        trunk=lambda: (GridMLP(), 128),
        count_bonus=0.01,
    ),
    "paper": Preset(PAPER, SAC_PAPER, trunk=lambda: (GridConv(), 200), goal_scale=100.0, count_bonus=1.0),
}


def with_overrides(config: Config, overrides: Mapping[str, Any]) -> Config:
    """The settings with some of them changed; names and kinds are checked."""
    known = asdict(config)
    problems, changed = [], {}
    for name, value in overrides.items():
        if name not in known:
            problems.append(f"overrides has {name!r}; expected one of {', '.join(known)}")
            continue
        now = known[name]
        value = tuple(value) if isinstance(now, tuple) and isinstance(value, list | tuple) else value
        if isinstance(now, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not type(now) or (isinstance(now, tuple) and len(value) != len(now)):
            problems.append(f"overrides[{name!r}] is {value!r}; expected the like of {now!r}")
        changed[name] = value
    raise_problems("Run", problems)
    return replace(config, **changed)


@dataclass(frozen=True)
class Recipe:
    """One way to learn task after task, of our own runs.

    Attributes:
        name: its key in ``METHODS``.
        about: what it is, in a few words.
        heads: a head per task, or one for all.
        replay: "scoped" is emptied between tasks, "shared" never, "rehearsal" is kept per task.
        regularizer: makes the regularizer from a strength and a seed; None for none.
        strength: of the regularizer (λ of EWC, μ of distillation); 0 for its own default.
        control: strengths for actor and critics with continuous actions, empty for the regularizer's own
            default; None if it is not there for them.
        warm_start: rows kept of each task for its next visit; for the scoped replay.
        init: a new task's head: "fresh" (random), "zero" or a "copy" of the last one.
        head: makes another head than a linear one, from feature size and actions.
        dropout: probability of the paper's MC dropout.
        epsilon_restart: on revisits exploration starts again, so many times faster; None resumes it.

    >>> from owlrl.experiments import METHODS
    >>> METHODS["owl"].strength, METHODS["experience-replay"].heads
    (30.0, False)
    """

    name: str
    about: str
    heads: bool = True
    replay: Literal["scoped", "shared", "rehearsal"] = "scoped"
    regularizer: MakeRegularizer | None = None
    strength: float = 0.0
    control: Mapping[str, float] | None = None
    warm_start: int = 0
    init: Literal["fresh", "zero", "copy"] = "zero"
    head: Callable[[int, int], nn.Module] | None = None
    dropout: float = 0.0
    epsilon_restart: float | None = None


def _ewc(strength: Strength, seed: int) -> Regularizer:
    return EWCRegularizer(strength)


def _ewc_on_loss(strength: Strength, seed: int) -> Regularizer:
    return EWCRegularizer(strength, importance="loss")


def _current(strength: Strength, seed: int) -> Regularizer:
    return DistillationRegularizer(strength, states="current", batch_size=128, seed=seed)


def _memory(strength: Strength, seed: int) -> Regularizer:
    return DistillationRegularizer(strength or None, seed=seed)


def _two_layers(features: int, actions: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, actions))


WARM = 50_000  # transitions, as in the paper
LAMBDA = 30.0  # of EWC with the fast learner, the best of eight; the paper has 500, with rewards of 100
EWC = {"actor": 100.0, "critic": 100.0}  # for continuous actions, as in the paper

OWL: dict[str, Any] = {"regularizer": _ewc, "strength": LAMBDA}
HEADS: dict[str, Any] = {**OWL, "control": EWC}

METHODS: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "experience-replay",
            "one head, one replay for all tasks",
            heads=False,
            replay="shared",
            control={},
        ),
        Recipe(
            "one-head-rehearsal",
            "one head, a kept replay per task: the task in training has its share of every reward drawn",
            heads=False,
            replay="rehearsal",
        ),
        Recipe("owl", "the paper's: a head per task, EWC", **HEADS),
        Recipe("owl-loss", "EWC's importance from the loss", regularizer=_ewc_on_loss, strength=500.0),
        Recipe("owl-warm-start", "replay refilled on revisits", **HEADS, warm_start=WARM),
        Recipe(
            "owl-warm-start-100k",
            "replay refilled on revisits, with twice as much",
            **HEADS,
            warm_start=2 * WARM,
        ),
        Recipe("owl-no-ewc", "heads without a regularizer", control={}),
        Recipe(
            "owl-distill-current",
            "distillation on the current task's states",
            regularizer=_current,
            strength=100.0,
        ),
        Recipe("full-rehearsal", "a head and a kept replay per task", replay="rehearsal"),
        Recipe("owl-mlp-head", "heads of two layers", **OWL, head=_two_layers),
        *(
            Recipe(
                f"owl-epsilon-restart-{x}x", "exploration starts again on revisits", **OWL, epsilon_restart=x
            )
            for x in (1, 2)
        ),
        *(
            Recipe(f"owl-dropout-{share:g}", "MC dropout, likelihood as evidence", **OWL, dropout=share)
            for share in (0.05, 0.1, 0.2)
        ),
        Recipe(
            "owl-memory",
            "ours, the wrapper's defaults: old heads distilled on a memory of their own states",
            regularizer=_memory,
            control={},
            warm_start=WARM,
        ),
    )
}


def recipe_of(name: str) -> Recipe:
    """The method of that name, or the `Recipe` that ``"package.module:name"`` names."""
    if ":" in name:
        found: Recipe = imported("method", name)
        return found
    if name not in METHODS:
        raise OwlValueError(f"method is {name!r}; expected one of {', '.join(METHODS)}")
    return METHODS[name]


def default_policies(method: Recipe, *, control: bool = False) -> tuple[str, ...]:
    """What a method is evaluated with: all of the paper's comparisons and ours; ``control``: of SAC."""
    if not method.heads:
        return (ORACLE,)
    if control:
        return (ORACLE, *CONTROL_POLICIES, "random")
    ours = ("restless+model", "hedge+model", "hedge+reward", "hedge+td")
    theirs = ("released+td-raw", "paper+td-squared")
    dropout = ("hedge+nll",) if method.dropout else ()
    return (ORACLE, *ours, *theirs, *dropout, *WITHOUT_EVIDENCE)


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
        # Defaults are left out, so that a field added later changes no name.
        text = json.dumps(self._changed(), sort_keys=True)
        method = re.sub(r"[^\w.+-]+", "-", self.method)
        return f"{slug(self.tasks)}-{method}-s{self.seed}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"

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
        arguments = Arguments("Run")
        for name in ("frames", "rounds", "num_envs", "episodes", "eval_every", "seed", "consecutive"):
            least = int(name not in ("seed", "consecutive"))
            object.__setattr__(self, name, arguments.integer(name, getattr(self, name), least=least))
        if isinstance(self.seed, int) and self.seed >= 2**63:
            arguments.problem(f"seed is {self.seed}; expected an int below 2**63")
        strength = arguments.number("strength", self.strength, least=0.0, none=True)
        object.__setattr__(self, "strength", strength)
        found = arguments.problems
        if self.learner not in PRESETS:
            found.append(f"learner is {self.learner!r}; expected one of {', '.join(PRESETS)}")
        else:
            found += _complaints(lambda: self.sac if self.control else self.config)
        if ":" not in self.method:  # else somebody's own, who need not be here to read what came of it
            found += _complaints(lambda: self.recipe) or self._policy_problems()
        return found + (_complaints(lambda: self.specs) or self._task_problems())

    def _policy_problems(self) -> list[str]:
        twice = {name for name in self.policies if self.policies.count(name) > 1}
        found = [f"policies has {name!r} twice" for name in sorted(twice)]
        for name in self.policies:
            found += _complaints(partial(parse_policy, name, control=self.control))
            way = name.removesuffix(LEAST_TRIED)
            if not self.recipe.heads and way != ORACLE:
                found.append(f"policy is {name!r}; expected {ORACLE!r}: {self.method} has one head")
            if way.endswith("nll") and not self.recipe.dropout and not self.control:
                found.append(f"policy is {name!r}; expected a method with dropout, {self.method} has none")
        return found

    def _task_problems(self) -> list[str]:
        arguments = Arguments("Run")
        for name, frames in self.frames_by_task.items():
            if name not in self.specs:
                arguments.problem(f"frames_by_task has {name!r}; expected some of {', '.join(self.specs)}")
            self.frames_by_task[name] = arguments.integer(f"frames_by_task[{name!r}]", frames)
        found = arguments.problems + [
            p for text in self.unseen for p in _complaints(partial(parse_unseen, text))
        ]
        if not self.control:
            return found
        if self.method in METHODS and self.recipe.control is None:
            names = ", ".join(name for name, method in METHODS.items() if method.control is not None)
            found.append(f"method is {self.method!r}; expected for continuous actions one of {names}")
        if self.consecutive:
            found.append(f"consecutive is {self.consecutive}; expected 0: no success is counted here")
        if self.unseen:
            found.append(f"unseen is {self.unseen}; expected none: these tasks have no levels")
        return found


def slug(text: str) -> str:
    """A text as a part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]


def _complaints(make: Callable[[], object]) -> list[str]:
    """The error of a call, as a list of at most one."""
    try:
        make()
    except OwlError as error:
        return [str(error)]
    return []
