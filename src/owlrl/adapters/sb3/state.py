"""The state of a Stable-Baselines3 model: what is kept per task besides the head, and all of it as data."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BaseModel
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.save_util import recursive_getattr
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl._arguments import restored_generator
from owlrl.adapters.sb3.envs import actions_in
from owlrl.adapters.sb3.rollouts import ATTRIBUTE, Rollouts
from owlrl.heads.growth import all_parameters
from owlrl.protocols import MultiHead

__all__: list[str] = []

COUNTS = ("_n_updates", "_n_calls")  # tell when targets and actors are due; they run on through all tasks


class TaskState:
    """Step count, random warm-up, exploration, number of actions and normalisation of the current task.

    On a first visit the model counts from 0, warms up and explores as it was built to, also
    with ``reset_num_timesteps=False``. On a revisit it continues counting, does not warm up again if
    rows of the task were kept, and explores from where it stopped, also with
    ``reset_num_timesteps=True``. Outside of tasks it has no warm-up, so that a forgotten
    ``with owl.task(...)`` is found at the first update and not after the warm-up.

    A task that begins inside ``learn`` (at the border of a rollout) finds the model's count as it is, since
    ``learn`` runs by it; its schedules count the task's own steps all the same, over ``schedule_steps``, by
    default as many as that call of ``learn`` makes.

    Attributes:
        schedule_steps: a task's own steps over which schedules run; None for those of ``learn``.
    """

    def __init__(self, model: OffPolicyAlgorithm) -> None:
        self.model = model
        self.explores = hasattr(model, "exploration_schedule")
        self._learning_starts = model.learning_starts
        self._schedule = getattr(model, "exploration_schedule", None)
        self._resumed_from: float | None = None  # the rate at which this visit's exploration started
        self.schedule_steps: int | None = None
        self._offset = 0  # the model's count of steps when the task had made none
        self._begun = False
        self._opening: dict[str, bool] | None = None
        self._action_spaces = {actions_in(model.action_space): model.action_space}
        self._normalizers: WeakSet[VecNormalize] = WeakSet()  # that some task was trained with
        self._warned = False

    def open(self, *, as_it_is: bool, empty: bool, in_learn: bool = False) -> None:
        """Announce that the next state to be loaded starts a visit.

        Args:
            as_it_is: it is the model's first task, which does not reset the model's counters.
            empty: there is no row of it in the buffer.
            in_learn: ``learn`` is running.
        """
        self._opening = {"as_it_is": as_it_is, "empty": empty, "in_learn": in_learn}

    def progress(self, num_timesteps: int, total_timesteps: int) -> tuple[int, int]:
        """Steps made and total steps for schedules: the task's own."""
        if self.schedule_steps is None and not self._offset:
            return num_timesteps, total_timesteps
        length = self.schedule_steps or max(1, total_timesteps - self.model._num_timesteps_at_start)
        return min(num_timesteps - self._offset, length), length

    def restart(self) -> None:
        """The model counts from 0 again."""
        self._offset = 0

    def close(self) -> None:
        """Outside of tasks: no warm-up."""
        self.model.learning_starts = 0

    def release(self, actions: int | None) -> None:
        """Give the model back its own settings, for a head of that many actions."""
        self.model.learning_starts = self._learning_starts
        self._explore(None, getattr(self.model, "exploration_rate", None))
        self.set_num_actions(actions)

    def set_num_actions(self, actions: int | None) -> None:
        """Let model, policy and networks have that many discrete actions; None changes nothing."""
        model = self.model
        if actions is None or actions == actions_in(model.action_space):
            return
        if actions not in self._action_spaces:
            self._action_spaces[actions] = spaces.Discrete(actions, seed=model.seed)
        model.action_space = self._action_spaces[actions]
        for module in model.policy.modules():
            if isinstance(module, BaseModel):
                module.action_space = self._action_spaces[actions]

    def generators(self) -> dict[str, Any]:
        """The states of the random numbers that actions are drawn with, by the number of actions."""
        return {
            str(actions): copy.deepcopy(space.np_random.bit_generator.state)
            for actions, space in self._action_spaces.items()
        }

    def set_generators(self, generators: Mapping[str, np.random.Generator]) -> None:
        """Continue with generators in the states that `generators` returned."""
        for name, generator in generators.items():
            actions = int(name) if name.isdecimal() else None
            if actions is not None and actions not in self._action_spaces:
                self._action_spaces[actions] = spaces.Discrete(actions)
            if actions in self._action_spaces:
                self._action_spaces[actions]._np_random = generator

    def state_dict(self) -> dict[str, Any]:
        """The current task's counters, exploration, number of actions and statistics."""
        model = self.model
        return {
            "begun": self._begun,
            "num_timesteps": int(model.num_timesteps) - self._offset,
            "offset": self._offset,
            "counts": {name: int(getattr(model, name)) for name in COUNTS if hasattr(model, name)},
            "learning_starts": int(model.learning_starts),
            "num_actions": actions_in(model.action_space),
            "exploration_rate": float(model.exploration_rate) if self.explores else None,  # type: ignore[attr-defined]
            "resumed_from": self._resumed_from,
            "statistics": statistics(model.get_vec_normalize_env()),
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Restore a task's state; after `open`, for the start of a visit."""
        opening, self._opening = self._opening, None
        if opening is not None:
            self._start_visit(state_dict, **opening)
            return
        self._begun = state_dict["begun"]
        self._offset = state_dict["offset"]
        self.model.num_timesteps = state_dict["num_timesteps"] + self._offset
        for name, count in state_dict["counts"].items():
            setattr(self.model, name, count)
        self.model.learning_starts = state_dict["learning_starts"]
        self.set_num_actions(state_dict["num_actions"])
        self._explore(state_dict["resumed_from"], state_dict["exploration_rate"])
        set_statistics(self.model.get_vec_normalize_env(), state_dict["statistics"])

    def _start_visit(self, state: dict[str, Any], *, as_it_is: bool, empty: bool, in_learn: bool) -> None:
        model, normalize = self.model, self.model.get_vec_normalize_env()
        own = state["num_timesteps"] if state["begun"] else 0
        rate = state["exploration_rate"] if state["begun"] else None
        self._offset = 0
        if in_learn:
            self._offset = model.num_timesteps - own  # may be negative: only differences are looked at
        elif state["begun"] or not as_it_is:
            model.num_timesteps = own
        model.learning_starts = self._offset + self._learning_starts if as_it_is or empty else 0
        if in_learn:
            self._explore(None)
        elif state["begun"] or not as_it_is:
            self._explore(rate, rate)
        if state["begun"]:
            set_statistics(normalize, state["statistics"])
        elif not as_it_is:
            self._warn_of_statistics(normalize)
            if normalize is not None and normalize in self._normalizers:
                fresh_statistics(normalize)
        if in_learn and normalize is not None:  # the next action sees the new statistics
            assert model._last_original_obs is not None
            model._last_obs = normalize.normalize_obs(model._last_original_obs)
        if normalize is not None:
            self._normalizers.add(normalize)
        self._begun = True

    def _warn_of_statistics(self, normalize: VecNormalize | None) -> None:
        """Once, when a second task begins to learn statistics."""
        if normalize is None or not normalize.training or self._warned or not self._normalizers:
            return
        self._warned = True
        warnings.warn(
            "OwlWrapper.task: VecNormalize has statistics per task, which is right with the task given. With "
            "the task unknown (owl.policy(), owl.evaluate(env)) all heads see observations that one "
            "environment normalises: for that, train with one frozen set (VecNormalize(..., "
            "training=False)), or without VecNormalize",
            UserWarning,
            stacklevel=9,  # the user's `with owl.task(...)`
        )

    def _explore(self, start: float | None, rate: float | None = None) -> None:
        """Explore by the model's own schedule, or by one that starts at ``start`` instead."""
        if not self.explores:
            return
        model: Any = self.model
        self._resumed_from = start
        schedule: Any = self._schedule
        if start is not None and isinstance(schedule, LinearSchedule):
            schedule = LinearSchedule(start, schedule.end, schedule.end_fraction)
        model.exploration_schedule = schedule
        model.exploration_rate = schedule(self._remaining()) if rate is None else rate

    def _remaining(self) -> float:
        """What is left of the task's schedule, from 1 to 0."""
        if not self._offset:
            return 1.0
        made, length = self.progress(self.model.num_timesteps, self.model._total_timesteps)
        return max(0.0, 1.0 - made / length)


class TaskParameter:
    """A parameter outside the networks' heads that is kept per task, with its optimizer's state.

    For the noise of gSDE: each task has its own exploration.
    """

    def __init__(self, parameter: nn.Parameter, optimizer: Optimizer) -> None:
        self.parameter = parameter
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """The value, and what the optimizer keeps of it."""
        kept = self.optimizer.state.get(self.parameter, {})
        return {"value": self.parameter.detach().clone(), "optimizer": dict(kept)}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Restore both in place."""
        with torch.no_grad():
            self.parameter.copy_(state_dict["value"])
        self.parameter.grad = None
        self.optimizer.state.pop(self.parameter, None)
        if state_dict["optimizer"]:
            self.optimizer.state[self.parameter] = dict(state_dict["optimizer"])


def last_seen(model: OffPolicyAlgorithm) -> dict[str, Any] | None:
    """State of the model's episode: last observation, noise, running return; None before the first."""
    if model._last_obs is None:
        return None
    normalize = model.get_vec_normalize_env()
    return copy.deepcopy(
        {
            "observation": model._last_obs,
            "original": model._last_original_obs,
            "starts": model._last_episode_starts,
            "episodes": int(model._episode_num),
            "noise": _noise_state(model.action_noise),
            "returns": None if normalize is None else normalize.returns,
        }
    )


def see_again(model: OffPolicyAlgorithm, rollouts: Rollouts, seen: Mapping[str, Any]) -> None:
    """Put back what `last_seen` returned; the noise when the next ``learn`` has reset it."""
    seen = copy.deepcopy(dict(seen))
    model._last_obs, model._last_original_obs = seen["observation"], seen["original"]
    model._last_episode_starts, model._episode_num = seen["starts"], int(seen["episodes"])
    normalize = model.get_vec_normalize_env()
    if normalize is not None and seen["returns"] is not None:
        normalize.returns, normalize.old_obs = np.array(seen["returns"]), seen["original"]
    rollouts.after_setup = lambda: _set_noise(model.action_noise, seen["noise"])


def _noise_state(noise: object) -> list[dict[str, Any]]:
    """Numbers, arrays and generators of a noise, or of each of several."""
    found = []
    for each in getattr(noise, "noises", [noise]):
        own = getattr(each, "__dict__", {}).items()
        kept: dict[str, Any] = {k: v for k, v in own if isinstance(v, int | float | np.ndarray)}
        kept |= {k: v.bit_generator.state for k, v in own if isinstance(v, np.random.Generator)}
        found.append(kept)
    return found


def _set_noise(noise: object, states: list[dict[str, Any]]) -> None:
    for each, kept in zip(getattr(noise, "noises", [noise]), states, strict=False):
        for name, value in kept.items():
            generator = isinstance(getattr(each, name, None), np.random.Generator)
            setattr(each, name, restored_generator(value) if generator else value)


def statistics(env: VecNormalize | None) -> dict[str, Any] | None:
    """The running means and variances of a ``VecNormalize``, copied."""
    if env is None:
        return None
    return {
        name: {"mean": np.array(rms.mean), "var": np.array(rms.var), "count": float(rms.count)}
        for name, rms in _running(env).items()
    }


def set_statistics(env: VecNormalize | None, kept: dict[str, Any] | None) -> None:
    """Put back what `statistics` returned, where there are any; a frozen ``VecNormalize`` stays as it is."""
    if env is None or kept is None or not env.training:
        return
    for name, rms in _running(env).items():
        if name in kept:
            rms.mean, rms.var = np.array(kept[name]["mean"]), np.array(kept[name]["var"])
            rms.count = kept[name]["count"]


def fresh_statistics(env: VecNormalize) -> None:
    """Reset the statistics of a ``VecNormalize`` that still learns them; a frozen one is kept."""
    if env.training:
        for rms in _running(env).values():
            new = RunningMeanStd(shape=np.shape(rms.mean))
            rms.mean, rms.var, rms.count = new.mean, new.var, new.count


def _running(env: VecNormalize) -> dict[str, RunningMeanStd]:
    found = {"return": env.ret_rms}
    if not env.norm_obs:
        return found
    if isinstance(env.obs_rms, dict):
        return {**found, **{f"observation.{key}": rms for key, rms in env.obs_rms.items()}}
    return {**found, "observation": env.obs_rms}


Callback = Callable[[], None]


def at_border(model: OffPolicyAlgorithm, callback: Callback) -> Callback:
    """Call ``callback()`` before each rollout of ``learn``, after all updates; the result stops it."""
    return _rollouts(model).at_start(callback)


def model_state(model: OffPolicyAlgorithm) -> dict[str, Any]:
    """Networks, optimizers, replay buffer, counters, generators, noise and where the episode stands.

    What is taken at a border of ``learn`` (`at_border`) can be resumed exactly, with the environment
    put back as it was.
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
    """``model.get_parameters()`` with the active head alone, under the names of a plain model."""
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
    """Continue from what `model_state` returned, with a model made in the same way, in its environment."""
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
    """Numbers and arrays of a replay buffer; of arrays with a row per step only those in use."""
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
    """Put back what `buffer_state` returned; with ``cut`` arrays stay as short as they are."""

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
    """An environment in the middle of an episode, wrapped as the model would, without a reset."""
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
