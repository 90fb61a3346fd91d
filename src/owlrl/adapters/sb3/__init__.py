"""Stable-Baselines3: `SB3Learner` describes a live model to `OwlWrapper`."""

from owlrl.adapters.sb3.learner import SB3Learner, adapt, adapt_env

__all__ = ["SB3Learner", "adapt", "adapt_env"]
