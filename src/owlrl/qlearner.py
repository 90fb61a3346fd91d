"""`QLearner`: a hand-written DQN described in one call from the objects its script has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.errors import OwlStateError
from owlrl.heads import MultiHeadLinear, MultiHeadQ, PromotedNetwork, promote_output_layers
from owlrl.heads.growth import owning_group
from owlrl.heads.promote import check_promotable, find_output_layers
from owlrl.modes import eval_mode
from owlrl.protocols import Consolidation, MultiHead, Stateful, TaskReplay, missing_members
from owlrl.replay import ListReplay
from owlrl.td import double_q_value, max_q_value, taken, td_target
from owlrl.types import Transitions

__all__ = ["QLearner"]

HeadedQ = MultiHeadQ | PromotedNetwork
Preprocess = Callable[[Tensor], Tensor]


class QLearner:
    """What `OwlWrapper` needs to know of a DQN that somebody wrote: its parts, not its loop.

    Args:
        q: the Q-network: a `MultiHeadQ`, or any module with a linear output layer, which is
            given heads in place when it is wrapped.
        target: its target network, or None.
        optimizer: the optimizer that trains ``q``.
        replay: where the script puts its transitions: a `TaskScopedReplay` or one of its
            siblings, or a plain list or ``deque`` of (observation, action, reward,
            next_observation, done) tuples.
        gamma: the script's discount.
        double: whether its targets are double-Q targets.
        loss: its loss per row, ``loss(q, target, reduction="none")``.
        per_task: what every task has of its own (an exploration schedule, say): objects with
            ``state_dict`` and ``load_state_dict``, by name.
        preprocess: how a batch of raw observations becomes the network's input; by default a
            cast to the network's dtype and device.
        layers: names of the output layers, where they are not found by themselves.
        init: how a new task's head starts, "fresh" or as a "copy" of the active one.

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
        replay: TaskReplay | MutableSequence[Any] | None = None,
        gamma: float = 0.99,
        double: bool = True,
        loss: Callable[..., Tensor] = F.smooth_l1_loss,
        per_task: Mapping[str, Stateful] | None = None,
        preprocess: Preprocess | None = None,
        layers: Sequence[str] | None = None,
        init: Literal["fresh", "copy"] = "fresh",
    ) -> None:
        self.q = q
        self.target = target
        self.optimizer = optimizer
        self.replay: TaskReplay | None = (
            ListReplay(replay, gamma=gamma) if isinstance(replay, MutableSequence) else replay
        )
        self.gamma = gamma
        self.double = double
        self.loss = loss
        self.per_task: Mapping[str, Stateful] = dict(per_task or {})
        self.preprocess = preprocess
        self.layers = layers
        self.init = init
        self._heads: HeadedQ | None = q if isinstance(q, MultiHeadQ) else None
        self._target_heads: HeadedQ | None = target if isinstance(target, MultiHeadQ) else None

    @property
    def networks(self) -> dict[str, MultiHead]:
        """The Q-network, under the name ``"q"``."""
        return {"q": self._bound(self._heads)}

    @property
    def targets(self) -> dict[str, MultiHead]:
        """The target network, under the same name."""
        return {} if self.target is None else {"q": self._bound(self._target_heads)}

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizer, under the network's name."""
        return {"q": self.optimizer}

    def problems(self) -> list[str]:
        """Everything that is wrong with this description, found without changing anything."""
        found = self._network_problems()
        if (
            isinstance(self.gamma, bool)
            or not isinstance(self.gamma, int | float)
            or not 0 <= self.gamma <= 1
        ):
            found.append(f"gamma is {self.gamma!r}; expected a number from 0 to 1")
        if self.replay is not None and (missing := missing_members(self.replay, TaskReplay)):
            found.append(
                f"replay is a {type(self.replay).__name__} and lacks {', '.join(missing)}; expected a "
                "TaskScopedReplay, or a list or deque of transitions"
            )
        gamma = getattr(self.replay, "gamma", self.gamma)
        if gamma != self.gamma:
            found.append(f"gamma is {self.gamma!r} but the replay's is {gamma!r}; give both the same")
        for name, item in self.per_task.items():
            if missing_members(item, Stateful) or isinstance(item, Optimizer):
                found.append(
                    f"per_task[{name!r}] is a {type(item).__name__}; expected an object with state_dict and "
                    "load_state_dict that is not an optimizer (those grow with the heads)"
                )
        if self.init not in ("fresh", "copy"):
            found.append(f'init is {self.init!r}; expected "fresh" or "copy"')
        if not isinstance(self.double, bool):
            found.append(f"double is {self.double!r}; expected True or False")
        if self.preprocess is not None and not callable(self.preprocess):
            found.append(f"preprocess is {self.preprocess!r}; expected a function of a batch of observations")
        return found + self._loss_problems()

    def _loss_problems(self) -> list[str]:
        try:
            shape = tuple(self.loss(torch.zeros(3), torch.ones(3), reduction="none").shape)
        except Exception as error:  # somebody's function
            return [
                f"loss could not be called ({type(error).__name__}: {error}); expected "
                'loss(q, target, reduction="none") -> a number per row, as torch.nn.functional.smooth_l1_loss'
            ]
        return (
            [] if shape == (3,) else [f"loss gave shape {shape} for 3 rows; expected (3,), a number per row"]
        )

    def bind(self) -> None:
        """Give the networks their heads; the target follows the online network's active head."""
        if self._heads is None:
            self._heads = promote_output_layers(self.q, layers=self.layers, example=self._example())
        if isinstance(self.target, MultiHeadQ):
            self.target.pointer = self._heads.pointer
        elif self.target is not None and isinstance(self._heads, PromotedNetwork):
            self._target_heads = promote_output_layers(
                self.target, layers=self._heads.layers, pointer=self._heads.pointer
            )

    def unbind(self, head: int) -> None:
        """Give plain networks back their single output layer, with the values of ``head``."""
        for heads, optimizer in ((self._heads, self.optimizer), (self._target_heads, None)):
            if isinstance(heads, PromotedNetwork):
                heads.demote(head, optimizer=optimizer)
        if not isinstance(self.q, MultiHeadQ):
            self._heads = self._target_heads = None

    def add_head(self, *, num_actions: int | None = None) -> int:
        """Grow the network, its optimizer and its target together; the target's head is equal."""
        heads = self._bound(self._heads)
        index = heads.add_head(init=self.init, num_actions=num_actions, optimizer=self.optimizer)
        if self._target_heads is not None:
            self._target_heads.add_head(init="fresh", num_actions=num_actions)
            with torch.no_grad():
                for own, new in zip(
                    self._target_heads.head_parameters(index).values(),
                    heads.head_parameters(index).values(),
                    strict=True,
                ):
                    own.copy_(new)
        return index

    def set_env(self, env: object) -> None:
        """Refused: the loop of a hand-written learner has its environment in its own hands."""
        raise OwlStateError(
            "QLearner: env= was given, but this learner's own loop chooses its environment; "
            "leave it out and step that environment inside the block"
        )

    def prepare(self, observation: Tensor) -> Tensor:
        """What the network is called with for a batch of raw observations."""
        if self.preprocess is not None:
            return self.preprocess(observation)
        like = next(self.q.parameters())
        return observation.to(device=like.device, dtype=like.dtype)

    def act(self, observation: Tensor, heads: Tensor) -> Tensor:
        """Greedy actions (B,), row ``b`` by head ``heads[b]``."""
        network = self._bound(self._heads)
        with torch.no_grad(), eval_mode(network.module):
            return network.per_row(self.prepare(observation), heads=heads).argmax(-1)

    def values(self, observation: Tensor) -> Tensor:
        """The greedy value of every head, (H, B)."""
        network = self._bound(self._heads)
        with torch.no_grad(), eval_mode(network.module):
            return max_q_value(network.all_heads(self.prepare(observation)))

    def td_errors(self, transitions: Transitions, heads: np.ndarray) -> Tensor:
        """δ = target − Q(s, a), (len(heads), B), each head bootstrapped from itself (Eq. 1)."""
        network, target = self._bound(self._heads), self._target_heads
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
        network = self._bound(self._heads)
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
        found = self._target_problems()
        if not isinstance(self.optimizer, Optimizer):
            found.append(f"optimizer is a {type(self.optimizer).__name__}; expected a torch.optim.Optimizer")
        if not isinstance(self.q, nn.Module):
            return [f"q is a {type(self.q).__name__}; expected an nn.Module", *found]
        if any(isinstance(m, MultiHeadLinear) for m in self.q.modules()):
            found.append("q has been given heads already; unwrap() its OwlWrapper first")
        elif not isinstance(self.q, MultiHeadQ):
            try:
                names = find_output_layers(self.q, self._example()) if self.layers is None else self.layers
                check_promotable(self.q, names)
            except Exception as error:  # the network and preprocess are the user's: anything may come
                found.append(f"q cannot be given heads: {type(error).__name__}: {error}")
        if not isinstance(self.optimizer, Optimizer):
            return found
        if missing := [n for n, p in self.q.named_parameters() if owning_group(self.optimizer, p) is None]:
            found.append(
                f"optimizer does not hold q's parameters {missing}; expected one built from q.parameters() "
                "(a deep copy of the network or of the optimizer holds other tensors)"
            )
        return found

    def _target_problems(self) -> list[str]:
        if self.target is None:
            return []
        if not isinstance(self.target, nn.Module):
            return [f"target is a {type(self.target).__name__}; expected an nn.Module or None"]
        if not isinstance(self.q, nn.Module):
            return []
        own = {id(p) for p in self.q.parameters()}
        if any(id(p) in own for p in self.target.parameters()):
            return ["target is q itself or shares parameters with it; expected copy.deepcopy(q), or None"]
        shapes = {name: tuple(p.shape) for name, p in self.q.named_parameters()}
        others = {name: tuple(p.shape) for name, p in self.target.named_parameters()}
        if shapes != others:
            odd = sorted(n for n in {*shapes, *others} if shapes.get(n) != others.get(n))
            return [f"target's parameters differ from q's in {odd}; expected the same names and shapes"]
        return []

    def _goal(self, rows: Transitions, head: int) -> Tensor:
        network = self._bound(self._heads)
        target = self._target_heads or network
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

    def _bound(self, heads: HeadedQ | None) -> HeadedQ:
        if heads is None:
            raise OwlStateError("QLearner: not wrapped yet; OwlWrapper(learner) gives its networks heads")
        return heads
