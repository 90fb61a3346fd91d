"""`QLearner`: describes a hand-written DQN by the objects of its script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl._arguments import Arguments
from owlrl.describe.base import DescribedLearner, Preprocess, Trained
from owlrl.heads.modes import eval_mode, probing
from owlrl.protocols import Consolidation, Stateful
from owlrl.td import double_q_value, max_q_value, taken, td_target
from owlrl.types import Transitions

__all__ = ["QLearner"]


class QLearner(DescribedLearner):
    """What `OwlWrapper` needs to know about a hand-written DQN: its parts, not its loop.

    Args:
        q: the Q-network: a `MultiHeadQ`, or any module with a linear output layer, which is
            given heads in place when wrapped.
        target: its target network, or None.
        optimizer: the optimizer that trains ``q``.
        replay: where the script puts its transitions: a `TaskScopedReplay` or one of its
            siblings, the ``ReplayBuffer`` of Stable-Baselines3 or CleanRL, or a plain list or
            ``deque`` of (observation, action, reward, next_observation, done) tuples.
        gamma: the script's discount.
        double: whether its targets are double-Q targets.
        loss: its loss per row, ``loss(q, target, reduction="none")``.
        per_task: what is kept per task (an exploration schedule, say): objects with
            ``state_dict`` and ``load_state_dict``, by name.
        preprocess: how a batch of raw observations becomes the network's input; by default a
            cast to the network's dtype and device.
        layers: names of the output layers, if they are not found automatically.
        init: how a new task's head starts: "zero", "fresh" (random) or a "copy" of the active one.
        on_task_end: called when a task ends, before anything of it is remembered, e.g. to put averaged
            weights into ``q``.

    >>> import copy, torch
    >>> from collections import deque
    >>> from torch import nn
    >>> from owlrl import OwlWrapper, QLearner
    >>> q = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> learner = QLearner(q, copy.deepcopy(q), torch.optim.Adam(q.parameters()), replay=deque(maxlen=1000))
    >>> OwlWrapper(learner)
    OwlWrapper(QLearner(Sequential), regularizer=DistillationRegularizer, evidence=ModelEvidence, \
replay=ListReplay, tasks=[])
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
        init: Literal["zero", "fresh", "copy"] = "zero",
        on_task_end: Callable[[], None] | None = None,
    ) -> None:
        trained = Trained(q, optimizer, target, layers=layers, init=init)
        super().__init__(
            {"q": trained},
            replay=replay,
            gamma=gamma,
            per_task=per_task,
            preprocess=preprocess,
            on_task_end=on_task_end,
        )
        self.q = q
        self.target = target
        self.optimizer = optimizer
        self.double = double
        self.loss = loss
        self.layers = layers
        self.init = init

    def problems(self) -> list[str]:
        """Everything that is wrong with this description, found without changing anything."""
        found = super().problems()
        if not found:
            found = self._answer_problems()
        arguments = Arguments("QLearner")
        arguments.boolean("double", self.double)
        return [*found, *arguments.problems, *_loss_problems(self.loss)]

    def inputs(self, name: str, rows: Transitions) -> tuple[Tensor, ...]:
        """The prepared observations."""
        return (self.prepare(rows.observation),)

    def act(self, observation: Tensor, heads: Tensor | int) -> Tensor:
        """Greedy actions (B,), row ``b`` by head ``heads[b]``, or all by one head."""
        return self.ask("q", heads, self.prepare(observation)).argmax(-1)

    def values(self, observation: Tensor) -> Tensor:
        """The greedy value of every head, (H, B)."""
        return max_q_value(self.ask("q", None, self.prepare(observation)))

    def td_errors(self, transitions: Transitions, heads: np.ndarray) -> Tensor:
        """δ = target − Q(s, a), (len(heads), B), each head bootstrapped from itself (Eq. 1)."""
        network, target = self._trained["q"].heads, self._trained["q"].target_heads
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
        network = self._trained["q"].heads
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
                weight=rows.weight,
            )
        }

    def _answer_problems(self) -> list[str]:
        """Whether the network outputs a Q-value per action."""
        try:
            example = self._prepared_example()
        except Exception:  # its shape is not known before the first row
            return []
        with torch.no_grad(), probing(self.q):
            answer = self._trained["q"].ask(example)
        actions, kind = getattr(self.replay, "num_actions", None), type(answer).__name__
        wrong = ""
        if not isinstance(answer, Tensor):
            several = f"{len(answer)} things" if isinstance(answer, tuple | list) else f"a {kind}"
            wrong = f"q returns {several} (a {kind})"
        elif answer.dim() != 2 or len(answer) != 1:
            wrong = f"q returns shape {tuple(answer.shape)}"
        elif actions is not None and answer.shape[1] != actions:
            wrong = f"q returns {answer.shape[1]} numbers for {actions} actions"
        if not wrong:
            return []
        return [
            f"{wrong}; expected one tensor (B, actions) of Q-values, here (1, actions); for a distributional "
            "or recurrent network pass a small module around it whose forward returns Q-values, "
            "e.g. the mean over the atoms"
        ]

    def _row_problems(self, rows: Transitions) -> list[str]:
        action = rows.action
        if action.dim() != 1 or action.dtype.is_floating_point:
            first = f"the first row has action {action[0].tolist()} and reward {float(rows.reward[0]):g}"
            return [
                f"the actions of the rows are {action.dtype} of shape {tuple(action.shape[1:])} ({first}); "
                "expected one int per row, in the place of the action; for continuous actions use "
                "ActorCriticLearner"
            ]
        return []

    def _goal(self, rows: Transitions, head: int) -> Tensor:
        network = self._trained["q"].heads
        target = self._trained["q"].lagged
        with torch.no_grad(), eval_mode(network.module, target.module):
            observation = self.prepare(rows.next_observation)
            next_target = target(observation, head=head)
            value = max_q_value(next_target)
            if self.double:
                value = double_q_value(network(observation, head=head), next_target)
            return td_target(*self._on(value, rows), value)

    def _on(self, like: Tensor, rows: Transitions) -> tuple[Tensor, Tensor, Tensor]:
        return rows.reward.to(like), rows.discount.to(like), rows.terminated.to(like.device)


def _loss_problems(loss: Callable[..., Tensor]) -> list[str]:
    """Whether ``loss(q, target, reduction="none")`` gives a number per row."""
    try:
        shape = tuple(loss(torch.zeros(3), torch.ones(3), reduction="none").shape)
    except Exception as error:  # the function is the user's
        return [
            f"loss could not be called ({type(error).__name__}: {error}); expected "
            'loss(q, target, reduction="none") -> a number per row, as torch.nn.functional.smooth_l1_loss'
        ]
    return (
        [] if shape == (3,) else [f"loss returned shape {shape} for 3 rows; expected (3,), a number per row"]
    )
