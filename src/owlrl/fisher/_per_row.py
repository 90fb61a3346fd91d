"""Sums of squared gradients from the gradient of every row: vectorised, or one row at a time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from owlrl.fisher._problem import Problem, Rows, Sums, accumulator

__all__ = ["one_by_one", "vectorized"]

GRADIENT_ELEMENTS = 1 << 23  # per-row gradients held at once


def one_by_one(problem: Problem, rows: Rows) -> Sums:
    """The definition: differentiate each row by itself, square, add."""
    sums = {name: accumulator(p) for name, p in problem.parameters.items()}
    wanted = tuple(problem.parameters.values())
    for row in range(len(rows)):
        value = problem.values(rows.take(slice(row, row + 1))).sum()
        if not value.requires_grad:
            continue
        grads = torch.autograd.grad(value, wanted, allow_unused=True)
        for total, gradient in zip(sums.values(), grads, strict=True):
            if gradient is not None:
                total += gradient.to(total.dtype).square()
    return sums


def vectorized(problem: Problem, rows: Rows) -> Sums:
    """The same with ``torch.func``, as many rows at once as their gradients fit in memory."""

    def value(
        parameters: Mapping[str, Tensor],
        inputs: tuple[Tensor, ...],
        targets: tuple[Tensor, ...],
        root_count: Tensor,
    ) -> Tensor:
        output = functional_call(problem.module, dict(parameters), tuple(x.unsqueeze(0) for x in inputs))
        one = problem.weighted(output, tuple(t.unsqueeze(0) for t in targets), root_count.unsqueeze(0))
        return one.squeeze(0)

    parameters = {name: p.detach() for name, p in problem.parameters.items()}
    sums = {name: accumulator(p) for name, p in parameters.items()}
    size = max(1, GRADIENT_ELEMENTS // sum(p.numel() for p in parameters.values()))
    per_row = vmap(grad(value), in_dims=(None, 0, 0, 0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        for piece in rows.chunks(size, problem.device):
            for name, gradient in per_row(parameters, piece.inputs, piece.targets, piece.root_count).items():
                # an objective may ask other networks too (an actor's loss its critics)
                sums[name] += gradient.detach().to(sums[name].dtype).square().sum(0)
    return sums
