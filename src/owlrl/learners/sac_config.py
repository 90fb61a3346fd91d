"""Settings of the reference SAC."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from owlrl.errors import int_problem, raise_problems

__all__ = ["SAC_FAST", "SAC_PAPER", "SACConfig"]


@dataclass(frozen=True)
class SACConfig:
    """Settings of a `SAC`; `SAC_FAST` and `SAC_PAPER` are two of them.

    Attributes:
        learning_rate: Adam's step size, of policy, critics and log α.
        batch_size: rows per update.
        gamma: discount of one step.
        actor_hidden: sizes of the policy's trunk.
        critic_hidden: sizes of each critic's trunk.
        num_critics: critics in the ensemble; the least of their means is bootstrapped from.
        log_std: bounds of the policy's log standard deviation.
        log_variance: bounds of a critic's log-variance.
        mean_loss: what a critic's mean and trunk are trained by. "likelihood" is the paper's, and pulls
            least where it is wrong most; with "squared" errors the likelihood trains the variance's
            outputs alone.
        update_every: frames per update, over all environments together.
        learning_starts: rows in the replay before the first update; until then actions are random.
        target_rate: how far the target critics move towards the critics at each update.
        hand_over: at the end of ``learn`` the policy takes on the average of about the last tenth of its
            iterates, which holds what single ones lose and find again.
        initial_alpha: α at the start.
        target_entropy: what α is learned for; None is −dim(A).
        buffer_size: rows of the replay.

    >>> from owlrl.learners import SAC_FAST, SAC_PAPER
    >>> SAC_FAST.num_critics, SAC_PAPER.target_rate
    (2, 0.01)
    """

    learning_rate: float = 1e-3
    batch_size: int = 256
    gamma: float = 0.99
    actor_hidden: tuple[int, ...] = (64, 64)
    critic_hidden: tuple[int, ...] = (64, 64)
    num_critics: int = 2
    log_std: tuple[float, float] = (-10.0, 2.0)
    log_variance: tuple[float, float] = (-10.0, 20.0)
    mean_loss: Literal["squared", "likelihood"] = "squared"
    update_every: int = 1
    learning_starts: int = 500
    target_rate: float = 0.005
    hand_over: bool = True
    initial_alpha: float = 1.0
    target_entropy: float | None = None
    buffer_size: int = 200_000

    def __post_init__(self) -> None:
        counts = ("batch_size", "num_critics", "update_every", "buffer_size")
        problems = [p for name in counts if (p := int_problem(name, getattr(self, name)))]
        for name in ("actor_hidden", "critic_hidden"):
            if not getattr(self, name):
                problems.append(f"{name} is empty; expected the size of at least one layer")
        for name in ("log_std", "log_variance"):
            low, high = getattr(self, name)
            if not low < high:
                problems.append(f"{name} is {(low, high)}; expected (low, high) with low < high")
        if not 0 < self.learning_rate < math.inf:
            problems.append(f"learning_rate is {self.learning_rate!r}; expected a finite number > 0")
        if not 0 < self.target_rate <= 1:
            problems.append(f"target_rate is {self.target_rate!r}; expected a number above 0, at most 1")
        if not 0 <= self.gamma <= 1:
            problems.append(f"gamma is {self.gamma!r}; expected a number from 0 to 1")
        if self.mean_loss not in ("squared", "likelihood"):
            problems.append(f"mean_loss is {self.mean_loss!r}; expected 'squared' or 'likelihood'")
        if not self.initial_alpha > 0:
            problems.append(f"initial_alpha is {self.initial_alpha!r}; expected a number > 0")
        # a ring of one-step episodes holds a transition in every other frame
        if 2 * self.learning_starts > self.buffer_size:
            problems.append(
                f"learning_starts is {self.learning_starts}; expected at most half of buffer_size, "
                f"{self.buffer_size}"
            )
        raise_problems("SACConfig", problems)


SAC_FAST = SACConfig()

SAC_PAPER = SACConfig(
    learning_rate=3e-4,
    actor_hidden=(200, 200, 200),
    critic_hidden=(200, 200, 200, 200),
    mean_loss="likelihood",
    target_rate=0.01,
    hand_over=False,
    buffer_size=1_000_000,
)
