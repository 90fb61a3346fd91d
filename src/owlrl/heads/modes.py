"""Evaluation mode that is restored afterwards, and fast lists of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from types import CodeType
from typing import Any

import torch
from torch import nn

from owlrl.types import HeadPointer

__all__ = ["HeadList", "eval_mode", "probing"]


class HeadList(nn.ModuleList):
    """Heads built alike: if the first has no mode, none has, so that `eval_mode` need not visit all of them.

    While the pointer's active head is ``alone``, idle ones are not among ``modules()`` and ``parameters()``,
    so that what a learner does with all of them at every step (clipping, moving targets) takes the same time
    for any number of heads. State dicts, copies and moves to a device have all heads at all times.

    Args:
        heads: the heads.
        pointer: which of them is active; None for its own.
        first: the number of the first one.

    >>> from torch import nn
    >>> from owlrl.heads.modes import HeadList
    >>> from owlrl.types import HeadPointer
    >>> pointer = HeadPointer()
    >>> heads = HeadList([nn.Linear(1, 1), nn.Linear(1, 1)], pointer)
    >>> pointer.alone = True
    >>> len(heads), len(list(heads.parameters())), len(heads.state_dict())
    (2, 2, 4)
    """

    def __init__(
        self, heads: Iterable[nn.Module] = (), pointer: HeadPointer | None = None, first: int = 0
    ) -> None:
        super().__init__(heads)
        self.pointer, self.first = pointer or HeadPointer(), first

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """All, or with the active head ``alone`` that one."""
        if not self.pointer.alone:
            yield from super().named_modules(memo, prefix, remove_duplicate)
            return
        yield prefix, self
        key = str(self.pointer.active - self.first)
        if key in self._modules:
            inner = f"{prefix}.{key}" if prefix else key
            yield from self._modules[key].named_modules(memo, inner, remove_duplicate)

    def train(self, mode: bool = True) -> HeadList:
        """Set the mode of all heads, past ``nn.Module.__setattr__``, which looks for much more."""
        self.__dict__["training"] = mode
        for head in self._modules.values():
            if head is not None and not head._modules and type(head).train is nn.Module.train:
                head.__dict__["training"] = mode
            elif head is not None:
                head.train(mode)
        return self


@contextmanager
def eval_mode(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every submodule has its own mode back.

    A network in which no module's code looks at ``training`` (no dropout, no BatchNorm) is not touched at
    all, so several threads may use it at a time.

    >>> from torch import nn
    >>> from owlrl.heads.modes import eval_mode
    >>> network = nn.Sequential(nn.Dropout())
    >>> with eval_mode(network):
    ...     network[0].training
    False
    >>> network[0].training
    True
    """
    training = [m for module in modules for m in _in_training(module)]
    for m in training:
        # past nn.Module.__setattr__, which looks for parameters first: heads are many
        m.__dict__["training"] = False
    try:
        yield
    finally:
        for m in training:
            m.__dict__["training"] = True


@contextmanager
def probing(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards the global generators of torch are restored.

    For calls that must not change the random numbers of the networks' owner.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.heads.modes import probing
    >>> network, state = nn.Dropout(), torch.get_rng_state()
    >>> with probing(network):
    ...     _ = torch.rand(3)
    >>> torch.equal(torch.get_rng_state(), state)
    True
    """
    devices = {p.device for module in modules for p in module.parameters() if p.device.type == "cuda"}
    with eval_mode(*modules), torch.random.fork_rng(devices=list(devices)):
        yield


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """``list(module.parameters())`` with all heads, several times faster: for many of them."""
    found: dict[int, nn.Parameter] = {}  # by identity: a parameter may be shared
    waiting = [module]
    while waiting:
        m = waiting.pop()
        found.update((id(p), p) for p in m._parameters.values() if p is not None)
        waiting.extend(child for child in reversed(m._modules.values()) if child is not None)
    return list(found.values())


@contextmanager
def all_shown(pointer: HeadPointer) -> Iterator[None]:
    """Idle heads are among ``parameters()`` inside the block."""
    before, pointer.alone = pointer.alone, False
    try:
        yield
    finally:
        pointer.alone = before


def _in_training(module: nn.Module) -> list[nn.Module]:
    """The modules in training mode, or none if no module of the network looks at its mode."""
    found, waiting, matters = [], [module], False
    while waiting:
        m = waiting.pop()
        # a hook may have a mode where its layer has none (spectral norm)
        matters = matters or has_mode(type(m)) or bool(m._forward_pre_hooks)  # type: ignore[arg-type]
        if m.training:
            found.append(m)
        children = m._modules.values()
        if isinstance(m, HeadList) and not any(map(_mode_matters, islice(children, 1))):
            continue
        waiting.extend(child for child in children if child is not None)
    return found if matters else []


def _mode_matters(module: nn.Module | None) -> bool:
    modules = [] if module is None else list(module.modules())
    return any(has_mode(type(m)) or bool(m._forward_pre_hooks) for m in modules)  # type: ignore[arg-type]


@cache
def has_mode(kind: type[Any]) -> bool:
    """Whether some method of a module class names ``training``, or has no readable code."""
    for base in kind.__mro__:
        if base in (nn.Module, object):
            continue
        for member in vars(base).values():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
            if code is not None and _names_training(code):
                return True
    forward = getattr(kind, "forward", None)
    return not hasattr(inspect.unwrap(forward) if callable(forward) else None, "__code__")


def _names_training(code: CodeType) -> bool:
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return "training" in code.co_names or any(_names_training(c) for c in inner)
