"""A model of Stable-Baselines3 whose environment changes its task inside ``learn``."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import CallbackList, CheckpointCallback

from owlrl import OwlWrapper
from owlrl.envs import Switching, pendulums
from tests.test_stream import CELLS, lines, right_share


def test_dqn_keeps_counting_and_its_callbacks_while_tasks_change(tmp_path):
    env = lines([("right", 600), ("left", 500), ("right", 500)])
    options = {"learning_starts": 50, "train_freq": 4, "gamma": 0.5, "learning_rate": 1e-2, "seed": 0}
    model = DQN("MlpPolicy", env, buffer_size=3_000, batch_size=32, target_update_interval=50, **options)
    owl = OwlWrapper(model, evidence=None)
    saver = CheckpointCallback(500, str(tmp_path))
    with owl.stream(schedule_steps=500) as stream:
        model.learn(1_600, callback=CallbackList([saver]))
    assert model.num_timesteps == 1_600 and len(list(tmp_path.iterdir())) == 3
    assert [(e.left, e.to, e.new) for e in stream.events] == [
        ("task 0", "task 1", True),
        ("task 1", "task 0", False),
    ]
    assert [right_share(owl, task) for task in owl.tasks] == [1.0, 0.0]
    for task, sign in (("task 0", 1.0), ("task 1", -1.0)):
        kept = owl.replay._kept[task]
        right = 2.0 * kept["actions"].ravel() - 1.0
        assert np.mean(kept["rewards"].ravel() != sign * right) <= 0.005
        assert kept["observations"].shape[1:] == (1, CELLS)


@pytest.mark.slow
def test_sac_on_pendulums():
    tasks = pendulums([90, -90])
    schedule = [("pendulum+90", 2_000), ("pendulum-90", 2_000), ("pendulum+90", 1_000)]
    env = gymnasium.wrappers.TimeLimit(Switching(tasks, schedule=schedule), 200)
    model = SAC("MlpPolicy", env, learning_starts=200, seed=0, policy_kwargs={"net_arch": [32, 32]})
    owl = OwlWrapper(model)
    with owl.stream() as stream:
        model.learn(5_000)
    assert [(e.left, e.to, e.new) for e in stream.events] == [
        ("task 0", "task 1", True),
        ("task 1", "task 0", False),
    ]
