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
# # Opposed pendulums
#
# A pole has to be held on the left, then, in another task, on the right. States, dynamics and actions are the same, only the reward differs:
# the same observation needs opposite torques. In this notebook a plain SAC with one replay for both settles in between. The same SAC with a
# head per task learns both, also with the task unknown. It takes two to three minutes on a CPU.

# %%
import os

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import torch

from owlrl import ExpWeightsSelector, OwlWrapper, SharedReplay
from owlrl.envs import PendulumVectorEnv
from owlrl.learners import SAC

torch.manual_seed(0)
torch.set_num_threads(1)  # the networks are small
FRAMES = int(os.environ.get("OWLRL_EXAMPLE_STEPS", 5_000))  # per task
ANGLES = {"left": 90, "right": -90}

# %% [markdown]
# ## The tasks
#
# `owlrl/Pendulum-v0` is Gymnasium's Pendulum with the reward centred at an angle; the disc marks it. The motor is too weak to hold the pole
# there: the best it can do is 23.6° from upright, or from hanging down, on that side. `PendulumVectorEnv` steps many copies at once.

# %%
figure, panels = plt.subplots(1, 2, figsize=(5, 2.6))
for axes, (name, angle) in zip(panels, ANGLES.items(), strict=True):
    env = gymnasium.make("owlrl/Pendulum-v0", angle=angle, render_mode="rgb_array")
    env.reset(seed=0)
    axes.imshow(env.render())
    axes.set_title(name)
    axes.axis("off")
plt.show()

tasks = {name: PendulumVectorEnv(4, angle=angle) for name, angle in ANGLES.items()}


# %%
def watch(policy, angle, copies=16):
    """Mean return of one episode in each of some copies, and the pole's angle in the one that starts lowest."""
    env = PendulumVectorEnv(copies, angle=angle)
    observation, _ = env.reset(seed=1)
    policy.reset(num_envs=copies)
    total, angles, lowest = np.zeros(copies), [], observation[:, 0].argmin()
    for _ in range(env.max_episode_steps):
        angles.append(np.degrees(np.arctan2(observation[lowest, 1], observation[lowest, 0])))
        action = policy.act(observation)
        following, reward, terminated, truncated, info = env.step(action)
        last = np.stack(info["final_obs"]) if truncated.all() else following
        policy.observe(observation, action, reward, last, terminated)
        observation, total = following, total + reward
    line = np.unwrap(angles, period=360)  # past straight down it goes on, to 190° and so on
    return total.mean(), line - 360 * np.round(line[-1] / 360)


class Plain:
    """A SAC without heads, as a policy."""

    def __init__(self, agent):
        self.agent = agent

    def reset(self, **_):
        pass

    def act(self, observation):
        return self.agent.predict(observation)

    def observe(self, *_):
        pass


shown = {}

# %% [markdown]
# ## One policy, one replay
#
# With both tasks in one replay, the rewards average out, and so does the policy.

# %%
replay = SharedReplay(
    50_000,
    observation_space=tasks["left"].single_observation_space,
    action_space=tasks["left"].single_action_space,
    num_envs=4,
    seed=0,
)
plain = SAC(tasks["left"], replay=replay, seed=0)
for env in tasks.values():
    plain.learn(FRAMES, env=env)
shown["one head, shared replay"] = {name: watch(Plain(plain), angle) for name, angle in ANGLES.items()}

# %% [markdown]
# ## A head per task
#
# Policy and critics get a head per task, and old heads keep their outputs on remembered rows. Each task has its own replay and temperature. The
# loop, `agent.learn`, is the same.

# %%
agent = SAC(tasks["left"], seed=0)
owl = OwlWrapper(agent)
for name, env in tasks.items():
    with owl.task(name, env=env):
        agent.learn(FRAMES)
print(owl)

# %% [markdown]
# ## When the task is unknown
#
# A small model of each task was fitted, which predicts the next observation and the reward. At test time the head whose model is right acts. A TD error would do worse here: acting with the
# wrong head leads to states that the right one has hardly seen. Its values are wrong there, so it looks like the wrong head.

# %%
policy = owl.policy(ExpWeightsSelector(seed=0), trace=True)
shown["a head per task, task unknown"] = {name: watch(policy, angle) for name, angle in ANGLES.items()}
for method, found in shown.items():
    print(f"{method:30}", {name: round(float(value)) for name, (value, _) in found.items()})

# %%
figure, panels = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for axes, (name, angle) in zip(panels, ANGLES.items(), strict=True):
    axes.axhline(angle, color="0.7", ls="--")
    for method, found in shown.items():
        axes.plot(found[name][1], label=method)
    axes.set(title=name, xlabel="step", yticks=range(-180, 181, 90))
panels[0].set_ylabel("angle of the pole, 0° is upright")
panels[0].legend(fontsize=8)
plt.show()

# %% [markdown]
# How fast was the task found? The trace has the probability of each head at each step. This is the last episode, of "right".

# %%
probabilities = np.array([step.probabilities[0] for step in policy.trace])
plt.figure(figsize=(6, 3))
for k, name in enumerate(policy.tasks):
    plt.plot(probabilities[:30, k], drawstyle="steps-post", label=f"head of {name}")
plt.xlabel("step")
plt.ylabel("probability")
plt.legend()
plt.show()

# %% [markdown]
# ## Where next
#
# `owlrl demo pendulum` shows this with a GIF, `owlrl reproduce pendulum --seeds 5` compares it with EWC, with likelihood and TD errors as evidence and with
# separately trained policies. `PendulumVectorEnv(4, angle=..., g=4.0)` has a gravity in which every angle can be held.
