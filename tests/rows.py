"""All rows that a replay holds, as `sample` would give them."""

from __future__ import annotations

import numpy as np
import torch

from owlrl.adapters.buffers import BufferReplay
from owlrl.adapters.lists import ListReplay
from owlrl.types import Transitions


def rows_of(replay) -> Transitions:
    if isinstance(replay, BufferReplay):
        return replay._drawn(np.arange(len(replay)))
    if isinstance(replay, ListReplay):
        return replay._transitions("rows_of", list(replay.rows), np.arange(len(replay)))
    ring = replay._store.ring
    index = ring.live_rows()
    return Transitions(
        *map(torch.from_numpy, ring.gather(index, 1, replay.gamma)), index=index, task=replay.task
    )
