"""How much each parameter matters: the diagonal of the empirical Fisher information, exactly."""

from owlrl.fisher.importance import squared_gradients

__all__ = ["squared_gradients"]
