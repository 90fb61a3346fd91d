"""`BufferReplay`: a ``ReplayBuffer`` of Stable-Baselines3, or CleanRL's copy of it, one task at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from owlrl._arguments import Arguments, own_generator, restored_generator
from owlrl.errors import NonFiniteError, OwlStateError, refusing
from owlrl.types import Transitions

__all__ = ["BufferReplay"]

COLUMNS = ("actions", "rewards", "dones", "timeouts")
Kept = dict[str, Any]  # arrays (steps, environments, ...) by column; dicts of arrays for dict observations
BUFFER_KEY = 13
SMALL = 2**16  # bytes of a ring that is looked through as a whole at every step
ZEROS = {dtype: np.zeros(2**14, dtype) for dtype in map(np.dtype, (np.float32, np.float64))}


def all_finite(*arrays: np.ndarray) -> bool:
    """Whether there is no NaN and no infinity in ``arrays``; about a microsecond for a small one.

    >>> import numpy as np
    >>> from owlrl.adapters.buffers import all_finite
    >>> all_finite(np.full((2, 3), 3e38, np.float32)), all_finite(np.array([0.0, np.inf]))
    (True, False)
    """
    with np.errstate(invalid="ignore"):
        for array in arrays:
            zeros = ZEROS.get(array.dtype)
            if zeros is None or array.size > len(zeros):
                if not np.isfinite(array).all():
                    return False
            elif array.reshape(-1).dot(zeros[: array.size]) != 0.0:  # 0 · ∞ is NaN
                return False
    return True


def valid_steps(buffer: Any) -> np.ndarray:
    """Places of the valid steps in the ring, oldest first."""
    if not buffer.full:
        return np.arange(buffer.pos)
    # with optimize_memory_usage the oldest step has lost its observation to the newest one
    oldest = buffer.pos + int(buffer.optimize_memory_usage)
    return np.arange(oldest, buffer.pos + buffer.buffer_size) % int(buffer.buffer_size)


def read_columns(buffer: Any, steps: np.ndarray, envs: Any) -> Kept:
    """Rows as the buffer has them, copied."""
    following, later = buffer.observations, (steps + 1) % buffer.buffer_size
    if not buffer.optimize_memory_usage:
        following, later = buffer.next_observations, steps
    return {
        "observations": _each(buffer.observations, lambda array: array[steps, envs].copy()),
        "next_observations": _each(following, lambda array: array[later, envs].copy()),
        **{name: getattr(buffer, name)[steps, envs].copy() for name in COLUMNS},
    }


def refill(
    buffer: Any, kept: Kept, *, at: int = 0, order: np.ndarray | None = None, cut: bool = True
) -> None:
    """Add kept rows to an empty buffer through its ``add``, so that its bookkeeping is right.

    ``order`` says which rows, the oldest first (all by default), ``at`` where the oldest lies in a ring that
    they fill. With ``cut`` what follows is another episode, so the last step ends one: by truncation, where
    the buffer knows it. Where it does not and every row stands for itself, it stays as it is.
    """
    alone = type(buffer).__name__ == "ReplayBuffer" and not buffer.optimize_memory_usage
    ends = cut and (buffer.handle_timeout_termination or not alone)
    if order is None:
        order = np.arange(len(kept["rewards"]) if kept else 0)[-buffer.buffer_size :]
    following, later = kept.get("next_observations"), order
    if following is None and kept:
        following, later = kept["observations"], (order + 1) % buffer.buffer_size
    if at:
        buffer.pos = at
        if hasattr(buffer, "_current_ep_start"):  # a HerReplayBuffer's
            buffer._current_ep_start[:] = at
    for step, after in zip(order.tolist(), later.tolist(), strict=True):
        done = kept["dones"][step] > 0.5
        here = ~done if ends and step == order[-1] else np.zeros_like(done)
        seen = _each(kept["observations"], lambda array, step=step: array[step])
        then = _each(following, lambda array, after=after: array[after])
        infos = [{"TimeLimit.truncated": bool(flag)} for flag in (kept["timeouts"][step] > 0.5) | here]
        buffer.add(seen, then, kept["actions"][step], kept["rewards"][step], done | here, infos)


class BufferReplay:
    """Lets a script keep its ``ReplayBuffer`` of Stable-Baselines3, or CleanRL's copy of it.

    The same object stays in use: `begin_task` empties it in place and refills it with the last rows
    of that task. `QLearner` and `ActorCriticLearner` make one from ``replay=rb``; make it yourself to keep
    fewer rows. Actions are used as the script stores them. New rows are found by the buffer's ``pos`` and
    ``full``; nothing is attached to it, so it can be pickled as before.

    Args:
        buffer: the script's buffer; not one of dict observations.
        gamma: the script's discount.
        warm_start: steps kept of each task for a revisit, over all environments; 0 keeps none.
        seed: of the replay's random numbers; the script's own draws are not touched.

    Attributes:
        overruns: how often a whole lap of the ring lay between two looks, so that rows may be lost.

    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from stable_baselines3.common.buffers import ReplayBuffer
    >>> from owlrl.adapters.buffers import BufferReplay
    >>> rb = ReplayBuffer(100, spaces.Box(0, 1, (2,)), spaces.Discrete(3))
    >>> replay = BufferReplay(rb)
    >>> replay.begin_task("left")
    >>> rb.add(np.zeros((1, 2)), np.ones((1, 2)), np.array([1]), np.array([0.5]), np.array([True]), [{}])
    >>> replay.new_rows().reward, replay.new_rows()
    (tensor([0.5000]), None)
    >>> replay.end_task()
    >>> replay.begin_task("right"); len(replay)
    0
    >>> replay.begin_task("left"); replay
    BufferReplay(ReplayBuffer of 1 rows, task='left', warm_start=50000, kept={'left': 1})
    """

    observation_shape: tuple[int, ...]
    observation_dtype: np.dtype[Any]
    action_shape: tuple[int, ...]
    action_dtype: np.dtype[Any]

    def __init__(
        self, buffer: Any, *, gamma: float = 0.99, warm_start: int = 50_000, seed: int | None = None
    ) -> None:
        arguments = Arguments(type(self).__name__)
        self.warm_start: int = arguments.integer("warm_start", warm_start, least=0)
        self.seed: int | None = arguments.integer("seed", seed, least=0, none=True)
        arguments.check()
        self._own_buffer = buffer
        if buffer is not None:
            self._discrete = bool(buffer.actions.dtype.kind in "iu")
            self.observation_shape = buffer.observations.shape[2:]
            self.observation_dtype = buffer.observations.dtype
            self.action_shape = () if self._discrete else buffer.actions.shape[2:]
            self.action_dtype = buffer.actions.dtype
        self.gamma = gamma
        self.overruns = 0
        self._taken = 0  # newest steps that are no longer the task's
        self._task: str | None = None
        self._begun = False  # and not ended
        self._loaded: dict[str, Any] | None = None  # a visit that was saved before its end
        self._kept: dict[str, Kept] = {}
        self._rng = own_generator(self.seed, BUFFER_KEY)
        self._finite: _FiniteLook | None = None  # what was seen to be finite
        self._seen = _Mark()  # what is in the buffer now is new

    @property
    def buffer(self) -> Any:
        """The buffer that is written to now."""
        return self._own_buffer

    @property
    def num_actions(self) -> int | None:
        """How many discrete actions there are, where the buffer knows its space."""
        count = getattr(getattr(self.buffer, "action_space", None), "n", None)
        return None if count is None else int(count)

    def begin_task(self, task: str) -> None:
        """Empty the buffer and refill it with what was kept of ``task``."""
        self.buffer.reset()
        refill(self.buffer, self._kept.get(task, {}))
        self._task, self._begun, self._loaded = task, True, None
        self._finite = None
        self._seen = _Mark.of(self.buffer)

    def resume_task(self, task: str) -> None:
        """Continue with a visit that was interrupted; after loading, with its rows at their places.

        The last one ends its episode: what comes next does not continue it.
        """
        if self._loaded is not None:
            self._refill_visit(task, self._loaded, cut=True)

    def _refill_visit(self, task: str, visit: Mapping[str, Any], *, cut: bool) -> None:
        """Restore the rows of a loaded visit at their places; with ``cut`` the last one ends its episode."""
        buffer = self.buffer
        buffer.pos, buffer.full = int(visit["pos"]), bool(visit["full"])
        order = valid_steps(buffer)
        buffer.reset()
        refill(buffer, visit["rows"], at=int(order[0]) if len(order) else 0, order=order, cut=cut)
        buffer.full = bool(visit["full"])
        self._task, self._begun, self._loaded = task, True, None
        self._finite = None
        self._seen = _Mark.of(buffer, unseen=int(visit["new"]))

    def end_task(self) -> None:
        """Keep the last ``warm_start`` steps of the task; the buffer keeps its rows until the next one."""
        if self._task is None:
            raise OwlStateError(
                f"{type(self).__name__}.end_task: no task was begun; call begin_task(task) first"
            )
        count = self.warm_start // int(self.buffer.n_envs)
        own = valid_steps(self.buffer)
        steps = own[: len(own) - self._taken][-count:] if count else np.zeros(0, np.int64)
        if len(steps):
            self._kept[self._task] = read_columns(self.buffer, steps, slice(None))
        self._begun, self._taken = False, 0

    def take_back(self, rows: Transitions) -> Kept:
        """Remove the newest steps from the task that is about to end, those of which ``rows`` are copies.

        The buffer still has them until the next task begins; what is kept of the task has not.
        """
        steps = valid_steps(self.buffer)
        self._taken = min(len(steps), -(-len(rows) // int(self.buffer.n_envs)))
        return read_columns(self.buffer, steps[len(steps) - self._taken :], slice(None))

    def put(self, moved: Kept) -> None:
        """Store what `take_back` returned; those rows are not new."""
        self._taken = 0
        refill(self.buffer, moved, cut=False)
        self._seen = _Mark.of(self.buffer)

    def forget(self, task: str) -> None:
        """Drop what is kept of ``task``."""
        self._kept.pop(task, None)

    def sample(self, batch_size: int) -> Transitions:
        """Draw one-step rows uniformly with replacement, as the networks see them."""
        return self._drawn(self._rng.integers(0, len(self), batch_size))

    def _drawn(self, index: np.ndarray) -> Transitions:
        envs = int(self.buffer.n_envs)
        return self._transitions(valid_steps(self.buffer)[index // envs], index % envs, raw=False)

    def new_rows(self) -> Transitions | None:
        """The one-step rows stored since the last look, raw, oldest first; None if there are none."""
        buffer = self.buffer
        count, lapped = self._seen.steps_since(buffer)
        steps, envs = valid_steps(buffer), int(buffer.n_envs)
        self._seen = _Mark.of(buffer)
        self.overruns += lapped
        if lapped and self.overruns == 1:
            warnings.warn(
                f"{type(self).__name__}: the buffer of {buffer.buffer_size} steps was overwritten "
                "between two looks, so that rows may be missing in the task's memory; use a larger one",
                UserWarning,
                stacklevel=2,
            )
        steps = steps[len(steps) - min(count, len(steps)) :]
        if not len(steps):
            return None
        return self._transitions(np.repeat(steps, envs), np.tile(np.arange(envs), len(steps)), raw=True)

    def check_new(self) -> None:
        """Raise if a row that was stored since the last call, unless that raised, is not finite."""
        buffer, known = self.buffer, self._finite
        if known is None or known.buffer is not buffer or known.rewards is not buffer.rewards:
            known = self._finite = _FiniteLook(buffer)
        known.look()

    def state_dict(self) -> dict[str, Any]:
        """The kept rows and the random state; inside a task also the rows that are in the buffer.

        The buffer is refilled from them when a task begins or continues.
        """
        state = {"kept": dict(self._kept), "rng": self._rng.bit_generator.state}
        visit = self._visit() if self._begun else self._loaded
        return state if visit is None else {**state, "visit": visit}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned."""
        where, same = (
            f"{type(self).__name__}.load_state_dict",
            " for the same spaces and number of environments",
        )
        with refusing(where, same):
            rng = restored_generator(state_dict["rng"])
            kept = dict(state_dict["kept"])
            for task, columns in kept.items():
                _check_fits(self.buffer, task, columns)
            visit = self._checked_visit(state_dict.get("visit"))
            self._load_more(state_dict)
        self._kept, self._rng = kept, rng
        self._loaded, self._begun = visit, False

    def __len__(self) -> int:
        return len(valid_steps(self.buffer)) * int(self.buffer.n_envs)

    def __repr__(self) -> str:
        kept = {task: columns["rewards"].size for task, columns in self._kept.items()}
        return (
            f"{type(self).__name__}({type(self.buffer).__name__} of {len(self)} rows, task={self._task!r}, "
            f"warm_start={self.warm_start}, kept={kept})"
        )

    def _visit(self) -> dict[str, Any]:
        """The ring as it lies in memory, not copied, and how many steps were not looked at yet."""
        buffer = self.buffer
        if getattr(buffer, "copy_info_dict", False):
            raise OwlStateError(
                f"{type(self).__name__}.state_dict: the {type(buffer).__name__} has copy_info_dict=True, and "
                "info dicts cannot be saved; save outside of the task's block"
            )
        size, one_ring = int(buffer.buffer_size), bool(buffer.optimize_memory_usage)
        used = size if buffer.full else int(buffer.pos)
        count, lapped = self._seen.steps_since(buffer)
        rows = {name: getattr(buffer, name)[:used] for name in COLUMNS}
        rows["observations"] = _each(buffer.observations, lambda array: array[: used + one_ring])
        if not one_ring:
            rows["next_observations"] = _each(buffer.next_observations, lambda array: array[:used])
        return {
            "rows": rows,
            "pos": int(buffer.pos),
            "new": size if lapped else count,
            "full": bool(buffer.full),
            "size": size,
        }

    def _checked_visit(self, visit: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Raise ValueError unless the rows of a visit fit the buffer."""
        if visit is None:
            return None
        size, pos, steps = int(self.buffer.buffer_size), int(visit["pos"]), len(visit["rows"]["rewards"])
        if visit["size"] != size:
            raise ValueError(f"a buffer of {visit['size']} steps was saved, this one has {size}")
        if not 0 <= pos < size or steps != (size if visit["full"] else pos) or int(visit["new"]) < 0:
            raise ValueError(f"{steps} rows lie in a ring of {size} that is written to at place {pos}")
        if ("next_observations" in visit["rows"]) == self.buffer.optimize_memory_usage:
            raise ValueError("optimize_memory_usage was another")
        _check_fits(self.buffer, "visit", visit["rows"])
        return dict(visit)

    def _load_more(self, state_dict: Mapping[str, Any]) -> None:
        """Take what a subclass keeps beside rows; errors leave everything as it was."""

    def _transitions(self, steps: np.ndarray, envs: np.ndarray, *, raw: bool) -> Transitions:
        columns = read_columns(self.buffer, steps, envs)
        if not raw:
            columns = self._seen_by_networks(columns)
        done, ran_out = columns["dones"] > 0.5, columns["timeouts"] > 0.5
        return Transitions(
            observation=self._observation(columns["observations"]),
            action=self._action(columns["actions"]),
            reward=torch.from_numpy(columns["rewards"].astype(np.float32)),
            next_observation=self._observation(columns["next_observations"]),
            terminated=torch.from_numpy(done & ~ran_out),
            discount=torch.full((len(steps),), float(self.gamma)),
            task=self._task,
            truncated=torch.from_numpy(done & ran_out),
            env=torch.from_numpy(envs.astype(np.int64)),
        )

    def _seen_by_networks(self, columns: Kept) -> Kept:
        """Rows as the owner's networks see them."""
        return columns

    def _observation(self, observation: Any) -> Tensor:
        return torch.from_numpy(observation)

    def _action(self, actions: np.ndarray) -> Tensor:
        """(B,) int64, or (B, A) float32."""
        if self._discrete:
            return torch.from_numpy(actions[:, 0].astype(np.int64))
        return torch.from_numpy(actions.astype(np.float32))


@dataclass
class _Mark:
    """How far a ring was written at the last look, and what its newest step was."""

    buffer: Any = None
    pos: int = 0
    full: bool = False
    newest: list[np.ndarray] | None = None

    @classmethod
    def of(cls, buffer: Any, *, unseen: int = 0) -> _Mark:
        """The mark of a buffer as it was ``unseen`` steps ago."""
        if unseen and unseen >= len(valid_steps(buffer)):
            return cls()
        pos, full = int(buffer.pos - unseen) % int(buffer.buffer_size), bool(buffer.full)
        return cls(buffer, pos, full, _step_content(buffer, pos - 1) if pos or full else None)

    def steps_since(self, buffer: Any) -> tuple[int, bool]:
        """How many steps were written since (at least), and whether all that were there are overwritten."""
        size, pos = int(buffer.buffer_size), int(buffer.pos)
        another = self.buffer is not buffer
        if not another and self.newest is None:  # it was empty
            return (size, True) if buffer.full else (pos, False)
        emptied = not buffer.full and (self.full or pos < self.pos)
        if another or emptied:
            return (size if buffer.full else pos), False
        now = _step_content(buffer, self.pos - 1)
        if self.newest and not all(map(np.array_equal, self.newest, now)):
            return size, True
        return (pos - self.pos) % size, False


class _FiniteLook:
    """Looks at each row of a buffer once, soon after it was stored: is it finite?"""

    def __init__(self, buffer: Any) -> None:
        self.buffer, self.rewards = buffer, buffer.rewards
        self.size, self.one_ring = int(buffer.buffer_size), bool(buffer.optimize_memory_usage)
        columns = {"reward": buffer.rewards, "action": buffer.actions}
        for name in ("observation", "next_observation")[: 1 if self.one_ring else 2]:
            given = getattr(buffer, f"{name}s")
            parts = given if isinstance(given, dict) else {"": given}
            columns |= {f"{name}[{part!r}]" if part else name: array for part, array in parts.items()}
        self.columns = {name: array for name, array in columns.items() if array.dtype.kind == "f"}
        self.flat = [(array.reshape(-1), array[0].size) for array in self.columns.values()]  # of whole rings
        # a small ring may be written from end to end between two looks without its position showing it
        self.whole = sum(array.nbytes for array in self.columns.values()) <= SMALL
        self.until: int | None = None  # the first place that was not looked at

    def look(self) -> None:
        """Look at the rows since the last look, unless that raised."""
        pos = int(self.buffer.pos)
        if self.whole or self.until is None:
            count = self.size if self.buffer.full else pos
        else:
            count = (pos - self.until) % self.size
        if count:
            # the newest row's next observation may have the next row's place
            start, end = pos - count, pos + int(self.one_ring)
            if start < 0 or end > self.size:
                places = np.arange(start, end) % self.size
                finite = all_finite(*[array[places] for array in self.columns.values()])
            else:
                finite = all_finite(*[array[start * width : end * width] for array, width in self.flat])
            if not finite:
                self._raise(np.arange(start, end) % self.size)
        self.until = pos

    def _raise(self, places: np.ndarray) -> None:
        for name, array in self.columns.items():
            found = array[places]
            if not all_finite(found):
                step, env = np.argwhere(~np.isfinite(found))[0][:2].tolist()
                value = found[step, env][~np.isfinite(found[step, env])].flat[0]
                raise NonFiniteError(
                    f"{name} is {value} at place {places[step]} of the {type(self.buffer).__name__}, "
                    f"environment {env}; drop or correct that row"
                )


def _step_content(buffer: Any, place: int) -> list[np.ndarray]:
    """What tells a step from another that was written to its place later."""
    step, seen = place % int(buffer.buffer_size), buffer.observations
    arrays = seen.values() if isinstance(seen, dict) else [seen]
    return [array[step].copy() for array in (*arrays, buffer.actions, buffer.rewards)]


def _check_fits(buffer: Any, task: str, columns: Kept) -> None:
    """Raise ValueError unless kept rows have the shapes of the buffer's."""
    given, own = columns["observations"], buffer.observations
    pairs = [(name, columns[name], getattr(buffer, name)) for name in COLUMNS]
    if isinstance(own, dict):
        pairs += [(f"observations[{name!r}]", given[name], array) for name, array in own.items()]
    else:
        pairs.append(("observations", given, own))
    for name, array, like in pairs:
        if array.shape[1:] != like.shape[1:]:
            raise ValueError(f"{name} of task {task!r} have shape {array.shape[1:]}, not {like.shape[1:]}")


def _each(arrays: Any, function: Callable[..., Any]) -> Any:
    """``function`` of an array, or of each array in a dict."""
    if isinstance(arrays, dict):
        return {name: function(array) for name, array in arrays.items()}
    return function(arrays)
