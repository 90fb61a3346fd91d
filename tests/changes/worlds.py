"""Small worlds whose rows can be made by the thousand: a ring, a ball on a spring, walks in grids."""

from __future__ import annotations

import numpy as np
import torch

from owlrl.acting.episodes import Stepper
from owlrl.envs import TabulatedVectorEnv
from owlrl.types import Transitions


def ring(pays, count, *, seed=0, cells=12, pull=None, slip=0.0, noise=0.0, crumbs=True):
    """A walk on a ring of cells seen as integers; ``pays`` gives 1 and ends the episode at cell 0.

    With ``crumbs`` every step towards it is worth a tenth. ``pull`` is the chance of a step to the right, per
    row: the policy.
    """
    rng = np.random.default_rng(seed)
    cell, rows = 0, []
    for step in range(count):
        right = rng.random() < (0.5 if pull is None else pull(step / count))
        moved = (cell + (1 if right ^ (rng.random() < slip) else -1)) % cells
        closer = _apart(moved, pays, cells) < _apart(cell, pays, cells)
        reward = float(moved == pays) + (0.1 * (1 if closer else -1) if crumbs else 0.0)
        rows.append((cell, int(right), reward + noise * rng.normal(), moved, moved == pays))
        cell = 0 if moved == pays else moved
    return transitions(rows, np.int64)


def ball(gravity, count, *, seed=0, target=0.0, push=lambda rng, x, v, t: rng.uniform(-1, 1), noise=0.0):
    """A ball on a spring, pushed about: observation (place, speed), reward −|place − target|."""
    rng = np.random.default_rng(seed)
    x, v, rows = 0.0, 0.0, []
    for step in range(count):
        u = float(np.clip(push(rng, x, v, step / count), -1, 1))
        seen = (x, v)
        v = 0.8 * v - 0.2 * x + 0.3 * u - 0.1 * gravity
        x = x + 0.3 * v
        reward = -abs(seen[0] - target) + noise * rng.normal()
        rows.append((seen, [u], reward, (x, v), False))
        if step % 50 == 49:
            x, v = rng.uniform(-2, 2), rng.uniform(-1, 1)
    return transitions(rows, np.float32)


def walk(table, count, *, seed=0, copies=32):
    """A walk of many copies side by side in a grid, forward more often than not."""
    rng = np.random.default_rng(seed)
    stepper, rows = Stepper(TabulatedVectorEnv(table, copies), seed=seed), []
    for _ in range(count // copies):
        step = stepper.step(rng.choice(table.num_actions, size=copies, p=[0.2, 0.2, 0.6]))
        rows.append((step.observation, step.action, step.reward, step.next_observation, step.terminated))
    columns = [torch.from_numpy(np.concatenate(column)) for column in zip(*rows, strict=True)]
    columns[2] = columns[2].float()
    env = torch.arange(copies).repeat(count // copies)
    return Transitions(*columns, torch.ones(len(env)), env=env)


def _apart(cell, goal, cells):
    return min((cell - goal) % cells, (goal - cell) % cells)


def transitions(rows, dtype):
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    kind = np.float32 if columns[1].dtype.kind == "f" else np.int64
    return Transitions(
        torch.from_numpy(columns[0].astype(dtype)),
        torch.from_numpy(columns[1].astype(kind)),
        torch.from_numpy(columns[2].astype(np.float32)),
        torch.from_numpy(columns[3].astype(dtype)),
        torch.from_numpy(columns[4].astype(bool)),
        torch.full((len(rows),), 0.99),
    )
