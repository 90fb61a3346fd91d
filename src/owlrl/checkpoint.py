"""Checkpoints: one safetensors file whose header carries the rest as JSON; never pickle.

Written to a temporary file beside the target, flushed to disk, then moved over it: whatever
interrupts a save, the file is either the old one or the new one.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor

from owlrl.errors import OwlTypeError, OwlValueError

__all__ = ["get_rng_state", "load_state", "save_state", "set_rng_state", "write_atomically"]

FORMAT = "owlrl-state-1"


def save_state(path: str | os.PathLike[str], state: object) -> None:
    """Write a tree of dicts, lists, tensors, arrays, numbers, strings and None, atomically.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from owlrl.checkpoint import load_state, save_state
    >>> path = Path(tempfile.mkdtemp()) / "state.safetensors"
    >>> save_state(path, {"weights": torch.ones(2), "step": 3, "names": ["a", None]})
    >>> load_state(path)
    {'weights': tensor([1., 1.]), 'step': 3, 'names': ['a', None]}
    """
    tensors: dict[str, Tensor] = {}
    skeleton = _flatten(state, "state", tensors)
    data = serialize(tensors, metadata={"format": FORMAT, "state": json.dumps(skeleton)})
    write_atomically(path, data)


def load_state(path: str | os.PathLike[str]) -> Any:
    """Read what `save_state` wrote; runs no code from the file.

    >>> from owlrl.checkpoint import load_state
    >>> load_state("nowhere.safetensors")
    Traceback (most recent call last):
    ...
    FileNotFoundError: nowhere.safetensors
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(str(path))
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise OwlValueError(
            f"load_state: {path} is not a readable checkpoint ({error}); expected a file that save wrote"
        ) from error
    if metadata.get("format") != FORMAT:
        raise OwlValueError(
            f"load_state: {path} has format {metadata.get('format')!r}; expected {FORMAT!r}, "
            "a file that save wrote"
        )
    return _unflatten(json.loads(metadata["state"]), tensors)


def get_rng_state() -> dict[str, Any]:
    """States of the global generators of torch, numpy and ``random``.

    >>> import torch
    >>> from owlrl.checkpoint import get_rng_state, set_rng_state
    >>> state = get_rng_state()
    >>> first = torch.rand(1)
    >>> set_rng_state(state)
    >>> bool(torch.rand(1) == first)
    True
    """
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "numpy": [name, keys, position, has_gauss, gauss],
        "python": list(random.getstate()),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Put the global generators back to what `get_rng_state` saw.

    >>> from owlrl.checkpoint import get_rng_state, set_rng_state
    >>> set_rng_state(get_rng_state())
    """
    torch.set_rng_state(state["torch"])
    np.random.set_state(tuple(state["numpy"]))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file beside its place, flush it to disk, then move it there.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from owlrl.checkpoint import write_atomically
    >>> path = Path(tempfile.mkdtemp()) / "page.html"
    >>> write_atomically(path, b"all of it")
    >>> path.read_bytes()
    b'all of it'
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {path.parent} to save {path.name} in; make it first")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; name a file in it")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes files that only their owner reads; give it the mode of any new file
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _flatten(value: object, where: str, tensors: dict[str, Tensor]) -> Any:
    """``value`` as JSON; tensors and arrays go to ``tensors`` and leave their key behind."""
    if isinstance(value, Tensor):
        return {"tensor": _put(tensors, where, value.detach().cpu().contiguous().clone())}
    if isinstance(value, np.ndarray):
        copied = torch.from_numpy(np.ascontiguousarray(value)).clone().reshape(value.shape)
        return {"array": _put(tensors, where, copied)}
    if isinstance(value, np.generic):
        return _flatten(value.item(), where, tensors)
    if isinstance(value, dict):
        # pairs, not an object: JSON would turn the int keys of an optimizer's state into strings
        return {"dict": [[_key(k, where), _flatten(v, f"{where}.{k}", tensors)] for k, v in value.items()]}
    if isinstance(value, list | tuple):
        return {"list": [_flatten(v, f"{where}.{k}", tensors) for k, v in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise OwlTypeError(
        f"save_state: {where} is a {type(value).__name__}; expected tensors, arrays, numbers, strings, None, "
        "lists and dicts; return such from state_dict()"
    )


def _put(tensors: dict[str, Tensor], where: str, tensor: Tensor) -> str:
    # numbered: names may have dots of their own, so paths alone could meet
    name = f"{len(tensors)}:{where}"
    tensors[name] = tensor
    return name


def _key(key: object, where: str) -> str | int:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise OwlTypeError(f"save_state: {where} has the key {key!r}; expected a str or an int")
    return key


def _unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    (kind, content), *_ = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "array":
        return tensors[content].numpy()
    if kind == "dict":
        return {key: _unflatten(item, tensors) for key, item in content}
    return [_unflatten(item, tensors) for item in content]


def _sync_directory(directory: Path) -> None:
    if os.name != "posix":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
