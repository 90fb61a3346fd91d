"""What walks through unseen levels without having learned anything: the controls of `owlrl reproduce unseen`.

100 levels of SimpleCrossing S9N1 that are none of SC5, 16 episodes each, as in that study. Three rules that
need no network: an action drawn at random; one drawn from those tried least at this observation in the
episode; and forward wherever it is among these, one of them drawn elsewhere. The sets that are trained on
follow, for comparison.

python benchmarks/unseen_controls.py [--seeds 3]
"""

from __future__ import annotations

import argparse

import numpy as np

from owlrl.envs import Table, task_set, unseen_levels
from owlrl.experiments.tasks import tables_of

FORWARD = 2
EPISODES = 16
RULES = ("random", "least tried", "least tried, forward first")


def choose(rule: str, counts: np.ndarray, rng: np.random.Generator) -> int:
    if rule == "random":
        return int(rng.integers(len(counts)))
    least = np.flatnonzero(counts == counts.min())
    if rule == "least tried, forward first" and FORWARD in least:
        return FORWARD
    return int(rng.choice(least))


def solves(rule: str, table: Table, rng: np.random.Generator) -> bool:
    """Whether one episode reaches the goal."""
    state = table.start
    tried = np.zeros((table.num_observations, table.num_actions), dtype=int)
    for _ in range(table.max_episode_steps):
        counts = tried[table.obs_index[state]]
        action = choose(rule, counts, rng)
        counts[action] += 1
        if table.terminated[state, action]:
            return bool(table.goal[state, action])
        state = table.next_state[state, action]
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    sets = {"100 unseen": tables_of(unseen_levels("S9N1", 100, exclude=task_set("SC5")))}
    sets |= {name: tables_of(task_set(name)) for name in ("SC3", "SC5", "SC12")}
    for name, tables in sets.items():
        for rule in RULES:
            shares = []
            for seed in seeds:
                rng = np.random.default_rng(seed)
                episodes = [solves(rule, table, rng) for table in tables.values() for _ in range(EPISODES)]
                shares.append(np.mean(episodes))
            numbers = " ".join(f"{share:.3f}" for share in shares)
            print(f"{name:12}{rule:28}{numbers}   mean {np.mean(shares):.3f}")


if __name__ == "__main__":
    main()
