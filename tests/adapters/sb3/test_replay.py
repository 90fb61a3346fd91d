"""Every task has a buffer of its own; rows come out as they went in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import NStepReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecNormalize, VecTransposeImage
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from owlrl import OwlWrapper
from owlrl.adapters.buffers import read_columns, refill, valid_steps
from owlrl.adapters.sb3 import SB3Learner
from owlrl.adapters.sb3.replay import ObservationRows, new_buffer
from owlrl.errors import OwlTypeError, OwlValueError
from tests.adapters.helpers import (
    KINDS,
    OBSERVATIONS,
    Guess,
    actor_critic,
    any_model,
    dqn,
    other_env,
    same,
    weights,
)
from tests.rows import rows_of

COLLECT = {"learning_starts": 10_000}  # steps without updates: all that a replay sees


def collected(model, *steps, **arguments):
    """A wrapper whose tasks "0", "1", … each collected some steps."""
    owl = OwlWrapper(SB3Learner(model, **arguments))
    for task, count in enumerate(steps):
        with owl.task(str(task), env=None if task == 0 else other_env(model)):
            model.learn(count)
    return owl


def in_time(buffer, name):
    """A column of a ring, oldest first, over all environments."""
    column = getattr(buffer, name)
    return np.roll(column, -buffer.pos, axis=0) if buffer.full else column[: buffer.pos]


@pytest.mark.filterwarnings("ignore:SB3Replay. the buffer of .* steps was overwritten")
@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("buffer_size", [40, 1_000])
def test_a_task_starts_with_its_own_last_rows(n_envs, buffer_size):
    env = make_vec_env(Guess, n_envs=n_envs, seed=0)
    model = dqn(env=env, buffer_size=buffer_size, **COLLECT)
    owl = OwlWrapper(SB3Learner(model, warm_start=30))
    with owl.task("a"):
        model.learn(60)
        first = model.replay_buffer
    with owl.task("b", env=make_vec_env(lambda: Guess(sign=-1), n_envs=n_envs, seed=1)):
        assert model.replay_buffer is not first
        assert len(owl.replay) == 0
        model.learn(60)
        assert len(owl.replay) == min(60, buffer_size)
    with owl.task("a"):
        again, kept = model.replay_buffer, 30 // n_envs
        for name in ("observations", "next_observations", "actions", "rewards"):
            assert np.array_equal(in_time(again, name), in_time(first, name)[-kept:]), name
        done = in_time(first, "dones")[-kept:].copy()
        done[-1] = 1.0  # what follows is another episode
        assert np.array_equal(in_time(again, "dones"), done)
        assert np.array_equal(in_time(again, "timeouts")[-1], np.ones(n_envs))  # not a real end
        model.learn(10)
        assert len(owl.replay) == min(buffer_size, 30 + model.num_timesteps)


def test_nothing_is_kept_without_warm_start():
    model = dqn(**COLLECT)
    owl = collected(model, 20, 20, warm_start=0)
    with owl.task("0"):
        assert len(owl.replay) == 0
        assert model.learning_starts == COLLECT["learning_starts"]  # nothing else would fill the buffer
        model.learn(10)


@pytest.mark.filterwarnings("ignore:SB3Replay. the buffer of 25 steps was overwritten")
def test_memory_optimised_buffer_keeps_following_observations():
    model = dqn(
        optimize_memory_usage=True,
        replay_buffer_kwargs={"handle_timeout_termination": False},
        buffer_size=25,
        env=Guess(ends=True),
        **COLLECT,
    )
    owl = collected(model, 60, 20)
    rows = owl.replay.state_dict()["kept"]["0"]
    assert len(rows["rewards"]) == 24  # the oldest of 25 has lost its observation
    ongoing = rows["dones"][:-1, 0] == 0
    assert np.array_equal(rows["next_observations"][:-1][ongoing], rows["observations"][1:][ongoing])
    with owl.task("0"):
        assert len(owl.replay) == 24
        assert model.replay_buffer.dones[23, 0] == 1.0
        with pytest.warns(UserWarning, match="truncated"):  # Stable-Baselines3's own, at every such start
            model.learn(5)


def test_n_step_returns_do_not_run_over_the_end_of_a_visit():
    model = dqn(n_steps=3, **COLLECT)
    owl = collected(model, 30, 30)
    with owl.task("0"):
        assert isinstance(model.replay_buffer, NStepReplayBuffer)
        model.learn(10)
        buffer = model.replay_buffer
        samples = buffer._get_samples(np.array([29]))  # the last kept step: one reward, then a bootstrap
        assert float(samples.rewards) == float(buffer.rewards[29, 0])
        assert float(samples.discounts) == pytest.approx(model.gamma)
        assert float(samples.dones) == 0.0


def test_hindsight_buffer_is_new_for_every_task():
    def build(**arguments):
        return DQN(
            "MultiInputPolicy",
            BitFlippingEnv(n_bits=4, max_steps=4),
            replay_buffer_class=HerReplayBuffer,
            replay_buffer_kwargs={"n_sampled_goal": 2, **arguments},
            policy_kwargs={"net_arch": [8]},
            learning_starts=12,
            buffer_size=200,
            seed=0,
            device="cpu",
        )

    model = build()
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(30)
    with owl.task("b", env=BitFlippingEnv(n_bits=4, max_steps=4)):
        assert model.replay_buffer.env is model.get_env()  # rewards of relabelled rows come from it
        model.learn(30)
    with owl.task("a"):
        assert model.replay_buffer.env is model.get_env()
        assert (model.replay_buffer.ep_length[:30] > 0).all()  # the unfinished episode was closed
        model.learn(30)
    with pytest.raises(OwlValueError, match="warm_start=0"):
        OwlWrapper(build(copy_info_dict=True))
    OwlWrapper(SB3Learner(build(copy_info_dict=True), warm_start=0))


def test_rows_are_distinct_and_what_the_environment_gave():
    model = dqn(env=make_vec_env(lambda: Guess(ends=True), n_envs=2, seed=0), **COLLECT)
    owl = collected(model, 60)
    rows = rows_of(owl.replay)
    assert len(rows) == 60
    assert len(np.unique(rows.observation.numpy(), axis=0)) == 60
    assert rows.action.dtype == torch.int64
    assert torch.equal(rows.reward, (rows.action == 0).float())
    assert int(rows.terminated.sum()) == 2 * (30 // 7)
    assert torch.equal(rows.discount, torch.full((60,), model.gamma))
    drawn = owl.replay.sample(200)
    assert len(np.unique(drawn.observation.numpy(), axis=0)) > 50  # of both environments


def test_time_running_out_is_no_end():
    owl = collected(dqn(**COLLECT), 30)
    assert not rows_of(owl.replay).terminated.any()


def test_box_actions_come_in_the_environments_units():
    low, high = np.array([[-2.0, 0.0]], np.float32), np.array([[2.0, 10.0]], np.float32)
    space = spaces.Box(low, high, dtype=np.float32)
    model = actor_critic(SAC, env=Guess(space), **COLLECT)
    rows = rows_of(collected(model, 50).replay)
    assert rows.action.shape == (50, 1, 2)
    stored = torch.as_tensor(model.replay_buffer.actions[:50, 0])
    assert torch.allclose(
        rows.action.flatten(1), stored * torch.tensor([2.0, 5.0]) + torch.tensor([0.0, 5.0])
    )
    assert rows.action[:, 0, 1].max() > 5.0  # beyond what a scaled action can be


def test_rows_are_normalised_as_the_model_sees_them():
    env = VecNormalize(make_vec_env(Guess, n_envs=1, seed=0))
    model = dqn(env=env, **COLLECT)
    rows = rows_of(collected(model, 50).replay)
    raw = model.replay_buffer.observations[:50, 0]
    assert np.array_equal(rows.observation.numpy(), env.normalize_obs(raw))
    rewards = model.replay_buffer.rewards[:50, 0]
    assert np.array_equal(rows.reward.numpy(), env.normalize_reward(rewards))


def test_dict_rows_are_flat():
    model = dqn(observations="dict", **COLLECT)
    owl = collected(model, 10)
    rows = rows_of(owl.replay)
    assert rows.observation.shape == (10, 1 + 36 * 36 + 2)
    buffer = model.replay_buffer
    assert np.array_equal(rows.observation[:, :1].numpy(), buffer.observations["door"][:10, 0])
    image = rows.next_observation[:, 1:-2].numpy().reshape(10, 1, 36, 36)
    assert np.array_equal(image, buffer.next_observations["image"][:10, 0])


def test_drawing_leaves_the_models_random_numbers_alone():
    owl = collected(dqn(**COLLECT), 30)
    before = repr(np.random.get_state())  # the numbers, and how far they are drawn
    owl.replay.sample(10)
    assert repr(np.random.get_state()) == before


@pytest.mark.parametrize("observations", ["box", "dict"])
def test_state_comes_back(observations):
    owl = collected(dqn(observations=observations, **COLLECT), 20, 30)
    state = owl.replay.state_dict()
    other = SB3Learner(dqn(observations=observations, **COLLECT)).replay
    other.load_state_dict(state)
    assert repr(other).endswith("kept={'0': 20, '1': 30})")
    assert other.state_dict()["kept"] is not state["kept"]
    assert other.state_dict()["envs"] == state["envs"]
    with pytest.raises(OwlValueError, match="does not fit"):
        other.load_state_dict({"kept": {}})
    wrong = {**state, "kept": {"0": {**state["kept"]["0"], "actions": np.zeros((20, 1, 9))}}}
    with pytest.raises(OwlValueError, match="actions of task '0' have shape"):
        other.load_state_dict(wrong)


def test_refill_takes_the_newest_that_fit():
    model = dqn(buffer_size=10, **COLLECT)
    owl = collected(dqn(**COLLECT), 25)
    kept = owl.replay.state_dict()["kept"]["0"]
    buffer = new_buffer(model)
    refill(buffer, kept)
    assert np.array_equal(in_time(buffer, "rewards"), kept["rewards"][-10:])


def test_other_kinds_of_buffers_are_named():
    model = dqn()
    model.replay_buffer_class = NStepReplayBuffer
    with pytest.raises(OwlValueError, match="replay_buffer_class"):
        OwlWrapper(model)
    model = dqn()
    model.replay_buffer = None
    with pytest.raises(OwlValueError, match="replay_buffer is None"):
        OwlWrapper(model)


def look(owl):
    """What the wrapper does before a step: new rows go to the task's memory."""
    rows = owl.replay.new_rows()
    if rows is not None:
        owl.memory[owl.current_task].add(rows)
    return rows


def columns_of(buffer):
    return read_columns(buffer, valid_steps(buffer), slice(None))


def oldest(buffer):
    return int(valid_steps(buffer)[0])


def test_new_rows_are_raw_and_come_once():
    env = VecNormalize(make_vec_env(lambda: Guess(ends=False), n_envs=2, seed=0))
    model = dqn(env=env, **COLLECT)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(20)
        first = look(owl)
        assert look(owl) is None
        model.learn(12, reset_num_timesteps=False)
        second = look(owl)
    assert (len(first), len(second)) == (20, 12)
    buffer = model.replay_buffer
    for rows, steps in ((first, slice(0, 10)), (second, slice(10, 16))):
        assert np.array_equal(rows.observation, buffer.observations[steps].reshape(-1, 3))
        assert np.array_equal(rows.next_observation, buffer.next_observations[steps].reshape(-1, 3))
        assert np.array_equal(rows.reward, buffer.rewards[steps].reshape(-1))
        assert rows.env.tolist() == [0, 1] * (len(rows) // 2)
        assert rows.task == "a"
    both = torch.cat([first.truncated, second.truncated]).view(16, 2)
    assert both[:, 0].nonzero().flatten().tolist() == [6, 13]  # seven guesses an episode
    assert not first.terminated.any()


@pytest.mark.filterwarnings("ignore:OwlWrapper.task. VecNormalize has statistics per task")
@pytest.mark.parametrize("observations", ["box", "dict"])
def test_scaling_makes_of_raw_rows_what_the_model_sees(observations):
    """Against `VecNormalize` itself; the dict has parts that are not normalised."""
    inner = make_vec_env(lambda: Guess(observations=observations), n_envs=1, seed=0)
    if observations == "dict":
        inner = VecTransposeImage(inner)
    keys = ["where"] if observations == "dict" else None
    model = dqn(env=VecNormalize(inner, norm_obs_keys=keys), observations=observations, **COLLECT)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(40)
        raw = look(owl)
    seen, scaling = rows_of(owl.replay), owl.learner.scaling()
    assert (scaling.observation_clip is None) == (observations == "dict")
    for rows in (owl.memory["a"].rows(), None):  # as the memory gives them, and by the scaling itself
        observation = scaling.observation(raw.observation.numpy()) if rows is None else rows.observation
        reward = scaling.reward(raw.reward.numpy()) if rows is None else rows.reward
        np.testing.assert_allclose(observation, seen.observation, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(reward, seen.reward, rtol=1e-6)
    model = dqn()
    assert SB3Learner(model).scaling() is None
    model = dqn(env=VecNormalize(make_vec_env(Guess), norm_obs=False))
    told = {name for name, value in SB3Learner(model).scaling().state_dict().items() if value is not None}
    assert told == {"reward_std", "reward_clip"}


@pytest.mark.filterwarnings("ignore:OwlWrapper. the learner was trained")
def test_kept_rows_are_not_new_and_those_a_model_came_with_are():
    model = dqn(train_freq=1, **COLLECT)
    model.learn(15)
    owl = OwlWrapper(model)
    with owl.task("0"):
        model.learn(10, reset_num_timesteps=False)
        assert len(look(owl)) == 25
    with owl.task("1", env=other_env(model)):
        assert look(owl) is None
        model.learn(6)
    with owl.task("0"):
        assert (len(owl.replay), look(owl)) == (25, None)
        model.learn(4)
    assert owl.memory["0"].seen == 29
    owl.replay.forget("0")
    assert list(owl.replay.state_dict()["kept"]) == ["1"]
    assert list(owl.replay.state_dict()["envs"]) == ["1"]


@pytest.mark.parametrize("optimize", [False, True])
def test_a_lap_between_two_looks_is_counted(optimize):
    saving = {
        "optimize_memory_usage": True,
        "replay_buffer_kwargs": {"handle_timeout_termination": False},
    }
    saving = saving if optimize else {}
    model = dqn(buffer_size=20, env=Guess(ends=True), train_freq=1, **COLLECT, **saving)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(15)
        assert len(look(owl)) == 15
        model.learn(12, reset_num_timesteps=False)  # over the end of the ring
        found = look(owl)
        assert (len(found), owl.replay.overruns) == (12, 0)
        assert np.array_equal(found.reward[-7:], model.replay_buffer.rewards[:7, 0])
        model.learn(31, reset_num_timesteps=False)
        with pytest.warns(UserWarning, match="overwritten between two looks"):
            found = look(owl)
        assert (len(found), owl.replay.overruns) == (20 - optimize, 1)
        model.learn(31, reset_num_timesteps=False)
        look(owl)  # said once
        assert owl.replay.overruns == 2


def test_a_buffer_that_is_loaded_in_a_task_is_new(tmp_path):
    model = dqn(**COLLECT)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(12)
        assert len(look(owl)) == 12
        model.save_replay_buffer(tmp_path / "rows.pkl")
        model.load_replay_buffer(tmp_path / "rows.pkl")
        assert len(look(owl)) == 12


@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer")  # Stable-Baselines3's own
@pytest.mark.parametrize(
    ("kind", "buffer_size"),
    [*((kind, 34) for kind in (*KINDS, "n_steps", "optimised", "her")), (DQN, 1_000), ("her", 1_000)],
)
def test_saved_inside_a_block_a_visit_goes_on_bit_for_bit(kind, buffer_size, tmp_path):
    """The weights, the rows and their places in the ring, the counters, and what was not looked at yet."""

    def make():
        changes = {"buffer_size": buffer_size, "learning_starts": 8, "seed": 0}
        if kind == "her":
            changes |= {"train_freq": 2, "batch_size": 16, "policy_kwargs": {"net_arch": [16]}}
            changes |= {"replay_buffer_class": HerReplayBuffer, "target_update_interval": 10}
            return DQN("MultiInputPolicy", BitFlippingEnv(3), **changes)
        if kind == "n_steps":
            return dqn(n_steps=3, **changes)
        if kind == "optimised":
            saving = {"handle_timeout_termination": False}
            return dqn(optimize_memory_usage=True, replay_buffer_kwargs=saving, **changes)
        return any_model(kind, **changes)

    def env():
        return BitFlippingEnv(3) if kind == "her" else other_env(make())

    def go_on(owl):
        model = owl.learner.model
        torch.manual_seed(7), np.random.seed(7), model.action_space.seed(7)
        model.env.seed(7)
        model._last_obs = None
        model.learn(21, reset_num_timesteps=False)
        return weights(model), in_time(model.replay_buffer, "rewards"), model.replay_buffer.pos

    model = make()
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(14)
    with owl.task("b", env=env()):
        model.learn(37)
        owl.save(tmp_path / "inside.safetensors")
        saved, new = model.num_timesteps, len(look(owl))
        if kind in ("n_steps", "optimised", "her"):  # there an episode must end where another begins
            refill(cut := new_buffer(model), columns_of(model.replay_buffer), at=oldest(model.replay_buffer))
            cut.full, model.replay_buffer = model.replay_buffer.full, cut
            owl.replay._seen.buffer = cut
        expected, steps = go_on(owl), model.num_timesteps
    fresh = make()
    again = OwlWrapper.load(tmp_path / "inside.safetensors", fresh)
    with again.task("b", env=env()):
        assert (fresh.num_timesteps, len(look(again))) == (saved, new)
        found = go_on(again)
        assert fresh.num_timesteps == steps
    assert same(found[0], expected[0])
    assert np.array_equal(found[1], expected[1]) and found[2] == expected[2]
    assert again.memory["b"].seen == owl.memory["b"].seen
    assert again.tasks["b"].steps == owl.tasks["b"].steps


BATCH = 4


def raw_batch(name):
    env = Guess(observations=name)
    observations = [env.reset(seed=k)[0] for k in range(BATCH)]
    if name == "dict":
        return {key: np.stack([o[key] for o in observations]) for key in observations[0]}
    return np.stack(observations)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_rows_give_what_the_models_own_preparation_gives(name):
    model, batch = dqn(observations=name), raw_batch(name)
    rows = ObservationRows(model.observation_space)
    prepared = rows.prepare(batch if name == "dict" else torch.as_tensor(batch))
    assert prepared.shape == (BATCH, *rows.shape)
    assert torch.equal(rows.prepare(prepared), prepared)  # what is prepared stays as it is
    expected, _ = model.policy.obs_to_tensor(batch)
    with torch.no_grad():
        assert torch.equal(model.q_net(rows.unpack(prepared)), model.q_net(expected))


def test_parts_of_an_unknown_dict_are_named():
    rows = ObservationRows(spaces.Dict({"a": spaces.Box(0, 1, (2,))}))
    with pytest.raises(OwlTypeError, match=r"dict of \['b'\]; expected a dict of \['a'\]"):
        rows.prepare({"b": np.zeros((1, 2))})
    with pytest.raises(OwlTypeError, match="expected an array"):
        ObservationRows(spaces.Box(0, 1, (2,))).prepare({"a": np.zeros((1, 2))})
