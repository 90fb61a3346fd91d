"""DQN in one file, trained on CartPole and then on a CartPole whose two actions are swapped.

This is the script as somebody has it: it knows of one network, and of tasks only that they come one
after the other. `cleanrl_style_dqn_owl.py` is the same script around owlrl.

    python examples/cleanrl_style_dqn.py --seed 1
"""

import argparse
import copy
import random
from collections import deque
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

TASKS = ("plain", "flipped")


@dataclass
class Args:
    seed: int = 1
    timesteps: int = 10_000  # at most, of each task
    stop_at: float = 195.0  # a task is learned when its last ten episodes reach this on average
    learning_rate: float = 1e-3
    buffer_size: int = 20_000
    learning_starts: int = 500
    train_every: int = 2
    batch_size: int = 64
    gamma: float = 0.98
    tau: float = 0.005
    exploration_steps: int = 3_000
    end_epsilon: float = 0.05
    test_episodes: int = 20


class Flipped(gym.ActionWrapper):
    """The same cart and pole, but 0 pushes to the right and 1 to the left."""

    def action(self, action):
        return 1 - action


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )
        self.register_buffer("scale", torch.tensor([2.4, 2.0, 0.2, 2.0]))  # about the size of each number

    def forward(self, x):
        return self.layers(x / self.scale)


def make_env(task):
    env = gym.make("CartPole-v1", max_episode_steps=200)
    return Flipped(env) if task == "flipped" else env


def train(args, env, q, target, optimizer, buffer):
    env.action_space.seed(args.seed)
    obs, _ = env.reset(seed=args.seed)
    total, last = 0.0, deque(maxlen=10)
    for step in range(args.timesteps):
        epsilon = max(args.end_epsilon, 1.0 - step / args.exploration_steps)
        if random.random() < epsilon:
            action = int(env.action_space.sample())
        else:
            with torch.no_grad():
                action = int(q(torch.as_tensor(obs)[None]).argmax())
        next_obs, reward, terminated, truncated, _ = env.step(action)
        buffer.append((obs, action, reward, next_obs, terminated))
        obs, total = next_obs, total + reward
        if terminated or truncated:
            last.append(total)
            if len(last) == 10 and np.mean(last) >= args.stop_at:
                break
            (obs, _), total = env.reset(), 0.0

        if step < args.learning_starts or step % args.train_every:
            continue
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - step / args.timesteps)
        columns = zip(*random.sample(buffer, args.batch_size), strict=True)
        observations, actions, rewards, following, ended = (torch.as_tensor(np.stack(c)) for c in columns)
        with torch.no_grad():
            best = q(following).argmax(1, keepdim=True)
            goal = rewards.float() + args.gamma * ~ended * target(following).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(q(observations).gather(1, actions[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), q.parameters(), strict=True):
                slow.lerp_(fast, args.tau)
    q.load_state_dict(target.state_dict())  # the average is steadier than the last step
    return step + 1


def test(args, env, q):
    returns = []
    for episode in range(args.test_episodes):
        (obs, _), total, over = env.reset(seed=episode), 0.0, False
        while not over:
            with torch.no_grad():
                action = int(q(torch.as_tensor(obs)[None]).argmax())
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + reward, terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main(args):
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    q = QNetwork()
    target = copy.deepcopy(q)
    optimizer = torch.optim.Adam(q.parameters(), lr=args.learning_rate)
    buffer = deque(maxlen=args.buffer_size)

    scores = {}
    for learned, task in enumerate(TASKS, start=1):
        steps = train(args, make_env(task), q, target, optimizer, buffer)
        scores[task] = {seen: test(args, make_env(seen), q) for seen in TASKS[:learned]}
        print(f"after {task} ({steps} steps): {scores[task]}")
    return scores


def parse_args():
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for field in fields(Args):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=field.type, default=field.default, help=" ")
    return Args(**vars(parser.parse_args()))


if __name__ == "__main__":
    main(parse_args())
