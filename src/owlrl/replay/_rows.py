"""What one row looks like, and the checks of all that is asked of a replay and put into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from owlrl._arguments import Arguments
from owlrl.errors import NonFiniteError, OwlStateError, OwlTypeError, OwlValueError, raise_problems
from owlrl.types import Transitions

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
NOTHING = np.zeros(0)


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
        """Six given values as `Rows`, or one error naming everything wrong with them.

        Args:
            values: what was given, in the order of the fields of `Rows`.
            lead: leading shape of each value: () for one row, (E,) for one row per environment.
            lanes: environments to take, in a batch; the others are not even looked at.
            where: the call that asks, for the message.
            task: the current task, for the message.
        """
        wrong: list[str] = []
        not_finite: list[str] = []
        arrays = []
        specs = (self.observation, self.action, REWARD, self.observation, FLAG, FLAG)
        for name, value, spec in zip(Rows._fields, values, specs, strict=True):
            array = _shaped(name, value, spec.shape, lead, lanes, wrong)
            if array.dtype != spec.dtype and array is not NOTHING:
                array = (_as_flags if spec is FLAG else _cast)(name, array, spec.dtype, wrong)
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


def _shaped(
    name: str,
    value: object,
    shape: tuple[int, ...],
    lead: tuple[int, ...],
    lanes: np.ndarray,
    wrong: list[str],
) -> np.ndarray:
    """``value`` as (K, *shape), or NOTHING."""
    try:
        array = as_array(value)
    except (ValueError, TypeError) as error:
        wrong.append(f"{name} cannot be made an array ({error}); expected numbers")
        return NOTHING
    if array.shape != lead + shape:
        per = " (one row per environment)" if lead else ""
        wrong.append(f"{name} has shape {array.shape}; expected {lead + shape}{per}")
        return NOTHING
    array = array if lead else array.reshape(-1, *shape)
    return array if len(lanes) == len(array) else array[lanes]


def _as_flags(name: str, array: np.ndarray, dtype: np.dtype, wrong: list[str]) -> np.ndarray:
    """Numbers 0 and 1 as booleans."""
    if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
        wrong.append(f"{name} holds {array.dtype} values; expected booleans (or 0 and 1)")
        return NOTHING
    return array.astype(dtype)


def _cast(name: str, array: np.ndarray, dtype: np.dtype, wrong: list[str]) -> np.ndarray:
    """``array`` in ``dtype``, if nothing is lost by that; floats may be rounded, whole numbers may not."""
    kind = array.dtype.kind
    if kind not in "biuf" or (kind == "f" and dtype.kind != "f"):
        wrong.append(
            f"{name} has dtype {array.dtype}; expected {dtype} (or one that fits into it without loss)"
        )
        return np.zeros(array.shape, dtype)
    with np.errstate(all="ignore"):  # what overflows becomes infinite and is reported as such
        stored = array.astype(dtype)
    if dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        fits = limits.min <= int(array.min()) and int(array.max()) <= limits.max
    else:
        fits = kind == "f" or np.array_equal(stored, array)
    if not fits:
        wrong.append(
            f"{name} has dtype {array.dtype} and values from {array.min()} to {array.max()}; "
            f"expected values that {dtype} can hold"
        )
    return stored


def as_array(value: object) -> np.ndarray:
    """``value`` as an array: tensors are detached and brought to the CPU first."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return np.asarray(value)


def spaces_of(env: Any) -> tuple[Any, Any, int]:
    """Spaces of one observation and one action, and how many environments there are side by side."""
    observation = getattr(env, "single_observation_space", getattr(env, "observation_space", None))
    action = getattr(env, "single_action_space", getattr(env, "action_space", None))
    if observation is None or action is None:
        raise OwlTypeError(
            f"env is a {type(env).__name__} without observation_space and action_space; expected a Gymnasium "
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
        # spaces are foreign objects: only their shape and dtype matter, whoever made them
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


def to_transitions(
    found: Gathered,
    weight: np.ndarray | None,
    index: np.ndarray | None,
    task: str | None,
    device: torch.device | str,
) -> Transitions:
    """Gathered arrays as `Transitions` on ``device``, without copying what is on the CPU."""
    observation, action, reward, after, terminated, discount = map(torch.from_numpy, found)
    weights = None if weight is None else torch.from_numpy(weight)
    made = Transitions(observation, action, reward, after, terminated, discount, weights, index, task)
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
