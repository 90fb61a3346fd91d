"""A sum tree in numpy: draws in proportion to priorities, whole batches at once."""

from __future__ import annotations

import numpy as np

__all__ = ["SumTree"]

WIDTH = 32
"""Children per node: wide nodes mean few levels, so few numpy calls for a whole batch."""

TOP = 1024
"""The top level may be this long; it is searched as one sorted array."""


class SumTree:
    """Non-negative weights with their sums; every sum is recomputed from its children, so none drifts.

    ``levels[0]`` holds the leaves as (nodes, WIDTH); each entry of ``levels[j + 1]`` is the
    sum of one node of ``levels[j]``; the last level is one long node.

    >>> import numpy as np
    >>> from owlrl.replay.sumtree import SumTree
    >>> tree = SumTree(5000)
    >>> tree.set(np.array([3, 4000]), np.array([1.0, 2.0]))
    >>> tree.total
    3.0
    >>> tree.find(np.array([0.5, 1.0, 2.9]))
    array([   3, 4000, 4000])
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.levels: list[np.ndarray] = []
        while size > TOP:
            size = -(-size // WIDTH)
            self.levels.append(np.zeros((size, WIDTH)))
        self.levels.append(np.zeros((1, size)))

    @property
    def total(self) -> float:
        """Sum of all weights."""
        return float(self.levels[-1].sum())

    def get(self, rows: np.ndarray) -> np.ndarray:
        """Weights of ``rows``."""
        return self.levels[0].take(rows)

    def set(self, rows: np.ndarray, weights: np.ndarray | float) -> None:
        """Give ``rows`` new weights and bring every sum above them up to date."""
        self.levels[0].reshape(-1)[rows] = weights
        for below, above in zip(self.levels[:-1], self.levels[1:], strict=True):
            rows = rows // WIDTH  # a node met twice is computed twice, to the same value
            above.reshape(-1)[rows] = below.take(rows, axis=0).sum(axis=1)

    def clear(self) -> None:
        """Set every weight to zero."""
        for level in self.levels:
            level[:] = 0.0

    def find(self, mass: np.ndarray) -> np.ndarray:
        """The leaf at which the running sum of weights first exceeds ``mass`` (B,), 0 <= mass < total.

        Rounding may leave a hair more mass than a node has; it is cut, so that no step leads
        past the node's last weight: a leaf without weight is never found.
        """
        sums = self.levels[-1][0].cumsum()
        mass = np.minimum(mass, np.nextafter(sums[-1], 0.0))
        node: np.ndarray = sums.searchsorted(mass, "right")
        mass = mass - np.where(node > 0, sums[node - 1], 0.0)
        every = np.arange(len(mass))
        for level in self.levels[-2::-1]:
            sums = np.add.accumulate(level.take(node, axis=0), axis=1)  # (B, WIDTH)
            mass = np.minimum(mass, np.nextafter(sums[:, -1], 0.0))
            child = (sums <= mass[:, None]).argmin(axis=1)  # the first false
            mass = mass - np.where(child > 0, sums[every, child - 1], 0.0)
            node = node * WIDTH + child
        return node
