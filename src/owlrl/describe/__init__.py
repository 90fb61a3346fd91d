"""What `OwlWrapper` needs to know about a learner: `QLearner`, `ActorCriticLearner`, and their checks."""

from owlrl.describe.actor_critic import ActorCriticLearner
from owlrl.describe.base import DescribedLearner, Trained
from owlrl.describe.given import check_learner
from owlrl.describe.outputs import ActionBox, Deterministic, GaussianQ, QValues, ScaledActions, TanhGaussian
from owlrl.describe.q_learner import QLearner
from owlrl.describe.temperature import TaskTemperature

__all__ = [
    "ActionBox",
    "ActorCriticLearner",
    "DescribedLearner",
    "Deterministic",
    "GaussianQ",
    "QLearner",
    "QValues",
    "ScaledActions",
    "TanhGaussian",
    "TaskTemperature",
    "Trained",
    "check_learner",
]
