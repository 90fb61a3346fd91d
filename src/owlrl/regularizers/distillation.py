"""`DistillationRegularizer`: old heads go on answering as they did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.errors import OwlStateError, OwlValueError, raise_problems
from owlrl.heads.modes import eval_mode, parameters_of
from owlrl.protocols import Consolidation, MultiHead
from owlrl.regularizers._checks import (
    Strength,
    check_consolidation,
    every,
    is_count,
    network_problems,
    strength_of,
    strength_problems,
)
from owlrl.regularizers._distillation_state import Kept, dump, misfits, parse, parse_generator
from owlrl.regularizers._hooks import StepHooks, gradient_scale, owned
from owlrl.regularizers._memory import Memory, TaskMemory, answers, placed
from owlrl.regularizers._previous import Previous
from owlrl.types import Transitions

__all__ = ["DistillationRegularizer", "distillation_loss"]


def distillation_loss(output: Tensor, stored: Tensor) -> Tensor:
    """``mean_b mean_a (output − stored)²``; output (B, A') and stored (B, A) → a scalar.

    Where ``stored`` is −∞ the row's head has no such output: left out of that row's mean.

    >>> import torch
    >>> from owlrl.regularizers import distillation_loss
    >>> stored = torch.tensor([[0.0, 2.0], [3.0, -torch.inf]])
    >>> distillation_loss(torch.tensor([[1.0, 2.0], [5.0, 0.0]]), stored)
    tensor(2.2500)
    """
    width = min(output.shape[1], stored.shape[1])  # either may be padded for a head that no row has
    output, stored = output[:, :width], stored[:, :width]
    absent = torch.isneginf(stored)
    difference = output.masked_fill(absent, 0.0) - stored.masked_fill(absent, 0.0)
    present = (~absent).sum(1).clamp(min=1)
    return (difference.square().sum(1) / present).mean()


class _Pull(NamedTuple):
    """A network's penalty and the parameters it is meant for; those it does not reach stay as they are."""

    loss: Tensor
    on: list[nn.Parameter]


class DistillationRegularizer:
    """Holds the outputs of earlier tasks' heads to what they were.

    With ``states="memory"`` each task leaves up to ``memory_size`` of its own inputs with its
    head's outputs, and one batch of them, spread evenly over the earlier tasks, is compared per
    update: ``strength · mean (Q_head(s) − stored)²``. Trunk and old heads both learn from it.

    With ``states="current"`` (the paper's ablation) nothing is stored but the weights at the end
    of the previous task, and the states are the current task's: ``μ (g_τ∘f_new(s) − g_τ∘f_old(s))²``
    with the previous task's head g_τ. Only the trunk learns from it. It needs ``sample`` of `bind`;
    its observations (and actions, for a network with two inputs) must be what the network is called with.

    The network is called in evaluation mode. Use either `penalty` in a loss of one's own or `attach`.

    Args:
        strength: the weight of the penalty (the paper's μ), or one per network name.
        states: "memory" or "current".
        memory_size: rows kept per task.
        batch_size: rows compared at a time, in total.
        every: with `attach`, compare at every such step only, and pull that many times as hard: cheaper, and
            the same on average.
        seed: of the generator that draws them.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.heads import MultiHeadQ
    >>> from owlrl.protocols import Consolidation
    >>> from owlrl.regularizers import DistillationRegularizer
    >>> from owlrl.td import taken
    >>> q = MultiHeadQ(nn.Linear(4, 8), 8, 2)
    >>> distillation = DistillationRegularizer(1.0, seed=0)
    >>> observation, action = torch.ones(10, 4), torch.zeros(10, dtype=torch.int64)
    >>> distillation.consolidate("left", {"q": Consolidation(q, 0, (observation,), (action,), taken, taken)})
    >>> q.activate(q.add_head())
    >>> with torch.no_grad():
    ...     _ = q.heads[0].bias.add_(0.1)
    >>> round(distillation.penalty().item(), 3)
    0.01
    """

    def __init__(
        self,
        strength: Strength,
        *,
        states: Literal["memory", "current"] = "memory",
        memory_size: int = 5_000,
        batch_size: int = 128,
        every: int = 1,
        seed: int | None = None,
    ) -> None:
        problems = strength_problems(strength)
        if states not in ("memory", "current"):
            problems.append(f'states is {states!r}; expected "memory" or "current"')
        for name, value in (("memory_size", memory_size), ("batch_size", batch_size), ("every", every)):
            if not is_count(value):
                problems.append(f"{name} is {value!r}; expected an int >= 1")
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
            problems.append(f"seed is {seed!r}; expected an int >= 0, or None")
        raise_problems("DistillationRegularizer", problems)
        self.strength = strength
        self.states = states
        self.memory_size = memory_size
        self.batch_size = batch_size
        self.every = every
        self.seed = seed
        self._rng = np.random.default_rng(seed)
        self._networks: dict[str, MultiHead] = {}
        self._sample: Callable[[int], Transitions] | None = None
        self._kept: Kept = {}
        self._steps: dict[str, int] = {}  # of each network's optimizer, since something is kept
        self._hooks = StepHooks("DistillationRegularizer")

    def bind(
        self,
        networks: Mapping[str, MultiHead],
        sample: Callable[[int], Transitions] | None = None,
    ) -> None:
        """Guard these networks; ``sample`` gives rows of the current task."""
        self._hooks.refuse_others(self._networks, networks)
        problems = network_problems(self.strength, networks, every_name=True)
        problems = problems or misfits(self._kept, networks, every_name=True)
        raise_problems("DistillationRegularizer.bind", problems)
        self._networks = dict(networks)
        self._sample = sample

    def consolidate(self, task: str, context: Mapping[str, Consolidation]) -> None:
        """Keep what ``task`` answers now; replaces what was kept of it."""
        where = "DistillationRegularizer.consolidate"
        check_consolidation(where, task, context, self.strength)
        networks = {name: c.network for name, c in context.items()}
        raise_problems(where, misfits(self._kept, networks, every_name=False))
        new: Kept = {}
        for name, c in context.items():
            if strength_of(self.strength, name) > 0:
                keep = self._remember if self.states == "memory" else Previous.of
                new[name] = keep(task, name, c)
        self._networks.update(networks)
        self._kept.update(new)

    def penalty(self) -> Tensor:
        """The penalty on a fresh batch, a scalar; 0 while no earlier task is kept."""
        total = torch.zeros(())
        for name in self._kept:
            found = self._loss(name)
            if found is not None:
                total = total + found.loss
        return total

    def attach(self, optimizer: Optimizer) -> None:
        """Add the penalty's gradient before every ``optimizer.step()``."""
        self._hooks.attach(optimizer, self._add_gradient)

    def detach(self) -> None:
        """Undo every `attach`."""
        self._hooks.detach()

    def state_dict(self) -> dict[str, Any]:
        """All rows or weights kept, the steps counted, and the generator."""
        return {
            "states": self.states,
            "kept": dump(self._kept),
            "steps": dict(self._steps),
            "generator": dict(self._rng.bit_generator.state),
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take over what was kept; if networks are bound, it must fit."""
        kept, problems = parse(self.states, state_dict)
        rng = self._rng
        if not problems:
            rng, problems = parse_generator(state_dict["generator"])
        if self._networks and not problems:
            problems = misfits(kept, self._networks, every_name=True)
        raise_problems("DistillationRegularizer.load_state_dict", problems)
        self._kept, self._rng = kept, rng
        self._steps = {name: int(count) for name, count in state_dict.get("steps", {}).items()}

    def __repr__(self) -> str:
        return f"DistillationRegularizer({self.strength!r}, states={self.states!r}, kept={list(self._kept)})"

    def _remember(self, task: str, name: str, c: Consolidation) -> Memory:
        """The network's memory with the rows of ``task`` in it."""
        inputs = tuple(x.detach() for x in every(c.inputs, self.memory_size))
        before = self._kept.get(name)
        tasks = before.tasks if isinstance(before, Memory) else {}
        others = [t for other, t in tasks.items() if other != task]
        shape = [(tuple(x.shape[1:]), x.dtype) for x in inputs]
        for other in others:
            if [(tuple(x.shape[1:]), x.dtype) for x in other.inputs] != shape:
                raise OwlValueError(
                    f"DistillationRegularizer.consolidate: inputs of network {name!r} are {shape}, unlike "
                    "those of earlier tasks; tasks of one memory must have inputs of one shape and dtype"
                )
        return Memory({**tasks, task: TaskMemory(c.head, inputs, answers(name, c.network, c.head, inputs))})

    def _loss(self, name: str) -> _Pull | None:
        """One network's penalty; None if no other head is kept."""
        if name not in self._networks:
            raise OwlStateError(
                f"DistillationRegularizer: something is kept for {name!r}, whose network is not known; "
                "call bind({name: network}, sample)"
            )
        network, kept = self._networks[name], self._kept[name]
        if isinstance(kept, Memory):
            found = self._memory_loss(network, kept)
        else:
            found = self._previous_loss(network, kept)
        return None if found is None else _Pull(strength_of(self.strength, name) * found.loss, found.on)

    def _memory_loss(self, network: MultiHead, memory: Memory) -> _Pull | None:
        drawn = memory.draw(self.batch_size, network.pointer.head, self._rng)
        if drawn is None:
            return None
        with eval_mode(network.module):
            inputs = placed(network, drawn.inputs)
            output = network.per_row(*inputs, heads=drawn.heads.to(inputs[0].device))
        loss = distillation_loss(output, drawn.outputs.to(output))
        return _Pull(loss, parameters_of(network.module))  # it reaches the trunk and the heads drawn

    def _previous_loss(self, network: MultiHead, previous: Previous) -> _Pull | None:
        if previous.head == network.pointer.head:
            return None
        if self._sample is None:
            raise OwlStateError(
                'DistillationRegularizer: states="current" needs rows of the current task; '
                "call bind(networks, sample)"
            )
        inputs = placed(network, previous.inputs_of(self._sample(self.batch_size)))
        with eval_mode(network.module):
            loss = distillation_loss(previous.now(network, inputs), previous.before(network, inputs))
        return _Pull(loss, list(network.shared_parameters().values()))

    def _add_gradient(self, optimizer: Optimizer) -> None:
        if not self._kept:
            return
        mine = {id(p) for p in owned(optimizer)}
        for name in self._kept:
            network = self._networks.get(name)
            if network is not None and not any(id(p) in mine for p in parameters_of(network.module)):
                continue  # another optimizer's network
            self._steps[name] = self._steps.get(name, 0) + 1
            if self._steps[name] % self.every:
                continue
            with torch.enable_grad():
                found = self._loss(name)
                if found is None:
                    continue
                meant = [p for p in found.on if id(p) in mine and p.requires_grad]
                loss = self.every * found.loss
                grads = torch.autograd.grad(loss, meant, allow_unused=True) if meant else ()
            _add(meant, grads, gradient_scale(optimizer))


@torch.no_grad()
def _add(parameters: list[nn.Parameter], grads: tuple[Tensor | None, ...], scale: Tensor | None) -> None:
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is None:
            continue
        if scale is not None:
            grad = grad * scale.to(grad)
        if parameter.grad is not None:
            parameter.grad.add_(grad)
        else:  # a copy: autograd may share its results, and fused optimizers need the parameter's layout
            parameter.grad = torch.empty_like(parameter).copy_(grad)
