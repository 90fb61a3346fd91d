"""What one row looks like, and the checks of what is put into a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from owlrl._arguments import Arguments
from owlrl.errors import NonFiniteError, OwlTypeError, OwlValueError, raise_problems

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

        Args:
            values: in the order of the fields of `Rows`.
            lead: leading shape of each value: () for one row, (E,) for one row per environment.
            lanes: environments to take from a batch; the others are not looked at.
            where: the call, for the message.
            task: the current task, for the message.
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


def restored_generator(state: Mapping[str, Any]) -> np.random.Generator:
    """A generator that continues where the one that gave ``state`` was."""
    generator = np.random.default_rng()
    generator.bit_generator.state = dict(state)
    return generator
