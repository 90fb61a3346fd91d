"""Exact planning on tables, and the search for one memoryless policy that serves several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from owlrl.envs.table import Table
from owlrl.envs.vector import BoolArray, FloatArray, IntArray

__all__ = ["TIE"]

CONVERGED = 1e-12
TIE = 1e-9  # values closer than this are equally good
UNSET = -1
NOISE = (0.0, 0.003, 0.01, 0.03, 0.1)  # of the largest value; tried in turn
BACKTRACKS = 300  # per task and try


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


def decides(table: Table) -> BoolArray:
    """(S,): whether an action is taken in a state; False where every episode has ended.

    A state all of whose actions end the episode is one to decide in, if they lead or pay somewhere.
    """
    stays = table.next_state == np.arange(table.num_states)[:, None]
    ended: BoolArray = np.all(table.terminated & stays & (table.reward == 0.0), axis=1)
    return ~ended


def observed_actions(table: Table, gamma: float) -> BoolArray:
    """(O, A): whether an action is optimal in some state that looks like this.

    Rows of observations that are only seen when the episode has ended are all false.
    """
    values = action_values(table, gamma)
    optimal = values >= values.max(axis=1, keepdims=True) - TIE
    optimal &= decides(table)[:, None]
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

    The return is that of an episode without a step limit, of a policy that loops forever, too; a
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

    def total(self, policy: IntArray, gamma: float) -> float:
        """The sum of a policy's returns."""
        return sum(outcome.value for outcome in self.outcomes(policy, gamma))

    def visited(self, policy: IntArray) -> list[int]:
        """The observations that a policy meets, in the order of the tasks' episodes."""
        found: dict[int, None] = {}
        for table, rows in zip(self.tables, self.rows, strict=True):
            state, states = table.start, set[int]()
            while state not in states:
                states.add(state)
                seen = int(rows[table.obs_index[state]])
                found[seen] = None
                if table.terminated[state, policy[seen]]:
                    break
                state = int(table.next_state[state, policy[seen]])
        return list(found)


def best_policy(joint: Joint, *, gamma: float, tries: int, seed: int) -> IntArray:
    """The best single policy found, (N,): an action for each of the N observations.

    The first try takes, for each observation, the best action of the first task that has it. Any other takes
    the tasks in some order. Each is walked from its start to a success; at an observation
    without an action yet, the best action of this task (after some noise) is tried first, and the
    others when it leads into a loop. Actions once set stay set for the tasks that follow. The try
    with the largest sum of returns counts; at last single actions are changed while that helps. The
    search ends early when the sum is that of the optima.
    """
    generator = np.random.default_rng(seed)
    values = [action_values(table, gamma) for table in joint.tables]
    bound = sum(float(value[table.start].max()) for value, table in zip(values, joint.tables, strict=True))
    best = np.full(joint.num_observations, UNSET)
    _fill(joint, values, best, range(len(values)))
    best_total = joint.total(best, gamma)
    for number in range(tries):
        if best_total >= bound - TIE:
            return best
        policy = _try(joint, values, noise=NOISE[number % len(NOISE)], generator=generator)
        total = joint.total(policy, gamma)
        if total > best_total:
            best, best_total = policy, total
    return _improved(joint, best, gamma)


def _improved(joint: Joint, policy: IntArray, gamma: float) -> IntArray:
    """Change one observation's action at a time, as long as the sum of returns grows."""
    best, total, changed = policy, joint.total(policy, gamma), True
    while changed:
        changed = False
        for seen in joint.visited(best):
            for action in range(joint.tables[0].num_actions):
                other = best.copy()
                other[seen] = action
                if (value := joint.total(other, gamma)) > total + TIE:
                    best, total, changed = other, value, True
    return best


def _fill(joint: Joint, values: list[FloatArray], policy: IntArray, order: Sequence[int] | IntArray) -> None:
    """Where nothing is set: the best action of the first task and state that look like this."""
    for task in order:
        table, rows = joint.tables[task], joint.rows[task]
        for state in np.flatnonzero(decides(table)):
            seen = rows[table.obs_index[state]]
            if policy[seen] == UNSET:
                policy[seen] = values[task][state].argmax()
    policy[policy == UNSET] = 0  # only seen when an episode has ended


def _try(joint: Joint, values: list[FloatArray], *, noise: float, generator: np.random.Generator) -> IntArray:
    order = generator.permutation(len(joint.tables))
    policy = np.full(joint.num_observations, UNSET)
    for task in order:
        scale = noise * np.abs(values[task]).max()
        rank = values[task] + scale * generator.standard_normal(values[task].shape)
        _walk(joint.tables[task], joint.rows[task], policy, np.argsort(-rank, axis=1, kind="stable"))
    _fill(joint, values, policy, order)
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
