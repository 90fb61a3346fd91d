"""Reference learners and their parts, written as a user would write them."""

from owlrl.learners.config import FAST, PAPER, SAC_FAST, SAC_PAPER, DQNConfig, SACConfig
from owlrl.learners.dqn import DQN
from owlrl.learners.encoders import GridConv, GridMLP, mlp, one_hot_cells
from owlrl.learners.gaussian import GaussianActor, GaussianCritics
from owlrl.learners.loop import EpsilonSchedule
from owlrl.learners.sac import SAC

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
    "mlp",
    "one_hot_cells",
]
