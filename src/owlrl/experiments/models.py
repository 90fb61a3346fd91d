"""The user's model, of any library: how it is trained in an environment and how it acts."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from owlrl._arguments import kind_of
from owlrl.acting.episodes import EpisodePolicy
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.learners import DQN, SAC

__all__ = [
    "Envs",
    "History",
    "Watch",
    "described",
    "greedy_policy",
    "load_model_state",
    "model_state",
    "train_model",
]

SB3 = ("stable_baselines3", "sb3_contrib")
EXPECTED = (
    "expected a Gymnasium id such as 'CartPole-v1', a function f(seed) that makes the environment, or a pair "
    "of them for training and evaluation"
)


class Watch:
    """What `compare` passes to a training: it watches, saves the work, and knows how much of it is done.

    Pass it on to `train_model`. A method that prepares something before a task does so only if no step of
    the visit is done yet.

    Attributes:
        done: steps of this visit that were made before, in a process that was stopped; 0 at its beginning.
        goal: when the steps of this visit so far reach it, the visit is over; None until that is known.

    >>> from owlrl.experiments import Watch
    >>> Watch().done
    0
    """

    done: int = 0
    goal: int | None = None

    def __call__(self, seen: int) -> None:
        """Called after each step of the environment with the visit's steps so far."""

    def border(self) -> None:
        """Called where the model can be saved and resumed exactly."""


class Envs(dict[str, Any]):
    """The training environments of a run by task, as its method sees them.

    Args:
        fresh: makes a new environment of a task, as the first one was made.

    >>> from owlrl.experiments import Envs
    >>> Envs(str.upper).fresh("left")
    'LEFT'
    """

    def __init__(self, fresh: Callable[[str], Any]) -> None:
        super().__init__()
        self.fresh = fresh


def is_sb3(thing: Any) -> bool:
    """Whether an object's class comes from Stable-Baselines3 or is derived from one that does."""
    return any(base.__module__.partition(".")[0] in SB3 for base in type(thing).__mro__)


def is_known(model: Any) -> bool:
    """Whether a model trains in an environment that it is given, as Stable-Baselines3's and ours do."""
    return is_sb3(model) or isinstance(model, DQN | SAC)


def make_env(task: Any, seed: int, *, training: bool = False) -> Any:
    """The environment of a task: a Gymnasium id, a factory ``f(seed)`` or ``f()``, or a pair of these.

    The seed is passed where the factory has a parameter ``seed`` or cannot be called without an argument. Of
    a pair the first is for training, the second for evaluation.
    """
    if isinstance(task, tuple) and len(task) == 2:
        task = task[0 if training else 1]
    if isinstance(task, str):
        return gymnasium.make(task)
    if not callable(task):
        raise OwlTypeError(f"compare: a task is {kind_of(task)}; {EXPECTED}")
    try:
        parameters = inspect.signature(task).parameters
    except (TypeError, ValueError):  # a callable of C
        return task(seed)
    if "seed" in parameters and parameters["seed"].kind is not inspect.Parameter.POSITIONAL_ONLY:
        return task(seed=seed)
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters.values() if p.kind in positional and p.default is p.empty]
    return task(seed) if needed else task()


def seed_env(env: Any, seed: int) -> None:
    """Seed an environment, a vector of them or a ``VecEnv``, and what it draws actions from."""
    if is_sb3(env):
        env.seed(seed)
        env.reset()  # takes the seeds, which the first reset of the training would keep
    else:
        env.reset(seed=seed)
    env.action_space.seed(seed)


def share_statistics(source: Any, target: Any) -> None:
    """Give one ``VecNormalize`` the current statistics of another; other environments are unchanged."""
    if is_sb3(source) and is_sb3(target):
        from stable_baselines3.common.vec_env import sync_envs_normalization

        sync_envs_normalization(source, target)


def train_model(
    model: Any, env: Any, steps: int, *, watch: Watch | None = None, restart: bool = False
) -> None:
    """Train a model in ``env`` for some steps, in its own way.

    A Stable-Baselines3 model and one of `owlrl.learners` by its ``learn``, any other object by its
    ``train(steps)``, after its ``set_env(env)`` (or, where it has none, with ``env`` as its attribute).

    Args:
        model: what ``make_model`` returned.
        env: to train in; None keeps the model's own.
        steps: over all copies of the environment; ``watch.done`` of them have been made before.
        watch: watches the training; an object with ``train`` is not watched while it trains.
        restart: the model explores and warms up as at the beginning, where it has a schedule for that.

    >>> import gymnasium
    >>> from owlrl.experiments import train_model
    >>> from owlrl.learners import DQN
    >>> env = gymnasium.make("CartPole-v1")
    >>> model = DQN(env, seed=0)
    >>> train_model(model, env, 100)
    >>> model.epsilon.seen
    100
    """
    watch = Watch() if watch is None else watch
    env = None if watch.done else env  # it was given to the model when the model was put back
    if is_sb3(model):
        _train_sb3(model, env, steps, watch, restart=restart)
    elif isinstance(model, DQN | SAC):
        _train_own(model, env, steps, watch, restart=restart)
    else:
        check_model(model)
        if env is not None:
            _set_env(model, env)
        model.train(steps)


def check_model(model: Any) -> None:
    """Raise unless a model is one that `train_model` can train."""
    is_script = callable(getattr(model, "train", None)) and hasattr(model, "learner")
    if not (is_known(model) or is_script):
        raise OwlTypeError(
            f"compare: make_model returned {kind_of(model)}; expected a Stable-Baselines3 model, a "
            "learner of owlrl.learners, or an object with train(steps) and learner (e.g. a QLearner)"
        )


def _train_sb3(model: Any, env: Any, steps: int, watch: Watch, *, restart: bool) -> None:
    from owlrl.adapters.sb3.state import at_border

    if env is not None:
        model.set_env(env)
        if model.num_timesteps == 0 and model.seed is not None:
            model.env.seed(model.seed)  # as a new model does with the environment that it is made for
    done, begun = watch.done, 0 if restart and not watch.done else int(model.num_timesteps)

    def look(local: Any, scope: Any) -> bool:
        watch(done + int(model.num_timesteps) - begun)
        return True

    remove = at_border(model, watch.border)
    try:
        model.learn(steps - done, callback=look, reset_num_timesteps=restart and not done)
    finally:
        remove()


def _train_own(model: DQN | SAC, env: Any, steps: int, watch: Watch, *, restart: bool) -> None:
    done = watch.done
    if restart and not done and isinstance(model, DQN):
        model.epsilon.load_state_dict({"seen": 0})
    if env is not None:
        model.set_env(env)
    if watch.goal is None:  # environments step together: what was made too much before counts for this visit
        watch.goal = steps - model.loop_state()["ahead"]
    goal = watch.goal

    def look(agent: DQN | SAC, seen: int) -> None:
        watch(done + seen)
        if done + seen < goal:
            watch.border()

    model.learn(goal - done if done else steps, callback=look)


def _set_env(model: Any, env: Any) -> None:
    if hasattr(model, "set_env"):
        model.set_env(env)
    else:
        model.env = env


def model_state(model: Any) -> dict[str, Any]:
    """Everything that another process needs to continue with a model, as plain data, except its environment.

    >>> import gymnasium
    >>> from owlrl.experiments import model_state
    >>> from owlrl.learners import DQN
    >>> "replay" in model_state(DQN(gymnasium.make("CartPole-v1")))
    True
    """
    if is_sb3(model):
        from owlrl.adapters.sb3 import state as whole

        return whole.model_state(model)
    if all(callable(getattr(model, name, None)) for name in ("state_dict", "load_state_dict")):
        state: dict[str, Any] = model.state_dict()
        return state
    raise OwlStateError(
        f"the model, {kind_of(model)}, has no state_dict() and load_state_dict(state); with them it "
        "could continue after the last task"
    )


def load_model_state(model: Any, state: Mapping[str, Any], env: Any) -> None:
    """Continue from what `model_state` returned, in ``env``, which was restored as well.

    >>> import gymnasium
    >>> from owlrl.experiments import load_model_state, model_state
    >>> from owlrl.learners import DQN
    >>> one, other = (DQN(gymnasium.make("CartPole-v1"), seed=seed) for seed in range(2))
    >>> one.learn(10)
    >>> load_model_state(other, model_state(one), one.env)
    >>> other.epsilon.seen
    10
    """
    if is_sb3(model):
        from owlrl.adapters.sb3 import state as whole

        model.set_env(whole.put_back(model, env))
        whole.load_model_state(model, state)
        return
    _set_env(model, env)
    model.load_state_dict(state)


def described(model: Any) -> Any:
    """What `OwlWrapper` is given for a model: of a script its ``learner``.

    >>> import gymnasium
    >>> from owlrl.experiments import described
    >>> from owlrl.learners import DQN
    >>> type(described(DQN(gymnasium.make("CartPole-v1")))).__name__
    'DQN'
    """
    if is_sb3(model) or hasattr(model, "describe"):
        return model
    return getattr(model, "learner", model)


def greedy_policy(model: Any) -> EpisodePolicy:
    """A model's greedy actions as a policy for `owlrl.acting.episodes.run_episodes`; it observes nothing.

    By the model's ``predict``; a script without one acts by its ``learner``, with the head that is active.

    >>> import gymnasium
    >>> from owlrl.experiments import greedy_policy
    >>> from owlrl.learners import DQN
    >>> env = gymnasium.make("CartPole-v1")
    >>> greedy_policy(DQN(env, seed=0)).act(env.reset(seed=0)[0]) in (0, 1)
    True
    """
    if is_sb3(model):
        return Acting(lambda observation, single: model.predict(observation, deterministic=True)[0])
    if callable(getattr(model, "predict", None)):
        return Acting(lambda observation, single: _first(model.predict(observation)))
    check_model(model)
    try:
        _ = model.learner.networks
    except OwlStateError:  # networks that have no head yet cannot be asked otherwise
        model.learner.bind()
    return Acting(lambda observation, single: _by_learner(model.learner, observation, single))


def random_policy(env: Any, seed: int) -> EpisodePolicy:
    """Uniformly random actions in ``env``."""
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    if is_sb3(env):
        return Acting(lambda observation, single: np.array([space.sample() for _ in range(env.num_envs)]))
    return Acting(lambda observation, single: space.sample())


class Acting:
    """A function from observations to actions, as a policy."""

    def __init__(self, act: Callable[[Any, bool], Any]) -> None:
        self._act = act
        self._single = True

    def reset(
        self, *, num_envs: int | None = None, keep_evidence: bool = False, mask: np.ndarray | None = None
    ) -> None:
        if mask is None:
            self._single = num_envs is None

    def act(self, observation: Any) -> Any:
        action = self._act(observation, self._single)
        return action.item() if self._single and np.ndim(action) == 0 and hasattr(action, "item") else action

    def observe(self, *transition: Any, mask: np.ndarray | None = None) -> None:
        """Nothing is learned from it."""


def _first(action: Any) -> Any:
    """Actions alone, where a script's ``predict`` gives a state beside them."""
    return action[0] if isinstance(action, tuple) else action


def _by_learner(learner: Any, observation: Any, single: bool) -> Any:
    if isinstance(observation, Mapping):
        parts = {key: np.asarray(part) for key, part in observation.items()}
        batch = learner.prepare({key: part[None] if single else part for key, part in parts.items()})
    else:
        batch = torch.as_tensor(np.asarray(observation))
        batch = batch.unsqueeze(0) if single else batch
    head = next(iter(learner.networks.values())).pointer.index
    actions = learner.act(batch, torch.full((len(batch),), head)).cpu().numpy()
    return actions[0] if single else actions


class History(gymnasium.Wrapper[Any, Any, Any, Any]):
    """The last n steps as part of the observation: a learner with one head can distinguish tasks by them.

    The observation is one vector: the observation now, then for each of the last n steps its observation,
    its action (one-hot if discrete) and its reward; zeros where an episode has had fewer. A dict of
    observations stays one, with the last n steps under "history".

    Args:
        env: a single environment; other observations than dicts are flattened.
        steps: n.

    >>> import gymnasium
    >>> from owlrl.experiments import History
    >>> env = History(gymnasium.make("CartPole-v1"), steps=2)
    >>> env.observation_space.shape  # 4 + 2 · (4 + 2 + 1)
    (18,)
    >>> _ = env.reset(seed=0)
    >>> env.step(1)[0][-3:].tolist()  # the action and the reward of the step before
    [0.0, 1.0, 1.0]
    """

    def __init__(self, env: gymnasium.Env[Any, Any], steps: int = 8) -> None:
        if getattr(env, "num_envs", None) is not None:
            raise OwlTypeError(
                "History: env is a vector of environments; expected a single one: wrap each of them before "
                "they are put side by side, or leave the method with history out"
            )
        super().__init__(env)
        self.steps = steps
        self._seen = int(gymnasium.spaces.flatdim(env.observation_space))
        self._acted = int(gymnasium.spaces.flatdim(env.action_space))
        self._past = np.zeros((steps, self._seen + self._acted + 1), np.float32)
        self._now = np.zeros(self._seen, np.float32)
        self._is_dict = isinstance(env.observation_space, gymnasium.spaces.Dict)
        self.observation_space = self._space(env.observation_space)

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, with nothing before it."""
        observation, info = self.env.reset(**options)
        self._past[:] = 0.0
        return self._show(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step, which is the newest of the history afterwards."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        acted = gymnasium.spaces.flatten(self.env.action_space, action)
        self._past = np.roll(self._past, -1, axis=0)
        self._past[-1] = np.concatenate(
            [self._now, np.asarray(acted, np.float32), [np.float32(float(reward))]]
        )
        return self._show(observation), reward, terminated, truncated, info

    def _space(self, seen: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        if not isinstance(seen, gymnasium.spaces.Dict):
            size = self._seen + self._past.size
            return gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        if "history" in seen.spaces:
            raise OwlValueError(
                f"History: the observations have the parts {list(seen.spaces)}; expected none called "
                "'history'; rename it"
            )
        past = gymnasium.spaces.Box(-np.inf, np.inf, (self._past.size,), np.float32)
        return gymnasium.spaces.Dict({**seen.spaces, "history": past})

    def _show(self, observation: Any) -> Any:
        flat = gymnasium.spaces.flatten(self.env.observation_space, observation)
        self._now = np.asarray(flat, np.float32)
        if self._is_dict:
            return {**observation, "history": self._past.ravel().copy()}
        return np.concatenate([self._now, self._past.ravel()])
