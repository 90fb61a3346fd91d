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
# # Classroom: interference, forgetting, recognition
#
# Three things go wrong when one agent learns task after task, and each needs a different cure. In ten minutes you will measure all three. There are three exercises,
# with solutions at the end. You need owlrl with its extra `plots`, and a CPU.
#
# The environment: corridors leave a crossing, each ends at a goal, and in each *task* another goal pays. The observations are the same in all tasks.

# %%
import os

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import torch

from owlrl import OwlWrapper, TDErrorEvidence
from owlrl.envs import TabulatedVectorEnv, interference, tabulate
from owlrl.learners import DQN

torch.manual_seed(0)
torch.set_num_threads(1)
FRAMES = int(os.environ.get("OWLRL_EXAMPLE_FRAMES", 12_000))  # per task


def make_tables(arms):
    """One look-up table per task: which goal pays."""
    return [
        tabulate(gymnasium.make("owlrl/Crossroads-v0", arms=arms, task=k, breadcrumbs=True))
        for k in range(arms)
    ]


tables = make_tables(3)
tasks = {f"goal {k}": TabulatedVectorEnv(table, 32) for k, table in enumerate(tables)}

# %% [markdown]
# ## 1. Interference
#
# Two tasks *interfere* if they show the same observation and need different actions there. Memory does not help a single policy. Interference can be computed before
# anything is trained:

# %%
print(interference(*tables))

# %% [markdown]
# **Exercise 1.** How many of n corridors can one policy solve? Guess for n = 2, 3, 4, 5, and then compute it with `make_tables` and `interference`.

# %%
# your code

# %% [markdown]
# ## 2. Forgetting
#
# With a head per task, contradicting outputs no longer share an output layer. But all heads share a *trunk*, and learning a new task changes it. The function below trains task after task, and
# after each one evaluates all tasks so far, with the task given. The result is a matrix: row i is after training task i, column j is task j.


# %%
def after_each_task(owl, agent):
    """Share of episodes that end at the paying goal (a return above 1), after each task."""
    matrix = np.full((len(tasks), len(tasks)), np.nan)
    for row, (name, env) in enumerate(tasks.items()):
        with owl.task(name, env=env):
            agent.learn(FRAMES)
        for column, known in enumerate(list(tasks)[: row + 1]):
            matrix[row, column] = (owl.evaluate(tasks[known], task=known, episodes=32).returns > 1).mean()
    return matrix


def show(**matrices):
    figure, panels = plt.subplots(1, len(matrices), figsize=(3.2 * len(matrices), 2.8), squeeze=False)
    for axis, (title, matrix) in zip(panels[0], matrices.items(), strict=True):
        axis.imshow(matrix, vmin=0, vmax=1, cmap="Purples")
        for (row, column), value in np.ndenumerate(matrix):
            if not np.isnan(value):
                axis.text(
                    column,
                    row,
                    f"{value:.2f}",
                    ha="center",
                    va="center",
                    color="white" if value > 0.5 else "black",
                )
        ticks = {"xticks": range(len(tasks)), "yticks": range(len(tasks))}
        axis.set(title=title.replace("_", " "), xlabel="task", ylabel="after training", **ticks)
    figure.tight_layout()
    plt.show()


agent = DQN(tasks["goal 0"], seed=0)
owl = OwlWrapper(agent)
guarded = after_each_task(owl, agent)
show(with_the_regularizer=guarded)

# %% [markdown]
# **Exercise 2.** Train the same agent without the regularizer (`OwlWrapper(agent, regularizer=None)`) and show both matrices side by side. Where in the matrix do you see forgetting? Which entry
# can a head per task not protect?

# %%
# your code

# %% [markdown]
# ## 3. Recognition
#
# Now the task is unknown. A selector shifts its weight to the head whose *evidence* fits best. `true_task` is not shown to the policy; `owl.evaluate` only uses it to count whether the task was found.

# %%
for name, env in tasks.items():
    result = owl.evaluate(env, true_task=name, episodes=32, seed=0)
    print(
        f"{name}: solved {(result.returns > 1).mean():.2f}, found {result.found.mean():.2f} after {result.steps_to_find.mean():.1f} steps"
    )

# %% [markdown]
# **Exercise 3.** The default evidence is a model of each task, which predicts observation and reward. The paper used the TD error of each head instead. Wrap a new agent with
# `OwlWrapper(agent, evidence=TDErrorEvidence())`, train it, and compare the share of solved episodes with the task unknown. Why is a TD error weaker evidence than a prediction?

# %%
# your code

# %% [markdown]
# ## Solutions
#
# **1.** One: where the corridors part, the policy has to take the same one in all tasks. The mean return falls as 1/n.

# %%
for arms in (2, 3, 4, 5):
    print(f"{arms} corridors:", interference(*make_tables(arms)))

# %% [markdown]
# **2.** Forgetting is below the diagonal: a column that falls from one row to the next. The head itself does not change; the trunk below it does. The diagonal, a task right after its own
# training, has nothing to do with forgetting.

# %%
agent = DQN(tasks["goal 0"], seed=0)
unguarded = after_each_task(OwlWrapper(agent, regularizer=None), agent)
show(with_the_regularizer=guarded, without=unguarded)

# %% [markdown]
# **3.** A TD error compares a head's values with themselves one step later. Where a head is consistent, the error is small, even for the wrong task: in a corridor without rewards, "worth 1 in seven steps" explains each step
# as well as any other head does. A model predicts observation and reward, and the first missing crumb proves it wrong.

# %%
agent = DQN(tasks["goal 0"], seed=0)
by_td_error = OwlWrapper(agent, evidence=TDErrorEvidence())
after_each_task(by_td_error, agent)
for label, wrapped in {"task models": owl, "TD errors": by_td_error}.items():
    solved = [(wrapped.evaluate(env, episodes=32, seed=0).returns > 1).mean() for env in tasks.values()]
    print(f"{label:12} solved with the task unknown: {np.mean(solved):.2f}")
