"""A DQN in one file, trained on CartPole and then on a CartPole whose two actions are swapped.

It is written as such scripts are: everything in one place, a loop that acts, stores and learns, and of
tasks it knows only that they come one after the other.
"""

import argparse
import copy
import random
from collections import deque

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from owlrl import OwlWrapper, QLearner

TASKS = ("plain", "flipped")


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of everything random")
    parser.add_argument("--timesteps", type=int, default=10_000, help="most steps of each task")
    parser.add_argument(
        "--stop-at", type=float, default=195.0, help="mean return of ten episodes that is enough"
    )
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="at first; falls over a task")
    parser.add_argument("--buffer-size", type=int, default=20_000, help="transitions kept")
    parser.add_argument("--learning-starts", type=int, default=500, help="steps before the first update")
    parser.add_argument("--train-frequency", type=int, default=2, help="steps per update")
    parser.add_argument("--batch-size", type=int, default=64, help="transitions per update")
    parser.add_argument("--gamma", type=float, default=0.98, help="discount")
    parser.add_argument("--tau", type=float, default=0.005, help="how fast the target network follows")
    parser.add_argument("--exploration", type=int, default=3_000, help="steps until epsilon is at its end")
    parser.add_argument("--end-epsilon", type=float, default=0.05, help="share of random actions in the end")
    parser.add_argument("--test-episodes", type=int, default=20, help="greedy episodes of each test")
    return parser.parse_args(argv)


class Flipped(gym.ActionWrapper):
    """The same cart and pole, but 0 pushes to the right and 1 to the left."""

    def action(self, action):
        return 1 - action


def make_env(task):
    env = gym.make("CartPole-v1", max_episode_steps=200)
    return Flipped(env) if task == "flipped" else env


class QNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.4, 2.0, 0.2, 2.0]))  # brings inputs to about 1
        self.network = nn.Sequential(
            nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
        )

    def forward(self, x):
        return self.network(x / self.scale)


def greedy(q, obs):
    with torch.no_grad():
        return int(q(torch.as_tensor(obs)[None]).argmax())


def train(args, env, q, target, optimizer, buffer):
    env.action_space.seed(args.seed)
    obs, _ = env.reset(seed=args.seed)
    episode, returns = 0.0, deque(maxlen=10)
    for step in range(args.timesteps):
        epsilon = max(args.end_epsilon, 1.0 - step / args.exploration)
        action = int(env.action_space.sample()) if random.random() < epsilon else greedy(q, obs)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        buffer.append((obs, action, reward, next_obs, terminated))
        obs, episode = next_obs, episode + reward
        if terminated or truncated:
            returns.append(episode)
            if len(returns) == 10 and np.mean(returns) >= args.stop_at:
                break
            (obs, _), episode = env.reset(), 0.0

        if step < args.learning_starts or step % args.train_frequency:
            continue
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1.0 - step / args.timesteps)
        columns = zip(*random.sample(buffer, args.batch_size), strict=True)
        s, a, r, next_s, ended = (torch.as_tensor(np.stack(column)) for column in columns)
        with torch.no_grad():
            best = q(next_s).argmax(1, keepdim=True)
            goal = r.float() + args.gamma * ~ended * target(next_s).gather(1, best).squeeze(1)
        loss = F.smooth_l1_loss(q(s).gather(1, a[:, None]).squeeze(1), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), q.parameters(), strict=True):
                slow.lerp_(fast, args.tau)
    q.load_state_dict(target.state_dict())  # the average is steadier than the last update


def test(args, env, q):
    returns = []
    for episode in range(args.test_episodes):
        (obs, _), total, over = env.reset(seed=episode), 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(greedy(q, obs))
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
    owl = OwlWrapper(QLearner(q, target, optimizer, replay=buffer, gamma=args.gamma))

    scores = {}
    for count, task in enumerate(TASKS, start=1):
        with owl.task(task):
            train(args, make_env(task), q, target, optimizer, buffer)
        for seen in TASKS[:count]:
            with owl.use(seen):
                scores[task, seen] = test(args, make_env(seen), q)
            print(f"after learning {task}: {scores[task, seen]:.1f} of 200 in {seen}")
    print("task unknown:", {task: owl.evaluate(make_env(task), seed=args.seed).mean_return for task in TASKS})
    return scores


if __name__ == "__main__":
    main(parse_args())
