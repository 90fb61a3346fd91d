from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from owlrl.checkpoint import load_state, save_state
from owlrl.envs import PendulumVectorEnv
from owlrl.errors import OwlValueError
from owlrl.experiments import keeping
from owlrl.experiments.keeping import Journal, Keeper, repeatable
from tests.adapters.helpers import BOX, Guess


def test_states_are_kept_every_so_many_seconds(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(keeping.time, "monotonic", lambda: now[0])
    keeper, asked = Keeper(tmp_path / "x", {"seed": 1}, seconds=10), []
    for now[0] in range(35):
        keeper.tick(lambda: asked.append(now[0]) or {"at": now[0]})
    assert asked == [10, 20, 30] and keeper.saves == 3
    assert Keeper(tmp_path / "x", {"seed": 1}).load() == {"at": 30}
    keeper.remove()
    assert keeper.load() is None
    keeper.remove()


def test_without_a_path_nothing_is_kept():
    keeper = Keeper(None, "run", seconds=0)
    keeper.tick(lambda: pytest.fail("nobody needs a state"))
    keeper.save({})
    keeper.remove()
    assert keeper.load() is None and not keeper.saves


@pytest.mark.parametrize("seconds", [-1, float("nan"), "often"])
def test_bad_seconds_are_named(seconds):
    with pytest.raises(OwlValueError, match="seconds is"):
        Keeper(None, "run", seconds=seconds)


def test_the_file_of_another_version_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(keeping.owlrl, "__version__", "0.0.1")
        Keeper(tmp_path / "x", "run").save({})
    with pytest.raises(OwlValueError, match="x is of another run"):
        Keeper(tmp_path / "x", "run").load()


def test_a_run_leaves_the_process_as_it_was():
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        with pytest.raises(ZeroDivisionError), repeatable(0):
            assert torch.get_num_threads() == 1
            torch.rand(1)
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        torch.set_num_threads(threads)


MAKERS = {
    "single": partial(Guess, 3),
    "a number": partial(Guess, 3, observations="discrete"),
    "dict": partial(Guess, 3, observations="dict"),
    "made": partial(gymnasium.make, "CartPole-v1"),
    "vector": lambda: gymnasium.vector.SyncVectorEnv([partial(Guess, BOX)] * 2),
    "processes": lambda: gymnasium.vector.AsyncVectorEnv([partial(Guess, 3)] * 2),
    "SB3": lambda: VecNormalize(make_vec_env(partial(Guess, BOX), 2)),
    "with a state": lambda: PendulumVectorEnv(2),
}


def play(env, steps: int) -> list:
    found = []
    for _ in range(steps):
        action = env.action_space.sample()
        if isinstance(env, VecNormalize):
            action = np.array([env.action_space.sample() for _ in range(2)])
        step = env.step(action)
        found.append(step[:3])
        if not hasattr(env, "num_envs") and (step[2] or step[3]):
            found.append(env.reset()[0])
    return found


def begin(env) -> None:
    if isinstance(env, VecNormalize):
        env.seed(3)
        env.reset()
    else:
        env.reset(seed=3)


@pytest.mark.parametrize("name", MAKERS)
def test_a_new_environment_comes_to_the_same_point(name, tmp_path):
    one, other = MAKERS[name](), MAKERS[name]()
    journal = Journal(one)
    begin(one)
    one.action_space.seed(0)
    play(one, 17)
    save_state(tmp_path / "x", journal.state_dict())
    again = Journal(other)
    assert again.replay(load_state(tmp_path / "x"))
    assert again.steps == journal.steps == (0 if name == "with a state" else 17)
    found = []
    for env in (one, other):
        env.action_space.seed(1)
        found.append(play(env, 9))
    np.testing.assert_equal(*found)
    one.close()
    other.close()


def test_many_steps_fit():
    env = Guess(3)
    journal = Journal(env)
    env.reset(seed=0)
    for step in range(3_000):
        env.step(step % 3)
    assert journal.state_dict()["actions"].tolist() == [step % 3 for step in range(3_000)]


def test_another_environment_is_noticed():
    one, journal = Guess(3), None
    journal = Journal(one)
    one.reset(seed=0)
    one.step(1)
    assert Journal(Guess(3)).replay(journal.state_dict())
    assert not Journal(Guess(3, observations="discrete")).replay(journal.state_dict())
    assert not Journal(gymnasium.make("CartPole-v1")).replay(journal.state_dict())
    assert Journal(Guess(3)).replay(Journal(Guess(3)).state_dict())  # nothing was done
