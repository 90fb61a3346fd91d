"""`ActorCriticModel`: what actor and critics say of observations and transitions, for every head."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from owlrl.describe._trained import HeadedNetwork, TrainedNetwork
from owlrl.describe.outputs import (
    CriticOutput,
    Deterministic,
    Distribution,
    normal_points,
    policy_information,
)
from owlrl.heads.modes import eval_mode
from owlrl.protocols import Consolidation
from owlrl.td import soft_value, td_target
from owlrl.types import Transitions

__all__ = ["ActorCriticModel"]

ROWS = 4096  # rows a network is called with at once


@dataclass(frozen=True)
class ActorCriticModel:
    """Actor and critics with their heads, and how their outputs are read.

    L critics, H heads of which n are asked about, B rows, actions of A components; K points of the
    policy's noise (one where the actor has none).
    """

    actor: TrainedNetwork
    critics: Mapping[str, TrainedNetwork]
    distribution: Distribution
    reading: CriticOutput
    prepare: Callable[[Tensor], Tensor]
    alpha_of: Callable[[int], float]

    def act(self, observation: Tensor, heads: Tensor) -> Tensor:
        """Greedy actions (B, A), row ``b`` by head ``heads[b]``."""
        with torch.no_grad(), eval_mode(self.actor.heads.module):
            x = self.prepare(observation)
            return self.distribution.greedy(self.actor.heads.per_row(x, heads=heads.to(x.device)))

    def values(self, observation: Tensor) -> Tensor:
        """The least of the critics' values of every head's greedy action, (H, B)."""
        with torch.no_grad(), self._evaluating():
            x = self.prepare(observation)
            action = self.distribution.greedy(self.actor.heads.all_heads(x))  # (H, B, A)
            every = torch.arange(len(action), device=x.device)
            online = [critic.heads for critic in self.critics.values()]
            return self._values_of(online, x, action, every).amin(0)

    def outputs(self, transitions: Transitions, heads: Tensor) -> list[Tensor]:
        """What each critic says of the action that was taken, (n, B, O), from one trunk pass."""
        found: list[list[Tensor]] = []
        with torch.no_grad(), self._evaluating():
            for rows in _pieces(transitions, ROWS):
                x, action = self.prepare(rows.observation), self.action(rows)
                index = heads.to(x.device)
                found.append([critic.heads.all_heads(x, action)[index] for critic in self.critics.values()])
        return [torch.cat(pieces, dim=1) for pieces in zip(*found, strict=True)]

    def targets(self, transitions: Transitions, heads: Tensor) -> Tensor:
        """The TD target (n, B) of each head: its own actor head, temperature and target critics (Eq. 1)."""
        points = 1 if isinstance(self.distribution, Deterministic) else len(normal_points(1))
        with torch.no_grad(), self._evaluating():
            found = [
                self._target(rows, heads)
                for rows in _pieces(transitions, max(1, ROWS // (points * len(heads))))
            ]
        return torch.cat(found, dim=1)

    def values_in(self, outputs: list[Tensor]) -> Tensor:
        """The Q-values in the critics' outputs (..., B, O) as (..., L, B)."""
        return torch.cat([self.reading.values(output) for output in outputs], dim=-1).transpose(-1, -2)

    def action(self, rows: Transitions) -> Tensor:
        """The rows' actions as the critics take them, (B, A)."""
        like = next(self.actor.network.parameters())
        action = rows.action.to(like)
        return action[:, None] if action.dim() == 1 else action.flatten(1)

    def consolidation(self, rows: Transitions, head: int) -> dict[str, Consolidation]:
        """What a regularizer may look at, by network."""
        x, action = self.prepare(rows.observation), self.action(rows)
        goal = self.targets(rows, torch.tensor([head]))[0]
        found = {
            name: Consolidation(
                network=critic.heads,
                head=head,
                inputs=(x, action),
                targets=(goal,),
                output=lambda output, goal: self.reading.values(output).sum(-1),
                loss=self.reading.loss,
            )
            for name, critic in self.critics.items()
        }
        return {**found, "actor": self._actor_consolidation(x, head, action.shape[1])}

    def _actor_consolidation(self, x: Tensor, head: int, actions: int) -> Consolidation:
        actor = self.actor.heads
        with torch.no_grad(), eval_mode(actor.module):
            output = torch.cat([actor(x[k : k + ROWS], head=head) for k in range(0, len(x), ROWS)])
        generator = torch.Generator().manual_seed(0)  # nobody else's numbers are drawn
        signs = torch.randint(2, output.shape, generator=generator).to(output) * 2.0 - 1.0
        noise = torch.randn(len(x), actions, generator=generator).to(output)
        frozen = output[:, actions:] if output.shape[1] == 2 * actions else output[:, :0]
        alpha = self.alpha_of(head)

        def information(output: Tensor, frozen: Tensor, signs: Tensor, *_: Tensor) -> Tensor:
            return policy_information(output, frozen, signs)

        def loss(output: Tensor, _frozen: Tensor, _signs: Tensor, x: Tensor, noise: Tensor) -> Tensor:
            action, log_prob = self.distribution.sample(output, noise)
            with self._evaluating():
                outputs = [critic.heads(x, action, head=head) for critic in self.critics.values()]
            return alpha * log_prob - self.values_in(outputs).amin(-2)

        return Consolidation(actor, head, (x,), (frozen, signs, x, noise), output=information, loss=loss)

    def _target(self, rows: Transitions, heads: Tensor) -> Tensor:
        x = self.prepare(rows.next_observation)
        index = heads.to(x.device)
        output = self.actor.lagged.all_heads(x)[index]  # (n, B, O)
        action = self.distribution.greedy(output)[None]  # (1, n, B, A)
        log_prob = torch.zeros_like(action[..., 0])
        if not isinstance(self.distribution, Deterministic):
            noise = normal_points(action.shape[-1]).to(output)[:, None, None]  # (K, 1, 1, A)
            action, log_prob = self.distribution.sample(output, noise.expand(-1, *action.shape[1:]))
        alpha = torch.tensor([self.alpha_of(int(head)) for head in heads]).to(output)[:, None]
        q = self._values_of([critic.lagged for critic in self.critics.values()], x, action, index)
        value = soft_value(q, log_prob, alpha).mean(0)  # (L, K, n, B), (K, n, B), (n, 1) -> (n, B)
        return td_target(rows.reward.to(value), rows.discount.to(value), rows.terminated.to(x.device), value)

    def _values_of(self, critics: list[HeadedNetwork], x: Tensor, action: Tensor, heads: Tensor) -> Tensor:
        """Q-values (L, ..., n, B) of actions (..., n, B, A), head by head, at observations (B, ...)."""
        rows = action.shape[:-1]
        seen = x.expand(*rows[:-1], *x.shape).flatten(0, len(rows) - 1)
        of_row = heads[:, None].expand(rows).flatten()
        outputs = [critic.per_row(seen, action.flatten(0, -2), heads=of_row) for critic in critics]
        found = self.values_in(outputs)
        return found.view(len(found), *rows)

    def _evaluating(self) -> AbstractContextManager[None]:
        parts = (self.actor, *self.critics.values())
        return eval_mode(*(h.module for part in parts for h in {part.heads, part.lagged}))


def _pieces(transitions: Transitions, step: int) -> Iterator[Transitions]:
    for start in range(0, max(1, len(transitions)), step):
        yield transitions[start : start + step]
