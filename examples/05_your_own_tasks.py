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
# wires crossed, and then lets `compare` answer the question: the same model bare, alone and wrapped, with several seeds, a figure, and one verdict per task.
# Put your own environments and your own model in, and read the figure in the same way. It takes about four minutes on a CPU.

# %%
# %matplotlib inline
import os
import warnings

import gymnasium
import torch
from stable_baselines3 import DQN

from owlrl import OwlWrapper
from owlrl.experiments import compare

torch.set_num_threads(1)  # the networks are small
STEPS = int(os.environ.get("OWLRL_EXAMPLE_STEPS", 10_000))  # per task

# %% [markdown]
# ## Two tasks
#
# Any Gymnasium environments will do, as long as their observations have the same shape. A task is an id, or a function of a seed that makes the environment.
# The second one here is CartPole behind a wrapper that swaps left and right. What the agent sees is the same in both.


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
# A function of an environment and a seed. These settings learn CartPole fast; nothing in them knows of owlrl.


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
# This is how it is used: wrap the model, name the task, learn. Afterwards the task may be given or unknown.

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
# One run says little. `compare` trains the model with each method and seed, evaluates every task after each one, and keeps score. `bare` is the model as it is, from task to task;
# `alone` is a model per task, which shows what the learner can do; `owl` is the wrapped one.

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
# How to read it. A panel is a task, the bands say which task was in training. A line that falls to the right of its band was *forgotten*. One that never rises was *not learned*: look at `alone` (dashed),
# which says what the learner can do at all. Crosses are scores with the task unknown: far below the line, the task was *not recognised*.
#
# The same in words, one verdict per method and task:

# %%
for verdict in study.verdicts():
    print(verdict)

# %%
print(study.table())

# %% [markdown]
# ## Where next
#
# - With your own tasks: `compare(..., seeds=5, jobs=4, output="runs/mine")` runs four at once, and goes on where it was stopped. `owlrl compare my_study.py --jobs 4` is the same from a file.
# - `study.report("study.html")` writes all of it on one page; `study.to_csv`, `study.to_latex` and `study.to_rliable` hand the numbers on.
# - If the verdict is not *fine*: `docs/choose-and-tune.md` has a list of what to try for each.
# - Your own method beside these: `docs/your-tasks.md`.
