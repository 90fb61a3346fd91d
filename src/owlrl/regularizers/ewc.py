"""`EWCRegularizer`: weights that matter for earlier tasks stay near their old values."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl._arguments import Arguments
from owlrl.errors import NonFiniteError, raise_problems
from owlrl.fisher import squared_gradients
from owlrl.heads.growth import Owned
from owlrl.protocols import Consolidation, MultiHead
from owlrl.regularizers.base import (
    Fused,
    Pull,
    Regularizer,
    Strength,
    check_strength,
    evenly,
    owned,
    strength_of,
    tensor_problems,
    total_norm,
)

__all__ = ["EWCRegularizer", "ewc_penalty", "merge_terms"]


def ewc_penalty(parameter: Tensor, importance: Tensor, anchor: Tensor, strength: float = 1.0) -> Tensor:
    """``½ λ Σ_i F_i (θ_i − θ*_i)²``: three tensors of one shape → a scalar.

    >>> import torch
    >>> from owlrl.regularizers import ewc_penalty
    >>> ewc_penalty(torch.tensor([1.0, 5.0]), torch.tensor([3.0, 0.0]), torch.tensor([3.0, 1.0]), 10.0)
    tensor(60.)
    """
    return 0.5 * strength * (importance * (parameter - anchor).square()).sum()


def merge_terms(
    terms: Iterable[tuple[Tensor, Tensor]], merged: tuple[Tensor, Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """One quadratic for many: ``Σ_t F_t (θ − θ*_t)² = A (θ − m)² + c``, all of the parameter's shape.

    ``A = Σ F_t`` and ``m = Σ F_t θ*_t / Σ F_t`` (0 where nothing matters). Terms are added one
    by one with the weighted-mean update: nothing large is subtracted from something large.

    Args:
        terms: importance F_t and anchor θ*_t of each task, at least one.
        merged: what earlier terms were merged into, where there were any.

    >>> import torch
    >>> from owlrl.regularizers import merge_terms
    >>> one, three = torch.tensor(1.0), torch.tensor(3.0)
    >>> merge_terms([(one, torch.tensor(0.0)), (three, torch.tensor(4.0))])  # 1·θ² + 3·(θ − 4)²
    (tensor(4.), tensor(3.), tensor(12.))
    """
    pairs = list(terms)
    if merged is None:
        merged = (torch.zeros_like(pairs[0][0]),) * 3
    total, centre, constant = merged
    for importance, anchor in pairs:
        before, total = total, total + importance
        share = torch.where(total > 0, importance / total, torch.zeros_like(total))
        distance = anchor - centre
        centre = centre + share * distance
        constant = constant + before * share * distance.square()
    return total, centre, constant


@dataclass(frozen=True)
class _Quadratic:
    """The merged quadratic of a network's shared and active parameters: A and m of each, and Σ c."""

    head: int
    parameters: list[nn.Parameter]
    stiffness: list[Tensor]
    centre: list[Tensor]
    constant: Tensor

    def fits(self, head: int) -> bool:
        """Whether nothing moved to another device, dtype or head since it was made."""
        return self.head == head and all(
            p.dtype == s.dtype and p.device == s.device
            for p, s in zip(self.parameters, self.stiffness, strict=True)
        )


class EWCRegularizer(Regularizer):
    """Elastic weight consolidation: ``Σ_tasks ½ λ Σ_i F_i (θ_i − θ*_i)²`` on trunk and active head.

    ``F`` is the mean squared gradient (`owlrl.fisher.squared_gradients`) on rows of the task and
    ``θ*`` the weights when it ended. Terms are kept by task and parameter name, and merged into
    one quadratic for use, so an update costs the same after one task and after a hundred. A task
    that is remembered again replaces its own term. Idle heads never receive a gradient.

    Use either `penalty` in your own loss or `attach` for a loop that you cannot change: the
    hook adds the same gradient in closed form right before the step, hence after the
    learner's own gradient clipping. Running statistics (BatchNorm) are not protected.

    Args:
        strength: λ, or one per network name, e.g. ``{"actor": 10.0, "critic": 500.0}``, where "critic"
            stands for "critic_0", "critic_1", … too; 0 leaves a network free.
        importance: "output" differentiates the network's output (for a Q-network Q(s, a)), "loss"
            the learner's loss, which nearly vanishes once a task has been learned.
        max_samples: rows the importance is computed from, at most; evenly spread over those given.
            Their weights, where they have any, count.
        max_grad_norm: clips the norm of all of an attached optimizer's gradients, penalty
            included, from the first remembered task on.
        method: how the importance is computed, see `squared_gradients`.

    >>> import torch
    >>> from torch import nn
    >>> from owlrl.heads import MultiHeadQ
    >>> from owlrl.protocols import Consolidation
    >>> from owlrl.regularizers import EWCRegularizer
    >>> from owlrl.td import taken
    >>> q = MultiHeadQ(nn.Linear(4, 8), 8, 2)
    >>> ewc = EWCRegularizer(500.0)
    >>> observation, action = torch.ones(10, 4), torch.zeros(10, dtype=torch.int64)
    >>> ewc.remember("left", {"q": Consolidation(q, 0, (observation,), (action,), taken, taken)})
    >>> ewc.penalty().item()
    0.0
    >>> with torch.no_grad():
    ...     _ = q.heads[0].bias.add_(0.1)  # Q(s, a=0) changes by 0.1: ½ · 500 · 1 · 0.1²
    >>> round(ewc.penalty().item(), 3)
    2.5
    """

    def __init__(
        self,
        strength: Strength,
        *,
        importance: Literal["output", "loss"] = "output",
        max_samples: int = 60_000,
        max_grad_norm: float | None = None,
        method: Literal["auto", "hooks", "vmap", "loop"] = "auto",
    ) -> None:
        arguments = Arguments("EWCRegularizer")
        check_strength(arguments, strength)
        self.importance = arguments.choice("importance", importance, ("output", "loss"))
        self.max_samples = arguments.integer("max_samples", max_samples)
        self.max_grad_norm = arguments.number("max_grad_norm", max_grad_norm, above=0.0, none=True)
        self.method = arguments.choice("method", method, ("auto", "hooks", "vmap", "loop"))
        arguments.check()
        super().__init__(strength)
        self._merged: dict[str, dict[str, tuple[Tensor, Tensor, Tensor]]] = {}
        self._in_merged: list[str] = []  # the tasks that are merged
        self._entries: list[dict[str, Any]] = []  # and what was kept of each
        self._current: dict[str, _Quadratic] = {}
        self._warned = False

    def remember(self, task: str, context: Mapping[str, Consolidation]) -> None:
        """Compute the term of ``task`` from its rows; replaces the one it had."""
        held = self._check_context(task, context)
        new = {name: self._entry(c) for name, c in held.items()}
        if not self._warned and any(_has_running_statistics(c.network.module) for c in held.values()):
            self._warned = True
            warnings.warn(
                "EWCRegularizer: the network keeps running statistics (BatchNorm or alike), which no penalty "
                "on weights protects; later tasks will change them for all. LayerNorm has none.",
                UserWarning,
                stacklevel=2,
            )
        self._keep(task, context, new)

    @property
    def needs_no_gradient(self) -> bool:
        """While nothing is kept."""
        return not self.kept

    def term(self, name: str) -> Tensor | None:
        """``½ Σ_i F_i (θ_i − θ*_i)²`` over tasks, shared parameters and the active head's."""
        if name not in self._merged:
            return None
        now = self._quadratic(name)
        total = now.constant
        for parameter, stiffness, centre in zip(now.parameters, now.stiffness, now.centre, strict=True):
            total = total + ewc_penalty(parameter, stiffness, centre)
        return total

    def fused(self, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> Fused | None:
        """The closed form of ``_pull``; not where all gradients are clipped afterwards."""
        name = self._only_network(optimizer)
        if name is None or name not in self._merged or self.max_grad_norm is not None:
            return None
        now, strength = self._quadratic(name), strength_of(self.strength, name)
        place = {id(p): k for k, p in enumerate(parameters)}
        where = tuple(place.get(id(p), -1) for p in now.parameters)
        if -1 in where:
            return None

        def pull(
            _: Any, own: list[Tensor], gradients: list[Tensor], stiffness: list[Tensor], centre: list[Tensor]
        ) -> tuple[list[Tensor], list[Tensor]]:
            added = [strength * s * (own[k] - c) for k, s, c in zip(where, stiffness, centre, strict=True)]
            norms = [total_norm([gradients[k] for k in where]), total_norm(added)]
            found = list(gradients)
            for k, each in zip(where, added, strict=True):
                found[k] = found[k] + each
            return found, norms

        def told(norms: Sequence[Tensor]) -> None:
            if self._is_measured(name):
                self._relative[name] = norms[1] / norms[0]

        inputs = (now.stiffness, now.centre)
        return Fused(("ewc", strength, where), pull, lambda: inputs, told, self.networks[name])

    @torch.no_grad()
    def _pull(self, name: str, mine: Owned, scale: Tensor | None) -> Pull | None:
        """``λ A (θ − m)`` of what is trained: the gradient of the term in closed form."""
        if name not in self._merged:
            return None
        now = self._quadratic(name)
        rows = zip(now.parameters, now.stiffness, now.centre, strict=True)
        trained = [row for row in rows if id(row[0]) in mine and row[0].grad is not None]
        if not trained:
            return None
        parameters, stiffness, centre = (list(column) for column in zip(*trained, strict=True))
        pull = torch._foreach_sub(parameters, centre)
        torch._foreach_mul_(pull, stiffness)
        torch._foreach_mul_(pull, strength_of(self.strength, name))
        return parameters, list(pull)

    def _finish(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        if self.max_grad_norm is not None and self._merged:
            limit = self.max_grad_norm * (1.0 if scale is None else float(scale))
            nn.utils.clip_grad_norm_(owned(optimizer), limit)

    def _entry(self, c: Consolidation) -> dict[str, dict[str, Tensor]]:
        """Importance and anchor of the shared parameters and of the task's own head."""
        own = {**c.network.shared_parameters(), **c.network.head_parameters(c.head)}
        infinite = [f"parameter {name!r} is not finite" for name, p in own.items() if not p.isfinite().all()]
        raise_problems("EWCRegularizer.remember", infinite, kind=NonFiniteError)
        weight = () if c.weight is None else (c.weight,)
        rows = evenly((*c.inputs, *c.targets, *weight), self.max_samples)
        with c.network.pointer.at(c.head):
            importance = squared_gradients(
                c.network.module,
                c.output if self.importance == "output" else c.loss,
                rows[: len(c.inputs)],
                targets=rows[len(c.inputs) : len(c.inputs) + len(c.targets)],
                weights=rows[-1] if weight else None,
                parameters=own,
                method=self.method,
            )
        anchor = {name: own[name].detach().to(f.dtype, copy=True) for name, f in importance.items()}
        return {"importance": importance, "anchor": anchor}

    def _changed(self) -> None:
        super()._changed()
        tasks = list(self.kept)
        if tasks[: len(self._in_merged)] != self._in_merged or any(
            self.kept[task] is not entries for task, entries in zip(tasks, self._entries, strict=False)
        ):  # not the ones before and more: from the beginning
            self._merged, self._entries = {}, []
        for task in tasks[len(self._entries) :]:
            for network, entry in self.kept[task].items():
                names = self._merged.setdefault(network, {})
                for name, importance in entry["importance"].items():
                    names[name] = merge_terms([(importance, entry["anchor"][name])], names.get(name))
        self._in_merged, self._entries = tasks, list(self.kept.values())
        self._current.clear()

    def _quadratic(self, name: str) -> _Quadratic:
        """The quadratic of what is trained now in network ``name``."""
        network = self.networks[name]
        head, now = network.pointer.head, self._current.get(name)
        if now is None or not now.fits(head):
            live = {**network.shared_parameters(), **network.head_parameters(head)}
            held = [(p, *self._merged[name][key]) for key, p in live.items() if key in self._merged[name]]
            constant = torch.zeros(())
            for parameter, *_, rest in held:
                constant = constant.to(parameter) + (0.5 * rest.sum()).to(parameter)
            now = self._current[name] = _Quadratic(
                head,
                [p for p, *_ in held],
                [total.to(p) for p, total, *_ in held],
                [centre.to(p) for p, _, centre, _ in held],
                constant,
            )
        return now

    def _entry_problems(self, where: str, entry: Any, network: MultiHead | None) -> list[str]:
        try:
            importance, anchor = entry["importance"], entry["anchor"]
            found = _value_problems(where, importance, anchor)
        except (AttributeError, KeyError, TypeError) as error:
            return [f"{where} cannot be read: {type(error).__name__}: {error}"]
        return found or ([] if network is None else tensor_problems(where, importance, network))


def _value_problems(where: str, importance: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> list[str]:
    if set(importance) != set(anchor):
        return [f"{where}: importance and anchor are for different parameters"]
    found = []
    for name, f in importance.items():
        a = anchor[name]
        if f.shape != a.shape:
            found.append(f"{where}: {name!r} has importance {tuple(f.shape)} and anchor {tuple(a.shape)}")
        if not (f.isfinite().all() and a.isfinite().all() and (f >= 0).all()):
            found.append(f"{where}: {name!r} is not finite, or its importance is negative")
    return found


def _has_running_statistics(module: nn.Module) -> bool:
    return any(name.rpartition(".")[2].startswith("running_") for name, _ in module.named_buffers())
