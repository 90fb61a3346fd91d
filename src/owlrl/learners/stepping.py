"""One way to step an environment or a vector of them, whichever way it resets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from owlrl.acting.episodes import final_observations, resets_in_same_step

__all__ = ["Stepper", "Steps"]


@dataclass(frozen=True)
class Steps:
    """What one step of E environments gave; rows where ``real`` is false only reset.

    >>> import numpy as np
    >>> from owlrl.learners.stepping import Steps
    >>> flags = [np.zeros(1, dtype=bool)] * 3
    >>> Steps(np.zeros((1, 2)), np.zeros(1, dtype=int), np.ones(1), np.zeros((1, 2)), *flags).reward
    array([1.])
    """

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    real: np.ndarray

    def add_to(self, replay: Any) -> None:
        """Put the rows that are real into a replay."""
        replay.add_batch(
            self.observation,
            self.action,
            self.reward,
            self.next_observation,
            self.terminated,
            self.truncated,
            mask=self.real,
        )


class Stepper:
    """Keeps an environment going and says what each step really was.

    A single Gymnasium environment counts as a vector of one. A final observation is the one
    the episode ended with, not the first of the next episode.

    >>> import gymnasium, numpy as np
    >>> from owlrl.learners.stepping import Stepper
    >>> stepper = Stepper(gymnasium.make("CartPole-v1"), seed=0)
    >>> stepper.step(np.array([1])).next_observation.shape
    (1, 4)
    """

    def __init__(self, env: Any, *, seed: int | None = None) -> None:
        self.env = env
        self.vector = getattr(env, "num_envs", None) is not None
        self.num_envs = int(env.num_envs) if self.vector else 1
        self._same_step = self.vector and resets_in_same_step(env)
        self._resetting = np.zeros(self.num_envs, dtype=bool)
        observation, _ = env.reset(seed=seed)
        self.observation: np.ndarray = observation if self.vector else np.asarray(observation)[None]

    def step(self, action: np.ndarray) -> Steps:
        """Take one action (E, ...) in each environment; ``observation`` then holds what to act on next."""
        before = self.observation
        if not self.vector:
            return self._step_single(before, action)
        following, reward, terminated, truncated, info = self.env.step(action)
        final = final_observations(following, info) if self._same_step else following
        real = ~self._resetting
        self._resetting = np.zeros_like(real) if self._same_step else (terminated | truncated) & real
        self.observation = following
        return Steps(before, action, np.asarray(reward), final, terminated, truncated, real)

    def _step_single(self, before: np.ndarray, action: np.ndarray) -> Steps:
        following, reward, terminated, truncated, _ = self.env.step(action[0])
        final = np.asarray(following)[None]
        self.observation = np.asarray(self.env.reset()[0])[None] if terminated or truncated else final
        flags = np.array([[terminated], [truncated], [True]], dtype=bool)
        return Steps(before, action, np.array([reward], dtype=np.float64), final, *flags)
