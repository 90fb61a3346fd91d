"""owlrl: continual-RL components for the off-policy learner you already have.

A head per task (`MultiHeadQ`), a regularizer against forgetting (`EWCRegularizer`,
`DistillationRegularizer`), a memory and a replay per task (`TaskScopedReplay`), and a policy for
when the task is unknown (`ExpWeightsSelector`), put around your own training loop by `OwlWrapper`.
"""

from owlrl.acting.episodes import Evaluation
from owlrl.acting.policy import AdaptivePolicy
from owlrl.describe import ActorCriticLearner, QLearner, Trained, check_learner
from owlrl.evidence import GaussianNLLEvidence, ModelEvidence, RewardEvidence, TDErrorEvidence
from owlrl.heads import MultiHeadQ, promote_output_layers
from owlrl.regularizers import CombinedRegularizer, DistillationRegularizer, EWCRegularizer
from owlrl.replay import (
    PrioritizedSampler,
    RehearsalReplay,
    RewardBalancedSampler,
    SharedReplay,
    TaskScopedReplay,
    UniformSampler,
)
from owlrl.selection import ExpWeightsSelector, MaxQSelector, OracleSelector, UniformSelector
from owlrl.types import Transitions
from owlrl.wrapper import OwlWrapper

__version__ = "0.2.0"

__all__ = [
    "ActorCriticLearner",
    "AdaptivePolicy",
    "CombinedRegularizer",
    "DistillationRegularizer",
    "EWCRegularizer",
    "Evaluation",
    "ExpWeightsSelector",
    "GaussianNLLEvidence",
    "MaxQSelector",
    "ModelEvidence",
    "MultiHeadQ",
    "OracleSelector",
    "OwlWrapper",
    "PrioritizedSampler",
    "QLearner",
    "RehearsalReplay",
    "RewardBalancedSampler",
    "RewardEvidence",
    "SharedReplay",
    "TDErrorEvidence",
    "TaskScopedReplay",
    "Trained",
    "Transitions",
    "UniformSampler",
    "UniformSelector",
    "check_learner",
    "promote_output_layers",
]
