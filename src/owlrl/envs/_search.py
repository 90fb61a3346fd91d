"""A search for one memoryless policy that solves several tabulated tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from owlrl.envs._planning import TIE, Outcome, action_values, run_policy
from owlrl.envs.table import FloatArray, IntArray, Table

__all__ = ["Joint", "best_policy"]

UNSET = -1
NOISE = (0.0, 0.003, 0.01, 0.03, 0.1)  # of the largest value; tried in turn
BACKTRACKS = 300  # per task and try


@dataclass(frozen=True)
class Joint:
    """Tables whose observations are numbered together: ``rows[k]`` (O_k,) says which is which.

    Attributes:
        tables: K of them.
        rows: the number of each table's observations among all, K arrays (O_k,).
        num_observations: how many there are in all.
    """

    tables: tuple[Table, ...]
    rows: tuple[IntArray, ...]
    num_observations: int

    @classmethod
    def of(cls, tables: Sequence[Table]) -> Joint:
        """Number the observations of all tables, equal ones alike."""
        numbers: dict[bytes, int] = {}
        rows = tuple(
            np.array([numbers.setdefault(seen.tobytes(), len(numbers)) for seen in table.observations])
            for table in tables
        )
        return cls(tuple(tables), rows, len(numbers))

    def outcomes(self, policy: IntArray, gamma: float) -> tuple[Outcome, ...]:
        """What a policy (N,) gives in each task."""
        pairs = zip(self.tables, self.rows, strict=True)
        return tuple(run_policy(table, policy[rows], gamma) for table, rows in pairs)


def best_policy(joint: Joint, *, gamma: float, tries: int, seed: int) -> IntArray:
    """The best single policy found, (N,): an action for each of the N observations.

    One try takes the tasks in some order. Each is walked from its start to a success; at an observation
    without an action yet, the best action of this task (after some noise) is tried first, and the
    others when it leads into a loop. Actions once set stay set for the tasks that follow. The try
    with the largest sum of returns counts; the search ends early when that is the sum of the optima.
    """
    generator = np.random.default_rng(seed)
    values = [action_values(table, gamma) for table in joint.tables]
    bound = sum(float(value[table.start].max()) for value, table in zip(values, joint.tables, strict=True))
    best, best_total = np.zeros(joint.num_observations, dtype=np.int64), -np.inf
    for number in range(tries):
        policy = _try(joint, values, noise=NOISE[number % len(NOISE)], generator=generator)
        total = sum(outcome.value for outcome in joint.outcomes(policy, gamma))
        if total > best_total:
            best, best_total = policy, total
        if best_total >= bound - TIE:
            break
    return best


def _try(joint: Joint, values: list[FloatArray], *, noise: float, generator: np.random.Generator) -> IntArray:
    order = generator.permutation(len(joint.tables))
    policy = np.full(joint.num_observations, UNSET)
    for task in order:
        scale = noise * np.abs(values[task]).max()
        rank = values[task] + scale * generator.standard_normal(values[task].shape)
        _walk(joint.tables[task], joint.rows[task], policy, np.argsort(-rank, axis=1, kind="stable"))
    for task in order:  # wherever nothing is set, what some task would like
        table, rows = joint.tables[task], joint.rows[task]
        for state in range(table.num_states):
            seen = rows[table.obs_index[state]]
            if policy[seen] == UNSET:
                policy[seen] = values[task][state].argmax()
    return policy


def _walk(table: Table, rows: IntArray, policy: IntArray, order: IntArray) -> None:
    """Set what ``policy`` lacks to lead from the start to a success; leave it alone if none is found."""
    limit = table.max_episode_steps or table.num_states
    path = [table.start]
    choices: list[tuple[int, int, list[int]]] = []  # length of the path, observation, actions left to try
    backtracks = 0
    while True:
        state = path[-1]
        seen = rows[table.obs_index[state]]
        if policy[seen] == UNSET:
            left = [int(action) for action in order[state]]
            policy[seen] = left.pop(0)
            choices.append((len(path), seen, left))
        action = policy[seen]
        after = int(table.next_state[state, action])
        if table.goal[state, action]:
            return
        if not table.terminated[state, action] and after not in path and len(path) < limit:
            path.append(after)
            continue
        backtracks += 1
        while choices and (not choices[-1][2] or backtracks > BACKTRACKS):
            policy[choices.pop()[1]] = UNSET
        if not choices:
            return
        length, seen, left = choices[-1]
        policy[seen] = left.pop(0)
        del path[length:]
