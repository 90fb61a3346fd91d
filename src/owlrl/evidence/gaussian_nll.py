"""`GaussianNLLEvidence`: the likelihood of a step under each head's critics."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from owlrl._arguments import Arguments
from owlrl.errors import NonFiniteError, OwlTypeError, OwlValueError
from owlrl.evidence.base import FloatArray, IntArray, ScaledEvidence, rms, row_weights
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


class GaussianNLLEvidence(ScaledEvidence):
    """Scores each head by the Gaussian likelihood of its TD target under the mixture of its critics.

    Needs critics that predict a variance: a learner with a method ``predictions(transitions, heads)``,
    such as an `ActorCriticLearner` of ``Trained(..., output=GaussianQ())``. The wider a head's prediction,
    the less an error counts against it, and the less a correct prediction counts for it. Critics may be too
    sure or not sure enough: each head's standard deviations are multiplied by the root mean
    square of its standardised errors on its own task, measured by `calibrate` when that task has been
    learned.

    The paper's feedback, without calibration and clipping, is
    ``GaussianNLLEvidence(calibrated=False, clip=1e6)``, and its ablation that ignores the variance
    ``TDErrorEvidence(calibrated=False, power=2)``.

    Args:
        calibrated: measure each head's own scale; False uses the critics' variances unchanged.
        clip: standard deviations that an error counts for at most (see `likelihood_loss`).
        samples: most rows that `calibrate` uses, spread evenly over those given.

    >>> from owlrl.evidence import GaussianNLLEvidence
    >>> evidence = GaussianNLLEvidence()
    >>> evidence.load_state_dict({"heads": {"0": 0.5}})
    >>> evidence.scales
    {0: 0.5}
    """

    def __init__(self, *, calibrated: bool = True, clip: float = 3.0, samples: int = 2_000) -> None:
        arguments = Arguments("GaussianNLLEvidence")
        self.calibrated = arguments.boolean("calibrated", calibrated)
        self.clip = arguments.number("clip", clip, above=0.0)
        self.samples = arguments.integer("samples", samples)
        arguments.check()
        super().__init__()

    def fit(self, learner: OffPolicyLearner, head: int, rows: Transitions) -> float:
        """``head``'s own scale."""
        mean, variance, target = _mixtures(learner, rows, [head])
        errors = ((target - mean) / variance.sqrt())[0].numpy()
        if not np.isfinite(errors).all():
            raise NonFiniteError(
                f"GaussianNLLEvidence.calibrate: head {head} gives predictions that are not finite, or "
                "variances that are not positive, on its own task; has its training diverged?"
            )
        return max(rms(errors, row_weights(rows)), _SMALLEST)

    def score(self, learner: OffPolicyLearner, rows: Transitions, heads: IntArray) -> FloatArray:
        """`likelihood_loss` of the heads, with the variances that `fit` has corrected."""
        mean, variance, target = _mixtures(learner, rows, heads)  # (n, B)
        if self.calibrated:
            scale = torch.tensor([self.fitted[h] for h in heads.tolist()], dtype=torch.float64)
            variance = variance * scale.square()[:, None]
        found: FloatArray = likelihood_loss(mean, variance, target, clip=self.clip).numpy()
        return found

    def __repr__(self) -> str:
        return f"GaussianNLLEvidence(calibrated={self.calibrated}, clip={self.clip}, samples={self.samples})"


def _mixtures(
    learner: OffPolicyLearner, rows: Transitions, heads: npt.ArrayLike
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each head's mixture of critics and its target, (n, B) of float64."""
    chosen = np.asarray(heads, dtype=np.int64)
    predictions = getattr(learner, "predictions", None)
    if predictions is None:
        raise OwlTypeError(
            f"GaussianNLLEvidence: {type(learner).__name__} has no predictions(rows, heads); expected a "
            "learner whose critics predict a variance, such as an ActorCriticLearner of Trained(..., "
            "output=GaussianQ()); without one use TDErrorEvidence"
        )
    with torch.no_grad():
        mean, variance, target = (part.detach().cpu().to(torch.float64) for part in predictions(rows, chosen))
    outer = (len(chosen), len(rows))
    shapes = tuple(mean.shape), tuple(variance.shape), tuple(target.shape)
    if mean.ndim != 3 or shapes != ((outer[0], mean.shape[1], outer[1]),) * 2 + (outer,):
        raise OwlValueError(
            f"GaussianNLLEvidence: {type(learner).__name__}.predictions returned shapes {shapes}; expected "
            f"means and variances ({outer[0]}, critics, {outer[1]}) and targets {outer}"
        )
    return *gaussian_mixture(mean, variance, dim=1), target
