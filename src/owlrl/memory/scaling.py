"""How raw stored rows become what the networks see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from torch import Tensor

from owlrl._arguments import Arguments

__all__ = ["Scaling"]


@dataclass(frozen=True, eq=False)
class Scaling:
    """Normalisation of observations and rewards, e.g. the statistics of a ``VecNormalize``.

    Observations become ``clip((x - observation_mean) / observation_std, ±observation_clip)``, rewards
    ``clip(r / reward_std, ±reward_clip)``: computed in float64, given as float32, as Stable-Baselines3
    does. What is None is left out; without any of the three for observations they keep their dtype.

    Args:
        observation_mean: a number or an array that broadcasts to one observation.
        observation_std: likewise, > 0; with ``VecNormalize`` it is ``sqrt(var + epsilon)``.
        observation_clip: a number > 0.
        reward_std: a number > 0.
        reward_clip: a number > 0.

    >>> import numpy as np
    >>> from owlrl.memory import Scaling
    >>> scaling = Scaling(observation_mean=np.array([1.0, 2.0]), observation_std=2.0, reward_std=4.0)
    >>> scaling.observation(np.array([[3, 2]], dtype=np.uint8)), scaling.reward(np.array([2.0]))
    (array([[1., 0.]], dtype=float32), array([0.5], dtype=float32))
    """

    observation_mean: np.ndarray | float | None = None
    observation_std: np.ndarray | float | None = None
    observation_clip: float | None = None
    reward_std: float | None = None
    reward_clip: float | None = None

    def __post_init__(self) -> None:
        arguments = Arguments("Scaling")
        for name, least in (("observation_mean", -np.inf), ("observation_std", 0.0)):
            value = getattr(self, name)
            if value is not None:
                array = _numbers(value)
                if array is None or not (array > least).all():
                    what = f"finite numbers{' > 0' * (least == 0)}"
                    arguments.problem(f"{name} is {value!r}; expected {what}, or None")
                object.__setattr__(self, name, array)
        for name in ("observation_clip", "reward_std", "reward_clip"):
            value = getattr(self, name)
            value = value.item() if isinstance(value, np.ndarray | Tensor) and value.ndim == 0 else value
            object.__setattr__(self, name, arguments.number(name, value, above=0.0, none=True))
        arguments.check()

    def observation(self, values: np.ndarray) -> np.ndarray:
        """Observations (B, ...) as the networks see them."""
        mean, std, clip = self.observation_mean, self.observation_std, self.observation_clip
        if mean is None and std is None and clip is None:
            return values
        return _scaled(values, mean, std, clip)

    def reward(self, values: np.ndarray) -> np.ndarray:
        """Rewards (B,) as the networks see them."""
        return _scaled(values, None, self.reward_std, self.reward_clip)

    def problems(self, shape: tuple[int, ...]) -> list[str]:
        """What is wrong with the statistics for observations of ``shape``."""
        found = []
        for name in ("observation_mean", "observation_std"):
            value = getattr(self, name)
            try:
                fits = value is None or np.broadcast_shapes(value.shape, shape) == shape
            except ValueError:
                fits = False
            if not fits:
                found.append(f"scaling.{name} has shape {value.shape}; expected {shape}, as an observation")
        return found

    def state_dict(self) -> dict[str, Any]:
        """The fields, as arrays, numbers and None."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Scaling:
        """What `state_dict` returned, as a scaling again."""
        return cls(**{field.name: state[field.name] for field in fields(cls)})


def _scaled(values: np.ndarray, mean: Any, std: Any, clip: float | None) -> np.ndarray:
    scaled = values.astype(np.float64)
    if mean is not None:
        scaled -= mean
    if std is not None:
        scaled /= std
    if clip is not None:
        np.clip(scaled, -clip, clip, out=scaled)
    return scaled.astype(np.float32)


def _numbers(value: object) -> np.ndarray | None:
    """``value`` as a float64 array of finite numbers, copied; None if it is not one."""
    given = value.numpy(force=True) if isinstance(value, Tensor) else value
    try:
        array = np.array(given)
    except (TypeError, ValueError):
        return None
    if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
        return None
    return array.astype(np.float64)
