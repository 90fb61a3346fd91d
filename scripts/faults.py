"""The fault campaign: kills, damages, loads beside a saver, failed loads. Prints a table in Markdown.

Run by ``make faults`` (quick) and ``make faults FULL=1``, from the root of the checkout. A check that cannot
run here counts as failed, unless it is named with ``--may-miss``; that list is printed.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import platform
import random
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from owlrl import EWCRegularizer, OwlWrapper
from owlrl import wrapper_state as restoring
from owlrl.checkpoint import END, FORMAT, MIDDLE, get_rng_state, load_state, save_state, set_rng_state
from owlrl.errors import OwlError
from owlrl.wrapper_state import restore_wrapper, same_state, wrapper_state
from tests import own_actor_critic, own_dqn

Tree = Any


class CannotRunError(Exception):
    """A check that needs something that is not here."""


@dataclass
class Outcome:
    """What a check has found."""

    runs: int = 0
    faults: list[str] = field(default_factory=list)
    note: str = ""

    def judge(self, good: bool, fault: str) -> None:
        """Count one run."""
        self.runs += 1
        if not good:
            self.faults.append(fault)


@dataclass(frozen=True)
class Check:
    """A check, and how many runs it has."""

    name: str
    quick: int
    full: int
    run: Callable[[int, random.Random, Path], Outcome]


CHECKS: list[Check] = []


def check(name: str, *, quick: int, full: int) -> Callable[[Any], Any]:
    """Enter a function ``run(count, rng, directory) -> Outcome`` in the list of checks."""

    def enter(run: Callable[[int, random.Random, Path], Outcome]) -> Any:
        CHECKS.append(Check(name, quick, full, run))
        return run

    return enter


# ---------------------------------------------------------------------------------------------- files


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


@check("SIGKILL during a save, then load", quick=30, full=300)
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


@check("loads beside a process that saves", quick=500, full=10_000)
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


@check("disk full during a save", quick=20, full=200)
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
        "rng": get_rng_state(),
    }


@check("damaged files", quick=500, full=2_000)
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


# --------------------------------------------------------------------------------------- failed loads


class Counter:
    """Something that a task has for itself."""

    def __init__(self) -> None:
        self.calls = 0

    def state_dict(self) -> dict[str, Any]:
        """The count."""
        return {"calls": self.calls}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take a count."""
        self.calls = state_dict["calls"]


LEARNERS = {
    "DQN": lambda seed: own_dqn.make_script("plain", seed=seed),
    "DQN with heads": lambda seed: own_dqn.make_script("multihead", seed=seed),
    "SAC": lambda seed: own_actor_critic.make_script("sac", seed=seed),
    "TD3": lambda seed: own_actor_critic.make_script("td3", seed=seed),
}


def wrapped(kind: str, seed: int = 0) -> tuple[Any, OwlWrapper]:
    """A script of ``kind`` and its wrapper."""
    script = LEARNERS[kind](seed)
    learner = script.learner(per_task={"counter": Counter()})
    return script, OwlWrapper(learner, regularizer=EWCRegularizer(10.0))


def trained_state(kind: str, directory: Path) -> Tree:
    """What a wrapper of ``kind`` saves after two tasks, by way of a file."""
    script, owl = wrapped(kind)
    if kind.startswith("DQN"):
        envs, train = (own_dqn.Signs(0), own_dqn.Signs(1)), own_dqn.train
    else:
        envs, train = (own_actor_critic.Push(1.0), own_actor_critic.Push(-1.0)), own_actor_critic.train
    for number, env in enumerate(envs):
        with owl.task(f"task {number}"):
            train(script, env, 80)
            owl.learner.per_task["counter"].calls += 1
    save_state(directory / "trained", wrapper_state(owl.learner, owl.tasks, owl._parts()))
    return load_state(directory / "trained")


def everything(owl: OwlWrapper) -> Tree:
    """All that a load may touch, copied; written independently of what is checked."""
    learner = owl.learner
    nets = [*learner.networks.values(), *learner.targets.values()]
    alpha = getattr(learner, "_temperature", None)
    return copy.deepcopy(
        {
            "generators": get_rng_state(),
            "networks": [net.module.state_dict() for net in nets],
            "parameters": [[id(p) for p in net.module.parameters()] for net in nets],
            "heads": [(net.num_heads, net.pointer.index) for net in nets],
            "optimizers": [optimizer.state_dict() for optimizer in learner.optimizers.values()],
            "per_task": [item.state_dict() for item in learner.per_task.values()],
            "alphas": None if alpha is None else [list(alpha._known.items()), alpha._owner],
            "parts": [None if part is None else part.state_dict() for part in owl._parts().values()],
        }
    )


def nodes(tree: Tree) -> Iterator[tuple[Any, Any]]:
    """Every container of a tree with every key or index in it."""
    keys = tree.keys() if isinstance(tree, dict) else range(len(tree))
    for key in list(keys):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from nodes(tree[key])


def copied(tree: Tree) -> Tree:
    """The tree with containers of its own; tensors and arrays are shared."""
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    return [copied(value) for value in tree] if isinstance(tree, list) else tree


def spoiled(tree: Tree, rng: random.Random) -> tuple[str, Tree]:
    """The tree with one thing wrong."""
    tree = copied(tree)
    top = rng.choice(list(tree))  # else the many numbers of the generators would be all that is met
    inner = list(nodes(tree[top])) if isinstance(tree[top], dict | list) else []
    container, key = rng.choice(inner) if inner and rng.random() < 0.9 else (tree, top)
    value = container[key]
    wrong = ["text", None, -1, 10**9, float("nan"), [], {}, torch.zeros(2, 5), {"a": 1}]
    kinds = ["replace", "remove"] + ["reshape", "retype"] * 3 * isinstance(value, torch.Tensor)
    kind = rng.choice(kinds)
    if kind == "remove":
        del container[key]
    elif kind == "reshape":
        container[key] = torch.cat([value.reshape(-1), value.reshape(-1)])
    elif kind == "retype":
        container[key] = value.to(torch.float16)
    else:
        container[key] = rng.choice(wrong)
    return f"{kind} {key!r} in {top}", tree


@contextmanager
def interrupted(line: int) -> Iterator[list[int]]:
    """Raise KeyboardInterrupt at the ``line``-th line that is executed while a state is being loaded."""
    count = [0]
    changing = {restoring._grow.__code__, restoring._load.__code__}
    depth = [0]

    def trace(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code in changing and event == "call":
            depth[0] += 1
        if not depth[0]:
            return trace
        if frame.f_code in changing and event == "return":
            depth[0] -= 1
        elif event == "line" and not frame.f_code.co_filename.endswith(("contextlib.py", "grad_mode.py")):
            count[0] += 1
            if count[0] == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(None)


def _failed_load(owl: OwlWrapper, before: Tree, load: Callable[[], Any]) -> tuple[str, str | None]:
    """How a load ended, and what is wrong with that, if anything."""
    try:
        load()
    except (OwlError, KeyboardInterrupt) as error:
        after = everything(owl)
        odd = [key for key in before if not same_state(before[key], after[key])]
        return "refused", f"changed {odd} although it failed with {error}" if odd else None
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"
    return "taken", None


def _failing(count: int, directory: Path, ways: Callable[[str, OwlWrapper, Tree], Any]) -> Outcome:
    outcome, taken = Outcome(), 0
    for kind in LEARNERS:
        state = trained_state(kind, directory)
        owl = None
        for _ in range(-(-count // len(LEARNERS))):
            if owl is None:
                _, owl = wrapped(kind, seed=9)
                before = everything(owl)
            what, load = ways(kind, owl, state)
            end, fault = _failed_load(owl, before, load)
            outcome.judge(fault is None, f"{kind}, {what}: {fault}")
            if end == "taken" or fault is not None:
                taken, owl = taken + (end == "taken"), None
    outcome.note = f"{taken} were taken, the rest refused, bit-equal to before"
    return outcome


@check("loads of a state with one thing wrong", quick=400, full=4_000)
def failed_loads(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Each must be refused with an OwlError and change nothing, or be taken (another number is no fault)."""

    def ways(kind: str, owl: OwlWrapper, state: Tree) -> tuple[str, Callable[[], Any]]:
        what, wrong = spoiled(state, rng)
        return what, lambda: restore_wrapper(owl.learner, wrong, owl._parts())

    return _failing(count, directory, ways)


@check("loads that are interrupted at a random line", quick=100, full=1_000)
def interrupted_loads(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Wherever it happens, everything must be as before."""
    lines: dict[str, int] = {}

    def ways(kind: str, owl: OwlWrapper, state: Tree) -> tuple[str, Callable[[], Any]]:
        if kind not in lines:
            generators = get_rng_state()
            _, other = wrapped(kind, seed=9)
            with interrupted(-1) as counted:
                restore_wrapper(other.learner, copied(state), other._parts())
            lines[kind] = counted[0]
            set_rng_state(generators)
        line = rng.randrange(1, lines[kind] + 1)

        def load() -> None:
            with interrupted(line):
                restore_wrapper(owl.learner, copied(state), owl._parts())

        return f"line {line}", load

    outcome = _failing(count, directory, ways)
    outcome.note += f"; a load has {', '.join(map(str, lines.values()))} lines"
    return outcome


def main(arguments: list[str] | None = None) -> int:
    """Run the checks and print the table; 1 if one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m scripts.faults", description=__doc__)
    parser.add_argument("--full", action="store_true", help="as many runs as docs/reliability.md states")
    parser.add_argument("--quick", action="store_true", help="fewer runs (the default)")
    parser.add_argument("--runs", type=int, help="this many runs of every check")
    parser.add_argument("--only", action="append", default=[], help="checks with this in their name")
    parser.add_argument("--may-miss", action="append", default=[], help="a check that may be unable to run")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"Python {platform.python_version()}, torch {torch.__version__}, seed {chosen.seed}\n")
    print("| check | runs | faults | seconds | |\n|---|---:|---:|---:|---|")
    faults: list[str] = []
    for item in CHECKS:
        if chosen.only and not any(part in item.name for part in chosen.only):
            continue
        count = chosen.runs or (item.full if chosen.full else item.quick)
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as directory:
            try:
                found = item.run(count, random.Random(chosen.seed), Path(directory))
            except CannotRunError as error:
                found = Outcome(note=f"could not run: {error}")
                if item.name not in chosen.may_miss:
                    found.faults.append(f"could not run: {error}")
        seconds = time.perf_counter() - begun
        row = (item.name, f"{found.runs:,}", f"{len(found.faults):,}", f"{seconds:.0f}", found.note)
        print(f"| {' | '.join(row)} |", flush=True)
        faults += [f"{item.name}: {fault}" for fault in found.faults]
    print(f"\nMay be unable to run: {', '.join(chosen.may_miss) or 'none'}")
    print("\n".join(["", f"{len(faults)} faults:", *faults[:20]]) if faults else "No faults.")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
