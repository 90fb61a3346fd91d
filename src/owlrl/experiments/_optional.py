"""Libraries that are only needed for some things, imported when they are."""

from __future__ import annotations

import importlib
from typing import Any

from owlrl.errors import OwlStateError, install_hint

__all__ = ["optional"]


def optional(name: str, *, extra: str, what: str) -> Any:
    """The module ``name``, or an error that says which extra brings it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise OwlStateError(f"{what} needs {name} ({error}); {install_hint(extra)}") from error
