"""`GEMRegularizer`: no step may make an earlier task worse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from owlrl._arguments import Arguments
from owlrl.errors import OwlStateError
from owlrl.heads.modes import all_shown, eval_mode
from owlrl.protocols import Consolidation, MultiHead
from owlrl.regularizers.answers import answers, distillation_loss, placed
from owlrl.regularizers.base import Regularizer, evenly

__all__ = ["GEMRegularizer", "project_gradient"]

Loss = Callable[[Tensor, Tensor], Tensor]


def project_gradient(gradient: Tensor, constraints: Tensor, margin: float = 0.0) -> Tensor:
    """The nearest gradient that makes no earlier task worse, (P,); Lopez-Paz & Ranzato (2017), Eq. 11.

    ``argmin_z ‖z − g‖²`` with ``⟨z, g_k⟩ ≥ 0`` for each row g_k of ``constraints`` (K, P). The dual has one
    variable per task, ``min_v ½ vᵀ(G Gᵀ)v + (G g)ᵀv`` with ``v ≥ 0``, and ``z = g + Gᵀ(v + margin)``, with
    the rows of G scaled to length 1. It is solved exactly, in float64. A gradient that violates nothing
    is returned as it is.

    >>> import torch
    >>> from owlrl.regularizers import project_gradient
    >>> project_gradient(torch.tensor([1.0, -1.0]), torch.tensor([[0.0, 2.0]]))
    tensor([1., 0.])
    """
    g, rows = gradient.double(), constraints.double()
    length = rows.norm(dim=1, keepdim=True)
    rows = (rows / length.clamp(min=torch.finfo(rows.dtype).tiny))[length[:, 0] > 0]
    products = rows @ g
    if bool((products >= 0).all()):
        return gradient
    dual = _nonnegative_minimum((rows @ rows.T).cpu().numpy(), -products.cpu().numpy())
    projected: Tensor = g + torch.from_numpy(dual + margin).to(rows) @ rows
    return projected.to(gradient.dtype)


def _nonnegative_minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """``argmin_v ½ vᵀAv − bᵀv`` with ``v ≥ 0``: the active-set method of Lawson and Hanson."""
    v, free = np.zeros(len(b)), np.zeros(len(b), bool)
    tiny = 1e-12 * max(1.0, float(np.abs(b).max()))
    for _ in range(3 * len(b)):
        slope = np.where(free, -np.inf, b - a @ v)
        if slope.max() <= tiny:
            break
        free[slope.argmax()] = True
        while free.any():
            s = np.zeros(len(b))
            s[free] = np.linalg.lstsq(a[np.ix_(free, free)], b[free], rcond=None)[0]
            blocked = free & (s <= 0)
            if not blocked.any():
                v = s
                break
            v = v + min(v[blocked] / (v[blocked] - s[blocked])) * (s - v)
            free &= v > tiny
            v[~free] = 0.0
    return v


class GEMRegularizer(Regularizer):
    """Gradient episodic memory: the learner's gradient is projected so that no earlier task gets worse.

    "Worse" is measured by a loss on rows of each earlier task: the squared distance of its head's outputs
    from those at the end of the task, or a ``loss`` with the rows' targets, e.g.
    ``torch.nn.functional.cross_entropy`` for a classifier. Rows come from the task's memory where one is
    bound; used alone, or with a ``loss``, up to ``memory_size`` of the rows given to `remember` are kept.

    The constraint holds for the gradient, so for a step of plain SGD that is small enough. Adam scales a
    projected gradient, and its step need not satisfy it. A step costs one backward pass per earlier task.

    Args:
        memory_size: rows per task that the losses are computed on.
        margin: added to each dual variable; a larger one favours earlier tasks.
        averaged: one constraint, on the mean loss of all earlier tasks (A-GEM), instead of one per task.
        loss: ``loss(outputs, target)``, a mean over rows; it is not saved.

    >>> import torch
    >>> from torch import nn
    >>> from torch.nn import functional as F
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.protocols import Consolidation
    >>> from owlrl.regularizers import GEMRegularizer
    >>> from owlrl.td import taken
    >>> network = MultiHeadQ(nn.Linear(4, 8), 8, 3)  # three classes
    >>> optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    >>> gem = GEMRegularizer(loss=F.cross_entropy)
    >>> x, label = torch.randn(10, 4), torch.zeros(10, dtype=torch.int64)
    >>> gem.remember("zeros", {"q": Consolidation(network, 0, (x,), (label,), taken, taken)})
    >>> gem.attach(optimizer)
    >>> before = F.cross_entropy(network(x), label).item()
    >>> F.cross_entropy(network(x), label + 1).backward()  # one head, and now the opposite is asked for
    >>> optimizer.step()
    >>> F.cross_entropy(network(x), label).item() < before + 0.01
    True
    """

    def __init__(
        self,
        *,
        memory_size: int = 256,
        margin: float = 0.0,
        averaged: bool = False,
        loss: Loss | None = None,
    ) -> None:
        arguments = Arguments("GEMRegularizer")
        self.memory_size = arguments.integer("memory_size", memory_size)
        self.margin = arguments.number("margin", margin, least=0.0)
        self.averaged = averaged
        self.loss = arguments.function("loss", loss, "of outputs and targets", none=True)
        arguments.check()
        super().__init__()
        self._inputs: dict[tuple[str, str], tuple[int, tuple[Tensor, ...]]] = {}  # of the memory's rows

    def remember(self, task: str, context: Mapping[str, Consolidation]) -> None:
        """Keep the head's outputs, or the targets, on rows of ``task``."""
        held = self._check_context(task, context)
        self._keep(task, held, {name: self._entry(task, name, c) for name, c in held.items()})

    def term(self, name: str) -> Tensor | None:
        """None: nothing is added, the sum is changed by `adjust`."""
        return None

    def adjust(self, name: str, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Project the gradients of network ``name``."""
        network = self.networks[name]
        tasks = [task for task, entries in self.kept.items() if name in entries]
        # with several heads the active one's own task is not an earlier one
        others = [t for t in tasks if network.num_heads == 1 or self._head(t, name) != network.pointer.head]
        if not others or not gradients:
            return gradients
        rows = [self._gradient(task, name, list(gradients)) for task in others]
        constraints = torch.stack(rows)
        if self.averaged:
            constraints = constraints.mean(0, keepdim=True)
        flat = torch.cat([g.flatten() for g in gradients.values()])
        projected = project_gradient(flat, constraints, self.margin)
        pieces = torch.split(projected, [g.numel() for g in gradients.values()])
        return {key: piece.view_as(g) for (key, g), piece in zip(gradients.items(), pieces, strict=True)}

    def __repr__(self) -> str:
        return f"GEMRegularizer(memory_size={self.memory_size}, averaged={self.averaged}, tasks={self.tasks})"

    def _head(self, task: str, name: str) -> int:
        return int(self.kept[task][name]["head"])

    def _entry(self, task: str, name: str, c: Consolidation) -> dict[str, Any]:
        if self.loss is None and self.memories is not None and len(self.memories.get(task, ())):
            return self._answered(task, name, c.network, c.head)
        inputs = tuple(x.detach() for x in evenly(c.inputs, self.memory_size))
        stored = answers(name, c.network, c.head, inputs)
        if self.loss is not None:
            (stored,) = evenly(c.targets[:1], self.memory_size)
        return {"head": c.head, "stored": stored, "inputs": list(inputs)}

    def _answered(self, task: str, name: str, network: MultiHead, head: int) -> dict[str, Any]:
        """The outputs on rows of the task's memory, which stay where they are."""
        version, inputs = self._remembered(task, name)
        return {"head": head, "stored": answers(name, network, head, inputs), "version": version}

    def _remembered(self, task: str, name: str) -> tuple[int, tuple[Tensor, ...]]:
        """Inputs from the task's memory, gathered when they are needed first, and its version then."""
        if self.memories is None or self.learner is None or task not in self.memories:
            raise OwlStateError(
                f"GEMRegularizer: answers for rows of task {task!r} are kept, but its memory is not there; "
                "call bind(learner, memories), or forget(task)"
            )
        memory = self.memories[task]
        found = self._inputs.get((task, name))
        if found is None or found[0] != memory.version:
            size = min(self.memory_size, len(memory))
            rows = memory.gather(np.arange(size) * len(memory) // size)
            found = self._inputs[task, name] = memory.version, self.learner.inputs(name, rows)
        return found

    def _gradient(self, task: str, name: str, keys: list[str]) -> Tensor:
        """Of the task's loss, for the parameters named ``keys``, flat: (P,)."""
        network, entry = self.networks[name], self.kept[task][name]
        inputs = tuple(entry.get("inputs", ()))
        if not inputs:
            version, inputs = self._remembered(task, name)
            if entry["version"] != version:  # the memory holds other rows now
                entry = self.kept[task][name] = self._answered(task, name, network, entry["head"])
        with all_shown(network.pointer):
            parameters = dict(network.module.named_parameters())
        wanted = [parameters[key] for key in keys]
        with torch.enable_grad(), eval_mode(network.module):
            output = network(*placed(network, inputs), head=entry["head"])
            stored = entry["stored"].to(output.device)
            loss = (
                distillation_loss(output, stored.to(output))
                if self.loss is None
                else self.loss(output, stored)
            )
            grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(p).flatten() if g is None else g.flatten()
                for p, g in zip(wanted, grads, strict=True)
            ]
        )

    def _entry_problems(self, where: str, entry: Any, network: MultiHead | None) -> list[str]:
        try:
            head, rows = int(entry["head"]), len(entry["stored"])
            lengths = {len(x) for x in entry["inputs"]} if "inputs" in entry else {rows}
            int(entry.get("version", 0))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            return [f"{where} cannot be read: {type(error).__name__}: {error}"]
        if lengths != {rows}:
            return [f"{where} cannot be read: it has inputs of {sorted(lengths)} rows for {rows} targets"]
        if network is not None and not 0 <= head < network.num_heads:
            return [f"{where} is of head {head}, and the network has {network.num_heads}"]
        return []
