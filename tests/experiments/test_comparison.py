"""`compare` on tasks that contradict each other: the same bits from one process and two, and what goes on."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from stable_baselines3 import DQN as SB3DQN
from stable_baselines3 import SAC as SB3SAC
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from owlrl import OwlWrapper
from owlrl.acting import run_episodes
from owlrl.envs import TabulatedVectorEnv, TaskSpec, pendulums
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from owlrl.experiments import (
    Learned,
    Method,
    Score,
    Study,
    Trial,
    Wrapped,
    compare,
    compare_file,
    greedy_policy,
    register_method,
    run_trial,
)
from owlrl.experiments import comparison as module
from owlrl.experiments import methods as methods_module
from owlrl.experiments.methods import BUILT_IN, find_method
from owlrl.experiments.models import History, make_env
from owlrl.experiments.plan import Plan, fingerprint
from owlrl.learners import DQN, SAC, DQNConfig, SACConfig
from tests.adapters.helpers import Guess
from tests.experiments.signs import (
    METHODS,
    STEPS,
    STUDY,
    TASKS,
    Fresh,
    cannot_learn,
    make_model,
    numbers,
    plain,
    shifted,
    write_study,
)
from tests.own_dqn import Signs

QUICK = {"tasks": TASKS, "steps": 60, "eval_episodes": 2, "progress": False}


@pytest.fixture(scope="module")
def study():
    methods = ["bare, empty replay", "alone", "owl", *METHODS.values()]
    return compare(
        make_model, tasks=TASKS, steps=STEPS, methods=methods, seeds=2, eval_episodes=5, progress=False
    )


class TestVerdicts:
    """Each planted cause is named, and nothing else is."""

    @pytest.mark.parametrize(
        ("method", "task", "cause"),
        [
            ("alone", "plain", "fine"),
            ("alone", "shifted", "fine"),
            ("owl", "plain", "fine"),
            ("owl", "shifted", "fine"),
            ("bare, empty replay", "plain", "forgotten"),
            ("bare, empty replay", "shifted", "fine"),
            ("forgetful", "plain", "forgotten"),
            ("forgetful", "shifted", "fine"),
            ("misled", "plain", "not recognised"),
            ("misled", "shifted", "not recognised"),
        ],
    )
    def test_planted_causes(self, study, method, task, cause):
        (verdict,) = [v for v in study.verdicts() if (v.method, v.task) == (method, task)]
        assert verdict.cause == cause

    def test_who_finds_the_task(self, study):
        assert study.found("owl") == 1.0 and study.steps_to_find("owl") < 3
        assert study.found("misled") == 0.0 and study.steps_to_find("misled") == 8.0  # episodes have 8 steps
        assert study.found("alone") is None

    def test_matrix(self, study):
        given = study.matrix("owl")
        assert np.isnan(given[0, 1]) and given[[0, 1, 1], [0, 0, 1]].tolist() == [8.0, 8.0, 8.0]
        assert study.matrix("bare, empty replay").tolist() == [[8.0, 0.0], [0.0, 8.0]]
        assert study.forgetting("bare, empty replay") == 4.0

    def test_a_learner_that_cannot_learn(self):
        study = compare(
            cannot_learn,
            tasks=TASKS,
            steps=60,
            methods=["alone", "owl"],
            seeds=2,
            eval_episodes=5,
            progress=False,
        )
        assert {verdict.cause for verdict in study.verdicts()} == {"the learner did not learn it"}


def test_an_interrupted_study_goes_on(tmp_path, monkeypatch, capsys):
    options = {**QUICK, "methods": ["bare", "owl"], "seeds": 1}
    whole, real, done = numbers(compare(make_model, **options)), module.run_trial, []

    def stopping(plan, trial, **options):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(trial)
        return real(plan, trial, **options)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, "run_trial", stopping)
        compare(make_model, **options, output=tmp_path)
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    assert numbers(compare(make_model, **options, output=tmp_path)) == whole
    (path,) = tmp_path.glob("bare-s0-*")
    path.write_text("{", encoding="utf-8")  # damaged: done again
    capsys.readouterr()
    again = compare(make_model, **{**options, "progress": True}, output=tmp_path)
    assert numbers(again) == whole and numbers(Study.load(tmp_path)).keys() == whole.keys()
    told = capsys.readouterr().err
    assert "bare, seed 0 runs again" in told and "compare: 1 runs of 3 to do, 120 steps each" in told


def test_what_changed_runs_again_with_a_message(tmp_path, capsys):
    log = tmp_path / "log"  # and no list: what a method sees around it counts as its source

    class Counting(Method):
        name, size = "counting", 1

        def start(self, make_model, env, seed):
            log.write_text((log.read_text() if log.exists() else "") + f"{self.size} ")
            return Nothing()

    class Nothing(Learned):
        def train(self, task, env, steps, watch=None):
            self.model = Constant()

    class Constant:
        def predict(self, observation):
            return 0

    def study(method, **more):
        options = {**QUICK, "progress": True, "seeds": 1, "output": tmp_path, **more}
        return compare(make_model, methods=[method], **options)

    study(Counting())
    study(Counting())
    assert log.read_text() == "1 "  # it was there
    changed = Counting()
    changed.size = 2
    capsys.readouterr()
    study(changed)
    told = capsys.readouterr().err
    assert log.read_text() == "1 2 " and "make_model, a task or the method changed" in told
    assert told.count("runs again") == 1  # random actions did not change
    study(changed, steps=61)  # other settings have a file of their own
    assert log.read_text() == "1 2 2 " and len(list(tmp_path.glob("counting-*"))) == 2


def test_an_error_ends_no_other_run(capsys):
    class Failing(Method):
        name = "failing"

        def start(self, make_model, env, seed):
            raise ZeroDivisionError("no luck")

    study = compare(make_model, **{**QUICK, "progress": True}, methods=["bare", Failing()], seeds=1)
    assert study.methods == ["bare"] and "1 failed" in repr(study)
    ((method, seed, text),) = study.errors
    assert (method, seed) == ("failing", 0) and "ZeroDivisionError: no luck (test_comparison.py:" in text
    assert any("failed" in note for note in study.notes())
    assert "failing, seed 0 failed" in capsys.readouterr().err
    with pytest.raises(OwlStateError, match="no run could be finished"):
        compare(lambda env, seed: 3, **QUICK, methods=["bare"], seeds=1)


def test_watching_changes_nothing_and_gives_forward_transfer():
    options = {
        "tasks": {"short": partial(gymnasium.make, "CartPole-v1", max_episode_steps=30)},
        "steps": 600,
        "methods": ["bare", "alone"],
        "seeds": 1,
        "eval_episodes": 2,
        "progress": False,
    }
    config = DQNConfig(learning_starts=100, batch_size=32, buffer_size=1_000)
    make = lambda env, seed: DQN(env, config=config, seed=seed)  # noqa: E731
    plain, watched = compare(make, **options), compare(make, **options, eval_every=200)
    unwatched = {key: [r for r in rows if r["kind"] != "curve"] for key, rows in numbers(watched).items()}
    assert unwatched == numbers(plain)
    steps = [row["step"] for row in watched.trials[0].select("curve")]
    assert steps == [200, 400, 600]
    assert plain.forward_transfer("bare") is None
    gain = watched.forward_transfer("bare")  # one task in the sequence is the task alone
    assert gain is None or gain == pytest.approx(0.0)


def sb3_dqn(env, seed):
    return SB3DQN(
        "MlpPolicy",
        env,
        buffer_size=500,
        learning_starts=20,
        batch_size=16,
        policy_kwargs={"net_arch": [8]},
        seed=seed,
        device="cpu",
    )


@pytest.mark.parametrize(
    "method",
    [
        "bare",
        "bare, empty replay",
        "alone",
        "one head with rehearsal",
        "one head with history",
        "owl",
        "paper",
    ],
)
def test_stable_baselines3(method):
    study = compare(sb3_dqn, **{**QUICK, "eval_every": 40}, methods=[method], seeds=1, rounds=2)
    assert not study.errors
    assert np.isfinite(study.scores(method)).all()
    assert [row["step"] for row in study.trials[0].select("curve", visit=0)] == [40, 60]


def test_rehearsal_draws_half_of_a_batch_from_earlier_visits():
    seen = []

    class Watching(SB3DQN):
        def train(self, gradient_steps, batch_size=100):
            batch = self.replay_buffer.sample(100)
            seen.append(batch.rewards.mean().item())
            super().train(gradient_steps, batch_size)

    class Paying(Signs):
        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, float(self.shift), *rest

    def make(env, seed):
        return Watching("MlpPolicy", env, buffer_size=500, learning_starts=20, seed=seed, device="cpu")

    tasks = {"nothing": lambda: Paying(0), "all": lambda: Paying(1)}
    options = {"steps": 60, "seeds": 1, "eval_episodes": 1, "progress": False}
    study = compare(make, tasks=tasks, methods=["one head with rehearsal"], **options)
    assert not study.errors
    half = len(seen) // 2
    assert set(seen[:half]) == {0.0} and set(seen[half:]) == {0.5}  # half of it is of the first task


def test_dict_observations_and_vecnormalize():
    class Parts(gymnasium.ObservationWrapper):
        def __init__(self, env):
            super().__init__(env)
            self.observation_space = gymnasium.spaces.Dict({"sign": env.observation_space})

        def observation(self, observation):
            return {"sign": observation}

    def dicts(env, seed):
        return SB3DQN("MultiInputPolicy", env, buffer_size=100, learning_starts=10, seed=seed, device="cpu")

    tasks = {"one": lambda: Parts(Signs(0)), "two": lambda: Parts(Signs(1))}
    study = compare(dicts, **{**QUICK, "tasks": tasks}, methods=["bare", "owl"], seeds=1)
    assert not study.errors

    def normalised(angle):
        make = partial(gymnasium.make, "owlrl/Pendulum-v0", angle=angle, max_episode_steps=20)
        return VecNormalize(DummyVecEnv([make]), training=False)

    def sac(env, seed):
        small = {
            "buffer_size": 100,
            "learning_starts": 10,
            "batch_size": 8,
            "policy_kwargs": {"net_arch": [8]},
        }
        return SB3SAC("MlpPolicy", env, **small, seed=seed, device="cpu")

    tasks = {"left": partial(normalised, 90.0), "right": partial(normalised, -90.0)}
    study = compare(
        sac, tasks=tasks, steps=30, methods=["bare", "owl"], seeds=1, eval_episodes=1, progress=False
    )
    assert not study.errors


def test_learners_of_our_own_and_vector_environments():
    config = DQNConfig(learning_starts=64, batch_size=16, buffer_size=500)
    spec = partial(TaskSpec.of, "owlrl/Crossroads-v0", arms=2, length=1, max_steps=8)
    tasks = {f"goal {k}": partial(TabulatedVectorEnv, spec(task=k).table(), 4) for k in range(2)}
    study = compare(
        lambda env, seed: DQN(env, config=config, seed=seed),
        tasks=tasks,
        steps=128,
        methods=["bare", "bare, empty replay", "one head with rehearsal", "alone", "owl"],
        seeds=1,
        eval_every=64,
        eval_episodes=4,
        progress=False,
    )
    assert not study.errors and study.found("owl") is not None
    small = SACConfig(
        learning_starts=16, batch_size=8, buffer_size=200, actor_hidden=(8,), critic_hidden=(8,)
    )
    study = compare(
        lambda env, seed: SAC(env, config=small, seed=seed),
        tasks=pendulums([90, -90], max_episode_steps=20),
        steps=40,
        methods=["bare", "one head with rehearsal", "one head with history", "owl"],
        seeds=1,
        eval_episodes=1,
        progress=False,
    )
    assert not study.errors


def test_methods_that_do_not_fit_say_so():
    study = compare(make_model, **QUICK, methods=["bare", "one head with rehearsal"], seeds=1)
    assert "write a Method that keeps its rows" in study.errors[0][2]
    with pytest.raises(OwlTypeError, match="expected a single one"):
        History(gymnasium.make_vec("CartPole-v1", num_envs=2))


def test_tasks_come_in_any_order(tmp_path):
    order = ["shifted", "plain", "shifted"]
    study = compare(make_model, **QUICK, methods=["owl"], seeds=1, order=order, output=tmp_path)
    trial = study.trials[0]
    assert trial.visits == order and trial.steps == 3 * QUICK["steps"] == trial.starts()[-1]
    assert [row["round"] for row in trial.select("training")] == [0, 0, 1]
    assert len(trial.scores("right after", "given")) == 2 and "3 visits)" in study.table()
    done = [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]
    compare(make_model, **QUICK, methods=["owl"], seeds=1, order=order, output=tmp_path)
    assert done == [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]
    rounds = compare(make_model, **QUICK, methods=["owl"], seeds=1, output=tmp_path)
    assert rounds.trials[0].id != trial.id and rounds.trials[0].visits == ["plain", "shifted"]


class TestIds:
    """Environments that a script has registered."""

    @pytest.fixture
    def register(self, monkeypatch):
        monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.registry})
        monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)

        def register(entry_point, **more):
            gymnasium.envs.registration.registry.pop("mine/Signs-v0", None)
            gymnasium.register("mine/Signs-v0", entry_point, max_episode_steps=8, **more)
            return {"plain": "mine/Signs-v0"}

        return register

    def test_processes_know_them(self, register):
        tasks = register("tests.own_dqn:Signs")
        study = compare(
            make_model, **{**QUICK, "tasks": tasks, "steps": 40}, methods=["bare"], seeds=2, jobs=2
        )
        assert not study.errors and np.isfinite(study.scores("bare")).all()

    def test_what_makes_them_counts(self, register):
        def source():
            return Plan.of(make_model, tasks=tasks, steps=1, seeds=1).trials()[0].source

        tasks = register("tests.own_dqn:Signs")
        before = source()
        assert register("tests.own_dqn:Signs") and source() == before
        assert register("tests.own_dqn:Signs", kwargs={"shift": 1}) and source() != before

        class Other(Signs):
            """By something that is no text."""

        assert register(Other) and source() != before

    def test_those_of_libraries_do_not(self):
        known = Plan.of(make_model, tasks={"a": "CartPole-v1"}, steps=1, seeds=1)
        assert known.trials()[0].source == fingerprint(make_model, {"a": "CartPole-v1"}, known.methods[0])


def test_a_registered_method_has_a_name(monkeypatch):
    monkeypatch.setattr(methods_module, "BUILT_IN", dict(BUILT_IN))
    register_method(Fresh())
    assert find_method("fresh model").name == "fresh model"
    register_method(Fresh())  # a study's file may be executed again
    with pytest.raises(OwlValueError, match="'owl' is there already"):
        register_method(Wrapped("owl"))
    with pytest.raises(OwlValueError, match="'lpg-ftw' is there already"):  # imported when asked for
        register_method(Wrapped("lpg-ftw"))


def test_own_methods_by_object_class_and_dotted_name():
    assert find_method("tests.experiments.signs:Fresh").name == find_method(Fresh).name == "fresh model"
    assert find_method(BUILT_IN["owl"]) is BUILT_IN["owl"]
    study = compare(make_model, **QUICK, methods=["tests.experiments.signs:Fresh"], seeds=2)
    assert study.methods == ["fresh model"] and len(study.scores("fresh model")) == 2
    for wrong, message in (
        ("nothing", "expected one of 'bare'"),
        ("no.such:thing", "cannot be imported"),
        ("tests.experiments.signs:nothing", "cannot be imported"),
    ):
        with pytest.raises(OwlValueError, match=message):
            find_method(wrong)
    for wrong in (3, Method()):
        with pytest.raises(OwlTypeError, match="expected an object of a subclass"):
            find_method(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"make_model": 3}, "make_model is 3; expected a function"),
        ({"tasks": {}}, "expected a mapping"),
        ({"tasks": ["CartPole-v1"]}, "expected a mapping"),
        ({"steps": 0}, "steps of 'plain' is 0"),
        ({"steps": {"plain": 3}}, "expected one number per task"),
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": [-1]}, "seed is -1"),
        ({"seeds": []}, r"seeds are \[\]; expected at least one"),
        ({"seeds": [3, 3]}, r"seeds are \[3, 3\]; expected .* each once"),
        ({"make_model": lambda env: env}, "make_model cannot be called with two arguments"),
        ({"tasks": {"a": Signs(0)}}, "task 'a' is a Signs; expected a Gymnasium id"),
        ({"tasks": {"a": "CartPol-v1"}}, "task 'a' is 'CartPol-v1': .*CartPole"),
        ({"tasks": {"a": "no_such:CartPole-v1"}}, "No module named 'no_such'"),
        ({"unseen": {"far": {"a": 3}}}, "task 'a' of unseen 'far' is an int"),
        ({"order": 5}, "order is 5"),
        ({"save_every": -1}, "save_every is -1; expected a finite number >= 0"),
        (
            {"solved": {"nowhere": 1.0}},
            "solved is {'nowhere': 1.0}; expected returns by task, of plain, shifted",
        ),
        ({"solved": 3}, "solved is 3; expected returns by task"),
        ({"solved": {"plain": "a"}}, "solved of 'plain' is 'a'"),
        ({"tensorboard": __file__}, "tensorboard is .*which is a file"),
        ({"methods": ["owl", "owl"]}, "each once"),
        ({"methods": []}, "at least one"),
        ({"rounds": 0, "eval_every": 0, "eval_episodes": 0}, "3 problems"),
        ({"order": ["plain"]}, "order is .'plain'.*each at least once"),
        ({"order": "plain"}, "order is 'plain'"),
        ({"order": ["plain", "shifted", "plain"], "rounds": 2}, "and no rounds"),
        ({"jobs": 0}, "jobs is 0"),
        ({"backend": "ray"}, "backend is 'ray'"),
        ({"scheduler": "tcp://x:1"}, "go together"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    options = {"make_model": make_model, **QUICK, "seeds": 1, **arguments}
    with pytest.raises(OwlValueError, match=message):
        compare(options.pop("make_model"), **options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"make_model": lambda env, seed: object()},
            "make_model returned an object; expected a Stable-Baselines3",
        ),
        ({"tasks": {"a": lambda: None}}, "of task 'a' returned None; expected a Gymnasium environment"),
        (
            {"tasks": {**TASKS, "c": "CartPole-v1"}},
            r"task 'c' has actions Discrete\(2\); expected Discrete\(4\)",
        ),
        ({"measure": "success"}, "no episode of task 'plain' ended with info"),
        ({"methods": ["lpg-ftw"]}, "the action space is Discrete"),  # though random actions could be run
    ],
)
def test_what_shows_in_the_first_run_is_named(arguments, message):
    options = {"make_model": make_model, **QUICK, "methods": ["bare"], "seeds": 1, **arguments}
    with pytest.raises(OwlStateError, match=f"no run could be finished; the first failed with .*{message}"):
        compare(options.pop("make_model"), **options)


def test_seeds_may_be_a_numpy_array():
    assert Plan.of(make_model, tasks=TASKS, steps=1, seeds=np.arange(2, 4)).seeds == (2, 3)


def test_output_is_a_path():
    with pytest.raises(OwlTypeError, match="output is 3; expected the path of a directory"):
        compare(make_model, **QUICK, methods=["bare"], seeds=1, output=3)


def test_factories_get_the_seed_if_they_want_it():
    got = []
    factories = [
        lambda seed: got.append(seed),
        lambda: got.append("none"),
        lambda length=3, *, seed: got.append((length, seed)),
        lambda number: got.append(number),
        partial(lambda length, seed=0: got.append((length, seed)), 4),
    ]
    for factory in factories:
        make_env(factory, 7)
    assert got == [7, "none", (3, 7), 7, (4, 7)]
    assert make_env("CartPole-v1", 0).spec.id == "CartPole-v1"
    with pytest.raises(OwlTypeError, match="expected a Gymnasium id"):
        make_env(3, 0)


def test_history_has_what_happened():
    env = History(Signs(0), steps=2)
    first, _ = env.reset(seed=0)
    assert first[:4].sum() == 1.0 and not first[4:].any()
    second, reward, *_ = env.step(2)
    step = second[4:].reshape(2, 9)
    assert not step[0].any()
    assert step[1].tolist() == [*first[:4], 0.0, 0.0, 1.0, 0.0, reward]
    third = env.step(0)[0]
    assert third[4:13].tolist() == step[1].tolist() and third[13:17].tolist() == second[:4].tolist()
    assert not env.reset()[0][4:].any()


def test_history_of_a_dict_is_a_part_of_it():
    env = History(Guess(3, sign=1, observations="dict"), steps=2)
    first, _ = env.reset(seed=0)
    second, reward, *_ = env.step(2)
    assert env.observation_space.contains(first) and env.observation_space.contains(second)
    assert not first["history"].any() and second["history"][-4:].tolist() == [0.0, 0.0, 1.0, reward]
    seen = gymnasium.spaces.flatten(env.env.observation_space, first)
    np.testing.assert_array_equal(second["history"].reshape(2, -1)[1][: len(seen)], seen)
    with pytest.raises(OwlValueError, match="expected none called 'history'"):
        History(env)


def test_a_file_gives_the_same_study(tmp_path):
    path = write_study(tmp_path)
    expected = numbers(compare(make_model, **QUICK, methods=["bare"], seeds=2))
    assert numbers(compare_file(path, progress=False)) == expected
    shorter = compare_file(path, steps=40, methods=["alone"], seeds=1, progress=False)
    assert shorter.methods == ["alone"] and shorter.trials[0].settings["steps"] == {
        "plain": 40,
        "shifted": 40,
    }


def test_a_method_that_only_the_file_has_is_chosen_by_its_name(tmp_path):
    text = STUDY.replace('["bare"]', '["bare", Fresh(), Wrapped("mine")]')
    text = "from owlrl.experiments import Wrapped\nfrom tests.experiments.signs import Fresh\n" + text
    path = write_study(tmp_path, text)
    chosen = compare_file(path, methods=("fresh model", "owl"), seeds=1, progress=False)
    assert chosen.methods == ["fresh model", "owl"]
    for names in (["mine"], "mine"):
        work, _ = module.file_work(path, methods=names, seeds=1)
        assert [each.trial.method for each in work] == ["mine", "random actions"]
    with pytest.raises(OwlValueError, match="method is 'other'; expected one of"):
        module.file_work(path, methods=["other"])


def test_studies_of_the_package_do_not_hide_libraries(tmp_path):
    before, package = list(sys.path), Path(module.__file__).parent
    module.file_work(package / "cheetah.py", seeds=1)
    assert str(package) not in sys.path
    own = write_study(tmp_path)
    module.file_work(own, seeds=1)
    assert sys.path == [*before, str(own.parent)]
    sys.path.remove(str(own.parent))


def test_a_file_with_a_function(tmp_path):
    text = STUDY.replace("tasks =", "chosen =") + (
        "def study():\n"
        "    more = dict(steps=40, methods=['bare'], seeds=1, eval_episodes=1)\n"
        "    return dict(make_model=make_model, tasks=chosen, **more)\n"
    )
    study = compare_file(write_study(tmp_path, text), progress=False)
    assert study.trials[0].settings["steps"] == {"plain": 40, "shifted": 40}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks = {}", "has no make_model and no steps"),
        ("1 / 0", "cannot be executed .ZeroDivisionError"),
        ("def study():\n    return {'nonsense': 1}", "returned nonsense; expected a dict"),
        ("def study():\n    return 3", "returned an int; expected a dict"),
    ],
)
def test_a_file_that_is_no_study(tmp_path, text, message):
    with pytest.raises((OwlValueError, OwlTypeError), match=message):
        compare_file(write_study(tmp_path, text), progress=False)
    with pytest.raises(OwlValueError, match="cannot be read"):
        compare_file(tmp_path / "nowhere.py")


def test_a_file_that_is_not_on_the_worker(tmp_path):
    """As on another machine: the plan is recalled from the text."""
    write_study(tmp_path)
    plan = module._recalled(str(tmp_path / "gone" / "my_study.py"), STUDY, {"seeds": 1})
    assert plan.seeds == (0,) and list(plan.tasks) == ["plain", "shifted"]


def test_plan_and_trials():
    tasks = {"a": plain, "b": shifted}
    plan = Plan.of(make_model, tasks=tasks, steps={"a": 1, "b": 2}, methods="owl", seeds=[3, 5])
    assert [(trial.method, trial.seed) for trial in plan.trials()] == [
        ("owl", 3), ("owl", 5), ("random actions", 3), ("random actions", 5),
    ]  # fmt: skip
    assert plan.total == 3


class Counted(gymnasium.Wrapper):
    """Five steps long; a success if the last action was the one that the task asks for."""

    def __init__(self, right, bonus):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.right, self.bonus, self.step_of = right, bonus, 0

    def reset(self, **options):
        self.step_of = 0
        return self.env.reset(**options)

    def step(self, action):
        observation, _, *_ = self.env.step(action)
        self.step_of += 1
        over, right = self.step_of == 5, action == self.right
        return observation, self.bonus * right, over, False, {"is_success": bool(over and right)}


class Ways(Method):
    """Acts in three ways, of which one is asked after each task."""

    name, about = "three ways", "always the same action, by the way it acts"

    def start(self, make_model, env, seed):
        return WaysLearned()


class WaysLearned(Learned):
    modes, followed = ("left", "right", "by the task"), ("left",)

    def __init__(self):
        self.paid = []

    def train(self, task, env, steps, watch=None):
        env.reset(seed=0)
        self.paid.append(env.step(0)[1])

    def score(self, env, task, *, mode, episodes, seed):
        model = SimpleNamespace(predict=lambda seen: {"left": 0, "right": 1}.get(mode, int("right" in task)))
        return Score.of(run_episodes(greedy_policy(model), env, episodes=episodes, seed=seed))

    def info(self):
        return {"paid": self.paid}

    def save(self, path):
        Path(path).write_text("learned")


def counted(right, bonus=0.0):
    return Counted(right, bonus)


def test_success_named_ways_other_sets_and_a_bonus_in_training_only(tmp_path):
    """What our own studies need: each by its own numbers."""
    tasks = {
        "to the left": (partial(counted, 0, bonus=1.0), partial(counted, 0)),
        "to the right": (partial(counted, 1), partial(counted, 1)),
    }
    chosen = {"tasks": tasks, "steps": 1, "measure": "success", "methods": [Ways()], "seeds": 1}
    unseen = {"others": {"right again": partial(counted, 1)}}
    plan = Plan.of(make_model, **chosen, unseen=unseen, eval_episodes=2)
    trial = run_trial(plan, plan.trials()[0], checkpoint=tmp_path / "kept")
    assert trial.info["paid"] == [1.0, 0.0] and (tmp_path / "kept").read_text() == "learned"
    assert [row["mode"] for row in trial.select("score", visit=0)] == ["left", "left"]
    assert trial.measure == "success" and trial.modes == ("left", "right", "by the task")
    assert [trial.scores("final", mode) for mode in trial.modes] == [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    assert [row["success"] for row in trial.final(label="others")] == [0.0, 1.0, 1.0]
    assert {row["mean_return"] for row in trial.select("score")} == {0.0}  # the bonus is for training
    assert trial.settings["measure"] == "success" and trial.settings["unseen"] == {"others": ["right again"]}
    again = Trial.read(trial.write(tmp_path))
    assert again.same(trial) and list(again.rows) == list(trial.rows)
    study = compare(make_model, **chosen, eval_episodes=2, progress=False)
    assert study.scores("three ways", mode="by the task").tolist() == [[1.0, 1.0]]
    assert np.isnan(study.after_each("three ways", mode="right")[0, 0]).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"measure": "luck"}, "measure is 'luck'; expected 'return' or 'success'"),
        ({"unseen": {"others": make_model}}, "unseen is .*expected a mapping from names of sets to tasks"),
        ({"unseen": ["others"]}, "unseen is "),
    ],
)
def test_what_is_measured_and_other_sets_are_checked(wrong, message):
    with pytest.raises(OwlValueError, match=message):
        compare(make_model, tasks=TASKS, steps=1, **wrong)


def test_a_wrapped_model_is_saved_and_others_say_that_they_cannot(tmp_path):
    plan = Plan.of(make_model, tasks=TASKS, steps=40, methods=["owl", "bare"], seeds=1, eval_episodes=1)
    owl, bare, *_ = plan.trials()
    run_trial(plan, owl, checkpoint=tmp_path / "owl.safetensors")
    model = make_model(plain(0), 0)
    assert list(OwlWrapper.load(tmp_path / "owl.safetensors", model.learner, acting=True).tasks) == list(
        TASKS
    )
    with pytest.raises(OwlStateError, match="_OneLearned has no save"):
        run_trial(plan, bare, checkpoint=tmp_path / "bare")
