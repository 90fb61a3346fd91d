"""`ControlSession`: the parts of a run with continuous actions, put together: SAC on Pendulums."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from owlrl import (
    AdaptivePolicy,
    OracleSelector,
    OwlWrapper,
    TaskScopedReplay,
)
from owlrl.acting.stepping import final_observations
from owlrl.checkpoint import load_state, save_state
from owlrl.envs import PendulumVectorEnv, TaskSpec
from owlrl.envs.vector import ArrayVectorEnv
from owlrl.errors import OwlError, OwlValueError
from owlrl.experiments.config import Run
from owlrl.experiments.episodes import FloatArray, LaneStep, run_lanes
from owlrl.experiments.evidence import make_evidence
from owlrl.experiments.policies import parse_policy
from owlrl.experiments.session import Session, acting_policy
from owlrl.learners import SAC
from owlrl.wrapper_state import restore_wrapper, wrapper_state

__all__ = ["ControlSession", "PendulumLanes", "final_angles", "load_session"]

ONE_HEAD = "every task"  # what a learner with one head takes all tasks for


def final_angles(angles: FloatArray, *, last: int = 50) -> FloatArray:
    """Mean direction of the pole over the last steps, in degrees; (T, E) radians → (E,).

    It is the direction of the mean of unit vectors: 179° and −179° give 180°, and not 0°.

    >>> import numpy as np
    >>> from owlrl.experiments.control import final_angles
    >>> final_angles(np.radians([[50.0, 10.0], [179.0, 10.0], [-179.0, 20.0]]), last=2).round(6)
    array([180.,  15.])
    """
    ends = angles[-last:]
    found: FloatArray = np.degrees(np.arctan2(np.sin(ends).mean(0), np.cos(ends).mean(0)))
    return found


class PendulumLanes:
    """Pendulums side by side, ``copies`` lanes of each: lanes 0 … copies − 1 are the first task's.

    All tasks start in the same states, so that they and the ways to act are compared on equal terms.

    Attributes:
        angles: (E,) of the pole in radians, after each step so far.

    >>> from owlrl.envs import pendulums
    >>> from owlrl.experiments.control import PendulumLanes
    >>> lanes = PendulumLanes(list(pendulums([90, -90]).values()), 3, seed=0)
    >>> lanes.reset().shape
    (6, 3)
    >>> import numpy as np
    >>> bool(lanes.step(np.zeros((6, 1))).ended.any())
    False
    """

    def __init__(self, specs: Sequence[TaskSpec], copies: int, *, seed: int) -> None:
        self.copies = copies
        self.num_lanes = len(specs) * copies
        self.angles: list[FloatArray] = []
        self._seed = seed
        self._envs = [PendulumVectorEnv(copies, **spec.kwargs) for spec in specs]

    def reset(self) -> np.ndarray:
        """Begin in every lane; the first observations (E, 3)."""
        self.angles = []
        return np.concatenate([env.reset(seed=self._seed)[0] for env in self._envs])

    def step(self, actions: np.ndarray) -> LaneStep:
        """Step every lane; where an episode ends, the next one begins."""
        parts = [
            self._step(env, actions[k * self.copies : (k + 1) * self.copies])
            for k, env in enumerate(self._envs)
        ]
        step = LaneStep(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        self.angles.append(np.arctan2(step.final[:, 1], step.final[:, 0]).astype(np.float64))
        return step

    @staticmethod
    def _step(env: PendulumVectorEnv, actions: np.ndarray) -> tuple[Any, ...]:
        observation, reward, terminated, truncated, info = env.step(actions)
        final = final_observations(observation, info)
        return observation, final, reward, terminated, truncated, np.zeros_like(terminated)


class ControlSession:
    """A SAC, its replay, its regularizer and its evidence, as a `Run` with continuous actions says.

    It has what a `Session` has. A method with one head takes all tasks for one that comes back.

    Attributes:
        run: what was asked for.
        tasks: the tasks by name.
        agent: the learner.
        learner: the agent as `OwlWrapper` sees it.
        evidence: all evidence that the run's policies need.
        heads: the head of each task that was learned.

    >>> from owlrl.experiments import ControlSession, Run
    >>> session = ControlSession(Run("owlrl/Pendulum-v0:90,-90", policies=("oracle",), num_envs=4))
    >>> with session.task("pendulum+90") as head:
    ...     session.agent.learn(520)
    >>> head, session.heads, session.agent.updates
    (0, {'pendulum+90': 0}, 20)
    """

    def __init__(self, run: Run) -> None:
        if not run.control:
            raise OwlValueError(f"ControlSession: tasks is {run.tasks!r}; a Session is for discrete actions")
        self.run = run
        self.tasks = run.specs
        self.agent = _make_agent(run, self.env(next(iter(self.tasks))))
        self.learner = self.agent.describe(init=run.recipe.init)
        names = {parse_policy(name, control=True).evidence for name in run.acting}
        self.evidence = make_evidence(names, seed=run.seed, control=True)
        self.heads: dict[str, int] = {}
        make = run.recipe.regularizer
        strength = run.recipe.control or {} if run.strength is None else run.strength
        regularizer = None if make is None else make(strength, run.seed)
        self._owl = OwlWrapper(self.learner, regularizer=regularizer, evidence=self.evidence)

    def env(self, task: str) -> PendulumVectorEnv:
        """The task as it is trained in: copies of it."""
        return PendulumVectorEnv(self.run.num_envs, **self.tasks[task].kwargs)

    @contextmanager
    def task(self, name: str, env: ArrayVectorEnv | None = None) -> Iterator[int]:
        """Learn a task inside the block, by default in a new environment; gives the head that is trained."""
        env = env or self.env(name)
        with self._owl.task(name if self.run.recipe.heads else ONE_HEAD, env=env) as record:
            yield record.head
        self.heads[name] = record.head

    def policy(self, name: str, truth: Sequence[str]) -> AdaptivePolicy:
        """A policy by name; the oracle is given ``truth``, the task of each lane it will act in."""
        return acting_policy(self, name, truth)

    def lanes(self, tasks: Sequence[TaskSpec], copies: int) -> PendulumLanes:
        """Where episodes for an evaluation run; the same starts each time."""
        return PendulumLanes(tasks, copies, seed=10_000 + self.run.seed)

    def score(self, task: str, head: int) -> float:
        """Mean return of some episodes with the task given."""
        told = AdaptivePolicy(self.learner, OracleSelector(0), None, {task: head})
        return float(run_lanes(told, self.lanes([self.tasks[task]], self.run.episodes)).returns.mean())

    def state_dict(self) -> dict[str, Any]:
        """All that it takes to go on learning, bit for bit; inside a task all but its environment."""
        return {"learner": self._owl.state_dict(), "heads": dict(self.heads)}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Go on from what ``state_dict`` gave; for a session that is new."""
        self._owl.load_state_dict(state_dict["learner"])
        self.heads = dict(state_dict["heads"])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what acting needs to a file, atomically: networks, heads and evidence; no replay."""
        parts = {"evidence": self.evidence}
        state = {"run": self.run.to_json(), "heads": self.heads}
        save_state(path, {**state, "control": wrapper_state(self.learner, self._owl.tasks, parts)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ControlSession:
        """A session that acts as the saved one did; its replay and its regularizer are empty."""
        state = load_state(path)
        if not isinstance(state, dict) or set(state) != {"run", "heads", "control"}:
            raise OwlValueError(f"ControlSession.load: {path} is a checkpoint of something else")
        session = cls(Run.from_json(state["run"]))
        parts = {"evidence": session.evidence}
        session._owl.tasks.update(restore_wrapper(session.learner, state["control"], parts))
        session.heads = {task: int(head) for task, head in state["heads"].items()}
        return session


def load_session(path: str | os.PathLike[str]) -> Session | ControlSession:
    """What a session of either kind has saved.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.experiments import Run, Session
    >>> from owlrl.experiments.control import load_session
    >>> path = Path(tempfile.mkdtemp()) / "session.safetensors"
    >>> Session(Run("Crossroads-2", policies=("oracle",))).save(path)
    >>> load_session(path).run.tasks
    'Crossroads-2'
    """
    state = load_state(path)
    own = isinstance(state, dict) and "control" in state
    try:
        return ControlSession.load(path) if own else Session.load(path)
    except (RuntimeError, TypeError, KeyError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, OwlError) and str(path) in str(error):
            raise
        what = " ".join(f"{error}".split())
        raise OwlValueError(
            f"{path} does not fit this version of owlrl ({type(error).__name__}: {what[:200]}); train again"
        ) from error


def _make_agent(run: Run, env: PendulumVectorEnv) -> SAC:
    settings = run.sac
    common: dict[str, Any] = {
        "observation_space": env.single_observation_space,
        "action_space": env.single_action_space,
        "num_envs": env.num_envs,
        "gamma": settings.gamma,
        "seed": run.seed,
    }
    if run.recipe.replay == "shared":  # one task as far as the wrapper knows; room for all, as in the paper
        room = settings.buffer_size * len(run.specs)
        replay = TaskScopedReplay(room, warm_start=room, **common)
    else:
        replay = TaskScopedReplay(settings.buffer_size, warm_start=run.recipe.warm_start, **common)
    return SAC(env, config=settings, replay=replay, seed=run.seed, device="cpu", compile=run.compile)
