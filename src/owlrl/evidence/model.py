"""`ModelEvidence`: a task is recognised by a model of its next observations and rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from owlrl._arguments import Arguments, own_seed
from owlrl.errors import OwlValueError
from owlrl.evidence.base import (
    Evidence,
    FloatArray,
    IntArray,
    check_keys,
    encoded,
    positive_scale,
    rms,
    row_weights,
)
from owlrl.types import Transitions

__all__ = ["ModelEvidence", "cautious_loss", "find_categories", "ridge_fit"]

# A model is not trusted to better than a twentieth of how much what it predicts varies.
_PRECISION = 0.05
_SMALLEST = 1e-8
_CHUNK = 4096  # rows at a time, so that a fit needs little memory
_TOLL = 0.5  # what a guess costs, paid once: with the next observation, not with the reward
_PROBES = 4  # random directions that tell how far a row is from those that a model was fitted to

Array = npt.NDArray[Any]


def ridge_fit(x: Array, y: Array, weight: FloatArray, *, ridge: float) -> tuple[FloatArray, FloatArray]:
    """Weighted least squares with a penalty: ``argmin_M Σ_b w_b |y_b − x_b M|² + ridge · Σ_b w_b · |M|²``.

    x (B, K), y (B, O), weight (B,) → M (K, O), and L (K, K), the Cholesky factor of
    ``G = Σ_b w_b x_b x_bᵀ + ridge · Σ_b w_b · I``; both float64.

    >>> import numpy as np
    >>> from owlrl.evidence import ridge_fit
    >>> ridge_fit(np.array([[1.0], [2.0]]), np.array([[2.0], [4.0]]), np.ones(2), ridge=0.0)[0]
    array([[2.]])
    """
    gram = np.diag(np.full(x.shape[1], ridge * weight.sum()))
    right = np.zeros((x.shape[1], y.shape[1]))
    for start in range(0, len(x), _CHUNK):
        part = slice(start, start + _CHUNK)
        rows = x[part].astype(np.float64)
        weighted = rows * weight[part, None]
        gram += weighted.T @ rows
        right += weighted.T @ y[part]
    factor: FloatArray = np.linalg.cholesky(gram)
    fitted: FloatArray = np.linalg.solve(factor.T, np.linalg.solve(factor, right))
    return fitted, factor


def cautious_loss(
    error: Array, scale: Array, leverage: Array, *, clip: float = 5.0, toll: float = 0.0
) -> Array:
    """Loss of an error ≥ 0 in units of the model's own, ``e = error / scale``, less where the model guesses.

    ``max(min(e, 1), min(e, e / s + toll · log s, clip))`` with ``s = √max(1, leverage)``. The leverage is
    ``xᵀ G⁻¹ x`` of a row (`ridge_fit`) in units of that of a row like those the model was fitted to. A
    model's error is mostly what its features cannot express: many rows do not average it away, and it
    grows as the root of the leverage in these units. So a large error far from all rows tells little against
    the model. But a model that knows nothing must not be ahead of one that is right: an error of the
    model's own size counts in full, and a guess pays a toll, as wide distributions do in a likelihood.
    Shapes broadcast.

    >>> import numpy as np
    >>> from owlrl.evidence import cautious_loss
    >>> error = np.array([0.5, 4.0, 90.0])
    >>> cautious_loss(error, 1.0, 1.0), cautious_loss(error, 1.0, 100.0)
    (array([0.5, 4. , 5. ]), array([0.5, 1. , 5. ]))
    """
    ratio, far = error / scale, np.maximum(leverage, 1.0)
    guess = ratio / np.sqrt(far)
    if toll:
        guess = np.minimum(guess + 0.5 * toll * np.log(far), ratio)
    bounded: Array = np.maximum(np.minimum(ratio, 1.0), np.minimum(guess, clip))
    return bounded


def find_categories(observation: Tensor) -> list[list[int]] | None:
    """The values that each channel takes if observations (B, ...) are categories; None if they are numbers.

    Integers with few values are taken as names, not amounts: at most 16 in each channel, less than 32 apart,
    as in MiniGrid's images. The channels of an image are its last axis, those of a vector its columns; of a
    single integer up to 1,024 values are categories.

    >>> import torch
    >>> from owlrl.evidence import find_categories
    >>> find_categories(torch.tensor([[0, 7], [2, 7]]))
    [[0, 2], [7]]
    >>> find_categories(torch.tensor([[0.0, 7.0]])), find_categories(torch.tensor([[0, 7], [255, 7]]))
    (None, None)
    """
    if observation.dtype not in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64):
        return None
    columns = observation[:1].numel()
    channels = observation.shape[-1] if observation.ndim > 2 else columns
    values = [np.unique(part).tolist() for part in observation.reshape(-1, channels).numpy().T]
    most, apart, width = (16, 32, 4096) if columns > 1 else (1024, 4096, 1024)
    few = all(len(v) <= most and v[-1] - v[0] < apart for v in values)
    return values if few and sum(map(len, values)) * (columns // channels) <= width else None


class RandomFeatures:
    """``[1, P z, relu(W_a z + b_a)]`` of the standardised observation z, with a W for each action.

    Categories are one column per value that was seen when the columns were measured; a value that was not
    seen then is in none of them. An action that is not one integer is part of z instead. P, W and b are
    drawn from ``seed``: only the columns need to be kept.

    Args:
        mean: of each column.
        scale: of each column.
        categories: values of each channel (`find_categories`); None for numbers.
        features: rows of each W.
        outputs: most rows of P; narrower observations are left as they are.
        seed: of the draws.
    """

    def __init__(
        self,
        *,
        mean: npt.ArrayLike,
        scale: npt.ArrayLike,
        categories: list[list[int]] | None,
        features: int,
        outputs: int,
        seed: int,
    ) -> None:
        self.mean = np.asarray(mean, dtype=np.float64)
        self.scale = np.asarray(scale, dtype=np.float64)
        self.categories = categories
        self.features = features
        self.seed = seed
        self._places = None if categories is None else _places(categories)
        self.num_outputs = min(outputs, len(self.mean))
        self.size = 1 + self.num_outputs + features
        projection = np.eye(len(self.mean))
        if self.num_outputs < len(self.mean):
            draws = np.random.default_rng([seed, 0]).normal(size=(len(self.mean), outputs))
            projection = draws / np.sqrt(len(self.mean))
        self._projection = self._table(projection, np.zeros(self.num_outputs))
        self._hidden: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}

    @classmethod
    def measure(cls, observation: Tensor, categories: list[list[int]] | None, **sizes: int) -> RandomFeatures:
        """Features for observations like these (B, ...)."""
        if categories is None:
            x = observation.reshape(len(observation), -1).double().numpy()
            mean, deviation = x.mean(axis=0), x.std(axis=0)
        else:
            ones, width = _ones(observation, *_places(categories))
            mean = np.bincount(ones.flatten().numpy(), minlength=width + 1)[:width] / len(observation)
            deviation = np.sqrt(mean * (1.0 - mean))
        usual = float(np.median(deviation[deviation > 0])) if (deviation > 0).any() else 1.0
        scale = np.maximum(deviation, usual)  # a column that hardly ever changes is not blown up
        return cls(mean=mean, scale=scale, categories=categories, **sizes)

    def state_dict(self) -> dict[str, Any]:
        """What the columns are, their mean and their scale."""
        return {"mean": self.mean, "scale": self.scale, "categories": self.categories}

    def project(self, observation: Tensor) -> Tensor:
        """``P z`` (B, outputs)."""
        return self._linear(self._columns(observation), *self._projection)

    def __call__(self, observation: Tensor, action: Tensor) -> Tensor:
        """Features (B, size) of observations (B, ...) and actions (B,) or (B, D)."""
        columns = self._columns(observation)
        hidden = torch.empty(len(columns), self.features)
        if action.is_floating_point() or action.ndim > 1:
            amounts = action.reshape(len(columns), -1).float()
            weight, bias, more = self._drawn(0, amounts.shape[1])
            hidden[:] = self._linear(columns, weight, bias) + amounts @ more
        else:
            for a in np.unique(action.numpy()).tolist():
                here = action == a
                hidden[here] = self._linear(columns[here], *self._drawn(a, 0)[:2])
        ones = torch.ones(len(columns), 1)
        return torch.cat([ones, self._linear(columns, *self._projection), hidden.relu_()], dim=1)

    def _columns(self, observation: Tensor) -> Tensor:
        """Z-scores (B, columns) of numbers, or where the ones are (B, channels) of categories."""
        if self._places is not None:
            return _ones(observation, *self._places)[0]
        x = observation.reshape(len(observation), -1).double()
        return ((x - torch.from_numpy(self.mean)) / torch.from_numpy(self.scale)).float()

    def _linear(self, columns: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self.categories is None:
            return torch.addmm(bias, columns, weight)
        return F.embedding_bag(columns, weight, mode="sum") + bias

    def _table(self, weight: FloatArray, bias: FloatArray) -> tuple[Tensor, Tensor]:
        """Weights (columns, K) and bias of z as those of what `_columns` gives."""
        if (
            self.categories is not None
        ):  # z = (one-hot - mean) / scale, and a last row for what is in no column
            bias = bias - (self.mean / self.scale) @ weight
            weight = np.vstack([weight / self.scale[:, None], np.zeros(weight.shape[1])])
        return torch.from_numpy(weight).float(), torch.from_numpy(bias).float()

    def _drawn(self, action: int, amounts: int) -> tuple[Tensor, Tensor, Tensor]:
        """W and b of an action, and the columns of W that an action of several amounts has."""
        if (action, amounts) not in self._hidden:
            rng, wide = np.random.default_rng([self.seed, 1, action]), len(self.mean) + amounts
            weight, bias = (
                rng.normal(size=(wide, self.features)) / np.sqrt(wide),
                rng.normal(size=self.features),
            )
            own, more = weight[: len(self.mean)], torch.from_numpy(weight[len(self.mean) :]).float()
            self._hidden[action, amounts] = *self._table(own, bias), more
        return self._hidden[action, amounts]


def _places(categories: list[list[int]]) -> tuple[Tensor, int]:
    """The column of each channel's values from the lowest on, (channels, span + 1), or -1; and the lowest."""
    low = min(values[0] for values in categories)
    places = torch.full((len(categories), max(values[-1] for values in categories) - low + 2), -1)
    count = 0
    for channel, values in enumerate(categories):
        places[channel, torch.tensor(values) - low] = torch.arange(count, count + len(values))
        count += len(values)
    return places, low


def _ones(observation: Tensor, places: Tensor, low: int) -> tuple[Tensor, int]:
    """Where the ones of categories are, (B, cells · channels), or the number of columns; and that number."""
    channels = len(places)
    cells = observation.reshape(len(observation), -1, channels).long() - low
    known = (cells >= 0) & (cells < places.shape[1])
    found = places[torch.arange(channels), cells.where(known, -1)]  # (B, cells, channels)
    count = int(places.max()) + 1
    starts = count * torch.arange(cells.shape[1])[:, None]
    width = count * cells.shape[1]
    return torch.where(found >= 0, found + starts, width).flatten(1), width


class ModelEvidence(Evidence):
    """Scores each task by how well a model of it predicted the next observation and the reward.

    When a task has been learned, a model is fitted to its rows in closed form: linear in random features
    of observation and action (`ridge_fit`), so it takes a fraction of a second and no gradient. At
    test time a task's loss is the sum of two errors, of the next observation and of the reward given the
    next observation, each in units of the model's own error on rows it was not fitted to, less where
    the model has seen nothing similar, and clipped (`cautious_loss`).

    Tasks that differ in what happens (a wall, a swapped action) are distinguished by the first, tasks
    that differ in what is rewarded by the second. States that no task has seen are predicted badly by all.
    There is no bootstrap: unlike a TD error, the evidence does not depend on how well values were learned.

    Args:
        encode: turns a batch of observations into features (B, F). By default small integers, as in
            MiniGrid's images, are categories (`find_categories`) and everything else is numbers; which of
            the two is decided by the first task.
        features: random features of observation and action.
        outputs: the next observation is predicted through so many random projections, if it is wider.
        ridge: penalty of the fit, per row.
        samples: most rows a model is fitted to, spread evenly over those given.
        clip: largest of each of the two errors: one surprise cannot outweigh all earlier steps.
        seed: of the random features; None for torch's (`torch.initial_seed`).

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
    array([[5.],
           [0.]])
    """

    def __init__(
        self,
        *,
        encode: Callable[[Tensor], Tensor] | None = None,
        features: int = 192,
        outputs: int = 32,
        ridge: float = 1e-5,
        samples: int = 20_000,
        clip: float = 5.0,
        seed: int | None = None,
    ) -> None:
        arguments = Arguments("ModelEvidence")
        self.encode = arguments.function("encode", encode, "of a batch of observations", none=True)
        self.features = arguments.integer("features", features)
        self.outputs = arguments.integer("outputs", outputs)
        self.ridge = arguments.number("ridge", ridge, above=0.0)
        self.samples = arguments.integer("samples", samples)
        self.clip = arguments.number("clip", clip, above=0.0)
        seed = arguments.integer("seed", seed, least=0, none=True)
        arguments.check()
        super().__init__()
        self.seed = own_seed(seed)
        self._map: RandomFeatures | None = None  # made when the form of an observation is known
        # models, links and scales of the heads asked for last
        self._stack: tuple[bytes, Tensor, Array, Array] | None = None

    @property
    def scales(self) -> dict[int, tuple[float, float]]:
        """Each model's own error, of the next observation and of the reward."""
        return {
            head: (float(kept["scale"][0]), float(kept["scale"][1])) for head, kept in self.fitted.items()
        }

    def fit(self, learner: Any, head: int, rows: Transitions) -> dict[str, Any]:
        """``head``'s model and its own error."""
        features = self._map or self._measured(rows)
        x, y = self._features(features, rows), self._outcomes(features, rows)
        given = row_weights(rows)
        weight = _evened(y[:, -1], given)
        order = np.random.default_rng([self.seed, head]).permutation(len(x))
        fitted = order[: max(1, len(x) * 9 // 10)]
        kept = order[len(fitted) :] if len(fitted) < len(x) else fitted
        model, factor = ridge_fit(x[fitted], y[fitted], weight[fitted], ridge=self.ridge)
        error = y - x @ model
        # the reward given what came next: least squares on x and the next observation, in two stages
        link, _ = ridge_fit(error[fitted, :-1], error[fitted, -1:], weight[fitted], ridge=self.ridge)
        model[:, -1:] -= model[:, :-1] @ link
        error[:, -1:] -= error[:, :-1] @ link
        error = error[kept]
        scale = [
            max(
                rms(np.sqrt(np.mean(np.square(error[:, :-1]), axis=1)), given[kept]),
                _PRECISION * float(np.std(y[:, :-1], axis=0).mean()),
                _SMALLEST,
            ),
            max(rms(error[:, -1], given[kept]), _PRECISION * rms(y[:, -1].astype(np.float64)), _SMALLEST),
        ]
        probes = np.random.default_rng([self.seed, head, 1]).normal(size=(len(factor), _PROBES))
        probed = np.linalg.solve(factor.T, probes)  # |probedᵀ x|² is about xᵀ G⁻¹ x times the probes
        typical = rms(np.sqrt(np.square(x[kept] @ probed).sum(axis=1)), given[kept])
        probed /= max(typical, _SMALLEST)
        self._map = features
        whole = np.column_stack([model, probed]).T.astype(np.float32)
        return {"model": whole, "link": link[:, 0].astype(np.float32), "scale": scale}

    def score(self, learner: Any, rows: Transitions, heads: IntArray) -> Array:
        """Errors of next observation and reward, in units of each model's own, clipped and added."""
        assert self._map is not None
        models, links, scales = self._stacked(heads)
        x, y = self._features(self._map, rows), self._outcomes(self._map, rows)
        out = F.linear(torch.from_numpy(x), models).view(len(rows), len(heads), -1).numpy()
        error, wide = y[:, None] - out[..., : y.shape[1]], y.shape[1] - 1  # (B, n, outputs + 1)
        surprise = np.sqrt(_squares(error[..., :wide]) / wide)
        leverage = _squares(out[..., wide + 1 :])
        total = cautious_loss(surprise, scales[:, 0], leverage, clip=self.clip, toll=_TOLL)
        paid = np.abs(error[..., wide] - y[:, :wide] @ links.T)
        total += cautious_loss(paid, scales[:, 1], leverage, clip=self.clip)
        by_head: Array = total.T
        return by_head

    def kept_problem(self, kept: Any) -> str | None:
        """A model has weights and the scales of two errors."""
        fits = (
            isinstance(kept, Mapping) and {"model", "scale"} <= set(kept) and np.shape(kept["scale"]) == (2,)
        )
        if fits and not any(positive_scale(scale) for scale in kept["scale"]):
            return None
        return "expected a model and two scales > 0"

    def state_dict(self) -> dict[str, Any]:
        """The models, and what the random features are made from."""
        columns = None if self._map is None else self._map.state_dict()
        return {**super().state_dict(), "seed": self.seed, "columns": columns}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` returned."""
        check_keys("ModelEvidence.load_state_dict", state_dict, ("heads", "seed", "columns"))
        heads = self._heads_of(state_dict)
        seed, saved, features = int(state_dict["seed"]), state_dict["columns"], None
        if saved is not None:
            features = RandomFeatures(**saved, features=self.features, outputs=self.outputs, seed=seed)
            fits = (features.num_outputs + 1 + _PROBES, features.size), (features.num_outputs,)
            found = {(np.shape(kept["model"]), np.shape(kept.get("link"))) for kept in heads.values()}
            if odd := sorted(found - {fits}):
                raise OwlValueError(
                    f"ModelEvidence.load_state_dict: models and links have shapes {odd}; expected {fits}: "
                    "give features= and outputs= as when it was saved; a model without a link was saved by "
                    "an earlier version, calibrate it again with rows of its task"
                )
        self.seed, self._map, self.fitted = seed, features, heads
        self.version += 1

    def __repr__(self) -> str:
        return f"ModelEvidence(features={self.features}, outputs={self.outputs}, clip={self.clip})"

    def _measured(self, rows: Transitions) -> RandomFeatures:
        both = torch.cat([self._encoded(rows.observation), self._encoded(rows.next_observation)])
        categories = find_categories(both) if self.encode is None else None
        return RandomFeatures.measure(
            both[: len(rows)], categories, features=self.features, outputs=self.outputs, seed=self.seed
        )

    def _stacked(self, heads: IntArray) -> tuple[Tensor, Array, Array]:
        """Models (n·O, K), links (n, outputs) and scales (n, 2) of ``heads``, made when one has changed."""
        key = b"%d " % self.version + heads.tobytes()
        if self._stack is None or self._stack[0] != key:
            kept = [self.fitted[head] for head in heads.tolist()]
            models = torch.from_numpy(
                np.concatenate([np.asarray(k["model"], dtype=np.float32) for k in kept])
            )
            links, scales = (
                np.array([k[part] for k in kept], dtype=np.float32) for part in ("link", "scale")
            )
            self._stack = key, models, links, scales
        return self._stack[1:]

    def _encoded(self, observation: Tensor) -> Tensor:
        if self.encode is None:
            return observation.detach().cpu()
        return encoded("ModelEvidence", self.encode, observation)

    def _features(self, features: RandomFeatures, rows: Transitions) -> Array:
        return features(self._encoded(rows.observation), rows.action.detach().cpu()).numpy()

    def _outcomes(self, features: RandomFeatures, rows: Transitions) -> Array:
        following = features.project(self._encoded(rows.next_observation))
        reward = rows.reward.detach().cpu().float()
        return torch.cat([following, reward[:, None]], dim=1).numpy()


def _squares(x: Array) -> Array:
    """Sums of squares over the last axis."""
    total: Array = np.einsum("bno,bno->bn", x, x)
    return total


def _evened(reward: Array, weight: FloatArray) -> FloatArray:
    """Weights with which rare rewards count as much as none, but a row at most a hundred times as given."""
    rare = reward != 0.0
    times = np.clip(weight[~rare].sum() / max(weight[rare].sum(), _SMALLEST), 1.0, 100.0)
    return np.where(rare, times * weight, weight)
