"""Learners small enough for many runs, whose rewards can be scaled: what their old heads drift by."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from owlrl.heads import MultiHeadQ, promote_output_layers
from owlrl.protocols import Consolidation, MultiHead
from owlrl.regularizers import DistillationRegularizer, output_spread

ROWS, FEATURES, ACTIONS, WIDTH, GAMMA = 96, 4, 3, 24, 0.5
Loss = Callable[[Tensor, Tensor], Tensor]


def optimizer_of(network: MultiHead, head_step: float) -> Adam:
    """Adam with another step size for the heads; an eps that is small beside gradients of any scale."""
    heads = [p for k in range(network.num_heads) for p in network.head_parameters(k).values()]
    groups = [
        {"params": list(network.shared_parameters().values())},
        {"params": heads, "lr": 3e-3 * head_step},
    ]
    return Adam(groups, lr=3e-3, eps=1e-30)


def rows_of(task: int, seed: int) -> tuple[Tensor, ...]:
    """Observations, actions, rewards and next observations of a task; observations are the same in all."""
    same, own = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(1000 * seed + task + 1)
    x, following = (torch.randn(ROWS, FEATURES, generator=same, dtype=torch.float64) for _ in range(2))
    action = torch.randint(ACTIONS, (ROWS,), generator=same)
    taste = torch.randn(FEATURES, ACTIONS, generator=own, dtype=torch.float64)
    return x, action, (x @ taste).gather(1, action[:, None])[:, 0], following


def scaled_heads(network: MultiHead, factor: float) -> None:
    with torch.no_grad():
        for k in range(network.num_heads):
            for p in network.head_parameters(k).values():
                p.mul_(factor)


def drift(network: MultiHead, inputs: tuple[Tensor, ...], before: Tensor, *, each: bool = False) -> float:
    """How far head 0 is from its answers, in units of their spread, over all rows."""
    with torch.no_grad():
        unit = output_spread(before, each=each)
        return float(((network(*inputs, head=0) - before) / unit).square().mean().sqrt())


def dqn_drift(
    strength: float | None, scale: float, loss: Loss, seed: int, *, fair: bool, steps: int = 150
) -> list[float]:
    """The drift of the first task's head while the second is learned, each tenth step.

    With ``fair`` the heads start and step in proportion to ``scale``: then an MSE learner with Adam does the
    same at every scale, and what differs is the regularizer's.
    """
    torch.manual_seed(seed)
    q = MultiHeadQ(nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh()), WIDTH, ACTIONS).double()
    q.add_head()
    if fair:
        scaled_heads(q, scale)
    target, optimizer = copy.deepcopy(q), optimizer_of(q, scale if fair else 1.0)
    regularizer = DistillationRegularizer(strength, every=2, batch_size=48, seed=seed)
    regularizer.attach(optimizer)
    curve: list[float] = []
    before = torch.empty(0)  # what head 0 answered when its task ended
    draws = torch.Generator().manual_seed(seed)
    for task in (0, 1):
        q.activate(task)
        x, action, reward, following = rows_of(task, seed)
        for step in range(steps):
            b = torch.randint(ROWS, (32,), generator=draws)
            with torch.no_grad():
                goal = scale * reward[b] + GAMMA * target(following[b]).amax(1)
            optimizer.zero_grad()
            loss(q(x[b]).gather(1, action[b, None])[:, 0], goal).backward()
            optimizer.step()
            with torch.no_grad():
                for old, new in zip(target.parameters(), q.parameters(), strict=True):
                    old.lerp_(new, 0.05)
            if task == 1 and step % 10 == 9:
                curve.append(drift(q, (x,), before))
        if task == 0:
            with torch.no_grad():
                before = q(x, head=0).clone()
            regularizer.remember("0", {"q": Consolidation(q, 0, (x,), (), _first, _first)})
    return curve


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(FEATURES + 1, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, action: Tensor) -> Tensor:
        return self.head(torch.tanh(self.trunk(torch.cat([x, action], -1))))


def actor_critic_drift(
    strength: float | None, scale: float, seed: int, *, fair: bool, steps: int = 150
) -> dict[str, list[float]]:
    """The same for a deterministic actor and its critic, by network; rewards say which action is best."""
    torch.manual_seed(seed)
    plain = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)).double()
    actor = promote_output_layers(plain)
    critic = promote_output_layers(Critic().double(), layers=["head"], pointer=actor.pointer)
    networks: dict[str, MultiHead] = {"actor": actor, "critic": critic}
    for network in networks.values():
        network.add_head()
    if fair:
        scaled_heads(critic, scale)
    optimizers = {"actor": optimizer_of(actor, 1.0), "critic": optimizer_of(critic, scale if fair else 1.0)}
    regularizer = DistillationRegularizer(strength, every=2, batch_size=48, seed=seed)
    for optimizer in optimizers.values():
        regularizer.attach(optimizer)
    curves: dict[str, list[float]] = {name: [] for name in networks}
    before: dict[str, Tensor] = {}
    draws = torch.Generator().manual_seed(seed)
    for task in (0, 1):
        actor.pointer.index = task
        x, _, reward, _ = rows_of(task, seed)
        best = torch.tanh(reward)[:, None]
        taken = 2 * torch.rand(ROWS, 1, generator=torch.Generator().manual_seed(seed)).double() - 1
        inputs = {"actor": (x,), "critic": (x, taken)}
        for step in range(steps):
            b = torch.randint(ROWS, (32,), generator=draws)
            optimizers["critic"].zero_grad()
            F.mse_loss(critic(x[b], taken[b]), -scale * (taken[b] - best[b]).square()).backward()
            optimizers["critic"].step()
            optimizers["actor"].zero_grad()
            (-critic(x[b], actor(x[b]))).mean().backward()
            optimizers["actor"].step()
            if task == 1 and step % 10 == 9:
                for name, network in networks.items():
                    each = name == "actor"
                    curves[name].append(drift(network, inputs[name], before[name], each=each))
        if task == 0:
            with torch.no_grad():
                before = {name: n(*inputs[name], head=0).clone() for name, n in networks.items()}
            given = {
                name: Consolidation(n, 0, inputs[name], (), _first, _first) for name, n in networks.items()
            }
            regularizer.remember("0", given)
    return curves


def _first(output: Tensor) -> Tensor:
    return output[:, 0]
