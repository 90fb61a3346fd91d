"""How much tasks contradict each other: from tables before any training, or from trained heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from owlrl._arguments import Arguments, kind_of
from owlrl.envs.planning import TIE, Joint, action_values, best_policy, observed_actions
from owlrl.envs.table import Table
from owlrl.envs.vector import BoolArray, FloatArray
from owlrl.errors import NonFiniteError, OwlTypeError, OwlValueError
from owlrl.heads.modes import eval_mode
from owlrl.types import Transitions
from owlrl.wrapper import OwlWrapper

__all__ = [
    "Interference",
    "InterferenceEstimate",
    "contradiction",
    "estimate_interference",
    "interference",
]


@dataclass(frozen=True)
class Interference:
    """How much tasks contradict each other, and what one policy for all loses.

    ``contradiction`` counts observations wherever they occur; off the way to the goals they cost nothing.
    Only ``shared`` well below ``separate`` shows that one head is not enough.

    Attributes:
        shared_observations: how many observations occur in at least two of the tasks.
        contradiction: the share of these for which no action is optimal in all the tasks that have them.
        separate: for each task, the discounted return of the best memoryless policy for it alone.
        shared: for each task, the return of the one memoryless policy that is best for all in the mean.
        solved_separately: how many tasks their separate policies solve.
        solved_together: how many the one policy solves.
        exact: whether it is proven that no single memoryless policy has a larger mean return; else
            ``shared`` is the best that a search found.
        optimal: for each task, the return of the best policy that sees the state.
        bound: no single policy that does not see rewards has a larger mean return than this.

    >>> from owlrl.envs import Interference
    >>> found = Interference(shared_observations=30, contradiction=0.5, separate=(0.96, 0.96),
    ...                      shared=(0.96, 0.0), solved_separately=2, solved_together=1, exact=True,
    ...                      optimal=(0.96, 0.96), bound=0.48)
    >>> found.best_shared, found.best_separate, found.lost, found.proven
    (0.48, 0.96, (0.0, 0.96), True)
    """

    shared_observations: int
    contradiction: float
    separate: tuple[float, ...]
    shared: tuple[float, ...]
    solved_separately: int
    solved_together: int
    exact: bool
    optimal: tuple[float, ...] = ()
    bound: float = math.inf

    @property
    def best_shared(self) -> float:
        """The mean return of the best single policy."""
        return float(np.mean(self.shared))

    @property
    def best_separate(self) -> float:
        """The mean return when each task has a separate policy."""
        return float(np.mean(self.separate))

    @property
    def lost(self) -> tuple[float, ...]:
        """For each task, the return that it loses when one policy serves all."""
        return tuple(alone - shared for alone, shared in zip(self.separate, self.shared, strict=True))

    @property
    def proven(self) -> bool:
        """Whether it is proven that one policy costs return: the bound is below the separate policies."""
        return self.bound < self.best_separate - TIE

    def __str__(self) -> str:
        return (
            f"{len(self.separate)} tasks share {self.shared_observations} observations, "
            f"{self.contradiction:.0%} contradictory; one policy solves {self.solved_together} "
            f"({'exact' if self.exact else 'best found'}), own policies {self.solved_separately}; "
            f"mean return {self.best_shared:.3g} instead of {self.best_separate:.3g}"
        )


def interference(*tables: Table, gamma: float = 0.99, tries: int = 200, seed: int = 0) -> Interference:
    """How much two or more tabulated tasks contradict each other, in optimal actions and in return.

    An action counts as optimal for an observation if it is optimal (by value iteration) in some state with
    that observation, so that only certain contradictions count.

    The best single policy is one action per observation. Where all tasks have the same observations and
    transitions, as those of `CrossroadsEnv`, its mean return is at most the optimum of the task with the
    mean reward, otherwise at most the mean of the separate optima. A search looks for a policy that reaches
    the bound, and ``exact`` says whether it did.

    Args:
        tables: from `tabulate`, with the same actions and observation space.
        gamma: discount γ.
        tries: how many starts the search has.
        seed: of the search.

    >>> import gymnasium
    >>> from owlrl.envs import interference, tabulate
    >>> left, right = (tabulate(gymnasium.make("owlrl/Crossroads-v0", arms=2, task=k)) for k in range(2))
    >>> print(interference(left, right))  # doctest: +NORMALIZE_WHITESPACE
    2 tasks share 28 observations, 100% contradictory; one policy solves 1 (exact), own policies 2;
    mean return 0.48 instead of 0.961
    """
    tries, seed = _check(tables, gamma, tries, seed)
    joint = Joint.of(tables)
    sets = np.zeros((len(tables), joint.num_observations, tables[0].num_actions), dtype=np.bool_)
    for task, (table, rows) in enumerate(zip(joint.tables, joint.rows, strict=True)):
        sets[task, rows] = observed_actions(table, gamma)
    common, share = contradiction(sets)
    alone = [Joint.of([table]) for table in tables]
    separate = [j.outcomes(best_policy(j, gamma=gamma, tries=tries, seed=seed), gamma)[0] for j in alone]
    searched = Joint.of([_mean_task(tables)]) if _same_dynamics(tables) else joint
    together = joint.outcomes(best_policy(searched, gamma=gamma, tries=tries, seed=seed), gamma)
    bound = float(np.mean([_optimum(table, gamma) for table in searched.tables]))
    shared = tuple(outcome.value for outcome in together)
    return Interference(
        shared_observations=common,
        contradiction=share,
        separate=tuple(outcome.value for outcome in separate),
        shared=shared,
        solved_separately=sum(outcome.solved for outcome in separate),
        solved_together=sum(outcome.solved for outcome in together),
        exact=bool(np.mean(shared) >= bound - TIE),
        optimal=tuple(_optimum(table, gamma) for table in tables),
        bound=bound,
    )


def _optimum(table: Table, gamma: float) -> float:
    return float(action_values(table, gamma)[table.start].max())


def contradiction(optimal: BoolArray) -> tuple[int, float]:
    """How many observations several tasks have in common, and for which share of these they disagree.

    Args:
        optimal: (K, N, A), whether an action is optimal for an observation in a task; no action for
            an observation that the task does not have. From tables or from any other source.

    >>> import numpy as np
    >>> from owlrl.envs import contradiction
    >>> contradiction(np.array([[[1, 0], [1, 1], [1, 0]], [[0, 1], [0, 1], [0, 0]]], dtype=bool))
    (2, 0.5)
    """
    optimal = np.asarray(optimal)
    if optimal.dtype != np.bool_ or optimal.ndim != 3:
        raise OwlTypeError(
            f"contradiction: optimal is {optimal.dtype} of shape {optimal.shape}; expected bool (K, N, A)"
        )
    common, disagree = _disagree(optimal)
    number = int(common.sum())
    return number, float((common & disagree).sum() / number) if number else 0.0


def _disagree(optimal: BoolArray) -> tuple[BoolArray, BoolArray]:
    """(N,) which observations at least two tasks have, and where no action suits all that have them."""
    has: BoolArray = np.any(optimal, axis=2)  # (K, N)
    agreed: BoolArray = np.any(np.all(optimal | ~has[:, :, None], axis=0), axis=1)
    return has.sum(axis=0) >= 2, ~agreed


def _same_dynamics(tables: tuple[Table, ...]) -> bool:
    """Whether observations and transitions are the same in all tasks, state for state."""
    first, *others = tables
    return all(
        table.start == first.start
        and np.array_equal(table.next_state, first.next_state)
        and np.array_equal(table.terminated, first.terminated)
        and np.array_equal(table.obs_index, first.obs_index)
        and np.array_equal(table.observations, first.observations)
        for table in others
    )


def _mean_task(tables: tuple[Table, ...]) -> Table:
    """The task whose return is, for any policy, the mean of its returns in tasks of the same dynamics."""
    reward = np.mean([table.reward for table in tables], axis=0)
    goal = np.any([table.goal for table in tables], axis=0)
    return replace(tables[0], reward=reward, goal=goal, goal_reward=None)


def _check(tables: tuple[Table, ...], gamma: object, tries: object, seed: object) -> tuple[int, int]:
    odd = [type(table).__name__ for table in tables if not isinstance(table, Table)]
    if odd:
        raise OwlTypeError(f"interference: got {', '.join(odd)}; expected tables, e.g. tabulate(env)")
    arguments = Arguments("interference")
    arguments.number("gamma", gamma, least=0, most=0.9999)
    checked = arguments.integer("tries", tries), arguments.integer("seed", seed, least=0)
    if len(tables) < 2:
        arguments.problem(f"got {len(tables)} tables; expected at least 2")
    if len({table.num_actions for table in tables}) > 1:
        arguments.problem(
            f"the tables have {[table.num_actions for table in tables]} actions; expected the same number: "
            "make the levels with the same num_actions="
        )
    if len({(table.observations.shape[1:], table.observations.dtype) for table in tables}) > 1:
        arguments.problem("the tables have observations of different shapes or types; expected the same")
    arguments.check()
    return checked


@dataclass(frozen=True)
class InterferenceEstimate:
    """How much trained heads contradict each other, from `estimate_interference`.

    ``float(estimate)`` is the contradiction.

    Attributes:
        contradiction: the share of observations for which the heads have no good action in common.
        separate: for each task, the mean value that its head gives its best action.
        shared: for each task, the mean value that its head gives the action that is best for all heads
            in the mean: what is left of the return if this one action is shared, and the rest of the
            episode is not.

    >>> from owlrl.envs import InterferenceEstimate
    >>> found = InterferenceEstimate(contradiction=0.5, separate=(1.0, 1.0), shared=(1.0, 0.2))
    >>> float(found), found.lost
    (0.5, (0.0, 0.8))
    """

    contradiction: float
    separate: tuple[float, ...]
    shared: tuple[float, ...]

    @property
    def lost(self) -> tuple[float, ...]:
        """For each task, the value that it loses by one shared action; in the mean a policy loses no less."""
        return tuple(alone - shared for alone, shared in zip(self.separate, self.shared, strict=True))

    def __float__(self) -> float:
        return self.contradiction


def estimate_interference(
    owl: OwlWrapper,
    rows: Transitions | Sequence[Transitions] | npt.ArrayLike,
    *,
    tasks: Sequence[str] | None = None,
    tolerance: float = 0.005,
) -> InterferenceEstimate:
    """How much the heads of the learned tasks contradict each other, for tasks without a table.

    Like `interference`, but with trained heads instead of tables: an estimate, as good as their values. An
    action is good for a head if its value is within ``tolerance`` of the best, relative to the best:
    at a discount of 0.99 a wasted step costs a hundredth.

    Args:
        owl: has learned the tasks, with a Q-network (discrete actions).
        rows: where to look: rows of a replay (or several such batches, one per task; their weights count),
            or an array of observations (N, ...). Observations that occur in one task only do not count.
        tasks: which of the learned tasks are compared; all by default.
        tolerance: how much worse than the best a good action may be.

    >>> import numpy as np, torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, OwlWrapper, QLearner, TaskScopedReplay
    >>> from owlrl.envs import estimate_interference
    >>> q = MultiHeadQ(nn.Linear(2, 8), 8, 3)
    >>> replay = TaskScopedReplay(100, observation_shape=(2,), observation_dtype=np.float32)
    >>> owl = OwlWrapper(QLearner(q, None, torch.optim.SGD(q.parameters(), 0.1), replay=replay))
    >>> for task, action in (("left", 0), ("right", 2)):
    ...     with owl.task(task) as record, torch.no_grad():
    ...         replay.add(np.ones(2, np.float32), action, 1.0, np.ones(2, np.float32), True, False)
    ...         _ = q.heads[record.head].bias[action].add_(100.0)  # as if it had learned that this pays
    >>> estimate_interference(owl, np.ones((4, 2), np.float32)).contradiction
    1.0
    """
    where, learned = "estimate_interference", [name for name, record in owl.tasks.items() if record.visits]
    chosen = learned if tasks is None else list(tasks)
    arguments = Arguments(where)
    arguments.number("tolerance", tolerance, least=0, most=1)
    for name in chosen:
        if name not in learned:
            arguments.problem(f"task {name!r} has not been learned; learned are {learned}")
    if len(set(chosen)) < 2:
        arguments.problem(f"got the tasks {chosen}; expected at least 2 different ones")
    arguments.check()
    networks = owl.learner.networks
    if list(networks) != ["q"]:
        raise OwlTypeError(
            f"{where}: the learner has the networks {list(networks)}; expected a Q-network alone"
        )
    observations, weight = _observations(rows)
    heads = [owl.tasks[name].head for name in chosen]
    with torch.no_grad(), eval_mode(networks["q"].module):
        answers = networks["q"].all_heads(owl.learner.prepare(observations))[heads]
    values: FloatArray = answers.cpu().double().numpy()  # (K, N, A)
    if not np.isfinite(values).all():
        raise NonFiniteError(
            f"{where}: some of the values are NaN or infinite; expected finite observations and heads"
        )
    best = values.max(axis=2, keepdims=True)
    disagree = _disagree(values >= best - tolerance * np.abs(best))[1]
    common = values.mean(axis=0).argmax(axis=1)  # (N,)
    left = np.take_along_axis(values, common[None, :, None], axis=2)
    return InterferenceEstimate(
        contradiction=float(np.average(disagree, weights=weight)),
        separate=tuple(np.average(best[:, :, 0], axis=1, weights=weight).tolist()),
        shared=tuple(np.average(left[:, :, 0], axis=1, weights=weight).tolist()),
    )


def _observations(rows: Any) -> tuple[torch.Tensor, FloatArray]:
    """Observations (N, ...) and their weights (N,)."""
    batches = [rows] if isinstance(rows, Transitions) else rows
    if isinstance(batches, Sequence) and all(isinstance(batch, Transitions) for batch in batches):
        weights = [torch.ones(len(b)) if b.weight is None else b.weight for b in batches]
        found = torch.cat([batch.observation for batch in batches]) if batches else torch.zeros(0)
        weight = torch.cat(weights) if batches else torch.zeros(0)
    else:
        try:
            found = torch.as_tensor(np.asarray(rows))
        except (TypeError, ValueError) as error:  # rows of tuples, say
            raise OwlTypeError(
                f"estimate_interference: rows is {kind_of(rows)}, which is no array of observations "
                f"({error}); expected Transitions, e.g. owl.memory[task].rows() for each task, "
                "or observations"
            ) from error
        weight = torch.ones(len(found) if found.ndim else 0)
    if found.ndim < 2 or not len(found):
        raise OwlValueError(
            f"estimate_interference: observations have shape {tuple(found.shape)}; expected a batch (N, ...)"
        )
    return found, weight.cpu().double().numpy()
