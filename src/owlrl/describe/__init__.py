"""What `OwlWrapper` needs to know of a learner: `QLearner`, `ActorCriticLearner`, and their checks."""

from owlrl.describe.actor_critic import ActorCriticLearner
from owlrl.describe.check import check_learner
from owlrl.describe.outputs import Deterministic, GaussianQ, QValues, TanhGaussian
from owlrl.describe.q_learner import QLearner

__all__ = [
    "ActorCriticLearner",
    "Deterministic",
    "GaussianQ",
    "QLearner",
    "QValues",
    "TanhGaussian",
    "check_learner",
]
