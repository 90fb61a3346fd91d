"""Deep Sea Treasure, fruit tree and resources with several weightings; tables and DQN (extra benchmarks).

Worlds of MO-Gymnasium whose rewards are vectors: each weighting of them is a task, with the same observations
and transitions. They are small enough to be written out, so that the best return of one policy and those of
separate policies are exact, and a DQN on the same tables stands between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from owlrl.envs import Table, TabulatedVectorEnv, tabulate
from owlrl.envs.vector import FloatArray
from owlrl.experiments._optional import optional
from owlrl.experiments.comparison import Work, run_planned
from owlrl.experiments.config import DENSE
from owlrl.experiments.plan import Plan
from owlrl.experiments.results import Trial
from owlrl.experiments.studies import Errors, Part, study_text
from owlrl.learners import DQN

__all__: list[str] = []

COPIES = 8


class World(NamedTuple):
    """An environment of MO-Gymnasium, weights of its rewards by task, and the steps of one episode."""

    id: str
    weights: Mapping[str, tuple[float, ...]]
    limit: int
    steps: int = 0  # of training per task; 0 where the tables say all


NUTRIENTS = ("protein", "carbs", "fats", "vitamins", "minerals", "water")
WORLDS = {
    "deep-sea": World(  # the treasure and −1 for each step
        "deep-sea-treasure-v0",
        {"deep": (0.9, 0.1), "less deep": (0.6, 0.4), "near": (0.3, 0.7), "nearest": (0.0, 1.0)},
        limit=50,
        steps=20_000,
    ),
    "fruit-tree": World(  # what the fruit at the end of six turns has of six nutrients
        "fruit-tree-v0",
        {name: tuple(float(name == other) for other in NUTRIENTS) for name in NUTRIENTS},
        limit=6,
        steps=20_000,
    ),
    "resources": World(  # −1 for being killed; gold and diamond that are brought home
        "resource-gathering-v0", {"gold": (1.0, 1.0, 0.0), "diamond": (1.0, 0.0, 1.0)}, limit=50
    ),
}


class Deadly(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Resource gathering in which an enemy always wins, not in one of ten fights: nothing is random then."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One step; the last one if an enemy is met."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        base: Any = self.env.unwrapped
        if base.get_map_value(base.current_pos) in ("E1", "E2"):
            reward, terminated = np.array([-1.0, 0.0, 0.0], np.float32), True
        return observation, reward, terminated, truncated, info


def _state(env: Any) -> tuple[int, ...]:
    base = env.unwrapped
    state = base.current_state if hasattr(base, "current_state") else base.get_state()
    return tuple(int(number) for number in state)


@cache
def table_of(world: str, task: str) -> Table:
    """All of a task; a state is seen as its number, one-hot."""
    games = optional("mo_gymnasium", extra="benchmarks", what="the study treasure")
    about = WORLDS[world]
    env = games.make(about.id, max_episode_steps=about.limit)
    if world == "resources":
        env = Deadly(env)
    env = games.wrappers.LinearReward(env, weight=np.array(about.weights[task]))
    table = tabulate(env, state_key=_state)
    size = table.num_observations
    space = gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32)
    return replace(table, observations=np.eye(size, dtype=np.float32), observation_space=space)


def best_return(table: Table, reward: FloatArray) -> float:
    """The largest sum of ``reward`` (S, A) in an episode, whatever the policy sees but the rewards."""
    best = np.zeros(table.num_states)
    for _ in range(table.max_episode_steps or 0):
        best = (reward + np.where(table.terminated, 0.0, best[table.next_state])).max(axis=1)
    return float(best[table.start])


def exact(world: str) -> tuple[dict[str, float], float]:
    """The best return of each task by itself, and the largest mean over tasks that one policy can have.

    In all tasks of a world the same actions lead to the same places, so that the mean over tasks of a
    policy's returns is its return under the mean reward.
    """
    tables = {task: table_of(world, task) for task in WORLDS[world].weights}
    separate = {task: best_return(table, table.reward) for task, table in tables.items()}
    mean = np.mean([table.reward for table in tables.values()], axis=0)
    return separate, best_return(next(iter(tables.values())), mean)


def make(world: str, task: str) -> TabulatedVectorEnv:
    """Copies of a task side by side."""
    return TabulatedVectorEnv(table_of(world, task), COPIES)


def make_model(env: Any, seed: int) -> DQN:
    """The reference DQN; one-step targets, and an update for every 4 steps."""
    config = replace(
        DENSE, learning_rate=3e-3, n_step=1, learning_starts=500, epsilon_frames=15_000, buffer_size=20_000
    )
    return DQN(env, config=config, seed=seed, device="cpu")


def plan_of(world: str, frames: int | None, **chosen: Any) -> Plan:
    """The comparison in a world."""
    tasks = {task: partial(make, world, task) for task in WORLDS[world].weights}
    steps = frames or WORLDS[world].steps
    return Plan.of(make_model, tasks=tasks, steps=steps, eval_episodes=COPIES, **chosen)


def parts(
    *, seeds: int = 5, methods: Sequence[str] = ("bare", "alone", "owl"), frames: int | None = None
) -> list[Part]:
    """What is exact of each world, and a comparison of methods where there is something to learn."""
    found = []
    for world, about in WORLDS.items():
        recall = partial(plan_of, world, frames, seeds=seeds, methods=methods)
        trials = recall().trials() if about.steps else []
        work = [Work(trial, partial(run_planned, recall)) for trial in trials]
        found.append(Part(f"treasure/{world}", work, partial(told, world)))
    return found


def told(world: str, trials: list[Trial], errors: Errors, directory: Path) -> str:
    """What is exact, and what came of the comparison."""
    note = bounds(*exact(world))
    first = f"{world}: {note}\n\n"
    return first + (study_text(trials, errors, directory, note=note) if trials or errors else "")


def bounds(separate: Mapping[str, float], together: float) -> str:
    """What is exact, in a line."""
    each = ", ".join(f"{task} {value:.2f}" for task, value in separate.items())
    mean = float(np.mean(list(separate.values())))
    return f"exact: separate policies {each}, mean {mean:.2f}; one policy: mean of at most {together:.2f}"
