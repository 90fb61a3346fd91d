"""What all evidence has in common: losses in units of a head's own scale, and checks."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from owlrl.errors import (
    NonFiniteError,
    OwlStateError,
    OwlTypeError,
    OwlValueError,
    int_problem,
    raise_problems,
)
from owlrl.types import Transitions

__all__ = [
    "FloatArray",
    "argument_problems",
    "calibrated_loss",
    "check_arms",
    "check_finite",
    "check_keys",
    "check_rows",
    "rms",
    "scales_from",
    "spread",
]

FloatArray = npt.NDArray[np.float64]


def calibrated_loss(
    delta: FloatArray, scale: npt.ArrayLike, *, clip: float = 5.0, power: float = 1.0
) -> FloatArray:
    """Loss in units of the head's own scale: ``min(|δ| / scale, clip) ** power``; shapes broadcast.

    A δ that is not finite, such as that of an action which a head does not have, counts as ``clip``.

    >>> import numpy as np
    >>> from owlrl.evidence import calibrated_loss
    >>> calibrated_loss(np.array([0.2, -0.4, 9.0, -np.inf]), 0.2)
    array([1., 2., 5., 5.])
    """
    with np.errstate(over="ignore"):
        ratio = np.abs(np.where(np.isfinite(delta), delta, np.inf)) / np.asarray(scale)
    bounded: FloatArray = np.minimum(ratio, clip) ** power
    return bounded


def argument_problems(
    *,
    counts: Mapping[str, object],
    positive: Mapping[str, object],
    calibrated: object = True,
    encode: object = None,
    seed: object = None,
) -> list[str]:
    """All that is wrong with what a constructor was given: ``counts`` are ints from 1 on."""
    found = [] if isinstance(calibrated, bool) else [f"calibrated is {calibrated!r}; expected True or False"]
    found += [problem for name, value in counts.items() if (problem := int_problem(name, value))]
    found += [
        f"{name} is {value!r}; expected a finite number > 0"
        for name, value in positive.items()
        if not _is_positive(value)
    ]
    if encode is not None and not callable(encode):
        found.append(f"encode is {encode!r}; expected a function of a batch of observations")
    if seed is not None and int_problem("seed", seed, least=0):
        found.append(f"seed is {seed!r}; expected an int >= 0, or None")
    return found


def spread(transitions: Transitions, most: int) -> Transitions:
    """At most so many of the rows, at equal distances."""
    return transitions[:: -(-len(transitions) // most)]


def check_rows(where: str, head: object, transitions: Transitions) -> None:
    """Raise unless ``head`` is a head's number and there are finite rows of its task."""
    if isinstance(head, bool) or not isinstance(head, int | np.integer) or head < 0:
        raise OwlTypeError(f"{where}: head is {head!r}; expected an int >= 0")
    if not len(transitions):
        raise OwlValueError(f"{where}: transitions are empty; expected rows of the task of head {head}")
    check_finite(where, transitions)


def check_arms(
    where: str,
    heads: npt.ArrayLike,
    known: Container[int] | None = None,
    *,
    lacking: str = "were never calibrated; call calibrate(learner, head, transitions) at the end of their "
    "tasks, or choose among the others",
) -> npt.NDArray[np.int64]:
    """``heads`` as an array (n,) of ints, all of them ``known`` (None: any), or an error."""
    arms = np.asarray(heads)
    if arms.ndim != 1 or arms.dtype.kind not in "iu":
        raise OwlTypeError(f"{where}: heads is {heads!r}; expected an array (n,) of ints")
    if known is not None and (unknown := [head for head in arms.tolist() if head not in known]):
        raise OwlStateError(f"{where}: heads {unknown} {lacking}")
    return arms


def check_finite(where: str, transitions: Transitions) -> None:
    """Raise, naming every field, if a number of ``transitions`` is NaN or infinite."""
    named = {
        name: getattr(transitions, name)
        for name in ("observation", "action", "reward", "next_observation", "discount")
    }
    problems = [
        f"{name} has entries that are NaN or infinite; expected finite numbers"
        for name, tensor in named.items()
        if tensor.is_floating_point() and not torch.isfinite(tensor).all()
    ]
    raise_problems(where, problems, kind=NonFiniteError)


def rms(numbers: FloatArray) -> float:
    """Root mean square, of the numbers over their largest so that no square overflows."""
    largest = float(np.abs(numbers).max())
    return largest * float(np.sqrt(np.mean(np.square(numbers / largest)))) if largest > 0.0 else 0.0


def _is_positive(number: object) -> bool:
    """Whether ``number`` is a finite number > 0."""
    real = isinstance(number, int | float) and not isinstance(number, bool)
    return real and 0.0 < float(number) < float("inf")  # type: ignore[arg-type]


def check_keys(where: str, state_dict: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raise, naming all of them, if ``state_dict`` lacks some of ``keys``."""
    missing = [f"{key} is missing; pass what state_dict() gave" for key in keys if key not in state_dict]
    raise_problems(where, missing)


def scales_from(where: str, state_dict: Mapping[str, Any]) -> dict[int, float]:
    """The scale of each head out of what ``state_dict()`` gave, or an error naming all that is wrong."""
    scales = state_dict.get("scales")
    if not isinstance(scales, Mapping):
        raise OwlValueError(f"{where}: scales is {scales!r}; expected a dict of head to scale")
    problems = [
        f"scales[{head!r}] is {scale!r}; expected a head's number and a finite number > 0"
        for head, scale in scales.items()
        if not (str(head).isdecimal() and _is_positive(scale))
    ]
    raise_problems(where, problems)
    return {int(head): float(scale) for head, scale in scales.items()}
