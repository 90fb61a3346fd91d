"""`Regularizer`: the base class of all protection against forgetting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from owlrl._arguments import Arguments
from owlrl.errors import OwlError, OwlStateError, OwlTypeError, raise_problems
from owlrl.fisher.importance import weight_problems
from owlrl.heads.growth import Owned, lend
from owlrl.heads.modes import all_shown, parameters_of
from owlrl.protocols import Consolidation, MultiHead, OffPolicyLearner
from owlrl.types import check_head

__all__ = ["Regularizer"]

Strength = float | Mapping[str, float]
Pull = tuple[list[nn.Parameter], list[Tensor]]  # parameters, and what is added to the gradient of each
MEASURED = 16  # every so many pulls their size is compared with the learner's gradient, for `watch`


class Fused(NamedTuple):
    """A pull as a pure function, for a step that is compiled as a whole (`owlrl.learners.compiled`).

    Attributes:
        key: functions with the same key are the same.
        pull: ``pull(forward, parameters, gradients, *inputs)`` gives the gradients with the pull, and tensors
            for ``told``; ``forward(parameters, heads, *rows)`` is the network's output (B, A), each row by
            its weights in ``heads``, each (B, ...).
        inputs: makes the inputs of the step that comes now.
        told: is called with the tensors when a step was made.
        network: the network that is pulled.
        heads: which of the parameters are those of a head; empty if ``forward`` is not needed.
    """

    key: Hashable
    pull: Callable[..., tuple[list[Tensor], list[Tensor]]]
    inputs: Callable[[], tuple[Any, ...]]
    told: Callable[[Sequence[Tensor]], None]
    network: MultiHead
    heads: tuple[int, ...] = ()

    @classmethod
    def without_pull(cls, network: MultiHead, inputs: Callable[[], tuple[Any, ...]]) -> Fused:
        """For a step that is not pulled: the same function as without a regularizer."""
        return cls(None, lambda _, __, gradients: (gradients, []), inputs, lambda _: None, network)


class Regularizer(ABC):
    """Base of all regularizers: write `remember` and `term`, and it works in `OwlWrapper`.

    The base knows the networks (`bind`), adds the gradient of each network's ``strength * term(name)``
    right before an optimizer steps (`attach`), sums the terms for your own loss (`penalty`),
    forgets tasks and saves what was put into ``kept``.

    A step pre-hook sees complete gradients whatever the loop does: accumulated, unscaled by a
    ``GradScaler``, zeroed in place or set to None. It comes after the learner's own gradient clipping. A
    parameter that a term does not reach keeps its gradient, or its None.

    Args:
        strength: factor of the term, or one per network name, e.g. ``{"actor": 10.0, "critic": 500.0}``,
            where "critic" means "critic_0", "critic_1", … too; 0 leaves a network free.

    Attributes:
        kept: what is kept, by task and network name; tensors, numbers, strings, lists and dicts are saved.
        networks: the protected networks by name.
        learner: the learner that was bound, or None.
        memories: the rows of each task (a mapping of `owlrl.memory.TaskMemory`), or None.

    A penalty on the distance of the trunk from its weights at the end of each task:

    >>> import torch
    >>> from torch import nn
    >>> from owlrl import MultiHeadQ, QLearner
    >>> from owlrl.regularizers import Regularizer
    >>> class StayNear(Regularizer):
    ...     def remember(self, task, context):
    ...         self.kept[task] = {
    ...             name: {key: p.detach().clone() for key, p in c.network.shared_parameters().items()}
    ...             for name, c in context.items()
    ...         }
    ...     def term(self, name):
    ...         own = self.networks[name].shared_parameters()
    ...         old = [entry[name] for entry in self.kept.values() if name in entry]
    ...         return sum((own[k] - p).square().sum() for o in old for k, p in o.items()) if old else None
    >>> q = MultiHeadQ(nn.Linear(4, 8), 8, 2)
    >>> optimizer = torch.optim.SGD(q.parameters(), lr=0.1)
    >>> near = StayNear(500.0)
    >>> near.bind(QLearner(q, None, optimizer))
    >>> near.attach(optimizer)  # `OwlWrapper(learner, regularizer=StayNear(500.0))` does these two
    >>> near.penalty().item()
    0.0
    """

    def __init__(self, strength: Strength = 1.0) -> None:
        arguments = Arguments(type(self).__name__)
        self.strength = check_strength(arguments, strength)
        arguments.check()
        self.kept: dict[str, dict[str, Any]] = {}
        self.networks: dict[str, MultiHead] = {}
        self.learner: Any = None
        self.memories: Mapping[str, Any] | None = None
        self._attached: list[tuple[Optimizer, RemovableHandle]] = []
        self._unbound: list[str] = []  # networks of which something is kept and that are not known
        self._trained: dict[tuple[int, ...], list[str]] = {}  # networks by optimizer
        self._pulls: dict[str, int] = {}  # per network, how often it was pulled
        self._relative: dict[str, Tensor] = {}  # per network, the pull's norm over the gradient's

    # --- to be written by a subclass ---

    @abstractmethod
    def remember(self, task: str, context: Mapping[str, Consolidation]) -> None:
        """Keep what ``task``, which has just been learned, needs; a task seen before replaces its own."""

    @abstractmethod
    def term(self, name: str) -> Tensor | None:
        """The penalty on network ``name``, a scalar with gradient; None if nothing holds it."""

    def adjust(self, name: str, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """Change the gradients of network ``name``, by parameter name, after all terms were added.

        For what no penalty can express, such as a projection. Those that are not returned stay as they are.
        """
        return gradients

    # --- done by the base ---

    @property
    def needs_no_gradient(self) -> bool:
        """Whether a step may be made without showing its gradient here, e.g. while nothing is kept."""
        return False

    def fused(self, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Fused | None:
        """The pull as a pure function of the trained ``parameters``, to compile; None if it is none."""
        return None

    @property
    def tasks(self) -> list[str]:
        """The tasks of which something is kept, in order of arrival."""
        return list(self.kept)

    def bind(self, learner: OffPolicyLearner, memories: Mapping[str, Any] | None = None) -> None:
        """Protect the networks of ``learner``; what is already kept must fit them.

        Args:
            learner: whose networks are protected.
            memories: the rows of each task, a mapping from task to `owlrl.memory.TaskMemory`.
        """
        where, networks = f"{type(self).__name__}.bind", dict(learner.networks)
        if self._attached and any(networks.get(n) is not network for n, network in self.networks.items()):
            raise OwlStateError(
                f"{where}: it is already attached to an optimizer; make another {type(self).__name__} for "
                "another learner, or detach() this one first"
            )
        problems = self._network_problems(networks, every_name=True)
        raise_problems(where, problems or self._misfits(self.kept, networks, every_name=True))
        self.networks, self.learner, self.memories = networks, learner, memories
        self._changed()

    def forget(self, task: str) -> None:
        """Drop everything of ``task``."""
        if task in self.kept:
            self._set_kept({other: entry for other, entry in self.kept.items() if other != task})

    def penalty(self) -> Tensor:
        """The sum of ``strength * term`` over all networks, a scalar; 0 while nothing is kept."""
        self._refuse_unbound()
        total = torch.zeros(())
        for name in self.networks:
            term = self._weighted_term(name)
            if term is not None:
                total = total + term
        return total

    def attach(self, optimizer: Optimizer) -> None:
        """Add the terms' gradients before every ``optimizer.step()``; refused twice."""
        where = f"{type(self).__name__}.attach"
        if not isinstance(optimizer, Optimizer):
            raise OwlTypeError(
                f"{where}: optimizer is a {type(optimizer).__name__}; expected a torch Optimizer"
            )
        if any(other is optimizer for other, _ in self._attached):
            raise OwlStateError(
                f"{where}: this {type(optimizer).__name__} is attached already, and twice would double the "
                "penalty; detach() first"
            )
        self._trained.clear()
        self._attached.append((optimizer, optimizer.register_step_pre_hook(self._before_step)))

    def detach(self) -> None:
        """Undo every `attach`."""
        while self._attached:
            self._attached.pop()[1].remove()

    def watch(self) -> dict[str, float]:
        """Numbers for a log: the pull's norm over that of the learner's gradient, as ``pull/<network>``."""
        return {f"pull/{name}": float(ratio) for name, ratio in self._relative.items()}

    def state_dict(self) -> dict[str, Any]:
        """Copies of all that is kept."""
        return {"kept": copied(self.kept)}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take over what was kept; if networks are bound, it must fit them."""
        kept, problems = self._parse(state_dict)
        raise_problems(f"{type(self).__name__}.load_state_dict", problems)
        self._set_kept(kept)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.strength!r}, tasks={self.tasks})"

    # --- seams between the base and the built-in regularizers ---

    def _weighted_term(self, name: str) -> Tensor | None:
        strength = strength_of(self.strength, name)
        term = self.term(name) if strength else None
        return None if term is None else strength * term

    def _pull(self, name: str, mine: Owned, scale: Tensor | None) -> Pull | None:
        """What is added to the gradients of network ``name``, at the parameters whose ids are ``mine``.

        ``scale`` is by what the learner's own gradients are still scaled; the pull itself is not.
        """
        with torch.enable_grad():
            loss = self._weighted_term(name)
            if loss is None:
                return None
            return gradient_of(loss, parameters_of(self.networks[name].module), mine)

    @property
    def _adjusts(self) -> bool:
        return type(self).adjust is not Regularizer.adjust

    def _finish(self, optimizer: Optimizer, scale: Tensor | None) -> None:  # noqa: B027, few need it
        """Called when all gradients of an optimizer are as they will be."""

    def _changed(self) -> None:
        """Called when ``kept`` or the networks were replaced."""
        self._trained.clear()
        self._unbound = [name for name in _names(self.kept) if name not in self.networks]

    def _entry_problems(self, where: str, entry: Any, network: MultiHead | None) -> list[str]:
        """What is wrong with what is kept of one task for one network, which may not be known."""
        return []

    def _set_kept(self, kept: dict[str, dict[str, Any]]) -> None:
        self.kept = kept
        self._changed()

    def _parse(self, state_dict: Any) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """What a state dict holds, as copies, and all that is wrong with it."""
        if not isinstance(state_dict, Mapping) or not isinstance(state_dict.get("kept"), Mapping):
            return {}, ['state_dict has no "kept"; expected what state_dict() returned']
        kept: dict[str, dict[str, Any]] = copied(state_dict["kept"])
        wrong = [task for task, entries in kept.items() if not isinstance(entries, dict)]
        if wrong:
            return {}, [f"kept[{task!r}] cannot be read: expected a dict by network name" for task in wrong]
        networks: Mapping[str, MultiHead | None] = self.networks or {name: None for name in _names(kept)}
        return kept, self._misfits(kept, networks, every_name=bool(self.networks))

    def _misfits(
        self,
        kept: Mapping[str, Mapping[str, Any]],
        networks: Mapping[str, MultiHead | None],
        *,
        every_name: bool,
    ) -> list[str]:
        """What is kept and does not fit ``networks``; with ``every_name`` also networks that are missing."""
        found = [
            f"something is kept for network {name!r}; the networks are {sorted(networks)}"
            for name in _names(kept)
            if every_name and name not in networks
        ]
        for task, entries in kept.items():
            for name, entry in entries.items():
                if name in networks:
                    where = f"what is kept of task {task!r} for network {name!r}"
                    found += self._entry_problems(where, entry, networks[name])
        return found

    def _network_problems(self, networks: Mapping[str, MultiHead], *, every_name: bool) -> list[str]:
        """Networks that are none or have no strength; with ``every_name`` also strengths without network."""
        found = [
            f"network {name!r} is a {type(network).__name__}; expected a MultiHead; "
            "make one with MultiHeadQ or promote_output_layers"
            for name, network in networks.items()
            if not isinstance(network, MultiHead)
        ]
        if isinstance(self.strength, Mapping):
            meant = {_key(self.strength, name) for name in networks}
            if meant - set(self.strength) or (every_name and set(self.strength) - meant):
                found.append(
                    f"strength is for {sorted(self.strength)}; expected the networks {sorted(networks)}; "
                    "give each a number (0 leaves it free)"
                )
        return found

    def _check_context(self, task: object, context: object) -> dict[str, Consolidation]:
        """Raise one error with all that is wrong with the arguments of `remember`; the entries to keep."""
        arguments = Arguments(f"{type(self).__name__}.remember")
        if not isinstance(task, str) or not task:
            arguments.problem(f"task is {task!r}; expected a name")
        entries = context if isinstance(context, Mapping) else {}
        if not entries:
            arguments.problem(f"context is {context!r}; expected a Consolidation per network name")
        right = {name: c for name, c in entries.items() if isinstance(c, Consolidation)}
        arguments.problems += [
            f"context[{name!r}] is a {type(c).__name__}; expected a Consolidation"
            for name, c in entries.items()
            if name not in right
        ]
        networks = {name: c.network for name, c in right.items()}
        arguments.problems += self._network_problems(networks, every_name=False)
        for name, c in right.items():
            arguments.problems += _row_problems(name, c)
        arguments.check()
        raise_problems(arguments.where, self._misfits(self.kept, networks, every_name=False))
        return {name: c for name, c in right.items() if strength_of(self.strength, name) != 0}

    def _keep(self, task: str, context: Mapping[str, Consolidation], entries: dict[str, Any]) -> None:
        """Take over what was made of ``context`` for ``task``; its networks are known from now on."""
        self.networks = {**self.networks, **{name: c.network for name, c in context.items()}}
        self._set_kept({**self.kept, task: {**self.kept.get(task, {}), **entries}} if entries else self.kept)

    def _refuse_unbound(self) -> None:
        if self._unbound or (self.kept and not self.networks):
            raise OwlStateError(
                f"{type(self).__name__}: something is kept for {self._unbound or _names(self.kept)}, whose "
                "networks are not known; call bind(learner)"
            )

    # --- the hook ---

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if kwargs.get("closure", args[1] if len(args) > 1 else None) is not None:
            raise OwlStateError(
                f"{type(self).__name__}: optimizer.step was given a closure, which computes gradients after "
                "this hook; detach() and add penalty() to the loss inside the closure"
            )
        self._refuse_unbound()
        if self.needs_no_gradient:
            return
        number = next((k for k, (own, _) in enumerate(self._attached) if own is optimizer), 0)
        mine = Owned(optimizer, number)
        # fused optimizers unscale in their step
        scale: Tensor | None = getattr(optimizer, "grad_scale", None)
        for name in self._trained_by(mine, len(optimizer.param_groups)):
            pull = self._pull(name, mine, scale)
            if pull is not None:
                self._measure(name, pull, scale)
                _add(*pull, scale)
                lend(optimizer, pull[0])
            if self._adjusts:
                self._adjust(name, mine, scale)
        self._finish(optimizer, scale)

    def _trained_by(self, mine: Owned, groups: int) -> list[str]:
        """The networks of which an optimizer trains a part; looked for once."""
        key = (mine.number, groups, len(self.networks))
        if key not in self._trained:
            self._trained[key] = [name for name, network in self.networks.items() if _trains(mine, network)]
        return self._trained[key]

    @torch.no_grad()
    def _measure(self, name: str, pull: Pull, scale: Tensor | None) -> None:
        """Note how the pull compares with the gradient of the parameters that both reach."""
        both = [(p.grad, g) for p, g in zip(*pull, strict=True) if p.grad is not None]
        if self._is_measured(name) and both:
            own, added = (torch.stack(torch._foreach_norm(list(c))).norm() for c in zip(*both, strict=True))
            self._relative[name] = added * (1.0 if scale is None else scale.to(added)) / own

    def _is_measured(self, name: str) -> bool:
        """Count a pull; whether its size is to be noted."""
        count = self._pulls[name] = self._pulls.get(name, -1) + 1
        return count % MEASURED == 0

    def _only_network(self, optimizer: Optimizer) -> str | None:
        """The network that an attached optimizer trains, if it is one."""
        number = next((k for k, (own, _) in enumerate(self._attached) if own is optimizer), None)
        if number is None:
            return None
        names = self._trained_by(Owned(optimizer, number), len(optimizer.param_groups))
        return names[0] if len(names) == 1 else None

    @torch.no_grad()
    def _adjust(self, name: str, mine: Container[int], scale: Tensor | None) -> None:
        network = self.networks[name]
        with all_shown(network.pointer):
            named = dict(network.module.named_parameters())
        parameters = {key: p for key, p in named.items() if id(p) in mine and p.grad is not None}
        factor = 1.0 if scale is None else float(scale)
        gradients = {key: p.grad / factor for key, p in parameters.items() if p.grad is not None}
        for key, gradient in self.adjust(name, gradients).items():
            if key not in parameters:
                raise OwlStateError(
                    f"{type(self).__name__}.adjust gave a gradient for {key!r}; expected names of those given"
                )
            own = parameters[key].grad
            assert own is not None
            own.copy_(gradient * factor)


def _trains(mine: Container[int], network: MultiHead) -> bool:
    """Whether some parameter of the network is ``mine``: its idle heads are trained with the others."""
    active = network.head_parameters(network.pointer.head).values()
    return any(id(p) in mine for p in active) or any(
        id(p) in mine for p in network.shared_parameters().values()
    )


def gradient_of(loss: Tensor, parameters: Iterable[nn.Parameter], mine: Container[int]) -> Pull:
    """Gradient of ``loss`` for those of ``parameters`` that are trained, ``mine`` and reached by it."""
    meant = [p for p in parameters if id(p) in mine and p.requires_grad]
    grads = torch.autograd.grad(loss, meant, allow_unused=True) if meant and loss.requires_grad else ()
    reached = [(p, g) for p, g in zip(meant, grads, strict=False) if g is not None]
    return [p for p, _ in reached], [g for _, g in reached]


@torch.no_grad()
def _add(parameters: list[nn.Parameter], grads: list[Tensor], scale: Tensor | None) -> None:
    if scale is not None:
        grads = [g * scale.to(g) for g in grads]
    there = [(p.grad, g) for p, g in zip(parameters, grads, strict=True) if p.grad is not None]
    if there:
        torch._foreach_add_([own for own, _ in there], [g for _, g in there])
    for parameter, grad in zip(parameters, grads, strict=True):
        if parameter.grad is None:  # a copy: autograd may share its results, fused optimizers need the layout
            parameter.grad = torch.empty_like(parameter).copy_(grad)


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The norm of all of them together, in float64."""
    norm: Tensor = torch.stack([x.norm().double() for x in tensors]).norm()
    return norm


def owned(optimizer: Optimizer) -> list[Tensor]:
    """All parameters of an optimizer."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def check_strength(arguments: Arguments, strength: Any, *, none: bool = False) -> Any:
    """The strength to store: a finite number >= 0, or one per network name; with ``none`` also None."""
    if isinstance(strength, Mapping) and strength:
        inner = Arguments("")
        for name, value in strength.items():
            inner.number(name, value, least=0.0)
        if not inner.problems:
            return strength
    elif not isinstance(strength, Mapping):
        inner = Arguments("")
        checked = inner.number("strength", strength, least=0.0, none=none)
        if not inner.problems:
            return checked
    expected = f"a finite number >= 0, or one per network name{', or None' * none}"
    arguments.problem(f"strength is {strength!r}; expected {expected}")
    return strength


def strength_of(strength: Strength | None, network: str) -> float:
    """The strength for one network; "critic" stands for "critic_0", "critic_1", … too; None counts as 1."""
    if strength is None:
        return 1.0
    return float(strength[_key(strength, network)] if isinstance(strength, Mapping) else strength)


def _key(strength: Mapping[str, float], network: str) -> str:
    """The name in ``strength`` that is meant for ``network``: its own, or that of all its like."""
    kind, _, number = network.rpartition("_")
    return kind if network not in strength and number.isdecimal() else network


def _row_problems(name: str, c: Consolidation) -> list[str]:
    found = []
    if isinstance(c.network, MultiHead):
        try:
            check_head(f"context[{name!r}]", c.head, c.network.num_heads)
        except OwlError as error:
            found.append(str(error))
    tensors = (*c.inputs, *c.targets)
    if not c.inputs or any(not isinstance(x, Tensor) or x.dim() == 0 for x in tensors):
        found.append(f"context[{name!r}]: inputs and targets must be tuples of tensors with a row per sample")
    elif len({len(x) for x in tensors}) > 1 or len(tensors[0]) == 0:
        rows = [len(x) for x in tensors]
        found.append(f"context[{name!r}]: inputs and targets have {rows} rows; expected the same number >= 1")
    elif c.weight is not None:
        found += weight_problems(f"context[{name!r}]: weight", c.weight, len(tensors[0]))
    return found


def _names(kept: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The networks for which something is kept."""
    return list(dict.fromkeys(name for entries in kept.values() for name in entries))


def copied(tree: Any) -> Any:
    """The same nest with copies of all tensors: parts of one tensor cannot be saved apart."""
    if isinstance(tree, Tensor):
        return tree.detach().clone()
    if isinstance(tree, Mapping):
        return {key: copied(value) for key, value in tree.items()}
    return [copied(value) for value in tree] if isinstance(tree, list | tuple) else tree


def evenly(tensors: tuple[Tensor, ...], at_most: int) -> tuple[Tensor, ...]:
    """At most ``at_most`` rows, evenly spread: (N, ...) → (min(N, at_most), ...) for each."""
    total = len(tensors[0]) if tensors else 0
    if total <= at_most:
        return tensors
    rows = torch.arange(at_most) * total // at_most
    return tuple(x[rows.to(x.device)] for x in tensors)


def tensors_of(network: MultiHead) -> dict[str, Tensor]:
    """Parameters and buffers by name, those that share a tensor under each of their names."""
    with all_shown(network.pointer):
        return {
            **dict(network.module.named_parameters(remove_duplicate=False)),
            **dict(network.module.named_buffers(remove_duplicate=False)),
        }


def tensor_problems(where: str, stored: Mapping[str, Tensor], network: MultiHead) -> list[str]:
    """Stored tensors that a network does not have, or has in another shape."""
    found, own = [], tensors_of(network)
    for name, tensor in stored.items():
        if name not in own:
            found.append(f"{where} has {name!r}, which the network has not")
        elif own[name].shape != tensor.shape:
            shapes = f"of shape {tuple(tensor.shape)}; the network's is {tuple(own[name].shape)}"
            found.append(f"{where} has {name!r} {shapes}")
    return found
