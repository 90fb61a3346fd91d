"""Environments whose task changes at hidden times: one copy, or many that change together."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit

from owlrl._arguments import Arguments, own_generator
from owlrl.envs.vector import AnyEnv, ArrayVectorEnv, VectorStep
from owlrl.errors import OwlTypeError

__all__ = ["Switching", "SwitchingVectorEnv"]

KEY = 0x5317C4  # tells these random numbers from others of the same seed
AnyVectorEnv = VectorEnv[Any, Any, Any]
Schedule = Sequence[tuple[str, int]]


class _Plan:
    """Which task comes next and when, in steps of the environment; drawn, or from a list."""

    def __init__(
        self, arguments: Arguments, tasks: list[str], schedule: Schedule | None, stay: Any, seed: int | None
    ) -> None:
        seed = arguments.integer("seed", seed, least=0, none=True)
        if schedule is None:
            try:
                low, high = stay
            except (TypeError, ValueError):
                low = high = None
            self._stay = arguments.integer("stay[0]", low), arguments.integer("stay[1]", high)
            if not arguments.problems and low > high:
                arguments.problem(f"stay is {stay!r}; expected the smaller number first")
        elif not (listed := list(schedule)):
            arguments.problem("schedule is empty; expected pairs of a task and its steps")
        else:
            for number, (task, steps) in enumerate(listed):
                arguments.choice(f"schedule[{number}][0]", task, tasks)
                arguments.integer(f"schedule[{number}][1]", steps)
                if number and task == listed[number - 1][0]:
                    arguments.problem(f"schedule[{number}] is {task!r} again; expected another task")
        arguments.check()
        self._tasks = tasks
        self._schedule = None if schedule is None else list(schedule)
        self._generator = own_generator(seed, KEY)
        self._number = 0
        self.steps = 0
        self.task = tasks[0] if self._schedule is None else self._schedule[0][0]
        self.changes: list[tuple[int, str]] = [(0, self.task)]
        self._until = self._length()

    def _length(self) -> float:
        if self._schedule is None:
            return self.steps + int(self._generator.integers(self._stay[0], self._stay[1] + 1))
        last = self._number == len(self._schedule) - 1
        return np.inf if last else self.steps + self._schedule[self._number][1]

    @property
    def due(self) -> bool:
        """Whether the task has had its steps."""
        return self.steps >= self._until

    def change(self) -> str:
        """Continue to the next task and return it."""
        self._number += 1
        if self._schedule is None:
            others = [task for task in self._tasks if task != self.task]
            self.task = others[int(self._generator.integers(len(others)))]
        else:
            self.task = self._schedule[self._number][0]
        self._until = self._length()
        self.changes.append((self.steps, self.task))
        return self.task


class _Switches:
    """What `Switching` and `SwitchingVectorEnv` share: environments by name, and the current task."""

    def _set_up(
        self,
        envs: Mapping[str, Any],
        kind: type,
        schedule: Schedule | None,
        stay: tuple[int, int],
        mid_episode: bool,
        seed: int | None,
    ) -> Any:
        """Check everything; the environment of the first task."""
        arguments = Arguments(type(self).__name__)
        self.envs: dict[str, Any] = _made(arguments, envs, kind)
        self._plan = _Plan(arguments, list(self.envs), schedule, stay, seed)
        self.mid_episode: bool = arguments.boolean("mid_episode", mid_episode)
        arguments.check()
        self._seeds: dict[str, int] = {}  # of environments that have not been reset since reset(seed=…)
        first = self.envs[self.task]
        self.observation_space, self.action_space = first.observation_space, first.action_space
        self.metadata: dict[str, Any] = first.metadata
        return first

    @property
    def task(self) -> str:
        """The current task."""
        return self._plan.task

    @property
    def changes(self) -> list[tuple[int, str]]:
        """The number of steps before each task began, and the task."""
        return list(self._plan.changes)

    def _seed(self, seed: int | None) -> None:
        if seed is not None:
            self._seeds = dict.fromkeys(self.envs, seed)

    def _start(self, options: dict[str, Any] | None = None) -> Any:
        """Reset the environment of the current task."""
        return self.envs[self.task].reset(seed=self._seeds.pop(self.task, None), options=options)


class Switching(_Switches, gymnasium.Env[Any, Any]):
    """Several environments behind one: which of them acts changes at hidden times, also within an episode.

    The agent does not see the task; ``info["task"]`` has the true task of each step, for evaluation. The
    clock runs over all episodes, and no reset turns it back: ``reset(seed=…)`` seeds the environments inside.

    Within an episode the state is carried over: ``unwrapped.state`` of the one environment is set in the
    other (classic control, `PendulumEnv`, `ReachEnv`), and step limits continue. That needs environments of
    one class whose ``state`` is complete; others change at the end of the current episode. Wrappers that
    keep something over an episode belong around this one, not inside.

    For several copies that change together, without a vector twin, give all of them the same seed and
    Gymnasium's same-step autoreset: ``SyncVectorEnv([lambda: Switching(tasks, seed=0)] * 8,
    autoreset_mode="SameStep")``.

    Args:
        envs: environments with equal spaces, or functions that make them, by name.
        schedule: pairs of a task and its number of steps; the last one stays. None to draw them.
        stay: least and most steps of a task, where they are drawn; the first task is the first in ``envs``,
            each further one any of the others.
        mid_episode: whether to change within an episode where the state can be carried over; False to
            wait for the end of the episode always.
        seed: of the drawn times and tasks; None for one from torch's global seed.

    >>> import numpy as np
    >>> from owlrl.envs import Switching, pendulums
    >>> env = Switching(pendulums([90, -90]), schedule=[("pendulum+90", 3), ("pendulum-90", 10)])
    >>> _ = env.reset(seed=0)
    >>> [env.step(np.zeros(1, np.float32))[4]["task"] for _ in range(5)]
    ['pendulum+90', 'pendulum+90', 'pendulum+90', 'pendulum-90', 'pendulum-90']
    """

    def __init__(
        self,
        envs: Mapping[str, AnyEnv | Callable[[], AnyEnv]],
        *,
        schedule: Schedule | None = None,
        stay: tuple[int, int] = (2_000, 4_000),
        mid_episode: bool = True,
        seed: int | None = None,
    ) -> None:
        first = self._set_up(envs, gymnasium.Env, schedule, stay, mid_episode, seed)
        self.render_mode = first.render_mode
        self._elapsed: int | None = None  # steps of the episode; None outside one

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, with the next task if the current one has had its steps."""
        super().reset(seed=seed)
        self._seed(seed)
        if self._plan.due:
            self._plan.change()
        observation, info = self._start(options)
        self._elapsed = 0
        return observation, {**info, "task": self.task}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the current task, after a change if one is due."""
        if self._plan.due and self.mid_episode and self._elapsed is not None:
            self._carry_over(self._elapsed)
        observation, reward, terminated, truncated, info = self.envs[self.task].step(action)
        self._plan.steps += 1
        ended = terminated or truncated
        self._elapsed = None if ended or self._elapsed is None else self._elapsed + 1
        return observation, float(reward), terminated, truncated, {**info, "task": self.task}

    def _carry_over(self, elapsed: int) -> None:
        """Change the task within the episode; nothing happens where the state cannot be carried over."""
        old = self.envs[self.task].unwrapped
        state = copy.deepcopy(getattr(old, "state", None))
        alike = all(type(env.unwrapped) is type(old) for env in self.envs.values())
        if state is None or not alike or not _settable(old, "state"):
            return
        new: Any = self.envs[self._plan.change()]
        self._start()
        new.unwrapped.state = state
        while isinstance(new, gymnasium.Wrapper):
            if isinstance(new, TimeLimit):
                new._elapsed_steps = elapsed  # type: ignore[assignment]  # None before a reset
            new = new.env

    def render(self) -> Any:
        """What the current task draws."""
        return self.envs[self.task].render()

    def close(self) -> None:
        """Close all the environments."""
        for env in self.envs.values():
            env.close()

    def __repr__(self) -> str:
        return f"Switching({list(self.envs)}, task={self.task!r})"


class SwitchingVectorEnv(_Switches, VectorEnv[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]):
    """`Switching` for vector environments: all copies change together.

    States and step limits are carried over between environments whose ``states`` can be set
    (`PendulumVectorEnv`, `ReachVectorEnv`). With any others, or without ``mid_episode``, a change cuts all
    episodes short: the last step of the old task is truncated in every copy, and the next
    observations are the first ones of the new task. ``infos["task"]`` has the true task of each copy's
    step; where an episode ended in this step, ``infos["final_info"]["task"]`` has it, and ``infos["task"]``
    that of the next episode.

    Args:
        envs: vector environments with equal spaces, number of copies and same-step autoreset, by name.
        schedule: as for `Switching`; steps are those of each copy.
        stay: as for `Switching`.
        mid_episode: whether to carry states over where that is possible.
        seed: of the drawn times and tasks.

    >>> import numpy as np
    >>> from owlrl.envs import ReachVectorEnv, SwitchingVectorEnv
    >>> goals = {"right": (1.0, 0.0), "left": (-1.0, 0.0)}
    >>> envs = SwitchingVectorEnv({name: ReachVectorEnv(2, goal=goal) for name, goal in goals.items()},
    ...                           schedule=[("right", 2), ("left", 10)])
    >>> _ = envs.reset(seed=0)
    >>> [envs.step(np.zeros((2, 2)))[4]["task"].tolist() for _ in range(3)]
    [['right', 'right'], ['right', 'right'], ['left', 'left']]
    """

    def __init__(
        self,
        envs: Mapping[str, AnyVectorEnv | Callable[[], AnyVectorEnv]],
        *,
        schedule: Schedule | None = None,
        stay: tuple[int, int] = (2_000, 4_000),
        mid_episode: bool = True,
        seed: int | None = None,
    ) -> None:
        first = self._set_up(envs, VectorEnv, schedule, stay, mid_episode, seed)
        arguments = Arguments("SwitchingVectorEnv")
        if len({env.num_envs for env in self.envs.values()}) > 1:
            arguments.problem("envs differ in num_envs; expected the same number of copies")
        for name, env in self.envs.items():
            if (mode := env.metadata.get("autoreset_mode")) is not AutoresetMode.SAME_STEP:
                arguments.problem(f"{name!r} has autoreset mode {mode}; expected AutoresetMode.SAME_STEP")
        arguments.check()
        self.num_envs = first.num_envs
        self.single_observation_space = first.single_observation_space
        self.single_action_space = first.single_action_space
        kinds = [type(env) for env in self.envs.values()]
        self._carries = all(kind is kinds[0] for kind in kinds) and isinstance(first, ArrayVectorEnv)
        self._carries &= _settable(first, "states")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[Any], dict[str, Any]]:
        """Start all copies, or those in ``options["reset_mask"]``, in the current task."""
        super().reset(seed=seed)
        self._seed(seed)
        observations, infos = self._start(options)
        return observations, {**infos, **self._told(self.task)}

    def step(self, actions: npt.NDArray[Any]) -> VectorStep:
        """Step the current task; if that has had its steps, the next one continues from there."""
        task = self.task
        observations, rewards, terminated, truncated, infos = self.envs[task].step(actions)
        self._plan.steps += 1
        told = self._told(task)
        if self._plan.due:
            done = terminated | truncated
            if not (self.mid_episode and self._carries):
                truncated = truncated | ~done
                done, infos = np.ones_like(done), self._cut(done, observations, infos)
            observations = self._change(done, observations)
            told["task"][done] = self.task
        if "_final_obs" in infos:
            ended = infos["_final_obs"]
            final = {"task": np.array([task if end else None for end in ended]), "_task": ended.copy()}
            infos = {**infos, "final_info": {**infos.get("final_info", {}), **final}}
        return observations, rewards, terminated, truncated, {**infos, **told}

    def _change(self, done: npt.NDArray[np.bool_], observations: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Continue to the next task: copies marked ``done`` start there, the others keep their state."""
        old, new = self.envs[self.task], self.envs[self._plan.change()]
        first, _ = self._start()
        going = ~done
        if going.any():
            new.states = np.where(going[:, None], old.states, new.states)
            new.elapsed = np.where(going, old.elapsed, 0)
        observations = observations.copy()
        observations[done] = first[done]
        return observations

    def _cut(
        self, done: npt.NDArray[np.bool_], observations: npt.NDArray[Any], infos: dict[str, Any]
    ) -> dict[str, Any]:
        """Infos in which the episodes that were not ``done`` end with the current observations."""
        final = infos.get("final_obs", np.empty(self.num_envs, dtype=object)).copy()
        for lane in np.flatnonzero(~done):
            final[lane] = observations[lane].copy()
        everywhere = np.ones(self.num_envs, dtype=np.bool_)
        ends = {"final_obs": final, "_final_obs": everywhere, "_final_info": everywhere.copy()}
        return {**infos, **ends, "final_info": infos.get("final_info", {})}

    def _told(self, task: str) -> dict[str, Any]:
        names = np.full(self.num_envs, task, dtype=object)
        return {"task": names, "_task": np.ones(self.num_envs, dtype=np.bool_)}

    def close_extras(self, **kwargs: Any) -> None:
        """Close all the environments."""
        for env in self.envs.values():
            env.close(**kwargs)

    def __repr__(self) -> str:
        return f"SwitchingVectorEnv({list(self.envs)}, num_envs={self.num_envs}, task={self.task!r})"


def _made(arguments: Arguments, envs: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The environments by name, made where they are functions, if their spaces are equal."""
    if not isinstance(envs, Mapping) or len(envs) < 2:
        raise OwlTypeError(
            f"{arguments.where}: envs is {envs!r}; expected a dict of at least 2 environments by name"
        )
    made: dict[str, Any] = {
        name: env if isinstance(env, kind) or not callable(env) else env() for name, env in envs.items()
    }
    for name, env in made.items():
        arguments.text("a task's name", name)
        arguments.instance(
            f"envs[{name!r}]", env, kind, f"a gymnasium {kind.__name__}, or a function for one"
        )
    arguments.check(kind=OwlTypeError)
    if len({id(env) for env in made.values()}) < len(made):
        arguments.problem("envs has one environment twice; expected one per task")
    first = next(iter(made.values()))
    for name, env in made.items():
        for space in ("observation_space", "action_space"):
            if (got := getattr(env, space)) != (expected := getattr(first, space)):
                arguments.problem(f"{name!r} has {space} {got}; expected {expected}, as the first has")
    arguments.check()
    return made


def _settable(env: object, name: str) -> bool:
    """Whether an attribute can be set: it is no property, or one with a setter."""
    found = getattr(type(env), name, None)
    return not isinstance(found, property) or found.fset is not None
