"""Objects of other libraries, turned into what the wrapper works with by the adapter that knows them."""

from __future__ import annotations

from collections.abc import Mapping, MutableSequence
from importlib import import_module
from types import ModuleType
from typing import Any

from owlrl.protocols import OffPolicyLearner
from owlrl.replay import ListReplay

__all__ = ["as_env", "as_learner", "as_replay"]

ADAPTERS = {"sb3_contrib": "owlrl.adapters.sb3", "stable_baselines3": "owlrl.adapters.sb3"}
# what the ReplayBuffer of Stable-Baselines3 and its copies in other people's files have in common
BUFFER_PARTS = (
    *("observations", "actions", "rewards", "dones", "timeouts", "pos", "full", "buffer_size"),
    *("n_envs", "optimize_memory_usage", "handle_timeout_termination", "add", "reset"),
)


def as_learner(item: Any) -> OffPolicyLearner:
    """What an adapter makes of ``item``; ``item`` itself if it comes from no library that is known.

    An adapter is imported only when something of its library is there.

    >>> from owlrl.describe.given import as_learner
    >>> as_learner("no model")
    'no model'
    """
    if hasattr(item, "describe"):  # owlrl's own DQN and SAC
        item = item.describe()
    adapter = _adapter(item)
    learner: OffPolicyLearner = item if adapter is None else adapter.adapt(item)
    return learner


def as_env(env: Any) -> Any:
    """A library's own kind of environment in Gymnasium's interface; any other as it is.

    >>> from owlrl.describe.given import as_env
    >>> as_env("no environment")
    'no environment'
    """
    adapter = _adapter(env)
    return env if adapter is None else adapter.adapt_env(env)


def as_replay(item: Any, *, gamma: float) -> Any:
    """A script's list, deque or ``ReplayBuffer`` as a replay that knows of tasks; any other as it is.

    >>> from owlrl.describe.given import as_replay
    >>> as_replay([], gamma=0.9)
    ListReplay(0 rows in a list, task=None, warm_start=50000, stored={})
    """
    if isinstance(item, MutableSequence):
        return ListReplay(item, gamma=gamma)
    is_buffer = not isinstance(item, type) and all(hasattr(item, name) for name in BUFFER_PARTS)
    if is_buffer and not isinstance(item.observations, Mapping):
        return import_module("owlrl.adapters.buffers").BufferReplay(item, gamma=gamma)
    return item


def _adapter(item: Any) -> ModuleType | None:
    """The adapter for the first library that ``item``'s class comes from, its bases included."""
    libraries = (base.__module__.partition(".")[0] for base in type(item).__mro__)
    found = next((ADAPTERS[name] for name in libraries if name in ADAPTERS), None)
    return None if found is None else import_module(found)
