"""What the replays on rings have in common: storing, drawing, saving."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from owlrl.errors import OwlStateError, raise_problems
from owlrl.replay._checks import check_batch_size, check_priorities, restored_generator
from owlrl.replay._spec import RowSpec, action_spec, as_array, number, observation_spec, positive_int
from owlrl.replay._store import RowStore, to_transitions
from owlrl.replay.samplers import Sampler, UniformSampler
from owlrl.types import Transitions

__all__ = ["Choice", "RingReplay"]


Choice = tuple[RowStore, str | None, int]
"""Where a batch comes from: the store, its task, and what tells its rows from those of other stores."""


class RingReplay(ABC):
    """A replay on preallocated rings; subclasses say what happens between tasks."""

    def __init__(
        self,
        capacity: int,
        *,
        observation_space: object | None,
        observation_shape: Sequence[int] | None,
        observation_dtype: npt.DTypeLike | None,
        action_space: object | None,
        action_shape: Sequence[int],
        action_dtype: npt.DTypeLike,
        num_envs: int,
        sampler: Sampler | None,
        n_step: int,
        gamma: float,
        seed: int | None,
        device: torch.device | str,
        problems: list[str],
    ) -> None:
        observation = observation_spec(observation_space, observation_shape, observation_dtype, problems)
        action = action_spec(action_space, action_shape, action_dtype, problems)
        envs = positive_int("num_envs", num_envs, problems)
        positive_int("capacity", capacity, problems, least=envs)
        positive_int("n_step", n_step, problems)
        number("gamma", gamma, problems, most=1.0)
        if seed is not None:
            positive_int("seed", seed, problems, least=0)
        if sampler is not None and not isinstance(sampler, Sampler):
            problems.append(f"sampler is {sampler!r}; expected e.g. UniformSampler() or PrioritizedSampler()")
        try:
            torch.device(device)
        except (RuntimeError, TypeError):
            problems.append(f"device is {device!r}; expected a torch device such as 'cpu' or 'cuda:0'")
        raise_problems(type(self).__name__, problems)
        self.capacity = capacity
        self.observation_shape, self.observation_dtype = observation.shape, observation.dtype
        self.action_shape, self.action_dtype = action.shape, action.dtype
        self.num_envs = num_envs
        self.sampler: Sampler = UniformSampler() if sampler is None else sampler
        self.n_step = n_step
        self.gamma = gamma
        self.seed = seed
        self.device = device
        self._spec = RowSpec(observation, action)
        self._lanes = np.arange(envs)
        self._rng = np.random.default_rng(seed)
        self._task: str | None = None
        self._store = self._new_store()

    def _new_store(self) -> RowStore:
        return RowStore(self._spec, capacity=self.capacity, num_lanes=self.num_envs, sampler=self.sampler)

    @property
    def task(self) -> str | None:
        """The current task; None before the first `begin_task`."""
        return self._task

    @property
    def nbytes(self) -> int:
        """Bytes reserved for rows that can be drawn."""
        return self._store.ring.nbytes

    @abstractmethod
    def begin_task(self, task: str) -> None:
        """Make the replay ready for rows of ``task``."""

    @abstractmethod
    def end_task(self) -> None:
        """Keep what a later visit of the current task should start from."""

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
            observation: what was seen; if it is the last ``next_observation``, it is not stored again.
            action: what was done.
            reward: a finite number.
            next_observation: what was seen then; at an episode's end its final observation,
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
        self._store.add(self._lanes, rows)

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
        """Store one transition of each environment: as `add`, with a first axis of ``num_envs``.

        Args:
            observation: ``(E, *observation shape)``.
            action: ``(E, *action shape)``.
            reward: (E,).
            next_observation: ``(E, *observation shape)``.
            terminated: (E,) bool.
            truncated: (E,) bool.
            mask: (E,) bool, the environments whose row is stored; all by default. With vector
                environments that reset in the step after an episode's end, pass the
                environments whose episode had not ended in the step before.
        """
        where = f"{type(self).__name__}.add_batch"
        lanes = self._lanes if mask is None else self._masked(where, mask)
        values = (observation, action, reward, next_observation, terminated, truncated)
        rows = self._spec.rows(values, lead=(self.num_envs,), lanes=lanes, where=where, task=self._task)
        if len(lanes):
            self._store.add(lanes, rows)

    def _masked(self, where: str, mask: object) -> np.ndarray:
        chosen = as_array(mask)
        if chosen.dtype != np.bool_ or chosen.shape != (self.num_envs,):
            raise_problems(
                where, [f"mask is {chosen.dtype} {chosen.shape}; expected bool ({self.num_envs},)"]
            )
        return np.flatnonzero(chosen)

    def sample(self, batch_size: int) -> Transitions:
        """Draw ``batch_size`` rows with replacement, as the sampler says, as fresh tensors on ``device``."""
        if type(batch_size) is not int or not 0 < batch_size <= len(self._store.ring):
            check_batch_size(f"{type(self).__name__}.sample", batch_size, len(self._store), self._task)
        choice = self._choose(batch_size)
        rows, weight = choice[0].draw.draw(batch_size, self._rng, self.n_step)
        return self._transitions(choice, rows, weight, self.n_step)

    def sample_distinct(self, limit: int) -> Transitions:
        """Draw ``limit`` different rows uniformly, or take all if there are not more than that.

        For estimates over the current task's rows, such as an importance or what a single step
        of the task looks like: always one step, whatever ``n_step`` is. The sampler is not asked; an
        empty replay is an error.
        """
        where = f"{type(self).__name__}.sample_distinct"
        check_batch_size(where, limit, len(self._store), self._task, least=1)
        rows = self._store.ring.live_rows()
        if limit < len(rows):
            rows = self._rng.choice(rows, limit, replace=False, shuffle=False)
        return self._transitions(self._current(), rows, None, n_step=1)

    def _current(self) -> Choice:
        """The rows of the current task."""
        return self._store, self._task, 0

    def _choose(self, batch_size: int) -> Choice:
        """The rows that the next batch is drawn from."""
        return self._current()

    def _transitions(
        self, choice: Choice, rows: np.ndarray, weight: np.ndarray | None, n_step: int
    ) -> Transitions:
        store, task, offset = choice
        found = store.ring.gather(rows, n_step, self.gamma)
        index = rows + offset if offset else rows
        return to_transitions(found, weight, index, task, self.device)

    def update_priorities(self, index: np.ndarray, priorities: object) -> None:
        """Tell the sampler how wrong rows were, e.g. ``update_priorities(t.index, td_error.abs())``.

        Only `PrioritizedSampler` listens. Rows overwritten since they were drawn may be among them.

        Args:
            index: (B,) the ``index`` of a sample.
            priorities: (B,) numbers >= 0, an array or a tensor.
        """
        stores = self._stores()
        size = self._store.ring.num_rows
        where = f"{type(self).__name__}.update_priorities"
        rows, new = check_priorities(where, index, priorities, size * len(stores))
        for place, store in enumerate(stores):
            mine = rows // size == place
            store.update(rows[mine] - place * size, new[mine])

    def _stores(self) -> Sequence[RowStore]:
        """All stores, in the order of their offsets."""
        return [self._store]

    def clear(self) -> None:
        """Forget the rows that are there now, and no stored sample."""
        self._store.clear()

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
        """Everything needed to continue bit for bit; of the rings only the rows in use."""
        state = {"layout": self._layout(), "rng": self._rng.bit_generator.state, "contents": self._contents()}
        return state if self._task is None else {**state, "task": self._task}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` gave; what does not fit is refused, with nothing changed."""
        where = f"{type(self).__name__}.load_state_dict"
        problems = []
        try:
            theirs = state_dict["layout"]
            for name, mine in self._layout().items():
                if theirs[name] != mine:
                    problems.append(f"{name} is {theirs[name]!r} in the state; expected {mine!r}")
            if not problems:
                rng, task = restored_generator(state_dict["rng"]), state_dict.get("task")
                if task is not None and not isinstance(task, str):
                    raise TypeError(f"task is {task!r}")
                self._restore(state_dict["contents"], task)
                self._rng, self._task = rng, task
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            problems.append(
                f"the state is damaged ({type(error).__name__}: {error}); pass what state_dict() gave"
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

    @abstractmethod
    def _contents(self) -> dict[str, Any]:
        """All rows."""

    @abstractmethod
    def _restore(self, contents: Mapping[str, Any], task: str | None) -> None:
        """Take on ``contents``, or raise KeyError, TypeError or ValueError with nothing changed."""
