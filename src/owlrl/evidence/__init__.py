"""Evidence: how well each head explains the last step.

Evidence computes the losses, a selector of `owlrl.selection` uses them: either can be changed without the
other. `TDErrorEvidence` uses each head's values, `GaussianNLLEvidence` also their variance; `RewardEvidence`
uses a reward predictor per task, which needs no bootstrap; `ModelEvidence` uses a model per task that
predicts next observation and reward.
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
