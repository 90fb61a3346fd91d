"""Whole episodes with a policy, in one environment or in a vector of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from owlrl.errors import OwlValueError, int_problem

__all__ = ["EpisodePolicy", "Evaluation", "run_episodes"]


class EpisodePolicy(Protocol):
    """What `run_episodes` needs of a policy; `owlrl.acting.policy.AdaptivePolicy` is one."""

    def reset(
        self, *, num_envs: int | None = None, keep_evidence: bool = False, mask: np.ndarray | None = None
    ) -> None:
        """Start episodes: of all environments, or of those that ``mask`` marks."""
        ...

    def act(self, observation: Any) -> Any:
        """Choose actions."""
        ...

    def observe(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        *,
        mask: np.ndarray | None = None,
    ) -> None:
        """Take in what they led to."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """What came of some episodes, in the order they ended.

    Attributes:
        returns: (n,) undiscounted sums of reward.
        lengths: (n,) steps.
        terminated: (n,) true where the environment ended the episode, false where time did.

    >>> import numpy as np
    >>> from owlrl.acting.episodes import Evaluation
    >>> Evaluation(np.array([1.0, 0.0]), np.array([3, 5]), np.array([True, False]))
    Evaluation(episodes=2, mean_return=0.5, std_return=0.5, mean_length=4.0)
    """

    returns: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray

    @property
    def mean_return(self) -> float:
        """Mean of the returns."""
        return float(self.returns.mean())

    def __repr__(self) -> str:
        return (
            f"Evaluation(episodes={len(self.returns)}, mean_return={self.mean_return:.4g}, "
            f"std_return={self.returns.std():.4g}, mean_length={self.lengths.mean():.1f})"
        )


def run_episodes(
    policy: EpisodePolicy,
    env: Any,
    *,
    episodes: int,
    seed: int | None = None,
    max_steps: int | None = None,
    keep_evidence: bool = False,
) -> Evaluation:
    """Run ``episodes`` episodes and return what came of them.

    ``env`` follows Gymnasium's interface; one with ``num_envs`` is a vector of environments,
    of which each runs an equal share (so that short episodes are not over-counted).

    >>> import gymnasium
    >>> from owlrl.acting.episodes import run_episodes
    >>> class Left:
    ...     def reset(self, **kwargs): pass
    ...     def act(self, observation): return 0
    ...     def observe(self, *transition, mask=None): pass
    >>> env = gymnasium.make("CartPole-v1")
    >>> len(run_episodes(Left(), env, episodes=3, seed=0).returns)
    3
    """
    for name, value in (("episodes", episodes), ("max_steps", max_steps)):
        if value is not None and (problem := int_problem(name, value)):
            raise OwlValueError(f"run_episodes: {problem}")
    run = _run_vector if getattr(env, "num_envs", None) is not None else _run_single
    rows = run(policy, env, episodes, seed, max_steps, keep_evidence)
    returns, lengths, terminated = zip(*rows, strict=True)
    return Evaluation(np.array(returns), np.array(lengths), np.array(terminated))


Row = tuple[float, int, bool]


def _run_single(
    policy: EpisodePolicy, env: Any, episodes: int, seed: int | None, max_steps: int | None, keep: bool
) -> list[Row]:
    rows: list[Row] = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed if episode == 0 else None)
        policy.reset(keep_evidence=keep)
        total, length, ended, terminated = 0.0, 0, False, False
        while not ended:
            action = policy.act(observation)
            following, reward, terminated, truncated, _ = env.step(action)
            policy.observe(observation, action, reward, following, terminated)
            observation, total, length = following, total + float(reward), length + 1
            ended = bool(terminated or truncated or length == max_steps)
        rows.append((total, length, bool(terminated)))
    return rows


def _run_vector(
    policy: EpisodePolicy, env: Any, episodes: int, seed: int | None, max_steps: int | None, keep: bool
) -> list[Row]:
    count = int(env.num_envs)
    if max_steps is not None:
        raise OwlValueError(
            f"run_episodes: max_steps is {max_steps}, but a vector of environments cannot be stopped one by "
            "one; give each a time limit instead (gymnasium.make_vec(..., max_episode_steps=...))"
        )
    same_step = resets_in_same_step(env)
    left = np.array([(episodes + k) // count for k in range(count)])  # episodes still to run, per env
    observation, _ = env.reset(seed=seed)
    policy.reset(num_envs=count, keep_evidence=keep)
    total, length = np.zeros(count), np.zeros(count, dtype=int)
    resetting = np.zeros(count, dtype=bool)  # a step that only resets is no transition
    rows: list[Row] = []
    while left.any():
        action = policy.act(observation)
        following, reward, terminated, truncated, info = env.step(action)
        final = final_observations(following, info) if same_step else following
        policy.observe(observation, action, reward, final, terminated, mask=~resetting)
        total, length = total + np.where(resetting, 0.0, reward), length + ~resetting
        ended = (terminated | truncated) & ~resetting
        counted = ended & (left > 0)
        rows.extend((float(total[k]), int(length[k]), bool(terminated[k])) for k in np.flatnonzero(counted))
        left -= counted
        total[ended], length[ended] = 0.0, 0
        starts = ended if same_step else resetting
        if starts.any():
            policy.reset(mask=starts, keep_evidence=keep)
        resetting = np.zeros_like(ended) if same_step else ended
        observation = following
    return rows


def resets_in_same_step(env: Any) -> bool:
    mode = str((getattr(env, "metadata", None) or {}).get("autoreset_mode", ""))
    if "Disabled" in mode or "DISABLED" in mode:
        raise OwlValueError(
            "this vector of environments does not reset by itself; build it with "
            "autoreset_mode=AutoresetMode.NEXT_STEP or SAME_STEP"
        )
    return "SameStep" in mode or "SAME_STEP" in mode


def final_observations(following: Any, info: dict[str, Any]) -> Any:
    if "final_obs" not in info:
        return following
    if isinstance(following, Mapping):
        return {key: _last_rows(part, info, key) for key, part in following.items()}
    return _last_rows(following, info)


def _last_rows(following: np.ndarray, info: dict[str, Any], key: str | None = None) -> np.ndarray:
    final = np.array(following, copy=True)
    for k in np.flatnonzero(info["_final_obs"]):
        last = info["final_obs"][k]
        final[k] = last if key is None else last[key]
    return final
