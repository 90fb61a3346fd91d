"""All of a Stable-Baselines3 model as plain data: another process can continue with it."""

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
from torch import Tensor
from torch.optim import Optimizer

from owlrl.adapters.sb3.rollouts import ATTRIBUTE, Rollouts
from owlrl.adapters.sb3.state import last_seen, see_again
from owlrl.heads.growth import all_parameters
from owlrl.protocols import MultiHead
from owlrl.replay._rows import restored_generator

__all__ = ["at_border", "buffer_state", "load_buffer_state", "load_model_state", "model_state", "put_back"]

Callback = Callable[[], None]


def at_border(model: OffPolicyAlgorithm, callback: Callback) -> Callback:
    """Call ``callback()`` before each rollout of ``learn``, after all updates; the result stops it.

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

    What is taken at a border of ``learn`` (`at_border`) can be resumed exactly, with the environment
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


def one_head(
    model: OffPolicyAlgorithm, parameters: Mapping[str, Any], networks: Mapping[str, MultiHead]
) -> dict[str, Any]:
    """``model.get_parameters()`` with the active head alone, under the names of a plain model.

    >>> from stable_baselines3 import DQN
    >>> from owlrl import OwlWrapper
    >>> from owlrl.adapters.sb3.whole import one_head
    >>> model = DQN("MlpPolicy", "CartPole-v1", buffer_size=10)
    >>> owl = OwlWrapper(model)
    >>> before = list(model.get_parameters()["policy"])
    >>> _ = owl.learner.add_head()
    >>> list(one_head(model, model.get_parameters(), owl.learner.networks)["policy"]) == before
    True
    """
    taken: dict[int, Tensor] = {}  # by the id of a first head's parameter: the active head's
    extra: set[int] = set()
    for network in networks.values():
        heads = [list(network.head_parameters(k).values()) for k in range(network.num_heads)]
        taken |= {id(p): own for p, own in zip(heads[0], heads[network.pointer.head], strict=True)}
        extra |= {id(p) for head in heads[1:] for p in head}
        active = network.pointer.head
    found = {}
    for name, state in parameters.items():
        item = recursive_getattr(model, name)
        if isinstance(item, Optimizer):
            found[name] = _one_head_optimizer(item, state, taken, extra)
            continue
        mine = f"extra_heads.{active - 1}."
        own = {key.replace(mine, ""): value for key, value in state.items() if mine in key}
        found[name] = {key: own.get(key, value) for key, value in state.items() if "extra_heads." not in key}
    return found


def _one_head_optimizer(
    optimizer: Optimizer, state: Mapping[str, Any], taken: Mapping[int, Tensor], extra: set[int]
) -> dict[str, Any]:
    """An optimizer's state with the active head's in place of the first head's, without other heads."""
    order = all_parameters(optimizer)
    place = {id(p): k for k, p in enumerate(order)}
    kept = [k for k, p in enumerate(order) if id(p) not in extra]
    number = {k: new for new, k in enumerate(kept)}
    sources = {number[k]: place[id(taken.get(id(order[k]), order[k]))] for k in kept}
    groups = [
        {**group, "params": [number[k] for k in group["params"] if k in number]}
        for group in state["param_groups"]
    ]
    states = {new: state["state"][k] for new, k in sources.items() if k in state["state"]}
    return {"state": states, "param_groups": groups}


def load_model_state(model: OffPolicyAlgorithm, state: Mapping[str, Any]) -> None:
    """Continue from what `model_state` returned: a model that was made in the same way, in its environment.

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
    """Put back what `buffer_state` returned; with ``cut`` arrays stay as short as they are.

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
    """An environment in the middle of an episode, wrapped as the model would, without a reset.

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
