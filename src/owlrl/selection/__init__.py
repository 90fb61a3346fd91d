"""Selection: which head acts when nobody says which task it is.

A selector takes one loss per head and step and says which head acts next. Where the losses come
from is the business of `owlrl.evidence`.
"""

from owlrl.selection.baselines import MaxQSelector, OracleSelector, UniformSelector
from owlrl.selection.exp_weights import ExpWeightsSelector
from owlrl.selection.restless import RestlessSelector
from owlrl.selection.updates import (
    distribution,
    draw,
    fixed_share,
    hedge_update,
    paper_update,
    relative_losses,
    released_update,
    score,
)

__all__ = [
    "ExpWeightsSelector",
    "MaxQSelector",
    "OracleSelector",
    "RestlessSelector",
    "UniformSelector",
    "distribution",
    "draw",
    "fixed_share",
    "hedge_update",
    "paper_update",
    "relative_losses",
    "released_update",
    "score",
]
