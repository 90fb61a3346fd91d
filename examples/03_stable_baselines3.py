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
# # A Stable-Baselines3 model that learns task after task
#
# A SAC of Stable-Baselines3 has to hold a pendulum towards +90° and then, in another task, towards −90°. Both tasks have the same observations and
# dynamics; only the reward differs. Bare, the model confuses them. Wrapped in one line, with the same `model.learn`, it learns both, and
# finds by itself which one it is in. This takes about two minutes on a CPU.

# %%
import os
import tempfile
from pathlib import Path

import gymnasium
import matplotlib.pyplot as plt
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy

import owlrl.envs  # noqa: F401, makes owlrl/Pendulum-v0 known
from owlrl import ExpWeightsSelector, OwlWrapper

torch.set_num_threads(1)  # the networks are small
STEPS = int(os.environ.get("OWLRL_EXAMPLE_STEPS", 2_500))  # per task


def pendulum(angle):
    return gymnasium.make("owlrl/Pendulum-v0", angle=angle)


def new_model():
    settings = {"learning_rate": 1e-3, "learning_starts": STEPS // 5, "policy_kwargs": {"net_arch": [64, 64]}}
    return SAC("MlpPolicy", pendulum(90), seed=0, device="cpu", **settings)


tasks = {"+90°": 90, "−90°": -90}

# %% [markdown]
# ## Bare: one task after the other
#
# The replay keeps rows of both tasks. The same observation and action have different rewards in each, and the critics learn the mean.

# %%
model = new_model()
for angle in tasks.values():
    model.set_env(pendulum(angle))
    model.learn(STEPS)
bare = {
    name: float(evaluate_policy(model, pendulum(angle), 5, warn=False)[0]) for name, angle in tasks.items()
}
print("bare:        ", {name: round(value) for name, value in bare.items()})

# %% [markdown]
# ## Wrapped: the same model, one line more
#
# Actor and critics get a head per task, each task has its own temperature and replay, and the old heads of all three networks keep
# their outputs on remembered rows.

# %%
model = new_model()
owl = OwlWrapper(model)
for name, angle in tasks.items():
    with owl.task(name, env=pendulum(angle)):
        model.learn(STEPS)

# %%
tests = {
    name: gymnasium.make_vec("owlrl/Pendulum-v0", num_envs=5, angle=angle)  # five episodes side by side
    for name, angle in tasks.items()
}
given = {name: owl.evaluate(env, task=name, episodes=5, seed=0).mean_return for name, env in tests.items()}
found = {name: owl.evaluate(env, episodes=5, seed=0).mean_return for name, env in tests.items()}
print("task given:  ", {name: round(value) for name, value in given.items()})
print("task unknown:", {name: round(value) for name, value in found.items()})

# %% [markdown]
# ## One episode, step by step
#
# At every step, each task's model is compared with the observation and the reward. The shaded part of the picture, if any, is where the
# wrong head acted. The torque is too weak to hold the pole at ±90° (dashed): the best it can hold is about ±156° (dotted), near hanging down, or ±24°.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
for axis, (name, angle) in zip(axes, tasks.items(), strict=True):
    policy = owl.policy(ExpWeightsSelector(seed=1), trace=True)
    policy.reset()
    env = pendulum(angle)
    observation, _ = env.reset(seed=3)
    angles, over = [], False
    while not over:
        action = policy.act(observation)
        following, reward, terminated, truncated, _ = env.step(action)
        policy.observe(observation, action, reward, following, terminated)
        angles.append(np.degrees(np.arctan2(following[1], following[0])))
        observation, over = following, terminated or truncated
    wrong = [policy.tasks[step.arm] != name for step in policy.trace]
    angles = np.unwrap(angles, period=360)  # past straight down it goes on, to 190° and so on
    angles -= 360 * np.round(angles[-1] / 360)
    axis.plot(angles, color="black", linewidth=1)
    axis.axhline(angle, color="grey", linestyle="--", linewidth=1)
    axis.axhline(np.sign(angle) * 156, color="tab:green", linestyle=":", linewidth=1)
    axis.fill_between(range(len(wrong)), -250, 250, where=wrong, color="tab:red", alpha=0.3, linewidth=0)
    axis.set(title=f"{name}, task unknown", xlabel="step", ylim=(-250, 250), yticks=range(-180, 181, 90))
axes[0].set_ylabel("angle of the pole, 0° is upright")
figure.tight_layout()
plt.show()

# %% [markdown]
# ## Your model is still your model
#
# Inside `with owl.use(name):`, `model.predict` acts with that task's head. `owl.save` writes all heads. A new model of the same kind can load them and continue
# learning. `owl.unwrap(name)` returns an ordinary SAC with that task's head.

# %%
observation, _ = pendulum(90).reset(seed=0)
for name in tasks:
    with owl.use(name):
        print(name, model.predict(observation, deterministic=True)[0])

path = Path(tempfile.mkdtemp()) / "owl.safetensors"
owl.save(path)
again = OwlWrapper.load(path, new_model())
print(again)
owl.unwrap("+90°")
