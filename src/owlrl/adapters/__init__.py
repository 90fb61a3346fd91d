"""Learners of other libraries: `owlrl.adapters.sb3` for Stable-Baselines3.

`owlrl.OwlWrapper` finds the right one; nothing here is imported before it is needed.
"""

__all__: list[str] = []
