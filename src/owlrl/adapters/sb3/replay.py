"""`SB3Replay`: a replay buffer of Stable-Baselines3 per task, and the layout of observations in its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import get_obs_shape, is_image_space
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from torch import Tensor

from owlrl._arguments import restored_generator
from owlrl.adapters.buffers import BufferReplay, Kept, _Mark, refill
from owlrl.adapters.sb3.envs import TaskEnvs, actions_in, was_reset
from owlrl.adapters.sb3.rollouts import Rollouts
from owlrl.adapters.sb3.state import TaskState, last_seen, see_again
from owlrl.errors import OwlTypeError, OwlValueError

__all__ = ["SB3Replay"]


def new_buffer(model: OffPolicyAlgorithm) -> ReplayBuffer:
    """An empty buffer, made as the model makes its own."""
    assert model.replay_buffer_class is not None
    arguments = dict(model.replay_buffer_kwargs)
    if issubclass(model.replay_buffer_class, HerReplayBuffer):
        arguments["env"] = model.env
    return model.replay_buffer_class(
        model.buffer_size,
        model.observation_space,
        model.action_space,
        device=model.device,
        n_envs=model.n_envs,
        optimize_memory_usage=model.optimize_memory_usage,
        **arguments,
    )


class SB3Replay(BufferReplay):
    """Gives the model a new buffer for every task, refilled with the newest rows of an earlier visit.

    A new one, since some kinds of buffers still reach rows of the old task after ``reset``. The model's
    environment changes at the same moment. How new rows are found and saved is `BufferReplay`'s. Samples are
    what the networks see, new rows are raw; actions are in the environment's units.

    >>> from stable_baselines3 import DQN
    >>> from owlrl import OwlWrapper
    >>> model = DQN("MlpPolicy", "CartPole-v1", buffer_size=1_000, learning_starts=10)
    >>> owl = OwlWrapper(model)
    >>> with owl.task("upright"):
    ...     _ = model.learn(40)
    >>> owl.replay
    SB3Replay(ReplayBuffer of 40 rows, task='upright', warm_start=50000, kept={'upright': 40})
    """

    def __init__(
        self,
        model: OffPolicyAlgorithm,
        envs: TaskEnvs,
        state: TaskState,
        observations: ObservationRows,
        rollouts: Rollouts,
        *,
        warm_start: int = 50_000,
    ) -> None:
        super().__init__(None, gamma=model.gamma, warm_start=warm_start, seed=model.seed)
        self._discrete = actions_in(model.action_space) is not None
        self.observation_shape, self.observation_dtype = observations.shape, observations.dtype
        self.action_shape = () if self._discrete else (int(np.prod(model.action_space.shape or ())),)
        self.action_dtype = np.dtype(np.int64 if self._discrete else np.float32)
        self.model = model
        self._envs = envs
        self._state = state
        self._rows = observations
        self._rollouts = rollouts

    @property
    def buffer(self) -> Any:
        """The model's current buffer."""
        return self.model.replay_buffer

    @property
    def num_actions(self) -> int | None:
        """How many discrete actions the current task has; None for a Box."""
        return actions_in(self.model.action_space)

    def begin_task(self, task: str) -> None:
        """Give the model the environment, the buffer and the counters that ``task`` starts with.

        Inside ``learn``, at the border of a rollout, the environment and what was seen of it last stay.
        """
        model, first = self.model, not len(self._envs)
        self._rollouts.refuse("begin a task")
        in_learn = self._rollouts.where == "border"
        self._state.set_num_actions(self._envs.check(task))
        changed = self._envs.stay(task) if in_learn else self._envs.enter(task)
        # the model comes as it is to its first task, unless it was trained elsewhere before
        as_it_is = first and (not changed or model.num_timesteps == 0)
        if changed or not first:
            model.replay_buffer = new_buffer(model)
            refill(model.replay_buffer, self._kept.get(task, {}))
            if not in_learn:
                model._last_obs = None  # so that learn resets the environment, whatever its arguments
                model.ep_info_buffer = None
        # rows that the model came with are its first task's
        came_with = len(self) and not (changed or not first)
        self._seen = _Mark() if came_with else _Mark.of(model.replay_buffer)
        self._task, self._begun, self._loaded = task, True, None
        self._state.open(as_it_is=as_it_is, empty=not len(self), in_learn=in_learn)

    def resume_task(self, task: str) -> None:
        """Continue with a visit that was interrupted, in the model's environment or in one that was offered.

        After loading, in the environment that the task brings, and with the rows that the visit had; in the
        middle of the episode, if that environment was put back as it was.
        """
        model = self.model
        self._rollouts.refuse("begin a task")
        in_learn = self._rollouts.where == "border"
        if in_learn:
            self._envs.stay(task)
        else:
            self._state.set_num_actions(self._envs.resume(task))
        if self._loaded is not None:
            model.replay_buffer = new_buffer(model)
            seen = self._loaded.get("seen") if not in_learn and was_reset(model.env) else None
            self._refill_visit(task, self._loaded, cut=seen is None)
            if seen is not None:
                see_again(model, self._rollouts, seen)
        elif isinstance(model.replay_buffer, HerReplayBuffer):
            model.replay_buffer.env = model.env
        if in_learn:  # which has its own count
            self._state.open(as_it_is=False, empty=not len(self), in_learn=True)

    def end_task(self) -> None:
        """Keep the last ``warm_start`` steps of the task, which lie together in time."""
        self._rollouts.refuse("leave a task")
        super().end_task()
        assert self._task is not None
        self._envs.leave(self._task)
        self._state.close()

    def forget(self, task: str) -> None:
        """Drop what is kept of ``task``, its environment included."""
        super().forget(task)
        self._envs.forget(task)

    def state_dict(self) -> dict[str, Any]:
        """The kept rows, what is known of environments and the random state."""
        own = {"envs": self._envs.state_dict(), "generators": self._state.generators()}
        return {**super().state_dict(), **own}

    def _load_more(self, state_dict: Mapping[str, Any]) -> None:
        generators = {name: restored_generator(state) for name, state in state_dict["generators"].items()}
        self._envs.load_state_dict(state_dict["envs"])
        self._state.set_generators(generators)

    def _visit(self) -> dict[str, Any]:
        """The rows, and where the episode stands unless a step is only half stored."""
        visit = super()._visit()
        half = self._rollouts.where == "collecting"
        return visit if half else {**visit, "seen": last_seen(self.model)}

    def _seen_by_networks(self, columns: Kept) -> Kept:
        normalize = self.model.get_vec_normalize_env()
        if normalize is None:
            return columns
        seen = {
            name: normalize.normalize_obs(columns[name]) for name in ("observations", "next_observations")
        }
        return {**columns, **seen, "rewards": normalize.normalize_reward(columns["rewards"])}

    def _observation(self, observation: Any) -> Tensor:
        raw = observation if isinstance(observation, dict) else torch.from_numpy(observation)
        return self._rows.prepare(raw).cpu()

    def _action(self, actions: np.ndarray) -> Tensor:
        """(B,) int64, or ``(B, *action shape)`` float32 from [−1, 1] in the environment's units."""
        if self._discrete:
            return super()._action(actions)
        shape = self.model.action_space.shape or ()
        unscaled = self.model.policy.unscale_action(actions.reshape(len(actions), *shape))
        return torch.from_numpy(np.asarray(unscaled, dtype=np.float32))


class ObservationRows:
    """How a space's observations lie in a tensor: as they are, dict observations flat, side by side."""

    def __init__(self, space: spaces.Space[Any], *, device: torch.device | str = "cpu") -> None:
        self.space = space
        self.device = device
        self.parts: dict[str, tuple[int, ...]] | None = None
        found = get_obs_shape(space)
        if isinstance(found, dict):
            self.parts = found
            self.shape: tuple[int, ...] = (sum(int(np.prod(shape)) for shape in found.values()),)
            self.dtype: np.dtype[Any] = np.dtype(np.float32)
        else:
            self.shape, self.dtype = found, np.dtype(space.dtype)

    def prepare(self, observation: Tensor | Mapping[str, Any]) -> Tensor:
        """Rows (B, ...) of raw observations, images with their channels first; rows stay as they are."""
        if isinstance(observation, Mapping):
            return self._flat(observation)
        if self.parts is None:
            observation = _channels_first(observation, self.space)
        if math.prod(observation.shape[1:]) != math.prod(self.shape):
            shape = tuple(observation.shape[1:])
            raise OwlValueError(f"observations have shape {shape}; expected {self.shape}, as in training")
        # not len(): an exported policy takes any number of rows
        return observation.reshape(observation.shape[0], *self.shape).to(self.device)

    def unpack(self, rows: Tensor) -> Any:
        """What the model's networks are called with for these rows."""
        if self.parts is None:
            return rows
        sizes = [int(np.prod(shape)) for shape in self.parts.values()]
        pieces = zip(self.parts.items(), torch.split(rows, sizes, dim=1), strict=True)
        return {name: piece.reshape(rows.shape[0], *shape) for (name, shape), piece in pieces}

    def statistics(self, env: VecNormalize) -> tuple[np.ndarray, np.ndarray, float | None]:
        """Mean and deviation of each number in a row by the running statistics of ``env``, and their bound.

        Parts of a dict that ``env`` leaves as they are have mean 0 and deviation 1; then there is no bound,
        since it would be theirs, too.
        """
        rms = env.obs_rms
        shapes = {"": self.shape} if self.parts is None else self.parts
        parts = [(rms.get(name) if isinstance(rms, dict) else rms, shape) for name, shape in shapes.items()]
        means = [np.broadcast_to(0.0 if rms is None else rms.mean, shape) for rms, shape in parts]
        stds = [
            np.broadcast_to(1.0 if rms is None else np.sqrt(rms.var + env.epsilon), shape)
            for rms, shape in parts
        ]
        clip = None if any(rms is None for rms, _ in parts) else float(env.clip_obs)
        if self.parts is None:
            return means[0].copy(), stds[0].copy(), clip
        flat = [np.concatenate([each.reshape(-1) for each in column]) for column in (means, stds)]
        return flat[0], flat[1], clip

    def _flat(self, observation: Mapping[str, Any]) -> Tensor:
        if self.parts is None or set(observation) != set(self.parts):
            expected = "an array" if self.parts is None else f"a dict of {sorted(self.parts)}"
            raise OwlTypeError(f"the observation is a dict of {sorted(observation)}; expected {expected}")
        assert isinstance(self.space, spaces.Dict)
        columns = []
        for name in self.parts:
            part = _channels_first(torch.as_tensor(np.asarray(observation[name])), self.space[name])
            columns.append(part.reshape(len(part), -1).to(self.device, torch.float32))
        return torch.cat(columns, dim=1)


def _channels_first(observation: Tensor, space: spaces.Space[Any]) -> Tensor:
    """The model sees images with their channels first, an environment may give them last."""
    if observation.dim() == 4 and tuple(observation.shape[1:]) != space.shape and is_image_space(space):
        return observation.permute(0, 3, 1, 2)
    return observation
