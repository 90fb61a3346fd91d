"""What the parts expect of each other: read this file first, then ``wrapper.py``.

An `OffPolicyLearner` owns networks that are `MultiHead`, a `TaskReplay` and optimizers.
`OwlWrapper` sets its task; a `Regularizer` protects what the networks already
know; at test time `Evidence` scores every head on the last step and a `HeadSelector`
turns the scores into the head that acts next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.types import HeadPointer, Transitions

__all__ = [
    "Consolidation",
    "Evidence",
    "HeadSelector",
    "MultiHead",
    "OffPolicyLearner",
    "Regularizer",
    "Stateful",
    "TaskReplay",
    "missing_members",
]


@runtime_checkable
class Stateful(Protocol):
    """Anything with a ``state_dict`` that can be loaded: a schedule, an optimizer, a module."""

    def state_dict(self) -> dict[str, Any]:
        """Everything needed to continue, as tensors, arrays, numbers, strings, lists and dicts."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Continue from what ``state_dict`` returned."""
        ...


@runtime_checkable
class MultiHead(Protocol):
    """A network with one head per task: a `MultiHeadQ`, or any network after promotion."""

    @property
    def module(self) -> nn.Module:
        """The module itself; its plain call computes the active head."""
        ...

    @property
    def pointer(self) -> HeadPointer:
        """The active head, shared with the target network and all copies."""
        ...

    @property
    def num_heads(self) -> int:
        """How many heads there are."""
        ...

    def __call__(self, *inputs: Tensor, head: int | None = None) -> Tensor:
        """Output (B, A) of the active head, or of ``head``; changes no state."""
        ...

    def all_heads(self, *inputs: Tensor) -> Tensor:
        """Outputs (H, B, A) of every head from one pass through the trunk."""
        ...

    def per_row(self, *inputs: Tensor, heads: Tensor) -> Tensor:
        """Outputs (B, A) where row ``b`` is computed by head ``heads[b]``; one trunk pass."""
        ...

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """The trunk's parameters by their name in ``module``."""
        ...

    def head_parameters(self, head: int) -> dict[str, nn.Parameter]:
        """One head's parameters by their name in ``module``."""
        ...


@dataclass(frozen=True)
class Consolidation:
    """What a regularizer is given per network when a task has been learned.

    Attributes:
        network: the network, all its heads.
        head: the head of the task that was just learned.
        inputs: N rows of what the network is called with, from this task.
        targets: N rows each of whatever ``output`` and ``loss`` need besides the network's output.
        output: ``output(network_output, *targets) -> (B,)``: the number per row whose
            sensitivity ``importance="output"`` measures; for a Q-network Q(s, a).
        loss: ``loss(network_output, *targets) -> (B,)``: the learner's loss per row.
        weight: (N,) how much each row counts, with mean 1; None where all count equally.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ
    >>> from owlrl.protocols import Consolidation
    >>> from owlrl.td import taken
    >>> q, action = MultiHeadQ(nn.Linear(4, 8), 8, 2), torch.zeros(10, dtype=torch.int64)
    >>> Consolidation(q, 0, (torch.ones(10, 4),), (action,), output=taken, loss=taken).head
    0
    """

    network: MultiHead
    head: int
    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    output: Callable[..., Tensor]
    loss: Callable[..., Tensor]
    weight: Tensor | None = None


@runtime_checkable
class Regularizer(Stateful, Protocol):
    """Keeps what was learned: a penalty that grows as the networks move away from it.

    `owlrl.regularizers.Regularizer` is a base class with two methods to write.
    """

    def bind(self, learner: OffPolicyLearner, memories: Mapping[str, Any] | None) -> None:
        """Set whose networks are protected, and where the rows of each task are (`owlrl.memory`)."""
        ...

    def remember(self, task: str, context: Mapping[str, Consolidation]) -> None:
        """Store what ``task`` needs; a task seen before replaces its earlier term."""
        ...

    def forget(self, task: str) -> None:
        """Drop everything of ``task``."""
        ...

    def penalty(self) -> Tensor:
        """The penalty now, a scalar with gradient, to be added to a loss by hand."""
        ...

    def watch(self) -> dict[str, float]:
        """Numbers for a log: the drift of old heads and the pull on them."""
        ...

    def attach(self, optimizer: Optimizer) -> None:
        """Add the penalty's gradient before every ``optimizer.step()``; refused twice."""
        ...

    def detach(self) -> None:
        """Undo every ``attach``."""
        ...


@runtime_checkable
class TaskReplay(Stateful, Protocol):
    """A replay that knows which task its rows belong to.

    When a visit that was interrupted continues, `begin_task` is not called. A replay that has to know of it
    has a method ``resume_task(task)``, which is called instead. One whose rows are stored without its
    knowledge has a method ``check_new()``, which is called before every optimizer step and raises
    `owlrl.errors.NonFiniteError` if a row that came since then is not finite.
    """

    def begin_task(self, task: str) -> None:
        """Make the replay ready for rows of ``task``."""
        ...

    def end_task(self) -> None:
        """Keep what a later visit of the current task should start from."""
        ...

    def sample(self, batch_size: int) -> Transitions:
        """Draw rows of the current task."""
        ...

    def new_rows(self) -> Transitions | None:
        """The one-step rows stored since the last call, or since `begin_task`; None if there are none.

        Raw and copied, oldest first within each environment, with ``truncated``, ``env`` and ``task``.
        """
        ...

    def forget(self, task: str) -> None:
        """Drop what is kept of ``task``."""
        ...

    def __len__(self) -> int: ...


@runtime_checkable
class HeadSelector(Protocol):
    """Chooses a head when the task is unknown.

    `owlrl.selection.Selector` is the base class of the built-in selectors and of your own.

    Everything comes in two shapes: for one episode (``reset(n)``: an int, an array (n,)) and
    for E episodes side by side (``reset(n, num_episodes=E)``: arrays (E,) and (E, n)).
    """

    @property
    def needs_values(self) -> bool:
        """Whether ``observe_values`` must be called before ``select``."""
        ...

    def observe_values(self, values: np.ndarray) -> None:
        """Update with the greedy value of each head at the current observation: (n,) or (E, n)."""
        ...

    def reset(
        self, num_heads: int, *, num_episodes: int | None = None, mask: np.ndarray | None = None
    ) -> None:
        """Forget all evidence; with ``mask`` (E,) only that of the episodes marked true."""
        ...

    def select(self) -> int | np.ndarray:
        """The head to act with now."""
        ...

    def update(self, losses: np.ndarray, *, mask: np.ndarray | None = None) -> None:
        """Update with a loss per head, lower is better: (n,) or (E, n); with ``mask`` only some episodes."""
        ...

    @property
    def probabilities(self) -> np.ndarray:
        """Probability of each head: (n,) or (E, n)."""
        ...


@runtime_checkable
class Evidence(Stateful, Protocol):
    """Scores heads on transitions: the lower, the more it looks like that head's task.

    `owlrl.evidence.Evidence` is the base class of the built-in evidence and of your own.
    """

    def calibrate(self, learner: OffPolicyLearner, head: int, rows: Transitions) -> None:
        """Fit a head's scale or model to rows of its task, at the end of that task."""
        ...

    def losses(self, learner: OffPolicyLearner, rows: Transitions, heads: np.ndarray) -> np.ndarray:
        """Non-negative losses (len(heads), len(rows)) of the given heads, in one pass."""
        ...

    def forget(self, head: int) -> None:
        """Drop what is kept of a head."""
        ...


@runtime_checkable
class OffPolicyLearner(Protocol):
    """Everything that `OwlWrapper` needs to know about a learner; it never runs the learner's loop.

    `QLearner` describes a hand-written DQN this way in one call.
    """

    @property
    def networks(self) -> Mapping[str, MultiHead]:
        """The trained networks by name, e.g. ``{"q": q}``; all share one pointer."""
        ...

    @property
    def targets(self) -> Mapping[str, MultiHead]:
        """Their target networks under the same names; empty if there are none."""
        ...

    @property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """The optimizer of each network under the network's name."""
        ...

    @property
    def replay(self) -> TaskReplay | None:
        """Where the learner's transitions go; None if it is given to the wrapper instead."""
        ...

    @property
    def per_task(self) -> Mapping[str, Stateful]:
        """What is kept per task (exploration, step size, temperature), by name."""
        ...

    @property
    def gamma(self) -> float:
        """The discount of one step."""
        ...

    @property
    def pretrained(self) -> bool:
        """Whether it was trained before it was wrapped: its first task continues with the head it has."""
        ...

    @property
    def seed(self) -> int | None:
        """The learner's seed, if it knows one; parts without a seed use it."""
        ...

    def scaling(self) -> Any:
        """How raw rows become the networks' inputs now, a `owlrl.memory.Scaling`; None for no scaling."""
        ...

    def finish_task(self) -> None:
        """A task ends: put what should be kept (e.g. averaged weights) into the networks.

        Called before anything of the task is remembered.
        """
        ...

    def trial(self, row: Transitions | None) -> list[str]:
        """Run a row (None: one of zeros) through everything needed later; return what fails.

        Forward pass, heads, TD errors, consolidation; in evaluation mode, with the generators as before
        and nothing changed. Called when the learner is wrapped, and with the first row that it stores.
        """
        ...

    def problems(self) -> list[str]:
        """All problems that can be found before anything is changed."""
        ...

    def bind(self) -> None:
        """Give the networks their heads (head 0 is what was there); called once by the wrapper."""
        ...

    def unbind(self, head: int) -> None:
        """Make the networks plain again, with ``head`` as their only one."""
        ...

    def add_head(self, *, num_actions: int | None = None) -> int:
        """Grow every network, target and optimizer by one head; return its index."""
        ...

    def reset_head(self, head: int) -> None:
        """Reset a head of every network and target, as if it were new."""
        ...

    def set_env(self, env: object) -> None:
        """Train in ``env`` from now on."""
        ...

    def record(self, numbers: Mapping[str, float]) -> None:
        """Write numbers to the learner's own log, if it has one."""
        ...

    def at_border(self, callback: Callable[[], None]) -> Callable[[], None] | None:
        """Call ``callback()`` when every row is stored and no update is half done; the result stops it.

        What is saved there can be resumed exactly. None where only the user's own loop knows when.
        """
        ...

    def prepare(self, observation: Any) -> Tensor:
        """What the networks are called with for a batch of raw observations.

        A tensor, or a dict of arrays for dict observations; prepared input is returned unchanged.
        """
        ...

    def inputs(self, name: str, rows: Transitions) -> tuple[Tensor, ...]:
        """The inputs of network ``name`` for ``rows``, raw or scaled."""
        ...

    def act(self, observation: Tensor, heads: Tensor | int) -> Tensor:
        """Greedy actions (B,) or ``(B, *action shape)``, row ``b`` by ``heads[b]``, or all by one head."""
        ...

    def values(self, observation: Tensor) -> Tensor:
        """The greedy value of every head, (H, B)."""
        ...

    def td_errors(self, transitions: Transitions, heads: np.ndarray) -> Tensor:
        """δ (len(heads), B) of the given heads, each bootstrapped from itself."""
        ...

    def consolidation(self, rows: Transitions) -> Mapping[str, Consolidation]:
        """What a regularizer is given: ``rows`` of the current task, per network."""
        ...


def missing_members(item: object, protocol: type) -> list[str]:
    """What ``item`` lacks of ``protocol``, found without running any of its properties.

    >>> from owlrl.protocols import Stateful, missing_members
    >>> missing_members({}, Stateful)
    ['load_state_dict', 'state_dict']
    """
    wanted = {
        name
        for base in protocol.__mro__
        if base not in (object, Protocol) and base.__module__ == __name__
        for name in vars(base)
        if not name.startswith("_") or name == "__len__"
    }
    own = {} if isinstance(item, type) else getattr(item, "__dict__", {})  # a class is not its instance
    there = {*dir(type(item)), *own}
    return sorted(wanted - there)
