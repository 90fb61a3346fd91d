"""The command ``owlrl evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from owlrl.envs import Table
from owlrl.errors import OwlValueError, int_problem
from owlrl.experiments.commands._options import named_values, print_json, say, task_text
from owlrl.experiments.control import ControlSession, load_session
from owlrl.experiments.evaluation import evaluate
from owlrl.experiments.results import Result, environment
from owlrl.experiments.session import Session
from owlrl.experiments.tables import result_text
from owlrl.experiments.tasks import is_control, resolve_tasks, tables_of
from owlrl.experiments.training import repeatable

__all__ = ["Evaluate"]


@dataclass(frozen=True)
class Evaluate:
    """Evaluate what was trained, on its own tasks or on any levels.

    >>> from pathlib import Path
    >>> from owlrl.experiments.commands import Evaluate
    >>> Evaluate(Path("runs/x.safetensors"), levels=(1, 2)).episodes
    16
    """

    checkpoint: Path
    """the .safetensors file that owlrl train wrote"""
    tasks: str | None = None
    """a set; the tasks that were trained if nothing is given"""
    env_id: str | None = None
    """environment whose levels are taken; owlrl/SimpleCrossing-v0 if left out"""
    levels: tuple[int, ...] = ()
    """levels instead of a set, e.g. 3 7 14"""
    angles: tuple[float, ...] = ()
    """of owlrl/Pendulum-v0 instead of levels, e.g. 90 -90"""
    arguments: tuple[str, ...] = ()
    """arguments of the environments, e.g. breadcrumbs=true; beside those of the training if no tasks are
    given"""
    unseen: tuple[str, ...] = ()
    """levels for generalisation as well, e.g. S9N1:100"""
    policies: tuple[str, ...] = ()
    """how to act, e.g. oracle hedge+td; as in training if left out"""
    episodes: int = 16
    """per task and policy"""
    json: bool = False
    """print the result as one line of JSON at the end"""

    def __call__(self) -> int:
        """Load, run episodes, print."""
        if not self.checkpoint.is_file():
            raise OwlValueError(f"checkpoint is {self.checkpoint}; there is no such file")
        if problem := int_problem("episodes", self.episodes):
            raise OwlValueError(problem)
        session = load_session(self.checkpoint)
        sets = self._sets(session)
        run = replace(session.run, policies=self.policies or session.run.policies, unseen=self.unseen)
        rows = []
        with repeatable(run.seed):
            for label, tasks in sets.items():
                rows += evaluate(session, tasks, run.acting, episodes=self.episodes, label=label)
        if not rows:
            raise OwlValueError(
                f"policies are {run.acting}, which need a head that is told, and none has learned "
                f"{', '.join(task for tasks in sets.values() for task in tasks)}; expected others, e.g. "
                "--policies random"
            )
        result = Result(session.run, rows, environment())
        say(self.json, result_text(result))
        if self.json:
            print_json(result)
        return 0

    def _sets(self, session: Session | ControlSession) -> dict[str, Mapping[str, Any]]:
        """What to play, apart: what was trained, other tasks, and levels for generalisation."""
        tasks, trained = self._tasks(session), session.tasks
        known = {name: task for name, task in tasks.items() if _same(task, trained.get(name))}
        # A task that only has the name of one that was trained must not be taken for it.
        others = {
            f"other {name}" if name in trained else name: task
            for name, task in tasks.items()
            if name not in known
        }
        sets: dict[str, Mapping[str, Any]] = {"seen": known, "others": others}
        if isinstance(session, Session):
            sets |= {text: session.unseen(text) for text in self.unseen}
        return {label: tasks for label, tasks in sets.items() if tasks}

    def _tasks(self, session: Session | ControlSession) -> Mapping[str, Any]:
        """Those that were trained, or the like."""
        run, arguments = session.run, named_values("arguments", self.arguments)
        text = task_text(self.tasks, self.env_id, self.levels, self.angles)
        if text is None and not arguments:
            return session.tasks
        if text is None:
            specs = resolve_tasks(run.tasks, {**run.arguments, **arguments})
        else:
            specs = resolve_tasks(text, arguments)
        if run.control != is_control(text or run.tasks):
            raise OwlValueError(f"tasks are {text}, but {run.tasks} was trained; expected the like")
        if isinstance(session, ControlSession):
            return specs
        tables = tables_of(specs, goal_scale=run.preset.goal_scale)
        trained = session.agent.num_actions
        if few := [name for name, table in tables.items() if table.num_actions < trained]:
            raise OwlValueError(
                f"{', '.join(few)} have fewer actions than the {trained} that were learned; expected as "
                f"many, e.g. --arguments num_actions={trained}"
            )
        return tables


def _same(task: Any, trained: Any) -> bool:
    """Whether two tasks are one: both tables, or both descriptions of an environment."""
    if isinstance(task, Table) and isinstance(trained, Table):
        return task is trained or task.name == trained.name
    return bool(task == trained)
