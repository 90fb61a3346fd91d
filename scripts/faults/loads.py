"""Loads that fail or are interrupted: everything must be as before, bit for bit."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from owlrl import EWCRegularizer, OwlWrapper
from owlrl import wrapper_state as restoring
from owlrl.checkpoint import get_rng_state, load_state, save_state, set_rng_state
from owlrl.errors import OwlError
from owlrl.wrapper_state import restore_wrapper, same_state, wrapper_state
from scripts.faults.checks import Outcome, check
from tests import own_actor_critic, own_dqn

Tree = Any


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

    before = sys.gettrace()  # of a tool that measures coverage, say
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)


def _failed_load(owl: OwlWrapper, before: Tree, load: Callable[[], Any]) -> tuple[str, str | None]:
    """How a load ended, and what is wrong with that, if anything."""
    said = None
    try:
        load()
    except (OwlError, KeyboardInterrupt) as error:
        said = repr(error)  # not the error, whose frames would keep blocks open that were never left
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"
    if said is None:
        return "taken", None
    after = everything(owl)
    odd = [key for key in before if not same_state(before[key], after[key])]
    return "refused", f"changed {odd} although it failed with {said}" if odd else None


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


# The short form of these two is in tests/test_wrapper_state.py.
@check("loads of a state with one thing wrong", short=0, quick=400, full=4_000)
def failed_loads(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Each must be refused with an OwlError and change nothing, or be taken (another number is no fault)."""

    def ways(kind: str, owl: OwlWrapper, state: Tree) -> tuple[str, Callable[[], Any]]:
        what, wrong = spoiled(state, rng)
        return what, lambda: restore_wrapper(owl.learner, wrong, owl._parts())

    return _failing(count, directory, ways)


@check("loads that are interrupted at a random line", short=0, quick=100, full=1_000)
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
