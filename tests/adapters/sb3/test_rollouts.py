"""Where ``learn`` is, what may be done there, and that nothing of it gets into files."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

from owlrl import OwlWrapper
from owlrl.adapters.sb3 import SB3Learner
from owlrl.adapters.sb3.rollouts import Rollouts
from owlrl.errors import OwlStateError, OwlValueError
from tests.adapters.helpers import KINDS, Guess, any_model, dqn, same, weights


@pytest.mark.parametrize("kind", KINDS)
def test_the_border_lies_between_a_rollout_and_its_updates(kind):
    model = any_model(kind, train_freq=4)
    owl, seen = OwlWrapper(model), []
    remove = owl.learner.at_rollout_end(
        lambda: seen.append((model.num_timesteps, model.replay_buffer.size(), owl.learner._rollouts.where))
    )
    with owl.task("a"):
        model.learn(32)
        assert seen == [(k, k, "border") for k in range(4, 33, 4)]
        remove()
        remove()  # once more does no harm
        model.learn(8, reset_num_timesteps=False)
    assert len(seen) == 8
    assert type(model) is not kind and type(model).__name__ == kind.__name__
    owl.unwrap()
    assert type(model) is kind


def test_updates_of_a_rollout_come_after_its_border():
    model, seen = dqn(train_freq=4, learning_starts=0), []
    owl = OwlWrapper(model)
    owl.learner.at_rollout_end(lambda: seen.append(model._n_updates))
    with owl.task("a"):
        model.learn(16)
    assert seen == [0, 1, 2, 3]
    assert model._n_updates == 4


def test_tasks_are_refused_everywhere_else_in_learn():
    model = dqn(learning_starts=0)
    owl = OwlWrapper(model)
    learner, refused = owl.learner, []

    def attempt(*_):
        for what in (learner.add_head, lambda: learner.set_env(Guess()), learner.finish_task):
            with pytest.raises(OwlStateError, match=r"inside DQN\.learn"):
                what()
        refused.append(learner._rollouts.where)

    class Meddler(BaseCallback):
        def _on_step(self):
            attempt()
            return True

        def _on_rollout_end(self):
            attempt()

    with owl.task("a"):
        hook = model.policy.optimizer.register_step_pre_hook(attempt)
        model.learn(4, callback=Meddler())
        hook.remove()
        assert sorted(set(refused)) == ["collecting", "updating"]
        with pytest.raises(ZeroDivisionError):
            model.learn(4, callback=lambda *_: 1 / 0)
        assert learner._rollouts.where == "outside"  # also after an error
        learner.finish_task()


def test_nothing_hangs_on_what_is_saved(tmp_path):
    """`save`, the callbacks that save and evaluate, and pickled buffers, with a hook that no pickle takes."""
    model = dqn()
    owl = OwlWrapper(model)
    owl.learner.at_rollout_end(lambda: None)  # a local function
    evaluation = EvalCallback(
        Monitor(Guess()), eval_freq=20, n_eval_episodes=1, verbose=0, best_model_save_path=str(tmp_path)
    )
    checkpoint = CheckpointCallback(20, str(tmp_path), save_replay_buffer=True, save_vecnormalize=True)
    with owl.task("a"):
        model.learn(40, callback=CallbackList([evaluation, checkpoint]))
        model.save(tmp_path / "inside.zip")
        model.save_replay_buffer(tmp_path / "rows.pkl")
    for name in ("inside", "best_model", "rl_model_40_steps"):
        loaded = DQN.load(tmp_path / f"{name}.zip", env=Guess())
        assert not [key for key in vars(loaded) if "owlrl" in key]
        loaded.learn(4)
    assert same(weights(DQN.load(tmp_path / "inside.zip")), weights(model))
    loaded.load_replay_buffer(tmp_path / "rows.pkl")
    assert loaded.replay_buffer.size() == 40
    for copied in (copy.deepcopy(model.replay_buffer), pickle.loads(pickle.dumps(model.replay_buffer))):
        assert copied.size() == 40


def test_a_copy_of_a_followed_model_is_not_followed():
    model = dqn()
    rollouts, seen = Rollouts(model), []
    rollouts.install()
    rollouts.at_end(lambda: seen.append(1))
    copied = copy.deepcopy(model)
    assert type(copied) is DQN
    copied.learn(4)
    assert not seen
    model.learn(4)
    assert len(seen) == 2
    rollouts.uninstall()
    rollouts.uninstall()
    assert type(model) is DQN and not [key for key in vars(model) if "owlrl" in key]


def border_switch(owl, model, at):
    """Leave the open task and enter the next at given numbers of steps, as a stream would."""
    visits, blocks = dict(at), []

    def look():
        if model.num_timesteps in visits:
            name = visits.pop(model.num_timesteps)
            if blocks:
                blocks.pop().__exit__(None, None, None)
            blocks.append(owl.task(name))
            blocks[-1].__enter__()

    remove = owl.learner.at_rollout_end(look)

    def close():
        remove()
        blocks.pop().__exit__(None, None, None)

    return look, close


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.filterwarnings("ignore:OwlWrapper.task. VecNormalize has statistics per task")
def test_tasks_may_change_at_the_border(normalised):
    env = make_vec_env(Guess, n_envs=1, seed=0)
    model = dqn(env=VecNormalize(env) if normalised else env, learning_starts=4)
    owl, steps = OwlWrapper(model), []
    look, close = border_switch(owl, model, {0: "a", 20: "b", 40: "a", 50: "c"})
    look()

    class Count(BaseCallback):
        def _on_step(self):
            steps.append(self.model.num_timesteps)
            return True

    resets = env.envs[0].unwrapped.resets
    model.learn(60, callback=Count())
    close()
    assert steps == list(range(1, 61))  # learn runs as long as it was told, without a break
    assert env.envs[0].unwrapped.resets == resets + 1 + 60 // 7  # at the start and where episodes end
    assert {name: record.head for name, record in owl.tasks.items()} == {"a": 0, "b": 1, "c": 2}
    kept = owl.replay.state_dict()["kept"]
    assert {task: len(rows["rewards"]) for task, rows in kept.items()} == {"a": 30, "b": 20, "c": 10}
    seen = [kept[task]["observations"][:, 0] for task in ("a", "b", "c")]
    in_time = np.concatenate([seen[0][:20], seen[1], seen[0][20:], seen[2]])
    following = np.concatenate(
        [
            kept["a"]["next_observations"][:20, 0],
            kept["b"]["next_observations"][:, 0],
            kept["a"]["next_observations"][20:, 0],
        ]
    )
    ongoing = [k for k in range(50) if (k + 1) % 7]
    np.testing.assert_allclose(
        following[ongoing], in_time[1:51][ongoing], atol=1e-6
    )  # one episode after another
    with owl.task("b"):  # told again, outside of learn
        assert model.num_timesteps == 20
        model.learn(10, reset_num_timesteps=False)
        assert model.num_timesteps == 30


def test_schedules_count_the_task_s_own_steps():
    model = dqn(learning_starts=4, train_freq=1, learning_rate=lambda left: 1e-3 * left)
    owl, rates = OwlWrapper(model), {}
    owl.learner.schedule_steps = 40  # exploration ends after half of them
    look, close = border_switch(owl, model, {0: "a", 20: "b", 50: "a"})
    look()

    class Note(BaseCallback):
        def _on_step(self):
            rates[self.model.num_timesteps] = self.model.exploration_rate
            return True

    model.learn(60, callback=Note())
    rate = model.policy.optimizer.param_groups[0]["lr"]
    close()
    schedule = model.exploration_schedule
    own = {**{k: k for k in range(1, 21)}, **{k: k - 20 for k in range(21, 51)}}
    own |= {k: 20 + k - 50 for k in range(51, 61)}
    for step in range(2, 61):
        before = own[step] - 1  # the rate of a step comes from the step before
        if step not in (21, 51):
            assert rates[step] == pytest.approx(schedule(1 - before / 40)), step
    assert rates[21] == pytest.approx(1.0) and rates[51] == pytest.approx(0.05)
    assert rate == pytest.approx(1e-3 * (1 - 30 / 40))
    with pytest.raises(OwlValueError, match="schedule_steps is 0"):
        owl.learner.schedule_steps = 0


def test_without_a_length_schedules_run_over_the_steps_of_learn():
    model = dqn(learning_starts=4, train_freq=1)
    owl = OwlWrapper(model)
    look, close = border_switch(owl, model, {0: "a", 20: "b"})
    look()
    model.learn(60)
    assert model._current_progress_remaining == pytest.approx(1 - 40 / 60)
    close()
    with owl.task("b"):
        model.learn(20)  # counts from 0 again, as the call says
        assert model._current_progress_remaining == 0.0


def test_an_environment_cannot_come_with_a_task_inside_learn():
    model = dqn(learning_starts=4)
    owl = OwlWrapper(model)
    errors = []

    def look():
        if model.num_timesteps == 10:
            block.__exit__(None, None, None)
            with pytest.raises(OwlValueError, match="leave env= out") as caught:
                owl.task("b", env=Guess()).__enter__()
            errors.append(caught.value)
            again.__enter__()

    owl.learner.at_rollout_end(look)
    block, again = owl.task("a"), owl.task("a")
    block.__enter__()
    model.learn(20)
    again.__exit__(None, None, None)
    assert len(errors) == 1 and owl.tasks["a"].visits == 2


def test_an_interrupted_visit_may_go_on_inside_learn():
    """`learn` keeps its own count; the task's schedules go on with the task's."""
    model = dqn(learning_starts=4)
    owl = OwlWrapper(model)
    owl.learner.schedule_steps = 40
    with pytest.raises(KeyError), owl.task("a"):
        model.learn(20)
        raise KeyError
    blocks, counted = [], []

    def look():
        if not blocks:
            blocks.append(owl.task("a"))
            blocks[0].__enter__()
        counted.append((model.num_timesteps, len(owl.replay)))

    remove = owl.learner.at_rollout_end(look)
    model.learn(10)
    remove()
    assert counted == [(k, 20 + k) for k in range(2, 11, 2)]  # the rows of the visit, and learn's own count
    assert model._current_progress_remaining == pytest.approx(1 - (20 + 8) / 40)
    blocks[0].__exit__(None, None, None)
    assert owl.tasks["a"].visits == 1


def test_numbers_go_to_the_model_s_logger(tmp_path):
    model = dqn()
    owl = OwlWrapper(model)
    owl.learner.record({"tasks": 1.0})  # there is no logger yet
    model.set_logger(configure(str(tmp_path), ["csv"]))
    owl.learner.at_rollout_end(lambda: owl.learner.record({"steps": model.num_timesteps}))
    with owl.task("a"):
        model.learn(56)
    model.logger.close()
    assert "owl/steps" in (tmp_path / "progress.csv").read_text().splitlines()[0]


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_what_a_model_brings_is_told(kind):
    model = any_model(kind)
    learner = SB3Learner(model)
    assert (learner.pretrained, learner.seed) == (False, 0)
    model.learn(4)
    assert learner.pretrained
    assert SB3Learner(any_model(kind, seed=None)).seed is None


def test_a_trial_changes_nothing():
    def picture(model):
        numbers = torch.get_rng_state(), torch.as_tensor(np.random.get_state()[1].astype(np.int64))
        modes = [m.training for m in model.policy.modules()]
        return [*weights(model).values(), *numbers, torch.tensor(modes)]

    def unchanged(model, trial):
        before = picture(model)
        assert trial() == []
        return all(torch.equal(old, new) for old, new in zip(before, picture(model), strict=True))

    model = any_model(SAC, use_sde=True)
    assert unchanged(model, lambda: SB3Learner(model).trial(None))
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(25)
        row = owl.replay.new_rows()[:1]
        assert unchanged(model, lambda: owl.learner.trial(row))
