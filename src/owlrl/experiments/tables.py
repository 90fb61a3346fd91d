"""Results as Markdown tables: one section per sequence of tasks, one row per method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from owlrl.experiments._markdown import DASH
from owlrl.experiments._markdown import number as _number
from owlrl.experiments._markdown import table as _table
from owlrl.experiments.control_tables import control_section
from owlrl.experiments.policies import ORACLE
from owlrl.experiments.results import Result
from owlrl.experiments.summary import Group, group_by_run, single_task_scores

__all__ = ["markdown_tables", "result_text", "sections"]

COLUMNS = (
    "restless+model",
    "hedge+model",
    "hedge+td",
    "hedge+reward",
    "hedge+td-and-reward",
    "hedge+nll",
    "released+td-raw",
    "released+td",
    "paper+td-squared",
    "paper+td",
    "random",
    "max-q-once",
    "max-q-every-step",
)
FOLLOWED = (ORACLE, "hedge+model", "released+td-raw")


def markdown_tables(results: Iterable[Result], *, reference: Iterable[Result] = ()) -> str:
    """All that the results say: IQM with 95 % interval, median and quartiles as the paper has them, and more.

    Args:
        results: what the tables are about.
        reference: results among which tasks trained alone are looked for, for forward transfer.

    >>> from owlrl.experiments import Result, Run
    >>> from owlrl.experiments.tables import markdown_tables
    >>> rows = [{"kind": "evaluation", "policy": "oracle", "set": "seen", "task": "a", "success": 1.0},
    ...         {"kind": "training", "round": 0, "task": "a", "start": 0, "end": 9},
    ...         {"kind": "score", "step": 9, "task": "a", "policy": "oracle", "score": 1.0}]
    >>> print(markdown_tables([Result(Run("SC2", frames=9), rows, {"seconds": {"train": 60.0}})])[:131])
    ## SC2: 9 frames per task
    <BLANKLINE>
    Success, mean over tasks: interquartile mean over seeds [95 % stratified bootstrap].
    <BLANKLINE>
    | method | seeds |
    """
    alone = group_by_run(reference)
    return "\n".join(_section(title, groups, alone) for title, groups in sections(results).items())


def sections(results: Iterable[Result]) -> dict[str, list[Group]]:
    """Results by what was trained, under a title that says it; seeds of one run together.

    >>> from owlrl.experiments import Result, Run
    >>> from owlrl.experiments.tables import sections
    >>> results = [Result(Run("SC2", method=method), [], {}) for method in ("owl", "owl-memory")]
    >>> {title: len(groups) for title, groups in sections(results).items()}
    {'SC2: 190000 frames per task': 2}
    """
    found: dict[str, list[Group]] = {}
    for group in group_by_run(results):
        found.setdefault(_title(group), []).append(group)
    return found


def result_text(result: Result, *, label: str = "seen") -> str:
    """One result as a plain table: share of episodes solved (or mean return), per policy and task.

    >>> from owlrl.experiments import Result, Run
    >>> from owlrl.experiments.tables import result_text
    >>> row = {"kind": "evaluation", "policy": "oracle", "set": "seen", "task": "left", "success": 0.5}
    >>> print(result_text(Result(Run("SC2"), [row], {})))
                            left    mean
    oracle                  0.50    0.50
    """
    rows = result.select("evaluation", set=label)
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    width = max(8, *(len(task) + 2 for task in tasks)) if tasks else 8
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    first = max(20, *(len(policy) for policy in policies)) if policies else 20
    lines = [" " * first + "".join(f"{task:>{width}}" for task in tasks) + "    mean"]
    for policy in policies:
        scores = {row["task"]: row[result.run.measure] for row in rows if row["policy"] == policy}
        cells = "".join(
            f"{scores[task]:{width}.2f}" if task in scores else f"{DASH:>{width}}" for task in tasks
        )
        lines.append(f"{policy:{first}}{cells}{sum(scores.values()) / len(scores):8.2f}")
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
    parts = [f"## {title}\n", _final(groups), _as_the_paper(groups, alone)]
    parts += [_identification(groups), _in_a_row(groups)]
    for label in dict.fromkeys(text for group in groups for text in group.run.unseen):
        parts.append(_unseen(groups, label))
    return "\n".join(part for part in parts if part)


def _final(groups: Sequence[Group]) -> str:
    about = "Success, mean over tasks: interquartile mean over seeds [95 % stratified bootstrap]."
    return about + "\n\n" + _estimates(groups, "seen")


def _unseen(groups: Sequence[Group], label: str) -> str:
    kind, _, number = label.partition(":")
    about = f"Success on {number} unseen {kind} levels: interquartile mean over seeds [95 % interval]."
    rows = [
        (group.label, policy, str(group.estimate(policy, label=label)))
        for group in groups
        for policy in group.policies(label)
    ]
    return about + "\n\n" + _table(("method", "policy", "success"), rows) if rows else ""


def _estimates(groups: Sequence[Group], label: str) -> str:
    there = {policy for group in groups for policy in group.policies(label)}
    known = (ORACLE, *COLUMNS)
    columns = [policy for policy in known if policy in there] + sorted(there.difference(known))
    rows = []
    for group in groups:
        own = group.policies(label)
        cells = [str(group.estimate(policy, label=label)) if policy in own else DASH for policy in columns]
        rows.append((group.label, str(len(group.results)), *cells, _number(group.minutes(), 1)))
    return _table(("method", "seeds", *columns, "minutes per seed"), rows)


def _as_the_paper(groups: Sequence[Group], alone: Sequence[Group]) -> str:
    about = "As in the paper: median over seeds (75 %, 25 %) of the mean over tasks; final, then cumulative."
    rows = []
    for group in groups:
        cells = []
        for policy in FOLLOWED:
            final = str(group.quartiles(policy)) if policy in group.policies() else DASH
            cells += [final, str(group.cumulative(policy) or DASH)]
        gain = group.forward_transfer(single_task_scores(alone, group.run))
        rows.append((group.label, *cells, _number(group.forgetting()), _number(gain)))
    header = [f"{policy} {what}" for policy in FOLLOWED for what in ("final", "cumulative")]
    return about + "\n\n" + _table(("method", *header, "forgetting", "forward transfer"), rows)


def _identification(groups: Sequence[Group]) -> str:
    rows = [
        (
            group.label,
            policy,
            f"{group.mean_of('identified', policy):.2f}",
            f"{group.mean_of('steps_to_identify', policy):.1f}",
            f"{group.scores(ORACLE).mean() - group.scores(policy).mean():.2f}",
        )
        for group in groups
        for policy in group.policies()
        if policy != ORACLE and ORACLE in group.policies()
    ]
    about = "Identification: right head at the end, steps until it stays, regret to the oracle; means."
    return about + "\n\n" + _table(("method", "policy", "right", "steps", "regret"), rows) if rows else ""


def _in_a_row(groups: Sequence[Group]) -> str:
    rows = []
    for group in groups:
        for policy in group.policies():
            failures = group.failures(policy)
            if failures is not None:
                rows.append((group.label, policy, str(group.run.consecutive), f"{failures:.2f}"))
    about = "Episodes in a row with kept evidence: mean number of failures."
    return about + "\n\n" + _table(("method", "policy", "episodes", "failures"), rows) if rows else ""
