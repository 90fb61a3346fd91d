"""Reach: two continuous actions move a point, and the reward is its distance to a hidden goal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from owlrl._arguments import Arguments
from owlrl.envs.vector import ArrayVectorEnv, FloatArray, VectorStep, any_of
from owlrl.errors import NonFiniteError, OwlStateError, OwlValueError

__all__ = ["ReachEnv", "ReachVectorEnv", "best_return", "reach_goals", "single_policy_bound"]

STEPS = 20  # of an episode
STRIDE = 0.2  # how far an action of 1 goes
SPACE = spaces.Box(-1.0, 1.0, shape=(2,), dtype=np.float32)  # of positions and of actions


def reach_step(
    position: FloatArray, action: npt.NDArray[Any], goal: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """One step, arrays (..., 2): p' = clip(p + 0.2·clip(a)), both to [−1, 1]², and −‖p' − goal‖² (...,)."""
    moved: FloatArray = np.clip(position + STRIDE * np.clip(action, -1.0, 1.0), -1.0, 1.0)
    away = moved - goal
    return moved, -(away[..., 0] ** 2 + away[..., 1] ** 2)


def best_return(goal: npt.ArrayLike, *, steps: int = STEPS) -> Any:
    """The largest undiscounted return of an episode of `ReachEnv`; exact.

    Going at full speed to the goal in both coordinates is nearest to it in both after every step:
    ``−Σ_t Σ_i max(|g_i| − 0.2·t, 0)²``. A float, or (N,) for N goals.

    Args:
        goal: (2,), or (N, 2) for N goals at once.
        steps: of the episode.

    >>> from owlrl.envs import best_return
    >>> round(best_return((0.4, 0.0)), 6)  # 0.2 away after the first step, and there after the second
    -0.04
    """
    goals, steps = _goals("best_return", goal, steps)
    rest = np.maximum(np.abs(goals)[..., None] - STRIDE * np.arange(1, steps + 1), 0.0)  # (..., 2, T)
    found = -(rest**2).sum(axis=(-2, -1))
    return float(found) if goals.ndim == 1 else found


def single_policy_bound(goals: npt.ArrayLike, *, steps: int = STEPS) -> float:
    """The largest mean return over several goals of a policy that does not see rewards; exact.

    It moves in the same way whatever the goal, so its mean return is that for the mean goal ḡ less what the
    goals scatter: ``best_return(ḡ) − T·mean‖g − ḡ‖²``. The policy that goes to ḡ has it.

    Args:
        goals: (N, 2).
        steps: T, of the episode.

    >>> from owlrl.envs import best_return, single_policy_bound
    >>> round(single_policy_bound([(1, 0), (-1, 0)]), 6)  # stay where it starts, 1 away from both
    -20.0
    >>> round(best_return((1, 0)), 6)
    -1.2
    """
    given, steps = _goals("single_policy_bound", goals, steps)
    given = np.atleast_2d(given)
    middle = given.mean(axis=0)
    scatter = ((given - middle) ** 2).sum(axis=1).mean()
    return float(best_return(middle, steps=steps) - steps * scatter)


def reach_goals(number: int, *, seed: int = 0) -> FloatArray:
    """Goals (number, 2) drawn evenly from [−1, 1]².

    >>> from owlrl.envs import reach_goals
    >>> reach_goals(1_000).shape
    (1000, 2)
    """
    arguments = Arguments("reach_goals")
    number, seed = arguments.integer("number", number), arguments.integer("seed", seed, least=0)
    arguments.check()
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (number, 2))


class ReachEnv(gymnasium.Env[npt.NDArray[np.float32], npt.NDArray[Any]]):
    """A point in the square [−1, 1]² that starts in the middle; the goal is hidden and is the task.

    An action in [−1, 1]² moves it by a fifth of that, and a step is rewarded with minus the squared distance
    to the goal after it. The position is all that is seen. Episodes have 20 steps and end by truncation.

    `best_return` is the best return of a goal, and `single_policy_bound` what any one policy can have in the
    mean over several goals, which all look the same.

    Made by ``gymnasium.make("owlrl/Reach-v0", goal=(0.5, -0.3))``.

    Args:
        goal: (x, y), both from −1 to 1.

    >>> import gymnasium
    >>> import numpy as np
    >>> import owlrl.envs
    >>> env = gymnasium.make("owlrl/Reach-v0", goal=(0.2, 0.4))
    >>> _ = env.reset(seed=0)
    >>> observation, reward, *_ = env.step(np.array([1.0, 1.0], np.float32))
    >>> observation, round(reward, 4)
    (array([0.2, 0.2], dtype=float32), -0.04)
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  # Gymnasium's way

    def __init__(self, goal: tuple[float, float] = (0.0, 0.0)) -> None:
        given = _goals("ReachEnv", goal, STEPS)[0]
        if given.ndim != 1:
            raise OwlValueError(f"ReachEnv: goal has shape {given.shape}; expected one goal (x, y)")
        self.goal = (float(given[0]), float(given[1]))
        self.observation_space = SPACE
        self.action_space = SPACE
        self.state: FloatArray | None = None  # the position, from the first reset on; can be set
        self._goal = given

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Go back to the middle; ``seed`` and ``options`` are taken and change nothing."""
        super().reset(seed=seed)
        self.state = np.zeros(2)
        return self.state.astype(np.float32), {}

    def step(
        self, action: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move by a fifth of ``action`` (2,); what is beyond ±1 counts as ±1."""
        if self.state is None:
            raise OwlStateError("ReachEnv.step: no episode is under way; call reset() first")
        if np.shape(action) != (2,) or np.isnan(action).any():
            raise OwlValueError(f"ReachEnv.step: the action is {action!r}; expected two numbers, shape (2,)")
        self.state, reward = reach_step(np.asarray(self.state), action, self._goal)
        return self.state.astype(np.float32), float(reward), False, False, {}

    def __repr__(self) -> str:
        return f"ReachEnv(goal={self.goal})"


class ReachVectorEnv(ArrayVectorEnv):
    """Copies of `ReachEnv`, all stepped by a few array operations; each may have another goal.

    Autoreset and ``reset_mask`` are those of `owlrl.envs.vector.ArrayVectorEnv`.
    Also made by ``gymnasium.make_vec("owlrl/Reach-v0", num_envs=16, goal=(0.5, -0.3))``.

    Args:
        num_envs: how many copies.
        goal: (x, y) for all copies, or (num_envs, 2).
        max_episode_steps: truncate after so many steps.

    >>> import numpy as np
    >>> from owlrl.envs import ReachVectorEnv
    >>> envs = ReachVectorEnv(2, goal=[(0.2, 0.0), (0.0, -1.0)])
    >>> _ = envs.reset(seed=0)
    >>> envs.step(np.array([[1.0, 0.0], [0.0, -1.0]]))[1].round(4)
    array([-0.  , -0.64])
    """

    def __init__(
        self, num_envs: int, *, goal: npt.ArrayLike = (0.0, 0.0), max_episode_steps: int = STEPS
    ) -> None:
        arguments = Arguments("ReachVectorEnv")
        num_envs = arguments.integer("num_envs", num_envs)
        self.max_episode_steps = arguments.integer("max_episode_steps", max_episode_steps)
        arguments.check()
        self.goal = _goals("ReachVectorEnv", goal, STEPS)[0]
        if self.goal.ndim == 2 and len(self.goal) != num_envs:
            raise OwlValueError(f"ReachVectorEnv: got {len(self.goal)} goals; expected one, or {num_envs}")
        super().__init__(num_envs, SPACE, SPACE, self.max_episode_steps)
        self._position: FloatArray = np.zeros((num_envs, 2))

    @property
    def states(self) -> FloatArray:
        """(num_envs, 2) the current positions; can be set."""
        return np.array(self._position)

    @states.setter
    def states(self, states: npt.ArrayLike) -> None:
        self._position = self._check_states(states, 2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Start all copies, or those in ``options["reset_mask"]``; a seed changes nothing."""
        mask = self._reset(Arguments("ReachVectorEnv.reset"), seed, options)
        self._position[mask] = 0.0
        return self._position.astype(np.float32), {}

    def step(self, actions: npt.NDArray[Any]) -> VectorStep:
        """Move by ``actions`` (num_envs, 2); every array that is returned is the caller's own."""
        actions = self._checked_actions(actions, 2)
        if np.isnan(actions).any():
            raise NonFiniteError("ReachVectorEnv.step: actions have NaN; expected numbers")
        self._position, rewards = reach_step(self._position, actions, self.goal)
        observations, truncated = self._position.astype(np.float32), self._tick()
        infos: dict[str, Any] = {}
        if any_of(truncated):
            infos = self._finish(truncated.nonzero()[0], truncated, observations, {})
            self._position[truncated] = 0.0
            observations[truncated] = 0.0
        return observations, rewards, np.zeros(self.num_envs, dtype=np.bool_), truncated, infos

    def state_dict(self) -> dict[str, Any]:
        """Where all episodes stand."""
        return {**super().state_dict(), "states": self.states}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self.states = state_dict["states"]

    def __repr__(self) -> str:
        goal = tuple(self.goal.tolist()) if self.goal.ndim == 1 else f"{self.num_envs} goals"
        return f"ReachVectorEnv(num_envs={self.num_envs}, goal={goal})"


def _goals(where: str, goal: Any, steps: object) -> tuple[FloatArray, int]:
    """One goal (2,) or several (N, 2), as an array, and the checked number of steps."""
    arguments = Arguments(where)
    checked: int = arguments.integer("steps", steps)
    try:
        given = np.array(goal, dtype=np.float64)
    except (TypeError, ValueError):
        given = np.full(1, np.nan)
    fits = given.ndim in (1, 2) and given.shape[-1] == 2 and given.size > 0
    if not fits or not (np.abs(given) <= 1.0).all():  # NaN is not
        arguments.problem(f"goal is {goal!r}; expected x and y, both from -1 to 1")
    arguments.check()
    return given, checked
