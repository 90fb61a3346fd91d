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
# # Same state, different task
#
# Three corridors leave a crossing. Each ends at a goal tile, and in each *task* another goal pays. The observations are the same in
# all tasks, but each task needs different actions: **interference**.
#
# In this notebook one network with one replay fails. Two lines fix it, and the agent then finds the task by itself.
# It takes about two minutes on a CPU.

# %%
import io
import os

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import torch
from IPython.display import Image
from PIL import Image as Picture

from owlrl import ExpWeightsSelector, OwlWrapper
from owlrl.envs import TabulatedVectorEnv, interference, tabulate
from owlrl.learners import DQN

torch.manual_seed(0)
torch.set_num_threads(1)  # the networks are small
FRAMES = int(os.environ.get("OWLRL_EXAMPLE_FRAMES", 30_000))  # per task
CHECKS = 6  # points of the learning curve, per task

# %% [markdown]
# ## The tasks
#
# `breadcrumbs` pays a small reward for each cell further into the right corridor, so that the task can be recognised on the way. The levels are
# deterministic: `tabulate` turns them into look-up tables, which step hundreds of times faster.

# %%
levels = {
    f"goal {k}": gymnasium.make(
        "owlrl/Crossroads-v0", arms=3, task=k, breadcrumbs=True, render_mode="rgb_array"
    )
    for k in range(3)
}
tables = {name: tabulate(level) for name, level in levels.items()}
tasks = {name: TabulatedVectorEnv(table, 32) for name, table in tables.items()}

levels["goal 0"].reset()
plt.figure(figsize=(3, 3))
plt.imshow(levels["goal 0"].render())
plt.axis("off")
plt.title("all three tasks look like this")
plt.show()

# %% [markdown]
# How much do they contradict each other? This can be computed before any network is trained:

# %%
print(interference(*tables.values()))

# %% [markdown]
# ## One network, one task after the other
#
# A DQN learns the tasks in turn. What is left of each afterwards?


# %%
def reaches_goal(agent, table):
    """Whether one greedy episode ends at the paying goal: 1 and the crumbs, so a return above 1."""
    env = TabulatedVectorEnv(table, 1)
    observation, _ = env.reset()
    total, over = 0.0, False
    while not over:
        observation, reward, terminated, truncated, _ = env.step(agent.predict(observation))
        total, over = total + float(reward[0]), bool(terminated[0] or truncated[0])
    return total > 1


curves = {"one network": [], "owlrl, task given": []}

plain = DQN(tasks["goal 0"], seed=0)
for env in tasks.values():
    plain.epsilon.load_state_dict({"seen": 0})  # each task is explored from scratch
    for _ in range(CHECKS):
        plain.learn(FRAMES // CHECKS, env=env)
        curves["one network"].append([reaches_goal(plain, table) for table in tables.values()])
print({name: reaches_goal(plain, table) for name, table in tables.items()})

# %% [markdown]
# It solves one of them at most. Memory is not the problem: its replay holds rows of all three tasks, and they contradict each other.
#
# ## The two lines
#
# `OwlWrapper(agent)` gives the agent a head and a replay per task, and keeps the outputs of old heads while the shared layers go on learning.
# `with owl.task(...)` names the task. The training loop, `agent.learn`, is the same.

# %%
agent = DQN(tasks["goal 0"], seed=0)
owl = OwlWrapper(agent)
for name, env in tasks.items():
    with owl.task(name, env=env):
        for _ in range(CHECKS):
            agent.learn(FRAMES // CHECKS)
            now = dict.fromkeys(tables, False) | {name: reaches_goal(agent, tables[name])}
            for earlier in owl.tasks.keys() - {name}:
                with owl.use(earlier):
                    now[earlier] = reaches_goal(agent, tables[earlier])
            curves["owlrl, task given"].append(list(now.values()))
print(owl)


# %%
def solved(evaluation):
    """Share of episodes that end at the paying goal."""
    return float((evaluation.returns > 1).mean())


print("task given:", {name: solved(owl.evaluate(env, task=name)) for name, env in tasks.items()})

# %% [markdown]
# Learning curves: which tasks are solved after how many frames. Bands mark the task in training.

# %%
figure, panels = plt.subplots(1, 2, figsize=(8, 2.6), sharey=True)
for axis, (method, curve) in zip(panels, curves.items(), strict=True):
    frames = (np.arange(len(curve)) + 1) * (FRAMES // CHECKS)
    for k, name in enumerate(tables):
        axis.axvspan(k * FRAMES, (k + 1) * FRAMES, color=f"C{k}", alpha=0.12, linewidth=0)
        axis.plot(frames, np.array(curve)[:, k] + 0.02 * k, "o-", markersize=3, color=f"C{k}", label=name)
    axis.set(title=method, xlabel="frames", yticks=(0, 1), yticklabels=("not solved", "solved"))
panels[0].legend(fontsize="small", loc="center left")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## When the task is unknown
#
# A head is drawn and acts for some steps. After each step, a small model of every task is compared with the observation and the reward,
# and the selector shifts its weight to the task that predicted them.

# %%
found = {name: owl.evaluate(env, true_task=name) for name, env in tasks.items()}
print("task unknown:", {name: solved(evaluation) for name, evaluation in found.items()})
print("steps until it was found:", {name: float(e.steps_to_find.mean()) for name, e in found.items()})

# %%
policy = owl.policy(ExpWeightsSelector(seed=3), trace=True)
policy.reset()
env = levels["goal 2"]
observation, _ = env.reset()
pictures, over = [env.render()], False
while not over:
    action = policy.act(observation)
    following, reward, terminated, truncated, _ = env.step(action)
    policy.observe(observation, action, reward, following, terminated)
    observation, over = following, terminated or truncated
    pictures.append(env.render())

probabilities = np.array([step.probabilities for step in policy.trace])
plt.figure(figsize=(6, 3))
for k, name in enumerate(policy.tasks):
    plt.plot(probabilities[:, k], drawstyle="steps-post", label=f"head of {name}")
plt.xlabel("step")
plt.ylabel("probability")
plt.title("one episode of goal 2: which head acts next")
plt.legend()
plt.show()

# %% [markdown]
# The episode itself: first a wrong corridor, then the right one.

# %%
film = [Picture.fromarray(picture).resize((240, 240)) for picture in pictures[:60]]
file = io.BytesIO()
film[0].save(file, "GIF", save_all=True, append_images=film[1:], duration=250, loop=0)
Image(file.getvalue(), format="gif")

# %% [markdown]
# ## Where next
#
# [Wrap your learner](../docs/wrap-your-learner.md) does the same with your own DQN, [All of owlrl](../docs/all-of-owlrl.md) has all parts on one page. Try
# `owl.save("owl.safetensors")`, more corridors (`arms=8`), or a revisit: `with owl.task("goal 0"): ...`
