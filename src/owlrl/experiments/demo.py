"""The demonstration: one head fails on tasks that contradict each other, OWL does not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from owlrl import AdaptivePolicy, ExpWeightsSelector, OwlWrapper, UniformSelector
from owlrl._arguments import Arguments
from owlrl.acting import run_episodes
from owlrl.envs import CrossroadsEnv, SwitchingVectorEnv, TabulatedVectorEnv, TaskSpec, interference
from owlrl.envs.crossroads import make_star
from owlrl.experiments.config import Run
from owlrl.experiments.frames import record_episode, write_gif
from owlrl.experiments.methods import GIVEN, UNKNOWN, Learned, find_method
from owlrl.experiments.models import Watch
from owlrl.experiments.plots import INK, QUIET, draw_probabilities, new_figure, plain, prepare_picture
from owlrl.experiments.progress import StepBar
from owlrl.experiments.session import Session, evaluate
from owlrl.learners import DQN
from owlrl.stream import Event

__all__: list[str] = []

COPIES = 32
SHADES = ("#222222", "#332288", "#a292f0", "#cccccc")  # of the methods, unlike any head's


@dataclass(frozen=True)
class Demo:
    """What the demonstration found.

    Attributes:
        scores: share of episodes that reached the paying goal, per method and task.
        trace: probability of each task's head at each step of one episode in the last task.
    """

    scores: dict[str, dict[str, float]]
    trace: list[np.ndarray]

    def table(self) -> str:
        """The scores as text, one line per method."""
        tasks = list(next(iter(self.scores.values())))
        width = max(9, *(len(name) + 2 for name in tasks))
        lines = [" " * 28 + "".join(f"{name:>{width}}" for name in tasks) + "     mean"]
        for method, scores in self.scores.items():
            values = "".join(f"{scores[name]:{width}.2f}" for name in tasks)
            lines.append(f"  {method:26}{values}{np.mean(list(scores.values())):9.2f}")
        return "\n".join(lines)


def run_demo(
    *,
    arms: int = 4,
    frames: int = 30_000,
    episodes: int = 64,
    seed: int = 0,
    output: Path | None = None,
    quiet: bool = False,
) -> Demo:
    """Train on the corridors of a crossroads one after the other, then evaluate all of them.

    There are as many tasks as ``arms``, of ``frames`` each; ``output`` is where the picture goes.
    """
    arguments = Arguments("run_demo")
    frames, episodes = arguments.integer("frames", frames), arguments.integer("episodes", episodes)
    seed = arguments.integer("seed", seed, least=0)
    arguments.check()
    if output is not None:
        prepare_picture(output)  # not after two minutes of training
    torch.manual_seed(seed)
    tables = {
        f"goal {k}": TaskSpec.of("owlrl/Crossroads-v0", arms=arms, task=k, breadcrumbs=True).table()
        for k in range(arms)
    }
    envs = {name: TabulatedVectorEnv(table, COPIES) for name, table in tables.items()}
    if not quiet:
        print(f"{arms} tasks, one after the other. Before any training:")
        print(f"  {interference(*tables.values())}\n")
    one = _learned("bare", "one head, shared replay", envs, frames, seed, quiet)
    owl = _learned("owl", "OWL", envs, frames, seed, quiet)
    ways: dict[str, tuple[Any, str, Any]] = {
        "one head, shared replay": (one, UNKNOWN, None),
        "OWL, task given": (owl, GIVEN, None),
        "OWL, task unknown": (owl, UNKNOWN, ExpWeightsSelector),
        "OWL, random heads": (owl, UNKNOWN, UniformSelector),
    }
    scores: dict[str, dict[str, float]] = {name: {} for name in ways}
    for name, (learned, mode, selector) in ways.items():
        for task, table in tables.items():
            if selector is not None:
                learned.selector = lambda seed, make=selector: make(seed=seed)
            env = TabulatedVectorEnv(table, episodes)
            scores[name][task] = learned.score(env, task, mode=mode, episodes=episodes, seed=seed).success
    demo = Demo(scores, _trace(owl.owl, TabulatedVectorEnv(list(tables.values())[-1], 1), seed))
    if output is not None:
        _draw(demo, list(envs), output)
    return demo


def _learned(method: str, name: str, envs: Mapping[str, Any], frames: int, seed: int, quiet: bool) -> Any:
    """What a method of `compare` has learned of all tasks, with the reference DQN."""
    first = next(iter(envs.values()))
    learned = find_method(method).start(lambda env, seed: DQN(env, seed=seed), first, seed)
    for task, env in envs.items():
        _train(learned, task, env, frames, name, quiet)
    return learned


class _Bar(Watch):
    """Shows how far a training is."""

    def __init__(self, text: str, steps: int, quiet: bool) -> None:
        self._text, self._bar = text, StepBar(steps, not quiet)

    def __call__(self, seen: int) -> None:
        self._bar(self._text, seen)


def _train(learned: Learned, task: str, env: Any, frames: int, name: str, quiet: bool) -> None:
    if not quiet:
        print(f"{name}: learning {task}", flush=True)
    learned.train(task, env, frames, _Bar(task, frames, quiet))


def _trace(owl: OwlWrapper, env: TabulatedVectorEnv, seed: int) -> list[np.ndarray]:
    policy: AdaptivePolicy = owl.policy(ExpWeightsSelector(seed=seed), trace=True)
    run_episodes(policy, env, episodes=1, seed=0)
    return [step.probabilities[0] for step in policy.trace]


def _draw(demo: Demo, tasks: list[str], output: Path) -> None:
    """The tasks, the share of episodes solved, and how the last task is found."""
    figure: Any = new_figure(12, 4.2, what="the picture")
    worlds, results = figure.subfigures(1, 2, width_ratios=(0.8, 2.2))
    _draw_tasks(worlds, tasks)
    left, right = results.subplots(1, 2, width_ratios=(1.1, 1))
    width = 0.8 / len(demo.scores)
    for k, (method, scores) in enumerate(demo.scores.items()):
        places = np.arange(len(tasks)) + (k - (len(demo.scores) - 1) / 2) * width
        bars = left.bar(places, [scores[name] for name in tasks], width, label=method, color=SHADES[k])
        left.bar_label(bars, fmt=lambda height: "0" if height == 0 else "", fontsize=8)
    left.set(xticks=range(len(tasks)), xticklabels=tasks, ylim=(0, 1.05), ylabel="share of episodes solved")
    left.set_title("after learning the tasks one after the other")
    left.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, -0.32), ncols=2, frameon=False)
    draw_probabilities(right, demo.trace, [f"head of {name}" for name in tasks])
    right.set(xlabel="step of one episode", title=f"finding out that it is {tasks[-1]}")
    right.legend(fontsize=8, frameon=False)
    for axes in (left, right):
        plain(axes)
    figure.savefig(output, dpi=130)


def _draw_tasks(figure: Any, tasks: list[str]) -> None:
    """A picture of each task, with a star on the goal that pays."""
    columns = 2 if len(tasks) <= 4 else 3
    panels = list(figure.subplots(-(-len(tasks) // columns), columns, squeeze=False).flat)
    for axes in panels:
        axes.axis("off")
    for k, (axes, name) in enumerate(zip(panels, tasks, strict=False)):
        level: Any = CrossroadsEnv(len(tasks), k, render_mode="rgb_array", highlight=False, tile_size=16)
        level.reset()
        axes.imshow(level.render())
        x, y = make_star(len(tasks), level.length).goals[k]
        place = [16 * x + 8], [16 * y + 8]
        axes.scatter(*place, marker="*", s=130, color="gold", edgecolors=INK, linewidths=0.8)
        axes.set_title(name, fontsize=9)
    figure.supxlabel("tasks that look the same:\nonly the goal that pays (★) differs", fontsize=9, color=INK)


@dataclass(frozen=True)
class StreamDemo:
    """What a stream found in a hidden sequence of tasks.

    Attributes:
        changes: the frame at which each true task began, and the task.
        events: the changes that were found.
        scores: frames so far, and the share of episodes that ended there at the goal that pays.
        frames: in all.
    """

    changes: list[tuple[int, str]]
    events: list[Event]
    scores: list[tuple[int, float]]
    frames: int

    def table(self) -> str:
        """Changes and when they were found, as text in order of time."""
        told = [(frame, f"{task} came at frame {frame}") for frame, task in self.changes]
        for event in self.events:
            kind = "a new one" if event.new else "known"
            told.append((event.step, f"  found at frame {event.step}: {event.left} -> {event.to}, {kind}"))
        return "\n".join(line for _, line in sorted(told, key=lambda each: each[0]))


def run_stream_demo(
    *, arms: int = 3, frames: int = 15_000, seed: int = 0, output: Path | None = None, quiet: bool = False
) -> StreamDemo:
    """Learn while the goal that pays changes at hidden times, and show which changes were found.

    Each task comes once, for about ``frames``, and all but the last one come back for half of that.
    """
    arguments = Arguments("run_stream_demo")
    frames, seed = arguments.integer("frames", frames), arguments.integer("seed", seed, least=0)
    arguments.check()
    if output is not None:
        prepare_picture(output)  # not after a minute of training
    torch.manual_seed(seed)
    specs = [TaskSpec.of("owlrl/Crossroads-v0", arms=arms, task=k, breadcrumbs=True) for k in range(arms)]
    envs = {f"goal {k}": TabulatedVectorEnv(spec.table(), COPIES) for k, spec in enumerate(specs)}
    rng = np.random.default_rng(seed)
    lengths = [frames] * arms + [frames / 2] * (arms - 1)
    steps = [max(1, int(n * rng.uniform(0.75, 1.25)) // COPIES) for n in lengths]
    schedule = list(zip([*envs, *list(envs)[:-1]], steps, strict=True))
    env = _Scored(envs, schedule=schedule)
    agent = DQN(env, seed=seed)
    owl = OwlWrapper(agent)
    total = COPIES * sum(steps)
    with owl.stream() as stream:
        agent.learn(total, progress_bar=not quiet)
    changes = [(COPIES * step, task) for step, task in env.changes]
    demo = StreamDemo(changes, list(stream.events), env.scores(), total)
    if output is not None:
        _draw_stream(demo, list(envs), output)
    return demo


class _Scored(SwitchingVectorEnv):
    """Keeps which episodes ended at the goal that pays."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._frames = 0
        self._ended: list[tuple[int, bool]] = []

    def step(self, actions: Any) -> Any:
        made = super().step(actions)
        self._frames += self.num_envs
        self._ended += [(self._frames, bool(reward > 0.5)) for reward in made[1][made[2] | made[3]]]
        return made

    def scores(self, together: int = 64) -> list[tuple[int, float]]:
        """Frames, and the share of successes of so many episodes up to there."""
        pieces = [self._ended[low : low + together] for low in range(0, len(self._ended), together)]
        return [(piece[-1][0], float(np.mean([good for _, good in piece]))) for piece in pieces]


def _draw_stream(demo: StreamDemo, tasks: list[str], output: Path) -> None:
    """The true task, the found task and the score over the frames."""
    figure: Any = new_figure(10, 4.6, what="the picture")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.2))
    edges = [frame for frame, _ in demo.changes] + [demo.frames]
    true = [tasks.index(task) for _, task in demo.changes]
    above.stairs(true, edges, baseline=None, lw=7, color="#cccccc", label="true task (hidden)")
    heads = list(dict.fromkeys(["task 0", *(event.to for event in demo.events)]))
    found = [0, *(heads.index(event.to) for event in demo.events)]
    places = [0, *(event.step for event in demo.events), demo.frames]
    above.stairs(found, places, baseline=None, lw=2, color=SHADES[1], label="found task")
    above.set(yticks=range(len(tasks)), yticklabels=tasks, ylim=(-0.6, max(len(tasks), len(heads)) - 0.4))
    above.legend(fontsize=8, frameon=False, loc="upper left")
    below.plot(*zip(*demo.scores, strict=True), ".-", color="#117733", lw=1) if demo.scores else None
    below.set(xlabel="frame", ylabel="episodes that reached\nthe goal that pays", ylim=(-0.05, 1.05))
    for axes in (above, below):
        for edge in edges[1:-1]:
            axes.axvline(edge, color=QUIET, lw=0.8, ls=(0, (4, 3)), zorder=0)
        plain(axes)
    figure.savefig(output, dpi=130)


Row = dict[str, Any]
TASKS = "owlrl/Pendulum-v0:90,-90"
FOUND = "hedge+model"
# What is shown: per method, a name for every way to act.
SHOWN = {
    "experience-replay": {"oracle": "one head, shared replay"},
    "owl-memory": {"oracle": "OWL, task given", FOUND: "OWL, task unknown", "random": "OWL, random heads"},
}


def run_pendulum_demo(
    *, frames: int = 5_000, episodes: int = 16, seed: int = 0, output: Path | None = None, quiet: bool = False
) -> Demo:
    """Learn to hold a pole to the left, then to the right, and show how well both are kept.

    Beside the picture goes a GIF.
    """
    if output is not None:
        prepare_picture(output)  # not after minutes of training
    scores: dict[str, dict[str, float]] = {}
    traces: dict[str, dict[str, Row]] = {}
    for method, names in SHOWN.items():
        run = Run(TASKS, method=method, seed=seed, frames=frames, num_envs=4, policies=tuple(names))
        session = Session(run)
        session.traced = tuple(names)
        for task in run.specs:
            _train(session, task, session.env(task), frames, method, quiet)
        for row in evaluate(session, session.tasks, tuple(names), episodes=episodes):
            name = names[row["mode"]]
            if row["kind"] == "trace":
                traces.setdefault(name, {})[row["task"]] = row
            else:
                scores.setdefault(name, {})[row["task"]] = row["mean_return"]
    last = list(traces[names[FOUND]].values())[-1]
    if output is not None:
        _draw_angles(traces, output)
        write_gif(record_episode(session, last["task"], policy=FOUND), output.with_suffix(".gif"))
    return Demo(scores, [np.array(step) for step in last["probabilities"]])


# Gravity and motor balance where sin θ = 2 · torque / (mass · gravity · length) = 0.4, hanging to one side.
HELD = 180.0 - float(np.degrees(np.arcsin(0.4)))


def _draw_angles(traces: Mapping[str, Mapping[str, Row]], output: Path) -> None:
    """The pole's angle in one episode, a panel per task and a line per method; all start alike."""
    tasks = list(next(iter(traces.values())))
    figure = new_figure(10, 4.0, what="the picture")
    panels = figure.subplots(1, len(tasks), sharey=True)
    for axes, task in zip(panels, tasks, strict=True):
        angle = float(task.removeprefix("pendulum"))
        axes.axhline(angle, color=QUIET, lw=1, ls=(0, (4, 3)), label="goal")
        best = f"best angle that the motor can hold, ±{HELD:.0f}°"
        axes.axhline(np.copysign(HELD, angle), color="#117733", lw=1, ls=":", label=best)
        for k, (method, of_task) in enumerate(traces.items()):
            style = {"lw": 1.4, "ls": (0, (3, 2))} if "unknown" in method else {"lw": 2.2}
            line = _unwrapped(of_task[task]["angles"])
            axes.plot(line, color=SHADES[k], label=method, zorder=3 + ("unknown" in method), **style)
        axes.set(xlabel="step of one episode", title=f"task: hold the pole at {angle:+.0f}°")
        axes.set(ylim=(-260, 260), yticks=range(-180, 181, 90))
        plain(axes)
    panels[0].set_ylabel("angle of the pole: 0° up, ±180° down", color=INK)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    about = f"The motor balances gravity only where |sin(angle)| ≤ 0.4: ±{HELD:.0f}° is the best it can hold."
    figure.suptitle(about, fontsize=9, color=INK)
    figure.savefig(output, dpi=130)


def _unwrapped(degrees: Sequence[float]) -> np.ndarray:
    """Unwrapped angles that end between −180° and 180°."""
    line = np.unwrap(np.asarray(degrees, dtype=np.float64), period=360.0)
    turns: np.ndarray = line - 360.0 * np.round(line[-1] / 360.0)
    return turns
