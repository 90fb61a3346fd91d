"""Evidence: how well each head explains what was just seen.

Evidence says what a selector is fed with, `owlrl.selection` what is done with it: either can be
changed without the other. `TDErrorEvidence` asks each head's values, `GaussianNLLEvidence` also
how sure it is of them; `RewardEvidence` asks a reward predictor that each task has learned, which needs no
bootstrap; `ModelEvidence` asks a model of each task that predicts next observation and reward.
"""

from owlrl.evidence.base import Evidence, calibrated_loss
from owlrl.evidence.gaussian_nll import GaussianNLLEvidence, likelihood_loss
from owlrl.evidence.model import ModelEvidence, cautious_loss, find_categories, ridge_fit
from owlrl.evidence.reward import RewardEvidence, predict_rewards
from owlrl.evidence.td_error import TDErrorEvidence, plain_loss, td_scale

__all__ = [
    "Evidence",
    "GaussianNLLEvidence",
    "ModelEvidence",
    "RewardEvidence",
    "TDErrorEvidence",
    "calibrated_loss",
    "cautious_loss",
    "find_categories",
    "likelihood_loss",
    "plain_loss",
    "predict_rewards",
    "ridge_fit",
    "td_scale",
]
