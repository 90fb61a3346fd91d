"""All of a Stable-Baselines3 model as plain data: another process can go on with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from owlrl.adapters.sb3.rollouts import ATTRIBUTE, Rollouts
from owlrl.adapters.sb3.state import last_seen, see_again
from owlrl.replay._rows import restored_generator

__all__ = ["at_border", "buffer_state", "load_buffer_state", "load_model_state", "model_state", "put_back"]

Callback = Callable[[], None]


def at_border(model: OffPolicyAlgorithm, callback: Callback) -> Callback:
    """Call ``callback()`` before each rollout of ``learn``, after all updates; returns what ends that.

    >>> from stable_baselines3 import DQN
    >>> from owlrl.adapters.sb3.whole import at_border
    >>> model, counted = DQN("MlpPolicy", "CartPole-v1", buffer_size=100), []
    >>> remove = at_border(model, lambda: counted.append(model.num_timesteps))
    >>> _ = model.learn(12)
    >>> counted
    [0, 4, 8]
    """
    return _rollouts(model).at_start(callback)


def model_state(model: OffPolicyAlgorithm) -> dict[str, Any]:
    """Networks, optimizers, replay buffer, counters, generators, noise and where the episode stands.

    What is taken at a border of ``learn`` (`at_border`) can be gone on from exactly, with the environment
    put back as it was.

    >>> from stable_baselines3 import DQN
    >>> from owlrl.adapters.sb3.whole import load_model_state, model_state
    >>> one, other = (DQN("MlpPolicy", "CartPole-v1", buffer_size=100, seed=s) for s in (0, 1))
    >>> load_model_state(other, model_state(one.learn(8)))
    >>> other.num_timesteps, other.replay_buffer.size()
    (8, 8)
    """
    _, tensors = model._get_torch_save_params()
    numbers = {name: value for name, value in vars(model).items() if isinstance(value, int | float)}
    assert model.replay_buffer is not None
    return {
        "parameters": model.get_parameters(),
        "tensors": {name: recursive_getattr(model, name).detach() for name in tensors},
        "numbers": numbers,
        "buffer": buffer_state(model.replay_buffer),
        "seen": last_seen(model),
        "actions": model.action_space.np_random.bit_generator.state,
    }


def load_model_state(model: OffPolicyAlgorithm, state: Mapping[str, Any]) -> None:
    """Go on from what `model_state` gave: a model that was made in the same way, in its environment.

    >>> from stable_baselines3 import DQN
    >>> from owlrl.adapters.sb3.whole import load_model_state, model_state
    >>> model = DQN("MlpPolicy", "CartPole-v1", buffer_size=10)
    >>> load_model_state(model, model_state(model))
    """
    model.set_parameters(dict(state["parameters"]), exact_match=True, device=model.device)
    with torch.no_grad():
        for name, value in state["tensors"].items():
            recursive_getattr(model, name).copy_(value)
    vars(model).update(state["numbers"])
    assert model.replay_buffer is not None
    load_buffer_state(model.replay_buffer, state["buffer"])
    model.action_space._np_random = restored_generator(state["actions"])
    if state["seen"] is not None:
        see_again(model, _rollouts(model), state["seen"])


def buffer_state(buffer: ReplayBuffer) -> dict[str, Any]:
    """Numbers and arrays of a replay buffer; of arrays with a row per step only those in use.

    >>> from stable_baselines3 import DQN
    >>> from owlrl.adapters.sb3.whole import buffer_state
    >>> buffer_state(DQN("MlpPolicy", "CartPole-v1", buffer_size=100).learn(8).replay_buffer)["rewards"].shape
    (9, 1)
    """
    # one more than there are: a buffer that shares observations has the next one there
    rows = buffer.buffer_size if buffer.full else min(buffer.pos + 1, buffer.buffer_size)

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(part) for key, part in value.items()}
        whole = isinstance(value, np.ndarray) and value.ndim and len(value) == buffer.buffer_size
        return value[:rows].copy() if whole else copy.copy(value)

    def is_kept(value: Any) -> bool:
        parts = value.values() if isinstance(value, dict) else ()
        return isinstance(value, int | float | np.ndarray) or any(isinstance(p, np.ndarray) for p in parts)

    return {name: cut(value) for name, value in vars(buffer).items() if is_kept(value)}


def load_buffer_state(buffer: ReplayBuffer, state: Mapping[str, Any], *, cut: bool = False) -> None:
    """Put back what `buffer_state` gave; with ``cut`` arrays stay as short as they are.

    >>> from stable_baselines3 import DQN
    >>> from owlrl.adapters.sb3.whole import buffer_state, load_buffer_state
    >>> one, other = (DQN("MlpPolicy", "CartPole-v1", buffer_size=100) for _ in range(2))
    >>> load_buffer_state(other.replay_buffer, buffer_state(one.learn(8).replay_buffer))
    >>> other.replay_buffer.size()
    8
    """

    def put(own: Any, saved: Any) -> Any:
        if isinstance(saved, Mapping):
            return {key: put(own[key], part) for key, part in saved.items()}
        if isinstance(saved, np.ndarray) and not cut:
            own[: len(saved)] = saved
            return own
        return saved

    for name, saved in state.items():
        setattr(buffer, name, put(getattr(buffer, name), saved))


def put_back(model: OffPolicyAlgorithm, env: Any) -> VecEnv:
    """An environment that is in an episode, wrapped as the model would, such that nothing resets it.

    >>> import gymnasium
    >>> from stable_baselines3 import DQN
    >>> from owlrl.adapters.sb3.envs import was_reset
    >>> from owlrl.adapters.sb3.whole import put_back
    >>> env = gymnasium.make("CartPole-v1")
    >>> _ = env.reset(seed=0)
    >>> was_reset(put_back(DQN("MlpPolicy", "CartPole-v1", buffer_size=10), env))
    True
    """
    wrapped = model._wrap_env(env, verbose=0)
    inner = wrapped.unwrapped
    for each in inner.envs if isinstance(inner, DummyVecEnv) and inner is not env else ():
        layer: Any = each
        while layer is not None and layer is not env:
            if isinstance(layer, Monitor) and layer.needs_reset:
                layer.needs_reset, layer.rewards = False, []
            layer = getattr(layer, "env", None)
    return wrapped


def _rollouts(model: OffPolicyAlgorithm) -> Rollouts:
    """What follows the model's ``learn``."""
    if not hasattr(model, ATTRIBUTE):
        Rollouts(model).install()
    found: Rollouts = getattr(model, ATTRIBUTE)
    return found
