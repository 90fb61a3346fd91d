"""Two plain detectors to compare `Contradiction` with: a drift test on rewards, a test on model errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from owlrl.changes.base import Detector, Judgement, Steps
from owlrl.evidence.model import ridge_fit

__all__ = ["ModelErrors", "RewardDrift"]

ROWS = 2048  # kept for a model and its errors
FIRST = 256  # steps before anything is said


class RewardDrift(Detector):
    """A drift test on rewards (Page 1954, Hinkley 1971): has their mean moved by ``shift`` deviations?

    It needs nothing but rewards, but it misses changed dynamics and raises alarms when a policy improves.

    Args:
        shift: how far a change moves the mean of the rewards, in their deviations.
        threshold: of the sums, as for every `Detector`.

    >>> import torch
    >>> from owlrl.changes import History, RewardDrift
    >>> from owlrl.types import Transitions
    >>> def rows(reward):
    ...     return Transitions(reward, reward.long(), reward, reward, reward > 9, torch.ones(len(reward)))
    >>> reward, history, detector = torch.linspace(-1, 1, 300), History(), RewardDrift()
    >>> detector.learn("left", history.follow(rows(reward)))
    >>> said = detector.judge("left", history.follow(rows(reward + 2)))
    >>> said.evidence.sum(1) > 0  # moved up, moved down
    array([ True, False])
    """

    def __init__(self, *, shift: float = 1.0, threshold: float = 16.0) -> None:
        super().__init__()
        self.shift = shift
        self.threshold = threshold

    def make(self) -> RewardModel:
        """A model that has seen nothing."""
        return RewardModel(self.shift)


class RewardModel:
    """Number, mean and sum of squared deviations of the rewards."""

    mature, doubt, unknown = True, 1.0, np.nan

    def __init__(self, shift: float) -> None:
        self.shift = shift
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def judge(self, steps: Steps, *, stride: int = 1) -> Judgement:
        made = Judgement.silent(len(steps), 2)
        if self.count < FIRST:
            return made
        deviation = np.sqrt(self.squares / self.count) + 1e-6 * (1.0 + abs(self.mean))
        z = np.clip((steps.reward.astype(np.float64) - self.mean) / deviation, -5.0, 5.0)
        # of a normal variable whose mean has moved by ±shift
        made.evidence[0] = self.shift * z - self.shift**2 / 2
        made.evidence[1] = -self.shift * z - self.shift**2 / 2
        return Judgement(made.evidence, ~made.comparable, np.abs(z) > 3.0)

    def learn(self, steps: Steps, judgement: Judgement) -> None:
        rewards = steps.reward.astype(np.float64)
        total = self.count + len(rewards)
        apart = rewards.mean() - self.mean
        self.squares += float(np.square(rewards - rewards.mean()).sum())
        self.squares += float(apart**2 * self.count * len(rewards) / total)
        self.mean += float(apart * len(rewards) / total)
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.count = int(state_dict["count"])
        self.mean, self.squares = float(state_dict["mean"]), float(state_dict["squares"])


class ModelErrors(Detector):
    """A two-sample test on errors: are those of new steps larger than those of rows the model did not see?

    A linear model of next observation and reward is fitted to half of a sample of the task's rows. The rank
    of a step's error among those of the other half is uniform while nothing has changed; small ranks are bet
    against (a power martingale: Vovk, Nouretdinov and Gammerman 2003). A policy that moves where the model
    is bad looks like a change.

    Args:
        power: of the bet, from 0 (bold) to 1 (none).
        threshold: of the sums, as for every `Detector`.

    >>> import torch
    >>> from owlrl.changes import History, ModelErrors
    >>> from owlrl.types import Transitions
    >>> generator = torch.Generator().manual_seed(0)
    >>> x = torch.randn(600, 2, generator=generator)
    >>> def rows(gravity):
    ...     return Transitions(x, x[:, 0].long() * 0, x[:, 1], x - gravity, x[:, 0] > 9, torch.ones(600))
    >>> history, detector = History(), ModelErrors()
    >>> detector.learn("earth", history.follow(rows(1.0)))
    >>> [bool(detector.judge("earth", history.follow(rows(g))).evidence.sum() > 0) for g in (1.0, 1.6)]
    [False, True]
    """

    def __init__(self, *, power: float = 0.6, threshold: float = 16.0) -> None:
        super().__init__()
        self.power = power
        self.threshold = threshold

    def make(self) -> ErrorModel:
        """A model that has seen nothing."""
        return ErrorModel(self.power)


class ErrorModel:
    """A sample of a task's rows, a linear model of one half of it, and its errors on the other half."""

    mature, doubt, unknown = True, 1.0, np.nan

    def __init__(self, power: float) -> None:
        self.power = power
        self.seen, self.next_fit = 0, FIRST
        self._rng = np.random.default_rng(0)
        self._kept: dict[str, np.ndarray] = {}
        self._model: dict[str, np.ndarray] = {}

    def judge(self, steps: Steps, *, stride: int = 1) -> Judgement:
        if not self._model:
            return Judgement.silent(len(steps))
        known = self._model["errors"]
        rank = 1.0 - (np.searchsorted(known, self._errors(*_inputs(steps))) - 0.5).clip(0) / (len(known) + 1)
        evidence = np.log(self.power) + (self.power - 1.0) * np.log(rank)
        there = np.ones(len(steps), np.bool_)
        return Judgement(evidence[None], there, rank < 0.02)

    def learn(self, steps: Steps, judgement: Judgement) -> None:
        columns = dict(zip(("x", "y"), _inputs(steps), strict=True))
        if not self._kept:
            self._kept = {name: np.zeros((ROWS, *c.shape[1:])) for name, c in columns.items()}
        time = self.seen + np.arange(len(steps))
        place = np.where(time < ROWS, time, (self._rng.random(len(time)) * (time + 1)).astype(np.int64))
        kept = place < ROWS
        for name, column in columns.items():
            self._kept[name][place[kept]] = column[kept]
        self.seen += len(steps)
        if self.seen >= self.next_fit:
            self._fit(min(self.seen, ROWS))
            self.next_fit = 2 * self.seen

    def _fit(self, count: int) -> None:
        x, y = (self._kept[name][:count] for name in ("x", "y"))
        half = self._rng.permutation(count)
        scale = y.std(0) + 1e-6 * (1.0 + np.abs(y).max(0))
        fit, rest = half[: count // 2], half[count // 2 :]
        weights, _ = ridge_fit(x[fit], y[fit] / scale, np.ones(len(fit)), ridge=1e-3)
        self._model = {"weights": weights, "scale": scale}
        self._model["errors"] = np.sort(self._errors(x[rest], y[rest]))

    def _errors(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        apart = y / self._model["scale"] - x @ self._model["weights"]
        errors: np.ndarray = np.sqrt(np.square(apart).mean(1))
        return errors

    def state_dict(self) -> dict[str, Any]:
        numbers = {"seen": self.seen, "next_fit": self.next_fit, "rng": self._rng.bit_generator.state}
        return {**numbers, "kept": dict(self._kept), "model": dict(self._model)}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self._rng.bit_generator.state = dict(state_dict["rng"])
        self.seen, self.next_fit = int(state_dict["seen"]), int(state_dict["next_fit"])
        self._kept = {name: np.array(value) for name, value in state_dict["kept"].items()}
        self._model = {name: np.array(value) for name, value in state_dict["model"].items()}


def _inputs(steps: Steps) -> tuple[np.ndarray, np.ndarray]:
    """Inputs x (B, X): one, observation and action; y (B, Y): change of the observation, and reward."""
    count = len(steps)
    before = steps.observation.reshape(count, -1).astype(np.float64)
    after = steps.next_observation.reshape(count, -1).astype(np.float64)
    action = steps.action.reshape(count, -1).astype(np.float64)
    # a product with the action lets the change depend on both
    x = np.concatenate([np.ones((count, 1)), before, action, before * action[:, :1]], axis=1)
    return x, np.concatenate([after - before, steps.reward[:, None]], axis=1)
