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
# # Hidden changes of the task
#
# A SAC of Stable-Baselines3 learns to swing a pendulum up. During `model.learn` gravity changes, in the middle of an episode and without notice. Later it changes
# back, and then to a third value. In `with owl.stream():` the wrapper detects each change, opens a head for a new task and returns to the head of a known one.
# It takes about two minutes on a CPU.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from gymnasium import make
from stable_baselines3 import SAC

import owlrl.envs  # noqa: F401, makes owlrl/Pendulum-v0 known
from owlrl import OwlWrapper
from owlrl.envs import Switching

torch.set_num_threads(1)  # the networks are small
STEPS = int(os.environ.get("OWLRL_EXAMPLE_STEPS", 3_000))  # of a visit, about

# %% [markdown]
# ## A world whose gravity changes
#
# `Switching` steps one of several environments and keeps the state when it changes to another. The model gets only the observation: no name, no flag.

# %%
gravities = {"gravity 10": 10.0, "gravity 3": 3.0, "gravity 15": 15.0}
worlds = {name: lambda g=g: make("owlrl/Pendulum-v0", g=g) for name, g in gravities.items()}
visits = [
    ("gravity 10", STEPS + 77),
    ("gravity 3", STEPS - 50),
    ("gravity 10", STEPS // 2),
    ("gravity 15", STEPS),
]
env = Switching(worlds, schedule=visits)

# %% [markdown]
# ## Train
#
# The model is the same as without owlrl. Only the wrapper, the block and a callback are new.

# %%
settings = {
    "learning_rate": 1e-3,
    "learning_starts": min(300, STEPS // 5),
    "policy_kwargs": {"net_arch": [64, 64]},
}


def report(event):
    kind = "new" if event.new else "known"
    print(f"step {event.step}: {event.left} -> {event.to} ({kind}), {event.delay} rows moved")


model = SAC("MlpPolicy", env, seed=0, device="cpu", **settings)
owl = OwlWrapper(model)
with owl.stream(callback=report) as stream:
    model.learn(sum(steps for _, steps in visits))
print(f"{len(stream.events)} changes found, {len(owl.tasks)} tasks")

# %% [markdown]
# Each line is an event: the step at which the change was found, the two tasks, and how many rows since the change were
# moved to the new one. These are the true changes:

# %%
print(env.changes)

# %% [markdown]
# ## True task, found task, return

# %%
episodes = model.get_env().envs[0]  # Stable-Baselines3's Monitor
ends, returns = np.cumsum(episodes.get_episode_lengths()), episodes.get_episode_rewards()
total = sum(steps for _, steps in visits)
names = list(gravities)
figure, (above, below) = plt.subplots(
    2, 1, figsize=(9, 4.6), sharex=True, height_ratios=(1, 1.4), layout="constrained"
)
true = [step for step, _ in env.changes] + [total]
above.stairs(
    [names.index(name) for _, name in env.changes],
    true,
    baseline=None,
    lw=7,
    color="#cccccc",
    label="true task",
)
found = [0, *(event.step for event in stream.events), total]
tasks = ["task 0", *(event.to for event in stream.events)]
rows = [int(name.removeprefix("task ")) for name in tasks]
above.stairs(rows, found, baseline=None, lw=2, color="#332288", label="found task")
above.set(
    yticks=range(len(names)),
    yticklabels=[f"{name} / task {k}" for k, name in enumerate(names)],
    ylim=(-0.5, 2.5),
)
above.legend(frameon=False, loc="upper left")
below.plot(ends, returns, ".-", color="#117733", lw=1)
below.set(xlabel="step of model.learn", ylabel="return of each episode")
for step in true[1:-1]:
    below.axvline(step, color="#cccccc", zorder=0)
plt.show()

# %% [markdown]
# When the first gravity comes back, its head continues where it stopped: nothing is learned a second time.
#
# ## Scores at the end
#
# The tasks get better names, and each is evaluated with the task given and unknown.

# %%
for task, name in zip(list(owl.tasks), names, strict=False):
    owl.rename(task, name)
for name in owl.tasks:
    world = make("owlrl/Pendulum-v0", g=gravities[name])
    given, unknown = owl.evaluate(world, task=name, seed=0), owl.evaluate(world, seed=0)
    print(
        f"{name}: {given.mean_return:.0f} with the task given, {unknown.mean_return:.0f} with the task unknown"
    )

# %% [markdown]
# [I do not know when my task changes](../docs/changes.md) explains how changes are found, and the limits.
