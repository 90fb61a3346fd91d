"""Guards against forgetting: penalties that grow as a network moves away from what it knew."""

from owlrl.regularizers.combined import CombinedRegularizer
from owlrl.regularizers.distillation import DistillationRegularizer, distillation_loss
from owlrl.regularizers.ewc import EWCRegularizer
from owlrl.regularizers.quadratic import ewc_penalty, merge_terms

__all__ = [
    "CombinedRegularizer",
    "DistillationRegularizer",
    "EWCRegularizer",
    "distillation_loss",
    "ewc_penalty",
    "merge_terms",
]
