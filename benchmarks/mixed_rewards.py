"""Sparse and dense tasks together: which head does the evidence choose? (The paper's first limitation.)

Crossroads-4 with one agent: two corridors pay at their end only, two pay for every step into them as well,
with rewards times ``--scale``. Heads of sparse tasks have small values, hence small TD errors everywhere. In
the dense tasks, with the task unknown, in eight episodes in a row with kept evidence: how often does a head
of a sparse task act in the first, and is the goal reached in the first and in the last? An episode has five
or six steps, and Hedge keeps a head for up to eight unless it becomes half as likely.

    python benchmarks/mixed_rewards.py [--seeds 5] [--first 0] [--scale 10] [--output DIR] [--table]

One file per seed; what is there is not run again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from owlrl.acting import run_episodes
from owlrl.experiments import Run, Session, resolve_tasks, table_of
from owlrl.experiments.keeping import repeatable
from owlrl.experiments.tasks import vector_env

RESULTS = Path(__file__).parent / "results" / "mixed"
TASKS = "Crossroads-4"
DENSE = ("crossroads-2", "crossroads-3")
POLICIES = {
    "released+td-raw": "the released bandit, raw TD errors",
    "released+td": "the released bandit, calibrated TD errors",
    "hedge+td-raw": "Hedge, raw TD errors",
    "hedge+td": "Hedge, calibrated TD errors",
    "hedge+model": "Hedge, task models (default)",
    "random": "random heads",
}
EPISODES, IN_A_ROW = 64, 8


def trained(seed: int, *, scale: float, frames: int) -> Session:
    """One agent that has learned the four tasks one after the other."""
    run = Run(TASKS, seed=seed, frames=frames, policies=("oracle", *POLICIES))
    session = Session(run)
    for name, spec in resolve_tasks(TASKS, {"breadcrumbs": True}).items():
        if name in DENSE:
            table = table_of(spec)
            session.tasks[name] = replace(table, reward=scale * table.reward)
    for task in session.tasks:
        session.train(task, session.env(task), frames)
    return session


def measured(session: Session, policy: str) -> dict[str, float]:
    """In the dense tasks: how often heads of sparse tasks act, and how often the goal is reached."""
    sparse = [place for place, name in enumerate(session.heads) if name not in DENSE]
    acted, steps, success = 0.0, 0, []
    for name in DENSE:
        policy_of = session.policy_of(policy, [name] * EPISODES)
        env, chosen = vector_env(session.tasks[name], EPISODES), {"seed": 10_000 + session.run.seed}
        count = EPISODES * IN_A_ROW
        found = run_episodes(policy_of, env, episodes=count, keep_evidence=True, **chosen)
        order = np.argsort(found.env, kind="stable").reshape(EPISODES, IN_A_ROW)  # by environment, in turn
        first = order[:, 0]
        acted += float((found.acted[first][:, sparse].sum(axis=1) * found.lengths[first]).sum())
        steps += int(found.lengths[first].sum())
        success.append(found.success[order])
    ends = np.concatenate(success).mean(axis=0)
    return {"sparse": acted / steps, "first": float(ends[0]), "last": float(ends[-1])}


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--scale", type=float, default=10.0)
    parser.add_argument("--frames", type=int, default=30_000)
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only print what is there")
    chosen = parser.parse_args()
    chosen.output.mkdir(parents=True, exist_ok=True)
    for seed in range(chosen.first, chosen.first + chosen.seeds) if not chosen.table else ():
        path = chosen.output / f"{seed}-x{chosen.scale:g}-{chosen.frames}.json"
        if not path.is_file():
            with repeatable(seed):
                session = trained(seed, scale=chosen.scale, frames=chosen.frames)
                of = {policy: measured(session, policy) for policy in ("oracle", *POLICIES)}
            path.write_text(
                json.dumps({"seed": seed, "scale": chosen.scale, "policies": of}), encoding="utf-8"
            )
    print(table(chosen.output))


def table(directory: Path = RESULTS) -> str:
    """Markdown: means over seeds with the least and the greatest."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.json"))]
    lines = [
        "| dense rewards | evidence, in dense tasks | seeds | a sparse task's head acts | "
        "goal in the first episode | goal in the eighth |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for scale in sorted({run["scale"] for run in runs}):
        of_scale = [run["policies"] for run in runs if run["scale"] == scale]
        for policy, about in {"oracle": "task given", **POLICIES}.items():
            cells = (_spread([of[policy][name] for of in of_scale]) for name in ("sparse", "first", "last"))
            lines.append(f"| × {scale:g} | {about} | {len(of_scale)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(numbers: list[Any]) -> str:
    return f"{np.mean(numbers):.2f} ({min(numbers):.2f}–{max(numbers):.2f})"


if __name__ == "__main__":
    main()
