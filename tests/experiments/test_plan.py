from __future__ import annotations

import functools
import types

import numpy as np
import torch

from owlrl.experiments.plan import fingerprint


def load(source: str) -> types.ModuleType:
    """Source as a module of the user's, as a notebook has it."""
    module = types.ModuleType("mine")
    exec(compile(source, "mine.py", "exec"), vars(module))
    return module


BASE = """
import functools
LENGTH = 3
def helper(n):
    return n + 1
class Env:
    size = 2
    def step(self):
        return helper(self.size)
def make(seed, *, extra=()):
    def inner():
        return Env(), LENGTH
    return inner()
"""


def of(source: str) -> str:
    return fingerprint(load(source).make)


def test_what_counts_and_what_does_not():
    base = of(BASE)
    assert of(BASE) == base
    for same in (
        BASE.replace("    return n + 1", "    # a comment\n    return n + 1"),
        BASE + "def another():\n    return 5\n",
        BASE.replace("LENGTH = 3", "OTHER = 4\nLENGTH = 3"),
    ):
        assert of(same) == base
    changed = {
        of(BASE.replace("n + 1", "n + 2")),  # two calls away
        of(BASE.replace("n + 1", "n - 1")),
        of(BASE.replace("LENGTH = 3", "LENGTH = 4")),
        of(BASE.replace("size = 2", "size = 3")),
        of(BASE.replace("extra=()", "extra=(1,)")),
        of(BASE.replace("return Env(), LENGTH", "return Env(), LENGTH, seed")),
    }
    assert len(changed) == 6 and base not in changed


def test_objects_partials_closures_and_arrays():
    def outer(value):
        return lambda: value

    class Thing:
        def __init__(self, value):
            self.value = value

        @property
        def twice(self):
            return 2 * self.value

        @staticmethod
        def fixed():
            return 3

        def bound(self):
            return self.value

    def pair(function):
        return [fingerprint(function(value)) for value in (1, 2, 1)]

    for function in (
        outer,
        Thing,
        lambda v: functools.partial(print, v),
        lambda v: {"a": [v]},
        lambda v: {v},
        lambda v: np.full(3, v),
        lambda v: torch.full((3,), v),
        lambda v: np.float32(v),
        lambda v: Thing(v).bound,
    ):
        first, second, again = pair(function)
        assert first == again != second


def test_what_refers_to_itself_has_an_end():
    thing: list = []
    thing.append(thing)
    assert fingerprint(thing) == fingerprint(thing)
    assert fingerprint(fingerprint, np.linalg, len) == fingerprint(fingerprint, np.linalg, len)
