"""Small tables and walks that several tests use."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Discrete
from hypothesis import strategies as st

from owlrl.envs import Table, TabulatedEnv
from owlrl.envs.planning import action_values


def line(length: int = 3, **changes) -> Table:
    """Places in a row; left is 0, right 1; right from the last but one ends the episode with reward 1."""
    states = np.arange(length)
    next_state = np.stack([np.maximum(states - 1, 0), np.minimum(states + 1, length - 1)], axis=1)
    next_state[-1] = length - 1
    reward = np.zeros((length, 2))
    reward[-2, 1] = 1.0
    terminated = np.zeros((length, 2), dtype=bool)
    terminated[-2, 1] = True
    terminated[-1] = True
    fields = {
        "observations": states,
        "obs_index": states,
        "next_state": next_state,
        "reward": reward,
        "terminated": terminated,
        "start": 0,
        "observation_space": Discrete(length),
    }
    return Table(**{**fields, **changes})


@st.composite
def random_tables(draw, *, max_states: int = 5, num_actions: int = 2, observations: int = 4) -> Table:
    """Any small deterministic task with a success somewhere; its states may look alike."""
    states = draw(st.integers(2, max_states))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    terminated = generator.random((states, num_actions)) < 0.3
    reward = np.round(generator.normal(size=(states, num_actions)), 1)
    terminated[0, 0], reward[0, 0] = True, 1.0
    return Table(
        observations=np.arange(observations),
        obs_index=generator.integers(observations, size=states),
        next_state=generator.integers(states, size=(states, num_actions)),
        reward=reward,
        terminated=terminated,
        start=int(generator.integers(states)),
        observation_space=Discrete(observations),
    )


def differences(env, table: Table, *, steps: int, seed: int, purpose: float = 0.0) -> tuple[list[str], int]:
    """Where ``env`` and the table's environment differ in a walk, and how many successes the walk had.

    With probability ``purpose`` an action is an optimal one: at random, few walks ever meet the goal.
    """
    generator = np.random.default_rng(seed)
    best = action_values(table, 0.99).argmax(axis=1)
    copy = TabulatedEnv(table)
    found, successes = [], 0
    observations = env.reset(seed=seed), copy.reset()
    if not np.array_equal(observations[0][0], observations[1][0]):
        found.append("first observation")
    for step in range(steps):
        action = int(generator.integers(table.num_actions))
        if generator.random() < purpose:
            action = int(best[copy.state])
        real, ours = env.step(action), copy.step(action)
        for name, a, b in zip(("observation", "reward", "terminated", "truncated"), real, ours, strict=False):
            if not np.array_equal(a, b):
                found.append(f"{name} at step {step}: {a} and {b}")
        if real[2] or real[3]:
            successes += bool(ours[4]["is_success"])
            env.reset()
            copy.reset()
    return found, successes
