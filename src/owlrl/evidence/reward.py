"""`RewardEvidence`: a task is recognised by the rewards it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from owlrl._arguments import Arguments, own_seed
from owlrl.errors import OwlValueError
from owlrl.evidence.base import (
    Evidence,
    FloatArray,
    IntArray,
    calibrated_loss,
    check_keys,
    encoded,
    positive_scale,
    rms,
    row_weights,
)
from owlrl.heads.linear import product_all
from owlrl.types import Transitions

__all__ = ["RewardEvidence", "predict_rewards"]

Weights = dict[str, Tensor]
# A predictor is not trusted to better than a hundredth of the rewards it was shown.
_PRECISION = 0.01
_SMALLEST = 1e-8


def predict_rewards(x: Tensor, weights: Weights) -> Tensor:
    """Rewards (H, B) of H predictors with one hidden layer: ``w₂·relu(W₁x + b₁) + b₂``.

    x (B, F), W₁ (H, K, F), b₁ (H, K), w₂ (H, K), b₂ (H,).

    >>> import torch
    >>> from owlrl.evidence import predict_rewards
    >>> weights = {"w1": torch.ones(2, 1, 3), "b1": torch.zeros(2, 1),
    ...            "w2": torch.tensor([[1.0], [2.0]]), "b2": torch.tensor([0.0, 0.5])}
    >>> predict_rewards(torch.ones(1, 3), weights).flatten()
    tensor([3.0000, 6.5000])
    """
    hidden = torch.relu(product_all(x, weights["w1"], weights["b1"]))  # (H, B, K)
    return (hidden * weights["w2"][:, None]).sum(-1) + weights["b2"][:, None]


class RewardEvidence(Evidence):
    """Scores each task by how well a predictor of its rewards explains the observed one.

    When a task has been learned, a small network is fitted to its rows: from observation, action
    and next observation to the reward. At test time the loss of a task is the predictor's error in
    units of its error on rows it was not fitted to, clipped. Tasks that differ in what they reward
    are distinguished as soon as a reward differs, without the error of a bootstrap. Tasks with the
    same rewards and different dynamics are not: use another evidence there.

    Args:
        encode: turns a batch of observations into features (B, F); by default they are flattened.
            For MiniGrid images `owlrl.learners.one_hot_cells`.
        hidden: units of a predictor's hidden layer.
        updates: gradient steps it is fitted with.
        batch_size: rows per step, half of them with a reward where there are any.
        samples: most rows it is fitted to, spread evenly over those given.
        clip: largest loss: one surprise cannot outweigh all earlier steps.
        seed: of initial weights and batches; None for torch's (`torch.initial_seed`).

    >>> import torch
    >>> from owlrl import RewardEvidence, Transitions
    >>> def rows(paying):  # one observation; one of two actions pays
    ...     action = torch.arange(64) % 2
    ...     x = torch.ones(64, 1)
    ...     return Transitions(x, action, (action == paying).float(), x, action > 5, torch.ones(64))
    >>> evidence = RewardEvidence(updates=200, seed=0)
    >>> evidence.calibrate(None, 0, rows(paying=0))
    >>> evidence.calibrate(None, 1, rows(paying=1))
    >>> evidence.losses(None, rows(paying=1)[:1], [0, 1]).round(1)
    array([[5.],
           [0.]])
    """

    def __init__(
        self,
        *,
        encode: Callable[[Tensor], Tensor] | None = None,
        hidden: int = 64,
        updates: int = 500,
        batch_size: int = 256,
        samples: int = 20_000,
        clip: float = 5.0,
        seed: int | None = None,
    ) -> None:
        arguments = Arguments("RewardEvidence")
        self.encode = arguments.function("encode", encode, "of a batch of observations", none=True)
        self.hidden = arguments.integer("hidden", hidden)
        self.updates = arguments.integer("updates", updates)
        self.batch_size = arguments.integer("batch_size", batch_size)
        self.samples = arguments.integer("samples", samples)
        self.clip = arguments.number("clip", clip, above=0.0)
        self.seed = arguments.integer("seed", seed, least=0, none=True)
        arguments.check()
        super().__init__()
        self._generator = torch.Generator().manual_seed(own_seed(self.seed))
        self._actions = 0  # columns of a one-hot action, the most any task had

    @property
    def scales(self) -> dict[int, float]:
        """The error of each head's predictor on rows of its task that it was not fitted to."""
        return {head: float(kept["scale"]) for head, kept in self.fitted.items()}

    def fit(self, learner: Any, head: int, rows: Transitions) -> dict[str, Any]:
        """``head``'s predictor and its own error."""
        if not rows.action.is_floating_point():
            self._widen(int(rows.action.max()) + 1)
        x, reward = self._features(rows), rows.reward.float().cpu()
        order = torch.randperm(len(x), generator=self._generator)
        fitted = order[: max(1, len(x) * 9 // 10)]
        kept = order[len(fitted) :] if len(fitted) < len(x) else fitted
        weights = self._fit(x[fitted], reward[fitted])
        error = (predict_rewards(x[kept], weights)[0] - reward[kept]).double().numpy()
        size = rms(reward.double().numpy(), row_weights(rows))
        scale = max(rms(error, row_weights(rows)[kept.numpy()]), _PRECISION * size, _SMALLEST)
        return {"predictor": weights, "scale": scale}

    def score(self, learner: Any, rows: Transitions, heads: IntArray) -> FloatArray:
        """Errors of the predicted reward, in units of each predictor's own, clipped."""
        chosen = [self.fitted[head] for head in heads.tolist()]
        names = chosen[0]["predictor"]
        stacked = {name: torch.cat([kept["predictor"][name] for kept in chosen]) for name in names}
        predicted = predict_rewards(self._features(rows), stacked)  # (n, B)
        error = (predicted - rows.reward.float().cpu()).double().numpy()
        scale = np.array([[kept["scale"]] for kept in chosen])
        return calibrated_loss(error, scale, clip=self.clip)

    def kept_problem(self, kept: Any) -> str | None:
        """A predictor has weights and the scale of its error."""
        if isinstance(kept, Mapping) and isinstance(kept.get("predictor"), Mapping):
            return positive_scale(kept.get("scale"))
        return "expected a predictor and its scale"

    def state_dict(self) -> dict[str, Any]:
        """The predictors and their scales, and the generator."""
        return {
            **super().state_dict(),
            "actions": self._actions,
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned."""
        check_keys("RewardEvidence.load_state_dict", state_dict, ("actions", "generator"))
        heads, actions = self._heads_of(state_dict), int(state_dict["actions"])
        self._generator.set_state(state_dict["generator"])
        self.fitted, self._actions = heads, actions
        self.version += 1

    def __repr__(self) -> str:
        return f"RewardEvidence(hidden={self.hidden}, updates={self.updates}, clip={self.clip})"

    def _features(self, rows: Transitions) -> Tensor:
        """Observation, next observation and action side by side, (B, F)."""
        encode = self.encode or (lambda observation: observation.flatten(1).float())
        seen = [encoded("RewardEvidence", encode, x) for x in (rows.observation, rows.next_observation)]
        action = rows.action.cpu()
        if action.is_floating_point():
            columns = action.flatten(1)
        else:
            columns = F.one_hot(action.long().clamp(max=self._actions), self._actions + 1)[:, : self._actions]
        return torch.cat([part.float() for part in (*seen, columns)], dim=1)

    def _widen(self, actions: int) -> None:
        """Make room for a task with more actions: earlier predictors know nothing of the new ones."""
        for kept in self.fitted.values():
            weights = kept["predictor"]
            weights["w1"] = F.pad(weights["w1"], (0, max(0, actions - self._actions)))
        self._actions = max(self._actions, actions)

    def _fit(self, x: Tensor, reward: Tensor) -> Weights:
        size = max(rms(reward.double().numpy()), _SMALLEST)  # rewards of any size are learned alike
        # made without values, since the global generator that would draw them is not ours
        first = nn.Linear(x.shape[1], self.hidden, device="meta").to_empty(device="cpu")
        last = nn.Linear(self.hidden, 1, device="meta").to_empty(device="cpu")
        network = nn.Sequential(first, nn.ReLU(), last)
        for layer in (first, last):
            bound = layer.in_features**-0.5
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -bound, bound, generator=self._generator)
        optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, total_iters=self.updates)
        rewarded = reward.nonzero().flatten()
        for _ in range(self.updates):
            index = torch.randint(len(x), (self.batch_size,), generator=self._generator)
            if len(rewarded):  # rewards are rare where they tell most
                half = self.batch_size // 2
                index[:half] = rewarded[torch.randint(len(rewarded), (half,), generator=self._generator)]
            loss = F.mse_loss(network(x[index]).squeeze(1), reward[index] / size)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        if not torch.isfinite(last.weight).all():
            raise OwlValueError(
                "RewardEvidence.calibrate: the predictor diverged; observations may be too large: "
                "pass encode= to scale them to about 1"
            )
        out, offset = size * last.weight[0], size * last.bias[0]
        parameters = {"w1": first.weight, "b1": first.bias, "w2": out, "b2": offset}
        return {name: p.detach().clone()[None] for name, p in parameters.items()}
