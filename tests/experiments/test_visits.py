"""Trials of `compare` that are killed go on, inside a task as well, to the numbers of one that was not."""

from __future__ import annotations

from functools import partial

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import VecNormalize

from owlrl import learners
from owlrl.errors import OwlStateError
from owlrl.experiments import Learned, Method, Plan, compare
from owlrl.experiments.keeping import Keeper, repeatable
from owlrl.experiments.methods import BUILT_IN
from owlrl.experiments.models import model_state
from owlrl.experiments.results import without_times
from owlrl.experiments.visits import Visits
from owlrl.learners import DQNConfig, SACConfig
from owlrl.wrapper_state import same_state
from tests.adapters.helpers import BOX, Guess, any_model
from tests.experiments.fragile import Fragile, Killed, killed_again_and_again
from tests.experiments.signs import TASKS, make_model

CONFIG = {"learning_starts": 10, "batch_size": 8, "buffer_size": 500}


def guesses(actions, **more):
    return {"a": partial(Guess, actions, sign=1, **more), "b": partial(Guess, actions, sign=-1, **more)}


def several(actions, sign):
    return gymnasium.vector.SyncVectorEnv([partial(Guess, actions, sign=sign)] * 3)


def normalized(sign):
    return VecNormalize(make_vec_env(partial(Guess, BOX, sign=sign), 2))


def own_dqn(env, seed):
    config = DQNConfig(**CONFIG, target_every=5, update_every=2)
    return learners.DQN(env, config=config, seed=seed, device="cpu")


def own_sac(env, seed):
    config = SACConfig(**CONFIG, actor_hidden=(8, 8), critic_hidden=(8, 8))
    return learners.SAC(env, config=config, seed=seed, device="cpu")


def td3(env, seed):
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.5), dt=0.2)
    return any_model(TD3, env=env, seed=seed, action_noise=noise)


KINDS = {
    "own DQN": (own_dqn, guesses(3)),
    "own DQN, several": (own_dqn, {"a": partial(several, 3, 1), "b": partial(several, 3, -1)}),
    "own SAC": (own_sac, guesses(BOX)),
    "SB3 DQN": (lambda env, seed: any_model(DQN, env=env, seed=seed), guesses(3)),
    "SB3 DQN, dict": (
        lambda env, seed: any_model(DQN, env=env, seed=seed, observations="dict"),
        guesses(3, observations="dict"),
    ),
    "SB3 SAC": (lambda env, seed: any_model(SAC, env=env, seed=seed, use_sde=True), guesses(BOX)),
    "SB3 SAC, normalized": (
        lambda env, seed: any_model(SAC, env=env, seed=seed),
        {"a": partial(normalized, 1), "b": partial(normalized, -1)},
    ),
    "SB3 TD3": (td3, guesses(BOX)),
}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "SB3 SAC, normalized"])
def test_the_first_task_is_the_bare_learners_bit_for_bit(kind):
    make, tasks = KINDS[kind]
    chosen = {"steps": 40, "methods": ["bare", "alone", "owl"], "seeds": 1, "eval_episodes": 2}
    study = compare(make, tasks={"a": tasks["a"]}, progress=False, **chosen)
    found = [
        trial.select("score")[0]["returns"] for trial in study.trials if trial.method in chosen["methods"]
    ]
    assert len(found) == 3 and found[0] == found[1] == found[2]


# What keeps a state of its own sort; `make slow` has every method with every learner.
CASES = [("own DQN", name) for name in ("bare", "alone", "one head with rehearsal", "owl")]
CASES += [("SB3 DQN", name) for name in ("one head with history", "owl")]
CASES += [("SB3 SAC, normalized", "owl"), ("own DQN, several", "bare")]
SLOW = [(kind, name) for kind in KINDS for name in BUILT_IN if (kind, name) not in CASES]
SLOW = [
    (kind, name)
    for kind, name in SLOW
    if not (name == "one head with history" and kind.endswith(("several", "normalized")))
]


def finish(plan: Plan, keeper: Keeper) -> Visits:
    with repeatable(0):
        visits = Visits(plan, plan.methods[0], 0, keeper, lambda text, steps: None)
        visits.run()
    return visits


def check(kind: str, name: str, path) -> None:
    make, tasks = KINDS[kind]
    plan = Plan.of(
        make, tasks=tasks, steps=35, methods=[name], seeds=1, rounds=2, eval_every=15, eval_episodes=2
    )
    killed, kills = killed_again_and_again(path / "x.part", name, partial(finish, plan))
    whole = finish(plan, Keeper(None, name))
    assert kills >= 3
    assert list(map(without_times, killed.rows)) == list(map(without_times, whole.rows))
    assert sum(row["kind"] == "curve" for row in whole.rows) >= 8
    if kind.startswith("SB3") and not name.startswith(("owl", "paper")):
        states = [model_state(visits.learned.model) for visits in (killed, whole)]
        for state in states:
            state["numbers"].pop("start_time")
            state["seen"] = state["numbers"]["_num_timesteps_at_start"] = None
        assert same_state(*(state["parameters"] for state in states))
        assert same_state(*(state["buffer"] for state in states))


@pytest.mark.filterwarnings("ignore:OwlWrapper.task. VecNormalize has statistics per task")
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_killed_trial_goes_on_as_if_nothing_had_been(kind, name, tmp_path):
    check(kind, name, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:OwlWrapper.task. VecNormalize has statistics per task")
@pytest.mark.parametrize(("kind", "name"), SLOW)
def test_every_kind_and_method(kind, name, tmp_path):
    check(kind, name, tmp_path)


class Unseeded(Guess):
    """Its observations are decided by nothing."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=None if self.resets else np.random.SeedSequence().entropy % 2**31)


def test_an_environment_that_cannot_be_put_back_is_kept_after_each_task(tmp_path):
    tasks = {"a": partial(Unseeded, 3), "b": partial(Unseeded, 3, sign=-1)}
    plan = Plan.of(own_dqn, tasks=tasks, steps=30, methods=["owl"], seeds=1)
    path = tmp_path / "x.part"
    told = r"owl, seed 0 is kept after each task only: the environment of 'a' is not decided by its seed"
    with pytest.warns(UserWarning, match=told), pytest.raises(Killed):
        finish(plan, Fragile(path, "x", kill=3))  # in the middle of the first task
    assert not path.exists()
    with pytest.warns(UserWarning, match=told), pytest.raises(Killed):
        finish(plan, Fragile(path, "x", kill=7, before=True))  # in that of the second one
    assert path.exists()
    rows = finish(plan, Keeper(path, "x")).rows
    assert [row["task"] for row in rows if row["kind"] == "training"] == ["a", "b"]


def test_an_environment_that_changed_is_refused(tmp_path):
    plan, other = (
        Plan.of(own_dqn, tasks={"a": partial(Guess, 3, ends=ends)}, steps=30, methods=["bare"], seeds=1)
        for ends in (False, True)
    )
    with pytest.raises(Killed):
        finish(plan, Fragile(tmp_path / "x.part", "x", kill=9))
    object.__setattr__(other, "tasks", {"a": partial(Guess, 3, observations="discrete")})
    with pytest.raises(OwlStateError, match=r"the environment of 'a' behaved differently.*remove .*x\.part"):
        finish(other, Keeper(tmp_path / "x.part", "x"))


def test_what_has_no_state_is_said(tmp_path):
    class Plain(Method):
        name = "plain"

        def start(self, make_model, env, seed):
            return PlainLearned()

    class PlainLearned(Learned):
        def train(self, task, env, steps, watch=None):
            self.model = own_dqn(env, 0)

    options = {"steps": 30, "eval_episodes": 1, "seeds": 1, "progress": False, "save_every": 0}
    with pytest.warns(UserWarning, match="PlainLearned has no state_dict"):
        compare(own_dqn, tasks=guesses(3), methods=[Plain()], output=tmp_path / "method", **options)
    with pytest.warns(UserWarning, match="the model, a Model, has no state_dict"):
        compare(make_model, tasks=TASKS, methods=["bare"], output=tmp_path / "script", **options)
    assert not list(tmp_path.glob("*/*.part"))
