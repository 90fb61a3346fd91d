"""Stored inputs and outputs of earlier tasks, drawn evenly over the tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from owlrl.errors import NonFiniteError, OwlValueError
from owlrl.heads.modes import eval_mode
from owlrl.protocols import MultiHead

__all__ = ["Draw", "Memory", "TaskMemory", "answers", "placed"]

CHUNK = 1024


@dataclass(frozen=True)
class TaskMemory:
    """n rows of one task: what its network was called with and what its head answered, (n, A)."""

    head: int
    inputs: tuple[Tensor, ...]
    outputs: Tensor


@dataclass(frozen=True)
class Draw:
    """B rows of several tasks: inputs, outputs (B, A) and whose head each row is, (B,)."""

    inputs: tuple[Tensor, ...]
    outputs: Tensor
    heads: Tensor


class Memory:
    """The rows of all tasks of one network in one place, so that a draw is one gather.

    Outputs of heads with fewer actions are padded with −∞, as `MultiHead.per_row` does.
    """

    def __init__(self, tasks: Mapping[str, TaskMemory]) -> None:
        of_task = list(tasks.values())
        self._sizes = np.array([len(t.outputs) for t in of_task], dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]]).astype(np.int64)
        self._heads = np.array([t.head for t in of_task], dtype=np.int64)
        self._inputs = tuple(torch.cat(column) for column in zip(*(t.inputs for t in of_task), strict=True))
        width = max(t.outputs.shape[1] for t in of_task)
        self._outputs = torch.cat(
            [F.pad(t.outputs, (0, width - t.outputs.shape[1]), value=-torch.inf) for t in of_task]
        )
        # views, so that a task's rows are in memory once
        self.tasks = {
            name: TaskMemory(
                t.head,
                tuple(x[start : start + size] for x in self._inputs),
                self._outputs[start : start + size, : t.outputs.shape[1]],
            )
            for (name, t), start, size in zip(tasks.items(), self._starts, self._sizes, strict=True)
        }

    def draw(self, batch_size: int, active_head: int, rng: np.random.Generator) -> Draw | None:
        """``batch_size`` rows spread evenly over the tasks of other heads; None if there is none."""
        tasks = np.flatnonzero(self._heads != active_head)
        if not len(tasks):
            return None
        share, rest = divmod(batch_size, len(tasks))
        counts = np.full(len(tasks), share)
        counts[rng.permutation(len(tasks))[:rest]] += 1
        of_row = np.repeat(tasks, counts)
        rows = torch.from_numpy(self._starts[of_row] + rng.integers(0, self._sizes[of_row]))
        return Draw(
            tuple(x[rows.to(x.device)] for x in self._inputs),
            self._outputs[rows.to(self._outputs.device)],
            torch.from_numpy(self._heads[of_row]),
        )


def answers(name: str, network: MultiHead, head: int, inputs: tuple[Tensor, ...]) -> Tensor:
    """What ``head`` answers, (N, A), computed in pieces and kept where the inputs are."""
    home = inputs[0].device
    with torch.no_grad(), eval_mode(network.module):
        pieces = [
            network(*placed(network, tuple(x[start : start + CHUNK] for x in inputs)), head=head).to(home)
            for start in range(0, len(inputs[0]), CHUNK)
        ]
    output = torch.cat(pieces)
    if output.dim() != 2:
        raise OwlValueError(
            f"DistillationRegularizer.consolidate: network {name!r} gave {tuple(output.shape)}; "
            "expected (N, outputs)"
        )
    if not (output.isfinite() | output.isneginf()).all():
        raise NonFiniteError(
            f"DistillationRegularizer.consolidate: outputs of head {head} of network {name!r} are not finite"
        )
    return output


def placed(network: MultiHead, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The inputs where the network's parameters are now, floating ones in their dtype."""
    like = next(iter(network.module.parameters()))
    return tuple(x.to(like.device, like.dtype if x.is_floating_point() else x.dtype) for x in inputs)
