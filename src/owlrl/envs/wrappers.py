"""Reward wrappers for training; evaluate without them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

import gymnasium
from gymnasium.utils import RecordConstructorArgs
from minigrid.minigrid_env import MiniGridEnv

from owlrl.envs._checks import real_problem
from owlrl.envs._states import AnyEnv, position
from owlrl.envs.tabulated import TabulatedEnv
from owlrl.errors import OwlTypeError, raise_problems

__all__ = ["CountBonus", "ScaleGoalReward"]

AnyWrapper = gymnasium.Wrapper[Any, Any, Any, Any]
AnyStep = tuple[Any, float, bool, bool, dict[str, Any]]


class CountBonus(AnyWrapper, RecordConstructorArgs):
    """Adds ``β / √n`` to every reward, n being how often the agent has entered its present cell so far.

    Counts go on over episodes. They are no part of the environment's state: tabulate the
    environment without it, and give `TabulatedVectorEnv` its ``count_bonus``.

    Args:
        env: a MiniGrid environment, a `TabulatedEnv`, or any other with a ``cell``.
        scale: β.
        cell: tells where the agent is; None for the agent's position in the grid.

    >>> import gymnasium
    >>> from owlrl.envs import CountBonus
    >>> env = CountBonus(gymnasium.make("owlrl/SimpleCrossing-v0", level=3), scale=0.5)
    >>> _ = env.reset()
    >>> [env.step(0)[1] for _ in range(4)]  # turning on the spot
    [0.5, 0.35355339059327373, 0.2886751345948129, 0.25]
    """

    def __init__(
        self, env: AnyEnv, scale: float = 1.0, *, cell: Callable[[AnyEnv], Hashable] | None = None
    ) -> None:
        raise_problems("CountBonus", real_problem("scale", scale, least=0))
        if cell is None and not isinstance(env.unwrapped, MiniGridEnv | TabulatedEnv):
            raise OwlTypeError(
                f"CountBonus: env is a {type(env.unwrapped).__name__} and cell is None; expected a MiniGrid "
                "environment, or cell=, a function of the environment that tells where the agent is"
            )
        RecordConstructorArgs.__init__(self, scale=scale, cell=cell)
        gymnasium.Wrapper.__init__(self, env)
        self.scale = scale
        self.cell = cell
        self._visits: Counter[Hashable] = Counter()

    def step(self, action: Any) -> AnyStep:
        """Step, and add the bonus of the cell that the agent is in then."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        place = (self.cell or _cell)(self.env)
        self._visits[place] += 1
        bonus = self.scale / math.sqrt(self._visits[place])
        return observation, float(reward) + bonus, terminated, truncated, info


def _cell(env: AnyEnv) -> Hashable:
    base = env.unwrapped
    if isinstance(base, TabulatedEnv):
        return int(base.table.cell[base.state])
    assert isinstance(base, MiniGridEnv)
    return position(base)


class ScaleGoalReward(AnyWrapper, RecordConstructorArgs):
    """Multiplies the reward of a success: a positive one that ends the episode.

    The paper trains its MiniGrid agents with a hundredfold reward, beside a count bonus. It
    can be tabulated: ``tabulate(ScaleGoalReward(env))``.

    Args:
        env: any environment.
        factor: what to multiply by.

    >>> import gymnasium
    >>> from owlrl.envs import ScaleGoalReward
    >>> env = ScaleGoalReward(gymnasium.make("owlrl/Crossroads-v0", arms=2, length=1), factor=100.0)
    >>> _ = env.reset()
    >>> [env.step(action)[1] for action in (1, 2)]
    [0.0, 100.0]
    """

    def __init__(self, env: AnyEnv, factor: float = 100.0) -> None:
        problems = real_problem("factor", factor, least=0)
        if not problems and factor == 0:
            problems = ["factor is 0; expected a finite number > 0: a success must still be seen"]
        raise_problems("ScaleGoalReward", problems)
        RecordConstructorArgs.__init__(self, factor=factor)
        gymnasium.Wrapper.__init__(self, env)
        self.factor = factor

    def step(self, action: Any) -> AnyStep:
        """Step, and multiply the reward of a success."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        reward = float(reward)
        if terminated and reward > 0:
            reward *= self.factor
        return observation, reward, terminated, truncated, info
