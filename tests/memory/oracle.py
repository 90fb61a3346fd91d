"""What a memory must keep, from a plain list of all rows; slow and one row at a time."""

from __future__ import annotations

import numpy as np
import torch

from owlrl._arguments import own_generator
from owlrl.memory._reservoir import quotas
from owlrl.memory.task_memory import GENERATOR
from owlrl.types import Transitions

SETTLE = "settle"


def segments_of(stream, segment):
    """Complete segments, in the order in which they were complete; rows are dicts, SETTLE ends a visit."""
    done, opened, last = [], {}, {}

    def close(env):
        done.append(opened.pop(env))

    for row in stream:
        if row is SETTLE:
            for env in sorted(opened):
                close(env)
            last.clear()
            continue
        env, before = row["env"], last.get(row["env"])
        ended = before is not None and (before["terminated"] or before["truncated"])
        jumps = before is not None and before["next_observation"] != row["observation"]
        follows = before is not None and not ended and not jumps and before["discount"] == row["discount"]
        start = before is None or ended or (jumps and not row["known"])
        if env in opened and not follows:
            close(env)
        opened.setdefault(env, []).append({**row, "start": start})
        if row["terminated"] or row["truncated"] or len(opened[env]) == segment:
            close(env)
        last[env] = row
    return done


def strata_of(segments):
    """0 starts, 1 rare, 2 rest: by majority vote over the rewards so far."""
    common, votes, uncommon, made = 0.0, 0, 0, []
    for number, segment in enumerate(segments, start=1):
        for row in segment:
            if row["reward"] == common:
                votes += 1
            elif votes:
                votes -= 1
            else:
                common, votes = row["reward"], 1
        odd = any(row["reward"] != common for row in segment)
        uncommon += odd
        made.append(1 if odd and 10 * uncommon <= number else 0 if segment[0]["start"] else 2)
    return made


def kept(stream, *, capacity, segment, seed):
    """Kept segments in the order of arrival, with the weight of each one's rows."""
    segments = segments_of(stream, segment)
    strata = strata_of(segments)
    rng = own_generator(seed, GENERATOR)
    keys = [rng.random() for _ in segments]
    seen = [sum(len(s) for s, of in zip(segments, strata, strict=True) if of == k) for k in range(3)]
    chosen, weight = set(), {}
    for stratum, quota in enumerate(quotas(capacity, seen)):
        rows = 0
        for place in sorted((i for i, of in enumerate(strata) if of == stratum), key=keys.__getitem__):
            if rows + len(segments[place]) > quota:
                break
            rows += len(segments[place])
            chosen.add(place)
        weight[stratum] = seen[stratum] / rows if rows else 0.0
    places = sorted(chosen)
    weights = [weight[strata[place]] for place in places for _ in segments[place]]
    mean = sum(weights) / len(weights) if weights else 1.0
    return [segments[place] for place in places], [each / mean for each in weights]


def transitions(rows, *, observation=np.float32, action=np.int64, shape=()):
    """Dict rows as Transitions; observations of ``shape`` filled with the row's number."""

    def column(name, dtype):
        return torch.from_numpy(np.array([row[name] for row in rows], dtype))

    def filled(name):
        values = np.array([row[name] for row in rows], observation)
        wide = np.broadcast_to(values.reshape(-1, *[1] * len(shape)), (len(rows), *shape))
        return torch.from_numpy(wide.copy())

    known = all(row["known"] for row in rows)
    return Transitions(
        filled("observation"),
        column("action", action),
        column("reward", np.float32),
        filled("next_observation"),
        column("terminated", np.bool_),
        column("discount", np.float32),
        truncated=column("truncated", np.bool_) if known else None,
        env=column("env", np.int64),
    )


def stream(
    steps, *, envs=1, seed=0, end=0.1, jump=0.0, odd_reward=0.05, known=True, noisy=False, discounts=(0.99,)
):
    """Rows of ``envs`` environments step by step; observations are numbers up to 250."""
    rng = np.random.default_rng(seed)
    now = rng.integers(0, 250, envs)
    rows = []
    for _ in range(steps):
        for env in range(envs):
            after = int(rng.integers(0, 250))
            ended = rng.random() < end
            terminated = bool(ended and rng.random() < 0.5)
            reward = rng.normal() if noisy else float(rng.random() < odd_reward)
            rows.append(
                {
                    "observation": int(now[env]),
                    "action": int(rng.integers(0, 4)),
                    "reward": float(np.float32(reward)),
                    "next_observation": after,
                    "terminated": terminated,
                    "truncated": bool(ended and not terminated and known),
                    "discount": float(np.float32(discounts[int(rng.integers(0, 12)) // 11 % len(discounts)])),
                    "env": env,
                    "known": known,
                }
            )
            now[env] = rng.integers(0, 250) if ended or rng.random() < jump else after
    return rows
