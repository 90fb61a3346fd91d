"""The updates of owlrl 0.1, frozen: what later versions are measured against. Do not make them faster.

Networks, losses and steps are those of 0.1's reference DQN and SAC with one task, written down without the
library, so that nothing that changes there changes them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

SIZES = (11, 6, 3)  # objects, colours, states of a MiniGrid cell


def mlp(inputs: int, hidden: Sequence[int] = (128, 128)) -> nn.Sequential:
    return nn.Sequential(
        *(part for pair in pairwise([inputs, *hidden]) for part in (nn.Linear(*pair), nn.ReLU()))
    )


class Patches(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4 * inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        patches = torch.cat([x[:, :-1, :-1], x[:, :-1, 1:], x[:, 1:, :-1], x[:, 1:, 1:]], dim=-1)
        return self.linear(patches)


class GridConv(nn.Module):
    """The paper's network."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList([Patches(3, 16), Patches(16, 32), Patches(32, 64)])
        self.out = nn.Linear(64, 200)

    def forward(self, image: Tensor) -> Tensor:
        first, second, third = self.convolutions
        x = F.relu(first(image.to(self.out.weight.dtype)))
        x = x.view(len(x), 3, 2, 3, 2, -1).amax((2, 4))
        x = F.relu(third(F.relu(second(x))))
        return F.relu(self.out(x.flatten(1)))


class GridMLP(nn.Module):
    """FAST's network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = mlp(49 * sum(SIZES))
        first = self.layers[0]
        first.weight = nn.Parameter(first.weight.detach().t().contiguous().t())
        starts = torch.tensor([0, *np.cumsum(SIZES)[:-1]])
        self.zeroths = (torch.arange(49)[:, None] * sum(SIZES) + starts).flatten()

    def forward(self, image: Tensor) -> Tensor:
        first, *rest = self.layers
        ones = image.flatten(1).long() + self.zeroths
        if torch.is_grad_enabled():
            met = torch.bincount(ones.flatten(), minlength=first.in_features) > 0
            place = (met.cumsum(0) - 1).index_select(0, ones.flatten()).view_as(ones)
            columns = met.nonzero()[:, 0]
            given = first.weight.new_zeros(len(image), len(columns)).scatter_(1, place, 1.0)
            out = F.linear(given, first.weight.t().index_select(0, columns).t(), first.bias)
        else:
            out = F.embedding_bag(ones, first.weight.t(), mode="sum") + first.bias
        for layer in rest:
            out = layer(out)
        return out


class Dueling(nn.Module):
    def __init__(self, features: int, actions: int) -> None:
        super().__init__()
        self.value, self.advantage = nn.Linear(features, 1), nn.Linear(features, actions)

    def forward(self, x: Tensor) -> Tensor:
        advantage = self.advantage(x)
        return self.value(x) + advantage - advantage.mean(-1, keepdim=True)


class Q(nn.Module):
    def __init__(self, trunk: nn.Module, features: int, actions: int, *, dueling: bool) -> None:
        super().__init__()
        self.trunk = trunk
        self.heads = nn.ModuleList([(Dueling if dueling else nn.Linear)(features, actions)])

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[0](self.trunk(x))


def dqn_update(
    trunk: nn.Module,
    features: int,
    actions: int,
    *,
    dueling: bool,
    rate: float,
    target_rate: float,
    every: int,
) -> Callable[..., float]:
    """0.1's `DQN.update`: double Q-learning, Huber loss, clipped at 10, Adam, a target that is moved."""
    torch.manual_seed(0)
    q = Q(trunk, features, actions, dueling=dueling)
    target = copy.deepcopy(q)
    optimizer = torch.optim.Adam(q.parameters(), lr=rate, fused=True)
    updates = 0

    def update(batch) -> float:
        nonlocal updates
        cast = lambda x: x if x.dtype == torch.uint8 else x.float()  # noqa: E731
        batch = batch.to("cpu")
        with torch.no_grad():
            following = cast(batch.next_observation)
            values = target(following)
            value = values.gather(-1, q(following).argmax(-1, keepdim=True)).squeeze(-1)
            goal = batch.reward + batch.discount * torch.where(
                batch.terminated, torch.zeros_like(value), value
            )
        predicted = q(cast(batch.observation)).gather(-1, batch.action[:, None]).squeeze(-1)
        losses = F.smooth_l1_loss(predicted, goal, reduction="none")
        loss = losses.mean()
        number = float(loss.detach())
        if not np.isfinite(number):
            raise ArithmeticError
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_grad_norm_(list(q.parameters()), 10.0)
        optimizer.step()
        updates += 1
        if updates % every == 0:
            with torch.no_grad():
                torch._foreach_lerp_([*target.parameters()], [*q.parameters()], target_rate)
        return number

    update.networks = {"q": q, "target": target}
    return update


class Actor(nn.Module):
    def __init__(self, size: int, actions: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.trunk, self.output = mlp(size, hidden), nn.Linear(hidden[-1], 2 * actions)

    def draw(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.output(self.trunk(x)).chunk(2, dim=-1)
        log_std = F.hardtanh(log_std, -10.0, 2.0)
        raw = torch.addcmul(mean, log_std.exp(), noise)
        density = -0.5 * noise.square() - (0.5 * math.log(2.0 * math.pi) + 2.0 * math.log(2.0)) - log_std
        return 2.0 * raw.tanh(), (density + 2.0 * (raw + F.softplus(-2.0 * raw))).sum(-1)


class Ensemble(nn.Module):
    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class Critics(nn.Module):
    """Two critics with a mean and a log-variance."""

    def __init__(self, size: int, actions: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.trunks = nn.ModuleList(Ensemble(2, *pair) for pair in pairwise([size + actions, *hidden]))
        self.outputs = nn.ModuleList(nn.Linear(hidden[-1], 2) for _ in range(2))

    def features(self, x: Tensor, action: Tensor) -> Tensor:
        pair = torch.cat([x, action / 2.0], dim=1)
        features = pair.expand(2, *pair.shape)
        for layer in self.trunks:
            features = layer(features).relu_()
        return features

    def answers(self, features: Tensor) -> tuple[Tensor, Tensor]:
        outputs = [out(f) for out, f in zip(self.outputs, features, strict=True)]
        mean, log_variance = torch.stack(outputs, dim=-1).unbind(-2)
        return mean, log_variance

    def moments(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x, action)
        mean, log_variance = self.answers(torch.cat([features, features.detach()], dim=1))
        log_variance = 20.0 - F.softplus(20.0 - log_variance[-len(x) :])
        return mean[: len(x)], F.softplus(log_variance + 10.0) - 10.0

    def means(self, x: Tensor, action: Tensor) -> Tensor:
        return self.answers(self.features(x, action))[0]


def sac_update(
    size: int, actions: int, hidden: Sequence[int], *, rate: float, target_rate: float
) -> Callable[..., float]:
    """0.1's `SAC.update`: two critics with variances, a policy and a learned temperature."""
    torch.manual_seed(0)
    actor, critics = Actor(size, actions, hidden), Critics(size, actions, hidden)
    targets = copy.deepcopy(critics)
    log_alpha = nn.Parameter(torch.tensor(0.0))
    of_actor, of_critics, of_alpha = (
        torch.optim.Adam(p, lr=rate, fused=True)
        for p in (actor.parameters(), critics.parameters(), [log_alpha])
    )
    generator = torch.Generator().manual_seed(0)

    def step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        own = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in own:
            parameter.grad = None
        loss.backward(inputs=own)
        optimizer.step()

    def update(batch) -> float:
        batch = batch.to("cpu")
        observation, action = batch.observation.float(), batch.action.float()
        noise = torch.randn(2, len(batch), actions, generator=generator)
        alpha = log_alpha.exp().item()
        with torch.no_grad():
            following = batch.next_observation.float()
            drawn, log_prob = actor.draw(following, noise[0])
            value = targets.means(following, drawn).t().min(0).values - alpha * log_prob
            goal = batch.reward + batch.discount * torch.where(
                batch.terminated, torch.zeros_like(value), value
            )
        mean, log_variance = critics.moments(observation, action)
        likelihood = 0.5 * (log_variance + (goal[:, None] - mean.detach()).square() * (-log_variance).exp())
        critic_loss = (likelihood + 0.5 * (mean - goal[:, None]).square()).sum(-1).mean()
        number = critic_loss.item()
        step(of_critics, critic_loss)
        drawn, log_prob = actor.draw(observation, noise[1])
        actor_loss = -(critics.means(observation, drawn).t().min(0).values - alpha * log_prob).mean()
        actor_loss.item()
        step(of_actor, actor_loss)
        log_alpha.grad = -(log_prob.detach().mean() - actions)
        of_alpha.step()
        with torch.no_grad():
            torch._foreach_lerp_([*targets.parameters()], [*critics.parameters()], target_rate)
        return number

    update.networks = {"actor": actor, "critics": critics, "targets": targets}
    return update
