"""`Stepper`: the one loop that steps an environment or a vector of them, whichever way it resets."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from owlrl.errors import OwlValueError

__all__: list[str] = []


@dataclass(frozen=True)
class Steps:
    """The result of one step of E environments; rows where ``real`` is false only reset.

    ``success`` is ``info["is_success"]`` of the environments; None without one.
    """

    observation: Any
    action: np.ndarray
    reward: np.ndarray
    next_observation: Any
    terminated: np.ndarray
    truncated: np.ndarray
    real: np.ndarray
    success: np.ndarray | None = None

    def add_to(self, replay: Any) -> None:
        """Put the rows that are real into a replay."""
        seen, following, ends = self.observation, self.next_observation, (self.terminated, self.truncated)
        replay.add_batch(seen, self.action, self.reward, following, *ends, mask=self.real)


class Stepper:
    """Steps an environment, and tells real steps from resets.

    A single Gymnasium environment counts as a vector of one; observations in a dict stay one, with a
    leading dimension in each part. A final observation is the one the episode ended with, not the first of
    the next episode.

    Args:
        env: a Gymnasium environment, or a vector of them.
        seed: of the reset that it begins with.
        state: what `state_dict` returned: continue there instead, without a reset.
    """

    def __init__(self, env: Any, *, seed: int | None = None, state: Mapping[str, Any] | None = None) -> None:
        self.env = env
        self.vector = getattr(env, "num_envs", None) is not None
        self.num_envs = int(env.num_envs) if self.vector else 1
        self._same_step = self.vector and _resets_in_same_step(env)
        self.observation: Any = None
        self.starts = np.ones(self.num_envs, dtype=bool)  # whose observation is an episode's first
        self._resetting = np.zeros(self.num_envs, dtype=bool)
        if state is None:
            self.reset(seed=seed)
        else:
            self.observation = state["observation"]
            self.starts = np.asarray(state["starts"], dtype=bool)
            self._resetting = np.asarray(state["resetting"], dtype=bool)

    def state_dict(self) -> dict[str, Any]:
        """The last observations: a stepper with this ``state`` continues, if its environment does."""
        kept = {"observation": self.observation, "starts": self.starts, "resetting": self._resetting}
        return copy.deepcopy(kept)

    def reset(self, *, seed: int | None = None) -> None:
        """Start an episode in every environment."""
        observation, _ = self.env.reset(seed=seed)
        self.observation = observation if self.vector else _batched(observation)
        self.starts = np.ones(self.num_envs, dtype=bool)
        self._resetting = np.zeros(self.num_envs, dtype=bool)

    def step(self, action: np.ndarray) -> Steps:
        """Take one action (E, ...) in each environment; ``observation`` then holds what to act on next."""
        before = self.observation
        if not self.vector:
            return self._step_single(before, action)
        following, reward, terminated, truncated, info = self.env.step(action)
        final = final_observations(following, info) if self._same_step else following
        real = ~self._resetting
        ended = (terminated | truncated) & real
        self.starts = ended if self._same_step else self._resetting
        self._resetting = np.zeros_like(real) if self._same_step else ended
        self.observation = following
        said = info.get("final_info", info) if self._same_step else info
        success = said.get("is_success")
        return Steps(before, action, np.asarray(reward), final, terminated, truncated, real, success)

    def _step_single(self, before: Any, action: np.ndarray) -> Steps:
        following, reward, terminated, truncated, info = self.env.step(action[0])
        final = _batched(following)
        self.starts = np.array([bool(terminated or truncated)])
        self.observation = _batched(self.env.reset()[0]) if self.starts[0] else final
        flags = np.array([[terminated], [truncated], [True]], dtype=bool)
        success = np.array([bool(info["is_success"])]) if "is_success" in info else None
        rewards, (ended, cut, real) = np.array([reward], dtype=np.float64), flags
        return Steps(before, action, rewards, final, ended, cut, real, success)


def _batched(observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {key: np.asarray(part)[None] for key, part in observation.items()}
    return np.asarray(observation)[None]


def _resets_in_same_step(env: Any) -> bool:
    mode = str((getattr(env, "metadata", None) or {}).get("autoreset_mode", ""))
    if "Disabled" in mode or "DISABLED" in mode:
        raise OwlValueError(
            "this vector of environments does not reset automatically; build it with "
            "autoreset_mode=AutoresetMode.NEXT_STEP or SAME_STEP"
        )
    return "SameStep" in mode or "SAME_STEP" in mode


def final_observations(following: Any, info: dict[str, Any]) -> Any:
    """Observations in which those that ended an episode stand instead of the next episode's first."""
    if "final_obs" not in info:
        return following

    def last_rows(part: np.ndarray, key: str | None = None) -> np.ndarray:
        final = np.array(part, copy=True)
        for k in np.flatnonzero(info["_final_obs"]):
            last = info["final_obs"][k]
            final[k] = last if key is None else last[key]
        return final

    if isinstance(following, Mapping):
        return {key: last_rows(part, key) for key, part in following.items()}
    return last_rows(following)
