"""`CombinedRegularizer`: several regularizers as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from owlrl.errors import OwlStateError, OwlTypeError, OwlValueError, raise_problems
from owlrl.heads.growth import Owned
from owlrl.protocols import Consolidation, OffPolicyLearner
from owlrl.regularizers.base import Pull, Regularizer

__all__ = ["CombinedRegularizer"]


class CombinedRegularizer(Regularizer):
    """The sum of several penalties.

    Attached to an optimizer, every part looks at the learner's own gradient; then all pulls are added, and
    the parts adjust the sum in the order given. A part that fails in `remember` or `load_state_dict` leaves
    all of them as they were.

    Args:
        regularizers: at least one, all different objects.

    >>> from owlrl.regularizers import CombinedRegularizer, DistillationRegularizer, EWCRegularizer
    >>> both = CombinedRegularizer([DistillationRegularizer(), EWCRegularizer(100.0)])
    >>> float(both.penalty())
    0.0
    >>> CombinedRegularizer([])
    Traceback (most recent call last):
    ...
    owlrl.errors.OwlValueError: CombinedRegularizer: regularizers is empty; expected at least one
    """

    def __init__(self, regularizers: Sequence[Regularizer]) -> None:
        self.regularizers = regularizers
        parts = tuple(regularizers)
        wrong = [type(part).__name__ for part in parts if not isinstance(part, Regularizer)]
        if wrong:
            raise OwlTypeError(
                f"CombinedRegularizer: regularizers holds {wrong}; expected Regularizers: subclass "
                "owlrl.regularizers.Regularizer"
            )
        problems = [] if parts else ["regularizers is empty; expected at least one"]
        if len({id(part) for part in parts}) < len(parts):
            problems.append("regularizers holds the same object twice; make two, or raise its strength")
        raise_problems("CombinedRegularizer", problems)
        super().__init__()
        self._parts = parts

    @property
    def needs_no_gradient(self) -> bool:
        """While no part needs one."""
        return all(part.needs_no_gradient for part in self._parts)

    @property
    def tasks(self) -> list[str]:
        """The tasks of which a part keeps something."""
        return list(dict.fromkeys(task for part in self._parts for task in part.tasks))

    def bind(self, learner: OffPolicyLearner, memories: Mapping[str, Any] | None = None) -> None:
        """Bind every part."""
        super().bind(learner, memories)
        for part in self._parts:
            part.bind(learner, memories)

    def remember(self, task: str, context: Mapping[str, Consolidation]) -> None:
        """Remember ``task`` in every part, or in none."""
        before = [part.state_dict() for part in self._parts]
        try:
            for part in self._parts:
                part.remember(task, context)
        except BaseException:
            self._restore(before)
            raise
        self.networks = {**self.networks, **{name: c.network for name, c in context.items()}}

    def forget(self, task: str) -> None:
        """Forget ``task`` in every part."""
        for part in self._parts:
            part.forget(task)

    def term(self, name: str) -> Tensor | None:
        """The sum of the parts' terms, each times its strength."""
        found = [term for part in self._parts if (term := part._weighted_term(name)) is not None]
        return sum(found[1:], start=found[0]) if found else None

    def adjust(self, name: str, gradients: dict[str, Tensor]) -> dict[str, Tensor]:
        """The gradients after all parts, one after the other."""
        for part in self._parts:
            gradients = {**gradients, **part.adjust(name, gradients)}
        return gradients

    def attach(self, optimizer: Optimizer) -> None:
        """Add the sum before every ``optimizer.step()``; refused twice, and where a part is attached."""
        if any(other is optimizer for part in self._parts for other, _ in part._attached):
            raise OwlStateError(
                f"CombinedRegularizer.attach: a part is attached to this {type(optimizer).__name__} already, "
                "and twice would double its penalty; detach() that part first"
            )
        super().attach(optimizer)

    def watch(self) -> dict[str, float]:
        """The parts' numbers, each under the part's place, e.g. ``0/pull/q``, and the sum's pull."""
        own = super().watch()
        for place, part in enumerate(self._parts):
            own.update({f"{place}/{name}": value for name, value in part.watch().items()})
        return own

    def state_dict(self) -> dict[str, Any]:
        """The parts' states, in order."""
        return {"parts": [part.state_dict() for part in self._parts]}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Load every part, or none."""
        parts = state_dict.get("parts") if isinstance(state_dict, Mapping) else None
        if not isinstance(parts, list | tuple) or len(parts) != len(self._parts):
            got = len(parts) if isinstance(parts, list | tuple) else "none"
            raise OwlValueError(
                f"CombinedRegularizer.load_state_dict: state_dict is of {got} regularizers; "
                f"expected {len(self._parts)}"
            )
        before = [part.state_dict() for part in self._parts]
        try:
            for part, state in zip(self._parts, parts, strict=True):
                part.load_state_dict(state)
        except BaseException:
            self._restore(before)
            raise

    def __repr__(self) -> str:
        return f"CombinedRegularizer([{', '.join(map(repr, self._parts))}])"

    def _pull(self, name: str, mine: Owned, scale: Tensor | None) -> Pull | None:
        total: dict[int, tuple[Any, Tensor]] = {}
        for part in self._parts:
            pull = part._pull(name, mine, scale)
            if pull is None:
                continue
            part._measure(name, pull, scale)
            for parameter, grad in zip(*pull, strict=True):
                before = total.get(id(parameter))
                total[id(parameter)] = (parameter, grad if before is None else before[1] + grad)
        return ([p for p, _ in total.values()], [g for _, g in total.values()]) if total else None

    @property
    def _adjusts(self) -> bool:
        return any(part._adjusts for part in self._parts)

    def _finish(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        for part in self._parts:
            part._finish(optimizer, scale)

    def _refuse_unbound(self) -> None:
        for part in self._parts:
            part._refuse_unbound()

    def _restore(self, states: list[dict[str, Any]]) -> None:
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)
