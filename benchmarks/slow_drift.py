"""A task that changes slowly: a pendulum whose gravity goes from 10 to 14 over 20,000 steps.

    python benchmarks/slow_drift.py --seeds 3     # a rerun goes on
    python benchmarks/slow_drift.py --table       # print the table of what is there

There is no border to find. What does `owl.stream()` do, and what does it cost? Beside it the same SAC bare.
Gravity stays at 10 for 4,000 steps before the drift and at 14 for 4,000 after it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gymnasium
import torch

from owlrl import OwlWrapper
from owlrl.learners import SAC

RESULTS = Path(__file__).parent / "results" / "drift"
FIRST, LAST = 10.0, 14.0
CALM, DRIFT = 4_000, 20_000
EPISODES = 32


class Drifting(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Gravity by the number of steps taken."""

    taken = 0

    def step(self, action: Any) -> Any:
        part = min(max(self.taken - CALM, 0) / DRIFT, 1.0)
        self.env.unwrapped.g = FIRST + part * (LAST - FIRST)  # type: ignore[attr-defined]
        self.taken += 1
        return self.env.step(action)


def run(seed: int, wrapped: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    agent = SAC(Drifting(gymnasium.make("Pendulum-v1")), seed=seed, device="cpu")
    found: dict[str, Any] = {"seed": seed, "wrapped": wrapped, "events": []}
    if wrapped:
        owl = OwlWrapper(agent, seed=seed)
        with owl.stream() as stream:
            agent.learn(CALM + DRIFT + CALM)
        found["events"] = [[e.step, e.left, e.to, e.new, e.merged] for e in stream.events]
        found["heads"], found["task"] = list(owl.tasks), stream.task
    else:
        agent.learn(CALM + DRIFT + CALM)
    found["returns"] = {}
    for gravity in (FIRST, (FIRST + LAST) / 2, LAST):
        env = gymnasium.make("Pendulum-v1", g=gravity)
        if wrapped:
            now = owl.evaluate(env, task=found["task"], episodes=EPISODES, seed=1_000).mean_return
            unknown = owl.evaluate(env, episodes=EPISODES, seed=1_000).mean_return
            found["returns"][f"{gravity:g}"] = {"newest head": now, "task unknown": unknown}
        else:
            found["returns"][f"{gravity:g}"] = {"bare": mean_return(agent, env)}
    return found


def mean_return(agent: SAC, env: Any) -> float:
    """Of greedy episodes, with the seeds that `OwlWrapper.evaluate` takes."""
    total = 0.0
    for episode in range(EPISODES):
        observation, _ = env.reset(seed=1_000 + episode)
        over = False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(agent.predict(observation))
            total += float(reward)
            over = terminated or truncated
    return total / EPISODES


def table(output: Path) -> str:
    """What is there: heads, changes, and mean returns at three gravities."""
    gravities = [f"{g:g}" for g in (FIRST, (FIRST + LAST) / 2, LAST)]
    lines = [
        "| seed | policy | heads | changes (row: from → to) | "
        + " | ".join(f"g = {g}" for g in gravities)
        + " |",
        "|---|---|---|---|" + "---|" * len(gravities),
    ]
    for file in sorted(output.glob("[0-9]*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        changes = ", ".join(
            f"{step:,}: {left} → {to}{' (merged)' if merged else ''}"
            for step, left, to, _, merged in found["events"]
        )
        for policy in found["returns"][gravities[0]]:
            cells = " | ".join(f"{found['returns'][g][policy]:.0f}" for g in gravities)
            heads = len(found["heads"]) if found["wrapped"] else ""
            lines.append(f"| {found['seed']} | {policy} | {heads} | {changes or '–'} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where finished runs are kept")
    parser.add_argument("--table", action="store_true", help="run nothing, print what is there")
    a = parser.parse_args()
    a.output.mkdir(parents=True, exist_ok=True)
    for seed in range(0 if a.table else a.seeds):
        for wrapped in (False, True):
            file = a.output / f"{seed}-{'stream' if wrapped else 'bare'}.json"
            if not file.exists():
                file.write_text(json.dumps(run(seed, wrapped), indent=1), encoding="utf-8")
    print(table(a.output))


if __name__ == "__main__":
    main()
