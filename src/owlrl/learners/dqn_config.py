"""Settings of the reference DQN."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import Literal

from owlrl.errors import int_problem, raise_problems
from owlrl.replay import RewardBalancedSampler, Sampler, UniformSampler

__all__ = ["FAST", "PAPER", "DQNConfig"]

COUNTS = (
    "batch_size",
    "n_step",
    "update_every",
    "target_every",
    "epsilon_frames",
    "buffer_size",
    "rewarded_reach",
)


@dataclass(frozen=True)
class DQNConfig:
    """Settings of a `DQN`; `FAST` and `PAPER` are two of them.

    The paper's network is no setting but a trunk:
    ``DQN(env, config=PAPER, trunk=GridConv(), feature_dim=200)``.

    Attributes:
        learning_rate: Adam's step size.
        batch_size: rows per update.
        gamma: discount of one step.
        n_step: rewards summed before the bootstrap.
        double: double-Q targets.
        dueling: value and advantage streams.
        update_every: frames per update, over all environments together.
        learning_starts: random frames before the first update in each environment.
        target_rate: how far the target moves towards the network at each target update; 1 copies.
        target_every: updates between target updates.
        epsilon: exploration at the start and in the end.
        epsilon_frames: frames from one to the other (see `EpsilonSchedule`).
        epsilon_shape: "linear" or "exponential".
        epsilon_waits: exploration begins to fall with the first reward: before, there is nothing to exploit.
        max_grad_norm: gradients are clipped to this norm.
        buffer_size: rows of the replay.
        rewarded_share: share of each batch drawn from rows that saw a reward; 0 draws uniformly.
        rewarded_above: rewards up to this size do not count there: an exploration bonus is on every row.
        rewarded_reach: how many steps before such a reward are drawn from.
        hand_over: at the end of ``learn`` the network takes on the target's weights: the average
            of the last iterates holds what single iterates lose and find again.

    >>> from owlrl.learners import FAST, PAPER
    >>> FAST.n_step, PAPER.batch_size
    (5, 32)
    """

    learning_rate: float = 5e-4
    batch_size: int = 128
    gamma: float = 0.99
    n_step: int = 5
    double: bool = True
    dueling: bool = False
    update_every: int = 32
    learning_starts: int = 1_000
    target_rate: float = 0.02
    target_every: int = 1
    epsilon: tuple[float, float] = (1.0, 0.2)
    epsilon_frames: int = 50_000
    epsilon_shape: Literal["linear", "exponential"] = "linear"
    epsilon_waits: bool = True
    max_grad_norm: float = 10.0
    buffer_size: int = 200_000
    rewarded_share: float = 0.125
    rewarded_above: float = 0.0
    rewarded_reach: int = 30
    hand_over: bool = True

    def __post_init__(self) -> None:
        problems = [p for name in COUNTS if (p := int_problem(name, getattr(self, name)))]
        if problem := int_problem("learning_starts", self.learning_starts, least=0):
            problems.append(problem)
        if not problems and self.buffer_size < self.batch_size:
            problems.append(
                f"buffer_size is {self.buffer_size}; expected room for a batch of {self.batch_size} at least"
            )
        above = {"learning_rate": sys.float_info.max, "max_grad_norm": math.inf, "target_rate": 1.0}
        problems += [
            f"{name} is {value!r}; expected a number > 0" + (", at most 1" if most == 1.0 else "")
            for name, most in above.items()
            if not (_is_number(value := getattr(self, name)) and 0 < value <= most)
        ]
        if not _is_number(self.rewarded_above) or not 0 <= self.rewarded_above < math.inf:
            problems.append(f"rewarded_above is {self.rewarded_above!r}; expected a finite number >= 0")
        problems += [
            f"{name} is {value!r}; expected a number from 0 to 1"
            for name in ("gamma", "rewarded_share")
            if not _is_share(value := getattr(self, name))
        ]
        pair = self.epsilon
        if not (isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_share, pair))):
            problems.append(f"epsilon is {pair!r}; expected a pair of numbers from 0 to 1, e.g. (1.0, 0.1)")
        if self.epsilon_shape not in ("linear", "exponential"):
            problems.append(f"epsilon_shape is {self.epsilon_shape!r}; expected 'linear' or 'exponential'")
        raise_problems("DQNConfig", problems)

    @property
    def sampler(self) -> Sampler:
        """How the replay draws."""
        if not self.rewarded_share:
            return UniformSampler()
        above, reach = self.rewarded_above, self.rewarded_reach
        return RewardBalancedSampler(self.rewarded_share, above=above, reach=reach)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_share(value: object) -> bool:
    return _is_number(value) and 0 <= value <= 1  # type: ignore[operator]  # a number by now


FAST = DQNConfig()

PAPER = DQNConfig(
    learning_rate=6.25e-5,
    batch_size=32,
    n_step=1,
    dueling=True,
    update_every=4,
    learning_starts=10_000,
    target_rate=1.0,
    target_every=80,
    epsilon=(0.9, 0.01),
    epsilon_frames=250_000,
    epsilon_shape="exponential",
    epsilon_waits=False,
    buffer_size=1_000_000,
    rewarded_share=0.0,
    hand_over=False,
)
