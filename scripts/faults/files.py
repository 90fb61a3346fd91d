"""Files: kills during a save, loads beside a saver, full disks, damages."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from owlrl.checkpoint import END, FORMAT, MIDDLE, load_state, save_state
from owlrl.errors import OwlError
from scripts.faults.checks import CannotRunError, Outcome, check

Tree = Any


def numbered(k: int, size: int = 300_000) -> Tree:
    """A state that shows whether it is all of one save."""
    parts = {str(n): torch.full((size,), float(k)) for n in range(4)}
    return {"k": k, "parts": parts, "text": str(k) * 50, "end": k}


def is_whole(state: Tree) -> bool:
    """Whether a `numbered` state is all of one save."""
    k = state["k"]
    same = all(bool((part == k).all()) for part in state["parts"].values())
    return same and state["end"] == k and state["text"] == str(k) * 50


def _save_for_ever(path: str, start: int, size: int, ready: Any) -> None:
    k = start
    while True:
        k += 1
        save_state(path, numbered(k, size))
        ready.set()


@contextmanager
def saver(path: Path, start: int = 0, size: int = 300_000) -> Iterator[Any]:
    """A process that saves again and again; killed at the end."""
    if "fork" not in multiprocessing.get_all_start_methods():
        raise CannotRunError("needs processes that can be forked")
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_save_for_ever, args=(str(path), start, size, ready), daemon=True)
    process.start()
    try:
        ready.wait(60)
        yield process
    finally:
        if process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
        process.join()


@check("SIGKILL during a save, then load", short=8, quick=30, full=300)
def kills(count: int, rng: random.Random, directory: Path) -> Outcome:
    """The file must be whole and not older than before; the next save removes what the kill left."""
    outcome, path, left = Outcome(), directory / "killed", 0
    before = time.perf_counter()
    save_state(path, numbered(0))
    seconds, last = time.perf_counter() - before, 0
    for run in range(count):
        with saver(path, last):
            time.sleep(rng.uniform(0.0, 3.0 * seconds))
        try:
            state = load_state(path)
            outcome.judge(is_whole(state) and state["k"] >= last, f"run {run}: mixed or older")
            last = state["k"]
        except Exception as error:
            outcome.judge(False, f"run {run}: {type(error).__name__}: {error}")
        left += len(list(directory.iterdir())) > 1
    save_state(path, numbered(last + 1))
    names = [item.name for item in directory.iterdir()]
    outcome.judge(names == ["killed"], f"left behind: {names}")
    outcome.note = f"{left} left a temporary file, which the next save removed"
    return outcome


@check("loads beside a process that saves", short=8, quick=500, full=10_000)
def loads(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Each load must give one save's state, and they must not go back."""
    outcome, path, last = Outcome(), directory / "shared", 0
    seen = set()
    with saver(path, size=20_000):
        for run in range(count):
            state = load_state(path)
            outcome.judge(is_whole(state) and state["k"] >= last, f"load {run}: mixed or older")
            last = state["k"]
            seen.add(last)
    outcome.note = f"{len(seen)} different saves were read"
    return outcome


@check("disk full during a save", short=8, quick=20, full=200)
def full_disk(count: int, rng: random.Random, directory: Path) -> Outcome:
    """The save must fail with an OSError that says so, the old file stay, and nothing be left."""
    outcome, path = Outcome(), directory / "full"
    save_state(path, numbered(1, 20_000))
    old, size = path.read_bytes(), path.stat().st_size
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for run in range(count):
        said = ""
        resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(size), hard))
        try:
            save_state(path, numbered(2, 20_000))
        except OSError as error:
            said = str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        kept = path.read_bytes() == old and len(list(directory.iterdir())) == 1
        outcome.judge(kept and "is unchanged" in said, f"run {run}: {said or 'no error'}, kept: {kept}")
    outcome.note = "by a limit on the size of files"
    return outcome


# -------------------------------------------------------------------------------------------- damages


def _place(data: bytes, rng: random.Random) -> int:
    """Somewhere in a file; in its header every other time."""
    header = 8 + int.from_bytes(data[:8], "little")
    return rng.randrange(header if rng.random() < 0.5 else len(data))


def _range(data: bytes, rng: random.Random) -> tuple[int, int]:
    begin = _place(data, rng)
    return begin, min(len(data), begin + rng.choice([1, 2, 8, 64, 4096]))


def flip_bit(data: bytes, rng: random.Random) -> bytes:
    """One bit turned round."""
    place = _place(data, rng)
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def overwrite(data: bytes, rng: random.Random) -> bytes:
    """Some bytes replaced at random."""
    begin, end = _range(data, rng)
    return data[:begin] + rng.randbytes(end - begin) + data[end:]


def truncate(data: bytes, rng: random.Random) -> bytes:
    """The end is missing."""
    return data[: _place(data, rng)]


def zero(data: bytes, rng: random.Random) -> bytes:
    """A range of zeros, as a file system leaves after a crash."""
    begin, end = _range(data, rng)
    return data[:begin] + bytes(end - begin) + data[end:]


def insert(data: bytes, rng: random.Random) -> bytes:
    """Bytes that do not belong there, also at the end."""
    place = rng.choice([_place(data, rng), len(data)])
    return data[:place] + rng.randbytes(rng.choice([1, 8, 100])) + data[place:]


def remove(data: bytes, rng: random.Random) -> bytes:
    """Bytes taken out."""
    begin, end = _range(data, rng)
    return data[:begin] + data[end:]


def swap(data: bytes, rng: random.Random) -> bytes:
    """Two tensors of one size exchanged, where there are any; else two ranges."""
    header = 8 + int.from_bytes(data[:8], "little")
    places = [
        tuple(header + n for n in about["data_offsets"])
        for name, about in json.loads(data[8:header]).items()
        if name != "__metadata__"
    ]
    pairs = [(a, b) for a in places for b in places if a < b and a[1] - a[0] == b[1] - b[0] > 0]
    first, second = rng.choice(pairs)
    begin = data[: first[0]] + data[slice(*second)]
    return begin + data[first[1] : second[0]] + data[slice(*first)] + data[second[1] :]


def edit_json(data: bytes, rng: random.Random) -> bytes:
    """Another value in the header, whose length is put right."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    names = [name for name in header if name != "__metadata__"]
    about, metadata = header[rng.choice(names)], header["__metadata__"]
    skeleton = metadata["state"]
    place = rng.randrange(len(skeleton))
    edit = rng.choice(["shape", "dtype", "offset", "remove", "exchange", "format", "state", "deep", "none"])
    if edit == "shape":
        about["shape"] = [*about["shape"], rng.choice([1, 2, -1, 10**12])]
    elif edit == "dtype":
        about["dtype"] = rng.choice(["F32", "I64", "U8", "F7", 3])
    elif edit == "offset":
        about["data_offsets"][rng.randrange(2)] += rng.choice([-4, 4, 10**15])
    elif edit == "remove":
        del header[rng.choice(names)]
    elif edit == "exchange":
        first, second = rng.sample(names, 2)
        header[first], header[second] = header[second], header[first]
    elif edit == "format":
        metadata["format"] = rng.choice(["owlrl-state-1", "owlrl-state-3", "pt", "", 2])
    elif edit == "state":
        metadata["state"] = skeleton[:place] + rng.choice('0123456789[]{}",abc') + skeleton[place + 1 :]
    elif edit == "deep":
        metadata["state"] = "[" * rng.choice([10, 10_000, 1_000_000])
    else:
        del header["__metadata__"]
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + data[end:]


DAMAGES = (flip_bit, overwrite, truncate, zero, insert, remove, swap, edit_json)


def damaged(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """``data``, a checkpoint, with one damage of a kind drawn at random; never equal to ``data``."""
    while True:
        damage = rng.choice(DAMAGES)
        found = damage(data, rng)
        if found != data:
            return damage.__name__, found


def sample_state() -> Tree:
    """A small tree with all that a checkpoint may hold."""
    generator = torch.Generator().manual_seed(0)
    weights = {str(k): torch.randn(8, 16, generator=generator) for k in range(4)}
    return {
        "weights": weights,
        "adam": {k: {"step": torch.tensor(3.0), "exp_avg": w * 0.1} for k, w in enumerate(weights.values())},
        "mask": torch.arange(64) % 3 == 0,
        "bytes": torch.arange(256).to(torch.uint8).numpy(),
        "half": torch.randn(16, generator=generator).to(torch.bfloat16),
        "tasks": {"left": {"head": 0, "steps": 100}, "right": {"head": 1, "steps": 7, "scale": float("inf")}},
        "events": [{"step": k, "from": "left", "to": "right", "new": k == 1} for k in range(5)],
        "rng": {"torch": generator.get_state(), "python": list(random.Random(0).getstate())},
    }


@check("damaged files", short=8, quick=500, full=2_000)
def damages(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Each must be refused with an OwlError, and with nothing else."""
    outcome, path, kinds = Outcome(), directory / "damaged", dict.fromkeys(d.__name__ for d in DAMAGES)
    save_state(path, sample_state())
    data = path.read_bytes()
    assert data[8:].startswith(f'{{"__metadata__":{{"format":"{FORMAT}"'.encode())
    assert MIDDLE in data and END in data
    for run in range(count):
        kind, content = damaged(data, rng)
        kinds[kind] = 1 + (kinds[kind] or 0)
        path.write_bytes(content)
        try:
            load_state(path)
            outcome.judge(False, f"run {run}: {kind} was accepted")
        except OwlError:
            outcome.judge(True, "")
        except Exception as error:
            outcome.judge(False, f"run {run}: {kind} gave {type(error).__name__}: {error}")
    outcome.note = ", ".join(f"{kind} {number}" for kind, number in kinds.items())
    return outcome
