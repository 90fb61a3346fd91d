"""What each command of ``owlrl`` takes and does; `owlrl.cli` reads the command line into these."""

from owlrl.experiments.commands.demo import Demo
from owlrl.experiments.commands.evaluate import Evaluate
from owlrl.experiments.commands.report import Report
from owlrl.experiments.commands.reproduce import Reproduce
from owlrl.experiments.commands.train import Train

__all__ = ["Demo", "Evaluate", "Report", "Reproduce", "Train"]
