"""Whole episodes in many tasks at once, with what a study measures of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from owlrl import AdaptivePolicy
from owlrl.acting.stepping import final_observations
from owlrl.envs import Table, TaskSpec
from owlrl.envs.vector import ArrayVectorEnv
from owlrl.experiments.least_tried import LeastTried
from owlrl.experiments.tasks import vector_env
from owlrl.heads.modes import eval_mode
from owlrl.protocols import MultiHead

__all__ = ["Episodes", "LaneStep", "Lanes", "greedy_success", "run_lanes"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LaneStep:
    """What one step of E lanes gave; ``final`` is the observation that the step led to.

    >>> import numpy as np
    >>> from owlrl.experiments.episodes import LaneStep
    >>> flag = np.array([True])
    >>> LaneStep(np.zeros(1), np.zeros(1), np.ones(1), flag, flag, flag).reward
    array([1.])
    """

    observation: npt.NDArray[np.generic]
    final: npt.NDArray[np.generic]
    reward: FloatArray
    terminated: BoolArray
    ended: BoolArray
    success: BoolArray


class Lanes:
    """Several tasks side by side, ``copies`` lanes of each: lanes 0 … copies − 1 are the first task's.

    All tasks start from the same seed, so that they and the ways to act are compared on equal terms.

    Args:
        tasks: tables, or specifications of tasks that have none.
        copies: lanes of each.
        seed: of the first episodes.

    Attributes:
        finals: (E, ...) observations that each step so far led to; not kept of tables.

    >>> from owlrl.experiments import resolve_tasks, table_of
    >>> from owlrl.experiments.episodes import Lanes
    >>> lanes = Lanes([table_of(spec) for spec in resolve_tasks("Crossroads-2").values()], 3)
    >>> lanes.reset().shape
    (6, 7, 7, 3)
    >>> import numpy as np
    >>> lanes.step(np.zeros(6, dtype=np.int64)).ended
    array([False, False, False, False, False, False])
    """

    def __init__(self, tasks: Sequence[Table | TaskSpec], copies: int, *, seed: int = 0) -> None:
        self.copies = copies
        self.num_lanes = len(tasks) * copies
        self.finals: list[npt.NDArray[np.generic]] = []
        self._keep = not any(isinstance(task, Table) for task in tasks)
        self._seed = seed
        self._envs = [vector_env(task, copies) for task in tasks]

    def reset(self) -> npt.NDArray[np.generic]:
        """Begin in every lane; the first observations (E, ...)."""
        self.finals = []
        return np.concatenate([env.reset(seed=self._seed)[0] for env in self._envs])

    def step(self, actions: npt.NDArray[Any]) -> LaneStep:
        """Step every lane; where an episode ends, the next one begins."""
        parts = [
            self._step(env, actions[k * self.copies : (k + 1) * self.copies])
            for k, env in enumerate(self._envs)
        ]
        step = LaneStep(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        if self._keep:
            self.finals.append(step.final)
        return step

    @staticmethod
    def _step(env: ArrayVectorEnv, actions: npt.NDArray[Any]) -> tuple[npt.NDArray[np.generic], ...]:
        observation, reward, terminated, truncated, info = env.step(actions)
        ended = terminated | truncated
        success = info.get("final_info", {}).get("is_success", np.zeros_like(ended))
        return observation, final_observations(observation, info), reward, terminated, ended, success


@dataclass(frozen=True)
class Episodes:
    """What came of N episodes in a row in each of E lanes.

    Attributes:
        success: (N, E) whether a goal that pays was reached.
        returns: (N, E) sums of reward.
        lengths: (N, E) steps.
        arms: (T, E) the head that acted at each step of the first episodes; as long as the longest.
        probabilities: (T, E, n) of each head, before it acted.
        losses: (T, E, n) the evidence after it.

    >>> import numpy as np
    >>> from owlrl.experiments.episodes import Episodes
    >>> one = np.ones((1, 2))
    >>> Episodes(one > 0, one, one, one, one[..., None], one[..., None]).success
    array([[ True,  True]])
    """

    success: BoolArray
    returns: FloatArray
    lengths: IntArray
    arms: IntArray
    probabilities: FloatArray
    losses: FloatArray


def run_lanes(policy: AdaptivePolicy | LeastTried, lanes: Lanes, *, consecutive: int = 1) -> Episodes:
    """Run ``consecutive`` episodes in every lane, each with the evidence of the ones before it.

    >>> from owlrl.experiments import Run, Session
    >>> from owlrl.experiments.episodes import Lanes, run_lanes
    >>> session = Session(Run("Crossroads-2", method="experience-replay", arguments={"max_steps": 5}))
    >>> policy = session.policy("oracle", ["crossroads-0"] * 2)
    >>> run_lanes(policy, Lanes([session.tasks["crossroads-0"]], 2)).lengths
    array([[5, 5]])
    """
    count = lanes.num_lanes
    success = np.zeros((consecutive, count), dtype=np.bool_)
    returns, lengths = np.zeros((consecutive, count)), np.zeros((consecutive, count), dtype=np.int64)
    episode, lane = np.zeros(count, dtype=np.int64), np.arange(count)
    observation = lanes.reset()
    policy.reset(num_envs=count)
    first_steps = 0
    while (running := episode < consecutive).any():
        action = policy.act(observation)
        step = lanes.step(action)
        policy.observe(observation, action, step.reward, step.final, step.terminated, mask=running)
        now = episode[running], lane[running]
        returns[now] += step.reward[running]
        lengths[now] += 1
        success[now] = step.success[running]
        first_steps += bool((episode == 0).any())
        episode += step.ended & running
        if step.ended.any():
            policy.reset(mask=step.ended, keep_evidence=True)
        observation = step.observation
    trace = policy.trace[:first_steps]
    return Episodes(
        success,
        returns,
        lengths,
        np.array([t.arm for t in trace], dtype=np.int64),
        np.array([t.probabilities for t in trace]),
        np.array([t.losses for t in trace], dtype=np.float64),
    )


def greedy_success(network: MultiHead, head: int, table: Table) -> bool:
    """Whether one head, acting greedily all by itself, solves a task; needs one pass through the network.

    Task and policy are deterministic, so one episode tells all.

    >>> from owlrl.experiments import Run, Session
    >>> from owlrl.experiments.episodes import greedy_success
    >>> session = Session(Run("Crossroads-2", seed=0))
    >>> greedy_success(session.agent.q, 0, session.tasks["crossroads-0"])
    False
    """
    device = next(network.module.parameters()).device
    seen = torch.tensor(table.observations, device=device)
    with torch.no_grad(), eval_mode(network.module):
        actions = network(seen, head=head).argmax(-1).cpu().numpy()
    state = table.start
    for _ in range(table.max_episode_steps or table.num_states):
        action = actions[table.obs_index[state]]
        if table.terminated[state, action]:
            return bool(table.goal[state, action])
        state = int(table.next_state[state, action])
    return False
