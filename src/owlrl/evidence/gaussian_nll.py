"""`GaussianNLLEvidence`: how likely each head's critics find what happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from owlrl.errors import NonFiniteError, OwlTypeError, OwlValueError, raise_problems
from owlrl.evidence._common import (
    FloatArray,
    argument_problems,
    check_arms,
    check_finite,
    check_rows,
    rms,
    scales_from,
    spread,
)
from owlrl.gaussian import gaussian_mixture
from owlrl.protocols import OffPolicyLearner
from owlrl.types import Transitions

__all__ = ["GaussianNLLEvidence", "likelihood_loss"]

_SMALLEST = 1e-8


def likelihood_loss(mean: Tensor, variance: Tensor, target: Tensor, *, clip: float = 3.0) -> Tensor:
    """Negative log-likelihood of n heads' targets, (n, B) each → (n, B), clipped and from 0 on.

    ``½ min(log σ_i² − min_j log σ_j², clip²) + ½ min(|y_i − μ_i| / σ_i, clip)²``: the Gaussian likelihood
    without what the heads have in common on a transition, which changes no choice among them, and with
    errors that count for at most ``clip`` standard deviations. Where a number is not finite, or a
    variance is not positive, the loss is the largest, ``clip²``.

    >>> import torch
    >>> from owlrl.evidence import likelihood_loss
    >>> mean, target = torch.tensor([[0.0], [0.0]]), torch.tensor([[9.0], [2.0]])
    >>> likelihood_loss(mean, torch.tensor([[1.0], [4.0]]), target).flatten()
    tensor([4.5000, 1.1931])
    """
    known = mean.isfinite() & target.isfinite() & variance.isfinite() & (variance > 0.0)
    log_variance = torch.where(known, variance, 1.0).log()
    narrowest = torch.where(known, log_variance, torch.inf).amin(0, keepdim=True)
    width = (log_variance - narrowest).clamp(max=clip**2)
    error = ((target - mean).abs() * (-0.5 * log_variance).exp()).clamp(max=clip)
    return torch.where(known, 0.5 * (width + error.square()), clip**2)


class GaussianNLLEvidence:
    """Scores each head by the Gaussian likelihood of its TD target under the mixture of its critics.

    Needs critics that predict a variance: a learner with a method ``predictions(transitions, heads)``,
    such as an `ActorCriticLearner` of ``Trained(..., output=GaussianQ())``. The wider a head's prediction,
    the less an error tells against it, and the less it is believed when it is right. How sure critics are is
    one thing, how right they are another: each head's standard deviations are multiplied by the root mean
    square of its standardised errors on its own task, measured by `calibrate` when that task has been
    learned.

    The paper's feedback, without calibration and clipping, is
    ``GaussianNLLEvidence(calibrated=False, clip=1e6)``, and its ablation that ignores the variance
    ``TDErrorEvidence(calibrated=False, power=2)``.

    Args:
        calibrated: measure each head's own scale; False takes the critics' variances as they are.
        clip: standard deviations that an error counts for at most (see `likelihood_loss`).
        samples: most rows that `calibrate` looks at, spread evenly over those it is given.

    >>> from owlrl.evidence import GaussianNLLEvidence
    >>> evidence = GaussianNLLEvidence()
    >>> evidence.load_state_dict({"scales": {"0": 0.5}})
    >>> evidence.scales
    {0: 0.5}
    """

    def __init__(self, *, calibrated: bool = True, clip: float = 3.0, samples: int = 2_000) -> None:
        counts, positive = {"samples": samples}, {"clip": clip}
        problems = argument_problems(counts=counts, positive=positive, calibrated=calibrated)
        raise_problems("GaussianNLLEvidence", problems)
        self.calibrated = calibrated
        self.clip = clip
        self.samples = samples
        self._scales: dict[int, float] = {}

    @property
    def scales(self) -> dict[int, float]:
        """Root mean square of each head's standardised errors on its own task; 1 is well calibrated."""
        return dict(self._scales)

    def calibrate(self, learner: OffPolicyLearner, head: int, transitions: Transitions) -> None:
        """Measure ``head``'s own scale on rows of its own task; a second time replaces the first."""
        where = "GaussianNLLEvidence.calibrate"
        check_rows(where, head, transitions)
        rows = spread(transitions, self.samples)
        mean, variance, target = _mixtures(where, learner, rows, np.array([head]))
        errors = ((target - mean) / variance.sqrt())[0].numpy()
        if not np.isfinite(errors).all():
            raise NonFiniteError(
                f"{where}: head {head} gives predictions that are not finite, or variances that are not "
                "positive, on its own task; has its training diverged?"
            )
        self._scales[int(head)] = max(rms(errors), _SMALLEST)

    def losses(self, learner: OffPolicyLearner, transitions: Transitions, heads: npt.ArrayLike) -> FloatArray:
        """Losses (B, len(heads)) of the given heads on B transitions, all heads in one pass."""
        where = "GaussianNLLEvidence.losses"
        check_finite(where, transitions)
        arms = check_arms(where, heads, self._scales if self.calibrated else None)
        mean, variance, target = _mixtures(where, learner, transitions, arms)  # (n, B)
        if self.calibrated:
            scale = torch.tensor([self._scales[int(h)] for h in arms], dtype=torch.float64)
            variance = variance * scale.square()[:, None]
        return np.ascontiguousarray(likelihood_loss(mean, variance, target, clip=self.clip).numpy().T)

    def state_dict(self) -> dict[str, Any]:
        """The scales, ready for JSON."""
        return {"scales": {str(head): scale for head, scale in self._scales.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any], /) -> None:
        """Continue from what ``state_dict`` gave."""
        self._scales = scales_from("GaussianNLLEvidence.load_state_dict", state_dict)

    def __repr__(self) -> str:
        return f"GaussianNLLEvidence(calibrated={self.calibrated}, clip={self.clip}, samples={self.samples})"


def _mixtures(
    where: str, learner: OffPolicyLearner, transitions: Transitions, heads: npt.NDArray[np.int64]
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each head's mixture of critics and its target, (n, B) of float64."""
    predictions = getattr(learner, "predictions", None)
    if predictions is None:
        raise OwlTypeError(
            f"{where}: {type(learner).__name__} has no predictions(transitions, heads); expected a learner "
            "whose critics predict a variance, such as an ActorCriticLearner of Trained(..., "
            "output=GaussianQ()); without one use TDErrorEvidence"
        )
    with torch.no_grad():
        mean, variance, target = (
            part.detach().cpu().to(torch.float64) for part in predictions(transitions, heads)
        )
    outer = (len(heads), len(transitions))
    shapes = tuple(mean.shape), tuple(variance.shape), tuple(target.shape)
    if mean.ndim != 3 or shapes != ((outer[0], mean.shape[1], outer[1]),) * 2 + (outer,):
        raise OwlValueError(
            f"{where}: {type(learner).__name__}.predictions gave shapes {shapes}; expected means and "
            f"variances ({outer[0]}, critics, {outer[1]}) and targets {outer}"
        )
    return *gaussian_mixture(mean, variance, dim=1), target
