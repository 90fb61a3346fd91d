"""The smallest study: a script's DQN on signs that mean something else in each task; seconds per run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from owlrl import ExpWeightsSelector, ModelEvidence, OwlWrapper, TDErrorEvidence
from owlrl.experiments import Learned, Method, Recipe, Study, Wrapped, described, train_model
from tests.own_dqn import Signs, make_script, train

STEPS = 140


class Model:
    """A script's own things behind the two names that `compare` asks for."""

    def __init__(self, env: Any, seed: int, *, rate: float = 1e-2) -> None:
        self.script = make_script("multihead", seed=seed)
        for group in self.script.optimizer.param_groups:
            group["lr"] = rate
        self.learner = self.script.learner()
        self.env, self.seed = env, seed

    def train(self, steps: int) -> None:
        train(self.script, self.env, steps, seed=self.seed)


def make_model(env: Any, seed: int) -> Model:
    return Model(env, seed)


def cannot_learn(env: Any, seed: int) -> Model:
    return Model(env, seed, rate=0.0)


def plain(seed: int) -> Signs:
    return Signs(0)


def shifted(seed: int) -> Signs:
    return Signs(1)


TASKS = {"plain": plain, "shifted": shifted}


class Shuffled(ModelEvidence):
    """Evidence that says of every task what is true of another."""

    def losses(self, learner: Any, transitions: Any, heads: np.ndarray) -> np.ndarray:
        return super().losses(learner, transitions, heads)[::-1].copy()


def misled(model: Any, seed: int) -> OwlWrapper:
    return OwlWrapper(described(model), evidence=Shuffled(seed=seed), seed=seed)


def forgetful(model: Any, seed: int) -> OwlWrapper:
    """When a task ends the heads of the others are reset."""

    def lose() -> None:
        for record in owl.tasks.values():
            if record.head != model.script.q.pointer.head:
                owl.learner.reset_head(record.head)

    owl = OwlWrapper(model.script.learner(on_task_end=lose), seed=seed)
    return owl


class Fresh(Method):
    """A method of one's own, found by its dotted name."""

    name, about = "fresh model", "all that was learned is thrown away before each task"

    def start(self, make_model, env, seed):
        return FreshLearned(make_model, seed)


class FreshLearned(Learned):
    def __init__(self, make_model, seed):
        self.make_model, self.seed = make_model, seed

    def train(self, task, env, steps, watch=None):
        self.model = self.make_model(env, self.seed)
        train_model(self.model, env, steps, watch=watch)


class Failing(Method):
    name = "fails"

    def start(self, make_model, env, seed):
        raise RuntimeError("as it should")


def numbers(study: Study) -> dict:
    """All that was measured, without times."""
    return {
        (trial.method, trial.seed): [
            {name: value for name, value in row.items() if name != "seconds"} for row in trial.rows
        ]
        for trial in study.trials
    }


def slowly(seed: int) -> ExpWeightsSelector:
    """A selector of one's own, found by its dotted name."""
    return ExpWeightsSelector(eta=0.1, seed=seed)


def own_evidence(seed: int) -> TDErrorEvidence:
    return TDErrorEvidence(power=2)


OWN = Recipe("own", "heads that start as copies", init="copy")

STUDY = """
from helper_beside import LENGTH
from tests.experiments.signs import make_model, plain, shifted

tasks = {"plain": plain, "shifted": shifted}
steps, methods, seeds, eval_episodes = LENGTH, ["bare"], 2, 2
"""


def write_study(directory: Path, text: str = STUDY) -> Path:
    (directory / "helper_beside.py").write_text("LENGTH = 60\n", encoding="utf-8")
    path = directory / "my_study.py"
    path.write_text(text, encoding="utf-8")
    return path


METHODS = {method.name: method for method in (Wrapped("misled", misled), Wrapped("forgetful", forgetful))}
torch.set_num_threads(1)
