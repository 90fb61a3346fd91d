"""Trunks: from observations to features."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from owlrl.errors import OwlValueError

__all__ = ["GridConv", "GridMLP", "mlp", "one_hot_cells"]

CHANNEL_SIZES = (11, 6, 3)  # objects, colours, states of a MiniGrid cell


def mlp(inputs: int, hidden: Sequence[int] = (128, 128)) -> nn.Sequential:
    """Linear layers with ReLU after each; the last of ``hidden`` is the feature size.

    >>> import torch
    >>> from owlrl.learners import mlp
    >>> mlp(4, (8, 16))(torch.zeros(2, 4)).shape
    torch.Size([2, 16])
    """
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), nn.ReLU()]
        inputs = size
    return nn.Sequential(*layers)


def one_hot_cells(image: Tensor) -> Tensor:
    """A MiniGrid image as 0 and 1: (B, H, W, 3) of object, colour and state → (B, H·W·20).

    Object, colour and state are names, not amounts.

    >>> import torch
    >>> from owlrl.learners import one_hot_cells
    >>> one_hot_cells(torch.zeros(2, 7, 7, 3)).sum(1)
    tensor([147., 147.])
    """
    index, width = _ones(image), image.shape[1:-1].numel() * sum(CHANNEL_SIZES)
    return torch.zeros(len(image), width, device=image.device).scatter_(1, index, 1.0)


def _ones(image: Tensor) -> Tensor:
    """Where `one_hot_cells` has its ones: (B, H, W, 3) → (B, H·W·3)."""
    return image.flatten(1).long() + _zeroths(image.shape[1:-1].numel(), image.device)


@cache
def _zeroths(cells: int, device: torch.device) -> Tensor:
    """Where the ones are if every object, colour and state is 0."""
    starts = torch.tensor([0, *np.cumsum(CHANNEL_SIZES)[:-1]], device=device)
    return (torch.arange(cells, device=device)[:, None] * sum(CHANNEL_SIZES) + starts).flatten()


class GridMLP(nn.Module):
    """A MiniGrid image, one-hot encoded cell by cell (`one_hot_cells`), through an MLP.

    One-hot, levels are learned in a fraction of the frames that a convolution on the raw
    numbers takes.

    >>> import torch
    >>> from owlrl.learners import GridMLP
    >>> GridMLP((7, 7, 3), (32, 16))(torch.zeros(2, 7, 7, 3)).shape
    torch.Size([2, 16])
    """

    def __init__(self, shape: Sequence[int] = (7, 7, 3), hidden: Sequence[int] = (128, 128)) -> None:
        super().__init__()
        self.layers = mlp(int(np.prod(shape[:-1])) * sum(CHANNEL_SIZES), hidden)
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        # Column by column in memory, for the sums of columns in `forward`.
        first.weight = nn.Parameter(first.weight.detach().t().contiguous().t())

    def forward(self, image: Tensor) -> Tensor:
        """(B, H, W, 3) of object, colour and state indices → (B, features)."""
        first, *rest = self.layers
        assert isinstance(first, nn.Linear)
        ones = _ones(image)
        if torch.is_grad_enabled():  # without the columns that meet no one: a third is left of them
            met = torch.bincount(ones.flatten(), minlength=first.in_features) > 0
            place = (met.cumsum(0) - 1).index_select(0, ones.flatten()).view_as(ones)
            columns = met.nonzero()[:, 0]
            input = first.weight.new_zeros(len(image), len(columns)).scatter_(1, place, 1.0)
            out = F.linear(input, first.weight.t().index_select(0, columns).t(), first.bias)
        else:  # the columns that meet a one, summed: several times faster than the product
            out = F.embedding_bag(ones, first.weight.t(), mode="sum") + first.bias
        for layer in rest:
            out = layer(out)
        return out


class PatchConv(nn.Module):
    """A 2×2 convolution as one matrix product over patches: on a CPU twice as fast as ``nn.Conv2d``."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4 * inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, W, C) → (B, H − 1, W − 1, outputs)."""
        patches = torch.cat([x[:, :-1, :-1], x[:, :-1, 1:], x[:, 1:, :-1], x[:, 1:, 1:]], dim=-1)
        out: Tensor = self.linear(patches)
        return out


class GridConv(nn.Module):
    """The paper's network for 7×7×3 images: three 2×2 convolutions (16, 32, 64), then 200 features.

    Args:
        one_hot: cells as 0 and 1 (`one_hot_cells`) instead of the raw numbers. Levels are then learned in a
            fraction of the frames, and there is more transfer to unseen levels than with `GridMLP`.

    >>> import torch
    >>> from owlrl.learners import GridConv
    >>> GridConv()(torch.zeros(2, 7, 7, 3)).shape
    torch.Size([2, 200])
    """

    def __init__(self, *, one_hot: bool = False) -> None:
        super().__init__()
        self.one_hot = one_hot
        channels = sum(CHANNEL_SIZES) if one_hot else len(CHANNEL_SIZES)
        self.convolutions = nn.ModuleList([PatchConv(channels, 16), PatchConv(16, 32), PatchConv(32, 64)])
        self.out = nn.Linear(64, 200)

    def forward(self, image: Tensor) -> Tensor:
        """(B, 7, 7, 3) → (B, 200)."""
        first, second, third = self.convolutions
        cells = one_hot_cells(image).view(*image.shape[:-1], -1) if self.one_hot else image
        x = F.relu(first(cells.to(self.out.weight.dtype)))
        x = F.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)
        x = F.relu(third(F.relu(second(x))))
        return F.relu(self.out(x.flatten(1)))


def check_cells(where: str, image: np.ndarray) -> None:
    """Raise unless every number of images (B, H, W, 3) is an object, a colour or a state of MiniGrid."""
    most = np.asarray(image).reshape(-1, len(CHANNEL_SIZES)).max(axis=0, initial=0)
    if (most >= CHANNEL_SIZES).any():
        raise OwlValueError(
            f"{where}: the observation has values up to {most.tolist()} in its channels; expected at most "
            f"{[size - 1 for size in CHANNEL_SIZES]}, the objects, colours and states of MiniGrid. For other "
            "images pass trunk=your_module and feature_dim=its_output_size"
        )


def default_trunk(space: Any) -> tuple[nn.Module, int]:
    """A trunk that fits an observation space, and its feature size.

    Vectors of floats get an MLP. Bytes (n, n, 3) are taken for a view of MiniGrid where the bounds of the
    space fit, or where n is odd and at most 11, as its views are.
    """
    shape, dtype = tuple(space.shape or ()), np.dtype(space.dtype)
    if dtype.kind == "f" and len(shape) == 1:
        return mlp(shape[0]), 128
    hint = ""
    if dtype == np.uint8 and len(shape) == 3 and shape[-1] == 3:
        high = getattr(space, "high", np.full(shape, 255))
        if (high < CHANNEL_SIZES).all() or (shape[0] == shape[1] <= 11 and shape[0] % 2):
            return GridMLP(shape), 128
        hint = f", or trunk=GridMLP({shape}) and feature_dim=128 if these are MiniGrid's cells"
    raise OwlValueError(
        f"DQN: no trunk is known for observations of shape {shape} and dtype {dtype}; "
        f"pass trunk=your_module and feature_dim=its_output_size{hint}"
    )
