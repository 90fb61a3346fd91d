"""Nobody says when the task changes: ``owl.stream()`` beside the same run with the borders given.

    python benchmarks/stream.py --seeds 5                    # all cases; a rerun goes on
    python benchmarks/stream.py --cases pendulum             # one case
    python benchmarks/stream.py --table                      # print the table of what is there

Tasks come in the order of the case once, and then come back twice in random order; each visit is between 0.75
and 1.25 times the case's length (half of that when the task comes back), drawn by the seed. The run with
given borders has the same visits, in blocks of ``owl.task``. Scores are those of ``owl.policy()``, the task
unknown, over 32 episodes per task, as parts of the way from random heads to the run with given borders.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

import owlrl.envs  # noqa: F401, registers the environments
from owlrl import OwlWrapper, UniformSelector
from owlrl.envs import (
    PendulumVectorEnv,
    ReachVectorEnv,
    Switching,
    SwitchingVectorEnv,
    TabulatedVectorEnv,
    cart_poles,
    task_set,
)
from owlrl.learners import DQN, SAC
from owlrl.types import Transitions

RESULTS = Path(__file__).parent / "results" / "stream"
EPISODES = 32

Tasks = dict[str, Callable[[int], Any]]  # an environment, or so many copies of it


def grids(name: str, **arguments: Any) -> Tasks:
    tables = {task: spec.table() for task, spec in task_set(name, **arguments).items()}
    return {task: lambda copies, t=table: TabulatedVectorEnv(t, copies) for task, table in tables.items()}


def angles() -> Tasks:
    return {f"{a:+d}°": lambda copies, a=a: PendulumVectorEnv(copies, angle=a) for a in (0, 120, -120)}


GOALS = {"east": (0.8, 0.0), "north-west": (-0.4, 0.7), "south-west": (-0.4, -0.7)}


def goals() -> Tasks:
    return {name: lambda copies, g=goal: ReachVectorEnv(copies, goal=g) for name, goal in GOALS.items()}


def poles() -> Tasks:
    def make(spec: Any, copies: int) -> Any:
        if copies == 1:
            return spec(max_episode_steps=200)
        return gymnasium.vector.SyncVectorEnv([lambda: spec(max_episode_steps=200)] * copies)

    return {name: lambda copies, s=spec: make(s, copies) for name, spec in cart_poles().items()}


def robots(name: str) -> Tasks:
    def make(weight: float, copies: int) -> Any:
        def one() -> Any:
            return gymnasium.make(name, forward_reward_weight=weight, max_episode_steps=200)

        same = gymnasium.vector.AutoresetMode.SAME_STEP
        return one() if copies == 1 else gymnasium.vector.SyncVectorEnv([one] * copies, autoreset_mode=same)

    return {name: lambda copies, w=w: make(w, copies) for name, w in (("forward", 1.0), ("backward", -1.0))}


def sb3_sac(env: Any, seed: int) -> Any:
    from stable_baselines3 import SAC as Model

    size: dict[str, Any] = {"batch_size": 128, "buffer_size": 50_000, "policy_kwargs": {"net_arch": [64, 64]}}
    return Model("MlpPolicy", env, learning_rate=1e-3, learning_starts=500, seed=seed, device="cpu", **size)


def sb3_dqn(env: Any, seed: int) -> Any:
    from stable_baselines3 import DQN as Model

    options = {
        "batch_size": 64,
        "buffer_size": 30_000,
        "learning_starts": 500,
        "train_freq": 4,
        "gamma": 0.98,
    }
    return Model(
        "MlpPolicy",
        env,
        learning_rate=1e-3,
        target_update_interval=250,
        exploration_fraction=0.5,
        exploration_final_eps=0.05,
        seed=seed,
        device="cpu",
        **options,
    )


# name: tasks, copies side by side, frames of a visit, learner
CASES: dict[str, tuple[Callable[[], Tasks], int, int, Callable[[Any, int], Any]]] = {
    "crossroads": (
        lambda: grids("Crossroads-4", breadcrumbs=True), 32, 20_000, lambda e, s: DQN(e, seed=s, device="cpu")
    ),
    "pendulum": (angles, 1, 4_000, lambda e, s: SAC(e, seed=s, device="cpu")),
    "cartpole-sb3": (poles, 1, 10_000, sb3_dqn),
    "crossroads-plain": (
        lambda: grids("Crossroads-4"), 32, 30_000, lambda e, s: DQN(e, seed=s, device="cpu")
    ),
    "sc5": (lambda: grids("SC5"), 32, 60_000, lambda e, s: DQN(e, seed=s, device="cpu")),
    "cheetah-sb3": (lambda: robots("HalfCheetah-v5"), 1, 5_000, sb3_sac),
    "reach": (goals, 1, 2_000, lambda e, s: SAC(e, seed=s, device="cpu")),
    "swimmer-sb3": (lambda: robots("Swimmer-v5"), 1, 5_000, sb3_sac),
}  # fmt: skip


# of robots: which number of an observation is the speed, what effort costs, and up to where it is slow
SPEEDS = {"cheetah-sb3": (8, 0.1, 0.5), "swimmer-sb3": (3, 1e-4, 0.1)}


class Clock:
    """CPU seconds that a finder takes to look at rows."""

    def __init__(self, finder: Any) -> None:
        self.seconds, see = 0.0, finder.see

        def timed(rows: Transitions) -> Any:
            begun = time.process_time()
            try:
                return see(rows)
            finally:
                self.seconds += time.process_time() - begun

        finder.see = timed


class Counting(SwitchingVectorEnv):
    """Counts goals that paid, by the end of each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.goals: list[int] = []

    def step(self, actions: Any) -> Any:
        made = super().step(actions)
        self.goals.append(int((made[1] > 0.5).sum()) + (self.goals[-1] if self.goals else 0))
        return made


def visits_of(tasks: Tasks, copies: int, length: int, seed: int) -> list[tuple[str, int]]:
    """Each task once, then twice more in random order; steps of each copy."""
    rng = np.random.default_rng([seed, 77])
    names = list(tasks)
    for _ in range(2):
        again = [str(name) for name in rng.permutation(list(tasks))]
        if again[0] == names[-1]:
            again = again[1:] + again[:1]
        names += again
    lengths = [length] * len(tasks) + [length / 2] * (2 * len(tasks))
    return [
        (name, int(n * rng.uniform(0.75, 1.25)) // copies) for name, n in zip(names, lengths, strict=True)
    ]


def shown_by(case: str, tasks: Tasks, task: str, rows: Transitions) -> np.ndarray:
    """Which rows (B,) ``task`` could have shown: the others are another task's, with another outcome."""
    seen, action, reward, after = (
        np.asarray(column) for column in (rows.observation, rows.action, rows.reward, rows.next_observation)
    )
    if case in ("crossroads", "crossroads-plain", "sc5"):
        table = tasks[task](1).table
        by_time = table.goal_reward is not None  # then the reward of a goal says nothing about the task

        def outcome(o: Any, a: int, r: float, n: Any, end: bool) -> tuple[Any, ...]:
            return (o.tobytes(), a, bool(r > 0) if by_time else round(float(r), 3), n.tobytes(), end)

        looks, count = table.observations[table.obs_index], table.num_actions
        known = {
            outcome(
                looks[s], a, table.reward[s, a], looks[table.next_state[s, a]], bool(table.terminated[s, a])
            )
            for s in range(table.num_states)
            for a in range(count)
        }
        ends = np.asarray(rows.terminated)
        lines = zip(seen, action.tolist(), reward, after, ends.tolist(), strict=True)
        return np.array([outcome(*line) in known for line in lines])
    if case == "pendulum":
        theta, centre = np.arctan2(seen[:, 1], seen[:, 0]), math.radians(float(task.rstrip("°")))
        away = (theta - centre + math.pi) % (2 * math.pi) - math.pi
        paid = -(away**2 + 0.1 * seen[:, 2] ** 2 + 0.001 * action[:, 0].clip(-2, 2) ** 2)
        return np.abs(paid - reward) < 0.01
    if case == "reach":
        return np.abs(-np.square(after - np.array(GOALS[task])).sum(1) - reward) < 1e-3
    if case in SPEEDS:  # a reward has the sign of the speed, told where the robot is not slow
        place, effort, slow = SPEEDS[case]
        speed = (seen[:, place] + after[:, place]) / 2
        paid = reward + effort * np.square(action).sum(1)
        return (np.abs(speed) < slow) | (np.sign(paid) == np.sign(speed) * (1 if task == "forward" else -1))
    env = tasks[task](1)
    env.reset(seed=0)
    made = []
    for state, a in zip(seen, action.ravel().tolist(), strict=True):
        env.unwrapped.state, env.unwrapped.steps_beyond_terminated = state.astype(np.float64), None
        made.append(env.step(a)[0])
    return np.abs(np.array(made) - after).max(1) < 1e-4


def mixed_rows(case: str, tasks: Tasks, owl: OwlWrapper) -> dict[str, list[Any]]:
    """Of each found task: the true one that most of its remembered rows are of, rows, those of others."""
    found = {}
    for name, memory in owl.memory.items():
        rows = memory.rows()
        shown = {task: int(shown_by(case, tasks, task, rows).sum()) for task in tasks}
        best = max(shown, key=lambda task: shown[task])
        found[name] = [best, len(rows), len(rows) - shown[best]]
    return found


def run(case: str, seed: int, given: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)
    make_tasks, copies, length, make_learner = CASES[case]
    tasks = make_tasks()
    visits = visits_of(tasks, copies, length, seed)
    own_loop = not case.endswith("sb3")
    envs = {name: make(copies) for name, make in tasks.items()}
    vector = Counting if own_loop else Switching
    env = vector(envs, schedule=visits) if not given else envs[visits[0][0]]
    learner = make_learner(env, seed)
    owl = OwlWrapper(learner)
    found: dict[str, Any] = {"case": case, "seed": seed, "given": given, "visits": visits}
    begun = time.process_time()
    if given:
        for name, steps in visits:
            with owl.task(name, env=envs[name]):
                learner.learn(steps * copies)
    else:
        options = {} if own_loop else {"schedule_steps": length}
        looking = Clock(owl._stream.finder)
        with owl.stream(**options) as stream:
            learner.learn(sum(steps for _, steps in visits) * copies)
        found["changes"] = [[step * copies, task] for step, task in env.changes]
        found["events"] = [[e.step, e.left, e.to, e.new, e.delay, e.merged] for e in stream.events]
        found["heads"] = len(owl.tasks)
        found["goals"] = env.goals if case == "crossroads-plain" else []
        found["looking"] = looking.seconds
    found["seconds"] = time.process_time() - begun

    def score(task: str, **how: Any) -> float:
        return owl.evaluate(tasks[task](EPISODES), episodes=EPISODES, seed=1_000, **how).mean_return

    if not given:
        found["mixed"] = mixed_rows(case, tasks, owl)
    found["unknown"] = {task: score(task) for task in tasks}
    found["random heads"] = {task: score(task, selector=UniformSelector(seed=seed)) for task in tasks}
    return found


def finished(case: str, seed: int, given: bool, output: Path) -> None:
    file = output / f"{case}-{seed}-{'given' if given else 'stream'}.json"
    if file.exists():
        return
    text = json.dumps(run(case, seed, given), indent=1)
    file.with_suffix(".tmp").write_text(text, encoding="utf-8")
    file.with_suffix(".tmp").replace(file)
    print(f"{case}, seed {seed}, {'borders given' if given else 'stream'}: done", flush=True)


def judged(stream: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Score against the run with borders, and what became of each change."""
    ratio = []
    for task, score in stream["unknown"].items():
        low, high = given["random heads"][task], given["unknown"][task]
        ratio.append((score - low) / (high - low) if high > low else np.nan)
    changes, events = stream["changes"], stream["events"]
    ends = [step for step, _ in changes[1:]] + [np.inf]
    delays, used = [], set()
    for (step, _), end in zip(changes[1:], ends[1:], strict=True):
        here = [k for k, event in enumerate(events) if step < event[0] <= end]
        used.update(here[:1])
        delays += [events[here[0]][0] - step] if here else [np.inf]
    extra = sum(k not in used and not event[5] for k, event in enumerate(events))
    return {
        "ratio": ratio,
        "delays": delays,
        "extra": extra,
        "heads": stream["heads"],
        "tasks": len(ratio),
        "rows": sum(rows for _, rows, _ in stream["mixed"].values()),
        "others": sum(others for _, _, others in stream["mixed"].values()),
        "seconds": np.array([stream["seconds"], stream["looking"], given["seconds"]]),
    }


def table(output: Path) -> str:
    lines = [
        "| case | seeds | score / borders given, IQM | worst | changes found | median delay (rows) | worst | "
        "other alarms | heads as tasks | most too many | rows of another task | looking, part of CPU time |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        pairs = []
        for file in sorted(output.glob(f"{case}-[0-9]*-stream.json")):
            other = file.with_name(file.name.replace("-stream", "-given"))
            if other.exists():
                texts = (f.read_text(encoding="utf-8") for f in (file, other))
                pairs.append(judged(*(json.loads(text) for text in texts)))
        if not pairs:
            continue
        ratio = np.concatenate([p["ratio"] for p in pairs])
        ratio = np.sort(ratio[np.isfinite(ratio)])  # where given borders are no better than random heads
        middle = ratio[len(ratio) // 4 : len(ratio) - len(ratio) // 4]
        delays = np.concatenate([p["delays"] for p in pairs])
        there = delays[np.isfinite(delays)]
        heads = [p["heads"] - p["tasks"] for p in pairs]
        rows, others = (sum(p[name] for p in pairs) for name in ("rows", "others"))
        seconds = sum(p["seconds"] for p in pairs)
        lines.append(
            f"| {case} | {len(pairs)} | {middle.mean():.3f} | {ratio.min():.3f} | "
            f"{len(there)} of {len(delays)} | {np.median(there):.0f} | {there.max():.0f} | "
            f"{sum(p['extra'] for p in pairs)} | {heads.count(0)} of {len(heads)} | {max(heads)} | "
            f"{others:,} of {rows:,} | {seconds[1] / seconds[0]:.1%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--seeds", type=int, default=5, help="how many (default: 5)")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them (default: 0)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where finished runs are kept")
    parser.add_argument("--table", action="store_true", help="run nothing, print what is there")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if not arguments.table:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            for case in arguments.cases:
                for given in (False, True):
                    finished(case, seed, given, arguments.output)
    print(table(arguments.output))


if __name__ == "__main__":
    main()
