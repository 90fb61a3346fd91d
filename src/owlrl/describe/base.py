"""`Trained`: a network with its optimizer and target; `DescribedLearner`: a learner made of such."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Self

from owlrl._arguments import Arguments, kind_of
from owlrl.checkpoint import get_rng_state, set_rng_state
from owlrl.describe.given import as_replay, trial_problems
from owlrl.errors import OwlStateError
from owlrl.heads import (
    MultiHeadLinear,
    MultiHeadQ,
    PromotedNetwork,
    find_output_layers,
    promote_output_layers,
)
from owlrl.heads.growth import HEAD_INITS, owning_group
from owlrl.heads.modes import eval_mode, probing
from owlrl.heads.promote import Call, check_promotable, default_input
from owlrl.protocols import Consolidation, MultiHead, Stateful, TaskReplay, missing_members
from owlrl.types import HeadPointer, Transitions

__all__ = ["DescribedLearner", "HeadedNetwork", "Trained"]

HeadedNetwork = MultiHeadQ | PromotedNetwork


class Trained:
    """One trained network with its optimizer, its target, and how it is called.

    Nothing is changed before its learner is wrapped. Then its output layers are given
    heads in place (a `MultiHeadQ` has them already), together with the target's and in the optimizer.

    Args:
        network: the network that is trained.
        optimizer: trains it; several networks may share one. None if it only acts
            (``OwlWrapper.load(..., acting=True)``).
        target: its target network, or None.
        layers: names of its output layers, if they are not found automatically.
        call: ``call(network, *inputs)``, used instead of the plain call (for an actor that samples, say).
            Several outputs are joined along the last axis.
        output: how the output is read: a `owlrl.describe.outputs.Distribution` for an actor, a
            `owlrl.describe.outputs.CriticOutput` for a critic; by default the learner's usual one.
        init: how a new task's head starts: "zero" outputs 0, "fresh" draws new weights, "copy" takes
            those of the active head. At zero no action looks better than another, and an actor acts in the
            middle of its range; a random head on a trained trunk outputs noise of any size.

    >>> import copy, torch
    >>> from torch import nn
    >>> from owlrl import Trained
    >>> network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> Trained(network, torch.optim.Adam(network.parameters()), copy.deepcopy(network))
    Trained(Sequential, Adam, target=Sequential)
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer | None,
        target: nn.Module | None = None,
        *,
        layers: Sequence[str] | None = None,
        call: Call | None = None,
        output: Any = None,
        init: Literal["zero", "fresh", "copy"] = "zero",
    ) -> None:
        self.network = network
        self.optimizer = optimizer
        self.target = target
        self.layers = layers
        self.call = call
        self.output = output
        self.init = init
        self._heads: HeadedNetwork | None = network if isinstance(network, MultiHeadQ) else None
        self._target_heads: HeadedNetwork | None = target if isinstance(target, MultiHeadQ) else None

    @property
    def heads(self) -> HeadedNetwork:
        """The network with its heads."""
        return _bound(self._heads)

    @property
    def target_heads(self) -> HeadedNetwork | None:
        """The target with its heads, or None if there is no target."""
        return None if self.target is None else _bound(self._target_heads)

    @property
    def lagged(self) -> HeadedNetwork:
        """What values are bootstrapped from: the target, or the network where there is none."""
        return self.target_heads or self.heads

    @property
    def is_bound(self) -> bool:
        """Whether network and target have their heads."""
        return self._heads is not None and (self.target is None or self._target_heads is not None)

    @property
    def knows_layers(self) -> bool:
        """Whether the output layers need not be searched for."""
        return self.layers is not None or isinstance(self.network, MultiHeadQ)

    @property
    def can_be_asked(self) -> bool:
        """Whether the network can be called: a module with ``forward``, or with ``call``."""
        if not isinstance(self.network, nn.Module):
            return False
        return self.call is not None or type(self.network).forward is not nn.Module.forward

    def ask(self, *inputs: Tensor) -> Any:
        """The network's raw output: a tensor, or several."""
        return self.network(*inputs) if self.call is None else self.call(self.network, *inputs)

    def output_layers(self, example: Tensor | Sequence[Tensor] | None) -> list[str]:
        """The layers that `bind` will give heads; raises if that cannot be done."""
        if isinstance(self.network, MultiHeadQ):
            return []
        names = self.layers
        if names is None:
            names = find_output_layers(self.network, example, call=self.call)
        check_promotable(self.network, names)
        return list(names)

    def bind(self, layers: Sequence[str], pointer: HeadPointer, *, join: bool) -> None:
        """Give both networks heads on ``layers``, which follow ``pointer``.

        Args:
            layers: names of the output layers.
            pointer: the active head.
            join: whether the network may return something else than one (B, O) tensor: several tensors
                are then joined, also for those who call its module.
        """
        call = self.call or (_plain_call if join else None)
        self._heads = _with_heads(self.network, layers, pointer, call)
        if self.target is not None:
            self._target_heads = _with_heads(self.target, layers, pointer, call)

    def unbind(self, head: int) -> None:
        """Give plain networks back their output layers, with the values of ``head``."""
        for heads, optimizer in ((self._heads, self.optimizer), (self._target_heads, None)):
            if isinstance(heads, PromotedNetwork):
                heads.demote(head, optimizer=optimizer)
        if not isinstance(self.network, MultiHeadQ):
            self._heads = self._target_heads = None

    def add_head(self, *, num_actions: int | None = None) -> int:
        """Grow network, optimizer and target together; the target's head is equal."""
        index = self.heads.add_head(init=self.init, num_actions=num_actions, optimizer=self.optimizer)
        if self.target_heads is not None:
            self.target_heads.add_head(init="zero", num_actions=num_actions)
        self._copy_to_target(index)
        return index

    def reset_head(self, head: int) -> None:
        """Initialise a head again, with an equal one in the target and without optimizer state."""
        self.heads.reset_head(head, init=self.init)
        for parameter in self.heads.head_parameters(head).values():
            if self.optimizer is not None:
                self.optimizer.state.pop(parameter, None)
        self._copy_to_target(head)

    def _copy_to_target(self, head: int) -> None:
        if self.target_heads is None:
            return
        own, new = (h.head_parameters(head).values() for h in (self.target_heads, self.heads))
        with torch.no_grad():
            for old, value in zip(own, new, strict=True):
                old.copy_(value)

    def rehearsal(
        self, layers: Sequence[str], pointer: HeadPointer, memo: dict[int, Any], *, join: bool
    ) -> Trained:
        """A copy with two heads, for trials that must not change the network itself."""
        network, target = copy.deepcopy(self.network, memo), copy.deepcopy(self.target, memo)
        twin = Trained(network, None, target, call=self.call, output=self.output, init="zero")
        twin.bind(layers, pointer, join=join)
        while twin.heads.num_heads < 2:
            twin.add_head()
        return twin

    def problems(self, name: str) -> list[str]:
        """What is wrong with the description of the network that is called ``name``."""
        found = []
        if not isinstance(self.optimizer, Optimizer | None):
            found.append(f"{name}'s optimizer is {kind_of(self.optimizer)}; expected a torch.optim.Optimizer")
        if self.call is not None and not callable(self.call):
            found.append(f"{name}'s call is {self.call!r}; expected a function of the network and its inputs")
        if self.init not in HEAD_INITS:
            found.append(f"{name}'s init is {self.init!r}; expected one of {HEAD_INITS}")
        if not isinstance(self.network, nn.Module):
            return [f"{name} is {kind_of(self.network)}; expected an nn.Module", *found]
        if not self.can_be_asked:
            kind = type(self.network).__name__
            found.append(f"{name} is a {kind} without forward; define it, or pass the module that has one")
        if self.target is not None:
            found += _target_problems(name, self.target, self.network)
        return found

    def head_problems(self, name: str, example: Callable[[], Sequence[Tensor] | None]) -> list[str]:
        """Why its output layers cannot be given heads; ``example()`` is what it is called with."""
        if any(isinstance(m, MultiHeadLinear) for m in self.network.modules()):
            return [f"{name} already has heads; unwrap() its OwlWrapper first"]
        try:
            self.output_layers(example())
        except Exception as error:  # the network is the user's: anything may come
            said = str(error).replace("\n", "\n  ")  # its own list, one level deeper
            return [f"{name} cannot be given heads: {type(error).__name__}: {said}"]
        return []

    def __repr__(self) -> str:
        parts = [type(self.network).__name__, type(self.optimizer).__name__]
        if self.target is not None:
            parts.append(f"target={type(self.target).__name__}")
        return f"Trained({', '.join(parts)})"


def ownership_problems(name: str, parameters: Mapping[str, Tensor], optimizers: Iterable[Any]) -> list[str]:
    """Parameters of the network ``name`` that none of the optimizers holds."""
    known = [o for o in optimizers if isinstance(o, Optimizer)]
    missing = [n for n, p in parameters.items() if all(owning_group(o, p) is None for o in known)]
    if not missing or not known:
        return []
    return [
        f"{name}'s optimizer does not hold {name}'s parameters {missing}; expected one built from "
        f"{name}.parameters() (a deep copy of the network or of the optimizer holds other tensors)"
    ]


def _target_problems(name: str, target: object, online: nn.Module) -> list[str]:
    """Whether a target network is a copy of its online network with separate parameters."""
    if not isinstance(target, nn.Module):
        return [f"{name}'s target is {kind_of(target)}; expected an nn.Module or None"]
    own = {id(p) for p in online.parameters()}
    if any(id(p) in own for p in target.parameters()):
        return [
            f"{name}'s target is {name} itself or shares parameters with it; expected "
            f"copy.deepcopy({name}), or None"
        ]
    shapes, others = (
        {n: tuple(p.shape) for n, p in module.named_parameters()} for module in (online, target)
    )
    if shapes != others:
        odd = sorted(n for n in {*shapes, *others} if shapes.get(n) != others.get(n))
        return [f"{name}'s target differs from {name} in {odd}; expected the same names and shapes"]
    return []


def _plain_call(network: nn.Module, *inputs: Tensor) -> Any:
    return network(*inputs)


def _with_heads(
    network: nn.Module, layers: Sequence[str], pointer: HeadPointer, call: Call | None
) -> HeadedNetwork:
    if isinstance(network, MultiHeadQ):
        network.pointer = network.heads.pointer = pointer
        return network
    return promote_output_layers(network, layers=layers, pointer=pointer, call=call)


def _bound(heads: HeadedNetwork | None) -> HeadedNetwork:
    if heads is None:
        raise OwlStateError("the learner is not wrapped yet; OwlWrapper(learner) gives its networks heads")
    return heads


Preprocess = Callable[[Tensor], Tensor]


class DescribedLearner(ABC):
    """A learner described by its parts: `Trained` networks by name, a replay, a discount, schedules.

    A subclass defines what the networks' outputs mean: `inputs`, `act`, `values`, `td_errors` and
    `consolidation`; `ask` calls a network. This base does the rest of `owlrl.protocols.OffPolicyLearner`:
    heads in networks, targets and optimizers, checks, a trial row. `QLearner` describes a DQN,
    `ActorCriticLearner` a SAC, TD3 or DDPG.

    Args:
        trained: the networks by name.
        replay: as for `QLearner`.
        gamma: the discount.
        per_task: what is kept per task, by name.
        preprocess: how a batch of raw observations becomes the networks' input.
        on_task_end: called when a task ends, before anything of it is remembered.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import OwlWrapper, Trained
    >>> from owlrl.describe import DescribedLearner
    >>> from owlrl.protocols import Consolidation
    >>> from owlrl.td import taken
    >>> class Bandit(DescribedLearner):  # a value per action, no bootstrap
    ...     def inputs(self, name, rows):
    ...         return (self.prepare(rows.observation),)
    ...     def act(self, observation, heads):
    ...         return self.ask("v", heads, self.prepare(observation)).argmax(-1)
    ...     def values(self, observation):
    ...         return self.ask("v", None, self.prepare(observation)).amax(-1)
    ...     def td_errors(self, rows, heads):
    ...         return rows.reward - taken(self.ask("v", None, *self.inputs("v", rows))[heads], rows.action)
    ...     def consolidation(self, rows):
    ...         v, inputs = self.networks["v"], self.inputs("v", rows)
    ...         return {"v": Consolidation(v, v.pointer.head, inputs, (rows.action,), taken, taken)}
    >>> v = nn.Sequential(nn.Linear(4, 3))
    >>> learner = Bandit({"v": Trained(v, torch.optim.SGD(v.parameters(), 0.1))}, replay=[])
    >>> OwlWrapper(learner).learner
    Bandit(Sequential)
    """

    _joins = False  # whether networks may answer with several tensors

    def __init__(
        self,
        trained: Mapping[str, Trained],
        *,
        replay: Any = None,
        gamma: float = 0.99,
        per_task: Mapping[str, Stateful] | None = None,
        preprocess: Preprocess | None = None,
        on_task_end: Callable[[], None] | None = None,
    ) -> None:
        arguments = Arguments(type(self).__name__)
        self.gamma: float = arguments.number("gamma", gamma, least=0.0, most=1.0)
        self.preprocess = arguments.function(
            "preprocess", preprocess, "of a batch of observations", none=True
        )
        self.on_task_end = arguments.function("on_task_end", on_task_end, "without arguments", none=True)
        self.replay: TaskReplay | None = as_replay(replay, gamma=gamma)
        self.per_task: Mapping[str, Stateful] = dict(per_task or {})
        self._trained = dict(trained)
        self._wrong_arguments = arguments.problems

    @property
    def networks(self) -> dict[str, MultiHead]:
        """The trained networks by name."""
        return {name: part.heads for name, part in self._trained.items()}

    @property
    def targets(self) -> dict[str, MultiHead]:
        """The target networks, under the same names."""
        heads = {name: part.target_heads for name, part in self._trained.items()}
        return {name: target for name, target in heads.items() if target is not None}

    @property
    def optimizers(self) -> dict[str, Optimizer]:
        """The optimizer of each network, under the network's name."""
        return {name: p.optimizer for name, p in self._trained.items() if p.optimizer is not None}

    @property
    def seed(self) -> int | None:
        """None: the seed of a script is unknown here."""
        return None

    @property
    def pretrained(self) -> bool:
        """Whether some optimizer has made steps already (as far as its state tells)."""
        return any(bool(optimizer.state) for optimizer in self.optimizers.values())

    def scaling(self) -> Any:
        """None: networks see rows as ``preprocess`` makes them."""
        return None

    def finish_task(self) -> None:
        """Call ``on_task_end``, e.g. to use averaged weights."""
        if self.on_task_end is not None:
            self.on_task_end()

    def bind(self) -> None:
        """Give the networks and their targets heads; all follow one active head."""
        layers = self._output_layers()  # all are found before any is changed
        native = [part.network for part in self._trained.values() if isinstance(part.network, MultiHeadQ)]
        pointer = native[0].pointer if native else HeadPointer()
        for name, part in self._trained.items():
            part.bind(layers[name], pointer, join=self._joins)

    def unbind(self, head: int) -> None:
        """Make the networks plain again, with the values of ``head``."""
        for part in self._trained.values():
            part.unbind(head)

    def add_head(self, *, num_actions: int | None = None) -> int:
        """Grow networks, targets and optimizers together; the targets' heads are equal."""
        indices = [part.add_head(num_actions=num_actions) for part in self._trained.values()]
        return indices[0]

    def reset_head(self, head: int) -> None:
        """Initialise a head of every network and target again."""
        for part in self._trained.values():
            part.reset_head(head)

    def record(self, numbers: Mapping[str, float]) -> None:
        """Does nothing: the log of a script is unknown here; use ``OwlWrapper(watch=...)`` instead."""
        return

    def at_border(self, callback: Callable[[], None]) -> Callable[[], None] | None:
        """None: only the script's loop knows when a step is complete."""
        return None

    def set_env(self, env: object) -> None:
        """Refused: the loop of a hand-written learner chooses its environment."""
        raise OwlStateError(
            f"{type(self).__name__}: env= was given, but this learner's own loop chooses its environment; "
            "leave it out and step that environment inside the block"
        )

    def prepare(self, observation: Tensor) -> Tensor:
        """What the networks are called with for a batch of raw observations."""
        if self.preprocess is not None:
            prepared: Tensor = self.preprocess(observation)
            return prepared
        like = next(self._asked_first.network.parameters())
        return observation.to(device=like.device, dtype=like.dtype)

    def trial(self, row: Transitions | None = None) -> list[str]:
        """Run one row through all that is needed later, and return what fails.

        Before the learner is wrapped this uses copies of its networks with two heads, then
        the networks themselves, in evaluation mode. Nothing is changed, no random numbers are consumed.

        Args:
            row: a row as the replay gives it; None for one of zeros. Where not even the shape of an
                observation is known (a list and a network that does not begin with an ``nn.Linear``),
                there is nothing to try before the first row.
        """
        with _generators_restored():
            try:
                bound = all(part.is_bound for part in self._trained.values())
                learner = self if bound else self._rehearsed()
                rows = self._zeros() if row is None else row
            except Exception:  # what cannot be copied or asked yet is tried when the first row has come
                return []
            found = self._row_problems(rows)
            if found:
                return found
            with torch.no_grad(), probing(*learner._modules()):
                return trial_problems(learner, rows)

    def ask(self, name: str, heads: Tensor | int | None, *inputs: Tensor) -> Tensor:
        """A network's output, in evaluation mode and without gradients.

        (B, O) with row ``b`` by ``heads[b]``, or all by one head; (H, B, O) by every head where it is None.
        """
        network = self.networks[name]
        with torch.no_grad(), eval_mode(network.module):
            if heads is None:
                return network.all_heads(*inputs)
            if isinstance(heads, int):
                return network(*inputs, head=heads)
            return network.per_row(*inputs, heads=heads.to(inputs[0].device))

    def problems(self) -> list[str]:
        """Everything that is wrong with this description, found without changing anything."""
        found = []
        optimizers = [part.optimizer for part in self._trained.values()]
        for name, part in self._trained.items():
            found += part.problems(name)
            if part.can_be_asked:
                found += part.head_problems(name, partial(self._example_of, name))
                found += ownership_problems(name, dict(part.network.named_parameters()), optimizers)
        return found + self._common_problems()

    @abstractmethod
    def inputs(self, name: str, rows: Transitions) -> tuple[Tensor, ...]:
        """What network ``name`` is called with for these rows."""

    @abstractmethod
    def act(self, observation: Tensor, heads: Tensor | int) -> Tensor:
        """Greedy actions, row ``b`` by head ``heads[b]``, or all by one head."""

    @abstractmethod
    def values(self, observation: Tensor) -> Tensor:
        """The greedy value of every head, (H, B)."""

    @abstractmethod
    def td_errors(self, transitions: Transitions, heads: np.ndarray) -> Tensor:
        """δ (len(heads), B) of the given heads."""

    @abstractmethod
    def consolidation(self, rows: Transitions) -> dict[str, Consolidation]:
        """What a regularizer is given, per network."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(type(p.network).__name__ for p in self._trained.values())})"

    def _output_layers(self) -> dict[str, list[str]]:
        """Names of the output layers by network; raises where they are not found."""
        return {name: part.output_layers(self._example_of(name)) for name, part in self._trained.items()}

    def _example_of(self, name: str) -> tuple[Tensor, ...] | None:
        """What a network's output layers are found with; None lets the search say what it needs."""
        known = getattr(self.replay, "observation_shape", None) is not None
        return self.inputs(name, self._zeros(1)) if known else None

    def _zero_action(self, rows: int) -> Tensor:
        """Actions for rows of zeros."""
        floats = np.dtype(getattr(self.replay, "action_dtype", np.int64)).kind == "f"
        shape = getattr(self.replay, "action_shape", ())
        return torch.zeros(rows, *shape, dtype=torch.float32 if floats else torch.int64)

    def _row_problems(self, rows: Transitions) -> list[str]:
        """Problems of rows that are found before any network is called."""
        return []

    def _modules(self) -> Iterator[nn.Module]:
        for part in self._trained.values():
            yield part.heads.module
            if part.target_heads is not None:
                yield part.target_heads.module

    def _rehearsed(self) -> Self:
        """This learner with copies of its networks, which have two heads."""
        layers, twin = self._output_layers(), copy.copy(self)
        memo: dict[int, Any] = {}
        pointer = HeadPointer()
        twin._trained = {
            name: part.rehearsal(layers[name], pointer, memo, join=self._joins)
            for name, part in self._trained.items()
        }
        return twin

    def _zeros(self, rows: int = 3) -> Transitions:
        observation = self._zero_observation(rows)
        return Transitions(
            observation=observation,
            action=self._zero_action(rows),
            reward=torch.zeros(rows),
            next_observation=observation,
            terminated=torch.zeros(rows, dtype=torch.bool),
            discount=torch.full((rows,), float(self.gamma)),
        )

    def _zero_observation(self, rows: int) -> Tensor:
        """Raw observations of zeros; raises where their shape is unknown."""
        shape = getattr(self.replay, "observation_shape", None)
        if shape is not None:
            dtype = getattr(self.replay, "observation_dtype", np.float32)
            return torch.from_numpy(np.zeros((rows, *shape), dtype=dtype))
        if self.preprocess is not None:
            raise OwlStateError("the shape of a raw observation is not known yet")
        example = default_input(self._asked_first.network)
        return example.expand(rows, *example.shape[1:])

    @property
    def _asked_first(self) -> Trained:
        """The network that is called with an observation alone."""
        return next(iter(self._trained.values()))

    def _prepared_example(self) -> Tensor:
        """One observation of zeros as the networks take it; raises where its shape is unknown."""
        if getattr(self.replay, "observation_shape", None) is None:
            return default_input(self._asked_first.network)
        return self.prepare(self._zero_observation(1))

    def _common_problems(self) -> list[str]:
        found = list(self._wrong_arguments)
        replay = self.replay
        if replay is not None and (missing := missing_members(replay, TaskReplay)):
            found.append(
                f"replay is {kind_of(replay)} and lacks {', '.join(missing)}; expected a "
                "TaskScopedReplay, a list or deque of transitions, or the ReplayBuffer of CleanRL's scripts"
            )
        replayed = getattr(replay, "gamma", self.gamma)
        if replayed != self.gamma:
            found.append(f"gamma is {self.gamma!r} but the replay's is {replayed!r}; give both the same")
        for name, item in self.per_task.items():
            if missing_members(item, Stateful) or isinstance(item, Optimizer):
                found.append(
                    f"per_task[{name!r}] is {kind_of(item)}; expected an object with state_dict and "
                    "load_state_dict that is not an optimizer (those grow with the heads)"
                )
        return found


@contextmanager
def _generators_restored() -> Iterator[None]:
    """Afterwards the global generators of torch, numpy and ``random`` are where they were."""
    state = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(state)
