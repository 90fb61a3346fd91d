"""Detection of task changes: has the task changed, and is it a known one or a new one?"""

from owlrl.changes.base import Detector, Judgement, TaskModel
from owlrl.changes.baselines import ModelErrors, RewardDrift
from owlrl.changes.contradiction import Contradiction
from owlrl.changes.familiarity import Familiarity
from owlrl.changes.finder import Change, ChangeFinder
from owlrl.changes.steps import History, Steps

__all__ = [
    "Change",
    "ChangeFinder",
    "Contradiction",
    "Detector",
    "Familiarity",
    "History",
    "Judgement",
    "ModelErrors",
    "RewardDrift",
    "Steps",
    "TaskModel",
]
