"""Argument checks: every problem is collected, one error names them all. Numpy numbers are numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from owlrl.errors import OwlError, OwlValueError, raise_problems

__all__ = ["Arguments", "article", "kind_of", "own_generator", "own_seed", "restored_generator"]

JAX = ("flax", "haiku", "equinox", "jax", "jaxlib", "sbx")


class Arguments:
    """Checks the arguments of one call: collect with the methods, then raise once with `check`.

    Each method returns the value to store: a plain ``int``, ``float`` or ``bool`` where the argument is a
    numpy number, the argument itself where it is wrong (`check` raises then).

    Args:
        where: the call that is checked, as the message names it.

    >>> import numpy as np
    >>> from owlrl._arguments import Arguments
    >>> arguments = Arguments("Ring")
    >>> arguments.integer("capacity", np.int64(3)), arguments.number("gamma", np.float32(0.5), most=1.0)
    (3, 0.5)
    >>> _ = arguments.integer("num_envs", 0), arguments.number("eta", float("nan"), above=0.0)
    >>> arguments.check()
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: Ring: 2 problems:
      - num_envs is 0; expected an int >= 1
      - eta is nan; expected a finite number > 0
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[str] = []

    def integer(
        self, name: str, value: Any, *, least: int = 1, most: int | None = None, none: bool = False
    ) -> Any:
        """An int from ``least`` to ``most``; with ``none`` also None."""
        if value is None and none:
            return None
        if isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_):
            number = int(value)
            if number >= least and (most is None or number <= most):
                return number
        expected = f"an int >= {least}" if most is None else f"an int from {least} to {most}"
        self._add(name, value, expected, none)
        return value

    def number(
        self,
        name: str,
        value: Any,
        *,
        least: float | None = None,
        above: float | None = None,
        most: float | None = None,
        below: float | None = None,
        none: bool = False,
    ) -> Any:
        """A finite number within the bounds that are given; with ``none`` also None."""
        if value is None and none:
            return None
        if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:  # an int beyond all floats
                number = math.inf
            if (
                math.isfinite(number)
                and (least is None or number >= least)
                and (above is None or number > above)
                and (most is None or number <= most)
                and (below is None or number < below)
            ):
                return value if isinstance(value, int) else number
        bounds = [(">=", least), (">", above), ("<=", most), ("<", below)]
        limits = " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)
        self._add(name, value, f"a finite number {limits}".rstrip(), none)
        return value

    def boolean(self, name: str, value: Any) -> Any:
        """True or False."""
        if isinstance(value, bool | np.bool_):
            return bool(value)
        self._add(name, value, "True or False")
        return value

    def choice(self, name: str, value: Any, options: Iterable[Any]) -> Any:
        """One of ``options``."""
        known = list(options)
        if not any(value is option or (type(value) is type(option) and value == option) for option in known):
            self._add(name, value, " or ".join(repr(option) for option in known))
        return value

    def instance(self, name: str, value: Any, kind: type, example: str, *, none: bool = False) -> Any:
        """An object of class ``kind``; ``example`` shows how to make one."""
        if not (isinstance(value, kind) or (value is None and none)):
            self.problems.append(f"{name} is {kind_of(value)}; expected {example}{', or None' * none}")
        return value

    def function(self, name: str, value: Any, what: str, *, none: bool = False) -> Any:
        """Something that can be called; ``what`` says with what."""
        if not (callable(value) or (value is None and none)):
            self._add(name, value, f"a function {what}", none)
        return value

    def text(self, name: str, value: Any) -> Any:
        """A str that is not empty."""
        if not isinstance(value, str) or not value:
            self._add(name, value, "a non-empty str")
        return value

    def device(self, name: str, value: Any) -> Any:
        """A torch device, or the name of one."""
        try:
            torch.device(value)
        except (RuntimeError, TypeError):
            self._add(name, value, "a torch device such as 'cpu' or 'cuda:0'")
        return value

    def problem(self, text: str | None) -> None:
        """Add a problem found elsewhere; None adds nothing."""
        if text:
            self.problems.append(text)

    def check(self, *, kind: type[OwlError] = OwlValueError) -> None:
        """Raise one error that names every problem so far, or return."""
        raise_problems(self.where, self.problems, kind=kind)

    def _add(self, name: str, value: object, expected: str, none: bool = False) -> None:
        self.problems.append(f"{name} is {value!r}; expected {expected}{', or None' * none}")


def kind_of(item: object) -> str:
    """The kind of an object, for a message; JAX models are named as such.

    >>> from owlrl._arguments import kind_of
    >>> kind_of(3), kind_of("x"), kind_of(None), kind_of(dict)
    ('an int', 'a str', 'None', 'the class dict')
    """
    if item is None or isinstance(item, type):
        return "None" if item is None else f"the class {item.__name__}"
    libraries = {base.__module__.partition(".")[0] for base in type(item).__mro__}
    found = next((name for name in JAX if name in libraries), None)
    name = f"{article(type(item).__name__)} {type(item).__name__}"
    return name if found is None else f"{name} of {found}, a JAX library, and owlrl works with torch modules"


def article(noun: str) -> str:
    """The article before a noun: "an" before a vowel, else "a"."""
    return "an" if noun[0] in "aeiouAEIO" else "a"


def own_seed(seed: int | None) -> int:
    """``seed``, or where it is None that of torch's global generator, which is read but not advanced.

    >>> import torch
    >>> from owlrl._arguments import own_seed
    >>> _ = torch.manual_seed(5)
    >>> own_seed(3), own_seed(None)
    (3, 5)
    """
    return torch.initial_seed() % 2**63 if seed is None else int(seed)


def own_generator(seed: int | None, *key: int) -> np.random.Generator:
    """A separate generator from `own_seed` and a key that distinguishes it from others of the same seed.

    >>> from owlrl._arguments import own_generator
    >>> bool(own_generator(0, 1).random() == own_generator(0, 2).random())
    False
    """
    return np.random.default_rng([own_seed(seed), *key])


def restored_generator(state: Mapping[str, Any]) -> np.random.Generator:
    """A generator that continues where the one that gave ``state`` was."""
    generator = np.random.default_rng()
    generator.bit_generator.state = dict(state)
    return generator
