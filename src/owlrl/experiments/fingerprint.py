"""A short text that changes when the user's functions change, so that a study knows what to repeat."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import sysconfig
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["fingerprint"]

PLAIN = (type(None), bool, int, float, complex, str, bytes)
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def fingerprint(*things: Any) -> str:
    """Sixteen digits over functions, classes and objects, and all functions of the user's that they call.

    Code counts, and constants, defaults and values that it takes from around it; comments do not. Of
    libraries (owlrl among them) only names count.

    >>> from functools import partial
    >>> import gymnasium
    >>> from owlrl.experiments.fingerprint import fingerprint
    >>> short, long = (partial(gymnasium.make, "CartPole-v1", max_episode_steps=n) for n in (10, 20))
    >>> fingerprint(short) == fingerprint(long)
    False
    >>> fingerprint(short) == fingerprint(partial(gymnasium.make, "CartPole-v1", max_episode_steps=10))
    True
    """
    digest = hashlib.sha256()
    for text in _texts(things, {}):
        digest.update(text.encode("utf-8", "replace"))
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def _texts(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    if isinstance(thing, PLAIN):
        yield repr(thing)
        return
    if isinstance(thing, np.ndarray | torch.Tensor | np.generic):
        array = thing.detach().cpu().numpy() if isinstance(thing, torch.Tensor) else np.asarray(thing)
        yield f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
        return
    if id(thing) in seen:
        yield "…"
        return
    seen[id(thing)] = thing  # and kept alive, or another object may get its id
    yield from _parts(thing, seen)


def _parts(thing: Any, seen: dict[int, Any]) -> Iterator[str]:
    if isinstance(thing, list | tuple):
        for item in thing:
            yield from _texts(item, seen)
    elif isinstance(thing, set | frozenset):
        yield repr(sorted(map(repr, thing)))
    elif isinstance(thing, Mapping):
        for key, item in thing.items():
            yield repr(key)
            yield from _texts(item, seen)
    elif isinstance(thing, functools.partial):
        yield from _texts((thing.func, thing.args, thing.keywords), seen)
    elif isinstance(thing, types.MethodType):
        yield from _texts((thing.__func__, thing.__self__), seen)
    elif isinstance(thing, types.FunctionType):
        yield from _function(thing, seen)
    elif isinstance(thing, type):
        yield from _class(thing, seen)
    elif isinstance(thing, types.ModuleType | types.BuiltinFunctionType):
        yield thing.__name__
    else:
        yield from _texts(type(thing), seen)
        yield from _texts(getattr(thing, "__dict__", {}), seen)
        if not hasattr(thing, "__dict__") and " at 0x" not in (text := repr(thing)):
            yield text  # a path, say


def _own(module: str | None) -> bool:
    """Whether a module is the user's: none of Python, of an installed library or of owlrl."""
    if module is None or module.partition(".")[0] in ("owlrl", "builtins"):
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or not file.startswith(LIBRARIES)


def _function(function: types.FunctionType, seen: dict[int, Any]) -> Iterator[str]:
    yield function.__qualname__
    if not _own(function.__module__):
        yield str(function.__module__)
        return
    yield from _code(function.__code__, seen)
    yield from _texts((function.__defaults__, function.__kwdefaults__), seen)
    for cell in function.__closure__ or ():
        try:
            yield from _texts(cell.cell_contents, seen)
        except ValueError:  # not filled yet
            yield "empty"
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield name
            yield from _texts(function.__globals__[name], seen)


def _code(code: types.CodeType, seen: dict[int, Any]) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant, seen)
        else:
            yield from _texts(constant, seen)


def _names(code: types.CodeType) -> set[str]:
    """Names that a function looks up around it, those of functions inside of it included."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _class(kind: type, seen: dict[int, Any]) -> Iterator[str]:
    yield f"{kind.__module__ if not _own(kind.__module__) else ''}{kind.__qualname__}"
    if not _own(kind.__module__):
        return
    yield from _texts(kind.__bases__, seen)
    for name, member in sorted(vars(kind).items()):
        if name in ("__dict__", "__weakref__", "__module__", "__firstlineno__", "__static_attributes__"):
            continue
        yield name
        if isinstance(member, staticmethod | classmethod):
            member = member.__func__
        elif isinstance(member, property):
            member = (member.fget, member.fset)
        yield from _texts(member, seen) if not inspect.isdatadescriptor(member) else ()
