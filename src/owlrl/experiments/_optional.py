"""Optional libraries, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from owlrl.errors import OwlStateError, OwlValueError, install_hint

__all__: list[str] = []


def optional(name: str, *, extra: str, what: str) -> Any:
    """The module ``name``, or an error that names its extra."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OwlStateError(f"{what} needs {name} ({error}); {install_hint(extra)}") from error


def imported(what: str, text: str) -> Any:
    """What ``"package.module:name"`` names."""
    module, _, name = text.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise OwlValueError(f"{what} is {text!r}, which cannot be imported ({error})") from error
