"""SAC: updates per second, side by side with Stable-Baselines3's SAC on Gymnasium's Pendulum.

    python benchmarks/sac.py [--quick]

Both with the same sizes of networks and batches, two critics, a learned temperature and an update per
frame; ours predict a variance as well. "update" is sampling and one gradient step of everything, "learn"
what a user waits for: acting, stepping and storing included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import gymnasium as gym
from common import Row, command, side_by_side
from stable_baselines3 import SAC as TheirSAC

from owlrl.learners import SAC, SAC_FAST

BATCH = 256
BLOCK = 5  # updates in a row: the first of them finds the other's data in the caches
FRAMES = 40  # frames of learn in a row: a call of learn begins an episode


def theirs(hidden: tuple[int, ...]) -> TheirSAC:
    return TheirSAC(
        "MlpPolicy",
        gym.make("Pendulum-v1"),
        policy_kwargs={"net_arch": list(hidden)},
        batch_size=BATCH,
        learning_starts=BATCH,
        seed=0,
        device="cpu",
    )


def ours(hidden: tuple[int, ...]) -> SAC:
    config = replace(
        SAC_FAST, actor_hidden=hidden, critic_hidden=hidden, batch_size=BATCH, learning_starts=BATCH
    )
    return SAC(gym.make("Pendulum-v1"), config=config, seed=0, device="cpu")


def contestants(hidden: tuple[int, ...]) -> dict[str, tuple[int, Callable[[], object], Callable[[], object]]]:
    their, our = theirs(hidden), ours(hidden)
    their.learn(BATCH + 10)
    our.learn(BATCH + 10)

    def update() -> None:
        for _ in range(BLOCK):
            our.update(our.replay.sample(BATCH))

    return {
        "update": (BLOCK, lambda: their.train(BLOCK, batch_size=BATCH), update),
        "frame of learn": (
            FRAMES,
            lambda: their.learn(FRAMES, reset_num_timesteps=False),
            lambda: our.learn(FRAMES),
        ),
    }


def main(*, quick: bool = False) -> list[Row]:
    rows: list[Row] = []
    for hidden in ((64, 64), (256, 256)):
        for name, (calls, *pair) in contestants(hidden).items():
            rounds = (100 if quick else 500) // calls
            plain, own = side_by_side(pair, rounds=rounds, calls=1)
            sizes = " x ".join(map(str, hidden))
            rows.append(Row(f"SAC, one {name}, {sizes}, against SB3", plain / calls, own / calls))
    return rows


if __name__ == "__main__":
    command(main, __doc__)
