"""The form of a row with the checks of what is stored, and a ring in which every frame is stored once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from owlrl._arguments import Arguments, kind_of
from owlrl.errors import NonFiniteError, OwlTypeError, OwlValueError, raise_problems
from owlrl.types import as_array

__all__ = ["FrameRing", "n_step_return"]

Gathered = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Observation, action, reward, next observation, terminated, discount: the order of `Transitions`."""


class ArraySpec(NamedTuple):
    """Shape and dtype of one observation or action."""

    shape: tuple[int, ...]
    dtype: np.dtype


class Rows(NamedTuple):
    """K checked transitions, one per lane: arrays (K, ...) ready to be copied into a ring."""

    observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    next_observation: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


REWARD = ArraySpec((), np.dtype(np.float32))
FLAG = ArraySpec((), np.dtype(np.bool_))


class RowSpec(NamedTuple):
    """Shapes and dtypes of a row; ``observation`` and ``next_observation`` share theirs."""

    observation: ArraySpec
    action: ArraySpec

    def rows(
        self,
        values: Sequence[object],
        *,
        lead: tuple[int, ...],
        lanes: np.ndarray,
        where: str,
        task: str | None,
    ) -> Rows:
        """Six given values as `Rows`, or one error that names everything wrong with them.

        ``lead`` is the leading shape of each: () for one row, (E,) for one row per environment, of which only
        those in ``lanes`` are looked at.
        """
        wrong: list[str] = []
        not_finite: list[str] = []
        arrays = []
        specs = (self.observation, self.action, REWARD, self.observation, FLAG, FLAG)
        for name, value, spec in zip(Rows._fields, values, specs, strict=True):
            try:
                array = _stored(value, spec, lead, lanes)
            except (TypeError, ValueError) as error:
                wrong.append(f"{name} {error}")
                continue
            if spec.dtype.kind == "f" and np.count_nonzero(np.isfinite(array)) != array.size:
                bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
                first = array[~np.isfinite(array)][0]
                envs, of_task = ", ".join(map(str, lanes[bad])), "" if task is None else f" (task {task!r})"
                expected = "expected finite numbers that the dtype can hold"
                not_finite.append(f"{name} is {first} in env {envs}{of_task}; {expected}")
            arrays.append(array)
        if wrong or not_finite:
            raise_problems(where, wrong + not_finite, kind=OwlValueError if wrong else NonFiniteError)
        return Rows(*arrays)


def _stored(value: object, spec: ArraySpec, lead: tuple[int, ...], lanes: np.ndarray) -> np.ndarray:
    """``value`` as (K, *shape) in the dtype of ``spec``; ValueError says what is wrong with it.

    Nothing may be lost: floats may be rounded, whole numbers may not.
    """
    try:
        array = as_array(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"cannot be made an array ({error}); expected numbers") from error
    if array.shape != lead + spec.shape:
        per = " (one row per environment)" if lead else ""
        raise ValueError(f"has shape {array.shape}; expected {lead + spec.shape}{per}")
    array = array if lead else array.reshape(-1, *spec.shape)
    array = array if len(lanes) == len(array) else array[lanes]
    kind, dtype = array.dtype.kind, spec.dtype
    if array.dtype == dtype:
        return array
    if spec is FLAG:
        if kind not in "iuf" or not np.isin(array, (0, 1)).all():
            raise ValueError(f"holds {array.dtype} values; expected booleans (or 0 and 1)")
        return array.astype(dtype)
    if kind not in "biuf" or (kind == "f" and dtype.kind != "f"):
        raise ValueError(f"has dtype {array.dtype}; expected {dtype} (or one that fits into it without loss)")
    with np.errstate(all="ignore"):  # what overflows becomes infinite and is reported as such
        stored: np.ndarray = array.astype(dtype)
    fits = kind == "f" or np.array_equal(stored, array)
    if dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        fits = limits.min <= int(array.min()) and int(array.max()) <= limits.max
    if not fits:
        values = f"values from {array.min()} to {array.max()}"
        raise ValueError(f"has dtype {array.dtype} and {values}; expected values that {dtype} can hold")
    return stored


def spaces_of(env: Any) -> tuple[Any, Any, int]:
    """Spaces of one observation and one action, and how many environments there are side by side."""
    observation = getattr(env, "single_observation_space", getattr(env, "observation_space", None))
    action = getattr(env, "single_action_space", getattr(env, "action_space", None))
    if observation is None or action is None:
        raise OwlTypeError(
            f"env is {kind_of(env)} without observation_space and action_space; expected a Gymnasium "
            "environment or a vector of them, e.g. gymnasium.make('CartPole-v1')"
        )
    return observation, action, int(getattr(env, "num_envs", None) or 1)


def array_spec(
    name: str, space: object | None, shape: Any, dtype: Any, arguments: Arguments, *, given: bool
) -> ArraySpec:
    """The `ArraySpec` of an observation or action, from a space, or from shape and dtype if ``given``."""
    if space is not None:
        if given:
            arguments.problem(f"{name}_space is given and {name}_shape or {name}_dtype too; drop one")
        # only the shape and dtype of a space matter, not its class
        name, shape, dtype = f"{name}_space", getattr(space, "shape", None), getattr(space, "dtype", None)
        if shape is None or dtype is None:
            arguments.problem(
                f"{name} is {space!r}, without one shape and dtype; expected something like a Box or "
                "Discrete (flatten Dict and Tuple spaces first)"
            )
            return REWARD
    elif name == "observation" and (shape is None or dtype is None):
        need = f"pass {name}_space, or {name}_shape and {name}_dtype"
        arguments.problem(f"the {name} is not described; {need}")
        return REWARD
    try:
        sizes = tuple(arguments.integer(f"{name}_shape[{i}]", size) for i, size in enumerate(shape))
        made = np.dtype(dtype)
        torch.from_numpy(np.empty(0, made))
        if made.kind not in "biuf":
            raise TypeError(f"{made} is not a real number")
    except TypeError as error:
        arguments.problem(
            f"{name} has shape {shape!r} and dtype {dtype!r}; expected sizes and a numeric dtype ({error})"
        )
        return REWARD
    return ArraySpec(sizes, made)


FRAMES = ("observation", "action", "reward", "terminated", "truncated", "live")  # what a row has
_FLOAT32, _INT64 = np.dtype(np.float32), np.dtype(np.int64)


class FrameRing:
    """E lanes of frames side by side; a transition's next observation is the next frame of its lane.

    Frame ``p`` of lane ``e`` is row ``p * E + e``, so the next frame of the lane is E rows on
    (from the end back to the start). A row is *live* if a transition starts there. Behind the
    newest transition of a lane lies its last observation, not live: the next transition either
    starts on it (its observation is equal, so nothing is stored again) or leaves it as a
    boundary and starts one frame further (after an episode's end, or after a reset that no
    flag announced). Two neighbours that are both live are therefore steps of one episode.

    A lane has ``capacity // num_lanes + 1`` frames: ``capacity`` transitions of one endless
    episode, and one transition less for each boundary.

    >>> import numpy as np
    >>> from owlrl.replay import TaskScopedReplay
    >>> replay = TaskScopedReplay(3, observation_shape=(), observation_dtype=np.uint8)
    >>> for step in range(5):
    ...     replay.add(step, 0, 0.0, step + 1, False, False)
    >>> ring = replay._store.ring
    >>> ring.observation, ring.live  # steps 2, 3 and 4, and the last observation, 5
    (array([4, 5, 2, 3], dtype=uint8), array([ True, False,  True,  True]))
    """

    def __init__(self, spec: RowSpec, *, capacity: int, num_lanes: int) -> None:
        self.spec = spec
        self.num_lanes = num_lanes
        self.num_frames = capacity // num_lanes + 1
        self.num_rows = self.num_frames * num_lanes
        # One record per row: what a sample needs beside frames comes with one look at memory.
        action = ("action", spec.action.dtype, spec.action.shape)
        ends = [("terminated", np.bool_), ("truncated", np.bool_)]
        record = np.dtype([action, ("reward", np.float32), *ends], align=True)
        self.steps = _zeros(self.num_rows, record)
        self.action, self.reward = self.steps["action"], self.steps["reward"]
        self.terminated, self.truncated = self.steps["terminated"], self.steps["truncated"]
        self.observation = np.empty((self.num_rows, *spec.observation.shape), spec.observation.dtype)
        self.live = _zeros(self.num_rows, np.dtype(np.bool_))
        self._action_dtype = np.dtype(np.float32 if spec.action.dtype.kind == "f" else np.int64)
        # from a frame to the next; an array, as numpy adds it faster than an int
        self._next = np.array(num_lanes)
        self._lanes = np.arange(num_lanes)
        self._tail = self._lanes - num_lanes  # row of each lane's last observation
        self._open = np.zeros(num_lanes, np.bool_)  # may the lane's last observation be continued?
        self._laps = np.zeros(num_lanes, np.int64)  # how often the lane began at its start again
        self._span = 0
        self._count = 0
        self.added = 0  # transitions ever added

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of all storage."""
        return self.observation.nbytes + self.steps.nbytes + self.live.nbytes

    def add(self, lanes: np.ndarray, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Store one transition in each of ``lanes`` (K,); return the rows added and those overwritten."""
        here: np.ndarray = self._tail[lanes]
        restart = ~self._continued(lanes, here, rows.observation)
        restarts = np.count_nonzero(restart)
        if restarts:
            here = self._around(here + self._next * restart, lanes)
        touched = after = self._around(here + self._next, lanes)
        if restarts:
            fresh = here[restart]
            self.observation[fresh] = rows.observation[restart]
            touched = np.concatenate((after, fresh))
        self.observation[after] = rows.next_observation
        dropped = touched[self.live[touched]]
        self.live[after] = False
        self.live[here] = True
        for name in ("action", "reward", "terminated", "truncated"):
            getattr(self, name)[here] = getattr(rows, name)
        self._tail[lanes] = after
        self._open[lanes] = ~(rows.terminated | rows.truncated)
        self._count += len(here) - len(dropped)
        self.added += len(here)
        if self._span < self.num_rows:
            self._span = 0
        return here, dropped

    def _continued(self, lanes: np.ndarray, tail: np.ndarray, observation: np.ndarray) -> np.ndarray:
        """Whether each lane's last observation is the given one: (K,) bool."""
        last = self.observation.take(tail, axis=0, mode="wrap")
        continued = self._open.take(lanes)
        if last.tobytes() != observation.tobytes():  # a memcmp, since most often all lanes continue
            shape = (len(lanes), -1)
            continued &= (last.reshape(shape) == observation.reshape(shape)).all(axis=1)
        return continued

    def _around(self, rows: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """``rows``, in place, with those that ran past the end of their lane at its start again."""
        past = rows >= self.num_rows
        if np.count_nonzero(past):
            rows[past] -= self.num_rows
            self._laps[lanes[past]] += 1
        return rows

    @property
    def used(self) -> np.ndarray:
        """How many frames each lane has used: (E,)."""
        return np.where(self._laps > 0, self.num_frames, self._tail // self.num_lanes + 1)

    @property
    def position(self) -> np.ndarray:
        """How far each lane has come, in frames; only differences mean anything: (E,)."""
        frames: np.ndarray = self._laps * self.num_frames + self._tail // self.num_lanes
        return frames

    def rows_since(self, position: np.ndarray) -> np.ndarray:
        """The live rows added since the lanes were at ``position`` (E,), lane by lane, oldest first."""
        now = self.position
        first = np.maximum(position, now - self.num_frames + 1)  # older ones were overwritten
        place = np.arange(max(0, int((now - first).max())))  # (P,)
        frame = (first[:, None] + place) % self.num_frames
        rows: np.ndarray = (frame * self.num_lanes + self._lanes[:, None])[place < (now - first)[:, None]]
        live: np.ndarray = rows[self.live[rows]]
        return live

    @property
    def span(self) -> int:
        """All rows in use are below this one."""
        if not self._span:  # looked up once and kept until rows change it
            last = self.num_rows - 1 if self._laps.any() else int(self._tail.max())
            self._span = (last // self.num_lanes + 1) * self.num_lanes
        return self._span

    def close(self) -> None:
        """End all episodes: the next transition starts a new one in every lane."""
        self._open[:] = False

    def rewind(self, counts: np.ndarray) -> np.ndarray:
        """Forget the newest ``counts`` (E,) transitions of each lane; the rows they were at."""
        gone = []
        for lane in np.flatnonzero(counts).tolist():
            back = (self._tail[lane] - np.arange(1, self.used[lane]) * self.num_lanes) % self.num_rows
            mine = back[self.live[back]][: counts[lane]]
            if not len(mine):
                continue
            gone.append(mine)
            self._laps[lane] -= mine[-1] > self._tail[lane]
            self._tail[lane], self._open[lane] = mine[-1], False
        rows = np.concatenate(gone) if gone else np.zeros(0, np.int64)
        self.live[rows] = False
        self._count -= len(rows)
        self._span = 0
        return rows

    def clear(self) -> None:
        """Forget every row."""
        self.live[: self.span] = False
        self._tail[:] = self._lanes - self.num_lanes
        self._open[:] = False
        self._laps[:] = 0
        self._span = self._count = 0

    def live_rows(self) -> np.ndarray:
        """All rows at which a transition starts, ascending."""
        return np.flatnonzero(self.live[: self.span])

    def draw(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw ``count`` live rows uniformly, with replacement."""
        span, alive = self._span or self.span, self._count
        if 4 * alive < span:  # lanes of very different length: rejecting would be slow
            return np.asarray(self.live_rows()[_integers(rng, alive, count)])
        # Some rows more than asked for, so that enough are left without those where nothing starts.
        drawn = _integers(rng, span, count + 3 * count * (span - alive) // span + 2)
        rows: np.ndarray = drawn[self.live.take(drawn)][:count]
        while len(rows) < count:
            drawn = _integers(rng, span, count)
            rows = np.concatenate((rows, drawn[self.live[drawn]]))[:count]
        return rows

    def gather(self, rows: np.ndarray, n_step: int, gamma: float) -> Gathered:
        """The transitions that start at live ``rows`` (B,), as n-step returns, in fresh arrays."""
        steps, last = self.steps.take(rows), rows
        action, reward, terminated = steps["action"], steps["reward"], steps["terminated"]
        if n_step == 1:
            discount = np.full(len(rows), gamma, _FLOAT32)
        else:
            ahead = (rows[:, None] + self.num_lanes * np.arange(n_step)) % self.num_rows  # (B, n)
            reward, discount, summed = n_step_return(self.reward[ahead], self.live[ahead], gamma)
            last = ahead[np.arange(len(rows)), summed - 1]
            terminated = self.terminated[last]
        return (
            self.observation.take(rows, 0),
            action if action.dtype == self._action_dtype else action.astype(self._action_dtype),
            reward,
            self.observation.take(last + self._next, 0, mode="wrap"),
            terminated,
            discount,
        )

    def previous(self, rows: np.ndarray) -> np.ndarray:
        """The row before each of ``rows`` in its lane; live only if it is a step of the same episode."""
        return (rows - self.num_lanes) % self.num_rows

    def newest(self, limit: int) -> dict[str, Any]:
        """The newest ``limit`` transitions, as `restore` takes them, at the start of the ring.

        Every lane gives the newest part of an equal share (more where others have less).
        """
        shares = fair_shares(self.live.reshape(self.num_frames, -1).sum(axis=0), limit)
        used = np.zeros(self.num_lanes, np.int64)
        held = self.used
        for lane in np.flatnonzero(shares):
            back = (self._tail[lane] - np.arange(held[lane]) * self.num_lanes) % self.num_rows
            used[lane] = np.searchsorted(np.cumsum(self.live[back]), shares[lane]) + 1
        place = np.arange(used.max())[:, None]  # (P, 1) against (E,)
        rows = (self._tail - self.num_lanes * (used - 1 - place)) % self.num_rows
        rows = rows[place < used]
        frames = {name: getattr(self, name)[rows] for name in FRAMES}
        for name in set(FRAMES) - {"observation", "live"}:
            frames[name][~frames["live"]] = 0  # where nothing starts: left by rows that were there before
        tail = (used - 1) * self.num_lanes + self._lanes
        return {**frames, "used": used, "tail": tail, "open": np.zeros(self.num_lanes, np.bool_)}

    def state_dict(self) -> dict[str, Any]:
        """Every used frame in its place: views, which change when rows are added; nothing is copied.

        Where no transition starts, what rows before left there is set to zero, so that equal rings give
        equal bytes.
        """
        span, used = self.span, self.used
        self.steps[:span][~self.live[:span]] = 0
        beyond = np.arange(used.min(), span // self.num_lanes)[:, None]  # where lanes are shorter than others
        unused = beyond * self.num_lanes + self._lanes
        self.observation[unused[beyond >= used]] = 0
        frames = {name: getattr(self, name)[:span] for name in FRAMES}
        return {**frames, "used": used, "tail": self._tail.copy(), "open": self._open.copy()}

    def _places(self, used: np.ndarray, count: int) -> Any:
        """Which rows ``count`` frames of a state are: all up to the longest lane's end, or the used ones."""
        longest = int(used.max())
        if count == longest * self.num_lanes:
            return slice(0, count)
        return np.flatnonzero(np.arange(longest)[:, None] < used)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Hold exactly the frames that `newest` or `state_dict` returned."""
        self.clear()
        rows = self._places(state["used"], len(state["live"]))
        for name in FRAMES:
            getattr(self, name)[rows] = state[name]
        self._laps[:] = state["used"] == self.num_frames
        self._tail[:] = state["tail"]
        self._open[:] = state["open"]
        self._count = int(state["live"].sum())

    def checked(self, state: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """``state`` as arrays that `restore` may take; ValueError, TypeError or KeyError if it is damaged."""
        likes = {"used": self._laps, "tail": self._tail, "open": self._open}
        arrays = {name: as_array(state[name]) for name in (*FRAMES, *likes)}
        used = arrays["used"]
        count = int(used.max()) * self.num_lanes
        count = count if len(arrays["live"]) == count else int(used.sum())
        for name, array in arrays.items():
            like = likes.get(name)
            shape = (count, *getattr(self, name).shape[1:]) if like is None else like.shape
            dtype = getattr(self, name).dtype if like is None else like.dtype
            if array.shape != shape or array.dtype != dtype:
                raise ValueError(f"{name} is {array.dtype} {array.shape}; expected {dtype} {shape}")
        self._check_places(arrays)
        return arrays

    def _check_places(self, arrays: Mapping[str, np.ndarray]) -> None:
        used, tail = arrays["used"], arrays["tail"]
        if (used < 0).any() or (used > self.num_frames).any():
            raise ValueError(f"used is {used.tolist()}; expected 0 to {self.num_frames} frames")
        frame, lane = np.divmod(tail, self.num_lanes)
        wrong = (lane != self._lanes) | (frame >= np.maximum(used, 0)) | (frame < -1)
        # Until a lane is full, its last observation is in the last of its frames.
        if (wrong | ((used < self.num_frames) & (frame != used - 1))).any():
            raise ValueError(f"tail is {tail.tolist()}; expected the rows of each lane's last observation")
        rows = np.arange(used.max() * self.num_lanes)[self._places(used, len(arrays["live"]))]
        place, lane = np.divmod(rows[arrays["live"]], self.num_lanes)
        if ((place == frame[lane]) | (place >= used[lane])).any():
            raise ValueError("live is true at or behind a lane's end; expected no transition there")


def _zeros(size: int, dtype: np.dtype) -> np.ndarray:
    """``np.zeros`` in memory that numpy asks large pages for, which it does for ``np.empty`` only.

    Rows are looked up at random, and with small pages each look-up first has to find its page.
    """
    array = np.empty(size, dtype)
    array.view(np.uint8).fill(0)
    return array


def _integers(rng: np.random.Generator, stop: int, count: int) -> np.ndarray:
    """``count`` integers from 0 to ``stop - 1``; the bias is below ``stop / 2**53``.

    Scaled floats, because ``rng.integers`` takes 2.5 times as long for a small batch.
    """
    return (rng.random(count) * stop).astype(_INT64)


def fair_shares(counts: np.ndarray, limit: int) -> np.ndarray:
    """Split ``limit`` over lanes as evenly as their ``counts`` (E,) allow: 8 of 9, 1, 9 → 3, 1, 4."""
    shares = np.zeros_like(counts)
    left = min(limit, int(counts.sum()))
    order = np.argsort(counts, kind="stable")
    for position, lane in enumerate(order):
        shares[lane] = min(int(counts[lane]), left // (len(order) - position))
        left -= int(shares[lane])
    return shares


def n_step_return(
    reward: np.ndarray, live: np.ndarray, gamma: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Discounted sums of the rewards up to the first row that is not live.

    ``reward`` and ``live`` are (B, n): row b looks n steps ahead, and ``live[:, 0]`` is true.
    Returns the sums ``Σ_{i<k} γ^i r_i`` (B,) float32, the discounts ``γ^k`` (B,) float32 and the
    number of steps summed, k (B,), from 1 to n.

    >>> import numpy as np
    >>> from owlrl.replay.ring import n_step_return
    >>> n_step_return(np.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]),
    ...               np.array([[True, True, True], [True, False, True]]), 0.5)
    (array([3., 1.], dtype=float32), array([0.125, 0.5  ], dtype=float32), array([3, 1]))
    """
    summed = np.logical_and.accumulate(live, axis=1)
    steps = summed.sum(axis=1)
    powers = np.power(gamma, np.arange(reward.shape[1] + 1))  # (n + 1,) float64, rounded once at the end
    sums = (reward * summed) @ powers[:-1]
    return sums.astype(np.float32), powers[steps].astype(np.float32), steps
