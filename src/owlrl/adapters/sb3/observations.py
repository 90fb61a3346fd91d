"""Observations of a Stable-Baselines3 model as rows of one tensor, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_obs_shape, is_image_space
from torch import Tensor

from owlrl.errors import OwlTypeError

__all__ = ["ObservationRows"]


class ObservationRows:
    """How a space's observations lie in a tensor: as they are, dict observations flat, side by side.

    Args:
        space: the model's observation space.
        device: where `prepare` puts rows.

    >>> import numpy as np
    >>> from gymnasium import spaces
    >>> from owlrl.adapters.sb3.observations import ObservationRows
    >>> space = spaces.Dict({"where": spaces.Box(-1, 1, (2,)), "door": spaces.Discrete(3)})
    >>> rows = ObservationRows(space)
    >>> flat = rows.prepare({"where": np.array([[0.5, 1.0]]), "door": np.array([2])})
    >>> flat  # in the order of the space
    tensor([[2.0000, 0.5000, 1.0000]])
    >>> rows.unpack(flat)
    {'door': tensor([[2.]]), 'where': tensor([[0.5000, 1.0000]])}
    """

    def __init__(self, space: spaces.Space[Any], *, device: torch.device | str = "cpu") -> None:
        self.space = space
        self.device = device
        self.parts: dict[str, tuple[int, ...]] | None = None
        found = get_obs_shape(space)
        if isinstance(found, dict):
            self.parts = found
            self.shape: tuple[int, ...] = (sum(int(np.prod(shape)) for shape in found.values()),)
            self.dtype: np.dtype[Any] = np.dtype(np.float32)
        else:
            self.shape, self.dtype = found, np.dtype(space.dtype)

    def prepare(self, observation: Tensor | Mapping[str, Any]) -> Tensor:
        """Rows (B, ...) of raw observations, images with their channels first; rows stay as they are."""
        if isinstance(observation, Mapping):
            return self._flat(observation)
        if self.parts is None:
            observation = _channels_first(observation, self.space)
        return observation.reshape(len(observation), *self.shape).to(self.device)

    def unpack(self, rows: Tensor) -> Any:
        """What the model's networks are called with for these rows."""
        if self.parts is None:
            return rows
        sizes = [int(np.prod(shape)) for shape in self.parts.values()]
        pieces = zip(self.parts.items(), torch.split(rows, sizes, dim=1), strict=True)
        return {name: piece.reshape(len(rows), *shape) for (name, shape), piece in pieces}

    def _flat(self, observation: Mapping[str, Any]) -> Tensor:
        if self.parts is None or set(observation) != set(self.parts):
            expected = "an array" if self.parts is None else f"a dict of {sorted(self.parts)}"
            raise OwlTypeError(f"the observation is a dict of {sorted(observation)}; expected {expected}")
        assert isinstance(self.space, spaces.Dict)
        columns = []
        for name in self.parts:
            part = _channels_first(torch.as_tensor(np.asarray(observation[name])), self.space[name])
            columns.append(part.reshape(len(part), -1).to(self.device, torch.float32))
        return torch.cat(columns, dim=1)


def _channels_first(observation: Tensor, space: spaces.Space[Any]) -> Tensor:
    """The model sees images with their channels first, an environment may give them last."""
    if observation.dim() == 4 and tuple(observation.shape[1:]) != space.shape and is_image_space(space):
        return observation.permute(0, 3, 1, 2)
    return observation
