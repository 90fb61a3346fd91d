"""`interference`: how much tasks contradict each other, seen before any network is trained."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from owlrl.envs._checks import int_problem, real_problem
from owlrl.envs._planning import TIE, action_values, observed_actions
from owlrl.envs._search import Joint, best_policy
from owlrl.envs.table import BoolArray, Table
from owlrl.errors import OwlTypeError, raise_problems

__all__ = ["Interference", "contradiction", "interference"]


@dataclass(frozen=True)
class Interference:
    """How much tasks stand in each other's way.

    ``contradiction`` looks at observations one by one, wherever they occur; ``shared`` looks at what one
    policy achieves. A large contradiction off the way to the goals costs nothing: only ``shared`` well
    below ``separate`` says that one head cannot do.

    Attributes:
        shared_observations: how many observations occur in at least two of the tasks.
        contradiction: the share of these for which no action is optimal in all the tasks that have them.
        separate: for each task, the discounted return of the best memoryless policy of its own.
        shared: for each task, the return of the one memoryless policy that is best for all in the mean.
        solved_separately: how many tasks their own policies solve.
        solved_together: how many the one policy solves.
        exact: whether it is proven that no single memoryless policy has a larger mean return; else
            ``shared`` is the best that a search found.

    >>> from owlrl.envs import Interference
    >>> found = Interference(shared_observations=30, contradiction=0.5, separate=(0.96, 0.96),
    ...                      shared=(0.96, 0.0), solved_separately=2, solved_together=1, exact=True)
    >>> print(found)
    2 tasks share 30 observations, 50% contradictory; one policy solves 1 (exact), own policies 2
    >>> found.best_shared, found.best_separate
    (0.48, 0.96)
    """

    shared_observations: int
    contradiction: float
    separate: tuple[float, ...]
    shared: tuple[float, ...]
    solved_separately: int
    solved_together: int
    exact: bool

    @property
    def best_shared(self) -> float:
        """The mean return of the best single policy."""
        return float(np.mean(self.shared))

    @property
    def best_separate(self) -> float:
        """The mean return when each task has a policy of its own."""
        return float(np.mean(self.separate))

    def __str__(self) -> str:
        return (
            f"{len(self.separate)} tasks share {self.shared_observations} observations, "
            f"{self.contradiction:.0%} contradictory; one policy solves {self.solved_together} "
            f"({'exact' if self.exact else 'best found'}), own policies {self.solved_separately}"
        )


def interference(*tables: Table, gamma: float = 0.99, tries: int = 200, seed: int = 0) -> Interference:
    """How much two or more tabulated tasks contradict each other.

    Optimal actions come from value iteration over states. An action counts as optimal for an observation
    if it is optimal in some state that looks like this, so that only certain contradictions count.

    The best single policy is one action per observation. Where all tasks have the same observations and
    transitions, as those of `CrossroadsEnv`, its mean return is at most the optimum of the task with
    the mean reward, and reaching that proves it best. Otherwise it is at most the mean of the separate
    optima. A search looks for a policy that reaches the bound, and ``exact`` says whether it did.

    Args:
        tables: from `tabulate`, with the same actions and observation space, each with a success that
            can be reached.
        gamma: discount γ.
        tries: how many starts the search has.
        seed: of the search.

    >>> import gymnasium
    >>> from owlrl.envs import interference, tabulate
    >>> left, right = (tabulate(gymnasium.make("owlrl/Crossroads-v0", arms=2, task=k)) for k in range(2))
    >>> print(interference(left, right))
    2 tasks share 28 observations, 100% contradictory; one policy solves 1 (exact), own policies 2
    """
    _check(tables, gamma, tries, seed)
    joint = Joint.of(tables)
    sets = np.zeros((len(tables), joint.num_observations, tables[0].num_actions), dtype=np.bool_)
    for task, (table, rows) in enumerate(zip(joint.tables, joint.rows, strict=True)):
        sets[task, rows] = observed_actions(table, gamma)
    common, share = contradiction(sets)
    alone = [Joint.of([table]) for table in tables]
    own = [j.outcomes(best_policy(j, gamma=gamma, tries=tries, seed=seed), gamma)[0] for j in alone]
    searched = Joint.of([_mean_task(tables)]) if _same_dynamics(tables) else joint
    together = joint.outcomes(best_policy(searched, gamma=gamma, tries=tries, seed=seed), gamma)
    bounds = [float(action_values(table, gamma)[table.start].max()) for table in searched.tables]
    shared = tuple(outcome.value for outcome in together)
    return Interference(
        shared_observations=common,
        contradiction=share,
        separate=tuple(outcome.value for outcome in own),
        shared=shared,
        solved_separately=sum(outcome.solved for outcome in own),
        solved_together=sum(outcome.solved for outcome in together),
        exact=bool(np.mean(shared) >= np.mean(bounds) - TIE),
    )


def contradiction(optimal: BoolArray) -> tuple[int, float]:
    """How many observations several tasks have in common, and for which share of these they disagree.

    Args:
        optimal: (K, N, A), whether an action is optimal for an observation in a task; no action for
            an observation that the task does not have. From tables or from any other source.

    Returns:
        The number of observations that at least two tasks have, and the share of these for which no
        action is optimal in all the tasks that have them (0 if there are none).

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
    has: BoolArray = np.any(optimal, axis=2)  # (K, N)
    common = has.sum(axis=0) >= 2
    agreed = np.any(np.all(optimal | ~has[:, :, None], axis=0), axis=1)  # (N,)
    number = int(common.sum())
    return number, float((common & ~agreed).sum() / number) if number else 0.0


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


def _check(tables: tuple[Table, ...], gamma: object, tries: object, seed: object) -> None:
    odd = [type(table).__name__ for table in tables if not isinstance(table, Table)]
    if odd:
        raise OwlTypeError(f"interference: got {', '.join(odd)}; expected tables, e.g. tabulate(env)")
    found = real_problem("gamma", gamma, least=0, most=0.9999)
    found += int_problem("tries", tries, least=1) + int_problem("seed", seed, least=0)
    if len(tables) < 2:
        found.append(f"got {len(tables)} tables; expected at least 2")
    if len({table.num_actions for table in tables}) > 1:
        found.append(
            f"the tables have {[table.num_actions for table in tables]} actions; expected the same number: "
            "make the levels with the same num_actions="
        )
    if len({(table.observations.shape[1:], table.observations.dtype) for table in tables}) > 1:
        found.append("the tables have observations of different shapes or types; expected the same")
    found += [
        f"{table!r} has no success; expected an action that ends it with a positive reward"
        for table in tables
        if not table.goal.any()
    ]
    raise_problems("interference", found)
