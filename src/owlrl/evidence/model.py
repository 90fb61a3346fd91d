"""`ModelEvidence`: a task is recognised by how its world goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from owlrl.errors import OwlTypeError, OwlValueError, raise_problems
from owlrl.evidence._common import (
    FloatArray,
    argument_problems,
    calibrated_loss,
    check_arms,
    check_finite,
    check_keys,
    check_rows,
    rms,
    spread,
)
from owlrl.evidence._random_features import RandomFeatures
from owlrl.protocols import OffPolicyLearner
from owlrl.types import Transitions

__all__ = ["ModelEvidence", "ridge_fit"]

# A model is not trusted to better than a twentieth of how much what it predicts varies.
_PRECISION = 0.05
_SMALLEST = 1e-8


def ridge_fit(x: FloatArray, y: FloatArray, weight: FloatArray, *, ridge: float) -> FloatArray:
    """Weighted least squares with a penalty: ``argmin_M Σ_b w_b |y_b − x_b M|² + ridge · Σ_b w_b · |M|²``.

    x (B, K), y (B, O), weight (B,) → M (K, O).

    >>> import numpy as np
    >>> from owlrl.evidence import ridge_fit
    >>> ridge_fit(np.array([[1.0], [2.0]]), np.array([[2.0], [4.0]]), np.ones(2), ridge=0.0)
    array([[2.]])
    """
    weighted = x * weight[:, None]
    gram = weighted.T @ x
    gram[np.diag_indices_from(gram)] += ridge * weight.sum()
    fitted: FloatArray = np.linalg.solve(gram, weighted.T @ y)
    return fitted


class ModelEvidence:
    """Scores each task by how well a model of it predicted the next observation and the reward.

    When a task has been learned, a model is fitted to its rows in closed form: linear in random features
    of observation and action (`ridge_fit`), so it takes a fraction of a second and no gradient. At
    test time a task's loss is the sum of two errors, of the next observation and of the reward, each in
    units of the model's own error on rows it was not fitted to, and clipped.

    Tasks that differ in what happens (a wall, a swapped action) are told apart by the first, tasks
    that differ in what is rewarded by the second. What no task has seen before is predicted badly by all.
    There is no bootstrap: unlike a TD error, the evidence does not depend on how well values were learned.

    Args:
        encode: turns a batch of observations into features (B, F); by default they are flattened.
            For MiniGrid images `owlrl.learners.one_hot_cells`.
        features: random features of observation and action.
        outputs: the next observation is predicted through so many random projections, if it is wider.
        ridge: penalty of the fit, per row.
        samples: most rows a model is fitted to, spread evenly over those given.
        clip: largest of each of the two errors: one surprise cannot outweigh all that was seen before.
        seed: of the random features.

    >>> import torch
    >>> from owlrl import ModelEvidence, Transitions
    >>> def rows(step):  # a number goes up or down by 1, the other way round where step is -1
    ...     action, x = torch.arange(64) % 2, torch.linspace(-3, 3, 64)[:, None]
    ...     following = x + step * (2 * action[:, None] - 1)
    ...     return Transitions(x, action, torch.zeros(64), following, action > 5, torch.ones(64))
    >>> evidence = ModelEvidence(seed=0)
    >>> evidence.calibrate(None, 0, rows(step=1))
    >>> evidence.calibrate(None, 1, rows(step=-1))
    >>> evidence.losses(None, rows(step=-1)[30:31], [0, 1]).round(1)
    array([[5., 0.]])
    """

    def __init__(
        self,
        *,
        encode: Callable[[Tensor], Tensor] | None = None,
        features: int = 512,
        outputs: int = 64,
        ridge: float = 1e-5,
        samples: int = 20_000,
        clip: float = 5.0,
        seed: int | None = None,
    ) -> None:
        counts = {"features": features, "outputs": outputs, "samples": samples}
        positive = {"ridge": ridge, "clip": clip}
        problems = argument_problems(counts=counts, positive=positive, encode=encode, seed=seed)
        raise_problems("ModelEvidence", problems)
        self.encode = encode
        self.features = features
        self.outputs = outputs
        self.ridge = ridge
        self.samples = samples
        self.clip = clip
        self.seed = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        self._map: RandomFeatures | None = None  # made when the width of an observation is known
        self._models: dict[int, FloatArray] = {}  # (K, outputs + 1) per head, the reward last
        self._scales: dict[int, tuple[float, float]] = {}  # of observation and reward

    @property
    def scales(self) -> dict[int, tuple[float, float]]:
        """Each model's own error, of the next observation and of the reward."""
        return dict(self._scales)

    def calibrate(self, learner: OffPolicyLearner | None, head: int, transitions: Transitions) -> None:
        """Fit ``head``'s model to rows of its task; a second time replaces the first."""
        check_rows("ModelEvidence.calibrate", head, transitions)
        rows = spread(transitions, self.samples)
        if self._map is None:
            self._map = RandomFeatures.measure(
                self._encoded(rows.observation), features=self.features, outputs=self.outputs, seed=self.seed
            )
        x, y = self._features(rows), self._outcomes(rows)
        order = np.random.default_rng([self.seed, head]).permutation(len(x))
        fitted = order[: max(1, len(x) * 9 // 10)]
        kept = order[len(fitted) :] if len(fitted) < len(x) else fitted
        model = ridge_fit(x[fitted], y[fitted], _evened(y[fitted, -1]), ridge=self.ridge)
        error = y[kept] - x[kept] @ model
        self._models[int(head)] = model
        self._scales[int(head)] = (
            max(rms(error[:, :-1]), _PRECISION * float(np.std(y[:, :-1], axis=0).mean()), _SMALLEST),
            max(rms(error[:, -1]), _PRECISION * rms(y[:, -1]), _SMALLEST),
        )

    def losses(
        self, learner: OffPolicyLearner | None, transitions: Transitions, heads: npt.ArrayLike
    ) -> FloatArray:
        """Losses (B, len(heads)) of the given heads on B transitions, all heads in one pass."""
        where = "ModelEvidence.losses"
        check_finite(where, transitions)
        arms = check_arms(where, heads, self._models, lacking="have no model; learn their tasks first")
        models = np.stack([self._models[int(h)] for h in arms])  # (n, K, O)
        scales = np.array([self._scales[int(h)] for h in arms])  # (n, 2)
        error = self._outcomes(transitions) - self._features(transitions) @ models  # (n, B, O)
        surprise = np.sqrt(np.mean(np.square(error[..., :-1]), axis=-1))
        total = calibrated_loss(surprise, scales[:, :1], clip=self.clip)
        total += calibrated_loss(error[..., -1], scales[:, 1:], clip=self.clip)
        return np.ascontiguousarray(total.T)

    def state_dict(self) -> dict[str, Any]:
        """The models and their scales, and what the random features are made from."""
        return {
            "seed": self.seed,
            "map": None if self._map is None else self._map.state_dict(),
            "models": {str(head): model for head, model in self._models.items()},
            "scales": {str(head): list(scale) for head, scale in self._scales.items()},
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` gave."""
        where = "ModelEvidence.load_state_dict"
        check_keys(where, state_dict, ("seed", "map", "models", "scales"))
        seed, saved = int(state_dict["seed"]), state_dict["map"]
        models = {int(head): np.asarray(m, dtype=np.float64) for head, m in state_dict["models"].items()}
        new = None
        if saved is not None:
            new = RandomFeatures(**saved, features=self.features, outputs=self.outputs, seed=seed)
            fits = (new.size, new.num_outputs + 1)
            if odd := sorted({model.shape for model in models.values()} - {fits}):
                raise OwlValueError(
                    f"{where}: models have shapes {odd}; expected {fits}: give features= and outputs= as "
                    "when it was saved"
                )
        self.seed, self._map, self._models = seed, new, models
        self._scales = {int(head): (float(a), float(b)) for head, (a, b) in state_dict["scales"].items()}

    def __repr__(self) -> str:
        return f"ModelEvidence(features={self.features}, outputs={self.outputs}, clip={self.clip})"

    def _encoded(self, observation: Tensor) -> FloatArray:
        out = observation.flatten(1) if self.encode is None else self.encode(observation)
        if out.ndim != 2 or len(out) != len(observation):
            raise OwlTypeError(
                f"ModelEvidence: encode gave shape {tuple(out.shape)} for {len(observation)} observations; "
                f"expected ({len(observation)}, features)"
            )
        found: FloatArray = out.detach().cpu().double().numpy()
        return found

    def _features(self, rows: Transitions) -> FloatArray:
        assert self._map is not None
        return self._map(self._encoded(rows.observation), rows.action.cpu().numpy())

    def _outcomes(self, rows: Transitions) -> FloatArray:
        assert self._map is not None
        following = self._map.project(self._encoded(rows.next_observation))
        return np.column_stack([following, rows.reward.cpu().double().numpy()])


def _evened(reward: FloatArray) -> FloatArray:
    """Weights of rows, so that rare rewards count as much as none, but a row at most a hundred times."""
    rare = reward != 0.0
    times = np.clip((~rare).sum() / max(1, rare.sum()), 1.0, 100.0)
    return np.where(rare, times, 1.0)
