"""Settings of the reference learners: fast ones, and the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from owlrl._arguments import Arguments
from owlrl.replay import RewardBalancedSampler, Sampler, UniformSampler

__all__ = ["FAST", "PAPER", "SAC_FAST", "SAC_PAPER", "DQNConfig", "SACConfig"]


@dataclass(frozen=True)
class DQNConfig:
    """Settings of a `DQN`; `FAST` and `PAPER` are two of them.

    The paper's network is not a setting but a trunk:
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
        epsilon_waits: exploration starts to decay at the first reward: before, there is nothing to exploit.
        max_grad_norm: gradients are clipped to this norm.
        buffer_size: rows of the replay.
        rewarded_share: share of each batch drawn from rows that saw a reward; 0 draws uniformly.
        rewarded_above: rewards up to this size do not count there: an exploration bonus is on every row.
        rewarded_reach: how many steps before such a reward are drawn from.
        hand_over: ``predict`` acts with the target's weights, and the network takes them over when the task
            ends: the average of the last iterates is more stable than single iterates.

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
        check = _Checks("DQNConfig", self)
        check.counts("batch_size", "n_step", "update_every", "target_every", "epsilon_frames")
        check.counts("buffer_size", "rewarded_reach")
        check.counts("learning_starts", least=0)
        if not check.problems and self.buffer_size < self.batch_size:
            check.problem(
                f"buffer_size is {self.buffer_size}; expected room for a batch of {self.batch_size} at least"
            )
        check.numbers("learning_rate", "max_grad_norm", above=0.0)
        check.numbers("target_rate", above=0.0, most=1.0)
        check.numbers("rewarded_above", least=0.0)
        check.numbers("gamma", "rewarded_share", least=0.0, most=1.0)
        check.pair("epsilon", least=0.0, most=1.0)
        check.choice("epsilon_shape", self.epsilon_shape, ["linear", "exponential"])
        check.flags("double", "dueling", "epsilon_waits", "hand_over")
        check.check()

    @property
    def sampler(self) -> Sampler:
        """How the replay draws."""
        if not self.rewarded_share:
            return UniformSampler()
        above, reach = self.rewarded_above, self.rewarded_reach
        return RewardBalancedSampler(self.rewarded_share, above=above, reach=reach)


@dataclass(frozen=True)
class SACConfig:
    """Settings of a `SAC`; `SAC_FAST` and `SAC_PAPER` are two of them.

    Attributes:
        learning_rate: Adam's step size, of policy, critics and log α.
        batch_size: rows per update.
        gamma: discount of one step.
        actor_hidden: sizes of the policy's trunk.
        critic_hidden: sizes of each critic's trunk.
        num_critics: critics in the ensemble; targets use the minimum of their means.
        log_std: bounds of the policy's log standard deviation.
        log_variance: bounds of a critic's log-variance.
        mean_loss: the loss of a critic's mean and trunk. "likelihood" is the paper's, with the smallest
            gradient where it is most wrong; with "squared" errors the likelihood trains the variance's
            outputs alone.
        update_every: frames per update, over all environments together.
        learning_starts: random frames before the first update in each environment.
        target_rate: how far the target critics move towards the critics at each update.
        hand_over: ``predict`` acts with the average of about the last tenth of the policy's iterates, and the
            policy takes it over when the task ends: it is more stable than single iterates.
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
        check = _Checks("SACConfig", self)
        check.counts("batch_size", "num_critics", "update_every", "buffer_size")
        check.counts("learning_starts", least=0)
        # a ring of one-step episodes holds a transition in every other frame
        if not check.problems and 2 * self.learning_starts > self.buffer_size:
            check.problem(
                f"learning_starts is {self.learning_starts}; expected at most half of buffer_size, "
                f"{self.buffer_size}"
            )
        for name in ("actor_hidden", "critic_hidden"):
            sizes = getattr(self, name)
            if not isinstance(sizes, tuple | list) or not sizes:
                check.problem(f"{name} is {sizes!r}; expected the sizes of one or more layers, e.g. (64, 64)")
                continue
            check.store(name, tuple(check.integer(f"{name}[{k}]", size) for k, size in enumerate(sizes)))
        for name in ("log_std", "log_variance"):
            check.pair(name, rising=True)
        check.numbers("learning_rate", "initial_alpha", above=0.0)
        check.numbers("target_rate", above=0.0, most=1.0)
        check.numbers("gamma", least=0.0, most=1.0)
        check.numbers("target_entropy", none=True)
        check.choice("mean_loss", self.mean_loss, ["squared", "likelihood"])
        check.flags("hand_over")
        check.check()


class _Checks(Arguments):
    """Checks settings by name, and stores numpy numbers as plain ones."""

    def __init__(self, where: str, settings: Any) -> None:
        super().__init__(where)
        self._settings = settings

    def counts(self, *names: str, least: int = 1) -> None:
        """Ints of at least ``least``."""
        for name in names:
            self.store(name, self.integer(name, getattr(self._settings, name), least=least))

    def numbers(self, *names: str, **bounds: Any) -> None:
        """Numbers within bounds."""
        for name in names:
            self.store(name, self.number(name, getattr(self._settings, name), **bounds))

    def flags(self, *names: str) -> None:
        """True or False."""
        for name in names:
            self.store(name, self.boolean(name, getattr(self._settings, name)))

    def pair(self, name: str, *, rising: bool = False, **bounds: Any) -> None:
        """Two numbers within bounds; ``rising``: the first is smaller."""
        pair = getattr(self._settings, name)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            self.problem(f"{name} is {pair!r}; expected a pair of numbers")
            return
        found = len(self.problems)
        low, high = (self.number(f"{name}[{k}]", value, **bounds) for k, value in enumerate(pair))
        if rising and len(self.problems) == found and not low < high:
            self.problem(f"{name} is {pair!r}; expected (low, high) with low < high")
        self.store(name, (low, high))

    def store(self, name: str, value: Any) -> None:
        """Put the plain value in place."""
        object.__setattr__(self._settings, name, value)  # the settings are frozen


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
