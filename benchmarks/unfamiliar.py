"""No head fits: how soon and how surely does a policy say that it is in a task that it never learned?

    python -m benchmarks.unfamiliar --seeds 3              # all cases; a rerun goes on
    python -m benchmarks.unfamiliar --cases sc5            # one case
    python -m benchmarks.unfamiliar --table                # print the table of what is there

For each task of a case a learner is trained on all others, told the borders. Then `owl.policy()` acts for a
few steps in every task, and `policy.unfamiliar` of the left-out task is compared with that of the known ones:
the area under the ROC curve, and the share of episodes in known tasks that raise an alarm (above 0.99).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.stream import CASES
from owlrl import OwlWrapper
from owlrl.acting.episodes import Stepper

RESULTS = Path(__file__).parent / "results" / "unfamiliar"
EPISODES = 256
LOOKS = (10, 20, 40)  # steps
SURE = 0.99
USUAL = ("crossroads", "pendulum", "cartpole-sb3", "sc5")


def looked(owl: OwlWrapper, env: Any, seed: int) -> dict[str, list[float]]:
    """How unfamiliar each of the copies is after so many steps of its first episode."""
    stepper = Stepper(env, seed=seed)
    running, found = np.ones(stepper.num_envs, np.bool_), {}
    policy = owl.policy()
    policy.reset(num_envs=stepper.num_envs)
    policy.look_out()
    for number in range(1, max(LOOKS) + 1):
        step = stepper.step(policy.act(stepper.observation))
        row = (step.observation, step.action, step.reward, step.next_observation, step.terminated)
        policy.observe(*row, mask=running & step.real)
        running &= ~(step.terminated | step.truncated)
        if number in LOOKS:
            found[str(number)] = [round(float(p), 8) for p in policy.unfamiliar]
    return found


def run(case: str, left_out: str, seed: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    make_tasks, copies, length, make_learner = CASES[case]
    tasks = make_tasks()
    known = [task for task in tasks if task != left_out]
    envs = {task: tasks[task](copies) for task in known}
    learner = make_learner(envs[known[0]], seed)
    owl = OwlWrapper(learner)
    for task in known:
        with owl.task(task, env=envs[task]):
            learner.learn(length)
    found = {task: looked(owl, tasks[task](EPISODES), 1_000 + seed) for task in tasks}
    return {"case": case, "left out": left_out, "seed": seed, "unfamiliar": found}


def area(found: dict[str, Any], step: int) -> tuple[float, float]:
    """Area under the ROC curve of the left-out task against the known ones, and their share of alarms."""
    odd = np.array(found["unfamiliar"][found["left out"]][str(step)])
    others = (p[str(step)] for task, p in found["unfamiliar"].items() if task != found["left out"])
    own = np.concatenate([np.array(p) for p in others])
    higher, equal = (odd[:, None] > own).mean(), (odd[:, None] == own).mean()
    return float(higher + equal / 2), float((own > SURE).mean())


def table(output: Path) -> str:
    """Per left-out task the area, mean and least of the seeds, and alarms on known tasks, at worst."""
    lines = [
        "| left out | seeds | " + " | ".join(f"AUROC after {n} steps" for n in LOOKS) + " | "
        f"alarms on known tasks after {LOOKS[0]}, {LOOKS[-1]} steps |",
        "|---|---|" + "---|" * len(LOOKS) + "---|",
    ]
    read = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(output.glob("*.json"))]
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for case in CASES:
        for found in read:
            if found["case"] == case:
                rows.setdefault((case, found["left out"]), []).append(found)
    for (case, task), runs in rows.items():
        cells = []
        for step in LOOKS:
            areas = [area(found, step)[0] for found in runs]
            cells.append(f"{np.mean(areas):.3f} ({min(areas):.3f})")
        alarms = (max(area(found, step)[1] for found in runs) for step in (LOOKS[0], LOOKS[-1]))
        lines.append(
            f"| {case}, {task} | {len(runs)} | {' | '.join(cells)} | "
            f"{', '.join(f'{a:.1%}' for a in alarms)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(USUAL))
    parser.add_argument("--seeds", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where finished runs are kept")
    parser.add_argument("--table", action="store_true", help="run nothing, print what is there")
    a = parser.parse_args()
    a.output.mkdir(parents=True, exist_ok=True)
    for seed in range(a.first_seed, a.first_seed + (0 if a.table else a.seeds)):
        for case in a.cases:
            for number, task in enumerate(CASES[case][0]()):
                file = a.output / f"{case}-{number}-{seed}.json"
                if not file.exists():
                    file.write_text(json.dumps(run(case, task, seed)), encoding="utf-8")
                    print(f"{case}, {task} left out, seed {seed}: done", flush=True)
    print(table(a.output))


if __name__ == "__main__":
    main()
