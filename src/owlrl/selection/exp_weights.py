"""Exponential weights over heads: what the paper selects with, and what does better."""

from __future__ import annotations

from typing import Literal, get_args

from owlrl.errors import OwlStateError, raise_problems
from owlrl.selection._base import Rows, bool_problem, int_problem, real_problem
from owlrl.selection._weighted import WeightedSelector
from owlrl.selection.updates import (
    FloatArray,
    fixed_share,
    hedge_update,
    paper_update,
    relative_losses,
    released_update,
)

__all__ = ["ExpWeightsSelector", "Variant"]

Variant = Literal["hedge", "paper", "released"]

# What a variant takes for an argument that is None.
_DECAY: dict[Variant, float] = {"hedge": 1.0, "paper": 1.0, "released": 0.9}
_SHARE: dict[Variant, float] = {"hedge": 0.001, "paper": 0.0, "released": 0.0}
_HOLD: dict[Variant, int] = {"hedge": 8, "paper": 1, "released": 1}


class ExpWeightsSelector(WeightedSelector):
    """Draws a head with probability ∝ exp ℓ and moves ℓ by what each head's loss says.

    Three updates, each a pure function: ``"hedge"`` (`hedge_update`: every head learns from every
    step), ``"paper"`` (`paper_update`, Eq. 2: only the drawn head does) and ``"released"``
    (`released_update`, what the published code does). Log-weights are float64: probabilities
    are finite and sum to 1 whatever finite losses come. NaN and infinities are refused.

    What the losses are is not decided here but by the evidence, e.g. `TDErrorEvidence`. They are
    meant to be non-negative. Below zero, ``"hedge"`` with ``relative=False`` sees differences
    only, with ``relative=True`` it divides by the largest magnitude, and the other two take
    such a loss for a perfect one.

    The defaults did best, or as well as the best, over 20 seeds of six kinds of simulated look-alike
    tasks at low noise; ``docs/results.md`` has the table and says how it came about.

    Args:
        eta: step size η; the paper's 0.88 for DQN.
        decay: factor on ℓ before each step, under 1 to forget old evidence.
            None: 1 for hedge and paper, 0.9 for released.
        variant: which update.
        floor: smallest probability of any head, mixed in as ``(1 − n·floor)·p + floor``. Of a
            floor above 1/(2n) only that much is used, so that evidence keeps half of the say.
        share: fixed share, in [0, 1): the part of the weight dealt out evenly after each step
            (`fixed_share`), so that no head is ruled out for good and a task that changes in
            the middle of an episode is followed. None: 0.001 for hedge, 0 for the others.
        hold: a drawn head is kept for this many calls of ``select``, so that it can get
            somewhere, unless it has become half as likely as it was when it was drawn.
            None: 8 for hedge, 1 for the others.
        relative: hedge only: divide the losses of each step by their largest (`relative_losses`);
            for losses of unknown size, such as those of ``TDErrorEvidence(calibrated=False)``.
        seed: of the selector's own generator; ``reset`` does not seed again.

    >>> from owlrl.selection import ExpWeightsSelector
    >>> selector = ExpWeightsSelector(seed=0)
    >>> selector.reset(3)
    >>> for _ in range(20):
    ...     head = selector.select()
    ...     selector.update([0.9, 0.1, 0.8])
    >>> int(selector.probabilities.argmax())
    1
    """

    def __init__(
        self,
        *,
        eta: float = 0.88,
        decay: float | None = None,
        variant: Variant = "hedge",
        floor: float = 0.0,
        share: float | None = None,
        hold: int | None = None,
        relative: bool = False,
        seed: int | None = None,
    ) -> None:
        problems = real_problem("eta", eta, "a finite number > 0", lambda x: 0.0 < x <= 1e300)
        if decay is not None:
            problems += real_problem("decay", decay, "a number from 0 to 1, or None", lambda x: 0 <= x <= 1)
        if variant not in get_args(Variant):
            problems.append(f"variant is {variant!r}; expected one of {', '.join(get_args(Variant))}")
        problems += real_problem("floor", floor, "a number >= 0 and < 1", lambda x: 0 <= x < 1)
        if share is not None:
            problems += real_problem("share", share, "a number >= 0 and < 1, or None", lambda x: 0 <= x < 1)
        if hold is not None:
            problems += int_problem("hold", hold, least=1)
        problems += bool_problem("relative", relative)
        if seed is not None:
            problems += int_problem("seed", seed, least=0)
        raise_problems("ExpWeightsSelector", problems)
        super().__init__(hold=_HOLD[variant] if hold is None else hold, seed=seed)
        self.eta = eta
        self.decay = decay
        self.variant = variant
        self.floor = floor
        self.share = share
        self.hold = hold
        self.relative = relative
        self.seed = seed

    def __repr__(self) -> str:
        return (
            f"ExpWeightsSelector(eta={self.eta}, decay={self.decay}, variant={self.variant!r}, "
            f"floor={self.floor}, share={self.share}, hold={self.hold}, relative={self.relative})"
        )

    def _learn(self, losses: FloatArray, rows: Rows) -> None:
        decay = _DECAY[self.variant] if self.decay is None else self.decay
        share = _SHARE[self.variant] if self.share is None else self.share
        before = self._log_weights[rows]
        if self.variant == "hedge":
            seen = relative_losses(losses) if self.relative else losses
            after = hedge_update(before, seen, eta=self.eta, decay=decay)
        elif self.variant == "released":
            after = released_update(before, losses, eta=self.eta, decay=decay)
        else:
            arms = self._draws.arms[rows]
            if (arms < 0).any():
                raise OwlStateError(
                    "ExpWeightsSelector.update: the paper's update moves the drawn head, and none was "
                    "drawn since reset; call select() first"
                )
            drawn_from = self._probabilities()[rows]
            after = paper_update(before, losses, arms, drawn_from, eta=self.eta, decay=decay)
        self._log_weights[rows] = fixed_share(after, share)

    def _smallest(self) -> float:
        return min(self.floor, 0.5 / self._num_heads)
