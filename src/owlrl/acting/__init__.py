"""Acting and evaluation: `AdaptivePolicy` when the task is unknown, and the loop that runs episodes."""

from owlrl.acting.episodes import Evaluation, run_episodes
from owlrl.acting.policy import AdaptivePolicy, TraceStep, Unfamiliar

__all__ = ["AdaptivePolicy", "Evaluation", "TraceStep", "Unfamiliar", "run_episodes"]
