"""What every path is given: the function to differentiate, and rows to do it on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from owlrl.errors import OwlValueError
from owlrl.heads.modes import eval_mode

__all__ = ["Problem", "Rows", "Sums", "accumulator", "undisturbed"]

Sums = dict[str, Tensor]  # parameter name -> sum over rows of the squared gradient


@dataclass(frozen=True)
class Rows:
    """n rows of inputs and targets, and √(how often each occurs).

    Scaling a row's objective by the root scales its squared gradient by the count.
    """

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    root_count: Tensor

    def __len__(self) -> int:
        return len(self.root_count)

    def take(self, rows: slice | Tensor) -> Rows:
        """The given rows."""
        return Rows(
            tuple(x[rows] for x in self.inputs), tuple(t[rows] for t in self.targets), self.root_count[rows]
        )

    def chunks(self, size: int, device: torch.device) -> Iterator[Rows]:
        """Pieces of at most ``size`` rows, each moved to ``device`` when its turn comes."""
        for start in range(0, len(self), size):
            piece = self.take(slice(start, start + size))
            yield Rows(
                tuple(x.to(device) for x in piece.inputs),
                tuple(t.to(device) for t in piece.targets),
                piece.root_count.to(device),
            )


@dataclass(frozen=True)
class Problem:
    """``objective(module(*inputs), *targets) -> (B,)`` and the parameters it is differentiated by."""

    module: nn.Module
    objective: Callable[..., Tensor]
    parameters: Mapping[str, nn.Parameter]

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self.parameters.values())).device

    def weighted(self, output: object, targets: tuple[Tensor, ...], root_count: Tensor) -> Tensor:
        """The objective's values (B,), each times the root of its row's count."""
        value: object = self.objective(output, *targets)
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if not isinstance(value, Tensor) or shape != tuple(root_count.shape):
            raise OwlValueError(
                f"squared_gradients: objective gave {shape} for {len(root_count)} rows; "
                f"expected one number per row, {tuple(root_count.shape)}; do not reduce over the batch"
            )
        return value * root_count.to(value.dtype)

    def values(self, rows: Rows) -> Tensor:
        """`weighted` of a whole batch, by a plain call of the module."""
        return self.weighted(self.module(*rows.inputs), rows.targets, rows.root_count)


def accumulator(parameter: Tensor) -> Tensor:
    """Zeros like ``parameter``, in float32 at least: squares underflow in half precision."""
    return torch.zeros_like(
        parameter, dtype=torch.promote_types(parameter.dtype, torch.float32), requires_grad=False
    )


@contextmanager
def undisturbed(problem: Problem) -> Iterator[None]:
    """Evaluation mode with gradients on; whatever a forward pass may change is put back."""
    module = problem.module
    frozen = [p for p in problem.parameters.values() if not p.requires_grad]
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    homes = [
        (m._buffers, name, b) for m in module.modules() for name, b in m._buffers.items() if b is not None
    ]
    stand_ins = {id(b): b.clone() for _, _, b in homes}  # one per buffer, however often it is shared
    with eval_mode(module), torch.random.fork_rng(devices=list(devices)):
        try:
            for buffers, name, buffer in homes:
                buffers[name] = stand_ins[id(buffer)]
            for parameter in frozen:
                parameter.requires_grad_(True)
            with torch.inference_mode(False), torch.enable_grad():
                yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)
            for buffers, name, buffer in homes:
                buffers[name] = buffer
