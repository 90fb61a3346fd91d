"""Named settings of the base learners: the paper's, and ours that learn in few frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from torch import nn

from owlrl.errors import raise_problems
from owlrl.learners import FAST, PAPER, SAC_FAST, SAC_PAPER, DQNConfig, GridConv, GridMLP, SACConfig

__all__ = ["DENSE", "PRESETS", "Preset", "with_overrides"]

Trunk = Callable[[], tuple[nn.Module, int]]
Config = TypeVar("Config", DQNConfig, SACConfig)


@dataclass(frozen=True)
class Preset:
    """A base learner and how it is rewarded in training.

    Attributes:
        config: settings of the DQN, for MiniGrid tasks.
        sac: settings of the SAC, for tasks with continuous actions.
        trunk: makes a trunk for MiniGrid images; returns it and its feature size.
        goal_scale: the reward of a success is multiplied by it.
        count_bonus: β of the bonus ``β / √n`` for the n-th visit of a cell, in training only.

    >>> from owlrl.experiments import PRESETS
    >>> PRESETS["paper"].goal_scale, PRESETS["fast"].goal_scale
    (100.0, 1.0)
    """

    config: DQNConfig
    sac: SACConfig
    trunk: Trunk
    goal_scale: float = 1.0
    count_bonus: float = 0.0


# for tasks whose rewards are not rare
DENSE = DQNConfig(
    batch_size=64, n_step=3, update_every=4, epsilon=(1.0, 0.05), epsilon_waits=False, rewarded_share=0.0
)
PRESETS: dict[str, Preset] = {
    "fast": Preset(FAST, SAC_FAST, trunk=lambda: (GridMLP(), 128)),
    # for levels that are none of the learned ones: what it knows of a place holds in others
    "conv": Preset(FAST, SAC_FAST, trunk=lambda: (GridConv(one_hot=True), 200)),
    # where chance hardly ever finds a goal
    "curious": Preset(
        replace(FAST, gamma=0.97, rewarded_above=0.05),
        SAC_FAST,
        trunk=lambda: (GridMLP(), 128),
        count_bonus=0.01,
    ),
    "paper": Preset(PAPER, SAC_PAPER, trunk=lambda: (GridConv(), 200), goal_scale=100.0, count_bonus=1.0),
}


def with_overrides(config: Config, overrides: Mapping[str, Any]) -> Config:
    """The settings with some of them changed; names and kinds are checked.

    >>> from owlrl.experiments.presets import with_overrides
    >>> from owlrl.learners import FAST
    >>> with_overrides(FAST, {"n_step": 3, "epsilon": [1.0, 0.1]}).epsilon
    (1.0, 0.1)
    """
    known = asdict(config)
    problems, changed = [], {}
    for name, value in overrides.items():
        if name not in known:
            problems.append(f"overrides has {name!r}; expected one of {', '.join(known)}")
            continue
        now = known[name]
        value = tuple(value) if isinstance(now, tuple) and isinstance(value, list | tuple) else value
        if isinstance(now, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not type(now) or (isinstance(now, tuple) and len(value) != len(now)):
            problems.append(f"overrides[{name!r}] is {value!r}; expected the like of {now!r}")
        changed[name] = value
    raise_problems("Run", problems)
    return replace(config, **changed)
