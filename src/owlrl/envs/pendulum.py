"""Pendulum with its reward centred at any angle: one copy, or many stepped at once."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.envs.classic_control.pendulum import DEFAULT_X, DEFAULT_Y
from gymnasium.envs.classic_control.pendulum import PendulumEnv as StandardPendulum
from gymnasium.utils.seeding import np_random

from owlrl._arguments import Arguments
from owlrl.envs.vector import ArrayVectorEnv, BoolArray, FloatArray, VectorStep, any_of
from owlrl.errors import NonFiniteError, OwlValueError

__all__ = ["PendulumEnv", "PendulumVectorEnv"]

Observations = npt.NDArray[np.float32]

# As arrays without dimension: numpy takes a third less time with them than with plain numbers.
PI, TURN, DT, MAX_SPEED, MIN_SPEED = (np.array(x) for x in (math.pi, 2.0 * math.pi, 0.05, 8.0, -8.0))
MAX_TORQUE, MIN_TORQUE = np.array(2.0), np.array(-2.0, dtype=np.float32)
REWARDS = np.array([-0.1, -1.0, -0.001])  # of θ̇², (θ − angle)² and u²
MARK = (60, 160, 60)  # colour of the target angle


def angle_from(theta: FloatArray, centre: float) -> FloatArray:
    """How far the angles are from ``centre``, the short way round: in [−π, π); all in radians."""
    away: FloatArray = (theta - centre + math.pi) % (2.0 * math.pi) - math.pi
    return away


class PendulumEnv(StandardPendulum):
    """Gymnasium's Pendulum with the reward centred at an angle that can be chosen: the task.

    State, dynamics, observation ``(cos θ, sin θ, θ̇)``, torque from −2 to 2 and 200 steps are those of
    ``Pendulum-v1``. The reward of a step from (θ, θ̇) with torque u is ``−((θ − angle)² + 0.1·θ̇² +
    0.001·u²)``, the difference taken the short way round; 0° is upright, positive is to the left. Tasks
    with opposed angles look the same and contradict each other.

    The torque holds the pole only where ``|sin θ| ≤ 4 / g``: with the usual g = 10 within 23.6° of
    upright or of hanging down. The best that can be held for ±90° is ±23.6° or ±156.4°, for −1.35 per step.

    Made by ``gymnasium.make("owlrl/Pendulum-v0", angle=90)``. ``render()`` marks the target angle.

    Args:
        angle: where the reward is largest, in degrees from −180 to 180; 0 is the standard task.
        render_mode: None, ``"human"`` or ``"rgb_array"``.
        g: acceleration of gravity.

    >>> import gymnasium
    >>> import numpy as np
    >>> import owlrl.envs
    >>> env = gymnasium.make("owlrl/Pendulum-v0", angle=90)
    >>> _ = env.reset(seed=0, options={"x_init": 0.0, "y_init": 0.0})  # upright and at rest
    >>> round(env.step(np.zeros(1, np.float32))[1], 4)  # −(π/2)²
    -2.4674
    """

    def __init__(self, angle: float = 0.0, *, render_mode: str | None = None, g: float = 10.0) -> None:
        arguments = Arguments("PendulumEnv")
        self.angle = arguments.number("angle", angle, least=-180, most=180)
        g = arguments.number("g", g, least=0)
        arguments.choice("render_mode", render_mode, [None, "human", "rgb_array"])
        arguments.check()
        super().__init__(render_mode=render_mode, g=g)
        self._centre = math.radians(self.angle)

    def step(self, u: npt.NDArray[Any]) -> tuple[Observations, float, bool, bool, dict[str, Any]]:
        """Apply the torque ``u`` (1,) for 0.05 s; what is beyond ±2 counts as ±2."""
        if np.shape(u) != (1,) or math.isnan(u[0]):
            raise OwlValueError(f"PendulumEnv.step: the action is {u!r}; expected one number, shape (1,)")
        theta = self.state[0]
        observation, reward, terminated, truncated, info = super().step(u)  # type: ignore[no-untyped-call]
        reward += angle_from(theta, 0.0) ** 2 - angle_from(theta, self._centre) ** 2
        return observation, float(reward), terminated, truncated, info

    def render(self) -> Any:
        """The picture (500, 500, 3) in mode ``"rgb_array"``; a green disc marks the target angle."""
        if self.render_mode == "rgb_array" and self.screen is None:
            # so that Gymnasium looks for no screen, of which there may be none
            self.screen = importlib.import_module("pygame").Surface((self.screen_dim, self.screen_dim))
        picture = super().render()  # type: ignore[no-untyped-call]
        if picture is not None:
            half, reach = self.screen_dim / 2, self.screen_dim / 4.4
            row, column = np.ogrid[: self.screen_dim, : self.screen_dim]
            across = column - half + 1.25 * reach * math.sin(self._centre)
            down = row - half + 1.25 * reach * math.cos(self._centre)
            picture[across**2 + down**2 < (0.08 * reach) ** 2] = MARK
        return picture


class PendulumVectorEnv(ArrayVectorEnv):
    """Copies of `PendulumEnv`, all stepped by a few array operations.

    Equal to so many single environments, their seeds and random starts included, within rounding. Autoreset
    and ``reset_mask`` are those of `owlrl.envs.vector.ArrayVectorEnv`; episodes end by truncation only. The
    options ``x_init`` and ``y_init`` of ``reset`` bound the angle and the speed of the start.

    Also made by ``gymnasium.make_vec("owlrl/Pendulum-v0", num_envs=16, angle=90)``.

    Args:
        num_envs: how many copies.
        angle: where the reward is largest, in degrees from −180 to 180.
        g: acceleration of gravity.
        max_episode_steps: truncate after so many steps.

    >>> import numpy as np
    >>> from owlrl.envs import PendulumVectorEnv
    >>> envs = PendulumVectorEnv(2, angle=-90)
    >>> _ = envs.reset(seed=0)
    >>> envs.states = np.array([[0.0, 0.0], [-np.pi / 2, 0.0]])  # upright, and where it is asked for
    >>> envs.step(np.zeros((2, 1), np.float32))[1].round(4)
    array([-2.4674,  0.    ])
    """

    def __init__(
        self, num_envs: int, *, angle: float = 0.0, g: float = 10.0, max_episode_steps: int = 200
    ) -> None:
        arguments = Arguments("PendulumVectorEnv")
        num_envs = arguments.integer("num_envs", num_envs)
        self.angle = arguments.number("angle", angle, least=-180, most=180)
        self.g = arguments.number("g", g, least=0)
        self.max_episode_steps = arguments.integer("max_episode_steps", max_episode_steps)
        arguments.check()
        single = PendulumEnv(self.angle, g=self.g)
        super().__init__(num_envs, single.observation_space, single.action_space, self.max_episode_steps)
        self._generators: list[np.random.Generator] = []  # one per copy, from the first reset on
        self._theta: FloatArray = np.zeros(num_envs)
        # One block: what is seen, what is paid for and what accelerates are then one operation each.
        self._rows: FloatArray = np.zeros((5, num_envs))
        self._cosine, self._sine, self._speed, self._away, self._torque = self._rows
        self._seen, self._paid, self._pulling = self._rows[:3].T, self._rows[2:], self._rows[1::3]
        self._shift = np.array(math.pi - math.radians(self.angle))
        self._pulls = (
            np.array([1.5 * self.g, 3.0]) * single.dt
        )  # of gravity and torque on the speed, in a step

    @property
    def states(self) -> FloatArray:
        """(num_envs, 2) the current angles, in radians, and angular speeds; can be set."""
        return np.stack([self._theta, self._speed], axis=1)

    @states.setter
    def states(self, states: npt.ArrayLike) -> None:
        self._theta[:], self._speed[:] = self._check_states(states, 2).T
        self._look()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Start all copies, or those in ``options["reset_mask"]``; copy i is seeded with ``seed + i``."""
        chosen, arguments = options or {}, Arguments("PendulumVectorEnv.reset")
        bounds = {"x_init": DEFAULT_X, "y_init": DEFAULT_Y}
        high = [arguments.number(name, chosen.get(name, most), least=0) for name, most in bounds.items()]
        mask = self._reset(arguments, seed, options)
        if seed is not None or not self._generators:
            seeds = [None if seed is None else int(seed) + copy for copy in range(self.num_envs)]
            self._generators = [np_random(each)[0] for each in seeds]
        self._begin(mask, np.array(high))
        return self._look(), {}

    def step(self, actions: npt.NDArray[Any]) -> VectorStep:
        """Apply torques (num_envs, 1); every array that is returned is the caller's own."""
        self._push(actions)
        theta, speed, away = self._theta, self._speed, self._away
        np.add(theta, self._shift, out=away)
        away %= TURN
        away -= PI
        rewards = REWARDS.dot(np.square(self._paid))
        speed += self._pulls.dot(self._pulling)
        np.maximum(speed, MIN_SPEED, out=speed)
        np.minimum(speed, MAX_SPEED, out=speed)
        theta += DT * speed
        observations, truncated = self._look(), self._tick()
        infos: dict[str, Any] = {}
        if any_of(truncated):
            infos = self._finish(truncated.nonzero()[0], truncated, observations, {})
            self._begin(truncated, np.array([DEFAULT_X, DEFAULT_Y]))
            observations[truncated] = self._look()[truncated]
        return observations, rewards, np.zeros(self.num_envs, dtype=np.bool_), truncated, infos

    def state_dict(self) -> dict[str, Any]:
        """The state of all episodes, and the generators of their starts."""
        generators = [each.bit_generator.state for each in self._generators]
        return {**super().state_dict(), "states": self.states, "generators": generators}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what `state_dict` returned."""
        super().load_state_dict(state_dict)
        self.states = state_dict["states"]
        self._generators = [np_random(0)[0] for _ in state_dict["generators"]]
        for generator, state in zip(self._generators, state_dict["generators"], strict=True):
            generator.bit_generator.state = state

    def _look(self) -> Observations:
        """The observations of the current states, (num_envs, 3)."""
        np.cos(self._theta, out=self._cosine)
        np.sin(self._theta, out=self._sine)
        seen: Observations = self._seen.astype(np.float32, order="C")
        return seen

    def _begin(self, mask: BoolArray, high: FloatArray) -> None:
        chosen = np.flatnonzero(mask).tolist()
        uniform = np.array([self._generators[copy].random(2) for copy in chosen]).reshape(-1, 2)
        self._theta[mask], self._speed[mask] = (-high + 2.0 * high * uniform).T  # as Generator.uniform does

    def _push(self, actions: npt.NDArray[Any]) -> None:
        """Take in torques (num_envs, 1), cut to their bounds."""
        actions, torque = self._checked_actions(actions, 1), self._torque
        np.minimum(np.maximum(actions[:, 0], MIN_TORQUE), MAX_TORQUE, out=torque)
        if math.isnan(torque.dot(torque)):
            raise NonFiniteError("PendulumVectorEnv.step: actions have NaN; expected numbers")

    def __repr__(self) -> str:
        return f"PendulumVectorEnv(num_envs={self.num_envs}, angle={self.angle:g})"
