"""`screen_level`: can this level be learned at all by an agent that only sees the current observation?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from owlrl._arguments import Arguments
from owlrl.envs.planning import run_policy
from owlrl.envs.table import Table
from owlrl.envs.tabulate import tabulate
from owlrl.envs.vector import AnyEnv, FloatArray, IntArray

__all__ = ["ScreenResult", "screen_level"]

GAMMA = 0.99
LEARNING_RATE = 0.1
EPSILON = 0.1  # reached, from 1, after half of the frames
CHECKS = 40  # of the greedy policy in a run; the last quarter counts
ENDLESS = 1_000  # steps of a random episode where nothing else cuts it


@dataclass(frozen=True)
class ScreenResult:
    """What `screen_level` found.

    Attributes:
        passed: whether every run held the level and random play finds the goal often enough.
        held: for each run, the share of the last quarter's checks in which the greedy policy
            solved the level.
        random_success: the chance that an episode of random actions succeeds.
        num_states: of the level.
        num_observations: that are distinct; far fewer than states is a bad sign.

    >>> from owlrl.envs import ScreenResult
    >>> result = ScreenResult(passed=True, held=(1.0, 1.0), random_success=0.02, num_states=169,
    ...                       num_observations=120)
    >>> result.passed
    True
    """

    passed: bool
    held: tuple[float, ...]
    random_success: float
    num_states: int
    num_observations: int


def screen_level(
    level: AnyEnv | Table,
    *,
    runs: int = 3,
    frames: int = 300_000,
    hold: float = 0.95,
    find: float = 0.0005,
    seed: int = 0,
) -> ScreenResult:
    """Whether a level can be learned from what is seen: Q-learning holds it, and its reward can be found.

    *Held*: tabular Q-learning over distinct observations, in which states that look alike share a row: where
    they need different actions, the policy flips for ever. In each of ``runs`` runs the greedy policy must
    solve the level in at least a share ``hold`` of ten checks, spread over the last quarter of the frames.

    *Found*: an episode of random actions must succeed with a chance of at least ``find``, or an agent that
    explores at random will hardly ever see a reward.

    One-step Q-learning with learning rate 0.1 and γ 0.99; ε falls from 1 to 0.1 over the first half. Q starts
    at the largest reward there is, so that a failure is hardly one of exploration.

    Args:
        level: an environment that can be tabulated, or its table.
        runs: how many runs, each with other random numbers.
        frames: steps of a run. 300,000 is enough for SimpleCrossing, a million for DoorKey-8x8.
        hold: the share of checks that each run must solve.
        find: the chance of success that a random episode must have.
        seed: of the random numbers.

    >>> import gymnasium
    >>> from owlrl.envs import screen_level
    >>> level = gymnasium.make("owlrl/Crossroads-v0", arms=2)
    >>> screen_level(level, runs=1, frames=20_000)  # doctest: +ELLIPSIS
    ScreenResult(passed=True, held=(1.0,), random_success=0.41..., num_states=30, num_observations=30)
    """
    arguments = Arguments("screen_level")
    runs, frames = arguments.integer("runs", runs), arguments.integer("frames", frames, least=CHECKS)
    arguments.number("hold", hold, least=0, most=1)
    arguments.number("find", find, least=0, most=1)
    seed = arguments.integer("seed", seed, least=0)
    arguments.check()
    table = level if isinstance(level, Table) else tabulate(level)
    held = tuple(_held(table, frames, learner) for learner in np.random.default_rng(seed).spawn(runs))
    found = _random_success(table)
    passed = min(held) >= hold and found >= find
    return ScreenResult(passed, held, found, table.num_states, table.num_observations)


def _random_success(table: Table) -> float:
    """The exact probability that uniformly random actions succeed within an episode."""
    chance: FloatArray = np.zeros(table.num_states)  # of being in a state now, with the episode continuing
    chance[table.start] = 1.0
    succeeded = 0.0
    for _ in range(table.max_episode_steps or ENDLESS):
        taken = np.broadcast_to(chance[:, None] / table.num_actions, table.next_state.shape)  # (S, A)
        succeeded += float(taken[table.goal].sum())
        goes_on = ~table.terminated
        chance = np.zeros(table.num_states)
        np.add.at(chance, table.next_state[goes_on], taken[goes_on])
    return succeeded


def _held(table: Table, frames: int, generator: np.random.Generator) -> float:
    """One run of Q-learning: the share of the last quarter's checks that solve the level."""
    learner = _TabularQ(table)
    solved = []
    size = frames // CHECKS
    for check in range(CHECKS):
        progress = (check + np.arange(size) / size) / CHECKS
        explores = generator.random(size) < np.maximum(EPSILON, 1 - (1 - EPSILON) * 2 * progress)
        drawn = generator.integers(table.num_actions, size=size)
        learner.learn(np.where(explores, drawn, -1).tolist())
        if check >= CHECKS - CHECKS // 4:
            solved.append(run_policy(table, learner.greedy(), GAMMA).solved)
    return float(np.mean(solved))


class _TabularQ:
    """Q-learning in plain lists: for single look-ups, far faster than arrays."""

    def __init__(self, table: Table) -> None:
        self.start = table.start
        self.limit = table.max_episode_steps
        self.seen = table.obs_index.tolist()
        self.next_state = table.next_state.tolist()
        self.reward = table.reward.tolist()
        self.terminated = table.terminated.tolist()
        self.values = [[float(table.reward.max())] * table.num_actions for _ in range(table.num_observations)]
        self.state, self.step = table.start, 0

    def learn(self, choices: list[int]) -> None:
        """One step per entry: the action to explore with, or −1 for the greedy one."""
        values, seen, state, step = self.values, self.seen, self.state, self.step
        for choice in choices:
            row = values[seen[state]]
            action = row.index(max(row)) if choice < 0 else choice
            target, ended = self.reward[state][action], self.terminated[state][action]
            after = self.next_state[state][action]
            if not ended:
                target += GAMMA * max(values[seen[after]])
            row[action] += LEARNING_RATE * (target - row[action])
            state, step = after, step + 1
            if ended or step == self.limit:
                state, step = self.start, 0
        self.state, self.step = state, step

    def greedy(self) -> IntArray:
        """The best action for each observation, (O,)."""
        return np.array([row.index(max(row)) for row in self.values], dtype=np.int64)
