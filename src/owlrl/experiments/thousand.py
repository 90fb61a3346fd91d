"""A thousand tasks on a laptop: a hidden goal each, learned one after the other in one pass.

``owlrl reproduce thousand`` trains `owlrl.learners.SAC` on a thousand goals of `owlrl.envs.ReachVectorEnv`
and scores all tasks learned so far after 1, 2, 5, 10, ... of them. A score of 1 is the best return of a
goal, 0 the most that one policy can have in the mean over all goals; both are exact.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from owlrl import OwlWrapper, UniformSelector
from owlrl._arguments import Arguments
from owlrl.acting import run_episodes
from owlrl.envs import ReachVectorEnv, best_return, reach_goals, single_policy_bound
from owlrl.errors import OwlValueError
from owlrl.experiments.comparison import Work
from owlrl.experiments.keeping import SAVE_EVERY, Keeper, repeatable
from owlrl.experiments.models import Acting
from owlrl.experiments.plots import new_figure, plain
from owlrl.experiments.results import Trial, environment
from owlrl.experiments.studies import Part
from owlrl.learners import SAC, SAC_FAST

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_thousand", "looks"]

COPIES = 16  # environments side by side in training
FRAMES = 4_000  # per goal
CONTROLS = 200  # goals at most for the methods beside owl: by then it is clear how they do
# chosen on goals and seed 100: short episodes without noise need little entropy and a short horizon
SETTINGS = replace(
    SAC_FAST,
    batch_size=64,
    learning_rate=3e-3,
    gamma=0.8,
    initial_alpha=0.05,
    target_entropy=-4.0,
    update_every=8,
    learning_starts=250,
)
METHODS = {
    "owl": "`OwlWrapper(agent)`, nothing else said",
    "frozen trunk": "the same heads on a trunk that stays as it was drawn at random",
    "bare": "the agent without a wrapper; it starts over after an interruption",
}
Goals = npt.NDArray[np.float64]
Scores = npt.NDArray[np.float64]


def reach_scores(returns: npt.ArrayLike, goals: Goals, of: Goals) -> Scores:
    """Returns (n,) of ``goals`` (n, 2) as scores: 1 is the best, 0 the bound of one policy for ``of``."""
    bound = single_policy_bound(of)
    found: Scores = (np.asarray(returns) - bound) / (best_return(goals) - bound)
    return found


def blind_start(goals: Goals, of: Goals) -> Scores:
    """The score (n,) of an agent that learns the goal from its first reward, in the middle.

    Of many goals drawn evenly as many are on every side, so no first step does better in their mean.
    """
    rest = np.maximum(np.abs(goals)[..., None] - 0.2 * np.arange(20), 0.0)  # one step later than the best
    return reach_scores(-(rest**2).sum(axis=(-2, -1)), goals, of)


@dataclass
class _Run:
    """One method with one seed; a row per look."""

    method: str
    seed: int
    goals: Goals  # all of the study, which a score of 0 is of
    count: int  # of them that are learned
    frames: int
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.agent = SAC(self._env(0), config=SETTINGS, seed=self.seed, device="cpu")
        self.owl: OwlWrapper | None = None
        self.begun = _resident()
        if self.method != "bare":
            frozen: dict[str, Any] = {} if self.method == "owl" else {"regularizer": None}
            self.owl = OwlWrapper(self.agent, **frozen)
        self._freeze()

    def _freeze(self) -> None:
        """A trunk that is frozen needs no regularizer."""
        if self.method == "frozen trunk" and self.owl is not None:
            for network in self.owl.learner.networks.values():
                for parameter in network.shared_parameters().values():
                    parameter.requires_grad_(False)

    def _env(self, number: int) -> ReachVectorEnv:
        return ReachVectorEnv(COPIES, goal=self.goals[number])

    def run(self, keeper: Keeper, tell: Callable[[str, int], None]) -> list[dict[str, Any]]:
        """Learn all goals, or those that are left."""
        kept, first = keeper.load(), 0
        learner: Any = self.agent if self.owl is None else self.owl
        if kept is not None:
            first, self.rows = kept["number"], kept["rows"]
            learner.load_state_dict(kept["learner"])
            self._freeze()
        spent = {"learn": 0.0, "leave": 0.0}
        for number in range(first, self.count):
            tell(f"{self.method}, seed {self.seed}: {number} of {self.count} goals", number * self.frames)
            self._learn(number, spent)
            if number + 1 in looks_at(self.count):
                self.rows.append(self._look(number + 1, spent))
            state = {"number": number + 1, "rows": self.rows}
            keeper.tick(lambda state=state: {**state, "learner": learner.state_dict()})  # type: ignore[misc]
        return self.rows

    def _learn(self, number: int, spent: dict[str, float]) -> None:
        begun = time.process_time()
        env = self._env(number)
        if self.owl is None:
            self.agent.set_env(env)
            self.agent.learn(self.frames)
            spent["learn"] = time.process_time() - begun
            return
        with self.owl.task(str(number), env=env):
            self.agent.learn(self.frames)
            spent["learn"] = time.process_time() - begun
        spent["leave"] = time.process_time() - begun - spent["learn"]

    def _look(self, number: int, spent: dict[str, float]) -> dict[str, Any]:
        """Scores of all goals so far, and what the last one cost."""
        goals = self.goals[:number]
        row: dict[str, Any] = {"method": self.method, "seed": self.seed, "tasks": number}
        row["given"] = _summary(self._scored(Acting(self._given(number)), goals))
        if self.owl is not None:
            row["unknown"] = _summary(self._scored(self.owl.policy(), goals))
            chance = self.owl.policy(UniformSelector(seed=self.seed))
            row["random heads"] = _summary(self._scored(chance, goals))
        row["blind start"] = _summary({"score": blind_start(goals, self.goals)})
        updates = self.frames / SETTINGS.update_every
        row["ms per update"] = 1e3 * spent["learn"] / updates
        row["s to leave"] = spent["leave"]
        row["MB kept"] = 0.0 if self.owl is None else self._kept() / 2**20
        row["MB of memory"] = _resident() - self.begun
        return row

    def _kept(self) -> int:
        """Bytes of the file that `OwlWrapper.save` writes."""
        assert self.owl is not None
        with tempfile.TemporaryDirectory() as directory:
            self.owl.save(Path(directory) / "owl")
            return (Path(directory) / "owl").stat().st_size

    def _given(self, number: int) -> Callable[[Any, bool], Any]:
        """Actions of each environment's own head."""
        if self.owl is None:
            return lambda observation, single: self.agent.predict(observation)
        learner = self.owl.learner
        heads = torch.tensor([self.owl.tasks[str(k)].head for k in range(number)])
        return lambda observation, single: learner.act(torch.as_tensor(observation), heads).numpy()

    def _scored(self, policy: Any, goals: Goals) -> dict[str, Scores]:
        """An episode of every goal side by side; all are equally long, so they end in the goals' order."""
        found = run_episodes(policy, ReachVectorEnv(len(goals), goal=goals), episodes=len(goals), seed=0)
        scores = {"score": reach_scores(found.returns, goals, self.goals)}
        if found.likeliest is not None and found.settled is not None:
            right = found.likeliest == np.arange(len(goals))
            scores |= {"found": right.astype(float), "steps": found.settled[right].astype(float)}
        return scores


def looks_at(goals: int) -> list[int]:
    """After how many goals all are scored: 1, 2, 5, 10, ... and the last."""
    return sorted({k * 10**e for e in range(6) for k in (1, 2, 5) if k * 10**e < goals} | {goals})


def parts(
    *,
    seeds: int = 1,
    methods: Sequence[str] = tuple(METHODS),
    frames: int = FRAMES,
    goals: int = 1_000,
) -> list[Part]:
    """What `owlrl reproduce thousand` does; methods beside owl learn 200 goals at most."""
    arguments = Arguments("thousand")
    goals, frames = arguments.integer("goals", goals), arguments.integer("frames", frames, least=1_000)
    if unknown := sorted(set(methods) - set(METHODS)):
        arguments.problem(f"methods has {unknown}; expected some of {list(METHODS)}")
    arguments.check()
    work = []
    for seed in range(seeds):
        for method in methods:
            count = goals if method == "owl" else min(goals, CONTROLS)
            settings = {"tasks": [], "goals": goals, "frames": frames, "steps": {"goals": count * frames}}
            work.append(Work(Trial(method, seed, settings, about=METHODS[method]), do_run))
    return [Part("thousand", work, _show)]


def do_run(
    trial: Trial,
    *,
    tell: Callable[[str, int], None] = lambda text, steps: None,
    resume: Path | None = None,
    save_every: float = SAVE_EVERY,
    **options: Any,
) -> Trial:
    """One method with one seed; after a stop, the same call continues."""
    goals, frames = trial.settings["goals"], trial.settings["frames"]
    keeper = Keeper(resume, trial.id, seconds=save_every)
    with repeatable(trial.seed):
        every = reach_goals(goals, seed=trial.seed)
        run = _Run(trial.method, trial.seed, every, trial.steps // frames, frames)
        rows = [{"kind": "look", **row} for row in run.run(keeper, tell)]
    return replace(trial, rows=rows, info={**environment(), **keeper.times})


def _show(trials: list[Trial], errors: Any, directory: Path) -> str:
    rows = looks(trials)
    if rows:
        draw_thousand(rows).savefig(directory / "thousand.svg")
    return f"{table(rows)}\n"


def looks(trials: Iterable[Trial]) -> list[dict[str, Any]]:
    """One row per look of each trial.

    >>> from owlrl.experiments.thousand import looks
    >>> looks([])
    []
    """
    return [row for trial in trials for row in trial.select("look")]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: one line per method, seed and number of tasks."""
    columns = ("given", "unknown", "random heads", "blind start")
    names = ["method", "seed", "tasks", *columns, "found", "steps", "ms per update", "s to leave", "MB kept"]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    for row in rows:
        cells = [row["method"], str(row["seed"]), str(row["tasks"])]
        cells += [f"{row[c]['score']['mean']:.3f}" if c in row else "" for c in columns]
        found = row.get("unknown")
        cells += [f"{found['found']['mean']:.2f}", f"{found['steps']['median']:g}"] if found else ["", ""]
        cells += [f"{row['ms per update']:.2f}", f"{row['s to leave']:.2f}", f"{row['MB kept']:.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw_thousand(rows: Sequence[dict[str, Any]]) -> Figure:
    """Score, cost of an update and what is kept over the number of tasks, of one seed.

    >>> from owlrl.experiments.thousand import draw_thousand
    >>> draw_thousand([])
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: draw_thousand: there is no row; run owlrl reproduce thousand first
    """
    if not rows:
        raise OwlValueError("draw_thousand: there is no row; run owlrl reproduce thousand first")
    figure = new_figure(11.0, 3.4, what="the figure of a thousand tasks")
    scores, cost, kept = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    own = [row for row in rows if row["method"] == "owl"]
    lines = [("owl, task given", own, "given"), ("owl, task unknown", own, "unknown")]
    lines += [("goal known after one step", own, "blind start"), ("random heads", own, "random heads")]
    for method in ("frozen trunk", "bare"):
        lines.append((f"{method}, task given", [row for row in rows if row["method"] == method], "given"))
    for name, of, mode in lines:
        dashed = {"linestyle": "--", "color": "grey"}
        style = dashed if mode == "blind start" else {"marker": "o", "markersize": 3.0}
        points = [(row["tasks"], row[mode]["score"]["mean"]) for row in of if mode in row]
        scores.plot(*zip(*points, strict=True), label=name, **style) if points else None
    scores.set(xscale="log", xlabel="tasks learned", ylabel="score, mean over tasks", ylim=(-1.2, 1.05))
    scores.legend(frameon=False, fontsize="small", loc="lower right", ncols=2)
    for axes, name, text in ((cost, "ms per update", "ms per update"), (kept, "MB kept", "MB on disk")):
        axes.plot([row["tasks"] for row in own], [row[name] for row in own], marker="o", markersize=3.0)
        axes.set(xlabel="tasks learned", ylabel=text)
        axes.set_ylim(bottom=0.0)
    for axes in (scores, cost, kept):
        plain(axes)
    return figure


def _summary(values: dict[str, Scores]) -> dict[str, dict[str, float]]:
    """Mean, median and worst of each."""
    return {
        name: {"mean": float(v.mean()), "median": float(np.median(v)), "worst": float(v.min())}
        for name, v in values.items()
        if len(v)
    }


def _resident() -> float:
    """The most memory that this process had so far, in MB; where that is not known, not a number."""
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
