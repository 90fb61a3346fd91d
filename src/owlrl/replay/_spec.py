"""What one row looks like, and the checks that every row passes before it is stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch

from owlrl.errors import NonFiniteError, raise_problems

__all__ = [
    "ArraySpec",
    "RowSpec",
    "Rows",
    "action_spec",
    "as_array",
    "number",
    "observation_spec",
    "positive_int",
]


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


def positive_int(name: str, value: object, problems: list[str], *, least: int = 1) -> int:
    """``value`` if it is a whole number of at least ``least``; otherwise note the problem."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        problems.append(f"{name} is {value!r}; expected an int >= {least}")
        return least
    return int(value)


def number(name: str, value: object, problems: list[str], *, most: float = np.inf) -> None:
    """Note a problem unless ``value`` is a finite number from 0 to ``most``."""
    plain = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if plain and 0 <= cast(float, value) <= most and cast(float, value) < np.inf:
        return
    expected = "finite number >= 0" if most == np.inf else f"number from 0 to {most:g}"
    problems.append(f"{name} is {value!r}; expected a {expected}")


def observation_spec(
    space: object | None, shape: Sequence[int] | None, dtype: npt.DTypeLike | None, problems: list[str]
) -> ArraySpec:
    """The observation's `ArraySpec` from a space or from shape and dtype."""
    if space is not None:
        if shape is not None or dtype is not None:
            problems.append(
                "observation_space is given and observation_shape or observation_dtype too; drop one"
            )
        return _space_spec("observation_space", space, problems)
    if shape is None or dtype is None:
        problems.append(
            "the observation is not described; pass observation_space, or observation_shape and "
            "observation_dtype"
        )
        return REWARD
    return _array_spec("observation", shape, dtype, problems)


def action_spec(
    space: object | None, shape: Sequence[int], dtype: npt.DTypeLike, problems: list[str]
) -> ArraySpec:
    """The action's `ArraySpec` from a space or from shape and dtype."""
    if space is not None:
        if tuple(shape) != () or np.dtype(dtype) != np.int64:
            problems.append("action_space is given and action_shape or action_dtype too; drop one")
        return _space_spec("action_space", space, problems)
    return _array_spec("action", shape, dtype, problems)


def _space_spec(name: str, space: object, problems: list[str]) -> ArraySpec:
    # Spaces are foreign objects: only their shape and dtype matter, whoever made them.
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None:
        problems.append(
            f"{name} is {space!r}, without one shape and dtype; expected something like a Box or Discrete "
            "(flatten Dict and Tuple spaces first)"
        )
        return REWARD
    return _array_spec(name, shape, dtype, problems)


def _array_spec(name: str, shape: Sequence[int], dtype: npt.DTypeLike, problems: list[str]) -> ArraySpec:
    try:
        sizes = tuple(positive_int(f"{name}_shape[{i}]", size, problems) for i, size in enumerate(shape))
        made = np.dtype(dtype)
        torch.from_numpy(np.empty(0, made))
        if made.kind not in "biuf":
            raise TypeError(f"{made} is not a real number")
    except TypeError as error:
        problems.append(
            f"{name} has shape {shape!r} and dtype {dtype!r}; expected sizes and a numeric dtype ({error})"
        )
        return REWARD
    return ArraySpec(sizes, made)
