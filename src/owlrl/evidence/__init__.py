"""Evidence: how well each head explains what was just seen.

Evidence says what a selector is fed with, `owlrl.selection` what is done with it: either can be
changed without the other. `TDErrorEvidence` asks each head's values; `RewardEvidence` asks a
reward predictor that each task has learned, which needs no bootstrap.
"""

from owlrl.evidence._common import calibrated_loss
from owlrl.evidence.reward import RewardEvidence, predict_rewards
from owlrl.evidence.td_error import TDErrorEvidence, plain_loss, td_scale

__all__ = [
    "RewardEvidence",
    "TDErrorEvidence",
    "calibrated_loss",
    "plain_loss",
    "predict_rewards",
    "td_scale",
]
