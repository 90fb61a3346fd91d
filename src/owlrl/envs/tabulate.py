"""`tabulate`: write out a deterministic environment by trying every action in every state."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from minigrid.core.world_object import Door, WorldObj
from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
from minigrid.minigrid_env import MiniGridEnv

from owlrl._arguments import Arguments
from owlrl.envs.grid_levels import position
from owlrl.envs.table import Table
from owlrl.envs.vector import AnyEnv, FloatArray
from owlrl.errors import OwlTypeError, OwlValueError

__all__ = ["tabulate"]

ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
StateKey = Callable[[AnyEnv], Hashable]
REPEATS = 4  # of an action that draws random numbers
PROBE = 100  # random steps in search of a second state


def tabulate(
    env: AnyEnv,
    *,
    seed: int = 0,
    max_states: int = 20_000,
    state_key: StateKey | None = None,
    verify_steps: int = 1_000,
) -> Table:
    """Write out ``env`` from the start that ``env.reset(seed=seed)`` gives.

    Breadth first, every action is tried in every state on deep copies; ``env`` itself is not touched. Where
    a deep copy does not continue where the original is (``gymnasium.utils.EzPickle``), the actions that lead
    to a state are replayed from ``reset(seed=seed)`` instead.

    The environment must be deterministic after its reset, and what it does may depend on the number of
    steps in two ways only: truncation, and in MiniGrid the reward of a success.

    Two states are the same if their keys are. A MiniGrid environment needs no ``state_key``: position,
    direction, what is carried and every cell of the grid identify its states. (A key given for one is used
    instead, which takes far longer.) BabyAI's levels need one: how far a mission has come is not in the grid.

    The result is checked: an action that draws random numbers is repeated with four other ones, of all others
    one per state is repeated, and ``verify_steps`` random steps of a copy are compared with the table.
    Randomness that is not the environment's own ``np_random`` can go unnoticed.

    Args:
        env: any Gymnasium environment with discrete actions and observations that are arrays.
        seed: of the reset.
        max_states: raise when there are more.
        state_key: gives, for the environment in some state, what tells that state from others;
            the number of steps must not be part of it.
        verify_steps: how many random steps to compare; 0 for none.

    Raises:
        OwlTypeError: spaces that cannot be tabulated, no ``state_key``, or an ``env`` that cannot be copied.
        OwlValueError: not deterministic, too many states, a ``state_key`` that leaves something out, or an
            ``env`` that neither a deep copy nor a replay from its reset brings back to a state.

    >>> import gymnasium
    >>> from owlrl.envs import tabulate
    >>> lake = gymnasium.make("FrozenLake-v1", is_slippery=False)
    >>> tabulate(lake, state_key=lambda env: env.unwrapped.s)
    Table('FrozenLake-v1(map_name=4x4, is_slippery=False)': 16 states, 16 observations, 4 actions)
    """
    arguments = Arguments("tabulate")
    seed = arguments.integer("seed", seed, least=0)
    max_states = arguments.integer("max_states", max_states)
    verify_steps = arguments.integer("verify_steps", verify_steps, least=0)
    arguments.check()
    _check_env(env, state_key)
    own = _copy(env)
    states: _States = _GridStates(own) if state_key is None else _AnyStates(own, state_key, seed)
    search = _Search(states, max_states)
    search.run(seed)
    limit = _step_limit(states.env)  # after its reset: some set their limit there
    table = Table(
        observations=np.stack(search.observations),
        obs_index=np.array(search.obs_index),
        next_state=np.array(search.next_state),
        reward=np.array(search.reward),
        terminated=np.array(search.terminated),
        start=0,
        observation_space=env.observation_space,
        max_episode_steps=limit,
        goal_reward=search.goal_reward(limit),
        cell=np.array(search.cells),
        name=_name(env),
    )
    _verify(_copy(env), table, seed=seed, steps=verify_steps)
    return table


class _Search:
    """A breadth-first search; one entry of each list per state, in the order they were found."""

    def __init__(self, states: _States, max_states: int) -> None:
        self.states = states
        self.max_states = max_states
        self.num_actions = int(states.env.action_space.n)  # type: ignore[attr-defined]  # checked before
        self.index: dict[Hashable, int] = {}
        self.rows: dict[bytes, int] = {}  # where in observations
        self.places: dict[Hashable, int] = {}
        self.saved: list[object] = []
        self.queue: deque[int] = deque()
        self.queued: set[int] = set()
        self.goals: list[tuple[int, int]] = []  # state and action of each success
        self.observations: list[npt.NDArray[Any]] = []
        self.obs_index: list[int] = []
        self.cells: list[int] = []
        self.next_state: list[list[int]] = []
        self.reward: list[list[float]] = []
        self.terminated: list[list[bool]] = []

    def run(self, seed: int) -> None:
        observation, _ = self.states.env.reset(seed=seed)
        self._enqueue(self._find(observation))
        while self.queue:
            state = self.queue.popleft()
            for action in range(self.num_actions):
                drew = self._try(state, action)
                for again in range(REPEATS if drew else action == state % self.num_actions):
                    self._repeat(state, action, seed=REPEATS * state + again)

    def _try(self, state: int, action: int) -> bool:
        """Enter what an action does in a state; returns whether it drew random numbers."""
        self.states.restore(self.saved[state])
        generator = self.states.env.unwrapped.np_random.bit_generator
        before = generator.state
        observation, reward, terminated, _, _ = self.states.step(action)
        target = self._find(observation)
        self.next_state[state][action] = target
        self.reward[state][action] = float(reward)
        self.terminated[state][action] = bool(terminated)
        if not terminated:
            self._enqueue(target)
        elif reward > 0:
            self.goals.append((state, action))
        return generator.state != before

    def _find(self, observation: object) -> int:
        """The number of the current state, which is entered if it is new."""
        key = self.states.key()
        seen = np.asarray(observation)
        row = self.rows.setdefault(seen.tobytes(), len(self.rows))
        if row == len(self.observations):
            self.observations.append(seen.copy())
        try:
            state = self.index.setdefault(key, len(self.index))
        except TypeError as error:
            raise OwlTypeError(
                f"tabulate: state_key returned a {type(key).__name__} ({error}); expected something "
                "hashable, e.g. tuple(array.tolist())"
            ) from error
        if state < len(self.saved):
            if self.obs_index[state] != row:
                raise OwlValueError(
                    "tabulate: a state was seen with two different observations; expected state_key to tell "
                    "apart what looks different (and the environment not to show the number of steps)"
                )
            return state
        if state == self.max_states:
            raise OwlValueError(
                f"tabulate: the environment has more than max_states={self.max_states} states; pass a larger "
                "max_states=, or a state_key= without what changes at every step"
            )
        self.saved.append(self.states.save())
        self.obs_index.append(row)
        self.cells.append(self.places.setdefault(self.states.place(), len(self.places)))
        # What a state in which the episode has ended keeps:
        self.next_state.append([state] * self.num_actions)
        self.reward.append([0.0] * self.num_actions)
        self.terminated.append([True] * self.num_actions)
        return state

    def _enqueue(self, state: int) -> None:
        if state not in self.queued:
            self.queued.add(state)
            self.queue.append(state)

    def _repeat(self, state: int, action: int, *, seed: int) -> None:
        """Do an action again with other random numbers; all must be as before."""
        self.states.restore(self.saved[state])
        self.states.env.unwrapped.np_random = np.random.default_rng(seed)
        _, reward, terminated, _, _ = self.states.step(action)
        before = (self.next_state[state][action], self.reward[state][action], self.terminated[state][action])
        if (self.index.get(self.states.key()), float(reward), bool(terminated)) != before:
            raise OwlValueError(
                f"tabulate: action {action} did two different things in one state; expected a deterministic "
                "environment: switch its randomness off (e.g. is_slippery=False), take off wrappers that "
                "count or average, and let state_key tell apart all that matters"
            )

    def goal_reward(self, limit: int | None) -> FloatArray | None:
        """The reward of a success at each step of an episode; None if it does not depend on the step."""
        if limit is None:
            return None
        some = sorted({1, (1 + limit) // 2, limit})
        looked = {goal: [self._reward_at(*goal, step) for step in some] for goal in self.goals}
        changing = next((goal for goal, found in looked.items() if len(set(found)) > 1), None)
        if changing is None:
            return None
        if any(found != looked[changing] for found in looked.values()):
            raise OwlValueError(
                "tabulate: two successes are paid differently, by the number of steps; expected one reward "
                "for all of them, or rewards that do not depend on the step"
            )
        return np.array([0.0, *(self._reward_at(*changing, step) for step in range(1, limit + 1))])

    def _reward_at(self, state: int, action: int, step: int) -> float:
        self.states.restore(self.saved[state], step=step - 1)
        return float(self.states.step(action)[1])


class _States(Protocol):
    """An environment whose state can be identified, saved and restored."""

    env: AnyEnv

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment."""

    def key(self) -> Hashable:
        """The identity of the current state."""

    def place(self) -> Hashable:
        """Where the agent is."""

    def save(self) -> object:
        """Enough to restore the current state."""

    def restore(self, saved: Any, *, step: int = 0) -> None:
        """Restore a state, as after ``step`` steps where the environment counts them."""


class _AnyStates:
    """Any environment: a state is a deep copy of the whole, or the actions that lead to it."""

    def __init__(self, env: AnyEnv, key: StateKey, seed: int) -> None:
        self.env = env
        self._key = key
        self._seed = seed
        self._actions: tuple[int, ...] = ()  # since the reset
        self._copies = self._copies_continue()

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._actions += (action,)
        return self.env.step(action)

    def key(self) -> Hashable:
        return self._key(self.env)

    def place(self) -> Hashable:
        base = self.env.unwrapped
        return position(base) if isinstance(base, MiniGridEnv) else self.key()

    def _copies_continue(self) -> bool:
        """Whether a deep copy is where the original is, once that has left its first state."""
        actions = np.random.default_rng(0)
        self.env.reset(seed=self._seed)
        start = key = self.key()
        for _ in range(PROBE):
            _, _, terminated, truncated, _ = self.env.step(int(actions.integers(self.env.action_space.n)))  # type: ignore[attr-defined]  # Discrete, as was checked
            key = self.key()
            if key != start:
                break
            if terminated or truncated:
                self.env.reset(seed=self._seed)
        return _has_key(copy.deepcopy(self.env), self._key, key)

    def save(self) -> tuple[AnyEnv | None, tuple[int, ...], Hashable]:
        key, kept = self.key(), None
        if self._copies:
            kept = copy.deepcopy(self.env)
            self._copies = _has_key(kept, self._key, key)
        return kept, self._actions, key

    def restore(self, saved: tuple[AnyEnv | None, tuple[int, ...], Hashable], *, step: int = 0) -> None:
        kept, self._actions, key = saved
        if self._copies and kept is not None:
            self.env = copy.deepcopy(kept)
        else:
            self._replay(key)
        if isinstance(base := self.env.unwrapped, MiniGridEnv):
            base.step_count = step

    def _replay(self, key: Hashable) -> None:
        self.env.reset(seed=self._seed)
        for action in self._actions:
            self.env.step(action)
        if self.key() != key:
            raise OwlValueError(
                f"tabulate: a deep copy of env does not continue where env was, and reset(seed={self._seed}) "
                f"and the same {len(self._actions)} actions led to another state than before; expected an "
                "environment that its reset's seed makes reproducible, or one whose deep copy keeps its "
                "state (gymnasium.utils.EzPickle does not)"
            )


def _has_key(env: AnyEnv, key: StateKey, expected: Hashable) -> bool:
    """Whether a copy is in the state it was made in; one constructed from scratch may have none."""
    try:
        return bool(key(env) == expected)
    except Exception:  # whatever a user's function says of an environment that was never reset
        return False


_SavedGrid = tuple[
    tuple[int, int], int, WorldObj | None, list[WorldObj | None], list[tuple[Door, bool, bool]]
]


class _GridStates:
    """A MiniGrid environment: a state is the agent, what it carries and the grid.

    Drawing the observation is nearly all of a step's time, so each state's is drawn once. Objects are
    restored, not copied: environments compare them by identity.
    """

    def __init__(self, env: AnyEnv) -> None:
        base = env.unwrapped
        assert isinstance(base, MiniGridEnv)
        self.env = env
        self._base = base
        self._draw = base.gen_obs
        self._drawn: dict[Hashable, dict[str, Any]] = {}
        base.gen_obs = self._gen_obs  # type: ignore[method-assign]  # of this copy only

    def _gen_obs(self) -> dict[str, Any]:
        key = self.key()
        if key not in self._drawn:
            self._drawn[key] = self._draw()  # type: ignore[no-untyped-call]
        drawn = self._drawn[key]
        return {**drawn, "image": drawn["image"].copy()}

    def step(self, action: int) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        return self.env.step(action)

    def key(self) -> Hashable:
        # MiniGridEnv.hash() leaves out what is carried. Objects compare by identity, which is far
        # faster than encoding them and tells at least as much apart; only doors change in place.
        base, cells = self._base, tuple(self._base.grid.grid)
        doors = tuple((cell.is_open, cell.is_locked) for cell in cells if isinstance(cell, Door))
        return position(base), int(base.agent_dir), base.carrying, cells, doors

    def place(self) -> Hashable:
        return position(self._base)

    def save(self) -> _SavedGrid:
        cells = list(self._base.grid.grid)
        doors = [(cell, cell.is_open, cell.is_locked) for cell in cells if isinstance(cell, Door)]
        return position(self._base), self._base.agent_dir, self._base.carrying, cells, doors

    def restore(self, saved: _SavedGrid, *, step: int = 0) -> None:
        base = self._base
        base.agent_pos, base.agent_dir, carrying, cells, doors = saved
        base.carrying = carrying  # type: ignore[assignment]  # MiniGrid declares it as None
        base.grid.grid = list(cells)
        for door, is_open, is_locked in doors:
            door.is_open, door.is_locked = is_open, is_locked
        base.step_count = step


def _check_env(env: AnyEnv, state_key: StateKey | None) -> None:
    arguments = Arguments("tabulate")
    arguments.instance("env", env, gymnasium.Env, "a gymnasium.Env")
    arguments.check(kind=OwlTypeError)
    if not (isinstance(env.action_space, spaces.Discrete) and env.action_space.start == 0):
        arguments.problem(f"env has actions {env.action_space}; expected Discrete(n) that starts at 0")
    if not isinstance(env.observation_space, ARRAY_SPACES):
        arguments.problem(
            f"env has observations {type(env.observation_space).__name__}; expected a Box, Discrete, "
            "MultiBinary or MultiDiscrete: use gymnasium.wrappers.FlattenObservation, or "
            "minigrid.wrappers.ImgObsWrapper"
        )
    if state_key is None and isinstance(env.unwrapped, RoomGridLevel):
        arguments.problem(
            "state_key is None and env is a level of BabyAI, whose mission remembers more than the grid "
            "shows; pass state_key=, a function of the environment that tells its states apart"
        )
    elif state_key is None and not isinstance(env.unwrapped, MiniGridEnv):
        arguments.problem(
            "state_key is None and env is no MiniGrid environment; pass state_key=, a function of the "
            "environment that tells its states apart, e.g. lambda env: env.unwrapped.s"
        )
    arguments.function("state_key", state_key, "of the environment", none=True)
    arguments.check(kind=OwlTypeError)


def _copy(env: AnyEnv) -> AnyEnv:
    try:
        return copy.deepcopy(env)
    except Exception as error:  # whatever an environment holds may refuse to be copied, in its own way
        raise OwlTypeError(
            f"tabulate: env cannot be deep-copied ({type(error).__name__}: {error}); make it without a window"
        ) from error


def _step_limit(env: AnyEnv) -> int | None:
    """After how many steps the environment truncates; None for never."""
    limits = [base.max_steps] if isinstance(base := env.unwrapped, MiniGridEnv) else []
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, TimeLimit):
            limits.append(env._max_episode_steps)
        env = env.env
    return min(limits, default=None)


def _name(env: AnyEnv) -> str:
    if env.spec is None:
        return type(env.unwrapped).__name__
    arguments = ", ".join(f"{key}={value}" for key, value in env.spec.kwargs.items() if key != "render_mode")
    return f"{env.spec.id}({arguments})"


def _verify(env: AnyEnv, table: Table, *, seed: int, steps: int) -> None:
    """Compare random steps of the environment with the table; raise at the first difference."""
    actions = np.random.default_rng(seed).integers(table.num_actions, size=steps).tolist()
    step, state = 0, table.start
    env.reset(seed=seed)
    for done, action in enumerate(actions):
        observation, reward, terminated, truncated, _ = env.step(action)
        step += 1
        target = int(table.next_state[state, action])
        pairs = {
            "observation": (observation, table.observations[table.obs_index[target]]),
            "reward": (reward, table.reward_at(state, action, step)),
            "terminated": (terminated, table.terminated[state, action]),
            "truncated": (truncated, step == table.max_episode_steps),
        }
        for what, (real, tabulated) in pairs.items():
            if not np.array_equal(real, tabulated):
                raise OwlValueError(
                    f"tabulate: at random step {done + 1} the environment's {what} is {real} and the table's "
                    f"{tabulated}; expected the same: the environment is not deterministic, or depends on "
                    "what state_key leaves out (the number of steps, a wrapper that counts or averages)"
                )
        state = target
        if terminated or truncated:
            step, state = 0, table.start
            env.reset(seed=seed)
