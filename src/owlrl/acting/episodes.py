"""Whole episodes with a policy, in one environment or in a vector of them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from owlrl._arguments import Arguments, own_generator
from owlrl.acting.policy import answer
from owlrl.errors import OwlValueError
from owlrl.protocols import OffPolicyLearner
from owlrl.types import Transitions

__all__ = ["EpisodePolicy", "Evaluation", "run_episodes"]


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
        """Process what they led to."""
        ...


@dataclass(frozen=True)
class Evaluation:
    """Results of episodes, in the order they ended.

    Attributes:
        returns: (n,) undiscounted sums of reward.
        lengths: (n,) steps.
        terminated: (n,) true where the environment ended the episode, false where time did.
        tasks: the tasks the policy chose among; empty for a policy that knows no tasks.
        acted: (n, tasks) share of each episode's steps in which the head of each task acted.
        likeliest: (n,) index of the task that was most likely when the episode ended.
        settled: (n,) the step from which on that task stayed the most likely.
        true_task: the task the episodes were of, where it was given.
        success: (n,) whether each ended with success; None where the environment says nothing about it (in
            its ``info``, under "is_success").
        env: (n,) the environment of a vector that each was in.

    >>> import numpy as np
    >>> from owlrl.acting import Evaluation
    >>> Evaluation(np.array([1.0, 0.0]), np.array([3, 5]), np.array([True, False]))
    Evaluation(episodes=2, mean_return=0.5, std_return=0.5, mean_length=4.0)
    """

    returns: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    tasks: list[str] = field(default_factory=list)
    acted: np.ndarray | None = None
    likeliest: np.ndarray | None = None
    settled: np.ndarray | None = None
    true_task: str | None = None
    success: np.ndarray | None = None
    env: np.ndarray | None = None

    @property
    def mean_return(self) -> float:
        """Mean of the returns."""
        return float(self.returns.mean())

    @property
    def found(self) -> np.ndarray:
        """(n,) whether the true task was the most likely one when the episode ended."""
        if self.likeliest is None or self.true_task is None:
            raise OwlValueError(
                "Evaluation.found: the true task was not given; call owl.evaluate(env, true_task=...)"
            )
        return np.asarray(self.likeliest == self.tasks.index(self.true_task))

    @property
    def steps_to_find(self) -> np.ndarray:
        """(n,) steps until the true task stayed the most likely one; −1 where it was not found."""
        found = self.found
        return np.where(found, np.asarray(self.settled), -1)

    def __repr__(self) -> str:
        shown = (
            f"Evaluation(episodes={len(self.returns)}, mean_return={self.mean_return:.4g}, "
            f"std_return={self.returns.std():.4g}, mean_length={self.lengths.mean():.1f}"
        )
        if self.likeliest is not None and self.true_task is not None:
            steps = self.steps_to_find[self.found]
            median = f" after {np.median(steps):g} steps" if len(steps) else ""
            shown += f", found={self.found.mean():.2f}{median}"
        return f"{shown})"


def run_episodes(
    policy: EpisodePolicy,
    env: Any,
    *,
    episodes: int,
    seed: int | None = None,
    max_steps: int | None = None,
    keep_evidence: bool = False,
    true_task: str | None = None,
) -> Evaluation:
    """Run ``episodes`` episodes and return the results.

    ``env`` follows Gymnasium's interface; one with ``num_envs`` is a vector of environments,
    of which each runs an equal share (so that short episodes are not over-counted).

    >>> import gymnasium
    >>> from owlrl.acting import run_episodes
    >>> class Left:
    ...     def reset(self, **kwargs): pass
    ...     def act(self, observation): return 0
    ...     def observe(self, *transition, mask=None): pass
    >>> env = gymnasium.make("CartPole-v1")
    >>> len(run_episodes(Left(), env, episodes=3, seed=0).returns)
    3
    """
    arguments = Arguments("run_episodes")
    episodes = arguments.integer("episodes", episodes)
    max_steps = arguments.integer("max_steps", max_steps, none=True)
    seed = arguments.integer("seed", seed, least=0, none=True)
    if max_steps is not None and getattr(env, "num_envs", None) is not None:
        arguments.problem(
            f"max_steps is {max_steps}, but a vector of environments cannot be stopped one by one; give each "
            "a time limit instead (gymnasium.make_vec(..., max_episode_steps=...))"
        )
    arguments.check()
    stepper = Stepper(env, seed=seed)
    count = stepper.num_envs
    left = np.array([(episodes + k) // count for k in range(count)])  # episodes still to run, per env
    policy.reset(num_envs=count if stepper.vector else None, keep_evidence=keep_evidence)
    log = _Log(policy, count)
    while left.any():
        steps = _one_step(policy, stepper)
        log.add(steps)
        cut = log.length == max_steps
        ended = (steps.terminated | steps.truncated | cut) & steps.real
        log.close(np.flatnonzero(ended), ended & (left > 0), steps)
        left -= ended & (left > 0)
        if cut.any() and not (steps.terminated | steps.truncated).any():
            stepper.reset()
        if stepper.starts.any() and left.any():
            mask = stepper.starts if stepper.vector else None
            policy.reset(num_envs=None if mask is None else count, mask=mask, keep_evidence=keep_evidence)
    return log.evaluation(true_task)


def _one_step(policy: EpisodePolicy, stepper: Stepper) -> Steps:
    """Act, step, observe; a policy of one environment sees no leading dimension."""
    if stepper.vector:
        steps = stepper.step(policy.act(stepper.observation))
        policy.observe(
            steps.observation,
            steps.action,
            steps.reward,
            steps.next_observation,
            steps.terminated,
            mask=steps.real,
        )
        return steps
    seen = _first(stepper.observation)
    action = policy.act(seen)
    steps = stepper.step(np.asarray(action)[None])
    policy.observe(
        seen, action, float(steps.reward[0]), _first(steps.next_observation), bool(steps.terminated[0])
    )
    return steps


def _first(batch: Any) -> Any:
    return {key: part[0] for key, part in batch.items()} if isinstance(batch, dict) else batch[0]


def space_problems(env: Any, replay: Any, num_actions: int) -> list[str]:
    """Differences between the spaces of ``env`` and those of ``replay``, as far as they are known."""
    seen, acted = (
        getattr(env, f"single_{name}_space", getattr(env, f"{name}_space", None))
        for name in ("observation", "action")
    )
    found = []
    shape, box = getattr(replay, "observation_shape", None), getattr(replay, "action_shape", None)
    own, width, count = getattr(seen, "shape", None), getattr(acted, "shape", None), getattr(acted, "n", None)
    # an image may have its channels first in rows, and a discrete observation has no shape of its own
    if shape is not None and own and sorted(own) != sorted(shape):
        found.append(f"env has observations of shape {own}; expected {tuple(shape)}, as in training")
    known = getattr(replay, "num_actions", None)
    if known and num_actions > known and num_actions % known == 0:
        num_actions = known  # several outputs per action: quantiles
    if count is not None and box:
        found.append(f"env has {count} actions to choose from; expected actions of shape {tuple(box)}")
    elif count is not None and int(count) < num_actions:
        several = "; a distributional network needs a small module around it whose forward returns Q-values"
        found.append(
            f"env has {count} actions; expected {num_actions}, as many as the heads have"
            f"{several if num_actions % int(count) == 0 else ''}"
        )
    if count is None and box is not None and width not in (None, tuple(box)):
        expected = tuple(box) if box else f"{num_actions} actions to choose from"
        found.append(f"env has actions of shape {width}; expected {expected}, as in training")
    return found


class _Log:
    """Sums up each environment's episode, and keeps those that count."""

    def __init__(self, policy: Any, count: int) -> None:
        self.policy = policy
        self.tasks: list[str] = list(getattr(policy, "tasks", []))
        self.total, self.length = np.zeros(count), np.zeros(count, dtype=int)
        self.acted = np.zeros((count, len(self.tasks)))
        self.likeliest, self.settled = np.full(count, -1), np.zeros(count, dtype=int)
        self.rows: list[tuple[Any, ...]] = []
        self.says = False  # whether an episode was a success

    def add(self, steps: Steps) -> None:
        real = steps.real
        self.total += np.where(real, steps.reward, 0.0)
        self.length += real
        if not self.tasks:
            return
        self.acted[real, np.atleast_1d(self.policy.arm)[real]] += 1
        best = np.atleast_2d(self.policy.probabilities).argmax(axis=1)
        changed = real & (best != self.likeliest)
        self.settled = np.where(changed, self.length, self.settled)
        self.likeliest = np.where(real, best, self.likeliest)

    def close(self, ended: np.ndarray, counted: np.ndarray, steps: Steps) -> None:
        """Keep the episodes that end now, if they count, and start new ones."""
        for k in ended:
            if counted[k]:
                share = self.acted[k] / max(1, self.length[k])
                outcome = (float(self.total[k]), int(self.length[k]), bool(steps.terminated[k]))
                self.says |= steps.success is not None
                success = steps.success is not None and bool(steps.success[k])
                found = (share, int(self.likeliest[k]), int(self.settled[k]))
                self.rows.append((*outcome, success, int(k), *found))
            self.total[k], self.length[k], self.acted[k] = 0.0, 0, 0.0
            self.likeliest[k], self.settled[k] = -1, 0

    def evaluation(self, true_task: str | None) -> Evaluation:
        returns, lengths, terminated, success, env, acted, likeliest, settled = (
            np.array(column) for column in zip(*self.rows, strict=True)
        )
        of_all: dict[str, Any] = {"success": success if self.says else None, "env": env}
        if not self.tasks:
            return Evaluation(returns, lengths, terminated, **of_all)
        known = (self.tasks, acted, likeliest, settled, true_task)
        return Evaluation(returns, lengths, terminated, *known, **of_all)


def collect_rows(learner: OffPolicyLearner, env: Any, *, steps: int, seed: int | None) -> Transitions:
    """At least ``steps`` rows of ``env`` by the first head, greedy, with one action in five at random."""
    arguments = Arguments("OwlWrapper.adopt")
    steps = arguments.integer("steps", steps)
    *_, last = next(iter(learner.networks.values())).head_parameters(0).values()
    arguments.problems += space_problems(env, learner.replay, len(last))
    arguments.check()
    rng = own_generator(seed, 9)
    stepper = Stepper(env, seed=int(rng.integers(2**31)))
    space = getattr(env, "single_action_space", env.action_space)
    space.seed(int(rng.integers(2**31)))
    heads = torch.zeros(stepper.num_envs, dtype=torch.int64)
    found: list[Steps] = []
    real = 0
    while real < steps:
        seen = stepper.observation
        batch = learner.prepare(seen) if isinstance(seen, dict) else torch.as_tensor(np.asarray(seen))
        greedy = answer(arguments.where, learner.act, batch, heads.to(batch.device))
        action = greedy.cpu().numpy()
        for k in np.flatnonzero(rng.random(stepper.num_envs) < 0.2):
            action[k] = space.sample()
        found.append(stepper.step(action))
        real += int(found[-1].real.sum())
    return _as_transitions(learner, found)


def _as_transitions(learner: OffPolicyLearner, found: list[Steps]) -> Transitions:
    def observations(name: str) -> torch.Tensor:
        parts = [getattr(s, name) for s in found]
        if isinstance(parts[0], dict):
            return torch.cat([learner.prepare(part).cpu() for part in parts])
        return torch.from_numpy(np.concatenate(parts))

    real = torch.from_numpy(np.concatenate([s.real for s in found]))
    action = torch.from_numpy(np.concatenate([s.action for s in found]))
    rows = Transitions(
        observation=observations("observation"),
        action=action.float() if action.is_floating_point() else action.long(),
        reward=torch.from_numpy(np.concatenate([s.reward for s in found]).astype(np.float32)),
        next_observation=observations("next_observation"),
        terminated=torch.from_numpy(np.concatenate([s.terminated for s in found])),
        discount=torch.full((len(real),), learner.gamma),
        truncated=torch.from_numpy(np.concatenate([s.truncated for s in found])),
        env=torch.arange(len(found[0].real)).repeat(len(found)),
    )
    return rows[real]
