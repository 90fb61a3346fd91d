"""Environments of a Stable-Baselines3 model: one per task, checked before use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import OrderEnforcing
from stable_baselines3.common.base_class import maybe_make_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, unwrap_vec_normalize

from owlrl._arguments import kind_of
from owlrl.errors import OwlTypeError, OwlValueError, raise_problems

__all__: list[str] = []


def actions_in(space: spaces.Space[Any]) -> int | None:
    """How many actions there are, or None for a Box."""
    return int(space.n) if isinstance(space, spaces.Discrete) else None


class _Known(NamedTuple):
    """Of a task's environment: which of them it is, and its number of actions."""

    place: int
    actions: int | None


class TaskEnvs:
    """Which environment each task is trained in; a revisited task gets its own back.

    It comes with the task (`offer`), or by the model's own ``set_env`` before or inside the task's block.

    Args:
        model: the model; its current environment is the first task's, unless that comes with another.
        any_num_actions: whether tasks may have different numbers of discrete actions.
    """

    def __init__(self, model: OffPolicyAlgorithm, *, any_num_actions: bool = True) -> None:
        self.model = model
        self.any_num_actions = any_num_actions
        self._of_task: dict[str, VecEnv] = {}
        self._known: dict[str, _Known] = {}
        self._offered: VecEnv | None = None
        self._seen = model.env  # what the model was left with
        self._open: str | None = None  # the task that was entered and not left

    def __len__(self) -> int:
        return len(self._known)

    def offer(self, env: Any) -> None:
        """Keep ``env``, wrapped as the model would, for the task that begins next; raise if it cannot be."""
        there = [*self._of_task.values(), *([] if self.model.env is None else [self.model.env])]
        wrapped = next((own for own in there if _holds(own, env)), None) or self._wrap(env)
        raise_problems("OwlWrapper.task: env", self._problems(wrapped))
        self._offered = wrapped

    def withdraw(self) -> None:
        """Forget what was offered."""
        self._offered = None

    def to_come(self) -> VecEnv:
        """The environment that a new task would be trained in."""
        env = self._offered or self.model.env
        assert env is not None
        return env

    def enter(self, task: str) -> bool:
        """Give the model the task's environment; whether that is another one than it had."""
        env = self._choose(task)
        changed = env is not self._seen
        self._give(task, env)
        return changed

    def resume(self, task: str) -> int | None:
        """Continue in the environment that the model has, or in the one that was offered; its actions.

        After loading, nothing tells whether the model's environment is the task's, as in `enter`.
        """
        known = task in self._of_task
        env = self._offered or self.model.env if known else self._choose(task)
        assert env is not None
        actions = self.check(task, env)
        self._give(task, env)
        return actions

    def stay(self, task: str) -> bool:
        """``task`` begins inside ``learn``, in the current environment; it cannot be changed there."""
        assert self.model.env is not None
        if self._offered is not None and self._offered is not self.model.env:
            self.withdraw()
            raise OwlValueError(
                f"OwlWrapper.task: {task!r} begins while learn is running, in the model's environment; leave "
                "env= out"
            )
        self._offered = None
        self._remember(task, self.model.env)
        self._open = task
        return False

    def leave(self, task: str) -> None:
        """The task's block ends; it keeps the environment that the model has now."""
        assert self.model.env is not None
        self._remember(task, self.model.env)
        self._open = None

    def forget(self, task: str) -> None:
        """Drop everything about ``task``."""
        self._of_task.pop(task, None)
        self._known.pop(task, None)

    def check(self, task: str, env: VecEnv | None = None) -> int | None:
        """The number of actions in the task's environment, or ``env``; raise if it had another before."""
        env = env or self._choose(task)
        known, actions = self._known.get(task), actions_in(env.action_space)
        if known is not None and known.actions != actions:
            self.withdraw()
            raise OwlValueError(
                f"OwlWrapper.task: {task!r} was learned with {known.actions} actions, its environment has "
                f"{actions}; pass env= with as many as before, or give the task another name"
            )
        return actions

    def state_dict(self) -> dict[str, Any]:
        """Which tasks shared an environment, and their numbers of actions; not the environments."""
        return {task: [known.place, known.actions] for task, known in self._known.items()}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned; each task brings its environment at its next visit."""
        self._known = {task: _Known(*pair) for task, pair in state_dict.items()}
        self._of_task, self._open = {}, None

    def _give(self, task: str, env: VecEnv) -> None:
        """Let ``env`` be the model's and the task's."""
        model, self._offered = self.model, None
        if env is not model.env:
            put_back = task in self._known and was_reset(env)  # after loading: it is to continue as it was
            if model.seed is not None and env not in self._of_task.values() and not put_back:
                env.seed(model.seed)  # set_env does not
            model.set_env(env)
        self._remember(task, env)
        self._open = task

    def _remember(self, task: str, env: VecEnv) -> None:
        same = [self._known[name].place for name, own in self._of_task.items() if own is env]
        taken = {self._known[name].place for name in self._of_task}
        places = [known.place for known in self._known.values()]
        place = same[0] if same else max(places, default=-1) + 1
        if not same and task in self._known and self._known[task].place not in taken:
            place = self._known[task].place  # it was loaded, and has its environment again
        self._of_task[task] = self._seen = env
        self._known[task] = _Known(place, actions_in(env.action_space))

    def _choose(self, task: str) -> VecEnv:
        """What was offered, or set by hand since the last task was left, or the task had before."""
        by_hand = self.model.env is not self._seen and self._open is None
        given = self._offered or (self.model.env if by_hand else None)
        several = len({known.place for known in self._known.values()}) > 1
        if given is None and several and task in self._known and task not in self._of_task:
            raise OwlValueError(
                f"OwlWrapper.task: the environment of {task!r} is not saved in the file; pass env="
            )
        return given or self._of_task.get(task) or self.to_come()

    def _wrap(self, env: Any) -> VecEnv:
        try:
            return self.model._wrap_env(maybe_make_env(env, self.model.verbose), self.model.verbose)
        except Exception as error:  # the environment is the user's
            raise OwlTypeError(
                f"OwlWrapper.task: env is {kind_of(env)} that cannot be wrapped "
                f"({type(error).__name__}: {error}); expected a Gymnasium environment, its id or a VecEnv"
            ) from error

    def _problems(self, env: VecEnv) -> list[str]:
        model, found = self.model, []
        if env.num_envs != model.n_envs:
            found.append(
                f"it has {env.num_envs} environments side by side, the model {model.n_envs}; give each task "
                "the same number"
            )
        if env.observation_space != model.observation_space:
            found.append(
                f"its observations are {env.observation_space}, the model's {model.observation_space}; tasks "
                "share a trunk, so give all tasks one space with a wrapper"
            )
        if env.action_space == model.action_space:
            return found
        if actions_in(env.action_space) is None or actions_in(model.action_space) is None:
            found.append(
                f"its actions are {env.action_space}, but the model's networks are built for "
                f"{model.action_space}; bring them to those with a wrapper "
                "(gymnasium.wrappers.RescaleAction), or build another model"
            )
        elif not self.any_num_actions:
            found.append(
                f"it has {env.action_space}, the model {model.action_space}; {kind_of(model)} needs "
                "the same number of actions in all tasks"
            )
        elif not self._known:
            found.append(
                f"it has {env.action_space}, the model {model.action_space}; build the model with the first "
                "task's environment, later ones may differ"
            )
        return found


def _holds(vec_env: VecEnv, env: Any) -> bool:
    """Whether ``env`` is ``vec_env`` or what is inside of it, so that it need not be wrapped again."""
    if env is vec_env:
        return True
    inner = vec_env.unwrapped
    if not isinstance(inner, DummyVecEnv) or len(inner.envs) != 1 or isinstance(env, VecEnv):
        return False
    layer: Any = inner.envs[0]
    while layer is not None:
        if layer is env:
            return True
        layer = getattr(layer, "env", None)
    return False


def was_reset(env: VecEnv | None) -> bool:
    """Whether all environments in ``env`` are known to be in an episode: they may be stepped as they are."""
    inner = None if env is None else env.unwrapped
    if not isinstance(inner, DummyVecEnv):
        return False
    each: Any
    for each in inner.envs:
        known = False
        while each is not None:
            if isinstance(each, Monitor | OrderEnforcing):
                known = not each.needs_reset if isinstance(each, Monitor) else each.has_reset
                break
            known = getattr(each, "_np_random", None) is not None  # the innermost one's, at last
            each = getattr(each, "env", None)
        if not known:
            return False
    return True


class VectorEnvView:
    """A Stable-Baselines3 ``VecEnv`` in Gymnasium's interface, as far as evaluation needs it.

    The statistics of a ``VecNormalize`` stay as they are.
    """

    def __init__(self, env: VecEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.metadata = {"autoreset_mode": "SameStep"}

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all episodes."""
        if seed is not None:
            self.env.seed(seed)
        with self._frozen():
            return self.env.reset(), {}

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of each; where an episode ended, its last observation is in the info."""
        with self._frozen():
            observation, reward, done, infos = self.env.step(actions)
        truncated = done & np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        info: dict[str, Any] = {}
        if done.any():
            info = {
                "final_obs": [each.get("terminal_observation") for each in infos],
                "_final_obs": np.array(["terminal_observation" in each for each in infos]),
            }
        return observation, reward, done & ~truncated, truncated, info

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Learn no statistics: evaluation must not change what is learned."""
        normalize = unwrap_vec_normalize(self.env)
        learns = normalize is not None and normalize.training
        try:
            if normalize is not None:
                normalize.training = False
            yield
        finally:
            if normalize is not None:
                normalize.training = learns
