"""The detector alone: rows of learners that learn one task from scratch, recorded once and given to it.

    python -m benchmarks.detector record        # 10^6 rows of each family, to build/rows, about half an hour
    python -m benchmarks.detector alarms        # one task all the time: any alarm is false
    python -m benchmarks.detector streams       # streams of hidden visits made of these rows, and baselines
    python -m benchmarks.detector sensitivity   # the same with each inner number halved and doubled
    python -m benchmarks.detector cost          # time per row with 1, 5 and 20 known tasks, beside training
    python -m benchmarks.detector table         # print what is there

Two baselines are tests of the library river (``pip install river``) on rewards. Visits of a stream are those
of ``benchmarks/stream.py``; where the task changes, the rows go on with another policy as well, unlike in a
real stream. "Least" is the number of rows until the first that the task before cannot show: no detector can
be sooner without false alarms.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import owlrl.envs  # noqa: F401, registers the environments
from benchmarks.stream import CASES, angles, grids, poles, shown_by, visits_of
from owlrl.changes import (
    ChangeFinder,
    Contradiction,
    Detector,
    History,
    ModelErrors,
    RewardDrift,
    _neighbours,
    contradiction,
    finder,
)
from owlrl.learners import DQN, SAC, SAC_FAST
from owlrl.stream import rows_of_look
from owlrl.types import Transitions

ROWS = Path("build/rows")
RESULTS = Path(__file__).parent / "results" / "detector"
COLUMNS = ("observation", "action", "reward", "next_observation", "terminated", "truncated", "env")
FRAMES = 1_000_000  # of a family
SEED = 20  # nothing was chosen on it
PIECE = 64  # rows between two looks
ORDERS = 3  # orders of visits
KNOWN = (1, 5, 20)  # known tasks whose cost is measured
VISIT, LEARNED = 2_000, 8_000  # rows of a visit there, and of each task before


def dqn(env: Any, seed: int) -> DQN:
    return DQN(env, seed=seed, device="cpu")


def sac(env: Any, seed: int) -> SAC:
    return SAC(env, config=replace(SAC_FAST, update_every=env.num_envs), seed=seed, device="cpu")


# tasks, copies side by side, learner
FAMILIES = {
    "crossroads": (lambda: grids("Crossroads-4", breadcrumbs=True), 32, dqn),
    "crossroads-plain": (lambda: grids("Crossroads-4"), 32, dqn),
    "sc5": (lambda: grids("SC5"), 32, dqn),
    "pendulum": (angles, 1, sac),
    "pendulum-16": (angles, 16, sac),
    "cartpole": (poles, 1, dqn),
    "cartpole-32": (poles, 32, dqn),
}

USUAL = ("crossroads", "sc5", "pendulum-16", "cartpole-32")
CASE_OF = {"cartpole": "cartpole-sb3", "cartpole-32": "cartpole-sb3", "pendulum-16": "pendulum"}
LENGTHS = {family: CASES[CASE_OF.get(family, family)][2] for family in FAMILIES}  # of a visit


class Recorder:
    """Rows as a learner stored them; observations that come again are kept once."""

    def __init__(self) -> None:
        self.columns: dict[str, list[np.ndarray]] = {name: [] for name in COLUMNS}

    def take(self, rows: Transitions | None) -> None:
        if rows is None:
            return
        for name in COLUMNS:
            value = getattr(rows, name)
            column = np.zeros(len(rows), np.int32) if value is None else value.numpy()
            self.columns[name].append(column.astype(np.int32) if name == "env" else column.copy())

    def save(self, file: Path) -> None:
        columns = {name: np.concatenate(parts) for name, parts in self.columns.items()}
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part.npz")
        if columns["observation"].dtype == np.uint8:
            both = [columns.pop(name) for name in ("observation", "next_observation")]
            flat = np.concatenate([b.reshape(len(b), -1) for b in both])
            whole = np.ascontiguousarray(flat).view(np.dtype((np.void, flat.shape[1]))).ravel()
            _, first, index = np.unique(whole, return_index=True, return_inverse=True)
            columns["table"] = np.concatenate(both)[first]
            columns["seen"], columns["after"] = index.astype(np.int32).reshape(2, -1)
        np.savez(part, **columns)
        part.replace(file)


def load(file: Path) -> Transitions:
    with np.load(file) as stored:
        columns = dict(stored)
    if "table" in columns:
        table = columns.pop("table")
        columns["observation"], columns["next_observation"] = (
            table[columns.pop("seen")],
            table[columns.pop("after")],
        )
    tensors = {name: torch.from_numpy(columns[name]) for name in COLUMNS}
    tensors["env"] = tensors["env"].long()
    return Transitions(**tensors, discount=torch.ones(len(tensors["reward"])))


def record(family: str, seed: int, frames: int, rows: Path) -> None:
    """So many rows of a family: its tasks in equal parts, each learned from scratch."""
    torch.set_num_threads(1)
    make_tasks, copies, make_learner = FAMILIES[family]
    tasks = make_tasks()
    for number, (task, make) in enumerate(tasks.items()):
        file = rows / f"{family}-{seed}-{number}.npz"
        if file.exists():
            continue
        torch.manual_seed(seed)
        agent = make_learner(make(copies), seed)
        recorder = Recorder()
        agent.replay.begin_task("only")
        share = frames // len(tasks)
        for done in range(0, share, 32 * copies):
            agent.learn(min(32 * copies, share - done))
            recorder.take(agent.replay.new_rows())
        recorder.save(file)
        print(f"{family}, seed {seed}, {task}: {share} rows", flush=True)


class Follower:
    """What `owl.stream()` does with a finder's changes, without a learner."""

    def __init__(self, detector: Detector) -> None:
        self.finder = ChangeFinder(detector)
        self.events: list[dict[str, Any]] = []  # step, to, new, merged
        self.made = 1
        self.finder.enter("task 0", new=True)
        self.rows = 0

    def see(self, rows: Transitions) -> None:
        self.rows += len(rows)
        change = self.finder.see(rows)
        if change is None:
            return
        left, new = self.finder.task, change.to is None
        to = f"task {self.made}" if change.to is None else change.to
        self.made += new
        if change.merged:
            self.finder.detector.forget(left)
        self.finder.enter(to, new=new)
        self.events.append({"step": self.rows, "left": left, "to": to, "new": new, "merged": change.merged})


class River:
    """A drift test of the library river on rewards: it tells that something has changed, not to what."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make, self.test = make, make()
        self.events: list[dict[str, Any]] = []
        self.rows = 0

    def see(self, rows: Transitions) -> None:
        for reward in rows.reward.tolist():
            self.rows += 1
            self.test.update(reward)
            if self.test.drift_detected:
                self.events.append({"step": self.rows, "merged": False})
                self.test = self.make()


def river(name: str) -> Callable[[], River]:
    def make() -> River:
        try:
            from river import drift
        except ImportError:
            raise SystemExit("this baseline needs river: pip install river") from None
        return River(getattr(drift, name))

    return make


BASELINES: dict[str, Callable[[], Any]] = {
    "Contradiction": lambda: Follower(Contradiction()),
    "ModelErrors": lambda: Follower(ModelErrors()),
    "RewardDrift": lambda: Follower(RewardDrift()),
    "river.drift.PageHinkley": river("PageHinkley"),
    "river.drift.ADWIN": river("ADWIN"),
}

# inner numbers: of the detector's arguments, and of its modules
ARGUMENTS = {"threshold": 16.0, "changed": 0.3, "stride": 4}
NUMBERS = {
    contradiction: (*("TRIAL", "MATURE", "YOUNG", "KNOWN", "AGAIN", "RARE", "MOST_EVIDENCE", "CLEAR"),),
    _neighbours: (
        *("CAPACITY", "NEAREST", "REGION", "APART", "REACH", "SLACK", "WORTH", "CAUTION", "PRIOR"),
        *("MOST_NEAR_EVIDENCE", "FORETELL", "FLOOR"),
    ),
    finder: (
        *("NEWEST", "AT_ONCE", "IN_ALL", "PROBATION", "LEAST", "CONTRADICTED", "PATIENCE", "SOON", "STRANGE"),
        *("COMPARED", "MOST_EXAMINED"),
    ),
}


@contextmanager
def changed(name: str, factor: float) -> Iterator[Callable[[], Follower]]:
    """One inner number halved or doubled."""

    def times(value: Any) -> Any:
        return max(1, round(value * factor)) if isinstance(value, int) else value * factor

    if name in ARGUMENTS:
        yield lambda: Follower(Contradiction(**{name: times(ARGUMENTS[name])}))
        return
    module = next(module for module, names in NUMBERS.items() if name in names)
    before = getattr(module, name)
    setattr(module, name, times(before))
    try:
        yield lambda: Follower(Contradiction())
    finally:
        setattr(module, name, before)


def pieces_of(rows: Transitions) -> Iterator[Transitions]:
    for begin in range(0, len(rows), PIECE):
        yield rows[begin : begin + PIECE]


def alarms(family: str, seed: int, rows: Path) -> dict[str, Any]:
    """Alarms over rows of one task, of each of the family's tasks: all are false."""
    found: dict[str, Any] = {"family": family, "seed": seed, "rows": 0, "alarms": {}, "seconds": {}}
    for file in sorted(rows.glob(f"{family}-{seed}-[0-9]*.npz")):
        recorded = load(file)
        found["rows"] += len(recorded)
        for name, make in BASELINES.items():
            begun, seeing = time.process_time(), make()
            for piece in pieces_of(recorded):
                seeing.see(piece)
            spent = time.process_time() - begun
            found["alarms"][name] = found["alarms"].get(name, 0) + len(seeing.events)
            found["seconds"][name] = round(found["seconds"].get(name, 0.0) + spent, 1)
    return found


def followed(
    make: Callable[[], Any], visits: list[tuple[str, int]], recorded: dict[str, Transitions]
) -> dict[str, Any]:
    """One stream of visits, given to a detector: delay of each change, and what else it said."""
    seeing, place, borders = make(), dict.fromkeys(recorded, 0), []
    for task, length in visits:
        borders.append(seeing.rows)
        for piece in pieces_of(recorded[task][place[task] : place[task] + length]):
            seeing.see(piece)
        place[task] += length
    changes, ends, used, delays = borders[1:], [*borders[2:], np.inf], set(), []
    for step, end in zip(changes, ends, strict=True):
        here = [k for k, event in enumerate(seeing.events) if step < event["step"] <= end]
        used.update(here[:1])
        delays.append(seeing.events[here[0]]["step"] - step if here else None)
    other = sum(k not in used and not event["merged"] for k, event in enumerate(seeing.events))
    found = {"delays": delays, "other": other}
    if isinstance(seeing, Follower):
        found["tasks"] = len(seeing.finder.detector.tasks) - len(recorded)
    return found


def least_delays(family: str, visits: list[tuple[str, int]], recorded: dict[str, Transitions]) -> list[int]:
    """Rows of each visit until the first that the task before it cannot show: nobody can be sooner."""
    case, make_tasks = CASE_OF.get(family, family), FAMILIES[family][0]
    tasks, place, found = make_tasks(), dict.fromkeys(recorded, 0), []
    for number, (task, length) in enumerate(visits):
        rows = recorded[task][place[task] : place[task] + min(length, 512)]
        place[task] += length
        if number:
            strange = ~shown_by(case, tasks, visits[number - 1][0], rows)
            found.append(int(np.argmax(strange)) + 1 if strange.any() else len(rows))
    return found


def streams(family: str, seed: int, rows: Path, makers: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Streams of hidden visits, made of the recorded rows, in several orders."""
    make_tasks, _, _ = FAMILIES[family]
    names = list(make_tasks())
    recorded = {name: load(rows / f"{family}-{seed}-{k}.npz") for k, name in enumerate(names)}
    found: dict[str, Any] = {
        "family": family,
        "seed": seed,
        "least": [],
        "streams": {name: [] for name in makers},
    }
    for order in range(ORDERS):
        visits = visits_of(make_tasks(), 1, LENGTHS[family], order)
        for name in names:
            wanted = sum(length for task, length in visits if task == name)
            if wanted > len(recorded[name]):
                raise SystemExit(f"{family}, {name}: {len(recorded[name])} rows recorded, {wanted} needed")
        found["least"] += least_delays(family, visits, recorded)
        for name, make in makers.items():
            found["streams"][name].append(followed(make, visits, recorded))
    return found


def sensitivity(family: str, seed: int, rows: Path) -> dict[str, Any]:
    """The same streams with each inner number halved and doubled."""
    found: dict[str, Any] = {"family": family, "seed": seed, "streams": {}}
    for name in (*ARGUMENTS, *(name for names in NUMBERS.values() for name in names)):
        for factor in (0.5, 2.0):
            with changed(name, factor) as make:
                label = f"{name} × {factor:g}"
                found["streams"] |= streams(family, seed, rows, {label: make})["streams"]
        print(f"{family}: {name}", flush=True)
    return found


def cost(family: str, seed: int, rows: Path) -> dict[str, Any]:
    """Microseconds per row of looking, with so many known tasks and ten visits; and of training.

    Visits are short, and as long as in ``benchmarks/stream.py``. Looks are as large as a stream's. Tasks
    beyond those of the family are these with other rewards.
    """
    make_tasks, copies, make_learner = FAMILIES[family]
    recorded = [load(rows / f"{family}-{seed}-{k}.npz") for k in range(len(make_tasks()))]

    def of(task: int, begin: int, count: int) -> Transitions:
        some = recorded[task % len(recorded)][begin : begin + count]
        return replace(some, reward=some.reward + 100 * (task // len(recorded)))

    def looking(known: int, visit: int) -> float:
        seeing = Follower(Contradiction())
        for task in range(known):
            seeing.finder.enter(f"task {task}", new=True)
            for piece in pieces_of(of(task, 0, LEARNED)):
                steps = History().follow(piece)
                seeing.finder.detector.learn(f"task {task}", steps)
        seeing.finder.enter("task 0", new=False)
        seeing.made, begun = known, time.process_time()
        for number in range(10):
            shown, place = of(number % known, LEARNED, visit), 0
            while place < len(shown):
                size = round(rows_of_look(copies, seeing.finder.suspicion))
                seeing.see(shown[place : place + size])
                place += size
        return (time.process_time() - begun) / seeing.rows * 1e6

    lengths = (VISIT, LENGTHS[family])
    found: dict[str, Any] = {"family": family, "seed": seed}
    found["looking"] = {str(n): {str(known): looking(known, n) for known in KNOWN} for n in lengths}
    agent = make_learner(next(iter(make_tasks().values()))(copies), seed)
    agent.learn(VISIT)
    begun = time.process_time()
    agent.learn(10 * VISIT)
    found["training"] = (time.process_time() - begun) / (10 * VISIT) * 1e6
    return found


def iqr(values: list[float]) -> str:
    """Median and largest."""
    return f"{np.median(values):.0f}, {max(values):.0f}" if values else "–"


def summed(found: list[dict[str, Any]]) -> str:
    """Cells of a row of the tables of streams."""
    delays = [delay for each in found for delay in each["delays"]]
    there = [delay for delay in delays if delay is not None]
    extra = [each["tasks"] for each in found if "tasks" in each]
    heads = f"{extra.count(0)} of {len(extra)}, {max(extra):+d}" if extra else "–"
    other = sum(each["other"] for each in found)
    return f"{len(there)} of {len(delays)} | {iqr(there)} | {other} | {heads}"


def table(output: Path) -> str:
    """The tables of what is there, as in docs/results/stream.md."""
    read = {
        kind: [json.loads(file.read_text(encoding="utf-8")) for file in sorted(output.glob(f"{kind}-*.json"))]
        for kind in ("alarms", "streams", "sensitivity", "cost")
    }
    lines = ["| family | rows | " + " | ".join(BASELINES) + " |", "|---|---|" + "---|" * len(BASELINES)]
    for each in read["alarms"]:
        cells = " | ".join(str(each["alarms"][name]) for name in BASELINES)
        lines.append(f"| {each['family']} | {each['rows']:,} | {cells} |")
    columns = (
        "changes found | delay: median, worst | other alarms | streams with as many tasks, most too many |"
    )
    lines += ["", f"| family | detector | {columns}", "|---|---|---|---|---|---|"]
    for each in read["streams"]:
        lines.append(f"| {each['family']} | least | | {iqr(each['least'])} | | |")
        for name, found in each["streams"].items():
            lines.append(f"| {each['family']} | {name} | {summed(found)} |")
    lines += ["", f"| inner number | {columns}", "|---|---|---|---|---|"]
    labels = {label: None for each in read["sensitivity"] for label in each["streams"]}
    tried = [each["family"] for each in read["sensitivity"]]
    found = [each["streams"]["Contradiction"] for each in read["streams"] if each["family"] in tried]
    usual = [one for runs in found for one in runs]
    rows = {"as it is": usual} if labels else {}
    for label in labels:
        rows[label] = [one for each in read["sensitivity"] for one in each["streams"].get(label, [])]
    lines += [f"| {label} | {summed(found)} |" for label, found in rows.items()]
    known = " | ".join(f"{count} known tasks" for count in KNOWN)
    lines += ["", f"| family | rows of a visit | training, µs per row | {known} |"]
    lines.append("|---|---|---|" + "---|" * len(KNOWN))
    for each in read["cost"]:
        for visit, looking in each["looking"].items():
            parts = [f"{us:.1f} ({us / each['training']:.1%})" for us in looking.values()]
            cells = f"{each['family']} | {int(visit):,} | {each['training']:.0f} | {' | '.join(parts)}"
            lines.append(f"| {cells} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["record", "alarms", "streams", "sensitivity", "cost", "table"])
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(USUAL))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--frames", type=int, default=FRAMES, help="rows of each family to record")
    parser.add_argument("--rows", type=Path, default=ROWS, help="where recorded rows are")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where finished tables are kept")
    a = parser.parse_args()
    for family in a.families if a.what != "table" else ():
        if a.what == "record":
            record(family, a.seed, a.frames, a.rows)
            continue
        if not list(a.rows.glob(f"{family}-{a.seed}-[0-9]*.npz")):
            raise SystemExit(f"{a.rows} has no rows of {family}, seed {a.seed}: first record them")
        file = a.output / f"{a.what}-{family}-{a.seed}.json"
        if not file.exists():
            measures = {
                "alarms": alarms,
                "streams": partial(streams, makers=BASELINES),
                "sensitivity": sensitivity,
                "cost": cost,
            }
            found = measures[a.what](family, a.seed, a.rows)
            a.output.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(found), encoding="utf-8")
    print(table(a.output))


if __name__ == "__main__":
    main()
