"""One update of the reference learners against that of 0.1 (`frozen`), eager and compiled.

    python benchmarks/updates.py [--quick]

Both sides start from the same weights and see the same batch; 0.1's loss is asserted to be ours. FAST is
trained for a while first: what its optimizer keeps has then the tiny numbers that cost 0.1 time. The last
rows are updates in a third task, with two that are held by the default guard.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import frozen
import gymnasium
import numpy as np
import torch
from common import Row, command, side_by_side

from owlrl import OwlWrapper
from owlrl.learners import DQN, FAST, PAPER, SAC, SAC_FAST, GridConv
from owlrl.types import Transitions


class Space(gymnasium.Env[Any, Any]):
    """Nothing but its spaces."""

    def __init__(self, observation: Any, action: Any) -> None:
        self.observation_space, self.action_space = observation, action


def rows(env: Any, size: int, *, ones: int = 10) -> Transitions:
    """A batch of random rows."""
    rng, space = np.random.default_rng(0), env.observation_space

    def seen() -> torch.Tensor:
        drawn = (
            rng.integers(0, ones, (size, *space.shape))
            if space.dtype == np.uint8
            else rng.normal(size=(size, *space.shape))
        )
        return torch.from_numpy(drawn.astype(space.dtype))

    if hasattr(env.action_space, "n"):
        action = torch.from_numpy(rng.integers(0, env.action_space.n, size))
    else:
        action = torch.from_numpy(rng.uniform(-1, 1, (size, 1)).astype(np.float32))
    reward = torch.from_numpy(rng.normal(size=size).astype(np.float32))
    return Transitions(
        seen(), action, reward, seen(), torch.zeros(size, dtype=torch.bool), torch.full((size,), 0.99)
    )


def same_start(update: Any, agent: Any, batch: Transitions) -> None:
    """Give the agent 0.1's weights, and look that both find the same loss."""
    for name, network in update.networks.items():
        getattr(agent, name).load_state_dict(network.state_dict())
    expected, found = update(batch), agent.update(batch)
    found = found["critic"] if isinstance(found, dict) else found
    if isinstance(agent, DQN):  # SAC draws its own noise
        assert abs(found - expected) <= 1e-4 * abs(expected), (found, expected)


def contest(old: Any, build: Any, batch: Transitions, *, quick: bool, calls: int, warm: int = 0) -> list[Any]:
    """Times of 0.1's update, of ours and of ours compiled."""
    agents = [build(compile=False), build(compile=True)]
    for agent in agents:
        same_start(old, agent, batch)
    updates = [old, *(agent.update for agent in agents)]
    for update in updates:
        for _ in range(warm):
            update(batch)
    contestants = [lambda update=update: update(batch) for update in updates]
    return side_by_side(contestants, rounds=7 if quick else 21, calls=calls)


def guarded(build: Any, batch: Transitions, *, quick: bool) -> list[Any]:
    """Times of our update and of ours compiled in a third task, two others held."""
    agents = [build(compile=False), build(compile=True)]
    blocks = []  # kept open
    for agent in agents:
        owl = OwlWrapper(agent, evidence=None, seed=0)
        some = rows(agent.env, 500)
        columns = (some.observation, some.action, some.reward, some.next_observation, some.terminated)
        for task in ("one", "two", "three"):
            blocks.append(owl.task(task))
            blocks[-1].__enter__()
            for row in zip(*columns, strict=True):
                agent.replay.add(*(x.numpy() for x in row), False)
            agent.update(batch)
            if task != "three":
                blocks[-1].__exit__(None, None, None)
    contestants = [lambda agent=agent: agent.update(batch) for agent in agents]
    times = side_by_side(contestants, rounds=7 if quick else 21, calls=15)
    for block in blocks[2::3]:
        block.__exit__(None, None, None)
    return times


IMAGES = Space(gymnasium.spaces.Box(0, 10, (7, 7, 3), np.uint8), gymnasium.spaces.Discrete(3))
VECTORS = Space(gymnasium.spaces.Box(-1, 1, (8,), np.float32), gymnasium.spaces.Discrete(4))
PENDULUM = gymnasium.make("Pendulum-v1")
SMALL_SAC = replace(
    SAC_FAST, actor_hidden=(64, 64), critic_hidden=(64, 64), batch_size=256, initial_alpha=1.0
)


def paper_dqn(*, compile: bool) -> DQN:
    return DQN(IMAGES, config=PAPER, trunk=GridConv(), feature_dim=200, device="cpu", compile=compile)


def vector_dqn(*, compile: bool) -> DQN:
    return DQN(VECTORS, config=FAST, device="cpu", compile=compile)


def small_sac(*, compile: bool) -> SAC:
    return SAC(PENDULUM, config=SMALL_SAC, device="cpu", compile=compile)


def paper(*, quick: bool) -> list[Any]:
    old = frozen.dqn_update(
        frozen.GridConv(), 200, 3, dueling=True, rate=PAPER.learning_rate, target_rate=1.0, every=80
    )
    return contest(old, paper_dqn, rows(IMAGES, PAPER.batch_size), quick=quick, calls=40)


def vectors(*, quick: bool) -> list[Any]:
    old = frozen.dqn_update(
        frozen.mlp(8), 128, 4, dueling=False, rate=5e-4, target_rate=FAST.target_rate, every=1
    )
    return contest(old, vector_dqn, rows(VECTORS, FAST.batch_size), quick=quick, calls=40)


def continuous(*, quick: bool) -> list[Any]:
    old = frozen.sac_update(3, 1, (64, 64), rate=SMALL_SAC.learning_rate, target_rate=SMALL_SAC.target_rate)
    return contest(old, small_sac, rows(PENDULUM, 256), quick=quick, calls=15)


def fast(*, quick: bool) -> list[Any]:
    """After many updates on the same rows: what Adam keeps of 0.1 is then full of tiny numbers."""
    old = frozen.dqn_update(
        frozen.GridMLP(), 128, 3, dueling=False, rate=5e-4, target_rate=FAST.target_rate, every=1
    )

    def build(*, compile: bool) -> DQN:
        return DQN(IMAGES, config=FAST, device="cpu", compile=compile)

    return contest(old, build, rows(IMAGES, FAST.batch_size, ones=3), quick=quick, calls=15, warm=3000)


def main(*, quick: bool = False) -> list[Row]:
    found: list[Row] = []
    contests = {
        "DQN update, paper's network, batch 32": paper,
        "DQN update, MLP on vectors of 8, batch 128": vectors,
        "SAC update, 64 x 64, batch 256": continuous,
        "DQN update, FAST": fast,
    }
    for name, measure in contests.items():
        old, eager, compiled = measure(quick=quick)
        found.append(Row(f"{name}, against 0.1", old, eager))
        found.append(Row(f"{name}, compile=True, against 0.1", old, compiled))
    held = {
        "DQN update, paper's network": (paper_dqn, rows(IMAGES, PAPER.batch_size)),
        "DQN update, MLP": (vector_dqn, rows(VECTORS, FAST.batch_size)),
        "SAC update": (small_sac, rows(PENDULUM, 256)),
    }
    for name, (build, batch) in held.items():
        eager, compiled = guarded(build, batch, quick=quick)
        found.append(Row(f"{name}, two tasks held, compile=True, against eager", eager, compiled))
    return found


if __name__ == "__main__":
    command(main, __doc__)
