"""LPG-FTW: policies made of shared columns, trained by natural policy gradients, as a method of `compare`.

Written from the description of the method by Mendez, Wang and Eaton (NeurIPS 2020), which the paper compares
with on its pendulums. What was chosen here is in docs/deviations.md.

Shapes: N rows, n features, A numbers per action, k columns, c coordinates, T tasks. A policy θ (A, n + 1) has
for each number of an action n weights of its mean and, last, the log of its deviation.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from owlrl._arguments import Arguments, own_generator, restored_generator
from owlrl.acting.episodes import EpisodePolicy, Stepper, run_episodes
from owlrl.describe.given import as_env
from owlrl.describe.outputs import ActionBox
from owlrl.errors import NonFiniteError, OwlTypeError
from owlrl.experiments.methods import GIVEN, Learned, MakeModel, Method, Score
from owlrl.experiments.models import Acting, Envs, Watch
from owlrl.replay.ring import spaces_of

__all__ = ["LPGFTW"]

Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
STD, BOUNDS = 0.6, (-4.0, 1.0)  # deviation of θ = 0, as a share of half the range; bounds of its logarithm
LAMBDA, DAMPING, VALUE_RIDGE = 0.98, 1e-2, 1e-4  # of advantages, of natural steps, of the fitted values
KEY = 7  # tells its random numbers from those of other parts with the same seed


def mean_and_std(features: Array, theta: Array) -> tuple[Array, Array]:
    """The Gaussian policy: (N, n), (A, n + 1) → means (N, A) and deviations (A,)."""
    log_std = np.minimum(np.maximum(theta[:, -1], BOUNDS[0]), BOUNDS[1])  # faster than np.clip
    return features @ theta[:, :-1].T, STD * np.exp(log_std)


def policy_gradient(features: Array, drawn: Array, theta: Array, advantages: Array) -> Array:
    """Mean of ∇ log π · advantage: (N, n), (N, A), (A, n + 1), (N,) → (A, n + 1)."""
    mean, std = mean_and_std(features, theta)
    scaled = (drawn - mean) / std
    weights = (scaled / std * advantages[:, None]).T @ features / len(features)
    return np.column_stack([weights, ((scaled**2 - 1.0) * advantages[:, None]).mean(0)])


def fisher(features: Array, theta: Array) -> Array:
    """Fisher information of the policy at given rows, a block per number of an action.

    (N, n), (A, n + 1) → (A, n + 1, n + 1): φφᵀ / σ² in the mean over rows, and 2 for log σ.
    """
    (_, n), (actions, _) = features.shape, theta.shape
    blocks = np.zeros((actions, n + 1, n + 1))
    blocks[:, n, n] = 2.0
    std = mean_and_std(features, theta)[1]
    blocks[:, :n, :n] = (features.T @ features / len(features)) / std[:, None, None] ** 2
    return blocks


def natural_step(gradient: Array, information: Array, *, kl: float) -> tuple[Array, float]:
    """The step η F⁻¹ g with ½ stepᵀ F step = ``kl``, and η; (c,), (c, c) → (c,), number.

    F is damped by a small share of its mean diagonal, so that it has an inverse.
    """
    damped = information + DAMPING * (np.trace(information) / len(gradient)) * np.eye(len(gradient))
    direction = np.linalg.solve(damped, gradient)
    eta = (2.0 * kl / max(float(gradient @ direction), 1e-12)) ** 0.5
    return eta * direction, eta


def in_coordinates(basis: Array, gradient: Array, information: Array) -> tuple[Array, Array]:
    """Gradient and Fisher information with regard to x in θ = θ₀ + basis · x, by the chain rule.

    (A, n + 1, c), (A, n + 1), (A, n + 1, n + 1) → (c,), (c, c).
    """
    along = np.einsum("aic,ai->c", basis, gradient)
    return along, np.einsum("aic,aij,ajd->cd", basis, information, basis, optimize=True)


def fitted_columns(targets: Array, codes: Array, curvatures: Array, *, ridge: float) -> Array:
    """The L that minimizes Σ (θ − L s)ᵀ H (θ − L s) / T + ``ridge`` ‖L‖² over tasks, in closed form.

    Targets θ (T, A, n + 1), codes s (T, k), curvatures H (T, A, n + 1, n + 1) → L (A, n + 1, k). Blocks of H
    do not meet, so that each number of an action has its own linear system of k (n + 1) unknowns.
    """
    (tasks, actions, size), k = targets.shape, codes.shape[1]
    found = np.zeros((actions, size, k))
    for action in range(actions):
        left = np.einsum("tij,tp,tq->ipjq", curvatures[:, action], codes, codes, optimize=True) / tasks
        right = np.einsum("tij,tj,tp->ip", curvatures[:, action], targets[:, action], codes) / tasks
        system = left.reshape(size * k, size * k) + ridge * np.eye(size * k)
        found[action] = np.linalg.solve(system, right.ravel()).reshape(size, k)
    return found


def fitted_values(
    features: Array, following: Array, rewards: Array, terminated: BoolArray, *, gamma: float
) -> Array:
    """Weights of a linear value function (LSTD): (N, n), (N, n), (N,), (N,) → (n,)."""
    ahead = features - gamma * following * ~terminated[:, None]
    system = features.T @ ahead / len(features) + VALUE_RIDGE * np.eye(features.shape[1])
    return np.linalg.solve(system, features.T @ rewards / len(features)).astype(np.float64)


def advantages_of(errors: Array, ended: BoolArray, *, decay: float) -> Array:
    """Sums of later TD errors of the same episode, each ``decay`` times the one before; (S, E) → (S, E)."""
    found, later = np.zeros_like(errors), np.zeros(errors.shape[1])
    for step in reversed(range(len(errors))):
        later = found[step] = errors[step] + np.where(ended[step], 0.0, decay * later)
    return found


class LPGFTW(Method):
    """LPG-FTW: the policy of task t is θₜ = L sₜ, with columns L that all tasks share.

    Each of the first k tasks adds the column that it lacks. All others train their codes sₜ alone, by natural
    policy gradients, and at times L is fitted again to the policies of all tasks. It has its own policy: the
    model of the comparison is not used. Actions must be a bounded Box; the task is given.

    Args:
        name: in tables and pictures.
        columns: k, the number of columns of L.
        times: how many times the steps of the comparison it makes. In the paper it has 2.5 times as many
            gradient steps as SAC, which makes one per step; learning curves are over the comparison's steps.
        batch: steps of the environment per natural step.
        kl: how far a natural step moves the policy.
        refit: natural steps between two fits of L.
        gamma: discount.
        features: random Fourier features of the observation, beside the observation itself.
        ridge: weight of ‖L‖².
        sparsity: weight of ‖sₜ‖₁.

    >>> from functools import partial
    >>> from owlrl.envs import PendulumVectorEnv
    >>> from owlrl.experiments import compare
    >>> from owlrl.experiments.lpg_ftw import LPGFTW
    >>> from owlrl.learners import SAC
    >>> tasks = {f"{angle}°": partial(PendulumVectorEnv, 4, angle=angle) for angle in (90, -90)}
    >>> study = compare(lambda env, seed: SAC(env, seed=seed), tasks=tasks, steps=400, seeds=1,
    ...                 methods=[LPGFTW(batch=200)], eval_episodes=2, progress=False)
    >>> study.scores("lpg-ftw").shape  # methods=["lpg-ftw"] has the defaults
    (1, 2)
    """

    def __init__(
        self,
        name: str = "lpg-ftw",
        *,
        columns: int = 5,
        times: float = 2.5,
        batch: int = 2_000,
        kl: float = 0.05,
        refit: int = 10,
        gamma: float = 0.97,
        features: int = 32,
        ridge: float = 1e-6,
        sparsity: float = 1e-6,
    ) -> None:
        arguments = Arguments("LPGFTW")
        self.name, self.columns = arguments.text("name", name), arguments.integer("columns", columns)
        self.batch, self.refit = arguments.integer("batch", batch), arguments.integer("refit", refit)
        self.features = arguments.integer("features", features)
        self.ridge = arguments.number("ridge", ridge, above=0)
        self.times, self.kl = arguments.number("times", times, above=0), arguments.number("kl", kl, above=0)
        self.gamma = arguments.number("gamma", gamma, least=0, below=1)
        self.sparsity = arguments.number("sparsity", sparsity, least=0)
        arguments.check()
        self.about = f"natural policy gradients, shared columns; {times:g} times the steps, its own policy"

    def start(self, make_model: MakeModel, env: Any, seed: int) -> Learned:
        """Its policy for the spaces of ``env``; ``make_model`` is not called."""
        return _Learned(self, env, seed)


class _Learned(Learned):
    modes = (GIVEN,)

    def __init__(self, settings: LPGFTW, env: Any, seed: int) -> None:
        space, actions, _ = spaces_of(env)
        if getattr(space, "shape", None) is None or np.dtype(space.dtype).kind != "f":
            raise OwlTypeError(
                f"{settings.name}: the observation space is {space}; expected a Box of floats "
                "(gymnasium.wrappers.FlattenObservation makes one)"
            )
        self._set, self._box = settings, ActionBox(actions, where=settings.name)
        self._rng = own_generator(seed, KEY)
        size = int(np.prod(space.shape))
        self._waves = self._rng.normal(size=(size, settings.features)) / np.sqrt(size)
        self._phases = self._rng.uniform(-np.pi, np.pi, settings.features)
        self._scaling = np.zeros((0, size))  # mean and deviation of observations, from the first batch on
        self._columns = np.zeros((self._box.size, 1 + size + settings.features + 1, 0))
        self._tasks: dict[str, dict[str, Array]] = {}  # code; policy aimed at, and curvature there
        self._visit: dict[str, Any] = {}  # what is in training: task, code, own part, steps and how many

    def train(self, task: str, env: Any, steps: int, watch: Watch | None = None) -> None:
        goal, copies = round(steps * self._set.times), spaces_of(env)[2]
        watch, env = Watch() if watch is None else watch, as_env(env)
        count = max(1, round(goal / max(self._set.batch, copies)))  # of natural steps
        if watch.done:
            stepper = Stepper(env, state=self._visit["stepper"])
        else:
            stepper = Stepper(env, seed=int(self._rng.integers(2**31)))
            known, new = self._columns.shape[-1], task not in self._tasks
            own = np.zeros(self._columns.shape[:2]) if new and known < self._set.columns else None
            code = np.zeros(known) if new else self._code(task)
            self._visit = {"task": task, "code": code, "own": own, "seen": 0, "done": 0}
        visit = self._visit
        while visit["done"] < count:
            rows: list[tuple[np.ndarray, ...]] = []
            theta = self._policy(task)
            while visit["seen"] * count < goal * (visit["done"] + 1) or not any(r[-1].any() for r in rows):
                rows.append(self._make_frame(stepper, theta))
                visit["seen"] += copies
                watch(min(steps, int(visit["seen"] / self._set.times)))
            visit["done"] += 1
            self._improve(map(np.stack, zip(*rows, strict=True)), last=visit["done"] == count)
            if visit["done"] < count:
                visit["stepper"] = stepper.state_dict()
                watch.border()
        self._visit = {}

    def _make_frame(self, stepper: Stepper, theta: Array) -> tuple[np.ndarray, ...]:
        before = np.asarray(stepper.observation, np.float64).reshape(stepper.num_envs, -1)
        mean, std = mean_and_std(self._features(before), theta)
        drawn = mean + std * self._rng.normal(size=mean.shape)
        step = stepper.step(self._actions(drawn))
        after = np.asarray(step.next_observation, np.float64).reshape(stepper.num_envs, -1)
        return before, drawn, step.reward, after, step.terminated, step.truncated, step.real

    def _improve(self, rows: Iterable[np.ndarray], *, last: bool) -> None:
        """A natural step from the rows (S, E, ...) of a batch."""
        before, drawn, rewards, after, terminated, truncated, real = rows
        if not len(self._scaling):
            spread = before[real].std(0)
            self._scaling = np.stack([before[real].mean(0), np.where(spread > 1e-6, spread, 1.0)])
        gamma, theta = self._set.gamma, self._policy(self._visit["task"])
        features, following = self._features(before), self._features(after)
        weights = fitted_values(features[real], following[real], rewards[real], terminated[real], gamma=gamma)
        errors = rewards + gamma * (following @ weights) * ~terminated - features @ weights
        gains = advantages_of(errors, terminated | truncated, decay=gamma * LAMBDA)[real]
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        gradient = policy_gradient(features[real], drawn[real], theta, gains)
        if not np.isfinite(gradient).all():
            raise NonFiniteError(
                f"{self._set.name}: the policy's gradient in {self._visit['task']!r} is not finite; look at "
                "the observations and rewards of its environment"
            )
        self._step(theta, gradient, fisher(features[real], theta), last=last)

    def _step(self, theta: Array, gradient: Array, information: Array, *, last: bool) -> None:
        settings, visit = self._set, self._visit
        basis, code, own = self._columns, visit["code"], visit["own"]
        every = np.eye(theta.size).reshape(*theta.shape, theta.size)
        penalty = settings.sparsity * np.sign(code)
        if own is not None:
            basis = np.concatenate([basis, every], axis=-1)
            penalty = np.concatenate([penalty, 2.0 * settings.ridge * own.ravel()])
        along, curvature = in_coordinates(basis, gradient, information)
        step, eta = natural_step(along - penalty, curvature, kl=settings.kl)
        visit["code"] = code + step[: len(code)]
        if own is not None:
            visit["own"] = own + step[len(code) :].reshape(own.shape)
            if last:
                self._add_column(information / eta)
        elif last or visit["done"] % settings.refit == 0:
            step, eta = natural_step(*in_coordinates(every, gradient, information), kl=settings.kl)
            self._refit(theta + step.reshape(theta.shape), information / eta)

    def _add_column(self, curvature: Array) -> None:
        """What the policy of the task in training has beside the columns becomes one."""
        visit = self._visit
        policy, code = self._policy(visit["task"]), np.append(visit["code"], 1.0)
        self._columns = np.concatenate([self._columns, visit["own"][..., None]], axis=-1)
        self._tasks[visit["task"]] = {"code": code, "policy": policy, "curvature": curvature}
        visit["code"], visit["own"] = code, None

    def _refit(self, policy: Array, curvature: Array) -> None:
        """Fit the columns to all tasks; to this one where a natural step without them would lead."""
        own = {"code": self._visit["code"], "policy": policy, "curvature": curvature}
        self._tasks[self._visit["task"]] = own
        targets, curvatures = (
            np.stack([t[k] for t in self._tasks.values()]) for k in ("policy", "curvature")
        )
        codes = np.stack([self._code(task) for task in self._tasks])
        self._columns = fitted_columns(targets, codes, curvatures, ridge=self._set.ridge)

    def _code(self, task: str) -> Array:
        """Of a task that was learned, with zeros for columns that came later."""
        code = self._tasks[task]["code"]
        return np.append(code, np.zeros(self._columns.shape[-1] - len(code)))

    def _policy(self, task: str) -> Array:
        """θ of a task, as it is now."""
        training = self._visit.get("task") == task
        theta: Array = self._columns @ (self._visit["code"] if training else self._code(task))
        return theta + self._visit["own"] if training and self._visit["own"] is not None else theta

    def _features(self, observations: Array) -> Array:
        """One, the observation and the waves over it: (..., o) → (..., n)."""
        shift, scale = self._scaling if len(self._scaling) else (0.0, 1.0)
        scaled = np.minimum(np.maximum((observations - shift) / scale, -5.0), 5.0)
        found, size = np.ones((*scaled.shape[:-1], self._columns.shape[1] - 1)), scaled.shape[-1]
        found[..., 1 : size + 1] = scaled
        found[..., size + 1 :] = np.sin(scaled @ self._waves + self._phases)
        return found

    def _actions(self, drawn: Array) -> np.ndarray:
        """In the environment's units and within its bounds: (N, A) → (N, *shape)."""
        low, high = self._box.low, self._box.high
        actions = (low / 2 + high / 2) + (high / 2 - low / 2) * drawn.reshape(-1, *low.shape)
        fitting: np.ndarray = np.minimum(np.maximum(actions.astype(low.dtype), low), high)
        return fitting

    def policy(self, task: str | None, seed: int) -> EpisodePolicy | None:
        if task is None or (task not in self._tasks and self._visit.get("task") != task):
            return None
        theta = self._policy(task)

        def act(observation: Any, single: bool) -> np.ndarray:
            rows = np.asarray(observation, np.float64).reshape(1 if single else len(observation), -1)
            actions = self._actions(mean_and_std(self._features(rows), theta)[0])
            return actions[0] if single else actions

        return Acting(act)

    def look(self, env: Any, task: str, *, episodes: int, seed: int) -> Score:
        policy = self.policy(task, seed)
        assert policy is not None  # it is the task in training
        return Score.of(run_episodes(policy, as_env(env), episodes=episodes, seed=seed))

    def state_dict(self) -> dict[str, Any]:
        parts = {"scaling": self._scaling, "columns": self._columns, "tasks": self._tasks}
        return copy.deepcopy({**parts, "visit": self._visit, "rng": self._rng.bit_generator.state})

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Envs, task: str) -> None:
        state = copy.deepcopy(dict(state_dict))
        self._scaling, self._columns = state["scaling"], state["columns"]
        self._tasks, self._visit = state["tasks"], state["visit"]
        self._rng = restored_generator(state["rng"])
