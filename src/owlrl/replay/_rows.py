"""What one row looks like, and the checks of all that is asked of a replay and put into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from owlrl._arguments import Arguments
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, raise_problems
from owlrl.types import Transitions

__all__ = [
    "ArraySpec",
    "Gathered",
    "RowSpec",
    "Rows",
    "action_spec",
    "as_array",
    "check_batch_size",
    "check_priorities",
    "check_task",
    "observation_spec",
    "restored_generator",
    "spaces_of",
    "to_transitions",
]

Gathered = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Observation, action, reward, next observation, terminated, discount: the order of `Transitions`."""


@dataclass(frozen=True)
class ArraySpec:
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


@dataclass(frozen=True)
class RowSpec:
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
        """Six given values as `Rows`, or one error naming everything wrong with them.

        Args:
            values: what was given, in the order of the fields of `Rows`.
            lead: leading shape of each value: () for one row, (E,) for one row per environment.
            lanes: environments to take, in a batch; the others are not even looked at.
            where: the call that asks, for the message.
            task: the current task, for the message.
        """
        check = _RowCheck(lead, lanes)
        rows = Rows(
            check.array("observation", values[0], self.observation),
            check.array("action", values[1], self.action),
            check.array("reward", values[2], REWARD),
            check.array("next_observation", values[3], self.observation),
            check.flags("terminated", values[4]),
            check.flags("truncated", values[5]),
        )
        if check.wrong or check.not_finite:
            _refuse(where, task, check.wrong, check.not_finite)
        return rows


REWARD = ArraySpec((), np.dtype(np.float32))
_FLAG = np.dtype(np.bool_)


class _RowCheck:
    """Turns given values into arrays and collects what is wrong with them."""

    def __init__(self, lead: tuple[int, ...], lanes: np.ndarray) -> None:
        self.lead = lead
        self.lanes = lanes
        self.wrong: list[str] = []
        self.not_finite: list[str] = []

    def array(self, name: str, value: object, spec: ArraySpec) -> np.ndarray:
        """``value`` as (K, *spec.shape) of ``spec.dtype``, if nothing is lost by that."""
        array = self._shaped(name, value, spec.shape)
        if array is None:
            return _NOTHING
        if array.dtype != spec.dtype:
            array = self._cast(name, array, spec.dtype)
        if spec.dtype.kind == "f" and np.count_nonzero(np.isfinite(array)) != array.size:
            self._report_not_finite(name, array)
        return array

    def flags(self, name: str, value: object) -> np.ndarray:
        """``value`` as (K,) bool; numbers 0 and 1 will do."""
        array = self._shaped(name, value, ())
        if array is None:
            return _NOTHING
        if array.dtype != _FLAG:
            if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
                self.wrong.append(f"{name} holds {array.dtype} values; expected booleans (or 0 and 1)")
            array = array.astype(_FLAG, copy=False) if array.dtype.kind in "iuf" else _NOTHING
        return array

    def _shaped(self, name: str, value: object, shape: tuple[int, ...]) -> np.ndarray | None:
        try:
            array = as_array(value)
        except (ValueError, TypeError) as error:
            self.wrong.append(f"{name} cannot be made an array ({error}); expected numbers")
            return None
        expected = self.lead + shape
        if array.shape != expected:
            per = " (one row per environment)" if self.lead else ""
            self.wrong.append(f"{name} has shape {array.shape}; expected {expected}{per}")
            return None
        array = array.reshape(-1, *shape) if not self.lead else array
        return array if len(self.lanes) == len(array) else array[self.lanes]

    def _cast(self, name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and dtype.kind != "f"):
            self.wrong.append(
                f"{name} has dtype {array.dtype}; expected {dtype} (or one that fits into it without loss)"
            )
            return np.zeros(array.shape, dtype)
        with np.errstate(all="ignore"):  # what overflows becomes infinite and is reported as such
            stored = array.astype(dtype)
        if not _fits(array, stored):
            self.wrong.append(
                f"{name} has dtype {array.dtype} and values from {array.min()} to {array.max()}; "
                f"expected values that {dtype} can hold"
            )
        return stored

    def _report_not_finite(self, name: str, array: np.ndarray) -> None:
        bad = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
        value = array[bad].ravel()
        value = value[~np.isfinite(value)][0]
        envs = ", ".join(str(env) for env in self.lanes[bad])
        self.not_finite.append(f"{name} is {value} in env {envs}")


_NOTHING = np.zeros(0)


def _fits(array: np.ndarray, stored: np.ndarray) -> bool:
    """Whether ``stored`` says what ``array`` says; floats may be rounded, whole numbers may not."""
    if stored.dtype.kind in "iu" and array.size:
        limits = np.iinfo(stored.dtype)
        return bool(limits.min <= int(array.min()) and int(array.max()) <= limits.max)
    return array.dtype.kind == "f" or np.array_equal(stored, array)


def _refuse(where: str, task: str | None, wrong: list[str], not_finite: list[str]) -> None:
    of_task = "" if task is None else f" (task {task!r})"
    finite = [
        f"{problem}{of_task}; expected finite numbers that the dtype can hold" for problem in not_finite
    ]
    if wrong:
        raise_problems(where, wrong + finite)
    raise_problems(where, finite, kind=NonFiniteError)


def as_array(value: object) -> np.ndarray:
    """``value`` as an array: tensors are detached and brought to the CPU first."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def spaces_of(env: Any) -> tuple[Any, Any, int]:
    """Spaces of one observation and one action, and how many environments there are side by side.

    >>> import gymnasium
    >>> from owlrl.replay._rows import spaces_of
    >>> spaces_of(gymnasium.make_vec("CartPole-v1", num_envs=3))[1:]
    (Discrete(2), 3)
    """
    observation = getattr(env, "single_observation_space", getattr(env, "observation_space", None))
    action = getattr(env, "single_action_space", getattr(env, "action_space", None))
    if observation is None or action is None:
        raise OwlTypeError(
            f"env is a {type(env).__name__} without observation_space and action_space; expected a Gymnasium "
            "environment or a vector of them, e.g. gymnasium.make('CartPole-v1')"
        )
    return observation, action, int(getattr(env, "num_envs", None) or 1)


def observation_spec(
    space: object | None, shape: Sequence[int] | None, dtype: npt.DTypeLike | None, arguments: Arguments
) -> ArraySpec:
    """The observation's `ArraySpec` from a space or from shape and dtype."""
    if space is not None:
        if shape is not None or dtype is not None:
            arguments.problem(
                "observation_space is given and observation_shape or observation_dtype too; drop one"
            )
        return _space_spec("observation_space", space, arguments)
    if shape is None or dtype is None:
        arguments.problem(
            "the observation is not described; pass observation_space, or observation_shape and "
            "observation_dtype"
        )
        return REWARD
    return _array_spec("observation", shape, dtype, arguments)


def action_spec(
    space: object | None, shape: Sequence[int], dtype: npt.DTypeLike, arguments: Arguments
) -> ArraySpec:
    """The action's `ArraySpec` from a space or from shape and dtype."""
    if space is not None:
        if tuple(shape) != () or np.dtype(dtype) != np.int64:
            arguments.problem("action_space is given and action_shape or action_dtype too; drop one")
        return _space_spec("action_space", space, arguments)
    return _array_spec("action", shape, dtype, arguments)


def _space_spec(name: str, space: object, arguments: Arguments) -> ArraySpec:
    # Spaces are foreign objects: only their shape and dtype matter, whoever made them.
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None:
        arguments.problem(
            f"{name} is {space!r}, without one shape and dtype; expected something like a Box or Discrete "
            "(flatten Dict and Tuple spaces first)"
        )
        return REWARD
    return _array_spec(name, shape, dtype, arguments)


def _array_spec(name: str, shape: Sequence[int], dtype: npt.DTypeLike, arguments: Arguments) -> ArraySpec:
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


def to_transitions(
    found: Gathered,
    weight: np.ndarray | None,
    index: np.ndarray | None,
    task: str | None,
    device: torch.device | str,
) -> Transitions:
    """Gathered arrays as `Transitions` on ``device``, without copying what is on the CPU."""
    tensor = torch.from_numpy
    observation, action, reward, next_observation, terminated, discount = found
    made = Transitions(
        tensor(observation),
        tensor(action),
        tensor(reward),
        tensor(next_observation),
        tensor(terminated),
        tensor(discount),
        None if weight is None else tensor(weight),
        index,
        task,
    )
    return made if device == "cpu" else made.to(device)


def check_batch_size(where: str, size: Any, rows: int, task: str | None, *, least: int | None = None) -> None:
    """Raise unless ``size`` is a positive int and there are as many rows (or ``least`` rows)."""
    arguments = Arguments(where)
    size = arguments.integer("the number of rows asked for", size)
    arguments.check()
    if rows < (size if least is None else least):
        of_task = "" if task is None else f" of task {task!r}"
        raise OwlStateError(
            f"{where}: {size} rows{of_task} were asked for and there are {rows}; "
            "add more first, or ask for fewer"
        )


def check_task(where: str, task: object) -> None:
    """Raise unless ``task`` is a name."""
    if not isinstance(task, str):
        raise OwlTypeError(f"{where}: task is {task!r} ({type(task).__name__}); expected a str")


def check_priorities(
    where: str, index: object, priorities: object, num_rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows (B,) int64 and priorities (B,) float64, or one error naming what is wrong with them."""
    rows, new = as_array(index), as_array(priorities)
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


def restored_generator(state: Mapping[str, Any]) -> np.random.Generator:
    """A generator that goes on where the one that gave ``state`` was."""
    generator = np.random.default_rng()
    generator.bit_generator.state = dict(state)
    return generator
