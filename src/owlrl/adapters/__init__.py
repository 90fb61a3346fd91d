"""Learners of other libraries: `owlrl.adapters.sb3` for Stable-Baselines3.

`owlrl.OwlWrapper` finds them by itself; nothing here is imported before it is needed.
"""

__all__: list[str] = []
