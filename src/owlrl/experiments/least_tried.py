"""`LeastTried`: a policy that does not repeat the same action at the same place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from owlrl._arguments import Arguments, kind_of
from owlrl.acting.policy import AdaptivePolicy, TraceStep
from owlrl.errors import OwlTypeError, OwlValueError

__all__ = ["LeastTried"]

IntArray = npt.NDArray[np.int64]


class LeastTried:
    """A policy around another, for levels that no head has learned and goals that have to be reached.

    It counts within an episode how often each action was taken at each observation. The other policy's
    action is taken, unless some action was taken less often there: then it is one of the least tried, the
    one that most heads vote for, ties broken at random. This leads a head out of circles at unknown places.
    On known levels a policy that never visits the same place twice is unchanged.

    It is used like an `AdaptivePolicy`. Actions must be discrete, and the same place must look the same:
    with noisy observations it has no effect.

    Args:
        policy: the other one, e.g. ``owl.policy()``.
        num_actions: how many actions there are to try.
        seed: of the draws.

    >>> import numpy as np, torch
    >>> from torch import nn
    >>> from owlrl import AdaptivePolicy, MultiHeadQ, OracleSelector, QLearner
    >>> from owlrl.experiments.least_tried import LeastTried
    >>> q = MultiHeadQ(nn.Identity(), 3, 3)
    >>> learner = QLearner(q, None, torch.optim.SGD(q.parameters(), 0.1))
    >>> policy = LeastTried(AdaptivePolicy(learner, OracleSelector(0), None, {"only": 0}), 3, seed=0)
    >>> policy.reset()
    >>> wall, actions = np.zeros(3, dtype=np.float32), []
    >>> for _ in range(3):
    ...     actions.append(policy.act(wall))
    ...     policy.observe(wall, actions[-1], 0.0, wall, terminated=False)
    >>> sorted(actions)
    [0, 1, 2]
    """

    def __init__(self, policy: AdaptivePolicy, num_actions: int, *, seed: int | None = None) -> None:
        if not isinstance(policy, AdaptivePolicy):
            raise OwlTypeError(
                f"LeastTried: policy is {kind_of(policy)}; expected an AdaptivePolicy, such as owl.policy()"
            )
        arguments = Arguments("LeastTried")
        self.num_actions: int = arguments.integer("num_actions", num_actions)
        seed = arguments.integer("seed", seed, least=0, none=True)
        arguments.check()
        self.policy = policy
        self._generator = np.random.default_rng(seed)
        self._tried: list[dict[bytes, IntArray]] = []  # of each environment, by observation

    @property
    def tasks(self) -> list[str]:
        """The arms: names of the tasks whose heads may act."""
        return self.policy.tasks

    @property
    def probabilities(self) -> np.ndarray:
        """How likely each task is to be chosen next, (n,) or (E, n)."""
        return self.policy.probabilities

    @property
    def arm(self) -> int | np.ndarray:
        """The head that the other policy chose last."""
        return self.policy.arm

    @property
    def trace(self) -> list[TraceStep]:
        """The other policy's trace, whether or not its actions were taken."""
        return self.policy.trace

    def reset(
        self, *, num_envs: int | None = None, keep_evidence: bool = False, mask: np.ndarray | None = None
    ) -> None:
        """Start an episode; what was tried is forgotten, even where evidence is kept."""
        self.policy.reset(num_envs=num_envs, keep_evidence=keep_evidence, mask=mask)
        if mask is None:
            self._tried = [{} for _ in range(self.policy.num_envs or 1)]
        else:
            for env in np.flatnonzero(mask):
                self._tried[env] = {}

    def act(self, observation: Any) -> Any:
        """What the other policy would do, or another of the actions tried least here."""
        actions = self._discrete(self.policy.act(observation))
        counts = np.array(self._counts(observation))
        fewest = counts == counts.min(axis=1, keepdims=True)
        again = np.flatnonzero(~fewest[np.arange(len(actions)), actions])
        if len(again):
            votes = self.policy.proposals(observation, again)[..., None] == np.arange(self.num_actions)
            liking = votes.sum(axis=1) + self._generator.random((len(again), self.num_actions))
            actions[again] = np.where(fewest[again], liking, -1.0).argmax(axis=1)
        return actions if self.policy.num_envs is not None else int(actions[0])

    def observe(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        terminated: Any,
        *,
        mask: np.ndarray | None = None,
    ) -> None:
        """Process what the last action led to, and count it."""
        actions = self._discrete(action)
        self.policy.observe(observation, action, reward, next_observation, terminated, mask=mask)
        marked = np.ones(len(actions), dtype=np.bool_) if mask is None else mask
        for counts, taken, one in zip(self._counts(observation), actions, marked, strict=True):
            counts[taken] += one

    def __repr__(self) -> str:
        return f"LeastTried({self.policy!r}, num_actions={self.num_actions})"

    def _discrete(self, action: Any) -> IntArray:
        """Actions (E,), as a new array."""
        actions = np.atleast_1d(np.array(action))
        fits = actions.dtype.kind in "iu" and actions.ndim == 1
        if not fits or ((actions < 0) | (actions >= self.num_actions)).any():
            raise OwlValueError(
                f"LeastTried: the action is {action!r}; expected one of {self.num_actions} discrete actions, "
                "0 and up; pass num_actions=env.action_space.n"
            )
        return actions.astype(np.int64)

    def _counts(self, observation: Any) -> list[IntArray]:
        """How often each action was taken at what each environment shows now; to be counted up in place."""
        parts = (
            [observation[key] for key in sorted(observation)]
            if isinstance(observation, Mapping)
            else [observation]
        )
        one = self.policy.num_envs is None
        arrays = [np.asarray(part)[None] if one else np.asarray(part) for part in parts]
        keys = (b"".join(array[env].tobytes() for array in arrays) for env in range(len(self._tried)))
        none = np.zeros(self.num_actions, dtype=np.int64)
        return [tried.setdefault(key, none.copy()) for tried, key in zip(self._tried, keys, strict=True)]
