"""Which update should `ExpWeightsSelector` use by default? Measured on tabular look-alike tasks.

A problem has K tasks that share states, actions and dynamics and differ in what they reward. One
Q-table per task stands for a head: the exact solution with errors of approximation, larger away
from the head's own path. Rewards of the tasks differ in size by up to ten. Every task is played
in episodes of 60 steps in which nobody says which task it is and the selected head acts; each
episode begins without evidence. A number is the reward collected (for the grid and the crossroads
mostly: whether the goal was reached) as a part of the oracle's; a seed is a problem of its own.

    python benchmarks/selection_study.py [--seeds 20] [--quick]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from owlrl.evidence import calibrated_loss, plain_loss, td_scale
from owlrl.protocols import HeadSelector
from owlrl.selection import ExpWeightsSelector, MaxQSelector, UniformSelector

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

GAMMA = 0.95
HORIZON = 60
EPISODES = 4  # of every task
FIRST_SEED = 2000  # the defaults were chosen on seeds 0 to 7 and 1000 to 1019


# --- problems ---------------------------------------------------------------------------------------


@dataclass
class Problem:
    """One seed: two equally likely successors per pair, rewards and ends per task."""

    successors: IntArray  # (2, S, A)
    rewards: FloatArray  # (K, S, A)
    ends: BoolArray  # (K, S, A)
    starts: IntArray


def crossroads(rng: np.random.Generator, tasks: int, *, dense: bool) -> Problem:
    """K corridors of four cells from one crossing, a goal at each end; the task says which counts.

    Sparse: a wrong goal is a dead end. Dense: 0.05 per cell in the right corridor, and a wrong
    goal ends the episode.
    """
    length = 4
    states, actions = 1 + tasks * length, tasks
    successors = np.tile(np.arange(states)[:, None], (1, actions))
    rewards = np.zeros((tasks, states, actions))
    ends = np.zeros((tasks, states, actions), dtype=np.bool_)
    entrance = rng.permutation(tasks)  # the action that enters each corridor
    for corridor in range(tasks):
        cells = 1 + corridor * length + np.arange(length)
        successors[0, entrance[corridor]] = cells[0]
        successors[cells[:-1], 0] = cells[1:]
        successors[cells, 1] = np.concatenate([[0], cells[:-1]])
        if dense:
            rewards[corridor, 0, entrance[corridor]] = 0.05
            rewards[corridor, cells, 0] = 0.05
            rewards[corridor, cells, 1] = -0.05
            ends[:, cells[-1], 0] = True
        rewards[corridor, cells[-1], 0] = 1.0
        ends[corridor, cells[-1], 0] = True
    return Problem(np.stack([successors] * 2), rewards, ends, np.array([0]))


def grid(rng: np.random.Generator, tasks: int, *, dense: bool) -> Problem:
    """An open 7 × 7 grid with K goal cells; dense: 0.1 per cell nearer to the one that counts."""
    size = 7
    row, column = np.divmod(np.arange(size * size), size)
    moves = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
    successors = np.clip(row[:, None] + moves[:, 0], 0, size - 1) * size
    successors = successors + np.clip(column[:, None] + moves[:, 1], 0, size - 1)
    cells = rng.permutation(size * size)
    goals, starts = cells[:tasks], cells[tasks:]
    ends = np.stack([successors == goal for goal in goals])
    rewards = ends.astype(np.float64)
    if dense:
        distance = np.abs(row - row[goals][:, None]) + np.abs(column - column[goals][:, None])  # (K, S)
        rewards += 0.1 * (distance[:, :, None] - distance[:, successors])
    return Problem(np.stack([successors] * 2), rewards, ends, starts)


def random_mdp(rng: np.random.Generator, tasks: int, *, dense: bool) -> Problem:
    """30 states, 4 actions, random successors, no end; each pair rewarded, or one in fifteen."""
    shape = (30, 4)
    if dense:
        rewards = rng.random((tasks, *shape)) ** 4
    else:
        rewards = (rng.random((tasks, *shape)) < 1 / 15).astype(np.float64)
        rewards[:, 0, 0] = 1.0  # no task without any
    ends = np.zeros((tasks, *shape), dtype=np.bool_)
    return Problem(rng.integers(30, size=(2, *shape)), rewards, ends, np.arange(30))


FAMILIES: dict[str, Callable[..., Problem]] = {"crossroads": crossroads, "grid": grid, "random": random_mdp}


# --- heads ------------------------------------------------------------------------------------------


def solve(problem: Problem) -> FloatArray:
    """Exact Q* (K, S, A) by value iteration."""
    q = np.zeros_like(problem.rewards)
    for _ in range(250):
        value: FloatArray = q.max(-1)  # (K, S)
        after = 0.5 * (value[:, problem.successors[0]] + value[:, problem.successors[1]])
        q = problem.rewards + GAMMA * np.where(problem.ends, 0.0, after)
    return q


def own_path(problem: Problem, q: FloatArray) -> BoolArray:
    """States (K, S) that the greedy policy of each task meets."""
    visited = np.zeros(q.shape[:2], dtype=np.bool_)
    for task, table in enumerate(q):
        greedy = table.argmax(-1)
        here = np.unique(problem.starts)
        for _ in range(HORIZON):
            visited[task, here] = True
            going = here[~problem.ends[task, here, greedy[here]]]
            here = np.unique(problem.successors[:, going, greedy[going]])
    return visited


def approximate(rng: np.random.Generator, problem: Problem, q: FloatArray, noise: float) -> FloatArray:
    """Q* with errors of ``noise`` times its size on the head's own path, three times that off it.

    Values and the gaps between actions are wrong, their order is not: every head solves its own
    task from anywhere, so what is lost against the oracle is lost by selection.
    """
    size = noise * np.sqrt((q**2).mean((1, 2), keepdims=True))
    off = np.where(own_path(problem, q), 1.0, 3.0)[:, :, None]
    value = q.max(-1, keepdims=True)
    error = size * off * rng.standard_normal(value.shape)
    stretch = np.exp(3.0 * noise * rng.standard_normal(q.shape))
    wrong: FloatArray = value + error + (q - value) * stretch
    return wrong


# --- methods ----------------------------------------------------------------------------------------


@dataclass
class Method:
    """A selector (None: the oracle) and the evidence it is fed with."""

    name: str
    make: Callable[[], HeadSelector] | None
    calibrated: bool = True
    power: float = 1.0  # the paper's G is the square


def methods() -> Iterator[Method]:
    """All that is compared; the first is the default."""
    hedge = partial(ExpWeightsSelector, seed=0)
    yield Method("**hedge (default)**", hedge)
    yield Method("hedge, hold 1", partial(hedge, hold=1))
    yield Method("hedge, hold 2", partial(hedge, hold=2))
    yield Method("hedge, hold 4", partial(hedge, hold=4))
    yield Method("hedge, hold 16", partial(hedge, hold=16))
    yield Method("hedge, share 0", partial(hedge, share=0.0))
    yield Method("hedge, share 0.01", partial(hedge, share=0.01))
    yield Method("hedge, share 0, floor 0.01", partial(hedge, share=0.0, floor=0.01))
    yield Method("hedge, decay 0.97", partial(hedge, decay=0.97))
    yield Method("hedge, decay 0.9", partial(hedge, decay=0.9))
    yield Method("hedge, relative", partial(hedge, relative=True))
    yield Method("hedge, relative, decay 0.9", partial(hedge, relative=True, decay=0.9))
    yield Method("hedge, uncalibrated", hedge, calibrated=False)
    yield Method("hedge, relative, uncalibrated", partial(hedge, relative=True), calibrated=False)
    lead = partial(hedge, relative=True, decay=0.9, share=0.0, hold=1)
    yield Method("hedge, relative, decay 0.9, share 0, hold 1, uncalibrated", lead, calibrated=False)
    for variant, power in (("released", 1.0), ("paper", 2.0)):
        for hold, calibrated in product((1, 8), (False, True)):
            name = f"{variant}, hold {hold}{'' if calibrated else ', uncalibrated'}"
            yield Method(name, partial(hedge, variant=variant, hold=hold), calibrated, power)
    yield Method("random head, hold 1", partial(UniformSelector, seed=0))
    yield Method("random head, hold 8", partial(UniformSelector, hold=8, seed=0))
    yield Method("max-Q, once", MaxQSelector)
    yield Method("max-Q, every step", partial(MaxQSelector, every_step=True))


# --- playing ----------------------------------------------------------------------------------------


class Bench:
    """All problems of one setting stacked, every episode a row: E = seeds · K · EPISODES of them."""

    def __init__(self, family: str, tasks: int, *, dense: bool, noise: float, seeds: int) -> None:
        rngs = [
            np.random.default_rng([FIRST_SEED + seed, tasks, dense, len(family)]) for seed in range(seeds)
        ]
        problems = [FAMILIES[family](rng, tasks, dense=dense) for rng in rngs]
        self.sizes = np.stack([10.0 ** rng.uniform(-0.5, 0.5, tasks) for rng in rngs])  # (P, K)
        for size, problem in zip(self.sizes, problems, strict=True):
            problem.rewards *= size[:, None, None]
        pairs = list(zip(rngs, problems, strict=True))
        self.tasks, self.seeds = tasks, seeds
        self.heads = np.stack([approximate(r, p, solve(p), noise) for r, p in pairs])  # (P, K, S, A)
        self.best: FloatArray = self.heads.max(-1)  # (P, K, S)
        self.greedy = self.heads.argmax(-1)  # (P, K, S)
        self.successors = np.stack([p.successors for p in problems])
        self.rewards = np.stack([p.rewards for p in problems])
        self.ends = np.stack([p.ends for p in problems])
        self.problem = np.repeat(np.arange(seeds), tasks * EPISODES)  # (E,)
        self.task = np.tile(np.repeat(np.arange(tasks), EPISODES), seeds)  # (E,)
        self.starts = np.concatenate([r.choice(p.starts, tasks * EPISODES) for r, p in pairs])
        self.scales = self.measured_scales()

    def play(
        self,
        method: Method,
        *,
        switch: bool = False,
        epsilon: float = 0.0,
        own: list[FloatArray] | None = None,
    ) -> FloatArray:
        """Reward (P,) of one episode per row; with ``switch`` the task becomes another half-way.

        ``own`` takes (δ of the own head, its Q(s, a), whether the episode goes on), (3, E) per step.
        """
        rng = np.random.default_rng(0)
        rows, problem, task = np.arange(len(self.task)), self.problem, self.task
        state, alive, total = self.starts, np.ones(len(rows), dtype=np.bool_), np.zeros(len(rows))
        selector = None if method.make is None else method.make()
        if selector is not None:
            selector.reset(self.tasks, num_episodes=len(rows))
        for step in range(HORIZON):
            if switch and step == HORIZON // 2:
                task = (task + 1) % self.tasks
            if isinstance(selector, MaxQSelector):
                selector.observe_values(self.best[problem, :, state])
            head = task if selector is None else selector.select()
            action = self.greedy[problem, head, state]
            other = rng.integers(self.heads.shape[-1], size=len(rows))
            action = np.where(rng.random(len(rows)) < epsilon, other, action)
            reward = self.rewards[problem, task, state, action]
            end = self.ends[problem, task, state, action]
            after = self.successors[problem, rng.integers(2, size=len(rows)), state, action]
            total += alive * reward / self.sizes[problem, task]
            value = self.heads[problem, :, state, action]  # (E, K)
            target = reward[:, None] + GAMMA * ~end[:, None] * self.best[problem, :, after]
            if selector is not None:
                selector.update(self.losses(method, target - value))
            if own is not None:
                own.append(np.stack([(target - value)[rows, task], value[rows, task], alive]))
            alive = alive & ~end
            state = np.where(alive, after, state)
        collected: FloatArray = total.reshape(self.seeds, -1).mean(-1)
        return collected

    def losses(self, method: Method, delta: FloatArray) -> FloatArray:
        """(E, K) → (E, K)."""
        if method.calibrated:
            return calibrated_loss(delta, self.scales[self.problem], power=method.power)
        return np.ascontiguousarray(plain_loss(delta.T, power=method.power).T)

    def measured_scales(self) -> FloatArray:
        """`td_scale` (P, K) of each head on its own task, played with ε = 0.2."""
        own: list[FloatArray] = []
        self.play(Method("oracle", None), epsilon=0.2, own=own)
        delta, value, alive = np.stack(own, axis=1)  # each (T, E)
        scales = np.empty((self.seeds, self.tasks))
        for problem, task in np.ndindex(*scales.shape):
            keep = (alive > 0) & (self.problem == problem) & (self.task == task)
            scales[problem, task] = td_scale(delta[keep], value[keep])
        return scales


# --- the table --------------------------------------------------------------------------------------


def study(seeds: int, sizes: tuple[int, ...], noises: tuple[float, ...]) -> str:
    """Run everything; a Markdown table."""
    names = [method.name for method in methods()]
    parts: dict[tuple[str, str], list[FloatArray]] = {}  # (method, column) -> (P,) per setting
    for family, dense, tasks, noise in product(FAMILIES, (False, True), sizes, noises):
        bench = Bench(family, tasks, dense=dense, noise=noise, seeds=seeds)
        columns = [f"{family} {'dense' if dense else 'sparse'}", f"K = {tasks}", f"noise {noise}", "all"]
        for switch in (False, True) if family == "random" else (False,):
            oracle = bench.play(Method("oracle", None), switch=switch)
            for method in methods():
                part = bench.play(method, switch=switch) / oracle
                for column in ["task changes"] if switch else columns:
                    parts.setdefault((method.name, column), []).append(part)
    shown = list(dict.fromkeys(column for _, column in parts if column not in ("all", "task changes")))
    shown.sort(key=lambda column: (column.startswith("noise"), column.startswith("K =")))
    shown += ["task changes"]
    mean = {key: np.mean(values, axis=0) for key, values in parts.items()}  # (P,)
    lines = [
        "| selector | all | " + " | ".join(shown) + " |",
        "|---|---|" + "---|" * len(shown),
    ]
    for name in sorted(names, key=lambda n: -float(mean[n, "all"].mean())):
        over_seeds = mean[name, "all"]
        error = over_seeds.std(ddof=1) / np.sqrt(seeds)
        cells = " | ".join(f"{mean[name, column].mean():.2f}" for column in shown)
        lines.append(f"| {name} | {over_seeds.mean():.3f} ± {error:.3f} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table, and keep it if asked to."""
    parser = argparse.ArgumentParser(description="Compare the updates of ExpWeightsSelector.")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="3 seeds, K = 3 only: does it run?")
    parser.add_argument("--output", type=Path, help="a file for the table")
    args = parser.parse_args()
    begun = time.perf_counter()
    table = study(3, (3,), (0.05,)) if args.quick else study(args.seeds, (3, 5, 10), (0.01, 0.05))
    print(table)
    print(f"\n{time.perf_counter() - begun:.0f} s")
    if args.output is not None:
        args.output.write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
