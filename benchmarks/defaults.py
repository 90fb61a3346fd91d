"""What ``OwlWrapper(learner)`` keeps and finds with nothing else said, on many learners and tasks.

    python benchmarks/defaults.py --jobs 2                    # all cases, five seeds; a rerun goes on
    python benchmarks/defaults.py --cases cartpole-sb3-dqn    # one case
    python benchmarks/defaults.py --table                     # print the table of what is there

Every case learns its tasks one after the other, once, with the bare call. *Kept* is the score at the end over
the score right after the task, *unknown* the score of ``owl.policy()`` over that with the task given; both as
parts of the range above random heads, on the same 64 episodes. A task that was not learned (right after less
than half of the way from random heads to the best, known or of any seed) is counted and not judged.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch

import owlrl.envs  # noqa: F401, registers the environments
from owlrl import OwlWrapper, QLearner, UniformSelector
from owlrl.envs import PendulumVectorEnv, TabulatedVectorEnv, task_set
from owlrl.learners import DQN, SAC

ROOT = Path(__file__).parent
RESULTS = ROOT / "results" / "defaults"
EPISODES = 64
KEPT, UNKNOWN = 0.97, 0.95  # the bars: of right after, and of the task given

Learn = Callable[[str], None]
Tasks = dict[str, Callable[[], Any]]


def load(path: Path) -> ModuleType:
    """A script as a module, wherever this is run from."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Scaled(gymnasium.RewardWrapper):
    """Rewards times a factor."""

    def __init__(self, env: gymnasium.Env, factor: float) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return self.factor * float(reward)


def cartpoles(factor: float = 1.0) -> Tasks:
    def make(name: str) -> gymnasium.Env:
        return Scaled(gymnasium.make(name, max_episode_steps=200), factor)

    return {"plain": lambda: make("CartPole-v1"), "flipped": lambda: make("owlrl/FlippedCartPole-v0")}


def pendulums(factor: float = 1.0) -> Tasks:
    def make(angle: float) -> gymnasium.Env:
        return Scaled(gymnasium.make("owlrl/Pendulum-v0", angle=angle), factor)

    return {"+90°": lambda: make(90.0), "-90°": lambda: make(-90.0)}


def side_by_side(tasks: Tasks) -> Tasks:
    """The same tasks as they are evaluated: one episode in each of many copies."""
    return {
        name: lambda make=make: gymnasium.vector.SyncVectorEnv([make] * EPISODES)
        for name, make in tasks.items()
    }


def grid(name: str, frames: int, seed: int, **arguments: Any) -> tuple[OwlWrapper, Tasks, Learn]:
    tables = {task: spec.table() for task, spec in task_set(name, **arguments).items()}
    training = {task: TabulatedVectorEnv(table, 32) for task, table in tables.items()}
    agent = DQN(next(iter(training.values())), seed=seed, device="cpu")
    owl = OwlWrapper(agent)

    def learn(task: str) -> None:
        with owl.task(task, env=training[task]):
            agent.learn(frames)

    return (
        owl,
        {task: lambda t=table: TabulatedVectorEnv(t, EPISODES) for task, table in tables.items()},
        learn,
    )


def own_sac(seed: int) -> tuple[OwlWrapper, Tasks, Learn]:
    tasks: Tasks = {f"{a:+d}°": lambda a=a: PendulumVectorEnv(EPISODES, angle=a) for a in (90, -90)}
    training = {name: PendulumVectorEnv(1, angle=float(name[:-1])) for name in tasks}
    agent = SAC(next(iter(training.values())), seed=seed, device="cpu")
    owl = OwlWrapper(agent)

    def learn(task: str) -> None:
        with owl.task(task, env=training[task]):
            agent.learn(5_000)

    return owl, tasks, learn


def sb3(kind: str, tasks: Tasks, steps: int, seed: int, **changes: Any) -> tuple[OwlWrapper, Tasks, Learn]:
    models = load(ROOT / "sb3_tasks.py")
    model = getattr(models, kind)(next(iter(tasks.values()))(), seed, **changes)
    owl = OwlWrapper(model)

    def learn(task: str) -> None:
        with owl.task(task, env=tasks[task]()):
            model.learn(steps)

    return owl, side_by_side(tasks), learn


def sb3_dqn(seed: int, factor: float = 1.0, **changes: Any) -> tuple[OwlWrapper, Tasks, Learn]:
    """A DQN whose bare model learns CartPole at all scales of rewards: large steps that fall to zero."""
    settings = {"learning_rate": lambda left: 5e-3 * left, "gamma": 0.98}
    slow = {"tau": 0.01, "target_update_interval": 1}
    return sb3("dqn", cartpoles(factor), 30_000, seed, **settings, **slow, **changes)


def script(seed: int) -> tuple[OwlWrapper, Tasks, Learn]:
    """The single-file DQN of the examples, its loop unchanged."""
    own = load(ROOT.parent / "examples" / "cleanrl_style_dqn_owl.py")
    args = own.parse_args(["--seed", str(seed)])
    random.seed(seed)
    q = own.QNetwork()
    target = copy.deepcopy(q)
    optimizer, buffer = (
        torch.optim.Adam(q.parameters(), lr=args.learning_rate),
        deque(maxlen=args.buffer_size),
    )
    owl = OwlWrapper(QLearner(q, target, optimizer, replay=buffer, gamma=args.gamma), seed=seed)
    tasks: Tasks = {task: lambda t=task: own.make_env(t) for task in own.TASKS}

    def learn(task: str) -> None:
        with owl.task(task):
            own.train(args, tasks[task](), q, target, optimizer, buffer)

    return owl, side_by_side(tasks), learn


# name: what is built from a seed, and the best return per task, where one is known
CASES: dict[str, tuple[Callable[[int], tuple[OwlWrapper, Tasks, Learn]], float | None]] = {
    "crossroads-4": (lambda seed: grid("Crossroads-4", 30_000, seed, breadcrumbs=True), 1.2),
    "sc3": (lambda seed: grid("SC3", 120_000, seed), None),
    "sc5": (lambda seed: grid("SC5", 120_000, seed), None),
    "pendulum-own-sac": (own_sac, None),
    "pendulum-sb3-sac": (lambda seed: sb3("sac", pendulums(), 4_000, seed), None),
    "pendulum-sb3-td3": (lambda seed: sb3("td3", pendulums(), 4_000, seed), None),
    "cartpole-sb3-dqn": (sb3_dqn, 200.0),
    "cartpole-script": (script, 200.0),
    "cartpole-half-buffer": (lambda seed: sb3_dqn(seed, buffer_size=15_000), 200.0),
    "cartpole-rewards-x0.01": (lambda seed: sb3_dqn(seed, 0.01), 2.0),
    "cartpole-rewards-x100": (lambda seed: sb3_dqn(seed, 100.0), 20_000.0),
    "pendulum-rewards-x0.01": (lambda seed: sb3("sac", pendulums(0.01), 4_000, seed), None),
    "pendulum-rewards-x100": (lambda seed: sb3("sac", pendulums(100.0), 4_000, seed), None),
}


def run(case: str, seed: int) -> dict[str, Any]:
    """All that is measured in one case with one seed."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    begun = time.process_time()
    owl, tasks, learn = CASES[case][0](seed)
    found: dict[str, Any] = {"case": case, "seed": seed, "tasks": {name: {} for name in tasks}}

    def returns(name: str, **how: Any) -> Any:
        return owl.evaluate(tasks[name](), episodes=EPISODES, seed=1_000, **how)

    for task in tasks:
        learn(task)
        found["tasks"][task]["right after"] = returns(task, task=task).mean_return
    found["training"] = time.process_time() - begun
    for task, cell in found["tasks"].items():
        cell["random heads"] = returns(task, selector=UniformSelector(seed=seed)).mean_return
        cell["given"] = returns(task, task=task).mean_return
        unknown = returns(task, true_task=task)
        cell["unknown"], cell["found"] = unknown.mean_return, float(unknown.found.mean())
        cell["steps to find"] = float(
            np.median(np.where(unknown.found, unknown.steps_to_find, unknown.lengths))
        )
    return found | {"seconds": time.process_time() - begun}


def finished(case: str, seed: int, output: Path) -> dict[str, Any]:
    """The result of one run, from its file if it is there."""
    file = output / f"{case}-{seed}.json"
    if not file.exists():
        text = json.dumps(run(case, seed), indent=1)
        file.with_suffix(".tmp").write_text(text, encoding="utf-8")
        file.with_suffix(".tmp").replace(file)
        print(f"{case}, seed {seed}: done", flush=True)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def judged(case: str, cells: list[dict[str, float]]) -> SimpleNamespace:
    """Kept and unknown of one task over seeds; seeds that did not learn it are counted only."""
    best = CASES[case][1]
    after = np.array([c["right after"] for c in cells])
    low = np.array([c["random heads"] for c in cells])
    high = np.full(len(cells), after.max() if best is None else best)
    learned = (after - low) >= 0.5 * (high - low)
    given, unknown = (np.array([c[name] for c in cells]) for name in ("given", "unknown"))
    kept = (given - low)[learned] / (after - low)[learned]
    return SimpleNamespace(
        learned=int(learned.sum()),
        after=after[learned],
        given=given[learned],
        unknown=unknown[learned],
        low=low,
        kept=kept,
        found=np.array([c["found"] for c in cells])[learned],
        steps=np.array([c["steps to find"] for c in cells])[learned],
        ratio=(unknown - low)[learned] / (given - low)[learned],
    )


def judgements(results: Iterable[dict[str, Any]]) -> list[tuple[str, str, SimpleNamespace]]:
    """Case, task and what `judged` says of all its seeds, for every case that is there."""
    rows = sorted(results, key=lambda r: r["seed"])
    return [
        (case, task, judged(case, [r["tasks"][task] for r in own]))
        for case in CASES
        if (own := [r for r in rows if r["case"] == case])
        for task in own[0]["tasks"]
    ]


def verdict(found: list[tuple[str, str, SimpleNamespace]]) -> str:
    """How many cases reach both bars with all their tasks, as the mean over seeds and with the worst seed."""
    parts = []
    for name, pick in (("in the mean over seeds", np.mean), ("with the worst seed", np.min)):
        misses: dict[str, list[str]] = {case: [] for case, _, j in found if j.learned}
        for case, task, j in found:
            for what, values, bar in (("kept", j.kept, KEPT), ("unknown / given", j.ratio, UNKNOWN)):
                if j.learned and pick(values) < bar:
                    misses[case].append(f"{case} {task} ({what} {pick(values):.3f})")
        exceptions = [text for texts in misses.values() for text in texts]
        held = sum(not texts for texts in misses.values())
        parts.append(
            f"{held} of {len(misses)} judged cases keep ≥ {KEPT} and reach ≥ {UNKNOWN} of the score with the "
            f"task given in all their tasks, {name}; exceptions: {', '.join(exceptions) or 'none'}."
        )
    return "\n\n".join(parts)


def table(results: Iterable[dict[str, Any]]) -> str:
    """One row per case and task, and the verdict."""
    found = judgements(results)
    lines = [
        "| case | task | learned | random heads | right after | at the end, given | unknown | kept | "
        "worst seed | unknown / given | worst seed | found | steps |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case, task, j in found:
        start = f"| {case} | {task} | {j.learned} of {len(j.low)} |"
        if not j.learned:
            lines.append(start + " – |" * 10)
            continue
        means = (f"{x.mean():.4g}" for x in (j.low, j.after, j.given, j.unknown))
        shares = (f"{x:.3f}" for x in (j.kept.mean(), j.kept.min(), j.ratio.mean(), j.ratio.min()))
        ends = f"{j.found.mean():.2f} | {j.steps.mean():.1f} |"
        lines.append(f"{start} {' | '.join(means)} | {' | '.join(shares)} | {ends}")
    return "\n".join(lines) + "\n\n" + verdict(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (default: 1)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where finished runs are kept")
    parser.add_argument("--table", action="store_true", help="run nothing, print what is there")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not arguments.table:
        from joblib import Parallel, delayed

        seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
        todo = [(case, seed) for seed in seeds for case in arguments.cases]
        Parallel(n_jobs=arguments.jobs)(delayed(finished)(*each, arguments.output) for each in todo)
    files = sorted(arguments.output.glob("*.json"))
    print(table(json.loads(file.read_text(encoding="utf-8")) for file in files))


if __name__ == "__main__":
    main()
