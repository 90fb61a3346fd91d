"""Detection of task changes: has the task changed, and is it a known one or a new one?"""

from owlrl.changes.base import Detector, History, Judgement, Steps, TaskModel
from owlrl.changes.baselines import ModelErrors, RewardDrift
from owlrl.changes.contradiction import Contradiction
from owlrl.changes.finder import Change, ChangeFinder, Familiarity

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
