"""Exact planning on tables, and policies that see observations only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from owlrl.envs.table import BoolArray, FloatArray, IntArray, Table

__all__ = ["TIE", "Outcome", "action_values", "observed_actions", "run_policy"]

CONVERGED = 1e-12
TIE = 1e-9  # values closer than this are equally good


def action_values(table: Table, gamma: float) -> FloatArray:
    """Optimal values (S, A): Q(s, a) = r + γ·max Q(s', ·), without the second term where the episode ends.

    Truncation ends no return, and a success is worth what it is as a first step.
    """
    goes_on = gamma * ~table.terminated  # (S, A)
    best = np.zeros(table.num_states)
    while True:
        values = table.reward + goes_on * best[table.next_state]
        previous, best = best, values.max(axis=1)
        if np.abs(best - previous).max() < CONVERGED:
            return values


def observed_actions(table: Table, gamma: float) -> BoolArray:
    """(O, A): whether an action is optimal in some state that looks like this.

    Rows of observations that are only seen when the episode has ended are all false.
    """
    values = action_values(table, gamma)
    optimal = values >= values.max(axis=1, keepdims=True) - TIE
    optimal &= ~table.terminated.all(axis=1, keepdims=True)
    found = np.zeros((table.num_observations, table.num_actions), dtype=np.bool_)
    np.logical_or.at(found, table.obs_index, optimal)
    return found


@dataclass(frozen=True)
class Outcome:
    """What one episode gave: its discounted return, and whether it ended by a success."""

    value: float
    solved: bool


def run_policy(table: Table, policy: IntArray, gamma: float) -> Outcome:
    """One episode of a policy (O,), an action for each of the table's observations.

    The return is that of an episode without a step limit, of a policy that loops for ever too; a
    success counts if it comes within the limit.
    """
    state, rewards = table.start, list[float]()
    when: dict[int, int] = {}
    while state not in when:
        when[state] = len(rewards)
        action = policy[table.obs_index[state]]
        rewards.append(float(table.reward[state, action]))
        if table.terminated[state, action]:
            in_time = len(rewards) <= (table.max_episode_steps or len(rewards))
            return Outcome(_discounted(rewards, gamma), in_time and bool(table.goal[state, action]))
        state = int(table.next_state[state, action])
    first = when[state]
    loop = _discounted(rewards[first:], gamma) / (1 - gamma ** (len(rewards) - first))
    return Outcome(_discounted(rewards[:first], gamma) + gamma**first * loop, False)


def _discounted(rewards: list[float], gamma: float) -> float:
    return float(sum(gamma**step * reward for step, reward in enumerate(rewards)))
