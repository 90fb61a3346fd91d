"""Reference learners and their parts, written as a user would write them."""

from owlrl.learners.dqn import DQN
from owlrl.learners.dqn_config import FAST, PAPER, DQNConfig
from owlrl.learners.encoders import GridConv, GridMLP, mlp, one_hot_cells
from owlrl.learners.gaussian import GaussianActor, GaussianCritics
from owlrl.learners.sac import SAC
from owlrl.learners.sac_config import SAC_FAST, SAC_PAPER, SACConfig
from owlrl.learners.schedules import EpsilonSchedule
from owlrl.acting.stepping import Stepper, Steps

__all__ = [
    "DQN",
    "FAST",
    "PAPER",
    "SAC",
    "SAC_FAST",
    "SAC_PAPER",
    "DQNConfig",
    "EpsilonSchedule",
    "GaussianActor",
    "GaussianCritics",
    "GridConv",
    "GridMLP",
    "SACConfig",
    "Stepper",
    "Steps",
    "mlp",
    "one_hot_cells",
]
