"""`EWCRegularizer`: what mattered for earlier tasks is held where it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from owlrl.errors import NonFiniteError, OwlStateError, raise_problems
from owlrl.fisher import squared_gradients
from owlrl.protocols import Consolidation, MultiHead
from owlrl.regularizers._checks import (
    Strength,
    check_consolidation,
    every,
    is_count,
    is_number,
    network_problems,
    strength_of,
    strength_problems,
)
from owlrl.regularizers._hooks import StepHooks, gradient_scale, owned
from owlrl.regularizers._terms import Terms, misfits, parse_terms
from owlrl.regularizers.quadratic import ewc_penalty, merge_terms
from owlrl.types import Transitions

__all__ = ["EWCRegularizer"]


@dataclass(frozen=True)
class _Active:
    """The merged quadratic of the parameters that are trained now: λA, m, and λ/2 Σ c."""

    key: tuple[object, ...]
    parameters: list[Tensor]
    stiffness: list[Tensor]
    centre: list[Tensor]
    constant: Tensor

    def fits(self, key: tuple[object, ...]) -> bool:
        """Whether nothing moved to another device, dtype, head or group since it was made."""
        return self.key == key and all(
            p.dtype == s.dtype and p.device == s.device
            for p, s in zip(self.parameters, self.stiffness, strict=True)
        )


class EWCRegularizer:
    """Elastic weight consolidation: ``Σ_tasks ½ λ Σ_i F_i (θ_i − θ*_i)²`` on trunk and active head.

    ``F`` is the mean squared gradient (`owlrl.fisher.squared_gradients`) on rows of the task and
    ``θ*`` the weights when it ended. Terms are kept by task and parameter name, and merged into
    one quadratic for use, so an update costs the same after one task and after a hundred. A task
    that is consolidated again replaces its own term. Idle heads never receive a gradient.

    Use either `penalty` in a loss of one's own or `attach` for a loop one cannot change: the
    hook adds the same gradient in closed form right before the step, hence after the
    learner's own gradient clipping. Running statistics (BatchNorm) are not protected.

    Args:
        strength: λ, or one per network name, e.g. ``{"actor": 10.0, "critic": 500.0}``, where "critic"
            stands for "critic_0", "critic_1", … too; 0 leaves a network free.
        importance: "output" differentiates the network's output (for a Q-network Q(s, a)), "loss"
            the learner's loss, which nearly vanishes once a task has been learned.
        max_samples: rows the importance is computed from, at most; evenly spread over those given.
        max_grad_norm: clips the norm of all of an attached optimizer's gradients, penalty
            included, from the first consolidated task on.
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
    >>> ewc.consolidate("left", {"q": Consolidation(q, 0, (observation,), (action,), taken, taken)})
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
        problems = strength_problems(strength)
        if importance not in ("output", "loss"):
            problems.append(f'importance is {importance!r}; expected "output" or "loss"')
        if not is_count(max_samples):
            problems.append(f"max_samples is {max_samples!r}; expected an int >= 1")
        if max_grad_norm is not None and not (is_number(max_grad_norm) and max_grad_norm > 0):
            problems.append(f"max_grad_norm is {max_grad_norm!r}; expected a finite number > 0, or None")
        if method not in ("auto", "hooks", "vmap", "loop"):
            problems.append(f'method is {method!r}; expected "auto", "hooks", "vmap" or "loop"')
        raise_problems("EWCRegularizer", problems)
        self.strength = strength
        self.importance = importance
        self.max_samples = max_samples
        self.max_grad_norm = max_grad_norm
        self.method = method
        self._networks: dict[str, MultiHead] = {}
        self._terms: Terms = {}
        self._merged: dict[str, dict[str, tuple[Tensor, Tensor, Tensor]]] = {}
        self._active: dict[int, _Active] = {}
        self._hooks = StepHooks("EWCRegularizer")
        self._warned = False

    @property
    def tasks(self) -> list[str]:
        """The tasks that are guarded, in the order they came."""
        return list(dict.fromkeys(task for terms in self._terms.values() for task in terms))

    def bind(
        self,
        networks: Mapping[str, MultiHead],
        sample: Callable[[int], Transitions] | None = None,
    ) -> None:
        """Guard these networks; terms that were loaded before must fit them."""
        self._hooks.refuse_others(self._networks, networks)
        problems = network_problems(self.strength, networks, every_name=True)
        raise_problems("EWCRegularizer.bind", problems or misfits(self._terms, networks, every_name=True))
        self._networks = dict(networks)
        self._active.clear()

    def consolidate(self, task: str, context: Mapping[str, Consolidation]) -> None:
        """Compute the term of ``task`` from its rows; replaces the one it had."""
        where = "EWCRegularizer.consolidate"
        check_consolidation(where, task, context, self.strength)
        networks = {name: c.network for name, c in context.items()}
        raise_problems(where, misfits(self._terms, networks, every_name=False))
        new = {name: self._term(c) for name, c in context.items() if strength_of(self.strength, name) > 0}
        if not self._warned and any(_has_running_statistics(networks[name].module) for name in new):
            self._warned = True
            warnings.warn(
                "EWCRegularizer: the network keeps running statistics (BatchNorm or alike), which no penalty "
                "on weights protects; later tasks will change them for all. LayerNorm has none.",
                UserWarning,
                stacklevel=2,
            )
        self._networks.update(networks)
        self._set_terms(
            {
                **self._terms,
                **{name: {**self._terms.get(name, {}), task: term} for name, term in new.items()},
            }
        )

    def penalty(self) -> Tensor:
        """The penalty on shared parameters and the active head's, a scalar; 0 before the first task."""
        if not self._merged:
            return torch.zeros(())
        active = self._current(None)
        total = active.constant
        for parameter, stiffness, centre in zip(
            active.parameters, active.stiffness, active.centre, strict=True
        ):
            total = total + ewc_penalty(parameter, stiffness, centre)
        return total

    def attach(self, optimizer: Optimizer) -> None:
        """Add the penalty's gradient before every ``optimizer.step()``."""
        self._hooks.attach(optimizer, self._add_gradient)
        self._active.clear()

    def detach(self) -> None:
        """Undo every `attach`."""
        self._hooks.detach()
        self._active.clear()

    def state_dict(self) -> dict[str, Any]:
        """Every task's importance and anchor, by network, task and parameter name."""
        return {
            "terms": {
                network: {
                    task: {"importance": dict(importance), "anchor": dict(anchor)}
                    for task, (importance, anchor) in terms.items()
                }
                for network, terms in self._terms.items()
            }
        }

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Take the terms over; if networks are bound, they must fit."""
        terms, problems = parse_terms(state_dict)
        if self._networks and not problems:
            problems = misfits(terms, self._networks, every_name=True)
        raise_problems("EWCRegularizer.load_state_dict", problems)
        self._set_terms(terms)

    def __repr__(self) -> str:
        return f"EWCRegularizer({self.strength!r}, importance={self.importance!r}, tasks={self.tasks})"

    def _term(self, c: Consolidation) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Importance and anchor of the shared parameters and of the task's own head."""
        own = {**c.network.shared_parameters(), **c.network.head_parameters(c.head)}
        infinite = [f"parameter {name!r} is not finite" for name, p in own.items() if not p.isfinite().all()]
        raise_problems("EWCRegularizer.consolidate", infinite, kind=NonFiniteError)
        rows = every((*c.inputs, *c.targets), self.max_samples)
        with c.network.pointer.at(c.head):
            importance = squared_gradients(
                c.network.module,
                c.output if self.importance == "output" else c.loss,
                rows[: len(c.inputs)],
                targets=rows[len(c.inputs) :],
                parameters=own,
                method=self.method,
            )
        anchor = {name: own[name].detach().to(f.dtype, copy=True) for name, f in importance.items()}
        return importance, anchor

    def _set_terms(self, terms: Terms) -> None:
        merged: dict[str, dict[str, tuple[Tensor, Tensor, Tensor]]] = {}
        for network, of_task in terms.items():
            names = dict.fromkeys(name for importance, _ in of_task.values() for name in importance)
            merged[network] = {
                name: merge_terms((f[name], a[name]) for f, a in of_task.values() if name in f)
                for name in names
            }
        self._terms, self._merged = terms, {name: found for name, found in merged.items() if found}
        self._active.clear()

    def _current(self, optimizer: Optimizer | None) -> _Active:
        """The quadratic of what is trained now; with ``optimizer``, of what it owns."""
        unbound = [name for name in self._merged if name not in self._networks]
        if unbound:
            raise OwlStateError(
                f"EWCRegularizer: there are terms for {unbound}, whose networks are not known; "
                "call bind({name: network})"
            )
        heads = tuple(self._networks[name].pointer.head for name in self._merged)
        sizes = () if optimizer is None else tuple(len(group["params"]) for group in optimizer.param_groups)
        active = self._active.get(id(optimizer))
        if active is None or not active.fits((heads, sizes)):
            mine = None if optimizer is None else {id(p) for p in owned(optimizer)}
            active = self._active[id(optimizer)] = self._assemble((heads, sizes), mine)
        return active

    def _assemble(self, key: tuple[object, ...], mine: set[int] | None) -> _Active:
        parameters: list[Tensor] = []
        stiffness, centres = [], []
        constant = torch.zeros(())
        for network, quadratics in self._merged.items():
            handle, strength = self._networks[network], strength_of(self.strength, network)
            live = {**handle.shared_parameters(), **handle.head_parameters(handle.pointer.head)}
            for name, parameter in live.items():
                if name not in quadratics or (mine is not None and id(parameter) not in mine):
                    continue
                total, centre, rest = quadratics[name]
                parameters.append(parameter)
                stiffness.append((strength * total).to(parameter))
                centres.append(centre.to(parameter))
                constant = constant.to(parameter) + (0.5 * strength * rest.sum()).to(parameter)
        return _Active(key, parameters, stiffness, centres, constant)

    @torch.no_grad()
    def _add_gradient(self, optimizer: Optimizer) -> None:
        """``grad += λ A (θ − m)`` for what the optimizer trains, then the clip."""
        if not self._merged:
            return
        active = self._current(optimizer)
        parameters, stiffness, centre = active.parameters, active.stiffness, active.centre
        grads = [p.grad for p in parameters if p.grad is not None]
        if not grads:
            return
        if len(grads) < len(parameters):
            with_grad = [k for k, p in enumerate(parameters) if p.grad is not None]
            parameters, stiffness, centre = (
                [column[k] for k in with_grad] for column in (parameters, stiffness, centre)
            )
        pull = torch._foreach_sub(parameters, centre)
        scale = gradient_scale(optimizer)
        if scale is not None:
            torch._foreach_mul_(pull, scale.to(pull[0].device))
        torch._foreach_addcmul_(grads, stiffness, pull)
        if self.max_grad_norm is not None:
            limit = self.max_grad_norm * (1.0 if scale is None else float(scale))
            nn.utils.clip_grad_norm_(owned(optimizer), limit)


def _has_running_statistics(module: nn.Module) -> bool:
    return any(name.rpartition(".")[2].startswith("running_") for name, _ in module.named_buffers())
