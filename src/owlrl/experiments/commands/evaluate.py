"""The command ``owlrl evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
        tasks = self._tasks(session)
        run = replace(session.run, policies=self.policies) if self.policies else session.run
        with repeatable(run.seed):
            rows = evaluate(session, tasks, run.acting, episodes=self.episodes)
        if not rows:
            raise OwlValueError(
                f"policies are {run.acting}, which need a head that is told, and none has learned "
                f"{', '.join(tasks)}; expected others, e.g. --policies random"
            )
        result = Result(session.run, rows, environment())
        say(self.json, result_text(result))
        if self.json:
            print_json(result)
        return 0

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
