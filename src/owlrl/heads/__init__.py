"""Networks with one head per task."""

from owlrl.heads.growth import extend_optimizer, shrink_optimizer
from owlrl.heads.linear import MultiHeadLinear
from owlrl.heads.multihead import DuelingHead, MultiHeadQ, dueling_q
from owlrl.heads.promote import PromotedNetwork, find_output_layers, promote_output_layers

__all__ = [
    "DuelingHead",
    "MultiHeadLinear",
    "MultiHeadQ",
    "PromotedNetwork",
    "dueling_q",
    "extend_optimizer",
    "find_output_layers",
    "promote_output_layers",
    "shrink_optimizer",
]
