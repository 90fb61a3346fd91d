"""Guards against forgetting: penalties that grow as a network moves away from what it knew."""

from owlrl.regularizers.base import Regularizer
from owlrl.regularizers.combined import CombinedRegularizer
from owlrl.regularizers.distillation import DistillationRegularizer, distillation_loss, output_spread
from owlrl.regularizers.ewc import EWCRegularizer, ewc_penalty, merge_terms

__all__ = [
    "CombinedRegularizer",
    "DistillationRegularizer",
    "EWCRegularizer",
    "Regularizer",
    "distillation_loss",
    "ewc_penalty",
    "merge_terms",
    "output_spread",
]
