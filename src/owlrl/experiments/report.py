"""`write_report`: all results of a directory on one page."""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

import owlrl
from owlrl._arguments import Arguments
from owlrl.checkpoint import write_atomically
from owlrl.errors import OwlError, OwlValueError
from owlrl.experiments import _html
from owlrl.experiments._optional import optional
from owlrl.experiments.config import Run
from owlrl.experiments.frames import Recording, frame_strip, record_episode, write_gif
from owlrl.experiments.plots import count, head_probabilities, learning_curves
from owlrl.experiments.policies import LEAST_TRIED, ORACLE
from owlrl.experiments.results import Group, Trial, readable_trials
from owlrl.experiments.session import Session
from owlrl.experiments.studies import STUDIES
from owlrl.experiments.study import studies_of
from owlrl.experiments.tables import markdown_tables, sections
from owlrl.experiments.value_maps import q_heatmap, value_map
from owlrl.learners import DQN

__all__ = ["write_report"]

SIDE_BY_SIDE = 4  # methods in one picture of learning curves
DEMOS = {  # what `owlrl demo NAME` draws
    "crossroads": "demo.png",
    "pendulum": "demo-pendulum.png",
    "stream": "demo-stream.png",
}


def write_report(
    directory: str | os.PathLike[str], output: str | os.PathLike[str] | None = None, *, episodes: int = 3
) -> Path:
    """Write tables and pictures of all results in a directory to one self-contained HTML file.

    Trials of a `Run` (``owlrl train``, ``owlrl reproduce``) give tables, learning curves and the heads'
    probabilities; if the checkpoint of a run is beside its result, also frames, GIFs and value maps. Files
    that cannot be read are listed in the report.

    Args:
        directory: of results.
        output: the file; ``report.html`` in the directory if left out.
        episodes: how many episodes of each method are shown, each of another task; 0 for none.

    Returns:
        Where the report is.

    >>> import tempfile
    >>> from owlrl.experiments import Run, Trial, write_report
    >>> row = {"kind": "score", "visit": 0, "mode": "oracle", "task": "a", "success": 1.0}
    >>> directory = tempfile.mkdtemp()
    >>> _ = Trial.of(Run("SC2"), [row]).write(directory)
    >>> ">1.00</td>" in write_report(directory).read_text(encoding="utf-8")
    True
    """
    arguments = Arguments("write_report")
    episodes = arguments.integer("episodes", episodes, least=0)
    arguments.check()
    for module in ("matplotlib.figure", "PIL.Image"):  # before anything takes time
        optional(module, extra="plots", what="a report")
    source = Path(directory)
    results, compared, unreadable = _read(source)
    target = source / "report.html" if output is None else Path(output)
    if target.is_dir():
        raise OwlValueError(f"write_report: output is {target}, a directory; expected a file's name")
    target.parent.mkdir(parents=True, exist_ok=True)
    body = list(_page(source, results, unreadable, episodes))
    for study in studies_of(compared):
        body += ["<h2>A comparison</h2>", *study.html()]
    write_atomically(target, _html.page(f"owlrl: {source.name or source}", body).encode("utf-8"))
    return target


def _read(directory: Path) -> tuple[list[Trial], list[Trial], list[str]]:
    """Trials of our own runs, those of other comparisons, and why other files are neither."""
    if not directory.is_dir():
        raise OwlValueError(f"write_report: directory is {directory}; there is no such directory")
    trials, unreadable = readable_trials(directory)
    if not trials and not _demos(directory):
        again = f"owlrl train --output {shlex.quote(str(directory))}"
        others = "".join(f"; {problem}" for problem in unreadable)
        raise OwlValueError(f"write_report: {directory} has no results; make some, e.g. {again}{others}")
    own = [trial for trial in trials if trial.run is not None]
    return own, [trial for trial in trials if trial.run is None], unreadable


def _page(directory: Path, results: list[Trial], unreadable: list[str], episodes: int) -> Iterator[str]:
    yield f"<h1>{escape(directory.resolve().name)}: results</h1>"
    yield _html.items(_facts(results))
    found = sections(results)
    if len(found) > 1:
        links = "".join(f'<li><a href="#s{k}">{escape(title)}</a></li>' for k, title in enumerate(found))
        yield f"<nav><ol>{links}</ol></nav>"
    if results:
        runs = [trial.run for trial in results if trial.run is not None]
        yield "<h3>Commands</h3>" + _html.code(commands_for(runs))
    if unreadable:
        yield "<h3>Skipped files</h3>" + _html.code(unreadable)
    if demos := _demos(directory):
        yield "<h2>The demonstration</h2>"
        for name, picture in demos.items():
            command = "owlrl demo" if name == "crossroads" else f"owlrl demo {name}"
            text, caption = f"the picture of {command}", f"Drawn by {command}."
            yield _html.image(picture.read_bytes(), kind="png", text=text, caption=caption)
    for k, (title, groups) in enumerate(found.items()):
        yield f'<h2 id="s{k}">{escape(title)}</h2>'
        yield from _section(directory, groups, results, episodes)


def _demos(directory: Path) -> dict[str, Path]:
    """The pictures of demonstrations that are there."""
    places = {name: directory / file for name, file in DEMOS.items()}
    return {name: place for name, place in places.items() if place.is_file()}


def _facts(results: Sequence[Trial]) -> dict[str, str]:
    """Where the results come from; everything that differs between them is listed."""
    infos = [trial.info or {} for trial in results]
    versions = [info.get("versions") or {} for info in infos]
    names = sorted({name for found in versions for name in found})
    started = [info["started"] for info in infos if "started" in info]
    hours = sum(info.get("seconds", 0.0) for info in infos) / 3600
    facts = {
        "this report": f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}, owlrl {owlrl.__version__}",
        "results": count(len(results), "run"),
        "started": " to ".join(sorted({f"{datetime.fromtimestamp(t):%Y-%m-%d}" for t in _ends(started)})),
        "computing time": f"{hours:.2f} h" if hours else "",
        "versions": ", ".join(f"{name} {_all(found.get(name) for found in versions)}" for name in names),
        "git revision": _all(info.get("git") for info in infos),
        "machine": _all(f"{info['machine']}, {info['cpus']} CPUs" for info in infos if "machine" in info),
    }
    return {name: text for name, text in facts.items() if text}


def _ends(numbers: list[float]) -> list[float]:
    return [min(numbers), max(numbers)] if numbers else []


def _all(values: Any) -> str:
    return " / ".join(sorted({str(value) for value in values if value is not None}))


def _section(
    directory: Path, groups: Sequence[Group], results: Sequence[Trial], episodes: int
) -> Iterator[str]:
    own = [trial for group in groups for trial in group.trials]
    yield _html.tables(markdown_tables(own, reference=results))
    followed = [group for group in groups if all(trial.visits for trial in group.trials)]
    if followed:
        yield "<h3>Learning curves</h3>"
        for part in np.array_split(np.arange(len(followed)), -(-len(followed) // SIDE_BY_SIDE)):
            chosen = [followed[k] for k in part]
            text = "success of each task over training: " + ", ".join(group.label for group in chosen)
            yield _html.drawing(learning_curves(r for g in chosen for r in g.trials), text=text)
    if episodes:
        for group in groups:
            yield from _Method(directory, group, episodes).parts()


@dataclass(frozen=True)
class _Method:
    """The pictures of one method: episodes of a few tasks, and what its heads value."""

    directory: Path
    group: Group
    episodes: int

    def parts(self) -> Iterator[str]:
        result, session, problem = self._session()
        shown = list(self._recorded(session) if session is not None else self._kept(result))
        if not (shown or problem):
            return
        yield f"<h3>{escape(self.group.label)}, seed {result.seed}: one episode per task</h3>"
        if problem:
            yield _html.paragraph(f"The checkpoint could not be used: {problem}")
        yield f'<div class="row">{"".join(shown)}</div>'
        if session is not None and session.heads and isinstance(session.agent, DQN):
            yield _values(session, session.agent)

    def _session(self) -> tuple[Trial, Session | None, str]:
        """The first result that has a checkpoint, and what was loaded; or the first result alone."""
        for result in self.group.trials:
            path = self.directory / f"{result.id}.safetensors"
            if path.is_file():
                try:
                    return result, Session.load(path), ""
                except (OwlError, OSError, RuntimeError, KeyError) as error:
                    return result, None, f"{path.name}: {error}"
        return self.group.trials[0], None, ""

    def _recorded(self, session: Session) -> Iterator[str]:
        policy = self._best(self.group.modes()) or ORACLE
        told = "task given" if policy.startswith(ORACLE) else "task unknown"
        about = f"{policy}, {told}" if session.run.recipe.heads else "one head for all tasks"
        for task in _some(list(session.heads), self.episodes):
            recording = record_episode(session, task, policy=policy)
            text = f"frames of an episode in {task}: {recording.end}"
            shown = _html.drawing(frame_strip(recording), text=text, caption=f"{task}: {about}.")
            if len(recording.trace["heads"]) > 1:
                shown += f'<div class="side">{_probabilities(recording.trace)}{_moving(recording)}</div>'
            yield f"<div>{shown}</div>"

    def _kept(self, result: Trial) -> Iterator[str]:
        """Traces that lie in the result, of the best policy that has any."""
        rows = result.select("trace", set=None)
        policy = self._best(dict.fromkeys(row["mode"] for row in rows))
        own = [row for row in rows if row["mode"] == policy]
        for row in _some(own, self.episodes):
            yield _probabilities(row)

    def _best(self, policies: Any) -> str | None:
        """Of those that find the task by evidence, the one that solves most."""
        evaluated = self.group.modes()
        scores = {
            policy: self.group.scores(policy).mean() if policy in evaluated else 0.0
            for policy in policies
            if "+" in policy.removesuffix(LEAST_TRIED)  # selector+evidence
        }
        return max(scores, key=lambda policy: scores[policy]) if scores else None


def _values(session: Session, agent: DQN) -> str:
    maps = [
        value_map(agent.q, session.run.specs[task](disable_env_checker=True), head=head, name=task)
        for task, head in session.heads.items()
    ]
    caption = (
        "The values of each task's head: the largest Q-value in each cell of its level at the start, "
        "and where it goes from there. The circle is the start."
    )
    return _html.drawing(q_heatmap(maps), text="Q-values over the levels", caption=caption)


def _probabilities(trace: dict[str, Any]) -> str:
    text = f"probability and evidence of each head in an episode of {trace['task']}"
    return _html.drawing(head_probabilities(trace), text=text)


def _moving(recording: Recording) -> str:
    file = io.BytesIO()
    write_gif(recording, file)
    text = f"the same episode of {recording.trace['task']}, moving"
    return _html.image(file.getvalue(), kind="gif", text=text)


def _some(things: list[Any], most: int) -> list[Any]:
    """At most so many, from the first to the last at equal distances."""
    places = np.linspace(0, len(things) - 1, min(most, len(things))).round().astype(int)
    return [things[place] for place in places.tolist()]


RENAMED = {"overrides": "set", "consecutive": "in-a-row"}  # fields of a run and options of `owlrl train`
WITHOUT_OPTION = {"frames_by_task", "num_envs", "eval_every", "compile"}  # these need Python


def commands_for(runs: Sequence[Run]) -> list[str]:
    """The fewest commands that repeat the runs: whole studies, then single runs."""
    left = {run.id: run for run in runs}
    there = set(left)
    found = []
    for name, study in STUDIES.items():
        seeds = 0
        while {run.id for run in study.make(seeds)} <= there:
            seeds += 1
        covered = {run.id for seed in range(seeds) for run in study.make(seed)}
        if covered & set(left):
            found.append(f"owlrl reproduce {shlex.quote(name)} --seeds {seeds}")
            left = {key: run for key, run in left.items() if key not in covered}
    return found + [train_command(run) for run in left.values()]


def train_command(run: Run) -> str:
    """``owlrl train`` with all that is not a default; Python where the command has no option for it."""
    default = Run()
    changed = {f.name: getattr(run, f.name) for f in fields(run)}
    changed = {name: value for name, value in changed.items() if value != getattr(default, name)}
    if run.control or set(changed) & WITHOUT_OPTION:  # the command has other defaults for control
        code = "from owlrl.experiments import Run, run_experiment; "
        code += f"run_experiment(Run(**{changed!r})).write('runs')"
        if '"' not in code:
            code = code.replace("'", '"')  # a shell's own quotes are single ones
        return f"python -c {shlex.quote(code)}"
    words = ["owlrl", "train"]
    for name, value in changed.items():
        words += _words(name, value)
    return shlex.join(words)


def _words(name: str, value: object) -> list[str]:
    option = f"--{RENAMED.get(name, name)}"
    if isinstance(value, dict):
        return [option, *(f"{key}={json.dumps(item)}" for key, item in value.items())]
    return [option, *map(str, value)] if isinstance(value, tuple) else [option, str(value)]
