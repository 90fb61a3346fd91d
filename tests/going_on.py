"""Runs of every kind of learner that can be stopped and gone on with in another process.

Each run learns "a", then "b", then "a" again. It is saved after "a" (the border) and in the middle of "b";
what users must hand back themselves (environments, their own loop's variables) is pickled beside the state.

    python -m tests.going_on KIND FOLDER      goes on from both files of FOLDER, each to its end
"""

from __future__ import annotations

import pickle
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import QRDQN
from stable_baselines3 import DDPG, DQN, SAC, TD3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from owlrl import DistillationRegularizer, ModelEvidence, OwlWrapper, learners
from owlrl.learners import DQNConfig, SACConfig
from tests import own_actor_critic, own_dqn
from tests.adapters.helpers import BOX, Guess, any_model, dqn

MOMENTS = ("border", "middle")


class Run:
    """What all have in common; a kind gives `make`, `learn` and what is handed back."""

    steps, middle = 60, 40  # of a visit, and where the second one is saved

    def __init__(self, folder: Path, *, resume: str | None = None) -> None:
        self.folder = folder
        self.saving = resume is None
        self.handed: dict[str, Any] = {}
        self.resumed = resume
        learner = self.make()
        parts = {
            "regularizer": DistillationRegularizer(seed=0),
            "evidence": ModelEvidence(features=16, outputs=8, seed=0),
            "seed": 0,
        }
        if resume is None:
            self.owl = OwlWrapper(learner, **parts)
        else:
            self.handed = pickle.loads((folder / f"{resume}.pickle").read_bytes())
            self.take_back()
            self.owl = OwlWrapper.load(folder / f"{resume}.safetensors", learner, **parts)

    def run(self) -> None:
        """From the beginning, or from where it was saved, to the end."""
        if self.resumed is None:
            self.visit("a", self.steps)
            self.save("border")
        self.visit("b", self.steps, save_at=self.middle)
        self.visit("a", self.steps)
        self.owl.save(self.folder / f"end-{self.resumed}.safetensors")

    def visit(self, task: str, steps: int, save_at: int | None = None) -> None:
        raise NotImplementedError

    def save(self, moment: str) -> None:
        if self.saving:
            self.owl.save(self.folder / f"{moment}.safetensors")
            (self.folder / f"{moment}.pickle").write_bytes(pickle.dumps(self.hand_over()))

    def make(self) -> Any:
        raise NotImplementedError

    def hand_over(self) -> dict[str, Any]:
        """What the user keeps beside the state."""
        raise NotImplementedError

    def take_back(self) -> None:
        """Put it back."""


class Own(Run):
    """A script with a loop of its own, which keeps its environment, its count and what it saw last."""

    module: Any = own_dqn
    replay = "scoped"

    def make(self) -> Any:
        self.script = self.module.make_script(replay=self.replay)
        self.loop: dict[str, Any] | None = None
        self.envs = self.new_envs()
        return self.script.learner()

    def hand_over(self) -> dict[str, Any]:
        return {"envs": self.envs, "loop": self.loop, "rng": self.script.rng}

    def take_back(self) -> None:
        self.envs, self.loop, self.script.rng = (self.handed[name] for name in ("envs", "loop", "rng"))

    def visit(self, task: str, steps: int, save_at: int | None = None) -> None:
        env = self.envs[task]
        with self.owl.task(task):
            if self.loop is None:
                self.loop = {"seen": env.reset(seed=0)[0], "step": 0}
            loop = self.loop
            while loop["step"] < steps:
                self.turn(env, loop)
                loop["step"] += 1
                if loop["step"] == save_at and self.resumed is None:
                    self.save("middle")
        self.loop = None

    def store(self, *row: Any) -> None:
        if hasattr(self.script.replay, "append"):
            self.script.replay.append(row[:5])
        else:
            self.script.replay.add(*row)


class OwnDQN(Own):
    def new_envs(self) -> dict[str, Any]:
        return {"a": own_dqn.Signs(), "b": own_dqn.Signs(1)}

    def turn(self, env: Any, loop: dict[str, Any]) -> None:
        script, seen = self.script, loop["seen"]
        action = script.rng.randrange(own_dqn.SIZE)
        if script.rng.random() > 0.3:
            action = int(script.q(torch.as_tensor(seen)[None]).argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        self.store(seen, action, reward, following, terminated, truncated)
        loop["seen"] = env.reset()[0] if terminated or truncated else following
        if loop["step"] >= 32:
            loss = own_dqn.loss_of(script)
            script.optimizer.zero_grad()
            loss.backward()
            script.optimizer.step()
            with torch.no_grad():
                for old, new in zip(script.target.parameters(), script.q.parameters(), strict=True):
                    old.data.copy_(0.95 * old.data + 0.05 * new.data)


class OwnDQNDeque(OwnDQN):
    replay = "deque"


class OwnSAC(Own):
    module = own_actor_critic
    steps, middle = 90, 77

    def new_envs(self) -> dict[str, Any]:
        return {"a": Guess(BOX, observations="box"), "b": Guess(BOX, observations="box", sign=-1)}

    def turn(self, env: Any, loop: dict[str, Any]) -> None:
        script, seen = self.script, loop["seen"]
        with torch.no_grad():
            action = script.actor.sample(torch.as_tensor(seen[:2])[None])[0][0].numpy()
        following, reward, terminated, truncated, _ = env.step(action)
        self.store(seen[:2], action, reward, following[:2], terminated, truncated)
        loop["seen"] = env.reset()[0] if terminated or truncated else following
        if loop["step"] >= 64:
            own_actor_critic.update(script)


def ordered(actions: Any, sign: int) -> Any:
    """As `gymnasium.make` has it."""
    return gymnasium.wrappers.OrderEnforcing(Guess(actions, sign=sign))


class Agent(Run):
    """A learner of `owlrl.learners`."""

    copies: int | None = None

    def env(self, task: str) -> Any:
        one = partial(ordered, self.actions, sign=1 if task == "a" else -1)
        return one() if self.copies is None else gymnasium.vector.SyncVectorEnv([one] * self.copies)

    def make(self) -> Any:
        self.envs = {"a": self.env("a")}
        self.agent = self.new_agent(self.envs["a"])
        return self.agent

    def hand_over(self) -> dict[str, Any]:
        return {"envs": self.envs}

    def visit(self, task: str, steps: int, save_at: int | None = None) -> None:
        if task not in self.envs or self.resumed:
            self.envs[task] = self.handed.get("envs", {}).get(task) or self.env(task)
        saved = self.middle if self.resumed == "middle" and task == "b" else 0
        made = 0

        def look() -> None:
            nonlocal made
            made += self.copies or 1
            if save_at is not None and save_at <= made < save_at + (self.copies or 1):
                self.save("middle")

        remove = self.owl.learner.at_border(look)
        with self.owl.task(task, env=self.envs[task]):
            self.agent.learn(steps - saved)
        remove()


class AgentDQN(Agent):
    actions: Any = 3

    def new_agent(self, env: Any) -> Any:
        config = DQNConfig(learning_starts=10, batch_size=8, buffer_size=500, target_every=5, update_every=2)
        return learners.DQN(env, config=config, seed=0, device="cpu")


class AgentSAC(Agent):
    actions = BOX

    def new_agent(self, env: Any) -> Any:
        config = SACConfig(
            learning_starts=10, batch_size=8, buffer_size=500, actor_hidden=(16, 16), critic_hidden=(16, 16)
        )
        return learners.SAC(env, config=config, seed=0, device="cpu")


class Model(Run):
    """A model of Stable-Baselines3; environments are pickled with their monitors."""

    kind: type = DQN
    normalized = False
    copies = 1

    def env(self, task: str, inner: Any = None) -> Any:
        discrete = self.kind in (DQN, QRDQN)

        def one() -> Any:
            return Guess(3 if discrete else BOX, sign=1 if task == "a" else -1)

        made = inner or make_vec_env(one, self.copies, vec_env_cls=DummyVecEnv)
        return VecNormalize(made, norm_reward=True) if self.normalized else made

    def make(self) -> Any:
        self.envs = {"a": self.env("a")}
        self.model = any_model(self.kind, env=self.envs["a"], **self.made())
        return self.model

    def made(self) -> dict[str, Any]:
        return {}

    def hand_over(self) -> dict[str, Any]:
        # a VecNormalize leaves out what it is around, so that is pickled
        return {"envs": {task: env.venv if self.normalized else env for task, env in self.envs.items()}}

    def visit(self, task: str, steps: int, save_at: int | None = None) -> None:
        if task not in self.envs or self.resumed:
            self.envs[task] = self.env(task, self.handed.get("envs", {}).get(task))

        def look() -> None:
            if save_at is not None and self.model.num_timesteps - save_at in range(self.due()):
                self.save("middle")

        remove = self.owl.learner.at_border(look)
        with self.owl.task(task, env=self.envs[task]):
            middle = self.resumed == "middle" and task == "b"
            made = self.model.num_timesteps if middle else 0
            self.model.learn(steps - made, reset_num_timesteps=not middle)
        remove()

    def due(self) -> int:
        frequency = self.model.train_freq
        return frequency.frequency * (1 if frequency.unit.value == "step" else 7) * self.copies


def falling(remaining: float) -> float:
    return 1e-3 * remaining


class ModelDQN(Model):
    pass


class ModelDQNFalling(Model):
    def made(self) -> dict[str, Any]:
        return {"learning_rate": falling, "train_freq": (1, "episode")}


class ModelQRDQN(Model):
    kind = QRDQN


class ModelSAC(Model):
    kind = SAC


class ModelSACNormalized(Model):
    kind = SAC
    normalized = True
    copies = 2


class ModelSACgSDE(Model):
    kind = SAC

    def made(self) -> dict[str, Any]:
        return {"use_sde": True}


class ModelTD3(Model):
    kind = TD3

    def made(self) -> dict[str, Any]:
        return {"action_noise": NormalActionNoise(np.zeros(1), np.full(1, 0.3))}


class ModelTD3Several(ModelTD3):
    copies = 2


class ModelDDPG(Model):
    kind = DDPG

    def made(self) -> dict[str, Any]:
        noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), np.full(1, 0.5), dt=0.2)
        return {"action_noise": noise, "learning_rate": falling}


class ModelDDPGSeveral(ModelDDPG):
    copies = 2


class ModelHER(Model):
    """Hindsight: rows of an episode are sampled with goals that were reached later in it."""

    def env(self, task: str, inner: Any = None) -> Any:
        return inner or make_vec_env(
            lambda: BitFlippingEnv(n_bits=4, max_steps=7), 1, vec_env_cls=DummyVecEnv
        )

    def make(self) -> Any:
        self.envs = {"a": self.env("a")}
        settings = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": {"n_sampled_goal": 2}}
        self.model = dqn(env=self.envs["a"], observations="dict", **settings)
        return self.model


class AgentDQNVector(AgentDQN):
    copies = 2


class AgentSACVector(AgentSAC):
    copies = 2


RUNS: dict[str, type[Run]] = {
    kind.__name__: kind
    for kind in (
        OwnDQN,
        OwnDQNDeque,
        OwnSAC,
        AgentDQN,
        AgentDQNVector,
        AgentSAC,
        AgentSACVector,
        ModelDQN,
        ModelDQNFalling,
        ModelQRDQN,
        ModelSAC,
        ModelSACNormalized,
        ModelSACgSDE,
        ModelTD3,
        ModelTD3Several,
        ModelDDPG,
        ModelDDPGSeveral,
        ModelHER,
    )
}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for arguments in sys.argv[1:]:
        kind, _, folder = arguments.partition("=")
        for moment in MOMENTS:
            np.random.seed(99)  # a new process is not where the old one was
            torch.manual_seed(99)
            RUNS[kind](Path(folder), resume=moment).run()
