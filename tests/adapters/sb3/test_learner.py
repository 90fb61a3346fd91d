"""Live Stable-Baselines3 models, wrapped: heads, guards, policies, callbacks, files and refusals."""

from __future__ import annotations

import copy
from functools import partial

import numpy as np
import pytest
import torch
from sb3_contrib import QRDQN, TQC
from stable_baselines3 import A2C, DDPG, DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback, EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import nn

from owlrl import DistillationRegularizer, EWCRegularizer, OracleSelector, OwlWrapper, check_learner
from owlrl.adapters.sb3 import SB3Learner, adapt
from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError
from tests.adapters.helpers import BOX, KINDS, Guess, actor_critic, any_model, dqn, other_env, same, weights
from tests.rows import rows_of

ZEROS = np.zeros(3, np.float32)


def two_tasks(model, steps=60, **arguments):
    owl = OwlWrapper(model, **{"memory_rows": 64, **arguments})
    with owl.task("a"):
        model.learn(steps)
    with owl.task("b", env=other_env(model)):
        model.learn(steps)
    return owl


def deterministic(model, observation=ZEROS):
    return model.predict(observation, deterministic=True)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_networks_targets_and_optimizers_grow_together(kind):
    model = any_model(kind)
    online = (
        [model.q_net]
        if kind is DQN
        else [model.quantile_net]
        if kind is QRDQN
        else [model.actor, model.critic]
    )
    before = [len(list(network.parameters())) for network in online]
    owl = two_tasks(model, steps=25)
    for network, count in zip(online, before, strict=True):
        layers = {
            SAC: {"actor": 2, "critic": 2},
            TD3: {"actor": 1, "critic": 2},
            DDPG: {"actor": 1, "critic": 1},
        }
        outputs = layers[kind]["actor" if network is online[0] else "critic"] if kind in layers else 1
        assert len(list(network.parameters())) == count + 2 * outputs
    for name, network in owl.learner.networks.items():
        assert network.num_heads == 2
        groups = owl.learner.optimizers[name].param_groups
        held = {id(p) for group in groups for p in group["params"]}
        assert len(groups) == 1
        assert {id(p) for p in network.head_parameters(1).values()} <= held
        if name in owl.learner.targets:
            target = owl.learner.targets[name]
            assert [n for n, _ in target.module.named_parameters()] == [
                n for n, _ in network.module.named_parameters()
            ]
            assert target.pointer is network.pointer


@pytest.mark.parametrize("kind", KINDS)
def test_idle_heads_stay_as_they_are(kind):
    model = any_model(kind, policy_kwargs={"optimizer_kwargs": {"weight_decay": 0.1}})
    owl = OwlWrapper(model, regularizer=EWCRegularizer(1.0), memory_rows=64)
    with owl.task("a"):
        model.learn(40)
    heads = [p for n in owl.learner.networks.values() for p in n.head_parameters(0).values()]
    kept = [p.detach().clone() for p in heads]
    with owl.task("b", env=other_env(model)):
        model.learn(40)
    assert all(torch.equal(p, k) for p, k in zip(heads, kept, strict=True))
    own = [p for n in owl.learner.networks.values() for p in n.head_parameters(1).values()]
    assert all(p.grad is not None for p in own)


@pytest.mark.parametrize(
    ("kind", "observations"),
    [(DQN, "discrete"), (DQN, "image"), (QRDQN, "dict"), (SAC, "dict"), (TD3, "image"), (DDPG, "box")],
)
def test_every_kind_of_observation(kind, observations):
    model = any_model(kind, observations=observations, learning_starts=8, batch_size=4, train_freq=4)
    owl = two_tasks(model, steps=16, regularizer=DistillationRegularizer(1.0, batch_size=4), memory_rows=64)
    observation = Guess(observations=observations).reset(seed=1)[0]
    for task, head in (("a", 0), ("b", 1)):
        policy = owl.policy(OracleSelector(head))
        policy.reset()
        with owl.use(task):
            assert np.allclose(policy.act(observation), deterministic(model, observation), atol=1e-5)
    env = Guess(int(model.action_space.n) if kind in (DQN, QRDQN) else BOX, observations=observations)
    assert owl.evaluate(env, episodes=1).lengths.tolist() == [7]
    vector = make_vec_env(lambda: copy.deepcopy(env), n_envs=2)
    assert owl.evaluate(vector, episodes=2, seed=0).lengths.tolist() == [7, 7]


@pytest.mark.parametrize("kind", [SAC, TD3])
def test_current_states_are_what_the_networks_are_called_with(kind):
    model = any_model(kind)
    owl = two_tasks(model, steps=30, regularizer=DistillationRegularizer(1.0, states="current", batch_size=8))
    assert float(owl.regularizer.penalty()) >= 0.0
    rows = owl.replay.sample(20)
    contexts = owl.learner.consolidation(rows)
    assert torch.allclose(contexts["critic"].inputs[1], rows.action)


@pytest.mark.parametrize("kind", [DQN, SAC, TD3])
def test_td_errors_are_those_of_the_models_own_targets(kind):
    """Against the targets as Stable-Baselines3 writes them down, in its own units."""
    model = any_model(kind, env=None if kind is not DQN else Guess(ends=True))
    owl = OwlWrapper(model, memory_rows=64)
    with owl.task("a"):
        model.learn(80)
    rows = rows_of(owl.replay)
    got = owl.learner.td_errors(rows, np.array([0]))[0]
    buffer = model.replay_buffer
    order = {bytes(o): k for k, o in enumerate(np.ascontiguousarray(buffer.observations[:80, 0]))}
    index = [order[bytes(o)] for o in rows.observation.numpy()]
    seen, following = (torch.as_tensor(x[index, 0]) for x in (buffer.observations, buffer.next_observations))
    action, reward = torch.as_tensor(buffer.actions[index, 0]), torch.as_tensor(buffer.rewards[index, 0])
    done = torch.as_tensor((buffer.dones * (1 - buffer.timeouts))[index, 0])
    model.policy.set_training_mode(False)
    with torch.no_grad():
        if kind is DQN:
            value, now = (
                model.q_net_target(following).amax(1),
                model.q_net(seen).gather(1, action.long())[:, 0],
            )
        elif kind is TD3:
            value = torch.cat(model.critic_target(following, model.actor_target(following)), 1).amin(1)
            now = torch.cat(model.critic(seen, action), 1).mean(1)
        else:
            torch.manual_seed(0)
            drawn = []
            for _ in range(400):
                chosen, log_prob = model.actor.action_log_prob(following)
                least = torch.cat(model.critic_target(following, chosen), 1).amin(1)
                drawn.append(least - model.log_ent_coef.exp() * log_prob)
            value, now = torch.stack(drawn).mean(0), torch.cat(model.critic(seen, action), 1).mean(1)
    expected = reward + model.gamma * (1 - done) * value - now
    assert torch.allclose(got, expected, atol=0.1 if kind is SAC else 1e-4)


def test_forgetting_is_held_back():
    """Action 0 pays in one task, the last one in the other: the bare model loses the first."""

    def correct(model, sign):
        env = Guess(sign=sign)
        seen = np.stack([env.reset(seed=k)[0] for k in range(50)])
        return np.mean(deterministic(model, seen) == (0 if sign > 0 else 2))

    settings = {"learning_rate": 5e-3, "gamma": 0.0, "buffer_size": 200}
    bare = dqn(**settings)
    bare.learn(220)
    assert correct(bare, 1) == 1.0
    bare.set_env(Guess(sign=-1))
    bare.learn(220)
    assert correct(bare, 1) < 0.1
    model = dqn(**settings)
    owl = two_tasks(model, steps=220, regularizer=DistillationRegularizer(1.0), memory_rows=300)
    for task, sign in (("a", 1), ("b", -1)):
        with owl.use(task):
            assert correct(model, sign) == 1.0
        assert owl.evaluate(Guess(sign=sign), episodes=8, seed=0).mean_return > 5.0  # of 7, task not told


@pytest.mark.parametrize("regularizer", [EWCRegularizer, partial(DistillationRegularizer, every=1)])
@pytest.mark.parametrize(
    ("strength", "free"),
    [({"actor": 0.0, "critic": 1e9}, "actor"), ({"actor": 1e9, "critic": 0.0}, "critic")],
)
def test_actor_and_critic_are_held_apart(strength, free, regularizer):
    model = actor_critic(TD3, learning_rate=1e-2)
    owl = OwlWrapper(model, regularizer=regularizer(strength), memory_rows=64)
    with owl.task("a"):
        model.learn(60)
    trunks = {name: list(n.shared_parameters().values()) for name, n in owl.learner.networks.items()}
    norms: dict[str, float] = {}

    def look(name):
        def hook(*_):
            norms.setdefault(name, max(p.grad.norm().item() for p in trunks[name]))

        return hook

    with torch.no_grad():
        for trunk in trunks.values():
            for p in trunk:
                p.add_(0.1)  # away from where it was held
    hooks = [o.register_step_pre_hook(look(name)) for name, o in owl.learner.optimizers.items()]
    with owl.task("b", env=other_env(model)):
        model.learn(25)
    for hook in hooks:
        hook.remove()
    held = "critic" if free == "actor" else "actor"
    assert norms[held] > 1e3 > norms[free]


class Extractor(BaseFeaturesExtractor):
    """Somebody's own trunk, with a layer norm and dropout."""

    def __init__(self, space):
        super().__init__(space, 8)
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.Dropout(0.1), nn.Tanh())

    def forward(self, observations):
        return self.layers(observations)


@pytest.mark.parametrize(
    ("kind", "share"), [(DQN, False), (SAC, False), (TD3, False), (SAC, True), (TD3, True)]
)
def test_own_and_shared_features_extractors(kind, share):
    kwargs = {"features_extractor_class": Extractor, **({"share_features_extractor": True} if share else {})}
    model = any_model(kind, policy_kwargs=kwargs)
    regularizer = EWCRegularizer(1.0) if share else DistillationRegularizer(1.0)
    owl = two_tasks(model, steps=30, regularizer=regularizer)
    for network in owl.learner.networks.values():
        assert any("features_extractor" in name for name in network.shared_parameters())
    with owl.task("a"):
        model.learn(10)


@pytest.mark.filterwarnings("ignore:rich is experimental")  # tqdm's own, of the progress bar
def test_callbacks_and_logger_work_inside_a_block(tmp_path):
    class Switcher(BaseCallback):
        """Looks at the other task in the middle of learning."""

        def _on_step(self):
            if "a" in owl.tasks and owl.tasks["a"].visits and self.n_calls % 20 == 0:
                with owl.use("a"):
                    looked.append(deterministic(model).item())
            return True

    model, looked = dqn(), []
    owl = OwlWrapper(model)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    for task in ("a", "b"):
        evaluation = EvalCallback(
            Monitor(Guess()), eval_freq=30, n_eval_episodes=2, verbose=0, log_path=str(tmp_path)
        )
        checkpoint = CheckpointCallback(30, str(tmp_path / task), save_replay_buffer=True)
        with owl.task(task, env=Guess()):
            model.learn(
                60, callback=CallbackList([evaluation, checkpoint, Switcher()]), progress_bar=task == "b"
            )
        assert len(evaluation.evaluations_results) == 2
        assert (tmp_path / task / "rl_model_60_steps.zip").is_file()
    assert len(looked) == 3
    assert len(set(looked)) == 1  # the first task's answer, while the second is learned
    model.logger.close()
    assert "rollout/exploration_rate" in (tmp_path / "progress.csv").read_text()
    one_head = DQN.load(tmp_path / "a" / "rl_model_60_steps.zip")  # before there were two
    assert set(weights(one_head)) == set(weights(dqn()))


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load_continue(kind, tmp_path):
    model = any_model(kind)
    owl = two_tasks(model, steps=40, regularizer=DistillationRegularizer(1.0, seed=0))
    owl.save(tmp_path / "owl.safetensors")
    fresh = any_model(kind)
    again = OwlWrapper.load(
        tmp_path / "owl.safetensors", fresh, regularizer=DistillationRegularizer(1.0, seed=1)
    )
    assert same(weights(model), weights(fresh))
    assert list(again.tasks) == ["a", "b"]
    env = other_env(model)
    for task in ("a", "b"):
        expected = owl.evaluate(env, task=task, episodes=2, seed=3)
        assert np.array_equal(again.evaluate(env, task=task, episodes=2, seed=3).returns, expected.returns)
    adaptive = [w.evaluate(env, episodes=2, seed=3).returns for w in (owl, again)]
    assert np.array_equal(*adaptive)
    results = []
    for each, learner in ((owl, model), (again, fresh)):
        torch.manual_seed(7)
        np.random.seed(7)
        learner.action_space.seed(7)
        with each.task("a", env=any_model(kind).get_env()):  # a new environment, seeded alike
            learner.learn(30)
        results.append(weights(learner))
    assert same(*results)


def test_tasks_with_environments_of_their_own_need_them_after_loading(tmp_path):
    owl = two_tasks(dqn(), steps=25)
    owl.save(tmp_path / "owl.safetensors")
    fresh = dqn()
    again = OwlWrapper.load(tmp_path / "owl.safetensors", fresh)
    with pytest.raises(OwlValueError, match="environment of 'b' is not saved"), again.task("b"):
        pass
    with again.task("b", env=Guess(sign=-1)):
        fresh.learn(10)
    with again.task("c"):  # a new one may go on in the environment that is there
        fresh.learn(10)


def test_one_environment_for_all_needs_not_be_given_after_loading(tmp_path):
    model = dqn()
    owl = OwlWrapper(model)
    for task in ("a", "b"):
        with owl.task(task):
            model.learn(24)
    owl.save(tmp_path / "owl.safetensors")
    fresh = dqn()
    with OwlWrapper.load(tmp_path / "owl.safetensors", fresh).task("b"):
        assert (fresh.num_timesteps, fresh.learning_starts) == (24, 0)
        fresh.learn(10)


def test_other_numbers_of_actions_come_back(tmp_path):
    def build():
        return dqn(), DistillationRegularizer(1.0)

    model, regularizer = build()
    owl = OwlWrapper(model, regularizer=regularizer)
    for task, actions in (("a", 3), ("b", 7), ("a", 3), ("b", 7)):
        with owl.task(task, env=Guess(actions)):
            model.learn(25)
    owl.save(tmp_path / "owl.safetensors")
    fresh, regularizer = build()
    again = OwlWrapper.load(tmp_path / "owl.safetensors", fresh, regularizer=regularizer)
    assert fresh.action_space.n == 7  # the task it was saved in
    assert deterministic(fresh) == deterministic(model)
    again.unwrap("b")
    fresh.save(tmp_path / "plain.zip")
    assert DQN.load(tmp_path / "plain.zip").q_net(torch.zeros(1, 3)).shape == (1, 7)


@pytest.mark.parametrize(
    ("kind", "message"), [(PPO, "on-policy"), (A2C, "on-policy"), (TQC, "is not supported")]
)
def test_other_models_are_refused(kind, message):
    env = Guess(BOX) if kind is TQC else Guess()
    model = kind("MlpPolicy", env, device="cpu")
    for function in (OwlWrapper, adapt, check_learner):
        with pytest.raises(OwlTypeError, match=message):
            function(model)
    with pytest.raises(OwlTypeError, match="is not supported"):
        OwlWrapper(model.policy)


class Noisy(nn.Linear):
    """Stands for a layer of another kind that happens to be linear."""


@pytest.mark.parametrize("last", [lambda: Noisy(16, 3), lambda: nn.utils.spectral_norm(nn.Linear(16, 3))])
def test_last_layers_that_cannot_be_given_heads(last):
    model = dqn()
    for network in (model.q_net, model.q_net_target):
        network.q_net[-1] = last()
    model.policy.optimizer = torch.optim.Adam(model.q_net.parameters())
    before = weights(model)
    with pytest.raises(OwlValueError, match="cannot be given heads"):
        OwlWrapper(model)
    assert same(before, weights(model))
    assert model.learning_starts == 20


def test_a_normalised_output_is_refused_and_layers_can_be_named():
    model = dqn()
    for network in (model.q_net, model.q_net_target):
        network.q_net.append(nn.LayerNorm(3))
    model.policy.optimizer = torch.optim.Adam(model.q_net.parameters())
    with pytest.raises(OwlValueError, match=r"q_net\.2"):  # among the candidates
        OwlWrapper(model)
    owl = OwlWrapper(SB3Learner(model, layers=["q_net.2"]))
    with owl.task("a"):
        model.learn(25)


def test_a_second_wrap_is_refused_and_leaves_the_first():
    model = dqn()
    owl = OwlWrapper(model)
    with pytest.raises(OwlValueError, match=r"already has heads; unwrap\(\)"):
        OwlWrapper(model)
    with owl.task("a"):
        model.learn(25)


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_a_copied_optimizer_is_refused(kind):
    model = any_model(kind)
    owner = model.policy if kind is DQN else model.actor
    owner.optimizer = copy.deepcopy(owner.optimizer)
    with pytest.raises(OwlValueError, match="deep copy"):
        OwlWrapper(model)


def test_a_model_without_environment_is_refused(tmp_path):
    dqn().save(tmp_path / "model.zip")
    model = DQN.load(tmp_path / "model.zip")
    with pytest.raises(OwlValueError, match=r"no environment; model.set_env\(env\)"):
        OwlWrapper(model)
    model.set_env(Guess())
    check_learner(model)


@pytest.mark.filterwarnings("ignore:OwlWrapper. the learner was trained")
def test_learning_outside_a_task_is_refused_at_the_first_update():
    model = dqn(learning_starts=10_000)
    owl = OwlWrapper(model)
    before = weights(model)
    with pytest.raises(OwlStateError, match=r"train inside `with owl.task\(name\):`"):
        model.learn(100)
    assert model.num_timesteps == 2  # not after ten thousand steps of warm-up
    assert same(before, weights(model))
    with owl.task("a"):
        assert model.learning_starts == 10_000
        model.learn(10)
    with owl.use("a"), pytest.raises(OwlStateError, match="outside a task"):
        model.learn(10)


class Meddler(BaseCallback):
    """Calls a function at the second step."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def _on_step(self):
        if self.n_calls == 2:
            self.function()
        return True


@pytest.mark.filterwarnings("ignore:(Attempted|Node).*get_attr")  # by torch 2.5
@pytest.mark.parametrize("kind", [DQN, SAC, TD3])
def test_a_task_is_exported_for_any_number_of_rows(kind):
    model = any_model(kind)
    owl = two_tasks(model, steps=25)
    many = np.random.default_rng(0).uniform(-1.0, 1.0, (5, 3)).astype(np.float32)
    for name in owl.tasks:
        exported = owl.export(name, ZEROS).module()
        with owl.use(name):
            for rows in (many, many[:1]):
                expected = deterministic(model, rows)
                np.testing.assert_allclose(exported(torch.from_numpy(rows)).numpy(), expected, atol=1e-6)


def test_tasks_are_not_switched_inside_a_callback():
    model = dqn()
    owl = OwlWrapper(model)

    def begin_another():
        with owl.task("b", env=Guess()):
            pass

    with pytest.raises(OwlStateError, match="'a' is still open"), owl.task("a"):
        model.learn(30, callback=Meddler(begin_another))
    with pytest.raises(OwlStateError, match=r"change the environment inside DQN.learn \(in a callback\)"):
        model.learn(30, callback=Meddler(begin_another))  # also where no block is open
    block = owl.task("a")

    def leave():
        block.__exit__(None, None, None)

    block.__enter__()
    with pytest.raises(OwlStateError, match=r"leave a task inside DQN\.learn"):
        model.learn(30, callback=Meddler(leave))
    assert list(owl.tasks) == ["a"]
    assert owl.learner.networks["q"].num_heads == 1
    with owl.task("a"):
        model.learn(30)


def test_heads_may_start_as_copies():
    model = dqn()
    owl = OwlWrapper(SB3Learner(model, init="copy"))
    with owl.task("a"):
        model.learn(30)
    expected = model.q_net(torch.zeros(1, 3))
    with owl.task("b", env=Guess(sign=-1)):
        assert torch.equal(model.q_net(torch.zeros(1, 3)), expected)
        model.learn(30)


def test_wrong_settings_are_named():
    with pytest.raises(OwlValueError, match="warm_start is -1"):
        OwlWrapper(SB3Learner(dqn(), warm_start=-1))
    with pytest.raises(OwlValueError, match="init is 'other'"):
        OwlWrapper(SB3Learner(actor_critic(SAC), init="other"))
    for kind in (DQN, QRDQN, SAC):
        owl = two_tasks(any_model(kind), steps=25)
        refused = pytest.raises(OwlValueError, match=r"num_actions is 4, but .* leave it out")
        with refused, owl.task("c", num_actions=4):
            pass
        assert "c" not in owl.tasks
    with owl.task("c"):
        owl.learner.model.learn(25)


def test_an_observation_of_another_shape_is_named():
    model = dqn()
    owl = OwlWrapper(model, regularizer=None)
    with owl.task("a"):
        model.learn(30)
    policy = owl.policy()
    policy.reset()
    with pytest.raises(OwlValueError, match=r"observations have shape \(7,\); expected \(\d+,\), as in"):
        policy.act(np.zeros(7, np.float32))
