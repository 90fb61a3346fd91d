"""`QLearner`: a hand-written DQN described in one call from the objects its script has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.describe._problems import (
    common_problems,
    head_problems,
    loss_problems,
    ownership_problems,
    target_problems,
)
from owlrl.describe._trained import TrainedNetwork
from owlrl.describe.given import as_replay
from owlrl.errors import OwlStateError
from owlrl.heads import MultiHeadQ
from owlrl.heads.modes import eval_mode
from owlrl.protocols import Consolidation, MultiHead, Stateful, TaskReplay
from owlrl.td import double_q_value, max_q_value, taken, td_target
from owlrl.types import HeadPointer, Transitions

__all__ = ["QLearner"]

Preprocess = Callable[[Tensor], Tensor]


class QLearner:
    """What `OwlWrapper` needs to know of a DQN that somebody wrote: its parts, not its loop.

    Args:
        q: the Q-network: a `MultiHeadQ`, or any module with a linear output layer, which is
            given heads in place when it is wrapped.
        target: its target network, or None.
        optimizer: the optimizer that trains ``q``.
        replay: where the script puts its transitions: a `TaskScopedReplay` or one of its
            siblings, the ``ReplayBuffer`` of Stable-Baselines3 or CleanRL, or a plain list or
            ``deque`` of (observation, action, reward, next_observation, done) tuples.
        gamma: the script's discount.
        double: whether its targets are double-Q targets.
        loss: its loss per row, ``loss(q, target, reduction="none")``.
        per_task: what every task has of its own (an exploration schedule, say): objects with
            ``state_dict`` and ``load_state_dict``, by name.
        preprocess: how a batch of raw observations becomes the network's input; by default a
            cast to the network's dtype and device.
        layers: names of the output layers, where they are not found by themselves.
        init: how a new task's head starts, "fresh", answering "zero" or as a "copy" of the active one.
        on_task_end: called when a task is left, before anything is remembered: hand over averaged weights.

    >>> import copy, torch
    >>> from collections import deque
    >>> from torch import nn
    >>> from owlrl import OwlWrapper, QLearner
    >>> q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> learner = QLearner(q, copy.deepcopy(q), torch.optim.Adam(q.parameters()), replay=deque(maxlen=1000))
    >>> OwlWrapper(learner)
    OwlWrapper(QLearner(Sequential), regularizer=None, replay=ListReplay, tasks=[])
    """

    def __init__(
        self,
        q: nn.Module,
        target: nn.Module | None,
        optimizer: Optimizer,
        *,
        replay: Any = None,
        gamma: float = 0.99,
        double: bool = True,
        loss: Callable[..., Tensor] = F.smooth_l1_loss,
        per_task: Mapping[str, Stateful] | None = None,
        preprocess: Preprocess | None = None,
        layers: Sequence[str] | None = None,
        init: Literal["fresh", "zero", "copy"] = "fresh",
        on_task_end: Callable[[], None] | None = None,
    ) -> None:
        self.q = q
        self.target = target
        self.optimizer = optimizer
        self.replay: TaskReplay | None = as_replay(replay, gamma=gamma)
        self.gamma = gamma
        self.double = double
        self.loss = loss
        self.per_task: Mapping[str, Stateful] = dict(per_task or {})
        self.preprocess = preprocess
        self.layers = layers
        self.init = init
        self.on_task_end = on_task_end
        self._trained = TrainedNetwork(q, target, optimizer, layers=layers)

    @property
    def networks(self) -> dict[str, MultiHead]:
        """The Q-network, under the name ``"q"``."""
        return {"q": self._trained.heads}

    @property
    def targets(self) -> dict[str, MultiHead]:
        """The target network, under the same name."""
        target = self._trained.target_heads
        return {} if target is None else {"q": target}

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizer, under the network's name."""
        return {"q": self.optimizer}

    def problems(self) -> list[str]:
        """Everything that is wrong with this description, found without changing anything."""
        found = self._network_problems()
        found += common_problems(
            gamma=self.gamma,
            replay=self.replay,
            per_task=self.per_task,
            init=self.init,
            preprocess=self.preprocess,
        )
        if not isinstance(self.double, bool):
            found.append(f"double is {self.double!r}; expected True or False")
        return found + loss_problems(self.loss)

    def bind(self) -> None:
        """Give the networks their heads; the target follows the online network's active head."""
        pointer = self.q.pointer if isinstance(self.q, MultiHeadQ) else HeadPointer()
        self._trained.bind(self._trained.output_layers(self._example()), pointer)

    def unbind(self, head: int) -> None:
        """Give plain networks back their single output layer, with the values of ``head``."""
        self._trained.unbind(head)

    def add_head(self, *, num_actions: int | None = None) -> int:
        """Grow the network, its optimizer and its target together; the target's head is equal."""
        return self._trained.add_head(init=self.init, num_actions=num_actions)

    def set_env(self, env: object) -> None:
        """Refused: the loop of a hand-written learner has its environment in its own hands."""
        raise OwlStateError(
            "QLearner: env= was given, but this learner's own loop chooses its environment; "
            "leave it out and step that environment inside the block"
        )

    def finish_task(self) -> None:
        """The task is being left."""
        if self.on_task_end is not None:
            self.on_task_end()

    def prepare(self, observation: Tensor) -> Tensor:
        """What the network is called with for a batch of raw observations."""
        if self.preprocess is not None:
            return self.preprocess(observation)
        like = next(self.q.parameters())
        return observation.to(device=like.device, dtype=like.dtype)

    def act(self, observation: Tensor, heads: Tensor) -> Tensor:
        """Greedy actions (B,), row ``b`` by head ``heads[b]``."""
        network = self._trained.heads
        with torch.no_grad(), eval_mode(network.module):
            return network.per_row(self.prepare(observation), heads=heads).argmax(-1)

    def values(self, observation: Tensor) -> Tensor:
        """The greedy value of every head, (H, B)."""
        network = self._trained.heads
        with torch.no_grad(), eval_mode(network.module):
            return max_q_value(network.all_heads(self.prepare(observation)))

    def td_errors(self, transitions: Transitions, heads: np.ndarray) -> Tensor:
        """δ = target − Q(s, a), (len(heads), B), each head bootstrapped from itself (Eq. 1)."""
        network, target = self._trained.heads, self._trained.target_heads
        rows = len(transitions)
        with torch.no_grad(), eval_mode(*(h.module for h in (network, target) if h is not None)):
            both = torch.cat([transitions.observation, transitions.next_observation])
            q = network.all_heads(self.prepare(both))  # (H, 2B, A): one trunk pass for both
            next_q, next_target = q[:, rows:], q[:, rows:]
            if target is not None:
                next_target = target.all_heads(self.prepare(transitions.next_observation))
            value = double_q_value(next_q, next_target) if self.double else max_q_value(next_target)
            goal = td_target(*self._on(q, transitions), value)
            delta = goal - taken(q[:, :rows], transitions.action.to(q.device))
        return delta[torch.as_tensor(heads, device=delta.device)]

    def consolidation(self, rows: Transitions) -> dict[str, Consolidation]:
        """Rows of the active head's task with their targets, for a regularizer."""
        network = self._trained.heads
        head = network.pointer.head
        goal = torch.cat([self._goal(rows[k : k + 4096], head) for k in range(0, len(rows), 4096)])
        inputs = self.prepare(rows.observation)
        return {
            "q": Consolidation(
                network=network,
                head=head,
                inputs=(inputs,),
                targets=(rows.action.to(inputs.device), goal),
                output=lambda q, action, goal: taken(q, action),
                loss=lambda q, action, goal: self.loss(taken(q, action), goal, reduction="none"),
            )
        }

    def __repr__(self) -> str:
        return f"QLearner({type(self.q).__name__})"

    def _network_problems(self) -> list[str]:
        found = [] if self.target is None else target_problems("target", self.target, "q", self.q)
        if not isinstance(self.optimizer, Optimizer):
            found.append(f"optimizer is a {type(self.optimizer).__name__}; expected a torch.optim.Optimizer")
        if not isinstance(self.q, nn.Module):
            return [f"q is a {type(self.q).__name__}; expected an nn.Module", *found]
        found += head_problems("q", self._trained, self._example)
        return found + ownership_problems("q", "optimizer", dict(self.q.named_parameters()), [self.optimizer])

    def _goal(self, rows: Transitions, head: int) -> Tensor:
        network = self._trained.heads
        target = self._trained.lagged
        with torch.no_grad(), eval_mode(network.module, target.module):
            observation = self.prepare(rows.next_observation)
            next_target = target(observation, head=head)
            value = max_q_value(next_target)
            if self.double:
                value = double_q_value(network(observation, head=head), next_target)
            return td_target(*self._on(value, rows), value)

    def _on(self, like: Tensor, rows: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        return rows.reward.to(like), rows.discount.to(like), rows.terminated.to(like.device)

    def _example(self) -> Tensor | None:
        shape = getattr(self.replay, "observation_shape", None)
        if shape is None:
            return None
        dtype = getattr(self.replay, "observation_dtype", np.float32)
        return self.prepare(torch.from_numpy(np.zeros((1, *shape), dtype=dtype)))
