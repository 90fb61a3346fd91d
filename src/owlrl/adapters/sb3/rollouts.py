"""`Rollouts`: follows a model's ``learn``, and calls back at the one moment when a task may be changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, Protocol

from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from owlrl.errors import OwlStateError

__all__ = ["Counter", "Rollouts"]

Where = Literal["outside", "start", "collecting", "border", "updating"]
ATTRIBUTE = "_owlrl_rollouts"


class Counter(Protocol):
    """Counts steps for schedules."""

    def progress(self, num_timesteps: int, total_timesteps: int) -> tuple[int, int]:
        """What schedules see instead of (steps made, total steps)."""
        ...

    def restart(self) -> None:
        """The model counts from 0 again."""
        ...


class Rollouts:
    """Follows a model's ``learn``: outside of it, collecting steps, updating, or at the border between.

    ``collect_rollouts`` holds the buffer and the environment of a task in its locals, an update is made of
    several steps that belong together: between them, and only there, tasks may be changed and states
    saved. The model's class is replaced in place by a subclass of the same name that reports where it is;
    attributes added to the model are left out of ``model.save``.

    Args:
        model: the model.
        counter: how its schedules are to count; None for the model's own way.

    >>> from stable_baselines3 import DQN
    >>> from owlrl.adapters.sb3.rollouts import Rollouts
    >>> model = DQN("MlpPolicy", "CartPole-v1", buffer_size=100, learning_starts=100)
    >>> rollouts = Rollouts(model)
    >>> rollouts.install()
    >>> counted = []
    >>> remove = rollouts.at_end(lambda: counted.append(model.num_timesteps))
    >>> _ = model.learn(12)
    >>> counted, rollouts.where
    ([4, 8, 12], 'outside')
    >>> remove()
    >>> rollouts.uninstall()
    >>> type(model) is DQN
    True
    """

    def __init__(self, model: OffPolicyAlgorithm, counter: Counter | None = None) -> None:
        self.model = model
        self.counter = counter
        self.where: Where = "outside"
        self.after_setup: Callable[[], None] | None = None  # once, if the next `learn` continues
        self.plain: Callable[[dict[str, Any]], dict[str, Any]] | None = (
            None  # what ``save`` writes of parameters
        )
        self.saving = False
        self._at_start: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self._waiting: dict[str, Callable[[], None]] = {}

    def install(self) -> None:
        """Begin to follow the model."""
        setattr(self.model, ATTRIBUTE, self)
        self.model.__class__ = _reporting(type(self.model))

    def uninstall(self) -> None:
        """Restore the model's own class."""
        if isinstance(self.model, _Reports):
            self.model.__class__ = type(self.model).__mro__[2]
            delattr(self.model, ATTRIBUTE)

    def at_end(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback()`` after each rollout, before its updates; call the result to stop it."""
        return _added(self._at_end, callback)

    def at_start(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback()`` before each rollout, after the updates of the one before."""
        return _added(self._at_start, callback)

    def when_whole(self, key: str, action: Callable[[], None]) -> None:
        """Run ``action()`` now, or, in the middle of a rollout or an update, as soon as that is over.

        Of several that wait with the same ``key`` the last one is run. Should ``learn`` fail, none is.
        """
        if self.where in ("collecting", "updating"):
            self._waiting[key] = action
        else:
            action()

    def refuse(self, what: str) -> None:
        """Raise if ``learn`` is running and not at a border."""
        if self.where in ("start", "collecting", "updating"):
            raise OwlStateError(
                f"OwlWrapper: cannot {what} inside {type(self.model).__name__}.learn (in a callback); "
                "return False from the callback, and do it when learn has returned"
            )

    @contextmanager
    def at(self, where: Where) -> Iterator[None]:
        """The model is there inside the block."""
        before, self.where = self.where, where
        try:
            yield
        finally:
            self.where = before

    def start(self) -> None:
        """A rollout is to begin."""
        with self.at("start"):
            self.run_waiting()
            for callback in list(self._at_start):
                callback()

    def run_waiting(self) -> None:
        """Run what waited for a whole state."""
        waiting, self._waiting = self._waiting, {}
        for action in waiting.values():
            action()

    def end(self) -> None:
        """A rollout is over."""
        with self.at("border"):
            for callback in list(self._at_end):
                callback()

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return type(None), ()  # a copy of the model, by pickle or deepcopy, is not followed


class _Reports(OffPolicyAlgorithm):
    """Mixed in before a model's own class: reports to its `Rollouts` what ``learn`` is doing."""

    def learn(self, *arguments: Any, **options: Any) -> Any:
        rollouts: Rollouts | None = getattr(self, ATTRIBUTE, None)
        if rollouts is None:
            return super().learn(*arguments, **options)
        rollouts._waiting.clear()  # of a call that failed
        with rollouts.at("updating"):
            learned = super().learn(*arguments, **options)
        rollouts.run_waiting()
        return learned

    def _setup_learn(self, *arguments: Any, **options: Any) -> Any:
        found = super()._setup_learn(*arguments, **options)
        rollouts: Rollouts | None = getattr(self, ATTRIBUTE, None)
        if rollouts is None:
            return found
        if rollouts.counter is not None and not self.num_timesteps:
            rollouts.counter.restart()
        put_back, rollouts.after_setup = rollouts.after_setup, None
        if put_back is not None and self.num_timesteps:
            put_back()
        return found

    def collect_rollouts(self, *arguments: Any, **options: Any) -> Any:
        rollouts: Rollouts | None = getattr(self, ATTRIBUTE, None)
        if rollouts is None:
            return super().collect_rollouts(*arguments, **options)
        rollouts.start()
        try:
            with rollouts.at("collecting"):
                collected = super().collect_rollouts(*arguments, **options)
        except BaseException:
            # the environment may be a step ahead of what is stored, so that the next learn has to reset it
            self._last_obs = None
            raise
        rollouts.end()
        return collected

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        rollouts: Rollouts | None = getattr(self, ATTRIBUTE, None)
        if rollouts is not None and rollouts.counter is not None:
            num_timesteps, total_timesteps = rollouts.counter.progress(num_timesteps, total_timesteps)
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)

    def save(self, *arguments: Any, **options: Any) -> None:
        """Write a model of the active head alone, which its class can load."""
        rollouts: Rollouts | None = getattr(self, ATTRIBUTE, None)
        if rollouts is None:
            return super().save(*arguments, **options)
        rollouts.saving = True
        try:
            super().save(*arguments, **options)
        finally:
            rollouts.saving = False

    def get_parameters(self) -> dict[str, Any]:
        rollouts: Rollouts | None = getattr(self, ATTRIBUTE, None)
        found: dict[str, Any] = super().get_parameters()
        if rollouts is None or rollouts.plain is None or not rollouts.saving:
            return found
        return rollouts.plain(found)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), ATTRIBUTE]

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        function, (_, *more), state, *rest = reduced
        own = {name: value for name, value in state.items() if name != ATTRIBUTE}
        return function, (type(self).__mro__[2], *more), own, *rest


def _added(callbacks: list[Callable[[], None]], callback: Callable[[], None]) -> Callable[[], None]:
    """Add a callback; returns a function that removes it."""
    callbacks.append(callback)

    def remove() -> None:
        if callback in callbacks:
            callbacks.remove(callback)

    return remove


@cache
def _reporting(kind: type) -> type:
    return type(kind.__name__, (_Reports, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
