"""Which tasks a run is about: from a short text to tables that can be stepped."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator
from minigrid.minigrid_env import MiniGridEnv
from minigrid.wrappers import ImgObsWrapper

from owlrl.envs import (
    TASK_SETS,
    UNSEEN_KINDS,
    PendulumVectorEnv,
    ScaleGoalReward,
    Table,
    TabulatedVectorEnv,
    TaskSpec,
    levels,
    pendulums,
    tabulate,
    task_set,
    unseen_levels,
)
from owlrl.envs.task_sets import PENDULUM, layout_of
from owlrl.envs.vector import ArrayVectorEnv
from owlrl.errors import OwlError, OwlValueError
from owlrl.wrapper_state import same_state

__all__ = ["SeededLevel", "resolve_tasks", "resolve_unseen", "table_of"]

SEEDED = "owlrl/SeededLevel-v0"
TAKEN = ("level", "arms", "task", "angle", "inner")  # what tells the tasks of a set apart


def resolve_tasks(text: str, arguments: Mapping[str, Any] | None = None) -> dict[str, TaskSpec]:
    """The tasks of a named set, or levels of an environment, by name and in order.

    Args:
        text: a key of ``owlrl.envs.TASK_SETS``, in any case, or ``"environment id:level,level,…"``; for
            ``owlrl/Pendulum-v0`` angles instead of levels. Where a MiniGrid environment has no argument
            ``level``, a level is the seed of its resets.
        arguments: for every environment, e.g. ``{"breadcrumbs": True}``.

    >>> from owlrl.experiments import resolve_tasks
    >>> list(resolve_tasks("sc2"))
    ['simplecrossing-3', 'simplecrossing-7']
    >>> list(resolve_tasks("MiniGrid-LavaCrossingS9N1-v0:1,2"))
    ['minigrid-lavacrossings9n1-1', 'minigrid-lavacrossings9n1-2']
    """
    chosen = dict(arguments or {})
    if taken := [name for name in TAKEN if name in chosen]:
        raise OwlValueError(f"arguments has {', '.join(taken)}; expected others: each task has its own")
    if (name := canonical_name(text)) in TASK_SETS:
        return task_set(name, **chosen)
    env_id, colon, numbers = text.rpartition(":")
    if not colon:
        raise OwlValueError(
            f"tasks is {text!r}; expected one of {', '.join(TASK_SETS)}, or levels of an environment, "
            "e.g. 'owlrl/SimpleCrossing-v0:3,7,14'"
        )
    if env_id not in gymnasium.registry:
        raise OwlValueError(f"tasks is {text!r}; no environment is registered as {env_id!r}")
    if is_control(text):
        found = pendulums(_angles(text, numbers), **chosen)
        for spec in found.values():  # wrong arguments are named before anything begins
            with _making(spec):
                PendulumVectorEnv(1, **spec.kwargs)
    elif not all(number.isdecimal() for number in numbers.split(",")):
        raise OwlValueError(f"tasks is {text!r}; expected numbers >= 0 after the colon, e.g. '3,7,14'")
    else:
        found = levels(env_id, [int(number) for number in numbers.split(",")], **chosen)
        if not _takes_level(env_id):
            found = {name: TaskSpec.of(SEEDED, inner=env_id, **spec.kwargs) for name, spec in found.items()}
    if len(found) != numbers.count(",") + 1:
        raise OwlValueError(f"tasks is {text!r}; expected every level once")
    return found


def is_level_grid(env_id: str) -> bool:
    """Whether an environment's levels can be tabulated: it takes a level, or it is one of MiniGrid's."""
    if env_id not in gymnasium.registry or env_id == PENDULUM or _takes_level(env_id):
        return True
    env = gymnasium.make(env_id, disable_env_checker=True)
    with closing(env):
        return isinstance(env.unwrapped, MiniGridEnv)


def _takes_level(env_id: str) -> bool:
    """Whether an environment has an argument ``level``; others have levels by the seeds of their resets."""
    made = gymnasium.spec(env_id).entry_point
    if made is None:
        return False
    creator = load_env_creator(made) if isinstance(made, str) else made
    return "level" in inspect.signature(creator).parameters


class SeededReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that begins every episode as after ``reset(seed=level)``: the seed makes the task."""

    def __init__(self, env: gymnasium.Env[Any, Any], level: int) -> None:
        super().__init__(env)
        self.level = level

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of the level; the seed is accepted and changes nothing."""
        return self.env.reset(seed=self.level, options=options)


def seeded_task(env_id: str, level: int, **arguments: Any) -> SeededReset:
    """A level of any registered environment, which must be decided by the seed of its resets."""
    made = []
    for _ in range(2):
        try:
            env = SeededReset(gymnasium.make(env_id, **arguments), level)
        except (TypeError, gymnasium.error.Error) as error:
            raise OwlValueError(f"{env_id} cannot be made with {arguments}: {error}") from error
        env.action_space.seed(0)
        first = env.reset()[0]
        made.append([first, *(env.step(env.action_space.sample())[:4] for _ in range(5))])
    if not same_state(*made):
        raise OwlValueError(
            f"{env_id} has no levels: two episodes after reset(seed={level}) and the same actions differ; "
            "expected an environment that the seed of its resets decides"
        )
    return env


class SeededLevel(SeededReset):
    """A MiniGrid environment that begins every episode as after ``reset(seed=level)``, with the image alone.

    Registered as ``owlrl/SeededLevel-v0``; ``inner`` is the id of the environment.

    >>> import gymnasium
    >>> import owlrl.experiments
    >>> env = gymnasium.make("owlrl/SeededLevel-v0", inner="MiniGrid-LavaCrossingS9N1-v0", level=3)
    >>> bool((env.reset(seed=0)[0] == env.reset(seed=1)[0]).all())
    True
    """

    metadata = MiniGridEnv.metadata  # gymnasium 1.1 asks the class for it

    def __init__(self, inner: str, level: int, **arguments: Any) -> None:
        env = gymnasium.make(inner, disable_env_checker=True, **arguments)
        space = env.observation_space
        if not (isinstance(env.unwrapped, MiniGridEnv) and isinstance(space, gymnasium.spaces.Dict)):
            raise OwlValueError(
                f"{inner} has no levels; expected an environment with an argument level or one of MiniGrid's "
                "own; owlrl compare takes tasks of any environment"
            )
        super().__init__(ImgObsWrapper(env), level)  # type: ignore[no-untyped-call]


if SEEDED not in gymnasium.registry:
    gymnasium.register(SEEDED, entry_point="owlrl.experiments.tasks:SeededLevel")


def is_control(text: str) -> bool:
    """Whether tasks, as `resolve_tasks` takes them, have continuous actions."""
    return text.startswith(f"{PENDULUM}:")


def _angles(text: str, numbers: str) -> list[float]:
    try:
        found = [float(number) for number in numbers.split(",")]
    except ValueError:
        found = []
    if not found or not all(-180 <= angle <= 180 for angle in found):
        raise OwlValueError(
            f"tasks is {text!r}; expected angles from -180 to 180 after the colon, e.g. '90,-90'"
        )
    return found


def canonical_name(text: str) -> str:
    """The name of a set in its own spelling; any other text as it is."""
    return {name.lower(): name for name in TASK_SETS}.get(text.lower(), text)


def resolve_unseen(
    text: str, trained: Mapping[str, TaskSpec], *, num_actions: int = 3
) -> dict[str, TaskSpec]:
    """Levels that are none of those trained on: ``"kind:number"``, see `owlrl.envs.unseen_levels`.

    >>> from owlrl.experiments import resolve_tasks, resolve_unseen
    >>> len(resolve_unseen("S9N1:3", resolve_tasks("SC5")))
    3
    """
    kind, number = parse_unseen(text)
    return unseen_levels(kind, number, exclude=trained, num_actions=num_actions)


def parse_unseen(text: str) -> tuple[str, int]:
    """Kind and number of ``"S9N1:100"``."""
    kind, _, number = text.partition(":")
    if kind not in UNSEEN_KINDS or not number.isdecimal() or int(number) < 1:
        kinds = ", ".join(UNSEEN_KINDS)
        raise OwlValueError(f"unseen is {text!r}; expected one of {kinds} and how many, e.g. 'S9N1:100'")
    return kind, int(number)


def table_of(spec: TaskSpec, *, goal_scale: float = 1.0) -> Table:
    """The task tabulated, with the reward of a success multiplied; made once per process.

    >>> from owlrl.experiments import resolve_tasks, table_of
    >>> table_of(*resolve_tasks("owlrl/SimpleCrossing-v0:3").values())
    Table('owlrl/SimpleCrossing-v0(level=3)': 169 states, 120 observations, 3 actions)
    """
    with _making(spec):
        return spec.table() if goal_scale == 1.0 else _scaled(spec, goal_scale)


def vector_env(task: Table | TaskSpec, copies: int, *, count_bonus: float = 0.0) -> ArrayVectorEnv:
    """Copies of a task side by side, stepped as arrays; a bonus for rare cells is for tables only."""
    if isinstance(task, Table):
        return TabulatedVectorEnv(task, copies, count_bonus=count_bonus)
    return PendulumVectorEnv(copies, **task.kwargs)


class SideBySide:
    """Vectors of environments as one, which all start from the same seed; for `run_episodes`."""

    def __init__(self, envs: Sequence[ArrayVectorEnv]) -> None:
        self.envs, self.metadata = list(envs), envs[0].metadata
        self.num_envs = sum(env.num_envs for env in envs)
        self._cuts = np.cumsum([env.num_envs for env in envs])[:-1]

    def reset(self, *, seed: int | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin in all environments."""
        return np.concatenate([env.reset(seed=seed)[0] for env in self.envs]), {}

    def step(self, actions: np.ndarray) -> tuple[Any, ...]:
        """Step all; where an episode ends, the next one begins."""
        steps = [env.step(part) for env, part in zip(self.envs, np.split(actions, self._cuts), strict=True)]
        ended, finals, success = [], [], []
        for env, (*_, info) in zip(self.envs, steps, strict=True):
            none = np.zeros(env.num_envs, dtype=bool)
            ended.append(info.get("_final_obs", none))
            finals.append(info.get("final_obs", np.full(env.num_envs, None)))
            success.append(info.get("final_info", {}).get("is_success", none))
        told: dict[str, Any] = {"final_obs": np.concatenate(finals), "_final_obs": np.concatenate(ended)}
        told["final_info"] = {"is_success": np.concatenate(success)}
        joined = [np.concatenate(column) for column in list(zip(*steps, strict=True))[:4]]
        return (*joined, told if told["_final_obs"].any() else {})


@contextmanager
def _making(spec: TaskSpec) -> Iterator[None]:
    """Errors of an environment about its arguments, as errors of ours."""
    try:
        yield
    except OwlError:
        raise
    except (TypeError, gymnasium.error.Error) as error:
        where = "levels are those of owlrl/SimpleCrossing-v0, owlrl/DoorKey-v0 and of MiniGrid's environments"
        raise OwlValueError(f"{spec!r} cannot be made: {error}; {where}") from error


def tables_of(specs: Mapping[str, TaskSpec], *, goal_scale: float = 1.0) -> dict[str, Table]:
    """Tables of several levels; levels with the same layout share one, which is most of the S9N1 ones."""
    made: dict[Hashable, Table] = {}
    found = {}
    for name, spec in specs.items():
        others = tuple(item for item in spec.arguments if item[0] != "level")
        with _making(spec):
            key = spec.env_id, others, *layout_of(spec)
        if key not in made:
            made[key] = table_of(spec, goal_scale=goal_scale)
        found[name] = made[key]
    return found


@lru_cache(maxsize=256)
def _scaled(spec: TaskSpec, goal_scale: float) -> Table:
    return tabulate(ScaleGoalReward(spec(disable_env_checker=True), goal_scale))
