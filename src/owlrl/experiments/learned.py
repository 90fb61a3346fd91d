"""`Learned`: the state of a method: how it is trained and how well it acts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from owlrl.acting.episodes import EpisodePolicy, Evaluation, run_episodes
from owlrl.describe.given import as_env
from owlrl.errors import OwlStateError
from owlrl.experiments.models import Envs, Watch, greedy_policy

__all__ = ["GIVEN", "UNKNOWN", "Learned", "Score"]

GIVEN, UNKNOWN = "given", "unknown"
Row = dict[str, Any]


@dataclass(frozen=True)
class Score:
    """Results of some episodes of one task.

    Attributes:
        returns: (n,) undiscounted sums of reward.
        found: share of episodes at whose last step the right task was the most probable; None if the task was
            given or there is nothing to find.
        steps: mean number of steps until the right task was the most probable and stayed so.
        success: share of episodes that ended with success; None where there is no such thing.

    >>> import numpy as np
    >>> from owlrl.experiments.methods import Score
    >>> Score(np.array([1.0, 0.0])).mean
    0.5
    """

    returns: np.ndarray
    found: float | None = None
    steps: float | None = None
    success: float | None = None

    @classmethod
    def of(cls, found: Evaluation) -> Score:
        """The score of episodes; if their true task is known, also whether it was found."""
        share = steps = None
        if found.true_task is not None:
            share = float(found.found.mean())
            steps = float(np.where(found.found, found.steps_to_find, found.lengths).mean())
        success = None if found.success is None else float(found.success.mean())
        return cls(found.returns, share, steps, success)

    @property
    def mean(self) -> float:
        """Mean of the returns."""
        return float(np.mean(self.returns))


class Learned:
    """What a method has learned so far; `compare` trains it task after task and evaluates it.

    Your own method overrides `train`, and `policy` if acting is more than the greedy actions of
    ``model``.

    Attributes:
        modes: the ways in which it can act, by name: "given" the task, with the task "unknown", or any names
            that `policy` or `score` understands. The first one stands in pictures.
        followed: those that are evaluated after each task; all are after the last one. None for all.
        watching: the mode whose learning curve it is; None for the first one.
        together: whether `rows` is given all tasks of a set at once, not one after the other.
        model: the model in training; learning curves ask it.

    >>> from owlrl.experiments.methods import Learned
    >>> Learned().modes
    ('unknown',)
    """

    modes: tuple[str, ...] = (UNKNOWN,)
    followed: tuple[str, ...] | None = None
    watching: str | None = None
    together: bool = False
    model: Any = None

    def train(self, task: str, env: Any, steps: int, watch: Watch | None = None) -> None:
        """Train in ``env`` for ``steps`` steps; ``watch`` is passed on to `train_model`.

        After `load_state_dict`, ``watch.done`` of the steps may have been made before: then the visit
        continues, and preparations before a task have been made.
        """
        raise OwlStateError(f"{type(self).__name__} has no train(task, env, steps, watch)")

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs in another process, as plain data (`model_state` of a model).

        Without it a run that is stopped starts over.
        """
        raise OwlStateError(
            f"{type(self).__name__} has no state_dict() and load_state_dict(state, envs, task)"
        )

    def load_state_dict(self, state_dict: Mapping[str, Any], envs: Envs, task: str) -> None:
        """Continue from what `state_dict` returned, right after `Method.start`.

        Args:
            state_dict: what it gave.
            envs: the environments of the tasks, each as it was; ``envs.fresh(task)`` makes a new one.
            task: the one that is or was trained last; the model continues in ``envs[task]``.
        """
        raise OwlStateError(f"{type(self).__name__} has no load_state_dict(state, envs, task)")

    def numbers(self) -> dict[str, float]:
        """Numbers to watch in training, for TensorBoard; a wrapper's `OwlWrapper.numbers`."""
        return {}

    def policy(self, task: str | None, seed: int) -> EpisodePolicy | None:
        """How it acts, ``task`` being None where it is unknown; None if it cannot act in that task yet."""
        return greedy_policy(self.model)

    def score(self, env: Any, task: str, *, mode: str, episodes: int, seed: int) -> Score | None:
        """Run episodes of ``task`` in ``env``; None if it cannot act there yet."""
        policy = self.policy(task if mode == GIVEN else None, seed)
        if policy is None:
            return None
        return Score.of(run_episodes(policy, as_env(env), episodes=episodes, seed=seed))

    def watched(self, training: str) -> Sequence[str]:
        """The tasks that have a learning curve while ``training`` is trained."""
        return (training,)

    def look(self, env: Any, task: str, *, episodes: int, seed: int) -> Score:
        """A point of the learning curve of a task that is `watched`: the model's greedy actions in it."""
        return Score.of(run_episodes(greedy_policy(self.model), as_env(env), episodes=episodes, seed=seed))

    def rows(self, envs: Mapping[str, Any], *, mode: str, episodes: int, seed: int, last: bool) -> list[Row]:
        """What a trial records of an evaluation of tasks, each in its ``envs``; ``last`` after all training.

        By default what `score` says of each.
        """
        rows = []
        for task, env in envs.items():
            found = self.score(env, task, mode=mode, episodes=episodes, seed=seed)
            if found is not None:
                row = {"kind": "score", "task": task, "mode": mode, "mean_return": found.mean}
                row |= {"returns": found.returns.tolist(), "found": found.found, "steps": found.steps}
                rows.append(row if found.success is None else {**row, "success": found.success})
        return rows

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what acting needs to a file."""
        raise OwlStateError(f"{type(self).__name__} has no save(path)")

    def info(self) -> dict[str, Any]:
        """What a trial records of it as a whole, besides versions and times."""
        return {}
