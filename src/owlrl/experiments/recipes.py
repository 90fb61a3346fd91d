"""The methods of our own studies: the same parts in different combinations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from owlrl import DistillationRegularizer, EWCRegularizer
from owlrl.errors import OwlValueError
from owlrl.experiments._optional import imported
from owlrl.protocols import Regularizer

__all__ = ["METHODS", "Recipe", "recipe_of"]

Strength = float | Mapping[str, float]
MakeRegularizer = Callable[[Strength, int], Regularizer]  # from strength and seed


@dataclass(frozen=True)
class Recipe:
    """One way to learn task after task.

    Attributes:
        name: its key in ``METHODS``.
        about: what it is, in a few words.
        heads: a head per task, or one for all.
        replay: "scoped" is emptied between tasks, "shared" never, "rehearsal" is kept per task.
        regularizer: makes the regularizer from a strength and a seed; None for none.
        strength: of the regularizer (λ of EWC, μ of distillation).
        control: strengths for actor and critics with continuous actions; None if it is not there for them.
        warm_start: rows kept of each task for its next visit; for the scoped replay.
        init: a new task's head: "fresh" (random), "zero" or a "copy" of the last one.
        head: makes a head of another kind than a linear one from feature size and actions.
        dropout: probability of the paper's MC dropout; 0 for none.
        epsilon_restart: on a revisit exploration starts again and falls so many times faster; None
            resumes it where it stopped.

    >>> from owlrl.experiments import METHODS
    >>> METHODS["owl"].strength, METHODS["experience-replay"].heads
    (30.0, False)
    """

    name: str
    about: str
    heads: bool = True
    replay: Literal["scoped", "shared", "rehearsal"] = "scoped"
    regularizer: MakeRegularizer | None = None
    strength: float = 0.0
    control: Mapping[str, float] | None = None
    warm_start: int = 0
    init: Literal["fresh", "zero", "copy"] = "zero"
    head: Callable[[int, int], nn.Module] | None = None
    dropout: float = 0.0
    epsilon_restart: float | None = None


def _ewc(strength: Strength, seed: int) -> Regularizer:
    return EWCRegularizer(strength)


def _ewc_on_loss(strength: Strength, seed: int) -> Regularizer:
    return EWCRegularizer(strength, importance="loss")


def _current(strength: Strength, seed: int) -> Regularizer:
    return DistillationRegularizer(strength, states="current", batch_size=128, seed=seed)


def _memory(strength: Strength, seed: int) -> Regularizer:
    return DistillationRegularizer(strength, every=4, batch_size=128, seed=seed)


def _two_layers(features: int, actions: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, features), nn.ReLU(), nn.Linear(features, actions))


WARM = 50_000  # transitions, as in the paper
LAMBDA = 30.0  # of EWC with the fast learner, the best of eight; the paper has 500, with rewards of 100
EWC = {"actor": 100.0, "critic": 100.0}  # for continuous actions, as in the paper

OWL: dict[str, Any] = {"regularizer": _ewc, "strength": LAMBDA}
HEADS: dict[str, Any] = {**OWL, "control": EWC}

METHODS: dict[str, Recipe] = {
    method.name: method
    for method in (
        Recipe(
            "experience-replay",
            "one head, one replay for all tasks",
            heads=False,
            replay="shared",
            control={},
        ),
        Recipe(
            "one-head-rehearsal",
            "one head, a kept replay per task: the task in training has its share of every reward drawn",
            heads=False,
            replay="rehearsal",
        ),
        Recipe("owl", "the paper's: a head per task, EWC", **HEADS),
        Recipe("owl-loss", "EWC's importance from the loss", regularizer=_ewc_on_loss, strength=500.0),
        Recipe("owl-warm-start", "replay refilled on revisits", **HEADS, warm_start=WARM),
        Recipe(
            "owl-warm-start-100k",
            "replay refilled on revisits, with twice as much",
            **HEADS,
            warm_start=2 * WARM,
        ),
        Recipe("owl-no-ewc", "heads without a regularizer", control={}),
        Recipe(
            "owl-distill-current",
            "distillation on the current task's states",
            regularizer=_current,
            strength=100.0,
        ),
        Recipe("full-rehearsal", "a head and a kept replay per task", replay="rehearsal"),
        Recipe("owl-mlp-head", "heads of two layers", **OWL, head=_two_layers),
        *(
            Recipe(
                f"owl-epsilon-restart-{x}x", "exploration starts again on revisits", **OWL, epsilon_restart=x
            )
            for x in (1, 2)
        ),
        *(
            Recipe(f"owl-dropout-{share:g}", "MC dropout, likelihood as evidence", **OWL, dropout=share)
            for share in (0.05, 0.1, 0.2)
        ),
        Recipe(
            "owl-memory",
            "ours: old heads distilled on a memory of their own states",
            regularizer=_memory,
            strength=1.0,
            control={"actor": 1.0, "critic": 1.0},
            warm_start=WARM,
        ),
    )
}


def recipe_of(name: str) -> Recipe:
    """The method of that name, or the `Recipe` that ``"package.module:name"`` names.

    >>> from owlrl.experiments.recipes import recipe_of
    >>> recipe_of("full-rehearsal").replay
    'rehearsal'
    """
    if ":" in name:
        found: Recipe = imported("method", name)
        return found
    if name not in METHODS:
        raise OwlValueError(f"method is {name!r}; expected one of {', '.join(METHODS)}")
    return METHODS[name]
