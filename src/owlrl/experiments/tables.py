"""Results as Markdown tables: one section per sequence of tasks, one row per method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from owlrl.envs.pendulum import angle_from
from owlrl.experiments.metrics import regret
from owlrl.experiments.policies import ORACLE
from owlrl.experiments.results import SEEN, Group, Trial, group_by_run, single_task_scores

__all__ = ["markdown_tables"]

DASH = "–"


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return DASH if value is None else f"{value:.{digits}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table with a header."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


FOLLOWED = (ORACLE, "hedge+model", "released+td-raw")
SUCCESS = ("seeds", "success", "worst seed")
WIDEST = 12  # tasks side by side in a plain table


def markdown_tables(trials: Iterable[Trial], *, reference: Iterable[Trial] = ()) -> str:
    """Tables of our own runs: IQM with 95 % interval, worst seed and task, the paper's numbers.

    Args:
        trials: what the tables are about.
        reference: trials among which tasks trained alone are looked for, for forward transfer.

    >>> from owlrl.experiments import Run, Trial
    >>> from owlrl.experiments.tables import markdown_tables
    >>> rows = [{"kind": "training", "visit": 0, "task": "crossroads-0"},
    ...         {"kind": "score", "visit": 0, "mode": "oracle", "task": "crossroads-0", "success": 1.0}]
    >>> text = markdown_tables([Trial.of(Run("Crossroads-2", frames=9), rows)])
    >>> for line in text.splitlines()[4:7]:
    ...     print(line)
    | method | policy | seeds | success | worst seed | worst task | right head | steps | regret |
    | --- | --- | --- | --- | --- | --- | --- | --- | --- |
    | owl-memory | oracle | 1 | 1.00 | 1.00 | 1.00 | – | – | – |
    """
    alone = group_by_run(reference)
    return "\n".join(_section(title, groups, alone) for title, groups in sections(trials).items())


def sections(trials: Iterable[Trial]) -> dict[str, list[Group]]:
    """Trials by what was trained, under a title; seeds of one run together."""
    found: dict[str, list[Group]] = {}
    for group in group_by_run(trials):
        found.setdefault(_title(group), []).append(group)
    return found


def result_text(trial: Trial) -> str:
    """One trial as plain tables: share of episodes solved (or mean return), per mode and task.

    Other sets than the tasks that were trained follow, and failures in a row of episodes.
    """
    labels = dict.fromkeys([SEEN, *(row.get("set", SEEN) for row in trial.select("score"))])
    texts = [(label, _set_text(trial, label)) for label in labels]
    failures: dict[str, list[float]] = {}
    for row in trial.select("in-a-row"):
        failures.setdefault(row["mode"], []).append(row["failures"])
    if failures:
        times = len(trial.select("in-a-row")[0]["by_episode"])
        lines = [f"{mode:20}{sum(found) / len(found):10.2f}" for mode, found in failures.items()]
        texts.append((f"failures in {times} episodes in a row", "\n".join(lines)))
    return "\n\n".join(text if label == SEEN else f"{label}:\n{text}" for label, text in texts if text)


def _set_text(trial: Trial, label: str) -> str:
    rows = trial.final(label=label)
    if not rows:
        return ""
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    shown = tasks if len(tasks) <= WIDEST else []  # of a hundred levels the mean will do
    width = max(10, *(len(task) + 2 for task in tasks))
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    first = max(20, *(len(mode) for mode in modes))
    lines = [" " * first + "".join(f"{task:>{width}}" for task in shown) + "      mean"]
    for mode in sorted(modes, key=lambda mode: (*trial.modes, mode).index(mode)):
        scores = {row["task"]: row[trial.measure] for row in rows if row["mode"] == mode}
        cells = "".join(
            f"{scores[task]:{width}.2f}" if task in scores else f"{DASH:>{width}}" for task in shown
        )
        lines.append(f"{mode:{first}}{cells}{sum(scores.values()) / len(scores):10.2f}")
    return "\n".join(lines)


def _title(group: Group) -> str:
    run = group.run
    own = "".join(f", {name} {value}" for name, value in run.arguments.items())
    more = "".join(f", {frames} for {task}" for task, frames in run.frames_by_task.items())
    rounds = f", {run.rounds} rounds" if run.rounds > 1 else ""
    learner = "" if run.learner == "fast" else f", learner {run.learner}"
    changed = "".join(f", {name} {value}" for name, value in run.overrides.items())
    return f"{run.tasks}{own}: {run.frames} frames per task{more}{rounds}{learner}{changed}"


def _section(title: str, groups: Sequence[Group], alone: Sequence[Group]) -> str:
    if groups[0].run.control:
        return control_section(title, groups, alone)
    runs = (trial.run for group in groups for trial in group.trials)
    unseen = dict.fromkeys(text for run in runs if run is not None for text in run.unseen)
    parts = [_acting(groups), _learning(groups, alone), *(_unseen(groups, label) for label in unseen)]
    return f"### {title}\n\n" + "\n".join(part for part in parts if part)


def _acting(groups: Sequence[Group]) -> str:
    """A row per method and way to act."""
    in_a_row = max(group.run.consecutive for group in groups)
    last = [f"failures in {in_a_row}"] if in_a_row else []
    rows = []
    for group in groups:
        for policy in group.modes():
            worst_task = f"{group.scores(policy).min():.2f}"
            found = [*_identification(group, policy), *(number(group.failures(policy)) for _ in last)]
            rows.append([group.label, policy, *_over_seeds(group, policy, SEEN), worst_task, *found])
    about = (
        "Share of episodes that succeed, mean over tasks: interquartile mean over seeds [95 % stratified "
        "bootstrap], the worst seed, and the worst task of any seed. Then means: right head at the end, "
        "steps until it stays, regret to the oracle"
    )
    if in_a_row:
        about += f"; failures in {in_a_row} episodes in a row of one task with kept evidence"
    header = ("method", "policy", *SUCCESS, "worst task", "right head", "steps", "regret", *last)
    return f"{about}.\n\n{table(header, rows)}"


def _over_seeds(group: Group, policy: str, label: str) -> list[str]:
    scores = group.scores(policy, label=label)
    worst_seed = f"{scores.mean(axis=1).min():.2f}"
    return [str(len(scores)), str(group.estimate(policy, label=label)), worst_seed]


def _identification(group: Group, policy: str) -> list[str]:
    if policy.startswith(ORACLE) or ORACLE not in group.modes():
        return [DASH] * 3
    return [
        f"{group.mean_of('found', policy):.2f}",
        f"{group.mean_of('steps', policy):.1f}",
        f"{regret(group.scores(ORACLE), group.scores(policy)):.2f}",
    ]


def _learning(groups: Sequence[Group], alone: Sequence[Group]) -> str:
    """A row per method."""
    about = (
        "As in the paper: median over seeds (75 %, 25 %) of the mean over the tasks so far; at the end, "
        "cumulative over all of training, and on average after each task. Forgetting and forward transfer as "
        "in Continual World, with the task given. Minutes of CPU time per seed, evaluation "
        "included."
    )
    rows = []
    for group in groups:
        cells = []
        for policy in FOLLOWED:
            cells.append(str(group.quartiles(policy)) if policy in group.modes() else DASH)
            if policy == ORACLE:
                cells.append(str(group.cumulative(policy) or DASH))
            cells.append(str(group.after_each_task(policy) or DASH))
        gain = group.forward_transfer(single_task_scores(alone, group.run))
        numbers = (number(group.forgetting()), number(gain), number(group.minutes(), 1))
        rows.append((group.label, *cells, *numbers))
    header = [f"{ORACLE} final", "cumulative", "after each task"]
    header += [f"{policy} {what}" for policy in FOLLOWED[1:] for what in ("final", "after each task")]
    return about + "\n\n" + table(("method", *header, "forgetting", "forward transfer", "minutes"), rows)


def _unseen(groups: Sequence[Group], label: str) -> str:
    kind, _, number = label.partition(":")
    about = f"The same on {number} unseen {kind} levels."
    rows = [
        (group.label, policy, *_over_seeds(group, policy, label))
        for group in groups
        for policy in group.modes(label)
    ]
    return f"{about}\n\n{table(('method', 'policy', *SUCCESS), rows)}" if rows else ""


ABOUT = (
    "Return per episode of 200 steps, mean over seeds and episodes for each task; then the mean over tasks, "
    "interquartile mean over seeds [95 % stratified bootstrap]; the loss relative to the task given; share "
    "of episodes with the right head at the end and steps until it stays; the pole's mean direction over "
    "the last 50 steps, in the most typical episode."
)


def control_section(title: str, groups: Sequence[Group], alone: Sequence[Group] = ()) -> str:
    """One table for one sequence of tasks: a row per method and way to act.

    Tasks that were trained by themselves are looked for among the groups of ``alone``.
    """
    tasks = list(groups[0].run.specs)
    rows = [_separate(found, tasks)] if (found := _trained_alone(groups[0], tasks, alone)) else []
    rows += [_row(group, policy, tasks) for group in groups for policy in group.modes()]
    header = ["method", "policy", "seeds", *tasks, "mean", "loss", "right head", "steps"]
    header += [f"angle, {task}" for task in tasks] + ["core-minutes per seed"]
    return f"### {title}\n\n{ABOUT}\n\n{table(header, rows)}"


def _row(group: Group, policy: str, tasks: Sequence[str]) -> list[str]:
    returns = group.scores(policy).mean(axis=0)
    told = group.scores(ORACLE).mean() if ORACLE in group.modes() and policy != ORACLE else None
    loss = None if told is None else 100.0 * (told - returns.mean()) / abs(told)
    found = policy != ORACLE
    return [
        *(group.label, policy, str(len(group.trials))),
        *(f"{value:.1f}" for value in returns),
        str(group.estimate(policy)),
        DASH if loss is None else f"{loss:.1f} %",
        number(group.mean_of("found", policy) if found else None),
        number(group.mean_of("steps", policy) if found else None, 1),
        *(_angle(group, policy, task) for task in tasks),
        number(group.minutes(), 1),
    ]


def _separate(alone: dict[str, Group], tasks: Sequence[str]) -> list[str]:
    """The row of what was trained alone."""
    returns = [alone[task].scores(ORACLE).mean() for task in tasks]
    minutes = [alone[task].minutes() for task in tasks]
    return [
        *("separately trained", ORACLE, str(min(len(alone[task].trials) for task in tasks))),
        *(f"{value:.1f}" for value in returns),
        f"{np.mean(returns):.2f}",
        *(DASH, DASH, DASH),
        *(_angle(alone[task], ORACLE, task) for task in tasks),
        DASH if None in minutes else f"{sum(m for m in minutes if m is not None):.1f}",
    ]


def _angle(group: Group, policy: str, task: str) -> str:
    """That of the episode which is nearest to all others, of all seeds.

    A mean would mislead: 23° and 157° are equally good for +90°, and some episodes end in either.
    """
    rows = [row for trial in group.trials for row in trial.final(policy) if row["task"] == task]
    every = np.array([angle for row in rows for angle in row["final_angles"]])
    apart = np.abs(angle_from(np.radians(every[:, None] - every), 0.0)).sum(axis=0)
    return f"{every[apart.argmin()]:+.0f}°"


def _trained_alone(like: Group, tasks: Sequence[str], groups: Sequence[Group]) -> dict[str, Group] | None:
    """Of each task a group that had nothing else to learn, in as many frames; None if one is missing."""
    env_id = like.run.tasks.rpartition(":")[0]
    wanted = {
        task: replace(like.run, tasks=f"{env_id}:{dict(spec.arguments)['angle']:g}").specs
        for task, spec in like.run.specs.items()
    }
    same = [g for g in groups if _schedule(g) == _schedule(like) and ORACLE in g.modes()]
    found = {task: group for task, specs in wanted.items() for group in same if group.run.specs == specs}
    return found if len(tasks) > 1 and set(found) == set(tasks) else None


def _schedule(group: Group) -> tuple[object, ...]:
    run = group.run
    each = {task: run.rounds * frames for task, frames in run.frames_by_task.items()}
    return run.arguments, run.rounds * run.frames, each, run.learner, run.overrides, run.num_envs
