"""Reference learners and their parts, written as a user would write them."""

from owlrl.learners.dqn import DQN, FAST, PAPER, DQNConfig
from owlrl.learners.encoders import GridConv, GridMLP, mlp, one_hot_cells
from owlrl.learners.schedules import EpsilonSchedule
from owlrl.learners.stepping import Stepper, Steps

__all__ = [
    "DQN",
    "FAST",
    "PAPER",
    "DQNConfig",
    "EpsilonSchedule",
    "GridConv",
    "GridMLP",
    "Stepper",
    "Steps",
    "mlp",
    "one_hot_cells",
]
