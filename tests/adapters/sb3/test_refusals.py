"""Whatever is refused leaves the model, its optimizers and its environment as they were."""

from __future__ import annotations

import copy

import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

from owlrl import EWCRegularizer, OwlWrapper, check_learner
from owlrl.adapters.sb3 import SB3Learner
from owlrl.errors import OwlError, OwlStateError, OwlValueError
from tests.adapters.helpers import Guess, actor_critic, any_model, dqn, other_env


class Noisy(nn.Linear):
    """Stands for a layer of another kind that happens to be linear."""


def picture(model):
    """All that wrapping or beginning a task could have touched."""
    owners = [model.policy, *(getattr(model.policy, name, None) for name in ("actor", "critic"))]
    optimizers = {id(o): o for o in (getattr(owner, "optimizer", None) for owner in owners) if o is not None}
    alpha = getattr(model, "ent_coef_optimizer", None)
    optimizers |= {} if alpha is None else {id(alpha): alpha}
    return {
        "weights": {name: value.tolist() for name, value in model.policy.state_dict().items()},
        "modules": [(name, type(module)) for name, module in model.policy.named_modules()],
        "optimizers": {
            key: (
                [[id(p) for p in group["params"]] for group in o.param_groups],
                list(o._optimizer_step_pre_hooks.values()),
                len(o.state),
            )
            for key, o in optimizers.items()
        },
        "settings": [getattr(model, name, None) for name in ("learning_starts", "exploration_schedule")],
        "counters": [getattr(model, name, None) for name in ("num_timesteps", "exploration_rate")],
        "alpha": getattr(model, "log_ent_coef", None) is not None and model.log_ent_coef.item(),
        "spaces": [model.action_space, model.policy.action_space],
        "parts": [id(getattr(model, name, None)) for name in ("env", "replay_buffer", "_last_obs")],
    }


def with_last(model, last):
    """The model with another last layer in its Q-network, or in its first critic."""
    networks = (
        [model.q_net, model.q_net_target] if isinstance(model, DQN) else [model.critic, model.critic_target]
    )
    for network in networks:
        layers = network.q_net if isinstance(model, DQN) else network.qf0
        layers[-1] = last(layers[-1])
    owner = model.policy if isinstance(model, DQN) else model.critic
    owner.optimizer = torch.optim.Adam(networks[0].parameters())
    return model


def noisy(layer):
    return Noisy(layer.in_features, layer.out_features)


def normed(layer):
    return nn.Sequential(layer, nn.LayerNorm(layer.out_features))


def copied(model, *owners):
    for owner in owners:
        item = getattr(model, owner) if owner else model
        name = "optimizer" if owner else "ent_coef_optimizer"
        setattr(item, name, copy.deepcopy(getattr(item, name)))
    return model


REFUSED = {
    "on-policy": (
        lambda: PPO("MlpPolicy", Guess(), n_steps=8, batch_size=8, device="cpu"),
        "use DQN or QRDQN",
    ),
    "noisy": (lambda: with_last(dqn(), noisy), "cannot be given heads.*Noisy"),
    "spectral norm": (lambda: with_last(dqn(), nn.utils.spectral_norm), "weight or spectral norm"),
    "parametrised": (
        lambda: with_last(dqn(), nn.utils.parametrizations.spectral_norm),
        "cannot be given heads",
    ),
    "normalised": (lambda: with_last(dqn(), normed), "its nn.Linear layers are"),
    "noisy critic": (lambda: with_last(actor_critic(SAC), noisy), "critic cannot be given heads.*Noisy"),
    "normalised critic": (lambda: with_last(actor_critic(TD3), normed), "critic cannot be given heads"),
    "copied optimizer": (lambda: copied(dqn(), "policy"), "a deep copy of the network or of the optimizer"),
    "copied actor optimizer": (lambda: copied(actor_critic(SAC), "actor"), "actor's optimizer does not hold"),
    "copied critic optimizer": (
        lambda: copied(actor_critic(TD3), "critic"),
        "critic's optimizer does not",
    ),
    "copied alpha optimizer": (lambda: copied(actor_critic(SAC), ""), "temperature's optimizer holds other"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_wrap_leaves_the_model_as_it_was(name):
    build, message = REFUSED[name]
    model = build()
    before = picture(model)
    regularizer = EWCRegularizer(1.0)
    for attempt in (check_learner, lambda model: OwlWrapper(model, regularizer=regularizer)):
        with pytest.raises(OwlError, match=f"(?s){message}"):
            attempt(model)
        assert picture(model) == before
    if "copied" not in name:  # such a model trains nothing, wrapped or not
        model.learn(30)
    fresh = dqn()
    OwlWrapper(fresh, regularizer=regularizer)  # the regularizer is free, too


@pytest.mark.parametrize("kind", [DQN, SAC])
def test_a_second_wrap_leaves_the_first_one_working(kind):
    model = any_model(kind)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(25)
    before = picture(model)
    with pytest.raises(OwlValueError, match=r"already has heads; unwrap\(\)"):
        OwlWrapper(model)
    assert picture(model) == before
    with owl.task("b", env=other_env(model)):
        model.learn(25)
    assert owl.tasks["b"].steps > 0


@pytest.mark.parametrize("space", [spaces.Box(-1.0, 1.0, (1,)), spaces.Box(-2.0, 2.0, (2,)), 3])
def test_a_changed_box_leaves_the_task_of_before(space):
    model = actor_critic(SAC)
    owl = OwlWrapper(model)
    with owl.task("a"):
        model.learn(25)
    before, heads = picture(model), owl.learner.networks["actor"].num_heads
    with pytest.raises(OwlValueError, match="RescaleAction"), owl.task("b", env=Guess(space)):
        raise AssertionError("not reached")
    assert picture(model) == before
    assert (owl.learner.networks["actor"].num_heads, list(owl.tasks)) == (heads, ["a"])


def test_wrapping_inside_a_callback_stops_at_the_first_update():
    class Wrapper(BaseCallback):
        def _on_step(self):
            if self.n_calls == 1:
                made.append(OwlWrapper(self.model))
            return True

    model, made = dqn(), []
    with pytest.raises(OwlStateError, match=r"train inside `with owl.task\(name\):`"):
        model.learn(10, callback=Wrapper())
    assert model.num_timesteps == 2
    made[0].unwrap()
    model.learn(30)


def test_all_that_is_wrong_with_a_model_is_said_at_once():
    model = copied(with_last(actor_critic(SAC), noisy), "actor", "")
    model.env = model.replay_buffer = None
    with pytest.raises(OwlValueError) as caught:
        check_learner(SB3Learner(model, warm_start=-1, init="other"))
    for part in (
        "no environment",
        "warm_start is -1",
        "model.replay_buffer is None",
        "actor's optimizer does not hold",
        "temperature's optimizer holds other",
        "actor's init is 'other'",
        "critic's init is 'other'",
        "critic cannot be given heads",
    ):
        assert part in str(caught.value), part
    assert "8 problems" in str(caught.value)


def test_a_class_is_no_model():
    with pytest.raises(OwlError, match=r"got the class DQN; expected an object, DQN\(\.\.\.\)"):
        OwlWrapper(DQN)
