# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---
# %% [markdown]
# # Your own tasks, your own model
#
# You have two environments and a Stable-Baselines3 model. Does owlrl help, and if not, why? This notebook wraps a DQN on two CartPoles, one of which has its
# actions swapped. Then `compare` answers the question: the same model bare, alone and wrapped, with several seeds, a figure, and a verdict per task.
# Replace the environments and the model by yours, and read the figure in the same way. It takes about four minutes on a CPU.

# %%
# %matplotlib inline
import os
import warnings

import gymnasium
import torch
from IPython.display import Markdown
from stable_baselines3 import DQN

from owlrl import OwlWrapper
from owlrl.experiments import compare

torch.set_num_threads(1)  # the networks are small
STEPS = int(os.environ.get("OWLRL_EXAMPLE_STEPS", 10_000))  # per task

# %% [markdown]
# ## Two tasks
#
# Any Gymnasium environments work, as long as their observations have the same shape. A task is an id, or a function of a seed that makes the environment.
# The second one is CartPole behind a wrapper that swaps left and right. The observations are the same in both.


# %%
class Crossed(gymnasium.ActionWrapper):
    """Left is right, and right is left."""

    def action(self, action):
        return 1 - action


def plain(seed):
    return gymnasium.make("CartPole-v1", max_episode_steps=200)


def crossed(seed):
    return Crossed(gymnasium.make("CartPole-v1", max_episode_steps=200))


tasks = {"plain": plain, "crossed": crossed}

# %% [markdown]
# ## A model
#
# A model is a function of an environment and a seed. These settings learn CartPole fast; nothing in them is specific to owlrl.


# %%
def make_model(env, seed):
    return DQN(
        "MlpPolicy",
        env,
        learning_rate=lambda left: 1e-3 * left,  # falls over a task
        gamma=0.98,
        batch_size=64,
        buffer_size=STEPS,
        learning_starts=min(500, STEPS // 4),
        train_freq=16,
        gradient_steps=8,
        tau=0.04,
        target_update_interval=16,
        exploration_fraction=0.3,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [128, 128]},
        seed=seed,
        device="cpu",
    )


# %% [markdown]
# ## Wrapped, in three lines
#
# Wrap the model, name the task, learn. Afterwards the task may be given or unknown.

# %%
model = make_model(plain(0), seed=0)
owl = OwlWrapper(model)
for name, make in tasks.items():
    with owl.task(name, env=make(0)):
        model.learn(STEPS)

for name, make in tasks.items():
    given = owl.evaluate(make(1), task=name, episodes=10, seed=1)
    unknown = owl.evaluate(make(1), true_task=name, episodes=10, seed=1)
    print(
        f"{name:8} given {given.mean_return:5.1f}   unknown {unknown.mean_return:5.1f}, found in {unknown.found.mean():.0%}"
    )

# %% [markdown]
# ## Did it help?
#
# One run is not enough. `compare` trains the model with each method and seed, and evaluates every task after each training. `bare` is the model without owlrl, from task to task.
# `alone` is a model per task, which shows what the learner can do. `owl` is the wrapped model.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Stable-Baselines3's, about evaluating without a monitor
    study = compare(
        make_model,
        tasks=tasks,
        steps=STEPS,
        methods=["bare", "alone", "owl"],
        seeds=2,  # five or more, for a paper
        eval_episodes=10,
        progress=False,
    )
study.figure()

# %% [markdown]
# How to read it: a panel is a task, and the bands mark its training. A line that falls to the right of its band was *forgotten*. One that never rises was *not learned*: compare with `alone` (dashed),
# which shows what the learner can do. Crosses are scores with the task unknown: far below the line, the task was *not recognised*.
#
# The same in words, one verdict per method and task:

# %%
for verdict in study.verdicts():
    print(verdict)

# %%
Markdown(study.table())

# %% [markdown]
# ## Where next
#
# - With your own tasks: `compare(..., seeds=5, jobs=4, output="runs/mine")` runs four at once, and continues where it was stopped. `owlrl compare my_study.py --jobs 4` does the same from a file.
# - `study.report("study.html")` writes one page with everything. `study.to_csv`, `study.to_latex` and `study.to_rliable` export the numbers.
# - If a verdict is not *fine*, [Choose and tune](../docs/choose-and-tune.md) lists what to try for each.
# - To compare your own method, see [Your method in the comparison](../docs/your-method.md).
