"""The demonstration with continuous actions: two opposed Pendulums, and how the pole moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from owlrl.experiments._style import INK, QUIET, new_figure, plain, prepare_picture
from owlrl.experiments.config import Run
from owlrl.experiments.demo import SHADES, Demo
from owlrl.experiments.evaluation import evaluate
from owlrl.experiments.frames import record_episode, write_gif
from owlrl.experiments.training import train

__all__ = ["run_pendulum_demo"]

Row = dict[str, Any]
TASKS = "owlrl/Pendulum-v0:90,-90"
FOUND = "hedge+model"
# What is shown: per method, a name for every way to act.
SHOWN = {
    "experience-replay": {"oracle": "one head, shared replay"},
    "owl-memory": {"oracle": "OWL, told", FOUND: "OWL, not told", "random": "OWL, random heads"},
}


def run_pendulum_demo(
    *, frames: int = 5_000, episodes: int = 16, seed: int = 0, output: Path | None = None, quiet: bool = False
) -> Demo:
    """Learn to hold a pole to the left, then to the right, and show what is left of both.

    Args:
        frames: per task.
        episodes: per task and method, to measure what was learned.
        seed: of everything.
        output: where the picture goes, and beside it a GIF; None draws none.
        quiet: no progress bars.

    >>> from owlrl.experiments.pendulum_demo import run_pendulum_demo
    >>> demo = run_pendulum_demo(frames=8, episodes=2, quiet=True)
    >>> sorted(demo.scores["OWL, told"])
    ['pendulum+90', 'pendulum-90']
    """
    if output is not None:
        prepare_picture(output)  # not after minutes of training
    scores: dict[str, dict[str, float]] = {}
    traces: dict[str, dict[str, Row]] = {}
    for method, names in SHOWN.items():
        run = Run(
            TASKS,
            method=method,
            seed=seed,
            frames=frames,
            num_envs=4,
            eval_every=10 * frames,  # never: only the end is shown
            policies=tuple(names),
        )
        if not quiet:
            print(f"{method}: learning {' and '.join(run.specs)}", flush=True)
        session, _ = train(run, progress=not quiet)
        for row in evaluate(session, session.tasks, tuple(names), episodes=episodes, traces=tuple(names)):
            name = names[row["policy"]]
            if row["kind"] == "trace":
                traces.setdefault(name, {})[row["task"]] = row
            else:
                scores.setdefault(name, {})[row["task"]] = row["mean_return"]
    last = list(traces[names[FOUND]].values())[-1]
    if output is not None:
        _draw(traces, output)
        write_gif(record_episode(session, last["task"], policy=FOUND), output.with_suffix(".gif"))
    return Demo(scores, [np.array(step) for step in last["probabilities"]])


def _draw(traces: Mapping[str, Mapping[str, Row]], output: Path) -> None:
    """The pole's angle in one episode, a panel per task and a line per method; all start alike."""
    tasks = list(next(iter(traces.values())))
    figure = new_figure(10, 3.6, what="the picture")
    panels = figure.subplots(1, len(tasks), sharey=True)
    for axes, task in zip(panels, tasks, strict=True):
        axes.axhline(float(task.removeprefix("pendulum")), color=QUIET, lw=1, ls=(0, (4, 3)))
        for k, (method, of_task) in enumerate(traces.items()):
            line = _broken(of_task[task]["angles"])
            axes.plot(line, color=SHADES[k], lw=1.6, label=method, zorder=3 - k / 10)
        axes.set(xlabel="step of one episode", title=task, ylim=(-185, 185), yticks=range(-180, 181, 90))
        plain(axes)
    panels[0].set_ylabel("angle of the pole, 0 is upright", color=INK)
    panels[-1].legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    figure.savefig(output, dpi=130)


def _broken(degrees: Sequence[float]) -> np.ndarray:
    """The line with a gap where the pole passes straight down."""
    line = np.array(degrees, dtype=np.float64)
    line[1:][np.abs(np.diff(line)) > 180.0] = np.nan
    return line
