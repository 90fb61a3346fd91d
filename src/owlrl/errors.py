"""Errors: each says where it happened, what was given, what was expected and how to fix it.

Every error derives from `OwlError` and from the built-in that fits, so both
``except OwlError`` and ``except ValueError`` work.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

__all__ = [
    "NonFiniteError",
    "OwlError",
    "OwlStateError",
    "OwlTypeError",
    "OwlValueError",
    "install_hint",
    "raise_problems",
]


class OwlError(Exception):
    """Base of every error that owlrl raises on purpose.

    >>> from owlrl.errors import OwlError, OwlValueError
    >>> issubclass(OwlValueError, OwlError) and issubclass(OwlValueError, ValueError)
    True
    """


class OwlValueError(OwlError, ValueError):
    """An argument has the right type and a wrong value.

    >>> from owlrl import ExpWeightsSelector
    >>> ExpWeightsSelector(eta=-1.0)
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: ExpWeightsSelector: eta is -1.0; expected a finite number > 0
    """


class OwlTypeError(OwlError, TypeError):
    """An argument is of a wrong type.

    >>> from owlrl.errors import OwlTypeError
    >>> issubclass(OwlTypeError, TypeError)
    True
    """


class OwlStateError(OwlError, RuntimeError):
    """A call that is not allowed in the object's current state.

    >>> from owlrl.errors import OwlStateError
    >>> issubclass(OwlStateError, RuntimeError)
    True
    """


class NonFiniteError(OwlError, ArithmeticError):
    """A NaN or an infinity was found; training stops before it reaches the weights.

    >>> from owlrl.errors import NonFiniteError
    >>> issubclass(NonFiniteError, ArithmeticError)
    True
    """


def install_hint(extra: str) -> str:
    """How to get the libraries of an extra, by their names: owlrl's own is another project's on PyPI.

    >>> from owlrl.errors import install_hint
    >>> install_hint("cluster")
    'pip install "distributed>=2024.8" "joblib>=1.4"'
    """
    try:
        wanted = importlib.metadata.requires("owlrl") or []
    except importlib.metadata.PackageNotFoundError:
        wanted = []
    own = re.compile(rf"(.+?) *; *extra *== *['\"]{extra}['\"]")
    names = [found[1].replace(" ", "") for text in wanted if (found := own.fullmatch(text))]
    if not names:  # not installed but on the path
        return f'pip install ".[{extra}]" in a checkout of owlrl'
    return "pip install " + " ".join(f'"{name}"' for name in names)


def raise_problems(where: str, problems: Iterable[str], *, kind: type[OwlError] = OwlValueError) -> None:
    """Raise one error that names every problem found, or return if there is none.

    >>> from owlrl.errors import raise_problems
    >>> raise_problems("Thing", [])
    >>> raise_problems("Thing", ["a is 1; expected 2", "b is missing; pass b=..."])
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: Thing: 2 problems:
      - a is 1; expected 2
      - b is missing; pass b=...
    """
    found = list(problems)
    if len(found) == 1:
        raise kind(f"{where}: {found[0]}")
    if found:
        raise kind(f"{where}: {len(found)} problems:\n" + "\n".join(f"  - {p}" for p in found))


@contextmanager
def refusing(where: str, more: str = "") -> Iterator[None]:
    """Any error in the block is raised as one about a damaged state; ``more`` says what else to pass.

    >>> from owlrl.errors import refusing
    >>> with refusing("Thing"):
    ...     {}["rows"]
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: Thing: the state does not fit or is damaged (KeyError: 'rows'); pass what \
state_dict() returned
    """
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, OwlError) as error:
        raise OwlValueError(
            f"{where}: the state does not fit or is damaged ({type(error).__name__}: {error}); "
            f"pass what state_dict() returned{more}"
        ) from error
