"""What the replays on rings share: storing, drawing, looking at new rows, saving."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import Self

from owlrl._arguments import Arguments, own_generator, restored_generator
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, raise_problems
from owlrl.replay.ring import FrameRing, Rows, RowSpec, array_spec, spaces_of
from owlrl.replay.samplers import Sampler, UniformSampler
from owlrl.types import Transitions, as_array

__all__ = ["RingReplay"]

KEY = 3  # tells a replay's random numbers from those of other parts without a seed


class RowStore:
    """Rows in a `FrameRing`, with a sampler's draw that is notified of each change."""

    def __init__(self, spec: RowSpec, *, capacity: int, num_lanes: int, sampler: Sampler) -> None:
        self.ring = FrameRing(spec, capacity=capacity, num_lanes=num_lanes)
        self.draw = sampler.bind(self.ring)

    def __len__(self) -> int:
        return len(self.ring)

    def clear(self) -> None:
        self.ring.clear()
        self.draw.cleared()

    def refill(self, frames: Mapping[str, Any]) -> None:
        """Hold exactly ``frames``, as `FrameRing.newest` gave them, as if just added."""
        self.clear()
        self.ring.restore(frames)
        self.draw.changed(self.ring.live_rows(), np.zeros(0, np.int64))

    def state_dict(self) -> dict[str, Any]:
        return {"ring": self.ring.state_dict(), "draw": self.draw.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``; ValueError, TypeError or KeyError if it does not fit."""
        self.ring.restore(self.ring.checked(state["ring"]))
        self.draw.load_state_dict(state["draw"])


Choice = tuple[RowStore, str | None, int]
"""Where a batch comes from: the store, its task, and what tells its rows from those of other stores."""


class RingOptions(TypedDict, total=False):
    """The keyword arguments that all replays on rings take; `TaskScopedReplay` says what they mean."""

    observation_space: object | None
    observation_shape: Sequence[int] | None
    observation_dtype: npt.DTypeLike | None
    action_space: object | None
    action_shape: Sequence[int]
    action_dtype: npt.DTypeLike
    num_envs: int
    sampler: Sampler | None
    n_step: int
    gamma: float
    seed: int | None
    device: torch.device | str


class RingReplay(ABC):
    """A replay on preallocated rings; subclasses define what happens between tasks.

    >>> from owlrl.replay import SharedReplay
    >>> from owlrl.replay.base import RingReplay
    >>> issubclass(SharedReplay, RingReplay)
    True
    """

    def __init__(
        self,
        capacity: int,
        *,
        observation_space: object | None = None,
        observation_shape: Sequence[int] | None = None,
        observation_dtype: npt.DTypeLike | None = None,
        action_space: object | None = None,
        action_shape: Sequence[int] = (),
        action_dtype: npt.DTypeLike = np.int64,
        num_envs: int = 1,
        sampler: Sampler | None = None,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        arguments = Arguments(type(self).__name__)
        self._check(arguments)
        given = observation_shape is not None or observation_dtype is not None
        observation = array_spec(
            "observation", observation_space, observation_shape, observation_dtype, arguments, given=given
        )
        given = action_space is not None and (tuple(action_shape) != () or np.dtype(action_dtype) != np.int64)
        action = array_spec("action", action_space, action_shape, action_dtype, arguments, given=given)
        self.num_envs = arguments.integer("num_envs", num_envs)
        least = max(1, self.num_envs) if isinstance(self.num_envs, int) else 1
        self.capacity = arguments.integer("capacity", capacity, least=least)
        self.n_step = arguments.integer("n_step", n_step)
        self.gamma = arguments.number("gamma", gamma, least=0.0, most=1.0)
        self.seed = arguments.integer("seed", seed, least=0, none=True)
        if not isinstance(sampler, Sampler | None):
            expected = "expected e.g. UniformSampler() or PrioritizedSampler()"
            arguments.problem(f"sampler is {sampler!r}; {expected}")
        self.device = arguments.device("device", device)
        arguments.check()
        self.observation_shape, self.observation_dtype = observation.shape, observation.dtype
        self.action_shape, self.action_dtype = action.shape, action.dtype
        count = getattr(action_space, "n", None)
        self.num_actions = None if count is None else int(count)
        """How many discrete actions there are, where ``action_space`` was given and says it."""
        self.sampler: Sampler = UniformSampler() if sampler is None else sampler
        self.lost_rows = 0
        """Rows that were overwritten before `new_rows` looked at them."""
        self._spec = RowSpec(observation, action)
        self._lanes = np.arange(self.num_envs)
        self._rng = own_generator(self.seed, *(() if self.seed is not None else (KEY,)))
        self._task: str | None = None
        self._store = self._new_store()
        self._look()

    @classmethod
    def for_env(cls, env: Any, capacity: int, **options: Any) -> Self:
        """A replay for the observations and actions of ``env``.

        Args:
            env: a Gymnasium environment, or a vector of them.
            capacity: rows over all environments.
            options: as for the constructor; spaces and ``num_envs`` are the environment's.

        >>> import gymnasium
        >>> from owlrl.replay import TaskScopedReplay
        >>> env = gymnasium.make_vec("CartPole-v1", num_envs=2)
        >>> TaskScopedReplay.for_env(env, 1000, gamma=0.9)
        TaskScopedReplay(0 rows of at most 1000, task=None, num_envs=2, sampler=UniformSampler(), \
n_step=1, warm_start=50000, stored={})
        """
        observation, action, num_envs = spaces_of(env)
        return cls(capacity, observation_space=observation, action_space=action, num_envs=num_envs, **options)

    def _check(self, arguments: Arguments) -> None:  # noqa: B027  # there may be nothing
        """Check the arguments that only a subclass has."""

    def _new_store(self) -> RowStore:
        return RowStore(self._spec, capacity=self.capacity, num_lanes=self.num_envs, sampler=self.sampler)

    @property
    def task(self) -> str | None:
        """The current task; None before the first `begin_task`."""
        return self._task

    @property
    def nbytes(self) -> int:
        """Bytes of all rings, empty places included."""
        return sum(store.ring.nbytes for store in self._stores())

    def begin_task(self, task: str) -> None:
        """Make the replay ready for rows of ``task``."""
        self._check_task("begin_task", task)
        self._begin(task)
        self._task = task
        self._look()

    def end_task(self) -> None:
        """Keep what a later visit of the current task should start from."""
        if self._task is None:
            raise OwlStateError(
                f"{type(self).__name__}.end_task: no task was begun; call begin_task(task) first"
            )
        self._end(self._task)

    def forget(self, task: str) -> None:
        """Drop what is kept of ``task``; if it is the current task, no task is current afterwards."""
        self._check_task("forget", task)
        self._forget(task)
        if task == self._task:
            self._task = None
            self.clear()

    def _check_task(self, method: str, task: object) -> None:
        if not isinstance(task, str):
            where = f"{type(self).__name__}.{method}"
            raise OwlTypeError(f"{where}: task is {task!r} ({type(task).__name__}); expected a str")

    @abstractmethod
    def _begin(self, task: str) -> None:
        """Put the rows in place that ``task`` starts from."""

    @abstractmethod
    def _end(self, task: str) -> None:
        """Store what ``task`` starts from when it comes back."""

    @abstractmethod
    def _forget(self, task: str) -> None:
        """Drop what is stored of ``task``."""

    def new_rows(self) -> Transitions | None:
        """The rows added since the last call, or since `begin_task`; None if there are none.

        Copies on the CPU, one step each whatever ``n_step`` is, environment by environment, oldest first,
        with ``truncated``, ``env`` and ``task``. Rows that a task was refilled with are not new. Rows that
        were overwritten before a look are counted in ``lost_rows``, with one warning.
        """
        ring = self._store.ring
        rows, added = ring.rows_since(self._looked_at), ring.added - self._added_before
        self._look()
        lost = added - len(rows)
        if lost > 0 and not self.lost_rows:
            warnings.warn(
                f"{type(self).__name__}: {lost} rows were overwritten before new_rows() looked at them; a "
                f"capacity above {self.capacity} or more frequent looks would keep them. Later ones are "
                "counted in lost_rows without a warning",
                stacklevel=2,
            )
        self.lost_rows += max(0, lost)
        if not len(rows):
            return None
        found = map(torch.from_numpy, ring.gather(rows, 1, self.gamma))
        observation, action, reward, after, terminated, discount = found
        return Transitions(
            *(observation, action, reward, after, terminated, discount),
            task=self._task,
            truncated=torch.from_numpy(ring.truncated[rows]),
            env=torch.from_numpy(rows % self.num_envs),
        )

    def _look(self) -> None:
        ring = self._store.ring
        self._looked_at, self._added_before = ring.position, ring.added

    def add(
        self,
        observation: object,
        action: object,
        reward: object,
        next_observation: object,
        terminated: object,
        truncated: object,
    ) -> None:
        """Store one transition of one environment.

        Args:
            observation: the observation; not stored again if it equals the last ``next_observation``.
            action: the action.
            reward: a finite number.
            next_observation: the following observation; at an episode's end its final observation,
                not the first one of the next episode.
            terminated: true if the environment itself ended the episode: nothing is
                bootstrapped from ``next_observation``.
            truncated: true if the episode was cut off: n-step sums end here, and bootstrap.
        """
        where = f"{type(self).__name__}.add"
        if self.num_envs != 1:
            raise OwlStateError(
                f"{where}: num_envs is {self.num_envs}; use add_batch, one row per environment"
            )
        values = (observation, action, reward, next_observation, terminated, truncated)
        rows = self._spec.rows(values, lead=(), lanes=self._lanes, where=where, task=self._task)
        self._store.draw.changed(*self._store.ring.add(self._lanes, rows))

    def add_batch(
        self,
        observation: object,
        action: object,
        reward: object,
        next_observation: object,
        terminated: object,
        truncated: object,
        *,
        mask: object | None = None,
    ) -> None:
        """Store one transition of each environment: as `add`, each with a first axis of ``num_envs``.

        ``mask`` (E,) bool says which environments' rows are stored; all by default. With vector environments
        that reset in the step after an episode's end, pass those whose episode had not ended before.
        """
        where = f"{type(self).__name__}.add_batch"
        lanes = self._lanes
        if mask is not None:
            chosen = as_array(mask)
            if chosen.dtype != np.bool_ or chosen.shape != (self.num_envs,):
                wrong = f"mask is {chosen.dtype} {chosen.shape}; expected bool ({self.num_envs},)"
                raise_problems(where, [wrong])
            lanes = np.flatnonzero(chosen)
        values = (observation, action, reward, next_observation, terminated, truncated)
        rows = self._spec.rows(values, lead=(self.num_envs,), lanes=lanes, where=where, task=self._task)
        if len(lanes):
            self._store.draw.changed(*self._store.ring.add(lanes, rows))

    def sample(self, batch_size: int) -> Transitions:
        """Draw ``batch_size`` rows with replacement, as the sampler says, as fresh tensors on ``device``."""
        if type(batch_size) is not int or not 0 < batch_size <= len(self._store.ring):
            batch_size = self._checked_size(batch_size)
        store, task, offset = self._choose(batch_size)
        rows, weight = store.draw.draw(batch_size, self._rng, self.n_step)
        found = store.ring.gather(rows, self.n_step, self.gamma)
        observation, action, reward, after, terminated, discount = map(torch.from_numpy, found)
        weights, index = None if weight is None else torch.from_numpy(weight), rows + offset
        made = Transitions(observation, action, reward, after, terminated, discount, weights, index, task)
        return made if self.device == "cpu" else made.to(self.device)

    def _checked_size(self, batch_size: object) -> int:
        arguments = Arguments(f"{type(self).__name__}.sample")
        size: int = arguments.integer("the number of rows requested", batch_size)
        arguments.check()
        if len(self) < size:
            of_task = "" if self._task is None else f" of task {self._task!r}"
            raise OwlStateError(
                f"{arguments.where}: {size} rows{of_task} were requested, but there are only {len(self)}; "
                "add more first, or request fewer"
            )
        return size

    def _choose(self, batch_size: int) -> Choice:
        """Where the next batch is drawn from."""
        return self._store, self._task, 0

    def take_back(self, rows: Transitions) -> Transitions:
        """Remove the newest rows, those of which ``rows`` are copies; for `put` in another task."""
        env = np.zeros(len(rows), np.int64) if rows.env is None else rows.env.numpy(force=True)
        gone = self._store.ring.rewind(np.bincount(env, minlength=self.num_envs))
        self._store.draw.changed(np.zeros(0, np.int64), gone)
        self._look()
        return rows

    def put(self, rows: Transitions) -> None:
        """Store rows that `take_back` returned; they are not new."""
        columns = [as_array(getattr(rows, name)) for name in Rows._fields]
        env = np.zeros(len(rows), np.int64) if rows.env is None else as_array(rows.env)
        lanes = [np.flatnonzero(env == lane) for lane in range(self.num_envs)]
        for turn in range(max(map(len, lanes))):
            these = np.array([lane[turn] for lane in lanes if turn < len(lane)])
            stored = Rows(*(column[these] for column in columns))
            self._store.draw.changed(*self._store.ring.add(env[these], stored))
        self._look()

    def update_priorities(self, index: np.ndarray, priorities: object) -> None:
        """Set the priorities of rows, e.g. ``update_priorities(t.index, td_error.abs())``.

        Only `PrioritizedSampler` uses them. Rows overwritten since they were drawn may be among them.

        Args:
            index: (B,) the ``index`` of a sample.
            priorities: (B,) numbers >= 0, an array or a tensor.
        """
        stores, size = self._stores(), self._store.ring.num_rows
        where = f"{type(self).__name__}.update_priorities"
        rows, new = _checked_priorities(where, as_array(index), as_array(priorities), size * len(stores))
        for place, store in enumerate(stores):
            mine = rows // size == place
            # rows where no transition starts any more are left out
            mine[mine] = store.ring.live[rows[mine] - place * size]
            store.draw.update(rows[mine] - place * size, new[mine])

    def _stores(self) -> Sequence[RowStore]:
        """All stores, in the order of their offsets."""
        return [self._store]

    def clear(self) -> None:
        """Forget the current rows, but no stored sample."""
        self._store.clear()
        self._look()

    def __len__(self) -> int:
        return len(self._store)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self)} rows of at most {self.capacity}, task={self._task!r}, "
            f"num_envs={self.num_envs}, sampler={self.sampler!r}, n_step={self.n_step}{self._more()})"
        )

    def _more(self) -> str:
        return ""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue bit for bit; of the rings only the rows in use.

        As with a torch module's, the arrays are the replay's own, so that a large one can be written without
        a copy of it: ``copy.deepcopy`` what is to be kept while rows are added.
        """
        ring = self._store.ring
        state = {
            "layout": self._layout(),
            "rng": self._rng.bit_generator.state,
            "contents": self._contents(),
            "new": {
                "frames": ring.position - self._looked_at,
                "rows": ring.added - self._added_before,
                "lost": self.lost_rows,
            },
        }
        return state if self._task is None else {**state, "task": self._task}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned; what does not fit is refused, with nothing changed."""
        where = f"{type(self).__name__}.load_state_dict"
        problems = []
        try:
            theirs = state_dict["layout"]
            for name, mine in self._layout().items():
                if theirs[name] != mine:
                    problems.append(f"{name} is {theirs[name]!r} in the state; expected {mine!r}")
            if not problems:
                rng, task, new = (
                    restored_generator(state_dict["rng"]),
                    state_dict.get("task"),
                    state_dict["new"],
                )
                frames, rows, lost = as_array(new["frames"]), int(new["rows"]), int(new["lost"])
                if not isinstance(task, str | None):
                    raise TypeError(f"task is {task!r}")
                if frames.shape != (self.num_envs,) or frames.dtype != np.int64 or (frames < 0).any():
                    raise ValueError(f"new frames are {frames.dtype} {frames.shape}; expected int64 per env")
                self._restore(state_dict["contents"], task)
                self._rng, self._task, self.lost_rows = rng, task, lost
                self._look()
                self._looked_at, self._added_before = self._looked_at - frames, self._added_before - rows
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            problems.append(
                f"the state is damaged ({type(error).__name__}: {error}); pass what state_dict() returned"
            )
        raise_problems(where, problems)

    def _layout(self) -> dict[str, Any]:
        return {
            "kind": type(self).__name__,
            "capacity": int(self.capacity),
            "num_envs": int(self.num_envs),
            "observation_shape": list(self.observation_shape),
            "observation_dtype": str(self.observation_dtype),
            "action_shape": list(self.action_shape),
            "action_dtype": str(self.action_dtype),
            "sampler": type(self.sampler).__name__,
        }

    def _contents(self) -> dict[str, Any]:
        """All rows."""
        return {"store": self._store.state_dict()}

    def _restore(self, contents: Mapping[str, Any], task: str | None) -> None:
        """Take on ``contents``, or raise KeyError, TypeError or ValueError with nothing changed."""
        self._store = self._restored(contents["store"])

    def _restored(self, state: Mapping[str, Any]) -> RowStore:
        store = self._new_store()
        store.load_state_dict(state)
        return store


def _checked_priorities(
    where: str, rows: np.ndarray, new: np.ndarray, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (B,) int64 and priorities (B,) float64, or one error that names what is wrong with them."""
    problems = []
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        problems.append(f"index is {rows.dtype} {rows.shape}; expected the index of a sample, ints (B,)")
    elif len(rows) and not 0 <= rows.min() <= rows.max() < num_rows:
        problems.append(
            f"index runs from {rows.min()} to {rows.max()}; expected rows from 0 to {num_rows - 1}"
        )
    if new.shape != rows.shape or new.dtype.kind not in "iuf":
        problems.append(f"priorities is {new.dtype} {new.shape}; expected numbers {rows.shape}")
    elif (new < 0).any():
        problems.append(f"priorities has {new.min()}; expected numbers >= 0, e.g. td_error.abs()")
    raise_problems(where, problems)
    bad = np.flatnonzero(~np.isfinite(new))
    if len(bad):
        raise NonFiniteError(f"{where}: priorities[{bad[0]}] is {new[bad[0]]}; expected finite numbers")
    return rows.astype(np.int64), new.astype(np.float64)
