"""The methods of `compare`: ways to learn task after task with the user's model."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from owlrl import (
    EWCRegularizer,
    ExpWeightsSelector,
    ModelEvidence,
    OwlWrapper,
    RehearsalReplay,
    TDErrorEvidence,
)
from owlrl._arguments import kind_of
from owlrl.acting.episodes import EpisodePolicy, Evaluation, run_episodes
from owlrl.describe.given import as_env
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.experiments._optional import imported
from owlrl.experiments.models import (
    Envs,
    History,
    Watch,
    check_model,
    described,
    greedy_policy,
    is_known,
    is_sb3,
    load_model_state,
    model_state,
    random_policy,
    train_model,
)
from owlrl.learners import DQN, SAC
from owlrl.protocols import HeadSelector

__all__ = ["Learned", "Method", "Score", "Wrapped", "register_method"]

GIVEN, UNKNOWN = "given", "unknown"
Row = dict[str, Any]
STRENGTH = 100.0  # of EWC; nothing was tuned for the user's tasks
UNTRAINED = "untrained"
MakeModel = Callable[[Any, int], Any]


@dataclass(frozen=True)
class Score:
    """Results of some episodes of one task.

    Attributes:
        returns: (n,) undiscounted sums of reward.
        found: share of episodes at whose last step the right task was the most probable; None if the task was
            given or there is nothing to find.
        steps: mean number of steps until the right task was the most probable and stayed so.
        success: share of episodes that ended with success; None where there is no such thing.

    >>> import numpy as np
    >>> from owlrl.experiments import Score
    >>> Score(np.array([1.0, 0.0])).mean
    0.5
    """

    returns: np.ndarray
    found: float | None = None
    steps: float | None = None
    success: float | None = None

    @classmethod
    def of(cls, found: Evaluation) -> Score:
        """The score of episodes; if their true task is known, also whether it was found."""
        share = steps = None
        if found.true_task is not None:
            share = float(found.found.mean())
            steps = float(np.where(found.found, found.steps_to_find, found.lengths).mean())
        success = None if found.success is None else float(found.success.mean())
        return cls(found.returns, share, steps, success)

    @property
    def mean(self) -> float:
        """Mean of the returns."""
        return float(np.mean(self.returns))


class Learned:
    """What a method has learned so far; `compare` trains it task after task and evaluates it.

    Your own method overrides `train`, and `policy` if acting is more than the greedy actions of ``model``.

    Attributes:
        modes: the ways in which it can act, by name: "given" the task, with the task "unknown", or any names
            that `policy` or `score` understands. The first one stands in pictures.
        followed: those that are evaluated after each task; all are after the last one. None for all.
        watching: the mode whose learning curve it is; None for the first one.
        together: whether `rows` is given all tasks of a set at once, not one after the other.
        model: the model in training; learning curves ask it.

    >>> from owlrl.experiments import Learned
    >>> Learned().modes
    ('unknown',)
    """

    modes: tuple[str, ...] = (UNKNOWN,)
    followed: tuple[str, ...] | None = None
    watching: str | None = None
    together: bool = False
    model: Any = None

    def train(self, task: str, env: Any, steps: int, watch: Watch | None = None) -> None:
        """Train in ``env`` for ``steps`` steps; ``watch`` is passed on to `train_model`.

        After `load_state_dict`, ``watch.done`` of the steps may have been made before: then the visit
        continues, and preparations before a task have been made.
        """
        raise OwlStateError(f"{type(self).__name__} has no train(task, env, steps, watch)")

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs in another process, as plain data (`model_state` of a model).

        Without it a run that is stopped starts over.
        """
        raise OwlStateError(f"{type(self).__name__} has no state_dict() and load_state_dict()")

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Envs, task: str) -> None:
        """Continue from what `state_dict` returned, right after `Method.start`.

        Args:
            state_dict: what it gave.
            envs: the environments of the tasks, each as it was; ``envs.fresh(task)`` makes a new one.
            task: the one that is or was trained last; the model continues in ``envs[task]``.
        """
        raise OwlStateError(f"{type(self).__name__} has no load_state_dict(state, envs, task)")

    def numbers(self) -> dict[str, float]:
        """Numbers to watch in training, for TensorBoard; a wrapper's `OwlWrapper.numbers`."""
        return {}

    def policy(self, task: str | None, seed: int) -> EpisodePolicy | None:
        """How it acts, ``task`` being None where it is unknown; None if it cannot act in that task yet."""
        return greedy_policy(self.model)

    def score(self, env: Any, task: str, *, mode: str, episodes: int, seed: int) -> Score | None:
        """Run episodes of ``task`` in ``env``; None if it cannot act there yet."""
        policy = self.policy(task if mode == GIVEN else None, seed)
        if policy is None:
            return None
        return Score.of(run_episodes(policy, as_env(env), episodes=episodes, seed=seed))

    def watched(self, training: str) -> Sequence[str]:
        """The tasks that have a learning curve while ``training`` is trained."""
        return (training,)

    def look(self, env: Any, task: str, *, episodes: int, seed: int) -> Score:
        """A point of the learning curve of a task that is `watched`: the model's greedy actions in it."""
        return Score.of(run_episodes(greedy_policy(self.model), as_env(env), episodes=episodes, seed=seed))

    def rows(self, envs: Mapping[str, Any], *, mode: str, episodes: int, seed: int, last: bool) -> list[Row]:
        """What a trial records of an evaluation of tasks, each in its ``envs``; ``last`` after all training.

        By default what `score` says of each.
        """
        rows = []
        for task, env in envs.items():
            found = self.score(env, task, mode=mode, episodes=episodes, seed=seed)
            if found is not None:
                row = {"kind": "score", "task": task, "mode": mode, "mean_return": found.mean}
                row |= {"returns": found.returns.tolist(), "found": found.found, "steps": found.steps}
                rows.append(row if found.success is None else {**row, "success": found.success})
        return rows

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what acting needs to a file."""
        raise OwlStateError(f"{type(self).__name__} has no save(path)")

    def info(self) -> dict[str, Any]:
        """What a trial records of it as a whole, besides versions and times."""
        return {}


def default_owl(model: Any, seed: int) -> OwlWrapper:
    """The method "owl": the wrapper with its defaults around a model."""
    return OwlWrapper(described(model), seed=seed)


def default_selector(seed: int) -> HeadSelector:
    """The selector of the method "owl": the wrapper's default, seeded."""
    return ExpWeightsSelector(seed=seed)


class Method:
    """One way to learn task after task. Subclass it, or make an object with the same three names.

    Attributes:
        name: in tables and pictures.
        about: a short description, printed below the table.

    >>> from owlrl.experiments import Learned, Method, train_model
    >>> class FreshModel(Method):
    ...     name, about = "fresh model", "all that was learned is thrown away before each task"
    ...     def start(self, make_model, env, seed):
    ...         return FreshLearned(make_model, seed)
    >>> class FreshLearned(Learned):
    ...     def __init__(self, make_model, seed):
    ...         self.make_model, self.seed = make_model, seed
    ...     def train(self, task, env, steps, watch=None):
    ...         self.model = self.make_model(env, self.seed)
    ...         train_model(self.model, env, steps, watch=watch)
    """

    name: str = ""
    about: str = ""

    def view(self, env: Any) -> Any:
        """The environment as this method sees it, in training and in evaluation."""
        return env

    def start(self, make_model: MakeModel, env: Any, seed: int) -> Learned:
        """Before the first task, whose training environment is ``env``."""
        raise OwlStateError(f"{type(self).__name__} has no start(make_model, env, seed)")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class Wrapped(Method):
    """A model in an `OwlWrapper`: the way to compare regularizers, evidence and selectors.

    Args:
        name: in tables and pictures.
        wrap: ``wrap(model, seed) -> OwlWrapper``; give the wrapper `described` ``(model)``, which is the
            model itself unless it is a script's object.
        selector: ``selector(seed)`` for acting with the task unknown; the default if left out.
        about: a short description.

    >>> from owlrl import EWCRegularizer, OwlWrapper
    >>> from owlrl.experiments import Wrapped, described
    >>> def strong(model, seed):
    ...     return OwlWrapper(described(model), regularizer=EWCRegularizer(5_000.0))
    >>> Wrapped("strong EWC", strong)
    Wrapped('strong EWC')
    """

    def __init__(
        self,
        name: str,
        wrap: Callable[[Any, int], OwlWrapper] = default_owl,
        *,
        selector: Callable[[int], HeadSelector] = default_selector,
        about: str = "",
    ) -> None:
        self.name, self.about = name, about
        self.wrap, self.selector = wrap, selector

    def start(self, make_model: MakeModel, env: Any, seed: int) -> Learned:
        """Make the model and wrap it."""
        model = make_model(env, seed)
        return _OwlLearned(model, self.wrap(model, seed), self.selector)


class _OwlLearned(Learned):
    modes = (GIVEN, UNKNOWN)

    def __init__(self, model: Any, owl: OwlWrapper, selector: Callable[[int], HeadSelector]) -> None:
        self.model, self.owl, self.selector = model, owl, selector

    def train(self, task: str, env: Any, steps: int, watch: Watch | None = None) -> None:
        known = is_known(self.model)  # then the environment comes with the task
        with self.owl.task(task, env=env) if known else self.owl.task(task):
            train_model(self.model, None if known else env, steps, watch=watch)

    def numbers(self) -> dict[str, float]:
        return self.owl.numbers()

    def state_dict(self) -> dict[str, Any]:
        own = {} if is_known(self.model) else model_state(self.model)
        return {"owl": self.owl.state_dict(), "own": own}

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Envs, task: str) -> None:
        if not is_known(self.model):
            load_model_state(self.model, state_dict["own"], envs[task])
        self.owl.load_state_dict(dict(state_dict["owl"]))
        if is_sb3(self.model):
            from owlrl.adapters.sb3.state import put_back

            for name in self.owl.tasks:
                envs[name] = put_back(self.model, envs[name])

    def save(self, path: str | os.PathLike[str]) -> None:
        self.owl.save(path)

    def score(self, env: Any, task: str, *, mode: str, episodes: int, seed: int) -> Score | None:
        known = [name for name, record in self.owl.tasks.items() if record.visits]
        if mode == GIVEN:
            if task not in known:
                return None
            return Score.of(self.owl.evaluate(env, task=task, episodes=episodes, seed=seed))
        chosen: dict[str, Any] = {"selector": self.selector(seed), "episodes": episodes, "seed": seed}
        return Score.of(self.owl.evaluate(env, true_task=task if task in known else None, **chosen))


class _OneModel(Method):
    """One model that goes from task to task, as it is or with another replay or view."""

    def __init__(self, name: str, about: str, learned: type[_OneLearned], history: int = 0) -> None:
        self.name, self.about, self.learned, self.history = name, about, learned, history

    def view(self, env: Any) -> Any:
        return History(env, self.history) if self.history else env

    def start(self, make_model: MakeModel, env: Any, seed: int) -> Learned:
        return self.learned(make_model(env, seed))


class _OneLearned(Learned):
    def __init__(self, model: Any) -> None:
        check_model(model)
        self.model = model
        greedy_policy(model)  # a script's networks get their head before anything is trained

    def train(self, task: str, env: Any, steps: int, watch: Watch | None = None) -> None:
        train_model(self.model, env, steps, watch=watch, restart=True)

    def state_dict(self) -> dict[str, Any]:
        return {"model": model_state(self.model)}

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Envs, task: str) -> None:
        load_model_state(self.model, state_dict["model"], envs[task])


class _EmptiedLearned(_OneLearned):
    _visits = 0

    def train(self, task: str, env: Any, steps: int, watch: Watch | None = None) -> None:
        if not (watch and watch.done):
            self._visits += 1
            if is_sb3(self.model):
                self.model.replay_buffer.reset()
            else:  # under a name that nothing was kept of
                described(self.model).replay.begin_task(f"visit {self._visits}")
        super().train(task, env, steps, watch)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "visits": self._visits}

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Envs, task: str) -> None:
        super().load_state_dict(state_dict, envs, task)
        self._visits = int(state_dict["visits"])


class _RehearsingLearned(_OneLearned):
    """Half of every batch, or every second batch, is of earlier visits, each with the same share."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self._kept: list[Any] = []  # a buffer per visit
        if is_sb3(model):
            if "Her" in type(model.replay_buffer).__name__:
                raise OwlTypeError(
                    f"one head with rehearsal: {type(model.replay_buffer).__name__} cannot be kept"
                )
        elif isinstance(model, DQN | SAC):
            model.replay = _rehearsal_like(model.replay)
        else:
            raise OwlTypeError(
                f"one head with rehearsal: the model is {kind_of(model)}; expected one of "
                "Stable-Baselines3 or owlrl.learners; for a script write a Method that keeps its rows"
            )

    def train(self, task: str, env: Any, steps: int, watch: Watch | None = None) -> None:
        begins = not (watch and watch.done)
        if not is_sb3(self.model):
            if begins:
                self.model.replay.begin_task(task)
            super().train(task, env, steps, watch)
            self.model.replay.end_task()
            return
        buffer = self.model.replay_buffer
        if self._kept:
            if begins:
                buffer.reset()
            _mix(buffer, self._kept)
        super().train(task, env, steps, watch)
        vars(buffer).pop("sample", None)
        self._kept.append(_like(buffer, _buffer_state(buffer)))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "kept": [_buffer_state(buffer) for buffer in self._kept]}

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Envs, task: str) -> None:
        super().load_state_dict(state_dict, envs, task)
        self._kept = [_like(self.model.replay_buffer, kept) for kept in state_dict["kept"]]


def _rehearsal_like(replay: Any) -> RehearsalReplay:
    names = ("observation_shape", "observation_dtype", "action_shape", "action_dtype", "num_envs")
    more = ("sampler", "n_step", "gamma", "seed", "device")
    return RehearsalReplay(replay.capacity, **{name: getattr(replay, name) for name in (*names, *more)})


def _buffer_state(buffer: Any) -> dict[str, Any]:
    from owlrl.adapters.sb3.state import buffer_state

    return buffer_state(buffer)


def _like(buffer: Any, state: Mapping[str, Any]) -> Any:
    """Another Stable-Baselines3 buffer of the same kind, with the rows of ``state`` alone."""
    from owlrl.adapters.sb3.state import load_buffer_state

    kept = copy.copy(buffer)
    load_buffer_state(kept, state, cut=True)
    return kept


def _mix(buffer: Any, earlier: Sequence[Any]) -> None:
    """Let half of every batch that ``buffer`` gives come from the buffers of earlier visits."""
    plain = type(buffer).sample

    def sample(batch_size: int, env: Any = None) -> Any:
        shares = np.bincount(np.arange(batch_size // 2) % len(earlier), minlength=len(earlier)).tolist()
        parts = [plain(buffer, batch_size - batch_size // 2, env=env)]
        parts += [plain(kept, share, env=env) for kept, share in zip(earlier, shares, strict=True) if share]
        return type(parts[0])(*(_joined(column) for column in zip(*parts, strict=True)))

    buffer.sample = sample


def _joined(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
    return None if parts[0] is None else torch.cat(list(parts))


class _Alone(Method):
    name, about = "alone", "a model per task, from scratch: what the learner can do"

    def start(self, make_model: MakeModel, env: Any, seed: int) -> Learned:
        return _AloneLearned(make_model, seed)


class _AloneLearned(Learned):
    modes = (GIVEN,)

    def __init__(self, make_model: MakeModel, seed: int) -> None:
        self._make, self._seed = make_model, seed
        self._models: dict[str, Any] = {}
        self._scores: dict[str, Score | None] = {}  # a model changes in its own training only

    def train(self, task: str, env: Any, steps: int, watch: Watch | None = None) -> None:
        if task not in self._models:
            self._models[task] = _OneLearned(self._make(env, self._seed)).model
        self.model = self._models[task]
        self._scores.pop(task, None)
        train_model(self.model, env, steps, watch=watch)

    def state_dict(self) -> dict[str, Any]:
        return {task: model_state(model) for task, model in self._models.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Envs, task: str) -> None:
        for name, state in state_dict.items():
            self._models[name] = _OneLearned(self._make(envs.fresh(name), self._seed)).model
            load_model_state(self._models[name], state, envs[name])

    def policy(self, task: str | None, seed: int) -> EpisodePolicy | None:
        return greedy_policy(self._models[task]) if task in self._models else None

    def score(self, env: Any, task: str, *, mode: str, episodes: int, seed: int) -> Score | None:
        if task not in self._scores:
            self._scores[task] = super().score(env, task, mode=mode, episodes=episodes, seed=seed)
        return self._scores[task]


class _Random(Method):
    """The reference: random actions, and the model before any training."""

    name, about = "random actions", "uniformly random actions"

    def start(self, make_model: MakeModel, env: Any, seed: int) -> Learned:
        return _RandomLearned(make_model, seed)


class _RandomLearned(Learned):
    modes = (UNKNOWN, UNTRAINED)

    def __init__(self, make_model: MakeModel, seed: int) -> None:
        self._make, self._seed = make_model, seed
        self._scores: dict[tuple[str, str], Score] = {}

    def train(self, task: str, env: Any, steps: int, watch: Watch | None = None) -> None:
        """There is nothing to train."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Envs, task: str) -> None:
        """There is nothing to restore."""

    def score(self, env: Any, task: str, *, mode: str, episodes: int, seed: int) -> Score | None:
        if (task, mode) not in self._scores:
            policy = random_policy(env, seed)
            if mode == UNTRAINED:
                policy = greedy_policy(_OneLearned(self._make(env, self._seed)).model)
            found = run_episodes(policy, as_env(env), episodes=episodes, seed=seed)
            self._scores[task, mode] = Score.of(found)
        return self._scores[task, mode]


def _with_ewc(model: Any, seed: int) -> OwlWrapper:
    return OwlWrapper(
        described(model), regularizer=EWCRegularizer(STRENGTH), evidence=ModelEvidence(seed=seed)
    )


def _paper(model: Any, seed: int) -> OwlWrapper:
    evidence = TDErrorEvidence(calibrated=False, power=2)
    return OwlWrapper(described(model), regularizer=EWCRegularizer(STRENGTH), evidence=evidence)


def _paper_selector(seed: int) -> HeadSelector:
    return ExpWeightsSelector(variant="paper", seed=seed)


RANDOM = _Random()
UNTUNED = f"EWC's strength is {STRENGTH:g}, untuned"
BUILT_IN: dict[str, Method] = {
    method.name: method
    for method in (
        _OneModel("bare", "the model without a wrapper, from task to task", _OneLearned),
        _OneModel("bare, empty replay", "the same with its replay emptied before each task", _EmptiedLearned),
        _Alone(),
        _OneModel("one head with rehearsal", "half of each batch is from earlier tasks", _RehearsingLearned),
        _OneModel(
            "one head with history",
            "rehearsal, and the last 8 observations, actions and rewards as input",
            _RehearsingLearned,
            history=8,
        ),
        Wrapped("owl", about="OwlWrapper(model) with its defaults"),
        Wrapped("owl with EWC", _with_ewc, about=UNTUNED),
        Wrapped(
            "paper", _paper, selector=_paper_selector, about=f"the paper's bandit on TD errors; {UNTUNED}"
        ),
    )
}
ELSEWHERE = {"lpg-ftw": "owlrl.experiments.lpg_ftw:LPGFTW"}  # imported when it is asked for


def register_method(method: Method) -> Method:
    """Make a method known by its name, in `compare` and in ``owlrl compare --methods``.

    Processes get the method itself, so that it works with several jobs and on a cluster.

    >>> from owlrl.experiments import Wrapped, register_method
    >>> from owlrl.experiments.methods import BUILT_IN
    >>> register_method(Wrapped("owl, once more"))
    Wrapped('owl, once more')
    >>> del BUILT_IN["owl, once more"]
    """
    found = find_method(method)
    taken = BUILT_IN.get(found.name, found)
    if found.name in ELSEWHERE or (taken is not found and type(taken).__module__ == __name__):
        raise OwlValueError(f"register_method: {found.name!r} is there already; expected another name")
    BUILT_IN[found.name] = found
    return found


def find_method(method: Any) -> Method:
    """A method by its name, a dotted name ``"package.module:attribute"``, or the object itself.

    A class is called without arguments.
    """
    if isinstance(method, str) and method in BUILT_IN:
        return BUILT_IN[method]
    found = ELSEWHERE.get(method, method) if isinstance(method, str) else method
    if isinstance(found, str):
        if ":" not in found:
            known = ", ".join(map(repr, [*BUILT_IN, *ELSEWHERE]))
            raise OwlValueError(
                f"compare: method is {method!r}; expected one of {known}, or yours as 'package.module:name'"
            )
        found = imported("compare: method", found)
    found = found() if isinstance(found, type) else found
    missing = [name for name in ("name", "view", "start") if not hasattr(found, name)]
    if missing or not found.name:
        raise OwlTypeError(
            f"compare: method is {method!r}, which has no {' and no '.join(missing) or 'name'}; expected an "
            "object of a subclass of owlrl.experiments.Method"
        )
    checked: Method = found
    return checked
