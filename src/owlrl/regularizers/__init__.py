"""Protection against forgetting: penalties that grow as a network moves away from what it knew."""

from owlrl.regularizers.answers import distillation_loss, output_spread
from owlrl.regularizers.base import Regularizer
from owlrl.regularizers.combined import CombinedRegularizer
from owlrl.regularizers.distillation import DistillationRegularizer
from owlrl.regularizers.ewc import EWCRegularizer, ewc_penalty, merge_terms
from owlrl.regularizers.gem import GEMRegularizer, project_gradient

__all__ = [
    "CombinedRegularizer",
    "DistillationRegularizer",
    "EWCRegularizer",
    "GEMRegularizer",
    "Regularizer",
    "distillation_loss",
    "ewc_penalty",
    "merge_terms",
    "output_spread",
    "project_gradient",
]
