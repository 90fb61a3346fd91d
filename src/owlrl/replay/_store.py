"""A ring and the draw bound to it: what every replay of this package is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from owlrl.replay._spec import Rows, RowSpec, as_array
from owlrl.replay.ring import FrameRing, Gathered
from owlrl.replay.samplers import Sampler
from owlrl.types import Transitions

__all__ = ["RowStore", "ring_state", "to_transitions"]


class RowStore:
    """Rows in a `FrameRing`, with a sampler's draw that is told of each change."""

    def __init__(self, spec: RowSpec, *, capacity: int, num_lanes: int, sampler: Sampler) -> None:
        self.ring = FrameRing(spec, capacity=capacity, num_lanes=num_lanes)
        self.draw = sampler.bind(self.ring)

    def __len__(self) -> int:
        return len(self.ring)

    def add(self, lanes: np.ndarray, rows: Rows) -> None:
        """Store one transition in each of ``lanes``."""
        self.draw.changed(*self.ring.add(lanes, rows))

    def update(self, rows: np.ndarray, priorities: np.ndarray) -> None:
        """Give rows new priorities; rows where no transition starts any more are left out."""
        live = self.ring.live[rows]
        self.draw.update(rows[live], priorities[live])

    def clear(self) -> None:
        """Forget every row."""
        self.ring.clear()
        self.draw.cleared()

    def refill(self, frames: Mapping[str, Any]) -> None:
        """Hold exactly ``frames``, as `FrameRing.newest` gave them, as if just added."""
        self.clear()
        self.ring.restore(frames)
        self.draw.changed(self.ring.live_rows(), np.zeros(0, np.int64))

    def state_dict(self) -> dict[str, Any]:
        """All rows and what the draw remembers of them."""
        return {"ring": self.ring.state_dict(), "draw": self.draw.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``; ValueError, TypeError or KeyError if it does not fit."""
        self.ring.restore(ring_state(self.ring, state["ring"]))
        self.draw.load_state_dict(state["draw"])


def to_transitions(
    found: Gathered,
    weight: np.ndarray | None,
    index: np.ndarray,
    task: str | None,
    device: torch.device | str,
) -> Transitions:
    """Gathered arrays as `Transitions` on ``device``, without copying what is on the CPU."""
    tensor = torch.from_numpy
    observation, action, reward, next_observation, terminated, discount = found
    made = Transitions(
        tensor(observation),
        tensor(action),
        tensor(reward),
        tensor(next_observation),
        tensor(terminated),
        tensor(discount),
        None if weight is None else tensor(weight),
        index,
        task,
    )
    return made if device == "cpu" else made.to(device)


def ring_state(ring: FrameRing, state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """``state`` as arrays that `FrameRing.restore` may take; ValueError, TypeError or KeyError if not."""
    spec, lanes = ring.spec, (ring.num_lanes,)
    total = int(as_array(state["used"]).sum())
    expected: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
        "observation": ((total, *spec.observation.shape), spec.observation.dtype),
        "action": ((total, *spec.action.shape), spec.action.dtype),
        "reward": ((total,), np.float32),
        "terminated": ((total,), np.bool_),
        "live": ((total,), np.bool_),
        "used": (lanes, np.int64),
        "tail": (lanes, np.int64),
        "open": (lanes, np.bool_),
    }
    arrays = {}
    for name, (shape, dtype) in expected.items():
        array = arrays[name] = as_array(state[name]).copy()
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f"{name} is {array.dtype} {array.shape}; expected {np.dtype(dtype)} {shape}")
    _check_places(ring, arrays)
    return arrays


def _check_places(ring: FrameRing, arrays: Mapping[str, np.ndarray]) -> None:
    used, tail = arrays["used"], arrays["tail"]
    if (used < 0).any() or (used > ring.num_frames).any():
        raise ValueError(f"used is {used.tolist()}; expected 0 to {ring.num_frames} frames")
    frame, lane = np.divmod(tail, ring.num_lanes)
    wrong = (lane != np.arange(ring.num_lanes)) | (frame >= np.maximum(used, 0)) | (frame < -1)
    # Until a lane is full, its last observation is in the last of its frames.
    if (wrong | ((used < ring.num_frames) & (frame != used - 1))).any():
        raise ValueError(f"tail is {tail.tolist()}; expected the rows of each lane's last observation")
    place = np.arange(used.max())[:, None]
    if (arrays["live"] & (place == frame)[place < used]).any():
        raise ValueError("live is true for a lane's last observation; expected no transition there")
