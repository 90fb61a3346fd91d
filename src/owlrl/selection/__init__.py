"""Selection: which head acts when the task is unknown.

A selector takes one loss per head and step and chooses the head that acts next. The losses come
from `owlrl.evidence`.
"""

from owlrl.selection.base import Selector, distribution, draw
from owlrl.selection.baselines import MaxQSelector, OracleSelector, UniformSelector
from owlrl.selection.exp_weights import (
    ExpWeightsSelector,
    fixed_share,
    hedge_update,
    paper_update,
    relative_losses,
    released_update,
    score,
)
from owlrl.selection.restless import RestlessSelector

__all__ = [
    "ExpWeightsSelector",
    "MaxQSelector",
    "OracleSelector",
    "RestlessSelector",
    "Selector",
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
