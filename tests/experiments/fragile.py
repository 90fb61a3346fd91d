"""A keeper that dies: runs are killed at chosen moments without a second process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from owlrl.experiments.keeping import Keeper


class Killed(BaseException):
    """As if the process had gone."""


class Fragile(Keeper):
    """Is killed at the ``kill``-th state that is offered, before or after it was written."""

    def __init__(self, path: Any, identity: Any, *, kill: int, before: bool = False) -> None:
        super().__init__(path, identity, seconds=1_000)
        self.offered, self.kill, self.before = 0, kill, before

    def tick(self, state: Callable[[], dict[str, Any] | None]) -> None:
        self.offered += 1
        written = self.offered % 3 == 0 if self.before else self.offered == self.kill
        found = state() if written else None
        if found is not None:
            self.save(found)
        if self.offered == self.kill:
            raise Killed


def killed_again_and_again(path: Any, identity: Any, finish: Callable[[Keeper], Any]) -> tuple[Any, int]:
    """What ``finish`` gives in the end, and how often it was killed on the way there."""
    kills = 0
    while True:
        try:
            keeper = Fragile(path, identity, kill=9 + 7 * (kills % 3), before=bool(kills % 2))
            return finish(keeper), kills
        except Killed:
            kills += 1
        assert kills < 100
