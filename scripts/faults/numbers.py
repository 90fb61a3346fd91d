"""Numbers that are not finite, in rows, weights, temperatures, outputs and losses of every learner kind."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from owlrl import MultiHeadQ, OwlWrapper
from owlrl.describe.temperature import TaskTemperature
from owlrl.errors import NonFiniteError
from owlrl.heads import MultiHeadLinear
from owlrl.learners import DQN, SAC, compiled
from scripts.faults.checks import Outcome, check
from tests import own_actor_critic, own_dqn
from tests.adapters.helpers import BOX, KINDS, Guess, any_model
from tests.learners.test_dqn import QUICK as QUICK_DQN
from tests.learners.test_sac import QUICK as QUICK_SAC
from tests.test_step_guard import Spoiled

Wrap = Callable[[Any], Any]
Made = tuple[OwlWrapper, Callable[[], object]]  # a wrapped learner, and what trains it
BAD = (np.inf, -np.inf, np.nan)
STEPS = 100  # all kinds make an update per step from the 65th on
MODELS = {kind.__name__: kind for kind in KINDS}
SCRIPTS = {
    "deque": ("multihead", "deque"),
    "plain": ("plain", "deque"),
    "dueling": ("dueling", "scoped"),
    "own SAC": ("sac", "deque"),
    "own TD3": ("td3", "scoped"),
}
AGENTS = {f"our {kind.__name__}{how}": kind for kind in (DQN, SAC) for how in ("", ", compiled")}
LEARNERS = (*MODELS, *SCRIPTS, *AGENTS)


def made(name: str, seed: int, wrap: Wrap) -> Made:
    """A learner of this kind that trains in its environment as ``wrap`` gives it back."""
    if name in MODELS:
        env = Guess() if name in ("DQN", "QRDQN") else Guess(BOX)
        # a target is not to be replaced before it was asked
        late = {"target_update_interval": 1_000} if name in ("DQN", "QRDQN") else {}
        model = any_model(MODELS[name], env=wrap(env), train_freq=1, learning_starts=30, seed=seed, **late)
        return OwlWrapper(model), lambda: model.learn(STEPS)
    if name in AGENTS:
        if AGENTS[name] is DQN:
            config: Any = replace(QUICK_DQN, batch_size=16)
            env = own_dqn.Signs()
        else:
            config = replace(QUICK_SAC, batch_size=16, learning_starts=40, actor_hidden=(16,))
            env = own_actor_critic.Push()
        agent = AGENTS[name](wrap(env), config=config, seed=seed, compile=name.endswith("compiled"))
        return OwlWrapper(agent), lambda: agent.learn(STEPS)
    kind, replay = SCRIPTS[name]
    if kind in ("sac", "td3"):
        script = own_actor_critic.make_script(kind, replay=replay, seed=seed)
        return OwlWrapper(script.learner()), lambda: own_actor_critic.train(
            script, wrap(own_actor_critic.Push()), STEPS
        )
    own = own_dqn.make_script(kind, replay=replay, seed=seed)
    return OwlWrapper(own.learner()), lambda: own_dqn.train(own, wrap(own_dqn.Signs()), STEPS)


def stopped(owl: OwlWrapper, train: Callable[[], object]) -> str:
    """What stopped training."""
    backend, compiled.BACKEND = compiled.BACKEND, None  # the same function, without waiting for a compiler
    try:
        with owl.task("a"):
            train()
    except NonFiniteError as error:
        return str(error)
    finally:
        compiled.BACKEND = backend
    return "it was taken"


@check("a number that is not finite, at a random step", short=2, quick=40, full=400)
def rows(count: int, rng: random.Random, directory: Path) -> Outcome:
    """In reward or observation: refused before it can be used."""
    outcome, kinds = Outcome(), dict.fromkeys(LEARNERS, 0)
    for run in range(count):
        quantity, value = rng.choice(["reward", "observation"]), rng.choice(BAD)
        name, at, envs = rng.choice(LEARNERS), rng.randrange(70, 90), []
        kinds[name] += 1

        def wrap(
            env: Any, quantity: str = quantity, value: float = value, at: int = at, envs: Any = envs
        ) -> Any:
            envs.append(Spoiled(env, quantity, value, at))
            return envs[0]

        said = stopped(*made(name, run, wrap))
        good = quantity in said and "task 'a'" in said and envs[0].left == 0
        if name in MODELS or "deque" in SCRIPTS.get(name, ()):  # other people's stores: an update is refused
            place = f"place {at - 1} " if name in MODELS else f"row {at - 1} "
            # a torch distribution may stop at it before the optimizer does
            good = good and place in said and ("not made" in said or "and there was a ValueError" in said)
        outcome.judge(good, f"{name}, {quantity} {value} in step {at}: {said}")
    outcome.note = ", ".join(f"{kind} {number}" for kind, number in kinds.items())
    return outcome


class Meddler(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Calls a function in one of its steps."""

    def __init__(self, env: Any, at: int, function: Callable[[], None]) -> None:
        super().__init__(env)
        self.left, self.function = at, function

    def step(self, action: Any) -> Any:
        """One step."""
        self.left -= 1
        if self.left == 0:
            self.function()
        return self.env.step(action)


class Fault:
    """Spoils something of a learner, and knows when it must show."""

    def __init__(self, name: str, seed: int, at: int, spoil: Callable[[Fault], str]) -> None:
        self.at, self.spoil = at, spoil
        self.what, self.due = "", 0  # when it must have shown: in which step of the environment after it
        self.before: dict[str, list[Tensor]] = {}
        self.compiled = name.endswith("compiled")
        self.owl, self.train = made(name, seed, self._wrap)

    def _wrap(self, env: Any) -> Any:
        self.env = Meddler(env, self.at, self._meddle)
        return self.env

    def _meddle(self) -> None:
        with torch.no_grad():
            self.what = self.spoil(self)
        self.note()

    def note(self) -> None:
        """Keep the weights as they are now."""
        self.before = copy.deepcopy(dict(self.numbers()))

    def networks(self) -> dict[str, Any]:
        """Networks and targets by name."""
        learner = self.owl.learner
        both = {"network": learner.networks, "target": learner.targets}
        return {f"{what} {name}": n for what, networks in both.items() for name, n in networks.items()}

    def when_asked(self, layer: torch.nn.Module, given: float | None = None) -> None:
        """Due when ``layer`` is asked, which from now on is ``given`` this number only, unless it is None."""
        self.due = -STEPS

        def hook(_: Any, inputs: tuple[Tensor]) -> tuple[Tensor]:
            if self.due == -STEPS:
                acting = len(inputs[0]) == 1  # before a step of the environment; else in an update
                self.due = self.env.left - acting
                self.note()
            return inputs if given is None else (torch.full_like(inputs[0], given),)

        layer.register_forward_pre_hook(hook)

    def numbers(self) -> Iterator[tuple[str, list[Tensor]]]:
        """The weights of each network."""
        for name, network in self.owl.learner.networks.items():
            yield name, [p.detach() for p in network.module.parameters()]

    def problems(self) -> str:
        """What is wrong with how training was stopped; empty if nothing is."""
        said = stopped(self.owl, self.train)
        # an action that an actor's output has become may be refused when its row is added
        places = ("step ", "update ", "TaskScopedReplay.add")
        parts = [] if "task 'a'" in said and any(place in said for place in places) else ["nowhere"]
        parts += [] if self.env.left == self.due else [f"{self.due - self.env.left} steps late"]
        parts += [f"{name} was changed" for name in self._kept(said) if name in self._changed()]
        return f"{self.what}: {', '.join(parts)}; {said}" if parts else ""

    def _changed(self) -> list[str]:
        pairs = {name: zip(self.before[name], now, strict=True) for name, now in self.numbers()}
        return [
            name
            for name, found in pairs.items()
            if any(not torch.equal(old.nan_to_num(), new.nan_to_num()) for old, new in found)
        ]

    def _kept(self, said: str) -> list[str]:
        """The networks whose weights did not change, as the message has it."""
        names = list(self.before)
        if "no weight was changed" in said or "not made and the weights are as before" in said:
            return names
        return [n for n in names if f"the step of the '{n}' optimizer was not made" in said]


def weight(rng: random.Random) -> Callable[[Fault], str]:
    """Puts a number that is not finite into a weight of a network or a target, or into a temperature."""

    def spoil(fault: Fault) -> str:
        value, own = rng.choice(BAD), fault.owl.learner.per_task.values()
        spots = {
            f"{name}, {key}": parameter
            for name, network in fault.networks().items()
            for key, parameter in network.module.named_parameters()
        }
        alphas = [item.log_alpha for item in own if isinstance(item, TaskTemperature)]
        name = rng.choice([*spots, *["alpha"] * (len(alphas) * len(spots) // 4)])
        found = alphas[0] if name == "alpha" else spots[name]
        found.view(-1)[rng.randrange(found.numel())] = value
        return f"{name} is {value}"

    return spoil


def output_layers(network: Any) -> dict[str, torch.nn.Module]:
    """Those of its active head, by name."""
    if isinstance(network, MultiHeadQ):
        return {"head": network.heads[0]}
    return {key: m for key, m in network.module.named_modules() if isinstance(m, MultiHeadLinear)}


def output(rng: random.Random) -> Callable[[Fault], str]:
    """Lets an output layer of a network or a target answer with infinities; all weights stay finite."""

    def spoil(fault: Fault) -> str:
        name, network = rng.choice(list(fault.networks().items()))
        key, layer = rng.choice(list(output_layers(network).items()))
        size = rng.choice([3e38, np.inf, np.nan])
        fault.when_asked(layer, size)
        return f"{name}, {key} is given {size}"

    return spoil


def size(rng: random.Random) -> Callable[[Fault], str]:
    """Makes all weights of a network or a target so large that its outputs overflow, or their squares do."""

    def spoil(fault: Fault) -> str:
        factor = rng.choice([1e12, 1e15])
        name, network = rng.choice(list(fault.networks().items()))
        for parameter in network.module.parameters():
            parameter.mul_(factor)
        if not fault.compiled:  # there all networks are asked in every update, or copies of them
            fault.when_asked(next(iter(output_layers(network).values())))
        return f"{name} times {factor}"

    return spoil


def loss(rng: random.Random) -> Callable[[Fault], str]:
    """Adds a number to the loss of one of the next calls of ``backward``: the gradient stays as it is."""

    def spoil(fault: Fault) -> str:
        value, calls, plain = rng.choice(BAD), rng.randrange(3), torch.Tensor.backward
        fault.due = -STEPS

        def backward(found: Tensor, *args: Any, **kwargs: Any) -> None:
            nonlocal calls
            if calls:
                calls -= 1
                return plain(found, *args, **kwargs)
            torch.Tensor.backward = plain  # type: ignore[method-assign]
            fault.due = fault.env.left
            fault.note()
            return plain(found + value, *args, **kwargs)

        torch.Tensor.backward = backward  # type: ignore[assignment, method-assign]
        return f"the loss of the {calls + 1}. call is {value}"

    return spoil


def _spoiled(
    count: int,
    rng: random.Random,
    kinds: dict[str, Callable[[random.Random], Callable[[Fault], str]]],
    among: Iterable[str] = LEARNERS,
) -> Outcome:
    outcome, learners = Outcome(), dict.fromkeys(among, 0)
    for run in range(count):
        name = rng.choice(list(learners))
        learners[name] += 1
        # layers of a compiled update are copies: what is done to the originals is not seen there
        fit = [kind for kind in kinds if not (kind == "output" and name.endswith("compiled"))]
        fault = Fault(name, run, rng.randrange(70, 90), kinds[rng.choice(fit)](rng))
        problems = fault.problems()
        outcome.judge(not problems, f"{name}, run {run}: {problems}")
    shown = ", ".join(f"{kind} {number}" for kind, number in learners.items())
    outcome.note = f"{count - len(outcome.faults)} were stopped by the next update: {shown}"
    return outcome


@check("a weight or temperature that is not finite, at a random step", short=2, quick=40, full=400)
def spoiled_weights(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Put there by hand: the next update must be refused, and the message be true."""
    return _spoiled(count, rng, {"weight": weight})


@check("an output, target or log-variance that is not finite, at a random step", short=2, quick=40, full=400)
def spoiled_outputs(count: int, rng: random.Random, directory: Path) -> Outcome:
    """Of networks with finite weights: the first update that uses it must be refused."""
    return _spoiled(count, rng, {"output": output, "size": size})


@check("a loss that is not finite, its gradient is, at a random step", short=2, quick=40, full=400)
def spoiled_losses(count: int, rng: random.Random, directory: Path) -> Outcome:
    """As a script makes it that divides by zero: the step that would follow must be refused."""
    # a compiled update calls no ``backward``: its own loss is one of the numbers that it looks at
    return _spoiled(count, rng, {"loss": loss}, [name for name in LEARNERS if not name.endswith("compiled")])
