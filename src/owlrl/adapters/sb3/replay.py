"""`SB3Replay`: a replay buffer of Stable-Baselines3 per task, with the last rows of each kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from owlrl.adapters.buffer_rows import COLUMNS, Kept, read_columns, refill, valid_steps
from owlrl.adapters.sb3.envs import TaskEnvs, actions_in, refuse_in_learn
from owlrl.adapters.sb3.observations import ObservationRows
from owlrl.adapters.sb3.state import TaskState
from owlrl.errors import OwlValueError
from owlrl.types import Transitions

__all__ = ["SB3Replay", "new_buffer"]


def new_buffer(model: OffPolicyAlgorithm) -> ReplayBuffer:
    """An empty buffer, made as the model makes its own.

    >>> from stable_baselines3 import DQN
    >>> from owlrl.adapters.sb3.replay import new_buffer
    >>> new_buffer(DQN("MlpPolicy", "CartPole-v1", buffer_size=10)).size()
    0
    """
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


class SB3Replay:
    """Gives the model a new buffer for every task, refilled with the last rows of an earlier visit.

    A new buffer, since resetting one leaves rows of the old task in reach of some kinds. The
    model's environment changes at the same moment. Rows are given in the environment's units.

    Args:
        model: the model, whose ``learn`` goes on writing to ``model.replay_buffer``.
        envs: the tasks' environments.
        state: what else every task has of its own.
        observations: how observations lie in rows.
        warm_start: steps kept of each task for its return, over all environments; 0 keeps none.

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
        *,
        warm_start: int = 50_000,
    ) -> None:
        self.model = model
        self.warm_start = warm_start
        self.observation_shape = observations.shape
        self.observation_dtype = observations.dtype
        self._envs = envs
        self._state = state
        self._observations = observations
        self._task: str | None = None
        self._kept: dict[str, Kept] = {}
        self._rng = np.random.default_rng(model.seed)

    def begin_task(self, task: str) -> None:
        """Give the model the environment, the buffer and the counters that ``task`` starts with."""
        model = self.model
        refuse_in_learn(model, "begin a task")
        first = not len(self._envs)
        self._state.set_num_actions(self._envs.check(task))
        changed = self._envs.enter(task)
        # the model comes as it is to its first task, unless it was trained elsewhere before
        as_it_is = first and (not changed or model.num_timesteps == 0)
        if changed or not first:
            model.replay_buffer = new_buffer(model)
            refill(model.replay_buffer, self._kept.get(task, {}))
            model._last_obs = None  # so that learn resets the environment, whatever it is told
            model.ep_info_buffer = None
        self._task = task
        self._state.open(as_it_is=as_it_is, empty=not len(self))

    def end_task(self) -> None:
        """Keep the last ``warm_start`` steps of the task, which lie together in time."""
        assert self._task is not None
        steps = valid_steps(self._buffer)[-(self.warm_start // self.model.n_envs) :]
        if self.warm_start >= self.model.n_envs and len(steps):
            self._kept[self._task] = read_columns(self._buffer, steps, slice(None))
        self._envs.leave(self._task)
        self._state.close()

    def sample(self, batch_size: int) -> Transitions:
        """Draw one-step rows uniformly with replacement; the model's own draws are not touched."""
        steps = valid_steps(self._buffer)
        chosen = self._rng.integers(0, len(steps), batch_size)
        return self._transitions(steps[chosen], self._rng.integers(0, self.model.n_envs, batch_size))

    def sample_distinct(self, limit: int) -> Transitions:
        """Up to ``limit`` different one-step rows, all if there are no more."""
        refuse_in_learn(self.model, "leave a task")
        steps, envs = valid_steps(self._buffer), self.model.n_envs
        index = np.arange(len(steps) * envs)
        if limit < len(index):
            index = self._rng.choice(index, limit, replace=False, shuffle=False)
        return self._transitions(steps[index // envs], index % envs)

    def state_dict(self) -> dict[str, Any]:
        """The kept rows and the random state; the buffer itself is refilled from them at the next task."""
        return {
            "kept": self._kept,
            "envs": self._envs.state_dict(),
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Continue from what ``state_dict`` gave."""
        rng = np.random.default_rng()
        try:
            rng.bit_generator.state = state_dict["rng"]
            kept = dict(state_dict["kept"])
            for task, columns in kept.items():
                self._check_fits(task, columns)
            self._envs.load_state_dict(state_dict["envs"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise OwlValueError(
                f"SB3Replay.load_state_dict: the state does not fit ({type(error).__name__}: {error}); "
                "expected what state_dict() gave for a model with the same spaces and number of environments"
            ) from error
        self._kept, self._rng = kept, rng

    def __len__(self) -> int:
        return len(valid_steps(self._buffer)) * self.model.n_envs

    def __repr__(self) -> str:
        kept = {task: columns["rewards"].size for task, columns in self._kept.items()}
        return (
            f"SB3Replay({type(self._buffer).__name__} of {len(self)} rows, task={self._task!r}, "
            f"warm_start={self.warm_start}, kept={kept})"
        )

    @property
    def _buffer(self) -> ReplayBuffer:
        assert self.model.replay_buffer is not None
        return self.model.replay_buffer

    def _transitions(self, steps: np.ndarray, envs: np.ndarray) -> Transitions:
        columns, normalize = read_columns(self._buffer, steps, envs), self.model.get_vec_normalize_env()
        seen, following, reward = (columns[n] for n in ("observations", "next_observations", "rewards"))
        if normalize is not None:
            seen, following = normalize.normalize_obs(seen), normalize.normalize_obs(following)
            reward = normalize.normalize_reward(reward)
        ended = columns["dones"] * (1 - columns["timeouts"])
        return Transitions(
            observation=self._rows(seen),
            action=self._actions(columns["actions"]),
            reward=torch.from_numpy(reward.astype(np.float32)),
            next_observation=self._rows(following),
            terminated=torch.from_numpy(ended > 0.5),
            discount=torch.full((len(steps),), float(self.model.gamma)),
            task=self._task,
        )

    def _rows(self, observation: Any) -> torch.Tensor:
        raw = observation if isinstance(observation, dict) else torch.from_numpy(observation)
        return self._observations.prepare(raw).cpu()

    def _actions(self, actions: np.ndarray) -> torch.Tensor:
        """(B,) int64, or ``(B, *action shape)`` float32 from [−1, 1] in the environment's units."""
        space = self.model.action_space
        if actions_in(space) is not None:
            return torch.from_numpy(actions[:, 0].astype(np.int64))
        unscaled = self.model.policy.unscale_action(actions.reshape(len(actions), *(space.shape or ())))
        return torch.from_numpy(np.asarray(unscaled, dtype=np.float32))

    def _check_fits(self, task: str, columns: Kept) -> None:
        seen, own_seen = columns["observations"], self._buffer.observations
        pairs = [(columns[name], getattr(self._buffer, name)) for name in COLUMNS]
        if isinstance(own_seen, dict):
            pairs += [(seen[name], own) for name, own in own_seen.items()]
        else:
            pairs.append((seen, own_seen))
        for given, own in pairs:
            if given.shape[1:] != own.shape[1:]:
                raise ValueError(f"rows of task {task!r} have shape {given.shape[1:]}, not {own.shape[1:]}")
