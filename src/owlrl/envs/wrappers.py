"""Wrappers: rewards that help training, changes that make another task, and episodes that can be resumed."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.utils import RecordConstructorArgs
from minigrid.minigrid_env import MiniGridEnv

from owlrl._arguments import Arguments, kind_of, restored_generator
from owlrl.envs.grid_levels import position
from owlrl.envs.table import TabulatedEnv
from owlrl.envs.vector import AnyEnv
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError

__all__ = ["CountBonus", "Resumable", "ScaleGoalReward", "SwapActions", "WeakPush"]

AnyWrapper = gymnasium.Wrapper[Any, Any, Any, Any]
AnyStep = tuple[Any, float, bool, bool, dict[str, Any]]


class CountBonus(AnyWrapper, RecordConstructorArgs):
    """Adds ``β / √n`` to every reward, n being how often the agent has entered its current cell so far.

    Counts continue over episodes. They are not part of the environment's state: tabulate the
    environment without it, and give `TabulatedVectorEnv` its ``count_bonus``.

    Args:
        env: a MiniGrid environment, a `TabulatedEnv`, or any other with a ``cell``.
        scale: β.
        cell: returns the agent's cell; None for its position in the grid.

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
        arguments = Arguments("CountBonus")
        self.scale = arguments.number("scale", scale, least=0)
        arguments.check()
        if cell is None and not isinstance(env.unwrapped, MiniGridEnv | TabulatedEnv):
            raise OwlTypeError(
                f"CountBonus: env is {kind_of(env.unwrapped)} and cell is None; expected a MiniGrid "
                "environment, or cell=, a function of the environment that tells where the agent is"
            )
        RecordConstructorArgs.__init__(self, scale=scale, cell=cell)
        gymnasium.Wrapper.__init__(self, env)
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

    The paper trains its MiniGrid agents with a hundredfold reward, in addition to a count bonus. It
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
        arguments = Arguments("ScaleGoalReward")
        self.factor = arguments.number("factor", factor, above=0)  # a success must still be seen
        arguments.check()
        RecordConstructorArgs.__init__(self, factor=factor)
        gymnasium.Wrapper.__init__(self, env)

    def step(self, action: Any) -> AnyStep:
        """Step, and multiply the reward of a success."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        reward = float(reward)
        if terminated and reward > 0:
            reward *= self.factor
        return observation, reward, terminated, truncated, info


class SwapActions(AnyWrapper, RecordConstructorArgs):
    """Gives the actions other numbers: another task that looks the same and contradicts the first one.

    ``owlrl/FlippedCartPole-v0`` is ``SwapActions(CartPole)``: the action that pushed left now pushes right.
    Swapping the actions of a policy for one task gives a policy for the other.

    Args:
        env: an environment with discrete actions that start at 0.
        order: which action of ``env`` each action stands for; None for the reverse order.

    >>> import gymnasium
    >>> from owlrl.envs import SwapActions
    >>> plain, swapped = gymnasium.make("CartPole-v1"), SwapActions(gymnasium.make("CartPole-v1"))
    >>> _ = plain.reset(seed=0), swapped.reset(seed=0)
    >>> bool((plain.step(0)[0] == swapped.step(1)[0]).all())
    True
    """

    def __init__(self, env: AnyEnv, order: Sequence[int] | None = None) -> None:
        space = env.action_space
        if not (isinstance(space, spaces.Discrete) and space.start == 0):
            raise OwlTypeError(f"SwapActions: env has actions {space}; expected Discrete(n) that starts at 0")
        actions = list(range(int(space.n)))
        arguments = Arguments("SwapActions")
        given = actions[::-1] if order is None else list(order)
        if sorted(given) != actions:
            arguments.problem(f"order is {order!r}; expected each of {actions} once")
        arguments.check()
        RecordConstructorArgs.__init__(self, order=order)
        gymnasium.Wrapper.__init__(self, env)
        self.order = tuple(int(action) for action in given)

    def step(self, action: Any) -> AnyStep:
        """Step with the action that ``action`` stands for."""
        return self.env.step(self.order[action])  # type: ignore[return-value]  # the reward is a number


class WeakPush(AnyWrapper, RecordConstructorArgs):
    """CartPole whose cart is pushed with another force: another task that looks the same.

    The force is changed during ``step`` only; the environment inside stays as it is.
    ``owlrl/WeakCartPole-v0`` is ``WeakPush(CartPole, 0.5)``.

    Args:
        env: Gymnasium's CartPole, possibly wrapped.
        factor: what to multiply the force by.

    >>> import gymnasium
    >>> from owlrl.envs import WeakPush
    >>> env = WeakPush(gymnasium.make("CartPole-v1"), 0.5)
    >>> _ = env.reset(seed=0)
    >>> [round(float(env.step(1)[0][1]), 2) for _ in range(2)], env.unwrapped.force_mag
    ([0.08, 0.17], 10.0)
    """

    def __init__(self, env: AnyEnv, factor: float = 0.5) -> None:
        arguments = Arguments("WeakPush")
        arguments.instance(
            "env", env.unwrapped, CartPoleEnv, "a CartPole, e.g. gymnasium.make('CartPole-v1')"
        )
        arguments.check(kind=OwlTypeError)
        self.factor = arguments.number("factor", factor, above=0)
        arguments.check()
        RecordConstructorArgs.__init__(self, factor=factor)
        gymnasium.Wrapper.__init__(self, env)

    def step(self, action: Any) -> AnyStep:
        """Step with the weaker (or stronger) push."""
        base = self.env.unwrapped
        assert isinstance(base, CartPoleEnv)
        force, base.force_mag = base.force_mag, base.force_mag * self.factor
        try:
            return self.env.step(action)  # type: ignore[return-value]  # the reward is a number
        finally:
            base.force_mag = force


class Resumable(AnyWrapper, RecordConstructorArgs):
    """Keeps how the current episode began and its actions, and finds the same place by doing the same again.

    `state_dict` is a small tree for `owlrl.checkpoint.save_state`, without pickled code. `load_state_dict` in
    a new process resets the environment with the generator it had, takes the actions again and compares
    what is seen: an environment with other randomness than its ``np_random`` is refused.

    Put it outermost, around a ``Monitor``, too. ``owlrl`` saves no environment: save this beside the wrapper.

    Args:
        env: an environment, not a vector of them, whose randomness is that of its ``np_random``.

    >>> import gymnasium
    >>> from owlrl.envs import Resumable
    >>> env, again = (Resumable(gymnasium.make("CartPole-v1")) for _ in range(2))
    >>> _ = env.reset(seed=3), env.step(1), env.step(1)
    >>> again.load_state_dict(env.state_dict())
    >>> bool((env.step(0)[0] == again.step(0)[0]).all())
    True
    """

    def __init__(self, env: AnyEnv) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._begun: dict[str, Any] | None = None  # how the episode began
        self._actions: list[np.ndarray] = []
        self._seen: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Reset, and keep how."""
        generator = None if seed is not None else self.unwrapped.np_random.bit_generator.state
        self._begun = {"seed": seed, "options": copy.deepcopy(options), "generator": generator}
        self._actions = []
        found = self.env.reset(seed=seed, options=options)
        self._seen = copy.deepcopy(found[0])
        return found

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and keep the action."""
        self._actions.append(np.array(action))
        found = self.env.step(action)
        self._seen = copy.deepcopy(found[0])
        return found

    def state_dict(self) -> dict[str, Any]:
        """How the episode began, its actions and what was seen last; None for each before the first reset."""
        actions = np.stack(self._actions) if self._actions else None
        return {"begun": copy.deepcopy(self._begun), "actions": actions, "seen": copy.deepcopy(self._seen)}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Find the place that ``state_dict`` tells of, in this environment."""
        try:
            begun, actions, seen = (state_dict[key] for key in ("begun", "actions", "seen"))
            if begun is None:
                return
            if begun["generator"] is not None:
                self.unwrapped.np_random = restored_generator(begun["generator"])
            self.reset(seed=begun["seed"], options=begun["options"])
            for action in () if actions is None else np.asarray(actions):
                self.step(action if action.ndim else action[()])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OwlValueError(
                f"Resumable.load_state_dict: the state does not fit ({type(error).__name__}: {error}); "
                "expected what state_dict() returned for the same environment; reset it to use it otherwise"
            ) from error
        if not _same(self._seen, seen):
            raise OwlStateError(
                f"Resumable.load_state_dict: {self.env} did not come to the same place with the same reset "
                f"and the same {len(self._actions)} actions, so it has other randomness than its np_random; "
                "pickle it when you save, or start a new episode with reset()"
            )


def _same(one: Any, other: Any) -> bool:
    """Whether two observations are equal: arrays, numbers, and dicts or tuples of them."""
    if isinstance(one, Mapping):
        return (
            isinstance(other, Mapping)
            and list(one) == list(other)
            and all(_same(one[k], other[k]) for k in one)
        )
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))
