"""Checkpoints: one safetensors file whose header carries the rest as JSON; never pickle.

**Whole or refused.** The header has a digest of itself, which covers a digest of the data; both are compared
before anything is used. The file is read once, through one descriptor: while another process saves, a load
gives the old or the new state, never a mixture.

**Old or new.** A save writes a temporary file beside the target, flushes it to disk and moves it over the
target: if it is interrupted, the file is either the old one or the new one.

Layout: 8 bytes with the length of the header, the header (JSON in ASCII), the data. ``__metadata__`` comes
first in the header, with ``format``, ``digest`` and ``data_digest`` at fixed places, and ``state``: the tree
as JSON, in which tensors and arrays are represented by their names.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import random
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from owlrl._arguments import kind_of
from owlrl.errors import OwlTypeError, OwlValueError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["get_rng_state", "load_state", "save_state", "set_rng_state", "write_atomically"]

FORMAT = "owlrl-state-2"
MAX_HEADER = 100_000_000  # bytes; safetensors has the same limit
MAX_DEPTH = 100  # of dicts and lists in each other
CHUNK = 4 * 2**20  # bytes that are copied, hashed and written at a time
DAY = 24 * 60 * 60.0

BLANK = b"0" * 64
START = f'{{"__metadata__":{{"format":"{FORMAT}","digest":"'.encode()
MIDDLE = b'","data_digest":"'
END = b'","state":'
DIGEST = slice(len(START), len(START) + 64)
DATA_DIGEST = slice(DIGEST.stop + len(MIDDLE), DIGEST.stop + len(MIDDLE) + 64)

TORCH_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
NUMPY_TYPES = {  # numpy has no type for the others
    name: np.dtype(str(dtype).removeprefix("torch."))
    for name, dtype in TORCH_TYPES.items()
    if name not in ("BF16", "F8_E4M3", "F8_E5M2")
}
TORCH_NAMES = {dtype: name for name, dtype in TORCH_TYPES.items()}
NUMPY_NAMES = {dtype: name for name, dtype in NUMPY_TYPES.items()}


def save_state(path: str | os.PathLike[str], state: object) -> None:
    """Write a tree of dicts, lists, tensors, arrays, numbers, strings and None, atomically.

    The arrays are written piece by piece from where they are: it takes only a few MB of extra memory.
    A link stays a link (the file it leads to is replaced) and a file keeps its mode.

    >>> import tempfile, torch
    >>> from pathlib import Path
    >>> from owlrl.checkpoint import load_state, save_state
    >>> path = Path(tempfile.mkdtemp()) / "state.safetensors"
    >>> save_state(path, {"weights": torch.ones(2), "step": 3, "names": ["a", None]})
    >>> load_state(path)
    {'weights': tensor([1., 1.]), 'step': 3, 'names': ['a', None]}
    """
    found: list[_Array] = []
    skeleton = json.dumps(_flatten(state, "state", found, 0), separators=(",", ":"))
    found.sort(key=lambda array: -array.itemsize)  # as safetensors does: every array is aligned
    header = bytearray(_header(skeleton, found))
    if len(header) > MAX_HEADER:
        raise OwlValueError(
            f"save_state: what is not in tensors or arrays takes {len(header)} bytes; expected at most "
            f"{MAX_HEADER}; keep long lists of numbers as arrays"
        )
    digest, scratch = hashlib.sha256(), np.empty(CHUNK, np.uint8)
    with _replacing(path) as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for array in found:
            for piece in _pieces(array.numpy(), scratch):
                digest.update(piece)
                file.write(piece)
        header[DATA_DIGEST] = digest.hexdigest().encode()
        header[DIGEST] = _header_digest(header)
        file.seek(8)
        file.write(header[: DATA_DIGEST.stop])


def load_state(path: str | os.PathLike[str]) -> Any:
    """Read what `save_state` wrote; runs no code from the file, takes no more memory than its size asks for.

    >>> from owlrl.checkpoint import load_state
    >>> load_state("nowhere.safetensors")
    Traceback (most recent call last):
    ...
    FileNotFoundError: nowhere.safetensors
    """
    # without waiting, should it be a pipe that nobody writes to
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        raise FileNotFoundError(str(path)) from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        os.close(handle)
        raise OwlValueError(f"load_state: {path} is not a file; expected one that save wrote")
    with open(handle, "rb", buffering=0) as file:
        try:
            return _read(file, status.st_size)
        except _Unreadable as error:
            raise OwlValueError(f"load_state: {path} {error}") from None
        except OSError:
            raise
        except Exception as error:  # a header made on purpose, or too little memory
            raise OwlValueError(
                f"load_state: {path}, a file of {status.st_size} bytes, could not be read "
                f"({type(error).__name__}: {error}); if there is enough memory, go back to an earlier copy"
            ) from error


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
    """Restore the states of the global generators from `get_rng_state`: all of them, or none.

    >>> from owlrl.checkpoint import get_rng_state, set_rng_state
    >>> set_rng_state(get_rng_state())
    >>> set_rng_state({})
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: set_rng_state: the state does not fit (KeyError: 'torch'); expected what \
get_rng_state() returned
    """
    before = get_rng_state()
    try:
        _set_generators(state)
    except Exception as error:
        _set_generators(before)
        raise OwlValueError(
            f"set_rng_state: the state does not fit ({type(error).__name__}: {error}); expected what "
            "get_rng_state() returned"
        ) from error
    except BaseException:
        _set_generators(before)
        raise


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
    with _replacing(path) as file:
        file.write(data)


def _set_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    name, keys, position, has_gauss, gauss = state["numpy"]
    if not 0 <= int(position) <= 624:  # numpy takes any, and reads there
        raise ValueError(f"the position in numpy's state is {position}")
    np.random.set_state((name, np.asarray(keys), int(position), int(has_gauss), float(gauss)))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


# ---------------------------------------------------------------------------------- a tree as JSON and arrays


class _Array(NamedTuple):
    """A tensor or an array of the tree, where it lies."""

    name: str
    value: Tensor | np.ndarray
    dtype: str

    @property
    def itemsize(self) -> int:
        return TORCH_TYPES[self.dtype].itemsize

    def numpy(self) -> np.ndarray:
        """Its numbers as a numpy array, without a copy if they are on the CPU."""
        if isinstance(self.value, np.ndarray):
            return self.value
        tensor = self.value.detach().cpu().resolve_neg()
        if self.dtype not in NUMPY_TYPES:
            tensor = tensor.view(torch.int16 if self.itemsize == 2 else torch.uint8)
        return tensor.numpy()


def _flatten(value: object, where: str, found: list[_Array], depth: int) -> Any:
    """``value`` as JSON; tensors and arrays go to ``found`` and leave their name behind."""
    if isinstance(value, Tensor | np.ndarray):
        kind = "tensor" if isinstance(value, Tensor) else "array"
        return {kind: _put(value, where, found)}
    if isinstance(value, dict | list | tuple) and depth == MAX_DEPTH:
        raise OwlValueError(
            f"save_state: {where[:60]}… is {kind_of(value)} inside {depth} others; expected at most "
            f"{MAX_DEPTH} in each other; does it contain itself?"
        )
    if isinstance(value, dict):
        # pairs, not an object: JSON would turn the int keys of an optimizer's state into strings
        keys = [int(key) if isinstance(key, np.integer) else key for key in value]
        for key in keys:
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise OwlTypeError(f"save_state: {where} has the key {key!r}; expected a str or an int")
        pairs = zip(keys, value.values(), strict=True)
        return {"dict": [[key, _flatten(item, f"{where}.{key}", found, depth + 1)] for key, item in pairs]}
    if isinstance(value, list | tuple):
        if all(type(item) is float or (type(item) is int and abs(item) < 2**63) for item in value):
            return {"list": list(value)}  # as generators have hundreds of
        return {"list": [_flatten(item, f"{where}.{k}", found, depth + 1) for k, item in enumerate(value)]}
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    if isinstance(value, int) and value.bit_length() > 4096:
        raise OwlValueError(
            f"save_state: {where} is an int of {value.bit_length()} bits; expected at most 4096"
        )
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise OwlTypeError(
        f"save_state: {where} is {kind_of(value)}; expected tensors, arrays, numbers, strings, None, "
        "lists and dicts; return such from state_dict()"
    )


def _put(value: Tensor | np.ndarray, where: str, found: list[_Array]) -> str:
    dtype: str | None
    if isinstance(value, Tensor):
        plain = value.layout == torch.strided and not value.is_meta
        dtype = TORCH_NAMES.get(value.dtype) if plain else None
        got = f"a tensor of {value.dtype}" if plain else f"a tensor on {value.device}, {value.layout}"
    else:
        dtype, got = NUMPY_NAMES.get(value.dtype.newbyteorder("=")), f"an array of {value.dtype}"
    if dtype is None:
        raise OwlTypeError(
            f"save_state: {where} is {got}; expected a dense one with numbers of {', '.join(TORCH_TYPES)}"
        )
    # numbered, since paths may meet or be long; the path is for people who look into the file
    name = f"{len(found)}:{where[-200:]}".encode("ascii", "backslashreplace").decode()
    found.append(_Array(name, value, dtype))
    return name


def _unflatten(value: Any, arrays: dict[str, Tensor]) -> Any:
    """The tree of a skeleton; takes every array out of ``arrays``."""
    if not isinstance(value, dict | list):
        return value
    if not isinstance(value, dict) or len(value) != 1:
        raise _Unreadable(UNLIKE)
    ((kind, content),) = value.items()
    if kind in ("tensor", "array"):
        found = arrays.pop(content)
        return found.numpy() if kind == "array" else found
    if kind == "list" and isinstance(content, list):
        return [_unflatten(item, arrays) for item in content]
    if kind == "dict" and isinstance(content, list):
        tree = {key: _unflatten(item, arrays) for key, item in content}
        if len(tree) == len(content) and all(type(key) in (str, int) for key in tree):
            return tree
    raise _Unreadable(UNLIKE)


# ---------------------------------------------------------------------------------------------- the container


def _header(skeleton: str, arrays: list[_Array]) -> bytes:
    parts, begin = [json.dumps(skeleton) + "}"], 0
    for array in arrays:
        offsets = [begin, begin := begin + math.prod(array.value.shape) * array.itemsize]
        about = {"dtype": array.dtype, "shape": list(array.value.shape), "data_offsets": offsets}
        parts.append(f"{json.dumps(array.name)}:{json.dumps(about, separators=(',', ':'))}")
    text = START + BLANK + MIDDLE + BLANK + END + (",".join(parts) + "}").encode("ascii")
    return text.ljust(-(-len(text) // 8) * 8)


def _header_digest(header: bytes | bytearray) -> bytes:
    digest = hashlib.sha256(len(header).to_bytes(8, "little"))
    digest.update(header[: DIGEST.start] + BLANK + header[DIGEST.stop :])
    return digest.hexdigest().encode()


def _pieces(array: np.ndarray, scratch: np.ndarray) -> Iterator[memoryview]:
    """The array's bytes, row by row and little-endian, a piece at a time in ``scratch``.

    Copied first: what is hashed is what is written, even if another thread changes the array meanwhile.
    """
    if not array.nbytes:
        return
    array = array.reshape(1) if array.ndim == 0 else array
    row = array.nbytes // len(array)
    if row > len(scratch):
        for part in array:
            yield from _pieces(part, scratch)
        return
    step = len(scratch) // row
    for start in range(0, len(array), step):
        part = array[start : start + step]
        taken = scratch[: part.nbytes]
        np.copyto(taken.view(part.dtype.newbyteorder("<")).reshape(part.shape), part)
        yield taken.data


class _Unreadable(Exception):
    """What is wrong with a file, as the end of a sentence that begins with its path."""


CUT_SHORT = "was it cut short or damaged on its way? Copy it again, or go back to an earlier one"
DAMAGED = "is damaged: what is in it does not match its digest; go back to an earlier copy"
UNLIKE = "does not have the form that save writes (was it damaged?); go back to one that save wrote"


def _read(file: BinaryIO, size: int) -> Any:
    """The tree in an open file of ``size`` bytes."""
    header = _read_header(file, size)
    skeleton, entries = _parse_header(header, size - 8 - len(header))
    digest = hashlib.sha256()
    arrays: dict[str, Tensor] = {}
    for name, dtype, shape in entries:
        tensor = torch.empty(shape, dtype=TORCH_TYPES[dtype])
        raw = tensor.reshape(-1).view(torch.uint8).numpy()
        for start in range(0, len(raw), CHUNK):
            piece = raw[start : start + CHUNK].data
            _fill(file, piece)
            digest.update(piece)
        if dtype == "BOOL" and len(raw) and raw.max() > 1:
            raise _Unreadable(UNLIKE)
        arrays[name] = tensor
    if digest.hexdigest().encode() != header[DATA_DIGEST] or file.read(1):
        raise _Unreadable(DAMAGED)
    state = _unflatten(skeleton, arrays)
    if arrays:
        raise _Unreadable(UNLIKE)
    return state


def _read_header(file: BinaryIO, size: int) -> bytes:
    """The header, after its digest was compared."""
    start = file.read(min(size, 8 + len(START)))
    length = int.from_bytes(start[:8], "little")
    if size <= 8 or length > MAX_HEADER or start[8:9] != b"{":
        begins = f"begins with {start[:16]!r}" if start else "is empty"
        raise _Unreadable(f"is not a readable checkpoint: it {begins}; expected a file that save wrote")
    if 8 + length > size:
        raise _Unreadable(
            f"is not a readable checkpoint: it has {size} bytes, its header alone {8 + length}; {CUT_SHORT}"
        )
    header = bytearray(length)
    header[: len(start) - 8] = start[8 : 8 + length]
    _fill(file, memoryview(header)[len(start) - 8 :])
    if not header.startswith(START):
        raise _Unreadable(_foreign(header))
    fixed = header[DIGEST.stop : DATA_DIGEST.start] + header[DATA_DIGEST.stop :][: len(END)]
    if fixed != MIDDLE + END or _header_digest(header) != header[DIGEST]:
        raise _Unreadable(DAMAGED)
    return bytes(header)


def _foreign(header: bytearray) -> str:
    """What a header is that does not begin as ours do."""
    try:
        metadata = _parse(header.decode(), 8).get("__metadata__", {})
        found = metadata.get("format")
    except (AttributeError, ValueError, _Unreadable):
        return f"is not a readable checkpoint: its header is not JSON; {CUT_SHORT}"
    if found == "owlrl-state-1":
        return (
            "was made by owlrl 0.1, whose files this version does not read; load it with owlrl 0.1, or train "
            "again and save"
        )
    if isinstance(found, str) and found.startswith("owlrl-state-") and found != FORMAT:
        newer = "load it with the newer owlrl that wrote it"
        return f"has format {found!r}, this version reads {FORMAT!r}; {newer}"
    expected = f"expected {FORMAT!r}, a file that save wrote"
    return f"is not a readable checkpoint: a safetensors file of format {found!r}; {expected}"


def _parse(text: str, depth: int) -> Any:
    """JSON that is nested at most ``depth`` deep."""
    bare = text.replace("\\\\", "").replace('\\"', "")  # without what strings may hold of quotes
    outside = np.frombuffer("".join(bare.split('"')[::2]).encode(), np.uint8)
    opens, closes = np.isin(outside, list(b"[{")), np.isin(outside, list(b"]}"))
    steps = opens[opens | closes].astype(np.int64) * 2 - 1
    if len(steps) and steps.cumsum().max() > depth:
        raise _Unreadable(f"has a header nested more than {depth} deep; expected a file that save wrote")
    return json.loads(text)


def _parse_header(header: bytes, room: int) -> tuple[Any, list[tuple[str, str, tuple[int, ...]]]]:
    """The tree's skeleton, and name, dtype and shape of the arrays in the order of their ``room`` bytes."""
    described = _parse(header.decode(), 8)
    metadata = described.pop("__metadata__")
    entries, end = [], 0
    for name, about in sorted(described.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
        if not all(type(n) is int and n >= 0 for n in (*shape, *offsets)) or dtype not in TORCH_TYPES:
            raise _Unreadable(UNLIKE)
        if offsets != [end, end := end + math.prod(shape) * TORCH_TYPES[dtype].itemsize]:
            raise _Unreadable(UNLIKE)
        entries.append((name, dtype, tuple(shape)))
    if end != room:
        raise _Unreadable(f"has {room} bytes of data where its header says {end}; {CUT_SHORT}")
    return _parse(metadata["state"], 3 * MAX_DEPTH + 3), entries


def _fill(file: BinaryIO, buffer: memoryview) -> None:
    while len(buffer):
        count = file.readinto(buffer)  # type: ignore[attr-defined]
        if not count:
            raise _Unreadable(f"ends early; {CUT_SHORT}")
        buffer = buffer[count:]


# ------------------------------------------------------------------------------------------ replacing a file


@contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of the one at ``path`` when the block ends, or vanishes."""
    target = Path(os.path.realpath(path))  # a link stays; what it leads to is replaced
    mode = _check_target(Path(path), target)
    _remove_leftovers(target)
    try:
        handle, temporary = _open_temporary(target, 0o666 if mode is None else 0o600)
        try:
            with open(handle, "wb") as file:
                yield file
                file.flush()
                if mode is not None:
                    temporary.chmod(mode)
                os.fsync(handle)
                if fcntl is None:
                    file.close()  # Windows does not move an open file; elsewhere closing gives up the lock
                temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        text = f"could not write {path} ({error.strerror or error}); what was there before is unchanged"
        raise (OSError(text) if error.errno is None else OSError(error.errno, text)) from error
    # the file is whole either way; this only settles which of the two a power cut leaves
    if os.name == "posix":
        with suppress(OSError):
            handle = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _check_target(path: Path, target: Path) -> int | None:
    """The mode of the file that is there, or None; raise if it cannot be replaced."""
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no directory {path.parent} to save {path.name} in; make it first")
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(f"{path} is a directory; name a file in it")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"{path} is not a regular file (a device, a pipe or a circle of links)")
    return stat.S_IMODE(mode)


def _temporary_stem(target: Path) -> str:
    name = target.name
    if len(os.fsencode(name)) > 200:  # a directory takes names of 255 bytes
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f".{name}.owl-"


def _open_temporary(target: Path, mode: int) -> tuple[int, Path]:
    """A new file beside ``target``, locked as long as its process lives: see `_remove_leftovers`."""
    while True:
        temporary = target.with_name(f"{_temporary_stem(target)}{secrets.token_hex(6)}.tmp")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        handle = os.open(temporary, flags, mode)
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle, temporary
        os.close(handle)  # another save took it for a leftover before it was locked


def _remove_leftovers(target: Path) -> None:
    """Remove temporary files of ``target`` whose process was killed: the system has released their lock.

    Where locks are not available, those that were not written to for a day.
    """
    pattern = re.compile(re.escape(_temporary_stem(target)) + "[0-9a-f]{12}\\.tmp")
    with suppress(OSError), os.scandir(target.parent) as entries:
        for name in [entry.name for entry in entries if pattern.fullmatch(entry.name)]:
            with suppress(OSError):
                _remove_if_left(target.with_name(name))


def _remove_if_left(temporary: Path) -> None:
    handle = os.open(temporary, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        left = time.time() - os.fstat(handle).st_mtime > DAY
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left = True
            except BlockingIOError:
                left = False
            except OSError:
                pass
            if left:
                temporary.unlink()  # while it is locked: whoever just made it will notice
    finally:
        os.close(handle)
    if left and fcntl is None:  # Windows does not remove an open file
        temporary.unlink()
