"""The study ``cheetah`` of owlrl's own SAC with more evaluation episodes: how often does the body fall?

    owlrl compare benchmarks/cheetah_falls.py --output benchmarks/results/cheetah_falls

Some policies fall over once in ten or forty episodes, also right after their task: six episodes do not tell
such a fall from something forgotten.
"""

from owlrl.experiments.cheetah import OwnSAC, make_model, steps, tasks

methods = [OwnSAC("owl, owlrl.learners.SAC", about="OwlWrapper(SAC(env)), the reference learner")]
seeds = 5
eval_episodes = 40

__all__ = ["eval_episodes", "make_model", "methods", "seeds", "steps", "tasks"]
