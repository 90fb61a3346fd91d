"""One thread and separate random numbers: what a run needs to be repeated bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

__all__ = ["kept_generators", "repeatable"]


@contextmanager
def repeatable(seed: int) -> Iterator[None]:
    """One thread and seeded global generators inside the block; restored afterwards.

    Another number of threads gives other bits.

    >>> import torch
    >>> from owlrl.experiments.repeatable import repeatable
    >>> with repeatable(0):
    ...     torch.get_num_threads()
    1
    """
    threads = torch.get_num_threads()
    with kept_generators():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextmanager
def kept_generators() -> Iterator[None]:
    """Draws from the global generators of Python, numpy and torch inside the block change nothing after it.

    >>> import numpy as np
    >>> from owlrl.experiments.repeatable import kept_generators
    >>> with kept_generators():
    ...     inside = np.random.random()
    >>> np.random.random() == inside
    True
    """
    own, numbers = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(own)
            np.random.set_state(numbers)
